//! What the kernel laid on the stack for us: arguments, environment, the path that was executed; and the call that passes
//! the arguments on.

use core::ffi::{CStr, c_char, c_int};
use core::{ptr, slice};

use super::{Errno, errno};

/// argv, or the part of it from some index on. The kernel keeps it, and the null that ends it, for the process's life.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    count: usize,
    first: *const *const c_char,
}

impl Arguments {
    /// What `main` was given. Nothing else may be passed.
    pub(crate) fn of_main(count: c_int, first: *const *const c_char) -> Self {
        Self { count: usize::try_from(count).unwrap_or(0), first }
    }

    fn pointers(self) -> &'static [*const c_char] {
        // SAFETY: `first` is argv or a place within, followed by `count` pointers that nobody changes.
        unsafe { slice::from_raw_parts(self.first, self.count) }
    }

    /// Each argument's bytes, in order.
    pub(crate) fn bytes(self) -> impl Iterator<Item = &'static [u8]> {
        self.pointers().iter().map(|argument| text(*argument).to_bytes())
    }

    /// The first argument; an empty one where the caller gave none at all.
    pub(crate) fn first(self) -> &'static CStr {
        self.pointers().first().map_or(c"", |argument| text(*argument))
    }

    /// The arguments from `index` on.
    pub(crate) fn from(self, index: usize) -> Self {
        let index = index.min(self.count);
        // SAFETY: the index is at most the count, so the place is in argv or at the null that ends it.
        let first = unsafe { self.first.add(index) };
        Self { count: self.count - index, first }
    }

    /// execve(2) with our environment, as musl's execv(3) does it. Returns only with an error.
    pub(crate) fn execute(self, program: &CStr) -> Errno {
        // SAFETY: the path ends in a zero byte, and the pointers in a null.
        unsafe { libc::execv(program.as_ptr(), self.first) };
        errno()
    }

    /// Executes the script `program` by /bin/sh, with our arguments but the first. Returns only with an error.
    pub(crate) fn execute_by_shell(self, program: &CStr) -> Errno {
        let shell = c"/bin/sh";
        let count = self.count + 2;
        let (readable, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: asks for new memory, so none that is in use changes.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), count * size_of::<*const c_char>(), readable, private, -1, 0) };
        if memory == libc::MAP_FAILED {
            return errno();
        }
        // SAFETY: the memory is ours alone, aligned to a page, of that size, and zeroes are null pointers.
        let vector = unsafe { slice::from_raw_parts_mut(memory.cast::<*const c_char>(), count) };
        let arguments = self.pointers().iter().skip(1).copied();
        for (slot, argument) in vector.iter_mut().zip([shell.as_ptr(), program.as_ptr()].into_iter().chain(arguments)) {
            *slot = argument;
        }
        Self { count: count - 1, first: vector.as_ptr() }.execute(shell)
    }
}

/// The path by which the kernel executed us (AT_EXECFN of getauxval(3)).
pub(crate) fn executed_path() -> &'static [u8] {
    // SAFETY: takes a number; the answer is 0 where the kernel gave no such entry.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    if address == 0 { b"" } else { text(ptr::with_exposed_provenance(address as usize)).to_bytes() }
}

/// The value of an environment variable; `None` where it is not set.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends in a zero byte, and nothing changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    (!value.is_null()).then(|| text(value).to_bytes())
}

/// A text of the kernel's or of musl's, which stays for the process's life and which nobody changes.
pub(super) fn text(start: *const c_char) -> &'static CStr {
    // SAFETY: the callers pass no null, but the start of such a text, which ends in a zero byte.
    unsafe { CStr::from_ptr(start) }
}
