//! Registry client: blocking facade.

use crate::descriptor::Descriptor;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::manifest::Document;
use crate::progress::{Interrupt, Progress};
use crate::reference::{Repository, Tagged};

/// How registries are reached.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `(HOST[:PORT], base URL)`: requests for the host go to the URL instead; several for one host are tried in order.
    pub mirrors: Vec<(String, String)>,
    /// Hosts, `HOST[:PORT]`, that may be spoken to over plain http. Loopback always may.
    pub insecure: Vec<String>,
    /// What we call ourselves.
    pub user_agent: String,
    /// Ends whatever the client is doing.
    pub interrupt: Interrupt,
}

/// A client for OCI registries.
#[derive(Debug)]
pub struct Client {
    #[expect(dead_code, reason = "the transport comes with the next commit")]
    options: Options,
}

impl Client {
    /// A client.
    pub fn new(options: Options) -> Result<Self> {
        Ok(Self { options })
    }

    /// What a tag names now.
    pub fn resolve(&self, tagged: &Tagged) -> Result<Document> {
        Err(Error::Unreachable {
            endpoint: tagged.repository.registry().to_owned(),
            reason: "not written yet".to_owned(),
        })
    }

    /// A manifest or index by digest.
    pub fn manifest(&self, repository: &Repository, _digest: &Digest) -> Result<Document> {
        Err(Error::Unreachable { endpoint: repository.registry().to_owned(), reason: "not written yet".to_owned() })
    }

    /// Fetches a blob into a layout, unless it is there.
    pub fn blob(
        &self,
        repository: &Repository,
        _blob: &Descriptor,
        _layout: &Layout,
        _progress: &dyn Progress,
    ) -> Result<()> {
        Err(Error::Unreachable { endpoint: repository.registry().to_owned(), reason: "not written yet".to_owned() })
    }
}
