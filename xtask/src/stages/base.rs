//! The base: pulled by its locked digest, built from Debian's packages where no registry can be reached, or nothing at all. What it gives
//! is the same either way: manifests and configurations. The layers come when they are asked for: not every image needs their bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use oci::{
    Client, Descriptor, Digest, Document, Family, ImageConfig, Index, Layout, Manifest, Platform, Reference,
    Repository, Timestamp,
};

use super::oddities;
use crate::args::BaseChoice;
use crate::lock::{Lock, LockedBase};
use crate::plan::{Plan, PlannedImage, lock_path};
use crate::progress::{Stage, size};
use crate::session::Session;
use crate::spec::{Base, StandinSpec, Suite};
use crate::standin::{Request, Standin};

/// A base whose manifests and configurations are at hand.
#[derive(Debug, Clone)]
pub struct FetchedBase {
    /// The reference that the definition names.
    pub name: String,
    /// The digest of its index, or of its manifest where it has no index; none: it is nothing.
    pub digest: Option<Digest>,
    /// The media types of its index, or of its manifest where it has no index.
    pub family: Family,
    /// Where it came from.
    pub source: Source,
    /// What was asked of it, by platform as its index spells it.
    pub images: BTreeMap<Platform, Image>,
    /// Entries of its index that are left out of ours: attestations, which speak of the base's manifests and not of derived ones.
    pub left_out: Vec<Digest>,
}

/// An image of one platform: a base, or what is derived from it.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its manifest, as received or derived.
    pub manifest: Manifest,
    /// Its configuration, as received or derived.
    pub config: ImageConfig,
    /// The layout that holds its blobs.
    pub layout: Layout,
}

/// Where a base came from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A registry, or the cache of what it gave.
    Registry(Repository),
    /// Debian's packages.
    Standin {
        /// The packages that went in, as `name=version`.
        packages: Vec<String>,
        /// The flavour in which nothing reaps, by platform: the suite's control.
        bare: BTreeMap<Platform, Image>,
    },
    /// Nowhere: it is nothing.
    Scratch,
}

impl FetchedBase {
    /// Whether the bytes of its layers are needed for a platform of an image: a stand-in's are nowhere but here.
    pub fn lends_layers(&self, image: &PlannedImage, platform: &Platform, plan: &Plan) -> bool {
        match self.source {
            Source::Standin { .. } => true,
            Source::Registry(_) => plan.needs_layers(image, platform),
            Source::Scratch => false,
        }
    }

    /// The name and digest that an image derived from it says in its annotations; none: from nothing.
    pub fn identity(&self) -> Option<(&str, Digest)> {
        self.digest.map(|digest| (self.name.as_str(), digest))
    }
}

impl Image {
    /// Reads an image from a layout. Error: a blob is missing or damaged, or a document is malformed.
    pub fn read(layout: &Layout, manifest: &Descriptor) -> Result<Self> {
        let manifest = Manifest::parse(layout.bytes(manifest)?)?;
        let config = ImageConfig::parse(layout.bytes(manifest.config())?)?;
        Ok(Self { manifest, config, layout: layout.clone() })
    }

    /// The image of nothing: no layers and no settings, in place of a base. Error: `layout` cannot be written.
    pub fn empty(platform: &Platform, layout: &Layout) -> Result<Self> {
        // Whoever derives from it names the time.
        let config = ImageConfig::new(platform, Timestamp::from_epoch(0)?);
        let manifest = Manifest::new(Family::Oci, &layout.put(&config.descriptor().media_type, config.bytes())?, &[]);
        layout.put(manifest.media_type(), manifest.bytes())?;
        Ok(Self { manifest, config, layout: layout.clone() })
    }

    /// What is ours in a derived image: the configuration and the last layer.
    pub fn own(&self) -> impl Iterator<Item = &Descriptor> {
        std::iter::once(self.manifest.config()).chain(self.manifest.layers().last())
    }

    /// The layers of a derived image that are its base's.
    pub fn inherited(&self) -> &[Descriptor] {
        self.manifest.layers().split_last().map_or(&[], |(_, inherited)| inherited)
    }

    /// When the image says that it was made: the default of SOURCE_DATE_EPOCH.
    pub fn created(&self) -> Result<Timestamp> {
        self.config
            .created()
            .context("read the base's configuration: it has no created time\nhint: set SOURCE_DATE_EPOCH")
    }
}

/// Gets the base of an image for every planned platform; `client` is none under `--offline`. Error: the registry's or the stand-in's; with `--base auto`, only that no
/// registry can be reached leads to the stand-in. What has no base needs neither.
pub fn fetch(image: &PlannedImage, plan: &Plan, client: Option<&Client>, session: &Session) -> Result<FetchedBase> {
    let Base::Image(base) = &image.base else { return from_scratch(image, plan) };
    match plan.base {
        BaseChoice::Registry => from_registry(image, base, plan, client, session),
        BaseChoice::Standin => from_standin(image, plan, session),
        BaseChoice::Auto => match from_registry(image, base, plan, client, session) {
            Err(error) => {
                let Some(reason) = unreachable_reason(&error) else { return Err(error) };
                session.progress.note("base", base, format!("no registry reachable ({reason})"));
                from_standin(image, plan, session)
            }
            fetched => fetched,
        },
    }
}

