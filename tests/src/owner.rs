//! Names that say who made a thing, so that what a killed run has left can be told from what a living run needs. It must
//! never take a pid that was used again for its former owner.

use crate::Error;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "dind-suite";

/// Counts the names of this process.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// A process as no later one can be: its pid and its start time in clock ticks after boot (proc_pid_stat(5), field 22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub pid: u32,
    start: u64,
}

impl Owner {
    /// This process.
    pub(crate) fn current() -> Result<Owner, Error> {
        let pid = std::process::id();
        let start = start_time(pid).ok_or_else(|| Error::Engine(format!("read start time of process {pid}")))?;
        Ok(Owner { pid, start })
    }

    /// A name not used before, for a directory and for groups.
    pub(crate) fn next_name(self) -> String {
        format!("{PREFIX}-{}-{}-{}", self.pid, self.start, NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The owner in a name made by [`Owner::next_name`]; `None` for all other names.
    pub(crate) fn of(name: &str) -> Option<Owner> {
        let mut parts = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
        let owner = Owner { pid: parts.next()?.parse().ok()?, start: parts.next()?.parse().ok()? };
        let _number: u32 = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(owner)
    }

    /// Whether that process is still there.
    pub(crate) fn lives(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // comm, in parentheses, may hold spaces; the fields after it do not.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_owner() {
        let owner = Owner::current().unwrap();
        assert_eq!(Owner::of(&owner.next_name()), Some(owner));
        assert!(owner.lives());
    }

    #[test]
    fn a_reused_pid_is_not_the_owner() {
        let owner = Owner::current().unwrap();
        assert!(!Owner { start: owner.start + 1, ..owner }.lives());
    }

    #[test]
    fn names_of_others_are_left_alone() {
        for name in
            ["docker", "dind-suite", "dind-suite-1-2", "dind-suite-1-2-x", "dind-suite-1-2-3-4", "xdind-suite-1-2-3"]
        {
            assert_eq!(Owner::of(name), None, "{name}");
        }
    }
}
