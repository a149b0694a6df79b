//! Processes under test: started as PID 1 of a new namespace or as a plain child, watched through /proc, gone when dropped.
//!
//! Every wait has a deadline ([`within`]); nothing sleeps to let something happen.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A check's outcome; the error is what was expected and what was found.
pub(crate) type Checked<T = ()> = Result<T, String>;

/// A process id as this process sees it.
pub(crate) type HostPid = i32;

/// Longest wait for a state. Far above what any takes, so that a loaded machine does not matter.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

thread_local! {
    /// The deadline of what this thread checks.
    static LIMIT: Cell<Duration> = const { Cell::new(DEADLINE) };
}

/// Runs `check` with this deadline for each of its waits.
pub(crate) fn within<T>(limit: Duration, check: impl FnOnce() -> T) -> T {
    let before = LIMIT.replace(limit);
    let outcome = check();
    LIMIT.set(before);
    outcome
}

/// Set for what is started outside of a namespace of its own, to a value of its own: an init that ends before its command
/// leaves it to this machine's PID 1, where nothing else would tell whose it is.
const MARK: &str = "DIND_INIT_TEST";

/// Marks a command and all that comes of it.
pub(crate) fn mark(command: &mut Command) -> Mark {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let value = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    command.env(MARK, &value);
    Mark(format!("{MARK}={value}\0"))
}

/// What is left of a marked command is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Mark(String);

impl Drop for Mark {
    fn drop(&mut self) {
        let has_mark = |process: &HostPid| {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            environment.windows(self.0.len()).any(|window| window == self.0.as_bytes())
        };
        // The children of those that are killed are left to the same adopters: they are found the next time.
        loop {
            let left: Vec<HostPid> = ancestors().into_iter().flat_map(children).filter(has_mark).collect();
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(|process| send(process, Signal::KILL));
        }
    }
}

/// By path, as a test may give the command any PATH.
const UNSHARE: &str = "/usr/bin/unshare";
const SETSID: &str = "/usr/bin/setsid";

