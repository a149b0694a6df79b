//! Surroundings that an init does not wish for: calls refused by seccomp, no process left, no /proc, no privileges. It runs
//! the command all the same, or says in one line why not; PID 1 never just hangs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use super::command::{folder, is_one_line};
use super::process::{
    Checked, Ended, Running, as_child, as_pid1, children, ensure, equal, eventually, run, send, zombies,
};
use super::reaping::{ORPHANS, is_in, orphans};
use super::subject::Subject;
use super::{Check, helper};

pub(crate) const CHECKS: &[Check] = &[
    ("bad_seccomp_refuses_prctl", refused_prctl, &[]),
    ("bad_seccomp_refuses_pidfds", refused_pidfds, &[]),
    ("bad_seccomp_refuses_signalfd_and_poll", refused_polling, &[]),
    ("bad_seccomp_refuses_ioctl", refused_ioctl, &[]),
    ("bad_seccomp_refuses_close_range", refused_close_range, &[]),
    ("bad_seccomp_refuses_sigtimedwait", refused_waiting, &[]),
    ("bad_seccomp_refuses_all_of_them", refused_all, &[]),
    ("bad_limit_of_files_is_taken_away", no_files_left, &[]),
    ("bad_no_process_left", no_process_left, &[]),
    ("bad_no_process_left_for_a_child", no_process_left_below, &[]),
    ("bad_proc_is_missing", without_proc, &[]),
    ("bad_proc_is_read_only", read_only_proc, &[]),
    ("bad_user_has_no_privileges", unprivileged, &[]),
    ("bad_streams_are_closed_and_no_command", closed_and_missing, &[]),
];

/// The user of a check that needs one without processes or privileges. It need not exist.
const NOBODY: &str = "54321";

/// Ends with 42 for TERM.
const OBEYS: &str = "trap 'exit 42' TERM; echo ready; while :; do sleep 0.01; done";

/// Any clone(2) that asks for a pidfd.
const CLONE_WITH_PIDFD: &str = "clone(CLONE_PIDFD)";

/// The calls that a filter can refuse.
fn number(call: &str) -> Option<libc::c_long> {
    Some(match call {
        "prctl" => libc::SYS_prctl,
        "pidfd_open" => libc::SYS_pidfd_open,
        "pidfd_send_signal" => libc::SYS_pidfd_send_signal,
        "clone3" => libc::SYS_clone3,
        CLONE_WITH_PIDFD => libc::SYS_clone,
        "waitid" => libc::SYS_waitid,
        "signalfd4" => libc::SYS_signalfd4,
        "ppoll" => libc::SYS_ppoll,
        "ioctl" => libc::SYS_ioctl,
        "close_range" => libc::SYS_close_range,
        "rt_sigtimedwait" => libc::SYS_rt_sigtimedwait,
        _ => return None,
    })
}

/// The helper: executes a program to which `calls` (`ERRNO:CALL,CALL...`) are refused.
pub(crate) fn refuse(calls: &str, program: &str, arguments: &[&str]) -> Checked {
    let (errno, calls) = calls.split_once(':').ok_or("refuse: no errno")?;
    let errno: u32 = errno.parse().map_err(|error| format!("refuse: {error}"))?;
    let mut rules = BTreeMap::new();
    for call in calls.split(',') {
        let number = number(call).ok_or_else(|| format!("refuse: there is no call {call}"))?;
        rules.insert(number, if call == CLONE_WITH_PIDFD { vec![with_pidfd()?] } else { Vec::new() });
    }
    let failed = |error: &dyn std::fmt::Display| format!("make a filter: {error}");
    let arch = std::env::consts::ARCH.try_into().map_err(|error: seccompiler::BackendError| failed(&error))?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch);
    let program_of_filter: BpfProgram =
        filter.and_then(TryInto::try_into).map_err(|error: seccompiler::BackendError| failed(&error))?;
    apply_filter(&program_of_filter).map_err(|error| failed(&error))?;
    Err(format!("execute {program}: {}", Command::new(program).args(arguments).exec()))
}

fn with_pidfd() -> Checked<SeccompRule> {
    let flag = u64::from(libc::CLONE_PIDFD.cast_unsigned());
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag);
    condition.and_then(|condition| SeccompRule::new(vec![condition])).map_err(|error| format!("make a rule: {error}"))
}

/// The subject in these surroundings: sends TERM once the command is ready, and waits for the end.
fn terminated(command: Command) -> Checked<Ended> {
    let running = Running::start(command)?;
    if running.becomes_ready() {
        // One that gives up may be gone by now.
        let _ = running.init().map(|init| send(init, Signal::TERM));
    }
    running.wait()
}

/// The subject as PID 1 with calls refused.
fn refusing(subject: &Subject, errno: i32, calls: &str) -> Checked<Command> {
    let words = helper::words("refuse")?;
    let mut command = as_pid1(&words[0]);
    command.args(&words[1..]).arg(format!("{errno}:{calls}")).args(subject.words()).args(["sh", "-c", OBEYS]);
    subject.prepare(&mut command);
    Ok(command)
}

/// A limit that is set from outside (prlimit(1)) when the init waits already: it goes on, at rest, and ends as its command does.
fn no_files_left(subject: &Subject) -> Checked {
    let script =
        "trap 'exit 42' TERM; trap '(true &); (true &); echo ready' USR1; echo ready; while :; do sleep 0.01; done";
    let running = Running::start(subject.pid1(&["sh", "-c", script]))?;
    running.ready()?;
    let init = running.init()?;
    let mut limit = as_child("prlimit");
    limit.args(["--pid", &init.to_string(), "--nofile=1"]);
    equal("exit code of prlimit", run(limit)?.code, 0)?;
    send(init, Signal::USR1);
    running.ready()?;
    eventually("the orphans are reaped", || zombies(init) == 0)?;
    // One that asks without end what is refused never sleeps.
    eventually("the init sleeps", || is_in(init, "S"))?;
    send(init, Signal::TERM);
    equal("exit code", running.wait()?.code, 42)
}

