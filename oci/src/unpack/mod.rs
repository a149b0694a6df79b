//! Unpacks an image's layers into a directory, as a runtime would. Spec: image-spec `layer.md`, sections "Applying
//! Changesets" and "Whiteouts". Nothing escapes the directory, and a layer touches it only after all of its bytes have been
//! read once and found to be what manifest and config promise.
//!
//! Each layer is read in passes, so that memory stays the same whatever its size: one that checks all of it; one for its
//! whiteouts, if it has any, because they hide what lower layers have and never what their own layer brings, wherever in
//! the tar they stand; and one for all else.

mod path;
mod tree;

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use self::path::{Change, EntryPath};
use self::tree::Tree;
use crate::archive::{Archive, Content, Entry, Kind};
use crate::digest::Hasher;
use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::layout::Layout;
use crate::progress::Interrupt;

/// Largest uncompressed layer that [`Limits::default`] allows.
pub const LAYER_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;

/// Bounds of what is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest uncompressed layer in bytes; reading stops there.
    pub layer_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { layer_bytes: LAYER_BYTES_MAX }
    }
}

/// Applies `layers` of `layout`, lowest first, to the existing directory `root`, with owners, modes, times, extended
/// attributes and device nodes; all but files of one's own needs root. What fails leaves the directory as far as it came:
/// the caller removes it.
///
/// # Errors
/// [`Error::DigestMismatch`], [`Error::SizeMismatch`], [`Error::DiffIdMismatch`] if a layer is not the promised one;
/// [`Error::Archive`] if its gzip or tar is damaged or its compression unknown; [`Error::Entry`] for an entry that climbs
/// out or makes no sense; [`Error::TooLarge`] above a limit; [`Error::Interrupted`]; [`Error::Io`].
pub fn unpack(layout: &Layout, layers: &[Layer], root: &Path, limits: Limits, interrupt: &Interrupt) -> Result<()> {
    let tree = Tree::open(root)?;
    for layer in layers {
        let walk = Walk { layout, layer, limits, interrupt };
        if walk.check()? == Whiteouts::Some {
            walk.apply_whiteouts(&tree)?;
        }
        walk.apply_entries(&tree)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whiteouts {
    None,
    Some,
}

/// One layer, to be read as often as need be.
struct Walk<'a> {
    layout: &'a Layout,
    layer: &'a Layer,
    limits: Limits,
    interrupt: &'a Interrupt,
}

impl Walk<'_> {
    fn check(&self) -> Result<Whiteouts> {
        let mut whiteouts = Whiteouts::None;
        self.each(|entry, _| {
            if matches!(Change::parse(&entry.path)?, Change::Remove(_) | Change::Empty(_)) {
                whiteouts = Whiteouts::Some;
            }
            link_target(&entry).map(|_| ())
        })?;
        Ok(whiteouts)
    }

    fn apply_whiteouts(&self, tree: &Tree) -> Result<()> {
        self.each(|entry, _| match Change::parse(&entry.path)? {
            Change::Remove(path) => tree.remove(&path),
            Change::Empty(path) => tree.empty(&path),
            Change::Put(_) | Change::Nothing => Ok(()),
        })
    }

    fn apply_entries(&self, tree: &Tree) -> Result<()> {
        self.each(|entry, mut content| match Change::parse(&entry.path)? {
            Change::Put(path) => {
                let link = link_target(&entry)?;
                tree.put(&path, &entry, link.as_ref(), |file| tree::copy(file, &path, |chunk| content.read(chunk)))
            }
            Change::Remove(_) | Change::Empty(_) | Change::Nothing => Ok(()),
        })
    }

    /// Reads the whole layer, gives each entry to `visit`, and checks digest, size and diff id.
    fn each(&self, mut visit: impl FnMut(Entry, Content<'_, Inflated<'_>>) -> Result<()>) -> Result<()> {
        let Layer { descriptor, diff_id } = self.layer;
        let found = self.layout.read(descriptor, |blob| {
            let mut archive = Archive::new(self.inflate(blob)?, descriptor.digest);
            while let Some(entry) = archive.next()? {
                visit(entry, archive.content())?;
            }
            Ok::<_, Error>(archive.finish()?.hasher.diff_id())
        })?;
        if found == *diff_id {
            Ok(())
        } else {
            Err(Error::DiffIdMismatch { layer: descriptor.digest, expected: *diff_id, found })
        }
    }

    /// The uncompressed layer. Its first bytes tell the compression, as in containerd: media types are known to be wrong.
    fn inflate<'a>(&'a self, blob: &'a mut dyn Read) -> Result<Inflated<'a>> {
        let layer = self.layer.descriptor.digest;
        let mut blob = BufReader::new(blob);
        let start = blob.fill_buf().map_err(Error::io(format!("read layer {layer}")))?;
        let reader: Box<dyn Read + 'a> = match start {
            [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(blob)),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                return Err(Error::Archive { layer, problem: "expected gzip or plain tar, found zstd".to_owned() });
            }
            _ => Box::new(blob),
        };
        Ok(Inflated { reader, hasher: Hasher::default(), count: 0, walk: self })
    }
}

/// A layer as it is uncompressed: hashed, bounded, interruptible. Errors of ours travel inside those of `Read`.
struct Inflated<'a> {
    reader: Box<dyn Read + 'a>,
    hasher: Hasher,
    count: u64,
    walk: &'a Walk<'a>,
}

impl Read for Inflated<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.walk.interrupt.check().map_err(io::Error::other)?;
        let count = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.count += count as u64;
        if self.count > self.walk.limits.layer_bytes {
            let subject = format!("uncompressed layer {}", self.walk.layer.descriptor.digest);
            return Err(io::Error::other(Error::TooLarge { subject, limit: self.walk.limits.layer_bytes }));
        }
        Ok(count)
    }
}

fn link_target(entry: &Entry) -> Result<Option<EntryPath>> {
    match &entry.kind {
        Kind::HardLink { target } => EntryPath::parse(target).map(Some),
        _ => Ok(None),
    }
}
