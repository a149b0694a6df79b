//! One life of a container, from its description to the exec of its PID 1: the probe outside, the report that it is waited by,
//! the standard streams. A container has several where it is killed and started again. It must never outlive the thread that
//! started it: the kernel's parent-death signal is armed on that thread (prctl(2)).

use super::Namespaces;
use super::cgroup::Hierarchy;
use super::container::{OUTPUT_BYTES_MAX, kill_session, open_process, to_json};
use super::home::{Home, read_end};
use super::terminal::Terminal;
use crate::Error;
use crate::engine::{ExitCode, HostPid, Input, Launch};
use crate::spec::{self, Place, Process, Spec};
use crate::wait::Wait;
use rustix::fs::OFlags;
use serde::Deserialize;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// From the first mount to exec.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// What each life of a container is started from.
pub(super) struct Recipe {
    spec: Spec,
    input: Input,
    pids_max: Option<u32>,
    /// The mount namespace that holds the writable layer and the volumes. None before the first life, and where that had ended
    /// before it could be opened.
    storage: Option<File>,
}

/// A container's PID 1 and what belongs to it alone.
pub(super) struct Life {
    pub outside: Mutex<Outside>,
    pub pid: HostPid,
    /// Refers to PID 1 whatever its number is used for later; none where PID 1 had ended before it could be opened.
    pub init: Option<OwnedFd>,
    pub terminal: Option<Terminal>,
}

/// The probe that is the parent of PID 1, and what it ended with.
pub(super) struct Outside {
    pub child: Child,
    pub ended: Option<ExitCode>,
}

/// A line of the container's report.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Report {
    Pid(i32),
    Error(String),
}

impl Recipe {
    pub(super) fn new(engine: &Namespaces, launch: &Launch<'_>, home: &Home) -> Recipe {
        let group_mounts: Vec<_> = engine.hierarchies.iter().map(Hierarchy::as_mount).collect();
        let place = Place {
            report: home.report(),
            scratch: home.directory.join("root"),
            groups: home.groups.entrances(),
            group_mounts: &group_mounts,
            probe: &engine.probe,
        };
        let spec = spec::describe(launch, place);
        Recipe { spec, input: launch.input.clone(), pids_max: launch.pids_max, storage: None }
    }

    /// What a command in the container runs with.
    pub(super) fn command(&self, argv: &[&str]) -> Process {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        Process { argv, terminal: false, ..self.spec.process.clone() }
    }

    /// Starts the container's first life.
    pub(super) fn start(&mut self, engine: &Namespaces, home: &Home) -> Result<Life, Error> {
        let life = self.begin(engine, home)?;
        let outside =
            life.outside.lock().map_err(|_| Error::Engine("start the container: a waiter panicked".to_owned()))?;
        // The probe outside stays in that namespace. No file: it has ended already, and the container with it.
        self.storage = File::open(format!("/proc/{}/ns/mnt", outside.child.id())).ok();
        drop(outside);
        Ok(life)
    }

    /// Starts the next life, once the one before has ended, with the writable layer and the volumes that it has left.
    pub(super) fn start_again(&mut self, engine: &Namespaces, home: &Home) -> Result<Life, Error> {
        let storage = self.storage.as_ref().ok_or_else(|| {
            Error::Engine("start the container again: it had ended before its file system could be kept".to_owned())
        })?;
        self.spec.earlier = Some(format!("/proc/{}/fd/{}", engine.owner.pid, storage.as_raw_fd()).into());
        self.begin(engine, home)
    }

    fn begin(&self, engine: &Namespaces, home: &Home) -> Result<Life, Error> {
        if let Some(max) = self.pids_max {
            home.groups.limit_tasks(max)?;
        }
        // Open before the container opens its end, or that would wait for a reader.
        let mut report = open_report(&home.report())?;
        let mut command = Command::new(&engine.probe);
        command.args(["contain", &engine.owner.pid.to_string(), &to_json(&self.spec)?]).env_clear().current_dir("/");
        let terminal = connect(&mut command, &self.input, home)?;
        let mut child = command.spawn().map_err(Error::io(format!("start {}", engine.probe.display())))?;
        // The parent's copies of the terminal's other end would keep it alive after the container.
        drop(command);
        let started = await_exec(engine, &mut child, &mut report, home).and_then(|pid| Ok((pid, open_process(pid)?)));
        match started {
            Ok((pid, init)) => Ok(Life { outside: Mutex::new(Outside { child, ended: None }), pid, init, terminal }),
            Err(error) => {
                kill_session(&mut child);
                // The kernel ends the namespace with its parent; the groups' removal waits for that.
                let _ = child.wait();
                Err(error)
            }
        }
    }
}

fn open_report(path: &Path) -> Result<File, Error> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(Error::io(format!("open {}", path.display())))
}

/// Gives the command its standard streams.
fn connect(command: &mut Command, input: &Input, home: &Home) -> Result<Option<Terminal>, Error> {
    let file = |path: &Path| File::create(path).map_err(Error::io(format!("create {}", path.display())));
    if *input == Input::Terminal {
        let (terminal, slave) = Terminal::open()?;
        let copy = || slave.try_clone().map_err(Error::io("copy the terminal's handle"));
        command.stdin(copy()?).stdout(copy()?).stderr(copy()?);
        return Ok(Some(terminal));
    }
    let log = file(&home.log())?;
    command.stdout(log.try_clone().map_err(Error::io("copy the log's handle"))?).stderr(log);
    match input {
        Input::Bytes(bytes) => {
            let path = home.directory.join("input");
            fs::write(&path, bytes).map_err(Error::io(format!("write {}", path.display())))?;
            command.stdin(File::open(&path).map_err(Error::io(format!("open {}", path.display())))?);
        }
        Input::Nothing | Input::Terminal => {
            command.stdin(Stdio::null());
        }
    }
    Ok(None)
}

/// Reads the report until its end, which is the moment of exec.
fn await_exec(engine: &Namespaces, child: &mut Child, report: &mut File, home: &Home) -> Result<HostPid, Error> {
    let mut text = Vec::new();
    engine.interrupt.until("the container's first process", START_TIMEOUT, || {
        // Looked at before the report is read: once it has ended, the report is complete.
        let ended = child.try_wait().map_err(Error::io("wait for the container"))?;
        let mut chunk = [0; 4096];
        let finished = loop {
            match report.read(&mut chunk) {
                // No writer: not yet, where nothing was written so far; for good otherwise.
                Ok(0) => break !text.is_empty(),
                Ok(length) => text.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) => return Err(Error::io("read the container's report")(error)),
            }
        };
        if finished { read_report(&text).map(Some) } else { ended.map_or(Ok(None), |status| Err(died(status, home))) }
    })
}

fn read_report(text: &[u8]) -> Result<HostPid, Error> {
    let mut pid = None;
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(Report::Pid(number)) => pid = Some(HostPid(number)),
            Ok(Report::Error(message)) => return Err(Error::Engine(format!("set the container up: {message}"))),
            Err(error) => return Err(Error::Engine(format!("read the container's report: {error}"))),
        }
    }
    pid.ok_or_else(|| Error::Engine("read the container's report: expected a pid, found none".to_owned()))
}

fn died(status: ExitStatus, home: &Home) -> Error {
    let log = read_end(&home.log(), OUTPUT_BYTES_MAX).unwrap_or_default();
    Error::Engine(format!("start the container: expected a pid, found {status}: {}", log.trim()))
}
