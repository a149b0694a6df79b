//! Programs that the tests need inside: this test binary, started again with `init-helper` and a role.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, waitpid};

use super::process::Checked;
use super::{early, hostile};

/// The first argument that makes this binary a helper.
const CALL: &str = "init-helper";

/// The words that start a helper.
pub(crate) fn words(role: &str) -> Checked<Vec<PathBuf>> {
    let own = std::env::current_exe().map_err(|error| format!("find the test binary: {error}"))?;
    Ok(vec![own, CALL.into(), role.into()])
}

/// Plays the role that the arguments ask for; `None` where they ask for none.
pub(crate) fn run() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [CALL, "print-signals"] => print_signals(),
        [CALL, "count-signals"] => count_signals(),
        [CALL, "count-lost", name, count] => early::count_lost(name, count),
        [CALL, "allocate"] => allocate(),
        [CALL, "refuse", calls, program, ref arguments @ ..] => hostile::refuse(calls, program, arguments),
        [CALL, "reap-one", program, ref arguments @ ..] => reap_one(program, arguments),
        _ => return None,
    };
    Some(outcome.map_or_else(
        |error| {
            eprintln!("helper: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// Takes every signal and prints its number and its value (0 where it has none), one line each.
fn print_signals() -> Checked {
    let all = SigSet::all();
    all.thread_block().map_err(|error| format!("block signals: {error}"))?;
    let signals =
        SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC).map_err(|error| format!("open signalfd: {error}"))?;
    say("ready")?;
    loop {
        let signal = signals.read_signal().map_err(|error| format!("read signal: {error}"))?;
        let signal = signal.ok_or("read signal: none")?;
        say(&format!("{} {}", signal.ssi_signo, signal.ssi_int))?;
    }
}

/// The signal that is counted, and the one that asks for the count.
pub(crate) const COUNTED: u32 = 40;
pub(crate) const ASKS: u32 = 41;

/// Counts a real-time signal; at another, which comes later because its number is higher, prints the count.
fn count_signals() -> Checked {
    let all = SigSet::all();
    all.thread_block().map_err(|error| format!("block signals: {error}"))?;
    let signals =
        SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC).map_err(|error| format!("open signalfd: {error}"))?;
    say("ready")?;
    let mut count = 0_u32;
    loop {
        let signal = signals.read_signal().map_err(|error| format!("read signal: {error}"))?;
        match signal.map(|signal| signal.ssi_signo) {
            Some(COUNTED) => count += 1,
            Some(ASKS) => say(&count.to_string())?,
            _ => {}
        }
    }
}

/// Takes memory when told to.
fn allocate() -> Checked {
    say("ready")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| format!("read: {error}"))?;
    let taken = vec![1_u8; 1 << 20];
    say(if taken.iter().all(|byte| *byte == 1) { "ready" } else { "wrong" })?;
    std::io::stdin().read_line(&mut line).map(drop).map_err(|error| format!("read: {error}"))
}

/// A wrong init: for each SIGCHLD it reaps one child, though the signal may stand for many.
fn reap_one(program: &str, arguments: &[&str]) -> Checked {
    let mut child_signal = SigSet::empty();
    child_signal.add(nix::sys::signal::SIGCHLD);
    child_signal.thread_block().map_err(|error| format!("block SIGCHLD: {error}"))?;
    Command::new(program).args(arguments).spawn().map_err(|error| format!("start {program}: {error}"))?;
    loop {
        child_signal.wait().map_err(|error| format!("wait for SIGCHLD: {error}"))?;
        // None left is as good as one.
        let _ = waitpid(None, Some(WaitPidFlag::WNOHANG));
    }
}

fn say(line: &str) -> Checked {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|error| format!("write: {error}"))
}
