//! A registry's answer: its head, its body in bounded pieces, and what a refusal means. Knows distribution-spec's "Error
//! Codes" and the headers that answers carry; sends nothing.

use std::error::Error as _;
use std::io;
use std::time::{Duration, Instant};

use reqwest::header::{CONTENT_LENGTH, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Response, Url};
use serde_json::Value;

use super::clients::{self, Internal};
use super::endpoint;
use super::patience::PROGRESS_BYTES;
use super::quota::Quota;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::timestamp::Timestamp;

/// The longest `Retry-After` that is obeyed. A longer one fails at once: it is a quota, not a hiccup.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How many times the silence of [`Options::read_timeout`](super::Options::read_timeout) a document may take to come whole:
/// one that drips would never be silent.
const DOCUMENT_PATIENCE: u32 = 10;
/// How much of an error's body is read: room for the digests of all layers of a large image.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// How much of it is shown.
const ANSWER_CHARS_MAX: usize = 300;
/// The header by which a registry says what it sends or keeps (distribution-spec, sections "Pulling manifests" and
/// "Pushing Manifests").
const CONTENT_DIGEST: &str = "Docker-Content-Digest";

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It would fail again.
    Final(Error),
    /// It may succeed later: after this time, if the registry names one.
    Again { error: Error, after: Option<Duration> },
    /// It got further than those before it, and the next one goes on from there.
    Further(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl Failure {
    pub(super) fn error(&self) -> &Error {
        match self {
            Self::Final(error) | Self::Again { error, .. } | Self::Further(error) => error,
        }
    }
}

/// The head of an answer, and its body to come.
pub(super) struct Answer {
    response: Response,
    request: String,
    place: Url,
    silence: Duration,
    /// How long the body was waited for, and what came, since it last was not silent.
    waited: Duration,
    came: u64,
}

impl Answer {
    /// The answer to `request` (verb and URL, for messages) from `place`, whose body may pause for `silence`.
    pub(super) fn new(response: Response, request: String, place: Url, silence: Duration) -> Self {
        Self { response, request, place, silence, waited: Duration::ZERO, came: 0 }
    }

    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Verb and URL.
    pub(super) fn request(&self) -> &str {
        &self.request
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// A header that is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// `Content-Length`, which the answer to a HEAD has without having a body.
    pub(super) fn length(&self) -> Option<u64> {
        self.header(CONTENT_LENGTH.as_str())?.parse().ok()
    }

    /// `Location`, resolved against the URL that gave this answer (RFC 9110, section 10.2.2).
    pub(super) fn location(&self) -> Result<Url> {
        self.header(LOCATION.as_str())
            .and_then(|location| self.place.join(location).ok())
            .filter(|url| url.has_host() && !endpoint::has_userinfo(url))
            .ok_or_else(|| self.protocol(format!("status {} without a usable Location", self.status())))
    }

    /// What the registry says that it sends or keeps; none if it says nothing, or by an algorithm other than ours.
    pub(super) fn claimed_digest(&self) -> Result<Option<Digest>> {
        let Some(value) = self.headers().get(CONTENT_DIGEST) else { return Ok(None) };
        let text = String::from_utf8_lossy(value.as_bytes());
        if !text.starts_with("sha256:") {
            return Ok(None);
        }
        let problem = || format!("{CONTENT_DIGEST}: expected a digest, found {text:?}");
        Digest::parse(&text).map(Some).map_err(|_| self.protocol(problem()))
    }

    /// # Errors
    /// [`Error::DigestMismatch`] if the registry says that it sends or keeps something else.
    pub(super) fn must_claim(&self, expected: Digest) -> Result<()> {
        match self.claimed_digest()?.filter(|found| *found != expected) {
            None => Ok(()),
            Some(found) => {
                let subject = format!("{CONTENT_DIGEST} of {}", self.request);
                Err(Error::DigestMismatch { subject, expected, found })
            }
        }
    }

    /// The next piece of the body; none at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let start = Instant::now();
        let reason = match tokio::time::timeout(self.silence.saturating_sub(self.waited), self.response.chunk()).await {
            Ok(Ok(chunk)) => {
                // What the caller does in between is not the registry's time.
                self.waited += start.elapsed();
                let chunk: Option<Vec<u8>> = chunk.map(Into::into);
                self.came += chunk.as_ref().map_or(0, Vec::len) as u64;
                if self.came >= PROGRESS_BYTES {
                    (self.waited, self.came) = (Duration::ZERO, 0);
                }
                return Ok(chunk);
            }
            Ok(Err(error)) => innermost(&error),
            Err(_) if self.came == 0 => format!("nothing came for {:?}", self.silence),
            Err(_) => format!("only {} bytes came in {:?}", self.came, self.silence),
        };
        Err(self.cut(reason))
    }

    /// The whole body, of `limit` bytes at most.
    pub(super) async fn whole(&mut self, limit: u64) -> Result<Vec<u8>, Failure> {
        let too_large = || Error::TooLarge { subject: self.request.clone(), limit };
        if self.response.content_length().is_some_and(|length| length > limit) {
            return Err(too_large().into());
        }
        let patience = self.silence.saturating_mul(DOCUMENT_PATIENCE);
        let reading = async {
            let mut bytes = Vec::new();
            while let Some(chunk) = self.chunk().await? {
                bytes.extend(chunk);
                if bytes.len() as u64 > limit {
                    return Err(Error::TooLarge { subject: self.request.clone(), limit }.into());
                }
            }
            Ok(bytes)
        };
        match tokio::time::timeout(patience, reading).await {
            Ok(result) => result,
            Err(_) => {
                let reason = format!("it did not come whole in {patience:?}");
                Err(Error::Cut { request: self.request.clone(), reason }.into())
            }
        }
    }

    fn cut(&self, reason: String) -> Failure {
        Failure::Again { error: Error::Cut { request: self.request.clone(), reason }, after: None }
    }

    /// What an answer means whose status is not one of the `expected` ones.
    pub(super) async fn refusal(mut self, expected: &[u16]) -> Failure {
        let status = self.status();
        let seconds = self.header(RETRY_AFTER.as_str()).and_then(|value| seconds(value.trim(), self.header("date")));
        // The status tells enough where the body cannot be had.
        let bytes = self.whole(ANSWER_BYTES_MAX).await.unwrap_or_default();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let (request, answer) = (self.request.clone(), words(&value));
        if let (400 | 404, Some(digests)) = (status, unknown_blobs(&value)) {
            return Failure::Final(Error::BlobsUnknown { request, digests });
        }
        let quota = Quota::of(|name| self.header(name), &answer).filter(|_| status == 429 && seconds.is_none());
        if let Some(Quota { limit, window }) = quota {
            return Failure::Final(Error::Quota { request, limit, window, answer });
        }
        // Of those that are no success we make something, but nobody hopes for them.
        let hoped: Vec<u16> = expected.iter().copied().filter(|status| *status < 400).collect();
        let refused = |request, answer| Error::Refused { request, expected: hoped.clone(), status, answer };
        match status {
            401 | 403 => Failure::Final(Error::Unauthorized { request, answer }),
            404 => Failure::Final(Error::NotFound { request, answer }),
            408 | 429 | 500 | 502 | 503 | 504 => match seconds {
                Some(seconds) if seconds > RETRY_AFTER_MAX.as_secs() => {
                    Failure::Final(Error::Throttled { request, seconds, answer })
                }
                _ => Failure::Again { error: refused(request, answer), after: seconds.map(Duration::from_secs) },
            },
            _ => Failure::Final(refused(request, answer)),
        }
    }

    /// An error that says how this answer breaks the protocol.
    pub(super) fn protocol(&self, problem: String) -> Error {
        Error::Protocol { request: self.request.clone(), problem }
    }
}

/// What a failed request means, before any answer.
pub(super) fn failure(error: &reqwest::Error, request: &str, url: &Url) -> Failure {
    let (endpoint, reason) = (endpoint::origin(url), innermost(error));
    if let Some(internal) = causes(error).find_map(|cause| cause.downcast_ref::<Internal>()) {
        Failure::Final(Error::Protocol { request: request.to_owned(), problem: internal.to_string() })
    } else if let Some(error) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
        Failure::Final(Error::Untrusted { endpoint, reason: clients::distrust(error) })
    } else if error.is_connect() || error.is_timeout() {
        let reason = if error.is_timeout() { "no connection in time".to_owned() } else { reason };
        Failure::Final(Error::Unreachable { endpoint, reason })
    } else {
        Failure::Again { error: Error::Cut { request: request.to_owned(), reason }, after: None }
    }
}

