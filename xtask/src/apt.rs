//! An apt of our own: its sources, its lists and what it takes to be installed lie in folders of the caller's. It reads the
//! host's configuration, such as proxies, and never touches the host's state. What it takes is signed by Debian.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shared::write_whole;

/// Verifies the sources, the host's and our own (package debian-archive-keyring).
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What one apt is told.
#[derive(Debug, Clone)]
pub(crate) struct Apt {
    /// Where its files lie, apart from the lists. Absolute, as is `lists`: apt takes another path as one of its own folders.
    pub(crate) home: PathBuf,
    /// sources.list(5), one-line style.
    pub(crate) sources: String,
    /// The folder of the lists.
    pub(crate) lists: PathBuf,
    /// dpkg's status file: what is installed already.
    pub(crate) status: String,
    /// In Debian's names, separated by commas; the first is that of packages named without one.
    pub(crate) architectures: String,
}

impl Apt {
    /// The file with the sources.
    pub(crate) fn sources_path(&self) -> PathBuf {
        self.home.join("sources.list")
    }

    /// The file with the status.
    pub(crate) fn status_path(&self) -> PathBuf {
        self.home.join("status")
    }

    /// Where downloaded packages lie.
    pub(crate) fn packages(&self) -> PathBuf {
        self.home.join("packages")
    }

    /// Writes the files that the paths name.
    pub(crate) fn write(&self) -> Result<()> {
        fs::create_dir_all(self.packages()).with_context(|| format!("create {}", self.packages().display()))?;
        write_whole(&self.sources_path(), self.sources.as_bytes())?;
        write_whole(&self.status_path(), self.status.as_bytes())
    }

    /// `apt-get` as this one, to which the caller adds what to do. Writes the files.
    pub(crate) fn command(&self) -> Result<Command> {
        self.write()?;
        let first = self.architectures.split(',').next().unwrap_or_default();
        let options = [
            ("Dir::Etc::sourcelist", self.sources_path().into_os_string()),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::Etc::preferences", "/dev/null".into()),
            ("Dir::Etc::preferencesparts", "/dev/null".into()),
            ("Dir::State::lists", self.lists.clone().into_os_string()),
            ("Dir::State::status", self.status_path().into_os_string()),
            ("Dir::Cache", self.home.join("cache").into_os_string()),
            ("Dir::Cache::archives", self.packages().into_os_string()),
            ("APT::Architecture", first.into()),
            ("APT::Architectures", self.architectures.clone().into()),
            ("APT::Install-Recommends", "false".into()),
            ("Acquire::Languages", "none".into()),
            ("Debug::NoLocking", "true".into()),
        ];
        let mut command = Command::new("apt-get");
        command.env("LC_ALL", "C").current_dir(self.packages());
        for (key, value) in options {
            let mut option = OsString::from(format!("{key}="));
            option.push(value);
            command.arg("--option").arg(option);
        }
        Ok(command)
    }
}

/// Debian's archive itself: a release with its updates.
pub(crate) fn archive(suite: &str) -> String {
    let mut sources = String::new();
    for (uri, pocket) in [("debian", ""), ("debian", "-updates"), ("debian-security", "-security")] {
        source_line(&mut sources, &format!("http://deb.debian.org/{uri}"), &format!("{suite}{pocket}"));
    }
    sources
}

/// Adds the line of one source.
pub(crate) fn source_line(sources: &mut String, uri: &str, name: &str) {
    writeln!(sources, "deb [signed-by={KEYRING}] {uri} {name} main").expect("a string takes all that is written");
}

/// dpkg's status file (deb-control(5) fields) of a system that has nothing but these packages, in a version above all.
pub(crate) fn assumed_status(names: &[&str], architecture: &str) -> String {
    let mut status = String::new();
    for name in names {
        write!(
            status,
            "Package: {name}\nStatus: install ok installed\nMaintainer: none\nArchitecture: {architecture}\nMulti-Arch: foreign\n\
             Version: 999:0\nDescription: assumed\n\n"
        )
        .expect("a string takes all that is written");
    }
    status
}
