//! Who we are, and who gets to know: passwords and tokens of the registry client against registries of the test's own.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use oci::{Client, Error, Interrupt, Mount, Options, Reference, Repository, Silent};
use tempfile::TempDir;

use crate::client::{BODY, OK, blob, options, repository};
use crate::push::{Push, TYPE, registry};
use crate::server::{Request, Server, reply};
use crate::trial;

/// Marks a child of these trials: `CHILD CONFIG HOST [FILE]`.
pub(crate) const CHILD: &str = "child-of-login-trial";
/// How long a helper may take.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
/// base64 of `u:p`, and of `u:old`.
const BASIC: &str = "Basic dTpw";
const ENTRY: &str = r#"{"auth":"dTpw"}"#;
const WRONG_ENTRY: &str = r#"{"auth":"dTpvbGQ="}"#;

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 12] = [
        ("login::f33_f43_one_token_of_both_scopes_serves_a_run", one_token_serves_a_run),
        ("login::f42_a_token_that_dies_in_mid_push_is_replaced", a_dying_token_is_replaced),
        ("login::f42_a_403_of_a_dead_token_is_a_401", a_403_of_a_dead_token_is_a_401),
        ("login::f43_threads_ask_for_one_token", threads_ask_for_one_token),
        ("login::f43_a_token_ends_with_its_life", a_token_ends_with_its_life),
        ("login::f44_uploads_elsewhere_carry_no_authorization", uploads_elsewhere_carry_nothing),
        ("login::f45_passwords_go_to_trusted_token_servers", passwords_go_to_trusted_servers),
        ("login::a_password_is_for_who_asks", a_password_is_for_who_asks),
        ("login::identity_tokens_are_posted", identity_tokens_are_posted),
        ("login::a_token_server_that_is_down_is_not_a_registry_that_is", a_token_server_is_down),
        ("login::a_helper_ends_with_the_interrupt", a_helper_ends_with_the_interrupt),
        ("login::f49_helpers_come_first_and_may_have_nothing", helpers_come_first),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

/// A registry that wants `Bearer N` where `N` is the number of the last token that it gave, and its token server, whose
/// answers hold `life`. `odd` may answer in its place once the token is right.
fn guarded(life: &'static str, odd: impl Fn(&Request) -> Option<Vec<u8>> + Send + 'static) -> Server {
    let given = AtomicUsize::new(0);
    registry(move |request, _| {
        let host = request.header("host").unwrap();
        if request.path.starts_with("/token") {
            let token = given.fetch_add(1, Ordering::SeqCst) + 1;
            return Some(reply(OK, &[], format!(r#"{{"token":"{token}"{life}}}"#).as_bytes()));
        }
        let valid = format!("Bearer {}", given.load(Ordering::SeqCst));
        if request.header("authorization") == Some(&valid) {
            return odd(request);
        }
        let challenge = format!(r#"Bearer realm="http://{host}/token",service="it""#);
        Some(reply("401 No", &[("WWW-Authenticate", &challenge)], b""))
    })
}

fn token_calls(server: &Server) -> Vec<String> {
    server.paths().into_iter().filter(|path| path.starts_with("/token")).collect()
}

fn one_token_serves_a_run() {
    let server = guarded("", |request| request.path.contains("mount=").then(|| reply("201 Created", &[], b"")));
    let push = Push::new(options());
    let other = push.layout.put("a/b", b"other").unwrap();
    let from = Repository::parse(&format!("{}/the/base", server.host())).unwrap();
    assert!(matches!(push.client.mount(&from, &repository(&server), &other), Ok(Mount::Mounted)));
    push.blob(&server).unwrap();
    let tag = Reference::Tagged(repository(&server).tagged("1").unwrap());
    push.client.put_manifest(&tag, TYPE, b"{}").unwrap();
    let token = "/token?service=it&scope=repository%3Asome%2Fimage%3Apull%2Cpush&scope=repository%3Athe%2Fbase%3Apull";
    assert_eq!(token_calls(&server), [token]);
    // Refused mount, token, mount, POST, PUT, PUT.
    assert_eq!(server.requests().len(), 6);
    // Another source is another token, and is not asked for without it.
    let from = Repository::parse(&format!("{}/another/base", server.host())).unwrap();
    let third = push.layout.put("a/b", b"third").unwrap();
    push.client.mount(&from, &repository(&server), &third).unwrap();
    assert_eq!(server.requests().len(), 8);
    assert!(token_calls(&server)[1].ends_with("scope=repository%3Aanother%2Fbase%3Apull"));
}

fn a_dying_token_is_replaced() {
    let puts = AtomicUsize::new(0);
    let server = guarded("", move |request| {
        let first = request.method == "PUT" && puts.fetch_add(1, Ordering::SeqCst) == 0;
        first.then(|| reply("401 No", &[], b""))
    });
    Push::new(options()).blob(&server).unwrap();
    let bodies: Vec<usize> = server.requests().iter().map(|request| request.body.len()).collect();
    // Refused POST, token, POST, refused PUT, token, PUT.
    assert_eq!(bodies, [0, 0, 0, BODY.len(), 0, BODY.len()], "{:?}", server.calls());
    let always = guarded("", |request| (request.method == "PUT").then(|| reply("401 No", &[], b"")));
    let result = Push::new(options()).blob(&always);
    assert!(matches!(result, Err(Error::Unauthorized { .. })), "{result:?}");
    assert_eq!(token_calls(&always).len(), 2);
}

fn a_403_of_a_dead_token_is_a_401() {
    for (life, revived) in [(r#","expires_in":0"#, true), ("", false)] {
        let puts = AtomicUsize::new(0);
        let server = guarded(life, move |request| {
            let first = request.method == "PUT" && puts.fetch_add(1, Ordering::SeqCst) == 0;
            first.then(|| reply("403 No", &[], b""))
        });
        let result = Push::new(options()).blob(&server);
        assert_eq!(result.is_ok(), revived, "{result:?}");
    }
}

fn threads_ask_for_one_token() {
    let server = guarded("", |_| None);
    let push = Push::new(options());
    let tags: Vec<_> = (0..8).map(|tag| repository(&server).tagged(&tag.to_string()).unwrap()).collect();
    std::thread::scope(|scope| {
        for tag in &tags {
            scope.spawn(|| push.client.put_manifest(&Reference::Tagged(tag.clone()), TYPE, b"{}").unwrap());
        }
    });
    assert_eq!(token_calls(&server).len(), 1);
}

fn a_token_ends_with_its_life() {
    let server = guarded(r#","expires_in":0"#, |_| None);
    Push::new(options()).blob(&server).unwrap();
    // Refused POST, token, POST; token, PUT: a token that is known to be dead is not shown.
    assert_eq!(server.requests().len(), 5, "{:?}", server.calls());
    assert_eq!(token_calls(&server).len(), 2);
}

fn uploads_elsewhere_carry_nothing() {
    let storage = registry(|_, _| Some(reply("201 Created", &[], b"")));
    let location = format!("http://{}/signed?x=1", storage.host());
    let server = guarded("", move |request| {
        (request.method == "POST").then(|| reply("202 Accepted", &[("Location", &location)], b""))
    });
    Push::new(options()).blob(&server).unwrap();
    // And where only the PUT is sent there, body and all.
    let location = format!("http://{}/moved?x=1", storage.host());
    let server = guarded("", move |request| {
        (request.method == "PUT").then(|| reply("307 There", &[("Location", &location)], b""))
    });
    Push::new(options()).blob(&server).unwrap();
    assert_eq!(storage.calls(), ["PUT /signed", "PUT /moved"]);
    for request in storage.requests() {
        assert_eq!((request.header("authorization"), request.body.as_slice()), (None, BODY));
    }
}

/// A config file, and options that name it.
fn login(auths: &str) -> (TempDir, Options) {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    fs::write(&config, format!(r#"{{"auths":{{{auths}}}}}"#)).unwrap();
    (dir, Options { credentials: Some(config), ..options() })
}

fn passwords_go_to_trusted_servers() {
    let server = guarded("", |_| None);
    let (_dir, options) = login(&format!(r#""{}":{ENTRY}"#, server.host()));
    Push::new(options).blob(&server).unwrap();
    let shown: Vec<_> = server.requests().iter().map(|r| r.header("authorization").map(str::to_owned)).collect();
    let bearer = Some("Bearer 1".to_owned());
    assert_eq!(shown, [None, Some(BASIC.to_owned()), bearer.clone(), bearer]);
    // `localhost` is another host than 127.0.0.1, and the registry's choice, not ours.
    let tokens = registry(|_, _| Some(reply(OK, &[], br#"{"token":"1"}"#)));
    let realm = format!("http://localhost:{}/token", tokens.host().rsplit(':').next().unwrap());
    let challenge = format!(r#"Bearer realm="{realm}""#);
    let server = registry(move |request, _| match request.header("authorization") {
        None => Some(reply("401 No", &[("WWW-Authenticate", &challenge)], b"")),
        Some(_) => None,
    });
    let (_dir, options) = login(&format!(r#""{}":{ENTRY}"#, server.host()));
    let result = Push::new(options.clone()).blob(&server);
    assert!(matches!(result, Err(Error::Realm { .. })), "{result:?}");
    assert_eq!(tokens.requests().len(), 0);
    let realms = vec![(server.host(), "localhost".to_owned())];
    Push::new(Options { realms, ..options }).blob(&server).unwrap();
    assert_eq!(tokens.requests()[0].header("authorization"), Some(BASIC));
    // Without credentials for this registry there is nothing to guard.
    let (_dir, options) = login(&format!(r#""registry.example":{ENTRY}"#));
    Push::new(options).blob(&server).unwrap();
    assert_eq!(tokens.requests()[1].header("authorization"), None);
}

/// A registry that wants `u:p`.
fn basic() -> Server {
    registry(|request, _| {
        let challenge = [("WWW-Authenticate", r#"Basic realm="it""#)];
        (request.header("authorization") != Some(BASIC)).then(|| reply("401 No", &challenge, b""))
    })
}

fn a_password_is_for_who_asks() {
    let server = basic();
    let (_dir, options) = login(&format!(r#""http://{}/v2/":{ENTRY}"#, server.host()));
    let push = Push::new(options);
    push.blob(&server).unwrap();
    let shown: Vec<bool> = server.requests().iter().map(|r| r.header("authorization").is_some()).collect();
    assert_eq!(shown, [false, true, true]);
    let open = registry(|_, _| None);
    push.blob(&open).unwrap();
    assert!(open.requests().iter().all(|request| request.header("authorization").is_none()));
    for (entry, requests) in [(WRONG_ENTRY, 2), ("{}", 1)] {
        let server = basic();
        let (_dir, options) = login(&format!(r#""{}":{entry}"#, server.host()));
        let tag = Reference::Tagged(repository(&server).tagged("1").unwrap());
        let result = Client::new(options).unwrap().head(&tag);
        assert!(matches!(result, Err(Error::Unauthorized { .. })), "{result:?}");
        assert_eq!(server.requests().len(), requests);
    }
    let damaged = tempfile::tempdir().unwrap();
    fs::write(damaged.path().join("config.json"), "{secret").unwrap();
    let server = basic();
    let credentials = Some(damaged.path().join("config.json"));
    let error = Push::new(Options { credentials, ..crate::client::options() }).blob(&server).unwrap_err().to_string();
    assert!(error.ends_with("config.json: expected JSON, at line 1 column 2"), "{error}");
}

fn a_token_server_is_down() {
    // A port that was free a moment ago.
    let realm = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let challenge = format!(r#"Bearer realm="{realm}/token""#);
    let asks = move |_: &Request, _| Some(reply("401 No", &[("WWW-Authenticate", &challenge)], b""));
    let (home, mirror) = (registry(asks.clone()), registry(asks));
    let error = Push::new(options()).blob(&home).unwrap_err();
    assert!(matches!(error, Error::TokenServer { .. }), "{error:?}");
    let said = error.to_string();
    let start = format!("authorize at http://{}: reach its token server {realm}: ", home.host());
    assert!(said.starts_with(&start) && said.contains("refused"), "{said}");
    // A mirror of which it is true is asked once.
    let client =
        Client::new(Options { mirrors: vec![(home.host(), format!("http://{}", mirror.host()))], ..options() });
    let client = client.unwrap();
    let tag = repository(&home).tagged("1").unwrap();
    for _ in 0..2 {
        let result = client.resolve(&tag);
        assert!(matches!(result, Err(Error::Mirrored { .. })), "{result:?}");
    }
    assert_eq!(mirror.requests().len(), 1);
}

fn identity_tokens_are_posted() {
    let server = guarded("", |_| None);
    let (_dir, options) = login(&format!(r#""{}":{{"identitytoken":"r+t"}}"#, server.host()));
    Push::new(Options { user_agent: "it".to_owned(), ..options }).blob(&server).unwrap();
    let request = &server.requests()[1];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/token"));
    assert_eq!(
        String::from_utf8_lossy(&request.body),
        "grant_type=refresh_token&service=it&client_id=it&scope=repository%3Asome%2Fimage%3Apull%2Cpush&refresh_token=r%2Bt"
    );
    assert_eq!(request.header("authorization"), None);
}

fn helpers_come_first() {
    let server = basic();
    let dir = tempfile::tempdir().unwrap();
    let found = r#"printf '{"Username":"u","Secret":"p"}'"#;
    let empty = "printf 'credentials not found in native keychain'; exit 1";
    // Each helper says what it was asked, so that the order can be seen.
    for (name, answer) in [("found", found), ("empty", empty), ("broken", "echo secret; exit 3")] {
        let path = dir.path().join(format!("docker-credential-{name}"));
        let log = dir.path().join("asked");
        let script = format!("#!/bin/sh\nprintf '{name} %s %s\\n' \"$1\" \"$(cat)\" >> {}\n{answer}\n", log.display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let host = server.host();
    for (config, words, asked) in [
        (format!(r#"{{"credHelpers":{{"{host}":"found"}},"credsStore":"broken"}}"#), "done", "found get HOST\n"),
        (format!(r#"{{"credHelpers":{{"{host}":"empty"}},"auths":{{"{host}":{ENTRY}}}}}"#), "done", "empty get HOST\n"),
        (format!(r#"{{"credsStore":"found","auths":{{"{host}":{WRONG_ENTRY}}}}}"#), "done", "found get HOST\n"),
        (
            format!(r#"{{"credsStore":"broken","auths":{{"{host}":{ENTRY}}}}}"#),
            "ended with exit status: 3",
            "broken get HOST\n",
        ),
    ] {
        let path = dir.path().join("config.json");
        fs::write(&path, config).unwrap();
        let _ = fs::remove_file(dir.path().join("asked"));
        let said = child(dir.path(), &path, &host, &[]);
        assert!(said.contains(words) && !said.contains("secret"), "{said}");
        assert_eq!(fs::read_to_string(dir.path().join("asked")).unwrap(), asked.replace("HOST", &host));
    }
}

fn a_helper_ends_with_the_interrupt() {
    let server = basic();
    let dir = tempfile::tempdir().unwrap();
    let (helper, asked) = (dir.path().join("docker-credential-slow"), dir.path().join("asked"));
    fs::write(&helper, format!("#!/bin/sh\nexec >&-\necho $$ > {}\nexec sleep 600\n", asked.display())).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let config = dir.path().join("config.json");
    fs::write(&config, r#"{"credsStore":"slow"}"#).unwrap();
    // The child raises its interrupt once this file holds something.
    let start = Instant::now();
    let said = child(dir.path(), &config, &server.host(), &[&asked]);
    assert_eq!(said, "interrupted\n");
    assert!(start.elapsed() < HELPER_TIMEOUT, "{:?}", start.elapsed());
    let pid = fs::read_to_string(asked).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "{pid}");
}

/// Pushes in a process of its own, which finds the helpers of `dir`, and is interrupted once the file `until`, if there is one,
/// holds something.
fn child(dir: &Path, config: &Path, host: &str, until: &[&Path]) -> String {
    let path = format!("{}:/usr/bin:/bin", dir.display());
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.arg(CHILD).arg(config).arg(host).args(until).env("PATH", path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The child's main.
pub(crate) fn push_in_child(arguments: &[String]) -> ExitCode {
    let [config, host, until @ ..] = arguments else { return ExitCode::FAILURE };
    let interrupt = Interrupt::default();
    if let [until] = until {
        let (until, raise) = (until.clone(), interrupt.clone());
        std::thread::spawn(move || {
            while fs::read(&until).map_or(true, |bytes| bytes.is_empty()) {
                std::thread::sleep(Duration::from_millis(5));
            }
            raise.raise();
        });
    }
    let push = Push::new(Options { credentials: Some(config.into()), interrupt, ..options() });
    let repository = Repository::parse(&format!("{host}/some/image")).unwrap();
    match push.client.push_blob(&repository, &blob(), &push.layout, &Silent) {
        Ok(()) => println!("done"),
        Err(error) => println!("{error}"),
    }
    ExitCode::SUCCESS
}
