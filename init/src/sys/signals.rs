//! Signals: what we were given, how one is waited for, and how one is sent.
//!
//! Masks and actions are set by the raw calls, since musl's wrappers leave out the real-time signals that it keeps for
//! itself (32 to 34).

use core::ffi::{c_int, c_long};
use core::{mem, ptr};

use dind_init::Pid;
use dind_init::errno::Errno;
use dind_init::numbers::Milliseconds;
use dind_init::signals::Received;
use libc::{siginfo_t, timespec};

use super::children::Watch;
use super::{errno, to_timespec};

/// The kernel's set of all 64 signals: bit N-1 for signal N.
pub(super) type SignalMask = u64;

/// Bytes of [`SignalMask`], which the raw calls ask for.
pub(super) const MASK_BYTES: usize = size_of::<SignalMask>();

/// The kernel's `struct sigaction` for those calls that pass it on untouched (linux/signal_types.h): handler, flags,
/// restorer (on x86 only; elsewhere the mask), mask.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    rest: [u64; 3],
}

/// What the init was started with and changes for itself; the command gets it back.
pub(crate) struct SignalState {
    mask: SignalMask,
    on_child: Action,
}

impl SignalState {
    /// Blocks every signal, so that none that arrives from now on is lost, and sets SIGCHLD to its default: ignored, as
    /// a parent may leave it, it would make the kernel reap behind our back.
    pub(crate) fn take() -> Self {
        let mask = set_mask(SignalMask::MAX);
        Self { mask, on_child: set_on_child(Action { handler: libc::SIG_DFL, rest: [0; 3] }) }
    }

    /// Undoes [`Self::take`]; what is pending takes effect at once.
    pub(crate) fn restore(&self) {
        set_on_child(self.on_child);
        set_mask(self.mask);
    }
}

/// SIGCHLD is ignored: the kernel reaps our children itself (wait(2), NOTES).
pub(crate) fn ignore_child_signals() {
    set_on_child(Action { handler: libc::SIG_IGN, rest: [0; 3] });
}

/// SIGCHLD is at its default: children wait for us.
pub(crate) fn take_child_signals() {
    set_on_child(Action { handler: libc::SIG_DFL, rest: [0; 3] });
}

/// rt_sigaction(2) on SIGCHLD: replaces the action and gives the one before.
fn set_on_child(action: Action) -> Action {
    let mut before = Action { handler: libc::SIG_DFL, rest: [0; 3] };
    // SAFETY: both pointers are to live values that are as large as the kernel's; SIGCHLD may be set.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            c_long::from(libc::SIGCHLD),
            &raw const action,
            &raw mut before,
            MASK_BYTES,
        )
    };
    before
}

/// Blocks every signal, so that a message to a closed pipe cannot end us.
pub(crate) fn block() {
    set_mask(SignalMask::MAX);
}

/// rt_sigprocmask(2): replaces the mask and gives the one before.
fn set_mask(mask: SignalMask) -> SignalMask {
    let mut before: SignalMask = 0;
    // SAFETY: both pointers are to live sets of the stated size, which is the kernel's.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            c_long::from(libc::SIG_SETMASK),
            &raw const mask,
            &raw mut before,
            MASK_BYTES,
        )
    };
    before
}

/// Whether signals can be waited for here: a seccomp filter may refuse it, and an init that cannot wait must not start.
pub(crate) fn can_wait() -> Result<(), Errno> {
    // Of no signal at all, so that none is taken.
    match Signal::take(0, Some(Milliseconds::ZERO)) {
        Err(errno) if errno != libc::EAGAIN => Err(errno),
        _ => Ok(()),
    }
}

/// A signal with everything that the kernel says about it.
pub(crate) struct Signal(siginfo_t);

