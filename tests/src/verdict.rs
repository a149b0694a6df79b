//! From findings to a verdict. Pure: the same findings give the same verdict. It must never call an image passed for
//! which a control did not fail, or of which nothing was judged.

use crate::engine::Facts;
use crate::scenario::{Case, Finding, Leg, Scenario, Want};
use crate::{Error, Kind, Selection};
use oci::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How much longer than its reference a leg may take to stop.
const STOP_TOLERANCE: Duration = Duration::from_secs(2);

/// What is known of an image after its scenarios.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The image, as its subject is named.
    pub image: String,
    /// The manifest that was judged.
    pub digest: Digest,
    /// What the image runs.
    pub kind: Kind,
    /// How much was run.
    pub selection: Selection,
    /// The judgement.
    pub outcome: Outcome,
    /// One row for each case, in the catalogue's order.
    pub rows: Vec<Row>,
    /// Versions of the programs inside, by program.
    pub versions: BTreeMap<String, String>,
    /// Where it was judged.
    pub place: Facts,
}

/// The judgement on an image or a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The controls showed the fault and the image did not.
    Passed,
    /// The controls showed the fault and the image too.
    Failed,
    /// It is not known: a control did not show what it must, or the engine could not do its work.
    NotJudged,
    /// The case does not apply; never the judgement on an image.
    Skipped,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::NotJudged => "not judged",
            Outcome::Skipped => "skipped",
        })
    }
}

/// One case of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// The scenario's number.
    pub number: u8,
    /// The scenario's name.
    pub scenario: String,
    /// The scenario's area.
    pub area: String,
    /// How the image was started, or what was done.
    pub case: String,
    /// What a pass proves.
    pub proves: String,
    /// The judgement.
    pub outcome: Outcome,
    /// Why, where it is not a pass; else empty.
    pub reason: String,
    /// The legs, controls first.
    pub legs: Vec<LegRow>,
}

/// One leg of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LegRow {
    /// Which.
    pub leg: Leg,
    /// How often the step was repeated.
    pub runs: u32,
    /// How many zombies it must leave, where they are counted.
    pub expected: Option<u32>,
    /// How many it left.
    pub zombies: Option<u32>,
    /// What else was found, by name.
    pub facts: BTreeMap<String, String>,
    /// Milliseconds from the stop signal to the end, where that was looked at.
    pub stop_millis: Option<u64>,
    /// Why nothing was found.
    pub fault: Option<String>,
    /// Milliseconds that the step took, the container's start not included.
    pub millis: u64,
}

/// Proof that an image passed; only [`Verdict::passed`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    digest: Digest,
}

impl Passed {
    /// The manifest for which it holds.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl Verdict {
    pub(crate) fn new(
        (image, digest): (String, Digest),
        (kind, selection): (Kind, Selection),
        rows: Vec<Row>,
        versions: BTreeMap<String, String>,
        place: Facts,
    ) -> Verdict {
        let outcome = overall(&rows);
        Verdict { image, digest, kind, selection, outcome, rows, versions, place }
    }

    /// The proof, where the image passed and more than hand-picked scenarios were run. It is derived from the rows again, and the
    /// outcome must say the same: a record that was read back is not trusted to have drawn its own conclusion, and one that
    /// contradicts itself proves nothing.
    #[must_use]
    pub fn passed(&self) -> Option<Passed> {
        let picked = matches!(self.selection, Selection::Only(_));
        let agreed = self.outcome == Outcome::Passed && overall(&self.rows) == Outcome::Passed;
        (agreed && !picked).then_some(Passed { digest: self.digest })
    }

    /// Cases that were left out, each with its reason.
    pub fn skips(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.outcome == Outcome::Skipped)
    }
}

/// A failure outweighs what could not be judged, since it is certain; nothing but passes and skips is a pass.
fn overall(rows: &[Row]) -> Outcome {
    let any = |outcome| rows.iter().any(|row| row.outcome == outcome);
    if any(Outcome::Failed) {
        Outcome::Failed
    } else if any(Outcome::NotJudged) || !any(Outcome::Passed) {
        Outcome::NotJudged
    } else {
        Outcome::Passed
    }
}

