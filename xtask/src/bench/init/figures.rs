//! What was measured, as data: samples of each contestant, and of those the least, the middle and the most. Prints nothing.

use anyhow::{Context, Result};
use serde::Serialize;

use super::Contestant;

/// All of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: String,
    /// How often.
    pub rounds: usize,
    /// How many orphans a storm had.
    pub orphans: usize,
    /// The tables.
    pub groups: Vec<Group>,
}

/// Figures that are measured together.
#[derive(Debug, Serialize)]
pub struct Group {
    /// What it is called.
    pub name: String,
    /// How it was measured.
    pub what: String,
    /// What the figures are.
    pub columns: Vec<Column>,
    /// Ours first.
    pub rows: Vec<Row>,
}

/// A figure that each contestant has.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Column {
    /// Its name and unit.
    pub head: &'static str,
    /// What is shown as the most.
    pub top: Top,
}

/// The end of a spread that tells something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Top {
    /// The largest sample.
    Max,
    /// What one of a hundred samples exceeds: of thousands, the largest tells only of the machine.
    P99,
}

/// The figures of a contestant, by the group's columns.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Whose.
    pub name: &'static str,
    /// A spread for each column.
    pub figures: Vec<Spread>,
}

/// The samples of one figure in short.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The one in the middle.
    pub median: f64,
    /// The one that one of a hundred exceeds.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

impl Column {
    pub(super) const fn new(head: &'static str, top: Top) -> Self {
        Self { head, top }
    }
}

impl Spread {
    /// None without samples.
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { min, median: sorted[sorted.len() / 2], p99: sorted[(sorted.len() * 99).div_ceil(100) - 1], max })
    }
}

/// Samples that are being collected, for each contestant and column.
#[derive(Debug)]
pub(super) struct Samples(Vec<(&'static str, Vec<Vec<f64>>)>);

impl Samples {
    pub(super) fn of(contestants: &[Contestant], columns: usize) -> Self {
        Self(contestants.iter().map(|contestant| (contestant.name, vec![Vec::new(); columns])).collect())
    }

    /// One sample of each column. Error: the contestant is none of these.
    pub(super) fn add<const N: usize>(&mut self, contestant: &Contestant, samples: [f64; N]) -> Result<()> {
        let found = self.0.iter_mut().find(|(name, _)| *name == contestant.name);
        let (_, columns) = found.with_context(|| format!("note a figure: expected no {}", contestant.name))?;
        columns.iter_mut().zip(samples).for_each(|(column, sample)| column.push(sample));
        Ok(())
    }
}

pub(super) fn group(name: &str, what: &str, columns: &[Column], samples: Samples) -> Group {
    let row = |(name, columns): (&'static str, Vec<Vec<f64>>)| Row {
        name,
        figures: columns.iter().filter_map(|samples| Spread::of(samples)).collect(),
    };
    let rows = samples.0.into_iter().map(row).collect();
    Group { name: name.to_owned(), what: what.to_owned(), columns: columns.to_vec(), rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_ends_and_its_middle() {
        let hundreds: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(Spread::of(&hundreds), Some(Spread { min: 1.0, median: 101.0, p99: 198.0, max: 200.0 }));
        assert_eq!(Spread::of(&[3.0]), Some(Spread { min: 3.0, median: 3.0, p99: 3.0, max: 3.0 }));
        assert_eq!(Spread::of(&[]), None);
    }
}
