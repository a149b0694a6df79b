//! The names of signals, what becomes of a received one, and whose the terminal is.
//!
//! Every signal that a sender can send reaches the command once: none is kept back by number, none is repeated.

use crate::options::Grouping;
use crate::text::{Parts, split};
use crate::{Pid, numbers};

/// A signal's number, 1 to 64.
pub type Number = u8;

/// The largest number of a signal (`_NSIG`, asm-generic/signal.h).
pub const NUMBER_MAX: Number = 64;

/// The first real-time signal as users' C libraries number them, which keep 32 and 33 to themselves (signal(7)).
const REAL_TIME_MIN: Number = 34;

/// The names of signal(7) without SIG, as x86 and Arm number them: the first is 1.
const NAMES: &[u8] =
    b"HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP \
    TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS";

/// The number of a signal by its name, with or without SIG, or by its digits; real-time ones also as `RTMIN+N` and
/// `RTMAX-N`. `None` for anything else.
#[must_use]
pub fn number(text: &[u8]) -> Option<Number> {
    let name = text.strip_prefix(b"SIG").unwrap_or(text);
    if let Some(index) = Parts::of(NAMES, b' ').position(|known| known == name) {
        return Number::try_from(index + 1).ok();
    }
    if let Some(offset) = name.strip_prefix(b"RTMIN") {
        return from_real_time(u32::from(REAL_TIME_MIN).checked_add(offset_after(offset, b'+')?)?);
    }
    if let Some(offset) = name.strip_prefix(b"RTMAX") {
        return from_real_time(u32::from(NUMBER_MAX).checked_sub(offset_after(offset, b'-')?)?);
    }
    let number = numbers::decimal(text)?;
    Number::try_from(number).ok().filter(|number| (1..=NUMBER_MAX).contains(number))
}

/// The number after `sign`; 0 where there is neither.
fn offset_after(text: &[u8], sign: u8) -> Option<u32> {
    match text {
        [] => Some(0),
        [first, digits @ ..] if *first == sign => numbers::decimal(digits),
        _ => None,
    }
}

fn from_real_time(number: u32) -> Option<Number> {
    Number::try_from(number).ok().filter(|number| (REAL_TIME_MIN..=NUMBER_MAX).contains(number))
}

/// What becomes of each signal's number before it is sent on: another, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrites([Number; NUMBER_MAX as usize + 1]);

impl Rewrites {
    /// Each number stays what it is.
    pub const NONE: Self = {
        let mut numbers = [0; NUMBER_MAX as usize + 1];
        let mut number = 0;
        while number <= NUMBER_MAX {
            numbers[number as usize] = number;
            number += 1;
        }
        Self(numbers)
    };

    /// Takes `FROM:TO` in, two signals as [`number`] reads them, or 0 as the second, which drops the first. Only what can
    /// be received can be rewritten. `None`, and nothing changed, where the text is none of that kind.
    pub(crate) fn add(&mut self, text: &[u8]) -> Option<()> {
        let (from, to) = split(text, b':');
        let to = match to? {
            b"0" => 0,
            to => number(to)?,
        };
        *self.0.get_mut(usize::from(number(from)?))? = to;
        Some(())
    }

    /// What is sent for `number`; `None` where nothing is.
    #[must_use]
    pub fn rewritten(&self, number: i32) -> Option<i32> {
        let to = usize::try_from(number).ok().and_then(|number| self.0.get(number)).copied();
        to.filter(|to| *to != 0).map(i32::from)
    }
}

/// A signal as rt_sigtimedwait(2) hands it over.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// 1 to 64.
    pub number: i32,
    /// `si_code` of sigaction(2): who made the signal, and in which way.
    pub code: i32,
    /// `si_pid`; says something only where a process made the signal.
    pub sender: Pid,
}

/// What to do with a signal.
#[derive(Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Children changed their state.
    Reap,
    /// Send the command the same number.
    Forward,
    /// Send the command the same number and value.
    ForwardWithValue,
    /// It is not meant for the command, or has reached it already.
    Drop,
}

