//! Descriptors: what a manifest or index says of a blob it names, and the two families of media types that it says it in.
//! Never holds the blob itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::platform::Platform;

/// Annotation of an index entry: its tag. Spec: image-spec `annotations.md`.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The two vocabularies of media types for the same documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// `application/vnd.oci.image.*`. Spec: image-spec `media-types.md`.
    Oci,
    /// `application/vnd.docker.*`, "Image Manifest Version 2, Schema 2".
    Docker,
}

/// Docker's name and OCI's name of one thing (image-spec `media-types.md`, section "Compatibility Matrix").
const TWINS: [(&str, &str); 7] = [
    (DOCKER_MANIFEST, OCI_MANIFEST),
    (DOCKER_INDEX, OCI_INDEX),
    ("application/vnd.docker.container.image.v1+json", OCI_CONFIG),
    ("application/vnd.docker.image.rootfs.diff.tar.gzip", OCI_LAYER_GZIP),
    ("application/vnd.docker.image.rootfs.diff.tar", "application/vnd.oci.image.layer.v1.tar"),
    ("application/vnd.docker.image.rootfs.diff.tar.zstd", "application/vnd.oci.image.layer.v1.tar+zstd"),
    (
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    ),
];

pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

impl Family {
    /// The family's name for what `media_type` names in either; a type that is in neither table stays as it is.
    pub fn name_of(self, media_type: &str) -> &str {
        let twin = TWINS.iter().find(|(docker, oci)| media_type == *docker || media_type == *oci);
        match (self, twin) {
            (_, None) => media_type,
            (Self::Oci, Some((_, oci))) => oci,
            (Self::Docker, Some((docker, _))) => docker,
        }
    }

    /// Whether `media_type` belongs to this family, by its prefix.
    pub fn holds(self, media_type: &str) -> bool {
        media_type.starts_with(match self {
            Self::Oci => "application/vnd.oci.",
            Self::Docker => "application/vnd.docker.",
        })
    }
}

/// What names a blob: its type, digest and size. Spec: image-spec `descriptor.md`. Properties beside those below
/// (`urls`, `data`, ...) are not kept here: documents that are passed on keep their descriptors as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// `mediaType`.
    pub media_type: String,
    /// `digest`.
    pub digest: Digest,
    /// `size` in bytes.
    pub size: u64,
    /// `platform`, in entries of an index.
    pub platform: Option<Platform>,
    /// `annotations`.
    pub annotations: BTreeMap<String, String>,
    /// What the platform object of a foreign entry says beside the names in `platform`: `os.version`, `os.features`, and
    /// what nobody knows yet. It goes where the entry goes, and decides nothing: on Linux they are empty, and Windows images
    /// that differ in nothing else stay several that nobody chooses from. Keys and values, in their order.
    platform_rest: Vec<(String, Value)>,
}

impl Descriptor {
    /// Names `bytes` as `media_type`.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self::new(media_type, Digest::of(bytes), bytes.len() as u64)
    }

    /// Names a blob of `size` bytes.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let (platform, annotations, platform_rest) = (None, BTreeMap::new(), Vec::new());
        Self { media_type: media_type.to_owned(), digest, size, platform, annotations, platform_rest }
    }

    /// The same, as an index entry for `platform` and nothing narrower.
    #[must_use]
    pub fn with_platform(self, platform: Platform) -> Self {
        Self { platform: Some(platform), platform_rest: Vec::new(), ..self }
    }

    /// The same, as an index entry for the tag `name` ([`REF_NAME`]).
    #[must_use]
    pub fn with_ref_name(mut self, name: &str) -> Self {
        self.annotations.insert(REF_NAME.to_owned(), name.to_owned());
        self
    }

    /// The same blob under the family's name for its type.
    #[must_use]
    pub fn in_family(mut self, family: Family) -> Self {
        self.media_type = family.name_of(&self.media_type).to_owned();
        self
    }

    /// The tag that an index entry carries.
    pub fn ref_name(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }

    /// Whether this names an index, and no image.
    pub fn is_index(&self) -> bool {
        [OCI_INDEX, DOCKER_INDEX].contains(&self.media_type.as_str())
    }

    /// Whether an index entry is an attestation of another entry, as BuildKit writes it, and no image: its platform is
    /// `unknown/unknown`, or it carries `vnd.docker.reference.type`.
    pub fn is_attestation(&self) -> bool {
        self.annotations.contains_key("vnd.docker.reference.type")
            || self.platform.as_ref().is_some_and(|platform| platform.os == "unknown")
    }

    /// The JSON object, its properties in this fixed order: mediaType, digest, size, annotations, platform.
    pub(crate) fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("mediaType".to_owned(), json!(self.media_type));
        object.insert("digest".to_owned(), json!(self.digest));
        object.insert("size".to_owned(), json!(self.size));
        if !self.annotations.is_empty() {
            object.insert("annotations".to_owned(), json!(self.annotations));
        }
        if let Some(platform) = &self.platform {
            let mut names = json!({"architecture": platform.architecture, "os": platform.os});
            if let Some(variant) = &platform.variant {
                names["variant"] = json!(variant);
            }
            for (key, value) in &self.platform_rest {
                names[key] = value.clone();
            }
            object.insert("platform".to_owned(), names);
        }
        Value::Object(object)
    }

    /// Reads the JSON object; `subject` and `place` say where it stands, for the error.
    pub(crate) fn from_json(value: &Value, subject: &str, place: &str) -> Result<Self> {
        let wrong = |key: &str, expected: &str| {
            let found = value.get(key).unwrap_or(&Value::Null);
            Error::document(subject, format!("{place}.{key}: expected {expected}, found {found}"))
        };
        let media_type = value["mediaType"].as_str().ok_or_else(|| wrong("mediaType", "a string"))?;
        let digest = value["digest"].as_str().and_then(|text| Digest::parse(text).ok());
        Ok(Self {
            media_type: media_type.to_owned(),
            digest: digest.ok_or_else(|| wrong("digest", "a sha256 digest"))?,
            size: value["size"].as_u64().ok_or_else(|| wrong("size", "a number of bytes"))?,
            platform: match &value["platform"] {
                Value::Null => None,
                platform => Some(platform_from_json(platform).ok_or_else(|| wrong("platform", "os and architecture"))?),
            },
            platform_rest: value["platform"].as_object().map(rest).unwrap_or_default(),
            annotations: match &value["annotations"] {
                Value::Null => BTreeMap::new(),
                annotations => {
                    string_map(annotations).ok_or_else(|| wrong("annotations", "an object whose values are strings"))?
                }
            },
        })
    }
}

