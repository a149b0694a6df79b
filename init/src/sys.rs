//! The system calls that the init makes: each function is one of them, or one with the buffer it needs.
//!
//! Decides nothing. All of the program's `unsafe` but that of its entry is here and in the modules below. Where musl's wrapper does less than the
//! kernel, or is larger than what it wraps, the raw call is made.

pub(crate) mod arguments;
pub(crate) mod children;
pub(crate) mod files;
pub(crate) mod signals;

use core::ffi::{CStr, c_int, c_long, c_void};
use core::ptr;

use dind_init::Pid;
use dind_init::errno::Errno;
use dind_init::numbers::Milliseconds;
use dind_init::signals::Number;
use libc::timespec;

/// Pieces that one message may have.
const PIECES_MAX: usize = 10;

/// getpid(2).
pub(crate) fn own_pid() -> Pid {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// getppid(2); 0 where the parent is outside of our PID namespace.
pub(crate) fn parent_pid() -> Pid {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getppid() }
}

/// PR_SET_CHILD_SUBREAPER of prctl(2): orphans below us become our children. It fails only where something refuses the
/// call (a seccomp filter).
pub(crate) fn adopt_orphans() -> Result<(), Errno> {
    control(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// PR_SET_PDEATHSIG of prctl(2): the end of our parent sends us `signal`.
pub(crate) fn on_parents_end(signal: Number) -> Result<(), Errno> {
    control(libc::PR_SET_PDEATHSIG, c_long::from(signal))
}

/// PR_SET_NAME of prctl(2): the name in `/proc/PID/comm`, of which 15 bytes count.
pub(crate) fn set_name(name: &CStr) {
    // What a name is worth: no error is.
    let _ = control(libc::PR_SET_NAME, name.as_ptr().expose_provenance() as c_long);
}

/// prctl(2) with one argument.
fn control(operation: c_int, argument: c_long) -> Result<(), Errno> {
    let none = 0 as c_long;
    // SAFETY: the operations above take a number, or the address of a text that lives and ends in a zero byte.
    let done = unsafe { libc::syscall(libc::SYS_prctl, c_long::from(operation), argument, none, none, none) };
    if done < 0 { Err(errno()) } else { Ok(()) }
}

/// The kernel's name and release (uname(2)).
pub(crate) struct Kernel(libc::utsname);

impl Kernel {
    /// This one's.
    pub(crate) fn running() -> Self {
        // SAFETY: utsname is arrays of bytes, for which zeroes are valid.
        let mut names: libc::utsname = unsafe { core::mem::zeroed() };
        // SAFETY: the pointer is to a live structure of the kernel's form.
        unsafe { libc::syscall(libc::SYS_uname, &raw mut names) };
        Self(names)
    }

    /// The release, as in `6.18.0-1-amd64`.
    pub(crate) fn release(&self) -> &[u8] {
        // SAFETY: the kernel ends the release by a zero byte, and so did the zeroes where it refused the call.
        unsafe { CStr::from_ptr(self.0.release.as_ptr()) }.to_bytes()
    }
}

/// The time that has passed on a clock that nobody sets (CLOCK_MONOTONIC of clock_gettime(2)). The raw call: musl's
/// looks for the kernel's fast one first, which takes longer than a few calls ever save.
pub(crate) fn now() -> Milliseconds {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live value of the kernel's type.
    unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(libc::CLOCK_MONOTONIC), &raw mut time) };
    Milliseconds((time.tv_sec.unsigned_abs()).saturating_mul(1000) + time.tv_nsec.unsigned_abs() / 1_000_000)
}

/// `span` as the kernel takes it.
fn to_timespec(span: Milliseconds) -> timespec {
    timespec { tv_sec: (span.0 / 1000) as i64, tv_nsec: (span.0 % 1000 * 1_000_000) as c_long }
}

/// Ends the process; nothing is flushed, as nothing is buffered.
pub(crate) fn exit(code: u8) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(c_int::from(code)) }
}

/// getpgrp(2); 0 where the group is one of another PID namespace.
pub(crate) fn own_group() -> Pid {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpgrp() }
}

