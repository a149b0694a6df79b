//! `images/promotion.yaml`: which images users get, by digest and tag. Declares and checks; never asks a registry.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use oci::{Digest, Repository};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_yaml::Value;

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
    /// Reads and checks a promotion file. Error: as [`Declaration::read`]'s, or the first image's of which the file is wrong.
    pub fn read(path: &Path) -> Result<Self> {
        let Declaration { source, target, images } = Declaration::read(path)?;
        let images = images.into_iter().map(|(name, image)| Ok((name, image?))).collect::<Result<_>>()?;
        Ok(Self { source: source.to_string(), target: target.to_string(), images })
    }

    /// What was promoted under immutable tags, by their full names: what `before` has of them, and what is declared here. Error: such a tag
    /// is declared to name another image, whatever its class is now.
    pub fn immutable(&self, before: &BTreeMap<String, Digest>) -> Result<BTreeMap<String, Digest>> {
        let target = Repository::parse(&self.target).context("target")?;
        let mut all = before.clone();
        for image in self.images.values() {
            for (tag, class) in &image.tags {
                let name = target.tagged(tag)?.to_string();
                match before.get(&name) {
                    Some(found) => ensure!(
                        *found == image.digest,
                        "move tag {name}: it was immutable before; expected {}, found {found}\n\
                         hint: an immutable tag never moves: promote under a new one",
                        image.digest
                    ),
                    None if *class == Class::Immutable => drop(all.insert(name, image.digest)),
                    None => {}
                }
            }
        }
        Ok(all)
    }
}

/// A promotion file as it was read: each image, or what is wrong with it.
#[derive(Debug)]
pub struct Declaration {
    /// Where images are taken from.
    pub source: Repository,
    /// Where they go.
    pub target: Repository,
    /// The images by name.
    pub images: BTreeMap<String, Result<PromotedImage>>,
}

/// A promotion file of which no image has been read.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    source: String,
    target: String,
    images: Option<BTreeMap<String, Value>>,
}

impl Declaration {
    /// Reads and checks a promotion file. What is wrong with one image (a malformed digest, a tag without a class, an unknown key) is found in
    /// its place. Error: what concerns them all: no YAML, an unknown or doubled key, a name that is none, a tag under two images, a
    /// repository that is none, one repository as both.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path, PROMOTION_BYTES_MAX)?;
        let written: Written = yaml::parse(&text).with_context(|| format!("read promotion file {}", path.display()))?;
        Self::check(written, path).with_context(|| format!("check promotion file {}", path.display()))
    }

    fn check(written: Written, path: &Path) -> Result<Self> {
        let source = repository("source", &written.source)?;
        let target = repository("target", &written.target)?;
        ensure!(source != target, "expected two repositories, found {source} as source and target");
        let images = written.images.context("images: expected images by name, or {} for none; found nothing")?;
        let mut declared = BTreeMap::new();
        let mut owners: BTreeMap<String, String> = BTreeMap::new();
        for (name, image) in images {
            ensure!(
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "images: expected a name of lower-case letters, digits and `-`, found {name:?}"
            );
            let image = image_of(&image, &target);
            for tag in image.iter().flat_map(|image| image.tags.keys()) {
                if let Some(owner) = owners.insert(tag.clone(), name.clone()) {
                    bail!("images.{name}.tags: expected `{tag}` under one image, found it under {owner} too");
                }
            }
            let image = image.with_context(|| format!("read promotion file {}: images.{name}", path.display()));
            declared.insert(name, image);
        }
        Ok(Self { source, target, images: declared })
    }
}

/// The error never shows what was written before an `@`, which may be a password.
fn repository(key: &str, text: &str) -> Result<Repository> {
    ensure!(
        !text.contains('@'),
        "{key}: expected [HOST[:PORT]/]PATH, found a text with `@`\n\
         hint: leave out a digest or password; docker login HOST keeps the one that is used"
    );
    Repository::parse(text).with_context(|| key.to_owned())
}

