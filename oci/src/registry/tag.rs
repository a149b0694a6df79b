//! Manifests on their way into a registry, and the tags that name them. Spec: distribution-spec, sections "Pushing
//! Manifests" and "Checking if content exists in the registry". What is sent is what was given, byte for byte; its digest is
//! ours, never the registry's.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};
use tokio::time::Instant;

use super::answer::Failure;
use super::auth::Access;
use super::body::Body;
use super::transport::Request;
use super::{Client, endpoint, manifest_types};
use crate::descriptor::Descriptor;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::reference::{Reference, Repository, Tagged};

/// The longest pause between two looks at a tag.
const TAG_PAUSE_MAX: Duration = Duration::from_secs(5);

impl Client {
    /// What the registry itself, and no mirror, names by this reference: one HEAD. None if it has no such thing. A registry
    /// that leaves out what a descriptor needs is asked for the document.
    ///
    /// # Errors
    /// The network errors; [`Error::DigestMismatch`] if it claims to have something else under a digest.
    pub fn head(&self, reference: &Reference) -> Result<Option<Descriptor>> {
        found(self.at_home(reference.repository(), &async |base| self.ask_for_head(base, reference).await))
    }

    /// The same, asked where pulls are: of mirrors first.
    ///
    /// # Errors
    /// As [`Self::head`].
    pub fn look(&self, reference: &Reference) -> Result<Option<Descriptor>> {
        found(self.anywhere(reference.repository(), &async |base| {
            self.transport.persist(async || self.ask_for_head(base, reference).await).await
        }))
    }

    async fn ask_for_head(&self, base: &Url, reference: &Reference) -> Result<Descriptor, Failure> {
        let url = endpoint::join(base, &path(reference));
        let access = Access::pull(base, reference.repository());
        let request = Request::new(Method::HEAD, &url, &access).header(ACCEPT, manifest_types());
        let answer = self.transport.send(&request).await?;
        let expected = if let Reference::Pinned(pinned) = reference { Some(pinned.digest) } else { None };
        if let Some(expected) = expected {
            answer.must_claim(expected)?;
        }
        let digest = answer.claimed_digest()?.or(expected);
        let media_type = answer.header(CONTENT_TYPE.as_str()).and_then(|value| value.split(';').next());
        if let (Some(digest), Some(size), Some(media_type)) = (digest, answer.length(), media_type) {
            return Ok(Descriptor::new(media_type.trim(), digest, size));
        }
        let bytes = self.fetch_document(&url, &access, expected).await?;
        Ok(crate::Document::parse(bytes)?.descriptor())
    }

    /// Puts a manifest or index under a tag or its digest: one PUT of these very bytes, whose digest is returned.
    ///
    /// # Errors
    /// [`Error::BlobsUnknown`] if the repository lacks blobs or manifests that it names; [`Error::DigestMismatch`] if the
    /// bytes are not those of the reference, or the registry says that it took something else; [`Error::Refused`] in the
    /// registry's words; [`Error::Grammar`] for a media type that is no header; the network errors.
    pub fn put_manifest(&self, to: &Reference, media_type: &str, bytes: &[u8]) -> Result<Digest> {
        let digest = Digest::of(bytes);
        match to {
            Reference::Pinned(pinned) if pinned.digest != digest => {
                let subject = format!("manifest for {}", pinned.repository);
                return Err(Error::DigestMismatch { subject, expected: pinned.digest, found: digest });
            }
            _ => {}
        }
        let content_type = HeaderValue::from_str(media_type).map_err(|_| Error::Grammar {
            noun: "media type",
            text: media_type.to_owned(),
            expected: "visible ASCII",
        })?;
        self.at_home(to.repository(), &async |base| {
            let url = endpoint::join(base, &path(to));
            let access = Access::push(base, to.repository());
            let request =
                Request { body: Body::Bytes(bytes), accepted: &[200, 201], ..Request::new(Method::PUT, &url, &access) };
            let answer = self.transport.send(&request.header(CONTENT_TYPE, content_type.clone())).await?;
            answer.must_claim(digest).map_err(Failure::from)
        })?;
        Ok(digest)
    }

    /// Waits until the registry answers `digest` to a tag, at most for `limit`: one HEAD where it does so at once.
    ///
    /// # Errors
    /// [`Error::Tag`] once the limit has passed; those of [`Self::head`].
    pub fn await_tag(&self, tagged: &Tagged, digest: &Digest, limit: Duration) -> Result<()> {
        let start = Instant::now();
        let reference = Reference::Tagged(tagged.clone());
        let mut pause = self.transport.options.first_pause;
        loop {
            let found = self.head(&reference)?.map(|found| found.digest);
            if found == Some(*digest) {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited >= limit {
                let (tagged, expected) = (tagged.to_string(), *digest);
                return Err(Error::Tag { tagged, expected, found, waited: limit });
            }
            let nap = pause.min(limit - waited);
            self.wait(async {
                tokio::time::sleep(nap).await;
                Ok(())
            })?;
            pause = pause.saturating_mul(2).min(TAG_PAUSE_MAX);
        }
    }
}

/// That a registry has no such thing is an answer.
fn found(asked: Result<Descriptor>) -> Result<Option<Descriptor>> {
    match asked {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `PATH/manifests/REFERENCE`; a digest before a tag.
fn path(reference: &Reference) -> String {
    let of = |repository: &Repository, name: &str| format!("{}/manifests/{name}", repository.path());
    match reference {
        Reference::Tagged(tagged) => of(&tagged.repository, tagged.tag()),
        Reference::Pinned(pinned) => of(&pinned.repository, &pinned.digest.to_string()),
    }
}
