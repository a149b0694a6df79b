//! Whom the registry client trusts over https, and what it says of those whom it does not.

use std::path::PathBuf;

use libtest_mimic::Trial;
use oci::{Client, Document, Error, Options, Tagged};

use crate::client::{OK, manifest, options};
use crate::https::{Authority, FUTURE, Front, HANDSHAKE, Life, PAST, VALID};
use crate::server::{Server, reply};
use crate::{Need, trial};

const LOCAL: &str = "DNS:localhost,IP:127.0.0.1";

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Need::Tool("openssl")];
    vec![
        trial("tls::a_named_ca_is_trusted", needs, a_named_ca_is_trusted),
        trial("tls::f48_an_unknown_ca_is_one_error_and_no_plain_http", needs, an_unknown_ca_is_one_error),
        trial("tls::certificates_that_do_not_fit_are_one_error", needs, certificates_that_do_not_fit),
        trial("tls::f48_no_tls_is_one_error_and_no_plain_http", needs, no_tls_is_one_error),
        trial("tls::a_ca_file_that_is_odd_is_one_error", &[], a_ca_file_that_is_odd),
    ]
}

fn registry() -> Server {
    Server::start(|_, stream| crate::server::send(stream, &reply(OK, &[], &manifest())))
}

/// What `registry.test:1` names, which is really at `host`, over https.
fn resolve(host: &str, ca: &[PathBuf]) -> oci::Result<Document> {
    let mirrors = vec![("registry.test".to_owned(), format!("https://{host}"))];
    let client = Client::new(Options { mirrors, ca: ca.to_vec(), ..options() }).unwrap();
    client.resolve(&Tagged::parse("registry.test/some/image:1").unwrap())
}

fn a_named_ca_is_trusted() {
    let (server, authority, other) = (registry(), Authority::new(), Authority::new());
    let front = Front::start(&server, &authority, LOCAL, VALID);
    for host in ["127.0.0.1", "localhost"] {
        let found = resolve(&format!("{host}:{}", front.port()), &[other.file(), authority.file()]);
        assert_eq!(found.unwrap().bytes(), manifest());
    }
    assert_eq!(server.calls(), ["GET /v2/some/image/manifests/1"; 2]);
}

/// The error of a client that meets such a certificate. Whatever is wrong with it, one connection tells, and nothing is sent
/// through or beside it.
fn refused(names: &str, life: Life, authority: &Authority, ca: &[PathBuf]) -> String {
    let server = registry();
    let front = Front::start(&server, authority, names, life);
    let result = resolve(&format!("localhost:{}", front.port()), ca);
    let error = result.map(|document| document.digest()).unwrap_err();
    assert!(matches!(&error, Error::Untrusted { .. }), "{error:?}");
    assert_eq!((front.greetings(), server.requests().len()), (vec![HANDSHAKE], 0));
    assert!(error.hint().unwrap().starts_with("check the CA certificates"));
    let text = error.to_string();
    let reason = text.strip_prefix(&format!("trust https://localhost:{}: ", front.port()));
    reason.unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn an_unknown_ca_is_one_error() {
    let (authority, other) = (Authority::new(), Authority::new());
    for ca in [vec![], vec![other.file()]] {
        let reason = refused(LOCAL, VALID, &authority, &ca);
        assert_eq!(reason, "expected a certificate of a CA that is trusted here, found one of another");
    }
}

fn certificates_that_do_not_fit() {
    let authority = Authority::new();
    let ca = [authority.file()];
    for (names, life, what) in [
        (LOCAL, PAST, "expected a certificate that is valid today, found one that ended at 2021-01-01T00:00:00Z"),
        (LOCAL, FUTURE, "expected a certificate that is valid today, found one that starts at 2049-01-01T00:00:00Z"),
        ("DNS:a.test,DNS:b.test", VALID, "expected a certificate for localhost, found one for a.test, b.test"),
    ] {
        assert_eq!(refused(names, life, &authority, &ca), what);
    }
}

fn no_tls_is_one_error() {
    // It answers a greeting, which is no HTTP request of its own, as plain HTTP servers do.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0];
        stream.peek(&mut first).unwrap();
        crate::server::send(&mut stream, &reply("400 Bad Request", &[], b""));
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        listener.set_nonblocking(true).unwrap();
        (first[0], listener.accept().is_ok())
    });
    let error = resolve(&host, &[]).map(|document| document.digest()).unwrap_err();
    assert!(matches!(&error, Error::Untrusted { .. }), "{error:?}");
    assert!(error.to_string().starts_with(&format!("trust https://{host}: ")), "{error}");
    assert_eq!(server.join().unwrap(), (HANDSHAKE, false), "first byte, a second connection");
}

fn a_ca_file_that_is_odd() {
    let dir = tempfile::tempdir().unwrap();
    let server = registry();
    let (missing, odd) = (dir.path().join("missing.pem"), dir.path().join("odd.pem"));
    std::fs::write(&odd, "no certificate").unwrap();
    let say = |file: &PathBuf| resolve(&server.host(), std::slice::from_ref(file)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(say(&missing), format!("open CA certificates {}", missing.display()));
    let expected = "expected certificates in PEM, found none";
    assert_eq!(say(&odd), format!("read CA certificates {}: {expected}", odd.display()));
    // What needs no certificates does not read them.
    let client = Client::new(Options { ca: vec![missing], ..options() }).unwrap();
    client.resolve(&crate::client::repository(&server).tagged("1").unwrap()).unwrap();
}
