//! What becomes of a received signal, and whose the terminal is.
//!
//! Every signal that a sender can send reaches the command once: none is kept back by number, none is repeated.

use crate::Pid;

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
    /// Our group and its own lie outside of our PID namespace (`unshare --pid --fork` in a shell), where they cannot be
    /// told apart. The command stays in our group: the terminal is then right for both, and so are its signals.
    Shared,
}

/// Reads the terminal's state from our process group and the terminal's foreground group (tcgetpgrp(3)), if there is one.
#[must_use]
pub fn terminal(own_group: Pid, foreground: Option<Pid>) -> Terminal {
    match foreground {
        None => Terminal::Absent,
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
            assert_eq!(terminal(own, foreground), expected, "{own} {foreground:?}");
        }
    }
}
