//! Where a program may lie, and what a failed `execve` means: the rules of execvp(3), over bytes.
//!
//! Nothing here looks at a file.

use crate::text::Parts;

/// The folders that are searched where no PATH is set.
pub const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Exit code where there is no such program (POSIX shell, 2.8.2).
pub const NOT_FOUND: u8 = 127;

/// Exit code where there is one, but it cannot be run.
pub const NOT_RUNNABLE: u8 = 126;

/// The folders of `path`, in order. An empty one is the working directory (environ(7)).
pub fn folders(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    Parts::of(path, b':')
}

/// The pieces that make the path of `name` in `folder`: an empty folder adds no slash, since `/name` would be the root's.
#[must_use]
pub fn joined<'a>(folder: &'a [u8], name: &'a [u8]) -> [&'a [u8]; 3] {
    [folder, if folder.is_empty() { b"" } else { b"/" }, name]
}

/// Whether `name` is a path of its own, for which PATH is not searched.
#[must_use]
pub fn is_path(name: &[u8]) -> bool {
    name.contains(&b'/')
}

/// The last part of `path`.
#[must_use]
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Whether the search goes on in the next folder after `execve` failed with `errno`: it says something about this folder
/// or its file, nothing about the command. The set is glibc's (posix/execvpe.c) and a folder too long to be one.
#[must_use]
pub fn goes_on_after(errno: i32) -> bool {
    use libc::{EACCES, ENAMETOOLONG, ENODEV, ENOENT, ENOTDIR, ESTALE, ETIMEDOUT};
    matches!(errno, EACCES | ENAMETOOLONG | ENODEV | ENOENT | ENOTDIR | ESTALE | ETIMEDOUT)
}

/// Of two errors of one search the one to report: a file that could not be run says more than a folder without it.
#[must_use]
pub fn more_telling(earlier: i32, later: i32) -> i32 {
    if exit_code(earlier) == NOT_FOUND { later } else { earlier }
}

/// The exit code for a command whose `execve` failed with `errno`.
#[must_use]
pub fn exit_code(errno: i32) -> u8 {
    if matches!(errno, libc::ENOENT | libc::ENOTDIR) { NOT_FOUND } else { NOT_RUNNABLE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_parts() {
        let cases: &[(&[u8], &[&[u8]])] = &[
            (b"/a:/b", &[b"/a/x", b"/b/x"]),
            (b"", &[b"x"]),
            (b":", &[b"x", b"x"]),
            (b"/a:", &[b"/a/x", b"x"]),
            (b"::/a", &[b"x", b"x", b"/a/x"]),
            (b"bin:../b", &[b"bin/x", b"../b/x"]),
            (b"/", &[b"//x"]),
            (b"\xff", &[b"\xff/x"]),
        ];
        for (path, expected) in cases {
            let found: Vec<_> = folders(path).map(|folder| joined(folder, b"x").concat()).collect();
            assert_eq!(&found, expected, "{path:?}");
        }
    }

    #[test]
    fn names() {
        let cases: [(&[u8], &[u8], bool); 5] = [
            (b"dockerd", b"dockerd", false),
            (b"/usr/local/sbin/dockerd", b"dockerd", true),
            (b"./x", b"x", true),
            (b"/", b"", true),
            (b"", b"", false),
        ];
        for (name, base, path) in cases {
            assert_eq!((base_name(name), is_path(name)), (base, path), "{name:?}");
        }
    }

    #[test]
    fn errors() {
        use libc::{E2BIG, EACCES, ENOENT, ENOEXEC, ENOTDIR, ETXTBSY};
        let cases = [(ENOENT, 127), (ENOTDIR, 127), (EACCES, 126), (ENOEXEC, 126), (E2BIG, 126), (ETXTBSY, 126)];
        for (errno, code) in cases {
            assert_eq!(exit_code(errno), code, "errno {errno}");
        }
        assert_eq!(more_telling(ENOENT, EACCES), EACCES);
        assert_eq!(more_telling(EACCES, ENOENT), EACCES);
        assert!(goes_on_after(EACCES) && goes_on_after(ENOENT) && !goes_on_after(E2BIG));
    }
}
