//! A base as official images are: an index, and for each platform a manifest of many layers. It has the folders that the init needs and no
//! system: what derives and publishes needs none. Same arguments, same digests.

use std::path::Path;

use anyhow::{Context, Result};
use oci::{
    Client, Descriptor, Family, History, ImageConfig, Index, Layer, LayerWriter, Layout, Manifest, Permissions,
    Platform, Reference, Repository, Silent, Timestamp,
};

/// As many layers as docker:20-dind has.
pub const LAYERS: usize = 14;
/// When every base was made, in seconds since 1970.
const CREATED: u64 = 1_600_000_000;

/// The layers of bases, in a layout of their own.
#[derive(Debug)]
pub(super) struct Layers {
    layout: Layout,
    layers: Vec<Layer>,
}

impl Layers {
    /// Makes the layers in the layout `folder`; `content` gives what the one file of each holds. Error: the layout cannot be written.
    pub(super) fn make(folder: &Path, content: impl Fn(usize) -> Vec<u8>) -> Result<Self> {
        let layout = Layout::open_or_create(folder)?;
        let layers = (0..LAYERS).map(|number| layer(&layout, number, &content(number))).collect::<Result<_>>()?;
        Ok(Self { layout, layers })
    }

    /// How many bytes they are on the wire.
    pub(super) fn size(&self) -> u64 {
        self.layers.iter().map(|layer| layer.descriptor.size).sum()
    }

    fn blobs(&self) -> Vec<Descriptor> {
        self.layers.iter().map(|layer| layer.descriptor.clone()).collect()
    }

    /// Puts the layers into a repository. Error: the registry's.
    pub(super) fn push(&self, client: &Client, to: &Repository) -> Result<()> {
        client.push_blobs(to, &self.blobs(), &self.layout, &Silent).with_context(|| format!("fill {to}"))
    }

    /// Puts a base of all these layers into `to`, under the tag 1, for each platform the same but for its name. The layers come from the
    /// repository `from` that has them; `name` is in the configuration and makes it a base like no other. Error: the registry's.
    pub(super) fn base(
        &self,
        client: &Client,
        from: &Repository,
        to: &Repository,
        platforms: &[&str],
        name: &str,
    ) -> Result<()> {
        let uploads = client.mount_all(from, to, &self.blobs())?;
        client.upload_all(uploads, &self.layout, &Silent)?;
        let created = Timestamp::from_epoch(CREATED)?;
        let mut entries = Vec::new();
        for platform in platforms {
            let platform = Platform::parse(platform)?;
            let mut config = ImageConfig::new(&platform, created).edit();
            config.set_env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/bin").set_env("BASE", name);
            for layer in &self.layers {
                let history = History { created, created_by: "a layer".to_owned(), comment: String::new() };
                config.append_layer(layer.diff_id, &history);
            }
            let config = config.finish();
            let config = self.layout.put(&config.descriptor().media_type, config.bytes())?;
            client.push_blob(to, &config, &self.layout, &Silent)?;
            let manifest = Manifest::new(Family::Oci, &config, &self.blobs());
            let by_digest = Reference::Pinned(to.pinned(manifest.digest()));
            client.put_manifest(&by_digest, manifest.media_type(), manifest.bytes())?;
            entries.push(manifest.descriptor().with_platform(platform));
        }
        let index = Index::new(Family::Oci, &entries)?;
        client.put_manifest(&Reference::Tagged(to.tagged("1")?), index.media_type(), index.bytes())?;
        Ok(())
    }
}

fn layer(layout: &Layout, number: usize, content: &[u8]) -> Result<Layer> {
    let mut layer = LayerWriter::new(layout, Timestamp::from_epoch(CREATED)?)?;
    for parent in ["usr", "usr/local", "usr/local/sbin"].iter().filter(|_| number == 0) {
        layer.directory(parent, Permissions::root(0o755))?;
    }
    layer.file(&format!("layer-{number}"), Permissions::root(0o644), content)?;
    Ok(layer.finish()?)
}
