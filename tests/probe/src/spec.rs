//! The description of a container, as the suite's engines write it: what is mounted where, which devices exist, what
//! runs. It is data, so that every engine sets up the same container. The writing half is the suite's engine/spec.rs.

use serde::Deserialize;
use std::path::PathBuf;

/// A whole container. Steps are carried out in the order of the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    /// A FIFO that a reader holds open: one JSON line with the host's pid, then one with an error, or end of file at exec.
    pub report: PathBuf,
    /// The cgroup.procs files of the groups that become the roots of the container's control groups.
    pub groups: Vec<PathBuf>,
    /// The mount namespace, opened, of the container's earlier life, which holds its writable layer and its volumes; none in its first.
    pub earlier: Option<PathBuf>,
    /// An existing empty directory; a tmpfs over it holds the overlay's upper, work and merged directories, and the volumes.
    pub scratch: PathBuf,
    /// Read-only directories of the root file system, uppermost first.
    pub lower: Vec<PathBuf>,
    pub hostname: String,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub links: Vec<Link>,
    pub process: Process,
}

/// One mount; missing directories (files, for a bound file) up to `target` are made.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mount {
    pub target: PathBuf,
    pub what: What,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) enum What {
    /// A kernel file system: type and mount data, as for mount(2).
    Kernel { fstype: String, data: String },
    /// An empty directory that keeps the mode of the directory that it covers, as a Docker volume does.
    Volume,
    /// A file or directory of the host, read only.
    Bind { source: PathBuf },
}

/// A character device, mode 0666.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    pub path: PathBuf,
    pub major: u64,
    pub minor: u64,
}

/// A symbolic link.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    pub path: PathBuf,
    pub target: PathBuf,
}

/// A command to run inside a container that is there already.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// The container's PID 1 in the host's numbers.
    pub pid: i32,
    pub groups: Vec<PathBuf>,
    pub process: Process,
}

/// What runs, and as whom.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub argv: Vec<String>,
    pub env: Vec<String>,
    pub working_dir: PathBuf,
    /// `USER[:GROUP]`, names or numbers, looked up in the image's own files; empty means root.
    pub user: String,
    pub terminal: bool,
}
