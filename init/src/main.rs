//! PID 1 of an image, or a subreaper within one: starts one command, passes signals on, reaps every orphan, ends as the
//! command ends. Read it top to bottom: what we were asked, how a guard finds its daemon, the start, the loop.
//!
//! It never allocates, polls, or writes a file. Once the command is started nothing but its end ends the init.
// Where panics unwind (the dev profile), std is linked: it holds what an unwinding `core` asks for, and lints and editors need no recipe.
#![cfg_attr(panic = "abort", no_std)]
#![no_main]
#![expect(unsafe_code, reason = "the entry that C calls; every system call is in sys.rs")]

mod daemon;
mod sys;

use core::ffi::{CStr, c_char, c_int};

use dind_init::options::{Mistake, Options, Request};
use dind_init::search::NOT_FOUND;
use dind_init::signals::{Terminal, Treatment};
use dind_init::status::Change;
use dind_init::text::{Decimal, HELP, PathBuffer, VERSION};
use dind_init::{NAME, Pid, guard, options, search, signals, status};
use sys::arguments::Arguments;
use sys::{Errno, Forked, Signal, SignalState};

/// Exit code for a wrong command line, and for a start that failed before the command's (tini's, too).
const FAILED: u8 = 1;

/// Every message starts with it.
const PREFIX: &[u8] = b"init: ";

/// What C's start-up calls.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    let inherited = SignalState::take();
    let arguments = Arguments::of_main(count, arguments);
    match guard::guarded(sys::arguments::executed_path(), arguments.first().to_bytes()) {
        Some(name) => stand_before(name, arguments, &inherited),
        None => follow(arguments, &inherited),
    }
}

/// Does what the command line says.
fn follow(arguments: Arguments, inherited: &SignalState) -> ! {
    match options::parse(arguments.from(1).bytes()) {
        Ok(Request::Help) => print(&[HELP.as_bytes()]),
        Ok(Request::Version) => print(&VERSION.map(str::as_bytes)),
        Ok(Request::Run(options)) => {
            let command = arguments.from(options.command);
            run(&Command { program: Program::OnPath(command.first()), arguments: command }, &options, inherited)
        }
        Err(Mistake::UnknownOption(option)) => {
            sys::complain(&[PREFIX, b"unknown option ", option, b", see --help\n"]);
            sys::exit(FAILED)
        }
        Err(Mistake::NoCommand) => {
            sys::complain(&[PREFIX, b"no command to run, see --help\n"]);
            sys::exit(FAILED)
        }
    }
}

fn print(text: &[&[u8]]) -> ! {
    sys::exit(if sys::print(text) { 0 } else { FAILED })
}

/// A command and how its file is found.
struct Command<'a> {
    program: Program<'a>,
    arguments: Arguments,
}

