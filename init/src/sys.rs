//! The system calls that the init makes: each function is one of them, or one with the buffer it needs.
//!
//! Decides nothing. All of the program's `unsafe` is here and in `arguments`. Masks are set by the raw call, since musl's wrappers leave
//! out the real-time signals that it keeps for itself (32 to 34).

pub(crate) mod arguments;

use core::ffi::{CStr, c_int, c_long, c_void};
use core::{mem, ptr};

use dind_init::Pid;
use dind_init::signals::Received;
use libc::{siginfo_t, timespec};

/// The kernel's set of all 64 signals: bit N-1 for signal N.
type SignalMask = u64;

/// An error number of errno(3).
pub(crate) type Errno = c_int;

/// Descriptors that are closed one by one where the kernel has no close_range(2) (before 5.9, or under a seccomp profile
/// of that age): their number is no process's limit, which may be in the millions.
const CLOSED_ONE_BY_ONE: c_int = 4096;

/// Pieces that one message may have.
const PIECES_MAX: usize = 8;

/// What the init was started with and changes for itself; the command gets it back.
pub(crate) struct SignalState {
    mask: SignalMask,
    on_child: libc::sigaction,
}

impl SignalState {
    /// Blocks every signal, so that none that arrives from now on is lost, and sets SIGCHLD to its default: ignored, as
    /// a parent may leave it, it would make the kernel reap behind our back.
    pub(crate) fn take() -> Self {
        let mask = set_mask(SignalMask::MAX);
        // SAFETY: all zeroes is a valid sigaction: the default action, no flags, an empty mask.
        let default: libc::sigaction = unsafe { mem::zeroed() };
        let mut on_child = default;
        // SAFETY: both pointers are to live values of the type; SIGCHLD may be set, so the call cannot fail.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const default, &raw mut on_child) };
        Self { mask, on_child }
    }

    /// Undoes [`Self::take`]; what is pending takes effect at once.
    pub(crate) fn restore(&self) {
        // SAFETY: the pointer is to a live value that the kernel gave us; no old action is asked for.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const self.on_child, ptr::null_mut()) };
        set_mask(self.mask);
    }
}

/// Blocks every signal, so that a message to a closed pipe cannot end us.
pub(crate) fn block_signals() {
    set_mask(SignalMask::MAX);
}

/// rt_sigprocmask(2): replaces the mask and gives the one before.
fn set_mask(mask: SignalMask) -> SignalMask {
    let mut before: SignalMask = 0;
    let size = size_of::<SignalMask>();
    // SAFETY: both pointers are to live sets of the stated size, which is the kernel's.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, c_long::from(libc::SIG_SETMASK), &raw const mask, &raw mut before, size)
    };
    before
}

/// A signal with everything that the kernel says about it.
pub(crate) struct Signal(siginfo_t);

impl Signal {
    /// rt_sigtimedwait(2) without a limit; all signals are blocked, so this is where each arrives, once.
    pub(crate) fn wait() -> Self {
        let all = SignalMask::MAX;
        // SAFETY: siginfo_t is integers and a union of such, for which zeroes are valid.
        let mut info: siginfo_t = unsafe { mem::zeroed() };
        let size = size_of::<SignalMask>();
        let forever: *const timespec = ptr::null();
        loop {
            // SAFETY: the pointers are to live values of the kernel's types, and a null limit means none.
            let number =
                unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &raw const all, &raw mut info, forever, size) };
            // EINTR: we were stopped and continued, or a debugger looked at us.
            if number > 0 {
                return Self(info);
            }
        }
    }

    /// What the decision needs.
    pub(crate) fn received(&self) -> Received {
        // SAFETY: si_pid lies within every siginfo_t, and any bits are a valid Pid.
        let sender = unsafe { self.0.si_pid() };
        Received { number: self.0.si_signo, code: self.0.si_code, sender }
    }

    /// kill(2): the same number to `target`, a process or, if negative, a group.
    pub(crate) fn send(&self, target: Pid) {
        kill(target, self.0.si_signo);
    }

    /// rt_sigqueueinfo(2): the same number with the same value to the process `target`.
    pub(crate) fn send_with_value(&self, target: Pid) {
        // SAFETY: the pointer is to a live siginfo_t that the kernel filled.
        let done = unsafe {
            libc::syscall(
                libc::SYS_rt_sigqueueinfo,
                c_long::from(target),
                c_long::from(self.0.si_signo),
                &raw const self.0,
            )
        };
        if done != 0 {
            // EAGAIN: the target's queue is full (RLIMIT_SIGPENDING). A signal without its value is better than none.
            self.send(target);
        }
    }
}

