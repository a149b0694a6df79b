//! The gate: what may leave this machine. One function says yes or no, from the record alone; whatever is published passes it. Never
//! touches a registry or an engine.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use oci::{Digest, Platform};
use suite::{Passed, Verdict};

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

/// Clears an image: every platform passed, its base came from a registry; `allow` names the exceptions. Error: the first reason why not.
pub fn clear(image: &ImageRecord, allow: &Allow) -> Result<Cleared> {
    ensure!(
        image.base.source == SourceRecord::Registry || allow.allow_standin,
        "publish {}: expected the registry's base, found {}, built from Debian's packages\n\
         hint: --allow-standin publishes it nevertheless",
        image.name,
        image.base.name
    );
    ensure!(!image.platforms.is_empty(), "publish {}: the record names no platform", image.name);
    let any_passed = image.platforms.values().any(|platform| proof(platform).is_some());
    let ground = |(platform, record): (&Platform, &PlatformRecord)| {
        let ground = match (proof(record), &record.unjudged) {
            (Some(passed), _) => Ground::Passed(passed),
            (None, Some(_)) if record.verdict.is_none() && may_go_unjudged(any_passed, allow) => {
                Ground::Permitted(record.digest)
            }
            (None, Some(reason)) => bail!(
                "publish {}: {platform} was not judged ({reason})\n\
                 hint: --allow-unjudged-platforms publishes it beside platforms that passed",
                image.name
            ),
            (None, None) => bail!("publish {}: expected that {platform} passed, found {}", image.name, found(record)),
        };
        Ok((platform.clone(), ground))
    };
    Ok(Cleared { grounds: image.platforms.iter().map(ground).collect::<Result<_>>()? })
}

fn may_go_unjudged(any_passed: bool, allow: &Allow) -> bool {
    allow.allow_unjudged || (allow.allow_unjudged_platforms && any_passed)
}

/// The proof that this very manifest passed.
fn proof(record: &PlatformRecord) -> Option<Passed> {
    record.verdict.as_ref().and_then(Verdict::passed).filter(|passed| passed.digest() == record.digest)
}

fn found(record: &PlatformRecord) -> String {
    match &record.verdict {
        Some(verdict) if verdict.digest != record.digest => format!("a verdict on {}", verdict.digest),
        Some(verdict) => format!("that it {}", verdict.outcome),
        None => "no verdict and no reason".to_owned(),
    }
}
