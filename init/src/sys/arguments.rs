//! What the kernel laid on the stack for us: arguments, environment, the path that was executed; and the call that passes
//! them on.

use core::ffi::{CStr, c_char, c_int};
use core::{ptr, slice};

use dind_init::Pid;
use dind_init::errno::Errno;
use dind_init::numbers::Decimal;
use dind_init::text::compose;

use super::{errno, new_memory};

/// The variable that says for which process systemd's sockets are meant (sd_listen_fds(3)).
const LISTEN_PID: &[u8] = b"LISTEN_PID=";

/// Bytes of [`LISTEN_PID`] with any number and the zero that ends it.
pub(crate) const LISTEN_PID_BYTES: usize = 24;

/// argv, or the part of it from some index on, and the environment. The kernel keeps both, and the nulls that end them,
/// for the process's life.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    count: usize,
    first: *const *const c_char,
    environment: *mut *const c_char,
}

impl Arguments {
    /// What `main` was given. Nothing else may be passed.
    pub(crate) fn of_main(count: c_int, first: *const *const c_char) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the environment follows the null that ends argv (execve(2), and the ABI's initial process stack).
        let environment = unsafe { first.add(count + 1) };
        Self { count, first, environment: environment.cast_mut() }
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
        Self { count: self.count - index, first, ..self }
    }

    /// The places of the environment's entries.
    fn entries(self) -> impl Iterator<Item = *mut *const c_char> {
        let place = move |index| {
            // SAFETY: the iteration ends at the null that ends the environment, so the place is within it.
            unsafe { self.environment.add(index) }
        };
        // SAFETY: as above; every place within holds a pointer.
        (0..).map(place).take_while(|entry| unsafe { !(**entry).is_null() })
    }

    /// The value of an environment variable; `None` where it is not set. The first of a name counts, as in getenv(3).
    pub(crate) fn variable(self, name: &CStr) -> Option<&'static [u8]> {
        self.entries().find_map(|entry| {
            // SAFETY: the place holds a pointer that is not null.
            let entry = text(unsafe { *entry }).to_bytes();
            entry.strip_prefix(name.to_bytes())?.strip_prefix(b"=")
        })
    }

    /// Where LISTEN_PID names `init`, makes it name `process`, in `buffer`: the sockets were meant for the command.
    pub(crate) fn hand_on_sockets(self, init: Pid, process: Pid, buffer: &mut [u8; LISTEN_PID_BYTES]) {
        for entry in self.entries() {
            // SAFETY: the place holds a pointer that is not null.
            let value = text(unsafe { *entry }).to_bytes().strip_prefix(LISTEN_PID);
            if value == Some(Decimal::of(init.unsigned_abs()).bytes()) {
                let number = Decimal::of(process.unsigned_abs());
                let Some(content) = compose(buffer, &[LISTEN_PID, number.bytes()]) else { return };
                // SAFETY: the place is ours to write, and the buffer outlives the call that executes the command.
                unsafe { *entry = content.as_ptr() };
                return;
            }
        }
    }

    /// execve(2). Returns only with an error.
    pub(crate) fn execute(self, program: &CStr) -> Errno {
        // SAFETY: the path ends in a zero byte, and the pointers in nulls.
        unsafe { libc::syscall(libc::SYS_execve, program.as_ptr(), self.first, self.environment) };
        errno()
    }

    /// Executes the script `program` by /bin/sh, with our arguments but the first. Returns only with an error.
    pub(crate) fn execute_by_shell(self, program: &CStr) -> Errno {
        let shell = c"/bin/sh";
        let count = self.count + 2;
        let memory = match new_memory(count * size_of::<*const c_char>()) {
            Ok(memory) => memory,
            Err(errno) => return errno,
        };
        // SAFETY: the memory is ours alone, aligned to a page, of that size, and zeroes are null pointers.
        let vector = unsafe { slice::from_raw_parts_mut(memory.cast::<*const c_char>(), count) };
        let [first, second, rest @ ..] = vector else { return libc::EINVAL };
        (*first, *second) = (shell.as_ptr(), program.as_ptr());
        for (slot, argument) in rest.iter_mut().zip(self.pointers().iter().skip(1)) {
            *slot = *argument;
        }
        Self { count: count - 1, first: vector.as_ptr(), ..self }.execute(shell)
    }
}

/// The path by which the kernel executed us (AT_EXECFN of getauxval(3)).
pub(crate) fn executed_path() -> &'static [u8] {
    // SAFETY: takes a number; the answer is 0 where the kernel gave no such entry.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    if address == 0 { b"" } else { text(ptr::with_exposed_provenance(address as usize)).to_bytes() }
}

/// A text of the kernel's, which stays for the process's life and which nobody changes.
fn text(start: *const c_char) -> &'static CStr {
    // SAFETY: the callers pass no null, but the start of such a text, which ends in a zero byte.
    unsafe { CStr::from_ptr(start) }
}
