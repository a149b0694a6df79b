//! `images/promotion.yaml`: which images users get, by digest and tag. Declares and checks; never asks a registry.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use oci::{Digest, Repository};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::read_text;
use crate::yaml;

/// The file's name in the folder of the image definitions.
pub const PROMOTION_FILE: &str = "promotion.yaml";

/// More than this is no promotion file.
const PROMOTION_BYTES_MAX: u64 = 1024 * 1024;

/// What is promoted, from where to where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Promotion {
    /// The repository that images are taken from: where `build-images --push` or `merge` put them.
    pub source: String,
    /// The repository that users pull from.
    pub target: String,
    /// The images, by the names of their definitions.
    pub images: BTreeMap<String, PromotedImage>,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromotedImage {
    /// The digest of its index, as its record has it.
    #[schemars(with = "String")]
    pub digest: Digest,
    /// Its tags, each with its class.
    pub tags: BTreeMap<String, Class>,
}

/// What a tag promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// It names one image for ever.
    Immutable,
    /// It moves to newer images, when told so.
    Floating,
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Immutable => "immutable",
            Self::Floating => "floating",
        })
    }
}

impl Promotion {
    /// Reads and checks a promotion file. Error: an unknown or doubled key, a malformed digest, a tag without a class or under two
    /// images, a repository that is none.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path, PROMOTION_BYTES_MAX)?;
        let promotion: Self = yaml::parse(&text).with_context(|| format!("read promotion file {}", path.display()))?;
        promotion.check().with_context(|| format!("check promotion file {}", path.display()))?;
        Ok(promotion)
    }

    /// Where images are taken from; [`Self::read`] has checked it.
    pub fn source(&self) -> Result<Repository> {
        Repository::parse(&self.source).context("source")
    }

    /// Where images go; [`Self::read`] has checked it.
    pub fn target(&self) -> Result<Repository> {
        Repository::parse(&self.target).context("target")
    }

    fn check(&self) -> Result<()> {
        self.source()?;
        let target = self.target()?;
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, image) in &self.images {
            ensure!(!image.tags.is_empty(), "images.{name}.tags: expected at least one tag, found none");
            for tag in image.tags.keys() {
                target.tagged(tag).with_context(|| format!("images.{name}.tags: read `{tag}`"))?;
                if let Some(owner) = owners.insert(tag, name) {
                    anyhow::bail!("images.{name}.tags: expected `{tag}` under one image, found it under {owner} too");
                }
            }
        }
        Ok(())
    }
}

/// The JSON Schema of the file, as editors read it from `images/promotion.schema.json`.
pub fn json_schema() -> Result<String> {
    let mut text = serde_json::to_string_pretty(&schemars::schema_for!(Promotion)).context("print the JSON Schema")?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    fn read(text: &str) -> Result<Promotion, String> {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join(PROMOTION_FILE);
        std::fs::write(&path, text.replace("DIGEST", DIGEST)).expect("write");
        Promotion::read(&path).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_promotion_names_digests_and_classes() {
        let promotion = read(
            "source: r.example/staging\ntarget: r.example/dind\nimages:\n  dind:\n    digest: DIGEST\n    tags: { 20-dind: floating, 20.10.24-1: immutable }\n",
        )
        .expect("read");
        let dind = &promotion.images["dind"];
        assert_eq!(dind.tags["20-dind"], Class::Floating);
        assert_eq!(dind.tags["20.10.24-1"], Class::Immutable);
        assert_eq!(dind.digest.to_string(), DIGEST);
    }

    #[test]
    fn bad_files_are_one_clear_error() {
        let head = "source: r.example/staging\ntarget: r.example/dind\n";
        let dind = "  dind: { digest: DIGEST, tags: { a: floating } }\n";
        for (text, why) in [
            ("source: r.example/staging\nimages: {}\n".to_owned(), "target"),
            (format!("{head}images:\n{dind}{dind}"), "duplicate"),
            (
                format!("{head}images:\n{dind}  other: {{ digest: DIGEST, tags: {{ a: immutable }} }}\n"),
                "under one image",
            ),
            (
                format!("{head}images:\n  dind: {{ digest: DIGEST, tags: {{ a: floating, a: floating }} }}\n"),
                "duplicate",
            ),
            (format!("{head}images:\n  dind: {{ digest: DIGEST, tags: {{ a: }} }}\n"), "immutable"),
            (format!("{head}images:\n  dind: {{ digest: DIGEST, tags: {{ a: movable }} }}\n"), "movable"),
            (format!("{head}images:\n  dind: {{ digest: DIGEST, tags: {{}} }}\n"), "at least one tag"),
            (format!("{head}images:\n  dind: {{ digest: sha256:12, tags: {{ a: floating }} }}\n"), "sha256:12"),
            (format!("{head}images:\n  dind: {{ digset: DIGEST, tags: {{ a: floating }} }}\n"), "digset"),
            (format!("{head}images:\n  dind: {{ digest: DIGEST, tags: {{ 'a b': floating }} }}\n"), "a b"),
            (format!("source: 'A:b'\ntarget: r.example/dind\nimages:\n{dind}"), "source"),
        ] {
            let error = read(&text).expect_err(why);
            assert!(error.contains(why) && error.contains("promotion.yaml"), "{why}: {error}");
        }
    }
}
