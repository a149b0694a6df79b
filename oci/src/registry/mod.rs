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
mod fetch;
mod patience;
mod pull;
mod push;
mod quota;
mod tag;
mod token;
mod transport;
mod upload;

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderValue;
use tokio::runtime::Runtime;

use self::answer::Failure;
pub use self::batch::{PARALLEL_PULLS, PARALLEL_PUSHES};
use self::endpoint::Endpoints;
use self::pull::Dead;
use self::push::Uploads;
pub use self::push::{Mount, Upload};
use self::transport::Transport;
use crate::descriptor::{DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use crate::error::{Error, Result};
use crate::progress::Interrupt;
use crate::reference::Repository;

/// How long a connection may take to come up, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a registry may be silent, or all but silent, in mid-answer. There is no limit on a whole transfer: layers are
/// large.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before the second attempt; each later one is twice as long.
pub const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// How registries are reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// `(HOST[:PORT], base URL)`: what is pulled from the registry is asked of the URL first. Several for one registry are
    /// tried in order, and the registry itself at last: a mirror that cannot be reached, has not got it, refuses, keeps
    /// failing or sends something else is passed over. Pushes, and questions about what is there already, go to the
    /// registry itself: a mirror is a copy.
    pub mirrors: Vec<(String, String)>,
    /// Hosts, `HOST` or `HOST:PORT`, that are spoken to over plain http, and only so. Loopback is, unless it is named below.
    pub insecure: Vec<String>,
    /// Hosts, `HOST` or `HOST:PORT`, that are spoken to over https, and only so: loopback too, and whatever is insecure above.
    pub secure: Vec<String>,
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
            secure: Vec::new(),
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
    dead_mirrors: Dead,
}

impl Client {
    /// A client; connects nowhere yet.
    ///
    /// # Errors
    /// [`Error::Grammar`] for a mirror that is no http or https URL, and a host that is none; [`Error::Userinfo`] for a mirror
    /// with a password in its URL; [`Error::PlainHttp`] for one of plain http where https is due; [`Error::Io`].
    pub fn new(options: Options) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let endpoints = Endpoints::new(&options)?;
        Ok(Self {
            runtime: runtime.map_err(Error::io("start the network runtime"))?,
            transport: Transport::new(options, endpoints),
            uploads: Uploads::default(),
            dead_mirrors: Dead::default(),
        })
    }

    /// Runs `attempt` on a repository's own registry until it succeeds, fails for good, or was tried often enough.
    fn at_home<T>(&self, repository: &Repository, attempt: &impl AsyncFn(&Url) -> Result<T, Failure>) -> Result<T> {
        let home = self.transport.endpoints.home(repository)?;
        self.wait(self.transport.persist(async || attempt(&home).await))
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(self.transport.interruptible(work))
    }
}

/// All that we understand (distribution-spec, section "Pulling manifests"): a registry converts for who asks for less.
fn manifest_types() -> HeaderValue {
    let types = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ");
    HeaderValue::try_from(types).expect("media types are ASCII")
}
