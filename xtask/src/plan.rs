//! Everything that is decided before any I/O beyond reading the definitions and the lock: which images, bases, platforms, folders.
//! Never touches the network, the engine or the clock.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use oci::{Platform, Repository, Timestamp};
use serde::Serialize;

use crate::args::{Allow, BaseChoice, BuildImages, EngineChoice, Format, Registries, SuiteChoice};
use crate::lock::{LOCK_FILE, Lock, LockedBase};
use crate::spec::{Base, ImageSpec, read_definitions};
use crate::stages::archive::DockerArchive;
use crate::stages::gate;

/// What the process was given besides its arguments; gathered once, in `main`.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The repository.
    pub root: PathBuf,
    /// The folder that relative paths on the command line start from.
    pub cwd: PathBuf,
    /// The image definitions, where the command line names no other folder.
    pub definitions: PathBuf,
    /// The platform that this machine runs.
    pub host: Platform,
    /// SOURCE_DATE_EPOCH as it was found in the environment.
    pub source_date_epoch: Option<String>,
    /// Docker's `config.json`, which says who we are at which registry; it need not be there.
    pub docker_config: Option<PathBuf>,
}

/// The folders of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Folders {
    /// The image definitions.
    pub definitions: PathBuf,
    /// Layouts and records.
    pub out: PathBuf,
    /// What can be made again: blobs, stand-ins, unpacked images, verdicts.
    pub cache: PathBuf,
}

/// One image to build.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedImage {
    /// Its definition.
    pub spec: ImageSpec,
    /// Its base, parsed.
    #[serde(serialize_with = "as_text")]
    pub base: Base,
    /// The lock's entry for the base; none: the registry is asked, and the answer locked. What has no base has none either.
    pub locked: Option<LockedBase>,
    /// The platforms to build, each as the definition spells it.
    pub platforms: Vec<Platform>,
}

/// Where images go, and which.
#[derive(Debug, Clone, Serialize)]
pub struct Push {
    /// The repository.
    #[serde(serialize_with = "as_text")]
    pub repository: Repository,
    /// Manifests only, by digest: one leg of several machines' work.
    pub by_digest: bool,
    /// What may be published.
    pub allow: Allow,
}

/// The whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The images, sorted by name.
    pub images: Vec<PlannedImage>,
    /// Where bases come from.
    #[serde(serialize_with = "as_value")]
    pub base: BaseChoice,
    /// How registries are reached.
    pub registries: Registries,
    /// The lock may not be added to.
    pub locked: bool,
    /// Only the cache may be used.
    pub offline: bool,
    /// How the images are run.
    #[serde(serialize_with = "as_value")]
    pub engine: EngineChoice,
    /// How much of the suite judges them.
    #[serde(serialize_with = "as_value")]
    pub suite: SuiteChoice,
    /// The media types of what is published.
    #[serde(serialize_with = "as_value")]
    pub format: Format,
    /// Where what passed is published.
    pub push: Option<Push>,
    /// The platform that this machine runs.
    pub host: Platform,
    /// The archive for `docker load`.
    pub docker_archive: Option<DockerArchive>,
    /// Nothing that was built or judged before counts.
    pub fresh: bool,
    /// The one clock: seconds since 1970; none: the base's created time.
    pub source_date_epoch: Option<u64>,
    /// Where things lie.
    pub folders: Folders,
}

impl Plan {
    /// Reads the definitions and the lock, and decides. Error: whatever of the arguments, definitions or lock cannot be carried out.
    pub fn new(args: &BuildImages, facts: &Facts) -> Result<Self> {
        let folders = Folders {
            definitions: definitions_folder(args.definitions.as_deref(), facts),
            out: out_folder(args.out.as_deref(), facts),
            cache: cache(facts),
        };
        let specs = read_definitions(&folders.definitions)?;
        let lock = Lock::read(&lock_path(&folders))?;
        let images = select(specs, &args.images)?
            .into_iter()
            .map(|spec| plan_image(spec, &lock, args, &facts.host))
            .collect::<Result<Vec<_>>>()?;
        let push = args.push.as_ref().map(|repository| Push {
            repository: repository.clone(),
            by_digest: args.push_by_digest,
            allow: args.allow,
        });
        let archive = args.docker_archive.as_ref().map(|file| facts.cwd.join(file));
        let docker_archive = archive.map(|file| DockerArchive::plan(file, &images, &facts.host)).transpose()?;
        let plan = Self {
            images,
            base: args.base,
            registries: args.registries.clone(),
            locked: args.locked,
            offline: args.offline,
            engine: args.engine,
            suite: args.suite,
            format: args.format,
            push,
            host: facts.host.clone(),
            docker_archive,
            fresh: args.fresh,
            source_date_epoch: facts.source_date_epoch.as_deref().map(epoch).transpose()?,
            folders,
        };
        plan.check_push()?;
        Ok(plan)
    }

    /// Whether the suite is asked for a platform; if not, the reason.
    pub fn judges(&self, platform: &Platform) -> Result<(), String> {
        if self.suite == SuiteChoice::None {
            Err("--suite none".to_owned())
        } else if platform.is_same_as(&self.host) {
            Ok(())
        } else {
            Err(format!("this machine runs {}", self.host))
        }
    }

    /// Whether the bytes of the base's layers are needed for a platform of an image, and not only their names: what is carved or judged
    /// is unpacked, an archive holds them, and what is not published lies in its layout whole.
    pub fn needs_layers(&self, image: &PlannedImage, platform: &Platform) -> bool {
        let archived = self.docker_archive.as_ref().is_some_and(|archive| archive.platform == *platform);
        self.push.is_none() || image.spec.carve.is_some() || archived || self.judges(platform).is_ok()
    }

