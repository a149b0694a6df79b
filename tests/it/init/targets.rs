//! To whom signals go: to the command alone, to its group, or to every process, and which group that is.

use rustix::process::Signal;

use super::Check;
use super::command::printed;
use super::process::{
    Checked, HostPid, Running, Stat, children, descendants, ensure, equal, eventually, send, status_line,
};
use super::subject::{Ask, Subject};

pub(crate) const CHECKS: &[Check] = &[
    ("r14_sends_to_the_command_alone", command_alone, &[]),
    ("r14_sends_to_the_command_alone_with_c", asked_for_one, &[Ask::DumbInitOnly]),
    ("r15_sends_to_the_group", group, &[Ask::Group]),
    ("r15_sends_to_every_process", everyone, &[Ask::OursOnly]),
    ("r19_spares_the_namespace_of_another_pid_1", not_pid1, &[Ask::OursOnly]),
    ("r41_makes_a_group_for_the_command", own_group, &[]),
    ("r41_keeps_the_parents_group", kept_group, &[Ask::OursOnly]),
];

/// A command that stays, and a process of its group whose end it tells.
const PAIR: &str = "sleep 1000 & trap '' TERM; echo ready; wait $!; echo ended $?; exit 4";

fn ignores(process: HostPid, signal: u32) -> bool {
    let ignored = status_line(process, "SigIgn").ok().and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn command_alone(subject: &Subject) -> Checked {
    let running = Running::start(subject.pid1(&["sh", "-c", PAIR]))?;
    running.ready()?;
    send(running.init()?, Signal::TERM);
    send(running.init()?, Signal::USR1);
    // USR1 comes after TERM and ends the shell: had its sleep been ended by TERM, a line would say so.
    let ended = running.wait()?;
    equal("exit code", ended.code, 128 + 10)?;
    equal("lines", ended.stdout, String::new())
}

fn asked_for_one(subject: &Subject) -> Checked {
    command_alone(&subject.with_words(&["-c"]))?;
    command_alone(&subject.with_words(&["--single-child"]))
}

fn group(subject: &Subject) -> Checked {
    let running = Running::start(subject.with(Ask::Group)?.pid1(&["sh", "-c", PAIR]))?;
    running.ready()?;
    let main = running.main_child()?;
    eventually("the command ignores TERM", || ignores(main, 15))?;
    send(running.init()?, Signal::TERM);
    equal("line", running.line()?.as_str(), "ended 143")?;
    equal("exit code", running.wait()?.code, 4)
}

/// A command, a process of its group, one of a session of its own, and an orphan.
const FAMILY: &str = "trap '' TERM; echo ready; wait; echo ended; exit 4";
const MEMBERS: &str = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ";

fn sleepers(top: HostPid) -> Vec<HostPid> {
    let is_sleep = |process: &HostPid| Stat::of(*process).is_some_and(|stat| stat.name == "sleep" && stat.state != "Z");
    descendants(top).into_iter().filter(is_sleep).collect()
}

fn everyone(subject: &Subject) -> Checked {
    let running = Running::start(subject.with_words(&["--all"]).pid1(&["sh", "-c", &format!("{MEMBERS}; {FAMILY}")]))?;
    running.ready()?;
    let (init, main) = (running.init()?, running.main_child()?);
    eventually("all run", || sleepers(init).len() == 3 && ignores(main, 15))?;
    send(init, Signal::TERM);
    equal("line", running.line()?.as_str(), "ended")?;
    equal("exit code", running.wait()?.code, 4)
}

/// Where it is not PID 1, neither `--all` nor `--grace` may signal everybody: a bystander lives on. To refuse is right, too.
fn not_pid1(subject: &Subject) -> Checked {
    for options in [&["--all"][..], &["--grace=1s"], &["--all", "--grace=1s"]] {
        let script = r#"setsid sleep 1000 & "$@"; echo code $?; exec sleep 1000"#;
        let words = ["sh", "-c", "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done"];
        let running = Running::start(subject.with_words(options).below_shell(script, &words))?;
        let line = running.line()?;
        let pid1 = running.init()?;
        if line == "ready" {
            let is_init = |child: &HostPid| !children(*child).is_empty();
            let init = children(pid1).into_iter().find(is_init).ok_or("find the init below PID 1: none")?;
            send(init, Signal::TERM);
            equal(&format!("line with {options:?}"), running.line()?.as_str(), "code 4")?;
        } else {
            equal(&format!("line of one that refuses {options:?}"), line.as_str(), "code 1")?;
        }
        eventually("PID 1 goes on", || Stat::of(pid1).is_some_and(|stat| stat.name == "sleep"))?;
        // One that was killed does not come back.
        eventually(&format!("a bystander runs with {options:?}"), || sleepers(pid1).len() == 1)?;
        ensure(!ignores(sleepers(pid1)[0], 15), "a bystander that ignores TERM shows nothing")?;
    }
    Ok(())
}

/// The group of the command and of the init, as ps(1) shows them.
const GROUPS: [&str; 3] = ["sh", "-c", "echo $(ps -o pgid= -p $$) $(ps -o pgid= -p $PPID) $$"];

fn own_group(subject: &Subject) -> Checked {
    let found = printed(subject.child(&GROUPS))?;
    let fields: Vec<&str> = found.split(' ').collect();
    ensure(fields.len() == 3 && fields[0] == fields[2], format!("groups of command and init, pid: found {found}"))
}

fn kept_group(subject: &Subject) -> Checked {
    let found = printed(subject.with_words(&["--keep-pgrp"]).child(&GROUPS))?;
    let fields: Vec<&str> = found.split(' ').collect();
    ensure(fields.len() == 3 && fields[0] == fields[1], format!("groups of command and init, pid: found {found}"))
}
