//! Running a program that takes seconds, so that it can be followed and interrupted.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oci::Interrupt;
use rustix::process::{Pid, Signal, kill_process_group};

/// How often a silent program's caller asks whether it was interrupted.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// How long an interrupted program may clean up.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(10);

/// As many lines of a failed program's stderr as its error shows.
const ERROR_LINES_MAX: usize = 12;

/// Runs a program in a process group of its own and hands over each line of its stderr. Error: it cannot be started, it
/// failed (with the end of its stderr), or the flag was raised, in which case the whole group has been ended.
pub(crate) fn run(mut command: Command, interrupt: &Interrupt, on_line: &mut dyn FnMut(&str)) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("run {name}"))?;
    let lines = read_lines(&mut child)?;
    let mut last = VecDeque::new();
    loop {
        match lines.recv_timeout(INTERRUPT_INTERVAL) {
            Ok(line) => {
                on_line(&line);
                last.push_back(line);
                if last.len() > ERROR_LINES_MAX {
                    last.pop_front();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupt.is_raised() {
            end(&mut child, &lines)?;
            interrupt.check()?;
        }
    }
    let status = child.wait().with_context(|| format!("wait for {name}"))?;
    if !status.success() {
        bail!("run {name}: {status}: {}", Vec::from(last).join("\n"));
    }
    Ok(())
}

fn read_lines(child: &mut Child) -> Result<Receiver<String>> {
    let stderr = child.stderr.take().context("read stderr: the program has none")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            // The reader has gone: it was interrupted, and the program is being ended.
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Ends the group: politely, so that it removes what it made, and after the time-out with force.
fn end(child: &mut Child, lines: &Receiver<String>) -> Result<()> {
    let group = Pid::from_child(child);
    // ESRCH: all of it has ended by itself.
    let _ = kill_process_group(group, Signal::TERM);
    let deadline = Instant::now() + TERMINATE_TIMEOUT;
    while lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
    // ESRCH: as above, the usual case.
    let _ = kill_process_group(group, Signal::KILL);
    child.wait().context("wait for the interrupted program")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_arrive_in_order() {
        let mut lines = Vec::new();
        run(shell("echo one >&2; echo two >&2"), &Interrupt::default(), &mut |line| lines.push(line.to_owned()))
            .unwrap();
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn a_failure_shows_status_and_last_words() {
        let error = run(shell("echo why >&2; exit 3"), &Interrupt::default(), &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "run sh: exit status: 3: why");
    }

    #[test]
    fn an_interrupt_ends_the_whole_group() {
        let interrupt = Interrupt::default();
        let started = Instant::now();
        let raise = interrupt.clone();
        let script = shell("echo ready >&2; sleep 100 & sleep 100");
        let error = run(script, &interrupt, &mut |_| raise.raise()).unwrap_err();
        assert!(error.downcast_ref::<oci::Error>().is_some(), "{error:#}");
        assert!(started.elapsed() < TERMINATE_TIMEOUT, "the group outlived SIGTERM");
    }
}
