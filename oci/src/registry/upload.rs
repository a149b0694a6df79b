//! One blob on its way into a repository. Spec: distribution-spec, sections "Pushing blobs" and "Pushing a blob in chunks".
//! Two requests, POST and one PUT; chunks only where a registry refuses the whole. A transfer that breaks goes on in its
//! session where the registry says what it has; else a new session begins. Whether the parts made the blob, the registry
//! finds out from the digest that ends each session.

use std::cell::Cell;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE};
use reqwest::{Method, Url};

use super::answer::{Answer, Failure};
use super::auth::Access;
use super::body::{Body, Section};
use super::endpoint;
use super::patience::PROGRESS_BYTES;
use super::transport::{Request, Transport};
use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::progress::Progress;
use crate::reference::Repository;

/// How much one chunk holds, unless the registry wants more of it: the least of the limits that registries are known for.
const CHUNK_BYTES: u64 = 4 * 1024 * 1024;
/// No registry makes us send larger chunks than this.
const CHUNK_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// By this header of a new session a registry asks for chunks of some size (section "Pushing a blob in chunks").
const CHUNK_MIN_LENGTH: &str = "OCI-Chunk-Min-Length";

/// What a part of a blob is to HTTP.
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// What is sent, and what came of it so far.
pub(super) struct Sending<'a> {
    transport: &'a Transport,
    home: &'a Url,
    access: Access,
    repository: &'a Repository,
    blob: &'a Descriptor,
    path: PathBuf,
    progress: &'a dyn Progress,
    /// A session to which nothing was sent yet.
    session: Option<Url>,
    /// Whether the registry refused the whole, and how much to send at once then.
    chunked: bool,
    chunk: u64,
    broken: Option<Broken>,
    /// The most that the registry said to have of a session that broke.
    kept: u64,
    /// Whether to go on in sessions that broke; not where that went wrong.
    resumes: bool,
}

/// A session that broke, and how many bytes of the blob the registry may have of it.
struct Broken {
    session: Url,
    had: RangeInclusive<u64>,
}

impl<'a> Sending<'a> {
    /// Sends `blob` of `layout` to `repository`, whose registry is at `home`; into `session`, if one is open for it.
    pub(super) fn new(
        transport: &'a Transport,
        home: &'a Url,
        repository: &'a Repository,
        blob: &'a Descriptor,
        session: Option<Url>,
        layout: &Layout,
        progress: &'a dyn Progress,
    ) -> Self {
        let (access, path) = (Access::push(home, repository), layout.blob_path(&blob.digest));
        Self {
            transport,
            home,
            access,
            repository,
            blob,
            path,
            progress,
            session,
            chunked: false,
            chunk: CHUNK_BYTES,
            broken: None,
            kept: 0,
            resumes: true,
        }
    }

    /// Sends what the registry lacks. After a failure that is not final it goes on when called again.
    pub(super) async fn attempt(&mut self) -> Result<(), Failure> {
        let Some((session, start)) = self.rejoin().await? else { return self.send_anew().await };
        let further = start >= self.kept + PROGRESS_BYTES;
        self.kept = self.kept.max(start);
        match self.send_rest(session, start).await {
            Err(Failure::Again { error, after: None }) if further => Err(Failure::Further(error)),
            // What the registry said to have was not so, or counted otherwise: once more, in a new session.
            Err(Failure::Final(error)) if is_about_the_blob(&error) => {
                self.resumes = false;
                Err(Failure::Again { error, after: None })
            }
            result => result,
        }
    }

    /// The session that broke, and how much of the blob it has; none where there is none, or where the registry does not
    /// know, does not say, or says what cannot be.
    async fn rejoin(&mut self) -> Result<Option<(Url, u64)>, Failure> {
        let Some(broken) = self.broken.take().filter(|_| self.resumes) else { return Ok(None) };
        let request = Request { accepted: &[204], ..Request::new(Method::GET, &broken.session, &self.access) };
        match self.transport.send(&request).await {
            Ok(answer) => {
                let start = answer.header(RANGE.as_str()).and_then(received).filter(|start| broken.had.contains(start));
                Ok(start.map(|start| (answer.location().unwrap_or(broken.session), start)))
            }
            Err(Failure::Final(_)) => Ok(None),
            Err(failure) => {
                self.broken = Some(broken);
                Err(failure)
            }
        }
    }

    async fn send_anew(&mut self) -> Result<(), Failure> {
        let Some(session) = self.open().await? else { return self.confirm("took no byte of it").await };
        if self.chunked {
            return self.send_rest(session, 0).await;
        }
        match self.send_part(Method::PUT, &session, 0..self.blob.size, &[201, 413, 416]).await {
            Ok(answer) if answer.status() == 201 => Ok(answer.must_claim(self.blob.digest)?),
            Ok(_) => {
                self.chunked = true;
                let Some(session) = self.open().await? else { return self.confirm("took no byte of it").await };
                self.send_rest(session, 0).await
            }
            Err(failure) => self.look_into(failure).await,
        }
    }

    /// Sends what follows after the first `start` bytes, and ends the session.
    async fn send_rest(&mut self, mut session: Url, mut start: u64) -> Result<(), Failure> {
        let piece = if self.chunked { self.chunk } else { u64::MAX };
        while start < self.blob.size {
            let end = start.saturating_add(piece).min(self.blob.size);
            let answer = self.send_part(Method::PATCH, &session, start..end, &[201, 202]).await?;
            if answer.status() == 201 {
                return self.confirm("answered a chunk by 201").await;
            }
            (session, start) = (answer.location()?, end);
        }
        match self.send_part(Method::PUT, &session, start..start, &[201]).await {
            Ok(answer) => Ok(answer.must_claim(self.blob.digest)?),
            Err(failure) => self.look_into(failure).await,
        }
    }

