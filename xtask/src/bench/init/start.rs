//! How long it takes until the command runs, and until a command that does nothing is over.

use std::path::Path;

use anyhow::{Result, ensure};
use oci::Interrupt;

use super::container::{Container, now};
use super::figures::{Column, Samples, Top};
use super::{Contestant, each};

/// How often each contestant starts in a round.
const STARTS: usize = 40;

/// From the call that makes PID 1 to the first thing that the command does; and to the end of PID 1, where the command is true(1).
pub(super) const COLUMNS: [Column; 2] =
    [Column::new("to the command, us", Top::Max), Column::new("to the end of true, us", Top::Max)];

/// Starts each contestant many times. Error: one does not run the command.
pub(super) fn measure(
    contestants: &[Contestant],
    probe: &Path,
    round: usize,
    interrupt: &Interrupt,
    samples: &mut Samples,
) -> Result<()> {
    for turn in 0..STARTS {
        each(contestants, round + turn, interrupt, |contestant| {
            let to_command = to_command(contestant, probe)?;
            samples.add(contestant, [to_command, to_end(contestant)?])
        })?;
    }
    Ok(())
}

fn to_command(contestant: &Contestant, probe: &Path) -> Result<f64> {
    let mut container = Container::start(contestant, &[probe.as_os_str(), "stamp".as_ref()])?;
    let stamp = container.stamp()?;
    container.end()?;
    Ok(stamp.saturating_sub(container.started) as f64 / 1e3)
}

fn to_end(contestant: &Contestant) -> Result<f64> {
    let mut container = Container::start(contestant, &["/bin/true"])?;
    let status = container.end()?;
    let time = now() - container.started;
    ensure!(status.success(), "run true: {status}");
    Ok(time as f64 / 1e3)
}
