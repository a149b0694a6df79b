//! Unpacked images: one directory per manifest digest in the cache, complete or absent.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci::{Interrupt, Layer, Layout, Limits};

use super::base::Image;

/// The directory with an image unpacked, made now if it is not there. Needs root, for owners and device nodes.
///
/// Error: a layer is damaged (then its blob is dropped from the layout, so that the next run fetches it anew), reaches out of the
/// root, or the disk is full.
pub fn unpacked(image: &Image, cache: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let digest = image.manifest.digest();
    let folder = cache.join("rootfs");
    let root = folder.join(digest.hex());
    if root.is_dir() {
        return Ok(root);
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
    fs::rename(&partial, &root).with_context(|| format!("put {} in its place", root.display()))?;
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
        let read = layout.read(&layer.descriptor, |_| Ok::<_, oci::Error>(()));
        if read.is_err() {
            let path = layout.blob_path(&layer.descriptor.digest);
            fs::remove_file(&path).with_context(|| format!("drop damaged blob {}", path.display()))?;
        }
    }
    Ok(())
}