/// A `Retry-After` in seconds (RFC 9110, section 10.2.3). A date is taken against the answer's own `Date`, so that neither
/// our clock nor a wrong one over there counts.
fn seconds(retry_after: &str, date: Option<&str>) -> Option<u64> {
    retry_after.parse().ok().or_else(|| Some(http_date(retry_after)?.saturating_sub(http_date(date?.trim())?)))
}

/// Seconds since the epoch of `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7; its two obsolete forms are not read).
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let [_, day, month, year, time, "GMT"] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    Some(Timestamp::parse(&format!("{year}-{month:02}-{day}T{time}Z")).ok()?.epoch())
}

/// What a registry says about an error, made fit for one line; empty if it says nothing of that form.
fn words(value: &Value) -> String {
    let first = &value["errors"][0];
    let words = [&first["code"], &first["message"], &value["details"], &value["message"]];
    let words: Vec<&str> = words.into_iter().filter_map(Value::as_str).filter(|word| !word.is_empty()).collect();
    let line = words.join(": ");
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ANSWER_CHARS_MAX).collect()
}

/// The blobs and manifests that a registry misses in its repository, by `MANIFEST_BLOB_UNKNOWN` errors; none if that is not
/// what it says. The spec leaves `detail` open: it is the digest, or an object that holds it.
fn unknown_blobs(value: &Value) -> Option<Vec<Digest>> {
    let errors = value["errors"].as_array()?;
    let mut unknown = errors.iter().filter(|error| error["code"] == "MANIFEST_BLOB_UNKNOWN").peekable();
    unknown.peek()?;
    let digest = |error: &Value| {
        let detail = &error["detail"];
        Digest::parse(detail.as_str().or(detail["digest"].as_str())?).ok()
    };
    Some(unknown.filter_map(digest).collect())
}

