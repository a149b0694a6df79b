//! Tables: where the official image has what Debian's packages bring, and what of them it has not. Paths are relative to the root.

/// The programs that the official image has in /usr/local/bin, and where Debian puts them.
pub(super) const PROGRAMS: &[(&str, &str)] = &[
    ("usr/sbin/dockerd", DOCKER),
    ("usr/bin/docker", DOCKER),
    ("usr/sbin/docker-proxy", DOCKER),
    ("usr/bin/tini-static", DOCKER),
    ("usr/bin/containerd", CONTAINERD),
    ("usr/bin/containerd-shim", CONTAINERD),
    ("usr/bin/containerd-shim-runc-v2", CONTAINERD),
    ("usr/bin/ctr", CONTAINERD),
    ("usr/sbin/runc", CONTAINERD),
];
pub(super) const DOCKER: &str = "docker";
pub(super) const CONTAINERD: &str = "containerd";

/// What of the packages the image has: these and everything below them.
pub(super) const KEPT: &[&str] = &[
    "bin",
    "etc/debian_version",
    "etc/ethertypes",
    "etc/gai.conf",
    "etc/host.conf",
    "etc/issue",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/mke2fs.conf",
    "etc/os-release",
    "etc/protocols",
    "etc/rpc",
    "etc/services",
    "etc/ssl",
    "lib",
    "lib64",
    "sbin",
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "usr/sbin",
    "usr/share/common-licenses",
];

/// What it has not, although it lies below something kept: what serves Debian's own installation, other libcs' conversions, and
/// programs that the official image lacks or has from busybox.
pub(super) const LEFT_OUT: &[&str] = &[
    "usr/bin/containerd-shim-runc-v1",
    "usr/bin/containerd-stress",
    "usr/bin/dnet",
    "usr/bin/docker-init",
    "usr/bin/free",
    "usr/bin/kill",
    "usr/bin/original-awk",
    "usr/bin/pidwait",
    "usr/bin/pmap",
    "usr/bin/ps",
    "usr/bin/pwdx",
    "usr/bin/runc",
    "usr/bin/skill",
    "usr/bin/slabtop",
    "usr/bin/snice",
    "usr/bin/tini",
    "usr/bin/tload",
    "usr/bin/top",
    "usr/bin/uptime",
    "usr/bin/vmstat",
    "usr/bin/w",
    "usr/bin/watch",
    "usr/lib/dpkg",
    "usr/lib/init",
    "usr/lib/lsb",
    "usr/lib/modprobe.d",
    "usr/lib/ssl/misc",
    "usr/lib/sysctl.d",
    "usr/lib/systemd",
    "usr/lib/sysusers.d",
    "usr/lib/tmpfiles.d",
    "usr/lib/udev",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/aarch64-linux-gnu/gconv",
    "usr/sbin/dnet",
    "usr/sbin/ovrouter",
    "usr/sbin/sysctl",
    "usr/sbin/update-ca-certificates",
    "usr/sbin/update-passwd",
];

/// Directories that are there although no package's file is in them.
pub(super) const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr/local/sbin", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
];

/// The programs of iptables that Debian chooses by alternatives(7): nft's by default, the legacy ones for whoever puts their folder first.
pub(super) const IPTABLES: &[&str] =
    &["iptables", "iptables-restore", "iptables-save", "ip6tables", "ip6tables-restore", "ip6tables-save"];
pub(super) const LEGACY_FOLDER: &str = "usr/local/libexec/iptables-legacy";

/// Applets whose place is /usr/sbin; `modprobe` because the script of that name in /usr/local/bin ends in it.
pub(super) const ADMINISTRATION: &[&str] =
    &["ifconfig", "insmod", "ip", "lsmod", "modprobe", "rmmod", "route", "sysctl"];

/// Applets that would take the place of an init.
pub(super) const NO_APPLETS: &[&str] = &["init", "linuxrc"];
