//! One container of the namespaces engine: a probe outside that waits for it, its groups, its directory. Dropping it, on
//! whatever path, kills the PID namespace and removes groups and directory. It must never outlive the thread that
//! started it: the kernel's parent-death signal is armed on that thread (prctl(2)).

use super::Namespaces;
use super::home::{self, Home, read_end};
use super::terminal::Terminal;
use crate::engine::{Container, ContainerPid, ExitCode, HostPid, Input, Launch, Output, Process, Signal, Status};
use crate::spec::{self, Entry, Place};
use crate::wait::Wait;
use crate::{Error, Interrupt};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// From the first mount to exec.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// From SIGKILL to the end of every process of the PID namespace.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// From the death of a container's PID 1 to the news of it.
const END_GRACE: Duration = Duration::from_millis(500);
/// What is read of a command's output, and of the end of a log.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// The probe's exit code for its own failures, as docker's for its own.
const PROBE_FAILED: u8 = 125;

pub(super) struct Contained<'a> {
    engine: &'a Namespaces,
    home: Home,
    outside: Mutex<Outside>,
    pid: HostPid,
    /// Refers to PID 1 whatever its number is used for later; none where PID 1 had ended before it could be opened.
    init: Option<OwnedFd>,
    terminal: Option<Terminal>,
    /// What commands run with; only argv differs.
    process: spec::Process,
    commands: AtomicU32,
    removed: bool,
}

/// The probe that is the parent of PID 1, and what it ended with.
struct Outside {
    child: Child,
    ended: Option<ExitCode>,
}

/// A line of the container's report.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Report {
    Pid(i32),
    Error(String),
}

impl<'a> Contained<'a> {
    pub(super) fn start(engine: &'a Namespaces, launch: &Launch<'_>) -> Result<Contained<'a>, Error> {
        let home = Home::create(engine)?;
        match Contained::start_in(engine, launch, &home) {
            Ok((child, pid, init, terminal)) => Ok(Contained {
                engine,
                home,
                outside: Mutex::new(Outside { child, ended: None }),
                pid,
                init,
                terminal,
                process: spec::process(launch, Vec::new(), false),
                commands: AtomicU32::new(0),
                removed: false,
            }),
            Err(error) => {
                if let Err(left) = home.remove() {
                    engine.record_leftover(left.to_string());
                }
                Err(error)
            }
        }
    }

    fn start_in(
        engine: &Namespaces,
        launch: &Launch<'_>,
        home: &Home,
    ) -> Result<(Child, HostPid, Option<OwnedFd>, Option<Terminal>), Error> {
        if let Some(max) = launch.pids_max {
            home.groups.limit_tasks(max)?;
        }
        let group_mounts: Vec<_> = engine.hierarchies.iter().map(super::cgroup::Hierarchy::as_mount).collect();
        let place = Place {
            report: home.report(),
            scratch: home.directory.join("root"),
            groups: home.groups.entrances(),
            group_mounts: &group_mounts,
            probe: &engine.probe,
        };
        let description = to_json(&spec::describe(launch, place))?;
        // Open before the container opens its end, or that would wait for a reader.
        let mut report = open_report(&home.report())?;
        let mut command = Command::new(&engine.probe);
        command.args(["contain", &engine.owner.pid.to_string(), &description]).env_clear().current_dir("/");
        let terminal = connect(&mut command, &launch.input, home)?;
        let mut child = command.spawn().map_err(Error::io(format!("start {}", engine.probe.display())))?;
        // The parent's copies of the terminal's other end would keep it alive after the container.
        drop(command);
        let started = await_exec(engine, &mut child, &mut report, home).and_then(|pid| Ok((pid, open_process(pid)?)));
        match started {
            Ok((pid, init)) => Ok((child, pid, init, terminal)),
            Err(error) => {
                kill_session(&mut child);
                // The kernel ends the namespace with its parent; the groups' removal waits for that.
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn take_down(&mut self) -> Result<(), Error> {
        self.removed = true;
        if let Some(init) = &self.init {
            // ESRCH: PID 1 has ended meanwhile.
            let _ = pidfd_send_signal(init, rustix::process::Signal::KILL);
        }
        let ended = Interrupt::default().until("the container's end", KILL_TIMEOUT, || self.ended());
        self.home.remove().and(ended.map(|_| ()))
    }

    fn run(&self, argv: &[&str], limit: Duration, output: &Path, errors: &Path) -> Result<ExitCode, Error> {
        let create = |path: &Path| File::create(path).map_err(Error::io(format!("create {}", path.display())));
        let process =
            spec::Process { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..self.process.clone() };
        let entry = to_json(&Entry { pid: self.pid.0, groups: self.home.groups.entrances(), process })?;
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
        let proc = format!("/proc/{}/root/proc", self.pid);
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
            return pidfd_send_signal(self.init.as_ref().ok_or_else(gone)?, signal).map_err(fault);
        }
        let outside = home::find_outside(self.pid, pid)?.ok_or_else(gone)?;
        pidfd_send_signal(open_process(outside)?.ok_or_else(gone)?, signal).map_err(fault)
    }

    fn type_in(&self, keys: &[u8]) -> Result<(), Error> {
        let terminal = self.terminal.as_ref();
        terminal.ok_or_else(|| Error::Engine("type into the container: it has no terminal".to_owned()))?.type_in(keys)
    }

    fn ended(&self) -> Result<Option<ExitCode>, Error> {
        if let Some(terminal) = &self.terminal {
            // Read on the way, so that a full terminal never stops the container.
            terminal.shown()?;
        }
        let mut outside =
            self.outside.lock().map_err(|_| Error::Engine("wait for the container: a waiter panicked".to_owned()))?;
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
        match &self.terminal {
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

fn to_json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Engine(format!("write a description: {error}")))
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

/// `None` where the process has ended already: a container may live for less than a millisecond.
fn open_process(pid: HostPid) -> Result<Option<OwnedFd>, Error> {
    let raw = Pid::from_raw(pid.0).ok_or_else(|| Error::Engine(format!("open process {pid}: not a pid")))?;
    match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(errno) => Err(Error::io(format!("open process {pid}"))(errno.into())),
    }
}

/// Kills a probe outside and all that it has started: it leads a session, and so a group, of its own.
fn kill_session(child: &mut Child) {
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