/// What came of one leg.
#[derive(Debug)]
pub(crate) struct Result {
    pub found: std::result::Result<Finding, Error>,
    pub elapsed: Duration,
}

/// Judges one case by the results of its legs.
pub(crate) fn judge_case(scenario: &Scenario, case: &Case, results: &BTreeMap<Leg, Result>) -> Row {
    let (outcome, reason) = conclude(case, results);
    Row {
        number: scenario.number,
        scenario: scenario.name.to_owned(),
        area: scenario.area.to_owned(),
        case: case.name.to_owned(),
        proves: scenario.proves.to_owned(),
        outcome,
        reason,
        legs: case.wants.iter().map(|want| leg_row(want, results.get(&want.leg))).collect(),
    }
}

fn conclude(case: &Case, results: &BTreeMap<Leg, Result>) -> (Outcome, String) {
    let skip = case.wants.iter().find_map(|want| match &results.get(&want.leg)?.found {
        Err(Error::Inapplicable(reason)) => Some(reason.clone()),
        _ => None,
    });
    if let Some(reason) = skip {
        return (Outcome::Skipped, reason);
    }
    // Controls and references first: without them, what the image did says nothing.
    let (judging, controls): (Vec<&Want>, Vec<&Want>) = case.wants.iter().partition(|want| want.leg.judges());
    for want in controls {
        if let Err(reason) = fulfil(want, results) {
            return (Outcome::NotJudged, format!("control {}: {reason}", want.leg));
        }
    }
    let mut outcome = (Outcome::Passed, String::new());
    for want in judging {
        let Err(reason) = fulfil(want, results) else { continue };
        let reason = format!("{}: {reason}", want.leg);
        match results.get(&want.leg).map(|result| &result.found) {
            Some(Ok(_) | Err(Error::Image(_))) => return (Outcome::Failed, reason),
            _ => outcome = (Outcome::NotJudged, reason),
        }
    }
    outcome
}

/// `Err` says what was expected and what was found.
fn fulfil(want: &Want, results: &BTreeMap<Leg, Result>) -> std::result::Result<(), String> {
    let finding = match results.get(&want.leg).map(|result| &result.found) {
        None => return Err("was not run".to_owned()),
        Some(Err(error)) => return Err(chain(error)),
        Some(Ok(finding)) => finding,
    };
    if let Some(expected) = want.zombies
        && finding.zombies != Some(expected)
    {
        let found = finding.zombies.map_or("no count".to_owned(), |count| count.to_string());
        return Err(format!("expected {expected} zombies after {} runs, found {found}", want.runs));
    }
    for (key, expected) in want.facts {
        let found = finding.facts.get(*key).map_or("nothing", String::as_str);
        if found != *expected {
            return Err(format!("{key}: expected {expected}, found {found}"));
        }
    }
    want.like.map_or(Ok(()), |leg| resemble(finding, leg, results))
}

fn resemble(finding: &Finding, leg: Leg, results: &BTreeMap<Leg, Result>) -> std::result::Result<(), String> {
    let Some(Ok(model)) = results.get(&leg).map(|result| &result.found) else {
        return Err(format!("nothing to compare with: {leg} has no finding"));
    };
    for (key, expected) in &model.facts {
        let found = finding.facts.get(key).map_or("nothing", String::as_str);
        if found != expected {
            return Err(format!("{key}: expected {expected} as in {leg}, found {found}"));
        }
    }
    match (finding.stop, model.stop) {
        (Some(found), Some(expected)) if found > expected + STOP_TOLERANCE => Err(format!(
            "time to stop: expected {:.1} s as in {leg}, found {:.1} s",
            expected.as_secs_f64(),
            found.as_secs_f64()
        )),
        _ => Ok(()),
    }
}

