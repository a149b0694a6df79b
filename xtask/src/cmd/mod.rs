//! One file per subcommand. Each turns its arguments into stages and the stages' result into an outcome.

mod bench;
mod build_images;
mod build_init;
mod digests;
mod judge;
mod matrix;
mod merge;
mod outdated;
mod promote;
mod publish;
mod setup;
mod test;

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Result, anyhow, ensure};

use crate::args::Command;
use crate::session::Session;
use crate::shared::take_turn;

/// How a command ended, when it ended without an error. The exit codes are a contract: 0, 1 and 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done, and every image that was to be judged passed: 0.
    Done,
    /// An image failed its judgement: 1.
    ImageFailed,
    /// An image could not be judged: 2.
    NotJudged,
}

/// Runs a command.
pub fn run(command: &Command, session: &Session) -> Result<Outcome> {
    match command {
        Command::Setup => setup::run(session),
        Command::BuildImages(args) => build_images::run(args, session),
        Command::BuildInit(args) => build_init::run(args, session),
        Command::Publish(args) => publish::run(args, session),
        Command::Matrix(args) => matrix::run(args, session),
        Command::Merge(args) => merge::run(args, session),
        Command::Bench(args) => bench::run(args, session),
        Command::Judge(args) => judge::run(args, session),
        Command::Promote(args) => promote::run(args, session),
        Command::Digests(args) => digests::run(args, session),
        Command::Outdated(args) => outdated::run(args, session),
        Command::Test => test::run(session),
    }
}

/// Unpacking keeps owners and device nodes, and the engine makes namespaces: both need root.
fn require_root() -> Result<()> {
    let uid = rustix::process::geteuid();
    ensure!(
        uid.is_root(),
        "unpack and run images: expected root (for their owners, and for namespaces), found uid {}\n\
         hint: run it as root, on a virtual machine if this one is precious",
        uid.as_raw()
    );
    Ok(())
}

/// One run at a time works in a cache; the others wait for it.
fn wait_for_turn(cache: &Path, session: &Session) -> Result<File> {
    make_folder(
        cache,
        "the repository's target/ holds what is built: the repository must lie on a disk that can be written",
    )?;
    take_turn(&cache.join("lock"), &session.interrupt, &mut || {
        session.progress.note("waiting", cache.display(), "for another run that uses this cache");
    })
}

fn make_folder(folder: &Path, hint: &str) -> Result<()> {
    // The hint stands on a line of its own, behind the reason.
    fs::create_dir_all(folder).map_err(|error| anyhow!("make folder {}: {error}\nhint: {hint}", folder.display()))
}
