//! The record of a run: `digests.json` for the next tool, `digests.md` for people, `junit.xml` for continuous integration.
//! Its schema is explained in images/README.md. Never decides anything: it writes down what the stages found.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use oci::{Digest, Family, Platform, Reference, Repository};
use serde::{Deserialize, Serialize};
use suite::{Outcome, Verdict};

use crate::progress::size;
use crate::shared::{check_writable, read_text, write_whole};
use crate::spec::{ImageSpec, Runs};
use crate::stages::base::{FetchedBase, Source};
use crate::stages::derived::DerivedImage;
use crate::stages::init::StaticProgram;
use crate::stages::judge::Judgement;

/// More than this is no record.
const RECORD_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Raised whenever a key changes its meaning or goes.
const SCHEMA: u32 = 1;

/// The record's file name.
pub const JSON: &str = "digests.json";
/// The table's file name.
const MARKDOWN: &str = "digests.md";
/// The test cases' file name.
const JUNIT: &str = "junit.xml";

/// What a run built and judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The schema's number.
    pub schema: u32,
    /// The images, sorted by name.
    pub images: Vec<ImageRecord>,
    /// What was promoted under immutable tags, by their full names (`registry.example/dind:20-1`): no other image ever gets one of them. In
    /// `images/digests.json` alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub immutable: BTreeMap<String, Digest>,
    /// The files beside the record.
    pub reports: Reports,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Its name.
    pub name: String,
    /// Its names in its layout.
    pub tags: Vec<String>,
    /// What it runs, and so by which scenarios it is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<Runs>,
    /// Whether its tags move to each new image.
    #[serde(default)]
    pub floating: bool,
    /// The index: what is published and promoted. Of a leg, the index over its own platforms, which is in its layout alone.
    pub digest: Digest,
    /// The media types of the index.
    pub format: Family,
    /// The index in the layout, where it is another one: the OCI twin of an image of Docker's types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Digest>,
    /// When it says that it was made: SOURCE_DATE_EPOCH, its definition's time, or its base's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created: String,
    /// What it was derived from.
    pub base: BaseRecord,
    /// The platforms that its definition lists, as it spells them: an image that lacks one is not whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<Platform>,
    /// The platforms that were built.
    pub platforms: BTreeMap<Platform, PlatformRecord>,
    /// Where it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Publication>,
}

/// Where an image was published: the index under the image's tags, or, by `--push-by-digest`, each manifest under a tag that keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// The repository.
    pub repository: String,
    /// The tags.
    pub tags: Vec<String>,
}

/// A base.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaseRecord {
    /// Its full reference, the stand-in's name, or `scratch`.
    pub name: String,
    /// The base's index, or its manifest where it has no index; none: it is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Where it came from.
    pub source: SourceRecord,
    /// The Debian packages of a stand-in, as `name=version`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// The attestations of the base's index, which ours leaves out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Digest>,
}

impl BaseRecord {
    /// The name and digest that the image's annotations have; none: it has no base.
    pub fn identity(&self) -> Option<(&str, Digest)> {
        self.digest.map(|digest| (self.name.as_str(), digest))
    }

    /// The repository that it was pulled from; none of a stand-in or of nothing. Error: the name is no reference.
    pub fn repository(&self) -> Result<Option<Repository>> {
        match self.source {
            SourceRecord::Registry => Ok(Some(Reference::parse(&self.name)?.repository().clone())),
            SourceRecord::Standin | SourceRecord::Scratch => Ok(None),
        }
    }
}

/// Where a base came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceRecord {
    /// A registry.
    Registry,
    /// Debian's packages: such an image is not for publishing.
    Standin,
    /// Nowhere: the image is the init alone.
    Scratch,
}

/// One platform of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlatformRecord {
    /// The manifest: what was judged.
    pub digest: Digest,
    /// Its media types, where they are not the index's: the base was mixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Family>,
    /// The configuration.
    pub config: Digest,
    /// Bytes of configuration and layers, as a registry stores them.
    pub size: u64,
    /// The base's manifest; none: it has no base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Digest>,
    /// The init in the layer.
    pub init: InitRecord,
    /// The suite's verdict; none: it was not asked, and `unjudged` says why.
    pub verdict: Option<Verdict>,
    /// Why the suite was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unjudged: Option<String>,
}

/// An init.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InitRecord {
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Its bytes.
    pub size: u64,
}

/// The files beside the record, relative to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reports {
    /// The table of digests.
    pub markdown: String,
    /// The test cases.
    pub junit: String,
}

impl PlatformRecord {
    /// The verdict in words.
    fn said(&self) -> String {
        match (&self.verdict, &self.unjudged) {
            (Some(verdict), _) => verdict.outcome.to_string(),
            (None, reason) => format!("not judged ({})", reason.as_deref().unwrap_or("no reason recorded")),
        }
    }
}

impl ImageRecord {
    /// Whether every platform was judged and passed, and the proof is for the very manifest that is recorded.
    pub fn passed(&self) -> bool {
        self.platforms.values().all(|platform| {
            let proof = platform.verdict.as_ref().and_then(Verdict::passed);
            proof.is_some_and(|passed| passed.digest() == platform.digest)
        })
    }

    /// Whether the suite was asked for any platform.
    pub fn was_judged(&self) -> bool {
        self.platforms.values().any(|platform| platform.verdict.is_some())
    }

