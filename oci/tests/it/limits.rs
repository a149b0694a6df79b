//! Registries that send too much, too little, nothing or lies: bounded memory and time, and one error each, which names the
//! registry, the verb, the reference, and what was expected and found.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use oci::{Client, Descriptor, Digest, Error, Family, Index, Manifest, Options, Reference, Repository};

use crate::client::{BODY, Fetch, OK, blob, client, manifest, options, repository, resolve, scripted};
use crate::memory;
use crate::push::{Push, registry};
use crate::server::{Request, Server, head, reply, send};
use crate::trial;

const GIB: u64 = 1 << 30;
const MANIFEST_BYTES_MAX: u64 = 4 << 20;
const TOKEN_BYTES_MAX: u64 = 256 << 10;
/// What the kernel and the HTTP client hold of what nobody reads; Linux's default limits for both sockets are 4 and 6 MiB.
const BUFFERS_BYTES_MAX: u64 = 12 << 20;
/// How long the registries of these trials may be silent.
const READ_TIMEOUT: Duration = Duration::from_millis(500);
const CALL: &str = "/v2/some/image/manifests/1";

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 9] = [
        ("limits::f10_a_manifest_of_a_gib_is_refused_unread", a_manifest_of_a_gib),
        ("limits::f10_token_answers_and_refusals_are_capped", token_answers_and_refusals),
        ("limits::f10_json_bombs_cost_little", json_bombs),
        ("limits::an_index_that_names_itself_is_one_error", an_index_that_names_itself),
        ("limits::silence_is_one_error_for_every_verb", silence),
        ("limits::a_head_without_a_body_is_one_error", a_head_without_a_body),
        ("limits::what_drips_has_a_limit", what_drips),
        ("limits::f46_lies_are_one_error_for_every_verb", lies),
        ("limits::names_that_climb_are_no_names", names_that_climb),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

/// Holds an error's text to its parts, in their order.
fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    let mut rest = text.as_str();
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} in {text:?}"));
        rest = &rest[at + part.len()..];
    }
}

fn error<T>(result: oci::Result<T>) -> Error {
    result.map(drop).unwrap_err()
}

/// A server whose every answer begins with `start` and goes on for a GiB, in pieces of `piece`; and how much of it was taken.
fn endless(start: String, piece: Vec<u8>) -> (Server, Arc<AtomicU64>) {
    let taken = Arc::<AtomicU64>::default();
    let count = Arc::clone(&taken);
    let server = Server::start(move |_, stream| {
        send(stream, start.as_bytes());
        while count.load(Ordering::SeqCst) < GIB && stream.write_all(&piece).is_ok() {
            count.fetch_add(piece.len() as u64, Ordering::SeqCst);
        }
    });
    (server, taken)
}

/// Each way in which a body of a GiB can be announced.
fn gibs(status: &str, headers: &[(&str, &str)]) -> [(Server, Arc<AtomicU64>); 3] {
    let length = GIB.to_string();
    let with = |header: &[(&str, &str)]| head(status, &[headers, header].concat());
    let chunk = [format!("{:x}\r\n", 1 << 16).into_bytes(), vec![b' '; 1 << 16], b"\r\n".to_vec()].concat();
    [
        endless(with(&[("Content-Length", &length)]), vec![b' '; 1 << 16]),
        endless(with(&[("Transfer-Encoding", "chunked")]), chunk),
        endless(with(&[]), vec![b' '; 1 << 16]),
    ]
}

fn a_manifest_of_a_gib() {
    for (server, taken) in gibs(OK, &[]) {
        let error = error(resolve(&server));
        let limit = format!("larger than the limit of {MANIFEST_BYTES_MAX} bytes");
        says(&error, &["GET http://", &server.host(), CALL, &limit]);
        assert_eq!(server.requests().len(), 1);
        drop(server);
        assert!(taken.load(Ordering::SeqCst) < MANIFEST_BYTES_MAX + BUFFERS_BYTES_MAX, "{taken:?}");
    }
}