/// Decides about `signal`, received by the process `own`.
#[must_use]
pub fn treatment(signal: Received, own: Pid, terminal: Terminal) -> Treatment {
    if signal.number == libc::SIGCHLD {
        Treatment::Reap
    } else if signal.code == libc::SI_USER && signal.sender == own {
        // The kernel sends SIGPIPE in our own name when a message of ours meets a closed pipe.
        Treatment::Drop
    } else if terminal == Terminal::Shared && signal.code == libc::SI_KERNEL && is_of_terminal(signal.number) {
        Treatment::Drop
    } else if signal.code < 0 && signal.code != libc::SI_TKILL {
        // What sigqueue(3) and its like make. Another process's SI_TKILL may not be imitated (rt_sigqueueinfo(2)).
        Treatment::ForwardWithValue
    } else {
        Treatment::Forward
    }
}

/// The controlling terminal as the init finds it at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    /// There is none: the command gets a process group of its own.
    Absent,
    /// It is ours: the command gets a process group of its own and the terminal with it.
    Foreground,
    /// Another group has it, as where a shell started us with `&`: the command gets a group, the terminal stays.
    Background,
    /// The command stays in our group: the terminal is then right for both, and so are its signals. So it is where that is
    /// asked for, and where our group and the terminal's lie outside of our PID namespace (`unshare --pid --fork` in a
    /// shell) and cannot be told apart.
    Shared,
}

/// Whether a sender of `number` means the command to end.
#[must_use]
pub fn asks_to_end(number: i32) -> bool {
    matches!(number, libc::SIGINT | libc::SIGQUIT | libc::SIGTERM)
}

/// Reads the terminal's state from our process group and the terminal's foreground group (tcgetpgrp(3)), if there is one.
#[must_use]
pub fn terminal(grouping: Grouping, own_group: Pid, foreground: Option<Pid>) -> Terminal {
    match foreground {
        None => Terminal::Absent,
        Some(_) if grouping == Grouping::Parents => Terminal::Shared,
        Some(0) if own_group == 0 => Terminal::Shared,
        Some(group) if group == own_group => Terminal::Foreground,
        Some(_) => Terminal::Background,
    }
}

