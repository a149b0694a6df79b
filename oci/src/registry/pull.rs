//! What comes out of registries. Spec: distribution-spec, sections "Pulling manifests" and "Pulling blobs". Mirrors are asked
//! before the registry itself, and none of them is believed: what is pulled by digest is verified wherever it comes from.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use reqwest::header::ACCEPT;
use reqwest::{Method, Url};

use super::answer::Failure;
use super::auth::Access;
use super::fetch::Fetching;
use super::transport::Request;
use super::{Client, endpoint, manifest_types};
use crate::descriptor::Descriptor;
use crate::digest::Digest;
use crate::document::Document;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::progress::Progress;
use crate::reference::{Repository, Tagged};

/// The mirrors that this client could not reach, with the error that told so. They are not asked again: each blob would
/// wait for them anew.
#[derive(Debug, Default)]
pub(super) struct Dead(Mutex<HashMap<Url, Error>>);

impl Dead {
    fn error(&self, mirror: &Url) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(mirror).and_then(lasting)
    }

    fn note(&self, mirror: &Url, error: &Error) {
        if let Some(told) = lasting(error) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(mirror.clone(), told);
        }
    }
}

/// The same error once more, if it is that a mirror or its token server cannot be reached.
fn lasting(error: &Error) -> Option<Error> {
    match error {
        Error::Unreachable { endpoint, reason } => {
            Some(Error::Unreachable { endpoint: endpoint.clone(), reason: reason.clone() })
        }
        Error::TokenServer { registry, realm, reason } => {
            let (registry, realm, reason) = (registry.clone(), realm.clone(), reason.clone());
            Some(Error::TokenServer { registry, realm, reason })
        }
        _ => None,
    }
}

impl Client {
    /// What a tag names now. It is the one call whose answer may differ next time: pin its digest.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unauthorized`], [`Error::Unreachable`] and the other network errors, or
    /// [`Error::Mirrored`] around them; those of [`Document::parse`].
    pub fn resolve(&self, tagged: &Tagged) -> Result<Document> {
        self.document(&tagged.repository, tagged.tag(), None)
    }

    /// The same, asked of the registry itself and of no mirror: for what is believed by its tag.
    ///
    /// # Errors
    /// As [`Self::resolve`], but [`Error::Mirrored`].
    pub fn resolve_at_home(&self, tagged: &Tagged) -> Result<Document> {
        let path = format!("{}/manifests/{}", tagged.repository.path(), tagged.tag());
        self.at_home(&tagged.repository, &async |base| {
            let (url, access) = (endpoint::join(base, &path), Access::pull(base, &tagged.repository));
            let bytes = self.fetch_document(&url, &access, None).await?;
            Ok(Document::parse(bytes).map_err(|error| error.sent_by(&format!("GET {url}")))?)
        })
    }

    /// The manifest or index of this digest.
    ///
    /// # Errors
    /// As [`Self::resolve`]; [`Error::DigestMismatch`] if the registry sends something else.
    pub fn manifest(&self, repository: &Repository, digest: &Digest) -> Result<Document> {
        self.document(repository, &digest.to_string(), Some(*digest))
    }

