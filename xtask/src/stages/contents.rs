//! What a layer is to hold, decided before a byte of it is written: entries by absolute path, sorted, parents before children.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci::{Interrupt, Layer, LayerWriter, Layout, Permissions, Timestamp};

/// The entries of a layer by their absolute path in the image.
pub type Contents = BTreeMap<PathBuf, Entry>;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A directory.
    Directory(Permissions),
    /// A regular file of `size` bytes.
    File {
        /// Mode and owner.
        permissions: Permissions,
        /// The file of this machine that holds its bytes.
        source: PathBuf,
        /// How many they are.
        size: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Its text, kept as it is.
        target: PathBuf,
    },
    /// A second name of a file that sorts before it.
    HardLink {
        /// That file's mode and owner.
        permissions: Permissions,
        /// That file's absolute path in the image.
        target: PathBuf,
    },
}

/// Writes the entries as one layer into `layout`, every time stamp set to `mtime`. Error: a file cannot be read or does not fit a
/// plain tar header; the layout cannot be written.
pub fn write(contents: &Contents, layout: &Layout, mtime: Timestamp, interrupt: &Interrupt) -> Result<Layer> {
    let mut layer = LayerWriter::new(layout, mtime)?;
    for (path, entry) in contents {
        interrupt.check()?;
        let name = text(path)?;
        match entry {
            Entry::Directory(permissions) => layer.directory(name, *permissions)?,
            Entry::File { permissions, source, size } => {
                let file = File::open(source).with_context(|| format!("open {}", source.display()))?;
                layer.file_from(name, *permissions, *size, file)?;
            }
            Entry::Symlink { target } => layer.symlink(name, text(target)?)?,
            Entry::HardLink { permissions, target } => layer.hard_link(name, *permissions, text(target)?)?,
        }
    }
    Ok(layer.finish()?)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("write layer entry {}: its name is not UTF-8", path.display()))
}