enum Program<'a> {
    /// By the rules of execvp(3).
    OnPath(&'a CStr),
    /// The daemon behind a guard, at this path. It dies with its init, as if both were one process.
    Guarded(&'a CStr),
}

/// Called as `name`: executes the daemon itself where an init of ours reaps already, else becomes its init.
fn stand_before(name: &[u8], arguments: Arguments, inherited: &SignalState) -> ! {
    let mut buffer = PathBuffer::new();
    let Some(daemon) = daemon::next_on_path(name, &mut buffer) else {
        sys::complain(&[PREFIX, b"exec ", name, b": not found on PATH behind its guard\n"]);
        sys::exit(NOT_FOUND)
    };
    let command = Command { program: Program::Guarded(daemon), arguments };
    if sys::own_pid() != 1 && daemon::is_reaped_above() {
        inherited.restore();
        execute(&command)
    }
    run(&command, &Options::default(), inherited)
}

/// Becomes the init of `command`: the start, which may fail, and then the loop, which may not.
fn run(command: &Command, options: &Options, inherited: &SignalState) -> ! {
    let own = sys::own_pid();
    if own != 1 {
        // Before the fork: up to Linux 4.11 only children made later handed their orphans to us.
        sys::adopt_orphans();
    }
    let own_group = sys::own_group();
    let terminal = signals::terminal(own_group, sys::foreground_group());
    match sys::fork() {
        Ok(Forked::Child) => become_command(command, own, terminal, inherited),
        Ok(Forked::Parent(child)) => {
            if terminal != Terminal::Shared {
                // The child does it too: whoever comes first, the group is there before a signal is sent to it.
                sys::lead_group(child);
            }
            sys::set_name(NAME);
            sys::leave_working_directory();
            sys::close_inherited();
            if options.verbose {
                say(child, b" runs ", command.arguments.first().to_bytes());
            }
            let target = if options.group && terminal != Terminal::Shared { -child } else { child };
            Supervisor { own, own_group, child, target, terminal }.supervise(options.verbose)
        }
        Err(errno) => fail(b"fork: ", &[], errno, FAILED),
    }
}

/// The forked child's way to its program.
fn become_command(command: &Command, init: Pid, terminal: Terminal, inherited: &SignalState) -> ! {
    if terminal != Terminal::Shared {
        sys::lead_group(sys::own_pid());
    }
    if terminal == Terminal::Foreground {
        sys::set_foreground_group(sys::own_pid());
    }
    if let Program::Guarded(_) = command.program {
        sys::die_with_parent();
        // An init that ended before that call sends no signal any more.
        if sys::parent_pid() != init {
            sys::exit(FAILED)
        }
    }
    inherited.restore();
    execute(command)
}

/// Executes the program in our place. Signals are as the program shall find them; if it cannot be executed, one line and
/// the exit code say why.
fn execute(command: &Command) -> ! {
    let (name, errno) = match command.program {
        Program::Guarded(path) => (path, execute_file(path, command.arguments)),
        Program::OnPath(name) if search::is_path(name.to_bytes()) => (name, execute_file(name, command.arguments)),
        Program::OnPath(name) => (name, execute_on_path(name, command.arguments)),
    };
    sys::block_signals();
    fail(b"exec ", name.to_bytes(), errno, search::exit_code(errno))
}

/// Tries each folder of PATH; the error is that of the last one, or of the first one that has such a file.
fn execute_on_path(name: &CStr, arguments: Arguments) -> Errno {
    let mut buffer = PathBuffer::new();
    let mut error = libc::ENOENT;
    // An empty name would name the folders.
    for folder in search::folders(path_variable()).filter(|_| !name.is_empty()) {
        let path = buffer.compose(&search::joined(folder, name.to_bytes()));
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
pub(crate) fn path_variable() -> &'static [u8] {
    sys::arguments::variable(c"PATH").unwrap_or(search::DEFAULT_PATH)
}

/// What the loop knows.
struct Supervisor {
    own: Pid,
    own_group: Pid,
    child: Pid,
    /// Who gets the signals: the child, or its group as a negative number.
    target: Pid,
    terminal: Terminal,
}

impl Supervisor {
    /// Waits, without any limit, for the next signal, until the child has ended.
    fn supervise(&self, verbose: bool) -> ! {
        loop {
            let signal = Signal::wait();
            match signals::treatment(signal.received(), self.own, self.terminal) {
                Treatment::Reap => {
                    if let Some(code) = self.reap() {
                        if verbose {
                            say(self.child, b" ended with code ", Decimal::of(code.into()).bytes());
                        }
                        self.end(code)
                    }
                }
                Treatment::Forward => {
                    if signal.received().number == libc::SIGCONT {
                        self.pass_terminal(self.own_group, self.child);
                    }
                    signal.send(self.target);
                }
                // The value goes to one process: there is no call that queues it to a group.
                Treatment::ForwardWithValue if self.target > 0 => signal.send_with_value(self.target),
                Treatment::ForwardWithValue => signal.send(self.target),
                Treatment::Drop => {}
            }
        }
    }

    /// Reaps until nobody is left: SIGCHLD stands for one death or for many. The child's end comes before that of others.
    fn reap(&self) -> Option<u8> {
        while let Some((process, status)) = sys::reap() {
            match status::change(status) {
                Change::Ended(code) if process == self.child => return Some(code),
                Change::Stopped(signal) if process == self.child => self.stop(signal),
                Change::Ended(_) | Change::Stopped(_) => {}
            }
        }
        None
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
            sys::kill(self.child, libc::SIGCONT);
        } else {
            sys::kill(self.own, libc::SIGSTOP);
        }
    }

    /// Ends as the child did. The kernel then kills what is left, if we are PID 1; a shell above us needs its terminal back.
    fn end(&self, code: u8) -> ! {
        self.pass_terminal(self.child, self.own_group);
        sys::exit(code)
    }

    /// Whether a shell may stop and continue us as its job: one that shares our terminal. PID 1 has none above it.
    fn is_job(&self) -> bool {
        self.own != 1 && matches!(self.terminal, Terminal::Foreground | Terminal::Background)
    }

    /// Gives the terminal to the group `to`, if the group `from` has it.
    fn pass_terminal(&self, from: Pid, to: Pid) {
        if self.is_job() && sys::foreground_group() == Some(from) {
            sys::set_foreground_group(to);
        }
    }
}

/// A line of `-v`.
fn say(child: Pid, event: &[u8], what: &[u8]) {
    sys::complain(&[PREFIX, b"process ", Decimal::of(child.unsigned_abs()).bytes(), event, what, b"\n"]);
}

/// One line that names the act, its object and the reason; then the end.
fn fail(act: &[u8], object: &[u8], errno: Errno, code: u8) -> ! {
    let separator: &[u8] = if object.is_empty() { b"" } else { b": " };
    sys::complain(&[PREFIX, act, object, separator, sys::reason(errno), b"\n"]);
    sys::exit(code)
}

// Nothing panics: an optimised build in which anything could does not link, since nobody defines `a_panic_is_possible`.
#[cfg(all(panic = "abort", not(debug_assertions)))]
unsafe extern "C" {
    fn a_panic_is_possible() -> !;
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    #[cfg(not(debug_assertions))]
    // SAFETY: a program that contains this call does not exist.
    unsafe {
        a_panic_is_possible()
    }
    #[cfg(debug_assertions)]
    sys::exit(FAILED)
}
