//! Deriving: the base plus one layer and a few edited keys of its configuration. The base's own bytes are linked, not copied or changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use oci::{Descriptor, Digest, Family, History, Interrupt, Layout, Permissions, Platform, Timestamp};
use serde::Serialize;

use super::base::{FetchedBase, Image};
use super::carve;
use super::contents::{self, Contents, Entry};
use super::derived::{self, DerivedImage};
use super::identity;
use super::init::StaticProgram;
use super::memo::Memo;
use super::programs;
use super::rootfs;
use crate::args::Format;
use crate::plan::{Plan, PlannedImage};
use crate::progress::size;
use crate::session::Session;
use crate::spec::{INIT_DIR, INIT_PATH, ImageSpec};

/// What one platform is derived from.
#[derive(Debug)]
pub struct Ingredients<'a> {
    /// The base's image of this platform.
    pub image: &'a Image,
    /// The init of this platform.
    pub init: &'a StaticProgram,
    /// The base, unpacked: what is carved, and what proves that the layer fits. None: nothing here needs the bytes of its layers.
    pub rootfs: Option<&'a Path>,
    /// The media types of what is published.
    pub format: Format,
    /// SOURCE_DATE_EPOCH or the definition's time, which then is the image's created time too; none: the base's time, and its text stays.
    pub created: Option<Timestamp>,
}

