//! A registry of the trials' own, in memory: it takes an index whose manifests it lacks (as distribution's registry and Quay can be told
//! to), or refuses one in other words than most, and can be told to shut a path or to let somebody else have a tag. Checks no digest.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use libtest_mimic::Failed;
use oci::{Digest, Document};

/// Larger than whatever a trial sends.
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How long a promotion may take until it puts a tag.
const MEETING_TIMEOUT: Duration = Duration::from_secs(60);

/// What becomes of an index whose manifests are not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sparse {
    /// It is taken.
    Taken,
    /// It is refused with this status and code, and nothing tells what is missing.
    Refused(u16, &'static str),
}

/// What it is told and what it has.
pub(crate) struct State {
    pub(crate) sparse: Sparse,
    /// Whoever puts a tag of this name finds that it names this digest.
    pub(crate) rival: Option<(&'static str, Digest)>,
    /// Requests whose path ends so are forbidden, with this code.
    pub(crate) shut: Option<(&'static str, &'static str)>,
    /// Two must put a tag of this name before either of them is taken, and both are taken before either is answered.
    pub(crate) meeting: Option<&'static str>,
    /// By path: `REPOSITORY/manifests/REFERENCE`.
    manifests: BTreeMap<String, Vec<u8>>,
    /// By path: `REPOSITORY/blobs/DIGEST`.
    blobs: BTreeSet<String>,
    requests: Vec<String>,
}

/// The running server; stops when dropped.
pub(crate) struct Lenient {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lenient {
    pub(crate) fn start(sparse: Sparse) -> Result<Self, Failed> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (manifests, blobs, requests) = Default::default();
        let state = State { sparse, rival: None, shut: None, meeting: None, manifests, blobs, requests };
        let (state, stop) = (Arc::new(Mutex::new(state)), Arc::<AtomicBool>::default());
        let (shared, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let gates = Arc::<[Gate; 2]>::default();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, gates) = (Arc::clone(&shared), Arc::clone(&gates));
                // A client that has gone needs no answer.
                std::thread::spawn(move || stream.and_then(|stream| serve(&stream, &shared, &gates)));
            }
        });
        Ok(Self { address, state, stop, thread: Some(thread) })
    }

    /// `127.0.0.1:PORT`
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Has a manifest without having been asked to.
    pub(crate) fn keep(&mut self, repository: &str, reference: &str, bytes: &[u8]) {
        self.manifests.insert(format!("{repository}/manifests/{reference}"), bytes.to_vec());
    }

    pub(crate) fn has(&self, repository: &str, reference: &str) -> bool {
        self.manifests.contains_key(&format!("{repository}/manifests/{reference}"))
    }

    /// What a tag names.
    pub(crate) fn named(&self, repository: &str, tag: &str) -> Option<Digest> {
        self.manifests.get(&format!("{repository}/manifests/{tag}")).map(|bytes| Digest::of(bytes))
    }

    /// The requests since the last call: `METHOD REPOSITORY/KIND/NAME`.
    pub(crate) fn requests(&mut self) -> Vec<String> {
        std::mem::take(&mut self.requests)
    }

    /// The status, headers and body that answer a request.
    fn answer(&mut self, method: &str, target: &str, body: Vec<u8>) -> (u16, String, Vec<u8>) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = path.trim_start_matches("/v2/").to_owned();
        self.requests.push(format!("{method} {path}"));
        if let Some((_, code)) = self.shut.filter(|(shut, _)| path.ends_with(shut)) {
            return error(403, code);
        }
        let repository = path.rsplitn(3, '/').nth(2).unwrap_or_default().trim_end_matches("/blobs").to_owned();
        match method {
            "POST" => (202, format!("Location: /v2/{path}1\r\n"), Vec::new()),
            "PUT" if path.contains("/uploads/") => {
                let digest = query.split('&').find_map(|pair| pair.strip_prefix("digest=")).unwrap_or_default();
                self.blobs.insert(format!("{repository}/blobs/{}", digest.replace("%3A", ":")));
                (201, String::new(), Vec::new())
            }
            "PUT" => self.put(&repository, path, body),
            _ if path.contains("/blobs/") && self.blobs.contains(&path) => (200, String::new(), Vec::new()),
            _ => match self.manifests.get(&path) {
                Some(bytes) => match Document::parse(bytes.clone()) {
                    Ok(document) => (200, headers(&document), bytes.clone()),
                    Err(_) => error(500, "UNKNOWN"),
                },
                None => error(404, "MANIFEST_UNKNOWN"),
            },
        }
    }

    fn put(&mut self, repository: &str, path: String, body: Vec<u8>) -> (u16, String, Vec<u8>) {
        let Ok(document) = Document::parse(body.clone()) else { return error(400, "MANIFEST_INVALID") };
        match &document {
            Document::Index(index) => {
                let whole = index.manifests().iter().all(|child| self.has(repository, &child.digest.to_string()));
                if let (false, Sparse::Refused(status, code)) = (whole, self.sparse) {
                    return error(status, code);
                }
            }
            Document::Manifest(manifest) => {
                let lacks = |digest: &&Digest| !self.blobs.contains(&format!("{repository}/blobs/{digest}"));
                let missing: Vec<_> = manifest.blobs().map(|blob| &blob.digest).filter(lacks).collect();
                if !missing.is_empty() {
                    let errors = missing
                        .iter()
                        .map(|digest| format!(r#"{{"code":"MANIFEST_BLOB_UNKNOWN","detail":"{digest}"}}"#));
                    let body = format!(r#"{{"errors":[{}]}}"#, errors.collect::<Vec<_>>().join(","));
                    return (400, String::new(), body.into_bytes());
                }
            }
        }
        let headers = headers(&document);
        self.keep(repository, &document.digest().to_string(), &body);
        self.manifests.insert(path.clone(), body);
        if let Some((_, rival)) = self.rival.filter(|(tag, _)| path.ends_with(&format!("/{tag}"))) {
            let other = self.manifests.get(&format!("{repository}/manifests/{rival}")).cloned().unwrap_or_default();
            self.manifests.insert(path, other);
        }
        (201, headers, Vec::new())
    }
}

fn headers(document: &Document) -> String {
    let named = document.descriptor();
    format!("Content-Type: {}\r\nDocker-Content-Digest: {}\r\n", named.media_type, named.digest)
}

fn error(status: u16, code: &str) -> (u16, String, Vec<u8>) {
    (status, String::new(), format!(r#"{{"errors":[{{"code":"{code}"}}]}}"#).into_bytes())
}

/// Where two wait for each other.
#[derive(Default)]
struct Gate {
    came: Mutex<usize>,
    both: Condvar,
}

impl Gate {
    /// Who waits for longer than [`MEETING_TIMEOUT`] goes on alone, and the trial fails by that.
    fn meet(&self) {
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        *came += 1;
        self.both.notify_all();
        drop(self.both.wait_timeout_while(came, MEETING_TIMEOUT, |came| *came < 2));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers one request and closes.
fn serve(stream: &TcpStream, state: &Mutex<State>, gates: &[Gate; 2]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first)?;
    while reader.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    let mut body = Vec::new();
    reader.take(BODY_BYTES_MAX.min(length)).read_to_end(&mut body)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let tag = lock(state).meeting.map(|tag| format!("/manifests/{tag}"));
    let meets = method == "PUT" && tag.is_some_and(|tag| target.ends_with(&tag));
    let [before, after] = gates;
    if meets {
        before.meet();
    }
    let (status, headers, body) = lock(state).answer(method, target, body);
    if meets {
        after.meet();
    }
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    if method != "HEAD" {
        stream.write_all(&body)?;
    }
    Ok(())
}

impl Drop for Lenient {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let woken = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            let _ = thread.join();
        }
    }
}
