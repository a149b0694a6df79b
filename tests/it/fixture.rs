//! What the trials run on: the stand-in's unpacked root file systems, the probe, the init and a packaged tini, named by
//! environment variables, which are all read here. A trial that lacks one is ignored, never passed.

use libtest_mimic::{Completion, Failed, Trial};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use suite::engine::{Container, Input, Launch};
use suite::{Interrupt, Namespaces, RunConfig, Subject};
use tempfile::TempDir;

/// The stand-in without and with docker-init in its entrypoint, unpacked.
const ROOTFS_PRE: &str = "SUITE_ROOTFS_PRE";
const ROOTFS_POST: &str = "SUITE_ROOTFS_POST";
/// Set where a skip is a failure.
const NO_SKIPS: &str = "NO_SKIPS";
/// The static probe.
const PROBE: &str = "SUITE_PROBE";
/// The static init.
const INIT: &str = "DIND_INIT";
/// Of Debian's package tini.
const TINI: &str = "/usr/bin/tini-static";

/// Held for reading while a trial has containers, for writing by those that count what all containers have left.
pub(crate) static CONTAINERS: RwLock<()> = RwLock::new(());

pub(crate) type Checked = Result<(), Failed>;

/// A root file system, an engine, and a directory of its own.
pub(crate) struct Fixture {
    pub(crate) pre: Subject,
    pub(crate) probe: PathBuf,
    pub(crate) scratch: TempDir,
    pub(crate) interrupt: Interrupt,
    pub(crate) engine: Namespaces,
}

/// What [`Fixture`] has not and only whole judgements need.
pub(crate) struct Images {
    pub(crate) post: Subject,
    pub(crate) init: PathBuf,
    pub(crate) tini: PathBuf,
}

impl Fixture {
    /// `Err` is the reason for which a trial is ignored.
    pub(crate) fn find() -> Result<Fixture, String> {
        let pre = subject("stand-in, pre", &variable(ROOTFS_PRE)?);
        let probe = variable(PROBE)?;
        if !rustix::process::geteuid().is_root() {
            return Err("needs root for new namespaces".to_owned());
        }
        let scratch = TempDir::new().map_err(|error| format!("needs a temporary directory: {error}"))?;
        let interrupt = Interrupt::default();
        let engine = Namespaces::new(&probe, scratch.path(), interrupt.clone())
            .map_err(|error| format!("needs the namespaces engine: {error}"))?;
        Ok(Fixture { pre, probe, scratch, interrupt, engine })
    }

    /// Starts the stand-in with this whole command line.
    pub(crate) fn start(&self, argv: &[&str]) -> Result<Box<dyn Container + '_>, Failed> {
        self.start_with(argv, Input::Nothing, None)
    }

    pub(crate) fn start_with(
        &self,
        argv: &[&str],
        input: Input,
        pids_max: Option<u32>,
    ) -> Result<Box<dyn Container + '_>, Failed> {
        let launch = Launch {
            subject: &self.pre,
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: self.pre.config.env.clone(),
            input,
            files: Vec::new(),
            volumes: Vec::new(),
            pids_max,
        };
        Ok(suite::Engine::start(&self.engine, &launch)?)
    }
}

impl Images {
    pub(crate) fn find() -> Result<Images, String> {
        let tini = PathBuf::from(TINI);
        if !tini.is_file() {
            return Err(format!("needs {TINI}, of the package tini"));
        }
        Ok(Images { post: subject("stand-in, post", &variable(ROOTFS_POST)?), init: variable(INIT)?, tini })
    }
}

fn variable(name: &str) -> Result<PathBuf, String> {
    std::env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("needs {name}"))
}

/// The stand-in's configuration, as docker:20-dind has it.
fn subject(name: &str, rootfs: &Path) -> Subject {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Subject {
        name: name.to_owned(),
        digest: oci::Digest::of(name.as_bytes()),
        rootfs: rootfs.to_path_buf(),
        config: RunConfig {
            entrypoint: words(&["dockerd-entrypoint.sh"]),
            env: words(&[
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "DOCKER_TLS_CERTDIR=/certs",
            ]),
            volumes: vec!["/var/lib/docker".into()],
            ..RunConfig::default()
        },
        shadow: Vec::new(),
    }
}

/// Ignores a trial for a reason, or fails it where skips are forbidden, as in continuous integration.
pub(crate) fn skip(reason: impl Into<String>) -> Result<Completion, Failed> {
    let reason = reason.into();
    if std::env::var_os(NO_SKIPS).is_some() { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) }
}

/// A trial with containers of its own beside those of others.
pub(crate) fn trial(name: &str, check: impl FnOnce(&Fixture) -> Checked + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        let _others = CONTAINERS.read().unwrap_or_else(PoisonError::into_inner);
        match Fixture::find() {
            Err(reason) => skip(reason),
            Ok(fixture) => check(&fixture).map(|()| Completion::Completed),
        }
    })
}

/// `Err` unless both are equal.
pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, found {found:?}").into()) }
}
