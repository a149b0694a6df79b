//! What every command and stage is given: the facts, where progress goes, and the flag that ends the work. Decides nothing.

use oci::Interrupt;

use crate::plan::Facts;
use crate::progress::Progress;

/// What every command is given.
#[derive(Debug)]
pub struct Session {
    /// What the process was given besides its arguments.
    pub facts: Facts,
    /// Where progress goes.
    pub progress: Progress,
    /// Set once the user wants to stop.
    pub interrupt: Interrupt,
}
