//! Guards: the names under which the init stands before a daemon on PATH, and the rule by which it steps aside.
//!
//! An image's ENTRYPOINT is lost when a user overrides it; a guard is found on PATH all the same. It runs the real
//! daemon, either as the init above it or, where an init of ours reaps already, in its own place.

use crate::text::Parts;
use crate::{Pid, numbers, search};

/// The programs that are guarded.
const NAMES: [&[u8]; 2] = [b"dockerd", b"containerd"];

/// Ancestors that are looked at; a chain that is longer counts as one without an init of ours.
pub const ANCESTORS_MAX: usize = 4096;

/// Bytes of `/proc/PID/stat` that surely hold the parent: the name before it has at most 64 (`task_show_name`, fs/proc).
pub const STAT_BYTES_MAX: usize = 256;

/// Bytes of the largest file that may be a copy of this program, which itself stays far below.
pub const COPY_BYTES_MAX: usize = 64 << 10;

/// The daemon to stand before, if we were called by the name of one. `executed` is the path that the kernel executed
/// (AT_EXECFN of getauxval(3)); argv[0], which a caller may choose freely, counts where that says nothing
/// (`/dev/fd/5`, `/proc/self/exe`).
#[must_use]
pub fn guarded(executed: &[u8], argv0: &[u8]) -> Option<&'static [u8]> {
    let named = |path| NAMES.into_iter().find(|name| *name == search::base_name(path));
    if executed.starts_with(b"/dev/fd/") || executed.starts_with(b"/proc/") { named(argv0) } else { named(executed) }
}

/// The parent that `/proc/PID/stat` names: the fourth field, after a name in parentheses that may hold anything
/// (proc_pid_stat(5)). `None` where the text is none of that kind.
#[must_use]
pub fn parent(stat: &[u8]) -> Option<Pid> {
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let field = Parts::of(stat.get(name_ends..)?, b' ').nth(2)?;
    numbers::decimal(field).and_then(|parent| Pid::try_from(parent).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn called_names() {
        let dockerd: Option<&[u8]> = Some(b"dockerd");
        let containerd: Option<&[u8]> = Some(b"containerd");
        type Case = (&'static [u8], &'static [u8], Option<&'static [u8]>);
        let cases: [Case; 9] = [
            (b"/usr/local/sbin/dockerd", b"dockerd", dockerd),
            (b"/usr/local/sbin/containerd", b"containerd", containerd),
            (b"dockerd", b"dockerd", dockerd),
            (b"/usr/local/sbin/dockerd", b"something", dockerd),
            (b"/dev/fd/5", b"dockerd", dockerd),
            (b"/proc/self/exe", b"/usr/local/sbin/containerd", containerd),
            (b"/usr/local/sbin/dind-init", b"dockerd", None),
            (b"/usr/local/sbin/dind-init", b"dind-init", None),
            (b"/usr/local/bin/dockerd-entrypoint.sh", b"dockerd-entrypoint.sh", None),
        ];
        for (executed, argv0, expected) in cases {
            assert_eq!(guarded(executed, argv0), expected, "{executed:?} as {argv0:?}");
        }
    }

    #[test]
    fn parents() {
        let cases: [(&[u8], Option<Pid>); 7] = [
            (b"7 (sleep) S 1 7 7 0 -1", Some(1)),
            (b"7 (a b) S 12 7 7 0 -1", Some(12)),
            (b"7 (x) S 99) R 4194304 7 7", Some(4_194_304)),
            (b"1 (sh) S 0 1 1", Some(0)),
            (b"7 (sleep", None),
            (b"7 (sleep) S", None),
            (b"", None),
        ];
        for (stat, expected) in cases {
            assert_eq!(parent(stat), expected, "{:?}", String::from_utf8_lossy(stat));
        }
    }
}
