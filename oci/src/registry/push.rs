//! Blobs on their way into a registry. Spec: distribution-spec, sections "Pushing blobs" and "Mounting a blob from another
//! repository". Two requests for a blob, POST and one PUT; chunks only where a registry refuses the whole. No blob is sent
//! twice to a repository, and none is asked for that need not be: the manifest's PUT tells what is missing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};

use super::Client;
use super::answer::{Answer, Failure};
use super::auth::Access;
use super::body::{Body, Section};
use super::endpoint;
use super::transport::Request;
use crate::descriptor::Descriptor;
use crate::digest::Digest;
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

/// What became of the wish to mount a blob.
#[derive(Debug)]
pub enum Mount {
    /// The blob is in the repository; nothing was sent.
    Mounted,
    /// It has to be sent: bring it into a layout and call [`Client::upload`].
    Upload(Upload),
}

/// A blob that has to be sent to a repository, and the upload session that the registry opened for it, if it did.
#[derive(Debug)]
pub struct Upload {
    repository: Repository,
    blob: Box<Descriptor>,
    session: Option<Url>,
}

impl Upload {
    /// The blob to send.
    pub fn blob(&self) -> &Descriptor {
        &self.blob
    }
}

/// Which blobs are known to be in which repository. The lock of one is held while it is sent, so that nobody else does.
#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<HashMap<(Repository, Digest), Slot>>);

type Slot = Arc<Mutex<bool>>;

impl Uploads {
    fn slot(&self, repository: &Repository, digest: Digest) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry((repository.clone(), digest)).or_default())
    }
}

/// An upload session, or the news that none is needed.
enum Opened {
    Session { url: Url, chunk: u64 },
    Present,
}

impl Client {
    /// Sends a blob of `layout` to a repository: one POST, one PUT. Does nothing where this client sent or mounted it
    /// before; where another thread is sending it, waits for that.
    ///
    /// # Errors
    /// The network errors; [`Error::Refused`] in the registry's words; [`Error::DigestMismatch`] if it says that it took
    /// something else; [`Error::SizeMismatch`], [`Error::DigestMismatch`] and [`Error::Io`] if the layout does not have the
    /// blob whole.
    pub fn push_blob(
        &self,
        to: &Repository,
        blob: &Descriptor,
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.upload(Upload { repository: to.clone(), blob: Box::new(blob.clone()), session: None }, layout, progress)
    }

