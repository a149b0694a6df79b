//! Signals: each that a sender can send reaches the command once, with its value, and none ends the init.

use std::process::Command;

use rustix::process::Signal;

use super::process::{Checked, Running, ensure, equal, eventually, run, send, send_number, status_line};
use super::reaping::is_in;
use super::subject::{Ask, Kind, Subject};
use super::{Check, helper};

pub(crate) const CHECKS: &[Check] = &[
    ("r10_forwards_every_signal_as_pid_1", every_signal_pid1, &[]),
    ("r10_forwards_every_signal_elsewhere", every_signal_child, &[]),
    ("r10_forwards_the_signals_that_libc_keeps", kept_by_libc, &[]),
    ("r10_forwards_what_comes_from_within", from_within, &[]),
    ("r11_no_signal_ends_or_stops_it", unmoved, &[]),
    ("r11_no_signal_ends_or_stops_it_in_group_mode", unmoved_with_group, &[Ask::Group]),
    ("r11_no_signal_ends_or_stops_it_when_it_talks", unmoved_verbose, &[Ask::Verbose]),
    ("r12_keeps_values_and_order_of_queued_signals", values, &[]),
    ("r12_keeps_order_and_count_of_queued_signals", order, &[]),
    ("r13_passes_each_term_once", term_once, &[]),
    ("r34_rewrites_by_number", rewritten_by_number, &[Ask::Rewrite]),
    ("r34_rewrites_by_name", rewritten_by_name, &[Ask::Rewrite]),
    ("r34_drops_what_is_rewritten_to_0", dropped, &[Ask::Rewrite]),
    ("r35_passes_the_parents_end_on", parents_end, &[Ask::ParentDeath]),
];

/// The signals that cannot be caught (KILL, STOP), that are the init's own (CHLD), and that glibc, with which the helper
/// is linked, keeps for itself (32, 33: a check of their own).
const NOT_SEEN_BY_HELPER: [i32; 5] = [9, 19, 17, 32, 33];

/// The subject, started by `place`, above the helper that prints signals, which is ready.
fn printing(subject: &Subject, place: fn(&Subject, &[std::path::PathBuf]) -> Command) -> Checked<Running> {
    let running = Running::start(place(subject, &helper::words("print-signals")?))?;
    running.ready()?;
    Ok(running)
}

fn pid1(subject: &Subject, words: &[std::path::PathBuf]) -> Command {
    subject.pid1(words)
}

fn child(subject: &Subject, words: &[std::path::PathBuf]) -> Command {
    subject.child(words)
}

fn every_signal(running: &Running) -> Checked {
    let init = running.init()?;
    for number in (1..=64).filter(|number| !NOT_SEEN_BY_HELPER.contains(number)) {
        send_number(init, number, &[])?;
        // The next line: a signal too many would be seen in its place.
        equal("signal", running.line()?, format!("{number} 0"))?;
    }
    eventually("the init waits", || is_in(init, "S"))
}

fn every_signal_pid1(subject: &Subject) -> Checked {
    every_signal(&printing(subject, pid1)?)
}

fn every_signal_child(subject: &Subject) -> Checked {
    every_signal(&printing(subject, child)?)
}

/// No program that is linked with a C library can take these, except another init: it has them pending while stopped.
fn kept_by_libc(subject: &Subject) -> Checked {
    let inner = Kind::Ours.find()?.words();
    let words = inner.iter().map(String::as_str).chain(["sh", "-c", "echo ready; exec sleep 1000"]);
    let running = Running::start(subject.pid1(&words.collect::<Vec<_>>()))?;
    running.ready()?;
    let inner = running.main_child()?;
    send_number(inner, 19, &[])?;
    eventually("the inner init is stopped", || is_in(inner, "T"))?;
    for number in [32, 33, 34] {
        send_number(running.init()?, number, &[])?;
    }
    eventually("all are pending", || {
        let pending = status_line(inner, "ShdPnd").ok().and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        pending.is_some_and(|mask| mask >> 31 & 0b111 == 0b111)
    })
}

fn from_within(subject: &Subject) -> Checked {
    let script = "trap 'echo got; exit 3' TERM; echo ready; (kill -TERM 1); while :; do sleep 0.01; done";
    let running = Running::start(subject.pid1(&["sh", "-c", script]))?;
    running.ready()?;
    equal("line", running.line()?.as_str(), "got")?;
    equal("exit code", running.wait()?.code, 3)
}

/// After every signal that can be caught the init waits as before, PID 1 or not. What the command makes of them is not
/// looked at: it may lose some.
fn unmoved(subject: &Subject) -> Checked {
    for place in [pid1, child] {
        let running = printing(subject, place)?;
        let init = running.init()?;
        for number in (1..=64).filter(|number| !NOT_SEEN_BY_HELPER.contains(number)).chain([17]) {
            send_number(init, number, &[])?;
            // Taken from the queue, and nothing came of it.
            eventually(&format!("the init waits after signal {number}"), || {
                let pending = status_line(init, "ShdPnd").is_ok_and(|mask| mask.bytes().all(|digit| digit == b'0'));
                pending && is_in(init, "S")
            })?;
        }
    }
    Ok(())
}

