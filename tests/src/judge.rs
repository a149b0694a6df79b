//! Runs what applies of the catalogue and draws the verdict. Cases that start an image alike share its container; the
//! containers run side by side. It must never interpret a finding: verdict.rs does.

use crate::bench::{Bench, Daemon};
use crate::catalogue::SCENARIOS;
use crate::engine::{Container, Engine, Input};
use crate::owner::Owner;
use crate::scenario::{Case, Finding, Leg, Scenario, Start, Step, Want};
use crate::stage::Stage;
use crate::verdict::{self, Row, Verdict, judge_case};
use crate::{Error, Interrupt, Job, Selection, inner_image};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How many containers run side by side. More than processors, since every count waits two seconds for nothing to happen.
const LANES: usize = 4;
/// One `--version`.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);

/// What happens while an image is judged, for people to follow.
#[derive(Debug)]
pub enum Event<'a> {
    /// What will be done.
    Planned {
        /// The number of scenarios that apply.
        scenarios: usize,
        /// The number of rows that the verdict will have.
        cases: usize,
    },
    /// A leg has been run.
    Leg {
        /// The scenario's name.
        scenario: &'a str,
        /// The case's name.
        case: &'a str,
        /// The leg.
        leg: Leg,
        /// Zombies left, where they were counted.
        zombies: Option<u32>,
        /// How long it took.
        elapsed: Duration,
    },
    /// All legs of a case have been run.
    Row(&'a Row),
    /// Something that was left and could not be removed.
    Left(&'a str),
}

/// One container to start, or none where the step starts its own, and what is done with it in this order.
struct Lane {
    leg: Leg,
    work: Work,
    tasks: Vec<Task>,
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Shared(Start, Daemon),
    Whole,
}

#[derive(Clone, Copy)]
struct Task {
    /// Index into the list of cases.
    index: usize,
    case: &'static Case,
    want: &'static Want,
}

/// What a lane sends back.
enum Message {
    Done(usize, Leg, verdict::Result),
    Versions(BTreeMap<String, String>),
}

/// Judges an image.
///
/// # Errors
/// [`Error::Interrupted`], and what keeps the suite from starting at all. What goes wrong later makes rows that are not
/// judged.
pub fn judge(
    engine: &dyn Engine,
    job: &Job,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Event<'_>),
) -> Result<Verdict, Error> {
    let cases = select(job);
    let scenarios: std::collections::BTreeSet<u8> = cases.iter().map(|(scenario, _)| scenario.number).collect();
    report(Event::Planned { scenarios: scenarios.len(), cases: cases.len() });
    let archive = Archive::create(job)?;
    let (sender, receiver) = mpsc::channel();
    let lanes = Mutex::new(plan(&cases));
    let mut rows: Vec<Option<Row>> = cases.iter().map(|_| None).collect();
    let mut versions = BTreeMap::new();
    thread::scope(|scope| {
        for _ in 0..LANES {
            let (sender, lanes, archive) = (sender.clone(), &lanes, archive.path.as_path());
            scope.spawn(move || work(lanes, &|leg| Stage { engine, interrupt, job, archive, leg }, &sender));
        }
        drop(sender);
        let mut results: Vec<BTreeMap<Leg, verdict::Result>> = cases.iter().map(|_| BTreeMap::new()).collect();
        for message in receiver {
            match message {
                Message::Versions(found) => versions = found,
                Message::Done(index, leg, result) => {
                    let (scenario, case) = cases[index];
                    let zombies = result.found.as_ref().ok().and_then(|finding| finding.zombies);
                    report(Event::Leg {
                        scenario: scenario.name,
                        case: case.name,
                        leg,
                        zombies,
                        elapsed: result.elapsed,
                    });
                    results[index].insert(leg, result);
                    if results[index].len() == case.wants.len() {
                        let row = judge_case(scenario, case, &results[index]);
                        report(Event::Row(&row));
                        rows[index] = Some(row);
                    }
                }
            }
        }
    });
    drop(archive);
    for left in engine.leftovers() {
        report(Event::Left(&left));
    }
    interrupt.check()?;
    let rows = rows.into_iter().flatten().collect();
    let subject = (job.fixed.name.clone(), job.fixed.digest);
    Ok(Verdict::new(subject, (job.image, job.selection.clone()), rows, versions, engine.facts()))
}

fn select(job: &Job) -> Vec<(&'static Scenario, &'static Case)> {
    let wanted = |scenario: &Scenario, case: &Case| match &job.selection {
        Selection::Full => true,
        Selection::Smoke => case.smoke,
        Selection::Only(numbers) => numbers.contains(&scenario.number),
    };
    let all = SCENARIOS.iter().flat_map(|scenario| scenario.cases.iter().map(move |case| (scenario, case)));
    all.filter(|(scenario, case)| case.image == job.image && wanted(scenario, case)).collect()
}

/// The lanes, those with the most runs first, so that no long one is left to run alone at the end.
fn plan(cases: &[(&'static Scenario, &'static Case)]) -> VecDeque<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    for (index, (_, case)) in cases.iter().enumerate() {
        for want in case.wants {
            let task = Task { index, case, want };
            let work = match case.step {
                Step::Inside(daemon, _) => Work::Shared(case.start, daemon),
                Step::Whole(_) => Work::Whole,
            };
            let shared = lanes.iter_mut().find(|lane| lane.leg == want.leg && lane.work == work && work != Work::Whole);
            match shared {
                Some(lane) => lane.tasks.push(task),
                None => lanes.push(Lane { leg: want.leg, work, tasks: vec![task] }),
            }
        }
    }
    lanes.sort_by_key(|lane| std::cmp::Reverse(lane.tasks.iter().map(|task| task.want.runs).sum::<u32>()));
    lanes.into()
}

