//! The fault server: a registry that speaks distribution-spec's API over real HTTP and misbehaves where a switch says so. All
//! switches off, it is the honest one of `store`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oci::Repository;

use crate::server::{Request, Server, send};
use crate::store::{Answer, Store};

/// How much of a dripping body comes at a time.
pub(crate) const DRIP_BYTES: usize = 16 * 1024;

/// What is wrong with the registry. Switches that do not exclude each other may be on together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// The first so many answers with a blob end after so many bytes of it.
    pub(crate) cut: Option<Cut>,
    /// The first request by each method is answered by 429 and this `Retry-After`.
    pub(crate) throttled: Option<&'static str>,
    /// Every request needs a token; each is good for so many.
    pub(crate) token_uses: Option<usize>,
    /// A mount opens an upload session, whether the blob is there or not.
    pub(crate) mounts_open_sessions: bool,
    /// Locations have no host.
    pub(crate) relative_locations: bool,
    /// `Docker-Content-Digest` is of something else on every answer to this method.
    pub(crate) wrong_digest: Option<&'static str>,
    /// `Docker-Content-Digest` is missing.
    pub(crate) no_digest: bool,
    /// A body of more bytes is answered by 413.
    pub(crate) body_bytes_max: Option<usize>,
    /// 201 comes before it is due.
    pub(crate) early: Option<Early>,
    /// Lists of referrers are there, and manifests with a subject are thanked for by `OCI-Subject`.
    pub(crate) referrers: bool,
    /// Blobs are had from another host.
    pub(crate) blobs_elsewhere: bool,
    /// The pause before each piece of [`DRIP_BYTES`] of a blob.
    pub(crate) drip: Option<Duration>,
    /// So many bytes follow a blob, and its length counts them.
    pub(crate) longer: usize,
}

/// See [`Faults::cut`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) after: usize,
    pub(crate) times: usize,
}

/// When a 201 comes too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    /// To the request for an upload session, which is not opened.
    Session,
    /// To a chunk, whose bytes become a blob although nobody said its digest.
    Chunk,
}

/// What the faults remember.
#[derive(Default)]
struct Memory {
    store: Store,
    cuts: usize,
    throttled: BTreeSet<String>,
    tokens: usize,
    uses: usize,
}

/// The registry, and the host that has its blobs where they are elsewhere.
pub(crate) struct Faulty {
    pub(crate) server: Server,
    pub(crate) storage: Server,
    memory: Arc<Mutex<Memory>>,
}

impl Faulty {
    pub(crate) fn start(faults: Faults) -> Self {
        let memory = Arc::<Mutex<Memory>>::default();
        let held = Arc::clone(&memory);
        let storage = Server::start(move |request, stream| {
            let answer = held.lock().unwrap().store.answer(request);
            send(stream, answer.head().as_bytes());
            send(stream, &answer.body);
        });
        let (held, elsewhere) = (Arc::clone(&memory), storage.host());
        let server = Server::start(move |request, stream| {
            let (answer, sent) = held.lock().unwrap().answer(request, &faults, &elsewhere);
            send(stream, answer.head().as_bytes());
            if request.method != "HEAD" {
                write(stream, &answer.body[..sent], faults.drip.filter(|_| is_blob(request)));
            }
        });
        Self { server, storage, memory }
    }

    pub(crate) fn repository(&self, path: &str) -> Repository {
        Repository::parse(&format!("{}/{path}", self.server.host())).unwrap()
    }

    /// Stores a blob as if it had been sent.
    pub(crate) fn seed(&self, path: &str, bytes: &[u8]) {
        self.memory.lock().unwrap().store.seed(path, bytes);
    }

    /// How many bytes of blobs it holds.
    pub(crate) fn blob_bytes(&self) -> usize {
        self.memory.lock().unwrap().store.blob_bytes()
    }
}

fn is_blob(request: &Request) -> bool {
    request.method == "GET" && request.path.contains("/blobs/sha256:")
}

