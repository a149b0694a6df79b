//! `setup`: installs the Debian packages that this machine lacks of those that `tools` lists.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

use super::Outcome;
use crate::session::Session;
use crate::tools::{self, Tool};

/// Installs what is missing. Error: no apt here, or apt failed.
pub(super) fn run(session: &Session) -> Result<Outcome> {
    let stage = session.progress.stage("setup", "tools");
    let missing = tools::missing();
    if missing.is_empty() {
        stage.done("everything is here");
        return Ok(Outcome::Done);
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
    Ok(Outcome::Done)
}

fn packages(tools: &[&Tool]) -> Vec<&'static str> {
    tools.iter().map(|tool| tool.package).collect::<BTreeSet<_>>().into_iter().collect()
}

fn describe(tools: &[&Tool]) -> String {
    tools.iter().map(|tool| format!("{} ({})", tool.file, tool.why)).collect::<Vec<_>>().join(", ")
}
