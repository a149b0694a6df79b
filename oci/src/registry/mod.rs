//! Pulls from OCI registries, and pushes to them. Spec: distribution-spec `spec.md`, sections "Pull" and "Push". Callers see
//! a blocking [`Client`]; within, one small runtime on the callers' own threads waits for the network, because only the
//! asynchronous client below can tell a stalled transfer from a long one. Never writes a blob that was not verified, never
//! sends what identifies us to a host that did not ask, never falls from https to http.

mod answer;
mod auth;
mod batch;
mod body;
mod clients;
mod credentials;
mod endpoint;
mod push;
mod tag;
mod token;
mod transport;

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, Url};
use tokio::runtime::Runtime;

use self::answer::Failure;
use self::auth::Access;
pub use self::batch::PARALLEL_BLOBS;
use self::endpoint::Endpoints;
use self::push::Uploads;
pub use self::push::{Mount, Upload};
use self::transport::{Request, Transport};
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
    /// `(HOST[:PORT], base URL)`: what is pulled from the registry is asked of the URL instead, never of the registry
    /// itself. Several for one registry are tried in order while they are unreachable. Pushes, and questions about what is
    /// there already, go to the registry itself: a mirror is a copy.
    pub mirrors: Vec<(String, String)>,
    /// Hosts, `HOST` or `HOST:PORT`, that are spoken to over plain http, and only so. Loopback always is.
    pub insecure: Vec<String>,
    /// What we call ourselves (RFC 9110, section 10.1.5).
    pub user_agent: String,
    /// Files of CA certificates in PEM to trust beside the system's, read when first needed: one that is missing or holds no
    /// certificate is an error then.
    pub ca: Vec<PathBuf>,
    /// Docker's `config.json`, which says who we are where; anonymous without one, and where it is missing.
    pub credentials: Option<PathBuf>,
    /// `(HOST[:PORT] of a registry, HOST of its token server)`: token servers that may see our credentials beside those on
    /// the registry's own host, and Docker Hub's.
    pub realms: Vec<(String, String)>,
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
            ca: Vec::new(),
            credentials: None,
            realms: Vec::new(),
            interrupt: Interrupt::default(),
            connect_timeout: CONNECT_TIMEOUT,
            read_timeout: READ_TIMEOUT,
            first_pause: FIRST_PAUSE,
        }
    }
}

/// A client for OCI registries. Tokens, and what it knows to be in registries, live as long as it does. Threads may share it.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    transport: Transport,
    uploads: Uploads,
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
            transport: Transport::new(options, endpoints),
            uploads: Uploads::default(),
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
        let places = self.transport.endpoints.of(repository)?;
        progress.started(blob);
        self.ask(&places, &async |base| {
            let access = Access::pull(base, repository);
            self.fetch_blob(&endpoint::join(base, &path), &access, blob, layout, progress).await
        })?;
        progress.finished(blob);
        Ok(())
    }

    fn document(&self, repository: &Repository, reference: &str, expected: Option<Digest>) -> Result<Document> {
        let path = format!("{}/manifests/{reference}", repository.path());
        self.ask(&self.transport.endpoints.of(repository)?, &async |base| {
            let access = Access::pull(base, repository);
            let url = endpoint::join(base, &path);
            let bytes = self.fetch_document(&url, &access, expected).await?;
            Document::parse(bytes).map_err(|error| error.sent_by(&format!("GET {url}")).into())
        })
    }

    /// Runs `attempt` on each place, at least one, where the registry may be reached, until one of them can be.
    fn ask<T>(&self, places: &[Url], attempt: &impl AsyncFn(&Url) -> Result<T, Failure>) -> Result<T> {
        self.runtime.block_on(self.transport.interruptible(async {
            let mut unreachable = None;
            for base in places {
                match self.transport.persist(async || attempt(base).await).await {
                    Err(error @ Error::Unreachable { .. }) => unreachable = Some(error),
                    result => return result,
                }
            }
            Err(unreachable.expect("a registry has one endpoint at least"))
        }))
    }

    async fn fetch_document(&self, url: &Url, access: &Access, expected: Option<Digest>) -> Result<Vec<u8>, Failure> {
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

    async fn fetch_blob(
        &self,
        url: &Url,
        access: &Access,
        blob: &Descriptor,
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let request = Request::new(Method::GET, url, access).header(ACCEPT, HeaderValue::from_static("*/*"));
        let mut answer = self.transport.send(&request).await?;
        if let Some(found) = answer.length().filter(|length| *length != blob.size) {
            let subject = answer.request().to_owned();
            return Err(Error::SizeMismatch { subject, expected: blob.size, found }.into());
        }
        answer.must_claim(blob.digest)?;
        let mut writer = layout.expect(blob)?;
        progress.reached(blob, 0);
        while let Some(chunk) = answer.chunk().await? {
            self.transport.check_interrupt()?;
            writer.write(&chunk).map_err(|error| error.sent_by(answer.request()))?;
            progress.reached(blob, writer.count());
        }
        match writer.finish() {
            // A body of unknown length that ends early looks like this: the connection was cut.
            Err(error @ Error::SizeMismatch { .. }) => {
                Err(Failure::Again { error: error.sent_by(answer.request()), after: None })
            }
            result => result.map_err(|error| error.sent_by(answer.request()).into()),
        }
    }
}

/// All that we understand (distribution-spec, section "Pulling manifests"): a registry converts for who asks for less.
fn manifest_types() -> HeaderValue {
    let types = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ");
    HeaderValue::try_from(types).expect("media types are ASCII")
}
