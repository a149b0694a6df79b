//! Children: how the command is started, and how it and the orphans are reaped, by us or by the kernel.

use core::ffi::{c_int, c_long, c_void};
use core::{mem, ptr};

use dind_init::errno::Errno;
use dind_init::numbers::Milliseconds;
use dind_init::text::Parts;
use dind_init::{Pid, numbers};

use super::signals::{self, MASK_BYTES, SignalMask};
use super::{errno, files, new_memory, to_timespec};

/// The new process's stack until it executes its program: two paths of the longest kind, and room.
const STACK_BYTES: usize = 32 << 10;

/// The first form of the kernel's `struct pidfd_info` (linux/pidfd.h), and all of it that we read.
#[repr(C)]
struct Info {
    /// What is asked for, and what the answer has.
    mask: u64,
    _cgroup: u64,
    _ids: [u32; 11],
    /// A wait status.
    status: c_int,
}

/// `PIDFD_INFO_EXIT` of linux/pidfd.h: the answer has an exit status.
const INFO_EXIT: u64 = 1 << 3;

/// `PIDFD_GET_INFO` of linux/pidfd.h: `_IOWR(0xFF, 11, struct pidfd_info)`.
const GET_INFO: c_long = 3 << 30 | (size_of::<Info>() as c_long) << 16 | 0xFF << 8 | 11;

/// A child that was started: its id, and a descriptor of it where one was asked for and the kernel gave one.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) pidfd: c_int,
}

/// What the new process does, and with what.
struct Task<'a, T> {
    subject: &'a mut T,
    run: fn(&mut T) -> !,
}

extern "C" fn enter<T>(task: *mut c_void) -> c_int {
    // SAFETY: `start` passes its own task, which lives until we have executed a program or ended.
    let task = unsafe { &mut *task.cast::<Task<T>>() };
    (task.run)(task.subject)
}

/// Does `run` in a new process, which shares our memory; we sleep until it has executed a program or ended, as after
/// vfork(2). By clone(2), on a stack of its own, so that it overwrites nothing of ours. Error: EAGAIN and ENOMEM of clone(2) and mmap(2).
pub(crate) fn start<T>(subject: &mut T, run: fn(&mut T) -> !, with_pidfd: bool) -> Result<Child, Errno> {
    let mut task = Task { subject, run };
    let stack = new_memory(STACK_BYTES)?;
    // SAFETY: the end of the memory just made, which grows downwards from there.
    let top = unsafe { stack.add(STACK_BYTES) };
    let mut child = Child { pid: -1, pidfd: -1 };
    let mut clone = |pidfd: c_int| {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | pidfd;
        // SAFETY: the child has a stack of its own, and `task` outlives it: CLONE_VFORK keeps us here while it shares our
        // memory. One thread: nothing of another is half done in it.
        child.pid = unsafe { libc::clone(enter::<T>, top, flags, (&raw mut task).cast(), &raw mut child.pidfd) };
        child.pid >= 0
    };
    // A seccomp filter that does not know the flag refuses it; then we reap.
    let started = with_pidfd && clone(libc::CLONE_PIDFD) || clone(0);
    let error = errno();
    // SAFETY: nobody runs on that stack any more.
    unsafe { libc::syscall(libc::SYS_munmap, stack, STACK_BYTES) };
    if started { Ok(child) } else { Err(error) }
}

/// What wait4(2) found.
pub(crate) enum Reaped {
    /// This child changed its state; its status.
    Child(Pid, c_int),
    /// There are children, but none has changed its state.
    Nothing,
    /// There is no child left.
    NoChild,
}

/// wait4(2) on any child, without waiting. Stops count: the command may be a shell's job.
pub(crate) fn reap() -> Reaped {
    let mut status = 0;
    let options = libc::WNOHANG | libc::WUNTRACED | libc::__WALL;
    // SAFETY: the pointer is to a live number; usage is not asked for.
    let child =
        unsafe { libc::syscall(libc::SYS_wait4, -1 as c_long, &raw mut status, c_long::from(options), 0 as c_long) };
    match child {
        0 => Reaped::Nothing,
        1.. => Reaped::Child(child as Pid, status),
        _ => Reaped::NoChild,
    }
}

/// waitid(2): a child that has ended, without reaping it; `None` where there is none.
pub(crate) fn next_ended() -> Option<Pid> {
    // SAFETY: siginfo_t is integers and a union of such, for which zeroes are valid.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let (which, none) = (c_long::from(libc::P_ALL), 0 as c_long);
    // SAFETY: the pointer is to a live value of the kernel's type; usage is not asked for.
    unsafe { libc::syscall(libc::SYS_waitid, which, none, &raw mut info, c_long::from(options), none) };
    // SAFETY: si_pid lies within every siginfo_t; it stays zero where no child has ended.
    let child = unsafe { info.si_pid() };
    (child > 0).then_some(child)
}

