//! What outlives a container's PID 1: its root, an overlay whose writable half lies in a tmpfs, and its volumes. They are mounted
//! in a mount namespace of their own, of which each life of the container has a copy, so that whoever holds that namespace can
//! start the container again (docker kill, docker start), and nobody has to clean up. It must never write to the host's file system.

use crate::enter::set_mode;
use crate::spec::Spec;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Enters the storage of the container's earlier life, or makes it.
pub(crate) fn enter(spec: &Spec) -> Result<(), String> {
    if let Some(earlier) = &spec.earlier {
        let door = File::open(earlier).map_err(|error| format!("open {}: {error}", earlier.display()))?;
        return setns(door, CloneFlags::CLONE_NEWNS).map_err(|errno| format!("enter the container's storage: {errno}"));
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| format!("make a mount namespace: {errno}"))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|errno| format!("make mounts private: {errno}"))?;
    let here = spec.scratch.as_path();
    mount(Some("tmpfs"), here, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .map_err(|errno| format!("mount tmpfs at {}: {errno}", here.display()))?;
    let [upper, work, merged, volumes] = [here.join("upper"), here.join("work"), root(spec), volumes(spec)];
    for directory in [&upper, &work, &merged, &volumes] {
        fs::create_dir(directory).map_err(|error| format!("make {}: {error}", directory.display()))?;
        set_mode(directory, 0o755)?;
    }
    let lower: Vec<String> = spec.lower.iter().map(|path| escaped(path)).collect();
    let data = format!("lowerdir={},upperdir={},workdir={}", lower.join(":"), escaped(&upper), escaped(&work));
    mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(data.as_str()))
        .map_err(|errno| format!("mount overlay over {}: {errno}", lower.join(":")))
}

/// Where the container's root is mounted.
pub(crate) fn root(spec: &Spec) -> PathBuf {
    spec.scratch.join("merged")
}

/// The directory of the volumes, each named by its place among the mounts.
pub(crate) fn volumes(spec: &Spec) -> PathBuf {
    spec.scratch.join("volumes")
}

/// Overlay options are separated by `,` and their directories by `:` (Documentation/filesystems/overlayfs.rst).
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
}