/// kill(2). ESRCH: all of `target` is gone already. EPERM: it changed its user, and we have no right over it any more.
pub(crate) fn kill(target: Pid, number: c_int) {
    // SAFETY: takes two numbers and no memory.
    unsafe { libc::kill(target, number) };
}

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

/// PR_SET_CHILD_SUBREAPER of prctl(2): orphans below us become our children. It cannot fail since Linux 3.4.
pub(crate) fn adopt_orphans() {
    // SAFETY: takes numbers and no memory.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as c_long, 0 as c_long, 0 as c_long, 0 as c_long) };
}

/// PR_SET_PDEATHSIG of prctl(2): we are killed when our parent ends.
pub(crate) fn die_with_parent() {
    // SAFETY: takes numbers and no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as c_long, 0 as c_long, 0 as c_long, 0 as c_long) };
}

/// PR_SET_NAME of prctl(2): the name in `/proc/PID/comm`, of which 15 bytes count.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the pointer is to a live text that ends in a zero byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0 as c_long, 0 as c_long, 0 as c_long) };
}

/// Who fork(2) returns to.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one, with the new one's id.
    Parent(Pid),
}

/// fork(2), by the bare clone(2) that it is: musl's fork prepares threads, locks and handlers, and we have none.
pub(crate) fn fork() -> Result<Forked, Errno> {
    let (signal, none) = (c_long::from(libc::SIGCHLD), 0 as c_long);
    // SAFETY: without CLONE_VM the child has memory and stack of its own. One thread: nothing of another is half done in
    // it. musl's notion of the thread's id goes stale in the child, where nothing asks for it.
    match unsafe { libc::syscall(libc::SYS_clone, signal, none, none, none, none) } {
        -1 => Err(errno()),
        0 => Ok(Forked::Child),
        child => Ok(Forked::Parent(child as Pid)),
    }
}

/// wait4(2) on any child, without waiting: its id and status, or `None` where no child has changed its state.
pub(crate) fn reap() -> Option<(Pid, c_int)> {
    let mut status = 0;
    // SAFETY: the pointer is to a live number; usage is not asked for. Stops count: the command may be a shell's job.
    let child =
        unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED | libc::__WALL, ptr::null_mut()) };
    (child > 0).then_some((child, status))
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

/// setpgid(2): the process becomes the leader of a group of its own. EPERM: it leads its session, thus a group, already.
/// EACCES: a child that has executed its program has done this itself.
pub(crate) fn lead_group(process: Pid) {
    // SAFETY: takes two numbers and no memory.
    unsafe { libc::setpgid(process, process) };
}

/// The controlling terminal, opened for one question: the init holds no descriptor in between.
struct Terminal {
    fd: c_int,
}

impl Terminal {
    fn open() -> Self {
        let opened = open(c"/dev/tty", libc::O_RDWR | libc::O_NOCTTY);
        // A bare root has no /dev/tty; standard input then is the terminal, or there is none.
        Self { fd: opened.unwrap_or(libc::STDIN_FILENO) }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.fd != libc::STDIN_FILENO {
            close(self.fd);
        }
    }
}

/// tcgetpgrp(3): the group that has the controlling terminal, 0 for one of another PID namespace, `None` without terminal.
pub(crate) fn foreground_group() -> Option<Pid> {
    let terminal = Terminal::open();
    // SAFETY: takes a number; a descriptor that is no terminal of ours is an error.
    let group = unsafe { libc::tcgetpgrp(terminal.fd) };
    (group >= 0).then_some(group)
}

/// tcsetpgrp(3): gives the controlling terminal to `group`. SIGTTOU is blocked, so this works from the background too.
/// An error means that terminal or group are gone, and with them the wish.
pub(crate) fn set_foreground_group(group: Pid) {
    let terminal = Terminal::open();
    // SAFETY: takes two numbers and no memory.
    unsafe { libc::tcsetpgrp(terminal.fd, group) };
}

