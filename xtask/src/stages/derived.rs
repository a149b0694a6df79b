//! A derived image in its layout: written, found again, cleared. Every document is there in the types in which it is published; the
//! layout's index leads to its OCI twin, the only one that other tools read from a layout (the same where the base is of OCI types).

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use oci::{Descriptor, Digest, Document, Family, ImageConfig, Index, Layout, Platform};

use super::base::Image;

/// A derived image: an index in a layout of its own, with every platform that was built.
#[derive(Debug, Clone)]
pub struct DerivedImage {
    /// The index, as it is published.
    pub index: Index,
    /// Its twin, which the tags in the layout name.
    pub local: Descriptor,
    /// The platforms, as they are published.
    pub platforms: BTreeMap<Platform, Image>,
    /// Where it lies.
    pub layout: Layout,
}

/// The index over an image's platforms, in the order of their names. `base` is the full name and the digest of the base's own index, if it
/// has a base: the children's annotations name its children. Error: it would be larger than a registry must take.
pub fn index(
    family: Family,
    platforms: &BTreeMap<Platform, Descriptor>,
    base: Option<(&str, Digest)>,
) -> Result<Index> {
    let children: Vec<_> =
        platforms.iter().map(|(platform, manifest)| manifest.clone().with_platform(platform.clone())).collect();
    let base = base.map(|(name, digest)| (name, digest.to_string()));
    let annotations: Vec<_> = base
        .iter()
        .flat_map(|(name, digest)| {
            [("org.opencontainers.image.base.name", *name), ("org.opencontainers.image.base.digest", digest)]
        })
        .collect();
    Ok(Index::annotated(family, &children, &annotations)?)
}

impl DerivedImage {
    /// Writes `index` over `platforms`, whose manifests and blobs lie in `layout`, and last of all the layout's own index, which makes the
    /// image visible under its tags. Error: the layout cannot be written.
    pub fn write(index: Index, platforms: BTreeMap<Platform, Image>, layout: Layout, tags: &[String]) -> Result<Self> {
        let mut twins = BTreeMap::new();
        for image in platforms.values() {
            let twin = image.manifest.to_oci();
            layout.put(twin.media_type(), twin.bytes())?;
            twins.insert(image.manifest.digest(), twin.descriptor());
        }
        layout.put(index.media_type(), index.bytes())?;
        let twin = index.to_oci(&twins)?;
        let local = layout.put(twin.media_type(), twin.bytes())?;
        let tagged: Vec<_> = tags.iter().map(|tag| local.clone().with_ref_name(tag)).collect();
        layout.write_index(&tagged)?;
        Ok(Self { index, local, platforms, layout })
    }

    /// Reads the image with this index from the layout in `folder`, every byte of it verified. A layer that is missing is an error unless
    /// `may_lack` holds for it. Error: something else is missing, damaged or no image.
    pub fn read(folder: &Path, index: Digest, may_lack: impl Fn(&Platform, &Descriptor) -> bool) -> Result<Self> {
        let layout = Layout::open(folder)?;
        let document = |digest: &Digest| -> Result<Document> {
            layout.document(digest)?.with_context(|| format!("find {digest} in {}", folder.display()))
        };
        let Document::Index(index) = document(&index)? else {
            anyhow::bail!("read {index}: expected an index, found an image manifest")
        };
        let (mut platforms, mut twins) = (BTreeMap::new(), BTreeMap::new());
        for child in index.manifests() {
            let platform =
                child.platform.clone().with_context(|| format!("read {}: it names no platform", child.digest))?;
            let Document::Manifest(manifest) = document(&child.digest)? else {
                anyhow::bail!("read {}: expected an image manifest, found an index", child.digest)
            };
            let config = ImageConfig::parse(layout.bytes(manifest.config())?)?;
            for layer in manifest.layers() {
                let there = layout.verified(layer)? || may_lack(&platform, layer);
                ensure!(there, "find layer {} in {}: it is missing or was damaged", layer.digest, folder.display());
            }
            twins.insert(manifest.digest(), manifest.to_oci().descriptor());
            platforms.insert(platform, Image { manifest, config, layout: layout.clone() });
        }
        let local = index.to_oci(&twins)?.descriptor();
        let visible = layout.index()?.manifests().iter().any(|entry| entry.digest == local.digest);
        ensure!(visible, "find {} in {}: index.json does not name it", local.digest, folder.display());
        Ok(Self { index, local, platforms, layout })
    }
}

/// Removes a layout, its index first: from then on no tag names what is being replaced.
pub fn clear(folder: &Path) -> Result<()> {
    for name in ["index.json", "oci-layout", "blobs"] {
        let path = folder.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
