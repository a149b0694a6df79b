//! What /proc tells of one process: its memory, its sleep, its processor time, its children. Changes nothing.

use std::fs;

use anyhow::{Context, Result};

/// A process, by the number that it has here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process(pub(super) u32);

/// What of a process is resident, in kB (proc_pid_smaps(5)).
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) resident: u64,
    /// Pages that several processes have count as a part.
    pub(super) proportional: u64,
    pub(super) private: u64,
}

impl Process {
    fn read(self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.0);
        fs::read_to_string(&path).with_context(|| format!("read {path}"))
    }

    pub(super) fn memory(self) -> Result<Memory> {
        let text = self.read("smaps_rollup")?;
        let of = |key: &str| number(&text, key).with_context(|| format!("find {key} in smaps_rollup"));
        Ok(Memory {
            resident: of("Rss:")?,
            proportional: of("Pss:")?,
            private: of("Private_Clean:")? + of("Private_Dirty:")?,
        })
    }

    /// How often it has stopped running: of its own will, which is once for each time that it was woken, and not (proc_pid_status(5)).
    pub(super) fn switches(self) -> Result<[u64; 2]> {
        let text = self.read("status")?;
        let of = |key: &str| number(&text, key).with_context(|| format!("find {key} in status"));
        Ok([of("voluntary_ctxt_switches:")?, of("nonvoluntary_ctxt_switches:")?])
    }

    /// Whether it waits for something.
    pub(super) fn sleeps(self) -> Result<bool> {
        Ok(state(&self.read("stat")?) == Some('S'))
    }

    /// How long it has run on a processor, in nanoseconds (Documentation/scheduler/sched-stats.rst in the kernel's sources).
    pub(super) fn ran(self) -> Result<u64> {
        let text = self.read("schedstat")?;
        let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
        first.with_context(|| format!("read the time of {}: expected a number, found {text:?}", self.0))
    }

    /// Its children, dead ones too (proc_pid_children(5)).
    pub(super) fn children(self) -> Result<Vec<Self>> {
        let text = self.read(&format!("task/{}/children", self.0))?;
        Ok(text.split_whitespace().filter_map(|word| word.parse().ok()).map(Self).collect())
    }

    /// How many of its children are dead and not waited for.
    pub(super) fn zombies(self) -> Result<usize> {
        // One that cannot be read has been waited for meanwhile.
        let dead = |child: &Self| child.read("stat").is_ok_and(|text| state(&text) == Some('Z'));
        Ok(self.children()?.iter().filter(|child| dead(child)).count())
    }
}

/// The third word of a stat line, behind a name that may hold anything (proc_pid_stat(5)).
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The number on the line that begins with `key`.
fn number(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_nobody_waits_for_is_a_zombie() {
        let own = Process(std::process::id());
        let mut child = std::process::Command::new("true").spawn().expect("start true");
        let id = child.id();
        let dead = || Process(id).read("stat").is_ok_and(|text| state(&text) == Some('Z'));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !dead() {
            assert!(std::time::Instant::now() < deadline, "the child does not end");
            std::thread::yield_now();
        }
        // The threads of a test have children, too, and `children` lists those of the first thread only.
        assert!(Process(id).children().is_ok_and(|children| children.is_empty()));
        assert!(own.memory().is_ok_and(|memory| memory.resident >= memory.private && memory.private > 0));
        assert!(own.ran().is_ok() && own.switches().is_ok());
        child.wait().expect("wait");
        assert!(!dead());
    }

    #[test]
    fn a_name_may_look_like_a_state() {
        assert_eq!(state("7 (a) Z (b) S 1 7"), Some('S'));
        assert_eq!(state("7 (x) Z 1 7"), Some('Z'));
    }
}
