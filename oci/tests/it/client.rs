//! The registry client against odd, broken and hostile answers.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use oci::{Client, Descriptor, Digest, Document, Error, Layout, Options, Repository, Silent};
use tempfile::TempDir;

use crate::server::{Server, head, reply, send};
use crate::trial;

pub(crate) const BODY: &[u8] = b"the blob's bytes";
pub(crate) const OK: &str = "200 OK";

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 14] = [
        ("client::f09_accept_names_all_four_types_and_schema_1_is_refused", accept_names_all_four_types),
        ("client::f10_large_manifests_are_refused_unread", large_manifests_are_refused),
        ("client::f10_blobs_end_at_their_promised_size", blobs_end_at_their_size),
        ("client::f43_one_token_serves_a_repository", one_token_serves_a_repository),
        ("client::f42_a_dead_token_is_replaced_once", a_dead_token_is_replaced_once),
        ("client::f44_redirects_carry_no_authorization", redirects_carry_no_authorization),
        ("client::f45_token_calls_stay_where_they_are_sent", token_calls_stay),
        ("client::f46_digests_are_computed_and_the_header_is_held_to_them", digests_are_computed),
        ("client::f48_plain_http_is_for_loopback_and_named_hosts", plain_http_is_refused),
        ("client::f48_a_tls_failure_is_no_reason_for_plain_http", a_tls_failure_is_final),
        ("client::f50_ipv6_literals_are_reached", ipv6_literals_are_reached),
        ("client::redirects_end", redirects_end),
        ("client::errors_carry_the_registrys_words", errors_carry_words),
        ("client::what_is_there_is_not_fetched", what_is_there_is_not_fetched),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

pub(crate) fn options() -> Options {
    Options { first_pause: Duration::from_millis(1), ..Options::default() }
}

pub(crate) fn client() -> Client {
    Client::new(options()).unwrap()
}

pub(crate) fn repository(server: &Server) -> Repository {
    Repository::parse(&format!("{}/some/image", server.host())).unwrap()
}

pub(crate) fn blob() -> Descriptor {
    Descriptor::of("application/octet-stream", BODY)
}

pub(crate) fn manifest() -> Vec<u8> {
    oci::Manifest::new(oci::Family::Oci, &Descriptor::of("a/b", b"{}"), &[]).bytes().to_vec()
}

/// Fetches the blob into a new layout.
pub(crate) struct Fetch {
    _dir: TempDir,
    layout: Layout,
}

impl Fetch {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { layout: Layout::open_or_create(dir.path()).unwrap(), _dir: dir }
    }

    pub(crate) fn run(&self, client: &Client, server: &Server) -> oci::Result<()> {
        let result = client.blob(&repository(server), &blob(), &self.layout, &Silent);
        let files = std::fs::read_dir(self.layout.dir().join("blobs/sha256")).unwrap().count();
        assert_eq!((files, self.layout.has(&blob())), (usize::from(result.is_ok()), result.is_ok()));
        result
    }
}

/// A server that gives each answer of a list once, and the last one for ever.
pub(crate) fn scripted(answers: Vec<Vec<u8>>) -> Server {
    let next = AtomicUsize::new(0);
    Server::start(move |_, stream| {
        let at = next.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
        send(stream, &answers[at]);
    })
}

pub(crate) fn fetch(answers: Vec<Vec<u8>>) -> (oci::Result<()>, usize) {
    let server = scripted(answers);
    let result = Fetch::new().run(&client(), &server);
    (result, server.requests().len())
}

pub(crate) fn resolve(server: &Server) -> oci::Result<Document> {
    client().resolve(&repository(server).tagged("1").unwrap())
}

