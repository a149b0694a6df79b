//! What was typed, as clap parsed it: names, values and help texts. Does no I/O and decides nothing; `plan` checks it.

mod bench;
mod registries;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use oci::{Platform, Repository};
use serde::Serialize;

pub use self::bench::{Bench, BenchInit, Benchmark, ORPHANS, ROUNDS, SAMPLES};
pub use self::registries::Registries;
use self::registries::repository;

/// Docker-in-Docker without zombie shims: builds the fixed images, judges them in real daemons, records what passed.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_version_flag = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 passed or done; 1 an image failed its judgement; 2 it could not be judged or the command \
could not be done.\nstdout is data, stderr is progress."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands; each is one file in `cmd/`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install what is missing (apt on Debian and Ubuntu; elsewhere say what to install); idempotent
    Setup,
    /// Fetch the base, build the init, derive, judge and record the fixed images; the main job
    BuildImages(BuildImages),
    /// Build the static init and print its path
    BuildInit(BuildInit),
    /// Publish images that were built and judged before
    Publish(Publish),
    /// Print the job matrix of the platforms as JSON: one job for each, on a runner that can judge it
    Matrix(Matrix),
    /// Check the legs that several machines pushed by digest, and publish the indexes over them
    Merge(Merge),
    /// Pull what was published and judge it as it was pulled: this machine's platform of the images in the records
    Judge(Judge),
    /// Take images by digest to where users pull them, as images/promotion.yaml says; prints the plan, and acts with --confirm
    Promote(Promote),
    /// Say which bases have moved since bases.lock was written
    Outdated(Outdated),
    /// Write the table of promoted images into README.md, and their records beside the definitions
    Digests(Digests),
    /// Measure the pipeline beside buildah, skopeo + umoci and docker, and over many images; and the init beside other inits
    Bench(Bench),
    /// Format, lints, unit and integration tests, and the suite on a stand-in: what CI runs
    Test,
}

/// Arguments of `build-images`.
#[derive(Debug, Args)]
pub struct BuildImages {
    /// Images to build, by the names in the image definitions; all of them where none is named
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// Build for this platform (OS/ARCH[/VARIANT]); repeatable; default: the host's
    #[arg(long, value_name = "PLATFORM", value_parser = platform)]
    pub platform: Vec<Platform>,
    /// Build for every platform that the definitions list
    #[arg(long, conflicts_with = "platform")]
    pub all_platforms: bool,
    /// Where the base comes from
    #[arg(long, value_enum, default_value_t = BaseChoice::Auto, value_name = "SOURCE")]
    pub base: BaseChoice,
    /// How registries are reached.
    #[command(flatten)]
    pub registries: Registries,
    /// Refuse to add to bases.lock
    #[arg(long)]
    pub locked: bool,
    /// Use only what is in the cache
    #[arg(long)]
    pub offline: bool,
    /// How the images are run to be judged
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto, value_name = "ENGINE")]
    pub engine: EngineChoice,
    /// How much of the suite judges them; none: nothing is recorded as passed
    #[arg(long, value_enum, default_value_t = SuiteChoice::Full, value_name = "SET")]
    pub suite: SuiteChoice,
    /// Folder of the image definitions [default: images/ of the repository]
    #[arg(long = "images", id = "definitions", value_name = "DIR")]
    pub definitions: Option<PathBuf>,
    /// Folder for layouts and records [default: target/images of the repository]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The media types of what is published: the base's own, or OCI's (for registries that take no other)
    #[arg(long, value_enum, default_value_t = Format::Base, value_name = "TYPES")]
    pub format: Format,
    /// Publish what passed to this repository, under the definitions' tags
    #[arg(long, value_name = "REPOSITORY", value_parser = repository)]
    pub push: Option<Repository>,
    /// Push each platform by digest and no index: one leg of several machines' work, for `merge`
    #[arg(long, requires = "push")]
    pub push_by_digest: bool,
    /// What may be published.
    #[command(flatten)]
    pub allow: Allow,
    /// Write the one image to FILE as well, as an archive for `docker load`: the host's platform, or the only one that is built
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub docker_archive: Option<PathBuf>,
    /// Build and judge again what the cache holds already
    #[arg(long)]
    pub fresh: bool,
    /// Print the plan and stop
    #[arg(long)]
    pub plan: bool,
    /// Print the record as JSON on stdout instead of one line per image
    #[arg(long)]
    pub json: bool,
}

