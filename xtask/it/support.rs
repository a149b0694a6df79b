//! What the trials share: the repository's place, a check with a message, skips with a reason, the built command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{OnceLock, PoisonError, RwLock};

use libtest_mimic::{Completion, Failed, Trial};
use suite::Namespaces;
use xtask::spec::Suite;
use xtask::stages::init::build_probe;
use xtask::standin::{Request, Standin};

/// The repository that holds these tests.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// A trial that needs nothing but the repository.
pub(crate) fn trial(name: &str, check: fn() -> Result<(), Failed>) -> Trial {
    Trial::test(name, check)
}

/// Held by every trial that starts something, shared with the others or alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// A trial that runs only where `missing` finds nothing; elsewhere it is ignored with that reason, or fails where skips are forbidden.
pub(crate) fn trial_if(name: &str, missing: Option<String>, check: fn() -> Result<(), Failed>) -> Trial {
    shared(name, missing, move || check().map(|()| Completion::Completed))
}

/// The same with a check that may find more that is missing.
pub(crate) fn shared(
    name: &str,
    missing: Option<String>,
    check: impl FnOnce() -> Result<Completion, Failed> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        run_or_skip(missing, check)
    })
}

/// The same while no other such trial runs.
pub(crate) fn trial_alone_if(name: &str, missing: Option<String>, check: fn() -> Result<(), Failed>) -> Trial {
    Trial::ignorable_test(name, move || {
        let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        run_or_skip(missing, move || check().map(|()| Completion::Completed))
    })
}

fn run_or_skip(
    missing: Option<String>,
    check: impl FnOnce() -> Result<Completion, Failed>,
) -> Result<Completion, Failed> {
    match missing {
        None => check(),
        Some(reason) if std::env::var_os("NO_SKIPS").is_some() => Err(reason.into()),
        Some(reason) => Ok(Completion::ignored_with(reason)),
    }
}

/// The first of these tools that is missing, or root's rights, as a reason to skip.
pub(crate) fn lacks(tools: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |tool: &&&str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    tools.iter().find(|tool| !here(tool)).map(|tool| format!("needs {tool}: cargo xtask setup"))
}

/// Fails with `message` unless `holds`.
pub(crate) fn ensure(holds: bool, message: impl Into<String>) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(message.into().into()) }
}

/// Runs the built command line from the repository's root and waits for it.
pub(crate) fn xtask<I: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = I>) -> std::io::Result<Output> {
    command(arguments).output()
}

/// The built command line, to be started by the trial.
pub(crate) fn command<I: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).current_dir(repository());
    for variable in ["SOURCE_DATE_EPOCH", "XTASK_IMAGES", "XTASK_MIRROR"] {
        command.env_remove(variable);
    }
    command
}

/// Runs another program and returns what it printed. Error: it failed; both its streams.
pub(crate) fn run(command: &mut Command) -> Result<String, Failed> {
    let output = command.output()?;
    ensure(output.status.success(), format!("{command:?}: {}", said(&output)))?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Both streams of a finished command, for messages.
pub(crate) fn said(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A folder for one trial, removed with its guard. It lies below target/, on the disk that holds the rest.
pub(crate) fn folder() -> std::io::Result<tempfile::TempDir> {
    let parent = repository().join("target/tests");
    std::fs::create_dir_all(&parent)?;
    tempfile::Builder::new().prefix("trial-").tempdir_in(parent)
}

/// The stand-in of this machine's platform, built or found once for all trials.
pub(crate) fn standin() -> Result<&'static Standin, Failed> {
    static STANDIN: OnceLock<Result<Standin, String>> = OnceLock::new();
    let built = STANDIN.get_or_init(|| {
        let request = Request {
            suite: Suite::Bookworm,
            platform: oci::Platform::parse("linux/amd64").map_err(|error| error.to_string())?,
        };
        let cache = repository().join("target/cache/standin");
        xtask::standin::build(&cache, &request, &oci::Interrupt::default(), &mut |_| ())
            .map_err(|error| format!("{error:#}"))
    });
    built.as_ref().map_err(|error| error.clone().into())
}

/// The folder with every image built on the stand-in and not judged, made once for all trials.
pub(crate) fn built() -> Result<&'static Path, Failed> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let out = repository().join("target/tests/images");
        let output = command(["build-images", "--base", "standin", "--suite", "none", "--out"]).arg(&out).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() { Ok(out) } else { Err(said(&output)) }
    });
    built.as_deref().map_err(|error| error.clone().into())
}

/// The engine, with the probe that `cargo xtask test` has built or that is built now.
pub(crate) fn engine() -> Result<Namespaces, Failed> {
    let probe = build_probe(repository(), &oci::Platform::host()).map_err(|error| format!("{error:#}"))?;
    let scratch = repository().join("target/tests/suite");
    std::fs::create_dir_all(&scratch)?;
    Ok(Namespaces::new(&probe.path, &scratch, oci::Interrupt::default())?)
}

/// The one line of init/README.md that begins so: what people copy from there is tried as it stands.
pub(crate) fn line_of_init_readme(beginning: &str) -> Result<String, Failed> {
    let page = std::fs::read_to_string(repository().join("init/README.md"))?;
    let lines: Vec<_> = page.lines().map(str::trim).filter(|line| line.starts_with(beginning)).collect();
    let [line] = lines[..] else { return Err(format!("expected one line `{beginning}`, found {lines:?}").into()) };
    Ok(line.to_owned())
}

/// The repository's image definitions copied into `folder`, for a trial that changes them.
pub(crate) fn definitions(folder: &Path) -> std::io::Result<PathBuf> {
    let copy = folder.join("images");
    std::fs::create_dir_all(&copy)?;
    for entry in std::fs::read_dir(repository().join("images"))? {
        let entry = entry?;
        std::fs::copy(entry.path(), copy.join(entry.file_name()))?;
    }
    Ok(copy)
}
