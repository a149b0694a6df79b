//! What registries and layouts hold under a tag or digest: an image manifest or an index, told apart and kept as received.
//! Decides what a document is; what it says is up to [`crate::manifest`] and [`crate::index`].

use serde_json::{Map, Value};

use crate::descriptor::{DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, Family, OCI_INDEX, OCI_MANIFEST};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::json;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest};

/// What a registry answers to a tag or digest: one image, or an index of several.
#[derive(Clone, Debug)]
pub enum Document {
    /// An image for one platform.
    Manifest(Manifest),
    /// Images for several platforms.
    Index(Index),
}

impl Document {
    /// Parses a manifest or an index of either family. The bytes are kept.
    ///
    /// # Errors
    /// As [`Manifest::parse`] and [`Index::parse`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            let subject = format!("manifest {}", Digest::of(&bytes));
            return Err(Error::TooLarge { subject, limit: MANIFEST_BYTES_MAX });
        }
        Self::read(bytes)
    }

    /// Parses without a limit, for what we made ourselves.
    pub(crate) fn read(bytes: Vec<u8>) -> Result<Self> {
        let raw = Raw::parse(bytes)?;
        let subject = raw.subject();
        if raw.is_index() {
            let manifests = raw.descriptors("manifests")?;
            return Ok(Self::Index(Index::from_parts(raw, manifests)));
        }
        let config = Descriptor::from_json(&raw.value["config"], &subject, "config")?;
        let layers = raw.descriptors("layers")?;
        Ok(Self::Manifest(Manifest::from_parts(raw, config, layers)))
    }

    /// The image manifest that this is.
    ///
    /// # Errors
    /// [`Error::Document`] if it is an index.
    pub fn into_manifest(self) -> Result<Manifest> {
        match self {
            Self::Manifest(manifest) => Ok(manifest),
            Self::Index(index) => {
                Err(Error::document(format!("index {}", index.digest()), "expected an image manifest, found an index"))
            }
        }
    }

    /// The bytes as received.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Manifest(manifest) => manifest.bytes(),
            Self::Index(index) => index.bytes(),
        }
    }

    /// The digest of the bytes.
    pub fn digest(&self) -> Digest {
        self.descriptor().digest
    }

    /// The family of its media type.
    pub fn family(&self) -> Family {
        match self {
            Self::Manifest(manifest) => manifest.family(),
            Self::Index(index) => index.family(),
        }
    }

    /// Names these bytes.
    pub fn descriptor(&self) -> Descriptor {
        match self {
            Self::Manifest(manifest) => manifest.descriptor(),
            Self::Index(index) => index.descriptor(),
        }
    }
}

/// A document as received, beside its JSON and what kind of document it is.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: Digest,
    pub(crate) media_type: &'static str,
    pub(crate) value: Value,
}

impl Raw {
    fn parse(bytes: Vec<u8>) -> Result<Self> {
        let digest = Digest::of(&bytes);
        let subject = format!("manifest {digest}");
        let value: Value = json::parse(&bytes).map_err(|problem| Error::document(&subject, problem))?;
        let media_type = match &value {
            Value::Object(object) => media_type(object).map_err(|problem| Error::document(&subject, problem))?,
            _ => return Err(Error::document(&subject, "expected a JSON object")),
        };
        Ok(Self { bytes, digest, media_type, value })
    }

    pub(crate) fn family(&self) -> Family {
        if Family::Docker.holds(self.media_type) { Family::Docker } else { Family::Oci }
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.media_type, self.digest, self.bytes.len() as u64)
    }

    fn is_index(&self) -> bool {
        matches!(self.media_type, OCI_INDEX | DOCKER_INDEX)
    }

    fn subject(&self) -> String {
        format!("{} {}", if self.is_index() { "index" } else { "manifest" }, self.digest)
    }

    fn descriptors(&self, key: &str) -> Result<Vec<Descriptor>> {
        let subject = self.subject();
        let list =
            self.value[key].as_array().ok_or_else(|| Error::document(&subject, format!("{key}: expected a list")))?;
        let place = |at| format!("{key}[{at}]");
        list.iter().enumerate().map(|(at, value)| Descriptor::from_json(value, &subject, &place(at))).collect()
    }
}

/// Compact JSON of an ordered value.
pub(crate) fn print(value: &Value) -> Vec<u8> {
    // `Display` of a value cannot fail, unlike the general serialiser.
    value.to_string().into_bytes()
}

/// Which of the four document types this is: by `mediaType`, or by shape where OCI lets that be absent. A document that
/// could be read as image and as index is refused (CVE-2021-41190: two readers, two images, one digest).
fn media_type(object: &Map<String, Value>) -> Result<&'static str, String> {
    match object.get("schemaVersion").and_then(Value::as_u64) {
        Some(2) => {}
        Some(1) => return Err("schema version 1 is not supported: expected 2".to_owned()),
        _ => return Err("schemaVersion: expected 2".to_owned()),
    }
    let is_index = object.contains_key("manifests");
    if is_index && (object.contains_key("layers") || object.contains_key("config")) {
        return Err("it has manifests and layers, so it could be an index or an image".to_owned());
    }
    let known = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX];
    let media_type = match object.get("mediaType") {
        None | Some(Value::Null) => Some(if is_index { OCI_INDEX } else { OCI_MANIFEST }),
        Some(found) => known.into_iter().find(|known| found == known),
    };
    let media_type = media_type.ok_or_else(|| {
        format!(
            "mediaType: expected one of {}, found {}",
            known.join(", "),
            object.get("mediaType").unwrap_or(&Value::Null)
        )
    })?;
    if is_index != matches!(media_type, OCI_INDEX | DOCKER_INDEX) {
        return Err(format!("mediaType {media_type} does not fit the content"));
    }
    Ok(media_type)
}
