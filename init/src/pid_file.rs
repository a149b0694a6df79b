//! Pid files of daemons: which there are, and what one says.
//!
//! Nothing here looks at a file.

use core::ffi::CStr;

use crate::text::split;
use crate::{Pid, numbers};

/// A file in which a daemon notes its pid, and by which it is kept from starting twice.
pub struct PidFile {
    /// The file.
    pub path: &'static CStr,
    /// The daemon, as `/proc/PID/comm` names it.
    pub daemon: &'static [u8],
}

/// Those of dockerd and of the containerd that it starts (`getDaemonConfDir` of moby's cmd/dockerd, pkg/pidfile). `/var/run` is
/// a link to `/run` in most images, but not in all.
pub const PID_FILES: [PidFile; 4] = [
    PidFile { path: c"/run/docker.pid", daemon: b"dockerd" },
    PidFile { path: c"/var/run/docker.pid", daemon: b"dockerd" },
    PidFile { path: c"/run/docker/containerd/containerd.pid", daemon: b"containerd" },
    PidFile { path: c"/var/run/docker/containerd/containerd.pid", daemon: b"containerd" },
];

/// Bytes that are read of a pid file: more than one has.
pub const BYTES_MAX: usize = 64;

/// The pid that a file names; `None` where it names none.
#[must_use]
pub fn pid(content: &[u8]) -> Option<Pid> {
    numbers::decimal(content.trim_ascii()).and_then(|pid| Pid::try_from(pid).ok()).filter(|pid| *pid > 0)
}

/// Whether `stat`, the start of `/proc/PID/stat`, is of a process called `daemon` that has not ended: one that nobody has
/// reaped is still there, in state Z (proc_pid_stat(5)).
#[must_use]
pub fn is_living(stat: &[u8], daemon: &[u8]) -> bool {
    let (_, named) = split(stat, b'(');
    let rest = named.and_then(|named| named.strip_prefix(daemon)).and_then(|rest| rest.strip_prefix(b") "));
    rest.is_some_and(|rest| !matches!(rest.first(), Some(b'Z' | b'X') | None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids() {
        let cases: [(&[u8], Option<Pid>); 9] = [
            (b"30", Some(30)),
            (b"30\n", Some(30)),
            (b" 4194304 \n", Some(4_194_304)),
            (b"0", None),
            (b"-1", None),
            (b"", None),
            (b"4294967295", None),
            (b"30 31", None),
            (b"dockerd", None),
        ];
        for (content, expected) in cases {
            assert_eq!(pid(content), expected, "{:?}", String::from_utf8_lossy(content));
        }
    }

    #[test]
    fn living_daemons() {
        let cases: [(&[u8], bool); 9] = [
            (b"30 (dockerd) S 1 30 30 0 -1", true),
            (b"30 (dockerd) R 1", true),
            (b"30 (dockerd) Z 1", false),
            (b"30 (dockerd) X 1", false),
            (b"30 (dockerd-entrypo) S 1", false),
            (b"30 (dockerd) S) S 1", true),
            (b"30 (sh) S 1", false),
            (b"30 (dockerd) ", false),
            (b"", false),
        ];
        for (stat, expected) in cases {
            assert_eq!(is_living(stat, b"dockerd"), expected, "{:?}", String::from_utf8_lossy(stat));
        }
    }
}
