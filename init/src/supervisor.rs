//! The loop: signals go to the command, orphans are reaped, and the end of the command is our end.
//!
//! Decides by `signals`, `status` and `options`; every way out is in here, and none is an error's.

use core::ffi::c_int;

use dind_init::Pid;
use dind_init::numbers::{Decimal, Milliseconds};
use dind_init::options::{Grouping, Options, Survivors, Target};
use dind_init::signals::{self, Terminal, Treatment};
use dind_init::status::{self, Change};
use dind_init::text::{PROC_BYTES_MAX, of_process};

use crate::sys::children::{self, Reaped, Watch, Woken};
use crate::sys::signals::{Signal, ignore_child_signals, kill, send, stop_as_job, take_child_signals};
use crate::sys::{self, files};
use crate::{PREFIX, say};

/// Bytes of a list of children that one read takes: some 600 of them.
const CHILDREN_BYTES_MAX: usize = 4096;

/// Bytes of a process's name and the newline after it, with room (`TASK_COMM_LEN` of linux/sched.h is 16).
const NAME_BYTES_MAX: usize = 64;

/// What the loop knows.
pub(crate) struct Supervisor<'a> {
    options: &'a Options,
    own: Pid,
    own_group: Pid,
    terminal: Terminal,
    /// The command's process.
    pub(crate) child: Pid,
    /// The command where the kernel reaps it.
    watch: Option<Watch>,
    /// When the command is killed.
    kill_at: Option<Milliseconds>,
}

impl<'a> Supervisor<'a> {
    /// Of a command that is not started yet.
    pub(crate) fn new(options: &'a Options, own: Pid, own_group: Pid, terminal: Terminal) -> Self {
        Self { options, own, own_group, terminal, child: 0, watch: None, kill_at: None }
    }

    /// Whether nobody has to know which children there are: none is named, counted or stopped as a job.
    pub(crate) fn lets_the_kernel_reap(&self) -> bool {
        !self.options.names_reaped && self.options.survivors != Survivors::Awaited && !self.is_job()
    }

    /// Waits, without any limit, for what comes next, until the child has ended; with `watch` the kernel reaps.
    pub(crate) fn supervise(mut self, watch: Option<Watch>) -> ! {
        if watch.is_some() {
            ignore_child_signals();
        }
        self.watch = watch;
        // Those that ended before it ignored them left zombies.
        if let Some(code) = self.reap() {
            self.end(code)
        }
        loop {
            let limit = self.kill_at.map(|time| time.since(sys::now()));
            let signal = match &self.watch {
                None => Signal::wait(limit),
                Some(watch) => match watch.wait(limit) {
                    Woken::End => self.end_watched(),
                    Woken::Signal => Signal::wait(Some(Milliseconds::ZERO)),
                    Woken::Limit => None,
                    Woken::Refused => {
                        self.reap_ourselves();
                        None
                    }
                },
            };
            let Some(signal) = signal else {
                self.kill_if_due();
                continue;
            };
            match signals::treatment(signal.received(), self.own, self.terminal) {
                Treatment::Reap => {
                    if let Some(code) = self.reap() {
                        self.end(code)
                    }
                }
                treatment @ (Treatment::Forward | Treatment::ForwardWithValue) => self.forward(signal, &treatment),
                Treatment::Drop => {}
            }
        }
    }

    /// From here on we reap. Whoever ends after the first call is a zombie until we do; the command may have ended before.
    fn reap_ourselves(&mut self) {
        take_child_signals();
        if self.watch.as_ref().is_some_and(|watch| watch.status().is_some()) {
            self.end_watched()
        }
        self.watch = None;
    }

    /// Passes `signal` on, with its value or without.
    fn forward(&mut self, signal: Signal, treatment: &Treatment) {
        let received = signal.received().number;
        if let Some(delay) = self.options.kill_after
            && signals::asks_to_end(received)
            && self.kill_at.is_none()
        {
            self.kill_at = Some(sys::now().after(delay));
        }
        let Some(number) = self.options.rewrites.rewritten(received) else { return };
        if number == libc::SIGCONT {
            self.pass_terminal(self.own_group, self.child);
        }
        match self.options.target {
            Target::All => kill(-1, number),
            // There is no call that queues a value to a group. One that is ours is more than the command's.
            Target::Group if !self.shares_group() => kill(-self.child, number),
            Target::Group | Target::Command if *treatment == Treatment::ForwardWithValue => {
                signal.renumbered(number).send_with_value(self.child, self.watch.as_ref());
            }
            Target::Group | Target::Command => send(self.child, self.watch.as_ref(), number),
        }
    }

    fn kill_if_due(&mut self) {
        if self.kill_at.is_some_and(|time| time <= sys::now()) {
            self.kill_at = None;
            send(self.child, self.watch.as_ref(), libc::SIGKILL);
        }
    }

    /// Reaps until nobody is left: SIGCHLD stands for one death or for many. The child's end comes before that of others.
    fn reap(&self) -> Option<u8> {
        loop {
            let Reaped::Child(process, status) = self.reap_next() else { return None };
            match status::change(status) {
                Change::Ended(code) if process == self.child => return Some(code),
                Change::Stopped(signal) if process == self.child => self.stop(signal),
                Change::Ended(_) | Change::Stopped(_) => {}
            }
        }
    }

