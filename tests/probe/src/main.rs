//! The half of the suite that runs inside the container under test: sets a container up from its description, reads
//! the process table, and misbehaves on command. One static program, so that it runs in any image.
//! It must never share code with init or the suite (a bug in common would hide itself) and must never judge.

mod behave;
mod clock;
mod enter;
mod launch;
mod loopback;
mod spec;
mod storage;
mod table;

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// What a subcommand returns: the exit code, or one sentence for stderr.
type Outcome = Result<ExitCode, String>;

/// Exit code of a command line that this program does not understand, as in sysexits.h.
const EX_USAGE: u8 = 64;

/// Exit code of a failure to enter a container, as docker's: it must differ from what the command itself may say.
const OWN_FAILURE: u8 = 125;

const USAGE: &str = "usage: probe COMMAND
  contain OWNER SPEC        make namespaces and start the container that the JSON describes; dies with OWNER
  enter SPEC                inside them: set the container up, exec its argv as PID 1
  exec OWNER ENTRY          run a command in a container
  ps PROC                   process table of the procfs mounted at PROC, as JSON
  status PROC PID           signal masks, open files and program of one process, as JSON
  ping SOCKET               exit 0 when an HTTP daemon on this unix socket answers /_ping
  connect SOCKET            exit 0 when anybody listens on this unix socket
  true | exit N | sleep SECONDS
  stamp | listen            write the monotonic clock to stdout, once or for each SIGUSR1 (8 bytes)
  orphans N                 leave N children that end once they are orphans (orphan PARENT)
  no-reap -- ARGV           a PID 1 that forwards TERM and reaps its own child alone
  reap-one -- ARGV          a PID 1 that reaps one child for each SIGCHLD, however many have ended
called as docker-init: skips options up to `--` and execs the rest, so that nothing reaps";

fn main() -> ExitCode {
    let mut args = env::args_os();
    let name = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    let outcome = if Path::new(&name).file_name().is_some_and(|file| file == "docker-init") {
        behave::exec_only(&args)
    } else {
        dispatch(&args)
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("probe: {message}");
        if args.first().is_some_and(|word| word == "exec") { ExitCode::from(OWN_FAILURE) } else { ExitCode::FAILURE }
    })
}

fn dispatch(args: &[OsString]) -> Outcome {
    let words: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap_or_default()).collect();
    match words.as_slice() {
        ["contain", owner, spec] => launch::contain(owner, spec),
        ["enter", spec] => enter::run(spec),
        ["exec", owner, entry] => launch::exec(owner, entry),
        ["ps", proc] => table::print_processes(Path::new(proc)),
        ["status", proc, pid] => table::print_status(Path::new(proc), pid),
        ["ping", socket] => behave::ping(Path::new(socket)),
        ["connect", socket] => behave::connect(Path::new(socket)),
        ["true"] => Ok(ExitCode::SUCCESS),
        ["exit", code] => number::<u8>(code).map(ExitCode::from),
        ["sleep", seconds] => behave::sleep(number(seconds)?),
        ["stamp"] => clock::stamp(),
        ["listen"] => clock::listen(),
        ["orphans", count] => behave::orphans(number(count)?),
        ["orphan", parent] => behave::orphan(number(parent)?),
        ["no-reap", "--", argv @ ..] => behave::no_reap(argv),
        ["reap-one", "--", argv @ ..] => behave::reap_one(argv),
        _ => {
            eprintln!("{USAGE}");
            Ok(ExitCode::from(EX_USAGE))
        }
    }
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("read number: expected digits in range, found `{word}`"))
}
