//! Removes what killed runs have left. It must never touch a thing whose owner still lives, or that has no owner's name.

use super::cgroup::{self, Hierarchy};
use crate::Error;
use crate::owner::Owner;
use std::fs;
use std::path::{Path, PathBuf};

/// How deep below a hierarchy's root a former run may have stood.
const DEPTH_MAX: usize = 8;

/// Removes what runs that were killed have left: processes and groups anywhere below the hierarchies' roots, and
/// directories in `scratch`. Returns what was removed.
pub(crate) fn sweep(hierarchies: &[Hierarchy], scratch: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut swept = Vec::new();
    for hierarchy in hierarchies {
        let mut stale = Vec::new();
        collect_stale(&hierarchy.mountpoint, DEPTH_MAX, &mut stale);
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
