//! The gate: what may leave this machine. One function says yes or no, from the record alone; whatever is published passes it. Never
//! touches a registry or an engine.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use oci::{Digest, Platform};
use suite::{Outcome, Passed, Verdict};

use crate::args::Allow;
use crate::record::{ImageRecord, PlatformRecord, SourceRecord};

/// An image that may be published: for each platform, why. Only [`clear`] makes one.
#[derive(Debug)]
pub struct Cleared {
    grounds: BTreeMap<Platform, Ground>,
}

/// Why a platform may be published.
#[derive(Debug)]
enum Ground {
    /// It passed.
    Passed(Passed),
    /// It was not judged, and that is permitted.
    Permitted(Digest),
}

impl Cleared {
    /// Whether this very manifest was cleared for the platform.
    pub fn holds(&self, platform: &Platform, manifest: Digest) -> bool {
        match self.grounds.get(platform) {
            Some(Ground::Passed(passed)) => passed.digest() == manifest,
            Some(Ground::Permitted(digest)) => *digest == manifest,
            None => false,
        }
    }
}

/// Clears an image: it has a tag, every platform passed, its base is no stand-in; `allow` names the exceptions. Error: the first
/// reason why not; a record that contradicts itself is one, whatever is allowed.
pub fn clear(image: &ImageRecord, allow: &Allow) -> Result<Cleared> {
    ensure!(
        image.base.source != SourceRecord::Standin || allow.allow_standin,
        "publish {}: expected the registry's base, found {}, built from Debian's packages\n\
         hint: --allow-standin publishes it nevertheless",
        image.name,
        image.base.name
    );
    ensure!(
        !image.tags.is_empty(),
        "publish {}: expected a tag in its record, found none\nhint: its definition names them; build it again",
        image.name
    );
    ensure!(!image.platforms.is_empty(), "publish {}: the record names no platform", image.name);
    let any_passed = image.platforms.values().any(|platform| proof(platform).is_some());
    let ground = |(platform, record): (&Platform, &PlatformRecord)| {
        let ground = match (&record.verdict, &record.unjudged) {
            (Some(verdict), None) => Ground::Passed(proof(record).with_context(|| {
                format!(
                    "publish {}: expected that {platform} passed, found {}",
                    image.name,
                    found(verdict, record.digest)
                )
            })?),
            (None, Some(_)) if may_go_unjudged(any_passed, allow) => Ground::Permitted(record.digest),
            (None, Some(reason)) => bail!(
                "publish {}: {platform} was not judged ({reason})\nhint: {}",
                image.name,
                if any_passed {
                    "--allow-unjudged-platforms publishes it beside platforms that passed"
                } else {
                    "only what passed is published: build it without --suite none, on a machine that runs one of its platforms"
                }
            ),
            (Some(_), Some(reason)) => bail!(
                "publish {}: {platform}: expected a verdict or the reason why there is none, found both ({reason})",
                image.name
            ),
            (None, None) => bail!(
                "publish {}: {platform}: expected a verdict or the reason why there is none, found neither",
                image.name
            ),
        };
        Ok((platform.clone(), ground))
    };
    Ok(Cleared { grounds: image.platforms.iter().map(ground).collect::<Result<_>>()? })
}

/// Holds images that go into one repository to tags of their own: each would take the other's. `images` are names with their tags.
/// Error: the first tag that two of them have.
pub fn one_image_a_tag<'a>(images: impl IntoIterator<Item = (&'a str, &'a [String])>) -> Result<()> {
    let mut owners = BTreeMap::new();
    for (name, tag) in images.into_iter().flat_map(|(name, tags)| tags.iter().map(move |tag| (name, tag))) {
        if let Some(first) = owners.insert(tag, name) {
            bail!(
                "publish {first} and {name}: expected one image of the tag {tag}, found both\n\
                 hint: a definition's `tags` name its image alone; or publish each by its name, into a repository of its own"
            );
        }
    }
    Ok(())
}

fn may_go_unjudged(any_passed: bool, allow: &Allow) -> bool {
    allow.allow_unjudged || (allow.allow_unjudged_platforms && any_passed)
}

/// The proof that this very manifest passed.
fn proof(record: &PlatformRecord) -> Option<Passed> {
    record.verdict.as_ref().and_then(Verdict::passed).filter(|passed| passed.digest() == record.digest)
}

