//! `promote`: what the promotion file declares, and the records prove, goes to where users pull it. Without `--confirm` nothing changes.

use std::fs;

use anyhow::{Context, Result, bail};

use super::Outcome;
use crate::args;
use crate::plan::{cache, definitions_folder};
use crate::promotion::{PROMOTION_FILE, Promotion};
use crate::record::Record;
use crate::session::{Session, complain, print};
use crate::shared::take_turn;
use crate::stages::promote::{PlannedPromotion, Promoter, table};

/// Prints the plan as a Markdown table on stdout and, with `--confirm`, carries it out. Every image that is refused is one error on
/// stderr; the others go on.
pub(super) fn run(args: &args::Promote, session: &Session) -> Result<Outcome> {
    let file = match &args.file {
        Some(file) => session.facts.cwd.join(file),
        None => definitions_folder(None, &session.facts).join(PROMOTION_FILE),
    };
    let mut promotion = Promotion::read(&file)?;
    for name in &args.images {
        if !promotion.images.contains_key(name) {
            let declared: Vec<_> = promotion.images.keys().map(String::as_str).collect();
            bail!("find image `{name}` in {}: no such image\nhint: it has {}", file.display(), declared.join(", "));
        }
    }
    promotion.images.retain(|name, _| args.images.is_empty() || args.images.contains(name));
    let mut records = Vec::new();
    for path in &args.record {
        records.extend(Record::read(&session.facts.cwd.join(path))?.images);
    }
    let cache = cache(&session.facts).join("promote");
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let _turn = take_turn(&cache.join("lock"), &session.interrupt, &mut || {
        session.progress.note("waiting", cache.display(), "for another promotion from here");
    })?;
    let client = args.registries.client(session)?;
    let promoter = Promoter {
        client: &client,
        source: promotion.source()?,
        target: promotion.target()?,
        records,
        registries: &args.registries,
        move_floating: args.move_floating,
        cache,
        session,
    };
    let mut plan = promoter.plan(&promotion);
    print(&table(&plan))?;
    if args.confirm {
        promoter.apply(&mut plan);
    } else if plan.iter().any(PlannedPromotion::has_work) {
        session.progress.note("planned", file.display(), "nothing was changed; --confirm does it");
    }
    plan.iter().filter_map(|image| image.refusal.as_ref()).for_each(complain);
    Ok(outcome(&plan))
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
