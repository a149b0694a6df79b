//! `judge`: pulls what a record says was published, with its base, and judges what came. Every byte is pulled, whatever lies in a cache; a
//! verdict that this machine has of the same digests stands. With `--push` the verdict goes beside the image, where promotion looks for it.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use oci::{Client, Descriptor, Digest, Document, ImageConfig, Layout, Platform, Repository};
use suite::Outcome as Verdict;

use super::{Outcome, require_root, wait_for_turn};
use crate::args;
use crate::plan::{cache, definitions_folder, select};
use crate::progress::Stage;
use crate::record::{ImageRecord, Record, SourceRecord};
use crate::session::{Session, print};
use crate::shared::write_whole;
use crate::spec::{ImageSpec, read_definitions};
use crate::stages::base::Image;
use crate::stages::carry::scratch;
use crate::stages::{evidence, judge};

/// Judges this machine's platform of every image, writes the verdicts into the records, and prints `IMAGE@DIGEST PLATFORM OUTCOME` lines.
pub(super) fn run(args: &args::Judge, session: &Session) -> Result<Outcome> {
    require_root()?;
    let specs = read_definitions(&definitions_folder(args.definitions.as_deref(), &session.facts))?;
    let client = args.registries.client(session)?;
    let cache = cache(&session.facts);
    let _turn = wait_for_turn(&cache, session)?;
    let judging = Judging { client: &client, cache: &cache, fresh: args.fresh, session };
    let mut outcomes = Vec::new();
    for path in &args.records {
        let path = session.facts.cwd.join(path);
        let mut record = Record::read(&path)?;
        if let Some(to) = &args.push {
            record.images.iter().try_for_each(|image| check_place(image, to))?;
        }
        for at in 0..record.images.len() {
            let image = &mut record.images[at];
            let spec = select(specs.clone(), std::slice::from_ref(&image.name))?.remove(0);
            let judged = judging.image(&spec, image).with_context(|| format!("judge {}", image.name))?;
            print(&format!("{}@{} {} {}\n", image.name, image.digest, judged.platform, judged.outcome))?;
            outcomes.push(judged.outcome);
            // What was found of one image stays, whatever becomes of the next.
            write_whole(&path, record.json()?.as_bytes())?;
            let image = &record.images[at];
            if let Some(to) = &args.push {
                evidence::replace_verdict(image, (&judged.platform, &judged.index), to, &cache, &client)
                    .with_context(|| format!("put the verdict on {} into its record in {to}", image.name))?;
            }
        }
    }
    Ok(if outcomes.contains(&Verdict::Failed) {
        Outcome::ImageFailed
    } else if outcomes.iter().all(|outcome| *outcome == Verdict::Passed) && !outcomes.is_empty() {
        Outcome::Done
    } else {
        Outcome::NotJudged
    })
}

/// A record speaks of an image beside it. Error: the image was published elsewhere, or not at all.
fn check_place(image: &ImageRecord, to: &Repository) -> Result<()> {
    let at = published(image).with_context(|| format!("judge {}", image.name))?;
    ensure!(
        at == *to,
        "judge {}: expected an image that was published to {to}, found one in {at}\nhint: --push {at}",
        image.name
    );
    Ok(())
}

fn published(image: &ImageRecord) -> Result<Repository> {
    let at = image.published.as_ref().context("it was not published")?;
    Ok(Repository::parse(&at.repository)?)
}

/// What came of one image.
struct Judged {
    platform: Platform,
    outcome: Verdict,
    /// What its tags name.
    index: Descriptor,
}

/// How images are judged.
struct Judging<'a> {
    client: &'a Client,
    cache: &'a Path,
    /// No verdict that was found before counts.
    fresh: bool,
    session: &'a Session,
}

impl Judging<'_> {
    /// Pulls one image and its base into a layout that is new, and replaces the verdict of this machine's platform. Error: the record names
    /// no such platform or no place, the registry has something else, or the suite cannot be asked.
    fn image(&self, spec: &ImageSpec, image: &mut ImageRecord) -> Result<Judged> {
        let host = &self.session.facts.host;
        let at = published(image)?;
        let found = image.platforms.iter_mut().find(|(platform, _)| platform.is_same_as(host));
        let (platform, record) =
            found.with_context(|| format!("expected {host} in the record, found other platforms"))?;
        ensure!(
            image.base.source != SourceRecord::Standin,
            "expected a base from a registry, found {}, which is in none",
            image.base.name
        );
        let from = image.base.repository()?;
        let (_folder, layout) = scratch(self.cache)?;
        let stage = self.session.progress.stage("pull", &image.name);
        let document =
            self.client.manifest(&at, &image.digest).with_context(|| format!("pull {at}@{}", image.digest))?;
        let (index, child) = match document {
            Document::Index(index) => (index.descriptor(), index.select(platform)?.digest),
            Document::Manifest(manifest) => (manifest.descriptor(), manifest.digest()),
        };
        ensure!(child == record.digest, "expected {} for {platform} as recorded, found {child} in {at}", record.digest);
        let fixed = self.pull(&at, &child, &layout, &stage)?;
        let base = match (from, record.base) {
            (Some(from), Some(digest)) => self.pull(&from, &digest, &layout, &stage)?,
            (None, None) => Image::empty(platform, &layout)?,
            _ => bail!("expected the digest of a base from a registry and of no other"),
        };
        stage.done(format!("{at}@{child}"));
        let verdict = judge::published(spec, (&fixed, &base), (self.cache, self.fresh), self.session)?;
        let outcome = verdict.outcome;
        (record.verdict, record.unjudged) = (Some(verdict), None);
        Ok(Judged { platform: platform.clone(), outcome, index })
    }

    /// Brings every byte of a manifest's image. Error: the registry's, or an index by that digest.
    fn pull(&self, from: &Repository, digest: &Digest, layout: &Layout, stage: &Stage<'_>) -> Result<Image> {
        let pulling = || format!("pull {from}@{digest}");
        let manifest =
            self.client.manifest(from, digest).with_context(pulling)?.into_manifest().with_context(pulling)?;
        let blobs: Vec<_> = manifest.blobs().cloned().collect();
        self.client.blobs(from, &blobs, layout, stage).with_context(pulling)?;
        let config = ImageConfig::parse(layout.bytes(manifest.config())?)?;
        Ok(Image { manifest, config, layout: layout.clone() })
    }
}
