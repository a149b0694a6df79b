//! Unpacked images: one directory per manifest digest in the cache, complete or absent, and as they were unpacked:
//! one that was changed since is unpacked anew.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci::{Digest, Interrupt, Layer, Layout, Limits};

use super::base::Image;
use crate::shared::write_whole;

/// The directory with an image unpacked, made now if it is not there. Needs root, for owners and device nodes.
///
/// Error: a layer is damaged (then its blob is dropped from the layout, so that the next run fetches it anew), reaches out of the
/// root, or the disk is full.
pub fn unpacked(image: &Image, cache: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let digest = image.manifest.digest();
    let folder = cache.join("rootfs");
    let root = folder.join(digest.hex());
    let sum = folder.join(format!("{}.sum", digest.hex()));
    if root.is_dir() {
        if fs::read_to_string(&sum).is_ok_and(|sum| inventory(&root).is_ok_and(|found| sum == found.to_string())) {
            return Ok(root);
        }
        remove(&root)?;
    }
    let partial = folder.join(format!("{}.partial", digest.hex()));
    remove(&partial)?;
    fs::create_dir_all(&partial).with_context(|| format!("make {}", partial.display()))?;
    let layers = Layer::of_image(&image.manifest, &image.config)?;
    if let Err(error) = oci::unpack(&image.layout, &layers, &partial, Limits::default(), interrupt) {
        remove(&partial)?;
        if matches!(error, oci::Error::DigestMismatch { .. } | oci::Error::SizeMismatch { .. }) {
            forget(&image.layout, &layers)?;
        }
        return Err(error).with_context(|| format!("unpack {digest}"));
    }
    // The paths are part of it, and those are the root's only after the move: a sum that is missing makes the root count as damaged.
    fs::rename(&partial, &root).with_context(|| format!("put {} in its place", root.display()))?;
    write_whole(&sum, inventory(&root)?.to_string().as_bytes())?;
    Ok(root)
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Drops the layers whose bytes are not what their names say.
fn forget(layout: &Layout, layers: &[Layer]) -> Result<()> {
    for layer in layers {
        layout.verified(&layer.descriptor)?;
    }
    Ok(())
}

/// A digest over what lstat(2) tells of every file below `root`: paths, kinds, modes, owners, sizes, times. What was changed or
/// removed there changes it.
fn inventory(root: &Path) -> Result<Digest> {
    let mut listing = Vec::new();
    list(root, &mut listing).with_context(|| format!("list {}", root.display()))?;
    Ok(Digest::of(&listing))
}

fn list(folder: &Path, listing: &mut Vec<u8>) -> std::io::Result<()> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let found = fs::symlink_metadata(&path)?;
        listing.extend(path.as_os_str().as_encoded_bytes());
        let size = if found.is_dir() { 0 } else { found.size() };
        let facts = [found.mode().into(), found.uid().into(), found.gid().into(), size, found.mtime().cast_unsigned()];
        listing.extend(facts.into_iter().flat_map(u64::to_be_bytes));
        if found.is_dir() {
            list(&path, listing)?;
        }
    }
    Ok(())
}
