//! `bases.lock`: which digests a base had when it was locked. Never resolves anything; `stages::base` asks the registry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oci::{Digest, Document, Family, Platform, Reference};
use serde::{Deserialize, Serialize};

use crate::shared::{read_text, write_whole};
use crate::yaml;

/// The lock's name in the folder of the image definitions.
pub const LOCK_FILE: &str = "bases.lock";

/// More than this is no lock file.
const LOCK_BYTES_MAX: u64 = 1024 * 1024;

const HEAD: &str = "\
# The digests of the bases, as Cargo.lock is for crates. A missing entry is resolved once and written by `cargo xtask build-images`;
# `--locked` refuses that. `index` is the digest of the multi-platform index (or of the manifest, where the base has no index);
# `platforms` are those of its children: the two are never compared with each other. `format` and `attestations` are what else the index says,
# so that a locked base is fetched without asking for its index.
";

/// The lock file: one entry per base reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    path: PathBuf,
    bases: BTreeMap<String, LockedBase>,
}

/// The digests of one base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedBase {
    /// What the tag named: the index, or the manifest where there is no index.
    pub index: Digest,
    /// Its media types; none: whoever wrote the entry did not say, and the index is asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Family>,
    /// The index's children, by platform as it spells them; none of what is no index.
    #[serde(default)]
    pub platforms: BTreeMap<Platform, Digest>,
    /// Its entries that are no images but speak of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attestations: Vec<Digest>,
}

impl LockedBase {
    /// What a base's reference led to, with the children for these platforms. Error: it lacks one.
    pub fn of<'a>(document: &Document, platforms: impl IntoIterator<Item = &'a Platform>) -> Result<Self> {
        let mut locked = Self {
            index: document.digest(),
            format: Some(document.family()),
            platforms: BTreeMap::new(),
            attestations: Vec::new(),
        };
        if let Document::Index(index) = document {
            for wanted in platforms {
                let child = index.select(wanted)?;
                locked.platforms.insert(child.platform.clone().unwrap_or_else(|| wanted.clone()), child.digest);
            }
            let attestations = index.manifests().iter().filter(|entry| entry.is_attestation());
            locked.attestations = attestations.map(|entry| entry.digest).collect();
        }
        Ok(locked)
    }

    /// A wanted platform as the index spells it, and its child: `linux/arm64` finds `linux/arm64/v8`. None: it is not locked.
    pub fn child(&self, wanted: &Platform) -> Option<(&Platform, &Digest)> {
        self.platforms
            .get_key_value(wanted)
            .or_else(|| self.platforms.iter().find(|(platform, _)| platform.is_same_as(wanted)))
    }
}

impl Lock {
    /// Reads the lock file of a folder of image definitions; it must be there. Error: as [`Self::read`]'s, or there is none.
    pub fn find(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK_FILE);
        // Whatever else keeps it from being read is said when it is read.
        ensure!(
            path.try_exists().unwrap_or(true),
            "find lock {}: there is no such file\nhint: {}",
            path.display(),
            if folder.is_dir() {
                "cargo xtask build-images writes one; --images names the folder that holds it"
            } else {
                "--images names the folder of the image definitions"
            }
        );
        Self::read(&path)
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the lock file; one that does not exist is empty. Error: an unknown or doubled key, or a digest that is none.
    pub fn read(path: &Path) -> Result<Self> {
        let text = if path.exists() { read_text(path, LOCK_BYTES_MAX)? } else { String::new() };
        let bases = Self::parse(&text).with_context(|| format!("read {}", path.display()))?;
        Ok(Self { path: path.to_owned(), bases })
    }

    fn parse(text: &str) -> Result<BTreeMap<String, LockedBase>> {
        // A file of comments alone is YAML's null.
        let bases: Option<BTreeMap<String, LockedBase>> = yaml::parse(text)?;
        let bases = bases.unwrap_or_default();
        for (name, locked) in &bases {
            let reference = Reference::parse(name)?;
            ensure!(reference.to_string() == *name, "expected the full reference `{reference}`, found `{name}`");
            if let Reference::Pinned(pinned) = reference {
                ensure!(
                    pinned.digest == locked.index,
                    "lock {name}: expected the index that the reference names, found {}",
                    locked.index
                );
            }
        }
        Ok(bases)
    }

    /// The entry of a base.
    pub fn get(&self, base: &Reference) -> Option<&LockedBase> {
        self.bases.get(&base.to_string())
    }

    /// All entries, by the bases' full references.
    pub fn entries(&self) -> Result<Vec<(Reference, LockedBase)>> {
        self.bases.iter().map(|(name, locked)| Ok((Reference::parse(name)?, locked.clone()))).collect()
    }

    /// Adds or completes an entry and writes the file anew, whole or not at all.
    pub fn insert(&mut self, base: &Reference, locked: LockedBase) -> Result<()> {
        self.bases.insert(base.to_string(), locked);
        let body = serde_yaml::to_string(&self.bases).context("print the lock")?;
        write_whole(&self.path, format!("{HEAD}{body}").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "sha256:85a1b877d0f59fd6c7eebaff67436e26f460347a79229cf054dbbe8d5ae9f936";
    const AMD64: &str = "sha256:4133b890fa579cd7b44dbe4c128d1a710e449e20f1e04f9cf7182d71c61f5e20";

    fn check_refused(text: &str, expected: &str) {
        let error = format!("{:#}", Lock::parse(text).expect_err(text));
        assert!(error.contains(expected), "{text}\n  expected {expected}\n  found    {error}");
    }

    #[test]
    fn an_entry_survives_being_written_and_read() {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join(LOCK_FILE);
        let mut lock = Lock::read(&path).expect("a missing file is an empty lock");
        let base = Reference::parse("docker:20-dind").expect("a reference");
        let platform = Platform::parse("linux/amd64").expect("a platform");
        let locked = LockedBase {
            index: Digest::parse(INDEX).expect("a digest"),
            format: Some(Family::Docker),
            attestations: vec![Digest::parse(AMD64).expect("a digest")],
            platforms: BTreeMap::from([(platform, Digest::parse(AMD64).expect("a digest"))]),
        };
        lock.insert(&base, locked.clone()).expect("write the lock");
        let read = Lock::read(&path).expect("read it back");
        assert_eq!(read, lock);
        assert_eq!(read.get(&base), Some(&locked));
    }

    #[test]
    fn what_is_not_a_lock_is_refused_with_its_reason() {
        check_refused("docker:20-dind:\n  index: x\n", "x");
        check_refused(&format!("docker:20-dind:\n  index: {INDEX}\n"), "docker.io/library/docker:20-dind");
        check_refused(
            &format!("docker.io/library/docker:20-dind:\n  index: {INDEX}\n  platform: {{}}\n"),
            "unknown field `platform`",
        );
        let entry = format!("docker.io/library/docker:20-dind:\n  index: {INDEX}\n");
        check_refused(&format!("{entry}{entry}"), "duplicate");
        check_refused(
            &format!("docker.io/library/docker:20-dind@{AMD64}:\n  index: {INDEX}\n"),
            "expected the index that the reference names",
        );
        check_refused("docker.io/library/docker:20-dind:\n  index: sha256:85A1\n", "sha256:85A1");
    }
}
