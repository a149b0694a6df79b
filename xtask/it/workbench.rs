//! A place to run the pipeline in: definitions of its own, an output folder, and, where it is asked for, a registry with the stand-in.

use std::fs;
use std::process::{Command, Output};

use libtest_mimic::Failed;
use oci::{Digest, Layout};
use serde_json::Value;
use xtask::bench::Registry;

use crate::registry::seed;
use crate::support::{command, definitions, folder, standin};

pub(crate) const AMD64: &str = "linux/amd64";
/// Port 9 is discard, and nothing listens on it.
pub(crate) const NOBODY: &str = "127.0.0.1:9";

/// A folder with definitions of its own and a place for the output.
pub(crate) struct Workbench {
    pub(crate) folder: tempfile::TempDir,
}

impl Workbench {
    pub(crate) fn new() -> Result<Self, Failed> {
        let folder = folder()?;
        definitions(folder.path())?;
        Ok(Self { folder })
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn build(&self, out: &str, arguments: &[&str]) -> Result<Output, Failed> {
        Ok(self.command(out, arguments).output()?)
    }

    /// The same on a machine that reaches no registry but on loopback, wherever the trial runs.
    pub(crate) fn build_cut_off(&self, out: &str, arguments: &[&str]) -> Result<Output, Failed> {
        let mut command = self.command(out, arguments);
        for variable in ["https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(variable);
        }
        Ok(command.env("HTTPS_PROXY", format!("http://{NOBODY}")).output()?)
    }

    fn command(&self, out: &str, arguments: &[&str]) -> Command {
        let mut command = command(["build-images", "--platform", AMD64, "--images"]);
        command.arg(self.path("images")).arg("--out").arg(self.path(out)).args(arguments);
        command
    }

    pub(crate) fn record(&self, out: &str) -> Result<Value, Failed> {
        Ok(serde_json::from_slice(&fs::read(self.path(out).join("digests.json"))?)?)
    }

    /// Writes a lock whose one entry is `docker:20-dind` with these digests.
    pub(crate) fn lock(&self, index: &Digest, amd64: &Digest) -> Result<(), Failed> {
        let text = format!("docker.io/library/docker:20-dind:\n  index: {index}\n  platforms:\n    {AMD64}: {amd64}\n");
        Ok(fs::write(self.path("images/bases.lock"), text)?)
    }

    /// Starts a registry that holds the stand-in as library/docker:20-dind, with a lock for it, and returns `--mirror`'s value.
    pub(crate) fn registry(&self) -> Result<(Registry, String, Seeded), Failed> {
        let standin = standin()?;
        let registry = Registry::start(self.folder.path())?;
        seed(&registry, &standin.layout, "20-dind", "library/docker:20-dind")?;
        let layout = Layout::open(&standin.layout)?;
        let index = layout.index()?.named("20-dind").first().ok_or("the stand-in has no tag 20-dind")?.digest;
        let seeded = Seeded { index, amd64: standin.post.digest, layout };
        self.lock(&seeded.index, &seeded.amd64)?;
        let mirror = format!("docker.io=http://{}", registry.host());
        Ok((registry, mirror, seeded))
    }
}

/// The stand-in as it lies in a registry.
pub(crate) struct Seeded {
    pub(crate) index: Digest,
    pub(crate) amd64: Digest,
    pub(crate) layout: Layout,
}
