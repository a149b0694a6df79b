//! The step between the suite and a container: `contain` makes the namespaces, `exec` enters them. Both lead a session of
//! their own, so that the terminal's SIGINT stays away, and die with the suite. Each stays outside as the one parent of
//! what it starts, and ends with its exit code; it must never touch the host's mounts or groups.

use crate::enter::{self, Refusal};
use crate::spec::{Entry, Spec};
use crate::{Outcome, storage};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode};

/// What a container does not share with the host. Its mount namespace comes later, as a copy of its storage's, and its control
/// group namespace too, once it is in its group.
const FRESH: CloneFlags = CloneFlags::CLONE_NEWUTS
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWNET)
    .union(CloneFlags::CLONE_NEWPID);
/// Entered in this order: the mount namespace last, because the others are named by paths of the host's /proc.
const ENTERED: [&str; 6] = ["cgroup", "uts", "ipc", "net", "pid", "mnt"];

/// `owner` is the suite's pid, `spec` the container's description as JSON. Ends with the exit code of its PID 1.
pub(crate) fn contain(owner: &str, spec: &str) -> Outcome {
    let parsed: Spec =
        serde_json::from_str(spec).map_err(|error| format!("parse the container's description: {error}"))?;
    attend(owner)?;
    storage::enter(&parsed)?;
    unshare(FRESH).map_err(|errno| format!("make namespaces: {errno}"))?;
    let child = Command::new("/proc/self/exe")
        .args(["enter", spec])
        .spawn()
        .map_err(|error| format!("start the container's first process: {error}"))?;
    ending(child)
}

/// `entry` is JSON too: the container's PID 1 as the host numbers it, the groups to join, and what to run.
pub(crate) fn exec(owner: &str, entry: &str) -> Outcome {
    let entry: Entry = serde_json::from_str(entry).map_err(|error| format!("parse what to run: {error}"))?;
    attend(owner)?;
    join(&entry.groups)?;
    let mut doors = Vec::new();
    for kind in ENTERED {
        let path = format!("/proc/{}/ns/{kind}", entry.pid);
        doors.push((kind, File::open(&path).map_err(|error| format!("open {path}: {error}"))?));
    }
    for (kind, door) in doors {
        setns(door, CloneFlags::empty()).map_err(|errno| format!("enter the {kind} namespace: {errno}"))?;
    }
    let started = enter::command(&entry.process).and_then(|mut command| command.spawn().map_err(Refusal::from));
    match started {
        Ok(child) => ending(child),
        Err(refusal) => {
            eprintln!("probe: {}: {}", entry.process.argv.join(" "), refusal.reason);
            Ok(ExitCode::from(refusal.code))
        }
    }
}

/// Leads a session and arms the death signal that ties this process to the suite.
fn attend(owner: &str) -> Result<(), String> {
    close_inherited()?;
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| format!("set the parent-death signal: {errno}"))?;
    // The owner may have died before the signal was armed: then a stranger is the parent now (prctl(2)).
    let parent = unistd::getppid().to_string();
    if parent != owner {
        return Err(format!("find the suite: expected parent {owner}, found {parent}"));
    }
    unistd::setsid().map_err(|errno| format!("start a session: {errno}"))?;
    Ok(())
}

/// Closes what the suite's own caller may have left open, so that no container inherits it. Standard streams stay.
fn close_inherited() -> Result<(), String> {
    let listed = fs::read_dir("/proc/self/fd").map_err(|error| format!("list open files: {error}"))?;
    let numbers: Vec<i32> = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // EBADF: the listing's own handle, which is closed by now.
        let _ = unistd::close(number);
    }
    Ok(())
}

/// Moves this process into control groups, each named by its cgroup.procs file.
pub(crate) fn join(groups: &[std::path::PathBuf]) -> Result<(), String> {
    for procs in groups {
        // "0" stands for the writing process in both cgroup versions.
        fs::write(procs, "0").map_err(|error| format!("join {}: {error}", procs.display()))?;
    }
    Ok(())
}

/// Waits, and says a death by signal n as 128 + n, as docker does.
fn ending(mut child: Child) -> Outcome {
    let status = child.wait().map_err(|error| format!("wait for the child: {error}"))?;
    let code =
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).and_then(|code| u8::try_from(code).ok());
    code.map(ExitCode::from).ok_or_else(|| format!("read exit code: found {status}"))
}
