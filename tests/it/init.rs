//! The init, tested as real processes: reaping, exit codes, signals, terminals, guards. Nothing is judged by its own
//! report: process states come from /proc, and where a check could be blind a control is seen failing it.
//!
//! The binary comes from the environment variable `DIND_INIT`; without it, or without root, the trials are ignored.

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

/// An init under test: the words before the command.
#[derive(Clone, Debug)]
pub(crate) struct Subject(Vec<PathBuf>);

impl Subject {
    fn ours() -> Option<Self> {
        Some(Self(vec![std::env::var_os("DIND_INIT")?.into(), "--".into()]))
    }

    fn tini() -> Option<Self> {
        Path::new(TINI).is_file().then(|| Self(vec![TINI.into(), "-s".into(), "--".into()]))
    }

    fn program(&self) -> &Path {
        &self.0[0]
    }
}

/// A check of one init.
type Check = fn(&Subject) -> Checked;

/// All trials.
pub(crate) fn trials() -> Vec<Trial> {
    let all = [reaping::CHECKS, children::CHECKS, signals::CHECKS, terminal::CHECKS].concat();
    let ours = all.iter().chain(guards::CHECKS).map(|(name, check, _)| trial("ours", name, *check, Subject::ours));
    let tini = all.iter().filter(|(_, _, peer)| *peer == Peer::Passes);
    let tini = tini.map(|(name, check, _)| trial("tini", name, *check, Subject::tini));
    let controls = reaping::CONTROLS.iter().map(|(name, check)| trial("control", name, *check, Subject::ours));
    ours.chain(tini).chain(controls).collect()
}

/// Whether tini passes a check, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Passes,
    /// It cannot: facts known from its source and tries.
    Fails,
}

fn trial(subject: &str, name: &str, check: Check, find: fn() -> Option<Subject>) -> Trial {
    Trial::ignorable_test(format!("init::{subject}::{name}"), move || {
        if !rustix::process::geteuid().is_root() {
            return crate::fixture::skip("needs root for new PID namespaces");
        }
        match find() {
            None => crate::fixture::skip("needs DIND_INIT, the path of the init, and the package tini"),
            Some(subject) => Ok(check(&subject).map(|()| Completion::Completed)?),
        }
    })
}
