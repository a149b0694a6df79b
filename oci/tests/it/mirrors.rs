//! Mirrors: asked before their registry, and passed over for it wherever they fail. The registry of these trials is a server
//! on loopback like its mirrors, so that nothing else is asked.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use libtest_mimic::Trial;
use oci::{Client, Digest, Document, Error, Interrupt, Layout, Options, Reference, Repository, Silent};

use crate::client::{BODY, Fetch, OK, manifest, nobody, options, repository};
use crate::server::{Request, Server, head, reply, send};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 8] = [
        ("mirrors::are_asked_first_and_in_order", are_asked_first),
        ("mirrors::give_way_to_the_registry_wherever_they_fail", give_way_wherever_they_fail),
        ("mirrors::out_of_reach_are_not_asked_again", out_of_reach_are_not_asked_again),
        ("mirrors::the_error_is_the_registrys_and_tells_of_them", the_error_is_the_registrys),
        ("mirrors::out_of_reach_with_their_registry_are_unreachable", all_unreachable),
        ("mirrors::are_no_way_around_a_failure_of_ours", no_way_around_our_own_failures),
        ("mirrors::see_no_credentials_of_their_registry", see_no_credentials),
        ("mirrors::are_for_pulls_only", are_for_pulls_only),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

/// A registry, or a mirror, that has everything.
fn good() -> Server {
    Server::start(|request, stream| send(stream, &have(request)))
}

fn have(request: &Request) -> Vec<u8> {
    reply(OK, &[], if request.path.contains("/manifests/") { manifest() } else { BODY.to_vec() }.as_slice())
}

/// A client that knows mirrors of a registry, `HOST:PORT`.
fn client(registry: &str, mirrors: &[String], more: Options) -> Client {
    let mirrors = mirrors.iter().map(|mirror| (registry.to_owned(), mirror.clone())).collect();
    Client::new(Options { mirrors, ..more }).unwrap()
}

fn url(server: &Server) -> String {
    format!("http://{}/cache", server.host())
}

fn resolve(client: &Client, registry: &str) -> oci::Result<Document> {
    let repository = Repository::parse(&format!("{registry}/some/image")).unwrap();
    client.resolve(&repository.tagged("1").unwrap())
}

fn are_asked_first() {
    let (registry, first, second) = (good(), good(), good());
    let client = client(&registry.host(), &[url(&first), url(&second)], options());
    resolve(&client, &registry.host()).unwrap();
    Fetch::new().run(&client, &registry).unwrap();
    let blob = format!("GET /cache/v2/some/image/blobs/{}", Digest::of(BODY));
    assert_eq!(first.calls(), ["GET /cache/v2/some/image/manifests/1", &blob]);
    assert_eq!((second.requests().len(), registry.requests().len()), (0, 0));
}

fn give_way_wherever_they_fail() {
    let words = br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}"#;
    let away = [("Location", "http://mirror.example/blob")];
    let realm = [("WWW-Authenticate", r#"Bearer realm="http://mirror.example/token""#)];
    for (answer, requests, why) in [
        (reply("404 No", &[], b""), 1, "has it not"),
        (reply("401 No", &[], b""), 1, "wants to know who we are"),
        (reply("401 No", &realm, b""), 1, "has a token server that must not be asked"),
        (reply("403 No", &[], b""), 1, "does not let us"),
        (reply("400 No", &[], b""), 1, "does not understand us"),
        (reply("429 No", &[], words), 1, "has a quota"),
        (reply("429 No", &[("Retry-After", "3600")], b""), 1, "wants us to wait for an hour"),
        (reply("503 No", &[], b""), 4, "is out of order"),
        (reply("307 There", &away, b""), 1, "sends us where we do not go"),
        (reply("307 There", &[], b""), 1, "sends us nowhere"),
        (reply(OK, &[], b"<html> or so"), 1, "sends something else"),
        (reply(OK, &[("Docker-Content-Digest", "sha256:0")], BODY), 1, "speaks otherwise"),
        (Vec::new(), 4, "hangs up"),
        (head(OK, &[("Content-Length", "5000000000")]).into_bytes(), 1, "promises too much"),
    ] {
        for by_digest in [true, false] {
            let answer = answer.clone();
            let (registry, mirror) = (good(), Server::start(move |_, stream| send(stream, &answer)));
            let client = client(&registry.host(), &[url(&mirror)], options());
            let found = if by_digest {
                client.manifest(&repository(&registry), &Digest::of(&manifest()))
            } else {
                resolve(&client, &registry.host())
            };
            assert_eq!(found.unwrap().bytes(), manifest(), "{why}");
            assert_eq!((mirror.requests().len(), registry.requests().len()), (requests, 1), "{why}");
            Fetch::new().run(&client, &registry).unwrap();
            assert_eq!(registry.requests().len(), 2, "{why}");
        }
    }
    // One that lies about a blob costs time and no more.
    let lies = Server::start(|_, stream| send(stream, &reply(OK, &[], b"the blob's lies!")));
    let (registry, second) = (good(), good());
    let client = client(&registry.host(), &[url(&lies), url(&second)], options());
    Fetch::new().run(&client, &registry).unwrap();
    assert_eq!((second.requests().len(), registry.requests().len()), (1, 0));
}

fn out_of_reach_are_not_asked_again() {
    let (registry, silent) = (good(), Server::start(|_, stream| silence(stream)));
    let plain = good();
    // It speaks no TLS: not to be trusted, and no reason to speak to it in clear.
    let untrusted = format!("https://{}", plain.host());
    let mirrors = [format!("http://{}", nobody()), untrusted, url(&silent)];
    let client = client(&registry.host(), &mirrors, Options { read_timeout: Duration::from_millis(200), ..options() });
    for _ in 0..3 {
        Fetch::new().run(&client, &registry).unwrap();
    }
    assert_eq!((silent.requests().len(), plain.requests().len(), registry.requests().len()), (1, 0, 3));
}

/// Says nothing until the client hangs up.
fn silence(stream: &mut TcpStream) {
    let _ = io::copy(stream, &mut io::sink());
}

fn the_error_is_the_registrys() {
    let missing = |words: &'static str| {
        Server::start(move |_, stream| {
            let body = format!(r#"{{"errors":[{{"code":"MANIFEST_UNKNOWN","message":"{words}"}}]}}"#);
            send(stream, &reply("404 No", &[], body.as_bytes()));
        })
    };
    let (registry, mirror, gone) = (missing("of old"), missing("as yet"), nobody());
    let mirrors = [url(&mirror), format!("http://{gone}")];
    let error = resolve(&client(&registry.host(), &mirrors, options()), &registry.host()).unwrap_err();
    let Error::Mirrored { origin, mirrors: failures } = &error else { panic!("{error:?}") };
    assert!(matches!(**origin, Error::NotFound { .. }), "{error:?}");
    assert!(matches!(failures[..], [Error::NotFound { .. }, Error::Unreachable { .. }]), "{error:?}");
    let text = format!(
        "GET http://{}/v2/some/image/manifests/1: not found: MANIFEST_UNKNOWN: of old; its mirrors before: \
         GET {}/v2/some/image/manifests/1: not found: MANIFEST_UNKNOWN: as yet; reach http://{gone}: ",
        registry.host(),
        url(&mirror)
    );
    assert!(error.to_string().starts_with(&text), "{error}");
    // What was reached, and has it not, is not unreachable.
    let registry = nobody();
    let error = resolve(&client(&registry, &[url(&mirror)], options()), &registry).unwrap_err();
    let Error::Mirrored { origin, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**origin, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("as yet"), "{error}");
}

fn all_unreachable() {
    let (registry, mirrors) = (nobody(), [nobody(), nobody()]);
    let urls = mirrors.each_ref().map(|mirror| format!("http://{mirror}"));
    let client = client(&registry, &urls, options());
    for _ in 0..2 {
        let error = resolve(&client, &registry).unwrap_err();
        assert!(matches!(&error, Error::Unreachable { endpoint, .. } if *endpoint == format!("http://{registry}")));
        for place in [&registry, &mirrors[0], &mirrors[1]] {
            assert!(error.to_string().contains(place.as_str()), "{error}");
        }
    }
}

fn no_way_around_our_own_failures() {
    // A layout that cannot be written to.
    let (registry, mirror) = (good(), good());
    let client_of = |mirror: &Server, more| client(&registry.host(), &[url(mirror)], more);
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_create(dir.path()).unwrap();
    std::fs::remove_dir_all(dir.path().join("blobs")).unwrap();
    let client = client_of(&mirror, options());
    let result = client.blob(&repository(&registry), &crate::client::blob(), &layout, &Silent);
    assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    // A caller who has had enough.
    let interrupt = Interrupt::default();
    let raise = interrupt.clone();
    let silent = Server::start(move |_, stream| {
        raise.raise();
        silence(stream);
    });
    let result = resolve(&client_of(&silent, Options { interrupt, ..options() }), &registry.host());
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    assert_eq!(registry.requests().len(), 0);
}

fn see_no_credentials() {
    let (registry, mirror) = (
        Server::start(|request, stream| {
            let challenge = [("WWW-Authenticate", "Basic realm=x")];
            let known = request.header("authorization").is_some();
            send(stream, &if known { have(request) } else { reply("401 No", &challenge, b"") });
        }),
        Server::start(|_, stream| {
            send(stream, &reply("401 No", &[("WWW-Authenticate", "Basic realm=x")], b""));
        }),
    );
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    // It says `me:secret`.
    std::fs::write(&config, format!(r#"{{"auths":{{"{}":{{"auth":"bWU6c2VjcmV0"}}}}}}"#, registry.host())).unwrap();
    let client = client(&registry.host(), &[url(&mirror)], Options { credentials: Some(config), ..options() });
    resolve(&client, &registry.host()).unwrap();
    Fetch::new().run(&client, &registry).unwrap();
    assert_eq!(registry.requests().last().unwrap().header("authorization"), Some("Basic bWU6c2VjcmV0"));
    // That it wants a password, and that we have none for it, is known then.
    assert_eq!(mirror.requests().len(), 1);
    assert!(mirror.requests().iter().all(|request| request.header("authorization").is_none()));
}

fn are_for_pulls_only() {
    let (registry, mirror) = (crate::push::registry(|_, _| None), good());
    let push = crate::push::Push::new(Options { mirrors: vec![(registry.host(), url(&mirror))], ..options() });
    push.blob(&registry).unwrap();
    push.manifest(&registry).unwrap();
    let tag = Reference::Tagged(repository(&registry).tagged("1").unwrap());
    assert_eq!(push.client.head(&tag).unwrap(), None);
    assert_eq!((registry.requests().len(), mirror.requests().len()), (4, 0));
}