fn unmoved_with_group(subject: &Subject) -> Checked {
    unmoved(&subject.with(Ask::Group)?)
}

fn unmoved_verbose(subject: &Subject) -> Checked {
    unmoved(&subject.with(Ask::Verbose)?)
}

/// Sends signals with values; what the command finds, by number: signals of different numbers may overtake each other,
/// those of one number may not.
fn queued(subject: &Subject, with_values: bool) -> Checked<[Vec<(i32, i32)>; 2]> {
    let running = printing(subject, pid1)?;
    let mut sent = vec![(36, 7), (36, 8), (50, 9), (36, 10), (10, 11), (64, 12)];
    for (number, value) in &sent {
        send_number(running.init()?, *number, &["-q", &value.to_string()])?;
    }
    let mut found = Vec::new();
    for _ in &sent {
        let line = running.line()?;
        let (number, value) = line.split_once(' ').ok_or("a line of one word")?;
        found.push((number.parse().unwrap_or(0), value.parse().unwrap_or(0)));
    }
    if !with_values {
        for list in [&mut sent, &mut found] {
            list.iter_mut().for_each(|(_, value)| *value = 0);
        }
    }
    sent.sort_by_key(|(number, _)| *number);
    found.sort_by_key(|(number, _)| *number);
    Ok([found, sent])
}

fn values(subject: &Subject) -> Checked {
    let [found, expected] = queued(subject, true)?;
    equal("signals with values", found, expected)
}

fn order(subject: &Subject) -> Checked {
    let [found, expected] = queued(subject, false)?;
    equal("signals", found, expected)
}

fn term_once(subject: &Subject) -> Checked {
    let running = printing(subject, pid1)?;
    let init = running.init()?;
    for _ in 0..5 {
        send(init, Signal::TERM);
        equal("signal", running.line()?.as_str(), "15 0")?;
    }
    send(init, Signal::USR1);
    // A TERM of the init's own would be here.
    equal("signal after TERM", running.line()?.as_str(), "10 0")
}

/// Sends each first signal and finds each second.
fn rewritten(subject: &Subject, pairs: &[(i32, i32)]) -> Checked {
    let running = printing(subject, pid1)?;
    for (sent, expected) in pairs {
        send_number(running.init()?, *sent, &[])?;
        equal(&format!("signal for {sent}"), running.line()?, format!("{expected} 0"))?;
    }
    Ok(())
}

fn rewritten_by_number(subject: &Subject) -> Checked {
    let subject =
        subject.with_value(Ask::Rewrite, "15:3")?.with_value(Ask::Rewrite, "1:2")?.with_value(Ask::Rewrite, "3:15")?;
    // Each once: what a signal became is not rewritten again.
    rewritten(&subject, &[(15, 3), (1, 2), (3, 15), (2, 2), (10, 10)])
}

fn rewritten_by_name(subject: &Subject) -> Checked {
    let subject = subject.with_value(Ask::Rewrite, "TERM:SIGQUIT")?.with_value(Ask::Rewrite, "SIGRTMIN+3:15")?;
    let subject = subject.with_value(Ask::Rewrite, "HUP:RTMAX-1")?;
    rewritten(&subject, &[(15, 3), (37, 15), (1, 63), (12, 12)])
}

fn dropped(subject: &Subject) -> Checked {
    let subject = subject.with_value(Ask::Rewrite, "15:0")?;
    let running = printing(&subject, pid1)?;
    send_number(running.init()?, 15, &[])?;
    eventually("TERM was taken", || {
        running.init().and_then(|init| status_line(init, "ShdPnd")).is_ok_and(|mask| !mask.contains('4'))
    })?;
    send_number(running.init()?, 10, &[])?;
    equal("the only signal", running.line()?.as_str(), "10 0")
}

/// The init's parent is killed: the command gets the signal that was asked for.
fn parents_end(subject: &Subject) -> Checked {
    let subject = subject.with_value(Ask::ParentDeath, "SIGUSR1")?;
    let script = r#"sh -c 'echo $$; "$@" & wait' sh "$@" & exec sleep 1000"#;
    let words: Vec<String> = helper::words("print-signals")?.iter().map(|word| word.display().to_string()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let running = Running::start(subject.below_shell(script, &words))?;
    let parent = running.line()?;
    running.ready()?;
    let mut kill = Command::new("nsenter");
    kill.args(["--target", &running.init()?.to_string(), "--pid", "--mount", "kill", "-KILL", &parent]);
    run(kill)?;
    equal("signal", running.line()?.as_str(), "10 0")?;
    // The control: without the option nothing comes.
    ensure(status_line(running.init()?, "Name")? == "sleep", "PID 1 is not the one that was meant")
}
