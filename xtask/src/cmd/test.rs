//! `test`: what continuous integration runs, in the order in which a fault shows soonest. Each step is one command that can be repeated by hand.

use anyhow::{Context, Result};
use oci::Layout;
use xshell::{Cmd, Shell, cmd};

use super::Outcome;
use crate::linters::Linters;
use crate::plan::cache;
use crate::session::Session;
use crate::spec::Suite;
use crate::stages::base::{self, Image};
use crate::stages::{init, rootfs};
use crate::tools;

/// What `cargo run` tells a program of its own package (The Cargo Book, "Environment Variables"). Handed on to another cargo, it is what
/// build scripts see that watch their own package's: ring would be compiled anew in every run, and again in the next build by hand.
const OF_CARGO_RUN: [&str; 17] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_PKG_AUTHORS",
    "CARGO_PKG_DESCRIPTION",
    "CARGO_PKG_HOMEPAGE",
    "CARGO_PKG_LICENSE",
    "CARGO_PKG_LICENSE_FILE",
    "CARGO_PKG_NAME",
    "CARGO_PKG_README",
    "CARGO_PKG_REPOSITORY",
    "CARGO_PKG_RUST_VERSION",
    "CARGO_PKG_VERSION",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
    "OUT_DIR",
];

/// Runs everything; stops at the first step that fails.
pub(super) fn run(session: &Session) -> Result<Outcome> {
    tools::require_all()?;
    let shell = Shell::new()?;
    shell.change_dir(&session.facts.root);
    run_cargo(cmd!(shell, "cargo fmt --all --check")).context("check the format")?;
    run_cargo(cmd!(shell, "cargo clippy --quiet --workspace --all-targets -- --deny warnings"))
        .context("check the lints")?;
    Linters::find(&session.facts.root)?.check(&session.facts.root, &session.interrupt)?;

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
    run_cargo(cmd!(shell, "cargo test --workspace")).context("run the tests")?;
    run_cargo(cmd!(shell, "cargo xtask build-images --base standin --fresh"))
        .context("judge the images on the stand-in")?;
    Ok(Outcome::Done)
}

/// Runs cargo as from a shell, without what this program was told of its own package.
fn run_cargo(command: Cmd<'_>) -> xshell::Result<()> {
    OF_CARGO_RUN.iter().fold(command.quiet(), Cmd::env_remove).run()
}