impl Command {
    /// How registries are reached, of a command that reaches any.
    pub fn registries(&mut self) -> Option<&mut Registries> {
        match self {
            Self::BuildImages(args) => Some(&mut args.registries),
            Self::Publish(args) => Some(&mut args.registries),
            Self::Merge(args) => Some(&mut args.registries),
            Self::Judge(args) => Some(&mut args.registries),
            Self::Promote(args) => Some(&mut args.registries),
            Self::Digests(args) => Some(&mut args.registries),
            Self::Outdated(args) => Some(&mut args.registries),
            _ => None,
        }
    }
}

/// What may be published beside images that passed on every platform, under tags that name nothing else.
#[derive(Debug, Clone, Copy, Default, Args, Serialize)]
pub struct Allow {
    /// Move tags that name another image
    #[arg(long)]
    pub move_tags: bool,
    /// Publish images that were built on a stand-in
    #[arg(long)]
    pub allow_standin: bool,
    /// Publish images of which some platforms could not be judged
    #[arg(long)]
    pub allow_unjudged_platforms: bool,
    /// Publish images that nobody judged; for tests
    #[arg(long, hide = true)]
    pub allow_unjudged: bool,
}

/// Arguments of `publish`.
#[derive(Debug, Args)]
pub struct Publish {
    /// Where to
    #[arg(value_name = "REPOSITORY", value_parser = repository)]
    pub repository: Repository,
    /// Images to publish, by their names in the record; all of them where none is named
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// Folder of the layouts and the record [default: target/images of the repository]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How registries are reached.
    #[command(flatten)]
    pub registries: Registries,
    /// What may be published.
    #[command(flatten)]
    pub allow: Allow,
    /// Print the record as JSON on stdout instead of one line per image
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `matrix`.
#[derive(Debug, Args)]
pub struct Matrix {
    /// Images to build, by the names in the image definitions; all of them where none is named
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// Print NAME=JSON, as the file in GITHUB_OUTPUT takes it
    #[arg(long, value_name = "NAME")]
    pub output: Option<String>,
    /// Folder of the image definitions [default: images/ of the repository]
    #[arg(long = "images", id = "definitions", value_name = "DIR")]
    pub definitions: Option<PathBuf>,
}

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// The legs' records, as `build-images --push-by-digest` wrote them
    #[arg(value_name = "RECORD", required = true)]
    pub records: Vec<PathBuf>,
    /// Folder for the merged record [default: target/images of the repository]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How registries are reached.
    #[command(flatten)]
    pub registries: Registries,
    /// What may be published.
    #[command(flatten)]
    pub allow: Allow,
    /// Publish indexes that lack platforms which the definitions list
    #[arg(long)]
    pub allow_missing_platforms: bool,
    /// Print the record as JSON on stdout instead of one line per image
    #[arg(long)]
    pub json: bool,
    /// Print the record's table instead, as GITHUB_STEP_SUMMARY takes it
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
}

/// Arguments of `judge`.
#[derive(Debug, Args)]
pub struct Judge {
    /// The records, whose verdicts are replaced
    #[arg(value_name = "RECORD", required = true)]
    pub records: Vec<PathBuf>,
    /// Put each verdict, a failure too, into the record that lies beside the image in this repository, where it was published:
    /// `promote` reads it there
    #[arg(long, value_name = "REPOSITORY", value_parser = repository)]
    pub push: Option<Repository>,
    /// Judge again what this machine has a verdict of
    #[arg(long)]
    pub fresh: bool,
    /// Folder of the image definitions [default: images/ of the repository]
    #[arg(long = "images", id = "definitions", value_name = "DIR")]
    pub definitions: Option<PathBuf>,
    /// How registries are reached.
    #[command(flatten)]
    pub registries: Registries,
}

