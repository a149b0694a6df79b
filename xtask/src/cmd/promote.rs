//! `promote`: what the promotion file declares, and the records prove, goes to where users pull it. Without `--confirm` nothing changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Outcome;
use crate::args::{self, Registries};
use crate::digests::DIGESTS_FILE;
use crate::plan::{cache, definitions_folder};
use crate::promotion::{Declaration, PROMOTION_FILE};
use crate::record::Record;
use crate::session::{Session, complain, print};
use crate::shared::take_turn;
use crate::stages::carry::sweep;
use crate::stages::edges::{PlannedPromotion, table};
use crate::stages::promote::Promoter;

/// Prints the plan as a Markdown table on stdout; with `--confirm`, carries it out and prints what became of it. Every image that is refused
/// is one error on stderr; the others go on.
pub(super) fn run(args: &args::Promote, session: &Session) -> Result<Outcome> {
    let file = match &args.file {
        Some(file) => session.facts.cwd.join(file),
        None => definitions_folder(args.definitions.as_deref(), &session.facts).join(PROMOTION_FILE),
    };
    let declared = chosen(Declaration::read(&file)?, &args.images, &file)?;
    let mut records = Vec::new();
    for path in &args.record {
        records.extend(Record::read(&session.facts.cwd.join(path))?.images);
    }
    let kept = file.with_file_name(DIGESTS_FILE);
    let immutable = if kept.exists() { Record::read(&kept)?.immutable } else { BTreeMap::new() };
    let cache = cache(&session.facts).join("promote");
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let _turn = take_turn(&cache.join("lock"), &session.interrupt, &mut || {
        session.progress.note("waiting", cache.display(), "for another promotion from here");
    })?;
    for swept in sweep(&cache)? {
        session.progress.note("swept", swept.display(), "a killed run had left it");
    }
    // A mirror may have what the registry lost, or a proof that is none.
    let registries = Registries { mirror: Vec::new(), ..args.registries.clone() };
    let client = registries.client(session)?;
    let promoter = Promoter {
        client: &client,
        source: declared.source,
        target: declared.target,
        records,
        immutable,
        registries: &registries,
        move_floating: args.move_floating,
        allow_missing_platforms: args.allow_missing_platforms,
        cache,
        session,
    };
    let mut plan = promoter.plan(declared.images);
    let has_work = plan.iter().any(PlannedPromotion::has_work);
    if args.confirm {
        promoter.apply(&mut plan);
    }
    print(&table(&plan))?;
    if plan.is_empty() {
        session.progress.note("planned", file.display(), "nothing is declared");
    } else if has_work && !args.confirm {
        session.progress.note("planned", file.display(), "nothing was changed; --confirm does it");
    }
    plan.iter().filter_map(|image| image.refusal.as_ref()).for_each(complain);
    Ok(outcome(&plan))
}

/// The images of these names; all of them where none is named. Error: one is not declared.
fn chosen(mut declared: Declaration, names: &[String], file: &Path) -> Result<Declaration> {
    for name in names {
        if !declared.images.contains_key(name) {
            let there: Vec<_> = declared.images.keys().map(String::as_str).collect();
            let there = if there.is_empty() { "no image".to_owned() } else { there.join(", ") };
            bail!("find image {name:?} in {}: no such image\nhint: it has {there}", file.display());
        }
    }
    declared.images.retain(|name, _| names.is_empty() || names.contains(name));
    Ok(declared)
}

fn outcome(plan: &[PlannedPromotion]) -> Outcome {
    if plan.iter().any(|image| image.failed) {
        Outcome::ImageFailed
    } else if plan.iter().any(|image| image.refusal.is_some()) {
        Outcome::NotJudged
    } else {
        Outcome::Done
    }
}
