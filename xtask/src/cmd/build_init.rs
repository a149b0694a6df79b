//! `build-init`: builds the static init and prints its path.

use anyhow::Result;

use super::Outcome;
use crate::args::BuildInit;
use crate::session::{Session, print};
use crate::stages::init;

/// Builds the init of one platform; its path goes to stdout.
pub(super) fn run(args: &BuildInit, session: &Session) -> Result<Outcome> {
    let platform = args.platform.as_ref().unwrap_or(&session.facts.host);
    let built = init::stage(platform, session)?;
    print(&format!("{}\n", built.path.display()))?;
    Ok(Outcome::Done)
}
