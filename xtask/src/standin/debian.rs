//! Debian's packages: which of them a stand-in is made of, which versions apt would take now, and their files unpacked.
//! Runs no maintainer script, so that another architecture needs no emulation; never touches the host's apt state.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail, ensure};
use oci::{Digest, Interrupt};
use serde::{Deserialize, Serialize};

use crate::apt::{self, Apt};
use crate::program;
use crate::shared::write_whole;
use crate::spec::Suite;

/// Where apt keeps the lists of what the host's sources offer.
const HOST_LISTS: &str = "/var/lib/apt/lists";

/// The packages that the official image's programs come from here; apt adds what they depend on.
const WANTED: &[&str] = &[
    "base-files",
    "base-passwd",
    "btrfs-progs",
    "busybox-static",
    "ca-certificates",
    "containerd",
    "docker.io",
    "e2fsprogs",
    "iptables",
    "libc-bin",
    "openssl",
    "pigz",
    "procps",
    "runc",
    "tini",
    "xz-utils",
];

/// Packages that only install others or that no program of the image runs: apt is told that they are there.
const ASSUMED: &[&str] = &[
    "adduser",
    // busybox is the one that the image has.
    "awk",
    "debconf",
    "dmsetup",
    "dpkg",
    "init-system-helpers",
    "libncursesw6",
    "libtinfo6",
    "logsave",
    "lsb-base",
    "perl-base",
    "sysvinit-utils",
    "tar",
];

