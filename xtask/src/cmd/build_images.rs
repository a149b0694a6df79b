//! `build-images`: fetch, build the init, derive, judge, record, publish. Strings the stages together; each decision is in a stage or in the plan.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use oci::{Client, Platform};
use suite::Outcome as Verdict;

use super::{Outcome, make_folder, require_root, wait_for_turn};
use crate::args::{BuildImages, SuiteChoice};
use crate::elf::Machine;
use crate::plan::{Plan, PlannedImage, Push};
use crate::record::{ImageRecord, Record, SourceRecord};
use crate::session::{Session, print};
use crate::spec::{Base, StandinSpec};
use crate::stages::base::{self, FetchedBase, Source};
use crate::stages::derived::DerivedImage;
use crate::stages::init::StaticProgram;
use crate::stages::publish::{Age, Publisher};
use crate::stages::{archive, derive, gate, init, judge};
use crate::tools;

/// Builds and judges the planned images and writes the record; stdout names what passed.
pub(super) fn run(args: &BuildImages, session: &Session) -> Result<Outcome> {
    let plan = Plan::new(args, &session.facts)?;
    let client = plan.registries.client(session)?;
    if args.plan {
        print(&format!("{}\n", serde_json::to_string_pretty(&plan).context("print the plan")?))?;
        return Ok(Outcome::Done);
    }
    require_root()?;
    if plan.suite != SuiteChoice::None {
        tools::require("tini-static")?;
    }
    if let Some(asked) = &plan.docker_archive {
        asked.check_place()?;
    }
    let _turn = wait_for_turn(&plan.folders.cache, session)?;
    make_folder(&plan.folders.out, "--out names the folder for layouts and records")?;
    let client = Some(client).filter(|_| !plan.offline);
    let bases = fetch_bases(&plan, client.as_ref(), session)?;
    refuse_standin(&plan, &bases)?;
    let inits = build_inits(&bases, session)?;
    // Of an image only its record is kept: there may be hundreds.
    let mut records = Vec::new();
    for image in &plan.images {
        session.interrupt.check()?;
        let base = &bases[&base_key(image)];
        let built = derive::stage(image, base, &inits, &plan, session)
            .with_context(|| format!("derive {}", image.spec.name))?;
        let judgements = judge::stage(image, base, &built, &plan, session)?;
        if let Some(asked) = &plan.docker_archive {
            archive::stage(asked, &image.spec, &built, &judgements, session)?;
        }
        records.push(ImageRecord::new(&image.spec, base, &built, &inits, judgements)?);
    }
    let mut record = Record::new(records);
    record.write(&plan.folders.out)?;
    if let (Some(push), Some(client)) = (&plan.push, &client) {
        let publisher = Publisher {
            client,
            to: &push.repository,
            registries: &plan.registries,
            move_tags: push.allow.move_tags,
            cache: &plan.folders.cache,
            session,
        };
        let mut images = plan.images.iter().zip(&mut record.images);
        let done: Result<()> = images.try_for_each(|(image, record)| {
            publish(&publisher, push, (image, &plan.folders.layout(&image.spec.name)), record)
        });
        // What is in the registry is recorded, even if a later image did not get there.
        record.write(&plan.folders.out)?;
        done?;
    }
    report(&record, &plan, args.json, session)
}

/// Builds the init once for every machine: the variants of an architecture run the same one.
fn build_inits(
    bases: &BTreeMap<BaseKey<'_>, FetchedBase>,
    session: &Session,
) -> Result<BTreeMap<Platform, StaticProgram>> {
    let (mut inits, mut machines) = (BTreeMap::new(), BTreeMap::new());
    for platform in bases.values().flat_map(|base| base.images.keys()) {
        let init: &StaticProgram = match machines.entry(Machine::of(platform)?) {
            Entry::Occupied(built) => built.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(init::stage(platform, session)?),
        };
        inits.insert(platform.clone(), StaticProgram { platform: platform.clone(), ..init.clone() });
    }
    Ok(inits)
}

/// Gets every base once, and of its layers those whose bytes something needs.
fn fetch_bases<'a>(
    plan: &'a Plan,
    client: Option<&Client>,
    session: &Session,
) -> Result<BTreeMap<BaseKey<'a>, FetchedBase>> {
    let mut bases = BTreeMap::new();
    for image in &plan.images {
        if let Entry::Vacant(vacant) = bases.entry(base_key(image)) {
            vacant.insert(base::fetch(image, plan, client, session)?);
        }
    }
    let mut needed = BTreeSet::new();
    for image in &plan.images {
        let key = base_key(image);
        let platforms = bases[&key].images.keys().filter(|platform| bases[&key].lends_layers(image, platform, plan));
        needed.extend(platforms.map(|platform| (key.clone(), platform.clone())));
    }
    for (key, platform) in &needed {
        base::bring_layers(&bases[key], platform, client, session)?;
    }
    Ok(bases)
}

