//! Signals: each that a sender can send reaches the command once, with its value, and none ends the init.

use std::process::Command;

use super::process::{Checked, Running, Stat, as_child, as_pid1, equal, eventually, send_number, status_line};
use super::{Check, Peer, Subject, helper};

pub(crate) const CHECKS: &[(&str, Check, Peer)] = &[
    ("forwards_every_signal_as_pid_1", every_signal_pid1, Peer::Fails),
    ("forwards_every_signal_elsewhere", every_signal_child, Peer::Fails),
    ("forwards_the_signals_that_libc_keeps", kept_by_libc, Peer::Fails),
    ("keeps_values_and_order_of_queued_signals", values, Peer::Fails),
    ("forwards_what_comes_from_within", from_within, Peer::Passes),
    ("sends_to_the_command_alone", command_alone, Peer::Passes),
    ("sends_to_the_group_with_g", group, Peer::Passes),
];

/// The signals that cannot be caught (KILL, STOP), that are the init's own (CHLD), and that glibc, with which the helper
/// is linked, keeps for itself (32, 33: a check of their own).
const NOT_SEEN_BY_HELPER: [i32; 5] = [9, 19, 17, 32, 33];

/// The subject above the helper that prints signals, which is ready.
fn printing(subject: &Subject, mut command: Command) -> Checked<Running> {
    command.args(&subject.0[1..]).args(helper::words("print-signals")?);
    let running = Running::start(command)?;
    running.ready()?;
    Ok(running)
}

fn every_signal(running: &Running) -> Checked {
    let init = running.init()?;
    for number in (1..=64).filter(|number| !NOT_SEEN_BY_HELPER.contains(number)) {
        send_number(init, number, &[])?;
        // The next line: a signal too many would be seen in its place.
        equal("signal", running.line()?, format!("{number} 0"))?;
    }
    equal("the init's state", Stat::of(init).map(|stat| stat.state), Some("S".to_owned()))
}

fn every_signal_pid1(subject: &Subject) -> Checked {
    every_signal(&printing(subject, as_pid1(subject.program()))?)
}

fn every_signal_child(subject: &Subject) -> Checked {
    every_signal(&printing(subject, as_child(subject.program()))?)
}

/// No program that is linked with a C library can take these, except another init: it has them pending while stopped.
fn kept_by_libc(subject: &Subject) -> Checked {
    let inner = Subject::ours()?;
    let mut command = as_pid1(subject.program());
    command.args(&subject.0[1..]).args(&inner.0).args(["sh", "-c", "echo ready; exec sleep 1000"]);
    let running = Running::start(command)?;
    running.ready()?;
    let inner = running.main_child()?;
    send_number(inner, 19, &[])?;
    eventually("the inner init is stopped", || Stat::of(inner).is_some_and(|stat| stat.state == "T"))?;
    for number in [32, 33] {
        send_number(running.init()?, number, &[])?;
    }
    eventually("both are pending", || {
        let pending = status_line(inner, "ShdPnd").ok().and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        pending.is_some_and(|mask| mask >> 31 & 0b11 == 0b11)
    })
}

fn values(subject: &Subject) -> Checked {
    let running = printing(subject, as_pid1(subject.program()))?;
    let sent = [(34, 7), (34, 8), (50, 9), (34, 10), (10, 11), (64, 12)];
    for (number, value) in sent {
        send_number(running.init()?, number, &["-q", &value.to_string()])?;
    }
    let mut found = Vec::new();
    for _ in sent {
        let line = running.line()?;
        let (number, value) = line.split_once(' ').ok_or("a line of one word")?;
        found.push((number.parse().unwrap_or(0), value.parse().unwrap_or(0)));
    }
    // Signals of different numbers may overtake each other; those of one number may not.
    found.sort_by_key(|(number, _)| *number);
    let mut expected = sent.to_vec();
    expected.sort_by_key(|(number, _)| *number);
    equal("signals with values", found, expected)
}

fn from_within(subject: &Subject) -> Checked {
    let mut command = as_pid1(subject.program());
    let script = "trap 'echo got; exit 3' TERM; echo ready; (kill -TERM 1); while :; do sleep 0.01; done";
    command.args(&subject.0[1..]).args(["sh", "-c", script]);
    let running = Running::start(command)?;
    running.ready()?;
    equal("line", running.line()?.as_str(), "got")?;
    equal("exit code", running.wait()?.code, 3)
}

/// A command that stays, and a process of its group whose end it tells.
const PAIR: &str = "sleep 1000 & trap '' TERM; echo ready; wait $!; echo ended $?; exit 4";

fn command_alone(subject: &Subject) -> Checked {
    let mut command = as_pid1(subject.program());
    command.args(&subject.0[1..]).args(["sh", "-c", PAIR]);
    let running = Running::start(command)?;
    running.ready()?;
    let main = running.main_child()?;
    send_number(running.init()?, 15, &[])?;
    send_number(running.init()?, 10, &[])?;
    // USR1 comes after TERM and ends the shell: had its sleep been ended by TERM, a line would say so.
    let ended = running.wait()?;
    equal("exit code", ended.code, 128 + 10)?;
    equal("lines", ended.stdout, String::new())?;
    equal("the main child", Stat::of(main).map(|stat| stat.name), None)
}

fn group(subject: &Subject) -> Checked {
    let mut command = as_pid1(subject.program());
    command.args(subject.before_options()).args(["-g", "--", "sh", "-c", PAIR]);
    let running = Running::start(command)?;
    running.ready()?;
    let main = running.main_child()?;
    eventually("the command ignores TERM", || {
        let ignored = status_line(main, "SigIgn").ok().and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        ignored.is_some_and(|mask| mask >> 14 & 1 == 1)
    })?;
    send_number(running.init()?, 15, &[])?;
    equal("line", running.line()?.as_str(), "ended 143")?;
    equal("exit code", running.wait()?.code, 4)
}