/// What mmdebstrap runs in the empty root: links of a merged /usr, the assumed packages, and the lists, so that it fetches none.
const SETUP_HOOK: &str = r#"
set -eu
umask 022
for folder in $STANDIN_MERGED; do mkdir -p "$1/usr/$folder"; ln -s "usr/$folder" "$1/$folder"; done
cp "$STANDIN_STATUS" "$1/var/lib/dpkg/status"
cp "$STANDIN_LISTS"/*_InRelease "$STANDIN_LISTS"/*_Packages* "$1/var/lib/apt/lists/"
"#;

/// A Debian release on an architecture, in Debian's names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Release {
    /// `bookworm`.
    pub(super) suite: &'static str,
    /// `amd64`.
    pub(super) architecture: &'static str,
}

/// A package and its version, as apt prints them.
pub(super) type Package = (String, String);

/// Sources and the lists fetched from them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Archive {
    /// sources.list(5), one-line style.
    sources: String,
    /// The folder that holds the lists.
    lists: PathBuf,
}

/// What apt would install, and from where.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Selection {
    /// The state of the lists for which this holds.
    fingerprint: Digest,
    archive: Archive,
    /// Sorted by name.
    pub(super) packages: Vec<Package>,
}

impl Release {
    /// The names of a suite and an OCI platform. Error: a platform for which Debian has no such release here.
    pub(super) fn new(suite: Suite, platform: &oci::Platform) -> Result<Self> {
        let suite = match suite {
            Suite::Bookworm => "bookworm",
        };
        let architecture = match platform.with_default_variant().to_string().as_str() {
            "linux/amd64" => "amd64",
            "linux/arm64/v8" => "arm64",
            other => bail!("build stand-in for {other}: expected linux/amd64 or linux/arm64"),
        };
        Ok(Self { suite, architecture })
    }

    /// The folders that a merged /usr replaces by links; the dynamic loader's lies in lib64 on amd64 alone.
    fn merged(self) -> &'static str {
        if self.architecture == "amd64" { "bin sbin lib lib64" } else { "bin sbin lib" }
    }
}

impl Selection {
    /// What apt would install now, from lists at hand: those that an earlier run fetched into `home`, else the host's if it
    /// follows the same release, else fetched. Without a change in the lists the answer is the one remembered in `home`.
    pub(super) fn current(home: &Path, release: Release, interrupt: &Interrupt) -> Result<Self> {
        let memory = home.join("selection.json");
        if let Some(remembered) = fs::read(&memory).ok().and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok())
            && fingerprint(&remembered.archive.lists)? == remembered.fingerprint
        {
            return Ok(remembered);
        }
        let own = own_archive(home, release);
        let archive = if own.lists.is_dir() { Some(own) } else { host_archive(release)? };
        match archive {
            Some(archive) => Self::resolve(home, release, archive),
            None => Self::fetched(home, release, interrupt),
        }
    }

    /// The same from lists fetched now, which are kept in `home` and preferred from then on.
    pub(super) fn fetched(home: &Path, release: Release, interrupt: &Interrupt) -> Result<Self> {
        let archive = own_archive(home, release);
        let lists = &archive.lists;
        let fresh = home.join("apt/fresh");
        fs::create_dir_all(fresh.join("partial")).with_context(|| format!("create {}", fresh.display()))?;
        let target = Archive { lists: fresh.clone(), ..archive.clone() };
        let mut update = apt(home, release, &target).command()?;
        update.arg("update").arg("--error-on=any");
        program::run(update, interrupt, &mut |_| {}).with_context(|| {
            format!("fetch package lists of Debian {}\nhint: the first stand-in needs deb.debian.org", release.suite)
        })?;
        if lists.exists() {
            fs::remove_dir_all(lists).with_context(|| format!("remove {}", lists.display()))?;
        }
        fs::rename(&fresh, lists).with_context(|| format!("move {} into place", lists.display()))?;
        Self::resolve(home, release, archive)
    }

    /// Whether the lists were the host's, which may be too old for what the archive still holds.
    pub(super) fn is_from_host(&self) -> bool {
        self.archive.lists == Path::new(HOST_LISTS)
    }

    /// The version of a package. Error: it is not among them.
    pub(super) fn version(&self, name: &str) -> Result<&str> {
        let found = self.packages.iter().find(|(package, _)| package == name);
        found
            .map(|(_, version)| version.as_str())
            .with_context(|| format!("find version of {name}: apt did not select it"))
    }

    fn resolve(home: &Path, release: Release, archive: Archive) -> Result<Self> {
        let fingerprint = fingerprint(&archive.lists)?;
        let output = apt(home, release, &archive)
            .command()?
            .args(["--simulate", "install"])
            .args(WANTED)
            .output()
            .context("run apt-get")?;
        ensure!(output.status.success(), "select packages: {}", String::from_utf8_lossy(&output.stderr).trim());
        let selection =
            Self { fingerprint, archive, packages: parse_simulation(&String::from_utf8_lossy(&output.stdout)) };
        selection.version("docker.io")?;
        write_whole(&home.join("selection.json"), &serde_json::to_vec_pretty(&selection)?)?;
        Ok(selection)
    }

    /// Unpacks exactly these packages into `target`, which must not exist. As root.
    pub(super) fn unpack(
        &self,
        home: &Path,
        release: Release,
        target: &Path,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let versions: Vec<_> = self.packages.iter().map(|(name, version)| format!("{name}={version}")).collect();
        let apt = apt(home, release, &self.archive);
        apt.write()?;
        // If this process is killed, mmdebstrap must not go on in a folder that the next run removes.
        let mut bootstrap = Command::new("setpriv");
        bootstrap
            .args(["--pdeathsig", "TERM", "mmdebstrap"])
            .args(["--variant=extract", "--mode=root", "--format=directory", "--skip=update"])
            .arg(format!("--architectures={}", release.architecture))
            .arg(format!("--setup-hook={SETUP_HOOK}"))
            .arg(format!("--include={}", versions.join(",")))
            .args(proxy_options()?)
            .args([OsString::from(release.suite), target.into(), apt.sources_path().into()])
            .env("STANDIN_MERGED", release.merged())
            .env("STANDIN_STATUS", apt.status_path())
            .env("STANDIN_LISTS", &self.archive.lists);
        program::run(bootstrap, interrupt, &mut |line| {
            if let Some(step) = line.strip_prefix("I: ") {
                progress(step);
            }
        })
        .with_context(|| format!("unpack {} packages of Debian {}", self.packages.len(), release.suite))
    }
}

/// One line of `apt-get --simulate` a package: `Inst NAME [OLD] (VERSION ORIGIN [ARCHITECTURE])`.
fn parse_simulation(text: &str) -> Vec<Package> {
    let mut packages: Vec<Package> = text
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
            let version = rest.split_once('(')?.1.split(' ').next()?;
            Some((name.split(':').next()?.to_owned(), version.to_owned()))
        })
        .collect();
    packages.sort();
    packages
}

/// The host's own sources of this release, with their lists; none where it follows another one or keeps no lists.
fn host_archive(release: Release) -> Result<Option<Archive>> {
    let output = Command::new("apt-get")
        .arg("indextargets")
        .args(["--format", "$(REPO_URI)\t$(RELEASE)\t$(CODENAME)\t$(COMPONENT)\t$(ORIGIN)\t$(FILENAME)"])
        .args(["Created-By: Packages", &format!("Architecture: {}", release.architecture)])
        .output()
        .context("run apt-get")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut sources = String::new();
    let mut whole = false;
    for line in text.lines() {
        let [uri, name, codename, "main", "Debian", file] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
        if codename.split('-').next() == Some(release.suite) && Path::new(file).exists() {
            whole |= name == release.suite;
            apt::source_line(&mut sources, uri, name);
        }
    }
    Ok(whole.then(|| Archive { sources, lists: HOST_LISTS.into() }))
}

/// Debian's archive itself, with lists of our own in `home`.
fn own_archive(home: &Path, release: Release) -> Archive {
    Archive { sources: apt::archive(release.suite), lists: home.join("apt/lists") }
}

/// apt on this archive, with nothing installed but what is assumed.
fn apt(home: &Path, release: Release, archive: &Archive) -> Apt {
    Apt {
        home: home.join("apt"),
        sources: archive.sources.clone(),
        lists: archive.lists.clone(),
        status: apt::assumed_status(ASSUMED, release.architecture),
        architectures: release.architecture.to_owned(),
    }
}

/// The host's proxies for apt, as options of mmdebstrap, which reads none of the host's configuration.
pub fn proxy_options() -> Result<Vec<String>> {
    let output = Command::new("apt-config")
        .args(["dump", "Acquire::http", "Acquire::https"])
        .output()
        .context("run apt-config")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let proxies = text.lines().filter(|line| line.contains("::Proxy") && !line.contains("\"\""));
    Ok(proxies.map(|line| format!("--aptopt={line}")).collect())
}

/// Names, sizes and times of the lists and of the host's sources; these change whenever apt's answer may.
fn fingerprint(lists: &Path) -> Result<Digest> {
    let mut lines = Vec::new();
    for folder in [lists, Path::new("/etc/apt/sources.list.d"), Path::new("/etc/apt")] {
        // Not there: nothing of it that could change.
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let metadata = entry.metadata().with_context(|| format!("look at {}", entry.path().display()))?;
            let telling = folder != Path::new("/etc/apt") || name == "sources.list";
            if metadata.is_file() && telling && name != "lock" {
                let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                lines.push(format!("{}/{name} {} {}\n", folder.display(), metadata.len(), changed.as_nanos()));
            }
        }
    }
    lines.sort();
    Ok(Digest::of(lines.concat().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulation_lines_become_packages() {
        let text = "Reading package lists...\n\
            Inst libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64]) []\n\
            Inst dmsetup [9999] (2:1.02.185-2 Debian:12.15/oldstable [amd64])\n\
            Inst gcc-12-base:arm64 (12.2.0-14+deb12u1 Debian:12.15/oldstable [arm64])\n\
            Conf libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64])\n";
        let found: Vec<_> =
            parse_simulation(text).into_iter().map(|(name, version)| format!("{name} {version}")).collect();
        assert_eq!(found, ["dmsetup 2:1.02.185-2", "gcc-12-base 12.2.0-14+deb12u1", "libc6 2.36-9+deb12u14"]);
    }

    #[test]
    fn platforms_without_a_release_are_named() {
        let arm = Release::new(Suite::Bookworm, &"linux/arm64".parse().unwrap()).unwrap();
        assert_eq!((arm.suite, arm.architecture, arm.merged()), ("bookworm", "arm64", "bin sbin lib"));
        let error = Release::new(Suite::Bookworm, &"windows/amd64".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("windows/amd64"), "{error}");
    }
}