/// What was found in the place of a pass of `manifest`.
fn found(verdict: &Verdict, manifest: Digest) -> String {
    if verdict.digest != manifest {
        format!("a verdict on {}", verdict.digest)
    } else if verdict.outcome == Outcome::Passed {
        "a verdict that its own rows or selection do not bear out".to_owned()
    } else {
        format!("the verdict {}", verdict.outcome)
    }
}

#[cfg(test)]
mod tests {
    use oci::Family;
    use serde_json::json;

    use super::*;
    use crate::record::{BaseRecord, InitRecord};

    const NONE: Allow =
        Allow { move_tags: false, allow_standin: false, allow_unjudged_platforms: false, allow_unjudged: false };
    const MOVE: Allow = Allow { move_tags: true, ..NONE };
    const STANDIN: Allow = Allow { allow_standin: true, ..NONE };
    const PLATFORMS: Allow = Allow { allow_unjudged_platforms: true, ..NONE };
    const UNJUDGED: Allow = Allow { allow_unjudged: true, ..NONE };
    /// Each permission alone, none and all.
    const EACH: [Allow; 6] = [
        NONE,
        MOVE,
        STANDIN,
        PLATFORMS,
        UNJUDGED,
        Allow { move_tags: true, allow_standin: true, allow_unjudged_platforms: true, allow_unjudged: true },
    ];

    fn manifest() -> Digest {
        Digest::of(b"manifest")
    }

    /// A verdict as it stands in a record: what it says of itself, and what its rows and selection say.
    fn verdict(of: Digest, outcome: &str, rows: &[&str], selection: &serde_json::Value) -> Option<Verdict> {
        let row = |outcome: &&str| {
            json!({
                "number": 1, "scenario": "s", "area": "a", "case": "c", "proves": "p",
                "outcome": outcome, "reason": "", "legs": [],
            })
        };
        let verdict = json!({
            "image": "ours", "digest": of, "kind": "dockerd", "selection": selection, "outcome": outcome,
            "rows": rows.iter().map(row).collect::<Vec<_>>(), "versions": {},
            "place": { "engine": "e", "kernel": "k", "cgroup": "v2" },
        });
        Some(serde_json::from_value(verdict).expect("a verdict"))
    }

    fn said(outcome: &str, rows: &[&str]) -> Option<Verdict> {
        verdict(manifest(), outcome, rows, &json!("full"))
    }

    fn platform(verdict: Option<Verdict>, unjudged: Option<&str>) -> PlatformRecord {
        PlatformRecord {
            digest: manifest(),
            format: None,
            config: Digest::of(b"config"),
            size: 1,
            base: Some(Digest::of(b"base")),
            init: InitRecord { sha256: String::new(), size: 1 },
            verdict,
            unjudged: unjudged.map(str::to_owned),
        }
    }

    fn passed() -> PlatformRecord {
        platform(said("passed", &["passed", "skipped"]), None)
    }

    fn image(platforms: Vec<PlatformRecord>) -> ImageRecord {
        let names = ["linux/amd64", "linux/arm64/v8"].map(|name| Platform::parse(name).expect("a platform"));
        ImageRecord {
            name: "ours".to_owned(),
            tags: vec!["1".to_owned()],
            floating: false,
            digest: Digest::of(b"index"),
            format: Family::Oci,
            layout: None,
            created: String::new(),
            base: BaseRecord {
                name: "docker.io/library/docker:20-dind".to_owned(),
                digest: Some(Digest::of(b"base's index")),
                source: SourceRecord::Registry,
                packages: Vec::new(),
                left_out: Vec::new(),
            },
            listed: names.to_vec(),
            platforms: names.into_iter().zip(platforms).collect(),
            published: None,
        }
    }

