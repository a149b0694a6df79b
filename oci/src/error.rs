//! What can go wrong, with the expected and the found value wherever a caller decides by them. It never advises inside a
//! message: advice is [`Error::hint`] in `hint.rs`, which the program's `main` prints on a line of its own.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::digest::{DiffId, Digest};
use crate::platform::Platform;

/// As much of foreign text as a message quotes.
const QUOTED_CHARS_MAX: usize = 300;

/// What is wrong with a certificate that may only sign others, as self-signed ones are if nobody says otherwise.
pub(crate) const CA_AS_SERVER: &str =
    "expected a server's certificate, found one of a CA's own (self-signed by default)";
/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. `Display` says what failed, with expected and found; the cause, where there is one, is
/// [`std::error::Error::source`] and is not repeated.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A text does not follow the grammar of its kind (digest, reference, platform, time).
    Grammar {
        /// What the text should have been.
        noun: &'static str,
        /// The text as given.
        text: String,
        /// The rule in words.
        expected: &'static str,
    },
    /// A JSON document (manifest, index, config, layout) is not what its specification asks for.
    Document {
        /// Which document, with its digest where it has one.
        subject: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Bytes are not the promised ones.
    DigestMismatch {
        /// What was read, and from where.
        subject: String,
        /// The digest that was promised.
        expected: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// A layer's uncompressed tar is not the one that the config names.
    DiffIdMismatch {
        /// The compressed layer.
        layer: Digest,
        /// The diff id in the config.
        expected: DiffId,
        /// The diff id of the bytes.
        found: DiffId,
    },
    /// There are fewer or more bytes than promised.
    SizeMismatch {
        /// What was read, and from where.
        subject: String,
        /// Bytes promised.
        expected: u64,
        /// Bytes read; reading stops one byte past the promise, so a larger number means "at least".
        found: u64,
    },
    /// Something is larger than the named limit of this crate.
    TooLarge {
        /// What was read.
        subject: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// An index has no entry, or no single one, for a platform.
    NoPlatform {
        /// The platform asked for.
        wanted: Platform,
        /// What the index has.
        candidates: Vec<Platform>,
    },
    /// A path cannot stand in a layer, or an entry of an archive cannot be taken.
    Entry {
        /// The path as written in the archive, lossily decoded.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A layer's gzip or tar is damaged.
    Archive {
        /// The compressed layer.
        layer: Digest,
        /// What is wrong with it.
        problem: String,
    },
    /// A registry could not be reached, nor any mirror of it: no address, no route, connection refused, or no answer in time.
    Unreachable {
        /// Scheme, host and port.
        endpoint: String,
        /// Why, as the network said it.
        reason: String,
    },
    /// A registry was reached, but its certificate is not to be trusted. Plain http is never tried after this.
    Untrusted {
        /// Scheme, host and port.
        endpoint: String,
        /// Why, as the TLS library said it.
        reason: String,
    },
    /// A plain http URL was given for a host that is named secure, or is neither loopback nor named insecure.
    PlainHttp {
        /// The URL.
        url: String,
    },
    /// A URL was given that holds a name or password.
    Userinfo {
        /// Its scheme, host and port.
        url: String,
    },
    /// A registry was reached, but not the token server that it names.
    TokenServer {
        /// Scheme, host and port of the registry.
        registry: String,
        /// Scheme, host and port of the token server.
        realm: String,
        /// Why, as the network said it.
        reason: String,
    },
    /// A registry does not have it.
    NotFound {
        /// Verb and URL.
        request: String,
        /// The registry's own words.
        answer: String,
    },
    /// A registry, or its token server, asks for an identity that we do not have, or refuses the one we have.
    Unauthorized {
        /// Verb and URL.
        request: String,
        /// The registry's own words.
        answer: String,
    },
    /// A registry asks to wait longer than we do.
    Throttled {
        /// Verb and URL.
        request: String,
        /// The registry's `Retry-After`, in seconds.
        seconds: u64,
        /// The registry's own words.
        answer: String,
    },
    /// What a registry lets us do in some time is used up, and it does not say when to come again.
    Quota {
        /// Verb and URL.
        request: String,
        /// How many requests it is, if the registry tells.
        limit: Option<u64>,
        /// In how many seconds, if the registry tells.
        window: Option<u64>,
        /// The registry's own words.
        answer: String,
    },
    /// A registry answers with another status than the protocol allows here.
    Refused {
        /// Verb and URL.
        request: String,
        /// The statuses that would have been an answer.
        expected: Vec<u16>,
        /// The HTTP status.
        status: u16,
        /// The registry's own words.
        answer: String,
    },
    /// A registry or token server breaks the protocol (header, redirect, challenge, body).
    Protocol {
        /// Verb and URL.
        request: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// A registry does not take a manifest, because its repository lacks what the manifest names.
    BlobsUnknown {
        /// Verb and URL.
        request: String,
        /// What is missing; empty if the registry does not say.
        digests: Vec<Digest>,
    },
    /// A tag does not name what it should, although it was waited for.
    Tag {
        /// The tag.
        tagged: String,
        /// What it should name.
        expected: Digest,
        /// What it names; none if there is no such tag.
        found: Option<Digest>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A registry names a token server that is not to see our credentials for it.
    Realm {
        /// Scheme, host and port of the registry.
        registry: String,
        /// Scheme, host and port of the token server.
        realm: String,
    },
    /// A credential helper failed.
    Credentials {
        /// The program.
        helper: String,
        /// What it was asked for.
        registry: String,
        /// What went wrong; never its words, which may hold a secret.
        problem: String,
    },
    /// A registry failed, as its mirrors had before.
    Mirrored {
        /// What became of the registry itself.
        origin: Box<Error>,
        /// What became of its mirrors, in the order in which they were asked.
        mirrors: Vec<Error>,
    },
    /// A connection broke in mid-answer, and the retries are used up.
    Cut {
        /// Verb and URL.
        request: String,
        /// Why, as the network said it.
        reason: String,
    },
    /// The caller's [`Interrupt`](crate::Interrupt) was raised.
    Interrupted,
    /// The operating system refused.
    Io {
        /// Verb and object, such as `write blob sha256:…`.
        action: String,
        /// The refusal.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// The same error about bytes, which says to which request (verb and URL) they were the answer.
    pub(crate) fn sent_by(mut self, answer: &str) -> Self {
        if let Self::Document { subject, .. }
        | Self::TooLarge { subject, .. }
        | Self::SizeMismatch { subject, .. }
        | Self::DigestMismatch { subject, .. } = &mut self
        {
            *subject = format!("{subject} of {answer}");
        }
        self
    }

    pub(crate) fn document(subject: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::Document { subject: subject.to_string(), problem: problem.to_string() }
    }
}

/// A reader's complaint may quote the bytes that it read: no control character of theirs reaches a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .take(QUOTED_CHARS_MAX)
        .map(|c| if c.is_control() || c == char::REPLACEMENT_CHARACTER { '?' } else { c })
        .collect()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grammar { noun, text, expected } => write!(f, "parse {noun} {text:?}: expected {expected}"),
            Self::Document { subject, problem } => write!(f, "read {subject}: {problem}"),
            Self::DigestMismatch { subject, expected, found } => {
                write!(f, "verify {subject}: expected {expected}, found {found}")
            }
            Self::DiffIdMismatch { layer, expected, found } => {
                write!(f, "verify uncompressed layer {layer}: expected diff id {expected}, found {found}")
            }
            Self::SizeMismatch { subject, expected, found } if found > expected => {
                write!(f, "verify {subject}: expected {expected} bytes, found more")
            }
            Self::SizeMismatch { subject, expected, found } => {
                write!(f, "verify {subject}: expected {expected} bytes, found {found}")
            }
            Self::TooLarge { subject, limit } => write!(f, "read {subject}: larger than the limit of {limit} bytes"),
            Self::NoPlatform { wanted, candidates } => {
                write!(f, "select platform {wanted}: the index has {}", listed(candidates, ", ", "no image"))
            }
            Self::Entry { path, problem } => write!(f, "take archive entry {path:?}: {problem}"),
            Self::Archive { layer, problem } => write!(f, "read layer {layer}: {}", printable(problem)),
            Self::Unreachable { endpoint, reason } => write!(f, "reach {endpoint}: {reason}"),
            Self::Untrusted { endpoint, reason } => write!(f, "trust {endpoint}: {reason}"),
            Self::PlainHttp { url } => {
                write!(
                    f,
                    "use {url}: plain http to a host that is named secure, or neither loopback nor named insecure"
                )
            }
            Self::Userinfo { url } => {
                write!(f, "use {url}: expected a URL without a name and password, found one that holds some")
            }
            Self::TokenServer { registry, realm, reason } => {
                write!(f, "authorize at {registry}: reach its token server {realm}: {reason}")
            }
            Self::NotFound { request, answer } => write!(f, "{request}: not found{}", quoted(answer)),
            Self::Unauthorized { request, answer } => write!(f, "{request}: not authorized{}", quoted(answer)),
            Self::Throttled { request, seconds, answer } => {
                write!(f, "{request}: the registry asks to wait {seconds} s{}", quoted(answer))
            }
            Self::Quota { request, limit, window, answer } => {
                write!(f, "{request}: the quota{} is used up{}", quota(*limit, *window), quoted(answer))
            }
            Self::Refused { request, expected, status, answer } => {
                let expected = listed(expected, " or ", "another");
                write!(f, "{request}: expected status {expected}, found {status}{}", quoted(answer))
            }
            Self::Protocol { request, problem } => write!(f, "{request}: {problem}"),
            Self::BlobsUnknown { request, digests } => {
                let unsaid = "what the manifest names, and the registry does not say what";
                write!(f, "{request}: the repository lacks {}", listed(digests, ", ", unsaid))
            }
            Self::Tag { tagged, expected, found, waited } => {
                let found = found.map_or("no such tag".to_owned(), |found| found.to_string());
                write!(f, "read back tag {tagged}: expected {expected}, found {found} after {waited:?}")
            }
            Self::Realm { registry, realm } => {
                write!(
                    f,
                    "authorize at {registry}: expected a token server on its host or listed for it, found {realm}"
                )
            }
            Self::Credentials { helper, registry, problem } => {
                write!(f, "ask {helper} for the credentials of {registry}: {problem}")
            }
            Self::Mirrored { origin, mirrors } => write!(f, "{origin}; its mirrors before: {}", joined(mirrors)),
            Self::Cut { request, reason } => write!(f, "{request}: the connection broke: {reason}"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Io { action, .. } => f.write_str(action),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The items with `between` them, or `none`.
fn listed(items: &[impl ToString], between: &str, none: &str) -> String {
    if items.is_empty() {
        return none.to_owned();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

fn joined(errors: &[Error]) -> String {
    errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ")
}

fn quota(limit: Option<u64>, window: Option<u64>) -> String {
    let limit = limit.map_or(String::new(), |limit| format!(" of {limit} requests"));
    let window = window.map_or(String::new(), |window| format!(" in {window} s"));
    limit + &window
}

fn quoted(answer: &str) -> String {
    if answer.is_empty() { String::new() } else { format!(": {answer}") }
}
