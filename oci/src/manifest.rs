//! Image manifests of both families, kept as received, and new ones made from them. A parsed document is a view: its bytes
//! stay what they were, and its digest is theirs. Indexes are in [`crate::index`].

use std::fmt;

use serde_json::{Value, json};

use crate::descriptor::{DOCKER_MANIFEST, Descriptor, Family, OCI_MANIFEST};
use crate::digest::Digest;
use crate::document::{Document, Raw, print};
use crate::error::{Error, Result};

/// Largest manifest or index that is read (distribution-spec `spec.md`, section "Pushing Manifests": registries should
/// take 4 MiB).
pub const MANIFEST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// An image for one platform: a config and layers. Spec: image-spec `manifest.md`; Docker's "Image Manifest Version 2,
/// Schema 2".
#[derive(Clone)]
pub struct Manifest {
    raw: Raw,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// A new manifest in the making; see [`Manifest::edit`].
#[derive(Clone, Debug)]
pub struct ManifestEdit {
    value: Value,
}

impl Manifest {
    /// Parses a manifest of either family. The bytes are kept.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above [`MANIFEST_BYTES_MAX`]; [`Error::Document`] if it is no JSON, an index, of schema 1, both
    /// image and index at once, or has a property of the wrong kind.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        match Document::parse(bytes)? {
            Document::Manifest(manifest) => Ok(manifest),
            Document::Index(index) => Err(Error::document(
                format!("manifest {}", index.digest()),
                "expected an image manifest, found an index",
            )),
        }
    }

    /// A new manifest of `config` and `layers`, their types translated to `family`.
    pub fn new(family: Family, config: &Descriptor, layers: &[Descriptor]) -> Self {
        let mut edit = ManifestEdit {
            value: json!({
                "schemaVersion": 2,
                "mediaType": family.name_of(OCI_MANIFEST),
                "config": null,
                "layers": [],
            }),
        };
        edit.config(config);
        edit.replace_layers(layers);
        edit.finish()
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

    /// The family of the manifest itself; what it names may be of the other one.
    pub fn family(&self) -> Family {
        self.raw.family()
    }

    /// Names these bytes.
    pub fn descriptor(&self) -> Descriptor {
        self.raw.descriptor()
    }

    /// The image's config.
    pub fn config(&self) -> &Descriptor {
        &self.config
    }

    /// All that the manifest names: the config, then the layers.
    pub fn blobs(&self) -> impl Iterator<Item = &Descriptor> + Clone {
        std::iter::once(&self.config).chain(&self.layers)
    }

    /// The image's layers, lowest first.
    pub fn layers(&self) -> &[Descriptor] {
        &self.layers
    }

    /// One annotation. Spec: image-spec `annotations.md`.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.raw.value["annotations"][key].as_str()
    }

    /// A new manifest that differs from this one only in what is edited: inherited descriptors stay to the letter, in
    /// their order and with all their properties.
    pub fn edit(&self) -> ManifestEdit {
        ManifestEdit { value: self.raw.value.clone() }
    }

    /// This image under OCI media types, for layouts: same config, same layer blobs. An image that names nothing of
    /// Docker's is returned as it is.
    #[must_use]
    pub fn to_oci(&self) -> Self {
        let all = self.blobs().map(|blob| blob.media_type.as_str());
        if self.family() == Family::Oci
            && all.into_iter().all(|media_type| Family::Oci.name_of(media_type) == media_type)
        {
            return self.clone();
        }
        let mut edit = self.edit();
        edit.family(Family::Oci);
        edit.finish()
    }

    pub(crate) fn from_parts(raw: Raw, config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { raw, config, layers }
    }
}

impl ManifestEdit {
    /// Names the image's config, in the manifest's family.
    pub fn config(&mut self, config: &Descriptor) -> &mut Self {
        self.value["config"] = config.clone().in_family(self.current_family()).to_json();
        self
    }

