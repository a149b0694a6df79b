//! What a wait status says (wait(2)), and the exit code that passes it on.

/// A change of a child's state.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// It is gone; the code that we exit with for it.
    Ended(u8),
    /// This signal stopped it; it may go on.
    Stopped(i32),
}

/// Reads a status as wait4(2) gives it. A child that exits passes its code, one that a signal kills 128 + the signal's
/// number, as in every shell; real-time signals go up to 64, so that fits.
#[must_use]
pub fn change(status: i32) -> Change {
    if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Ended(128 + libc::WTERMSIG(status) as u8)
    } else {
        Change::Ended(libc::WEXITSTATUS(status) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_signal() {
        for code in 0..=255u8 {
            assert_eq!(change(i32::from(code) << 8), Change::Ended(code));
        }
        for signal in 1..=64u8 {
            assert_eq!(change(i32::from(signal)), Change::Ended(128 + signal));
            assert_eq!(change(i32::from(signal) | 0x80), Change::Ended(128 + signal), "with a core dump");
            assert_eq!(change(i32::from(signal) << 8 | 0x7f), Change::Stopped(signal.into()));
        }
    }
}
