//! `outdated`: compares bases.lock with what the registries have now, by one HEAD for each base. An index is compared with an index,
//! never with one of its children.

use anyhow::{Context, Result};
use oci::Reference;

use super::Outcome;
use crate::args;
use crate::lock::{Lock, LockedBase};
use crate::plan::definitions_folder;
use crate::session::{Session, print};

/// Prints `BASE OLD NEW` on one line for each base that has moved; `--update` locks what is there now.
pub(super) fn run(args: &args::Outdated, session: &Session) -> Result<Outcome> {
    let path = definitions_folder(args.definitions.as_deref(), &session.facts).join("bases.lock");
    let mut lock = Lock::read(&path)?;
    let client = args.registries.client(session)?;
    let mut moved = Vec::new();
    for (base, locked) in lock.entries()? {
        // What is named by its digest cannot move.
        let Reference::Tagged(_) = &base else { continue };
        let found =
            client.look(&base)?.with_context(|| format!("look at base {base}: the registry has no such tag"))?;
        if found.digest != locked.index {
            print(&format!("{base} {} {}\n", locked.index, found.digest))?;
            moved.push((base, found.digest, locked));
        }
    }
    if !args.update {
        if !moved.is_empty() {
            session.progress.note(
                "outdated",
                path.display(),
                format!("{} bases; --update locks them anew", moved.len()),
            );
        }
        return Ok(Outcome::Done);
    }
    for (base, index, locked) in moved {
        let document = client.manifest(base.repository(), &index)?;
        let locked = LockedBase::of(&document, locked.platforms.keys());
        lock.insert(&base, locked.with_context(|| format!("lock {base} at {index}"))?)?;
    }
    Ok(Outcome::Done)
}