fn work<'a>(lanes: &Mutex<VecDeque<Lane>>, stage: &dyn Fn(Leg) -> Stage<'a>, sender: &mpsc::Sender<Message>) {
    let next = || lanes.lock().ok().and_then(|mut lanes| lanes.pop_front());
    while let Some(lane) = next() {
        let stage = stage(lane.leg);
        if stage.interrupt.check().is_err() {
            return;
        }
        match lane.work {
            Work::Shared(start, daemon) => run_shared(&stage, start, daemon, &lane.tasks, sender),
            Work::Whole => {
                lane.tasks.iter().for_each(|task| send(sender, task, timed(|| run_whole(&stage, task))));
            }
        }
    }
}

fn run_whole(stage: &Stage<'_>, task: &Task) -> Result<Finding, Error> {
    match task.case.step {
        Step::Whole(step) => step(stage, task.want),
        Step::Inside(..) => Err(Error::Engine("run a case: it needs a shared container".to_owned())),
    }
}

fn run_shared(stage: &Stage<'_>, start: Start, daemon: Daemon, tasks: &[Task], sender: &mpsc::Sender<Message>) {
    let started = stage.start(start, Input::Nothing).and_then(|container| {
        stage.bench(&*container, daemon).prepare()?;
        Ok(container)
    });
    let container = match started {
        Ok(container) => container,
        Err(error) => {
            // Each of its tasks has the same fault; an error cannot be copied, its text can.
            let again = || match &error {
                Error::Image(message) => Error::Image(message.clone()),
                other => Error::Engine(verdict::chain(other)),
            };
            tasks.iter().for_each(|task| send(sender, task, timed(|| Err(again()))));
            return;
        }
    };
    let bench = stage.bench(&*container, daemon);
    if stage.leg == Leg::Ours && start == Start::Image {
        // The receiver outlives all lanes.
        let _ = sender.send(Message::Versions(versions(&*container, daemon)));
    }
    for task in tasks {
        send(sender, task, timed(|| run_inside(&bench, task)));
    }
    // Dropped, not removed by hand: what cannot be removed is then among the engine's leftovers.
    drop(container);
}

fn run_inside(bench: &Bench<'_>, task: &Task) -> Result<Finding, Error> {
    match task.case.step {
        Step::Inside(_, step) => step(bench, task.want),
        Step::Whole(_) => Err(Error::Engine("run a case: it starts its own containers".to_owned())),
    }
}

fn timed(step: impl FnOnce() -> Result<Finding, Error>) -> verdict::Result {
    let start = Instant::now();
    let found = step();
    verdict::Result { found, elapsed: start.elapsed() }
}

fn send(sender: &mpsc::Sender<Message>, task: &Task, result: verdict::Result) {
    // The receiver outlives all lanes.
    let _ = sender.send(Message::Done(task.index, task.want.leg, result));
}

