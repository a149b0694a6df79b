//! PID 1 of an image, or a subreaper within one: starts one command, passes signals on, reaps every orphan, ends as the
//! command ends. Read it top to bottom: what we were asked, how a guard finds its daemon, the start; then the loop, in
//! `supervisor.rs`.
//!
//! It never allocates, polls, or writes a file. Once the command is started nothing but its end ends the init.
// Where panics unwind (the dev profile), std is linked: it holds what an unwinding `core` asks for, and lints and editors need no recipe.
#![cfg_attr(panic = "abort", no_std)]
#![no_main]
#![expect(unsafe_code, reason = "the entry that C calls; every system call is in sys.rs")]

mod command;
mod daemon;
mod stale;

mod supervisor;
mod sys;

use core::ffi::{c_char, c_int};

use command::{Command, Program};
use dind_init::errno::{self, Errno};
use dind_init::numbers::Decimal;
use dind_init::options::{Mistake, Options, Request, Target};
use dind_init::search::NOT_FOUND;
use dind_init::text::{DUMB_INIT_VERSION, HELP, LICENCE, PATH_BYTES_MAX, VERSION};
use dind_init::{NAME, Pid, environment, guard, kernel, options, signals};
use supervisor::Supervisor;
use sys::arguments::Arguments;
use sys::children::{self, Watch};
use sys::files;
use sys::signals::SignalState;

/// Exit code for a wrong command line, and for a start that failed before the command's (tini's, too).
const FAILED: u8 = 1;

/// Every message starts with it.
const PREFIX: &[u8] = b"init: ";

/// What C's start-up calls.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    let inherited = SignalState::take();
    let arguments = Arguments::of_main(count, arguments);
    let called = arguments.first().to_bytes();
    let mut options = Options::default();
    if let Err(mistake) = environment::apply(&mut options, called, |name| arguments.variable(name)) {
        refuse(&mistake)
    }
    match guard::guarded(sys::arguments::executed_path(), called) {
        Some(name) => stand_before(name, arguments, &options, &inherited),
        None => follow(arguments, &mut options, &inherited),
    }
}

/// Does what the command line says.
fn follow(arguments: Arguments, options: &mut Options, inherited: &SignalState) -> ! {
    match options::parse(options, arguments.from(1).bytes()) {
        Ok(Request::Help) => print(&[HELP.as_bytes()]),
        Ok(Request::Version) if environment::is_dumb_init(arguments.first().to_bytes()) => {
            sys::complain(&[DUMB_INIT_VERSION.as_bytes()]);
            sys::exit(0)
        }
        Ok(Request::Version) => print(&VERSION.map(str::as_bytes)),
        Ok(Request::Licence) => print(&[LICENCE.as_bytes()]),
        Ok(Request::Pause) => {
            check_waiting();
            supervisor::pause()
        }
        Ok(Request::Run(index)) => {
            let command = arguments.from(index);
            run(&Command { program: Program::OnPath(command.first()), arguments: command }, options, inherited)
        }
        Err(mistake) => refuse(&mistake),
    }
}

fn print(text: &[&[u8]]) -> ! {
    sys::exit(if sys::print(text) { 0 } else { FAILED })
}

/// One line that names what is wrong with the command line; then the end.
fn refuse(mistake: &Mistake) -> ! {
    const HINT: &[u8] = b", see --help\n";
    match mistake {
        Mistake::UnknownOption(option) => sys::complain(&[PREFIX, b"unknown option ", option, HINT]),
        Mistake::NoCommand => sys::complain(&[PREFIX, b"no command to run", HINT]),
        Mistake::NoValue(option) => sys::complain(&[PREFIX, option, b": expected a value, found none", HINT]),
        Mistake::WrongValue(name, expected, found) => {
            sys::complain(&[PREFIX, name, b": expected ", expected.as_bytes(), b", found `", found, b"`", HINT]);
        }
    }
    sys::exit(FAILED)
}

