//! The table of promoted images: made of the promotion file and the records, put into README.md between two marks. Never typed, and
//! never a network away: the records of what was promoted lie beside the definitions.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use suite::Kind;

use crate::progress::size;
use crate::promotion::{PromotedImage, Promotion};
use crate::record::{ImageRecord, Record};
use crate::stages::gate;

/// The records of promoted images, in the folder of the image definitions.
pub const DIGESTS_FILE: &str = "digests.json";

const BEGIN: &str = "<!-- digests: written by `cargo xtask digests` -->\n";
const END: &str = "<!-- end of digests -->\n";

/// The record of an image, if any of these is: the first that has its name and digest.
pub fn find<'a>(name: &str, image: &PromotedImage, records: &'a [ImageRecord]) -> Option<&'a ImageRecord> {
    records.iter().find(|record| record.name == name && record.digest == image.digest)
}

/// The records of the promoted images, in the promotion file's order. Error: an image's record is in none of them, or does not prove what
/// promotion asks for: what may not be promoted is not listed either.
pub fn promoted(promotion: &Promotion, records: &[ImageRecord]) -> Result<Record> {
    let proved = |(name, image): (&String, &PromotedImage)| {
        let record = find(name, image, records).with_context(|| {
            format!(
                "find the record of {name} {}: it is in none of the files\nhint: name the one that has it by --record FILE",
                image.digest
            )
        })?;
        // A platform may be missing where promotion was told so.
        gate::prove(record, true).with_context(|| format!("list {name} {}", image.digest))?;
        Ok(record.clone())
    };
    Ok(Record::new(promotion.images.iter().map(proved).collect::<Result<_>>()?))
}

/// The table in Markdown: one line for each tag.
pub fn table(promotion: &Promotion, record: &Record) -> String {
    if record.images.is_empty() {
        return "No image has been promoted yet.\n".to_owned();
    }
    let mut text = "| image | tag | class | daemon | base | platforms | size | digest | date |\n|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for image in &record.images {
        for (tag, class) in promotion.images.get(&image.name).into_iter().flat_map(|promoted| &promoted.tags) {
            let platforms: Vec<_> = image.platforms.keys().map(ToString::to_string).collect();
            let bytes = image.platforms.values().map(|platform| platform.size).max().unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {} | `{}:{tag}` | {class} | {} | {} | {} | {} | `{}` | {} |",
                image.name,
                promotion.target,
                daemon(image),
                image.base.name,
                platforms.join(", "),
                size(bytes),
                image.digest,
                image.created.get(..10).unwrap_or("-"),
            );
        }
    }
    text
}

/// The daemon that the image runs and its version, as the suite found it; none where the image is an init alone.
fn daemon(image: &ImageRecord) -> String {
    let verdicts = image.platforms.values().filter_map(|platform| platform.verdict.as_ref());
    let found = verdicts.filter_map(|verdict| {
        let (name, program) = match verdict.kind {
            Kind::Dockerd => ("Docker", "dockerd"),
            Kind::Containerd => ("containerd", "containerd"),
            Kind::Init => return None,
        };
        Some(format!("{name} {}", verdict.versions.get(program)?))
    });
    found.into_iter().next().unwrap_or_else(|| "-".to_owned())
}

