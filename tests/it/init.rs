//! The init, tested as real processes: reaping, exit codes, signals, terminals, guards. Nothing is judged by its own
//! report: process states come from /proc, and where a check could be blind a control is seen failing it.
//!
//! The binary comes from the environment variable `DIND_INIT`, one for another machine, which an emulator runs, from
//! `DIND_INIT_AARCH64`; without it, or without root, the trials are ignored.

#[path = "init/children.rs"]
mod children;
#[path = "init/guards.rs"]
mod guards;
#[path = "init/helper.rs"]
mod helper;
#[path = "init/process.rs"]
mod process;
#[path = "init/reaping.rs"]
mod reaping;
#[path = "init/signals.rs"]
mod signals;
#[path = "init/terminal.rs"]
mod terminal;

use std::path::{Path, PathBuf};

use libtest_mimic::{Completion, Trial};

pub(crate) use helper::run as helper;
use process::Checked;

/// The packaged init that the same checks are made on, as far as it can pass them: they then judge fairly.
const TINI: &str = "/usr/bin/tini-static";

/// Runs a program of another machine.
const QEMU: &str = "/usr/bin/qemu-aarch64-static";

/// An init under test: the words before the command.
#[derive(Clone, Debug)]
pub(crate) struct Subject(Vec<PathBuf>);

impl Subject {
    fn ours() -> Checked<Self> {
        Ok(Self(vec![variable("DIND_INIT")?, "--".into()]))
    }

    /// Ours for another machine, in an emulator: the init alone, what it starts is this machine's.
    fn emulated() -> Checked<Self> {
        Ok(Self(vec![installed(QEMU, "qemu-user-static")?, variable("DIND_INIT_AARCH64")?, "--".into()]))
    }

    fn tini() -> Checked<Self> {
        Ok(Self(vec![installed(TINI, "tini")?, "-s".into(), "--".into()]))
    }

    fn program(&self) -> &Path {
        &self.0[0]
    }

    /// The words between the program and `--`.
    fn before_options(&self) -> &[PathBuf] {
        &self.0[1..self.0.len() - 1]
    }

    /// The same with one more option.
    fn with_option(&self, option: &str) -> Self {
        let (end, start) = self.0.split_last().expect("a subject ends in `--`");
        Self(start.iter().cloned().chain([option.into(), end.clone()]).collect())
    }
}

/// Checks that would judge the emulator: its process is not the init alone.
const NOT_EMULATED: &[&str] = &[
    // It refuses PR_SET_CHILD_SUBREAPER (qemu 7.2).
    "adopts_orphans_where_it_is_not_pid_1",
    "reaps_below_a_pid_1_that_does_not",
    // It takes SIGSEGV and SIGBUS for its own faults unless the init is waiting just then.
    "forwards_every_signal_as_pid_1",
    "forwards_every_signal_elsewhere",
    // It gives real-time signals other numbers, keeps some, and catches what was ignored.
    "forwards_the_signals_that_libc_keeps",
    "turns_a_killing_signal_into_128_and_its_number",
    "gives_the_command_the_signal_state_it_was_given",
    "gives_the_command_the_sigchld_state_it_was_given",
];

fn variable(name: &str) -> Checked<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("needs {name}, the path of an init"))
}

fn installed(path: &str, package: &str) -> Checked<PathBuf> {
    if Path::new(path).is_file() { Ok(path.into()) } else { Err(format!("needs {path}, of the package {package}")) }
}

/// A check of one init.
type Check = fn(&Subject) -> Checked;

/// All trials.
pub(crate) fn trials() -> Vec<Trial> {
    let all = [reaping::CHECKS, children::CHECKS, signals::CHECKS, terminal::CHECKS].concat();
    let ours = all.iter().chain(guards::CHECKS).map(|(name, check, _)| trial("ours", name, *check, Subject::ours));
    let emulated = all.iter().filter(|(name, _, _)| !NOT_EMULATED.contains(name));
    let emulated = emulated.map(|(name, check, _)| trial("ours_on_aarch64", name, *check, Subject::emulated));
    let tini = all.iter().filter(|(_, _, peer)| *peer == Peer::Passes);
    let tini = tini.map(|(name, check, _)| trial("tini", name, *check, Subject::tini));
    let controls = reaping::CONTROLS.iter().map(|(name, check)| trial("control", name, *check, Subject::ours));
    ours.chain(emulated).chain(tini).chain(controls).collect()
}

/// Whether tini passes a check, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Passes,
    /// It cannot: facts known from its source and tries.
    Fails,
}

fn trial(subject: &str, name: &str, check: Check, find: fn() -> Checked<Subject>) -> Trial {
    Trial::ignorable_test(format!("init::{subject}::{name}"), move || {
        if !rustix::process::geteuid().is_root() {
            return crate::fixture::skip("needs root for new PID namespaces");
        }
        match find() {
            Err(reason) => crate::fixture::skip(reason),
            Ok(subject) => Ok(check(&subject).map(|()| Completion::Completed)?),
        }
    })
}
