//! Blobs on their way into a registry. Spec: distribution-spec, sections "Pushing blobs" and "Mounting a blob from another
//! repository". No blob is sent twice to a repository, and none is asked for that need not be: the manifest's PUT tells what
//! is missing. How one blob is sent is told in `upload`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use reqwest::{Method, Url};

use super::answer::Failure;
use super::auth::Access;
use super::transport::Request;
use super::upload::{self, Sending};
use super::{Client, endpoint};
use crate::descriptor::Descriptor;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::progress::Progress;
use crate::reference::Repository;

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
        match self.at_home(to, &async |base| self.post_mount(base, from, to, blob).await) {
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
            *present = self.at_home(at, &async |home| {
                upload::is_there(&self.transport, home, &Access::push(home, at), at, blob).await
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
        progress.started(&blob);
        let home = self.transport.endpoints.home(&repository)?;
        let mut sending = Sending::new(&self.transport, &home, &repository, &blob, session, layout, progress);
        let sent = self.wait(self.transport.persist(async || sending.attempt().await));
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

/// The blob's file has its size; whether it has its digest, the registry finds out.
fn check_size(layout: &Layout, blob: &Descriptor) -> Result<()> {
    let path = layout.blob_path(&blob.digest);
    let found = std::fs::metadata(&path).map_err(Error::io(format!("open blob {}", path.display())))?.len();
    if found == blob.size {
        return Ok(());
    }
    Err(Error::SizeMismatch { subject: format!("blob {}", path.display()), expected: blob.size, found })
}
