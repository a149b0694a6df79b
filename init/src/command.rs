//! The command: how its file is found, and what the new process does before it executes it.
//!
//! Nothing here is seen by the init: where the new process shares its memory, and where it does not, it ends with a code.

use core::ffi::CStr;

use dind_init::errno::Errno;
use dind_init::options::Grouping;
use dind_init::signals::Terminal;
use dind_init::text::{PATH_BYTES_MAX, compose};
use dind_init::{Pid, search};

use crate::sys;
use crate::sys::arguments::{Arguments, LISTEN_PID_BYTES};
use crate::sys::signals::SignalState;

/// A command and how its file is found.
pub(crate) struct Command<'a> {
    pub(crate) program: Program<'a>,
    /// Its words, the first included.
    pub(crate) arguments: Arguments,
}

pub(crate) enum Program<'a> {
    /// By the rules of execvp(3).
    OnPath(&'a CStr),
    /// The daemon behind a guard, at this path. It dies with its init, as if both were one process.
    Guarded(&'a CStr),
}

impl Command<'_> {
    /// Executes the program in our place. If that fails, one line and the exit code say why.
    pub(crate) fn execute(&self) -> ! {
        let (path, errno) = match self.program {
            Program::Guarded(path) => (path, execute_file(path, self.arguments)),
            Program::OnPath(name) if search::is_path(name.to_bytes()) => (name, execute_file(name, self.arguments)),
            Program::OnPath(name) => (name, execute_on_path(name, self.arguments)),
        };
        // Signals are as the program should find them, and a message to a closed pipe must not end us.
        sys::signals::block();
        crate::fail(b"exec ", path.to_bytes(), errno, search::exit_code(errno))
    }
}

/// Tries each folder of PATH; the error is that of the last one, or of the first one that has such a file.
fn execute_on_path(name: &CStr, arguments: Arguments) -> Errno {
    let mut buffer = [0; PATH_BYTES_MAX];
    let mut error = libc::ENOENT;
    // An empty name would name the folders.
    for folder in search::folders(path_variable(arguments)).filter(|_| !name.is_empty()) {
        let path = compose(&mut buffer, &search::joined(folder, name.to_bytes()));
        let errno = path.map_or(libc::ENAMETOOLONG, |path| execute_file(path, arguments));
        if !search::goes_on_after(errno) {
            return errno;
        }
        error = search::more_telling(error, errno);
    }
    error
}

/// Executes one file; a script without a `#!` line runs through /bin/sh, as execvp(3) has it.
fn execute_file(path: &CStr, arguments: Arguments) -> Errno {
    match arguments.execute(path) {
        libc::ENOEXEC => arguments.execute_by_shell(path),
        errno => errno,
    }
}

/// PATH, or what it is where it is not set.
pub(crate) fn path_variable(arguments: Arguments) -> &'static [u8] {
    arguments.variable(c"PATH").unwrap_or(search::DEFAULT_PATH)
}

/// The new process's way to the command's program.
pub(crate) struct Start<'a> {
    command: &'a Command<'a>,
    init: Pid,
    grouping: Grouping,
    terminal: Terminal,
    inherited: &'a SignalState,
    listen_pid: [u8; LISTEN_PID_BYTES],
}

impl<'a> Start<'a> {
    pub(crate) fn new(
        command: &'a Command<'a>,
        init: Pid,
        grouping: Grouping,
        terminal: Terminal,
        inherited: &'a SignalState,
    ) -> Self {
        Self { command, init, grouping, terminal, inherited, listen_pid: [0; LISTEN_PID_BYTES] }
    }

    /// Runs in the new process. A program that cannot be executed is one that ends with 126 or 127: qemu-user and the like
    /// make of vfork(2) a fork, so that nothing but its end tells the init.
    pub(crate) fn run(&mut self) -> ! {
        let own = sys::own_pid();
        match (self.grouping, self.terminal) {
            (Grouping::Parents, _) | (_, Terminal::Shared) => {}
            // A session has no terminal at first, and taking one from our session would hang that one up.
            (Grouping::Session, Terminal::Absent) => sys::lead_session(),
            (_, Terminal::Absent | Terminal::Background) => sys::lead_group(),
            (_, Terminal::Foreground) => {
                sys::lead_group();
                sys::set_foreground_group(own);
            }
        }
        if let Program::Guarded(_) = self.command.program {
            // Where that is refused, the daemon outlives a killed guard, as it would any other parent.
            let _ = sys::on_parents_end(libc::SIGKILL as u8);
            // An init that ended before that call sends no signal any more.
            if sys::parent_pid() != self.init {
                sys::exit(crate::FAILED)
            }
        }
        self.command.arguments.hand_on_sockets(self.init, own, &mut self.listen_pid);
        self.inherited.restore();
        self.command.execute()
    }
}
