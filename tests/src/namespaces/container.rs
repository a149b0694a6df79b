//! One container of the namespaces engine: its life, its groups, its directory. Dropping it, on whatever path, kills the PID
//! namespace and removes groups and directory. It must never leave a process behind.

use super::Namespaces;
use super::home::{self, Home, read_end};
use super::life::{Life, Recipe};
use crate::engine::{Container, ContainerPid, ExitCode, HostPid, Launch, Output, Process, Signal, Status};
use crate::spec::Entry;
use crate::wait::Wait;
use crate::{Error, Interrupt};
use rustix::process::{Pid, PidfdFlags, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// From SIGKILL to the end of every process of the PID namespace.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// From the death of a container's PID 1 to the news of it.
const END_GRACE: Duration = Duration::from_millis(500);
/// What is read of a command's output, and of the end of a log.
pub(super) const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// The probe's exit code for its own failures, as docker's for its own.
const PROBE_FAILED: u8 = 125;

pub(super) struct Contained<'a> {
    engine: &'a Namespaces,
    home: Home,
    recipe: Recipe,
    life: Life,
    commands: AtomicU32,
    removed: bool,
}

impl<'a> Contained<'a> {
    pub(super) fn start(engine: &'a Namespaces, launch: &Launch<'_>) -> Result<Contained<'a>, Error> {
        let home = Home::create(engine)?;
        let mut recipe = Recipe::new(engine, launch, &home);
        match recipe.start(engine, &home) {
            Ok(life) => Ok(Contained { engine, home, recipe, life, commands: AtomicU32::new(0), removed: false }),
            Err(error) => {
                if let Err(left) = home.remove() {
                    engine.record_leftover(left.to_string());
                }
                Err(error)
            }
        }
    }

    fn kill(&self) -> Result<ExitCode, Error> {
        if let Some(init) = &self.life.init {
            // ESRCH: PID 1 has ended meanwhile.
            let _ = pidfd_send_signal(init, rustix::process::Signal::KILL);
        }
        Interrupt::default().until("the container's end", KILL_TIMEOUT, || self.ended())
    }

    fn take_down(&mut self) -> Result<(), Error> {
        self.removed = true;
        let ended = self.kill();
        self.home.remove().and(ended.map(|_| ()))
    }

    fn run(&self, argv: &[&str], limit: Duration, output: &Path, errors: &Path) -> Result<ExitCode, Error> {
        let create = |path: &Path| File::create(path).map_err(Error::io(format!("create {}", path.display())));
        let process = self.recipe.command(argv);
        let entry = to_json(&Entry { pid: self.life.pid.0, groups: self.home.groups.entrances(), process })?;
        let mut child = Command::new(&self.engine.probe)
            .args(["exec", &self.engine.owner.pid.to_string(), &entry])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(create(output)?)
            .stderr(create(errors)?)
            .spawn()
            .map_err(Error::io(format!("start {}", self.engine.probe.display())))?;
        let waited = self.engine.interrupt.until(&format!("`{}` in the container", argv.join(" ")), limit, || {
            child.try_wait().map_err(Error::io("wait for a command in the container"))
        });
        if waited.is_err() {
            kill_session(&mut child);
            let _ = child.wait();
        }
        waited.map(exit_code)
    }

    /// What went wrong because the container ended meanwhile is told as that: the engine did its work.
    fn or_ended<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let Err(Error::Engine(fault)) = result else { return result };
        match self.wait(END_GRACE) {
            Ok(code) => Err(Error::Image(format!("the container ended with {code}: {}", self.log()?.trim()))),
            Err(Error::Deadline { .. }) => Err(Error::Engine(fault)),
            Err(other) => Err(other),
        }
    }

    fn ask<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T, Error> {
        // Through PID 1's own root: its procfs shows the pids of its namespace.
        let proc = format!("/proc/{}/root/proc", self.life.pid);
        let (verb, rest) = words.split_first().ok_or_else(|| Error::Engine("ask the probe: no question".to_owned()))?;
        let answer = Command::new(&self.engine.probe)
            .arg(verb)
            .arg(&proc)
            .args(rest)
            .env_clear()
            .output()
            .map_err(Error::io(format!("start {}", self.engine.probe.display())))?;
        if !answer.status.success() {
            return Err(Error::Engine(String::from_utf8_lossy(&answer.stderr).trim().to_owned()));
        }
        serde_json::from_slice(&answer.stdout)
            .map_err(|error| Error::Engine(format!("read the probe's answer: {error}")))
    }
}

