//! Pulls from OCI registries. Spec: distribution-spec `spec.md`, section "Pull". Callers see a blocking [`Client`]; within,
//! one small runtime on the caller's own thread waits for the network, because only the asynchronous client below can tell
//! a stalled transfer from a long one. Never writes a blob that was not verified, never sends what identifies us to a host
//! that did not ask, never falls from https to http.

mod auth;
mod endpoint;
mod transport;

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{ACCEPT, HeaderValue};
use tokio::runtime::Runtime;

use self::endpoint::Endpoints;
use self::transport::{Failure, Transport};
use crate::descriptor::{DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, OCI_INDEX, OCI_MANIFEST};
use crate::digest::Digest;
use crate::document::Document;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::progress::{Interrupt, Progress};
use crate::reference::{Repository, Tagged};

/// How long a connection may take to come up, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a registry may be silent in mid-answer. There is no limit on a whole transfer: layers are large.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before the second attempt; each later one is twice as long.
pub const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// How registries are reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// `(HOST[:PORT], base URL)`: requests for the registry go to the URL instead, never to the registry itself. Several
    /// for one registry are tried in order while they are unreachable.
    pub mirrors: Vec<(String, String)>,
    /// Hosts, `HOST` or `HOST:PORT`, that are spoken to over plain http, and only so. Loopback always is.
    pub insecure: Vec<String>,
    /// What we call ourselves (RFC 9110, section 10.1.5).
    pub user_agent: String,
    /// Ends whatever the client is doing.
    pub interrupt: Interrupt,
    /// See [`CONNECT_TIMEOUT`].
    pub connect_timeout: Duration,
    /// See [`READ_TIMEOUT`].
    pub read_timeout: Duration,
    /// See [`FIRST_PAUSE`].
    pub first_pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mirrors: Vec::new(),
            insecure: Vec::new(),
            user_agent: concat!("oci/", env!("CARGO_PKG_VERSION")).to_owned(),
            interrupt: Interrupt::default(),
            connect_timeout: CONNECT_TIMEOUT,
            read_timeout: READ_TIMEOUT,
            first_pause: FIRST_PAUSE,
        }
    }
}

/// A client for OCI registries, anonymous as yet. Tokens live as long as it does.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    transport: Transport,
    endpoints: Endpoints,
}