fn leg_row(want: &Want, result: Option<&Result>) -> LegRow {
    let finding = result.and_then(|result| result.found.as_ref().ok()).cloned().unwrap_or_default();
    LegRow {
        leg: want.leg,
        runs: want.runs,
        expected: want.zombies,
        zombies: finding.zombies,
        facts: finding.facts,
        stop_millis: finding.stop.map(millis),
        fault: result.and_then(|result| result.found.as_ref().err()).map(chain),
        millis: result.map_or(0, |result| millis(result.elapsed)),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An error with its reasons, as one sentence.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::SCENARIOS;

    fn row(outcome: Outcome) -> Row {
        Row { outcome, ..judge_case(&SCENARIOS[0], &SCENARIOS[0].cases[0], &BTreeMap::new()) }
    }

    fn verdict(rows: Vec<Row>, selection: Selection) -> Verdict {
        let place = Facts { engine: "fake".to_owned(), kernel: "6.0".to_owned(), cgroup: "v2".to_owned() };
        let image = ("image".to_owned(), Digest::of(b"image"));
        Verdict::new(image, (Kind::Dockerd, selection), rows, BTreeMap::new(), place)
    }

    #[test]
    fn what_certainly_failed_outweighs_what_is_not_known() {
        use Outcome::{Failed, NotJudged, Passed, Skipped};
        for (rows, expected) in [
            (&[Passed, Passed][..], Passed),
            (&[Passed, Skipped], Passed),
            (&[Passed, NotJudged], NotJudged),
            (&[Passed, NotJudged, Failed], Failed),
            (&[Skipped], NotJudged),
            (&[], NotJudged),
        ] {
            assert_eq!(
                verdict(rows.iter().map(|outcome| row(*outcome)).collect(), Selection::Full).outcome,
                expected,
                "{rows:?}"
            );
        }
    }

    #[test]
    fn a_proof_needs_rows_that_passed_and_no_hand_picking() {
        let passed = verdict(vec![row(Outcome::Passed)], Selection::Full);
        assert_eq!(passed.passed().map(|proof| proof.digest()), Some(Digest::of(b"image")));
        assert_eq!(verdict(vec![row(Outcome::Passed)], Selection::Only(vec![1])).passed(), None);
        let claimed = Verdict { outcome: Outcome::Passed, ..verdict(vec![row(Outcome::Failed)], Selection::Full) };
        assert_eq!(claimed.passed(), None);
        for outcome in [Outcome::Failed, Outcome::NotJudged, Outcome::Skipped] {
            let denied = Verdict { outcome, ..passed.clone() };
            assert_eq!(denied.passed(), None, "{outcome}");
        }
    }

    #[test]
    fn a_case_without_results_is_not_judged() {
        let unknown = judge_case(&SCENARIOS[0], &SCENARIOS[0].cases[0], &BTreeMap::new());
        assert_eq!((unknown.outcome, unknown.reason.as_str()), (Outcome::NotJudged, "control bare: was not run"));
    }

    /// A reference leg and ours, compared by facts and by time to stop.
    fn compare(found: Finding) -> Outcome {
        let stop = |seconds| Some(Duration::from_secs(seconds));
        let case = SCENARIOS
            .iter()
            .flat_map(|scenario| scenario.cases)
            .find(|case| case.name.starts_with("TERM with"))
            .unwrap();
        let model =
            Finding { stop: stop(3), ..Finding::default() }.with("exit code", "0").with("shutdown logged", "yes");
        let legs = [(Leg::Bare, model.clone()), (Leg::Tini, model), (Leg::Ours, found)];
        let result = |found| Result { found: Ok(found), elapsed: Duration::ZERO };
        conclude(case, &legs.into_iter().map(|(leg, found)| (leg, result(found))).collect()).0
    }

    #[test]
    fn likeness_is_of_facts_and_of_time() {
        let stopped = |code: &str, seconds| {
            let finding = Finding { stop: Some(Duration::from_secs(seconds)), ..Finding::default() };
            finding.with("exit code", code).with("shutdown logged", "yes")
        };
        assert_eq!(compare(stopped("0", 5)), Outcome::Passed);
        assert_eq!(compare(stopped("0", 6)), Outcome::Failed);
        assert_eq!(compare(stopped("143", 3)), Outcome::Failed);
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let written = verdict(vec![row(Outcome::Passed)], Selection::Smoke);
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), written);
    }
}
