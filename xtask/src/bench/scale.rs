//! Many images on one base: definitions, a registry, and what building and publishing all of them costs. The images are built as a user
//! builds them, by a run of the command line; what they are derived from is small, because only its count of layers matters here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use oci::{Client, Interrupt, Options, Repository};

use super::base::Layers;
use super::measure::measure;
use super::{Registry, Wire};

/// All that the init is built for: every level of amd64 runs the same one.
pub const PLATFORMS: [&str; 4] = ["linux/amd64", "linux/amd64/v2", "linux/amd64/v3", "linux/arm64/v8"];

/// A registry with a base, and a folder for definitions and what is built of them.
#[derive(Debug)]
pub struct Scale {
    folder: PathBuf,
    registry: Registry,
    wire: Wire,
    base: String,
}

/// What a run of some images took.
#[derive(Debug)]
pub struct Figures {
    /// How many images they were.
    pub images: usize,
    /// From the start of the command to its end.
    pub time: Duration,
    /// The most memory that the command held, in bytes; of the compiler that it asks for the init nothing is counted.
    pub peak: u64,
    /// What the registry was asked, as `METHOD PATH`.
    pub requests: Vec<String>,
    /// Bytes that were sent.
    pub up: u64,
    /// Bytes that came back.
    pub down: u64,
}

impl Scale {
    /// Starts a registry in `folder` and puts the base there. Error: docker-registry is not installed or does not start.
    pub fn open(folder: &Path) -> Result<Self> {
        let registry = Registry::start(folder)?;
        let wire = Wire::to(registry.host())?;
        let client = Client::new(Options::default())?;
        let repository = Repository::parse(&format!("{}/base", wire.host()))?;
        let layers = Layers::make(&folder.join("base"), |number| vec![b'a'; number])?;
        layers.push(&client, &repository)?;
        // The folder's name makes it a base that no cache has.
        layers.base(&client, &repository, &repository, &PLATFORMS, &folder.display().to_string())?;
        Ok(Self { folder: folder.to_owned(), registry, wire, base: format!("{repository}:1") })
    }

    /// Builds and publishes `images` images that were never built before into a repository of their own, by a run of `program`. Error: the run's.
    pub fn run(&mut self, program: &Path, images: usize, interrupt: &Interrupt) -> Result<Figures> {
        let place = self.folder.join(format!("of-{images}"));
        let definitions = place.join("images");
        fs::create_dir_all(&definitions).with_context(|| format!("make {}", definitions.display()))?;
        for number in 0..images {
            let name = format!("image-{number:03}");
            let path = definitions.join(format!("{name}.yaml"));
            fs::write(&path, self.definition(&name, images)).with_context(|| format!("write {}", path.display()))?;
        }
        let mut command = Command::new(program);
        command.args(["build-images", "--base", "registry", "--all-platforms", "--suite", "none", "--allow-unjudged"]);
        command.arg("--images").arg(&definitions).arg("--out").arg(place.join("out"));
        command.arg("--push").arg(format!("{}/{}", self.wire.host(), repository(images)));
        command.env_remove("SOURCE_DATE_EPOCH");
        self.registry.requests()?;
        self.wire.bytes();
        let usage = measure(command, &place.join("log"), interrupt)?;
        let (up, down) = self.wire.bytes();
        let peak = usage.peak_of(program)?;
        Ok(Figures { images, time: usage.time, peak, requests: self.registry.requests()?, up, down })
    }

    fn definition(&self, name: &str, images: usize) -> String {
        format!(
            "name: {name}\ndescription: one of many\nbase: {}\nstandin: {{ suite: bookworm, flavour: post }}\nplatforms: [{}]\n\
             tags: [{name}]\nfloating: true\nruns: dockerd\nguards: [dockerd]\nentrypoint: [/usr/local/sbin/dind-init, --, dockerd]\n\
             env: {{ IMAGE: \"{name} of {images}\" }}\n",
            self.base,
            PLATFORMS.join(", "),
        )
    }
}

/// Where a run of so many images publishes them.
pub fn repository(images: usize) -> String {
    format!("of-{images}")
}

impl Figures {
    /// How many blobs were sent.
    pub fn blobs_sent(&self) -> usize {
        self.count(&format!("PUT /v2/{}/blobs/", repository(self.images)))
    }

    /// How many requests begin so.
    pub fn count(&self, start: &str) -> usize {
        self.requests.iter().filter(|request| request.starts_with(start)).count()
    }
}
