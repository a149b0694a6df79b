//! That every verb is patient in the same way: a table of all that the client sends, each of which is turned away once, for
//! each reason that may pass, and for those that do not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use oci::{Client, Digest, Error, Layout, Mount, Options, Reference, Repository, Silent};

use crate::client::{BODY, Fetch, OK, blob, manifest, options, repository};
use crate::push::{TYPE, registry};
use crate::server::{Request, Server, reply};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 4] = [
        ("verbs::f39_retry_after_is_obeyed_on_each", retry_after_is_obeyed),
        ("verbs::f39_retry_after_has_a_cap_on_each", retry_after_has_a_cap),
        ("verbs::f40_a_quota_fails_at_once_on_each", a_quota_fails_at_once),
        ("verbs::f41_what_may_pass_is_tried_again_on_each", what_may_pass_is_tried_again),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

/// Longer than any of these trials takes: who waits for it has not read `Retry-After`.
const LONG_PAUSE: Duration = Duration::from_secs(60);

/// What the client sends, for what, and how to tell it from what else is sent then.
struct Verb {
    name: &'static str,
    is_it: fn(&Request) -> bool,
    work: fn(&Bench, &Server) -> oci::Result<()>,
}

const VERBS: [Verb; 11] = [
    Verb {
        name: "GET of a manifest by tag",
        is_it: |request| request.method == "GET" && request.path.ends_with("/manifests/1"),
        work: |bench, server| bench.client.resolve(&repository(server).tagged("1").unwrap()).map(drop),
    },
    Verb {
        name: "GET of a manifest by digest",
        is_it: |request| request.method == "GET" && request.path.contains("/manifests/sha256:"),
        work: |bench, server| bench.client.manifest(&repository(server), &Digest::of(&manifest())).map(drop),
    },
    Verb {
        name: "GET of a blob",
        is_it: |request| request.method == "GET" && request.path.contains("/blobs/sha256:"),
        work: |bench, server| Fetch::new().run(&bench.client, server),
    },
    Verb {
        name: "HEAD of a tag",
        is_it: |request| request.method == "HEAD" && request.path.contains("/manifests/"),
        work: |bench, server| {
            let tag = Reference::Tagged(repository(server).tagged("1").unwrap());
            bench.client.head(&tag).map(|found| assert!(found.is_none()))
        },
    },
    Verb {
        name: "POST of a session",
        is_it: |request| request.method == "POST" && request.path.ends_with("/uploads/"),
        work: Bench::push,
    },
    Verb {
        name: "POST of a mount",
        is_it: |request| request.method == "POST" && request.path.contains("?mount="),
        work: |bench, server| {
            let from = Repository::parse(&format!("{}/the/base", server.host())).unwrap();
            let mount = bench.client.mount(&from, &repository(server), &blob())?;
            assert!(matches!(mount, Mount::Upload(_)));
            Ok(())
        },
    },
    Verb { name: "PUT of a blob", is_it: |request| request.method == "PUT" && request.body == BODY, work: Bench::push },
    Verb { name: "PATCH of a chunk", is_it: |request| request.method == "PATCH", work: Bench::push_in_chunks },
    Verb {
        name: "PUT of a manifest",
        is_it: |request| request.method == "PUT" && request.path.contains("/manifests/"),
        work: |bench, server| {
            let tag = Reference::Tagged(repository(server).tagged("1").unwrap());
            bench.client.put_manifest(&tag, TYPE, b"{ }").map(drop)
        },
    },
    Verb {
        name: "GET of a token",
        is_it: |request| request.method == "GET" && request.path.starts_with("/token"),
        work: |bench, server| resolve_guarded(&bench.client, server),
    },
    Verb {
        name: "POST of an identity token",
        is_it: |request| request.method == "POST" && request.path.starts_with("/token"),
        work: Bench::resolve_as_someone,
    },
];

/// A client, and a layout with the blob.
struct Bench {
    client: Client,
    full: Layout,
    options: Options,
}

impl Bench {
    fn push(&self, server: &Server) -> oci::Result<()> {
        self.client.push_blob(&repository(server), &blob(), &self.full, &Silent)
    }

    fn push_in_chunks(&self, server: &Server) -> oci::Result<()> {
        let to = Repository::parse(&format!("{}/chunks/only", server.host())).unwrap();
        self.client.push_blob(&to, &blob(), &self.full, &Silent)
    }

    /// With an identity token for the server.
    fn resolve_as_someone(&self, server: &Server) -> oci::Result<()> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.json");
        let text = format!(r#"{{"auths":{{"{}":{{"identitytoken":"it"}}}}}}"#, server.host());
        std::fs::write(&config, text).unwrap();
        let client = Client::new(Options { credentials: Some(config), ..self.options.clone() }).unwrap();
        resolve_guarded(&client, server)
    }
}

fn resolve_guarded(client: &Client, server: &Server) -> oci::Result<()> {
    let repository = Repository::parse(&format!("{}/guarded/image", server.host())).unwrap();
    client.resolve(&repository.tagged("1").unwrap()).map(drop)
}

/// A registry with all of it, and its token server, which turns `verb` away by `answer`, `times` times. How often it did.
fn turning_away(verb: &Verb, times: usize, answer: Vec<u8>) -> (Server, Arc<AtomicUsize>) {
    let (is_it, turned) = (verb.is_it, Arc::<AtomicUsize>::default());
    let count = Arc::clone(&turned);
    let refused = Mutex::new(false);
    let server = registry(move |request, _| {
        if is_it(request) && count.load(Ordering::SeqCst) < times {
            count.fetch_add(1, Ordering::SeqCst);
            return Some(answer.clone());
        }
        let host = request.header("host").unwrap();
        let challenge = format!(r#"Bearer realm="http://{host}/token",service="it""#);
        let guarded = request.path.contains("/guarded/") && request.header("authorization").is_none();
        match request.method.as_str() {
            _ if request.path.starts_with("/token") => Some(reply(OK, &[], br#"{"token":"t"}"#)),
            _ if guarded => Some(reply("401 No", &[("WWW-Authenticate", &challenge)], b"")),
            "GET" if request.path.contains("/manifests/") => Some(reply(OK, &[], &manifest())),
            "GET" if request.path.contains("/blobs/sha256:") => Some(reply(OK, &[], BODY)),
            "PUT" if request.path.contains("/chunks/") && !std::mem::replace(&mut refused.lock().unwrap(), true) => {
                Some(reply("413 Large", &[], b""))
            }
            _ => None,
        }
    });
    (server, turned)
}

/// Turns each verb away, `times` times, and tells `check` what came of it and how often that was.
fn each(times: usize, answer: &[u8], options: &Options, check: impl Fn(&str, oci::Result<()>, usize)) {
    let dir = tempfile::tempdir().unwrap();
    let full = Layout::open_or_create(dir.path()).unwrap();
    full.put(&blob().media_type, BODY).unwrap();
    for verb in &VERBS {
        let (server, turned) = turning_away(verb, times, answer.to_vec());
        let bench =
            Bench { client: Client::new(options.clone()).unwrap(), full: full.clone(), options: options.clone() };
        let result = (verb.work)(&bench, &server);
        check(verb.name, result, turned.load(Ordering::SeqCst));
    }
}

fn retry_after_is_obeyed() {
    let patient = Options { first_pause: LONG_PAUSE, ..options() };
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    for headers in [&[("Retry-After", "0")][..], &[("Date", date), ("Retry-After", date)]] {
        for status in ["429 Too Many Requests", "503 Service Unavailable"] {
            let start = Instant::now();
            each(2, &reply(status, headers, b""), &patient, |name, result, turned| {
                assert!(result.is_ok(), "{name}: {result:?}");
                assert_eq!(turned, 2, "{name}");
            });
            assert!(start.elapsed() < LONG_PAUSE, "our own pause was made instead");
        }
    }
}

fn retry_after_has_a_cap() {
    let answer = reply("429 Too Many Requests", &[("Retry-After", "61")], b"");
    each(9, &answer, &options(), |name, result, turned| {
        assert!(matches!(result, Err(Error::Throttled { seconds: 61, .. })), "{name}: {result:?}");
        assert_eq!(turned, 1, "{name}");
    });
}

fn a_quota_fails_at_once() {
    let words = br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}"#;
    let headers = [("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "0;w=21600")];
    each(9, &reply("429 Too Many Requests", &headers, words), &options(), |name, result, turned| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Quota { limit: Some(100), window: Some(21_600), .. }), "{name}: {error:?}");
        let told = "the quota of 100 requests in 21600 s is used up";
        // A HEAD brings no words.
        let words =
            if name.starts_with("HEAD") { "" } else { ": TOOMANYREQUESTS: You have reached your pull rate limit." };
        assert!(error.to_string().ends_with(&format!("{told}{words}")) && error.hint().is_some(), "{name}: {error}");
        assert_eq!(turned, 1, "{name}");
    });
    // Who says when to come again means that.
    let headers = [&headers[..], &[("Retry-After", "0")]].concat();
    each(1, &reply("429 Too Many Requests", &headers, words), &options(), |name, result, turned| {
        assert!(result.is_ok(), "{name}: {result:?}");
        assert_eq!(turned, 1, "{name}");
    });
}

fn what_may_pass_is_tried_again() {
    for status in ["408 Slow", "429 Too Many Requests", "500 No", "502 No", "503 No", "504 No"] {
        each(3, &reply(status, &[], b""), &options(), |name, result, turned| {
            assert!(result.is_ok(), "{name}: {status}: {result:?}");
            assert_eq!(turned, 3, "{name}: {status}");
        });
    }
    // It hangs up.
    each(3, b"", &options(), |name, result, turned| {
        assert!(result.is_ok(), "{name}: {result:?}");
        assert_eq!(turned, 3, "{name}");
    });
    each(9, &reply("503 No", &[], b""), &options(), |name, result, turned| {
        assert!(matches!(result, Err(Error::Refused { status: 503, .. })), "{name}: {result:?}");
        assert_eq!(turned, 4, "{name}");
    });
    each(9, &reply("501 No", &[], b""), &options(), |name, result, turned| {
        assert!(matches!(result, Err(Error::Refused { status: 501, .. })), "{name}: {result:?}");
        assert_eq!(turned, 1, "{name}");
    });
}
