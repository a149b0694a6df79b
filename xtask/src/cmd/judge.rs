//! `judge`: pulls what a record says was published, with its base, and judges what came. Every byte is pulled, whatever lies in a cache; a
//! verdict that this machine has of the same digests stands.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use oci::{Client, Digest, Document, ImageConfig, Layout, Platform, Reference, Repository};
use suite::Outcome as Verdict;

use super::Outcome;
use crate::args;
use crate::plan::{cache, definitions_folder, select};
use crate::progress::Stage;
use crate::record::{ImageRecord, Record, SourceRecord};
use crate::session::{Session, print};
use crate::shared::{take_turn, write_whole};
use crate::spec::{ImageSpec, read_definitions};
use crate::stages::base::Image;
use crate::stages::judge;

/// Judges this machine's platform of every image, writes the verdicts into the records, and prints `IMAGE@DIGEST PLATFORM OUTCOME` lines.
pub(super) fn run(args: &args::Judge, session: &Session) -> Result<Outcome> {
    let uid = rustix::process::geteuid();
    ensure!(uid.is_root(), "judge images: expected root, found uid {}\nhint: run it as root", uid.as_raw());
    let specs = read_definitions(&definitions_folder(None, &session.facts))?;
    let client = args.registries.client(session)?;
    let cache = cache(&session.facts);
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let _turn = take_turn(&cache.join("lock"), &session.interrupt, &mut || {
        session.progress.note("waiting", cache.display(), "for another run that uses this cache");
    })?;
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
    let host = session.facts.host.with_default_variant();
    let found = image.platforms.iter_mut().find(|(platform, _)| platform.with_default_variant() == host);
    let (platform, record) =
        found.with_context(|| format!("judge {}: expected {host} in the record, found other platforms", image.name))?;
    ensure!(
        image.base.source == SourceRecord::Registry,
        "judge {}: expected a base from a registry, found {}, which is in none",
        image.name,
        image.base.name
    );
    let at = image.published.as_ref().with_context(|| format!("judge {}: it was not published", image.name))?;
    let at = Repository::parse(&at.repository)?;
    let cache = cache(&session.facts);
    let folder = tempfile::Builder::new().prefix("pulled-").tempdir_in(&cache).context("make a folder to pull into")?;
    let layout = Layout::open_or_create(folder.path())?;
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
    let base = pull(client, Reference::parse(&image.base.name)?.repository(), &record.base, &layout, &stage)?;
    stage.done(format!("{at}@{child}"));
    let verdict = judge::published(spec, &fixed, &base, &cache, session)?;
    let outcome = verdict.outcome;
    (record.verdict, record.unjudged) = (Some(verdict), None);
    Ok((platform.clone(), outcome))
}

/// Brings every byte of a manifest's image. Error: the registry's, or an index by that digest.
fn pull(client: &Client, from: &Repository, digest: &Digest, layout: &Layout, stage: &Stage<'_>) -> Result<Image> {
    let Document::Manifest(manifest) = client.manifest(from, digest)? else {
        bail!("pull {from}@{digest}: expected an image manifest, found an index");
    };
    let blobs = [manifest.layers(), std::slice::from_ref(manifest.config())].concat();
    client.blobs(from, &blobs, layout, stage).with_context(|| format!("pull {from}@{digest}"))?;
    let config = ImageConfig::parse(layout.bytes(manifest.config())?)?;
    Ok(Image { manifest, config, layout: layout.clone() })
}
