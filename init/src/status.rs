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

/// A set of exit codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codes([u64; 4]);

impl Codes {
    /// The empty set.
    pub const NONE: Self = Self([0; 4]);

    /// Adds `code`.
    pub(crate) fn insert(&mut self, code: u8) {
        if let Some(word) = self.0.get_mut(usize::from(code >> 6)) {
            *word |= 1 << (code & 63);
        }
    }

    /// Whether `code` is in the set.
    #[must_use]
    pub fn contains(&self, code: u8) -> bool {
        self.0.get(usize::from(code >> 6)).is_some_and(|word| word >> (code & 63) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        let mut codes = Codes::NONE;
        assert!((0..=255).all(|code| !codes.contains(code)));
        for code in [0, 1, 63, 64, 127, 143, 255] {
            codes.insert(code);
        }
        let found: Vec<u8> = (0..=255).filter(|code| codes.contains(*code)).collect();
        assert_eq!(found, [0, 1, 63, 64, 127, 143, 255]);
    }

    /// Every status of 16 bits, against its parts as wait(2) and asm/wait.h lay them out.
    #[test]
    fn every_status() {
        for status in 0..=0xffffu16 {
            let [low, high] = status.to_le_bytes();
            let expected = match low & 0x7f {
                0 => Change::Ended(high),
                0x7f if low == 0x7f => Change::Stopped(high.into()),
                // What stands for "continued" in no status that we ask for.
                0x7f => continue,
                signal => Change::Ended(128 + signal),
            };
            assert_eq!(change(status.into()), expected, "{status:#x}");
        }
    }

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
