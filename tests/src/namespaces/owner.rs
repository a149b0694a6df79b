//! Names that say who made a thing, so that what a killed run has left can be told from what a living run needs, and
//! the sweep that removes the former. It must never touch a name whose owner still lives.

use super::cgroup::{self, Hierarchy};
use crate::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "dind-suite";
/// How deep below a hierarchy's root a former run may have stood.
const SWEEP_DEPTH_MAX: usize = 8;

/// Counts the containers of this process, whichever engine value makes them.
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

    /// A name not used before, for one container's directory and groups.
    pub(crate) fn next_name(self) -> String {
        format!("{PREFIX}-{}-{}-{}", self.pid, self.start, NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The owner in a name made by [`Owner::next_name`]; `None` for all other names.
    fn of(name: &str) -> Option<Owner> {
        let mut parts = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
        let owner = Owner { pid: parts.next()?.parse().ok()?, start: parts.next()?.parse().ok()? };
        let _number: u32 = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(owner)
    }

    fn lives(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // comm, in parentheses, may hold spaces; the fields after it do not.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Removes what runs that were killed have left: processes and groups anywhere below the hierarchies' roots, and
/// directories in `scratch`. Returns what was removed.
pub(crate) fn sweep(hierarchies: &[Hierarchy], scratch: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut swept = Vec::new();
    for hierarchy in hierarchies {
        let mut stale = Vec::new();
        collect_stale(&hierarchy.mountpoint, SWEEP_DEPTH_MAX, &mut stale);
        for group in stale {
            cgroup::empty_and_remove(&group)?;
            swept.push(group);
        }
    }
    for entry in list(scratch) {
        if is_stale(&entry) {
            fs::remove_dir_all(&entry).map_err(Error::io(format!("remove {}", entry.display())))?;
            swept.push(entry);
        }
    }
    Ok(swept)
}

fn collect_stale(directory: &Path, depth: usize, stale: &mut Vec<PathBuf>) {
    for entry in list(directory) {
        if is_stale(&entry) {
            stale.push(entry);
        } else if depth > 0 && entry.is_dir() {
            collect_stale(&entry, depth - 1, stale);
        }
    }
}

/// A directory that cannot be listed has gone meanwhile, or was never there: nothing of ours is in it.
fn list(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default()
}

fn is_stale(path: &Path) -> bool {
    let owner = path.file_name().and_then(|name| Owner::of(name.to_str()?));
    owner.is_some_and(|owner| !owner.lives())
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
