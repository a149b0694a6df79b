//! Credentials as Docker and its kin keep them: `config.json` with `auths`, `credHelpers` and `credsStore`, and the helper
//! programs that those name. Spec: Docker's documentation of `docker login`, sections "Credential stores" and "Credential
//! helpers", and docker-credential-helpers. Reads only; never writes, prints or logs a secret.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use reqwest::Url;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::progress::Interrupt;

/// Largest `config.json` that is read.
const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
/// Largest answer of a helper that is read.
const HELPER_BYTES_MAX: u64 = 64 * 1024;
/// How long a helper may take until it has ended: it may ask a person to unlock a key ring.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked at whether a helper has ended, and whether the caller wants to go on.
const HELPER_INTERVAL: Duration = Duration::from_millis(20);
/// All the names under which people keep what is for Docker Hub; the first is the one that `docker login` writes.
const DOCKER_HUB_KEYS: [&str; 4] =
    ["https://index.docker.io/v1/", "docker.io", "index.docker.io", "registry-1.docker.io"];
/// What a helper says that has nothing (docker-credential-helpers, `credentials/error.go`).
const NOT_FOUND: &str = "credentials not found";

/// Who we are for one registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Identity {
    /// For Basic, or for a token server.
    Password { user: String, password: String },
    /// An OAuth2 refresh token, for a token server.
    Token(String),
}

/// The config file, and what was found in it so far.
#[derive(Debug)]
pub(super) struct Credentials {
    config: Option<PathBuf>,
    interrupt: Interrupt,
    /// By registry, none included: a helper is asked once.
    known: Mutex<HashMap<String, Option<Identity>>>,
}

impl Credentials {
    /// Credentials from the file at `config`; without one we are nobody everywhere. It is read when first needed, and may
    /// be missing. `interrupt` ends a helper.
    pub(super) fn new(config: Option<PathBuf>, interrupt: Interrupt) -> Self {
        Self { config, interrupt, known: Mutex::default() }
    }

    /// Who we are for the registry at `url`.
    ///
    /// # Errors
    /// [`Error::Document`] for a config file or an entry for this registry that cannot be understood;
    /// [`Error::Credentials`] if a helper fails; [`Error::Interrupted`]; [`Error::Io`].
    pub(super) fn of(&self, url: &Url) -> Result<Option<Identity>> {
        let Some(path) = &self.config else { return Ok(None) };
        let registry = match (url.host_str().unwrap_or_default(), url.port()) {
            (host, None) => host.to_owned(),
            (host, Some(port)) => format!("{host}:{port}"),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = known.get(&registry) {
            return Ok(identity.clone());
        }
        let identity = find(&read(path)?, path, &registry, &self.interrupt)?;
        known.insert(registry, identity.clone());
        Ok(identity)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password { .. } => "Password",
            Self::Token(_) => "Token",
        })
    }
}

fn read(path: &Path) -> Result<Value> {
    let action = || format!("read credentials {}", path.display());
    // A pipe without a writer would be waited for already when it is opened.
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(found) => {
            let found = if found.is_dir() { "a folder" } else { "a pipe, socket or device" };
            return Err(Error::document(path.display(), format!("expected a regular file, found {found}")));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(Error::io(action())(error)),
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Error::io(action()))?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Error::io(action()))?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(Error::TooLarge { subject: path.display().to_string(), limit: CONFIG_BYTES_MAX });
    }
    // Its message is not shown: it may quote the file.
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::document(path.display(), format!("expected JSON, at line {} column {}", error.line(), error.column()))
    })
}

/// The helper for this registry, then the store for all, then the file itself; one that has nothing passes to the next.
fn find(config: &Value, path: &Path, registry: &str, interrupt: &Interrupt) -> Result<Option<Identity>> {
    let keys = keys(registry);
    let own = keys.iter().find_map(|key| Some((config["credHelpers"].get(key)?.as_str()?, key)));
    if let Some((helper, key)) = own
        && let Some(identity) = ask(helper, key, interrupt)?
    {
        return Ok(Some(identity));
    }
    if let Some(store) = config["credsStore"].as_str().filter(|name| !name.is_empty()) {
        for key in &keys {
            if let Some(identity) = ask(store, key, interrupt)? {
                return Ok(Some(identity));
            }
        }
    }
    let Some(entry) = keys.iter().find_map(|key| config["auths"].get(key).filter(|entry| is_filled(entry))) else {
        return Ok(None);
    };
    let problem = || format!("auths for {registry}: expected base64 of NAME:PASSWORD in auth");
    from_entry(entry).map(Some).ok_or_else(|| Error::document(path.display(), problem()))
}

