//! Which kernels reap for us: what is asked of a release number.
//!
//! A parent that ignores SIGCHLD has its children reaped by the kernel at once, orphans too (wait(2), NOTES). How the one
//! child ended that counts is then known only from its pidfd.

use crate::numbers;
use crate::text::split;

/// The first release whose pidfd tells how a reaped process ended, whatever thread of it ended first. Linux 6.15 has the call
/// (`PIDFD_INFO_EXIT`), but tells the first thread's code where another one ended the process later (mended by 9133607de37a,
/// "exit: fix the usage of delay_group_leader->exit_code", in 6.16).
const FIRST: (u32, u32) = (6, 16);

/// Whether a kernel with this release (uname(2), as in `6.18.0-1-amd64`) tells how a process ended that it reaped.
#[must_use]
pub fn tells_how_reaped_ended(release: &[u8]) -> bool {
    let (major, rest) = split(release, b'.');
    let minor = rest.unwrap_or_default();
    let digits = minor.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(minor.len());
    let minor = minor.get(..digits).and_then(numbers::decimal);
    numbers::decimal(major).zip(minor).is_some_and(|release| release >= FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        let cases = [
            ("6.16.0", true),
            ("6.16.0-rc1", true),
            ("6.18.5-amd64", true),
            ("7.0", true),
            ("10.1.2", true),
            ("6.15.9", false),
            ("6.1.0-49-cloud-amd64", false),
            ("5.10.0", false),
            ("4.4.0", false),
            ("2.6.60.6", false),
            ("6", false),
            ("", false),
            ("v6.18", false),
        ];
        for (release, expected) in cases {
            assert_eq!(tells_how_reaped_ended(release.as_bytes()), expected, "{release}");
        }
    }
}
