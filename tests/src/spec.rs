//! The description of a container as data: the one place that says which mounts, devices and links a container of the
//! suite has. Engines fill in paths; the probe carries it out (its reading half is tests/probe/src/spec.rs). It must
//! never look at the machine: everything that differs between machines is an argument.

use crate::engine::{Input, Launch};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where the suite's own files appear in every container.
pub(crate) const SUITE_DIRECTORY: &str = "/.suite";

#[derive(Debug, Serialize)]
pub(crate) struct Spec {
    pub report: PathBuf,
    pub groups: Vec<PathBuf>,
    pub earlier: Option<PathBuf>,
    pub scratch: PathBuf,
    pub lower: Vec<PathBuf>,
    pub hostname: String,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub links: Vec<Link>,
    pub process: Process,
}

#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Mount {
    pub target: PathBuf,
    pub what: What,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    Kernel { fstype: String, data: String },
    Volume,
    Bind { source: PathBuf },
}

#[derive(Debug, Serialize)]
pub(crate) struct Device {
    pub path: PathBuf,
    pub major: u64,
    pub minor: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Link {
    pub path: PathBuf,
    pub target: PathBuf,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Process {
    pub argv: Vec<String>,
    pub env: Vec<String>,
    pub working_dir: PathBuf,
    pub user: String,
    pub terminal: bool,
}

/// A command for a container that is there already.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    pub pid: i32,
    pub groups: Vec<PathBuf>,
    pub process: Process,
}

/// One control group hierarchy as it is to appear in the container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GroupMount {
    pub target: PathBuf,
    pub fstype: &'static str,
    pub data: String,
    /// Further names under /sys/fs/cgroup, one for each controller of a joint hierarchy (`cpu,cpuacct`).
    pub aliases: Vec<String>,
}

/// What the engine adds to a launch.
pub(crate) struct Place<'a> {
    pub report: PathBuf,
    pub scratch: PathBuf,
    pub groups: Vec<PathBuf>,
    pub group_mounts: &'a [GroupMount],
    pub probe: &'a Path,
}

/// The container that docker would make with `--privileged --network none` and the image's volumes.
pub(crate) fn describe(launch: &Launch<'_>, place: Place<'_>) -> Spec {
    let mut mounts = kernel_mounts();
    let mut links = standard_links();
    group_mounts(place.group_mounts, &mut mounts, &mut links);
    let volumes: BTreeSet<&PathBuf> = launch.subject.config.volumes.iter().chain(&launch.volumes).collect();
    mounts.extend(volumes.into_iter().map(|target| Mount { target: target.clone(), what: What::Volume }));
    let probe = (place.probe.to_path_buf(), Path::new(SUITE_DIRECTORY).join("probe"));
    let shadows = launch.subject.shadow.iter().map(|file| (place.probe.to_path_buf(), file.clone()));
    for (source, target) in std::iter::once(probe).chain(shadows).chain(launch.files.iter().cloned()) {
        mounts.push(Mount { target, what: What::Bind { source } });
    }
    Spec {
        report: place.report,
        groups: place.groups,
        earlier: None,
        scratch: place.scratch,
        lower: vec![launch.subject.rootfs.clone()],
        hostname: "suite".to_owned(),
        mounts,
        devices: devices(),
        links,
        process: process(launch, launch.argv.clone(), launch.input == Input::Terminal),
    }
}

/// `argv` run as the launch's image says.
pub(crate) fn process(launch: &Launch<'_>, argv: Vec<String>, terminal: bool) -> Process {
    let config = &launch.subject.config;
    let working_dir = if config.working_dir.is_empty() { "/" } else { &config.working_dir };
    Process { argv, env: launch.env.clone(), working_dir: working_dir.into(), user: config.user.clone(), terminal }
}

fn kernel(target: &str, fstype: &str, data: &str) -> Mount {
    Mount { target: target.into(), what: What::Kernel { fstype: fstype.to_owned(), data: data.to_owned() } }
}

/// The mounts of the runtime specification's config-linux.md, "Default Filesystems", all writable as with --privileged.
fn kernel_mounts() -> Vec<Mount> {
    vec![
        kernel("/proc", "proc", ""),
        kernel("/sys", "sysfs", ""),
        kernel("/dev", "tmpfs", "mode=0755"),
        kernel("/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620,gid=5"),
        kernel("/dev/shm", "tmpfs", "mode=1777"),
        kernel("/dev/mqueue", "mqueue", ""),
    ]
}

fn group_mounts(hierarchies: &[GroupMount], mounts: &mut Vec<Mount>, links: &mut Vec<Link>) {
    // One unified hierarchy is mounted at /sys/fs/cgroup itself; version 1 needs a tmpfs there for its many.
    if hierarchies.iter().any(|hierarchy| hierarchy.target != Path::new("/sys/fs/cgroup")) {
        mounts.push(kernel("/sys/fs/cgroup", "tmpfs", "mode=0755"));
    }
    for hierarchy in hierarchies {
        mounts.push(kernel(&hierarchy.target.display().to_string(), hierarchy.fstype, &hierarchy.data));
        for alias in &hierarchy.aliases {
            links.push(Link { path: Path::new("/sys/fs/cgroup").join(alias), target: hierarchy.target.clone() });
        }
    }
}

/// config-linux.md, "Default Devices"; numbers from Documentation/admin-guide/devices.txt of the kernel.
fn devices() -> Vec<Device> {
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)]
        .map(|(name, major, minor)| Device { path: Path::new("/dev").join(name), major, minor })
        .into()
}

fn standard_links() -> Vec<Link> {
    [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ]
    .map(|(name, target)| Link { path: Path::new("/dev").join(name), target: target.into() })
    .into()
}