fn unreachable_reason(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(oci::Error::Unreachable { reason, .. }) => Some(reason.clone()),
        _ => None,
    })
}

/// Brings the layers of one platform of a base into the cache, where they are not there yet with every byte. Error: a layer cannot be
/// had, or is not in the cache and `client` is none (`--offline`).
pub fn bring_layers(base: &FetchedBase, platform: &Platform, client: Option<&Client>, session: &Session) -> Result<()> {
    let (Source::Registry(repository), Some(image)) = (&base.source, base.images.get(platform)) else { return Ok(()) };
    let mut missing = Vec::new();
    for layer in image.manifest.layers() {
        if !image.layout.verified(layer)? {
            missing.push(layer.clone());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let stage = session.progress.stage("base", &base.name);
    online(client, &base.name)?
        .blobs(repository, &missing, &image.layout, &stage)
        .with_context(|| format!("fetch base {} for {platform}", base.name))?;
    let total: u64 = missing.iter().map(|layer| layer.size).sum();
    stage.done(format!("{platform}: {} layers ({})", missing.len(), size(total)));
    Ok(())
}

fn online<'a>(client: Option<&'a Client>, base: &str) -> Result<&'a Client> {
    client.with_context(|| {
        format!("fetch base {base}: it is not in the cache, and --offline forbids to ask for it\nhint: run once without --offline")
    })
}

fn from_registry(
    image: &PlannedImage,
    base: &Reference,
    plan: &Plan,
    client: Option<&Client>,
    session: &Session,
) -> Result<FetchedBase> {
    let stage = session.progress.stage("base", base);
    let layout = open_cache(&plan.folders.cached("bases"))?;
    let registry = Registry { image, base, client, layout, stage: &stage };
    let locked = registry.resolve()?;
    let mut images = BTreeMap::new();
    for wanted in &image.platforms {
        let (platform, manifest) = locked.child(wanted).unwrap_or((wanted, &locked.index));
        let fetched = registry
            .image(platform, manifest, !locked.platforms.is_empty())
            .with_context(|| format!("fetch base {base} for {platform}"))?;
        for oddity in oddities::of(&locked, &fetched, platform) {
            session.progress.note("warning", base, oddity);
        }
        images.insert(platform.clone(), fetched);
    }
    if !locked.attestations.is_empty() {
        let count = locked.attestations.len();
        let text = format!("attestations left out of the index, as they speak of the base alone: {count}");
        session.progress.note("base", base, text);
    }
    remember(image, base, plan, &locked)?;
    let total: u64 = images.values().flat_map(|image| image.manifest.layers()).map(|layer| layer.size).sum();
    stage.done(format!("{} ({})", locked.index, size(total)));
    Ok(FetchedBase {
        name: base.to_string(),
        digest: Some(locked.index),
        family: locked.format.unwrap_or(Family::Oci),
        source: Source::Registry(base.repository().clone()),
        images,
        left_out: locked.attestations,
    })
}

/// Opens the layout of what registries gave. One that cannot be read is made anew: everything in it can be fetched again.
fn open_cache(folder: &Path) -> Result<Layout> {
    Layout::open_or_create(folder).or_else(|error| {
        if !matches!(error, oci::Error::Document { .. }) {
            return Err(error.into());
        }
        fs::remove_dir_all(folder).with_context(|| format!("remove damaged cache {}", folder.display()))?;
        Ok(Layout::open_or_create(folder)?)
    })
}

/// Adds to the lock what was resolved. `plan` has refused a missing base under `--locked`; a missing platform is refused here.
fn remember(image: &PlannedImage, base: &Reference, plan: &Plan, locked: &LockedBase) -> Result<()> {
    if image.locked.as_ref() == Some(locked) {
        return Ok(());
    }
    if plan.locked {
        let has_all = image.locked.as_ref().is_some_and(|before| before.platforms == locked.platforms);
        ensure!(
            has_all,
            "lock {base}: its entry lacks a platform, and --locked forbids to add it\nhint: run once without --locked"
        );
        return Ok(());
    }
    Lock::read(&lock_path(&plan.folders))?.insert(base, locked.clone())
}

/// A registry with its cache in front; `client` is none under `--offline`.
struct Registry<'a> {
    image: &'a PlannedImage,
    base: &'a Reference,
    client: Option<&'a Client>,
    layout: Layout,
    stage: &'a Stage<'a>,
}

