//! Programs that the tests need inside: this test binary, started again with `init-helper` and a role.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, waitpid};

use super::process::Checked;

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
