//! Storms of orphans: every one is reaped, and the command's code is kept in them.

use std::time::Duration;

use rustix::process::Signal;

use super::Check;
use super::process::{Checked, Running, children, equal, eventually, send, within, zombies};
use super::reaping::{is_in, living_orphans};
use super::subject::{Kind, Subject};

/// Orphans in a storm for ours on this machine, and for inits that are only compared.
const STORM: usize = 20_000;
const STORM_OF_OTHERS: usize = 2_000;

/// Orphans that die together with the command.
const TOGETHER: usize = 1_000;

/// Longest wait for a storm: forks on a busy machine take their time.
const STORM_LIMIT: Duration = Duration::from_secs(120);

/// How often the zombies are counted once the storm is over: all counts are 0.
const SAMPLES: usize = 10;

pub(crate) const CHECKS: &[Check] = &[
    ("r01_reaps_a_storm_of_20000_orphans", storm, &[]),
    ("r04_keeps_the_code_among_1000_that_die_at_once", all_at_once, &[]),
];

/// A shell script that makes `count` orphans, each forked by a subshell of its own, which ends at once.
pub(crate) fn script(count: usize) -> String {
    format!("i=0; while [ $i -lt {count} ]; do ( : & ); i=$((i+1)); done")
}

/// How many orphans a storm has.
pub(crate) fn size(subject: &Subject) -> usize {
    if matches!(subject.kind, Kind::Ours | Kind::OursWait) { STORM } else { STORM_OF_OTHERS }
}

fn storm(subject: &Subject) -> Checked {
    within(STORM_LIMIT, || weathered(subject))
}

fn weathered(subject: &Subject) -> Checked {
    let script = format!("{}; echo ready; read x; exit 5", script(size(subject)));
    let mut running = Running::start(subject.pid1(&["sh", "-c", &script]))?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    let (init, main) = (running.init()?, running.main_child()?);
    running.ready()?;
    eventually("the main child alone is left", || children(init) == [main])?;
    for _ in 0..SAMPLES {
        equal("zombies after the storm", zombies(init), 0)?;
    }
    running.tell("go")?;
    equal("exit code", running.wait()?.code, 5)
}

/// The command is killed in the midst of its orphans, while the init stands still: it finds all dead at once.
fn all_at_once(subject: &Subject) -> Checked {
    let script = format!(
        "exec 3<&0; i=0; while [ $i -lt 10 ]; do (j=0; while [ $j -lt {} ]; do read x <&3 & j=$((j+1)); done); i=$((i+1)); done; echo ready; read x",
        TOGETHER / 10
    );
    let running = Running::start(subject.pid1(&["sh", "-c", &script]))?;
    running.ready()?;
    let (init, main) = (running.init()?, running.main_child()?);
    eventually("all are adopted", || living_orphans(init, main).len() == TOGETHER)?;
    let all = children(init);
    send(init, Signal::STOP);
    eventually("the init is stopped", || is_in(init, "T"))?;
    let middle = all.len() / 2;
    for orphan in all[..middle].iter().filter(|child| **child != main) {
        send(*orphan, Signal::KILL);
    }
    send(main, Signal::TERM);
    for orphan in all[middle..].iter().filter(|child| **child != main) {
        send(*orphan, Signal::KILL);
    }
    eventually("all are dead", || living_orphans(init, main).is_empty() && !is_in(main, "S"))?;
    send(init, Signal::CONT);
    equal("exit code", running.wait()?.code, 128 + 15)
}
