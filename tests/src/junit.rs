//! JUnit XML out of verdicts, for CI systems. Pure text: it must never add a judgement of its own.

use crate::Error;
use crate::verdict::{LegRow, Outcome, Row, Verdict};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// One `testsuite` for each verdict, one `testcase` for each row: the class is the scenario's area, properties are the
/// versions. What could not be judged is an `error`, as a failure is of the image.
///
/// # Errors
/// When the XML cannot be written.
pub fn junit(verdicts: &[Verdict]) -> Result<String, Error> {
    let mut report = Report::new("zombie regression suite");
    report.add_test_suites(verdicts.iter().map(suite));
    report.to_string().map_err(|error| Error::Engine(format!("write JUnit XML: {error}")))
}

fn suite(verdict: &Verdict) -> TestSuite {
    let mut suite = TestSuite::new(verdict.image.as_str());
    suite.add_property(("digest", verdict.digest.to_string().as_str()));
    suite.add_property(("engine", verdict.place.engine.as_str()));
    suite.add_property(("kernel", verdict.place.kernel.as_str()));
    suite.add_property(("cgroup", verdict.place.cgroup.as_str()));
    for (program, version) in &verdict.versions {
        suite.add_property((program.as_str(), version.as_str()));
    }
    suite.add_test_cases(verdict.rows.iter().map(case));
    suite
}

fn case(row: &Row) -> TestCase {
    let mut status = match row.outcome {
        Outcome::Passed => TestCaseStatus::success(),
        Outcome::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Outcome::NotJudged => TestCaseStatus::non_success(NonSuccessKind::Error),
        Outcome::Skipped => TestCaseStatus::skipped(),
    };
    if row.outcome != Outcome::Passed {
        status.set_message(row.reason.as_str());
    }
    let mut case = TestCase::new(format!("{:02} {}: {}", row.number, row.scenario, row.case), status);
    case.set_classname(row.area.as_str());
    // Legs run side by side; the slowest is what the row took.
    case.set_time(Duration::from_millis(row.legs.iter().map(|leg| leg.millis).max().unwrap_or(0)));
    case.set_system_out(row.legs.iter().map(line).collect::<Vec<_>>().join("\n"));
    case
}

fn line(leg: &LegRow) -> String {
    let zombies = leg.zombies.map(|count| format!(" {count} zombies after {} runs", leg.runs));
    let facts = leg.facts.iter().map(|(key, value)| format!(" {key}: {value}"));
    let fault = leg.fault.iter().map(|fault| format!(" {fault}"));
    let parts: Vec<String> = zombies.into_iter().chain(facts).chain(fault).collect();
    format!("{}:{}", leg.leg, parts.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Behaviour, judged};
    use expect_test::expect;

    #[test]
    fn a_row_that_could_not_be_judged_is_an_error_with_its_reason() {
        let mut verdict = judged(|_, _| Behaviour::Unstartable, &[13], &crate::Interrupt::default()).unwrap();
        verdict.rows.iter_mut().flat_map(|row| &mut row.legs).for_each(|leg| leg.millis = 7);
        expect![[r#"
            <?xml version="1.0" encoding="UTF-8"?>
            <testsuites name="zombie regression suite" tests="1" skipped="0" failures="0" errors="1">
                <testsuite name="fixed" tests="1" skipped="0" errors="1" failures="0">
                    <properties>
                        <property name="digest" value="sha256:992a93455c71fedd36ac9bbc439952c041cf61445958472af479269b8d873513"/>
                        <property name="engine" value="fake"/>
                        <property name="kernel" value="6.0"/>
                        <property name="cgroup" value="v2"/>
                    </properties>
                    <testcase name="13 outer-exec-orphan: 10 execs" classname="orphans" time="0.007">
                        <error message="control bare: no space left"/>
                        <system-out>bare: no space left
            tini: no space left
            ours: no space left</system-out>
                    </testcase>
                </testsuite>
            </testsuites>
        "#]].assert_eq(&junit(&[verdict]).unwrap());
    }
}