impl Client {
    /// A client; connects nowhere yet.
    ///
    /// # Errors
    /// [`Error::Grammar`] for a mirror that is no http or https URL; [`Error::PlainHttp`] for one of plain http that is
    /// neither loopback nor named insecure; [`Error::Io`].
    pub fn new(options: Options) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let endpoints = Endpoints::new(&options.mirrors, options.insecure.clone())?;
        Ok(Self {
            runtime: runtime.map_err(Error::io("start the network runtime"))?,
            transport: Transport::new(options),
            endpoints,
        })
    }

    /// What a tag names now. It is the one call whose answer may differ next time: pin its digest.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unauthorized`], [`Error::Unreachable`] and the other network errors; those of
    /// [`Document::parse`].
    pub fn resolve(&self, tagged: &Tagged) -> Result<Document> {
        self.document(&tagged.repository, tagged.tag(), None)
    }

    /// The manifest or index of this digest.
    ///
    /// # Errors
    /// As [`Self::resolve`]; [`Error::DigestMismatch`] if the registry sends something else.
    pub fn manifest(&self, repository: &Repository, digest: &Digest) -> Result<Document> {
        self.document(repository, &digest.to_string(), Some(*digest))
    }

    /// Brings a blob into `layout`, where it appears whole and verified or not at all. What is there is not fetched again.
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
        self.ask(repository, &path, &async |url| self.fetch_blob(url, repository, blob, layout, progress).await)?;
        progress.finished(blob);
        Ok(())
    }

    fn document(&self, repository: &Repository, reference: &str, expected: Option<Digest>) -> Result<Document> {
        let path = format!("{}/manifests/{reference}", repository.path());
        let bytes = self.ask(repository, &path, &async |url| self.fetch_document(url, repository, expected).await)?;
        Document::parse(bytes)
    }

    /// Runs `attempt` on each place where the registry may be reached, until one of them can be.
    fn ask<T>(
        &self,
        repository: &Repository,
        path: &str,
        attempt: &impl AsyncFn(&Url) -> Result<T, Failure>,
    ) -> Result<T> {
        self.runtime.block_on(self.transport.interruptible(async {
            let mut unreachable = None;
            for base in self.endpoints.of(repository)? {
                let url = endpoint::join(&base, path);
                match self.transport.persist(async || attempt(&url).await).await {
                    Err(error @ Error::Unreachable { .. }) => unreachable = Some(error),
                    result => return result,
                }
            }
            Err(unreachable.expect("a registry has one endpoint at least"))
        }))
    }

    async fn fetch_document(
        &self,
        url: &Url,
        repository: &Repository,
        expected: Option<Digest>,
    ) -> Result<Vec<u8>, Failure> {
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ");
        let accept = HeaderValue::try_from(accept).expect("media types are ASCII");
        let request = format!("GET {url}");
        let response = self.transport.get(url, repository, &self.endpoints, (ACCEPT, accept)).await?;
        let claimed = claimed_digest(&response, &request)?;
        let bytes = transport::read_whole(response, &request, MANIFEST_BYTES_MAX).await?;
        let found = Digest::of(&bytes);
        for (promise, subject) in [(expected, request.clone()), (claimed, format!("{CONTENT_DIGEST} of {request}"))] {
            match promise {
                Some(expected) if expected != found => {
                    return Err(Failure::Final(Error::DigestMismatch { subject, expected, found }));
                }
                _ => {}
            }
        }
        Ok(bytes)
    }

    async fn fetch_blob(
        &self,
        url: &Url,
        repository: &Repository,
        blob: &Descriptor,
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let request = format!("GET {url}");
        let any = (ACCEPT, HeaderValue::from_static("*/*"));
        let mut response = self.transport.get(url, repository, &self.endpoints, any).await?;
        if let Some(found) = response.content_length().filter(|length| *length != blob.size) {
            return Err(Failure::Final(Error::SizeMismatch { subject: request, expected: blob.size, found }));
        }
        if let Some(found) = claimed_digest(&response, &request)?.filter(|claimed| *claimed != blob.digest) {
            let subject = format!("{CONTENT_DIGEST} of {request}");
            return Err(Failure::Final(Error::DigestMismatch { subject, expected: blob.digest, found }));
        }
        let mut writer = layout.expect(blob)?;
        progress.reached(blob, 0);
        while let Some(chunk) = transport::chunk(&mut response, &request).await? {
            self.transport.check_interrupt()?;
            writer.write(&chunk)?;
            progress.reached(blob, writer.count());
        }
        match writer.finish() {
            // A body of unknown length that ends early looks like this: the connection was cut.
            Err(error @ Error::SizeMismatch { .. }) => Err(Failure::Again { error, after: None }),
            result => Ok(result?),
        }
    }
}

/// The header by which a registry says what it sends (distribution-spec, section "Pulling manifests").
const CONTENT_DIGEST: &str = "Docker-Content-Digest";

/// What the registry says that it sends; none if it says nothing, or by an algorithm other than ours.
fn claimed_digest(response: &reqwest::Response, request: &str) -> Result<Option<Digest>> {
    let Some(value) = response.headers().get(CONTENT_DIGEST) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    if !text.starts_with("sha256:") {
        return Ok(None);
    }
    let problem = || format!("{CONTENT_DIGEST}: expected a digest, found {text:?}");
    Digest::parse(&text).map(Some).map_err(|_| Error::Protocol { request: request.to_owned(), problem: problem() })
}
