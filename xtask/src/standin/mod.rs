//! The stand-in base: docker:20-dind rebuilt from Debian's packages, for machines that reach no registry. Two flavours of one
//! root file system, laid out and configured like the official image. It holds no byte of that image, and says so.

mod arrangement;
mod debian;
mod image;
mod places;
mod scripts;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use oci::{Descriptor, Digest, Interrupt, Layout, Platform, Timestamp};

use self::arrangement::{Arrangement, Sources};
pub use self::debian::proxy_options;
use self::debian::{Release, Selection};
pub use self::image::tag;
use crate::shared::take_turn;
use crate::spec::{Flavour, Suite};
use crate::stages::base::Image;
use crate::tools;

/// All that decides a stand-in's bytes besides the packages: a change in these files builds a new one.
const RECIPE: &[&str] = &[
    include_str!("../apt.rs"),
    include_str!("arrangement.rs"),
    include_str!("debian.rs"),
    include_str!("dind"),
    include_str!("docker-entrypoint.sh"),
    include_str!("dockerd-entrypoint.sh"),
    include_str!("image.rs"),
    include_str!("mod.rs"),
    include_str!("modprobe"),
    include_str!("places.rs"),
    include_str!("scripts.rs"),
];

/// Which stand-in.
#[derive(Debug, Clone)]
pub struct Request {
    /// The Debian release.
    pub suite: Suite,
    /// What it runs on: linux/amd64 or linux/arm64.
    pub platform: Platform,
}

/// Upstream versions of what it runs, such as `20.10.24`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// The Docker daemon's.
    pub dockerd: String,
    /// containerd's.
    pub containerd: String,
    /// runc's.
    pub runc: String,
}

/// A stand-in that lies in the cache, whole.
#[derive(Debug, Clone)]
pub struct Standin {
    /// What it runs.
    pub versions: Versions,
    /// Every Debian package in it with its version, sorted by name.
    pub packages: Vec<(String, String)>,
    /// An OCI layout whose index names both flavours by [`tag`], each an index of the one platform.
    pub layout: PathBuf,
    /// The manifest before docker-init came into the entrypoint script.
    pub pre: Descriptor,
    /// The manifest since then.
    pub post: Descriptor,
    /// It was there before, made of the packages that apt would install now.
    pub cached: bool,
}

impl Standin {
    /// The manifest of a flavour.
    pub fn manifest(&self, flavour: Flavour) -> &Descriptor {
        match flavour {
            Flavour::Pre => &self.pre,
            Flavour::Post => &self.post,
        }
    }
}

/// Gives the stand-in below `cache`, built if it is not there or if apt would now install other versions. Tells `progress` what
/// it does. Needs root, mmdebstrap and apt; no network where the lists and the stand-in are at hand. Error: one of these is
/// missing, the packages cannot be fetched, or `interrupt` was raised; then nothing is left that a later run would trust.
pub fn build(
    cache: &Path,
    request: &Request,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&str),
) -> Result<Standin> {
    let release = Release::new(request.suite, &request.platform)?;
    let home = cache.join(format!("{}-{}", release.suite, release.architecture));
    fs::create_dir_all(&home).with_context(|| format!("create {}", home.display()))?;
    // apt takes a relative path as one of its own folders.
    let home = home.canonicalize().with_context(|| format!("find {}", home.display()))?;
    for program in ["mmdebstrap", "apt-get", "setpriv"] {
        tools::require(program)?;
    }
    let _turn = take_turn(&home.join("lock"), interrupt, &mut || progress("waiting for another run that builds it"))?;
    let selection = Selection::current(&home, release, interrupt)?;
    if let Some(standin) = open(&home, &selection, request)? {
        return Ok(standin);
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "build stand-in: only root can unpack it with its owners\nhint: run as root, or see what is missing with cargo xtask setup"
        );
    }
    remove_leftovers(&home)?;
    let selection = match construct(&home, release, &selection, request, interrupt, progress) {
        Err(_) if selection.is_from_host() && !interrupt.is_raised() => {
            progress("the host's package lists are too old, fetching new ones");
            let fresh = Selection::fetched(&home, release, interrupt)?;
            construct(&home, release, &fresh, request, interrupt, progress)?;
            fresh
        }
        result => result.map(|()| selection)?,
    };
    let built = open(&home, &selection, request)?.context("open the stand-in that was just built: it is not there")?;
    Ok(Standin { cached: false, ..built })
}

