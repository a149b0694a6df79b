//! Says what the monotonic clock shows: as soon as this program runs, and whenever a signal has come. So whoever started it knows how long
//! that took. Judges nothing.

use std::io::Write;
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::alarm;
use rustix::time::{ClockId, clock_gettime};

use crate::Outcome;

/// A listener whose caller was killed ends by SIGALRM after so many seconds.
const LISTENER_SECONDS_MAX: u32 = 600;

/// Writes the time to stdout: nanoseconds as 8 bytes in this machine's order.
pub(crate) fn stamp() -> Outcome {
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(&nanoseconds.to_ne_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("write the time: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the time once it listens, and again for each SIGUSR1, until it is killed.
pub(crate) fn listen() -> Outcome {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGUSR1);
    signals.thread_block().map_err(|errno| format!("block signals: {errno}"))?;
    alarm::set(LISTENER_SECONDS_MAX);
    loop {
        stamp()?;
        signals.wait().map_err(|errno| format!("wait for a signal: {errno}"))?;
    }
}
