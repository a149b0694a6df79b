//! What an engine must be able to do: start an image as a container with its own PID 1, enter it, look at its processes,
//! stop it, and leave nothing behind. It must never know a scenario.

use crate::{Error, Subject};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A process id as the container's own processes see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerPid(pub i32);

impl ContainerPid {
    /// The container's own init, whatever program that is.
    pub const INIT: ContainerPid = ContainerPid(1);
}

/// A process id as the machine that runs the suite sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPid(pub i32);

impl fmt::Display for ContainerPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for HostPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a command or container ended, in docker's numbers: its own code, or 128 + n for death by signal n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCode(pub u8);

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The signals that the suite sends to a container's PID 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, how a container is asked to stop.
    Term,
    /// SIGKILL, how it is stopped that did not.
    Kill,
    /// SIGSTOP, which makes it stand still.
    Stop,
    /// SIGCONT, after which it goes on.
    Continue,
}

/// What the container finds on its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing: /dev/null.
    Nothing,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// A terminal, which is its output too; see [`Container::type_in`].
    Terminal,
}

/// One container to start.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The image.
    pub subject: &'a Subject,
    /// The whole command line of PID 1.
    pub argv: Vec<String>,
    /// The environment, as `NAME=value`.
    pub env: Vec<String>,
    /// Standard input.
    pub input: Input,
    /// Files and directories of the host, and where they appear, read only, in the container.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Fresh empty volumes beside those that the image declares.
    pub volumes: Vec<PathBuf>,
    /// A limit on the number of tasks.
    pub pids_max: Option<u32>,
}

/// What a command in a container wrote, each stream cut at an engine's bound, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit code.
    pub code: ExitCode,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// One line of a container's process table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id in the container.
    pub pid: ContainerPid,
    /// Its parent's id in the container; 0 for PID 1 and for what entered from outside.
    pub ppid: ContainerPid,
    /// The state's letter, as in proc_pid_stat(5); `Z` is a zombie.
    pub state: char,
    /// The command name, at most 15 bytes. For people to read: nothing is ever counted by it.
    pub comm: String,
    /// How many threads it has.
    pub threads: u64,
    /// Start time in clock ticks after boot: with the pid, it names a process for good.
    pub start: u64,
}

/// A process's signal masks, as hexadecimal text of proc_pid_status(5), and its open files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The program's path.
    pub exe: String,
    /// The command line.
    pub cmdline: Vec<String>,
    /// `SigBlk`.
    pub blocked: String,
    /// `SigIgn`.
    pub ignored: String,
    /// `SigCgt`.
    pub caught: String,
    /// The open files.
    pub files: Vec<OpenFile>,
}

/// One open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its number.
    pub fd: i32,
    /// What it refers to, as /proc shows it.
    pub target: String,
}

/// What a verdict says about where it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The engine's name.
    pub engine: String,
    /// The kernel's release.
    pub kernel: String,
    /// `v1` (a hybrid layout too) or `v2`.
    pub cgroup: String,
}

/// Starts containers. Engines are used from several threads at once.
pub trait Engine: Sync {
    /// Where the containers run.
    fn facts(&self) -> Facts;

    /// Starts a container and returns once its PID 1 is the image's own program. The thread that calls this must live
    /// as long as the container: with it, the container ends.
    fn start<'a>(&'a self, launch: &Launch<'_>) -> Result<Box<dyn Container + 'a>, Error>;

    /// What containers that were dropped have left because it could not be removed; empty when all is well.
    fn leftovers(&self) -> Vec<String>;
}

/// A started container; dropping it kills and removes it.
pub trait Container: Sync {
    /// Runs a command in the container with the environment of its PID 1, for at most `limit`. A command that could not
    /// be run has exit code 126 or 127, as with docker. In a container that has ended it is [`Error::Image`].
    fn exec(&self, argv: &[&str], limit: Duration) -> Result<Output, Error>;

    /// All processes in the container's PID namespace, ascending by pid.
    fn processes(&self) -> Result<Vec<Process>, Error>;

    /// One process of the container.
    fn status(&self, pid: ContainerPid) -> Result<Status, Error>;

    /// How many tasks are charged to the container's pids control group, zombies included.
    fn tasks_charged(&self) -> Result<u64, Error>;

    /// Sends a signal to one of the container's processes, from outside as `docker kill` does: PID 1 is not immune.
    fn signal(&self, pid: ContainerPid, signal: Signal) -> Result<(), Error>;

    /// Kills the container in mid-life and starts it again, as `docker kill` and `docker start` do: the writable layer, whatever
    /// of /run it holds included, and the volumes are kept; processes, namespaces, groups and all other mounts are new. The log
    /// begins anew. Returns and binds the calling thread as [`Engine::start`] does.
    fn kill_and_restart(&mut self) -> Result<(), Error>;

    /// Types into a container that was started with [`Input::Terminal`].
    fn type_in(&self, keys: &[u8]) -> Result<(), Error>;

    /// How the container ended, or `None` while it runs.
    fn ended(&self) -> Result<Option<ExitCode>, Error>;

    /// Waits for the container's end.
    fn wait(&self, limit: Duration) -> Result<ExitCode, Error>;

    /// What PID 1 and its children have written so far, both streams, the end of it where it is long.
    fn log(&self) -> Result<String, Error>;

    /// Kills what is left and removes all that belonged to the container.
    ///
    /// # Errors
    /// Names what could not be removed.
    fn remove(self: Box<Self>) -> Result<(), Error>;
}