    /// Adds a layer above all others, in the manifest's family.
    pub fn append_layer(&mut self, layer: &Descriptor) -> &mut Self {
        let layer = layer.clone().in_family(self.current_family()).to_json();
        if let Value::Array(layers) = &mut self.value["layers"] {
            layers.push(layer);
        }
        self
    }

    /// Puts `layers` in the place of all layers.
    pub fn replace_layers(&mut self, layers: &[Descriptor]) -> &mut Self {
        self.value["layers"] = json!([]);
        for layer in layers {
            self.append_layer(layer);
        }
        self
    }

    /// Sets one annotation of the manifest. Spec: image-spec `annotations.md`; Docker's family has none, but keeps them.
    pub fn annotation(&mut self, key: &str, value: &str) -> &mut Self {
        if !self.value["annotations"].is_object() {
            self.value["annotations"] = json!({});
        }
        self.value["annotations"][key] = json!(value);
        self
    }

    /// Keeps of the manifest's annotations only those whose key `keep` wants.
    pub fn retain_annotations(&mut self, keep: impl Fn(&str) -> bool) -> &mut Self {
        if let Some(Value::Object(annotations)) = self.value.get_mut("annotations") {
            annotations.retain(|key, _| keep(key));
        }
        self
    }

    /// Makes the manifest speak of another one, so that a registry lists it among that one's referrers. Spec: image-spec
    /// `manifest.md`, property `subject`.
    pub fn subject(&mut self, subject: &Descriptor) -> &mut Self {
        self.value["subject"] = subject.to_json();
        self
    }

    /// Translates the media types of the manifest and of all that it names. Blobs stay the same.
    pub fn family(&mut self, family: Family) -> &mut Self {
        let translate = |value: &mut Value| {
            if let Some(media_type) = value["mediaType"].as_str() {
                value["mediaType"] = json!(family.name_of(media_type));
            }
        };
        self.value["mediaType"] = json!(family.name_of(OCI_MANIFEST));
        translate(&mut self.value["config"]);
        if let Value::Array(layers) = &mut self.value["layers"] {
            layers.iter_mut().for_each(translate);
        }
        self
    }

    /// The new manifest: compact JSON, keys in the order of the one it came from.
    pub fn finish(&self) -> Manifest {
        match Document::read(print(&self.value)) {
            Ok(Document::Manifest(manifest)) => manifest,
            _ => unreachable!("edits keep a manifest well-formed"),
        }
    }

