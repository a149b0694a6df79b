//! Races: signals against ends. No exit code is lost, and no signal.
//!
//! There are two, as one cannot show both: where a signal meets the command's own end, either may rightly come first. So
//! (1) the command is let go and the init is signalled at the same time, thousands of times: the code is the command's,
//! which ignores the signal; (2) one command counts 10,000 real-time signals, which the kernel queues, while as many
//! orphans end: all are counted, none twice.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::process::{Checked, DEADLINE, Running, children, equal, eventually, run, send, status_line};
use super::subject::{Kind, Subject};
use super::{Check, Control, helper, storm};

pub(crate) const CHECKS: &[Check] = &[
    ("r05_keeps_the_code_when_signals_race_the_end", code_races, &[]),
    ("r12_loses_no_signal_among_ends", signal_races, &[]),
];

pub(crate) const CONTROLS: &[Control] = &[("a_signal_too_few_is_seen", one_too_few)];

/// Races of a signal against the command's end: 10,000 for ours, half with either loop, and some for those that are only
/// compared.
const CODE_RACES: usize = 10_000;
const CODE_RACES_OF_OTHERS: usize = 500;

/// Threads that make races, and inits that each has ready: they start while others race.
const THREADS: usize = 4;
const READY: usize = 8;

/// Signals sent while orphans end.
const SIGNALS: usize = 10_000;
const SIGNALS_TO_OTHERS: usize = 2_000;

/// What the command exits with.
const CODE: i32 = 42;

/// A small generator (xorshift), so that moments differ and a run can be repeated.
pub(crate) struct Moments(u64);

impl Moments {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A moment before `limit`.
    pub(crate) fn next(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.0 % nanos)
    }
}

fn is_ours_here(subject: &Subject) -> bool {
    matches!(subject.kind, Kind::Ours | Kind::OursWait)
}

fn code_races(subject: &Subject) -> Checked {
    let count = if is_ours_here(subject) { CODE_RACES } else { CODE_RACES_OF_OTHERS };
    let left = AtomicUsize::new(count);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for seed in 1..=THREADS as u64 {
            let (left, wrong) = (&left, &wrong);
            scope.spawn(move || {
                if let Err(error) = race(subject, left, &mut Moments::new(seed)) {
                    left.store(0, Ordering::Relaxed);
                    wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(error);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// An init below which a command waits for its end, killed when dropped.
struct Racer(Child);

impl Racer {
    fn start(subject: &Subject) -> Checked<Self> {
        // WINCH is ignored by default: whatever comes of it, the code stays. No helper in between: this is done often.
        let own = subject.words();
        let mut command = Command::new(&own[0]);
        command.args(&own[1..]).args(["sh", "-c", "read x; exit 42"]).stdin(Stdio::piped());
        subject.prepare(&mut command);
        command.spawn().map(Self).map_err(|error| format!("start {command:?}: {error}"))
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn race(subject: &Subject, left: &AtomicUsize, moments: &mut Moments) -> Checked {
    let mut ready = std::collections::VecDeque::new();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        ready.push_back(Racer::start(subject)?);
        if ready.len() < READY {
            continue;
        }
        if let Some(racer) = ready.pop_front() {
            finish(racer, moments)?;
        }
    }
    ready.into_iter().try_for_each(|racer| finish(racer, moments))
}

/// Lets the command go, and signals its init within the time that it takes to end.
fn finish(mut racer: Racer, moments: &mut Moments) -> Checked {
    let init = racer.0.id().cast_signed();
    let mut stdin = racer.0.stdin.take().ok_or("stdin is closed")?;
    stdin.write_all(b"go\n").map_err(|error| format!("write to the command: {error}"))?;
    let (moment, start) = (moments.next(Duration::from_micros(300)), Instant::now());
    while start.elapsed() < moment {}
    send(init, Signal::WINCH);
    let start = Instant::now();
    loop {
        if let Some(status) = racer.0.try_wait().map_err(|error| format!("wait: {error}"))? {
            return equal("exit code", status.code(), Some(CODE));
        }
        if start.elapsed() > DEADLINE {
            return Err(format!(
                "an init did not end after {DEADLINE:?}, signalled {moment:?} after its command was let go"
            ));
        }
        thread::yield_now();
    }
}

/// The count of the command after `sent` signals and as many ends.
fn counted(subject: &Subject, sent: usize) -> Checked<usize> {
    let words: Vec<String> = helper::words("count-signals")?.iter().map(|word| word.display().to_string()).collect();
    let script = format!("({}) & exec \"$@\"", storm::script(sent));
    let line: Vec<&str> =
        ["sh", "-c", script.as_str(), "sh"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let running = Running::start(subject.pid1(&line))?;
    running.ready()?;
    let init = running.init()?;
    // A shell's own kill: a process for each would take longer than all the rest.
    let mut kill = Command::new("bash");
    let script = "for ((i = 0; i < $2; i++)); do until kill -$3 $1; do :; done; done; until kill -$4 $1; do :; done";
    let numbers = [init.to_string(), sent.to_string(), helper::COUNTED.to_string(), helper::ASKS.to_string()];
    kill.args(["-c", script, "bash"]).args(numbers);
    equal("exit code of kill", run(kill)?.code, 0)?;
    let count = running.line()?.parse().map_err(|error| format!("read the count: {error}"))?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    let pending = status_line(init, "ShdPnd")?;
    equal("pending signals", pending.bytes().all(|digit| digit == b'0'), true)?;
    Ok(count)
}

fn signal_races(subject: &Subject) -> Checked {
    let sent = if is_ours_here(subject) { SIGNALS } else { SIGNALS_TO_OTHERS };
    equal("signals counted", counted(subject, sent)?, sent)
}

/// The counter is not blind: a signal that the init is told to drop is missing.
fn one_too_few() -> Checked {
    let subject = Kind::Ours.find()?.with_words(&["-r", &format!("{}:0", helper::COUNTED)]);
    equal("signals counted", counted(&subject, 100)?, 0)
}
