//! Which way requests go: through the environment's proxies or past them, and never to where a token server's name leads
//! inside. The environment is that of a process of its own: this program, run again with [`CHILD`] as its first argument.

use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::Trial;
use oci::{Client, Options, Tagged};

use crate::client::{OK, manifest, options};
use crate::https::{Authority, Front, VALID};
use crate::server::{Request, Server, reply, send};
use crate::{Need, trial};

/// Marks a child of these trials: `CHILD CA INSECURE[,INSECURE] HOST[=MIRROR]...`; it says of each host what came of asking it.
pub(crate) const CHILD: &str = "child-of-routes-trial";
/// Instead of a file of CA certificates.
pub(crate) const NO_CA: &str = "";
/// How long the child tries addresses where nobody is.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// All that says something of proxies (curl(1), section "Environment").
const VARIABLES: [&str; 8] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"];

pub(crate) fn trials() -> Vec<Trial> {
    let needs = &[Need::Tool("openssl")];
    vec![
        trial("routes::f50_each_scheme_has_its_proxy", needs, each_scheme_has_its_proxy),
        trial("routes::f50_no_proxy_names_hosts_suffixes_and_networks", &[], no_proxy_is_obeyed),
        trial("routes::f50_loopback_is_never_proxied", needs, loopback_is_never_proxied),
        trial("routes::f50_a_proxy_that_fails_is_one_error", &[], a_proxy_that_fails),
        trial("routes::f45_a_realms_name_may_not_lead_inside", &[Need::Root], a_realms_name_may_not_lead_inside),
    ]
}

/// The child's main.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let [ca, insecure, hosts @ ..] = arguments else { return ExitCode::FAILURE };
    for host in hosts {
        let (name, mirror) = host.split_once('=').unwrap_or((host, ""));
        let mirrors = if mirror.is_empty() { vec![] } else { vec![(name.to_owned(), mirror.to_owned())] };
        let client = Client::new(Options {
            mirrors,
            ca: Some(ca).filter(|ca| *ca != NO_CA).map(Into::into).into_iter().collect(),
            insecure: insecure.split(',').map(str::to_owned).collect(),
            connect_timeout: CONNECT_TIMEOUT,
            ..options()
        });
        match client.unwrap().resolve(&Tagged::parse(&format!("{name}/some/image:1")).unwrap()) {
            Ok(document) if document.bytes() == manifest() => println!("{name}: ok"),
            Ok(document) => println!("{name}: {}", document.digest()),
            Err(error) => println!("{name}: {error}"),
        }
    }
    ExitCode::SUCCESS
}

