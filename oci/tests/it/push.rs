//! The push side of the registry client against a registry of the test's own, which keeps what it is sent and answers oddly
//! where a test asks it to.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use oci::{Client, Digest, Error, Layout, Mount, Options, Reference, Repository, Silent};
use tempfile::TempDir;

use crate::client::{BODY, OK, blob, options, repository};
use crate::server::{Request, Server, head, reply, send};
use crate::trial;

pub(crate) const CREATED: &str = "201 Created";
pub(crate) const ACCEPTED: &str = "202 Accepted";
const UPLOADS: &str = "/v2/some/image/blobs/uploads/";
pub(crate) const TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 12] = [
        ("push::a_blob_is_one_post_and_one_put", one_post_and_one_put),
        ("push::f31_one_upload_for_all_threads", one_upload_for_all_threads),
        ("push::f31_a_refused_put_is_fine_where_the_blob_is_there", a_refused_put_is_looked_into),
        ("push::f33_a_mount_that_is_refused_becomes_an_upload", a_refused_mount_becomes_an_upload),
        ("push::f34_the_session_of_a_mount_is_used", the_session_of_a_mount_is_used),
        ("push::f35_locations_are_relative_and_have_queries", locations_are_resolved),
        ("push::f36_an_early_201_is_checked", an_early_201_is_checked),
        ("push::f36_chunks_are_for_who_refuses_the_whole", chunks_are_for_who_refuses_the_whole),
        ("push::f46_what_the_registry_says_it_took_is_compared", what_was_taken_is_compared),
        ("push::a_damaged_layout_is_not_the_registrys_fault", a_damaged_layout_is_named),
        ("push::an_upload_that_moves_has_no_limit", a_moving_upload_goes_on),
        ("push::an_upload_on_which_nothing_moves_ends", a_stalled_upload_ends),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

/// A registry of one repository that keeps its blobs. `odd` may answer in its place; it is told how many requests came
/// before.
pub(crate) fn registry(odd: impl Fn(&Request, usize) -> Option<Vec<u8>> + Send + 'static) -> Server {
    let (blobs, count) = (Mutex::<BTreeMap<String, Vec<u8>>>::default(), AtomicUsize::new(0));
    let open = Mutex::<Vec<u8>>::default();
    Server::start(move |request, stream: &mut TcpStream| {
        let answer = odd(request, count.fetch_add(1, Ordering::SeqCst));
        let answer = answer.unwrap_or_else(|| keep(request, &mut blobs.lock().unwrap(), &mut open.lock().unwrap()));
        send(stream, &answer);
    })
}

fn keep(request: &Request, blobs: &mut BTreeMap<String, Vec<u8>>, open: &mut Vec<u8>) -> Vec<u8> {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let next = [("Location", "1?_state=a%3Db")];
    match request.method.as_str() {
        "POST" => {
            open.clear();
            reply(ACCEPTED, &next, b"")
        }
        "PATCH" => {
            let last = open.len() + request.body.len() - 1;
            assert_eq!(request.header("content-range"), Some(format!("{}-{last}", open.len()).as_str()));
            open.extend(&request.body);
            reply(ACCEPTED, &next, b"")
        }
        "PUT" if path.contains("/uploads/") => {
            open.extend(&request.body);
            let (state, digest) = query.split_once("&digest=").unwrap();
            assert_eq!(state, "_state=a%3Db");
            let bytes = std::mem::take(open);
            if digest.replace("%3A", ":") != Digest::of(&bytes).to_string() {
                return reply("400 No", &[], br#"{"errors":[{"code":"DIGEST_INVALID"}]}"#);
            }
            blobs.insert(Digest::of(&bytes).to_string(), bytes);
            reply(CREATED, &[], b"")
        }
        "PUT" => reply(CREATED, &[("Docker-Content-Digest", &Digest::of(&request.body).to_string())], b""),
        "HEAD" => match blobs.get(path.rsplit('/').next().unwrap()) {
            // A HEAD has the length of what it does not send.
            Some(bytes) => head(OK, &[("Content-Length", &bytes.len().to_string())]).into_bytes(),
            None => reply("404 No", &[], b""),
        },
        // It tells nothing about its sessions.
        "GET" if path.contains("/uploads/") => reply("405 No", &[], b""),
        other => panic!("{other} {path}"),
    }
}

/// A layout that holds a blob, and a client.
pub(crate) struct Push {
    _dir: TempDir,
    pub(crate) layout: Layout,
    pub(crate) client: Client,
}

impl Push {
    pub(crate) fn new(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(dir.path()).unwrap();
        layout.put(&blob().media_type, BODY).unwrap();
        Self { layout, client: Client::new(options).unwrap(), _dir: dir }
    }

    pub(crate) fn blob(&self, server: &Server) -> oci::Result<()> {
        self.client.push_blob(&repository(server), &blob(), &self.layout, &Silent)
    }

    pub(crate) fn manifest(&self, server: &Server) -> oci::Result<Digest> {
        let tag = Reference::Tagged(repository(server).tagged("1").unwrap());
        self.client.put_manifest(&tag, TYPE, b"{ }")
    }
}

fn push(server: &Server) -> oci::Result<()> {
    Push::new(options()).blob(server)
}

pub(crate) const POST: &str = "POST /v2/some/image/blobs/uploads/";
pub(crate) const PUT: &str = "PUT /v2/some/image/blobs/uploads/1";
pub(crate) const PATCH: &str = "PATCH /v2/some/image/blobs/uploads/1";

pub(crate) fn head_call() -> String {
    format!("HEAD /v2/some/image/blobs/{}", Digest::of(BODY))
}

fn one_post_and_one_put() {
    let server = registry(|_, _| None);
    let push = Push::new(options());
    push.blob(&server).unwrap();
    assert_eq!(server.calls(), [POST, PUT]);
    assert_eq!(server.requests()[1].body, BODY);
    assert_eq!(server.requests()[1].header("transfer-encoding"), None);
    // Once is enough.
    push.blob(&server).unwrap();
    assert_eq!(server.requests().len(), 2);
}

fn one_upload_for_all_threads() {
    let server = registry(|_, _| None);
    let push = Push::new(options());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| push.blob(&server))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    assert_eq!(server.calls(), [POST, PUT]);
}

fn a_refused_put_is_looked_into() {
    for there in [true, false] {
        let server = registry(move |request, _| match request.method.as_str() {
            "PUT" => Some(reply("400 No", &[], br#"{"errors":[{"code":"BLOB_UPLOAD_INVALID"}]}"#)),
            "HEAD" if there => Some(head(OK, &[("Content-Length", "16")]).into_bytes()),
            _ => None,
        });
        let result = push(&server);
        assert_eq!(result.is_ok(), there, "{result:?}");
        assert_eq!(server.calls(), [POST, PUT, &head_call()]);
        if let Err(error) = result {
            assert!(
                error.to_string().ends_with("uploads/1: expected status 201, found 400: BLOB_UPLOAD_INVALID"),
                "{error}"
            );
        }
    }
    // What a POST may be answered by is told.
    let server = registry(|request, _| (request.method == "POST").then(|| reply(OK, &[], b"")));
    let error = push(&server).unwrap_err().to_string();
    assert!(error.ends_with("/blobs/uploads/: expected status 201 or 202, found 200"), "{error}");
    // A session that is gone is replaced by a new one.
    let server = registry(|request, count| {
        (request.method == "PUT" && count == 1).then(|| reply("404 No", &[], br#"{"errors":[]}"#))
    });
    push(&server).unwrap();
    assert_eq!(server.calls(), [POST, PUT, &head_call(), POST, PUT]);
}

fn mount(push: &Push, server: &Server) -> Mount {
    let from = Repository::parse(&format!("{}/the/base", server.host())).unwrap();
    push.client.mount(&from, &repository(server), &blob()).unwrap()
}

fn a_refused_mount_becomes_an_upload() {
    for status in ["401 No", "403 No", "404 No", "405 No"] {
        let server = registry(move |request, _| {
            request.path.contains("mount=").then(|| reply(status, &[("WWW-Authenticate", "Negotiate")], b""))
        });
        let push = Push::new(options());
        let Mount::Upload(upload) = mount(&push, &server) else { panic!("{status}") };
        push.client.upload(upload, &push.layout, &Silent).unwrap();
        assert_eq!(server.calls(), [POST, POST, PUT], "{status}");
    }
    let server = registry(|request, _| request.path.contains("mount=").then(|| reply(CREATED, &[], b"")));
    let push = Push::new(options());
    assert!(matches!(mount(&push, &server), Mount::Mounted));
    let query = format!("{UPLOADS}?mount=sha256%3A{}&from=the%2Fbase", Digest::of(BODY).hex());
    assert_eq!(server.paths(), [query]);
    // What is mounted is known to be there.
    push.blob(&server).unwrap();
    assert!(matches!(mount(&push, &server), Mount::Mounted));
    assert_eq!(server.requests().len(), 1);
    // Another registry's blobs cannot be mounted.
    let server = registry(|_, _| None);
    let elsewhere = Repository::parse("registry.example/the/base").unwrap();
    let found = Push::new(options()).client.mount(&elsewhere, &repository(&server), &blob()).unwrap();
    assert!(matches!(found, Mount::Upload(_)));
    assert_eq!(server.requests().len(), 0);
}

fn the_session_of_a_mount_is_used() {
    let server = registry(|_, _| None);
    let push = Push::new(options());
    let Mount::Upload(upload) = mount(&push, &server) else { panic!() };
    push.client.upload(upload, &push.layout, &Silent).unwrap();
    assert_eq!(server.calls(), [POST, PUT]);
}

fn locations_are_resolved() {
    let digest = format!("digest=sha256%3A{}", Digest::of(BODY).hex());
    for (location, path) in [
        ("/v2/some/image/blobs/uploads/7", format!("{UPLOADS}7?{digest}")),
        ("/up/7?_state=a%2Bb&x=", format!("/up/7?_state=a%2Bb&x=&{digest}")),
        ("7", format!("{UPLOADS}7?{digest}")),
        ("?session=7", format!("{UPLOADS}?session=7&{digest}")),
        ("http://HOST/up/7?s=1", format!("/up/7?s=1&{digest}")),
    ] {
        let server = registry(move |request, _| {
            let location = location.replace("HOST", request.header("host").unwrap());
            Some(match request.method.as_str() {
                "POST" => reply(ACCEPTED, &[("Location", &location)], b""),
                _ => reply(CREATED, &[], b""),
            })
        });
        push(&server).unwrap();
        assert_eq!(server.paths(), [UPLOADS.to_owned(), path], "{location}");
    }
    for location in [&[][..], &[("Location", "http://")], &[("Location", "http://u:s3cret@127.0.0.1/up/7")]] {
        let server = registry(move |_, _| Some(reply(ACCEPTED, location, b"")));
        let error = push(&server).unwrap_err().to_string();
        assert!(error.ends_with("status 202 without a usable Location"), "{error}");
    }
}

fn an_early_201_is_checked() {
    for there in [true, false] {
        let server = registry(move |request, _| match request.method.as_str() {
            "POST" => Some(reply(CREATED, &[], b"")),
            "HEAD" if there => Some(head(OK, &[("Content-Length", "16")]).into_bytes()),
            _ => None,
        });
        let result = push(&server);
        assert_eq!(result.is_ok(), there, "{result:?}");
        assert_eq!(server.calls(), [POST, &head_call()]);
    }
}

fn chunks_are_for_who_refuses_the_whole() {
    let bytes: Vec<u8> = (0..6 * 1024 * 1024_u32).map(|at| at.to_le_bytes()[1]).collect();
    for (refusal, early) in [("413 Large", false), ("416 Range", false), ("413 Large", true)] {
        let server = registry(move |request, count| match request.method.as_str() {
            "PUT" if count == 1 => Some(reply(refusal, &[], b"")),
            "PATCH" if early => Some(reply(CREATED, &[], b"")),
            "HEAD" if early => Some(head(OK, &[("Content-Length", "6291456")]).into_bytes()),
            _ => None,
        });
        let push = Push::new(options());
        let large = push.layout.put("application/octet-stream", &bytes).unwrap();
        push.client.push_blob(&repository(&server), &large, &push.layout, &Silent).unwrap();
        let seen = format!("HEAD /v2/some/image/blobs/{}", large.digest);
        let calls = if early { vec![POST, PUT, POST, PATCH, &seen] } else { vec![POST, PUT, POST, PATCH, PATCH, PUT] };
        assert_eq!(server.calls(), calls);
    }
}

fn what_was_taken_is_compared() {
    let other = Digest::of(b"other").to_string();
    let server = registry(move |request, _| {
        (request.method == "PUT").then(|| reply(CREATED, &[("Docker-Content-Digest", &other)], b""))
    });
    let push = Push::new(options());
    let result = push.blob(&server);
    assert!(matches!(result, Err(Error::DigestMismatch { .. })), "{result:?}");
    let result = push.manifest(&server);
    assert!(matches!(result, Err(Error::DigestMismatch { .. })), "{result:?}");
    // A registry that says nothing is believed: we know the digest.
    let server = registry(|_, _| Some(reply(CREATED, &[], b"")));
    assert_eq!(push.manifest(&server).unwrap(), Digest::of(b"{ }"));
}

fn a_damaged_layout_is_named() {
    let server = registry(|_, _| None);
    let push = Push::new(options());
    std::fs::write(push.layout.blob_path(&blob().digest), b"the blob's lies!").unwrap();
    let result = push.blob(&server);
    assert!(matches!(result, Err(Error::DigestMismatch { .. })), "{result:?}");
    std::fs::write(push.layout.blob_path(&blob().digest), b"short").unwrap();
    let before = server.requests().len();
    let result = push.blob(&server);
    assert!(matches!(result, Err(Error::SizeMismatch { expected: 16, found: 5, .. })), "{result:?}");
    assert_eq!(server.requests().len(), before);
}

fn a_moving_upload_goes_on() {
    // Room for a machine that is busy with other things: it may stand still for nearly so long.
    let silence = Duration::from_secs(2);
    // 16 MiB in 128 pieces: more than five seconds, of which the sockets' buffers take a part.
    let server = Server::start_slow(Duration::from_millis(40), |request, stream| {
        let next = [("Location", "1?_state=x")];
        let answer = if request.method == "POST" { reply(ACCEPTED, &next, b"") } else { reply(CREATED, &[], b"") };
        send(stream, &answer);
    });
    let push = Push::new(Options { read_timeout: silence, ..options() });
    let large = push.layout.put("a/b", &vec![7; 16 << 20]).unwrap();
    let start = Instant::now();
    push.client.push_blob(&repository(&server), &large, &push.layout, &Silent).unwrap();
    assert!(start.elapsed() > 2 * silence);
    assert_eq!(server.calls(), [POST, PUT]);
}

fn a_stalled_upload_ends() {
    // It takes the upload and never answers; what became of it, a HEAD tells.
    let server = Server::start(|request, stream| match request.method.as_str() {
        "POST" => send(stream, &reply(ACCEPTED, &[("Location", "1?_state=x")], b"")),
        "HEAD" => send(stream, head(OK, &[("Content-Length", "16")]).as_bytes()),
        _ => {
            let _ = std::io::copy(stream, &mut std::io::sink());
        }
    });
    let silence = Duration::from_millis(150);
    let start = Instant::now();
    Push::new(Options { read_timeout: silence, ..options() }).blob(&server).unwrap();
    // It may take longer over what it has whole than over anything else.
    assert!(start.elapsed() >= 10 * silence);
    assert_eq!(server.calls(), [POST, PUT, &head_call()]);
}
