//! Waiting: every wait of the suite has a named deadline and hears the interrupt flag. Nothing here, or anywhere in the
//! suite, sleeps in the hope that something has happened meanwhile.

use crate::Error;
use oci::Interrupt;
use std::thread;
use std::time::{Duration, Instant};

/// How often a state is looked at that costs next to nothing. Short against every deadline, long against the cost of one look.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waiting that hears the interrupt flag: it ends with [`Error::Interrupted`] soon after the flag is raised, and guards clean up.
pub(crate) trait Wait {
    /// Polls until there is a value, for at most `limit`. `awaited` completes the sentence "wait for ...".
    fn until<T>(
        &self,
        awaited: &str,
        limit: Duration,
        poll: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        self.until_every(POLL_INTERVAL, awaited, limit, poll)
    }

    /// The same for looks that cost more, so that the looking does not slow what is looked at.
    fn until_every<T>(
        &self,
        interval: Duration,
        awaited: &str,
        limit: Duration,
        poll: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error>;
}

impl Wait for Interrupt {
    fn until_every<T>(
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
