//! The inits under test, and how each is asked for what it has an option for. Must never judge.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{Checked, as_child, as_pid1};

/// Runs a program of another machine.
const QEMU: &str = "/usr/bin/qemu-aarch64-static";

/// Forces ours to wait for its children itself.
const WAIT_LOOP: (&str, &str) = ("DIND_INIT_LOOP", "wait");

/// An init, and how it is run. The order is that of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The kernel reaps, where it can.
    Ours,
    /// Ours, which is told to reap itself.
    OursWait,
    /// Ours for another machine, in an emulator: the init alone, what it starts is this machine's.
    OursOnAarch64,
    /// As docker ships it: static.
    Tini,
    Catatonit,
    DumbInit,
}

/// What can be asked of an init by an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Signals to the command's group.
    Group,
    /// Adopt orphans where it is not PID 1.
    Adopt,
    /// Exit 0 for this code.
    Remap,
    /// `A:B`, one signal for another.
    Rewrite,
    /// A signal at the parent's end.
    ParentDeath,
    /// A line for each orphan.
    Warn,
    /// Talk.
    Verbose,
    Version,
    Help,
    /// No command, exit 0 on TERM.
    Pause,
    /// Called as a daemon.
    Guard,
    /// Orphans reaped by the kernel.
    KernelReaps,
    /// An option, variable or message that only ours has.
    OursOnly,
    /// What dumb-init's users know.
    DumbInitOnly,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Ours, Self::OursWait, Self::OursOnAarch64, Self::Tini, Self::Catatonit, Self::DumbInit];
    pub(crate) const OURS: [Self; 3] = [Self::Ours, Self::OursWait, Self::OursOnAarch64];
    pub(crate) const PEERS: [Self; 3] = [Self::Tini, Self::Catatonit, Self::DumbInit];

    /// The name of the trials.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursWait => "ours_wait",
            Self::OursOnAarch64 => "ours_on_aarch64",
            Self::Tini => "tini",
            Self::Catatonit => "catatonit",
            Self::DumbInit => "dumb-init",
        }
    }

    /// The words that ask for it, before a value if it has one; `None` where this init cannot be asked.
    pub(crate) fn words(self, ask: Ask) -> Option<&'static [&'static str]> {
        use Kind::{Catatonit, DumbInit, Ours, OursOnAarch64, OursWait, Tini};
        let words: &[&str] = match (ask, self) {
            (Ask::Group, DumbInit) | (Ask::Adopt, Catatonit) => &[],
            (Ask::Group, _) => &["-g"],
            (Ask::Adopt, Ours | OursWait | OursOnAarch64 | Tini) => &["-s"],
            (Ask::Remap, Ours | OursWait | OursOnAarch64 | Tini) => &["-e"],
            (Ask::Rewrite, Ours | OursWait | OursOnAarch64 | DumbInit) => &["-r"],
            (Ask::ParentDeath, Ours | OursWait | OursOnAarch64 | Tini) => &["-p"],
            (Ask::Warn, Ours | OursWait | OursOnAarch64 | Tini) => &["-w"],
            (Ask::Verbose, Ours | OursWait | OursOnAarch64 | Tini | DumbInit) => &["-v"],
            (Ask::Version, _) => &["--version"],
            (Ask::Help, _) => &["-h"],
            (Ask::Pause, Ours | OursWait | OursOnAarch64 | Catatonit) => &["-P"],
            (Ask::KernelReaps, Ours | Tini | Catatonit | DumbInit) => &[],
            // The emulator is what would be called by a daemon's name.
            (Ask::Guard, Ours | OursWait) | (Ask::OursOnly | Ask::DumbInitOnly, Ours | OursWait | OursOnAarch64) => &[],
            (Ask::DumbInitOnly, DumbInit) => &[],
            _ => return None,
        };
        Some(words)
    }

    /// Finds it. Error: what this machine lacks.
    pub(crate) fn find(self) -> Checked<Subject> {
        let (emulator, program) = match self {
            Self::Ours | Self::OursWait => (None, variable("DIND_INIT")?),
            Self::OursOnAarch64 => (Some(installed(QEMU, "qemu-user-static")?), variable("DIND_INIT_AARCH64")?),
            Self::Tini => (None, installed("/usr/bin/tini-static", "tini")?),
            Self::Catatonit => (None, installed("/usr/bin/catatonit", "catatonit")?),
            Self::DumbInit => (None, installed("/usr/bin/dumb-init", "dumb-init")?),
        };
        Ok(Subject { kind: self, emulator, program, options: Vec::new() })
    }
}

