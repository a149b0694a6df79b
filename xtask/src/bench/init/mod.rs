//! The init beside others, each as PID 1: how soon the command runs, what is resident, what an idle hour costs, how orphans and signals are
//! dealt with, how large the file is. Contestants take turns and each round begins with another one, so that what the machine is busy with
//! beside them falls on all alike. Measures; judges nothing.

mod container;
mod figures;
mod process;
mod quiet;
mod signals;
mod start;
mod storm;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci::Interrupt;

pub use self::container::Contestant;
pub use self::figures::{Column, Group, Report, Row, Spread, Top};
use self::figures::{Samples, group};
pub use self::storm::Storm;
use crate::tools;

/// The row that is no init: the command is PID 1 itself.
pub const NONE: &str = "(no init)";

/// The other inits, each called like its program.
const PEERS: [&str; 4] = ["tini", "tini-static", "catatonit", "dumb-init"];

/// Where the other inits are, by their names. Error: one is not installed; names its package.
pub fn peers() -> Result<Vec<(&'static str, PathBuf)>> {
    PEERS.into_iter().map(|name| Ok((name, tools::require(name)?))).collect()
}

/// What is measured, and with what.
#[derive(Debug)]
pub struct Bench {
    /// Ours first: to it the tables compare.
    contestants: Vec<Contestant>,
    /// The files of the contestants.
    files: Vec<PathBuf>,
    /// The program that takes the time inside.
    probe: PathBuf,
    /// How many orphans a storm has.
    orphans: usize,
}

impl Bench {
    /// A bench of our `init`, by both of its ways to wait, beside `peers`. `probe` is the suite's.
    pub fn new(init: &Path, peers: Vec<(&'static str, PathBuf)>, probe: &Path, orphans: usize) -> Self {
        let ours = [("ours", None), ("ours, wait loop", Some(("DIND_INIT_LOOP", "wait")))];
        let ours =
            ours.map(|(name, variable)| (Contestant { variable, ..Contestant::new(name, init) }, init.to_owned()));
        let theirs = peers.into_iter().map(|(name, path)| (Contestant::new(name, &path), path));
        let (contestants, files) = ours.into_iter().chain(theirs).unzip();
        Self { contestants, files, probe: probe.to_owned(), orphans }
    }

    /// Measures everything, `rounds` times; `doing` is told what. Error: a container cannot be made (that needs root), an init ends early or
    /// does not what every init does, or the interrupt.
    pub fn run(&self, rounds: usize, interrupt: &Interrupt, doing: &mut (dyn FnMut(&str) + Send)) -> Result<Report> {
        let machine = machine()?;
        let groups = container::apart(|| self.groups(rounds, interrupt, doing))?;
        Ok(Report { machine, rounds, orphans: self.orphans, groups })
    }

    fn groups(&self, rounds: usize, interrupt: &Interrupt, doing: &mut dyn FnMut(&str)) -> Result<Vec<Group>> {
        let mut floor = self.contestants.clone();
        floor.push(Contestant { name: NONE, words: Vec::new(), variable: None });
        let (all, floor) = (&self.contestants[..], &floor[..]);
        let mut memory = Samples::of(all, quiet::MEMORY.len());
        let mut idle = Samples::of(all, quiet::IDLE.len());
        let mut starts = Samples::of(floor, start::COLUMNS.len());
        let mut forwards = Samples::of(floor, signals::COLUMNS.len());
        let mut streams = Samples::of(all, storm::COLUMNS.len());
        let mut bursts = Samples::of(all, storm::COLUMNS.len());
        doing("idle, side by side");
        quiet::idle(all, interrupt, &mut idle)?;
        for round in 0..rounds {
            let mut note = |what: &str| doing(&format!("{what}, round {} of {rounds}", round + 1));
            note("start");
            start::measure(floor, &self.probe, round, interrupt, &mut starts)?;
            note("memory");
            each(all, round, interrupt, |contestant| memory.add(contestant, quiet::memory(contestant)?))?;
            note("signals");
            each(floor, round, interrupt, |contestant| signals::measure(contestant, &self.probe, &mut forwards))?;
            for (storm, samples) in [(Storm::Stream, &mut streams), (Storm::Burst, &mut bursts)] {
                each(all, round, interrupt, |contestant| {
                    note(&format!("{} under {}", storm.name(), contestant.name));
                    samples.add(contestant, storm.row(contestant, self.orphans, interrupt)?)
                })?;
            }
        }
        let orphans = self.orphans;
        Ok(vec![
            group("size", "the file", &[Column::new("bytes", Top::Max)], self.sizes()?),
            group("start", "one container after the other", &start::COLUMNS, starts),
            group("memory", "beside a shell that waits", &quiet::MEMORY, memory),
            group("idle", &format!("{} s, all at once", quiet::IDLE_TIME.as_secs()), &quiet::IDLE, idle),
            group("signals", &format!("{} in each round", signals::SIGNALS), &signals::COLUMNS, forwards),
            group("stream", &format!("{orphans} orphans that end at once"), &storm::COLUMNS, streams),
            group("burst", &format!("{orphans} orphans that live, and then end together"), &storm::COLUMNS, bursts),
        ])
    }

    fn sizes(&self) -> Result<Samples> {
        let mut samples = Samples::of(&self.contestants, 1);
        for (contestant, file) in self.contestants.iter().zip(&self.files) {
            let found = file.metadata().with_context(|| format!("look at {}", file.display()))?;
            samples.add(contestant, [found.len() as f64])?;
        }
        Ok(samples)
    }
}

/// One storm under a contestant: the row of its table. Error: as for [`Bench::run`].
pub fn storm(storm: Storm, contestant: &Contestant, orphans: usize, interrupt: &Interrupt) -> Result<Group> {
    let mut samples = Samples::of(std::slice::from_ref(contestant), storm::COLUMNS.len());
    let row = container::apart(|| storm.row(contestant, orphans, interrupt))?;
    samples.add(contestant, row)?;
    Ok(group(storm.name(), "one", &storm::COLUMNS, samples))
}

/// Gives each contestant its turn, in an order that begins with another one in each round.
fn each(
    contestants: &[Contestant],
    round: usize,
    interrupt: &Interrupt,
    mut turn: impl FnMut(&Contestant) -> Result<()>,
) -> Result<()> {
    for contestant in contestants.iter().cycle().skip(round % contestants.len()).take(contestants.len()) {
        interrupt.check()?;
        turn(contestant).with_context(|| format!("measure {}", contestant.name))?;
    }
    Ok(())
}

/// The kernel, how many processors it has, and what else they had to do in the last minute.
fn machine() -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("read {path}"));
    let (kernel, load) = (read("/proc/sys/kernel/osrelease")?, read("/proc/loadavg")?);
    let processors = std::thread::available_parallelism().context("count processors")?;
    let load = load.split_whitespace().next().unwrap_or_default();
    Ok(format!("Linux {}, {processors} processors, load {load} at the start", kernel.trim()))
}
