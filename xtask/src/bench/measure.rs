//! Running a command and measuring it: the time that it took, and how much memory each of its processes had at the most. Reads /proc
//! beside the command and nothing of what it works on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oci::Interrupt;
use rustix::process::{Pid, Signal, kill_process_group};

/// How often the command's processes are looked at. What a process gains in the last such moment of its life is not seen.
const LOOK_INTERVAL: Duration = Duration::from_millis(4);
/// How much of a failed command's output its error shows.
const ERROR_LINES_MAX: usize = 12;

/// What a command took.
#[derive(Debug, Clone)]
pub struct Usage {
    /// From its start to its end.
    pub time: Duration,
    /// The most memory that a process of this name held (VmHWM, proc_pid_status(5)), in bytes.
    pub peaks: BTreeMap<String, u64>,
}

impl Usage {
    /// The most memory that any of its processes held, in bytes.
    pub fn peak(&self) -> u64 {
        self.peaks.values().copied().max().unwrap_or_default()
    }

    /// The most memory that the processes of this program held, in bytes, whatever else it started. Error: none of them was seen.
    pub fn peak_of(&self, program: &Path) -> Result<u64> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let peak = self.peaks.get(name.as_ref()).copied();
        peak.with_context(|| format!("measure {name}: it was over before it was seen"))
    }
}

/// Runs a command to its end; what it says goes to the file `log`. Error: it cannot be started, it failed (with the end of what it said),
/// or the flag was raised, in which case it and what it started have been asked to end and have been waited for.
pub fn measure(mut command: Command, log: &Path, interrupt: &Interrupt) -> Result<Usage> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = File::create(log).with_context(|| format!("make {}", log.display()))?;
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("run {name}"))?;
    let (pid, group) = (child.id(), Pid::from_child(&child));
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let ended = child.wait().map(|status| (status, started.elapsed()));
        // The receiver lives as long as we are waited for.
        let _ = sender.send(ended);
    });
    let mut peaks = BTreeMap::new();
    let mut told = false;
    let ended = loop {
        match receiver.recv_timeout(LOOK_INTERVAL) {
            Ok(ended) => break ended,
            Err(RecvTimeoutError::Timeout) => look(pid, &mut peaks),
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("wait for {name}: its waiter is gone"),
        }
        if interrupt.is_raised() && !told {
            // ESRCH: all of it has ended by itself.
            let _ = kill_process_group(group, Signal::TERM);
            told = true;
        }
    };
    // It has sent, and so it ends.
    let _ = waiter.join();
    interrupt.check()?;
    let (status, time) = ended.with_context(|| format!("wait for {name}"))?;
    ensure!(status.success(), "run {name}: {}", said(status, log));
    Ok(Usage { time, peaks })
}

fn said(status: ExitStatus, log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    format!("{status}: {}", lines[lines.len().saturating_sub(ERROR_LINES_MAX)..].join("\n"))
}

/// Notes the peak of a process and of all below it. One that ends while it is looked at is passed over.
fn look(pid: u32, peaks: &mut BTreeMap<String, u64>) {
    visit(pid, &mut |pid| {
        if let Some((name, bytes)) = peak(pid) {
            let most = peaks.entry(name).or_default();
            *most = bytes.max(*most);
        }
    });
}

/// Calls `each` for a process and for all below it.
fn visit(pid: u32, each: &mut dyn FnMut(u32)) {
    each(pid);
    // Children belong to the thread that made them.
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).for_each(|child| visit(child, each));
    }
}

/// What a process and all below it held at the most, in bytes, by their names.
pub(super) fn peaks(pid: u32) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    look(pid, &mut found);
    found
}

/// Makes a process and all below it begin anew with their peaks (proc_pid_clear_refs(5)).
pub(super) fn forget_peaks(pid: u32) {
    visit(pid, &mut |pid| {
        // One that has ended has no peak either.
        let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
    });
}

/// The name of a process and the most memory that it held, in bytes. None: it has ended.
fn peak(pid: u32) -> Option<(String, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let kib: u64 = line("VmHWM:")?.trim_end_matches(" kB").parse().ok()?;
    Some((line("Name:")?.to_owned(), kib * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, interrupt: &Interrupt) -> Result<Usage> {
        let folder = tempfile::tempdir().expect("make a folder");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        measure(command, &folder.path().join("log"), interrupt)
    }

    #[test]
    fn a_process_below_the_command_is_seen_with_its_peak() {
        // dd holds its whole block; the control is the same with a small one.
        let peak = |block: &str| {
            let script = format!(
                "dd if=/dev/zero of=/dev/null bs={block} count=1; dd if=/dev/zero of=/dev/null bs={block} count=20; true"
            );
            shell(&script, &Interrupt::default()).expect("run").peaks.get("dd").copied().unwrap_or_default()
        };
        assert!(peak("64M") >= 64 << 20);
        assert!(peak("1k") < 16 << 20);
    }

    #[test]
    fn a_failure_shows_status_and_last_words() {
        let error = shell("echo why; exit 3", &Interrupt::default()).expect_err("exit 3");
        assert_eq!(error.to_string(), "run sh: exit status: 3: why");
    }

    #[test]
    fn an_interrupt_ends_what_was_started() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        let error = shell("sleep 1000 & wait", &interrupt).expect_err("interrupted");
        assert!(error.downcast_ref::<oci::Error>().is_some(), "{error:#}");
    }
}
