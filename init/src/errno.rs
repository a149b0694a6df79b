//! The words for an error number, for those that the start of a command can meet.
//!
//! musl has such a table for all numbers, a tenth of the whole program.

use crate::text::Parts;

/// The number of an error (errno(3)).
pub type Errno = i32;

/// One line for each: the number as one byte, then the words. As a table of slices it would be twice as large.
const WORDS: &[u8] = b"\
\x01Operation not permitted
\x02No such file or directory
\x05Input/output error
\x07Argument list too long
\x08Exec format error
\x0bResource temporarily unavailable
\x0cCannot allocate memory
\x0dPermission denied
\x14Not a directory
\x16Invalid argument
\x17Too many open files in system
\x18Too many open files
\x1aText file busy
\x24File name too long
\x26Function not implemented
\x28Too many levels of symbolic links";

/// The system's words for `errno`, as strerror(3) has them; `None` for one that is not listed here.
#[must_use]
pub fn words(errno: Errno) -> Option<&'static [u8]> {
    Parts::of(WORDS, b'\n').find_map(|line| {
        let (number, words) = line.split_first()?;
        (Errno::from(*number) == errno).then_some(words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's C library knows the same words.
    #[test]
    fn the_words_are_the_systems() {
        let listed: Vec<Errno> = (0..256).filter(|errno| words(*errno).is_some()).collect();
        assert_eq!(listed.len(), 16);
        for errno in listed {
            let system = std::io::Error::from_raw_os_error(errno).to_string();
            let system = system.split_once(" (os error").expect("the number in parentheses").0;
            assert_eq!(words(errno), Some(system.as_bytes()), "errno {errno}");
        }
    }
}
