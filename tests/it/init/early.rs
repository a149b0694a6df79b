//! Signals that come before the init is ready for them. As PID 1 it has no default action: what it neither blocks nor
//! handles yet is lost, and the container is killed in the end.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::process::{
    Checked, DEADLINE, HostPid, Running, Stat, as_pid1, ensure, equal, eventually, only_child, run, send, status_line,
    within,
};
use super::races::Moments;
use super::reaping::is_in;
use super::subject::{Kind, Subject};
use super::{Check, helper};

pub(crate) const CHECKS: &[Check] =
    &[("r24_takes_a_term_that_was_pending_at_the_start", pending, &[]), ("r24_loses_few_early_terms", early, &[])];

/// TERMs sent, each to a container of its own.
const CONTAINERS: usize = 200;
const CONTAINERS_OF_OTHERS: usize = 100;

/// When they come after execve(2), and which share may be lost, in percent. Peers lose 27 to 90.
const MOMENTS: Duration = Duration::from_micros(1500);
const LOST_MAX: usize = 5;

/// What counts is the time between execve(2) and the first call of the init, so nobody else may run in between: neither in
/// place of the init nor of who signals it. Both run before all others.
const BEFORE_OTHERS: [&str; 3] = ["chrt", "--fifo", "20"];

/// One at a time, as they would be in each other's way.
static TURN: Mutex<()> = Mutex::new(());

/// A signal that is blocked stays pending over execve(2).
fn pending(subject: &Subject) -> Checked {
    let mut command = as_pid1("env");
    // By another process: what an init sends itself it need not pass on.
    // A shell would unblock it itself.
    let script = "system('/usr/bin/kill', '-TERM', $$); exec @ARGV";
    command.args(["--block-signal=TERM", "perl", "-e", script]).args(subject.words());
    // The command unblocks it: it inherits the mask.
    command.args(["env", "--default-signal=TERM", "perl", "-e"]);
    command.arg("use POSIX; sigprocmask(SIG_UNBLOCK, POSIX::SigSet->new(SIGTERM)); sleep 1000");
    subject.prepare(&mut command);
    equal("exit code", run(command)?.code, 128 + 15)
}

/// Waits until PID 1 of this launcher has executed the init; as short as can be. execve(2) sets the name first, and the
/// arguments just before it returns.
fn executed(launcher: HostPid, name: &str) -> Checked<HostPid> {
    let start = Instant::now();
    let mut found = None;
    while start.elapsed() < Duration::from_secs(5) {
        // On a machine of one processor the other would never come to it.
        thread::yield_now();
        let Some(init) = found else {
            found = only_child(launcher);
            continue;
        };
        let is_named =
            fs::read(format!("/proc/{init}/comm")).is_ok_and(|comm| comm.trim_ascii_end() == name.as_bytes());
        if is_named && fs::read(format!("/proc/{init}/cmdline")).is_ok_and(|line| !line.is_empty()) {
            return Ok(init);
        }
    }
    Err(format!("wait until {name} is executed: not so"))
}

/// Starts containers, terminates each at a moment of its first 1.5 ms, and counts those that live on.
fn lost(subject: &Subject, count: usize) -> Checked<usize> {
    let mut moments = Moments::new(7);
    let mut containers = Vec::new();
    for _ in 0..count {
        let running = Running::start(subject.pid1(&["sleep", "1000"]))?;
        let init = executed(running.launcher(), &subject.process_name())?;
        let (moment, start) = (moments.next(MOMENTS), Instant::now());
        while start.elapsed() < moment {}
        send(init, Signal::TERM);
        containers.push((running, init));
    }
    let ended = |init: HostPid| Stat::of(init).is_none_or(|stat| stat.state == "Z");
    for (_, init) in &containers {
        eventually("a container ends or rests", || ended(*init) || rests(*init))?;
    }
    // What rested once has nothing left that could end it.
    Ok(containers.iter().filter(|(_, init)| !ended(*init)).count())
}

/// Whether no signal is on its way in a container any more: the init and its command wait, and have none pending.
fn rests(init: HostPid) -> bool {
    let waits = |process: HostPid| {
        let pending = status_line(process, "ShdPnd").is_ok_and(|mask| mask.bytes().all(|digit| digit == b'0'));
        pending && is_in(process, "S")
    };
    let is_command = |child: &HostPid| Stat::of(*child).is_some_and(|stat| stat.name == "sleep");
    // The init first: what it had then passed on is pending in the command, or has ended it.
    waits(init) && only_child(init).filter(is_command).is_some_and(waits)
}

/// The helper: `lost` for the init of this name, printed.
pub(crate) fn count_lost(name: &str, count: &str) -> Checked {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| format!("there is no {name}"))?;
    let count = count.parse().map_err(|error| format!("read the count: {error}"))?;
    println!("{}", lost(&kind.find()?, count)?);
    Ok(())
}

fn early(subject: &Subject) -> Checked {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_ours_here = matches!(subject.kind, Kind::Ours | Kind::OursWait);
    let count = if is_ours_here { CONTAINERS } else { CONTAINERS_OF_OTHERS };
    let mut command = Command::new(BEFORE_OTHERS[0]);
    command
        .args(&BEFORE_OTHERS[1..])
        .args(helper::words("count-lost")?)
        .args([subject.kind.name(), &count.to_string()]);
    // Not a peer's shorter deadline: that TERMs are lost is a count, not a wait.
    let ended = within(DEADLINE, || run(command))?;
    let lost = ended.stdout.trim().parse::<usize>().map_err(|error| format!("count: {error}: {ended:?}"))?;
    ensure(
        lost * 100 <= count * LOST_MAX,
        format!("lost TERMs: expected {LOST_MAX} % at most, found {lost} of {count}"),
    )
}
