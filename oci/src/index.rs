//! Indexes: images for several platforms under one name, and the rule by which one of them is chosen. The rule never takes
//! what merely comes first.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::descriptor::{Descriptor, Family, OCI_INDEX};
use crate::digest::Digest;
use crate::document::{Document, Raw, print};
use crate::error::{Error, Result};
use crate::platform::Platform;

/// Images for several platforms. Spec: image-spec `image-index.md`; Docker's "manifest list".
#[derive(Clone)]
pub struct Index {
    raw: Raw,
    manifests: Vec<Descriptor>,
}

impl Index {
    /// Parses an index of either family. The bytes are kept.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above [`MANIFEST_BYTES_MAX`](crate::manifest::MANIFEST_BYTES_MAX); [`Error::Document`] if it is
    /// no JSON, an image manifest, both at once, or has a property of the wrong kind.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        match Document::parse(bytes)? {
            Document::Index(index) => Ok(index),
            Document::Manifest(manifest) => Err(Error::document(
                format!("index {}", manifest.digest()),
                "expected an index, found an image manifest",
            )),
        }
    }

    /// A new index of `manifests`, which are named as given.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if it would be larger than a registry must take.
    pub fn new(family: Family, manifests: &[Descriptor]) -> Result<Self> {
        Self::annotated(family, manifests, &[])
    }

    /// The same, with annotations of its own as `(key, value)`. Spec: image-spec `annotations.md`; Docker's family has none, but
    /// keeps them.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn annotated(family: Family, manifests: &[Descriptor], annotations: &[(&str, &str)]) -> Result<Self> {
        let entries: Vec<Value> = manifests.iter().map(Descriptor::to_json).collect();
        let mut value = json!({"schemaVersion": 2, "mediaType": family.name_of(OCI_INDEX), "manifests": entries});
        for (key, text) in annotations {
            value["annotations"][key] = json!(text);
        }
        Self::parse(print(&value))
    }

    /// This index under OCI media types, for layouts: each manifest that it names is replaced by its own twin, given in
    /// `twins` by the digest that the index names.
    ///
    /// # Errors
    /// [`Error::Document`] if a twin is missing.
    pub fn to_oci(&self, twins: &BTreeMap<Digest, Descriptor>) -> Result<Self> {
        let mut value = self.raw.value.clone();
        value["mediaType"] = json!(OCI_INDEX);
        for (at, entry) in self.manifests.iter().enumerate() {
            let missing =
                || Error::document(format!("index {}", self.digest()), format!("manifests[{at}]: it has no twin"));
            let twin = twins.get(&entry.digest).ok_or_else(missing)?;
            let names = &mut value["manifests"][at];
            names["mediaType"] = json!(twin.media_type);
            names["digest"] = json!(twin.digest);
            names["size"] = json!(twin.size);
        }
        Self::parse(print(&value))
    }

    /// The bytes as received.
    pub fn bytes(&self) -> &[u8] {
        &self.raw.bytes
    }

    /// The digest of the bytes.
    pub fn digest(&self) -> Digest {
        self.raw.digest
    }

    /// The media type, by which it is also sent and named.
    pub fn media_type(&self) -> &str {
        self.raw.media_type
    }

    /// The family of the index itself; its entries may be of the other one.
    pub fn family(&self) -> Family {
        self.raw.family()
    }

    /// Names these bytes.
    pub fn descriptor(&self) -> Descriptor {
        self.raw.descriptor()
    }

    /// All entries in their order, attestations included.
    pub fn manifests(&self) -> &[Descriptor] {
        &self.manifests
    }

    /// The entries that carry the tag `name`, as entries of a layout do.
    pub fn named(&self, name: &str) -> Vec<&Descriptor> {
        self.manifests.iter().filter(|entry| entry.ref_name() == Some(name)).collect()
    }

    /// The image for `platform`: the entry of exactly this platform; else the one that is the same once both have their
    /// architecture's default variant (arm64 is v8, arm is v7). Attestations and entries without a platform never match.
    /// Entries that repeat one digest count as one.
    ///
    /// # Errors
    /// [`Error::NoPlatform`], with all candidates, if no entry matches or several different ones do.
    pub fn select(&self, platform: &Platform) -> Result<&Descriptor> {
        let images: Vec<(&Descriptor, &Platform)> = self
            .manifests
            .iter()
            .filter(|entry| !entry.is_attestation())
            .filter_map(|entry| Some((entry, entry.platform.as_ref()?)))
            .collect();
        let exact = images.iter().filter(|(_, candidate)| *candidate == platform);
        let default = images.iter().filter(|(_, candidate)| candidate.is_same_as(platform));
        let mut matches: Vec<&Descriptor> = exact.map(|(entry, _)| *entry).collect();
        if matches.is_empty() {
            matches = default.map(|(entry, _)| *entry).collect();
        }
        match matches.split_first() {
            Some((first, rest)) if rest.iter().all(|entry| entry.digest == first.digest) => Ok(first),
            _ => Err(Error::NoPlatform {
                wanted: platform.clone(),
                candidates: images.into_iter().map(|(_, candidate)| candidate.clone()).collect(),
            }),
        }
    }

    pub(crate) fn from_parts(raw: Raw, manifests: Vec<Descriptor>) -> Self {
        Self { raw, manifests }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("digest", &self.raw.digest).field("manifests", &self.manifests).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{DOCKER_INDEX, DOCKER_MANIFEST, OCI_MANIFEST};

    /// An index with one entry for each platform; an entry's content is its place in the list.
    fn index(platforms: &[&str]) -> Index {
        let entry = |(at, platform): (usize, &&str)| {
            Descriptor::of(OCI_MANIFEST, &[at as u8]).with_platform(Platform::parse(platform).unwrap())
        };
        Index::new(Family::Oci, &platforms.iter().enumerate().map(entry).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn f21_selects_by_rule() {
        for (platforms, wanted, found) in [
            (&["linux/amd64", "linux/arm64/v8"][..], "linux/arm64/v8", Some(1)),
            (&["linux/amd64", "linux/arm64/v8"], "linux/arm64", Some(1)),
            (&["linux/amd64", "linux/arm64"], "linux/arm64/v8", Some(1)),
            (&["linux/arm64/v8", "linux/arm64"], "linux/arm64", Some(1)),
            (&["linux/arm/v6", "linux/arm/v7"], "linux/arm", Some(1)),
            (&["linux/arm/v6"], "linux/arm", None),
            (&["linux/arm/v7"], "linux/arm/v6", None),
            (&["linux/amd64"], "linux/arm64", None),
            (&["windows/amd64"], "linux/amd64", None),
            (&["linux/amd64", "linux/amd64"], "linux/amd64", None),
            (&["unknown/unknown"], "unknown/unknown", None),
            (&[], "linux/amd64", None),
        ] {
            let index = index(platforms);
            let selected = index.select(&Platform::parse(wanted).unwrap()).map(|entry| entry.digest).ok();
            assert_eq!(selected, found.map(|at| Digest::of(&[at])), "{wanted} of {platforms:?}");
        }
    }

    #[test]
    fn a_twin_differs_in_types_and_in_what_they_name() {
        let docker = Descriptor::of(DOCKER_MANIFEST, b"docker").with_platform(Platform::parse("linux/amd64").unwrap());
        let index = Index::annotated(Family::Docker, std::slice::from_ref(&docker), &[("key", "value")]).unwrap();
        let child = Descriptor::of(OCI_MANIFEST, b"its twin");
        let twin = index.to_oci(&BTreeMap::from([(docker.digest, child.clone())])).unwrap();
        assert_eq!(twin.manifests(), [child.with_platform(Platform::parse("linux/amd64").unwrap())]);
        assert_eq!((index.media_type(), twin.media_type()), (DOCKER_INDEX, OCI_INDEX));
        assert!(std::str::from_utf8(twin.bytes()).unwrap().ends_with(r#""annotations":{"key":"value"}}"#));
        let error = index.to_oci(&BTreeMap::new()).unwrap_err().to_string();
        assert!(error.ends_with("manifests[0]: it has no twin"), "{error}");
    }

    #[test]
    fn f17_os_versions_decide_nothing_and_stay() {
        let entries = |os: &str, versions: &[&str]| {
            let entry = |version: &&str| {
                json!({"mediaType": OCI_MANIFEST, "digest": Digest::of(version.as_bytes()), "size": 1,
                    "platform": {"architecture": "amd64", "os": os, "os.version": version, "os.features": ["x"]}})
            };
            let entries: Vec<Value> = versions.iter().map(entry).collect();
            Index::parse(print(&json!({"schemaVersion": 2, "manifests": entries}))).unwrap()
        };
        let select =
            |index: &Index, platform| index.select(&Platform::parse(platform).unwrap()).map(|entry| entry.digest).ok();
        assert_eq!(select(&entries("linux", &["6.1"]), "linux/amd64"), Some(Digest::of(b"6.1")));
        let several = entries("windows", &["10.0.17763.1", "10.0.20348.1"]);
        assert_eq!(select(&several, "windows/amd64"), None);
        let copied = Index::new(Family::Oci, several.manifests()).unwrap();
        assert_eq!(copied.raw.value["manifests"], several.raw.value["manifests"]);
    }

    #[test]
    fn f19_attestations_never_match() {
        let mut entry = Descriptor::of(OCI_MANIFEST, b"x").with_platform(Platform::parse("linux/amd64").unwrap());
        entry.annotations.insert("vnd.docker.reference.type".to_owned(), "attestation-manifest".to_owned());
        let index = Index::new(Family::Docker, &[entry]).unwrap();
        let error = index.select(&Platform::parse("linux/amd64").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "select platform linux/amd64: the index has no image");
    }

    #[test]
    fn a_missing_platform_lists_the_others() {
        let error =
            index(&["linux/amd64", "linux/arm/v6"]).select(&Platform::parse("linux/s390x").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "select platform linux/s390x: the index has linux/amd64, linux/arm/v6");
    }
}
