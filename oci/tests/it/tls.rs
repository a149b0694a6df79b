//! Whom the registry client trusts over https, and what it says of those whom it does not. The registry is `registry.test`,
//! to which a proxy knows the way, so that a plain request for it would be seen.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use oci::{Client, Error, Options, Tagged};

use crate::client::{OK, manifest, options, repository};
use crate::https::{Authority, FUTURE, Front, HANDSHAKE, Life, PAST, VALID};
use crate::routes::{NO_CA, proxy, registry, run};
use crate::server::{Server, reply, send};
use crate::{Need, trial};

const NAME: &str = "DNS:registry.test";
const CALL: &str = "GET /v2/some/image/manifests/1";

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Need::Tool("openssl")];
    vec![
        trial("tls::a_named_ca_is_trusted", needs, a_named_ca_is_trusted),
        trial("tls::f48_an_unknown_ca_is_one_error_and_no_plain_http", needs, an_unknown_ca_is_one_error),
        trial("tls::certificates_that_do_not_fit_are_one_error", needs, certificates_that_do_not_fit),
        trial("tls::f48_no_tls_is_one_error_and_no_plain_http", &[], no_tls_is_one_error),
        trial("tls::a_self_signed_certificate_is_told_in_words", needs, a_self_signed_certificate),
        trial("tls::f48_loopback_is_https_where_it_is_named_secure", needs, loopback_named_secure),
        trial("tls::f44_authorization_stays_with_scheme_and_host", needs, authorization_stays),
        trial("tls::f45_an_https_registry_has_no_realm_of_plain_http", needs, no_realm_of_plain_http),
        trial("tls::a_ca_file_that_is_odd_is_one_error", &[], a_ca_file_that_is_odd),
    ]
}

/// What comes of asking `registry.test`, which is behind `port` of loopback. The way is asked for once, and for https.
fn ask(port: u16, ca: &Path) -> String {
    let proxy = proxy(port);
    let url = format!("http://{}", proxy.host());
    let said = run(&[("HTTPS_PROXY", &url), ("HTTP_PROXY", &url)], ca, "none", &["registry.test"]);
    assert_eq!(proxy.calls(), ["CONNECT registry.test:443"]);
    said[0].strip_prefix("registry.test: ").unwrap().to_owned()
}

fn a_named_ca_is_trusted() {
    let (server, authority, other) = (registry(), Authority::new(), Authority::new());
    let front = Front::start(&server, &authority, NAME, VALID);
    assert_eq!(ask(front.port(), &authority.file()), "ok");
    assert_eq!(server.calls(), [CALL]);
    // One file may hold several.
    let both = other.file().with_file_name("both.pem");
    let certificates = [other.file(), authority.file()].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&both, certificates.concat()).unwrap();
    assert_eq!(ask(front.port(), &both), "ok");
}

/// The error of a client that meets such a certificate. Whatever is wrong with it, one connection tells, and no request goes
/// through it or beside it.
fn refused(names: &str, life: Life, authority: &Authority, ca: &Path) -> String {
    let server = registry();
    let front = Front::start(&server, authority, names, life);
    let said = ask(front.port(), ca);
    assert_eq!((front.greetings(), server.requests().len()), (vec![HANDSHAKE], 0));
    said.strip_prefix("trust https://registry.test: ").unwrap_or_else(|| panic!("{said}")).to_owned()
}

fn an_unknown_ca_is_one_error() {
    let (authority, other) = (Authority::new(), Authority::new());
    for ca in [PathBuf::from(NO_CA), other.file()] {
        let reason = refused(NAME, VALID, &authority, &ca);
        assert_eq!(reason, "expected a certificate of a CA that is trusted here, found one of another");
    }
}

fn certificates_that_do_not_fit() {
    let authority = Authority::new();
    for (names, life, what) in [
        (NAME, PAST, "expected a certificate that is valid today, found one that ended at 2021-01-01T00:00:00Z"),
        (NAME, FUTURE, "expected a certificate that is valid today, found one that starts at 2049-01-01T00:00:00Z"),
        ("DNS:a.test,IP:192.0.2.1", VALID, "expected a certificate for registry.test, found one for a.test, 192.0.2.1"),
    ] {
        assert_eq!(refused(names, life, &authority, &authority.file()), what);
    }
}

fn a_self_signed_certificate() {
    // What `openssl req -x509` makes unless told otherwise may sign others, and be no server's.
    let (authority, config) = Authority::itself("keyUsage=digitalSignature,keyCertSign");
    let server = registry();
    let front = Front::with(&server, config);
    let problem = "expected a server's certificate, found one of a CA's own (self-signed by default)";
    for ca in [PathBuf::from(NO_CA), authority.file()] {
        assert_eq!(ask(front.port(), &ca), format!("trust https://registry.test: {problem}"));
    }
    assert_eq!(server.requests().len(), 0);
    let (authority, config) = Authority::itself("basicConstraints=critical,CA:FALSE");
    let front = Front::with(&server, config);
    assert_eq!(ask(front.port(), &authority.file()), "ok");
}

