//! The pipeline beside the tools that do the same: one platform derived from a base and published, on one registry, in one run, so that
//! what the machine is busy with beside us disturbs all alike. Measures; judges nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use oci::{Client, Interrupt, Options, Repository};

use super::base::{LAYERS, Layers};
use super::measure::{Usage, measure};
use super::peers::{Job, PEERS, PULL, Peer, Started};
use super::{Registry, Wire};

/// What the one file of each layer holds, in KiB: a few large layers among many small ones, as in docker:20-dind. Half of it is on the wire.
const LAYER_KIB: [usize; LAYERS] = [6_600, 1_400, 4, 8, 110_000, 4, 2_800, 16, 24_000, 4, 60_000, 8, 30_000, 4];
/// The platform that is built.
const PLATFORM: &str = "linux/amd64";

/// What is done, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is cached, nothing is published.
    First,
    /// The image is another one on the same base.
    Changed,
    /// The same once more: there is nothing to do.
    Again,
}

/// All phases, in their order.
pub const PHASES: [Phase; 3] = [Phase::First, Phase::Changed, Phase::Again];

impl Phase {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Changed => "changed",
            Self::Again => "again",
        }
    }

    fn version(self) -> &'static str {
        if self == Self::First { "1" } else { "2" }
    }
}

/// What a phase cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Requests that the registry answered.
    pub requests: u64,
    /// Bytes that were sent.
    pub up: u64,
    /// Bytes that came back.
    pub down: u64,
    /// The most memory that one process held, in bytes.
    pub memory: u64,
    /// From start to end.
    pub time: Duration,
}

/// A contestant, and what each phase cost it, or why it does not take part.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The costs, by [`PHASES`].
    pub costs: Result<Vec<Cost>, String>,
}

/// A registry with a base of some 120 MB.
#[derive(Debug)]
pub struct Contest {
    folder: PathBuf,
    registry: Registry,
    wire: Wire,
    client: Client,
    layers: Layers,
    /// Makes every base one that no cache has.
    salt: String,
}

/// Who builds and publishes.
#[derive(Clone, Copy)]
enum Contestant {
    /// We, into the base's repository.
    Beside,
    /// We, into another repository of the registry.
    Elsewhere,
    Theirs(Peer),
}

impl Contestant {
    fn all() -> impl Iterator<Item = Self> {
        [Self::Beside, Self::Elsewhere].into_iter().chain(PEERS.map(Self::Theirs))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Beside => "ours, beside the base",
            Self::Elsewhere => "ours, elsewhere",
            Self::Theirs(peer) => peer.name,
        }
    }
}

impl Contest {
    /// Starts a registry in `folder` and fills it. Error: docker-registry is not installed or does not start, the disk is full.
    pub fn open(folder: &Path) -> Result<Self> {
        let registry = Registry::start(folder)?;
        let wire = Wire::to(registry.host())?;
        let client = Client::new(Options::default())?;
        let layers = Layers::make(&folder.join("base"), |number| noise(LAYER_KIB[number] * 1024))?;
        layers.push(&client, &Repository::parse(&format!("{}/layers", wire.host()))?)?;
        let salt = folder.display().to_string();
        Ok(Self { folder: folder.to_owned(), registry, wire, client, layers, salt })
    }

    /// How many bytes the base's layers are on the wire.
    pub fn base_size(&self) -> u64 {
        self.layers.size()
    }

    /// Lets `program`, our command line, and the peers build and publish, each `samples` times (at least once) from nothing: the medians. `init` is the
    /// file that the peers add. `doing` is told who is at it. Error: ours fails, or the interrupt.
    pub fn publish(
        &mut self,
        program: &Path,
        init: &Path,
        samples: u32,
        interrupt: &Interrupt,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Vec<Row>> {
        let contestants: Vec<_> = Contestant::all().collect();
        let mut found: Vec<Result<Vec<Vec<Cost>>, String>> = contestants.iter().map(|_| Ok(Vec::new())).collect();
        // In turns, so that a busy minute of the machine falls on all of them.
        for sample in 0..samples {
            for (contestant, found) in contestants.iter().zip(&mut found) {
                let Ok(costs) = found else { continue };
                doing(&format!("{}, {} of {samples}", contestant.name(), sample + 1));
                match self.sample(*contestant, program, init, interrupt) {
                    Ok(cost) => costs.push(cost),
                    Err(error) => {
                        interrupt.check()?;
                        match contestant {
                            Contestant::Theirs(_) => *found = Err(format!("{error:#}")),
                            Contestant::Beside | Contestant::Elsewhere => return Err(error),
                        }
                    }
                }
            }
        }
        let phase =
            |samples: &[Vec<Cost>], phase: usize| median(&samples.iter().map(|costs| costs[phase]).collect::<Vec<_>>());
        let medians = |samples: Vec<Vec<Cost>>| (0..PHASES.len()).map(|number| phase(&samples, number)).collect();
        let row = |(contestant, found): (Contestant, Result<Vec<Vec<Cost>>, String>)| Row {
            name: contestant.name(),
            costs: found.map(medians),
        };
        Ok(contestants.into_iter().zip(found).map(row).collect())
    }

    /// Lets `program` and skopeo pull the base whole, from nothing, into a layout: the medians. Error: as for [`Self::publish`].
    pub fn pull(&mut self, program: &Path, samples: u32, interrupt: &Interrupt) -> Result<Vec<Row>> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut failure = None;
        for _ in 0..samples {
            let (state, base) = self.fresh()?;
            let mut command = Command::new(program);
            command.args(["bench", "pull", &base]).arg(state.path().join("layout"));
            ours.push(self.cost(command, &state.path().join("log"), interrupt, |usage| usage.peak_of(program))?);
            let (state, base) = self.fresh()?;
            let job = Job { base, target: String::new(), init: PathBuf::new(), version: "" };
            let pulled = PULL.start(state.path()).and_then(|peer| {
                self.cost(peer.command(&job), &state.path().join("log"), interrupt, |usage| Ok(usage.peak()))
            });
            match pulled {
                Ok(cost) => theirs.push(cost),
                Err(error) => failure = Some(format!("{error:#}")),
            }
            interrupt.check()?;
        }
        let theirs = failure.map_or_else(|| Ok(vec![median(&theirs)]), Err);
        Ok(vec![Row { name: "ours", costs: Ok(vec![median(&ours)]) }, Row { name: PULL.name, costs: theirs }])
    }