fn accept_names_all_four_types() {
    let server = scripted(vec![reply(OK, &[], &manifest())]);
    resolve(&server).unwrap();
    let requests = server.requests();
    let accept: Vec<&str> = requests[0].header("accept").unwrap().split(", ").collect();
    assert_eq!(requests[0].path, "/v2/some/image/manifests/1");
    for media_type in [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ] {
        assert!(accept.contains(&media_type), "{media_type}");
    }
    let server = scripted(vec![reply(OK, &[], br#"{"schemaVersion":1,"fsLayers":[]}"#)]);
    assert!(resolve(&server).unwrap_err().to_string().contains("schema version 1 is not supported"));
}

fn large_manifests_are_refused() {
    let server = scripted(vec![head(OK, &[("Content-Length", "4194305")]).into_bytes()]);
    assert!(matches!(resolve(&server), Err(Error::TooLarge { limit: 4_194_304, .. })));
    let endless = Server::start(|_, stream| {
        send(stream, head(OK, &[]).as_bytes());
        for _ in 0..10_000 {
            send(stream, &[b' '; 1024]);
        }
    });
    assert!(matches!(resolve(&endless), Err(Error::TooLarge { limit: 4_194_304, .. })));
}

fn blobs_end_at_their_size() {
    let longer = [BODY, b"x"].concat();
    for (answer, requests) in [
        (reply(OK, &[], &longer), 1),
        (reply(OK, &[], &BODY[1..]), 1),
        ([head(OK, &[]).as_bytes(), &longer].concat(), 1),
        // It may have been cut.
        ([head(OK, &[]).as_bytes(), &BODY[1..]].concat(), 4),
    ] {
        let (result, count) = fetch(vec![answer]);
        assert!(matches!(result, Err(Error::SizeMismatch { expected: 16, .. })), "{result:?}");
        assert_eq!(count, requests);
    }
}

/// A registry that wants a token, and its token server.
fn guarded(tokens: &'static [&'static str], valid: &'static str) -> Server {
    let issued = AtomicUsize::new(0);
    Server::start(move |request, stream| {
        let host = request.header("host").unwrap();
        if request.path.starts_with("/token?") {
            let at = issued.fetch_add(1, Ordering::SeqCst).min(tokens.len() - 1);
            return send(stream, &reply(OK, &[], format!(r#"{{"token":"{}"}}"#, tokens[at]).as_bytes()));
        }
        if request.header("authorization") != Some(&format!("Bearer {valid}")) {
            let challenge =
                format!(r#"Bearer realm="http://{host}/token",service="it",scope="repository:some/image:pull""#);
            return send(stream, &reply("401 No", &[("WWW-Authenticate", &challenge)], b""));
        }
        let body = if request.path.contains("/manifests/") { manifest() } else { BODY.to_vec() };
        send(stream, &reply(OK, &[], &body));
    })
}

fn one_token_serves_a_repository() {
    let server = guarded(&["t1"], "t1");
    let client = client();
    client.resolve(&repository(&server).tagged("1").unwrap()).unwrap();
    Fetch::new().run(&client, &server).unwrap();
    let manifest = "/v2/some/image/manifests/1".to_owned();
    let token = "/token?service=it&scope=repository%3Asome%2Fimage%3Apull".to_owned();
    let blob = format!("/v2/some/image/blobs/{}", Digest::of(BODY));
    assert_eq!(server.paths(), [manifest.clone(), token, manifest, blob]);
    assert_eq!(server.requests()[1].header("authorization"), None);
}

fn a_dead_token_is_replaced_once() {
    let server = guarded(&["dead", "alive"], "alive");
    let client = client();
    let first = client.resolve(&repository(&server).tagged("1").unwrap());
    assert!(matches!(first, Err(Error::Unauthorized { .. })), "{first:?}");
    assert_eq!(server.requests().len(), 3);
    Fetch::new().run(&client, &server).unwrap();
    assert_eq!(server.requests().len(), 6);
}

fn redirects_carry_no_authorization() {
    let storage = scripted(vec![reply(OK, &[], BODY)]);
    let to = format!("http://{}/signed?x=1", storage.host());
    let server = Server::start(move |request, stream| {
        let host = request.header("host").unwrap();
        let challenge = format!(r#"Bearer realm="http://{host}/token""#);
        send(
            stream,
            &match (request.path.as_str(), request.header("authorization")) {
                (path, _) if path.starts_with("/token") => reply(OK, &[], br#"{"token":"secret"}"#),
                (_, None) => reply("401 No", &[("WWW-Authenticate", &challenge)], b""),
                ("/v2/moved", Some(_)) => reply("307 There", &[("Location", &to)], b""),
                (_, Some(_)) => reply("302 Here", &[("Location", "/v2/moved")], b""),
            },
        );
    });
    Fetch::new().run(&client(), &server).unwrap();
    let authorization: Vec<_> =
        server.requests().iter().map(|r| r.header("authorization").map(str::to_owned)).collect();
    let secret = Some("Bearer secret".to_owned());
    assert_eq!(authorization, [None, None, secret.clone(), secret]);
    assert_eq!(
        (storage.paths(), storage.requests()[0].header("authorization")),
        (vec!["/signed?x=1".to_owned()], None)
    );
}

fn token_calls_stay() {
    let challenge = |realm: &str| {
        let value = format!(r#"Bearer realm="{realm}""#);
        reply("401 No", &[("WWW-Authenticate", &value)], b"")
    };
    let redirecting = scripted(vec![reply("302 There", &[("Location", "/elsewhere")], b"")]);
    let realm = format!("http://{}/token", redirecting.host());
    let (result, _) = fetch(vec![challenge(&realm)]);
    assert!(matches!(result, Err(Error::Refused { status: 302, .. })), "{result:?}");
    assert_eq!(redirecting.requests().len(), 1);
    let (result, _) = fetch(vec![challenge("http://192.0.2.1/token")]);
    assert!(matches!(result, Err(Error::PlainHttp { .. })), "{result:?}");
    let server = scripted(vec![challenge("http://169.254.1.1:1/token")]);
    let insecure = vec!["169.254.1.1".to_owned()];
    let result = Fetch::new().run(&Client::new(Options { insecure, ..options() }).unwrap(), &server);
    assert!(result.unwrap_err().to_string().contains("found the link-local or metadata address http://169.254.1.1:1/"));
    let basic = reply("401 No", &[("WWW-Authenticate", r#"Basic realm="x""#)], b"");
    for answer in [basic, reply("401 No", &[], b""), reply("403 No", &[], b"")] {
        let (result, count) = fetch(vec![answer]);
        assert!(matches!(result, Err(Error::Unauthorized { .. })), "{result:?}");
        assert_eq!(count, 1);
    }
}

fn digests_are_computed() {
    let (result, count) = fetch(vec![reply(OK, &[], b"the blob's lies!")]);
    assert!(matches!(result, Err(Error::DigestMismatch { .. })), "{result:?}");
    assert_eq!(count, 1);
    let other = Digest::of(b"other").to_string();
    let headers = [("Docker-Content-Digest", other.as_str())];
    let (result, _) = fetch(vec![reply(OK, &headers, BODY)]);
    assert!(matches!(result, Err(Error::DigestMismatch { .. })), "{result:?}");
    let bytes = manifest();
    for (headers, wanted, fits) in [
        (&[][..], Digest::of(&bytes), true),
        (&[], Digest::of(b"other"), false),
        (&headers, Digest::of(&bytes), false),
        (&[("Docker-Content-Digest", "sha256:xyz")], Digest::of(&bytes), false),
        (&[("Docker-Content-Digest", "sha512:unknown to us")], Digest::of(&bytes), true),
    ] {
        let server = scripted(vec![reply(OK, headers, &bytes)]);
        let result = client().manifest(&repository(&server), &wanted);
        assert_eq!(result.is_ok(), fits, "{headers:?}: {result:?}");
    }
}

fn plain_http_is_refused() {
    let mirrors = vec![("docker.io".to_owned(), "http://registry.example".to_owned())];
    assert!(matches!(Client::new(Options { mirrors, ..options() }), Err(Error::PlainHttp { .. })));
    let away = [("Location", "http://registry.example/blob")];
    let (result, count) = fetch(vec![reply("307 There", &away, b"")]);
    assert!(matches!(result, Err(Error::PlainHttp { .. })), "{result:?}");
    assert_eq!(count, 1);
}

fn a_tls_failure_is_final() {
    let (server, registry) = (scripted(vec![reply(OK, &[], BODY)]), nobody());
    let mirrors = vec![(registry.clone(), format!("https://{}", server.host()))];
    let client = Client::new(Options { mirrors, ..options() }).unwrap();
    let repository = Repository::parse(&format!("{registry}/x")).unwrap();
    let error = client.resolve(&repository.tagged("1").unwrap()).unwrap_err();
    assert!(error.to_string().contains(&format!("https://{}", server.host())), "{error:?}");
    assert_eq!(server.requests().len(), 0);
}

fn ipv6_literals_are_reached() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        // The machine has no IPv6 loopback: nothing but the attempt can be seen.
        let repository = Repository::parse("[::1]:1/x").unwrap();
        let error = client().resolve(&repository.tagged("1").unwrap()).unwrap_err();
        return assert!(error.to_string().starts_with("reach http://[::1]:1: "), "{error}");
    };
    let server = Server::listen(listener, Duration::ZERO, |request, stream| {
        let body = if request.path.contains("/manifests/") { manifest() } else { BODY.to_vec() };
        send(stream, &reply(OK, &[], &body));
    });
    assert!(server.host().starts_with("[::1]:"));
    assert_eq!(resolve(&server).unwrap().bytes(), manifest());
    Fetch::new().run(&client(), &server).unwrap();
    assert_eq!(server.requests()[0].header("host"), Some(server.host().as_str()));
}

fn redirects_end() {
    let (result, count) = fetch(vec![reply("302 Again", &[("Location", "/round")], b"")]);
    assert!(result.unwrap_err().to_string().contains("more than 5 redirects"));
    assert_eq!(count, 6);
    let (result, _) = fetch(vec![reply("302 Where", &[], b"")]);
    assert!(result.unwrap_err().to_string().contains("without a usable Location"));
}

/// A loopback address where nobody listens.
pub(crate) fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn errors_carry_words() {
    let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\u001b unknown","detail":{}}]}"#;
    let server = scripted(vec![reply("404 Not Found", &[], body)]);
    let url = format!("http://{}/v2/some/image/manifests/1", server.host());
    let error = resolve(&server).unwrap_err().to_string();
    assert_eq!(error, format!("GET {url}: not found: MANIFEST_UNKNOWN: manifest  unknown"));
    let server = scripted(vec![reply("404 Not Found", &[], b"<html>")]);
    assert!(resolve(&server).unwrap_err().to_string().ends_with("manifests/1: not found"));
}

fn what_is_there_is_not_fetched() {
    let server = scripted(vec![reply(OK, &[], BODY)]);
    let (fetch, client) = (Fetch::new(), client());
    fetch.run(&client, &server).unwrap();
    fetch.run(&client, &server).unwrap();
    assert_eq!(server.requests().len(), 1);
    // A blob of the wrong size is as good as none.
    std::fs::write(fetch.layout.blob_path(&blob().digest), "half").unwrap();
    fetch.run(&client, &server).unwrap();
    assert_eq!(fetch.layout.bytes(&blob()).unwrap(), BODY);
}
