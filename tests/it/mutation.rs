//! The suite tested by faulty images: what must pass, what must fail, and what must not be judged, on real daemons.

use crate::fixture::{Checked, Fixture, Images};
use libtest_mimic::Trial;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use suite::{Job, Kind, Outcome, Selection, Subject, Verdict};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        judged("suite::the_smoke_set_passes_with_our_init", fixed, Selection::Smoke, |verdict| {
            expect(verdict, Outcome::Passed, "")?;
            if verdict.passed().is_none() || verdict.versions.len() != 3 {
                return Err(format!("expected a proof and three versions, found {:?}", verdict.versions).into());
            }
            Ok(())
        }),
        judged(
            "suite::an_unfixed_image_fails",
            |_, _, _| Ok(None),
            Selection::Only(vec![1, 13]),
            |verdict| expect(verdict, Outcome::Failed, "expected 0 zombies after 5 runs, found 5"),
        ),
        judged("suite::an_init_that_reaps_one_child_per_signal_fails", reap_one, Selection::Only(vec![5]), |verdict| {
            expect(verdict, Outcome::Failed, "expected 0 zombies after 30 runs")
        }),
        judged("suite::a_control_that_reaps_makes_nothing_judged", blind, Selection::Only(vec![13]), |verdict| {
            expect(verdict, Outcome::NotJudged, "control bare: expected 10 zombies after 10 runs, found 0")
        }),
        judged("suite::an_image_that_ends_at_once_fails_with_its_log", broken, Selection::Only(vec![13]), |verdict| {
            expect(verdict, Outcome::Failed, "the container ended with 3")
        }),
    ]
}

/// Changes the job: the fixed image, or whatever the case is about. `None` leaves it as the unfixed image.
type Change = fn(&Fixture, &Images, &mut Job) -> Result<Option<Subject>, libtest_mimic::Failed>;

fn judged(name: &str, change: Change, selection: Selection, check: fn(&Verdict) -> Checked) -> Trial {
    Trial::ignorable_test(name, move || {
        let images = match Images::find() {
            Err(reason) => return crate::fixture::skip(reason),
            Ok(images) => images,
        };
        let _others = crate::fixture::CONTAINERS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fixture = match Fixture::find() {
            Err(reason) => return crate::fixture::skip(reason),
            Ok(fixture) => fixture,
        };
        let mut job = Job {
            image: Kind::Dockerd,
            bare: fixture.pre.clone(),
            published: images.post.clone(),
            fixed: fixture.pre.clone(),
            tini: images.tini.clone(),
            probe: fixture.probe.clone(),
            selection,
            scratch: fixture.scratch.path().to_path_buf(),
        };
        if let Some(fixed) = change(&fixture, &images, &mut job)? {
            job.fixed = fixed;
        }
        let verdict = suite::judge(&fixture.engine, &job, &fixture.interrupt, &mut |_| ())?;
        check(&verdict).map(|()| libtest_mimic::Completion::Completed)
    })
}

fn expect(verdict: &Verdict, outcome: Outcome, reason: &str) -> Checked {
    let told = reason.is_empty() || verdict.rows.iter().any(|row| row.reason.contains(reason));
    if verdict.outcome == outcome && told {
        return Ok(());
    }
    let rows: Vec<String> = verdict
        .rows
        .iter()
        .map(|row| format!("{} {}: {:?} {}", row.scenario, row.case, row.outcome, row.reason))
        .collect();
    Err(format!("expected {outcome:?} `{reason}`, found {:?}: {}", verdict.outcome, rows.join("; ")).into())
}

/// The derived image in miniature: the base's files, the init and its guards.
fn fixed(fixture: &Fixture, images: &Images, _: &mut Job) -> Result<Option<Subject>, libtest_mimic::Failed> {
    let rootfs = fixture.scratch.path().join("fixed");
    let copied = Command::new("cp").arg("-a").arg(&images.post.rootfs).arg(&rootfs).status();
    if !copied.map_err(|error| format!("copy the root: {error}"))?.success() {
        return Err("copy the root: cp failed".into());
    }
    let directory = rootfs.join("usr/local/sbin");
    let io = |error: std::io::Error| format!("add the init: {error}");
    std::fs::copy(&images.init, directory.join("dind-init")).map_err(io)?;
    for guard in ["dockerd", "containerd"] {
        symlink("dind-init", directory.join(guard)).map_err(io)?;
    }
    Ok(Some(above(&images.post, &rootfs, &["/usr/local/sbin/dind-init", "--"])))
}

fn above(base: &Subject, rootfs: &Path, init: &[&str]) -> Subject {
    let mut subject = base.clone();
    subject.name = "fixed".to_owned();
    subject.rootfs = rootfs.to_path_buf();
    subject.config.entrypoint =
        init.iter().map(|word| (*word).to_owned()).chain(base.config.entrypoint.clone()).collect();
    subject.config.env.push("TINI_SUBREAPER=".to_owned());
    subject
}

fn reap_one(fixture: &Fixture, _: &Images, _: &mut Job) -> Result<Option<Subject>, libtest_mimic::Failed> {
    Ok(Some(above(&fixture.pre, &fixture.pre.rootfs, &["/.suite/probe", "reap-one", "--"])))
}

/// A control under a packaged init: it cannot show the fault.
fn blind(fixture: &Fixture, images: &Images, job: &mut Job) -> Result<Option<Subject>, libtest_mimic::Failed> {
    let fixed = fixed(fixture, images, job)?;
    job.bare = above(&fixture.pre, &fixture.pre.rootfs, &["/.suite/tini", "--"]);
    Ok(fixed)
}

fn broken(fixture: &Fixture, _: &Images, _: &mut Job) -> Result<Option<Subject>, libtest_mimic::Failed> {
    let mut subject = fixture.pre.clone();
    subject.config.entrypoint = ["sh", "-c", "echo no daemon today; exit 3"].map(str::to_owned).into();
    Ok(Some(subject))
}
