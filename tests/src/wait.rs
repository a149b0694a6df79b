//! Waiting: every wait of the suite has a named deadline and hears the interrupt flag. Nothing here, or anywhere in the
//! suite, sleeps in the hope that something has happened meanwhile.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often a state is looked at that costs next to nothing. Short against every deadline, long against the cost of one look.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A flag that a signal handler sets; every wait ends with [`Error::Interrupted`] soon after, and guards clean up.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Wraps the flag that a signal handler owns.
    #[must_use]
    pub fn new(flag: Arc<AtomicBool>) -> Interrupt {
        Interrupt(flag)
    }

    /// Raises the flag from within the program.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// `Err` once the flag is up.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Polls until there is a value, for at most `limit`. `awaited` completes the sentence "wait for ...".
    pub(crate) fn until<T>(
        &self,
        awaited: &str,
        limit: Duration,
        poll: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        self.until_every(POLL_INTERVAL, awaited, limit, poll)
    }

    /// The same for looks that cost more, so that the looking does not slow what is looked at.
    pub(crate) fn until_every<T>(
        &self,
        interval: Duration,
        awaited: &str,
        limit: Duration,
        mut poll: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            self.check()?;
            if let Some(value) = poll()? {
                return Ok(value);
            }
            if start.elapsed() >= limit {
                return Err(Error::Deadline { awaited: awaited.to_owned(), limit });
            }
            thread::sleep(interval);
        }
    }
}
