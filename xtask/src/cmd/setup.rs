//! `setup`: installs the Debian packages that a machine lacks; the list of them is here, and whoever needs a tool asks here for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

use super::{Outcome, Session};

/// A file that the pipeline or its tests need, and the package that brings it.
struct Tool {
    file: &'static str,
    package: &'static str,
    why: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { file: "unshare", package: "util-linux", why: "tests: an init as PID 1" },
    Tool { file: "setpriv", package: "util-linux", why: "stand-in base" },
    Tool {
        file: "/usr/share/keyrings/debian-archive-keyring.gpg",
        package: "debian-archive-keyring",
        why: "stand-in base",
    },
    Tool { file: "mmdebstrap", package: "mmdebstrap", why: "stand-in base" },
    Tool { file: "/usr/lib/x86_64-linux-musl/libc.a", package: "musl-dev", why: "static init" },
    Tool { file: "tini-static", package: "tini", why: "the suite's control" },
    Tool { file: "skopeo", package: "skopeo", why: "tests: a second reader and writer of layouts" },
    Tool { file: "umoci", package: "umoci", why: "tests: a second reader of layouts" },
    Tool { file: "docker-registry", package: "docker-registry", why: "tests: a real registry" },
];

/// Installs what is missing. Error: no apt here, or apt failed.
pub fn run(session: &Session) -> Result<Outcome> {
    let stage = session.progress.stage("setup", "tools");
    let missing = missing();
    if missing.is_empty() {
        stage.done("everything is here");
        return Ok(Outcome::Done);
    }
    let packages = packages(&missing);
    let names = packages.join(" ");
    if find("apt-get").is_none() {
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

/// The path of a tool on PATH or at its own place. Error: it is missing; names it, its package and this command.
pub fn require(file: &str) -> Result<PathBuf> {
    if let Some(path) = find(file) {
        return Ok(path);
    }
    match TOOLS.iter().find(|tool| tool.file == file) {
        Some(tool) => bail!(
            "find {file} ({}): it is not on this machine\nhint: cargo xtask setup installs it (Debian package {})",
            tool.why,
            tool.package
        ),
        None => bail!("find {file}: it is not on this machine"),
    }
}

/// Asks for every tool. Error: as [`require`], for the first that is missing.
pub fn require_all() -> Result<()> {
    TOOLS.iter().try_for_each(|tool| require(tool.file).map(drop))
}

fn missing() -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| find(tool.file).is_none()).collect()
}

fn packages(tools: &[&Tool]) -> Vec<&'static str> {
    tools.iter().map(|tool| tool.package).collect::<BTreeSet<_>>().into_iter().collect()
}

fn describe(tools: &[&Tool]) -> String {
    tools.iter().map(|tool| format!("{} ({})", tool.file, tool.why)).collect::<Vec<_>>().join(", ")
}

fn find(file: &str) -> Option<PathBuf> {
    if file.starts_with('/') {
        return Path::new(file).exists().then(|| file.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(file)).find(|candidate| candidate.is_file())
}
