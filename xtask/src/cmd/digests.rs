//! `digests`: keeps README.md's table, and the records that it is made of, at what the promotion file says.

use std::path::Path;

use anyhow::{Result, bail};

use super::Outcome;
use crate::args;
use crate::digests::{DIGESTS_FILE, insert, promoted, table};
use crate::plan::definitions_folder;
use crate::promotion::{PROMOTION_FILE, Promotion};
use crate::record::Record;
use crate::session::{Session, print};
use crate::shared::{read_text, write_whole};

/// More than this is no page.
const PAGE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Writes the records and the page, and prints the table. `--check`: an error where a file would change.
pub(super) fn run(args: &args::Digests, session: &Session) -> Result<Outcome> {
    let folder = definitions_folder(None, &session.facts);
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
    let record = promoted(&promotion, &records)?;
    let table = table(&promotion, &record);
    let page = session.facts.root.join("README.md");
    let text = insert(&read_text(&page, PAGE_BYTES_MAX)?, &table)?;
    write(&kept, &record.json()?, args.check)?;
    write(&page, &text, args.check)?;
    print(&table)?;
    Ok(Outcome::Done)
}

fn write(path: &Path, text: &str, check: bool) -> Result<()> {
    if path.exists() && read_text(path, PAGE_BYTES_MAX.max(text.len() as u64))? == text {
        return Ok(());
    }
    if check {
        bail!(
            "check {}: it is not what the promotion file and the records say\nhint: cargo xtask digests",
            path.display()
        );
    }
    write_whole(path, text.as_bytes())
}