impl Container for Contained<'_> {
    fn exec(&self, argv: &[&str], limit: Duration) -> Result<Output, Error> {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let file = |stream: &str| self.home.directory.join(format!("command-{number}.{stream}"));
        let (output, errors) = (file("out"), file("err"));
        let code = self.run(argv, limit, &output, &errors);
        let read = |path: &Path| read_end(path, OUTPUT_BYTES_MAX);
        let result = code.and_then(|code| Ok(Output { code, stdout: read(&output)?, stderr: read(&errors)? }));
        for path in [&output, &errors] {
            // It goes with the directory at the latest.
            let _ = fs::remove_file(path);
        }
        let output = result?;
        if output.code == ExitCode(PROBE_FAILED) && output.stderr.contains("probe: ") {
            let fault = format!("run `{}` in the container: {}", argv.join(" "), output.stderr.trim());
            return self.or_ended(Err(Error::Engine(fault)));
        }
        Ok(output)
    }

    fn processes(&self) -> Result<Vec<Process>, Error> {
        self.or_ended(self.ask(&["ps"]))
    }

    fn status(&self, pid: ContainerPid) -> Result<Status, Error> {
        self.or_ended(self.ask(&["status", &pid.to_string()]))
    }

    fn tasks_charged(&self) -> Result<u64, Error> {
        self.home.groups.tasks_charged()
    }

    fn signal(&self, pid: ContainerPid, signal: Signal) -> Result<(), Error> {
        let signal = match signal {
            Signal::Term => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Stop => rustix::process::Signal::STOP,
            Signal::Continue => rustix::process::Signal::CONT,
        };
        let fault =
            |errno: rustix::io::Errno| Error::io(format!("signal process {pid} of the container"))(errno.into());
        let gone = || Error::Engine(format!("signal process {pid} of the container: it has ended"));
        if pid == ContainerPid::INIT {
            return pidfd_send_signal(self.life.init.as_ref().ok_or_else(gone)?, signal).map_err(fault);
        }
        let outside = home::find_outside(self.life.pid, pid)?.ok_or_else(gone)?;
        pidfd_send_signal(open_process(outside)?.ok_or_else(gone)?, signal).map_err(fault)
    }

    fn kill_and_restart(&mut self) -> Result<(), Error> {
        self.kill()?;
        self.home.renew_groups(self.engine)?;
        self.life = self.recipe.start_again(self.engine, &self.home)?;
        Ok(())
    }

    fn type_in(&self, keys: &[u8]) -> Result<(), Error> {
        let terminal = self.life.terminal.as_ref();
        terminal.ok_or_else(|| Error::Engine("type into the container: it has no terminal".to_owned()))?.type_in(keys)
    }

    fn ended(&self) -> Result<Option<ExitCode>, Error> {
        if let Some(terminal) = &self.life.terminal {
            // Read on the way, so that a full terminal never stops the container.
            terminal.shown()?;
        }
        let mut outside = self
            .life
            .outside
            .lock()
            .map_err(|_| Error::Engine("wait for the container: a waiter panicked".to_owned()))?;
        if outside.ended.is_none() {
            let status = outside.child.try_wait().map_err(Error::io("wait for the container"))?;
            outside.ended = status.map(exit_code);
        }
        Ok(outside.ended)
    }

    fn wait(&self, limit: Duration) -> Result<ExitCode, Error> {
        self.engine.interrupt.until("the container's end", limit, || self.ended())
    }

    fn log(&self) -> Result<String, Error> {
        match &self.life.terminal {
            Some(terminal) => terminal.shown(),
            None => read_end(&self.home.log(), OUTPUT_BYTES_MAX),
        }
    }

    fn remove(mut self: Box<Self>) -> Result<(), Error> {
        self.take_down()
    }
}

impl Drop for Contained<'_> {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = self.take_down()
        {
            self.engine.record_leftover(error.to_string());
        }
    }
}

pub(super) fn to_json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Engine(format!("write a description: {error}")))
}

/// `None` where the process has ended already: a container may live for less than a millisecond.
pub(super) fn open_process(pid: HostPid) -> Result<Option<OwnedFd>, Error> {
    let raw = Pid::from_raw(pid.0).ok_or_else(|| Error::Engine(format!("open process {pid}: not a pid")))?;
    match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(errno) => Err(Error::io(format!("open process {pid}"))(errno.into())),
    }
}

/// Kills a probe outside and all that it has started: it leads a session, and so a group, of its own.
pub(super) fn kill_session(child: &mut Child) {
    if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
        // ESRCH: it has ended, or has not made its group yet; then the kill below is enough.
        let _ = kill_process_group(pid, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}
