//! What is judged: images as unpacked directories with the part of their configuration that a run needs. It must never
//! fetch or unpack: the caller has done that.

use oci::Digest;
use std::path::PathBuf;

/// One image, unpacked.
#[derive(Clone, Debug)]
pub struct Subject {
    /// How a person calls it.
    pub name: String,
    /// The digest of the manifest that `rootfs` and `config` come from; a verdict holds for this digest alone.
    pub digest: Digest,
    /// The unpacked root file system; it is only read.
    pub rootfs: PathBuf,
    /// The image's configuration.
    pub config: RunConfig,
    /// Files of the image, absolute paths within it, that the probe covers in exec-only mode: a `docker-init` that reaps
    /// must not do so in a leg where nothing may reap.
    pub shadow: Vec<PathBuf>,
}

/// The keys of an image configuration that a container runtime acts on, as in the image specification's config.md.
#[derive(Clone, Debug, Default)]
pub struct RunConfig {
    /// `Entrypoint`.
    pub entrypoint: Vec<String>,
    /// `Cmd`.
    pub cmd: Vec<String>,
    /// `Env`, as `NAME=value`.
    pub env: Vec<String>,
    /// `WorkingDir`; empty means `/`.
    pub working_dir: String,
    /// `User`, as `USER[:GROUP]`; empty means root.
    pub user: String,
    /// `Volumes`.
    pub volumes: Vec<PathBuf>,
    /// `StopSignal`; empty means SIGTERM.
    pub stop_signal: String,
}

/// What an image is made for, and so which scenarios apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// dockerd, with the containerd that it starts.
    Dockerd,
    /// containerd alone.
    Containerd,
    /// An init alone, in an image that has nothing else; its base is empty.
    Init,
}

/// How much is run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// Every scenario that applies.
    Full,
    /// The few that show most in the least time.
    Smoke,
    /// The scenarios of these numbers; a verdict on them is never a pass.
    Only(Vec<u8>),
}

/// One image to judge, with all that its controls need.
#[derive(Clone, Debug)]
pub struct Job {
    /// What the image runs.
    pub image: Kind,
    /// The unfixed base, in which nothing reaps.
    pub bare: Subject,
    /// The base exactly as published, with whatever workaround it has.
    pub published: Subject,
    /// The image to judge.
    pub fixed: Subject,
    /// A packaged tini, linked statically.
    pub tini: PathBuf,
    /// The probe, built statically for the image's platform.
    pub probe: PathBuf,
    /// How much to run.
    pub selection: Selection,
    /// A directory that exists, for logs and archives of this run; what is put there is removed again.
    pub scratch: PathBuf,
}