/// The stand-in of this selection, if it is there: its folder appears only when it is complete.
fn open(home: &Path, selection: &Selection, request: &Request) -> Result<Option<Standin>> {
    let place = place(home, selection);
    if !place.is_dir() {
        return Ok(None);
    }
    let Some((pre, post)) = read(&place, &request.platform) else {
        // It can be built again, and no part of it is worth more than the whole.
        fs::remove_dir_all(&place).with_context(|| format!("remove damaged stand-in {}", place.display()))?;
        return Ok(None);
    };
    let packages = selection.packages.clone();
    Ok(Some(Standin { versions: versions(selection)?, packages, pre, post, layout: place, cached: true }))
}

/// The manifests of both flavours; none: a document or a blob is damaged, down to its last byte.
fn read(place: &Path, platform: &Platform) -> Option<(Descriptor, Descriptor)> {
    let layout = Layout::open(place).ok()?;
    let flavour = |flavour| {
        let manifest = image::find(&layout, flavour, platform).ok()?;
        let image = Image::read(&layout, &manifest).ok()?;
        image.manifest.blobs().all(|blob| layout.verified(blob).unwrap_or(false)).then_some(manifest)
    };
    Some((flavour(Flavour::Pre)?, flavour(Flavour::Post)?))
}

fn construct(
    home: &Path,
    release: Release,
    selection: &Selection,
    request: &Request,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let work = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(home).context("create folder for the stand-in")?;
    let (packages, made, layout) = (work.path().join("packages"), work.path().join("made"), work.path().join("layout"));
    selection.unpack(home, release, &packages, interrupt, progress)?;
    progress("writing layers");
    let sources = Sources { packages: &packages, made: &made };
    let created = Timestamp::from_epoch(arrangement::newest(&packages)?)?;
    let arrangement = Arrangement::new(sources)?;
    let target = Layout::open_or_create(&layout)?;
    image::write(&target, &arrangement, sources, &request.platform, created, interrupt)?;
    let place = place(home, selection);
    fs::rename(&layout, &place).with_context(|| format!("move {} into place", place.display()))
}

/// How the names of folders begin in which a stand-in is under way.
const PARTIAL: &str = ".partial-";

/// Removes what a killed run left; nobody else works here while the lock is held.
fn remove_leftovers(home: &Path) -> Result<()> {
    for entry in fs::read_dir(home).with_context(|| format!("list {}", home.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            fs::remove_dir_all(entry.path()).with_context(|| format!("remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Where the stand-in of a selection lies: by the packages' versions and the recipe.
fn place(home: &Path, selection: &Selection) -> PathBuf {
    let packages: Vec<_> = selection.packages.iter().map(|(name, version)| format!("{name}={version}\n")).collect();
    let key = Digest::of((packages.concat() + &RECIPE.concat()).as_bytes()).hex();
    home.join(&key[..16])
}

fn versions(selection: &Selection) -> Result<Versions> {
    let upstream = |package: &str| selection.version(package).map(upstream_version);
    Ok(Versions { dockerd: upstream("docker.io")?, containerd: upstream("containerd")?, runc: upstream("runc")? })
}

/// The upstream part of a Debian version, without what Debian marks on it: `20.10.24` of `20.10.24+dfsg1-1` (deb-version(7)).
fn upstream_version(version: &str) -> String {
    let without_epoch = version.split_once(':').map_or(version, |(_, rest)| rest);
    without_epoch.split(['+', '~', '-']).next().unwrap_or(without_epoch).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_versions_lose_debians_marks() {
        for (debian, upstream) in [
            ("20.10.24+dfsg1-1+deb12u1+b6", "20.10.24"),
            ("1.6.20~ds1-1+deb12u3", "1.6.20"),
            ("1:1.35.0-4+b1", "1.35.0"),
            ("1.1.5+ds1-1+deb12u1", "1.1.5"),
            ("7", "7"),
        ] {
            assert_eq!(upstream_version(debian), upstream, "{debian}");
        }
    }
}
