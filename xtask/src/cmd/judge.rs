//! `judge`: pulls what a record says was published, with its base, and judges what came. Every byte is pulled, whatever lies in a cache; a
//! verdict that this machine has of the same digests stands.

use anyhow::{Context, Result, bail, ensure};
use oci::{Client, Digest, Document, ImageConfig, Layout, Platform, Repository};
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
use crate::stages::judge;

/// Judges this machine's platform of every image, writes the verdicts into the records, and prints `IMAGE@DIGEST PLATFORM OUTCOME` lines.
pub(super) fn run(args: &args::Judge, session: &Session) -> Result<Outcome> {
    require_root()?;
    let specs = read_definitions(&definitions_folder(None, &session.facts))?;
    let client = args.registries.client(session)?;
    let cache = cache(&session.facts);
    let _turn = wait_for_turn(&cache, session)?;
    let mut outcomes = Vec::new();
    for path in &args.records {
        let path = session.facts.cwd.join(path);
        let mut record = Record::read(&path)?;
        for image in &mut record.images {
            let spec = select(specs.clone(), std::slice::from_ref(&image.name))?.remove(0);
            let (platform, outcome) = judge_image(&spec, image, &client, session)?;
            print(&format!("{}@{} {platform} {outcome}\n", image.name, image.digest))?;
            outcomes.push(outcome);
        }
        write_whole(&path, record.json()?.as_bytes())?;
    }
    Ok(if outcomes.contains(&Verdict::Failed) {
        Outcome::ImageFailed
    } else if outcomes.iter().all(|outcome| *outcome == Verdict::Passed) && !outcomes.is_empty() {
        Outcome::Done
    } else {
        Outcome::NotJudged
    })
}

/// Pulls one image and its base into a layout that is new, and replaces the verdict of this machine's platform. Error: the record names no
/// such platform or no place, the registry has something else, or the suite cannot be asked.
fn judge_image(
    spec: &ImageSpec,
    image: &mut ImageRecord,
    client: &Client,
    session: &Session,
) -> Result<(Platform, Verdict)> {
    let host = &session.facts.host;
    let found = image.platforms.iter_mut().find(|(platform, _)| platform.is_same_as(host));
    let (platform, record) =
        found.with_context(|| format!("judge {}: expected {host} in the record, found other platforms", image.name))?;
    let base = &image.base;
    ensure!(
        base.source != SourceRecord::Standin,
        "judge {}: expected a base from a registry, found {}, which is in none",
        image.name,
        base.name
    );
    let at = image.published.as_ref().with_context(|| format!("judge {}: it was not published", image.name))?;
    let at = Repository::parse(&at.repository)?;
    let cache = cache(&session.facts);
    let (_folder, layout) = scratch(&cache)?;
    let stage = session.progress.stage("pull", &image.name);
    let child = match client.manifest(&at, &image.digest)? {
        Document::Index(index) => index.select(platform)?.digest,
        Document::Manifest(manifest) => manifest.digest(),
    };
    ensure!(
        child == record.digest,
        "judge {}: expected {} for {platform} as recorded, found {child} in {at}",
        image.name,
        record.digest
    );
    let fixed = pull(client, &at, &child, &layout, &stage)?;
    let base = match (base.repository()?, record.base) {
        (Some(from), Some(digest)) => pull(client, &from, &digest, &layout, &stage)?,
        (None, None) => Image::empty(platform, &layout)?,
        _ => bail!("judge {}: expected the digest of a base from a registry and of no other", image.name),
    };
    stage.done(format!("{at}@{child}"));
    let verdict = judge::published(spec, &fixed, &base, &cache, session)?;
    let outcome = verdict.outcome;
    (record.verdict, record.unjudged) = (Some(verdict), None);
    Ok((platform.clone(), outcome))
}

/// Brings every byte of a manifest's image. Error: the registry's, or an index by that digest.
fn pull(client: &Client, from: &Repository, digest: &Digest, layout: &Layout, stage: &Stage<'_>) -> Result<Image> {
    let manifest = client.manifest(from, digest)?.into_manifest().with_context(|| format!("pull {from}@{digest}"))?;
    let blobs: Vec<_> = manifest.blobs().cloned().collect();
    client.blobs(from, &blobs, layout, stage).with_context(|| format!("pull {from}@{digest}"))?;
    let config = ImageConfig::parse(layout.bytes(manifest.config())?)?;
    Ok(Image { manifest, config, layout: layout.clone() })
}
