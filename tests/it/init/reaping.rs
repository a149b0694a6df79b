//! Orphans: none stays a zombie, whether the init is PID 1 or not, however many deaths one SIGCHLD stands for.

use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::process::{
    Checked, HostPid, Running, Stat, as_child, as_pid1, children, ensure, equal, eventually, send, status_line, zombies,
};
use super::{Check, Peer, Subject, helper};

/// Orphans that a test makes.
const ORPHANS: usize = 40;

/// How long an idle init is watched. Nothing is waited for: that nothing happens is what is measured.
const IDLE_WINDOW: Duration = Duration::from_secs(3);

pub(crate) const CHECKS: &[(&str, Check, Peer)] = &[
    ("reaps_short_lived_orphans", short_lived, Peer::Passes),
    ("reaps_all_for_one_sigchld", coalesced, Peer::Passes),
    ("keeps_the_code_of_a_child_that_dies_among_orphans", main_child_among_orphans, Peer::Passes),
    ("adopts_orphans_where_it_is_not_pid_1", subreaper, Peer::Passes),
    ("reaps_below_a_pid_1_that_does_not", below_a_careless_pid1, Peer::Passes),
    ("is_silent_where_it_is_not_pid_1", silent, Peer::Passes),
    ("does_not_wake_up_when_idle", idle, Peer::Fails),
];

pub(crate) const CONTROLS: &[(&str, Check)] = &[
    ("a_pid_1_that_never_reaps_keeps_every_zombie", never_reaping),
    ("an_init_that_reaps_one_per_sigchld_keeps_the_rest", one_per_sigchld),
    ("without_a_subreaper_orphans_go_elsewhere", no_subreaper),
    ("tini_wakes_up_when_idle", tini_idle),
];

/// A shell script: as many orphans as asked for, each running `command`; then one process that stays.
fn orphans(command: &str) -> String {
    format!("i=0; while [ $i -lt {ORPHANS} ]; do ({command} &); i=$((i+1)); done; echo ready; exec sleep 1000")
}

fn under(subject: &Subject, start: fn(&std::path::Path) -> Command, script: &str) -> Command {
    let mut command = start(subject.program());
    command.args(&subject.0[1..]).args(["sh", "-c", script]);
    command
}

fn pid1(program: &std::path::Path) -> Command {
    as_pid1(program)
}

fn child(program: &std::path::Path) -> Command {
    as_child(program)
}

/// The children of `init` that are neither dead nor its main child.
fn living_orphans(init: HostPid, main: HostPid) -> Vec<HostPid> {
    let lives = |child: &HostPid| *child != main && Stat::of(*child).is_some_and(|stat| stat.state != "Z");
    children(init).into_iter().filter(lives).collect()
}

fn short_lived(subject: &Subject) -> Checked {
    let running = Running::start(under(subject, pid1, &orphans("true")))?;
    running.ready()?;
    let init = running.init()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    equal("zombies", zombies(init), 0)
}