/// An error and what lies below it. What an `io::Error` wraps is below it too, although its `source` skips that.
fn causes<'a>(error: &'a reqwest::Error) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&error: &&'a (dyn std::error::Error + 'static)| {
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

/// The last cause in an error's own words: the ones above repeat it, or the URL.
pub(super) fn innermost(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f39_retry_after_is_seconds_or_a_date() {
        let now = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        for (text, date, found) in [
            ("7", None, Some(7)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", now, Some(60)),
            ("Sat, 05 Nov 1994 08:49:37 GMT", now, Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", None, None),
            ("Sun, 06 Nov 1994 08:50:37 CET", now, None),
            ("Sun, 06 Foo 1994 08:50:37 GMT", now, None),
            ("-1", now, None),
            ("", now, None),
        ] {
            assert_eq!(seconds(text, date), found, "{text}");
        }
    }

    #[test]
    fn unknown_blobs_are_named_by_text_or_object() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let text = format!(
            r#"{{"errors":[{{"code":"MANIFEST_BLOB_UNKNOWN","detail":"{one}"}},{{"code":"OTHER","detail":"{one}"}},
                {{"code":"MANIFEST_BLOB_UNKNOWN","detail":{{"digest":"{two}"}}}},{{"code":"MANIFEST_BLOB_UNKNOWN"}}]}}"#
        );
        assert_eq!(unknown_blobs(&serde_json::from_str(&text).unwrap()), Some(vec![one, two]));
        for other in [r#"{"errors":[{"code":"MANIFEST_INVALID"}]}"#, r#"{"errors":"MANIFEST_BLOB_UNKNOWN"}"#, "[]"] {
            assert_eq!(unknown_blobs(&serde_json::from_str(other).unwrap()), None, "{other}");
        }
    }
}