/// What was to be published and turns out to be a stand-in is refused before it is judged, which takes minutes.
fn refuse_standin(plan: &Plan, bases: &BTreeMap<BaseKey<'_>, FetchedBase>) -> Result<()> {
    let Some(push) = plan.push.as_ref().filter(|push| !push.allow.allow_standin) else { return Ok(()) };
    for base in bases.values() {
        ensure!(
            !matches!(base.source, Source::Standin { .. }),
            "publish to {}: expected the registry's base, found {}, built from Debian's packages\nhint: {}",
            push.repository,
            base.name,
            "--allow-standin publishes it nevertheless; --mirror HOST=URL names another place to ask"
        );
    }
    Ok(())
}

/// Publishes an image if it passed; one that failed stays here, and the others go on.
fn publish(
    publisher: &Publisher<'_>,
    push: &Push,
    (image, folder): (&PlannedImage, &Path),
    record: &mut ImageRecord,
) -> Result<()> {
    if record.outcomes().any(|outcome| !matches!(outcome, None | Some(Verdict::Passed))) {
        return Ok(());
    }
    let cleared = gate::clear(record, &push.allow)?;
    // A layer that is not here is the base's, which the publisher fetches if it must.
    let built = DerivedImage::read(folder, record.digest, |_, _| true)
        .with_context(|| format!("read {} to publish it", record.name))?;
    if push.by_digest {
        publisher.leg(record, &built, &cleared)
    } else {
        // What is carved is large: looking first is cheaper than sending it in vain.
        let resolved = image.locked.is_none() && image.base != Base::Scratch;
        let age = if resolved && image.spec.carve.is_none() { Age::New } else { Age::Unknown };
        publisher.image(record, &built, &cleared, age)
    }
}

type BaseKey<'a> = (String, Option<StandinSpec>, &'a [Platform]);

/// Images of one base share what was fetched.
fn base_key(image: &PlannedImage) -> BaseKey<'_> {
    (image.base.to_string(), image.spec.standin, &image.platforms)
}

/// Says what came of it, on both streams, and turns it into the command's outcome.
fn report(record: &Record, plan: &Plan, json: bool, session: &Session) -> Result<Outcome> {
    let passed: Vec<_> = record.images.iter().filter(|image| image.passed()).collect();
    if json {
        print(&record.json()?)?;
    } else if plan.push.as_ref().is_some_and(|push| push.by_digest) {
        print(&pushed(record))?;
    } else {
        for image in &passed {
            print(&format!("{}@{}\n", image.name, image.digest))?;
        }
    }
    let standin = record.images.iter().any(|image| image.base.source == SourceRecord::Standin);
    let note = if standin && plan.push.is_none() { ", built on a stand-in: not for publishing" } else { "" };
    let count = if plan.suite == SuiteChoice::None {
        format!("{} images, not judged (--suite none)", record.images.len())
    } else {
        format!("{} of {} images passed", passed.len(), record.images.len())
    };
    session.progress.note("recorded", plan.folders.out.join("digests.json").display(), format!("{count}{note}"));
    Ok(outcome(record, plan))
}

/// What a leg put into the registry, one line for each manifest: its index is in the layout alone.
fn pushed(record: &Record) -> String {
    let mut lines = String::new();
    for image in &record.images {
        let Some(publication) = &image.published else { continue };
        for platform in image.platforms.values() {
            lines.push_str(&format!("{}@{}\n", publication.repository, platform.digest));
        }
    }
    lines
}

/// One failure makes the run fail; else one platform that should have been judged and was not makes it not judged.
fn outcome(record: &Record, plan: &Plan) -> Outcome {
    let mut outcomes = record.images.iter().flat_map(ImageRecord::outcomes);
    if outcomes.clone().any(|outcome| outcome == Some(Verdict::Failed)) {
        Outcome::ImageFailed
    } else if plan.suite == SuiteChoice::None || outcomes.all(|outcome| outcome == Some(Verdict::Passed)) {
        Outcome::Done
    } else if record.images.iter().all(|image| image.published.is_some()) {
        // Some platforms were not judged, and that was permitted.
        Outcome::Done
    } else {
        Outcome::NotJudged
    }
}
