//! Carrying: a manifest, and the blobs that it names, are made to appear in a repository, byte for byte and in the fewest requests. What
//! is there is not sent, and what the registry can take from beside is mounted. Never decides whether something may be there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci::{Client, Descriptor, Digest, Layout, Manifest, Reference, Repository};
use tempfile::TempDir;

use crate::args::Registries;
use crate::progress::Stage;

/// How often a manifest is put again after what a registry missed was brought. docker-registry writes the link to a blob in place, so that
/// while two runs mount it into one repository, it may be there, gone for a moment, and there again.
const REPAIRS_MAX: usize = 2;

/// How the names of folders begin in which things are on their way.
const SCRATCH: &str = "carried-";

/// One way from where blobs are to a repository.
#[derive(Debug, Clone, Copy)]
pub struct Carrier<'a> {
    /// What reaches the registries.
    pub client: &'a Client,
    /// How they are reached.
    pub registries: &'a Registries,
    /// Where blobs are that are not ours; none: only in `layout`.
    pub from: Option<&'a Repository>,
    /// Where they go.
    pub to: &'a Repository,
    /// Where blobs lie on their way.
    pub layout: &'a Layout,
    /// Where progress goes.
    pub stage: &'a Stage<'a>,
}

impl Carrier<'_> {
    /// Makes blobs appear that `from` has: they are there already in `from` itself, are mounted into another repository of its registry,
    /// and travel to any other registry as far as they are not there.
    pub fn inherit(&self, blobs: &[Descriptor]) -> Result<()> {
        match self.beside() {
            Some(place) if place == *self.to => Ok(()),
            Some(place) => self.mount(&place, blobs),
            None => self.send(&self.client.lacking(self.to, blobs)?),
        }
    }

    /// Sends blobs, which are fetched first where the layout lacks them.
    pub fn send(&self, blobs: &[Descriptor]) -> Result<()> {
        self.bring(blobs)?;
        Ok(self.client.push_blobs(self.to, blobs, self.layout, self.stage)?)
    }

    /// Puts a manifest. Where the registry then misses blobs (nobody brought them, a base came through a cache, a repository was cleaned
    /// up), they are mounted or sent and it is put once more; and again where it still misses some, because another run's writing hid them.
    pub fn manifest(&self, to: &Reference, manifest: &Manifest) -> Result<()> {
        let put = || self.client.put_manifest(to, manifest.media_type(), manifest.bytes());
        for _ in 0..REPAIRS_MAX {
            match put() {
                Err(oci::Error::BlobsUnknown { digests, .. }) => {
                    let missing = named(manifest.blobs(), &digests);
                    match self.beside().filter(|place| place != self.to) {
                        Some(place) => self.mount(&place, &missing)?,
                        None => self.send(&missing)?,
                    }
                }
                result => return result.map(|_| ()).map_err(Into::into),
            }
        }
        put()?;
        Ok(())
    }

    fn beside(&self) -> Option<Repository> {
        self.from.and_then(|from| self.registries.beside(from, self.to))
    }

    fn mount(&self, place: &Repository, blobs: &[Descriptor]) -> Result<()> {
        let uploads = self.client.mount_all(place, self.to, blobs)?;
        let refused: Vec<_> = uploads.iter().map(|upload| upload.blob().clone()).collect();
        self.bring(&refused)?;
        Ok(self.client.upload_all(uploads, self.layout, self.stage)?)
    }

    fn bring(&self, blobs: &[Descriptor]) -> Result<()> {
        let missing: Vec<_> = blobs.iter().filter(|blob| !self.layout.has(blob)).cloned().collect();
        let Some(first) = missing.first() else { return Ok(()) };
        let from = self
            .from
            .with_context(|| format!("find layer {}: it is not in {}", first.digest, self.layout.dir().display()))?;
        Ok(self.client.blobs(from, &missing, self.layout, self.stage)?)
    }
}

/// A layout for what is on its way, in a folder below `cache` that goes with its guard.
pub fn scratch(cache: &Path) -> Result<(TempDir, Layout)> {
    fs::create_dir_all(cache).with_context(|| format!("make {}", cache.display()))?;
    let folder = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(cache);
    let folder = folder.with_context(|| format!("make a folder in {}", cache.display()))?;
    let layout = Layout::open_or_create(folder.path())?;
    Ok((folder, layout))
}

/// Removes what killed runs left of their [`scratch`] in `cache`. Only for who is alone there: another run's would go too. Returns what went.
pub fn sweep(cache: &Path) -> Result<Vec<PathBuf>> {
    let mut swept = Vec::new();
    for entry in fs::read_dir(cache).with_context(|| format!("list {}", cache.display()))? {
        let path = entry.with_context(|| format!("list {}", cache.display()))?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SCRATCH)) {
            fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
            swept.push(path);
        }
    }
    Ok(swept)
}

/// Those of `all` that a registry misses: the ones that it names, or all where it names none.
fn named<'a>(all: impl Iterator<Item = &'a Descriptor>, missing: &[Digest]) -> Vec<Descriptor> {
    all.filter(|blob| missing.is_empty() || missing.contains(&blob.digest)).cloned().collect()
}
