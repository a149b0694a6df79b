//! A base as official images are: an index, and for each platform a manifest of many layers. It has the folders that the init needs and no
//! system: what derives and publishes needs none. Same arguments, same digests.

use std::path::Path;

use anyhow::{Context, Result};
use oci::{
    Client, Family, History, ImageConfig, Index, LayerWriter, Layout, Manifest, Permissions, Platform, Reference,
    Repository, Silent, Timestamp,
};

/// As many layers as docker:20-dind has.
pub const LAYERS: usize = 14;
/// When every base was made, in seconds since 1970.
const CREATED: u64 = 1_600_000_000;

/// A base in a layout of its own.
#[derive(Debug)]
pub(super) struct Base {
    layout: Layout,
    index: Index,
    manifests: Vec<Manifest>,
}

impl Base {
    /// Makes a base in the layout `folder`; `content` gives what the one file of each layer holds; the platforms share their
    /// layers. Error: the layout cannot be written.
    pub(super) fn make(
        folder: &Path,
        platforms: &[&str],
        family: Family,
        content: impl Fn(usize) -> Vec<u8>,
    ) -> Result<Self> {
        let layout = Layout::open_or_create(folder)?;
        let created = Timestamp::from_epoch(CREATED)?;
        let (mut entries, mut manifests) = (Vec::new(), Vec::new());
        for name in platforms {
            let platform = Platform::parse(name)?;
            let mut config = ImageConfig::new(&platform, created).edit();
            config.set_env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/bin").entrypoint(&["dockerd"]);
            let mut blobs = Vec::new();
            for number in 0..LAYERS {
                let layer = layer(&layout, created, number, &content(number))?;
                let history = History { created, created_by: format!("layer {number}"), comment: String::new() };
                config.append_layer(layer.diff_id, &history);
                blobs.push(layer.descriptor.in_family(family));
            }
            let config = config.finish();
            let config = layout.put(&config.descriptor().media_type, config.bytes())?.in_family(family);
            let manifest = Manifest::new(family, &config, &blobs);
            entries.push(manifest.descriptor().with_platform(platform));
            manifests.push(manifest);
        }
        Ok(Self { layout, index: Index::new(family, &entries)?, manifests })
    }

    /// Puts it into a repository under a tag. Error: the registry's.
    pub(super) fn push(&self, client: &Client, to: &Repository, tag: &str) -> Result<()> {
        for manifest in &self.manifests {
            let blobs = [manifest.layers(), std::slice::from_ref(manifest.config())].concat();
            client.push_blobs(to, &blobs, &self.layout, &Silent).with_context(|| format!("fill {to}"))?;
            let by_digest = Reference::Pinned(to.pinned(manifest.digest()));
            client.put_manifest(&by_digest, manifest.media_type(), manifest.bytes())?;
        }
        let tagged = Reference::Tagged(to.tagged(tag)?);
        client.put_manifest(&tagged, self.index.media_type(), self.index.bytes())?;
        Ok(())
    }
}

fn layer(layout: &Layout, created: Timestamp, number: usize, content: &[u8]) -> Result<oci::Layer> {
    let mut layer = LayerWriter::new(layout, created)?;
    for parent in ["usr", "usr/local", "usr/local/sbin"].iter().filter(|_| number == 0) {
        layer.directory(parent, Permissions::root(0o755))?;
    }
    layer.file(&format!("layer-{number}"), Permissions::root(0o644), content)?;
    Ok(layer.finish()?)
}
