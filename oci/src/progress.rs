//! How a long transfer talks with its caller: it reports what it does ([`Progress`]) and asks whether to go on
//! ([`Interrupt`]). Never draws anything and never installs a signal handler; both are the caller's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::descriptor::Descriptor;
use crate::error::{Error, Result};

/// Told of transfers as they go, by several threads if several blobs are on their way. One blob's calls are `started`, any number of `reached`, and `finished` if it succeeded.
pub trait Progress: Sync {
    /// `what` is about to be fetched or sent. Not called for what is there already.
    fn started(&self, what: &Descriptor);
    /// `bytes` of `what` have come, or gone. A position, not a step: a retry that begins anew goes back to 0.
    fn reached(&self, what: &Descriptor, bytes: u64);
    /// `what` is where it should be, whole and verified.
    fn finished(&self, what: &Descriptor);
}

/// Progress that nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn started(&self, _: &Descriptor) {}
    fn reached(&self, _: &Descriptor, _: u64) {}
    fn finished(&self, _: &Descriptor) {}
}

/// A flag that ends transfers and unpacking with [`Error::Interrupted`]. It is asked between chunks, and every tenth of a
/// second while a registry is waited for. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Raises the flag, for good. Async-signal-safe.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the flag is raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Interrupted`] once the flag is raised.
    pub fn check(&self) -> Result<()> {
        if self.is_raised() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

impl From<Arc<AtomicBool>> for Interrupt {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}
