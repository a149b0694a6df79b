//! The process: gathers the facts, runs the command, prints its error once and turns the outcome into the exit code.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use clap::error::ErrorKind;
use xtask::args::{Cli, Command};
use xtask::cmd::{self, Outcome};
use xtask::plan::Facts;
use xtask::progress::Progress;
use xtask::session::{Session, complain};

fn main() -> ExitCode {
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody reads a usage text that cannot be written.
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return ExitCode::from(if asked { 0 } else { 2 });
        }
    };
    match add_mirrors(&mut cli.command).and_then(|()| session()).and_then(|session| cmd::run(&cli.command, &session)) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::ImageFailed) => ExitCode::from(1),
        Ok(Outcome::NotJudged) => ExitCode::from(2),
        Err(error) => {
            complain(&error);
            ExitCode::from(2)
        }
    }
}

fn session() -> Result<Session> {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        // The first one lets every guard clean up; a second one while that is under way ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 2, Arc::clone(&interrupt))
            .context("watch for signals")?;
        signal_hook::flag::register(signal, Arc::clone(&interrupt)).context("watch for signals")?;
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("find the repository: xtask has no parent folder")?;
    let cwd = std::env::current_dir().context("read the working directory")?;
    let facts = Facts {
        root: root.to_owned(),
        definitions: variable("XTASK_IMAGES").map_or_else(|| root.join("images"), |folder| cwd.join(folder)),
        cwd,
        host: oci::Platform::host(),
        source_date_epoch: std::env::var("SOURCE_DATE_EPOCH").ok(),
        docker_config: docker_config(),
    };
    Ok(Session { facts, progress: Progress::stderr(), interrupt: interrupt.into() })
}

/// XTASK_MIRROR holds what `--mirror` takes, for places where the command line is written once for all machines.
fn add_mirrors(command: &mut Command) -> Result<()> {
    if let (Some(registries), Some(mirrors)) = (command.registries(), variable("XTASK_MIRROR")) {
        registries
            .add_mirrors(&mirrors)
            // What was found may hold a password.
            .map_err(|expected| anyhow!("read XTASK_MIRROR: {expected}"))?;
    }
    Ok(())
}

/// A variable of the environment; one that is empty was not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where Docker keeps who we are (docker(1), "Configuration files").
fn docker_config() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")))?;
    Some(folder.join("config.json"))
}