/// The keys under which a registry's credentials may stand, best first.
fn keys(registry: &str) -> Vec<String> {
    if DOCKER_HUB_KEYS.contains(&registry) {
        let plain = DOCKER_HUB_KEYS.map(str::to_owned);
        let prefixed = DOCKER_HUB_KEYS[1..].iter().map(|host| format!("https://{host}"));
        return plain.into_iter().chain(prefixed).chain(["index.docker.io/v1/".to_owned()]).collect();
    }
    let mut keys = vec![registry.to_owned()];
    for scheme in ["https", "http"] {
        keys.extend(["", "/", "/v1/", "/v2/"].map(|path| format!("{scheme}://{registry}{path}")));
    }
    keys
}

/// `docker login` leaves empty entries for what it gave to a helper.
fn is_filled(entry: &Value) -> bool {
    ["auth", "identitytoken", "username"].iter().any(|key| entry[key].as_str().is_some_and(|text| !text.is_empty()))
}

fn from_entry(entry: &Value) -> Option<Identity> {
    let text = |key: &str| entry[key].as_str().filter(|text| !text.is_empty());
    if let Some(token) = text("identitytoken") {
        return Some(Identity::Token(token.to_owned()));
    }
    let Some(auth) = text("auth") else {
        return Some(identity(text("username")?, text("password").unwrap_or_default()));
    };
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decoded = String::from_utf8(GeneralPurpose::new(&STANDARD, lenient).decode(auth.trim()).ok()?).ok()?;
    // Old files pad with NUL.
    let (user, password) = decoded.trim_end_matches('\0').split_once(':')?;
    Some(identity(user, password))
}

/// The name `<token>` says that the secret is an identity token.
fn identity(user: &str, password: &str) -> Identity {
    if user == "<token>" {
        Identity::Token(password.to_owned())
    } else {
        Identity::Password { user: user.to_owned(), password: password.to_owned() }
    }
}

/// Runs `docker-credential-HELPER get` with `key` on its standard input.
fn ask(helper: &str, key: &str, interrupt: &Interrupt) -> Result<Option<Identity>> {
    let program = format!("docker-credential-{helper}");
    let failed = |problem: String| Error::Credentials { helper: program.clone(), registry: key.to_owned(), problem };
    if helper.contains('/') {
        return Err(failed("expected a name, found a path".to_owned()));
    }
    let (status, answer) =
        run(Command::new(&program).arg("get"), key, HELPER_TIMEOUT, interrupt).map_err(|ended| match ended {
            Ended::Interrupted => Error::Interrupted,
            Ended::Failed(problem) => failed(problem),
        })?;
    if !status.success() {
        // Only this much of its words is safe to look at: they may hold the secret.
        return if answer.contains(NOT_FOUND) { Ok(None) } else { Err(failed(format!("it ended with {status}"))) };
    }
    let value: Value = serde_json::from_str(&answer).unwrap_or_default();
    match (value["Username"].as_str(), value["Secret"].as_str()) {
        (Some(user), Some(secret)) => Ok(Some(identity(user, secret))),
        _ => Err(failed("expected JSON with Username and Secret".to_owned())),
    }
}

/// Why a helper gave no answer.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Interrupted,
    Failed(String),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A started helper: neither it nor its zombie outlives this.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        // Both fail for one that was waited for, which is what we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program with `input` for at most `limit`: how it ended, and what it said. Whatever it does with its descriptors, it
