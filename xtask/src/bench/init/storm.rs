//! Orphans by the thousands: what they cost the init that adopts them, and how long they stay.
//!
//! A shell makes them without an exec: subshells that put a few of them into the background and end. How long they live is told by two FIFOs: from
//! one the orphans of a burst read, and its end ends them all; the other one they hold open, so that its end is the last one's death, and
//! nobody has to look meanwhile.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oci::Interrupt;
use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};

use super::Contestant;
use super::container::{Container, now, wait_for};
use super::figures::{Column, Top};
use super::process::Process;

/// How often zombies are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// A number of zombies that has stood for so long is final.
const STUCK_TIMEOUT: Duration = Duration::from_secs(2);
/// And for so many looks.
const STUCK_LOOKS: u32 = 20;
/// How long making or reaping may take in all.
const STORM_TIMEOUT: Duration = Duration::from_secs(300);

/// What a storm costs. The zombies at most are those seen at any look: in a stream while it lasts, in a burst from the last one's death on.
pub(super) const COLUMNS: [Column; 5] = [
    Column::new("until none is left, ms", Top::Max),
    Column::new("init's processor time, ms", Top::Max),
    Column::new("wake-ups", Top::Max),
    Column::new("zombies at most", Top::Max),
    Column::new("left", Top::Max),
];

/// How orphans come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storm {
    /// One after the other, and each ends at once.
    Stream,
    /// All of them live before the first one ends.
    Burst,
}

impl Storm {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Burst => "burst",
        }
    }

    /// How many orphans a subshell leaves, and its script, in which `some` is their number. In a stream one, as a shell that goes on takes leave of a child
    /// that has ended.
    fn orphans(self) -> (usize, &'static str) {
        match self {
            Self::Stream => (1, "( : & )"),
            Self::Burst => (10, "( while [ $some -gt 0 ]; do some=$(( some - 1 )); read end <&3 & done )"),
        }
    }

    /// Waits for a word, makes the orphans, says so, and waits for the end of its stdin.
    fn script(self, orphans: usize, release: &Path, alive: &Path) -> String {
        let (release, alive) = (release.display(), alive.display());
        let (of_one, leave) = self.orphans();
        format!(
            "exec 3<'{release}' 4>'{alive}'; echo ready; read go || exit; left={orphans}
             while [ $left -gt 0 ]; do
                 some=$(( left < {of_one} ? left : {of_one} )); left=$(( left - some ))
                 {leave}
             done
             exec 3<&- 4>&-; echo made; read end"
        )
    }

    /// The figures of one storm, by [`COLUMNS`].
    pub(super) fn row(self, contestant: &Contestant, orphans: usize, interrupt: &Interrupt) -> Result<[f64; 5]> {
        let folder = tempfile::tempdir().context("make a folder for FIFOs")?;
        let (release, alive) = (fifo(folder.path(), "release")?, fifo(folder.path(), "alive")?);
        // Both ends, or opening it would wait for a reader.
        let release_end = OpenOptions::new().read(true).write(true).open(&release).context("open a FIFO")?;
        let alive_end = open_to_read(&alive)?;
        let script = self.script(orphans, &release, &alive);
        let mut container = Container::start(contestant, &["sh", "-c", &script])?;
        container.said("ready")?;
        container.rest()?;
        let init = container.process();
        let mut before = Before::look(init)?;
        container.go()?;
        let mut most = 0;
        let started = Instant::now();
        while !container.has_said()? {
            interrupt.check()?;
            ensure!(started.elapsed() < STORM_TIMEOUT, "make {orphans} orphans: not done in {STORM_TIMEOUT:?}");
            if self == Self::Stream {
                most = most.max(init.zombies()?);
            }
            thread::sleep(LOOK_INTERVAL);
        }
        container.said("made")?;
        if self == Self::Burst {
            let found = init.children()?.len();
            ensure!(found == orphans + 1, "make {orphans} orphans: expected them and a shell, found {found} children");
            container.rest()?;
            before = Before::look(init)?;
        }
        drop(release_end);
        wait_for(&alive_end, PollFlags::IN, "the last orphan's death")?;
        before.after(init, most, interrupt)
    }
}

/// An init before a storm.
struct Before {
    time: u64,
    ran: u64,
    woken: u64,
}

impl Before {
    fn look(init: Process) -> Result<Self> {
        Ok(Self { ran: init.ran()?, woken: init.switches()?[0], time: now() })
    }

    /// All orphans have died: waits until they are gone, or stay. The shell is the child that remains.
    fn after(&self, init: Process, mut most: usize, interrupt: &Interrupt) -> Result<[f64; 5]> {
        let started = Instant::now();
        let (mut left, mut changed, mut looks) = (usize::MAX, started, 0);
        let mut time = now();
        // On a busy machine the time may pass between two looks.
        while left > 0 && (changed.elapsed() < STUCK_TIMEOUT || looks < STUCK_LOOKS) {
            interrupt.check()?;
            ensure!(started.elapsed() < STORM_TIMEOUT, "wait until orphans are reaped: not done in {STORM_TIMEOUT:?}");
            let found = init.children()?.len().saturating_sub(1);
            looks += 1;
            if found != left {
                (left, changed, time, looks) = (found, Instant::now(), now(), 0);
                most = most.max(found);
            }
            thread::sleep(LOOK_INTERVAL);
        }
        let ran = (init.ran()? - self.ran) as f64 / 1e6;
        let woken = (init.switches()?[0] - self.woken) as f64;
        Ok([(time - self.time) as f64 / 1e6, ran, woken, most as f64, left as f64])
    }
}

fn fifo(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).with_context(|| format!("make FIFO {}", path.display()))?;
    Ok(path)
}

/// Without waiting for a writer.
fn open_to_read(fifo: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(fifo);
    opened.with_context(|| format!("open FIFO {}", fifo.display()))
}