fn image_of(written: &Value, target: &Repository) -> Result<PromotedImage> {
    // Of a class that is no text, the parser would speak in names of its own.
    let tags = written.get("tags").and_then(Value::as_mapping).into_iter().flatten();
    let mut unclassed = tags.filter(|(_, class)| !class.is_string()).filter_map(|(tag, _)| tag.as_str());
    if let Some(tag) = unclassed.next() {
        bail!("tags: expected a class (immutable or floating) of {tag:?}, found none");
    }
    let image: PromotedImage = yaml::part(written)?;
    ensure!(!image.tags.is_empty(), "tags: expected at least one tag, found none");
    for tag in image.tags.keys() {
        target.tagged(tag).context("tags")?;
    }
    Ok(image)
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
    fn an_image_that_is_wrong_leaves_the_others() {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join(PROMOTION_FILE);
        let text = format!(
            "\u{feff}source: r.example/staging\ntarget: r.example/dind\nimages:\n  bad: {{ digset: {DIGEST}, tags: {{ a: floating }} }}\n  \
             good: {{ digest: {DIGEST}, tags: {{ b: floating }} }}\n"
        );
        std::fs::write(&path, text).expect("write");
        let declared = Declaration::read(&path).expect("read");
        let error = format!("{:#}", declared.images["bad"].as_ref().expect_err("a typo"));
        assert!(error.contains("promotion.yaml: images.bad: ") && error.contains("digset"), "{error}");
        assert!(declared.images["good"].is_ok());
        Promotion::read(&path).expect_err("one is wrong");
    }

    #[test]
    fn f53_an_immutable_tag_is_remembered() {
        let declared = |class: &str, digest: &str| {
            let image = format!("{{ digest: {digest}, tags: {{ '1': {class}, '2': floating }} }}");
            read(&format!("source: r.example/staging\ntarget: dind\nimages:\n  dind: {image}\n")).expect("read")
        };
        let other = Digest::of(b"other").to_string();
        let first = declared("immutable", DIGEST).immutable(&BTreeMap::new()).expect("new");
        assert_eq!(first.keys().map(String::as_str).collect::<Vec<_>>(), ["docker.io/library/dind:1"]);
        for class in ["immutable", "floating"] {
            assert_eq!(declared(class, DIGEST).immutable(&first).expect("the same"), first);
            let error = declared(class, &other).immutable(&first).expect_err("it moves").to_string();
            assert!(error.starts_with("move tag docker.io/library/dind:1: it was immutable before; "), "{error}");
        }
        let gone = Promotion { images: BTreeMap::new(), ..declared("floating", &other) };
        assert_eq!(gone.immutable(&first).expect("nothing is declared"), first);
    }

    #[test]
    fn bad_files_are_one_clear_error() {
        let head = "source: r.example/staging\ntarget: r.example/dind\n";
        let dind = "  dind: { digest: DIGEST, tags: { a: floating } }\n";
        for (text, why) in [
            ("source: r.example/staging\nimages: {}\n".to_owned(), "target"),
            (format!("{head}images:\n"), "images: expected images by name, or {} for none; found nothing"),
            (head.to_owned(), "found nothing"),
            (
                format!("source: r.example/dind\ntarget: r.example/dind\nimages:\n{dind}"),
                "found r.example/dind as source and target",
            ),
            (
                format!("source: it:pa55@r.example/staging\ntarget: r.example/dind\nimages:\n{dind}"),
                "found a text with `@`\nhint: leave out",
            ),
            (
                format!("{head}images:\n  \"\\e[31mred\": {{ digest: DIGEST, tags: {{ a: floating }} }}\n"),
                "found \"\\u{1b}[31mred\"",
            ),
            (
                format!("{head}images:\n  \"di|nd\\n\": {{ digest: DIGEST, tags: {{ a: floating }} }}\n"),
                "found \"di|nd\\n\"",
            ),
            (format!("{head}images:\n  '': {{ digest: DIGEST, tags: {{ a: floating }} }}\n"), "found \"\""),
            (
                format!("{head}images:\n  dind: {{ digest: DIGEST, tags: {{ 20.10: floating }} }}\n"),
                "found the YAML value 20.1\nhint: put it in quotes",
            ),
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
            assert!(!error.contains("pa55") && !error.contains('\u{1b}'), "{error}");
        }
    }
}