/// Arguments of `promote`.
#[derive(Debug, Args)]
pub struct Promote {
    /// Images to promote, by their names in the promotion file; all of them where none is named
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// Folder of promotion.yaml and digests.json [default: images/ of the repository]
    #[arg(long = "images", id = "definitions", value_name = "DIR")]
    pub definitions: Option<PathBuf>,
    /// The promotion file [default: promotion.yaml in the folder of --images]; digests.json is then looked up beside it
    #[arg(long, value_name = "FILE", conflicts_with = "definitions")]
    pub file: Option<PathBuf>,
    /// A record that proves images; repeatable. Images in none of them are proved by the record in the source repository
    #[arg(long, value_name = "FILE")]
    pub record: Vec<PathBuf>,
    /// Do what the plan says
    #[arg(long)]
    pub confirm: bool,
    /// Move floating tags that name another image
    #[arg(long)]
    pub move_floating: bool,
    /// Promote images that lack platforms which their definitions list
    #[arg(long)]
    pub allow_missing_platforms: bool,
    /// How registries are reached.
    #[command(flatten)]
    pub registries: Registries,
}

/// Arguments of `digests`.
#[derive(Debug, Args)]
pub struct Digests {
    /// A record that has images which were promoted since; repeatable. Images in no file are looked up in the source repository
    #[arg(long, value_name = "FILE")]
    pub record: Vec<PathBuf>,
    /// Write nothing and ask no registry; fail if something would change
    #[arg(long)]
    pub check: bool,
    /// Folder of promotion.yaml and the kept records [default: images/ of the repository]
    #[arg(long = "images", id = "definitions", value_name = "DIR")]
    pub definitions: Option<PathBuf>,
    /// The page that has the table [default: README.md of the repository]
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// How registries are reached.
    #[command(flatten)]
    pub registries: Registries,
}

/// Arguments of `outdated`.
#[derive(Debug, Args)]
pub struct Outdated {
    /// Rewrite bases.lock to what the registry has now
    #[arg(long)]
    pub update: bool,
    /// Folder of the image definitions and the lock [default: images/ of the repository]
    #[arg(long = "images", id = "definitions", value_name = "DIR")]
    pub definitions: Option<PathBuf>,
    /// How registries are reached.
    #[command(flatten)]
    pub registries: Registries,
}

/// Arguments of `build-init`.
#[derive(Debug, Args)]
pub struct BuildInit {
    /// Build for this platform (OS/ARCH[/VARIANT]); default: the host's
    #[arg(long, value_name = "PLATFORM", value_parser = platform)]
    pub platform: Option<Platform>,
}

/// `--base`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BaseChoice {
    /// The registry; where none can be reached at all, the stand-in, said loudly
    Auto,
    /// The registry, by the digests in bases.lock
    Registry,
    /// The stand-in, built from Debian packages
    Standin,
}

/// `--engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    /// The first that works here
    Auto,
    /// The kernel's namespaces on an overlay; needs root and no daemon
    Namespaces,
}

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Docker's types or OCI's, as the base has them
    Base,
    /// OCI's, whatever the base has; the blobs stay the same
    Oci,
}

/// `--suite`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SuiteChoice {
    /// Every scenario that applies to the image
    Full,
    /// The scenarios that show the fault and its cure
    Smoke,
    /// Do not judge
    None,
}

fn platform(text: &str) -> Result<Platform, String> {
    Platform::parse(text).map_err(|error| error.to_string())
}

fn file(text: &str) -> Result<PathBuf, String> {
    if text == "-" { Err("expected the name of a file, found `-`".to_owned()) } else { Ok(text.into()) }
}