    /// The platforms' outcomes; none: the suite was not asked.
    pub fn outcomes(&self) -> impl Iterator<Item = Option<Outcome>> + Clone {
        self.platforms.values().map(|platform| platform.verdict.as_ref().map(|verdict| verdict.outcome))
    }

    /// Puts down one image.
    pub fn new(
        spec: &ImageSpec,
        base: &FetchedBase,
        derived: &DerivedImage,
        inits: &BTreeMap<Platform, StaticProgram>,
        mut judgements: BTreeMap<Platform, Judgement>,
    ) -> Result<Self> {
        let (source, packages) = match &base.source {
            Source::Registry(_) => (SourceRecord::Registry, Vec::new()),
            Source::Standin { packages, .. } => (SourceRecord::Standin, packages.clone()),
            Source::Scratch => (SourceRecord::Scratch, Vec::new()),
        };
        let platforms = derived.platforms.iter().map(|(platform, image)| {
            let (init, from) =
                inits.get(platform).zip(base.images.get(platform)).context("record a platform that was not built")?;
            let (verdict, unjudged) =
                match judgements.remove(platform).context("record a platform that was not judged")? {
                    Judgement::Judged(verdict) => (Some(*verdict), None),
                    Judgement::Unjudged(reason) => (None, Some(reason)),
                };
            let record = PlatformRecord {
                digest: image.manifest.digest(),
                format: Some(image.manifest.family()).filter(|own| *own != derived.index.family()),
                config: image.config.digest(),
                size: image.manifest.blobs().map(|blob| blob.size).sum(),
                base: base.digest.map(|_| from.manifest.digest()),
                init: InitRecord { sha256: init.digest.hex(), size: init.size },
                verdict,
                unjudged,
            };
            Ok((platform.clone(), record))
        });
        Ok(Self {
            name: spec.name.clone(),
            tags: spec.tags.clone(),
            runs: Some(spec.runs),
            floating: spec.floating,
            digest: derived.index.digest(),
            format: derived.index.family(),
            layout: Some(derived.local.digest).filter(|local| *local != derived.index.digest()),
            created: derived
                .platforms
                .values()
                .find_map(|image| image.config.created())
                .map_or_else(String::new, |time| time.to_string()),
            base: BaseRecord {
                name: base.name.clone(),
                digest: base.digest,
                source,
                packages,
                left_out: base.left_out.clone(),
            },
            listed: spec.platforms.clone(),
            platforms: platforms.collect::<Result<_>>()?,
            published: None,
        })
    }
}

impl Record {
    /// A record of these images.
    pub fn new(images: Vec<ImageRecord>) -> Self {
        let reports = Reports { markdown: MARKDOWN.to_owned(), junit: JUNIT.to_owned() };
        Self { schema: SCHEMA, images, immutable: BTreeMap::new(), reports }
    }

    /// Reads a record. Error: it is none, of another schema, or too large.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path, RECORD_BYTES_MAX)
            .context("find a record\nhint: cargo xtask build-images writes one, digests.json below --out")?;
        Self::parse(&text, &path.display())
    }

    /// Parses a record, which messages call by the name of its `place`. Error: as [`Self::read`]; a doubled key is none of a record's.
    pub fn parse(text: &str, place: &dyn Display) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_str(text).with_context(|| format!("read record {place}"))?;
        let schema = &value["schema"];
        ensure!(*schema == SCHEMA, "read record {place}: expected schema {SCHEMA}, found {schema}");
        // The text once more: of a doubled key, the value above has kept the last one.
        serde_json::from_str(text).with_context(|| format!("read record {place}"))
    }

    /// The record as JSON, with a last newline.
    pub fn json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).context("print the record")?;
        text.push('\n');
        Ok(text)
    }

    /// Writes the record and its reports below `out`, the record last. Their names are ours, whatever a record that was read says.
    pub fn write(&self, out: &Path) -> Result<()> {
        let platforms = self.images.iter().flat_map(|image| image.platforms.values());
        let verdicts: Vec<_> = platforms.filter_map(|platform| platform.verdict.clone()).collect();
        write_whole(&out.join(JUNIT), suite::junit(&verdicts)?.as_bytes())?;
        write_whole(&out.join(MARKDOWN), self.markdown().as_bytes())?;
        write_whole(&out.join(JSON), self.json()?.as_bytes())
    }

    /// Error: [`Self::write`] could not write below `out`. What is published and cannot be recorded is lost: this comes first.
    pub fn check_place(out: &Path) -> Result<()> {
        [JUNIT, MARKDOWN, JSON].iter().try_for_each(|name| check_writable(&out.join(name)))
    }

    /// The table of digests: one line for each platform of each image.
    pub fn markdown(&self) -> String {
        let mut text =
            "| image | tags | index | platform | verdict | size | init | base | manifest |\n|---|---|---|---|---|---|---|---|---|\n".to_owned();
        for image in &self.images {
            for (platform, record) in &image.platforms {
                let base = match image.base.source {
                    SourceRecord::Registry | SourceRecord::Scratch => image.base.name.clone(),
                    SourceRecord::Standin => format!("{} (not for publishing)", image.base.name),
                };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "| {} | {} | `{}` | {platform} | {} | {} | {} | {base} | `{}` |",
                    image.name,
                    image.tags.join(", "),
                    image.digest,
                    record.said(),
                    size(record.size),
                    size(record.init.size),
                    record.digest
                );
            }
        }
        text
    }
}