    /// Makes a blob of `from` appear in `to` without sending it: one POST. A registry that does not do so, cannot, or must
    /// not (other registry, no right to `from`, no such blob) makes it an [`Upload`].
    ///
    /// # Errors
    /// The network errors.
    pub fn mount(&self, from: &Repository, to: &Repository, blob: &Descriptor) -> Result<Mount> {
        let slot = self.uploads.slot(to, blob.digest);
        let mut present = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let upload = |session| Mount::Upload(Upload { repository: to.clone(), blob: Box::new(blob.clone()), session });
        if *present {
            return Ok(Mount::Mounted);
        }
        if from.registry() != to.registry() {
            return Ok(upload(None));
        }
        match self.ask(&[self.transport.endpoints.home(to)?], &async |base| self.post_mount(base, from, to, blob).await)
        {
            Ok(None) => {
                *present = true;
                Ok(Mount::Mounted)
            }
            Ok(Some(session)) => Ok(upload(Some(session))),
            // It has no such blob, does not let us see it, or does not know how: whether we may push, the upload will tell.
            Err(Error::NotFound { .. } | Error::Unauthorized { .. } | Error::Refused { status: 405, .. }) => {
                Ok(upload(None))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a repository has a blob: one HEAD, or none where this client sent or mounted it before.
    ///
    /// # Errors
    /// The network errors.
    pub fn has_blob(&self, at: &Repository, blob: &Descriptor) -> Result<bool> {
        let slot = self.uploads.slot(at, blob.digest);
        let mut present = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if !*present {
            *present = self.ask(&[self.transport.endpoints.home(at)?], &async |base| {
                let sending = Sending { client: self, base, access: Access::push(base, at) };
                sending.is_there(at, blob).await
            })?;
        }
        Ok(*present)
    }

    /// Sends a blob that could not be mounted, into the session that the registry opened for it.
    ///
    /// # Errors
    /// As [`Self::push_blob`].
    pub fn upload(&self, upload: Upload, layout: &Layout, progress: &dyn Progress) -> Result<()> {
        let Upload { repository, blob, session } = upload;
        let slot = self.uploads.slot(&repository, blob.digest);
        let mut present = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if *present {
            return Ok(());
        }
        check_size(layout, &blob)?;
        // A session is good for one attempt.
        let session = Mutex::new(session);
        progress.started(&blob);
        let sent = self.ask(&[self.transport.endpoints.home(&repository)?], &async |base| {
            let session = session.lock().unwrap_or_else(PoisonError::into_inner).take();
            let sending = Sending { client: self, base, access: Access::push(base, &repository) };
            sending.send(&repository, &blob, session, layout, progress).await
        });
        match sent {
            Ok(()) => {
                *present = true;
                progress.finished(&blob);
                Ok(())
            }
            // Damaged bytes explain any complaint of the registry.
            Err(error @ Error::Refused { .. }) => layout.read(&blob, |_| Err(error)),
            Err(error) => Err(error),
        }
    }

    /// The session in which to send the blob; none once it is mounted.
    async fn post_mount(
        &self,
        base: &Url,
        from: &Repository,
        to: &Repository,
        blob: &Descriptor,
    ) -> Result<Option<Url>, Failure> {
        let access = Access::mount(base, from, to);
        let mut url = endpoint::join(base, &format!("{}/blobs/uploads/", to.path()));
        url.query_pairs_mut().append_pair("mount", &blob.digest.to_string()).append_pair("from", from.path());
        let request = Request { accepted: &[201, 202], ..Request::new(Method::POST, &url, &access) };
        let answer = self.transport.send(&request).await?;
        if answer.status() == 202 {
            return Ok(Some(answer.location()?));
        }
        answer.must_claim(blob.digest)?;
        Ok(None)
    }
}

/// One attempt to send a blob.
struct Sending<'a> {
    client: &'a Client,
    base: &'a Url,
    access: Access,
}

impl Sending<'_> {
    async fn send(
        &self,
        repository: &Repository,
        blob: &Descriptor,
        session: Option<Url>,
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let url = match session {
            Some(url) => url,
            None => match self.open(repository).await? {
                Opened::Session { url, .. } => url,
                Opened::Present => return self.confirm(repository, blob, "the registry took no byte of it").await,
            },
        };
        let path = layout.blob_path(&blob.digest);
        let section = Section { path, start: 0, length: blob.size };
        match self.put(&url, blob, Body::Section(&section, &|bytes| progress.reached(blob, bytes))).await {
            Ok(answer) if answer.status() == 201 => Ok(answer.must_claim(blob.digest)?),
            Ok(_) => self.send_in_chunks(repository, blob, section, progress).await,
            Err(failure) if !is_about_the_blob(failure.error()) => Err(failure),
            // Another client may have finished it under our hands, or our own last answer was lost.
            Err(failure) => match (self.is_there(repository, blob).await, failure) {
                (Ok(true), _) => Ok(()),
                // The session is gone; a new one may do.
                (_, Failure::Final(error @ Error::NotFound { .. })) => Err(Failure::Again { error, after: None }),
                (_, failure) => Err(failure),
            },
        }
    }

    /// Section "Pushing a blob in chunks".
    async fn send_in_chunks(
        &self,
        repository: &Repository,
        blob: &Descriptor,
        whole: Section,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let Opened::Session { mut url, chunk } = self.open(repository).await? else {
            return self.confirm(repository, blob, "the registry took no byte of it").await;
        };
        let mut section = Section { length: 0, ..whole };
        while section.start < blob.size {
            section.length = chunk.min(blob.size - section.start);
            let range = format!("{}-{}", section.start, section.start + section.length - 1);
            let range = HeaderValue::try_from(range).expect("numbers are ASCII");
            let report = |bytes| progress.reached(blob, section.start + bytes);
            let request = Request {
                body: Body::Section(&section, &report),
                accepted: &[201, 202],
                ..Request::new(Method::PATCH, &url, &self.access)
            };
            let request = request.header(CONTENT_TYPE, OCTETS).header(CONTENT_RANGE, range);
            let answer = self.client.transport.send(&request).await?;
            if answer.status() == 201 {
                return self.confirm(repository, blob, "the registry answered a chunk by 201").await;
            }
            url = answer.location()?;
            section.start += section.length;
        }
        let answer = self.put(&url, blob, Body::Empty).await?;
        if answer.status() == 201 { Ok(answer.must_claim(blob.digest)?) } else { Err(answer.refusal().await) }
    }

    /// A new upload session.
    async fn open(&self, repository: &Repository) -> Result<Opened, Failure> {
        let url = endpoint::join(self.base, &format!("{}/blobs/uploads/", repository.path()));
        let request = Request { accepted: &[201, 202], ..Request::new(Method::POST, &url, &self.access) };
        let answer = self.client.transport.send(&request).await?;
        if answer.status() == 201 {
            return Ok(Opened::Present);
        }
        let wanted = answer.header(CHUNK_MIN_LENGTH).and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        Ok(Opened::Session { url: answer.location()?, chunk: CHUNK_BYTES.max(wanted).min(CHUNK_BYTES_MAX) })
    }

    /// Ends a session with `body`: 201, or 413 or 416 where that is more than the registry takes at once.
    async fn put(&self, session: &Url, blob: &Descriptor, body: Body<'_>) -> Result<Answer, Failure> {
        let mut url = session.clone();
        url.query_pairs_mut().append_pair("digest", &blob.digest.to_string());
        let request = Request { body, accepted: &[201, 413, 416], ..Request::new(Method::PUT, &url, &self.access) };
        self.client.transport.send(&request.header(CONTENT_TYPE, OCTETS)).await
    }

    /// An early 201 is believed only if the blob can be seen.
    async fn confirm(&self, repository: &Repository, blob: &Descriptor, why: &str) -> Result<(), Failure> {
        if self.is_there(repository, blob).await? {
            return Ok(());
        }
        let request = format!("POST {} blob {}", endpoint::origin(self.base), blob.digest);
        let problem = format!("expected an upload session: {why}, and does not have the blob");
        Err(Error::Protocol { request, problem }.into())
    }

    /// Section "Checking if content exists in the registry".
    async fn is_there(&self, repository: &Repository, blob: &Descriptor) -> Result<bool, Failure> {
        let url = endpoint::join(self.base, &format!("{}/blobs/{}", repository.path(), blob.digest));
        let request = Request::new(Method::HEAD, &url, &self.access);
        match self.client.transport.send(&request).await {
            Ok(answer) => Ok(answer.length().is_none_or(|length| length == blob.size)),
            Err(Failure::Final(Error::NotFound { .. })) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

/// Whether an upload's failure leaves it open that the blob is there.
fn is_about_the_blob(error: &Error) -> bool {
    matches!(error, Error::Refused { .. } | Error::Cut { .. } | Error::NotFound { .. } | Error::Unauthorized { .. })
}

/// The blob's file has its size; whether it has its digest, the registry finds out.
fn check_size(layout: &Layout, blob: &Descriptor) -> Result<()> {
    let path = layout.blob_path(&blob.digest);
    let found = std::fs::metadata(&path).map_err(Error::io(format!("open blob {}", path.display())))?.len();
    if found == blob.size {
        return Ok(());
    }
    Err(Error::SizeMismatch { subject: format!("blob {}", path.display()), expected: blob.size, found })
}
