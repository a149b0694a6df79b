//! `build-images`: fetch, build the init, derive, judge, record. Strings the stages together; each decision is in a stage or in the plan.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};

use anyhow::{Context, Result, ensure};
use oci::Platform;
use suite::Outcome as Verdict;

use super::Outcome;
use crate::args::{BuildImages, SuiteChoice};
use crate::plan::{Plan, PlannedImage};
use crate::record::{ImageRecord, Record, SourceRecord};
use crate::session::{Session, print};
use crate::shared::take_turn;
use crate::spec::StandinSpec;
use crate::stages::base::{self, FetchedBase};
use crate::stages::init::{self, StaticProgram};
use crate::stages::{derive, judge};
use crate::tools;

/// Builds and judges the planned images and writes the record; stdout names what passed.
pub(super) fn run(args: &BuildImages, session: &Session) -> Result<Outcome> {
    let plan = Plan::new(args, &session.facts)?;
    if args.plan {
        print(&format!("{}\n", serde_json::to_string_pretty(&plan).context("print the plan")?))?;
        return Ok(Outcome::Done);
    }
    require_root(&plan)?;
    let _turn = wait_for_turn(&plan, session)?;
    let mut bases = BTreeMap::new();
    for image in &plan.images {
        if let Entry::Vacant(vacant) = bases.entry(base_key(image)) {
            vacant.insert(base::fetch(image, &plan, session)?);
        }
    }
    let mut inits = BTreeMap::new();
    for platform in plan.images.iter().flat_map(|image| &image.platforms) {
        if let Entry::Vacant(vacant) = inits.entry(platform.clone()) {
            vacant.insert(init::stage(platform, session)?);
        }
    }
    let mut records = Vec::new();
    for image in &plan.images {
        session.interrupt.check()?;
        records.push(build(image, &bases[&base_key(image)], &inits, &plan, session)?);
    }
    let record = Record::new(records);
    record.write(&plan.folders.out)?;
    report(&record, &plan, args.json, session)
}

/// Images of one base share what was fetched.
fn base_key(image: &PlannedImage) -> (String, StandinSpec, &[Platform]) {
    (image.base.to_string(), image.spec.standin, &image.platforms)
}

fn build(
    image: &PlannedImage,
    base: &FetchedBase,
    inits: &BTreeMap<Platform, StaticProgram>,
    plan: &Plan,
    session: &Session,
) -> Result<ImageRecord> {
    let derived =
        derive::stage(image, base, inits, plan, session).with_context(|| format!("derive {}", image.spec.name))?;
    let judgements = judge::stage(image, base, &derived, plan, session)?;
    ImageRecord::new(&image.spec, base, &derived, inits, judgements)
}

/// Says what came of it, on both streams, and turns it into the command's outcome.
fn report(record: &Record, plan: &Plan, json: bool, session: &Session) -> Result<Outcome> {
    let passed: Vec<_> = record.images.iter().filter(|image| image.passed()).collect();
    if json {
        print(&record.json()?)?;
    } else {
        for image in &passed {
            print(&format!("{}@{}\n", image.name, image.digest))?;
        }
    }
    let standin = record.images.iter().any(|image| image.base.source == SourceRecord::Standin);
    let note = if standin { ", built on a stand-in: not for publishing" } else { "" };
    let count = if plan.suite == SuiteChoice::None {
        format!("{} images, not judged (--suite none)", record.images.len())
    } else {
        format!("{} of {} images passed", passed.len(), record.images.len())
    };
    session.progress.note("recorded", plan.folders.out.join("digests.json").display(), format!("{count}{note}"));
    Ok(outcome(record, plan))
}

/// One failure makes the run fail; else one platform that should have been judged and was not makes it not judged.
fn outcome(record: &Record, plan: &Plan) -> Outcome {
    let mut outcomes = record.images.iter().flat_map(ImageRecord::outcomes);
    if outcomes.clone().any(|outcome| outcome == Some(Verdict::Failed)) {
        Outcome::ImageFailed
    } else if plan.suite == SuiteChoice::None || outcomes.all(|outcome| outcome == Some(Verdict::Passed)) {
        Outcome::Done
    } else {
        Outcome::NotJudged
    }
}

/// Unpacking keeps owners and device nodes, and the engine makes namespaces: both need root. Tools are asked for before the work begins.
fn require_root(plan: &Plan) -> Result<()> {
    let uid = rustix::process::geteuid();
    ensure!(
        uid.is_root(),
        "build images: expected root (to unpack images with their owners, and to run them in namespaces), found uid {}\n\
         hint: run it as root, on a virtual machine if this one is precious",
        uid.as_raw()
    );
    if plan.suite != SuiteChoice::None {
        tools::require("tini-static")?;
    }
    Ok(())
}

/// One run at a time works in a cache; the others wait for it.
fn wait_for_turn(plan: &Plan, session: &Session) -> Result<File> {
    for folder in [&plan.folders.cache, &plan.folders.out] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    take_turn(&plan.folders.cached("lock"), &session.interrupt, &mut || {
        session.progress.note("waiting", plan.folders.cache.display(), "for another run that uses this cache");
    })
}