fn variable(name: &str) -> Checked<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("needs {name}, the path of an init"))
}

fn installed(path: &str, package: &str) -> Checked<PathBuf> {
    if Path::new(path).is_file() { Ok(path.into()) } else { Err(format!("needs {path}, of the package {package}")) }
}

/// An init with its options.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    emulator: Option<PathBuf>,
    program: PathBuf,
    options: Vec<String>,
}

impl Subject {
    /// The init's file.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The same, but this file.
    pub(crate) fn at(&self, program: PathBuf) -> Self {
        Self { program, ..self.clone() }
    }

    /// The name of its process: the file's, but ours names itself.
    pub(crate) fn process_name(&self) -> String {
        if Kind::OURS.contains(&self.kind) {
            return "dind-init".to_owned();
        }
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The same, asked for something. Error: it cannot be asked.
    pub(crate) fn with(&self, ask: Ask) -> Checked<Self> {
        let words = self.kind.words(ask).ok_or_else(|| format!("{ask:?}: {} has no such option", self.kind.name()))?;
        Ok(self.with_words(words))
    }

    /// The same, asked with a value.
    pub(crate) fn with_value(&self, ask: Ask, value: &str) -> Checked<Self> {
        Ok(self.with(ask)?.with_words(&[value]))
    }

    /// The same with more words before `--`.
    pub(crate) fn with_words(&self, words: &[&str]) -> Self {
        let mut subject = self.clone();
        subject.options.extend(words.iter().map(|word| (*word).to_owned()));
        subject
    }

    /// The words that start it, without options.
    pub(crate) fn start(&self) -> Vec<String> {
        let start = self.emulator.iter().chain([&self.program]);
        start.map(|word| word.display().to_string()).collect()
    }

    /// The words before the command.
    pub(crate) fn words(&self) -> Vec<String> {
        self.start().into_iter().chain(self.options.iter().cloned()).chain(["--".to_owned()]).collect()
    }

    /// What it finds in its environment, wherever a command starts it.
    pub(crate) fn prepare(&self, command: &mut Command) {
        if self.kind == Kind::OursWait {
            command.env(WAIT_LOOP.0, WAIT_LOOP.1);
        }
    }

    /// It as PID 1 above `words`.
    pub(crate) fn pid1(&self, words: &[impl AsRef<OsStr>]) -> Command {
        self.above(|program| as_pid1(program), words)
    }

    /// It as a child of this process above `words`.
    pub(crate) fn child(&self, words: &[impl AsRef<OsStr>]) -> Command {
        self.above(|program| as_child(program), words)
    }

    fn above(&self, place: fn(&str) -> Command, words: &[impl AsRef<OsStr>]) -> Command {
        let own = self.words();
        let mut command = place(&own[0]);
        command.args(&own[1..]).args(words);
        self.prepare(&mut command);
        command
    }

    /// It as PID 1, executed by a shell that runs `setup` first, with the init's words and `words` as `$@`.
    pub(crate) fn pid1_after(&self, setup: &str, words: &[&str]) -> Command {
        self.after(as_pid1("bash"), setup, words)
    }

    /// As [`Self::pid1_after`], as a child of this process.
    pub(crate) fn child_after(&self, setup: &str, words: &[&str]) -> Command {
        self.after(as_child("bash"), setup, words)
    }

    fn after(&self, mut shell: Command, setup: &str, words: &[&str]) -> Command {
        shell.args(["-c", &format!("{setup} exec \"$@\""), "bash"]).args(self.words()).args(words);
        self.prepare(&mut shell);
        shell
    }

    /// Runs `script` as PID 1; `$@` in it is the init and `words`.
    pub(crate) fn below_shell(&self, script: &str, words: &[&str]) -> Command {
        let mut shell = as_pid1("bash");
        shell.args(["-c", script, "bash"]).args(self.words()).args(words);
        self.prepare(&mut shell);
        shell
    }

    /// Its bare command line as a child, for what is no command: `arguments` follow its name.
    pub(crate) fn bare(&self, arguments: &[&str]) -> Command {
        let own = self.start();
        let mut command = as_child(&own[0]);
        command.args(&own[1..]).args(arguments);
        self.prepare(&mut command);
        command
    }
}
