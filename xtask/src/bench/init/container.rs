//! A program as PID 1 of a new PID namespace, watched from outside. What it could tidy or take of the machine's own is hidden from it. It is
//! killed when its guard is dropped, and with it all that it started.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use super::process::Process;

/// How long a container may take to say or do what it is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);
/// An init has come to rest once it has slept, without waking, for so long.
const REST: Duration = Duration::from_millis(50);
/// How long that may take.
const REST_TIMEOUT: Duration = Duration::from_secs(10);
/// Where programs are looked for: the same place for everyone.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A way to run a command as PID 1.
#[derive(Debug, Clone)]
pub struct Contestant {
    /// What it is called in the tables.
    pub name: &'static str,
    /// The words before the command's: an init and what it is told. None: the command is PID 1 itself.
    pub words: Vec<OsString>,
    /// What its environment has besides PATH.
    pub variable: Option<(&'static str, &'static str)>,
}

impl Contestant {
    /// `program -- COMMAND`
    pub fn new(name: &'static str, program: &Path) -> Self {
        Self { name, words: vec![program.into(), "--".into()], variable: None }
    }

    fn command(&self, words: &[&OsStr]) -> Result<Command> {
        let mut all = self.words.iter().map(OsString::as_os_str).chain(words.iter().copied());
        let mut command = Command::new(all.next().context("start a container: expected a command, found none")?);
        command.args(all).env_clear().env("PATH", PATH).envs(self.variable);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        Ok(command)
    }
}

/// Does `work` in a thread with mounts of its own: an init that tidies up finds an empty /run, and one that takes the terminal finds none.
/// Error: these cannot be made (they need root), or the work's.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace")?;
        // Nothing of what follows reaches the machine's own mounts.
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).context("keep mounts to ourselves")?;
        mount("bench", "/run", "tmpfs", MountFlags::empty(), None).context("hide /run")?;
        mount_bind("/dev/null", "/dev/tty").context("hide /dev/tty")?;
        work()
    })
}

fn in_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What the monotonic clock shows, in nanoseconds: the clock that the probe reads.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A running container.
#[derive(Debug)]
pub(super) struct Container {
    name: &'static str,
    init: Child,
    stdout: ChildStdout,
    /// When it was about to be started, by [`now`].
    pub(super) started: u64,
}

impl Container {
    /// Starts `words` by a contestant. Their stdin ends when the container is dropped, or we are.
    pub(super) fn start<W: AsRef<OsStr>>(contestant: &Contestant, words: &[W]) -> Result<Self> {
        let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
        let mut command = contestant.command(&words)?;
        let context = || format!("start {} {words:?}", contestant.name);
        // A thread's next child, and only that, is PID 1 of the namespace that the thread has made.
        let (mut init, started) = in_thread(|| {
            unshare(CloneFlags::CLONE_NEWPID).context("make a PID namespace")?;
            let started = now();
            Ok((command.spawn()?, started))
        })
        .with_context(context)?;
        let stdout = init.stdout.take().context("read stdout: the container has none")?;
        Ok(Self { name: contestant.name, init, stdout, started })
    }

    /// PID 1, as it is seen from outside.
    pub(super) fn process(&self) -> Process {
        Process(self.init.id())
    }

    /// Lets the command go on that waits for a line.
    pub(super) fn go(&mut self) -> Result<()> {
        let stdin = self.init.stdin.as_mut().context("write to stdin: the container has none")?;
        stdin.write_all(b"go\n").with_context(|| format!("write to {}", self.name))
    }

    /// Whether the command has said something that is not read yet, or has ended.
    pub(super) fn has_said(&self) -> Result<bool> {
        let at_once = Timespec::default();
        let ready = poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&at_once));
        Ok(ready.with_context(|| format!("look for what {} says", self.name))? > 0)
    }

    /// Waits for the time that the probe writes.
    pub(super) fn stamp(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(&mut bytes).context("wait for the probe")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Waits until the command says this line.
    pub(super) fn said(&mut self, line: &str) -> Result<()> {
        let mut bytes = vec![0; line.len() + 1];
        self.read(&mut bytes).with_context(|| format!("wait for `{line}`"))?;
        let found = String::from_utf8_lossy(&bytes);
        ensure!(found.strip_suffix('\n') == Some(line), "{}: expected `{line}`, found {found:?}", self.name);
        Ok(())
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            wait_for(&self.stdout, PollFlags::IN, self.name)?;
            match self.stdout.read(bytes)? {
                0 => {
                    let status = self.end()?;
                    bail!("{} ended early: {status}", self.name)
                }
                read => bytes = &mut bytes[read..],
            }
        }
        Ok(())
    }

    /// Waits until the init sleeps and stays asleep: what it does at the start is done.
    pub(super) fn rest(&self) -> Result<()> {
        let deadline = Instant::now() + REST_TIMEOUT;
        loop {
            let before = self.process().switches()?;
            thread::sleep(REST);
            if self.process().sleeps()? && self.process().switches()? == before {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "wait for {}: it was not at rest after {REST_TIMEOUT:?}", self.name);
        }
    }

    /// Sends a signal to the init.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.init), signal).with_context(|| format!("signal {}", self.name))
    }

    /// Waits for the init's end.
    pub(super) fn end(&mut self) -> Result<ExitStatus> {
        let pidfd = pidfd_open(Pid::from_child(&self.init), PidfdFlags::empty()).context("open a pidfd")?;
        wait_for(&pidfd, PollFlags::IN, format_args!("{}'s end", self.name))?;
        self.init.wait().with_context(|| format!("wait for {}", self.name))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Both fail only where it has been waited for. The kernel ends whatever else is in the namespace first (pid_namespaces(7)).
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

/// Waits until a file can be read or its other end is closed.
pub(super) fn wait_for(file: &impl AsFd, event: PollFlags, what: impl Display) -> Result<()> {
    let timeout = Timespec::try_from(TIMEOUT).map_err(|_| anyhow!("wait for {what}: no such time"))?;
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        match poll(&mut [PollFd::new(file, event)], Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => return Ok(()),
            // A signal that asks us to end: whoever is next asks the flag.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).with_context(|| format!("wait for {what}")),
        }
    }
    bail!("wait for {what}: nothing after {TIMEOUT:?}")
}
