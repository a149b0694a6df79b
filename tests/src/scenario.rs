//! What a scenario is: data that says how an image is started, in which legs, and what each must show, beside one step
//! that does it. The list itself is in catalogue.rs. It must never run anything.

use crate::bench::{Bench, Daemon};
use crate::stage::Stage;
use crate::{Error, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// One way of running the same steps; all but the last two of them are the same image with another PID 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leg {
    /// Control: the unfixed base, in which nothing reaps.
    Bare,
    /// Control: the base as published, with its own workaround.
    Published,
    /// Reference: a packaged tini as PID 1 above the base's own entrypoint.
    Tini,
    /// Control: the fixed image without the variable that keeps a tini below it silent.
    Unsilenced,
    /// The fixed image under one more init, as `docker run --init` starts it.
    InitAbove,
    /// The fixed image.
    Ours,
}

impl Leg {
    /// Whether the image under judgement runs in it, so that a mismatch is the image's failure; in every other leg a
    /// mismatch says that the machine or the suite cannot be trusted.
    #[must_use]
    pub fn judges(self) -> bool {
        matches!(self, Leg::Ours | Leg::InitAbove)
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Leg::Bare => "bare",
            Leg::Published => "published",
            Leg::Tini => "tini",
            Leg::Unsilenced => "unsilenced",
            Leg::InitAbove => "--init",
            Leg::Ours => "ours",
        })
    }
}

/// A scenario of facts/root-cause.md, section 5, under the same number.
#[derive(Debug)]
pub struct Scenario {
    /// Its number, for good.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// The area it belongs to; the JUnit report groups by it.
    pub area: &'static str,
    /// What a pass proves, in one sentence.
    pub proves: &'static str,
    /// Where the fault was reported, or who depends on this.
    pub source: &'static str,
    pub(crate) cases: &'static [Case],
}

/// How the container of a case is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Start {
    /// The image's own command; a daemon gets the flags that the suite needs.
    Image,
    /// Arguments after the image's name.
    Args(&'static [&'static str]),
    /// `--entrypoint` and its arguments.
    Entrypoint(&'static [&'static str]),
}

/// A scenario for one kind of image and one way to start it.
#[derive(Debug)]
pub(crate) struct Case {
    pub name: &'static str,
    pub image: Kind,
    /// Whether the short selection has it.
    pub smoke: bool,
    pub start: Start,
    pub step: Step,
    pub wants: &'static [Want],
}

/// What a case does.
pub(crate) enum Step {
    /// In a started container whose daemon answers; cases with the same start share it, in the catalogue's order.
    Inside(Daemon, fn(&Bench<'_>, &Want) -> Result<Finding, Error>),
    /// With containers of its own.
    Whole(fn(&Stage<'_>, &Want) -> Result<Finding, Error>),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Inside(..) => "Inside",
            Step::Whole(..) => "Whole",
        })
    }
}

/// What one leg does and must show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub leg: Leg,
    /// How often the step is repeated.
    pub runs: u32,
    /// How many zombies are left then: exactly so many.
    pub zombies: Option<u32>,
    /// Facts that must have been found, each with exactly this value.
    pub facts: &'static [(&'static str, &'static str)],
    /// A leg whose facts must have been found here too, and whose time to stop must not be exceeded by much.
    pub like: Option<Leg>,
}

impl Want {
    /// `runs` steps that leave `zombies`.
    pub(crate) const fn zombies(leg: Leg, runs: u32, zombies: u32) -> Want {
        Want { leg, runs, zombies: Some(zombies), facts: &[], like: None }
    }

    /// These facts, and no zombies counted.
    pub(crate) const fn facts(leg: Leg, facts: &'static [(&'static str, &'static str)]) -> Want {
        Want { leg, runs: 1, zombies: None, facts, like: None }
    }

    /// The facts of another leg.
    pub(crate) const fn like(leg: Leg, like: Leg) -> Want {
        Want { leg, runs: 1, zombies: None, facts: &[], like: Some(like) }
    }

    pub(crate) const fn and_runs(self, runs: u32) -> Want {
        Want { runs, ..self }
    }

    pub(crate) const fn and_facts(self, facts: &'static [(&'static str, &'static str)]) -> Want {
        Want { facts, ..self }
    }
}

/// What a leg has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Finding {
    pub zombies: Option<u32>,
    pub facts: BTreeMap<String, String>,
    /// How long the container took to stop, where that is looked at.
    pub stop: Option<Duration>,
}

impl Finding {
    pub(crate) fn zombies(count: u32) -> Finding {
        Finding { zombies: Some(count), ..Finding::default() }
    }

    pub(crate) fn with(mut self, key: &str, value: impl Into<String>) -> Finding {
        self.facts.insert(key.to_owned(), value.into());
        self
    }
}