fn never_reaping(_: &Subject) -> Checked {
    // The shell does not wait for the job, and sleep for nobody.
    let mut command = as_pid1("sh");
    command.args(["-c", r#"sh -c "$1" & exec sleep 1000"#, "sh", &orphans("true")]);
    let running = Running::start(command)?;
    running.ready()?;
    let init = running.init()?;
    eventually("every orphan is a zombie", || zombies(init) == ORPHANS)
}

/// Stops the init, has all orphans die, and sees them all as zombies: one SIGCHLD is pending for all of them.
fn die_while_stopped(running: &Running, main: HostPid) -> Checked {
    running.ready()?;
    let init = running.init()?;
    eventually("all orphans are adopted", || living_orphans(init, main).len() == ORPHANS)?;
    send(init, Signal::STOP);
    eventually("the init is stopped", || Stat::of(init).is_some_and(|stat| stat.state == "T"))?;
    for orphan in living_orphans(init, main) {
        send(orphan, Signal::KILL);
    }
    eventually("all orphans are zombies", || zombies(init) == ORPHANS)
}

fn coalesced(subject: &Subject) -> Checked {
    let running = Running::start(under(subject, pid1, &orphans("sleep 1000")))?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    die_while_stopped(&running, running.main_child()?)?;
    let init = running.init()?;
    send(init, Signal::CONT);
    eventually("no zombie is left", || zombies(init) == 0)?;
    equal("children", children(init), vec![running.main_child()?])
}

fn one_per_sigchld(_: &Subject) -> Checked {
    let words = helper::words("reap-one")?;
    let mut command = as_pid1(&words[0]);
    command.args(&words[1..]).args(["setsid", "sh", "-c", &orphans("sleep 1000")]);
    let running = Running::start(command)?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    die_while_stopped(&running, running.main_child()?)?;
    let init = running.init()?;
    send(init, Signal::CONT);
    eventually("one zombie is reaped", || zombies(init) == ORPHANS - 1)
}

fn main_child_among_orphans(subject: &Subject) -> Checked {
    let running = Running::start(under(subject, pid1, &orphans("sleep 1000")))?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    let (init, main) = (running.init()?, running.main_child()?);
    die_while_stopped(&running, main)?;
    send(main, Signal::TERM);
    eventually("the main child is a zombie, too", || zombies(init) == ORPHANS + 1)?;
    send(init, Signal::CONT);
    equal("exit code", running.wait()?.code, 128 + 15)
}

fn subreaper(subject: &Subject) -> Checked {
    let running = Running::start(under(subject, child, &orphans("sleep 1000")))?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    let (init, main) = (running.init()?, running.main_child()?);
    running.ready()?;
    eventually("all orphans are adopted", || living_orphans(init, main).len() == ORPHANS)?;
    for orphan in living_orphans(init, main) {
        send(orphan, Signal::KILL);
    }
    eventually("the main child alone is left", || children(init) == [main])
}

fn no_subreaper(_: &Subject) -> Checked {
    let mut command = as_child("sh");
    command.args(["-c", &orphans("sleep 0.2")]);
    let running = Running::start(command)?;
    running.ready()?;
    equal("children", children(running.init()?).len(), 0)
}

fn below_a_careless_pid1(subject: &Subject) -> Checked {
    let mut command = as_pid1("sh");
    command.args(["-c", r#""$@" & exec sleep 1000"#, "sh"]).args(&subject.0).args(["sh", "-c", &orphans("true")]);
    let running = Running::start(command)?;
    running.ready()?;
    let pid1 = running.init()?;
    let init = *children(pid1).first().ok_or("find the init: PID 1 has no child")?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    equal("zombies of PID 1", zombies(pid1), 0)
}

fn silent(subject: &Subject) -> Checked {
    let mut command = as_child(subject.program());
    command.args(&subject.0[1..]).arg("true");
    let ended = super::process::run(command)?;
    equal("exit code", ended.code, 0)?;
    equal("output", ended.stdout + &ended.stderr, String::new())
}

/// How often `init` ran in the window.
fn wake_ups(subject: &Subject) -> Checked<u64> {
    let running = Running::start(under(subject, pid1, &orphans("true")))?;
    running.ready()?;
    let init = running.init()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    let count = || -> Checked<u64> {
        let of = |name| status_line(init, name)?.parse::<u64>().map_err(|error| error.to_string());
        Ok(of("voluntary_ctxt_switches")? + of("nonvoluntary_ctxt_switches")?)
    };
    eventually("the init sleeps", || Stat::of(init).is_some_and(|stat| stat.state == "S"))?;
    let before = count()?;
    thread::sleep(IDLE_WINDOW);
    Ok(count()? - before)
}

fn idle(subject: &Subject) -> Checked {
    equal("wake-ups", wake_ups(subject)?, 0)
}

fn tini_idle(_: &Subject) -> Checked {
    let tini = Subject::tini()?;
    let count = wake_ups(&tini)?;
    ensure(count > 0, "wake-ups: expected some, found none")
}
