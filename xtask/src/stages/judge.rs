//! Judging: gives the suite an image with its controls, unpacked, and tells a person what it finds. The verdict itself is the suite's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci::{Digest, ImageConfig, Platform};
use serde::Serialize;
use suite::engine::{Engine, Facts};
use suite::{Event, Job, Namespaces, Outcome, Row, RunConfig, Selection, Subject, Verdict};

use super::base::{FetchedBase, Image, Source};
use super::derived::DerivedImage;
use super::init::{self, StaticProgram};
use super::memo::Memo;
use super::rootfs;
use crate::args::SuiteChoice;
use crate::plan::{Plan, PlannedImage};
use crate::progress::Progress;
use crate::session::Session;
use crate::spec::ImageSpec;
use crate::tools;

/// What decides a verdict. Where it is the same, the verdict is.
#[derive(Serialize)]
struct Inputs<'a> {
    fixed: Digest,
    published: Digest,
    bare: Digest,
    selection: &'a Selection,
    tini: Digest,
    probe: Digest,
    place: &'a Facts,
    code: &'static str,
}

/// What is known of one platform of an image.
#[derive(Debug, Clone)]
pub enum Judgement {
    /// What the suite found.
    Judged(Box<Verdict>),
    /// Why the suite was not asked.
    Unjudged(String),
}

/// Judges every platform of an image that this machine can run. Error: a missing tool, an engine that does not start, or the
/// interrupt; what goes wrong later is in the verdict.
pub fn stage(
    image: &PlannedImage,
    base: &FetchedBase,
    derived: &DerivedImage,
    plan: &Plan,
    session: &Session,
) -> Result<BTreeMap<Platform, Judgement>> {
    let mut judgements = BTreeMap::new();
    for (platform, fixed) in &derived.platforms {
        let judgement = match plan.judges(platform) {
            Err(reason) => {
                if plan.suite != SuiteChoice::None {
                    session.progress.note("judge", &image.spec.name, format!("{platform} not judged: {reason}"));
                }
                Judgement::Unjudged(reason)
            }
            Ok(()) => {
                let selection = if plan.suite == SuiteChoice::Full { Selection::Full } else { Selection::Smoke };
                let published = base.images.get(platform).context("judge a platform that was not fetched")?;
                let bare = bare(base, platform)?;
                let (spec, cache, fresh) = (&image.spec, plan.folders.cache.as_path(), plan.fresh);
                let judging = Judging { spec, fixed, published, bare, selection, cache, fresh, session };
                let verdict = judging.verdict().with_context(|| format!("judge {} for {platform}", spec.name))?;
                Judgement::Judged(Box::new(verdict))
            }
        };
        judgements.insert(platform.clone(), judgement);
    }
    Ok(judgements)
}

/// Judges an image that was published, on a base that was: by everything that applies to it. A verdict that stands in `cache` for the same
/// digests is taken, but not where it is to be `fresh`. Error: as [`stage`]'s.
pub fn published(
    spec: &ImageSpec,
    (fixed, base): (&Image, &Image),
    (cache, fresh): (&Path, bool),
    session: &Session,
) -> Result<Verdict> {
    let selection = Selection::Full;
    let judging = Judging { spec, fixed, published: base, bare: base, selection, cache, fresh, session };
    judging.verdict().with_context(|| format!("judge {}", spec.name))
}

/// The image in which nothing reaps: the stand-in's old flavour, or the base itself, whose docker-init is then covered.
fn bare<'a>(base: &'a FetchedBase, platform: &Platform) -> Result<&'a Image> {
    let found = match &base.source {
        Source::Registry(_) | Source::Scratch => base.images.get(platform),
        Source::Standin { bare, .. } => bare.get(platform),
    };
    found.context("judge a platform that was not fetched")
}

/// One platform of one image, and what it is judged with.
struct Judging<'a> {
    spec: &'a ImageSpec,
    fixed: &'a Image,
    published: &'a Image,
    bare: &'a Image,
    selection: Selection,
    cache: &'a Path,
    /// No verdict that was found before counts.
    fresh: bool,
    session: &'a Session,
}

