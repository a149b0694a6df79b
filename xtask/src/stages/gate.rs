//! The gate: what may leave this machine. One function says yes or no, from the record alone; whatever is published passes it. Never
//! touches a registry or an engine.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use oci::{Digest, Platform};
use suite::{Kind, Outcome, Passed, Verdict};

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

/// Clears an image for a repository: it has a tag, every platform passed, its base is no stand-in; `allow` names the exceptions. Error:
/// the first reason why not; a record that contradicts itself is one, whatever is allowed.
pub fn clear(image: &ImageRecord, allow: &Allow) -> Result<Cleared> {
    cleared(image, Purpose::Publish(allow))
}

/// Clears an image for users: as [`clear`] without any exception, and every platform of its definition is there, unless
/// `allow_missing_platforms`. Error: the first reason why not.
pub fn prove(image: &ImageRecord, allow_missing_platforms: bool) -> Result<Cleared> {
    let cleared = cleared(image, Purpose::Promote)?;
    ensure!(
        !image.listed.is_empty(),
        "prove {}: expected the platforms of its definition in its record, found none\nhint: build it again",
        image.name
    );
    let there = |listed: &&Platform| image.platforms.keys().any(|built| built.is_same_as(listed));
    match image.listed.iter().find(|listed| !there(listed)) {
        Some(missing) if !allow_missing_platforms => bail!(
            "prove {}: expected each platform of its definition, found none for {missing}\n\
             hint: merge the record of its leg too; --allow-missing-platforms promotes it without",
            image.name
        ),
        _ => Ok(cleared),
    }
}

/// What an image is cleared for: how much is permitted, and what a person is advised.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// A repository of ours.
    Publish(&'a Allow),
    /// Users. Nothing is permitted.
    Promote,
}

impl Purpose<'_> {
    fn verb(self) -> &'static str {
        match self {
            Self::Publish(_) => "publish",
            Self::Promote => "prove",
        }
    }

    fn takes_standins(self) -> bool {
        matches!(self, Self::Publish(allow) if allow.allow_standin)
    }

    fn takes_unjudged(self, any_passed: bool) -> bool {
        matches!(self, Self::Publish(allow) if allow.allow_unjudged || (allow.allow_unjudged_platforms && any_passed))
    }

    /// What to do about a stand-in.
    fn standin_hint(self) -> &'static str {
        match self {
            Self::Publish(_) => "--allow-standin publishes it nevertheless",
            Self::Promote => "build it on the registry's base: build-images --base registry",
        }
    }

    /// What to do about a platform that was not judged.
    fn unjudged_hint(self, any_passed: bool) -> &'static str {
        match self {
            Self::Promote => "judge it on a machine that runs that platform, and merge what it finds",
            Self::Publish(_) if any_passed => "--allow-unjudged-platforms publishes it beside platforms that passed",
            Self::Publish(_) => {
                "only what passed is published: build it without --suite none, on a machine that runs one of its platforms"
            }
        }
    }
}

fn cleared(image: &ImageRecord, purpose: Purpose<'_>) -> Result<Cleared> {
    let verb = purpose.verb();
    ensure!(
        image.base.source != SourceRecord::Standin || purpose.takes_standins(),
        "{verb} {}: expected the registry's base, found {}, built from Debian's packages\nhint: {}",
        image.name,
        image.base.name,
        purpose.standin_hint()
    );
    ensure!(
        !image.tags.is_empty(),
        "{verb} {}: expected a tag in its record, found none\nhint: its definition names them; build it again",
        image.name
    );
    ensure!(!image.platforms.is_empty(), "{verb} {}: the record names no platform", image.name);
    let any_passed = image.platforms.values().any(|platform| proof(image, platform).is_some());
    let ground = |(platform, record): (&Platform, &PlatformRecord)| {
        let ground = match (&record.verdict, &record.unjudged) {
            (Some(verdict), None) => Ground::Passed(proof(image, record).with_context(|| {
                let found = found(image, verdict, record.digest);
                format!("{verb} {}: expected that {platform} passed, found {found}", image.name)
            })?),
            (None, Some(_)) if purpose.takes_unjudged(any_passed) => Ground::Permitted(record.digest),
            (None, Some(reason)) => bail!(
                "{verb} {}: {platform} was not judged ({reason})\nhint: {}",
                image.name,
                purpose.unjudged_hint(any_passed)
            ),
            (Some(_), Some(reason)) => bail!(
                "{verb} {}: {platform}: expected a verdict or the reason why there is none, found both ({reason})",
                image.name
            ),
            (None, None) => bail!(
                "{verb} {}: {platform}: expected a verdict or the reason why there is none, found neither",
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

/// The proof that this very manifest of this image passed, as what it runs.
fn proof(image: &ImageRecord, record: &PlatformRecord) -> Option<Passed> {
    let verdict = record.verdict.as_ref().filter(|verdict| verdict.image == image.name && fits(image, verdict))?;
    verdict.passed().filter(|passed| passed.digest() == record.digest)
}

/// Whether a verdict is by the scenarios of what the image runs.
fn fits(image: &ImageRecord, verdict: &Verdict) -> bool {
    image.runs.is_none_or(|runs| runs.kind() == verdict.kind)
}

/// What was found in the place of a pass of `manifest`.
fn found(image: &ImageRecord, verdict: &Verdict, manifest: Digest) -> String {
    if verdict.digest != manifest {
        format!("a verdict on {}", verdict.digest)
    } else if verdict.image != image.name {
        format!("a verdict on {:?}", verdict.image)
    } else if !fits(image, verdict) {
        let kind = if verdict.kind == Kind::Dockerd { "dockerd" } else { "containerd" };
        format!("a verdict on an image that runs {kind}")
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
    use crate::spec::Runs;

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
            runs: Some(Runs::Dockerd),
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
    fn f54_for_users_there_is_no_exception_and_no_advice_to_make_one() {
        let pair = || image(vec![passed(), passed()]);
        prove(&pair(), false).expect("all passed");
        let mut standin = pair();
        standin.base.source = SourceRecord::Standin;
        let unjudged = image(vec![passed(), platform(None, Some("no machine"))]);
        for (image, expected) in [
            (standin, "prove ours: expected the registry's base"),
            (unjudged, "was not judged (no machine)"),
            (image(vec![passed()]), "found none for linux/arm64/v8\nhint: "),
            (ImageRecord { listed: Vec::new(), ..pair() }, "expected the platforms of its definition"),
        ] {
            let error = prove(&image, false).expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
            for flag in ["--allow-standin", "--allow-unjudged"] {
                assert!(!error.contains(flag), "promote has no {flag}: {error}");
            }
        }
        prove(&image(vec![passed()]), true).expect("the other one may be missing");
    }

    #[test]
    fn f54_a_verdict_is_of_this_image_and_of_what_it_runs() {
        let named = ImageRecord { name: "another".to_owned(), ..image(vec![passed()]) };
        check("of another image", &named, |_| false, "found a verdict on \"ours\"");
        let runs = ImageRecord { runs: Some(Runs::Containerd), ..image(vec![passed()]) };
        check("of another kind", &runs, |_| false, "found a verdict on an image that runs dockerd");
        check("of what nobody told", &ImageRecord { runs: None, ..image(vec![passed()]) }, |_| true, "");
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
