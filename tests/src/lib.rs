//! The zombie regression suite: starts an image under test as a container, lets its daemon run short-lived containers,
//! and counts what PID 1 did not reap, next to controls that must show the fault. README.md beside this crate says what
//! it proves. It must never build or change an image, and must never report an image as passed that no control vouches for.

mod bench;
mod catalogue;
pub mod engine;
mod error;
#[cfg(test)]
mod fake;
mod inner_image;
mod judge;
mod junit;
mod namespaces;
mod observe;
mod owner;
mod scenario;
mod spec;
mod stage;
mod steps;
mod subject;
mod verdict;
mod wait;

pub use catalogue::SCENARIOS;
pub use engine::{Container, Engine};
pub use error::Error;
pub use judge::{Event, judge};
pub use junit::junit;
pub use namespaces::Namespaces;
pub use oci::Interrupt;
pub use scenario::{Leg, Scenario};
pub use subject::{Job, Kind, RunConfig, Selection, Subject};
pub use verdict::{LegRow, Outcome, Passed, Row, Verdict};
