//! `test`: what continuous integration runs, in the order in which a fault shows soonest. Each step is one command that can be repeated by hand.

use anyhow::{Context, Result};
use oci::Layout;
use xshell::{Shell, cmd};

use super::Outcome;
use crate::plan::cache;
use crate::session::Session;
use crate::spec::Suite;
use crate::stages::base::{self, Image};
use crate::stages::{init, rootfs};
use crate::tools;

/// Runs everything; stops at the first step that fails.
pub(super) fn run(session: &Session) -> Result<Outcome> {
    tools::require_all()?;
    let shell = Shell::new()?;
    shell.change_dir(&session.facts.root);
    cmd!(shell, "cargo fmt --all --check").quiet().run().context("check the format")?;
    cmd!(shell, "cargo clippy --quiet --workspace --all-targets -- --deny warnings")
        .quiet()
        .run()
        .context("check the lints")?;

    let built = init::stage(&session.facts.host, session)?;
    let foreign = init::stage(&"linux/arm64".parse()?, session)?;
    let probe = init::stage_probe(&session.facts.root, &session.facts.host, &session.progress)?;
    shell.set_var("DIND_INIT", &built.path);
    shell.set_var("DIND_INIT_AARCH64", &foreign.path);
    shell.set_var("SUITE_PROBE", &probe.path);
    let cache = cache(&session.facts);
    let standin = base::standin(Suite::Bookworm, &session.facts.host, &cache, session)?;
    let layout = Layout::open(&standin.layout)?;
    for (variable, manifest) in [("SUITE_ROOTFS_PRE", &standin.pre), ("SUITE_ROOTFS_POST", &standin.post)] {
        let image = Image::read(&layout, manifest)?;
        shell.set_var(variable, rootfs::unpacked(&image, &cache, &session.interrupt)?);
    }

    shell.set_var("NO_SKIPS", "1");
    cmd!(shell, "cargo test --workspace").quiet().run().context("run the tests")?;
    cmd!(shell, "cargo xtask build-images --base standin --fresh")
        .quiet()
        .run()
        .context("judge the images on the stand-in")?;
    Ok(Outcome::Done)
}
