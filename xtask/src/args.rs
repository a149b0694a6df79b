//! What was typed, as clap parsed it: names, values and help texts. Does no I/O and decides nothing; `plan` checks it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use oci::Platform;

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
    /// Ask URL instead of the registry HOST; repeatable
    #[arg(long, value_name = "HOST=URL", value_parser = mirror)]
    pub mirror: Vec<(String, String)>,
    /// Speak plain http to the registry HOST; repeatable (loopback needs no permission)
    #[arg(long, value_name = "HOST")]
    pub insecure: Vec<String>,
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

fn mirror(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((host, url)) if !host.is_empty() && (url.starts_with("http://") || url.starts_with("https://")) => {
            Ok((host.to_owned(), url.to_owned()))
        }
        _ => Err("expected HOST=URL, such as docker.io=http://127.0.0.1:5000".to_owned()),
    }
}
