//! `digests`: keeps README.md's table, and the records that it is made of, at what the promotion file says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use oci::Repository;

use super::Outcome;
use crate::args;
use crate::digests::{DIGESTS_FILE, find, insert, promoted, table};
use crate::plan::{cache, definitions_folder};
use crate::promotion::{PROMOTION_FILE, Promotion};
use crate::record::{ImageRecord, Record};
use crate::session::{Session, print};
use crate::shared::{read_text, write_whole};
use crate::stages::evidence;

/// More than this is no page.
const PAGE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Writes the records and the page, and prints the table. `--check`: an error where a file would change.
pub(super) fn run(args: &args::Digests, session: &Session) -> Result<Outcome> {
    let folder = definitions_folder(args.definitions.as_deref(), &session.facts);
    let promotion = Promotion::read(&folder.join(PROMOTION_FILE))?;
    let kept = folder.join(DIGESTS_FILE);
    let mut records = Vec::new();
    for path in args
        .record
        .iter()
        .map(|path| session.facts.cwd.join(path))
        .chain(Some(kept.clone()).filter(|kept| kept.exists()))
    {
        records.extend(Record::read(&path)?.images);
    }
    if !args.check {
        look_up(&promotion, &mut records, args, session)?;
    }
    let mut record = promoted(&promotion, &records)?;
    let before = if kept.exists() { Record::read(&kept)?.immutable } else { BTreeMap::new() };
    record.immutable = promotion.immutable(&before)?;
    let table = table(&promotion, &record);
    let page = match &args.page {
        Some(page) => session.facts.cwd.join(page),
        None => session.facts.root.join("README.md"),
    };
    let text = insert(&read_text(&page, PAGE_BYTES_MAX)?, &table)?;
    write(&kept, &record.json()?, args)?;
    write(&page, &text, args)?;
    print(&table)?;
    Ok(Outcome::Done)
}

/// Adds the records of images that no file has, from beside the images in the source repository.
fn look_up(
    promotion: &Promotion,
    records: &mut Vec<ImageRecord>,
    args: &args::Digests,
    session: &Session,
) -> Result<()> {
    let client = args.registries.client(session)?;
    let source = Repository::parse(&promotion.source).context("source")?;
    let cache = cache(&session.facts).join("promote");
    for (name, image) in &promotion.images {
        if find(name, image, records).is_none() {
            fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
            let found = evidence::get(&image.digest, &source, &cache, &client);
            records
                .extend(found.with_context(|| format!("look up the record of {name} {} in {source}", image.digest))?);
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str, args: &args::Digests) -> Result<()> {
    if path.exists() && read_text(path, PAGE_BYTES_MAX.max(text.len() as u64))? == text {
        return Ok(());
    }
    if args.check {
        let records: String = args.record.iter().map(|path| format!(" --record {}", path.display())).collect();
        bail!(
            "check {}: it is not what the promotion file and the records say\nhint: cargo xtask digests{records}",
            path.display()
        );
    }
    write_whole(path, text.as_bytes())
}
