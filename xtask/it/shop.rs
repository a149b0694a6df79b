//! A registry with a base in it and definitions that derive from that base: what trials of publishing work with. The base has
//! the folders that the init needs, and no system: what only publishes needs none, and the images start no program but the init.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Output;

use libtest_mimic::Failed;
use oci::{
    Client, Descriptor, Digest, Family, History, ImageConfig, Index, LayerWriter, Layout, Manifest, Options,
    Permissions, Platform, Reference, Repository, Silent, Tagged, Timestamp,
};
use serde_json::Value;
use xtask::bench::{Registry, Wire};

use crate::random::Random;
use crate::support::{command, ensure, folder, said};

/// The layers of every base: as many as docker:20-dind has.
pub(crate) const LAYERS: usize = 14;

/// A registry behind a wire, and a folder for definitions, layouts and records.
pub(crate) struct Shop {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) registry: Registry,
    pub(crate) wire: Wire,
}

/// A base as it lies in the registry.
pub(crate) struct Base {
    pub(crate) index: Index,
    pub(crate) layers: BTreeMap<Platform, Vec<Descriptor>>,
}

impl Shop {
    pub(crate) fn open() -> Result<Self, Failed> {
        let folder = folder()?;
        fs::create_dir_all(folder.path().join("images"))?;
        let registry = Registry::start(folder.path()).map_err(|error| format!("{error:#}"))?;
        let wire = Wire::to(registry.host()).map_err(|error| format!("{error:#}"))?;
        Ok(Self { folder, registry, wire })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A repository of the registry, as it is reached through the wire.
    pub(crate) fn repository(&self, path: &str) -> Result<Repository, Failed> {
        Ok(Repository::parse(&format!("{}/{path}", self.wire.host()))?)
    }

    /// Puts a base under `PATH:1`, whose index and manifests are of these types. Its layers hold the folder's name, so that no cache has them.
    pub(crate) fn base(&self, path: &str, platforms: &[&str], family: Family) -> Result<Base, Failed> {
        self.padded_base(path, platforms, family, 0)
    }

    /// The same, each layer padded by so many bytes that do not compress: a base that takes its time.
    pub(crate) fn padded_base(
        &self,
        path: &str,
        platforms: &[&str],
        family: Family,
        padding: usize,
    ) -> Result<Base, Failed> {
        let layout = Layout::open_or_create(&self.path("base"))?;
        let to = self.repository(path)?;
        let client = Client::new(Options::default())?;
        let created = Timestamp::from_epoch(1_600_000_000)?;
        let (mut entries, mut layers) = (Vec::new(), BTreeMap::new());
        for name in platforms {
            let platform = Platform::parse(name)?;
            let mut config = ImageConfig::new(&platform, created).edit();
            config.set_env("PATH", "/usr/local/sbin:/usr/local/bin").entrypoint(&["dockerd"]);
            let mut blobs = Vec::new();
            for number in 0..LAYERS {
                let mut layer = LayerWriter::new(&layout, created)?;
                for parent in ["usr", "usr/local", "usr/local/sbin"].iter().filter(|_| number == 0) {
                    layer.directory(parent, Permissions::root(0o755))?;
                }
                let content = format!("{} {name} {number}", self.folder.path().display());
                let padding = Random::seeded_by(&content).bytes(padding);
                layer.file(&format!("padding-{number}"), Permissions::root(0o644), &padding)?;
                layer.file(&format!("layer-{number}"), Permissions::root(0o644), content.as_bytes())?;
                let layer = layer.finish()?;
                let history = History { created, created_by: format!("layer {number}"), comment: String::new() };
                config.append_layer(layer.diff_id, &history);
                blobs.push(layer.descriptor.in_family(family));
            }
            let config = config.finish();
            let config = layout.put(&config.descriptor().media_type, config.bytes())?.in_family(family);
            let manifest = Manifest::new(family, &config, &blobs);
            client.push_blobs(&to, &[&blobs[..], &[config]].concat(), &layout, &Silent)?;
            client.put_manifest(
                &Reference::Pinned(to.pinned(manifest.digest())),
                manifest.media_type(),
                manifest.bytes(),
            )?;
            entries.push(manifest.descriptor().with_platform(platform.clone()));
            layers.insert(platform, blobs);
        }
        let index = Index::new(family, &entries)?;
        client.put_manifest(&Reference::Tagged(to.tagged("1")?), index.media_type(), index.bytes())?;
        Ok(Base { index, layers })
    }

    /// Writes a definition that derives NAME from `BASE:1`.
    pub(crate) fn definition(&self, name: &str, base: &str, platforms: &[&str], more: &str) -> Result<(), Failed> {
        let text = format!(
            "name: {name}\ndescription: a trial's\nbase: {}:1\nstandin: {{ suite: bookworm, flavour: post }}\nplatforms: [{}]\n\
             tags: [{name}]\nruns: dockerd\nguards: []\nentrypoint: [/usr/local/sbin/dind-init, --help]\n{more}\n",
            self.repository(base)?,
            platforms.join(", "),
        );
        Ok(fs::write(self.path("images").join(format!("{name}.yaml")), text)?)
    }

    /// `build-images --base registry` with these definitions.
    pub(crate) fn build(&self, arguments: &[&str]) -> Result<Output, Failed> {
        let mut command = command(["build-images", "--base", "registry", "--images"]);
        Ok(command.arg(self.path("images")).arg("--out").arg(self.path("out")).args(arguments).output()?)
    }

    /// The same for every platform, not judged and yet published, into a repository of the registry.
    pub(crate) fn push(&self, path: &str, more: &[&str]) -> Result<Output, Failed> {
        let to = self.repository(path)?.to_string();
        let arguments = ["--all-platforms", "--suite", "none", "--allow-unjudged", "--push", &to];
        self.build(&[&arguments[..], more].concat())
    }

    pub(crate) fn record(&self) -> Result<Value, Failed> {
        Ok(serde_json::from_slice(&fs::read(self.path("out/digests.json"))?)?)
    }

    /// The requests since the last call.
    pub(crate) fn requests(&mut self) -> Result<Vec<String>, Failed> {
        self.registry.requests().map_err(|error| format!("{error:#}").into())
    }

    /// What a tag names, as a stranger finds it.
    pub(crate) fn published(&self, path: &str, tag: &str) -> Result<Index, Failed> {
        let tagged = Tagged::parse(&format!("{}:{tag}", self.repository(path)?))?;
        match Client::new(Options::default())?.resolve(&tagged)? {
            oci::Document::Index(index) => Ok(index),
            oci::Document::Manifest(manifest) => {
                Err(format!("{tagged}: expected an index, found {}", manifest.digest()).into())
            }
        }
    }

    /// Pulls every byte of a published image by a client that knows nothing, and returns its manifests.
    pub(crate) fn pull(&self, path: &str, index: &Index) -> Result<Vec<Manifest>, Failed> {
        let from = self.repository(path)?;
        let client = Client::new(Options::default())?;
        // Empty each time: what is there already would not be asked for.
        let place = tempfile::tempdir_in(self.folder.path())?;
        let layout = Layout::open_or_create(place.path())?;
        let mut manifests = Vec::new();
        for child in index.manifests() {
            let manifest = client.manifest(&from, &child.digest)?.into_manifest()?;
            ensure(manifest.descriptor().media_type == child.media_type, format!("types of {child:?}"))?;
            ensure(manifest.descriptor().size == child.size, format!("size of {child:?}"))?;
            client.blobs(&from, &manifest.blobs().cloned().collect::<Vec<_>>(), &layout, &Silent)?;
            manifests.push(manifest);
        }
        Ok(manifests)
    }
}

/// Fails unless the command was done.
pub(crate) fn done(output: &Output) -> Result<(), Failed> {
    ensure(output.status.code() == Some(0), format!("expected exit 0, {}", said(output)))
}

/// Fails unless the command was refused with one error that says all of this.
pub(crate) fn refused(output: &Output, expected: &[&str]) -> Result<(), Failed> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(2), format!("expected exit 2, {}", said(output)))?;
    ensure(output.stdout.is_empty(), format!("stdout is data, {}", said(output)))?;
    ensure(errors.matches("error:").count() == 1, format!("expected one error, {}", said(output)))?;
    for text in expected {
        ensure(errors.contains(text), format!("expected `{text}`, {}", said(output)))?;
    }
    Ok(())
}

/// The digest that a record gives an image.
pub(crate) fn digest_of(record: &Value, image: usize) -> Result<Digest, Failed> {
    Ok(Digest::parse(record["images"][image]["digest"].as_str().ok_or("no digest")?)?)
}