fn write(stream: &mut TcpStream, body: &[u8], pause: Option<Duration>) {
    let Some(pause) = pause else { return send(stream, body) };
    for piece in body.chunks(DRIP_BYTES) {
        // A client that has waited enough hangs up; else there is nothing to read, and the pause passes.
        stream.set_read_timeout(Some(pause)).unwrap();
        if stream.read(&mut [0]).is_ok() || stream.write_all(piece).is_err() {
            return;
        }
    }
}

impl Memory {
    /// The answer, and how many bytes of its body are sent.
    fn answer(&mut self, request: &Request, faults: &Faults, elsewhere: &str) -> (Answer, usize) {
        let answer = match self.instead(request, faults, elsewhere) {
            Some(answer) => answer,
            None => spoil(self.store.answer(request), request, faults),
        };
        let mut sent = answer.body.len();
        if let Some(cut) = faults.cut.filter(|cut| is_blob(request) && sent > cut.after && self.cuts < cut.times) {
            self.cuts += 1;
            sent = cut.after;
        }
        (answer, sent)
    }

    /// What is answered in place of the honest registry.
    fn instead(&mut self, request: &Request, faults: &Faults, elsewhere: &str) -> Option<Answer> {
        let (method, path) = (request.method.as_str(), request.path.as_str());
        if let Some(uses) = faults.token_uses {
            if path.starts_with("/token") {
                (self.tokens, self.uses) = (self.tokens + 1, 0);
                let body = format!(r#"{{"token":"{}"}}"#, self.tokens).into_bytes();
                return Some(Answer { body, ..Answer::new(200) });
            }
            self.uses += 1;
            if self.uses > uses || request.header("authorization") != Some(&format!("Bearer {}", self.tokens)) {
                let realm = format!(r#"Bearer realm="http://{}/token",service="it""#, request.header("host").unwrap());
                return Some(Answer::error(401, "UNAUTHORIZED", path).with("WWW-Authenticate", realm));
            }
        }
        if let Some(after) = faults.throttled.filter(|_| self.throttled.insert(method.to_owned())) {
            return Some(Answer::error(429, "TOOMANYREQUESTS", path).with("Retry-After", after));
        }
        if faults.body_bytes_max.is_some_and(|max| request.body.len() > max && method == "PUT") {
            return Some(Answer::error(413, "SIZE_INVALID", path));
        }
        match (method, faults.early) {
            ("POST", Some(Early::Session)) => return Some(Answer::new(201)),
            ("PATCH", Some(Early::Chunk)) => {
                let repository = path.strip_prefix("/v2/")?.split_once("/blobs/uploads/")?.0;
                self.store.seed(repository, &request.body);
                return Some(Answer::new(201));
            }
            _ => {}
        }
        if faults.blobs_elsewhere && is_blob(request) {
            return Some(Answer::new(307).with("Location", format!("http://{elsewhere}{path}?signed=1")));
        }
        if path.contains("/referrers/") && !faults.referrers {
            return Some(Answer::error(404, "UNSUPPORTED", path));
        }
        if faults.mounts_open_sessions && path.contains("mount=") {
            let path = path.split('?').next().unwrap().to_owned();
            return Some(spoil(self.store.answer(&Request { path, ..request.clone() }), request, faults));
        }
        None
    }
}

/// The honest answer, made worse.
fn spoil(mut answer: Answer, request: &Request, faults: &Faults) -> Answer {
    if faults.relative_locations {
        for (name, value) in &mut answer.headers {
            if *name == "Location" {
                let host = format!("http://{}", request.header("host").unwrap());
                *value = value.strip_prefix(&host).unwrap_or(value).to_owned();
            }
        }
    }
    if faults.wrong_digest == Some(request.method.as_str()) && answer.status < 300 {
        answer = answer.with("Docker-Content-Digest", oci::Digest::of(b"something else").to_string());
    }
    if faults.no_digest {
        answer.headers.retain(|(name, _)| *name != "Docker-Content-Digest");
    }
    if !faults.referrers {
        answer.headers.retain(|(name, _)| *name != "OCI-Subject");
    }
    if is_blob(request) {
        answer.body.extend(std::iter::repeat_n(b'+', faults.longer));
    }
    answer
}