    fn current_family(&self) -> Family {
        if self.value["mediaType"] == DOCKER_MANIFEST { Family::Docker } else { Family::Oci }
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifest")
            .field("digest", &self.raw.digest)
            .field("layers", &self.layers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{OCI_CONFIG, OCI_INDEX, OCI_LAYER_GZIP};

    fn docker() -> Manifest {
        let json = format!(
            r#"{{
   "schemaVersion": 2,
   "mediaType": "{DOCKER_MANIFEST}",
   "config": {{"mediaType": "application/vnd.docker.container.image.v1+json", "size": 2, "digest": "{}"}},
   "layers": [
      {{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": 1, "digest": "{}", "urls": ["x"]}}
   ],
   "x-unknown": [1, {{"b": 1, "a": 2}}]
}}"#,
            Digest::of(b"{}"),
            Digest::of(b"1")
        );
        Manifest::parse(json.into_bytes()).unwrap()
    }

    #[test]
    fn bytes_stay_as_received() {
        let manifest = docker();
        assert!(manifest.bytes().starts_with(b"{\n   \"schemaVersion\""));
        assert_eq!(manifest.digest(), Digest::of(manifest.bytes()));
        assert_eq!((manifest.family(), manifest.media_type()), (Family::Docker, DOCKER_MANIFEST));
    }

    #[test]
    fn f01_f03_f04_a_new_layer_takes_the_family_of_its_manifest() {
        let layer = Descriptor::of(OCI_LAYER_GZIP, b"2");
        let mut edit = docker().edit();
        let derived = edit.config(&Descriptor::of(OCI_CONFIG, b"{ }")).append_layer(&layer).finish();
        let types: Vec<&str> = derived.layers().iter().map(|layer| layer.media_type.as_str()).collect();
        assert_eq!(types, ["application/vnd.docker.image.rootfs.diff.tar.gzip"; 2]);
        assert_eq!(derived.config().media_type, "application/vnd.docker.container.image.v1+json");
        let text = std::str::from_utf8(derived.bytes()).unwrap();
        assert!(text.contains(r#""urls":["x"]"#) && text.ends_with(r#""x-unknown":[1,{"b":1,"a":2}]}"#), "{text}");
    }

    #[test]
    fn f05_f32_what_docker_gets_is_gzip() {
        let zstd = "application/vnd.oci.image.layer.v1.tar+zstd";
        let mut layers = docker().edit();
        layers.append_layer(&Descriptor::of(OCI_LAYER_GZIP, b"2"));
        assert!(layers.finish().layers()[1].media_type.ends_with(".tar.gzip"));
        // What somebody else compressed otherwise keeps saying so: no type promises gzip for other bytes.
        layers.append_layer(&Descriptor::of(zstd, b"3"));
        assert!(layers.finish().layers()[2].media_type.ends_with(".tar.zstd"));
    }

    #[test]
    fn oci_twins_name_the_same_blobs() {
        let twin = docker().to_oci();
        assert_eq!((twin.family(), twin.config().media_type.as_str()), (Family::Oci, OCI_CONFIG));
        assert_eq!(twin.layers()[0].media_type, OCI_LAYER_GZIP);
        assert_eq!(twin.layers()[0].digest, docker().layers()[0].digest);
        assert_eq!(twin.to_oci().bytes(), twin.bytes());
    }

    #[test]
    fn annotations_are_kept_by_their_keys() {
        let mut edit = docker().edit();
        assert_eq!(edit.retain_annotations(|_| false).finish().bytes(), docker().edit().finish().bytes());
        edit.annotation("a", "1").annotation("b", "2").retain_annotations(|key| key == "b");
        let text = String::from_utf8(edit.finish().bytes().to_vec()).unwrap();
        assert!(text.ends_with(r#""annotations":{"b":"2"}}"#), "{text}");
    }

    #[test]
    fn new_manifests_are_golden() {
        let manifest = Manifest::new(Family::Oci, &Descriptor::of(OCI_CONFIG, b"{}"), &[]);
        expect_test::expect![[r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},"layers":[]}"#]]
            .assert_eq(std::str::from_utf8(manifest.bytes()).unwrap());
    }

    #[test]
    fn refuses_all_else() {
        let config = r#""config":{"mediaType":"a","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2}"#;
        for (bad, why) in [
            (String::new(), "found nothing"),
            ("[]".to_owned(), "JSON object"),
            (r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned(), "schema version 1 is not supported"),
            (r#"{"schemaVersion":3}"#.to_owned(), "schemaVersion"),
            (format!(r#"{{"schemaVersion":2,{config},"layers":[],"manifests":[]}}"#), "index or an image"),
            (format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}",{config},"layers":[]}}"#), "does not fit"),
            (r#"{"schemaVersion":2,"mediaType":"text/html"}"#.to_owned(), r#"found "text/html""#),
            (format!(r#"{{"schemaVersion":2,{config}}}"#), "layers: expected a list"),
            (r#"{"schemaVersion":2,"layers":[]}"#.to_owned(), "config.mediaType: expected a string, found null"),
            (format!(r#"{{"schemaVersion":2,{config},"layers":[{{}}]}}"#), "layers[0].mediaType"),
            (r#"{"schemaVersion":2,"manifests":[]}"#.to_owned(), "found an index"),
        ] {
            let error = Manifest::parse(bad.clone().into_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let large = vec![b' '; MANIFEST_BYTES_MAX as usize + 1];
        assert!(matches!(Manifest::parse(large), Err(Error::TooLarge { .. })));
    }
}