    /// Reaps one child, and names it where that is asked for.
    fn reap_next(&self) -> Reaped {
        if self.options.names_reaped {
            self.name_next();
        }
        children::reap()
    }

    /// A line of `-w` about the orphan that is reaped next: its name is gone with it.
    #[inline(never)]
    fn name_next(&self) {
        let Some(process) = children::next_ended().filter(|process| *process != self.child) else { return };
        let (mut path, mut name) = ([0; PROC_BYTES_MAX], [0; NAME_BYTES_MAX]);
        let name = of_process(&mut path, process, b"comm").and_then(|path| files::read_start(path, &mut name));
        let number = Decimal::of(process.unsigned_abs());
        let name = name.unwrap_or(b"unknown\n");
        sys::complain(&[PREFIX, b"reaped process ", number.bytes(), b", ", name]);
    }

    /// The child was stopped by `signal`: a shell above us sees only us, so we stop, too, and it takes the terminal back. It
    /// wakes us by SIGCONT, which is forwarded like any signal. But a child that was stopped for want of a terminal that
    /// the shell gave us without a word (`fg` of a running job) gets it and goes on. PID 1 never stops, nobody could wake it.
    fn stop(&self, signal: c_int) {
        if !self.is_job() {
            return;
        }
        if matches!(signal, libc::SIGTTIN | libc::SIGTTOU) && sys::foreground_group() == Some(self.own_group) {
            sys::set_foreground_group(self.child);
            kill(self.child, libc::SIGCONT);
        } else {
            stop_as_job(self.own);
        }
    }

    /// The kernel has reaped the child, and tells how it ended.
    fn end_watched(&self) -> ! {
        match self.watch.as_ref().and_then(Watch::status).map(status::change) {
            Some(Change::Ended(code)) => self.end(code),
            // The kernel promises it (linux/pidfd.h); what it does not tell is no success.
            _ => {
                sys::complain(&[PREFIX, b"the kernel does not tell how the command ended\n"]);
                self.end(crate::FAILED)
            }
        }
    }

    /// Ends as the child did. The kernel then kills what is left, if we are PID 1.
    fn end(&self, code: u8) -> ! {
        if self.options.verbose {
            say(self.child, b" ended with code ", Decimal::of(code.into()).bytes());
        }
        // A shell above us needs its terminal back.
        self.pass_terminal(self.child, self.own_group);
        match self.options.survivors {
            Survivors::Left => {}
            Survivors::Terminated(limit) => {
                self.count_survivors();
                self.signal_survivors(libc::SIGTERM);
                self.await_survivors(Some(sys::now().after(limit)));
            }
            Survivors::Awaited => self.await_survivors(None),
        }
        sys::exit(if self.options.forgiven.contains(code) { 0 } else { code })
    }

    /// Only who is not reaped behind our back can be counted, and keeps its number until it is.
    fn count_survivors(&self) {
        if self.watch.is_some() {
            take_child_signals();
        }
    }

    /// Returns when no child is left, or at the time `end`. What we are sent meanwhile goes to those that are left.
    fn await_survivors(&self, end: Option<Milliseconds>) {
        loop {
            match self.reap_next() {
                Reaped::Child(_, _) => continue,
                Reaped::NoChild => return,
                Reaped::Nothing => {}
            }
            let limit = end.map(|end| end.since(sys::now()));
            if limit == Some(Milliseconds::ZERO) {
                return;
            }
            let Some(signal) = Signal::wait(limit) else { continue };
            match signals::treatment(signal.received(), self.own, self.terminal) {
                Treatment::Forward | Treatment::ForwardWithValue => {
                    if let Some(number) = self.options.rewrites.rewritten(signal.received().number) {
                        self.signal_survivors(number);
                    }
                }
                Treatment::Reap | Treatment::Drop => {}
            }
        }
    }

    /// Sends `number` to all whom our end would leave behind: as PID 1 to everybody, elsewhere to our children.
    #[inline(never)]
    fn signal_survivors(&self, number: c_int) {
        if self.own == 1 {
            return kill(-1, number);
        }
        children::kill_all(&mut [0; CHILDREN_BYTES_MAX], number);
    }

    /// Whether the command is in our own group.
    fn shares_group(&self) -> bool {
        self.terminal == Terminal::Shared || self.options.grouping == Grouping::Parents
    }

    /// Whether a shell may stop and continue us as its job. PID 1 has none above it.
    fn is_job(&self) -> bool {
        self.own != 1 && self.terminal != Terminal::Absent
    }

    /// Gives the terminal to the group `to`, if the group `from` has it.
    fn pass_terminal(&self, from: Pid, to: Pid) {
        if self.is_job() && self.terminal != Terminal::Shared && sys::foreground_group() == Some(from) {
            sys::set_foreground_group(to);
        }
    }
}

/// Without any command: reaps until a signal asks us to end, as the first process of a pod does. The kernel reaps, on every
/// release, as no exit code counts.
pub(crate) fn pause() -> ! {
    crate::settle(-1);
    ignore_child_signals();
    while let Reaped::Child(_, _) = children::reap() {}
    loop {
        if let Some(signal) = Signal::wait(None)
            && matches!(signal.received().number, libc::SIGINT | libc::SIGTERM)
        {
            sys::exit(0)
        }
    }
}