    /// Brings a blob into `layout`, where it appears whole and verified or not at all. What is there is not fetched again. A
    /// transfer that is cut goes on where it was; what a killed process had of a blob is given up.
    ///
    /// # Errors
    /// As [`Self::resolve`]; [`Error::SizeMismatch`] and [`Error::DigestMismatch`] if the registry sends something else;
    /// [`Error::Cut`] if the connection breaks each time; [`Error::Io`] if the layout cannot be written.
    pub fn blob(
        &self,
        repository: &Repository,
        blob: &Descriptor,
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<()> {
        if layout.has(blob) {
            return Ok(());
        }
        let path = format!("{}/blobs/{}", repository.path(), blob.digest);
        progress.started(blob);
        self.anywhere(repository, &async |base| {
            let (url, access) = (endpoint::join(base, &path), Access::pull(base, repository));
            let mut fetching = Fetching::new(&self.transport, &url, &access, blob, layout, progress);
            self.transport.persist(async || fetching.attempt().await).await
        })?;
        progress.finished(blob);
        Ok(())
    }

    fn document(&self, repository: &Repository, reference: &str, expected: Option<Digest>) -> Result<Document> {
        let path = format!("{}/manifests/{reference}", repository.path());
        self.anywhere(repository, &async |base| {
            let (url, access) = (endpoint::join(base, &path), Access::pull(base, repository));
            let bytes = self.transport.persist(async || self.fetch_document(&url, &access, expected).await).await?;
            Document::parse(bytes).map_err(|error| error.sent_by(&format!("GET {url}")))
        })
    }

    /// Runs `attempt` on each mirror of a repository's registry, and at last on the registry itself, until one has what is
    /// asked.
    async fn try_each<T>(&self, home: &Url, mirrors: &[Url], attempt: &impl AsyncFn(&Url) -> Result<T>) -> Result<T> {
        let mut failures = Vec::new();
        for mirror in mirrors {
            let result = match self.dead_mirrors.error(mirror) {
                Some(error) => Err(error),
                None => attempt(mirror).await,
            };
            match result {
                Err(error) if is_of_the_place(&error) => {
                    self.dead_mirrors.note(mirror, &error);
                    failures.push(error);
                }
                result => return result,
            }
        }
        attempt(home).await.map_err(|error| after_mirrors(error, failures))
    }

    pub(super) fn anywhere<T>(&self, repository: &Repository, attempt: &impl AsyncFn(&Url) -> Result<T>) -> Result<T> {
        let endpoints = &self.transport.endpoints;
        let (home, mirrors) = (endpoints.home(repository)?, endpoints.mirrors(repository));
        self.wait(self.try_each(&home, &mirrors, attempt))
    }

    /// The bytes of a manifest or index at `url`, held to `expected` and to what the registry says that it sends.
    pub(super) async fn fetch_document(
        &self,
        url: &Url,
        access: &Access,
        expected: Option<Digest>,
    ) -> Result<Vec<u8>, Failure> {
        let request = Request::new(Method::GET, url, access).header(ACCEPT, manifest_types());
        let mut answer = self.transport.send(&request).await?;
        let bytes = answer.whole(MANIFEST_BYTES_MAX).await?;
        let found = Digest::of(&bytes);
        match expected {
            Some(expected) if expected != found => {
                let subject = answer.request().to_owned();
                Err(Error::DigestMismatch { subject, expected, found }.into())
            }
            _ => {
                answer.must_claim(found)?;
                Ok(bytes)
            }
        }
    }
}

/// Whether an error is about the place that was asked, so that another one may do better. What fails here (the disk, the
/// caller's patience, a helper of ours) would fail there too.
fn is_of_the_place(error: &Error) -> bool {
    !matches!(error, Error::Interrupted | Error::Io { .. } | Error::Grammar { .. } | Error::Credentials { .. })
}

/// The registry's own error, which tells what became of its mirrors before. Where none of them could be reached either, that
/// nothing could be reached stays the kind of the error.
fn after_mirrors(origin: Error, mirrors: Vec<Error>) -> Error {
    if mirrors.is_empty() || !is_of_the_place(&origin) {
        return origin;
    }
    let unreached: Option<Vec<String>> = mirrors.iter().map(unreached).collect();
    match (origin, unreached) {
        (Error::Unreachable { endpoint, reason }, Some(mirrors)) => {
            Error::Unreachable { endpoint, reason: format!("{reason}; nor its mirror {}", mirrors.join(", nor ")) }
        }
        (origin, _) => Error::Mirrored { origin: Box::new(origin), mirrors },
    }
}

fn unreached(error: &Error) -> Option<String> {
    match error {
        Error::Unreachable { endpoint, reason } => Some(format!("{endpoint}: {reason}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(endpoint: &str) -> Error {
        Error::Unreachable { endpoint: endpoint.to_owned(), reason: "refused".to_owned() }
    }

    fn missing(request: &str) -> Error {
        Error::NotFound { request: request.to_owned(), answer: String::new() }
    }

    #[test]
    fn an_error_is_the_registrys_and_names_its_mirrors() {
        for (origin, mirrors, text, unreached) in [
            (unreachable("https://o"), vec![], "reach https://o: refused", true),
            (
                unreachable("https://o"),
                vec![unreachable("http://a"), unreachable("http://b")],
                "reach https://o: refused; nor its mirror http://a: refused, nor http://b: refused",
                true,
            ),
            (
                unreachable("https://o"),
                vec![unreachable("http://a"), missing("GET http://b")],
                "reach https://o: refused; its mirrors before: reach http://a: refused; GET http://b: not found",
                false,
            ),
            (
                missing("GET https://o"),
                vec![unreachable("http://a")],
                "GET https://o: not found; its mirrors before: reach http://a: refused",
                false,
            ),
            (Error::Interrupted, vec![missing("GET http://a")], "interrupted", false),
        ] {
            let error = after_mirrors(origin, mirrors);
            assert_eq!(error.to_string(), text);
            assert_eq!(matches!(error, Error::Unreachable { .. }), unreached, "{text}");
        }
    }
}