/// What ended the wait.
pub(crate) enum Woken {
    /// A signal is pending.
    Signal,
    /// The child has ended, and the kernel has reaped it.
    End,
    /// The limit has passed, or somebody looked at us (a debugger); the clock tells which.
    Limit,
    /// Nothing: this cannot be waited for any more, as where the limit of open files (getrlimit(2)) was taken below the two that
    /// ppoll(2) is asked about.
    Refused,
}

/// The command, reaped by the kernel like every orphan: its descriptor says that it has ended and how.
pub(crate) struct Watch {
    pidfd: c_int,
    /// Readable where a signal is pending (signalfd(2)).
    signals: c_int,
}

impl Watch {
    /// Whether ppoll(2) may be called here.
    pub(crate) fn is_possible() -> bool {
        poll(&mut [], Some(Milliseconds::ZERO)) == Ok(0)
    }

    /// Watches the child behind `pidfd`; `None` where the kernel cannot tell how such a child ended.
    pub(crate) fn over(pidfd: c_int) -> Option<Self> {
        info(pidfd)?;
        let (all, flags) = (SignalMask::MAX, c_long::from(libc::SFD_CLOEXEC));
        // SAFETY: the pointer is to a live set of the stated size, which is the kernel's; -1 asks for a new descriptor.
        let signals = unsafe { libc::syscall(libc::SYS_signalfd4, -1 as c_long, &raw const all, MASK_BYTES, flags) };
        (signals >= 0).then_some(Self { pidfd, signals: signals as c_int })
    }

    pub(crate) fn pidfd(&self) -> c_int {
        self.pidfd
    }

    /// Waits for a signal or for the child's end, whatever comes first, at most for `limit`.
    pub(crate) fn wait(&self, limit: Option<Milliseconds>) -> Woken {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        // A process that has ended is readable; one that was reaped, too, is hung up, which is reported without asking.
        let mut entries = [entry(self.signals, libc::POLLIN), entry(self.pidfd, 0)];
        loop {
            match poll(&mut entries, limit) {
                Ok(0) => return Woken::Limit,
                Ok(_) if entries.first().is_some_and(|signals| signals.revents != 0) => return Woken::Signal,
                Ok(_) => return Woken::End,
                Err(libc::EINTR) if limit.is_none() => {}
                Err(libc::EINTR) => return Woken::Limit,
                Err(_) => return Woken::Refused,
            }
        }
    }

    /// The wait status of a child that has ended and was reaped.
    pub(crate) fn status(&self) -> Option<c_int> {
        info(self.pidfd).filter(|info| info.mask & INFO_EXIT != 0).map(|info| info.status)
    }
}

/// Whether a line can be written to `fd` at once, as far as the kernel tells.
pub(super) fn takes_line(fd: c_int) -> bool {
    poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], Some(Milliseconds::ZERO)) != Ok(0)
}

/// ppoll(2); our own mask stays.
fn poll(entries: &mut [libc::pollfd], limit: Option<Milliseconds>) -> Result<c_long, Errno> {
    let limit = limit.map(to_timespec);
    let limit: *const libc::timespec = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let none = 0 as c_long;
    // SAFETY: the entries are live and as many as stated; a null limit means none, and a null mask changes none.
    let found = unsafe { libc::syscall(libc::SYS_ppoll, entries.as_mut_ptr(), entries.len(), limit, none, MASK_BYTES) };
    if found < 0 { Err(errno()) } else { Ok(found) }
}

/// PIDFD_GET_INFO of ioctl_pidfd(2); `None` where it is refused.
fn info(pidfd: c_int) -> Option<Info> {
    let mut info = Info { mask: INFO_EXIT, _cgroup: 0, _ids: [0; 11], status: 0 };
    // SAFETY: the pointer is to a live structure of the size that the request states.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, c_long::from(pidfd), GET_INFO, &raw mut info) };
    (done == 0).then_some(info)
}

/// Sends `number` to our children, as many as fit `buffer` in a list of them (`/proc/thread-self/children`, proc(5)). Those
/// below them are not ours yet.
pub(crate) fn kill_all(buffer: &mut [u8], number: c_int) {
    let list = files::read_start(c"/proc/thread-self/children", buffer).unwrap_or_default();
    // A blank follows each; what no blank follows was cut, and is another's number.
    let whole = list.iter().rposition(|byte| *byte == b' ').and_then(|end| list.get(..end)).unwrap_or_default();
    for child in Parts::of(whole, b' ').filter_map(numbers::decimal) {
        signals::kill(child as Pid, number);
    }
}