impl Signal {
    /// Waits for the next signal, at most for `limit`; `None` where none came in that time, or where we were stopped and
    /// continued. All signals are blocked, so this is where each arrives, once.
    pub(crate) fn wait(limit: Option<Milliseconds>) -> Option<Self> {
        loop {
            match Self::take(SignalMask::MAX, limit) {
                Ok(signal) => return Some(signal),
                // As after a stop, or where a debugger looked at us.
                Err(libc::EINTR) if limit.is_none() => {}
                Err(_) => return None,
            }
        }
    }

    /// rt_sigtimedwait(2).
    fn take(mask: SignalMask, limit: Option<Milliseconds>) -> Result<Self, Errno> {
        // SAFETY: siginfo_t is integers and a union of such, for which zeroes are valid.
        let mut info: siginfo_t = unsafe { mem::zeroed() };
        let limit = limit.map(to_timespec);
        let limit: *const timespec = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the pointers are to live values of the kernel's types, and a null limit means none.
        let number =
            unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &raw const mask, &raw mut info, limit, MASK_BYTES) };
        if number > 0 { Ok(Self(info)) } else { Err(errno()) }
    }

    /// What the decision needs.
    pub(crate) fn received(&self) -> Received {
        // SAFETY: si_pid lies within every siginfo_t, and any bits are a valid Pid.
        let sender = unsafe { self.0.si_pid() };
        Received { number: self.0.si_signo, code: self.0.si_code, sender }
    }

    /// The same signal with its value under another number.
    pub(crate) fn renumbered(mut self, number: c_int) -> Self {
        self.0.si_signo = number;
        self
    }

    /// Sends it to the process that `watch` watches, or to `child` where the kernel has no such call; with its value.
    pub(crate) fn send_with_value(&self, child: Pid, watch: Option<&Watch>) {
        let number = c_long::from(self.0.si_signo);
        let done = match watch {
            // SAFETY: the pointer is to a live siginfo_t that the kernel filled.
            Some(watch) => unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    c_long::from(watch.pidfd()),
                    number,
                    &raw const self.0,
                    0 as c_long,
                )
            },
            // SAFETY: as above.
            None => unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, c_long::from(child), number, &raw const self.0) },
        };
        if done != 0 {
            // EAGAIN: the target's queue is full (RLIMIT_SIGPENDING). A signal without its value is better than none.
            send(child, watch, self.0.si_signo);
        }
    }
}

/// Sends `number` to the process that `watch` watches; without it to `child`, which nobody but us can reap, so that its
/// number is nobody else's.
pub(crate) fn send(child: Pid, watch: Option<&Watch>, number: c_int) {
    let Some(watch) = watch else { return kill(child, number) };
    let (fd, none) = (c_long::from(watch.pidfd()), 0 as c_long);
    // SAFETY: takes numbers; without a siginfo_t it is what kill(2) sends.
    let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, c_long::from(number), none, none) };
    if done != 0 && errno() != libc::ESRCH {
        // A seccomp filter that is older than the call.
        kill(child, number);
    }
}

/// kill(2): to a process, to a group as a negative number, or by -1 to all that we may signal. ESRCH: all of them are
/// gone already. EPERM: it changed its user, and we have no right over it any more.
pub(crate) fn kill(target: Pid, number: c_int) {
    // SAFETY: takes two numbers and no memory.
    unsafe { libc::syscall(libc::SYS_kill, c_long::from(target), c_long::from(number)) };
}

/// Stops us as ^Z would stop a shell's job, until SIGCONT: by SIGTSTP, which the kernel drops where no shell above could wake us
/// (an orphaned process group, setpgid(2); `get_signal` of kernel/signal.c).
pub(crate) fn stop_as_job(own: Pid) {
    kill(own, libc::SIGTSTP);
    let before = set_mask(!(1 << (libc::SIGTSTP - 1)));
    set_mask(before);
}

/// Whether there is such a process (kill(2) with signal 0); EPERM means one that we may not signal.
pub(crate) fn exists(process: Pid) -> bool {
    // SAFETY: takes two numbers and no memory.
    let done = unsafe { libc::syscall(libc::SYS_kill, c_long::from(process), 0 as c_long) };
    done == 0 || errno() != libc::ESRCH
}
