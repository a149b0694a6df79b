//! Text without a heap: parted, put together to paths in a fixed buffer, and what goes to stdout.
//!
//! A text that does not fit is refused, never cut.

use core::ffi::CStr;

use crate::Pid;
use crate::numbers::Decimal;

/// Longest path that the kernel takes, its closing zero included (`PATH_MAX`, linux/limits.h).
pub const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// Room for the path of a file of a process in /proc.
pub const PROC_BYTES_MAX: usize = 32;

/// `--help`: one screen of 24 lines and 80 columns.
pub const HELP: &str = "\
usage: dind-init [OPTION]... [--] COMMAND [ARGUMENT]...

Runs COMMAND, passes it every signal, reaps every orphan, ends as COMMAND ends.

  -g                 signals to the command's process group
  --all              signals to every process; as PID 1 only
  -r, --rewrite A:B  send signal B for A; 0 sends none (TERM:QUIT, HUP:0)
  -e CODE            end with 0 where the command's code is CODE; repeatable
  -p SIGNAL          what the end of our own parent sends us
  --kill-after TIME  kill the command so long after its first TERM, INT or QUIT
  --grace TIME       after its end: TERM to what is left; wait so long for it
  --wait-all         after its end: wait for all that is left
  --keep-pgrp        leave the command in our process group
  --no-subreaper     adopt no orphans where we are not PID 1
  -P                 no command: reap until INT or TERM
  -v, --verbose      say what was started and how it ended
  -w                 say which orphans are reaped
  -s, -c             the default: adopt orphans, signal the command alone
  -h, -V, -l         this text, the version (--version), the licence

TIME is 500ms, 5s, 2m, 1h. Called as dockerd or containerd: the init of the next
program of that name on PATH.
";

/// `-l`.
pub const LICENCE: &str = "MIT OR Apache-2.0\n";

/// `--version`, in the form that dockerd reads from its init program (`parseInitVersion` of moby's daemon/info_unix.go):
/// `tini version ` VERSION ` - git.` COMMIT. The build names a digest of the sources as the commit, not git's: equal
/// sources then give equal bytes in every checkout, and a commit that leaves the init alone leaves every image alone.
pub const VERSION: [&str; 3] = [
    concat!("tini version ", env!("CARGO_PKG_VERSION"), "_dind-init - git."),
    match option_env!("DIND_INIT_SOURCES") {
        Some(digest) => digest,
        None => "unknown",
    },
    "\n",
];

/// `--version` where we are called dumb-init, in that one's form.
pub const DUMB_INIT_VERSION: &str = concat!("dumb-init v", env!("CARGO_PKG_VERSION"), "_dind-init\n");

/// Part of [`VERSION`], thus of every file that is this program, whatever its version, name and folder.
pub const MARK: &[u8] = b"_dind-init - git.";

/// The parts of a text between bytes of one kind.
pub struct Parts<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Parts<'a> {
    /// At least one part, which may be empty, as may all others.
    #[must_use]
    pub fn of(text: &'a [u8], separator: u8) -> Self {
        Self { rest: Some(text), separator }
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        let (part, rest) = split(self.rest?, self.separator);
        self.rest = rest;
        Some(part)
    }
}

/// The parts before and after the first `separator`; none after it where there is no separator.
#[must_use]
pub fn split(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    let end = text.iter().position(|byte| *byte == separator).unwrap_or(text.len());
    let (part, rest) = text.split_at_checked(end).unwrap_or((text, b""));
    (part, rest.split_first().map(|(_, rest)| rest))
}

/// `pieces` one after the other in `buffer`, as one text for the kernel; `None` where that does not fit, or holds a zero byte.
pub fn compose<'a>(buffer: &'a mut [u8], pieces: &[&[u8]]) -> Option<&'a CStr> {
    let mut length = 0;
    for piece in pieces {
        for byte in *piece {
            *buffer.get_mut(length)? = *byte;
            length += 1;
        }
    }
    *buffer.get_mut(length)? = 0;
    CStr::from_bytes_with_nul(buffer.get(..=length)?).ok()
}

/// `/proc/PROCESS/FILE`, of proc(5).
pub fn of_process<'a>(buffer: &'a mut [u8; PROC_BYTES_MAX], process: Pid, file: &[u8]) -> Option<&'a CStr> {
    compose(buffer, &[b"/proc/", Decimal::of(process.unsigned_abs()).bytes(), b"/", file])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let cases: [(&[u8], &[&[u8]]); 6] = [
            (b"a:b", &[b"a", b"b"]),
            (b"", &[b""]),
            (b":", &[b"", b""]),
            (b"a:", &[b"a", b""]),
            (b"::a", &[b"", b"", b"a"]),
            (b"a", &[b"a"]),
        ];
        for (text, expected) in cases {
            assert_eq!(Parts::of(text, b':').collect::<Vec<_>>(), expected, "{text:?}");
        }
    }

    #[test]
    fn paths() {
        let mut buffer = [0; 8];
        assert_eq!(compose(&mut buffer, &[b"/a", b"/", b"b"]), Some(c"/a/b"));
        assert_eq!(compose(&mut buffer, &[b"/c"]), Some(c"/c"), "nothing of an earlier path stays");
        assert_eq!(compose(&mut buffer, &[b"1234567"]), Some(c"1234567"));
        assert_eq!(compose(&mut buffer, &[b"12345678"]), None, "no room for the zero that ends it");
        assert_eq!(compose(&mut buffer, &[b"a\0b"]), None, "a zero byte would cut the path");
        assert_eq!(compose(&mut buffer, &[]), Some(c""));
        let mut buffer = [0; PROC_BYTES_MAX];
        assert_eq!(of_process(&mut buffer, 1, b"exe"), Some(c"/proc/1/exe"));
        assert_eq!(of_process(&mut buffer, Pid::MAX, b"children"), Some(c"/proc/2147483647/children"));
    }

    #[test]
    fn help_fits_one_screen() {
        assert!(HELP.lines().count() <= 24, "{} lines", HELP.lines().count());
        for line in HELP.lines() {
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
        }
    }

    #[test]
    fn version_is_what_dockerd_reads() {
        let text = VERSION.concat();
        let line = text.strip_suffix('\n').expect("one line");
        let (version, commit) = line.split_once(" - ").expect("two parts");
        assert_eq!(version, concat!("tini version ", env!("CARGO_PKG_VERSION"), "_dind-init"));
        assert_eq!(commit.split('.').count(), 2, "exactly one dot in {commit}");
        assert!(commit.starts_with("git."));
        assert!(line.as_bytes().windows(MARK.len()).any(|window| window == MARK));
    }
}
