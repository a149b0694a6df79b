//! docker-registry with token authentication, and a token server of the test's own that signs what it grants. Spec: the
//! distribution project's "Token Authentication Implementation" (JSON Web Tokens, RFC 7519, with the certificate in `x5c`,
//! RFC 7515, section 4.1.6).

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use libtest_mimic::Trial;
use oci::{Client, Error, Mount, Options, Silent};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::OK;
use crate::distribution::Registry;
use crate::field::{image, pull, tool};
use crate::publish::push;
use crate::server::{Request, Server, reply, send};
use crate::{Need, trial};

/// base64 of `it:p`.
const BASIC: &str = "aXQ6cA==";
/// How long a token is good for.
const TOKEN_LIFE: Duration = Duration::from_secs(300);

pub(crate) fn trials() -> Vec<Trial> {
    // Root, because links in our layers belong to it.
    let needs = &[Need::Root, Need::Tool("docker-registry"), Need::Tool("openssl")];
    vec![
        trial("bearer::f33_f43_a_run_is_one_token_of_both_scopes", needs, one_token_of_both_scopes),
        trial("bearer::f33_without_a_right_to_the_source_it_is_an_upload", needs, no_right_to_the_source),
        trial("bearer::without_a_right_to_push_it_is_an_error", needs, no_right_to_push),
    ]
}

/// A registry, and its token server, which lets `it` do everything but see `secret`, and anyone pull.
struct Guarded {
    registry: Registry,
    tokens: Server,
    home: TempDir,
}

impl Guarded {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name).display().to_string();
        tool(
            "openssl",
            &[
                &["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=it"][..],
                &["-keyout", &path("key.pem"), "-out", &path("certificate.pem")],
            ]
            .concat(),
        );
        let dir = home.path().to_owned();
        let tokens = Server::start(move |request, stream| send(stream, &reply(OK, &[], &grant(request, &dir))));
        let auth = format!(
            "auth: {{token: {{realm: 'http://{}/token', service: it, issuer: it, rootcertbundle: {}}}}}\n",
            tokens.host(),
            path("certificate.pem")
        );
        let registry = Registry::start_with(tempfile::tempdir().unwrap(), &auth);
        let config = format!(r#"{{"auths":{{"{}":{{"auth":"{BASIC}"}}}}}}"#, registry.host());
        fs::write(home.path().join("config.json"), config).unwrap();
        Self { registry, tokens, home }
    }

    fn client(&self) -> Client {
        let credentials = Some(self.home.path().join("config.json"));
        Client::new(Options { credentials, ..Options::default() }).unwrap()
    }
}

/// The token server's answer: of what was asked for, that to which the user has a right.
fn grant(request: &Request, dir: &Path) -> Vec<u8> {
    let user = request.header("authorization").map(|value| value == format!("Basic {BASIC}"));
    assert_ne!(user, Some(false));
    let url = reqwest::Url::parse(&format!("http://it{}", request.path)).unwrap();
    let access: Vec<Value> = url
        .query_pairs()
        .filter(|(key, _)| key == "scope")
        .filter_map(|(_, scope)| {
            let [kind, name, actions] = scope.split(':').collect::<Vec<_>>()[..] else { panic!("{scope}") };
            let granted: Vec<&str> = actions.split(',').filter(|action| user.is_some() || *action == "pull").collect();
            (name != "secret").then(|| json!({"type": kind, "name": name, "actions": granted}))
        })
        .collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let end = now + TOKEN_LIFE.as_secs();
    let claims = json!({"iss": "it", "aud": "it", "sub": "it", "iat": now, "nbf": now - 5, "exp": end, "jti": "1", "access": access});
    let token = sign(&claims, dir);
    json!({"token": token, "expires_in": TOKEN_LIFE.as_secs()}).to_string().into_bytes()
}

fn sign(claims: &Value, dir: &Path) -> String {
    let certificate = fs::read_to_string(dir.join("certificate.pem")).unwrap();
    let certificate: String = certificate.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(&certificate).unwrap();
    let header = json!({"typ": "JWT", "alg": "RS256", "x5c": [certificate]});
    let [header, claims] = [&header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let text = format!("{header}.{claims}");
    let mut command = Command::new("openssl");
    command.args(["dgst", "-sha256", "-sign"]).arg(dir.join("key.pem"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(output.stdout))
}

fn one_token_of_both_scopes() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, manifest) = image(&dir.path().join("made"));
    let mut guarded = Guarded::start();
    let (from, to) = (guarded.registry.repository("base"), guarded.registry.repository("ours"));
    push(&guarded.client(), &from, &layout, &manifest).unwrap();
    // The refusal, then three blobs and the manifest with one token.
    assert_eq!(guarded.registry.methods().len(), 1 + 3 * 2 + 1);
    assert_eq!(guarded.tokens.requests().len(), 1);
    let client = guarded.client();
    for blob in manifest.layers().iter().chain([manifest.config()]) {
        assert!(matches!(client.mount(&from, &to, blob).unwrap(), Mount::Mounted));
    }
    push(&client, &to, &layout, &manifest).unwrap();
    assert_eq!(guarded.registry.methods(), ["POST", "POST", "POST", "POST", "PUT"]);
    assert_eq!(
        guarded.tokens.paths()[1..],
        ["/token?service=it&scope=repository%3Aours%3Apull%2Cpush&scope=repository%3Abase%3Apull"]
    );
    // Anyone may pull.
    pull(&Client::new(Options::default()).unwrap(), &to, &manifest, dir.path());
    assert_eq!(guarded.tokens.requests()[2].header("authorization"), None);
}

fn no_right_to_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, manifest) = image(&dir.path().join("made"));
    let mut guarded = Guarded::start();
    let (from, to) = (guarded.registry.repository("secret"), guarded.registry.repository("ours"));
    let client = guarded.client();
    for blob in manifest.layers() {
        let Mount::Upload(upload) = client.mount(&from, &to, blob).unwrap() else { panic!("{}", blob.digest) };
        client.upload(upload, &layout, &Silent).unwrap();
    }
    push(&client, &to, &layout, &manifest).unwrap();
    assert!(guarded.registry.methods().ends_with(&["POST", "PUT", "PUT"].map(str::to_owned)));
}

fn no_right_to_push() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, manifest) = image(&dir.path().join("made"));
    let mut guarded = Guarded::start();
    let anyone = Client::new(Options::default()).unwrap();
    let result = push(&anyone, &guarded.registry.repository("ours"), &layout, &manifest);
    assert!(matches!(result, Err(Error::Unauthorized { .. })), "{result:?}");
    assert_eq!(guarded.registry.methods(), ["POST", "POST"]);
    assert_eq!(guarded.tokens.requests().len(), 1);
}