/// `page` with `table` between its marks. Error: the marks are not there, once each and in order.
pub fn insert(page: &str, table: &str) -> Result<String> {
    let once = |mark: &str| page.matches(mark).count() == 1;
    ensure!(
        once(BEGIN) && once(END),
        "find the table of digests: expected `{}` and `{}` once each",
        BEGIN.trim(),
        END.trim()
    );
    let (before, rest) = page.split_once(BEGIN).context("find the beginning of the table of digests")?;
    let (_, after) =
        rest.split_once(END).context("find the end of the table of digests: it stands before its beginning")?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use suite::Outcome;

    use super::*;
    use crate::record::SourceRecord;

    fn digest() -> oci::Digest {
        oci::Digest::of(b"an index")
    }

    fn promotion(digest: oci::Digest) -> Promotion {
        serde_json::from_value(json!({
            "source": "r.example/staging",
            "target": "r.example/dind",
            "images": { "dind": { "digest": digest, "tags": { "20-dind": "floating", "20.10.24-1": "immutable" } } }
        }))
        .expect("a promotion")
    }

    fn record() -> ImageRecord {
        let (digest, init) = (digest(), json!({ "sha256": "00", "size": 20_000 }));
        let row = json!({
            "number": 1, "scenario": "s", "area": "a", "case": "c", "proves": "p", "outcome": "passed", "reason": "", "legs": []
        });
        serde_json::from_value(json!({
            "name": "dind", "tags": ["20-dind"], "digest": digest, "format": "oci", "created": "2023-01-17T00:00:00Z", "listed": ["linux/amd64"],
            "base": { "name": "docker.io/library/docker:20-dind", "digest": digest, "source": "registry" },
            "platforms": { "linux/amd64": {
                "digest": digest, "config": digest, "size": 109_800_000, "base": digest, "init": init,
                "verdict": {
                    "image": "dind", "digest": digest, "kind": "dockerd", "selection": "full", "outcome": "passed", "rows": [row],
                    "versions": { "dockerd": "20.10.23", "containerd": "1.6.15" },
                    "place": { "engine": "namespaces", "kernel": "6.18", "cgroup": "v1" }
                }
            } }
        }))
        .expect("a record")
    }

    #[test]
    fn a_line_for_each_tag_is_made_of_the_record() {
        let promotion = promotion(digest());
        let record = promoted(&promotion, &[record()]).expect("the record is there");
        expect_test::expect![[r#"
            | image | tag | class | daemon | base | platforms | size | digest | date |
            |---|---|---|---|---|---|---|---|---|
            | dind | `r.example/dind:20-dind` | floating | Docker 20.10.23 | docker.io/library/docker:20-dind | linux/amd64 | 109.8 MB | `sha256:13f28396e236ef752a2f8e7911c5ecc6750e3c9b96114475b260cc73cdd06d3a` | 2023-01-17 |
            | dind | `r.example/dind:20.10.24-1` | immutable | Docker 20.10.23 | docker.io/library/docker:20-dind | linux/amd64 | 109.8 MB | `sha256:13f28396e236ef752a2f8e7911c5ecc6750e3c9b96114475b260cc73cdd06d3a` | 2023-01-17 |
        "#]]
        .assert_eq(&table(&promotion, &record));
    }

    #[test]
    fn what_may_not_be_promoted_is_not_listed() {
        let promotion = promotion(digest());
        promoted(&promotion, &[record()]).expect("the control");
        let mut standin = record();
        standin.base.source = SourceRecord::Standin;
        let mut unjudged = record();
        unjudged.platforms.values_mut().for_each(|platform| platform.verdict = None);
        let mut failed = record();
        for platform in failed.platforms.values_mut() {
            let verdict = platform.verdict.as_mut().expect("a verdict");
            verdict.outcome = Outcome::Failed;
            verdict.rows[0].outcome = Outcome::Failed;
        }
        for (record, expected) in [
            (failed, "found the verdict failed"),
            (standin, "expected the registry's base"),
            (unjudged, "found neither"),
        ] {
            let error = format!("{:#}", promoted(&promotion, &[record]).expect_err(expected));
            assert!(error.starts_with("list dind sha256:") && error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn the_daemon_is_that_which_the_image_runs() {
        let mut containerd = record();
        let verdicts = containerd.platforms.values_mut().filter_map(|platform| platform.verdict.as_mut());
        verdicts.for_each(|verdict| verdict.kind = Kind::Containerd);
        assert_eq!([daemon(&record()), daemon(&containerd)], ["Docker 20.10.23", "containerd 1.6.15"]);
    }

    #[test]
    fn an_image_without_its_record_is_named() {
        let other = promotion(oci::Digest::of(b"another index"));
        let error = promoted(&other, &[record()]).expect_err("there is no record of it").to_string();
        assert!(error.contains("dind sha256:") && error.contains("--record FILE"), "{error}");
    }

    #[test]
    fn a_table_stands_between_its_marks() {
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(insert(&page, "new\n").expect("insert"), format!("before\n{BEGIN}new\n{END}after\n"));
        for bad in [String::new(), BEGIN.to_owned(), format!("{END}{BEGIN}"), format!("{page}{page}")] {
            insert(&bad, "new\n").expect_err("the marks are odd");
        }
    }
}
