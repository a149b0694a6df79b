//! Text without a heap: numbers in decimal, paths put together in a fixed buffer, and the two texts that go to stdout.
//!
//! A text that does not fit is refused, never cut.

use core::ffi::CStr;

/// Longest path that the kernel takes, its closing zero included (`PATH_MAX`, linux/limits.h).
pub const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// `--help`.
pub const HELP: &str = concat!(
    "dind-init ",
    env!("CARGO_PKG_VERSION"),
    ": runs a command as its only child, passes it every signal, reaps every orphan, ends as the command ends.

usage: dind-init [OPTION]... [--] COMMAND [ARGUMENT]...

  -g           send signals to the command's whole process group
  -s           accepted for tini's sake: orphans are adopted always
  -v           say on stderr which process was started and how it ended
  -h, --help   show this text
  --version    show the version

Called as dockerd or containerd it runs the next program of that name on PATH, as its init if none of ours is above.
"
);

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

/// Part of [`VERSION`], thus of every file that is this program, whatever its version, name and folder.
pub const MARK: &[u8] = b"_dind-init - git.";

/// A number in decimal digits, for text without a heap.
pub struct Decimal {
    digits: [u8; Self::DIGITS_MAX],
    start: usize,
}

impl Decimal {
    /// Digits of the largest `u32`.
    const DIGITS_MAX: usize = 10;

    /// The digits of `number`, at least one.
    #[must_use]
    pub fn of(number: u32) -> Self {
        let mut decimal = Self { digits: [b'0'; Self::DIGITS_MAX], start: Self::DIGITS_MAX };
        let mut rest = number;
        for digit in decimal.digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            decimal.start -= 1;
            if rest == 0 {
                break;
            }
        }
        decimal
    }

    /// The digits, most significant first.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.digits.get(self.start..).unwrap_or_default()
    }
}

/// Room for one path.
pub struct PathBuffer([u8; PATH_BYTES_MAX]);

impl PathBuffer {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self([0; PATH_BYTES_MAX])
    }

    /// `pieces` one after the other as one path; `None` where that is longer than the kernel takes, or holds a zero byte.
    pub fn compose(&mut self, pieces: &[&[u8]]) -> Option<&CStr> {
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if length >= PATH_BYTES_MAX {
            return None;
        }
        let bytes = pieces.iter().copied().flatten().copied().chain([0]);
        for (slot, byte) in self.0.iter_mut().zip(bytes) {
            *slot = byte;
        }
        let path = CStr::from_bytes_until_nul(&self.0).ok()?;
        (path.to_bytes().len() == length).then_some(path)
    }
}

impl Default for PathBuffer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal() {
        for number in [0, 1, 9, 10, 127, 32768, 4_194_304, u32::MAX] {
            assert_eq!(Decimal::of(number).bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn paths() {
        let long = [b'x'; PATH_BYTES_MAX - 1];
        let mut buffer = PathBuffer::new();
        assert_eq!(buffer.compose(&[&long]).map(|path| path.to_bytes().len()), Some(PATH_BYTES_MAX - 1));
        assert_eq!(buffer.compose(&[&long, b"y"]), None, "one byte more than the kernel takes");
        assert_eq!(
            buffer.compose(&[b"/proc/", b"1", b"/exe"]),
            Some(c"/proc/1/exe"),
            "nothing of an earlier path stays"
        );
        assert_eq!(buffer.compose(&[b"a\0b"]), None, "a zero byte would cut the path");
        assert_eq!(buffer.compose(&[]), Some(c""));
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