/// What a child says that has these variables and no other that matters.
pub(crate) fn run(variables: &[(&str, &str)], ca: &Path, insecure: &str, hosts: &[&str]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.arg(CHILD).arg(ca).arg(insecure).args(hosts).envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

pub(crate) fn registry() -> Server {
    Server::start(|_, stream| send(stream, &reply(OK, &[], &manifest())))
}

/// A proxy that alone knows the way (RFC 9110, sections 7.3.2 and 9.3.6): whatever host is asked for, plain requests are
/// answered here, and tunnels end at `port` of loopback.
pub(crate) fn proxy(port: u16) -> Server {
    Server::start(move |request, stream| {
        if request.method != "CONNECT" {
            let answer = if request.path.starts_with("http://") { OK } else { "400 No" };
            return send(stream, &reply(answer, &[], &manifest()));
        }
        let mut far = TcpStream::connect(("127.0.0.1", port)).unwrap();
        send(stream, b"HTTP/1.1 200 Established\r\n\r\n");
        let (mut near_read, mut far_write) = (stream.try_clone().unwrap(), far.try_clone().unwrap());
        // Either side may hang up first, and the other is told.
        let up = std::thread::spawn(move || {
            let _ = std::io::copy(&mut near_read, &mut far_write);
            let _ = far_write.shutdown(Shutdown::Write);
        });
        let _ = std::io::copy(&mut far, stream);
        let _ = stream.shutdown(Shutdown::Both);
        up.join().unwrap();
    })
}

fn each_scheme_has_its_proxy() {
    let (server, authority) = (registry(), Authority::new());
    let front = Front::start(&server, &authority, "DNS:secure.test", VALID);
    let (plain, secure) = (proxy(front.port()), proxy(front.port()));
    let [plain_url, secure_url] = [&plain, &secure].map(|proxy| format!("http://{}", proxy.host()));
    let variables = [("HTTP_PROXY", plain_url.as_str()), ("HTTPS_PROXY", secure_url.as_str())];
    let hosts = ["secure.test", "plain.test"];
    let said = run(&variables, &authority.file(), "plain.test", &hosts);
    assert_eq!(said, ["secure.test: ok", "plain.test: ok"]);
    assert_eq!(plain.calls(), ["GET http://plain.test/v2/some/image/manifests/1"]);
    assert_eq!(secure.calls(), ["CONNECT secure.test:443"]);
    assert_eq!(server.calls(), ["GET /v2/some/image/manifests/1"]);
    // One for both; and without any, nobody knows the names.
    let said = run(&[("all_proxy", &plain_url)], &authority.file(), "plain.test", &hosts);
    assert_eq!(said, ["secure.test: ok", "plain.test: ok"]);
    let said = run(&[], &authority.file(), "plain.test", &hosts);
    assert!(said[0].starts_with("secure.test: reach https://secure.test: "), "{said:?}");
    assert!(said[1].starts_with("plain.test: reach http://plain.test: "), "{said:?}");
    assert_eq!((plain.requests().len(), secure.requests().len()), (3, 1));
}

fn no_proxy_is_obeyed() {
    let proxy = proxy(1);
    let url = format!("http://{}", proxy.host());
    let variables = [("HTTP_PROXY", url.as_str()), ("NO_PROXY", "direct.test, .inner.test,192.0.2.0/24,2001:db8::/64")];
    for (host, proxied) in [
        ("direct.test", false),
        ("below.direct.test", false),
        ("indirect.test", true),
        ("a.inner.test", false),
        ("outer.test", true),
        // Addresses for documentation (RFC 5737, RFC 3849): nobody is there.
        ("192.0.2.1", false),
        ("198.51.100.1:5000", true),
        ("[2001:db8::1]:5000", false),
        ("[2001:db8:1::1]:5000", true),
    ] {
        let before = proxy.requests().len();
        let said = run(&variables, Path::new(NO_CA), host, &[host]);
        let expected = if proxied { "ok".to_owned() } else { format!("reach http://{host}: ") };
        assert!(said[0].starts_with(&format!("{host}: {expected}")), "{said:?}");
        assert_eq!(proxy.requests().len() - before, usize::from(proxied), "{host}");
    }
}

fn loopback_is_never_proxied() {
    let (server, authority) = (registry(), Authority::new());
    let front = Front::start(&server, &authority, "DNS:localhost,IP:127.0.0.1,DNS:away.test", VALID);
    let proxy = proxy(front.port());
    let url = format!("http://{}", proxy.host());
    let variables = [("HTTP_PROXY", url.as_str()), ("HTTPS_PROXY", url.as_str())];
    let plain = format!("localhost:{}", server.host().rsplit(':').next().unwrap());
    let [address, name] = ["127.0.0.1", "localhost"].map(|host| format!("m.test=https://{host}:{}", front.port()));
    let hosts = [server.host(), plain, address, name];
    let said = run(&variables, &authority.file(), "none", &hosts.each_ref().map(String::as_str));
    assert!(said.len() == hosts.len() && said.iter().all(|line| line.ends_with(": ok")), "{said:?}");
    assert_eq!(proxy.requests().len(), 0);
    let said = run(&variables, &authority.file(), "none", &["away.test"]);
    assert_eq!((said[0].as_str(), proxy.requests().len()), ("away.test: ok", 1), "the control");
}

fn a_proxy_that_fails() {
    let refusing = Server::start(|_, stream| send(stream, &reply("407 Who", &[], b"")));
    let refusing = format!("http://{}", refusing.host());
    // Nobody listens there.
    for (proxy, secure, plain) in [
        (
            "http://127.0.0.1:1",
            "reach https://secure.test: Connection refused",
            "reach http://plain.test: Connection refused",
        ),
        (
            &refusing,
            "reach https://secure.test: tunnel error: proxy authorization required",
            "GET http://plain.test/v2/some/image/manifests/1: expected status 200, found 407",
        ),
    ] {
        let variables = [("HTTPS_PROXY", proxy), ("HTTP_PROXY", proxy)];
        let said = run(&variables, Path::new(NO_CA), "plain.test", &["secure.test", "plain.test"]);
        for (said, (host, expected)) in said.iter().zip([("secure.test", secure), ("plain.test", plain)]) {
            assert!(said.starts_with(&format!("{host}: {expected}")), "{said}");
        }
    }
}

/// A registry that wants a token of `realm`, and its token server.
fn guarded(realm: &'static str) -> Server {
    Server::start(move |request: &Request, stream| {
        let port = request.header("host").unwrap().rsplit(':').next().unwrap();
        let challenge = format!(r#"Bearer realm="http://{realm}:{port}/token""#);
        let answer = match (request.path.starts_with("/token"), request.header("authorization")) {
            (true, _) => reply(OK, &[], br#"{"token":"t"}"#),
            (false, None) => reply("401 No", &[("WWW-Authenticate", &challenge)], b""),
            (false, Some(_)) => reply(OK, &[], &manifest()),
        };
        send(stream, &answer);
    })
}

fn a_realms_name_may_not_lead_inside() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    let names = "127.0.0.1 honest.test mixed.test\n169.254.169.254 rogue.test\n169.254.1.1 mixed.test\nfd00:ec2::254 six.test\n";
    std::fs::write(&hosts, names).unwrap();
    // Names resolve by a file that is seen in a mount namespace of the child's own, and goes with it.
    let script = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;
    for (realm, address) in [
        ("honest.test", None),
        ("rogue.test", Some("169.254.169.254")),
        ("mixed.test", Some("169.254.1.1")),
        ("six.test", Some("fd00:ec2::254")),
    ] {
        let server = guarded(realm);
        let mut command = Command::new("unshare");
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&hosts).arg(std::env::current_exe().unwrap());
        let output = command.args([CHILD, NO_CA, realm, &server.host()]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        let expected = address.map_or("ok".to_owned(), |address| {
            format!("expected a token server, found that {realm} is the link-local or metadata address {address}")
        });
        assert!(said.trim_end().ends_with(&expected), "{said}");
        let token_calls = server.calls().iter().filter(|call| *call == "GET /token").count();
        assert_eq!(token_calls, usize::from(address.is_none()), "{realm}");
    }
}
