//! `matrix`: the platforms of the definitions as a job matrix, for continuous integration that has a runner for each.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::json;

use super::Outcome;
use crate::args;
use crate::plan::{definitions_folder, select};
use crate::session::{Session, print};
use crate::spec::read_definitions;

/// The runners of GitHub Actions whose processors run a platform's programs (GitHub's documentation, "GitHub-hosted runners").
const RUNNERS: [(&str, &str); 2] = [("linux/amd64", "ubuntu-24.04"), ("linux/arm64", "ubuntu-24.04-arm")];

/// Prints `{"include":[{"platform":…,"runner":…,"images":…,"leg":…}]}` on one line, as GitHub's `strategy.matrix` takes it; `images` are
/// the names to build there, and `leg` is the platform as a file's name. `--output NAME`: the same as `NAME={…}`. Error: no runner is known
/// for a platform.
pub(super) fn run(args: &args::Matrix, session: &Session) -> Result<Outcome> {
    let specs = read_definitions(&definitions_folder(args.definitions.as_deref(), &session.facts))?;
    let mut legs: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for spec in select(specs, &args.images)? {
        for platform in &spec.platforms {
            legs.entry(platform.clone()).or_default().insert(spec.name.clone());
        }
    }
    let mut include = Vec::new();
    for (platform, images) in legs {
        let found = format!("{}/{}", platform.os, platform.architecture);
        let (_, runner) = RUNNERS.iter().find(|(known, _)| *known == found).with_context(|| {
            let known = RUNNERS.map(|(known, _)| known).join(", ");
            format!("find a runner for {platform}: expected one of {known}, found {found}")
        })?;
        let images: Vec<_> = images.into_iter().collect();
        include.push(json!({
            "platform": platform,
            "runner": runner,
            "images": images.join(" "),
            "leg": platform.to_string().replace('/', "-"),
        }));
    }
    let name = args.output.as_ref().map(|name| format!("{name}=")).unwrap_or_default();
    print(&format!("{name}{}\n", json!({ "include": include })))?;
    Ok(Outcome::Done)
}
