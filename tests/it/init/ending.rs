//! The end: no time limit unless asked for, and what becomes of those that are left.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::process::{Checked, Running, Stat, children, ensure, equal, eventually, run, send};
use super::reaping::is_in;
use super::subject::{Ask, Kind, Subject};
use super::{Check, Control};

/// How long a command that takes its time after TERM is watched. Nothing is waited for: that nothing happens is measured.
/// Inits with a limit of their own have 0.5 s.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) const CHECKS: &[Check] = &[
    ("r16_gives_the_command_its_time", patient, &[]),
    ("r16_gives_the_group_its_time", patient_with_group, &[Ask::Group]),
    ("r16_kills_late_only_where_asked", kills_late, &[Ask::OursOnly]),
    ("r17_ends_the_rest_where_asked", grace_pid1, &[Ask::OursOnly]),
    ("r17_ends_the_rest_below_another_pid_1", grace_child, &[Ask::OursOnly]),
    ("r17_waits_for_the_rest_no_longer_than_asked", grace_limited, &[Ask::OursOnly]),
    ("r17_leaves_as_soon_as_none_is_left", grace_early, &[Ask::OursOnly]),
    ("r18_stays_for_a_daemon_where_asked", wait_all, &[Ask::OursOnly]),
];

pub(crate) const CONTROLS: &[Control] = &[("an_init_with_a_limit_is_seen", impatient)];

/// Hears TERM and goes on until it is told to end.
const SLOW: &str = "trap 'echo heard' TERM; echo ready; read x; while ! read x; do :; done; exit 5";

/// Sends TERM and watches.
fn watched(subject: &Subject) -> Checked<Running> {
    let running = Running::start(subject.pid1(&["bash", "-c", SLOW]))?;
    running.ready()?;
    send(running.init()?, Signal::TERM);
    equal("line", running.line()?.as_str(), "heard")?;
    thread::sleep(PATIENCE);
    Ok(running)
}

fn patient(subject: &Subject) -> Checked {
    let mut running = watched(subject)?;
    ensure(running.main_child().is_ok_and(|main| is_in(main, "S")), "the command was ended")?;
    running.tell("go")?;
    running.tell("go")?;
    equal("exit code", running.wait()?.code, 5)
}

fn patient_with_group(subject: &Subject) -> Checked {
    patient(&subject.with(Ask::Group)?)
}

fn kills_late(subject: &Subject) -> Checked {
    for (limit, signal) in [("300ms", Signal::TERM), ("1", Signal::INT), ("1s", Signal::QUIT)] {
        let stubborn = ["sh", "-c", "trap '' TERM INT QUIT; echo ready; while :; do sleep 0.05; done"];
        let running = Running::start(subject.with_words(&["--kill-after", limit]).pid1(&stubborn))?;
        running.ready()?;
        // No other signal starts the time.
        send(running.init()?, Signal::WINCH);
        send(running.init()?, signal);
        equal(&format!("exit code after {limit}"), running.wait()?.code, 128 + 9)?;
    }
    Ok(())
}

fn impatient() -> Checked {
    let running = watched(&Kind::Ours.find()?.with_words(&["--kill-after=500ms"]))?;
    ensure(running.main_child().is_err(), "expected that the command was killed, found it alive")
}

/// Leaves a process that tells when it hears TERM. It is another session's, so that nobody else tells it.
const LEAVES: &str = "setsid sh -c 'trap \"echo heard; exit\" TERM; echo ready; while :; do sleep 0.01; done' & \
                      read x; exit 3";

fn heard(mut running: Running) -> Checked {
    running.ready()?;
    running.tell("go")?;
    let ended = running.wait()?;
    equal("lines and exit code", (ended.stdout.as_str(), ended.code), ("heard\n", 3))
}

fn grace_pid1(subject: &Subject) -> Checked {
    for options in [&["--grace", "10s"], &["--grace=10000ms", "-s"]] {
        heard(Running::start(subject.with_words(options).pid1(&["sh", "-c", LEAVES]))?)?;
    }
    let mut command = subject.pid1(&["sh", "-c", LEAVES]);
    command.env("DIND_INIT_GRACE", "10");
    heard(Running::start(command)?)?;
    // The control: without the option the kernel kills it unheard.
    let mut running = Running::start(subject.pid1(&["sh", "-c", LEAVES]))?;
    running.ready()?;
    running.tell("go")?;
    let ended = running.wait()?;
    equal("lines and exit code without", (ended.stdout.as_str(), ended.code), ("", 3))
}

fn grace_child(subject: &Subject) -> Checked {
    if subject.kind == Kind::OursOnAarch64 {
        // The emulator refuses to adopt orphans, so there is no rest.
        return Ok(());
    }
    heard(Running::start(subject.with_words(&["--grace=10s"]).child(&["sh", "-c", LEAVES]))?)
}

/// One that ignores TERM is left behind at the end of the time.
fn grace_limited(subject: &Subject) -> Checked {
    let script = "setsid sh -c \"trap '' TERM; echo ready; while :; do sleep 0.01; done\" & read x; exit 3";
    let mut running = Running::start(subject.with_words(&["--grace=300ms"]).pid1(&["sh", "-c", script]))?;
    running.ready()?;
    running.tell("go")?;
    equal("exit code", running.wait()?.code, 3)
}

/// The time is far beyond the deadline of a test.
fn grace_early(subject: &Subject) -> Checked {
    let mut running = Running::start(subject.with_words(&["--grace=60m"]).pid1(&["sh", "-c", LEAVES]))?;
    running.ready()?;
    running.tell("go")?;
    equal("exit code", running.wait()?.code, 3)?;
    equal("exit code of one that leaves nothing", run(subject.with_words(&["--grace=60m"]).pid1(&["true"]))?.code, 0)
}

/// A daemon that makes itself anew by fork: its first process ends, and the container stays until the last has.
fn wait_all(subject: &Subject) -> Checked {
    // The shell's jobs have no stdin of their own: the descriptor is handed over.
    let script = "exec 3<&0; setsid sh -c 'read x <&3; echo over' & echo ready; exit 3";
    let mut running = Running::start(subject.with_words(&["--wait-all"]).pid1(&["sh", "-c", script]))?;
    running.ready()?;
    let init = running.init()?;
    let is_shell = |child: &i32| Stat::of(*child).is_some_and(|stat| stat.name == "sh");
    eventually("the rest alone is left", || {
        let left = children(init);
        left.len() == 1 && left.iter().all(is_shell) && running.main_child().is_ok() && is_in(init, "S")
    })?;
    running.tell("go")?;
    let ended = running.wait()?;
    equal("lines and exit code", (ended.stdout.as_str(), ended.code), ("over\n", 3))
}
