//! Pid files that a killed container left behind. It is started again with the same root file system and new processes: the
//! number in the file then is nobody's, or somebody else's, and dockerd refuses to start, or takes that process for its
//! containerd.
//!
//! Removes nothing but these files, and none that a living daemon may have written.

use dind_init::Pid;
use dind_init::guard::STAT_BYTES_MAX;
use dind_init::pid_file::{self, BYTES_MAX, PID_FILES};
use dind_init::text::{PROC_BYTES_MAX, of_process};

use crate::sys::files::{self, File};
use crate::sys::{self, signals};

/// Removes each file that names no living daemon, where it lies on the container's own root file system: what is
/// mounted there may be another's, with pids of another namespace. Where the kernel does not tell mounts (before 5.8, or under a
/// filter), nothing is removed. To be called by PID 1 alone, before its command runs.
#[inline(never)]
pub(crate) fn remove_pid_files() {
    for file in PID_FILES {
        if !File::at(file.path).is_some_and(|file| file.is_regular()) {
            continue;
        }
        let mut content = [0; BYTES_MAX];
        let Some(content) = files::read_start(file.path, &mut content) else { continue };
        let is_own = files::mount_of(file.path).is_some_and(|mount| Some(mount) == files::mount_of(c"/"));
        // What is no pid stops dockerd as well, so nobody who lives may have written it.
        if is_own && !pid_file::pid(content).is_some_and(|process| is_daemon(process, file.daemon)) {
            files::remove(file.path);
        }
    }
}

/// Whether `process` lives and is `daemon`. What cannot be seen may be.
fn is_daemon(process: Pid, daemon: &[u8]) -> bool {
    // A guard is called like its daemon, and is not it.
    if process == sys::own_pid() {
        return false;
    }
    let (mut path, mut stat) = ([0; PROC_BYTES_MAX], [0; STAT_BYTES_MAX]);
    match of_process(&mut path, process, b"stat").and_then(|path| files::read_start(path, &mut stat)) {
        Some(stat) => pid_file::is_living(stat, daemon),
        None => signals::exists(process),
    }
}
