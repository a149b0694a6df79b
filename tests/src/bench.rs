//! What scenarios do to a started container, in the words of the daemon inside, if there is one: wait until it answers, run
//! inner containers, count zombies. A step that fails because of the image is [`Error::Image`], all else is the engine's.
//! It must never decide what a scenario expects.

use crate::engine::{Container, Output, Process};
use crate::inner_image::{INNER_IMAGE, INNER_IMAGE_FULL, INNER_PROGRAM};
use crate::observe::{self, Count};
use crate::wait::Wait;
use crate::{Error, Interrupt};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// From the start of the container to the daemon's first answer. A cold start on a busy machine takes some ten seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// One command of the docker or ctr client.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks into the container, each of which starts a process; zombies that matter stay for seconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How much of a container's log an error shows.
const LOG_TAIL_LINES: usize = 8;

pub(crate) const PROBE: &str = "/.suite/probe";
pub(crate) const TINI: &str = "/.suite/tini";
pub(crate) const ARCHIVE: &str = "/.suite/inner.tar";

/// Counts the names of inner containers.
static NEXT_NAME: AtomicU32 = AtomicU32::new(1);

/// What is inside and put to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Daemon {
    Dockerd,
    Containerd,
    /// No daemon: a sleeping probe, where the image has nothing but an init.
    Sleeper,
}

impl Daemon {
    /// Its command name, as in the process table.
    pub(crate) fn comm(self) -> &'static str {
        match self {
            Daemon::Dockerd => "dockerd",
            Daemon::Containerd => "containerd",
            Daemon::Sleeper => "probe",
        }
    }
}

/// A step that asks for inner containers where nobody could run them: a mistake in the catalogue.
pub(crate) fn no_daemon<T>() -> Result<T, Error> {
    Err(Error::Engine("run an inner container: there is no daemon inside".to_owned()))
}

