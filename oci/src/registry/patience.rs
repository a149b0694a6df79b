//! How often something is tried again, and after which pause. Decides only: it sends nothing and waits for nothing.

use std::time::Duration;

use super::answer::Failure;
use crate::error::Result;

/// Less than this is nothing: of a body in the time of [`Options::read_timeout`](super::Options::read_timeout), and of what
/// one attempt had more than those before it.
pub(super) const PROGRESS_BYTES: u64 = 1024;
/// How many attempts in a row may get no further before the error of the last one is reported.
const ATTEMPTS_MAX: u32 = 4;
/// How many attempts may fail that did get further, and left something from which the next one goes on.
const ADVANCES_MAX: u32 = 100;

/// What is left of the patience with one thing.
pub(super) struct Patience {
    first_pause: Duration,
    pause: Duration,
    attempts: u32,
    advances: u32,
}

impl Patience {
    /// Full patience. Each pause in a row is twice as long as the one before it.
    pub(super) fn new(first_pause: Duration) -> Self {
        Self { first_pause, pause: first_pause, attempts: ATTEMPTS_MAX, advances: ADVANCES_MAX }
    }

    /// How long to wait before the next attempt, after one that failed; its error where there shall be none.
    pub(super) fn after(&mut self, failure: Failure) -> Result<Duration> {
        match failure {
            Failure::Final(error) => Err(error),
            Failure::Again { error, after } => {
                self.attempts -= 1;
                if self.attempts == 0 {
                    return Err(error);
                }
                let pause = after.unwrap_or(self.pause);
                self.pause *= 2;
                Ok(pause)
            }
            Failure::Further(error) if self.advances == 0 => Err(error),
            Failure::Further(_) => {
                let advances = self.advances - 1;
                *self = Self { advances, ..Self::new(self.first_pause) };
                Ok(self.first_pause)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn error() -> Error {
        Error::Cut { request: "GET it".to_owned(), reason: "gone".to_owned() }
    }

    fn again(after: Option<u64>) -> Failure {
        Failure::Again { error: error(), after: after.map(Duration::from_secs) }
    }

    fn seconds(patience: &mut Patience, failure: Failure) -> Option<u64> {
        patience.after(failure).ok().map(|pause| pause.as_secs())
    }

    #[test]
    fn f41_pauses_double_and_attempts_end() {
        let mut patience = Patience::new(Duration::from_secs(1));
        let pauses: Vec<_> = (0..ATTEMPTS_MAX).map(|_| seconds(&mut patience, again(None))).collect();
        assert_eq!(pauses, [Some(1), Some(2), Some(4), None]);
        assert_eq!(seconds(&mut Patience::new(Duration::ZERO), Failure::Final(error())), None);
    }

    #[test]
    fn f39_what_the_registry_asks_for_goes_before_our_own_pause() {
        let mut patience = Patience::new(Duration::from_secs(1));
        assert_eq!(seconds(&mut patience, again(Some(30))), Some(30));
        assert_eq!(seconds(&mut patience, again(Some(0))), Some(0));
        assert_eq!(seconds(&mut patience, again(None)), Some(4));
        assert_eq!(seconds(&mut patience, again(Some(1))), None);
    }

    #[test]
    fn f38_attempts_that_get_further_have_a_cap_of_their_own() {
        let mut patience = Patience::new(Duration::from_secs(1));
        for _ in 0..ADVANCES_MAX {
            for pause in [1, 2, 4] {
                assert_eq!(seconds(&mut patience, again(None)), Some(pause));
            }
            assert_eq!(seconds(&mut patience, Failure::Further(error())), Some(1));
        }
        assert_eq!(seconds(&mut patience, Failure::Further(error())), None);
    }
}
