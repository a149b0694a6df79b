//! `outdated`: compares bases.lock with what the registries have now, by one HEAD for each base. An index is compared with an index,
//! never with one of its children.

use anyhow::{Context, Result};
use oci::{Client, Digest, Reference};

use super::Outcome;
use crate::args;
use crate::lock::{Lock, LockedBase};
use crate::plan::definitions_folder;
use crate::session::{Session, complain, print};

/// Prints `BASE OLD NEW` on one line for each base that has moved; `--update` locks what is there now. A base that cannot be looked at or
/// locked is one error on stderr, and the others go on.
pub(super) fn run(args: &args::Outdated, session: &Session) -> Result<Outcome> {
    let mut lock = Lock::find(&definitions_folder(args.definitions.as_deref(), &session.facts))?;
    let client = args.registries.client(session)?;
    let (mut looked_at, mut moved, mut lost) = (0, 0, 0);
    for (base, locked) in lock.entries()? {
        session.interrupt.check()?;
        // What is named by its digest cannot move.
        let Reference::Tagged(_) = &base else { continue };
        looked_at += 1;
        let done = now(&base, &client).and_then(|found| {
            if found == locked.index {
                return Ok(());
            }
            print(&format!("{base} {} {found}\n", locked.index))?;
            moved += 1;
            if args.update { update(&mut lock, &base, &locked, &found, &client) } else { Ok(()) }
        });
        if let Err(error) = done {
            session.interrupt.check()?;
            complain(&error);
            lost += 1;
        }
    }
    let advice = if args.update || moved == 0 { "" } else { "; --update locks them anew" };
    session.progress.note(
        "outdated",
        lock.path().display(),
        format!("{moved} of {looked_at} bases have moved, {lost} could not be looked at or locked{advice}"),
    );
    Ok(if lost == 0 { Outcome::Done } else { Outcome::NotJudged })
}

/// What a base's tag names now.
fn now(base: &Reference, client: &Client) -> Result<Digest> {
    let found = client.look(base).with_context(|| format!("look at base {base}"))?.with_context(|| {
        format!(
            "look at base {base}: the registry has no such tag\n\
             hint: what is locked is built by its digest as long as the registry has that; name another base in the definition"
        )
    })?;
    Ok(found.digest)
}

/// Locks a base at this index, with the platforms that are locked now.
fn update(lock: &mut Lock, base: &Reference, locked: &LockedBase, index: &Digest, client: &Client) -> Result<()> {
    let locking = || format!("lock {base} at {index}");
    let document = client.manifest(base.repository(), index).with_context(locking)?;
    let locked = LockedBase::of(&document, locked.platforms.keys()).with_context(locking)?;
    lock.insert(base, locked)
}