/// Called as `name`: executes the daemon itself where an init of ours reaps already, else becomes its init.
fn stand_before(name: &[u8], arguments: Arguments, options: &Options, inherited: &SignalState) -> ! {
    let mut buffer = [0; PATH_BYTES_MAX];
    let Some(daemon) = daemon::next_on_path(name, arguments, &mut buffer) else {
        sys::complain(&[PREFIX, b"exec ", name, b": not found on PATH behind its guard\n"]);
        sys::exit(NOT_FOUND)
    };
    let command = Command { program: Program::Guarded(daemon), arguments };
    if sys::own_pid() != 1 && daemon::is_reaped_above() {
        inherited.restore();
        command.execute()
    }
    run(&command, options, inherited)
}

/// Becomes the init of `command`: the start, which may fail, and then the loop, which may not.
fn run(command: &Command, options: &Options, inherited: &SignalState) -> ! {
    let own = sys::own_pid();
    prepare(own, options);
    let own_group = sys::own_group();
    let terminal = signals::terminal(options.grouping, own_group, sys::foreground_group());
    let mut supervisor = Supervisor::new(options, own, own_group, terminal);
    let kernel_reaps = supervisor.lets_the_kernel_reap()
        && !environment::forbids_kernel_reaping(|name| command.arguments.variable(name))
        && kernel::tells_how_reaped_ended(sys::Kernel::running().release())
        && Watch::is_possible();

    let mut start = command::Start::new(command, own, options.grouping, terminal, inherited);
    let child = match children::start(&mut start, command::Start::run, kernel_reaps) {
        Ok(child) => child,
        Err(errno) => fail(b"fork: ", &[], errno, FAILED),
    };
    supervisor.child = child.pid;
    settle(child.pidfd);
    if options.verbose {
        say(child.pid, b" runs ", command.arguments.first().to_bytes());
    }
    supervisor.supervise(Watch::over(child.pidfd))
}

/// What is done before the command is there.
fn prepare(own: Pid, options: &Options) {
    let parent = sys::parent_pid();
    sys::set_name(NAME);
    if own == 1 {
        stale::remove_pid_files();
    } else if options.target == Target::All {
        sys::complain(&[
            PREFIX,
            b"--all: expected to be PID 1, found ",
            Decimal::of(own.unsigned_abs()).bytes(),
            b"\n",
        ]);
        sys::exit(FAILED)
    } else if options.adopts
        && let Err(errno) = sys::adopt_orphans()
    {
        // Before the fork: up to Linux 4.11 only children made later handed their orphans to us.
        complain(b"adopt orphans: ", &[], errno);
    }
    if let Some(signal) = options.on_parents_end {
        if let Err(errno) = sys::on_parents_end(signal) {
            fail(b"-p: ", &[], errno, FAILED)
        }
        // A parent that ended before that call sends no signal any more.
        if sys::parent_pid() != parent {
            sys::complain(&[PREFIX, b"-p: our parent has ended already\n"]);
            sys::exit(FAILED)
        }
    }
    check_waiting();
}

/// An init that could not wait would not end either.
fn check_waiting() {
    if let Err(errno) = sys::signals::can_wait() {
        fail(b"wait for signals: ", &[], errno, FAILED)
    }
}

/// Keeps nothing of where we were started but descriptors 0, 1 and 2, and `pidfd` where it is one.
fn settle(pidfd: c_int) {
    files::leave_working_directory();
    files::close_inherited(pidfd);
}

/// A line of `-v`.
fn say(child: Pid, event: &[u8], what: &[u8]) {
    sys::complain(&[PREFIX, b"process ", Decimal::of(child.unsigned_abs()).bytes(), event, what, b"\n"]);
}

/// One line that names the act, its object and the reason.
fn complain(act: &[u8], object: &[u8], errno: Errno) {
    let separator: &[u8] = if object.is_empty() { b"" } else { b": " };
    let number = Decimal::of(errno.unsigned_abs());
    let (reason, number) = match errno::words(errno) {
        Some(words) => (words, b"".as_slice()),
        None => (b"error ".as_slice(), number.bytes()),
    };
    sys::complain(&[PREFIX, act, object, separator, reason, number, b"\n"]);
}

/// The same; then the end.
fn fail(act: &[u8], object: &[u8], errno: Errno, code: u8) -> ! {
    complain(act, object, errno);
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