/// is killed when the time is over or the interrupt raised.
fn run(
    command: &mut Command,
    input: &str,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<(ExitStatus, String), Ended> {
    let deadline = Instant::now() + limit;
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut helper = Helper(child);
    if let Some(mut stdin) = helper.0.stdin.take() {
        // A key fits into the pipe. One that does not read its input may still know the answer.
        let _ = stdin.write_all(input.as_bytes());
    }
    let stdout = helper.0.stdout.take().ok_or_else(|| Ended::Failed("it has no standard output".to_owned()))?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.take(HELPER_BYTES_MAX).read_to_string(&mut text);
        // Nobody waits any more, if it fails.
        let _ = send.send(read.map(|_| text));
    });
    let (mut answer, mut status) = (None, None);
    loop {
        match receive.recv_timeout(HELPER_INTERVAL) {
            Ok(read) => answer = Some(read?),
            Err(RecvTimeoutError::Timeout) => {}
            // The answer was taken, and its thread is gone.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(HELPER_INTERVAL),
        }
        status = status.or(helper.0.try_wait()?);
        answer = match (answer, status) {
            (Some(answer), Some(status)) => return Ok((status, answer)),
            (answer, _) => answer,
        };
        if interrupt.is_raised() {
            return Err(Ended::Interrupted);
        }
        if Instant::now() >= deadline {
            let what = if answer.is_none() { "no answer" } else { "it did not end" };
            return Err(Ended::Failed(format!("{what} within {limit:?}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(user: &str, password: &str) -> Option<Identity> {
        Some(Identity::Password { user: user.to_owned(), password: password.to_owned() })
    }

    fn find(config: &str, registry: &str) -> Result<Option<Identity>> {
        super::find(&serde_json::from_str(config).unwrap(), Path::new("config.json"), registry, &Interrupt::default())
    }

    #[test]
    fn f49_all_spellings_of_a_registry_match() {
        // u:p
        let auth = r#"{"auth":"dTpw"}"#;
        for (key, registry, matches) in [
            ("r.example", "r.example", true),
            ("https://r.example", "r.example", true),
            ("https://r.example/", "r.example", true),
            ("https://r.example/v2/", "r.example", true),
            ("r.example:5000", "r.example:5000", true),
            ("r.example", "r.example:5000", false),
            ("r.example.evil", "r.example", false),
            ("https://index.docker.io/v1/", "registry-1.docker.io", true),
            ("docker.io", "registry-1.docker.io", true),
            ("https://docker.io", "registry-1.docker.io", true),
            ("index.docker.io", "registry-1.docker.io", true),
            ("docker.io", "r.example", false),
        ] {
            let found = find(&format!(r#"{{"auths":{{"{key}":{auth}}}}}"#), registry).unwrap();
            assert_eq!(found, if matches { password("u", "p") } else { None }, "{key} {registry}");
        }
    }

    #[test]
    fn entries_are_passwords_or_tokens() {
        let token = Some(Identity::Token("t".to_owned()));
        for (entry, found) in [
            (r#"{"auth":"dTpwOng="}"#, password("u", "p:x")),
            (r#"{"auth":"dTpwOng"}"#, password("u", "p:x")),
            (r#"{"auth":"dTpw","identitytoken":"t"}"#, token.clone()),
            (r#"{"auth":"PHRva2VuPjp0"}"#, token),
            (r#"{"username":"u","password":"p"}"#, password("u", "p")),
            ("{}", None),
            (r#"{"auth":""}"#, None),
        ] {
            assert_eq!(find(&format!(r#"{{"auths":{{"r":{entry}}}}}"#), "r").unwrap(), found, "{entry}");
        }
        for entry in [r#"{"auth":"***"}"#, r#"{"auth":"dXA="}"#] {
            let error = find(&format!(r#"{{"auths":{{"r":{entry}}}}}"#), "r").unwrap_err().to_string();
            assert!(error.contains("auths for r: expected base64"), "{error}");
        }
    }

    #[test]
    fn helpers_are_programs_by_name() {
        for (helper, why) in [("../evil", "found a path"), ("oci-test-none", "No such file")] {
            let config = format!(r#"{{"auths":{{"r":{{"auth":"dTpw"}}}},"credHelpers":{{"r":"{helper}"}}}}"#);
            let error = find(&config, "r").unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    /// Runs a script that tells its process id, for at most `limit`; it must be gone afterwards.
    fn script(text: &str, limit: Duration, interrupt: &Interrupt) -> Result<(bool, String), Ended> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let text = format!("echo $$ > {}; {text}", file.display());
        let ended = run(Command::new("sh").args(["-c", &text]), "key", limit, interrupt);
        let pid = fs::read_to_string(file).unwrap_or_default();
        assert!(pid.is_empty() || !Path::new("/proc").join(pid.trim()).exists(), "{text}: it was left behind");
        ended.map(|(status, said)| (status.success(), said))
    }

    #[test]
    fn a_helper_has_a_deadline_whatever_it_does() {
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(500));
        let goes_on = Interrupt::default();
        assert_eq!(script("cat", long, &goes_on), Ok((true, "key".to_owned())));
        assert_eq!(script("exec >&-; exit 3", long, &goes_on), Ok((false, String::new())));
        for (text, problem) in [
            ("exec sleep 600", "no answer within 500ms"),
            ("exec >&-; exec sleep 600", "it did not end within 500ms"),
            ("echo x; exec >&- <&-; trap '' TERM; exec sleep 600", "it did not end within 500ms"),
        ] {
            assert_eq!(script(text, short, &goes_on), Err(Ended::Failed(problem.to_owned())), "{text}");
        }
        let raised = Interrupt::default();
        raised.raise();
        for text in ["exec sleep 600", "exec >&-; exec sleep 600"] {
            assert_eq!(script(text, long, &raised), Err(Ended::Interrupted), "{text}");
        }
    }

    #[test]
    fn a_config_file_is_a_regular_file() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("none")).unwrap(), Value::Null);
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        for (path, found) in [(&fifo, "a pipe, socket or device"), (&dir.path().to_owned(), "a folder")] {
            let error = read(path).unwrap_err().to_string();
            assert_eq!(error, format!("read {}: expected a regular file, found {found}", path.display()));
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        let shown = format!("{:?}", password("name", "secret"));
        assert!(!shown.contains("secret") && !shown.contains("name"), "{shown}");
    }
}