impl Judging<'_> {
    fn verdict(&self) -> Result<Verdict> {
        let Session { facts, progress, interrupt } = self.session;
        let probe = init::build_probe(&facts.root, &facts.host)?;
        let tini = tools::require("tini-static")?;
        let scratch = self.cache.join("suite");
        fs::create_dir_all(&scratch).with_context(|| format!("make {}", scratch.display()))?;
        let engine = Namespaces::new(&probe.path, &scratch, interrupt.clone())?;
        for swept in engine.swept() {
            progress.note("judge", &self.spec.name, format!("removed what a killed run had left: {}", swept.display()));
        }
        let place = engine.facts();
        let inputs = Inputs {
            fixed: self.fixed.manifest.digest(),
            published: self.published.manifest.digest(),
            bare: self.bare.manifest.digest(),
            selection: &self.selection,
            tini: Digest::of(&fs::read(&tini).with_context(|| format!("read {}", tini.display()))?),
            probe: probe.digest,
            place: &place,
            code: env!("JUDGING_CODE"),
        };
        let memo = Memo::new(self.cache, "judge");
        let stage = progress.stage("judge", &self.spec.name);
        if !self.fresh
            && let Some(before) = memo.get::<Verdict>(&inputs)?
        {
            stage.done(format!("{}: judged before with the same inputs (--fresh judges again)", before.outcome));
            before.rows.iter().filter(|row| row.outcome != Outcome::Passed).for_each(|row| show(row, progress));
            return Ok(before);
        }
        stage.doing("unpacking the image and its controls");
        let job = self.job(&probe, tini, scratch)?;
        let mut scenarios = 0;
        let verdict = suite::judge(&engine, &job, interrupt, &mut |event| match event {
            Event::Planned { scenarios: planned, .. } => scenarios = planned,
            Event::Leg { scenario, case, leg, .. } => stage.doing(format!("{scenario}, {case}: {leg}")),
            Event::Row(row) => show(row, progress),
            Event::Left(left) => progress.detail(format!("left behind: {left}")),
        })?;
        stage.done(format!(
            "{}: {scenarios} scenarios; {}, kernel {}, cgroup {}",
            verdict.outcome, place.engine, place.kernel, place.cgroup
        ));
        // What could not be judged may be judged tomorrow; a verdict stands.
        if matches!(verdict.outcome, Outcome::Passed | Outcome::Failed) {
            memo.put(&inputs, &verdict)?;
        }
        Ok(verdict)
    }

    fn job(&self, probe: &StaticProgram, tini: PathBuf, scratch: PathBuf) -> Result<Job> {
        let image = self.spec.runs.kind();
        let mut bare = self.subject("bare", self.bare)?;
        if self.bare.manifest.digest() == self.published.manifest.digest() {
            bare.shadow = docker_init(&bare.rootfs, self.bare.config.path());
        }
        Ok(Job {
            image,
            bare,
            published: self.subject("published", self.published)?,
            fixed: self.subject(&self.spec.name, self.fixed)?,
            tini,
            probe: probe.path.clone(),
            selection: self.selection.clone(),
            scratch,
        })
    }

    fn subject(&self, name: &str, image: &Image) -> Result<Subject> {
        Ok(Subject {
            name: name.to_owned(),
            digest: image.manifest.digest(),
            rootfs: rootfs::unpacked(image, self.cache, &self.session.interrupt)?,
            config: run_config(&image.config),
            shadow: Vec::new(),
        })
    }
}

/// Where the image has docker-init, which must not reap in the leg in which nothing may.
fn docker_init(rootfs: &Path, path: Option<&str>) -> Vec<PathBuf> {
    let folders = path.unwrap_or_default().split(':').filter(|folder| folder.starts_with('/'));
    let candidates = folders.map(|folder| Path::new(folder).join("docker-init"));
    candidates.filter(|candidate| rootfs.join(candidate.strip_prefix("/").unwrap_or(candidate)).is_file()).collect()
}

fn run_config(config: &ImageConfig) -> RunConfig {
    let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
    RunConfig {
        entrypoint: owned(config.entrypoint()),
        cmd: owned(config.cmd()),
        env: owned(config.env()),
        working_dir: config.working_dir().to_owned(),
        user: config.user().to_owned(),
        volumes: config.volumes().into_iter().map(PathBuf::from).collect(),
        stop_signal: config.stop_signal().unwrap_or_default().to_owned(),
    }
}

/// One line for a row: what was done, what each leg left, and, where it is no pass, why.
fn show(row: &Row, progress: &Progress) {
    let legs = row.legs.iter().map(|leg| match (leg.zombies, &leg.fault) {
        (Some(1), _) => format!("{} 1 zombie", leg.leg),
        (Some(zombies), _) => format!("{} {zombies} zombies", leg.leg),
        (None, Some(_)) => format!("{} -", leg.leg),
        (None, None) => format!("{} ok", leg.leg),
    });
    let what = format!("{}, {}", row.scenario, row.case);
    progress.detail(format!("{what:<52} {}", legs.collect::<Vec<_>>().join("   ")));
    if row.outcome != Outcome::Passed {
        progress.detail(format!("  {}: {}", row.outcome, row.reason));
    }
}