/// What decides a derived image's bytes.
#[derive(Serialize)]
struct Inputs<'a> {
    spec: &'a ImageSpec,
    base: (&'a str, Option<Digest>),
    platforms: Vec<(&'a Platform, Digest, Digest)>,
    source_date_epoch: Option<u64>,
    to_oci: bool,
    code: &'static str,
}

/// Derives an image for every planned platform, or finds that it lies there already, made of the same inputs.
pub fn stage(
    image: &PlannedImage,
    base: &FetchedBase,
    inits: &BTreeMap<Platform, StaticProgram>,
    plan: &Plan,
    session: &Session,
) -> Result<DerivedImage> {
    let stage = session.progress.stage("derive", &image.spec.name);
    let mut platforms = Vec::new();
    for (platform, from) in &base.images {
        let init = inits.get(platform).context("derive a platform without its init")?;
        platforms.push((platform, from.manifest.digest(), init.digest));
    }
    let inputs = Inputs {
        spec: &image.spec,
        base: (&base.name, base.digest),
        platforms,
        source_date_epoch: plan.source_date_epoch,
        to_oci: plan.format == Format::Oci,
        code: env!("DERIVING_CODE"),
    };
    let memo = Memo::new(&plan.folders.cache, "derive");
    let folder = plan.folders.layout(&image.spec.name);
    // Layers whose bytes nobody here needs stay where they are.
    let remote: BTreeSet<Digest> = base
        .images
        .iter()
        .filter(|(platform, _)| !base.lends_layers(image, platform, plan))
        .flat_map(|(_, from)| from.manifest.layers())
        .map(|layer| layer.digest)
        .collect();
    if !plan.fresh
        && let Some(before) = memo.get::<Digest>(&inputs)?
        && let Ok(derived) = DerivedImage::read(&folder, before, |_, layer| remote.contains(&layer.digest))
    {
        stage.done("unchanged: same base, init and definition as before");
        return Ok(derived);
    }
    derived::clear(&folder)?;
    let layout = Layout::open_or_create(&folder)?;
    let mut images = BTreeMap::new();
    for (platform, from) in &base.images {
        let rootfs = if base.lends_layers(image, platform, plan) {
            stage.doing("unpacking the base");
            Some(rootfs::unpacked(from, &plan.folders.cache, &session.interrupt)?)
        } else {
            None
        };
        stage.doing("writing the layer");
        let created = plan.source_date_epoch.map(Timestamp::from_epoch).transpose()?.or(image.spec.created()?);
        let ingredients = Ingredients {
            image: from,
            init: &inits[platform],
            rootfs: rootfs.as_deref(),
            format: plan.format,
            created,
        };
        images.insert(platform.clone(), derive(&image.spec, base, &ingredients, &layout, &session.interrupt)?);
    }
    let manifests = images.iter().map(|(platform, image)| (platform.clone(), image.manifest.descriptor())).collect();
    let family = if plan.format == Format::Oci { Family::Oci } else { base.family };
    let index = derived::index(family, &manifests, base.identity())?;
    let derived = DerivedImage::write(index, images, layout, &image.spec.tags)?;
    memo.put(&inputs, &derived.index.digest())?;
    stage.done(describe(&derived, &image.spec));
    Ok(derived)
}

fn describe(derived: &DerivedImage, spec: &ImageSpec) -> String {
    let layers = derived.platforms.values().filter_map(|image| image.manifest.layers().last());
    let bytes: u64 = layers.map(|layer| layer.size).sum();
    let mut changed = vec!["Entrypoint"];
    changed.extend(spec.cmd.is_some().then_some("Cmd"));
    changed.extend((spec.keep_env.is_some() || !spec.env.is_empty()).then_some("Env"));
    changed.extend(spec.volumes.is_some().then_some("Volumes"));
    changed.extend(spec.ports.is_some().then_some("ExposedPorts"));
    changed.extend((!spec.labels.is_empty()).then_some("Labels"));
    let what = if spec.carve.is_some() { "carved into 1 layer" } else { "1 layer added" };
    format!("{what}, {}; {} changed", size(bytes), changed.join(", "))
}

/// Derives one platform into `layout`. Error: the base does not fit (see [`prove`] and [`programs::check`]), or a file or the layout cannot be read or written.
pub fn derive(
    spec: &ImageSpec,
    base: &FetchedBase,
    from: &Ingredients<'_>,
    layout: &Layout,
    interrupt: &Interrupt,
) -> Result<Image> {
    if let Some(rootfs) = from.rootfs {
        prove(spec, rootfs, from.image.config.path())?;
        programs::check(spec, rootfs, &from.image.config)?;
    }
    let mut contents = match (&spec.carve, from.rootfs) {
        (Some(carve), Some(rootfs)) => carve::carve(rootfs, carve)?,
        (Some(_), None) => bail!("carve {}: the base's layers are not at hand", spec.name),
        (None, _) => Contents::new(),
    };
    add_init(&mut contents, spec, from.init)?;
    let created = from.created.map_or_else(|| from.image.created(), Ok)?;
    let layer = contents::write(&contents, layout, created, interrupt)?;

    let history = History {
        created,
        created_by: format!("cargo xtask build-images {}", spec.name),
        comment: match base.identity() {
            Some((name, _)) => format!("dind-init above everything that {name} can run"),
            None => "dind-init alone".to_owned(),
        },
    };
    let mut edit = from.image.config.edit();
    if let Some(created) = from.created {
        edit.created(created);
    }
    edit_config(&mut edit, spec);
    match spec.carve {
        Some(_) => edit.replace_layers(layer.diff_id, &history),
        None => edit.append_layer(layer.diff_id, &history),
    };
    let config = edit.finish();
    let config_descriptor = layout.put(&config.descriptor().media_type, config.bytes())?;

    let mut edit = from.image.manifest.edit();
    if from.format == Format::Oci {
        edit.family(Family::Oci);
    }
    edit.config(&config_descriptor);
    match spec.carve {
        Some(_) => edit.replace_layers(std::slice::from_ref(&layer.descriptor)),
        None => {
            for blob in from.image.manifest.layers().iter().filter(|_| from.rootfs.is_some()) {
                link_blob(&from.image.layout, layout, blob)?;
            }
            edit.append_layer(&layer.descriptor)
        }
    };
    edit.retain_annotations(identity::may_stay);
    if let Some((name, _)) = base.identity() {
        edit.annotation("org.opencontainers.image.base.name", name);
        edit.annotation("org.opencontainers.image.base.digest", &from.image.manifest.digest().to_string());
    }
    let manifest = edit.finish();
    layout.put(manifest.media_type(), manifest.bytes())?;
    Ok(Image { manifest, config, layout: layout.clone() })
}

/// Proves on the unpacked base that the layer lays no directory over a link, and that a guard is found before what it guards.
pub fn prove(spec: &ImageSpec, rootfs: &Path, path: Option<&str>) -> Result<()> {
    for parent in parents(INIT_PATH) {
        let host = rootfs.join(parent.strip_prefix("/").unwrap_or(&parent));
        let found =
            fs::symlink_metadata(&host).with_context(|| format!("prove {}: the base lacks it", parent.display()))?;
        ensure!(
            found.is_dir(),
            "prove {}: expected a real directory in the base, found a link or a file",
            parent.display()
        );
        let (mode, owner) = (found.mode() & 0o7777, (found.uid(), found.gid()));
        ensure!(
            mode == 0o755 && owner == (0, 0),
            "prove {}: expected mode 755 and owner 0:0 in the base, found {mode:o} and {}:{}",
            parent.display(),
            owner.0,
            owner.1
        );
    }
    let path = path.context("prove the order of PATH: the base sets no PATH")?;
    for guard in &spec.guards {
        let first = path
            .split(':')
            .find(|folder| *folder == INIT_DIR || rootfs.join(folder.trim_start_matches('/')).join(guard).exists());
        match first {
            Some(folder) if folder == INIT_DIR => {}
            Some(folder) => {
                bail!("prove guard {guard}: expected {INIT_DIR} first on PATH, found {folder} before it in {path}")
            }
            None => bail!("prove guard {guard}: neither {INIT_DIR} nor {guard} is on PATH {path}"),
        }
        let real = path.split(':').filter(|folder| *folder != INIT_DIR).any(|folder| {
            let candidate = rootfs.join(folder.trim_start_matches('/')).join(guard);
            fs::symlink_metadata(candidate).is_ok()
        });
        ensure!(real, "prove guard {guard}: the base has no {guard} on PATH {path}");
    }
    Ok(())
}

/// The folders above the init, outermost first; the root itself is none of them.
fn parents(init: &str) -> Vec<PathBuf> {
    let mut parents: Vec<_> = Path::new(init).ancestors().skip(1).map(Path::to_owned).collect();
    parents.pop();
    parents.reverse();
    parents
}

fn add_init(contents: &mut Contents, spec: &ImageSpec, init: &StaticProgram) -> Result<()> {
    let path = spec.init_path();
    for parent in parents(path) {
        contents.entry(parent).or_insert(Entry::Directory(Permissions::root(0o755)));
    }
    let file = Entry::File { permissions: Permissions::root(0o755), source: init.path.clone(), size: init.size };
    contents.insert(PathBuf::from(path), file);
    let name = Path::new(path).file_name().context("name the init")?;
    for guard in &spec.guards {
        let link = Path::new(INIT_DIR).join(guard);
        ensure!(!contents.contains_key(&link), "add guard {}: the carved files hold that path", link.display());
        contents.insert(link, Entry::Symlink { target: PathBuf::from(name) });
    }
    Ok(())
}

fn edit_config(edit: &mut oci::ConfigEdit, spec: &ImageSpec) {
    edit.entrypoint(&spec.entrypoint);
    if let Some(cmd) = &spec.cmd {
        edit.cmd(cmd);
    }
    if let Some(keep) = &spec.keep_env {
        edit.keep_env(&keep.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for (name, value) in &spec.env {
        edit.set_env(name, value);
    }
    if let Some(volumes) = &spec.volumes {
        edit.volumes(volumes);
    }
    if let Some(ports) = &spec.ports {
        edit.exposed_ports(ports);
    }
    edit.retain_labels(identity::may_stay);
    for (name, value) in &spec.labels {
        edit.label(name, value);
    }
}

/// Gives `to` a verified blob of `from`: a second name where both lie on one file system, else a copy.
fn link_blob(from: &Layout, to: &Layout, blob: &Descriptor) -> Result<()> {
    if to.verified(blob)? {
        return Ok(());
    }
    ensure!(
        from.verified(blob)?,
        "link base layer {}: its bytes in the cache were damaged and have been removed\nhint: run again, which fetches it anew",
        blob.digest
    );
    if fs::hard_link(from.blob_path(&blob.digest), to.blob_path(&blob.digest)).is_ok() {
        return Ok(());
    }
    from.read(blob, |reader| to.put_stream(blob, reader)).with_context(|| format!("copy blob {}", blob.digest))?;
    Ok(())
}