fn token_answers_and_refusals() {
    for (tokens, taken) in gibs(OK, &[]) {
        let challenge = format!(r#"Bearer realm="http://{}/token""#, tokens.host());
        let server = scripted(vec![reply("401 No", &[("WWW-Authenticate", &challenge)], b"")]);
        let limit = format!("larger than the limit of {TOKEN_BYTES_MAX} bytes");
        says(&error(resolve(&server)), &["GET http://", &tokens.host(), "/token", &limit]);
        drop(tokens);
        assert!(taken.load(Ordering::SeqCst) < TOKEN_BYTES_MAX + BUFFERS_BYTES_MAX, "{taken:?}");
    }
    for (server, taken) in gibs("404 Not Found", &[]) {
        says(&error(resolve(&server)), &["GET http://", &server.host(), CALL, "not found"]);
        drop(server);
        assert!(taken.load(Ordering::SeqCst) < BUFFERS_BYTES_MAX, "{taken:?}");
    }
}

fn json_bombs() {
    let fill = |piece: &str| piece.repeat((MANIFEST_BYTES_MAX as usize - 1024) / piece.len());
    let many = "expected at most 32768 JSON values, found more";
    let keys: String = (0..300_000).map(|at| format!(r#""{at}":0,"#)).collect();
    for (bomb, why) in [
        (fill("["), many),
        (fill(r#"{"":"#), many),
        ("[".repeat(32_000), "recursion limit exceeded"),
        (r#"{"a":"#.repeat(32_000), "recursion limit exceeded"),
        (format!("[{}0]", fill("0,")), many),
        (format!("[{}0]", fill("[0],")), many),
        (format!("[{}0]", fill(r#"{"":0},"#)), many),
        (format!(r#"{{{keys}"schemaVersion":2}}"#), many),
        // As many as may be: all of it is read.
        (
            format!(r#"{{"schemaVersion":2,"x":[{}0]}}"#, r#"{"":[0]},"#.repeat(8000)),
            "config.mediaType: expected a string",
        ),
        (format!(r#"{{"schemaVersion":2,"x":"{}"}}"#, fill("x")), "config.mediaType: expected a string"),
    ] {
        assert!(bomb.len() as u64 <= MANIFEST_BYTES_MAX);
        let (digest, server) = (Digest::of(bomb.as_bytes()), scripted(vec![reply(OK, &[], bomb.as_bytes())]));
        let said = memory::run(&["refuse", &server.host()]).join(" ");
        let expected = format!("read manifest {digest} of GET http://{}{CALL}: {why}", server.host());
        assert!(said.starts_with(&expected), "{why}: {said}");
    }
}

fn an_index_that_names_itself() {
    // No index holds its own digest; a registry that answers each digest by the same index is as near as it gets.
    let child = Descriptor::of("application/vnd.oci.image.index.v1+json", b"the index itself");
    let index = Index::new(Family::Oci, &[child.clone().with_platform(oci::Platform::host())]).unwrap();
    let server = scripted(vec![reply(OK, &[], index.bytes())]);
    let oci::Document::Index(found) = resolve(&server).unwrap() else { panic!("no index") };
    let child = found.select(&oci::Platform::host()).unwrap();
    let error = error(client().manifest(&repository(&server), &child.digest));
    let [expected, found] = [child.digest, index.digest()].map(|digest| digest.to_string());
    says(&error, &["GET http://", &server.host(), "/manifests/", &expected, "expected ", &expected, "found ", &found]);
    assert_eq!(server.requests().len(), 2);
    // And one that holds an index, whoever made it, is no image.
    let error = Manifest::parse(index.bytes().to_vec()).unwrap_err();
    says(&error, &["manifest", &index.digest().to_string(), "expected an image manifest, found an index"]);
}

/// One call for each verb, on a registry at `server`; what it is called, and what came of it.
fn calls(options: &Options, server: &Server) -> Vec<(&'static str, oci::Result<()>)> {
    let client = Client::new(options.clone()).unwrap();
    let tag = repository(server).tagged("1").unwrap();
    let push = Push::new(options.clone());
    vec![
        ("GET", client.resolve(&tag).map(drop)),
        ("GET", Fetch::new().run(&client, server)),
        ("HEAD", client.head(&Reference::Tagged(tag)).map(drop)),
        ("POST", push.blob(server)),
        ("PUT", push.manifest(server).map(drop)),
    ]
}

fn silence() {
    let silent = Server::start(|_: &Request, stream: &mut TcpStream| {
        // Until the client hangs up.
        let _ = std::io::copy(stream, &mut std::io::sink());
    });
    let quick = Options { read_timeout: READ_TIMEOUT, ..options() };
    for (verb, result) in calls(&quick, &silent) {
        let request = format!("no answer to {verb} http://{}/v2/some/image/", silent.host());
        // A document that is sent whole is waited for longer: the registry may be at work.
        says(&error(result), &[&silent.host(), &request, if verb == "PUT" { "" } else { " in 500ms" }]);
    }
}

fn a_head_without_a_body() {
    let server = Server::start(|request, stream| {
        send(stream, head(OK, &[("Content-Length", "16")]).as_bytes());
        if request.method == "GET" {
            let _ = std::io::copy(stream, &mut std::io::sink());
        }
    });
    let quick = Options { read_timeout: READ_TIMEOUT, ..options() };
    for (verb, result) in calls(&quick, &server).into_iter().take(2) {
        let request = format!("{verb} http://{}/v2/some/image/", server.host());
        says(&error(result), &[&request, "the connection broke: nothing came for 500ms"]);
    }
}

fn what_drips() {
    let drip = |start: &'static str| {
        let start = if start.is_empty() { head(OK, &[("Content-Length", "4000000")]) } else { start.to_owned() };
        Server::start(move |_, stream| {
            send(stream, start.as_bytes());
            // Never silent for as long as a registry may be, and not done for long.
            while stream.write_all(&[b' '; 1024]).is_ok() {
                std::thread::sleep(READ_TIMEOUT / 4);
            }
        })
    };
    let quick = Client::new(Options { read_timeout: READ_TIMEOUT, ..options() }).unwrap();
    for (start, why) in [("HTTP/1.1 200 OK\r\nX-Slow:", "no answer to GET "), ("", "it did not come whole in 5s")] {
        let server = drip(start);
        says(&error(quick.resolve(&repository(&server).tagged("1").unwrap())), &[&server.host(), why]);
        assert_eq!(server.requests().len(), 1);
    }
}

fn lies() {
    let (body, lie) = (Digest::of(BODY), Digest::of(b"lie"));
    let header = lie.to_string();
    let claims = [("Docker-Content-Digest", header.as_str()), ("Content-Type", crate::push::TYPE)];
    let lying = |bytes: &[u8]| scripted(vec![reply(OK, &claims, bytes)]);
    let check = |server: &Server, result: oci::Result<()>, verb: &str, expected: Digest, found: Digest| {
        let (expected, found) = (format!("expected {expected}"), format!("found {found}"));
        says(&error(result), &[&format!("{verb} http://{}/v2/some/image/", server.host()), &expected, &found]);
    };
    let server = lying(&manifest());
    let (repository, made) = (repository(&server), Digest::of(&manifest()));
    check(&server, resolve(&server).map(drop), "GET", made, lie);
    check(&server, client().manifest(&repository, &made).map(drop), "GET", made, lie);
    let pinned = Reference::Pinned(repository.pinned(made));
    check(&server, client().head(&pinned).map(drop), "HEAD", made, lie);
    // A tag may be said to be anything; who then asks for that is told.
    let head = client().head(&Reference::Tagged(repository.tagged("1").unwrap())).unwrap().unwrap();
    assert_eq!(head.digest, lie);
    let silent = scripted(vec![reply(OK, &[], &manifest())]);
    let told = client().manifest(&crate::client::repository(&silent), &head.digest);
    check(&silent, told.map(drop), "GET", lie, made);
    let server = lying(BODY);
    check(&server, Fetch::new().run(&client(), &server), "GET", body, lie);
    let other: Vec<u8> = BODY.iter().map(|byte| byte ^ 1).collect();
    let server = scripted(vec![reply(OK, &[], &other)]);
    check(&server, Fetch::new().run(&client(), &server), "GET", body, Digest::of(&other));
    let taker = registry(move |request, _| {
        (request.method == "PUT").then(|| reply("201", &[("Docker-Content-Digest", &header)], b""))
    });
    let push = Push::new(options());
    check(&taker, push.blob(&taker), "PUT", blob().digest, lie);
    check(&taker, push.manifest(&taker).map(drop), "PUT", Digest::of(b"{ }"), lie);
}

fn names_that_climb() {
    for name in
        ["127.0.0.1:1/../image", "127.0.0.1:1/a/../b", "127.0.0.1:1/a/..", "127.0.0.1:1/a/%2e%2e/b", "../a", ".."]
    {
        let error = Repository::parse(name).unwrap_err();
        says(&error, &["parse repository", name, "expected [HOST[:PORT]/]PATH"]);
    }
}
