//! What is left after a run, a failed run, an interrupted run and a run that was killed: nothing. Mounts, groups,
//! processes and directories are listed before and after.

use crate::fixture::{CONTAINERS, Checked, Fixture, equal};
use libtest_mimic::{Completion, Trial};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::PoisonError;
use std::time::Duration;
use suite::engine::{Container, ContainerPid, Signal};
use suite::{Error, Namespaces};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The first argument that makes this binary hold a container until it is killed.
const HOLD: &str = "hold-a-container";
/// A daemon's groups, as deep as dockerd makes them, in every hierarchy that the container sees.
const NEST: &str = "for g in /sys/fs/cgroup/*/; do mkdir -p $g/docker/one; done; sleep 1000 & echo ready; wait";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        alone("leftovers::none_after_a_run", after_a_run),
        alone("leftovers::none_after_a_drop", after_a_drop),
        alone("leftovers::none_after_a_panic", after_a_panic),
        alone("leftovers::none_after_an_interrupt", after_an_interrupt),
        alone("leftovers::none_of_a_start_that_failed", after_a_failed_start),
        alone("leftovers::a_killed_run_is_swept_by_the_next", after_a_kill),
    ]
}

/// A trial while no other has a container.
fn alone(name: &str, check: fn(&Fixture) -> Checked) -> Trial {
    Trial::ignorable_test(name, move || {
        let _all = CONTAINERS.write().unwrap_or_else(PoisonError::into_inner);
        let fixture = match Fixture::find() {
            Err(reason) => return crate::fixture::skip(reason),
            Ok(fixture) => fixture,
        };
        let before = Traces::look(&fixture);
        check(&fixture)?;
        equal("traces", &Traces::look(&fixture), &before)?;
        equal("leftovers", &suite::Engine::leftovers(&fixture.engine), &Vec::new())?;
        Ok(Completion::Completed)
    })
}

/// All that a container could leave.
#[derive(Debug, PartialEq)]
struct Traces {
    mounts: String,
    groups: BTreeSet<String>,
    files: BTreeSet<String>,
    processes: BTreeSet<String>,
}

impl Traces {
    fn look(fixture: &Fixture) -> Traces {
        let mut groups = BTreeSet::new();
        collect(Path::new("/sys/fs/cgroup"), &mut groups);
        let names = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
        let own = fixture.probe.clone();
        let runs_probe = |process: &fs::DirEntry| fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == own);
        Traces {
            mounts: fs::read_to_string("/proc/mounts").unwrap_or_default(),
            groups,
            files: names(fixture.scratch.path())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect(),
            processes: names(Path::new("/proc"))
                .filter(runs_probe)
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect(),
        }
    }
}

fn collect(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            if path.to_string_lossy().contains("dind-suite-") {
                found.insert(path.display().to_string());
            }
            collect(&path, found);
        }
    }
}

fn start(fixture: &Fixture) -> Result<Box<dyn Container + '_>, libtest_mimic::Failed> {
    let container = fixture.start(&["sh", "-c", NEST])?;
    while !container.log()?.contains("ready") {
        if let Some(code) = container.ended()? {
            return Err(format!("expected a running container, found exit code {code}").into());
        }
        std::thread::yield_now();
    }
    if Traces::look(fixture).groups.is_empty() {
        return Err("expected groups of a running container, found none: the look is blind".into());
    }
    Ok(container)
}

fn after_a_run(fixture: &Fixture) -> Checked {
    let container = start(fixture)?;
    container.exec(&["/.suite/probe", "orphans", "3"], TIMEOUT)?;
    container.signal(ContainerPid::INIT, Signal::Kill)?;
    container.wait(TIMEOUT)?;
    Ok(container.remove()?)
}

fn after_a_drop(fixture: &Fixture) -> Checked {
    drop(start(fixture)?);
    Ok(())
}

fn after_a_panic(fixture: &Fixture) -> Checked {
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _container = start(fixture);
        // Unlike panic!, this does not print a report that would look like a failure.
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    equal("panicked", &panicked.is_err(), &true)
}

fn after_an_interrupt(fixture: &Fixture) -> Checked {
    let container = start(fixture)?;
    fixture.interrupt.raise();
    match container.wait(TIMEOUT) {
        Err(Error::Interrupted) => {}
        other => return Err(format!("expected an interrupt, found {other:?}").into()),
    }
    match container.exec(&["sleep", "1000"], TIMEOUT) {
        Err(Error::Interrupted) => Ok(()),
        other => Err(format!("expected an interrupt, found {other:?}").into()),
    }
}

fn after_a_failed_start(fixture: &Fixture) -> Checked {
    let mut subject = fixture.pre.clone();
    subject.config.volumes.push("/etc/passwd".into());
    let launch = suite::engine::Launch {
        subject: &subject,
        argv: vec!["true".to_owned()],
        env: Vec::new(),
        input: suite::engine::Input::Nothing,
        files: Vec::new(),
        volumes: Vec::new(),
        pids_max: None,
    };
    match suite::Engine::start(&fixture.engine, &launch) {
        Err(Error::Engine(message)) if message.contains("/etc/passwd") => Ok(()),
        Err(other) => Err(format!("expected an error that names the volume, found {other}").into()),
        Ok(_) => Err("expected an error, found a container".into()),
    }
}

/// A run in another process, killed with a container up: the container ends with it, the next engine removes the rest.
fn after_a_kill(fixture: &Fixture) -> Checked {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut holder = Command::new(own)
        .arg(HOLD)
        .arg(fixture.scratch.path())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("start the holder: {error}"))?;
    let mut line = String::new();
    let output = holder.stdout.take().ok_or("no output")?;
    BufReader::new(output).read_line(&mut line).map_err(|error| error.to_string())?;
    holder.kill().and_then(|()| holder.wait()).map_err(|error| format!("kill the holder: {error}"))?;
    equal("holder", &line.as_str(), &"holding\n")?;
    if Traces::look(fixture).groups.is_empty() {
        return Err("expected groups of the killed run, found none: nothing to sweep".into());
    }
    let next = Namespaces::new(&fixture.probe, fixture.scratch.path(), fixture.interrupt.clone())?;
    if next.swept().is_empty() {
        return Err("expected the sweep to name what it removed".into());
    }
    Ok(())
}

/// The other process of [`after_a_kill`]; `None` where the arguments do not ask for it.
pub(crate) fn helper() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != HOLD {
        return None;
    }
    Some(match hold(Path::new(&arguments.next()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("{failed:?}");
            ExitCode::FAILURE
        }
    })
}

fn hold(scratch: &Path) -> Checked {
    let mut fixture = Fixture::find()?;
    fixture.engine = Namespaces::new(&fixture.probe, scratch, fixture.interrupt.clone())?;
    let container = start(&fixture)?;
    println!("holding");
    container.wait(Duration::from_secs(60))?;
    Ok(())
}
