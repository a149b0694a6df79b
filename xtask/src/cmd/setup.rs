//! `setup`: installs the Debian packages that this machine lacks of those that `tools` lists, and the linters of the workflows.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

use super::Outcome;
use crate::linters::Linters;
use crate::session::Session;
use crate::tools::{self, Tool};

/// Installs what is missing. Error: no apt here, or apt or pip failed.
pub(super) fn run(session: &Session) -> Result<Outcome> {
    install_packages(session)?;
    let root = &session.facts.root;
    let stage = session.progress.stage("setup", "linters");
    if Linters::find(root).is_ok() {
        stage.done("they are here");
    } else {
        let linters = Linters::install(root, &session.interrupt)?;
        stage.done(format!("installed in {}", linters.folder().display()));
    }
    Ok(Outcome::Done)
}

fn install_packages(session: &Session) -> Result<()> {
    let stage = session.progress.stage("setup", "tools");
    let missing = tools::missing();
    if missing.is_empty() {
        stage.done("everything is here");
        return Ok(());
    }
    let packages = packages(&missing);
    let names = packages.join(" ");
    if tools::find("apt-get").is_none() {
        bail!("install {names}: no apt-get on this machine\nhint: install what brings {}", describe(&missing));
    }
    stage.doing(format!("apt-get install {names}"));
    let shell = Shell::new()?;
    shell.set_var("DEBIAN_FRONTEND", "noninteractive");
    cmd!(shell, "apt-get update").quiet().ignore_stdout().run()?;
    cmd!(shell, "apt-get install --yes --no-install-recommends {packages...}").quiet().ignore_stdout().run()?;
    stage.done(format!("installed {names}"));
    Ok(())
}

fn packages(tools: &[&Tool]) -> Vec<&'static str> {
    tools.iter().map(|tool| tool.package).collect::<BTreeSet<_>>().into_iter().collect()
}

fn describe(tools: &[&Tool]) -> String {
    tools.iter().map(|tool| format!("{} ({})", tool.file, tool.why)).collect::<Vec<_>>().join(", ")
}