/// Signals that the terminal driver sends to a whole process group.
fn is_of_terminal(number: i32) -> bool {
    use libc::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH};
    matches!(number, SIGCONT | SIGHUP | SIGINT | SIGQUIT | SIGTSTP | SIGTTIN | SIGTTOU | SIGWINCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let cases = [
            ("TERM", Some(15)),
            ("SIGTERM", Some(15)),
            ("sigterm", None),
            ("SIGSIGTERM", None),
            ("TERM\n", None),
            ("15", Some(15)),
            ("IO", Some(29)),
            ("64", Some(64)),
            ("RTMIN", Some(34)),
            ("SIGRTMIN+1", Some(35)),
            ("RTMAX-1", Some(63)),
            ("RTMAX", Some(64)),
            ("RTMIN+30", Some(64)),
            ("RTMIN+31", None),
            ("RTMAX-31", None),
            ("RTMIN-1", None),
            ("RTMAX+1", None),
            ("RTMIN1", None),
            ("RTMIN+", None),
            ("0", None),
            ("65", None),
            ("", None),
            ("SIG", None),
            ("NONE", None),
            ("TERM ", None),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text.as_bytes()), expected, "{text}");
        }
        assert_eq!((number(b"HUP"), number(b"SYS")), (Some(1), Some(31)), "the first and the last of the names");
        assert_eq!(Parts::of(NAMES, b' ').count(), 31);
    }

    #[test]
    fn rewrites() {
        let mut rewrites = Rewrites::NONE;
        assert!((1..=64).all(|number| rewrites.rewritten(number) == Some(number)));
        for text in ["15:3", "HUP:0", "RTMIN+1:TERM"] {
            assert_eq!(rewrites.add(text.as_bytes()), Some(()), "{text}");
        }
        assert_eq!([15, 1, 35, 2].map(|number| rewrites.rewritten(number)), [Some(3), None, Some(15), Some(2)]);
        for text in ["", ":", "15", "15:", ":3", "0:3", "15:65", "15:3:1", "65:1"] {
            let before = rewrites.clone();
            assert_eq!(rewrites.add(text.as_bytes()), None, "{text}");
            assert_eq!(rewrites, before, "{text}");
        }
        assert_eq!([-1, 0, 65].map(|number| rewrites.rewritten(number)), [None; 3]);
    }

    #[test]
    fn treatments() {
        use Treatment::{Drop, Forward, ForwardWithValue, Reap};
        use libc::{SI_KERNEL, SI_QUEUE, SI_TIMER, SI_TKILL, SI_USER, SIGALRM, SIGCHLD, SIGINT, SIGPIPE, SIGTERM};
        let own = 1;
        let cases = [
            (SIGCHLD, SI_KERNEL, 0, Terminal::Absent, Reap),
            (SIGTERM, SI_USER, 7, Terminal::Absent, Forward),
            (SIGTERM, SI_USER, 0, Terminal::Absent, Forward),
            (SIGPIPE, SI_USER, own, Terminal::Absent, Drop),
            (SIGPIPE, SI_USER, 7, Terminal::Absent, Forward),
            (SIGTERM, SI_QUEUE, own, Terminal::Absent, ForwardWithValue),
            (34, SI_QUEUE, 7, Terminal::Absent, ForwardWithValue),
            (34, SI_USER, 7, Terminal::Absent, Forward),
            (64, SI_TIMER, 3, Terminal::Absent, ForwardWithValue),
            (SIGTERM, SI_TKILL, 7, Terminal::Absent, Forward),
            (SIGINT, SI_KERNEL, 0, Terminal::Foreground, Forward),
            (SIGINT, SI_KERNEL, 0, Terminal::Shared, Drop),
            (SIGINT, SI_USER, 7, Terminal::Shared, Forward),
            (SIGALRM, SI_KERNEL, 0, Terminal::Shared, Forward),
        ];
        for (number, code, sender, terminal, expected) in cases {
            let signal = Received { number, code, sender };
            assert_eq!(treatment(signal, own, terminal), expected, "{signal:?} {terminal:?}");
        }
    }

    /// Every number, way of making, sender and terminal, against the rules one by one as a reader would say them.
    #[test]
    fn treatments_follow_the_rules() {
        let own = 7;
        let of_terminal = [1, 2, 3, 18, 20, 21, 22, 28];
        let mut seen = [0; 4];
        for number in 1..=i32::from(NUMBER_MAX) {
            for code in (-8..=8).chain([0x80]) {
                for sender in [0, 1, own, 99] {
                    for terminal in [Terminal::Absent, Terminal::Foreground, Terminal::Background, Terminal::Shared] {
                        let is_kill = code == 0;
                        let is_queued = code < 0 && code != -6;
                        let came_with_group =
                            terminal == Terminal::Shared && code == 0x80 && of_terminal.contains(&number);
                        let (index, expected) = match (number, is_kill && sender == own, came_with_group, is_queued) {
                            (17, _, _, _) => (0, Treatment::Reap),
                            (_, true, _, _) | (_, _, true, _) => (1, Treatment::Drop),
                            (_, false, false, true) => (2, Treatment::ForwardWithValue),
                            (_, false, false, false) => (3, Treatment::Forward),
                        };
                        let signal = Received { number, code, sender };
                        assert_eq!(treatment(signal, own, terminal), expected, "{signal:?} {terminal:?}");
                        seen[index] += 1;
                    }
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "each rule was met: {seen:?}");
    }

    #[test]
    fn terminals() {
        let cases = [
            (1, None, Terminal::Absent),
            (1, Some(1), Terminal::Foreground),
            (7, Some(5), Terminal::Background),
            (7, Some(0), Terminal::Background),
            (0, Some(5), Terminal::Background),
            (0, Some(0), Terminal::Shared),
        ];
        for (own, foreground, expected) in cases {
            assert_eq!(terminal(Grouping::Own, own, foreground), expected, "{own} {foreground:?}");
            let kept = if foreground.is_none() { Terminal::Absent } else { Terminal::Shared };
            assert_eq!(terminal(Grouping::Parents, own, foreground), kept, "{own} {foreground:?}");
        }
    }
}
