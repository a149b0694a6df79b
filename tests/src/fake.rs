//! An engine without containers, for the tests of the judgement: its containers reap or do not, as they are told, and
//! nothing else about them is real. It must never be reachable outside of tests.

use crate::engine::{Container, ContainerPid, Engine, ExitCode, Facts, Launch, Output, Process, Signal, Status};
use crate::wait::Wait;
use crate::{Error, Interrupt, Job, Kind, RunConfig, Selection, Subject, Verdict, judge};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// What a container does that was started with this command line, from this image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Behaviour {
    Reaps,
    Leaks,
    /// Ends at once.
    Ends,
    /// The engine cannot start it.
    Unstartable,
}

pub(crate) struct Fake {
    pub behaviour: fn(image: &str, tini_above: bool) -> Behaviour,
}

struct FakeContainer {
    behaviour: Behaviour,
    zombies: AtomicU32,
    stopped: AtomicBool,
}

impl Engine for Fake {
    fn facts(&self) -> Facts {
        Facts { engine: "fake".to_owned(), kernel: "6.0".to_owned(), cgroup: "v2".to_owned() }
    }

    fn start<'a>(&'a self, launch: &Launch<'_>) -> Result<Box<dyn Container + 'a>, Error> {
        let behaviour = (self.behaviour)(&launch.subject.name, launch.argv[0] == crate::bench::TINI);
        if behaviour == Behaviour::Unstartable {
            return Err(Error::Engine("no space left".to_owned()));
        }
        Ok(Box::new(FakeContainer { behaviour, zombies: AtomicU32::new(0), stopped: AtomicBool::new(false) }))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Container for FakeContainer {
    fn exec(&self, argv: &[&str], _limit: Duration) -> Result<Output, Error> {
        let leaves_one = argv.contains(&"orphans") || argv.starts_with(&["docker", "run"]);
        if leaves_one && self.behaviour == Behaviour::Leaks {
            self.zombies.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Output { code: ExitCode(0), stdout: "program 1.2.3, build x\n".to_owned(), stderr: String::new() })
    }

    fn processes(&self) -> Result<Vec<Process>, Error> {
        let process = |pid: u32, ppid, state, comm: &str| Process {
            pid: ContainerPid(pid.cast_signed()),
            ppid: ContainerPid(ppid),
            state,
            comm: comm.to_owned(),
            threads: 1,
            start: 1,
        };
        let zombies = (0..self.zombies.load(Ordering::Relaxed)).map(|number| process(100 + number, 1, 'Z', "x"));
        Ok([process(1, 0, 'S', "init"), process(2, 1, 'S', "dockerd")].into_iter().chain(zombies).collect())
    }

    fn status(&self, _pid: ContainerPid) -> Result<Status, Error> {
        Err(Error::Engine("a fake has no status".to_owned()))
    }

    fn tasks_charged(&self) -> Result<u64, Error> {
        Ok(2 + u64::from(self.zombies.load(Ordering::Relaxed)))
    }

    fn signal(&self, _pid: ContainerPid, signal: Signal) -> Result<(), Error> {
        self.stopped.store(signal == Signal::Term, Ordering::Relaxed);
        Ok(())
    }

    fn kill_and_restart(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn type_in(&self, _keys: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn ended(&self) -> Result<Option<ExitCode>, Error> {
        let ended = self.behaviour == Behaviour::Ends || self.stopped.load(Ordering::Relaxed);
        Ok(ended.then_some(ExitCode(if self.behaviour == Behaviour::Ends { 3 } else { 0 })))
    }

    fn wait(&self, limit: Duration) -> Result<ExitCode, Error> {
        Interrupt::default().until("the end", limit, || self.ended())
    }

    fn log(&self) -> Result<String, Error> {
        Ok("the last words".to_owned())
    }

    fn remove(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

/// Judges with this fake, by these scenarios.
pub(crate) fn judged(
    behaviour: fn(&str, bool) -> Behaviour,
    numbers: &[u8],
    interrupt: &Interrupt,
) -> Result<Verdict, Error> {
    let scratch = TempDir::new().map_err(Error::io("make a directory"))?;
    let probe = scratch.path().join("probe");
    std::fs::write(&probe, "a program").map_err(Error::io("write the probe"))?;
    let subject = |name: &str| Subject {
        name: name.to_owned(),
        digest: oci::Digest::of(name.as_bytes()),
        rootfs: "/".into(),
        config: RunConfig { entrypoint: vec![name.to_owned()], ..RunConfig::default() },
        shadow: Vec::new(),
    };
    let job = Job {
        image: Kind::Dockerd,
        bare: subject("bare"),
        published: subject("published"),
        fixed: subject("fixed"),
        tini: "/tini".into(),
        probe,
        selection: Selection::Only(numbers.to_vec()),
        scratch: scratch.path().to_path_buf(),
    };
    judge(&Fake { behaviour }, &job, interrupt, &mut |_| ())
}