    /// Clears under each permission; where none of `permitted` is given, or all are, expects the refusal to say `expected`.
    fn check(what: &str, image: &ImageRecord, permitted: impl Fn(&Allow) -> bool, expected: &str) {
        for allow in EACH {
            match clear(image, &allow) {
                Ok(cleared) => {
                    assert!(permitted(&allow), "{what}: cleared by {allow:?}");
                    for (platform, record) in &image.platforms {
                        assert!(cleared.holds(platform, record.digest), "{what}: {platform} by {allow:?}");
                        assert!(!cleared.holds(platform, Digest::of(b"another")), "{what}: {platform} by {allow:?}");
                    }
                    let another = Platform::parse("linux/s390x").expect("a platform");
                    assert!(!cleared.holds(&another, manifest()), "{what}: {another} by {allow:?}");
                }
                Err(error) => {
                    assert!(!permitted(&allow), "{what}: refused with {allow:?}: {error}");
                    assert!(error.to_string().contains(expected), "{what}: expected `{expected}`: {error}");
                }
            }
        }
    }

    #[test]
    fn f23_only_a_pass_of_this_very_manifest_is_cleared() {
        check("passed", &image(vec![passed(), passed()]), |_| true, "");
        let odd = verdict(Digest::of(b"another"), "passed", &["passed"], &json!("full"));
        let picked = verdict(manifest(), "passed", &["passed"], &json!({ "only": [1] }));
        for (what, verdict, expected) in [
            ("failed", said("failed", &["failed"]), "found the verdict failed"),
            ("not judged", said("not-judged", &["not-judged"]), "found the verdict not judged"),
            ("of another manifest", odd, "found a verdict on sha256:"),
            ("without rows", said("passed", &[]), "do not bear out"),
            ("skips alone", said("passed", &["skipped"]), "do not bear out"),
            ("hand-picked", picked, "do not bear out"),
            ("passed, and its rows failed", said("passed", &["passed", "failed"]), "do not bear out"),
            ("failed, and its rows passed", said("failed", &["passed"]), "found the verdict failed"),
            ("not judged, and its rows passed", said("not-judged", &["passed"]), "found the verdict not judged"),
        ] {
            let record = platform(verdict, None);
            check(what, &image(vec![record.clone()]), |_| false, expected);
            check(what, &image(vec![passed(), record]), |_| false, expected);
        }
    }

    #[test]
    fn f23_what_nobody_judged_is_cleared_where_that_is_allowed() {
        let unjudged = || platform(None, Some("this machine runs linux/amd64"));
        let circle = "--allow-unjudged-platforms";
        check(
            "alone",
            &image(vec![unjudged()]),
            |allow| allow.allow_unjudged,
            "a machine that runs one of its platforms",
        );
        let error = clear(&image(vec![unjudged()]), &PLATFORMS).expect_err("nothing passed").to_string();
        assert!(!error.contains(circle), "{error}");
        let permitted = |allow: &Allow| allow.allow_unjudged || allow.allow_unjudged_platforms;
        check("beside a pass", &image(vec![passed(), unjudged()]), permitted, circle);
        let failed = platform(said("failed", &["failed"]), None);
        check("beside a failure", &image(vec![unjudged(), failed]), |_| false, "");
        for (what, verdict) in [("passed", said("passed", &["passed"])), ("failed", said("failed", &["failed"]))] {
            let both = platform(verdict, Some("no time"));
            check(what, &image(vec![passed(), both]), |_| false, "found both (no time)");
        }
        check("neither", &image(vec![platform(None, None)]), |_| false, "found neither");
        check("neither beside a pass", &image(vec![passed(), platform(None, None)]), |_| false, "found neither");
    }

    #[test]
    fn f23_stand_ins_and_images_without_a_name_stay() {
        let mut standin = image(vec![passed()]);
        standin.base.source = SourceRecord::Standin;
        check("stand-in", &standin, |allow| allow.allow_standin, "hint: --allow-standin");
        check("no platform", &image(Vec::new()), |_| false, "the record names no platform");
        let untagged = ImageRecord { tags: Vec::new(), ..image(vec![passed()]) };
        check("no tag", &untagged, |_| false, "expected a tag in its record, found none");
    }

    #[test]
    fn two_images_of_one_tag_are_refused() {
        let tags = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (first, second) = (tags(&["20", "20-dind"]), tags(&["latest", "20"]));
        let error = one_image_a_tag([("a", &first[..]), ("b", &second)]).expect_err("one tag").to_string();
        assert!(error.starts_with("publish a and b: expected one image of the tag 20, found both\nhint: "), "{error}");
        one_image_a_tag([("a", &first[..]), ("b", &second[..1])]).expect("each its own");
    }
}