/// chdir(2) to `/`, so that no mount is held. It fails only where we may not enter the root, and then changes nothing.
pub(crate) fn leave_working_directory() {
    // SAFETY: the pointer is to a constant text.
    unsafe { libc::chdir(c"/".as_ptr()) };
}

/// close_range(2): closes every descriptor but 0, 1 and 2.
pub(crate) fn close_inherited() {
    let first = libc::STDERR_FILENO + 1;
    // SAFETY: takes numbers; nothing here holds a descriptor that this could close.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, c_long::from(first), c_long::from(c_int::MAX), 0 as c_long) };
    if done != 0 {
        (first..CLOSED_ONE_BY_ONE).for_each(close);
    }
}

fn open(path: &CStr, flags: c_int) -> Option<c_int> {
    // SAFETY: the pointer is to a live text that ends in a zero byte; no mode is read, as no file is made.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    (fd >= 0).then_some(fd)
}

fn close(fd: c_int) {
    // SAFETY: takes a number; the callers close only what nobody uses any more.
    unsafe { libc::close(fd) };
}

/// The start of a file, as much as one read(2) gives of `buffer`'s size; `None` where it cannot be read.
pub(crate) fn read_start<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let fd = open(path, libc::O_RDONLY)?;
    // SAFETY: the pointer is to a live buffer of the stated length.
    let length = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    close(fd);
    buffer.get(..usize::try_from(length).ok()?)
}

/// The target of a symbolic link; `None` where there is none, or none that fits.
pub(crate) fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path ends in a zero byte, and the buffer is live and of the stated length.
    let length = unsafe { libc::readlink(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.get(..usize::try_from(length).ok()?)
}

/// What stat(2) says of a file, links followed.
pub(crate) struct File(libc::stat);

impl File {
    /// `None` where there is no such file, or none that we may see.
    pub(crate) fn at(path: &CStr) -> Option<Self> {
        // SAFETY: stat is integers, for which zeroes are valid.
        let mut stat: libc::stat = unsafe { mem::zeroed() };
        let (folder, flags) = (c_long::from(libc::AT_FDCWD), 0 as c_long);
        // SAFETY: the path ends in a zero byte, and the structure is live and the kernel's (it is libc's on 64-bit machines).
        let done = unsafe { libc::syscall(libc::SYS_newfstatat, folder, path.as_ptr(), &raw mut stat, flags) };
        (done == 0).then_some(Self(stat))
    }

    /// Whether both are one file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.st_dev == other.0.st_dev && self.0.st_ino == other.0.st_ino
    }

    /// Whether it is a regular file.
    pub(crate) fn is_regular(&self) -> bool {
        self.0.st_mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> usize {
        usize::try_from(self.0.st_size).unwrap_or(usize::MAX)
    }
}

/// access(2): whether we may execute `path`.
pub(crate) fn may_execute(path: &CStr) -> bool {
    // SAFETY: the pointer is to a live text that ends in a zero byte.
    unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
}

/// The system's words for an error number.
pub(crate) fn reason(errno: Errno) -> &'static [u8] {
    // SAFETY: musl gives a constant text for every number.
    arguments::text(unsafe { libc::strerror(errno) }).to_bytes()
}

/// One line on stderr, in one writev(2) so that it stays in one piece. An error is ignored: there is nobody to tell it.
pub(crate) fn complain(pieces: &[&[u8]]) {
    write(libc::STDERR_FILENO, pieces);
}

/// Text on stdout; whether all of it was taken.
pub(crate) fn print(pieces: &[&[u8]]) -> bool {
    write(libc::STDOUT_FILENO, pieces) == pieces.iter().map(|piece| piece.len()).sum::<usize>() as isize
}

fn write(fd: c_int, pieces: &[&[u8]]) -> isize {
    let mut vector = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
    for (slot, piece) in vector.iter_mut().zip(pieces) {
        *slot = libc::iovec { iov_base: piece.as_ptr().cast::<c_void>().cast_mut(), iov_len: piece.len() };
    }
    // SAFETY: each entry is a live slice or empty; the kernel only reads them.
    unsafe { libc::writev(fd, vector.as_ptr(), PIECES_MAX as c_int) }
}

fn errno() -> Errno {
    // SAFETY: the C library's errno of this thread, which lives as long.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is valid and aligned.
    unsafe { *place }
}