/// What the programs inside call themselves: the word that begins with a digit in the first line of `--version`.
fn versions(container: &dyn Container, daemon: Daemon) -> BTreeMap<String, String> {
    let programs: &[&str] = match daemon {
        Daemon::Dockerd => &["dockerd", "containerd", "runc"],
        Daemon::Containerd => &["containerd", "runc"],
        Daemon::Sleeper => &["/dind-init"],
    };
    let version = |program: &&str| {
        let output = container.exec(&[program, "--version"], VERSION_TIMEOUT).ok()?;
        let word = output
            .stdout
            .lines()
            .next()?
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        Some((program.trim_start_matches('/').to_owned(), word.trim_end_matches(',').to_owned()))
    };
    programs.iter().filter_map(version).collect()
}

/// The inner image's archive in a directory of its own, removed when dropped; after a kill, by the next run's sweep.
struct Archive {
    directory: PathBuf,
    path: PathBuf,
}

impl Archive {
    fn create(job: &Job) -> Result<Archive, Error> {
        let directory = absolute(&job.scratch)?.join(Owner::current()?.next_name());
        fs::create_dir(&directory).map_err(Error::io(format!("make {}", directory.display())))?;
        let archive = Archive { path: directory.join("inner.tar"), directory };
        inner_image::write(&archive.path, &job.probe, &oci::Platform::host().architecture)?;
        Ok(archive)
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        // Left in the caller's scratch directory at worst, under a name that the next run's sweep knows.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(Error::io(format!("find {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::fake::Behaviour::{self, Ends, Leaks, Reaps, Unstartable};
    use crate::fake::judged;

    fn sound(image: &str, tini_above: bool) -> Behaviour {
        if image == "fixed" || tini_above { Reaps } else { Leaks }
    }

    /// The outcome and the first reason of a judgement by scenario 13, whose legs are bare, tini and ours.
    fn check(behaviour: fn(&str, bool) -> Behaviour, outcome: Outcome, reason: &str) {
        let verdict = judged(behaviour, &[13], &Interrupt::default()).unwrap();
        assert_eq!((verdict.outcome, verdict.rows[0].reason.as_str()), (outcome, reason));
    }

    #[test]
    fn passed_when_the_control_leaks_and_the_image_does_not() {
        check(sound, Outcome::Passed, "");
    }

    #[test]
    fn failed_when_the_image_leaks_too() {
        check(
            |_, tini| if tini { Reaps } else { Leaks },
            Outcome::Failed,
            "ours: expected 0 zombies after 10 runs, found 10",
        );
    }

    #[test]
    fn failed_when_the_image_ends_at_once() {
        let behaviour = |image: &str, tini: bool| if image == "fixed" { Ends } else { sound(image, tini) };
        check(behaviour, Outcome::Failed, "ours: start the daemon: the container ended with 3: the last words");
    }

    #[test]
    fn not_judged_when_the_control_does_not_leak() {
        check(|_, _| Reaps, Outcome::NotJudged, "control bare: expected 10 zombies after 10 runs, found 0");
    }

    #[test]
    fn not_judged_when_the_packaged_init_leaks() {
        let behaviour = |image: &str, _: bool| if image == "fixed" { Reaps } else { Leaks };
        check(behaviour, Outcome::NotJudged, "control tini: expected 0 zombies after 10 runs, found 10");
    }

    #[test]
    fn not_judged_when_the_engine_fails_on_the_image() {
        let behaviour = |image: &str, tini: bool| if image == "fixed" { Unstartable } else { sound(image, tini) };
        check(behaviour, Outcome::NotJudged, "ours: no space left");
    }

    #[test]
    fn a_case_that_does_not_apply_is_skipped_with_its_reason() {
        let verdict = judged(sound, &[18], &Interrupt::default()).unwrap();
        let skips: Vec<&str> = verdict.skips().map(|row| row.reason.as_str()).collect();
        assert_eq!(skips, ["the image's entrypoint starts no docker-init"]);
        assert_eq!(verdict.rows.len(), 2);
    }

    #[test]
    fn an_interrupt_is_no_verdict() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        assert!(matches!(judged(sound, &[13], &interrupt), Err(Error::Interrupted)));
    }

    #[test]
    fn versions_are_read_from_inside() {
        let verdict = judged(sound, &[13], &Interrupt::default()).unwrap();
        assert_eq!(verdict.versions.get("dockerd").map(String::as_str), Some("1.2.3"));
    }
}
