//! What an init costs while nothing happens: memory, wake-ups, processor time.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use oci::Interrupt;

use super::Contestant;
use super::container::Container;
use super::figures::{Column, Samples, Top};

/// How long the inits are left alone.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(5);
/// How often the interrupt is asked meanwhile.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// What is resident.
pub(super) const MEMORY: [Column; 3] =
    [Column::new("Rss, kB", Top::Max), Column::new("Pss, kB", Top::Max), Column::new("private, kB", Top::Max)];
/// What it does while idle.
pub(super) const IDLE: [Column; 2] =
    [Column::new("context switches", Top::Max), Column::new("processor time, us", Top::Max)];

/// What of an init is resident, by [`MEMORY`], once its command waits. No other one is started meanwhile: two of them would share pages.
pub(super) fn memory(contestant: &Contestant) -> Result<[f64; 3]> {
    let memory = waiting(contestant)?.process().memory()?;
    Ok([memory.resident, memory.proportional, memory.private].map(|figure| figure as f64))
}

/// What each does while all of them are left alone, by [`IDLE`].
pub(super) fn idle(contestants: &[Contestant], interrupt: &Interrupt, samples: &mut Samples) -> Result<()> {
    let containers = contestants.iter().map(waiting).collect::<Result<Vec<_>>>()?;
    let look = |container: &Container| {
        let process = container.process();
        Ok([process.switches()?.iter().sum(), process.ran()?])
    };
    let before = containers.iter().map(look).collect::<Result<Vec<[u64; 2]>>>()?;
    let end = Instant::now() + IDLE_TIME;
    while Instant::now() < end {
        interrupt.check()?;
        thread::sleep(INTERRUPT_INTERVAL.min(end.saturating_duration_since(Instant::now())));
    }
    for ((contestant, container), before) in contestants.iter().zip(&containers).zip(before) {
        let [switches, ran] = look(container)?;
        samples.add(contestant, [(switches - before[0]) as f64, (ran - before[1]) as f64 / 1e3])?;
    }
    Ok(())
}

/// A container whose command waits, and whose init has come to rest.
fn waiting(contestant: &Contestant) -> Result<Container> {
    let mut container = Container::start(contestant, &["sh", "-c", "echo ready; read end"])?;
    container.said("ready")?;
    container.rest()?;
    Ok(container)
}