/// setpgid(2): we become the leader of a group of our own. EPERM: we lead our session, thus a group, already.
pub(crate) fn lead_group() {
    // SAFETY: takes two numbers and no memory.
    unsafe { libc::setpgid(0, 0) };
}

/// setsid(2): we become the leader of a session and a group of our own. EPERM: we lead a group already.
pub(crate) fn lead_session() {
    // SAFETY: takes nothing.
    unsafe { libc::setsid() };
}

/// The controlling terminal, opened for one question: the init holds no descriptor in between.
struct Terminal {
    fd: c_int,
}

impl Terminal {
    fn open() -> Self {
        let opened = files::open(c"/dev/tty", libc::O_RDWR | libc::O_NOCTTY);
        // A bare root has no /dev/tty; standard input then is the terminal, or there is none.
        Self { fd: opened.unwrap_or(libc::STDIN_FILENO) }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.fd != libc::STDIN_FILENO {
            files::close(self.fd);
        }
    }
}

/// TIOCGPGRP of ioctl_tty(2): the group that has the controlling terminal, 0 for one of another PID namespace, `None` without terminal.
pub(crate) fn foreground_group() -> Option<Pid> {
    let terminal = Terminal::open();
    let mut group: Pid = 0;
    let request = libc::TIOCGPGRP as c_long;
    // SAFETY: the pointer is to a live number; a descriptor that is no terminal of ours is an error.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, c_long::from(terminal.fd), request, &raw mut group) };
    (done == 0).then_some(group)
}

/// TIOCSPGRP of ioctl_tty(2): gives the controlling terminal to `group`. SIGTTOU is blocked, so this works from the background too.
/// An error means that terminal or group are gone, and with them the wish.
pub(crate) fn set_foreground_group(group: Pid) {
    let terminal = Terminal::open();
    let request = libc::TIOCSPGRP as c_long;
    // SAFETY: the pointer is to a live number.
    unsafe { libc::syscall(libc::SYS_ioctl, c_long::from(terminal.fd), request, &raw const group) };
}

/// One line on stderr, in one writev(2) so that it stays in one piece. An error is ignored: there is nobody to tell it. So is a
/// pipe that is full: a reader that has gone to sleep would hold up whoever waits for us.
pub(crate) fn complain(pieces: &[&[u8]]) {
    if children::takes_line(libc::STDERR_FILENO) {
        write(libc::STDERR_FILENO, pieces);
    }
}

/// Text on stdout; whether all of it was taken.
pub(crate) fn print(pieces: &[&[u8]]) -> bool {
    write(libc::STDOUT_FILENO, pieces) == pieces.iter().map(|piece| piece.len()).sum::<usize>() as c_long
}

fn write(fd: c_int, pieces: &[&[u8]]) -> c_long {
    let mut vector = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
    for (slot, piece) in vector.iter_mut().zip(pieces) {
        *slot = libc::iovec { iov_base: piece.as_ptr().cast::<c_void>().cast_mut(), iov_len: piece.len() };
    }
    // SAFETY: each entry is a live slice or empty; the kernel only reads them.
    unsafe { libc::syscall(libc::SYS_writev, c_long::from(fd), vector.as_ptr(), PIECES_MAX) }
}

/// mmap(2): zeroed memory of our own, of `size` bytes.
fn new_memory(size: usize) -> Result<*mut c_void, Errno> {
    let readable = c_long::from(libc::PROT_READ | libc::PROT_WRITE);
    let private = c_long::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (anywhere, no_file) = (0 as c_long, -1 as c_long);
    // SAFETY: asks for new memory, so none that is in use changes.
    let start = unsafe { libc::syscall(libc::SYS_mmap, anywhere, size, readable, private, no_file, 0 as c_long) };
    if start == -1 { Err(errno()) } else { Ok(ptr::with_exposed_provenance_mut(start as usize)) }
}

fn errno() -> Errno {
    // SAFETY: the C library's errno of this thread, which lives as long.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is valid and aligned.
    unsafe { *place }
}
