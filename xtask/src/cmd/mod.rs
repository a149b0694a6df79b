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

use anyhow::Result;

use crate::args::Command;
use crate::session::Session;

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
