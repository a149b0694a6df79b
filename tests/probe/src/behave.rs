//! Well-defined misbehaviour: orphans on command, and three faulty inits as controls. Nothing here may
//! be better than it says: a control that reaps by accident would blind the suite.

use crate::Outcome;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{self, Pid};
use std::env;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

/// How long a daemon may take to answer one ping.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

const ORPHAN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Signals of init(1)'s duty that the controls handle; blocked at once, so that none is lost before it is waited for.
fn waited_signals() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        set.add(signal);
    }
    set
}

pub(crate) fn sleep(seconds: u64) -> Outcome {
    std::thread::sleep(Duration::from_secs(seconds));
    Ok(ExitCode::SUCCESS)
}

/// Leaves `count` children that end as soon as they are orphans: zombies, unless whoever adopts them reaps them.
pub(crate) fn orphans(count: u32) -> Outcome {
    let program = env::current_exe().map_err(|error| format!("find own program: {error}"))?;
    let parent = unistd::getpid().to_string();
    for _ in 0..count {
        // Not waited for: that is the point.
        let _orphan = Command::new(&program)
            .args(["orphan", &parent])
            .spawn()
            .map_err(|error| format!("start child: {error}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends once `parent` is no longer its parent.
pub(crate) fn orphan(parent: i32) -> Outcome {
    while unistd::getppid().as_raw() == parent {
        std::thread::sleep(ORPHAN_POLL_INTERVAL);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether anybody listens on the socket.
pub(crate) fn connect(socket: &Path) -> Outcome {
    UnixStream::connect(socket).map_err(|error| format!("connect {}: {error}", socket.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// One HTTP request, as `docker version` would send it first.
pub(crate) fn ping(socket: &Path) -> Outcome {
    let mut stream = UnixStream::connect(socket).map_err(|error| format!("connect {}: {error}", socket.display()))?;
    stream.set_read_timeout(Some(PING_TIMEOUT)).map_err(|error| format!("set time-out: {error}"))?;
    stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n").map_err(|error| format!("send ping: {error}"))?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).map_err(|error| format!("read answer: {error}"))?;
    match head.strip_prefix(b"HTTP/1.") {
        Some([_, b' ', b'2', b'0', ..]) => Ok(ExitCode::SUCCESS),
        _ => Err(format!("ping: expected status 200, found {}", String::from_utf8_lossy(&head))),
    }
}

/// Stands in for docker-init and lets the daemon be PID 1, as in images from before the workaround.
pub(crate) fn exec_only(args: &[OsString]) -> Outcome {
    let Some(split) = args.iter().position(|arg| arg == "--") else {
        println!("probe in place of docker-init");
        return Ok(ExitCode::SUCCESS);
    };
    let (program, args) = args[split + 1..].split_first().ok_or("exec: no command after `--`")?;
    let error = Command::new(program).args(args).exec();
    Err(format!("exec {}: {error}", program.display()))
}

/// Waits for its own child by pid and for nothing else, as a Go, Node or shell-less supervisor does.
pub(crate) fn no_reap(argv: &[&str]) -> Outcome {
    supervise(argv, poll_child)
}

/// One wait4(-1) for each SIGCHLD: signals coalesce, so a burst of deaths leaves zombies.
pub(crate) fn reap_one(argv: &[&str]) -> Outcome {
    supervise(argv, |child| match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        Ok(status) if status.pid() == Some(Pid::from_raw(child.id().cast_signed())) => Ok(exit_code(status)),
        Ok(_) | Err(Errno::ECHILD) => Ok(None),
        Err(errno) => Err(format!("wait for any child: {errno}")),
    })
}

/// Runs `argv` as the one child, forwards TERM and INT to it, and asks `reap` at every SIGCHLD whether it has ended.
fn supervise(argv: &[&str], reap: impl Fn(&mut Child) -> Result<Option<u8>, String>) -> Outcome {
    let (program, args) = argv.split_first().ok_or("supervise: no command after `--`")?;
    let signals = waited_signals();
    signals.thread_block().map_err(|errno| format!("block signals: {errno}"))?;
    // std's spawn hands on the signal mask of its thread: one that blocks nothing, so that the child hears what is blocked here.
    let spawn = || {
        signals.thread_unblock().map_err(|errno| format!("unblock signals: {errno}"))?;
        Command::new(program).args(args).spawn().map_err(|error| format!("start {program}: {error}"))
    };
    let spawned = std::thread::scope(|scope| scope.spawn(spawn).join());
    let mut child = spawned.map_err(|_| format!("start {program}: the thread panicked"))??;
    let pid = Pid::from_raw(child.id().cast_signed());
    // That thread may have taken the SIGCHLD of a child that ended at once.
    if let Some(code) = reap(&mut child)? {
        return Ok(ExitCode::from(code));
    }
    loop {
        match signals.wait().map_err(|errno| format!("wait for a signal: {errno}"))? {
            Signal::SIGCHLD => {
                if let Some(code) = reap(&mut child)? {
                    return Ok(ExitCode::from(code));
                }
            }
            // ESRCH: the child has ended and its SIGCHLD is on the way.
            forwarded => match kill(pid, forwarded) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(format!("forward {forwarded}: {errno}")),
            },
        }
    }
}

fn poll_child(child: &mut Child) -> Result<Option<u8>, String> {
    let pid = Pid::from_raw(child.id().cast_signed());
    let status = waitpid(pid, Some(WaitPidFlag::WNOHANG)).map_err(|errno| format!("wait for the child: {errno}"))?;
    Ok(exit_code(status))
}

/// 128 + n for a death by signal n, as shells and docker say it.
fn exit_code(status: WaitStatus) -> Option<u8> {
    match status {
        WaitStatus::Exited(_, code) => u8::try_from(code).ok(),
        WaitStatus::Signaled(_, signal, _) => u8::try_from(128 + signal as i32).ok(),
        _ => None,
    }
}