    /// What the gate is sure to refuse is refused before the work.
    fn check_push(&self) -> Result<()> {
        let Some(Push { allow, repository, .. }) = &self.push else { return Ok(()) };
        ensure!(
            !self.offline,
            "plan to publish to {repository}: --offline forbids it\nhint: run once without --push, then `cargo xtask publish`"
        );
        ensure!(
            self.base != BaseChoice::Standin
                || allow.allow_standin
                || self.images.iter().all(|image| image.base == Base::Scratch),
            "plan to publish to {repository}: expected the registry's base, found --base standin\nhint: --allow-standin publishes it nevertheless"
        );
        gate::one_image_a_tag(self.images.iter().map(|image| (image.spec.name.as_str(), image.spec.tags.as_slice())))?;
        self.images.iter().try_for_each(|image| self.check_judged(image, repository, allow))
    }

    /// Whether enough of an image would be judged: beside a platform that passed, others may go unjudged where that is allowed.
    fn check_judged(&self, image: &PlannedImage, repository: &Repository, allow: &Allow) -> Result<()> {
        let unjudged = image.platforms.iter().filter_map(|platform| Some((platform, self.judges(platform).err()?)));
        let unjudged: Vec<_> = unjudged.collect();
        let Some((platform, reason)) = unjudged.first() else { return Ok(()) };
        let nothing_judged = unjudged.len() == image.platforms.len();
        ensure!(
            allow.allow_unjudged || (allow.allow_unjudged_platforms && !nothing_judged),
            "plan to publish {} to {repository}: {platform} would not be judged: {reason}\nhint: {}",
            image.spec.name,
            if self.suite == SuiteChoice::None {
                "only what passed is published: leave out --suite none"
            } else if nothing_judged {
                "only what passed is published: build it on a machine that runs it (`cargo xtask matrix` names one for each platform)"
            } else {
                "--allow-unjudged-platforms publishes it unjudged; or build it on a machine that runs it, by --push-by-digest, and merge"
            }
        );
        Ok(())
    }
}

/// Where the cache lies: what is there can be made again.
pub fn cache(facts: &Facts) -> PathBuf {
    facts.root.join("target/cache")
}

/// `--images`, or its default.
pub fn definitions_folder(given: Option<&Path>, facts: &Facts) -> PathBuf {
    given.map_or_else(|| facts.definitions.clone(), |folder| facts.cwd.join(folder))
}

/// `--out`, or its default.
pub fn out_folder(given: Option<&Path>, facts: &Facts) -> PathBuf {
    given.map_or_else(|| facts.root.join("target/images"), |folder| facts.cwd.join(folder))
}

/// Where the lock lies.
pub fn lock_path(folders: &Folders) -> PathBuf {
    folders.definitions.join(LOCK_FILE)
}

/// The definitions with these names, or all of them. Error: there is none of a name.
pub fn select(specs: Vec<ImageSpec>, names: &[String]) -> Result<Vec<ImageSpec>> {
    for name in names {
        if !specs.iter().any(|spec| spec.name == *name) {
            let valid: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
            bail!("find image `{name}`: no such definition\nhint: the images are {}", valid.join(", "));
        }
    }
    Ok(specs.into_iter().filter(|spec| names.is_empty() || names.contains(&spec.name)).collect())
}

fn plan_image(spec: ImageSpec, lock: &Lock, args: &BuildImages, host: &Platform) -> Result<PlannedImage> {
    let base = spec.base()?;
    let locked = base.reference().and_then(|base| lock.get(base)).cloned();
    ensure!(
        locked.is_some() || !args.locked || args.base == BaseChoice::Standin || base == Base::Scratch,
        "plan {}: base {base} is not in bases.lock, and --locked forbids to add it\nhint: run once without --locked",
        spec.name
    );
    let wanted = match (args.all_platforms, args.platform.as_slice()) {
        (true, _) => &spec.platforms,
        (false, []) => std::slice::from_ref(host),
        (false, named) => named,
    };
    let platforms = wanted.iter().map(|platform| listed(platform, &spec)).collect::<Result<Vec<_>>>()?;
    if let Some(twice) = platforms.iter().find(|one| platforms.iter().filter(|other| other == one).count() > 1) {
        bail!("plan {}: expected each platform once, found {twice} twice", spec.name);
    }
    Ok(PlannedImage { base, locked, platforms, spec })
}

/// The definition's spelling of a wanted platform: `linux/arm64` finds `linux/arm64/v8`.
fn listed(wanted: &Platform, spec: &ImageSpec) -> Result<Platform> {
    let found = spec.platforms.iter().find(|listed| listed.is_same_as(wanted));
    found.cloned().with_context(|| {
        let listed: Vec<_> = spec.platforms.iter().map(ToString::to_string).collect();
        format!("plan {}: platform {wanted} is not in its definition\nhint: it lists {}", spec.name, listed.join(", "))
    })
}

fn epoch(text: &str) -> Result<u64> {
    let expected = || format!("read SOURCE_DATE_EPOCH: expected seconds since 1970, found `{text}`");
    let seconds = text.parse().with_context(expected)?;
    Timestamp::from_epoch(seconds).with_context(expected)?;
    Ok(seconds)
}

fn as_text<S: serde::Serializer>(value: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_value<S: serde::Serializer>(value: &impl clap::ValueEnum, serializer: S) -> Result<S::Ok, S::Error> {
    match value.to_possible_value() {
        Some(value) => serializer.serialize_str(value.get_name()),
        None => serializer.serialize_none(),
    }
}

impl Folders {
    /// The folder of an image's layout.
    pub fn layout(&self, image: &str) -> PathBuf {
        self.out.join(image)
    }

    /// A folder of the cache.
    pub fn cached(&self, what: impl AsRef<Path>) -> PathBuf {
        self.cache.join(what)
    }
}