impl Registry<'_> {
    /// What the base's reference names: as the lock has it, where that is enough; else what its digest or, once, its tag leads to.
    fn resolve(&self) -> Result<LockedBase> {
        let (base, PlannedImage { locked, platforms, .. }) = (self.base, self.image);
        if let Some(locked) = locked
            && locked.format.is_some()
            && (locked.platforms.is_empty() || platforms.iter().all(|wanted| locked.child(wanted).is_some()))
        {
            return Ok(locked.clone());
        }
        let document = match (locked, base) {
            (Some(locked), _) => self.document(&locked.index)?,
            (None, Reference::Pinned(pinned)) => self.document(&pinned.digest)?,
            (None, Reference::Tagged(tagged)) => {
                let document = self.client()?.resolve(tagged).with_context(|| format!("resolve base {tagged}"))?;
                self.keep(&document)?;
                document
            }
        };
        let mut resolved = LockedBase::of(&document, platforms)?;
        for (platform, expected) in locked.iter().flat_map(|locked| &locked.platforms) {
            let found = resolved.platforms.entry(platform.clone()).or_insert(*expected);
            ensure!(
                found == expected,
                "compare with bases.lock: expected {expected}, found {found} in index {}\nhint: the lock's entry mixes two images; \
                 remove it and run again to resolve it anew",
                document.digest()
            );
        }
        Ok(resolved)
    }

    /// The image of one platform; `chosen`: an index has named it.
    fn image(&self, platform: &Platform, digest: &Digest, chosen: bool) -> Result<Image> {
        let manifest = self.document(digest)?.into_manifest()?;
        if !self.layout.verified(manifest.config())? {
            self.client()?.blob(self.base.repository(), manifest.config(), &self.layout, self.stage)?;
        }
        let config = ImageConfig::parse(self.layout.bytes(manifest.config())?)?;
        let (found, expected) = (config.platform().with_default_variant(), platform.with_default_variant());
        // Where an index has chosen by the variant, a configuration that names another one is odd, and no more.
        let variant = chosen || found.variant == expected.variant;
        ensure!(
            (&found.os, &found.architecture, variant) == (&expected.os, &expected.architecture, true),
            "check the base's configuration: expected platform {platform}, found {}",
            config.platform()
        );
        Ok(Image { manifest, config, layout: self.layout.clone() })
    }

    /// A manifest or index by digest, from the cache where it is there.
    fn document(&self, digest: &Digest) -> Result<Document> {
        if let Some(document) = self.layout.document(digest)? {
            return Ok(document);
        }
        let document = self.client()?.manifest(self.base.repository(), digest)?;
        self.keep(&document)?;
        Ok(document)
    }

    fn keep(&self, document: &Document) -> Result<()> {
        self.layout.put(&document.descriptor().media_type, document.bytes())?;
        Ok(())
    }

    fn client(&self) -> Result<&Client> {
        online(self.client, &self.base.to_string())
    }
}

fn from_standin(image: &PlannedImage, plan: &Plan, session: &Session) -> Result<FetchedBase> {
    let StandinSpec { suite, flavour } = image.spec.standin.context("build the stand-in: the definition names none")?;
    let (mut images, mut bare, mut packages) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for platform in &image.platforms {
        let built = standin(suite, platform, &plan.folders.cache, session)?;
        let layout = Layout::open(&built.layout)?;
        images.insert(platform.clone(), Image::read(&layout, built.manifest(flavour))?);
        bare.insert(platform.clone(), Image::read(&layout, &built.pre)?);
        packages = built.packages.iter().map(|(name, version)| format!("{name}={version}")).collect();
    }
    let children: Vec<_> =
        images.iter().map(|(platform, image)| image.manifest.descriptor().with_platform(platform.clone())).collect();
    Ok(FetchedBase {
        name: format!("stand-in:{}", crate::standin::tag(flavour)),
        digest: Some(Index::new(Family::Oci, &children)?.digest()),
        family: Family::Oci,
        source: Source::Standin { packages, bare },
        images,
        left_out: Vec::new(),
    })
}

fn from_scratch(image: &PlannedImage, plan: &Plan) -> Result<FetchedBase> {
    let layout = open_cache(&plan.folders.cached("bases"))?;
    let nothing = |platform: &Platform| Ok((platform.clone(), Image::empty(platform, &layout)?));
    Ok(FetchedBase {
        name: image.base.to_string(),
        digest: None,
        family: Family::Oci,
        source: Source::Scratch,
        images: image.platforms.iter().map(nothing).collect::<Result<_>>()?,
        left_out: Vec::new(),
    })
}

/// Builds, or finds, the stand-in of one platform, as a stage.
pub fn standin(suite: Suite, platform: &Platform, cache: &Path, session: &Session) -> Result<Standin> {
    let stage = session.progress.stage("base", "stand-in");
    let request = Request { suite, platform: platform.clone() };
    let built =
        crate::standin::build(&cache.join("standin"), &request, &session.interrupt, &mut |doing| stage.doing(doing))?;
    let versions = &built.versions;
    stage.done(format!(
        "Debian {suite} {}, dockerd {}, containerd {}, runc {}{}",
        platform.architecture,
        versions.dockerd,
        versions.containerd,
        versions.runc,
        if built.cached { ", as before" } else { "" }
    ));
    Ok(built)
}