fn loopback_named_secure() {
    let (server, authority) = (registry(), Authority::new());
    let front = Front::start(&server, &authority, "IP:127.0.0.1", VALID);
    let host = format!("127.0.0.1:{}", front.port());
    let tag = Tagged::parse(&format!("{host}/some/image:1")).unwrap();
    let secure = Options { secure: vec![host], ..options() };
    // Nothing but https is tried, whatever comes of it.
    let error = Client::new(secure.clone()).unwrap().resolve(&tag).unwrap_err();
    assert!(matches!(error, Error::Untrusted { .. }), "{error:?}");
    assert_eq!((front.greetings(), server.requests().len()), (vec![HANDSHAKE], 0));
    Client::new(Options { ca: vec![authority.file()], ..secure }).unwrap().resolve(&tag).unwrap();
    assert_eq!((front.greetings(), server.calls().len()), (vec![HANDSHAKE, HANDSHAKE], 1));
    // Unless it is named so, loopback is plain http, and who speaks https there hangs up.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let tag = Tagged::parse(&format!("{}/some/image:1", deaf.local_addr().unwrap())).unwrap();
    std::thread::spawn(move || deaf.incoming().for_each(drop));
    let error = Client::new(options()).unwrap().resolve(&tag).unwrap_err();
    assert!(matches!(error, Error::Cut { .. }) && error.hint().unwrap().contains("name the host secure"), "{error:?}");
}

fn no_tls_is_one_error() {
    // It answers a greeting, which is no HTTP request, as plain HTTP servers do.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0];
        stream.peek(&mut first).unwrap();
        send(&mut stream, &reply("400 Bad Request", &[], b""));
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        first[0]
    });
    let said = ask(port, Path::new(NO_CA));
    assert!(said.starts_with("trust https://registry.test: received corrupt message"), "{said}");
    assert_eq!(server.join().unwrap(), HANDSHAKE);
}

fn authorization_stays() {
    let authority = Authority::new();
    // The port stays the same: whoever compares less than all three would carry it along.
    for there in ["https://127.0.0.1", "http://localhost"] {
        let server = Server::start(move |request, stream| {
            let host = request.header("host").unwrap();
            let elsewhere = format!("{there}:{}/elsewhere", host.rsplit(':').next().unwrap());
            let challenge = format!(r#"Bearer realm="http://{host}/token""#);
            let answer = match (request.path.as_str(), request.header("authorization")) {
                ("/elsewhere", _) => reply(OK, &[], &manifest()),
                (path, _) if path.starts_with("/token") => reply(OK, &[], br#"{"token":"secret"}"#),
                (_, None) => reply("401 No", &[("WWW-Authenticate", &challenge)], b""),
                (_, Some(_)) => reply("307 There", &[("Location", &elsewhere)], b""),
            };
            send(stream, &answer);
        });
        let front = Front::start(&server, &authority, "IP:127.0.0.1", VALID);
        let client = Client::new(Options { ca: vec![authority.file()], ..options() }).unwrap();
        let tag = Tagged::parse(&format!("127.0.0.1:{}/some/image:1", front.port())).unwrap();
        client.resolve(&tag).unwrap();
        let shown: Vec<_> = server.requests().iter().map(|r| r.header("authorization").map(str::to_owned)).collect();
        assert_eq!(shown, [None, None, Some("Bearer secret".to_owned()), None], "{there}");
    }
}

fn no_realm_of_plain_http() {
    let tokens = Server::start(|_, stream| send(stream, &reply(OK, &[], br#"{"token":"t"}"#)));
    // Plain http to loopback is fine otherwise.
    let realm = format!("http://{}/token", tokens.host());
    let challenge = format!(r#"Bearer realm="{realm}""#);
    let server = Server::start(move |_, stream| {
        send(stream, &reply("401 No", &[("WWW-Authenticate", &challenge)], b""));
    });
    let authority = Authority::new();
    let front = Front::start(&server, &authority, NAME, VALID);
    let problem = format!("expected a token server of https, as the registry is, found {realm}");
    assert_eq!(ask(front.port(), &authority.file()), format!("authorize at https://registry.test: {problem}"));
    assert_eq!((server.requests().len(), tokens.requests().len()), (1, 0));
}

fn a_ca_file_that_is_odd() {
    let dir = tempfile::tempdir().unwrap();
    let (missing, odd) = (dir.path().join("missing.pem"), dir.path().join("odd.pem"));
    std::fs::write(&odd, "no certificate").unwrap();
    let say = |file: &Path| run(&[], file, "none", &["registry.test"])[0].clone();
    assert_eq!(say(&missing), format!("registry.test: open CA certificates {}", missing.display()));
    let problem = "expected certificates in PEM, found none";
    assert_eq!(say(&odd), format!("registry.test: read CA certificates {}: {problem}", odd.display()));
    // What needs no certificates does not read them.
    let server = registry();
    let client = Client::new(Options { ca: vec![missing], ..options() }).unwrap();
    client.resolve(&repository(&server).tagged("1").unwrap()).unwrap();
}
