//! How long a signal takes that an init passes on.

use std::path::Path;

use anyhow::Result;
use rustix::process::Signal;

use super::Contestant;
use super::container::{Container, now};
use super::figures::{Column, Samples, Top};

/// How many signals are sent in a round, one after the other.
pub(super) const SIGNALS: usize = 1000;

/// From kill(2) on the init until the command's sigwait(3) has returned.
pub(super) const COLUMNS: [Column; 1] = [Column::new("USR1 to the command, us", Top::P99)];

/// Sends a round of signals through a contestant. Error: one does not arrive.
pub(super) fn measure(contestant: &Contestant, probe: &Path, samples: &mut Samples) -> Result<()> {
    let mut container = Container::start(contestant, &[probe.as_os_str(), "listen".as_ref()])?;
    container.stamp()?;
    container.rest()?;
    for _ in 0..SIGNALS {
        let sent = now();
        container.signal(Signal::USR1)?;
        samples.add(contestant, [container.stamp()?.saturating_sub(sent) as f64 / 1e3])?;
    }
    Ok(())
}