/// Whether a refusal may keep the command from being run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Duty {
    Runs,
    RunsOrSaysWhyNot,
}

fn refused(subject: &Subject, duty: Duty, calls: &str) -> Checked {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let ended = terminated(refusing(subject, errno, calls)?)?;
        if duty == Duty::RunsOrSaysWhyNot && ended.code == 1 {
            is_one_line(&ended)?;
            continue;
        }
        equal(&format!("exit code with errno {errno} ({})", ended.stderr), ended.code, 42)?;
        ensure(
            ended.stderr.lines().count() <= 1,
            format!("stderr: expected one line at most, found {:?}", ended.stderr),
        )?;
    }
    Ok(())
}

fn refused_prctl(subject: &Subject) -> Checked {
    refused(subject, Duty::Runs, "prctl")
}

fn refused_pidfds(subject: &Subject) -> Checked {
    for calls in [CLONE_WITH_PIDFD, "pidfd_open", "pidfd_send_signal", "clone3", "waitid"] {
        refused(subject, Duty::Runs, calls)?;
    }
    refused(subject, Duty::Runs, "pidfd_open,pidfd_send_signal,clone3,waitid,clone(CLONE_PIDFD)")
}

fn refused_polling(subject: &Subject) -> Checked {
    refused(subject, Duty::Runs, "signalfd4")?;
    refused(subject, Duty::Runs, "ppoll")
}

fn refused_ioctl(subject: &Subject) -> Checked {
    refused(subject, Duty::Runs, "ioctl")
}

fn refused_close_range(subject: &Subject) -> Checked {
    refused(subject, Duty::Runs, "close_range")
}

fn refused_waiting(subject: &Subject) -> Checked {
    refused(subject, Duty::RunsOrSaysWhyNot, "rt_sigtimedwait")
}

fn refused_all(subject: &Subject) -> Checked {
    let calls = "prctl,pidfd_open,pidfd_send_signal,clone3,clone(CLONE_PIDFD),signalfd4,ppoll,ioctl,close_range";
    refused(subject, Duty::Runs, calls)?;
    refused(subject, Duty::RunsOrSaysWhyNot, &format!("{calls},rt_sigtimedwait"))
}

/// The subject's file where everybody can execute it.
fn public(subject: &Subject) -> Checked<(tempfile::TempDir, Subject)> {
    let folder = folder()?;
    let copy = folder.path().join(subject.process_name());
    fs::copy(subject.program(), &copy).map_err(|error| format!("copy the init: {error}"))?;
    let subject = subject.at(copy);
    Ok((folder, subject))
}

/// Words that execute what follows as a user without privileges.
const AS_NOBODY: [&str; 6] = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];

/// An init that cannot start its command.
fn without_processes(subject: &Subject, place: fn(&str) -> Command) -> Checked {
    let (_folder, subject) = public(subject)?;
    let mut command = place(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).args(["prlimit", "--nproc=0"]).args(subject.words()).arg("true");
    subject.prepare(&mut command);
    let ended = run(command)?;
    equal(&format!("exit code ({})", ended.stderr), ended.code, 1)?;
    is_one_line(&ended)
}

fn no_process_left(subject: &Subject) -> Checked {
    without_processes(subject, |program| as_pid1(program))
}

fn no_process_left_below(subject: &Subject) -> Checked {
    without_processes(subject, |program| as_child(program))
}

/// Everything that an init does, once, as PID 1 that `command` starts: seen from outside.
fn does_its_work(command: Command) -> Checked {
    let running = Running::start(command)?;
    running.ready()?;
    let init = running.init()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    equal("zombies", zombies(init), 0)?;
    send(init, Signal::TERM);
    let ended = running.wait()?;
    equal(&format!("exit code ({})", ended.stderr), ended.code, 128 + 15)?;
    equal("stderr", ended.stderr.as_str(), "")
}

fn without_proc(subject: &Subject) -> Checked {
    does_its_work(subject.pid1_after("mount -t tmpfs none /proc;", &["sh", "-c", &orphans(ORPHANS, "true")]))
}

fn read_only_proc(subject: &Subject) -> Checked {
    does_its_work(subject.pid1_after("mount -o remount,ro /proc;", &["sh", "-c", &orphans(ORPHANS, "true")]))
}

fn unprivileged(subject: &Subject) -> Checked {
    let (_folder, subject) = public(subject)?;
    let mut command = as_pid1(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).args(subject.words()).args(["sh", "-c", &orphans(ORPHANS, "true")]);
    subject.prepare(&mut command);
    does_its_work(command)
}

/// Nobody hears why, but the code tells.
fn closed_and_missing(subject: &Subject) -> Checked {
    let expected = run(subject.pid1(&["no-such-command"]))?.code;
    ensure(expected != 0, "exit code: expected one of failure, found 0")?;
    for setup in ["exec 0<&- 1>&- 2>&-;", "exec 2</dev/null;", "exec 2>/dev/full;"] {
        let ended = run(subject.pid1_after(setup, &["no-such-command"]))?;
        equal(&format!("exit code with {setup}"), ended.code, expected)?;
    }
    Ok(())
}