/// A container with a daemon in it, under one scenario at a time.
pub(crate) struct Bench<'a> {
    pub container: &'a dyn Container,
    pub daemon: Daemon,
    pub interrupt: &'a Interrupt,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(container: &'a dyn Container, daemon: Daemon, interrupt: &'a Interrupt) -> Bench<'a> {
        Bench { container, daemon, interrupt }
    }

    /// Waits for the daemon and gives it the inner image.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        self.await_answer()?;
        match self.daemon {
            Daemon::Dockerd => self.succeed(&["docker", "load", "--input", ARCHIVE]).map(drop),
            Daemon::Containerd => self.succeed(&["ctr", "image", "import", ARCHIVE]).map(drop),
            Daemon::Sleeper => Ok(()),
        }
    }

    /// Waits until the daemon answers. That it never does, or that the container ends, is [`Error::Image`].
    pub(crate) fn await_answer(&self) -> Result<(), Error> {
        let question: &[&str] = match self.daemon {
            Daemon::Dockerd => &[PROBE, "ping", "/var/run/docker.sock"],
            Daemon::Containerd => &[PROBE, "connect", "/run/containerd/containerd.sock"],
            Daemon::Sleeper => &[PROBE, "true"],
        };
        let answer = self.interrupt.until_every(LOOK_INTERVAL, "the daemon's first answer", READY_TIMEOUT, || {
            if let Some(code) = self.container.ended()? {
                return Err(Error::Image(format!(
                    "start the daemon: the container ended with {code}: {}",
                    self.log_tail()
                )));
            }
            let answer = self.container.exec(question, COMMAND_TIMEOUT)?;
            Ok((answer.code.0 == 0).then_some(()))
        });
        match answer {
            Err(Error::Deadline { awaited, limit }) => {
                let seconds = limit.as_secs();
                Err(Error::Image(format!("wait for {awaited}: none within {seconds} s: {}", self.log_tail())))
            }
            other => other,
        }
    }

    /// The end of the container's log, on one line.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.container.log().unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join(" | ")
    }

    /// Runs a command that must succeed in a sound image.
    pub(crate) fn succeed(&self, argv: &[&str]) -> Result<Output, Error> {
        let output = self.container.exec(argv, COMMAND_TIMEOUT)?;
        if output.code.0 == 0 {
            return Ok(output);
        }
        let said = format!("{} {}", output.stdout.trim(), output.stderr.trim());
        Err(Error::Image(format!(
            "run `{}`: expected exit code 0, found {}: {}",
            argv.join(" "),
            output.code,
            said.trim()
        )))
    }

    /// A name that no inner container has had, also none of an earlier life of the container.
    fn fresh_name() -> String {
        format!("inner-{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed))
    }

    /// One short-lived inner container.
    pub(crate) fn run_once(&self) -> Result<(), Error> {
        let name = Self::fresh_name();
        match self.daemon {
            Daemon::Dockerd => self.succeed(&["docker", "run", "--rm", "--network", "none", INNER_IMAGE])?,
            Daemon::Containerd => {
                self.succeed(&["ctr", "run", "--rm", INNER_IMAGE_FULL, &name, INNER_PROGRAM, "true"])?
            }
            Daemon::Sleeper => no_daemon()?,
        };
        Ok(())
    }

    /// `runs` short-lived inner containers, `width` at a time.
    pub(crate) fn run_many(&self, runs: u32, width: u32) -> Result<(), Error> {
        self.repeat(runs, width, || self.run_once())
    }

    /// Repeats a step on `width` threads; the first error ends all of them.
    pub(crate) fn repeat(
        &self,
        times: u32,
        width: u32,
        step: impl Fn() -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let taken = AtomicU32::new(0);
        let work = || {
            while taken.fetch_add(1, Ordering::Relaxed) < times {
                if let Err(error) = step() {
                    taken.store(times, Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..width).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(join).fold(Ok(()), Result::and)
        })
    }

    /// An inner container that sleeps, deaf to TERM as every PID 1 without a handler is; returns its name.
    pub(crate) fn start_sleeper(&self) -> Result<String, Error> {
        let name = Self::fresh_name();
        match self.daemon {
            Daemon::Dockerd => {
                // A short grace period, which dockerd honours in its own shutdown too.
                let options =
                    ["docker", "run", "--detach", "--rm", "--network", "none", "--stop-timeout", "2", "--name"];
                self.succeed(&[&options[..], &[&name, INNER_IMAGE, INNER_PROGRAM, "sleep", "1000"]].concat())?
            }
            Daemon::Containerd => {
                self.succeed(&["ctr", "run", "--detach", INNER_IMAGE_FULL, &name, INNER_PROGRAM, "sleep", "1000"])?
            }
            Daemon::Sleeper => no_daemon()?,
        };
        Ok(name)
    }

    /// Runs a command of the inner program inside an inner container.
    pub(crate) fn exec_inner(&self, name: &str, words: &[&str]) -> Result<(), Error> {
        let head: &[&str] = match self.daemon {
            Daemon::Dockerd => &["docker", "exec", name, INNER_PROGRAM],
            Daemon::Containerd => &["ctr", "task", "exec", "--exec-id", "suite", name, INNER_PROGRAM],
            Daemon::Sleeper => no_daemon()?,
        };
        self.succeed(&[head, words].concat()).map(|_| ())
    }

    /// Kills inner containers, all by one command where the client can.
    pub(crate) fn kill_inner(&self, names: &[String]) -> Result<(), Error> {
        match self.daemon {
            Daemon::Dockerd => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.succeed(&[&["docker", "kill"], &names[..]].concat()).map(|_| ())
            }
            Daemon::Containerd => {
                names.iter().try_for_each(|name| self.succeed(&["ctr", "task", "rm", "--force", name]).map(|_| ()))
            }
            Daemon::Sleeper => no_daemon(),
        }
    }

    pub(crate) fn table(&self) -> Result<Vec<Process>, Error> {
        self.container.processes()
    }

    /// Counts the zombies that have come since `before`, by the counting rule.
    pub(crate) fn count(&self, expected: u32, before: &[Process]) -> Result<u32, Error> {
        let mut count = Count::new(expected as usize, self.daemon.comm(), before);
        let start = Instant::now();
        let limit = observe::LOOK_TIMEOUT + observe::HOLD;
        let found = self.interrupt.until_every(LOOK_INTERVAL, "a final count of zombies", limit, || {
            Ok(count.look(start.elapsed(), &self.table()?))
        })?;
        Ok(u32::try_from(found).unwrap_or(u32::MAX))
    }
}

fn join<T>(worker: thread::ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    worker.join().unwrap_or_else(|_| Err(Error::Engine("run a step: its thread panicked".to_owned())))
}