/// `os`, `architecture` and `variant` of a JSON object, as index entries and image configs hold them.
pub(crate) fn platform_from_json(value: &Value) -> Option<Platform> {
    let name = |key: &str| value[key].as_str().filter(|name| !name.is_empty());
    let mut text = format!("{}/{}", name("os")?, name("architecture")?);
    if let Some(variant) = name("variant") {
        text = format!("{text}/{variant}");
    }
    Platform::parse(&text).ok()
}

/// What a platform object says beside [`platform_from_json`]'s names.
fn rest(platform: &Map<String, Value>) -> Vec<(String, Value)> {
    let names = ["os", "architecture", "variant"];
    let rest = platform.iter().filter(|(key, _)| !names.contains(&key.as_str()));
    rest.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn string_map(value: &Value) -> Option<BTreeMap<String, String>> {
    value.as_object()?.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let plain = Descriptor::of(OCI_LAYER_GZIP, b"x");
        let entry = plain.clone().with_platform(Platform::parse("linux/arm64/v8").unwrap()).with_ref_name("20-dind");
        for descriptor in [plain, entry] {
            assert_eq!(Descriptor::from_json(&descriptor.to_json(), "test", "layers[0]").unwrap(), descriptor);
        }
    }

    #[test]
    fn f12_f17_the_rest_of_a_platform_goes_with_its_entry() {
        let mut foreign = Descriptor::of(OCI_MANIFEST, b"x").to_json();
        foreign["platform"] = json!({
            "architecture": "amd64", "os": "windows", "os.version": "10.0.17763.1", "os.features": ["win32k"], "x-new": null
        });
        let entry = Descriptor::from_json(&foreign, "test", "manifests[0]").unwrap();
        assert_eq!(entry.platform, Some(Platform::parse("windows/amd64").unwrap()));
        assert_eq!(entry.to_json(), foreign);
        let plain = entry.with_platform(Platform::parse("windows/amd64").unwrap());
        assert_eq!(plain.to_json()["platform"], json!({"architecture": "amd64", "os": "windows"}));
    }

    #[test]
    fn says_which_property_is_wrong() {
        let good = Descriptor::of(OCI_MANIFEST, b"x").to_json();
        for (key, bad) in [
            ("mediaType", json!(1)),
            ("digest", json!("sha512:00")),
            ("digest", Value::Null),
            ("size", json!(-1)),
            ("size", json!(1.5)),
            ("size", json!("1")),
            ("platform", json!({"os": "linux"})),
            ("platform", json!("linux/amd64")),
            ("annotations", json!({"a": 1})),
        ] {
            let mut value = good.clone();
            value[key] = bad;
            let error = Descriptor::from_json(&value, "test", "manifests[3]").unwrap_err().to_string();
            assert!(error.contains(&format!("manifests[3].{key}: expected")), "{error}");
        }
    }

    #[test]
    fn families_are_twins() {
        for (docker, oci) in TWINS {
            assert_eq!((Family::Oci.name_of(docker), Family::Docker.name_of(oci)), (oci, docker));
            assert!(Family::Oci.holds(oci) && !Family::Oci.holds(docker) && Family::Docker.holds(docker));
        }
        assert_eq!(Family::Docker.name_of("application/x"), "application/x");
    }
}
