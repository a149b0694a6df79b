//! From a leg to a container: which image, which command line, which environment, what is laid beside it. This is the
//! table of tests/README.md in code. It must never look at what a container does.

use crate::bench::{ARCHIVE, Bench, Daemon, PROBE, TINI};
use crate::engine::{Container, Engine, Input, Launch};
use crate::scenario::{Leg, Start};
use crate::{Error, Interrupt, Job, Kind, Subject};
use std::path::{Path, PathBuf};

/// What dockerd is given so that it needs no packet filter and does not slow its start for lack of TLS.
const DOCKERD_FLAGS: [&str; 3] = ["--iptables=false", "--bridge=none", "--tls=false"];
/// What dockerd needs where the entrypoint adds nothing: no packet filter in the container's network.
pub(crate) const DOCKERD_BY_NAME: &[&str] = &["dockerd", "--iptables=false", "--bridge=none"];
/// Keeps a tini that is not PID 1 silent, and makes it reap (tini's README, "Subreaping").
const TINI_SUBREAPER: &str = "TINI_SUBREAPER";
/// What an init is given that has no daemon beside it.
const SLEEPER: [&str; 3] = [PROBE, "sleep", "1000"];
const TLS_DIRECTORY: &str = "DOCKER_TLS_CERTDIR";

/// All that a leg needs to start containers.
pub(crate) struct Stage<'a> {
    pub engine: &'a dyn Engine,
    pub interrupt: &'a Interrupt,
    pub job: &'a Job,
    /// The inner image's archive.
    pub archive: &'a Path,
    pub leg: Leg,
}

impl<'a> Stage<'a> {
    pub(crate) fn start(&self, start: Start, input: Input) -> Result<Box<dyn Container + 'a>, Error> {
        self.engine.start(&self.launch(start, input))
    }

    /// As [`Stage::start`] in the image's own way, but with TLS as the image has it: its entrypoint then makes keys first.
    pub(crate) fn start_with_tls(&self) -> Result<Box<dyn Container + 'a>, Error> {
        let mut launch = self.launch(Start::Image, Input::Nothing);
        launch.env = with_variable(&launch.env, TLS_DIRECTORY, "/certs");
        self.engine.start(&launch)
    }

    /// What the image is made for.
    pub(crate) fn daemon(&self) -> Daemon {
        match self.job.image {
            Kind::Dockerd => Daemon::Dockerd,
            Kind::Containerd => Daemon::Containerd,
            Kind::Init => Daemon::Sleeper,
        }
    }

    pub(crate) fn bench<'b>(&'b self, container: &'b dyn Container, daemon: Daemon) -> Bench<'b> {
        Bench::new(container, daemon, self.interrupt)
    }

    fn subject(&self) -> &'a Subject {
        match self.leg {
            Leg::Bare | Leg::Tini => &self.job.bare,
            Leg::Published => &self.job.published,
            Leg::Unsilenced | Leg::InitAbove | Leg::Ours => &self.job.fixed,
        }
    }

    fn launch(&self, start: Start, input: Input) -> Launch<'a> {
        let subject = self.subject();
        let mut env = with_variable(&subject.config.env, TLS_DIRECTORY, "");
        if self.leg == Leg::Unsilenced {
            env.retain(|variable| !variable.starts_with(TINI_SUBREAPER));
        }
        Launch {
            subject,
            argv: self.argv(start),
            env,
            input,
            files: vec![(self.job.tini.clone(), TINI.into()), (self.archive.to_path_buf(), ARCHIVE.into())],
            volumes: vec![PathBuf::from("/var/lib/docker"), PathBuf::from("/var/lib/containerd")],
            pids_max: None,
        }
    }

    fn argv(&self, start: Start) -> Vec<String> {
        let config = &self.subject().config;
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let kind = self.job.image;
        // The base of a containerd image starts dockerd by itself: there, its entrypoint is replaced by the daemon.
        let replaced = kind == Kind::Containerd && matches!(self.leg, Leg::Bare | Leg::Published | Leg::Tini);
        let entrypoint = if replaced { &[][..] } else { &config.entrypoint };
        let command = match start {
            Start::Entrypoint(words) => own(words),
            Start::Args(words) => [entrypoint, &own(words)].concat(),
            Start::Image if replaced => own(&["containerd"]),
            Start::Image if kind == Kind::Init => [entrypoint, &own(&SLEEPER)].concat(),
            Start::Image if kind == Kind::Dockerd => [entrypoint, &own(&DOCKERD_FLAGS)].concat(),
            Start::Image => [entrypoint, &config.cmd].concat(),
        };
        let above: &[&str] = match self.leg {
            Leg::Tini | Leg::InitAbove => &[TINI, "--"],
            // The base of an init has no program of its own that would reap nothing as PID 1.
            Leg::Bare if kind == Kind::Init => &[PROBE, "no-reap", "--"],
            _ => &[],
        };
        [own(above), command].concat()
    }
}

/// `env` with one variable set, in its place where it was there before.
fn with_variable(env: &[String], name: &str, value: &str) -> Vec<String> {
    let setting = format!("{name}={value}");
    let is_it = |variable: &String| variable.split_once('=').is_some_and(|(key, _)| key == name);
    if env.iter().any(is_it) {
        env.iter().map(|variable| if is_it(variable) { setting.clone() } else { variable.clone() }).collect()
    } else {
        env.iter().cloned().chain([setting]).collect()
    }
}