    /// Sends a part of the blob into a session, and notes where it broke, if it did. PUT ends the session.
    async fn send_part(
        &mut self,
        method: Method,
        session: &Url,
        part: Range<u64>,
        accepted: &[u16],
    ) -> Result<Answer, Failure> {
        let section = Section { path: self.path.clone(), start: part.start, length: part.end - part.start };
        let moved = Cell::new(0);
        let report = |bytes| {
            moved.set(bytes);
            self.progress.reached(self.blob, part.start + bytes);
        };
        let body = if part.is_empty() { Body::Empty } else { Body::Section(&section, &report) };
        let mut url = session.clone();
        let range = (method == Method::PATCH).then(|| format!("{}-{}", part.start, part.end.saturating_sub(1)));
        if method == Method::PUT {
            url.query_pairs_mut().append_pair("digest", &self.blob.digest.to_string());
        }
        let mut request = Request { body, accepted, ..Request::new(method, &url, &self.access) };
        request = request.header(CONTENT_TYPE, OCTETS);
        if let Some(range) = range {
            request = request.header(CONTENT_RANGE, HeaderValue::try_from(range).expect("numbers are ASCII"));
        }
        let result = self.transport.send(&request).await;
        let sent = part.start + moved.get();
        if matches!(result, Err(Failure::Again { .. })) && sent > 0 {
            let had = part.start..=sent;
            self.broken = Some(Broken { session: session.clone(), had });
        }
        result
    }

    /// A session: the one that is open, or a new one. None if the registry says that it needs none.
    async fn open(&mut self) -> Result<Option<Url>, Failure> {
        if let Some(session) = self.session.take() {
            return Ok(Some(session));
        }
        let url = endpoint::join(self.home, &format!("{}/blobs/uploads/", self.repository.path()));
        let request = Request { accepted: &[201, 202], ..Request::new(Method::POST, &url, &self.access) };
        let answer = self.transport.send(&request).await?;
        if answer.status() == 201 {
            return Ok(None);
        }
        let wanted = answer.header(CHUNK_MIN_LENGTH).and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        self.chunk = CHUNK_BYTES.max(wanted).min(CHUNK_BYTES_MAX);
        Ok(Some(answer.location()?))
    }

    /// What the failure of a PUT means: another client may have finished the blob under our hands, or our own last answer
    /// was lost.
    async fn look_into(&self, failure: Failure) -> Result<(), Failure> {
        if !is_about_the_blob(failure.error()) {
            return Err(failure);
        }
        match (self.is_there().await, failure) {
            (Ok(true), _) => Ok(()),
            // The session is gone; a new one may do.
            (_, Failure::Final(error @ Error::NotFound { .. })) => Err(Failure::Again { error, after: None }),
            (_, failure) => Err(failure),
        }
    }

    /// An early 201 is believed only if the blob can be seen.
    async fn confirm(&self, what: &str) -> Result<(), Failure> {
        if self.is_there().await? {
            return Ok(());
        }
        let request = format!("POST {} blob {}", endpoint::origin(self.home), self.blob.digest);
        let problem = format!("expected an upload session: the registry {what}, and does not have the blob");
        Err(Error::Protocol { request, problem }.into())
    }

    async fn is_there(&self) -> Result<bool, Failure> {
        is_there(self.transport, self.home, &self.access, self.repository, self.blob).await
    }
}

/// Whether a repository has a blob: one HEAD (section "Checking if content exists in the registry").
pub(super) async fn is_there(
    transport: &Transport,
    home: &Url,
    access: &Access,
    repository: &Repository,
    blob: &Descriptor,
) -> Result<bool, Failure> {
    let url = endpoint::join(home, &format!("{}/blobs/{}", repository.path(), blob.digest));
    match transport.send(&Request::new(Method::HEAD, &url, access)).await {
        Ok(answer) => Ok(answer.length().is_none_or(|length| length == blob.size)),
        Err(Failure::Final(Error::NotFound { .. })) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Whether an upload's failure leaves it open that the blob is there.
fn is_about_the_blob(error: &Error) -> bool {
    matches!(error, Error::Refused { .. } | Error::Cut { .. } | Error::NotFound { .. } | Error::Unauthorized { .. })
}

/// How many bytes a session has by its `Range`, `0-LAST` (section "Pushing a blob in chunks"), which some write
/// `bytes=0-LAST`. `0-0` is said of none as of one. Registries that count otherwise (LAST is a length, or that of the last
/// chunk) are found out: the next chunk does not fit, or the digest.
fn received(range: &str) -> Option<u64> {
    let range = range.trim();
    let last: u64 = range.strip_prefix("bytes=").unwrap_or(range).strip_prefix("0-")?.parse().ok()?;
    if last == 0 { None } else { last.checked_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f37_the_range_of_a_session_is_read() {
        for (range, found) in [
            ("0-9", Some(10)),
            (" bytes=0-9", Some(10)),
            ("0-1", Some(2)),
            ("0-0", None),
            ("bytes=0-0", None),
            ("0--1", None),
            ("5-9", None),
            ("0-", None),
            ("0-18446744073709551615", None),
            ("bytes 0-9", None),
            ("", None),
        ] {
            assert_eq!(received(range), found, "{range}");
        }
    }
}