    /// All phases, from nothing.
    fn sample(
        &mut self,
        contestant: Contestant,
        program: &Path,
        init: &Path,
        interrupt: &Interrupt,
    ) -> Result<Vec<Cost>> {
        let (state, base) = self.fresh()?;
        let log = state.path().join("log");
        let repository = base.trim_end_matches(":1").to_owned();
        match contestant {
            Contestant::Beside | Contestant::Elsewhere => {
                let elsewhere = format!("{repository}-elsewhere");
                let target = if matches!(contestant, Contestant::Beside) { repository } else { elsewhere };
                let run = |phase| {
                    let command = ours(program, state.path(), &base, &target, phase)?;
                    // The compiler that it asks whether the init is fresh is no part of the contest.
                    self.cost(command, &log, interrupt, |usage| usage.peak_of(program))
                };
                PHASES.into_iter().map(run).collect()
            }
            Contestant::Theirs(peer) => {
                let started = peer.start(state.path())?;
                // Into the base's own repository, where they have the least to send.
                let job = |phase: Phase| Job {
                    base: base.clone(),
                    target: format!("{repository}:theirs"),
                    init: init.to_owned(),
                    version: phase.version(),
                };
                let run = |phase| {
                    let peak = |usage: &Usage| Ok(usage.peak().max(started.daemon_peak()));
                    self.cost(Started::command(&started, &job(phase)), &log, interrupt, peak)
                };
                PHASES.into_iter().map(run).collect()
            }
        }
    }

    /// An empty folder, and a base that nobody has seen, in a repository of its own.
    fn fresh(&self) -> Result<(tempfile::TempDir, String)> {
        let state = tempfile::Builder::new().prefix("state-").tempdir_in(&self.folder).context("make a folder")?;
        let name = state.path().file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let at = |path: &str| Repository::parse(&format!("{}/{path}", self.wire.host()));
        let to = at(&name)?;
        let salt = format!("{} {name}", self.salt);
        self.layers.base(&self.client, &at("layers")?, &to, &[PLATFORM], &salt)?;
        Ok((state, format!("{to}:1")))
    }

    fn cost(
        &mut self,
        command: Command,
        log: &Path,
        interrupt: &Interrupt,
        peak: impl Fn(&Usage) -> Result<u64>,
    ) -> Result<Cost> {
        self.registry.requests()?;
        self.wire.bytes();
        let usage = measure(command, log, interrupt)?;
        let (up, down) = self.wire.bytes();
        let requests = self.registry.requests()?.len() as u64;
        Ok(Cost { requests, up, down, memory: peak(&usage)?, time: usage.time })
    }
}

/// `build-images` for one definition that derives from `base`.
fn ours(program: &Path, state: &Path, base: &str, target: &str, phase: Phase) -> Result<Command> {
    let definitions = state.join("images");
    fs::create_dir_all(&definitions).with_context(|| format!("make {}", definitions.display()))?;
    let text = format!(
        "name: ours\ndescription: a contestant\nbase: {base}\nstandin: {{ suite: bookworm, flavour: post }}\nplatforms: [{PLATFORM}]\n\
         tags: [ours]\nfloating: true\nruns: dockerd\nguards: []\nentrypoint: [/usr/local/sbin/dind-init, --, dockerd]\n\
         env: {{ VERSION: \"{}\" }}\n",
        phase.version()
    );
    fs::write(definitions.join("ours.yaml"), text).context("write a definition")?;
    let mut command = Command::new(program);
    command.args(["build-images", "--base", "registry", "--all-platforms", "--suite", "none", "--allow-unjudged"]);
    command.args(["--push", target]).arg("--images").arg(definitions).arg("--out").arg(state.join("out"));
    command.env_remove("SOURCE_DATE_EPOCH");
    Ok(command)
}

/// Bytes that compress to half: Marsaglia's xorshift64, of each byte four bits.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1 + bytes as u64;
    let mut noise = Vec::with_capacity(bytes);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend((state & 0x0f0f_0f0f_0f0f_0f0f | 0x4040_4040_4040_4040).to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

/// The median of each figure.
fn median(costs: &[Cost]) -> Cost {
    fn of<T: Ord + Copy>(costs: &[Cost], figure: impl Fn(&Cost) -> T) -> T {
        let mut figures: Vec<T> = costs.iter().map(figure).collect();
        figures.sort_unstable();
        figures[figures.len() / 2]
    }
    Cost {
        requests: of(costs, |cost| cost.requests),
        up: of(costs, |cost| cost.up),
        down: of(costs, |cost| cost.down),
        memory: of(costs, |cost| cost.memory),
        time: of(costs, |cost| cost.time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_taken_of_each_figure() {
        let cost = |requests, up| Cost { requests, up, down: 0, memory: 0, time: Duration::ZERO };
        let median = median(&[cost(9, 1), cost(1, 3), cost(5, 2)]);
        assert_eq!((median.requests, median.up), (5, 2));
    }
}
