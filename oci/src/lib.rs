//! OCI images by digest: references, manifests, config edits, layers, layouts, registries, unpacking.
//!
//! Foreign bytes are kept: what was fetched is hashed and stored as received, and a copy of it is parsed. The crate reads
//! no environment, clock or working directory of its own accord (the one exception: the HTTP client obeys the proxy
//! variables), knows no YAML, no command line and no init, and never prints.

mod archive;
pub mod config;
pub mod descriptor;
pub mod digest;
pub mod document;
pub mod error;
mod hint;
pub mod index;
mod json;
pub mod layer;
pub mod layout;
pub mod manifest;
pub mod platform;
pub mod progress;
pub mod reference;
pub mod registry;
pub mod timestamp;
pub mod unpack;

pub use config::{ConfigEdit, History, ImageConfig};
pub use descriptor::{Descriptor, Family};
pub use digest::{DiffId, Digest};
pub use document::Document;
pub use error::{Error, Result};
pub use index::Index;
pub use layer::{Layer, LayerWriter, Permissions};
pub use layout::Layout;
pub use manifest::{Manifest, ManifestEdit};
pub use platform::Platform;
pub use progress::{Interrupt, Progress, Silent};
pub use reference::{Pinned, Reference, Repository, Tagged};
pub use registry::{Client, Mount, Options, Upload};
pub use timestamp::Timestamp;
pub use unpack::{Limits, unpack};
