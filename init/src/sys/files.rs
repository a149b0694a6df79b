//! Files: what is read at the start, and what is closed for good.

use core::ffi::{CStr, c_int, c_long};
use core::mem;

/// Descriptors that are closed one by one where the kernel has no close_range(2) (before 5.9, or under a seccomp profile
/// of that age): their number is no process's limit, which may be in the millions.
const CLOSED_ONE_BY_ONE: c_int = 4096;

/// chdir(2) to `/`, so that no mount is held. It fails only where we may not enter the root, and then changes nothing.
pub(crate) fn leave_working_directory() {
    // SAFETY: the pointer is to a constant text.
    unsafe { libc::chdir(c"/".as_ptr()) };
}

/// Closes every descriptor but 0, 1, 2 and `kept`, which is none where it is below 3.
pub(crate) fn close_inherited(kept: c_int) {
    let first = libc::STDERR_FILENO + 1;
    if kept < first {
        close_all(first, c_int::MAX);
    } else {
        close_all(first, kept - 1);
        close_all(kept + 1, c_int::MAX);
    }
}

/// close_range(2); an empty range is left alone.
fn close_all(first: c_int, last: c_int) {
    if first > last {
        return;
    }
    // SAFETY: takes numbers; nothing here uses a descriptor that this closes.
    let done = unsafe { libc::syscall(libc::SYS_close_range, c_long::from(first), c_long::from(last), 0 as c_long) };
    if done != 0 {
        (first..=last).take_while(|fd| *fd < CLOSED_ONE_BY_ONE).for_each(close);
    }
}

/// open(2), closed where a program is executed; `None` where it fails.
pub(super) fn open(path: &CStr, flags: c_int) -> Option<c_int> {
    let (folder, flags) = (c_long::from(libc::AT_FDCWD), c_long::from(flags | libc::O_CLOEXEC));
    // SAFETY: the pointer is to a live text that ends in a zero byte; no mode is read, as no file is made.
    let fd = unsafe { libc::syscall(libc::SYS_openat, folder, path.as_ptr(), flags) };
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0)
}

/// close(2).
pub(super) fn close(fd: c_int) {
    // SAFETY: takes a number; the callers close only what nobody uses any more.
    unsafe { libc::syscall(libc::SYS_close, c_long::from(fd)) };
}

/// The start of a file, as much as one read(2) gives of `buffer`'s size; `None` where it cannot be read.
pub(crate) fn read_start<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // A FIFO without a writer would hold us up.
    let fd = open(path, libc::O_RDONLY | libc::O_NONBLOCK)?;
    // SAFETY: the pointer is to a live buffer of the stated length.
    let length = unsafe { libc::syscall(libc::SYS_read, c_long::from(fd), buffer.as_mut_ptr(), buffer.len()) };
    close(fd);
    buffer.get(..usize::try_from(length).ok()?)
}

/// The target of a symbolic link; `None` where there is none, or none that fits.
pub(crate) fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path ends in a zero byte, and the buffer is live and of the stated length.
    let length = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            c_long::from(libc::AT_FDCWD),
            path.as_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    buffer.get(..usize::try_from(length).ok()?)
}

/// unlink(2). A file that cannot be removed stays.
pub(crate) fn remove(path: &CStr) {
    // SAFETY: the pointer is to a live text that ends in a zero byte.
    unsafe { libc::unlink(path.as_ptr()) };
}

/// access(2): whether we may execute `path`.
pub(crate) fn may_execute(path: &CStr) -> bool {
    // SAFETY: the pointer is to a live text that ends in a zero byte.
    unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
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

/// The mount that `path` lies on: STATX_MNT_ID of statx(2), since Linux 5.8. `None` where there is no such path, or no such answer.
pub(crate) fn mount_of(path: &CStr) -> Option<u64> {
    // SAFETY: statx is integers, for which zeroes are valid.
    let mut answer: libc::statx = unsafe { mem::zeroed() };
    let (folder, mask) = (c_long::from(libc::AT_FDCWD), c_long::from(libc::STATX_MNT_ID));
    // SAFETY: the path ends in a zero byte, and the structure is live and the kernel's.
    unsafe { libc::syscall(libc::SYS_statx, folder, path.as_ptr(), 0 as c_long, mask, &raw mut answer) };
    (answer.stx_mask & libc::STATX_MNT_ID != 0).then_some(answer.stx_mnt_id)
}
