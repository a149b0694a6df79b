//! `bench`: what the pipeline costs, beside the tools that do the same and as the number of images grows, and what the init costs beside others. The tables are data; they say
//! what was measured, and decide nothing.

use std::path::Path;

use anyhow::{Context, Result, bail};
use oci::{Client, Document, Layout, Options, Platform, Repository, Tagged};

use super::{Outcome, require_root};
use crate::args::{Bench, BenchInit, Benchmark, ORPHANS, ROUNDS, SAMPLES};
use crate::bench::scale::Scale;
use crate::bench::{Contest, PHASES, Phase, init::Bench as Inits, init::peers, table};
use crate::elf;
use crate::progress::size;
use crate::session::{Session, print};
use crate::stages::init;

/// The numbers of images of the curve.
const IMAGES: [usize; 4] = [10, 50, 100, 200];
/// In memory: what many small files cost on a disk is not the pipeline's doing.
const MEMORY: &str = "/dev/shm";

/// Runs one benchmark, or all of them.
pub(super) fn run(args: &Bench, session: &Session) -> Result<Outcome> {
    match &args.benchmark {
        Some(Benchmark::Registry { samples }) => registry(*samples, session)?,
        Some(Benchmark::Scale) => scale(session)?,
        Some(Benchmark::Init(args)) if args.size => init_size(session)?,
        Some(Benchmark::Init(args)) => inits(args, session)?,
        Some(Benchmark::Pull { from, into }) => pull(from, into)?,
        None => {
            registry(SAMPLES, session)?;
            scale(session)?;
            inits(&BenchInit { rounds: ROUNDS, orphans: ORPHANS, json: false, size: false, init: None }, session)?;
        }
    }
    Ok(Outcome::Done)
}

fn registry(samples: u32, session: &Session) -> Result<()> {
    let parent = session.facts.root.join("target/bench");
    std::fs::create_dir_all(&parent).with_context(|| format!("make {}", parent.display()))?;
    let folder = tempfile::tempdir_in(&parent).context("make a folder")?;
    let init = init::stage(&Platform::parse("linux/amd64")?, session)?;
    let stage = session.progress.stage("bench", "registry");
    stage.doing("filling a registry");
    let mut contest = Contest::open(folder.path())?;
    let program = std::env::current_exe().context("find this program")?;
    let rows = contest.publish(&program, &init.path, samples, &session.interrupt, &mut |doing| stage.doing(doing))?;
    stage.doing("pulling");
    let pulls = contest.pull(&program, samples, &session.interrupt)?;
    let base = size(contest.base_size());
    for (number, phase) in PHASES.into_iter().enumerate() {
        let what = match phase {
            Phase::First => "derived and published, one platform, nothing cached",
            Phase::Changed => "another image on the same base",
            Phase::Again => "the same once more, nothing to do",
        };
        let title = format!("{}: {what} (base of 14 layers, {base}; medians of {samples})", phase.name());
        print(&table::costs(&title, &rows, number))?;
    }
    print(&table::costs(&format!("pull: the whole base into a layout ({base}; medians of {samples})"), &pulls, 0))?;
    stage.done(format!("{} contestants, {samples} samples", rows.len()));
    Ok(())
}

fn scale(session: &Session) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(MEMORY).context("make a folder in memory")?;
    let stage = session.progress.stage("bench", "scale");
    let mut scale = Scale::open(folder.path())?;
    let program = std::env::current_exe().context("find this program")?;
    let mut figures = Vec::new();
    for images in IMAGES {
        stage.doing(format!("{images} images"));
        figures.push(scale.run(&program, images, &session.interrupt)?);
    }
    print(&table::curve("scale: images on one base, four platforms each, built and published", &figures))?;
    stage.done(format!("{IMAGES:?} images"));
    Ok(())
}

/// The init beside others.
fn inits(args: &BenchInit, session: &Session) -> Result<()> {
    let peers = peers()?;
    require_root()?;
    let (root, host) = (&session.facts.root, &session.facts.host);
    let init = match &args.init {
        Some(file) => session.facts.cwd.join(file),
        None => init::stage(host, session)?.path,
    };
    let probe = init::stage_probe(root, host, &session.progress)?;
    let stage = session.progress.stage("bench", "init");
    let bench = Inits::new(&init, peers, &probe.path, args.orphans);
    let report = bench.run(args.rounds, &session.interrupt, &mut |doing| stage.doing(doing))?;
    if args.json {
        let text = serde_json::to_string_pretty(&report).context("write the figures as JSON")?;
        print(&format!("{text}\n"))?;
    } else {
        print(&format!("{} rounds; least/middle/most, ratios of the middle\n{}\n\n", report.rounds, report.machine))?;
        report.groups.iter().try_for_each(|group| print(&table::inits(group)))?;
    }
    stage.done(format!("{} rounds, storms of {} orphans", report.rounds, report.orphans));
    Ok(())
}

/// Where the init's bytes are.
fn init_size(session: &Session) -> Result<()> {
    let host = &session.facts.host;
    let [shipped, named] = init::build_named(host, session)?;
    let title = format!("the init for {host}");
    print(&table::symbols(&title, &elf::sections(&named.path)?, shipped.size))
}

/// Pulls an image whole, as a process of its own: what is measured beside skopeo.
fn pull(from: &str, into: &Path) -> Result<()> {
    let tagged = Tagged::parse(from)?;
    let repository: &Repository = &tagged.repository;
    let client = Client::new(Options::default())?;
    let layout = Layout::open_or_create(into)?;
    let Document::Index(index) = client.resolve(&tagged)? else { bail!("pull {tagged}: expected an index") };
    for child in index.manifests() {
        let Document::Manifest(manifest) = client.manifest(repository, &child.digest)? else {
            bail!("pull {tagged}: expected a manifest, found an index in the index")
        };
        layout.put(manifest.media_type(), manifest.bytes())?;
        let blobs = manifest.blobs().cloned().collect::<Vec<_>>();
        client.blobs(repository, &blobs, &layout, &oci::Silent)?;
    }
    layout.write_index(index.manifests())?;
    Ok(())
}