/// How often a state is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls until `holds`. `state` completes the sentence "wait until ...".
pub(crate) fn eventually(state: &str, mut holds: impl FnMut() -> bool) -> Checked {
    let (start, limit) = (Instant::now(), LIMIT.get());
    while !holds() {
        if start.elapsed() > limit {
            return Err(format!("wait until {state}: not so after {limit:?}"));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// An error unless both are equal.
#[expect(clippy::needless_pass_by_value, reason = "a check on temporaries reads better without borrows")]
pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, found {found:?}")) }
}

/// An error unless `holds`.
pub(crate) fn ensure(holds: bool, message: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { Err(message.into()) }
}

/// A command that runs `program` as PID 1 of new PID and mount namespaces, in a session of its own.
pub(crate) fn as_pid1(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(UNSHARE);
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--", SETSID]).arg(program);
    command
}

/// A command that runs `program` as a child of this process, in a session of its own.
pub(crate) fn as_child(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(SETSID);
    command.arg(program);
    command
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A started command. Dropping it kills what is left of it.
pub(crate) struct Running {
    launcher: Child,
    is_pid1: bool,
    stdin: Option<ChildStdin>,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    /// Last, as the launcher is reaped first.
    _mark: Option<Mark>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Checked<Self> {
        let is_pid1 = command.get_program() == UNSHARE;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mark = (!is_pid1).then(|| mark(&mut command));
        let mut launcher = command.spawn().map_err(|error| format!("start {command:?}: {error}"))?;
        let stdout = lines(launcher.stdout.take());
        let stderr = lines(launcher.stderr.take());
        Ok(Self { stdin: launcher.stdin.take(), launcher, is_pid1, stdout, stderr, _mark: mark })
    }

    /// The next line of stdout.
    pub(crate) fn line(&self) -> Checked<String> {
        self.stdout.recv_timeout(LIMIT.get()).map_err(|error| {
            let stderr: Vec<String> = self.stderr.try_iter().collect();
            format!("wait for a line: {error}; stderr: {stderr:?}")
        })
    }

    /// Waits for the line that says that the process is where the test wants it.
    pub(crate) fn ready(&self) -> Checked {
        equal("line", self.line()?.as_str(), "ready")
    }

    /// Whether the process gets where the test wants it; stderr stays to be read.
    pub(crate) fn becomes_ready(&self) -> bool {
        self.stdout.recv_timeout(LIMIT.get()).is_ok_and(|line| line == "ready")
    }

    /// Writes a line to stdin.
    pub(crate) fn tell(&mut self, line: &str) -> Checked {
        let stdin = self.stdin.as_mut().ok_or("stdin is closed")?;
        writeln!(stdin, "{line}").map_err(|error| format!("write to stdin: {error}"))
    }

    /// The process that makes the namespaces, or the command itself.
    pub(crate) fn launcher(&self) -> HostPid {
        self.launcher.id().cast_signed()
    }

    /// The process under test: PID 1 of the new namespace, or the command itself.
    pub(crate) fn init(&self) -> Checked<HostPid> {
        let launcher = self.launcher.id().cast_signed();
        if !self.is_pid1 {
            return Ok(launcher);
        }
        only_child(launcher).ok_or_else(|| "find PID 1: unshare has no child".to_owned())
    }

    /// The command that the process under test started: the one child of it that leads a process group.
    pub(crate) fn main_child(&self) -> Checked<HostPid> {
        let leads = |child: &HostPid| Stat::of(*child).is_some_and(|stat| stat.group == *child);
        children(self.init()?).into_iter().find(leads).ok_or_else(|| "find the main child: none".to_owned())
    }

    /// Waits for the end, with stdin closed.
    pub(crate) fn wait(mut self) -> Checked<Ended> {
        drop(self.stdin.take());
        let mut status = None;
        eventually("the command has ended", || {
            status = self.launcher.try_wait().ok().flatten();
            status.is_some()
        })?;
        let status = status.ok_or("no status")?;
        let code = status.code().or_else(|| status.signal().map(|signal| 1000 + signal)).ok_or("no code")?;
        Ok(Ended { code, stdout: text(&self.stdout), stderr: text(&self.stderr) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The launcher may be gone already, and the kernel kills the namespace with its PID 1.
        if self.is_pid1
            && let Ok(init) = self.init()
        {
            send(init, Signal::KILL);
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Checked<Ended> {
    Running::start(command)?.wait()
}

fn lines(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in stream.into_iter().flat_map(|stream| BufReader::new(stream).lines()) {
            // Nobody listens any more once the test has ended.
            if line.is_ok_and(|line| sender.send(line).is_err()) {
                break;
            }
        }
    });
    receiver
}

fn text(lines: &Receiver<String>) -> String {
    let (start, limit) = (Instant::now(), LIMIT.get());
    let rest = |_: &()| lines.recv_timeout(limit.saturating_sub(start.elapsed())).ok();
    std::iter::repeat(()).map_while(|unit| rest(&unit)).map(|line| line + "\n").collect()
}

/// What `/proc/PID/stat` says.
#[derive(Debug)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) parent: HostPid,
    pub(crate) group: HostPid,
    /// The foreground group of its terminal; -1 without one.
    pub(crate) foreground: HostPid,
}

impl Stat {
    /// `None` where there is no such process.
    pub(crate) fn of(process: HostPid) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (head, tail) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = tail.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self {
            name: head.split_once('(')?.1.to_owned(),
            state: (*fields.first()?).to_owned(),
            parent: number(1)?,
            group: number(2)?,
            foreground: number(5)?,
        })
    }
}

/// The children of a process, dead ones included, eldest first (proc_tid_children(5)). Never by a look at all processes:
/// this machine may have very many.
pub(crate) fn children(parent: HostPid) -> Vec<HostPid> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The child of a process that has one at most.
pub(crate) fn only_child(parent: HostPid) -> Option<HostPid> {
    fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?.split_whitespace().next()?.parse().ok()
}

/// The processes below one, nearest first.
pub(crate) fn descendants(top: HostPid) -> Vec<HostPid> {
    let mut found = vec![top];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(children(parent));
        next += 1;
    }
    found.split_off(1)
}

/// The processes above this one: those that may adopt what a test leaves.
fn ancestors() -> Vec<HostPid> {
    let parent = |process: &HostPid| Stat::of(*process).map(|stat| stat.parent).filter(|parent| *parent > 0);
    std::iter::successors(Some(std::process::id().cast_signed()), parent).collect()
}

/// The names of a process and of those below it, sorted.
pub(crate) fn names(top: HostPid) -> Vec<String> {
    let all = std::iter::once(top).chain(descendants(top));
    let mut names: Vec<String> = all.filter_map(|id| Some(Stat::of(id)?.name)).collect();
    names.sort();
    names
}

/// How many children of a process are dead and not reaped.
pub(crate) fn zombies(parent: HostPid) -> usize {
    children(parent).into_iter().filter_map(Stat::of).filter(|stat| stat.state == "Z").count()
}

/// A line of `/proc/PID/status`, without its name.
pub(crate) fn status_line(process: HostPid, name: &str) -> Checked<String> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).map_err(|error| error.to_string())?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned()).ok_or_else(|| format!("find {name} in the status of {process}"))
}

/// Sends a signal to a process; one that is gone is none to worry about.
pub(crate) fn send(process: HostPid, signal: Signal) {
    if let Some(process) = Pid::from_raw(process) {
        let _ = kill_process(process, signal);
    }
}

/// Sends any signal by its number, with a value if `arguments` name one, as kill(1) of procps does.
pub(crate) fn send_number(process: HostPid, number: i32, arguments: &[&str]) -> Checked {
    let mut command = Command::new("/usr/bin/kill");
    command.args(["-s", &number.to_string()]).args(arguments).arg(process.to_string());
    let status = command.status().map_err(|error| format!("start kill: {error}"))?;
    ensure(status.success(), format!("send signal {number}: {status}"))
}
