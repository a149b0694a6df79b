//! An image definition: one YAML file of `images/`, parsed into a type that cannot be wrong. Never reads the network or the clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use oci::{Platform, Reference, Tagged, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use suite::Kind;

use crate::promotion::PROMOTION_FILE;
use crate::shared::read_text;
use crate::yaml;

/// Where the init lies in every image: a folder that is real (no symlink) in every base and ahead of the daemons on PATH.
pub const INIT_DIR: &str = "/usr/local/sbin";

/// The init's path in every image that has a base.
pub const INIT_PATH: &str = "/usr/local/sbin/dind-init";

/// The init's path where it is the image's only file.
const LONE_INIT_PATH: &str = "/dind-init";

/// What the definition of an image without a base names in its place. No reference: those have a tag or a digest.
const SCRATCH: &str = "scratch";

/// More than this is no image definition.
const DEFINITION_BYTES_MAX: u64 = 64 * 1024;

/// One image: what it is made from and what is changed. A key of the base's configuration that is not named here keeps the base's value.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// The image's name: its folder under `--out` and its name in the record. Equals the file's name.
    pub name: String,
    /// What the image is, in one line.
    pub description: String,
    /// The base: NAME:TAG, locked to a digest by bases.lock, or NAME[:TAG]@DIGEST; `scratch`: none, the image is the init alone.
    pub base: String,
    /// What stands in for the base where no registry can be reached; a base that is `scratch` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standin: Option<StandinSpec>,
    /// The platforms that the image is made for, such as linux/amd64.
    #[schemars(with = "Vec<String>")]
    pub platforms: Vec<Platform>,
    /// The tags that name the image in its layout and in registries.
    pub tags: Vec<String>,
    /// Whether the tags move to each new image; else a tag that names another image in a registry stays there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub floating: bool,
    /// When the image says that it was made, as `2026-11-30T00:00:00Z`; absent: when its base was. SOURCE_DATE_EPOCH wins over both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// What the image runs, and so the scenarios that judge it.
    pub runs: Runs,
    /// The programs that the init guards by name: each becomes a link to it, ahead of the real one on PATH.
    pub guards: Vec<String>,
    /// The paths that are carved out of the base into one layer; absent: the whole base, its layers untouched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carve: Option<CarveSpec>,
    /// The entrypoint; its first word is the init.
    pub entrypoint: Vec<String>,
    /// The default arguments; an empty list clears them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// The base's environment variables that stay; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_env: Option<Vec<String>>,
    /// Environment variables that are set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The volumes; an empty list removes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<String>>,
    /// The exposed ports, such as 2375/tcp; an empty list removes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<String>>,
    /// Labels that are set. Of the base's own, those that name the base (`org.opencontainers.image.*`, `org.label-schema.*`) are dropped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The stand-in of a base, built from Debian's packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StandinSpec {
    /// The Debian release.
    pub suite: Suite,
    /// Which entrypoint script it has.
    pub flavour: Flavour,
}

/// A Debian release that packages Docker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// Debian 12: dockerd 20.10.24, containerd 1.6.20, runc 1.1.5.
    Bookworm,
}

impl std::fmt::Display for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bookworm => "bookworm",
        })
    }
}

/// The two histories of the official entrypoint script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// Before docker-library/docker#319, as in the report: dockerd is PID 1.
    Pre,
    /// Since then: the script puts docker-init above dockerd, and above nothing else.
    Post,
}

/// What an image runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Runs {
    /// dockerd, which starts containerd itself.
    Dockerd,
    /// containerd alone.
    Containerd,
    /// The init alone, with whatever command it is given.
    Init,
}

/// What an image is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// Nothing: it is the init alone.
    Scratch,
    /// Another image.
    Image(Reference),
}

impl Base {
    /// The other image, if it is made from one.
    pub fn reference(&self) -> Option<&Reference> {
        match self {
            Self::Scratch => None,
            Self::Image(reference) => Some(reference),
        }
    }
}

impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scratch => f.write_str(SCRATCH),
            Self::Image(reference) => reference.fmt(f),
        }
    }
}

impl Runs {
    /// The same as the suite calls it.
    pub fn kind(self) -> Kind {
        match self {
            Self::Dockerd => Kind::Dockerd,
            Self::Containerd => Kind::Containerd,
            Self::Init => Kind::Init,
        }
    }
}

/// What is carved out of the base. A path that ends in `/` brings everything below it; a folder named without brings only itself.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CarveSpec {
    /// Absolute paths that must be there; programs bring their interpreters and libraries.
    pub required: Vec<String>,
    /// Absolute paths that are taken where the base has them.
    #[serde(default)]
    pub optional: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl ImageSpec {
    /// Parses and checks one definition. `stem` is the file's name without `.yaml`. Error: the key that is wrong and what was expected.
    pub fn parse(stem: &str, text: &str) -> Result<Self> {
        let spec: Self = yaml::parse(text).with_context(|| format!("read image definition {stem}.yaml"))?;
        spec.check(stem).with_context(|| format!("check image definition {stem}.yaml"))?;
        Ok(spec)
    }

    /// The base; `parse` has checked it.
    pub fn base(&self) -> Result<Base> {
        if self.base == SCRATCH {
            return Ok(Base::Scratch);
        }
        Reference::parse(&self.base).map(Base::Image).context("base")
    }

    /// Where the init lies in the image.
    pub fn init_path(&self) -> &'static str {
        if self.base == SCRATCH { LONE_INIT_PATH } else { INIT_PATH }
    }

    /// When the image says that it was made, where its definition says so; `parse` has checked it.
    pub fn created(&self) -> Result<Option<Timestamp>> {
        self.created.as_deref().map(Timestamp::parse).transpose().context("created")
    }

    fn check(&self, stem: &str) -> Result<()> {
        ensure!(self.name == stem, "name: expected the file's name `{stem}`, found `{}`", self.name);
        ensure!(
            !self.name.is_empty()
                && self.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
            "name: expected lower-case letters, digits and `-`, found `{}`",
            self.name
        );
        self.created()?;
        match self.base()? {
            Base::Scratch => self.check_lone()?,
            Base::Image(_) => {
                ensure!(self.standin.is_some(), "standin: expected what stands in for {}, found nothing", self.base);
                ensure!(self.runs != Runs::Init, "runs: expected dockerd or containerd on a base, found init");
            }
        }
        ensure!(!self.platforms.is_empty(), "platforms: expected at least one, found none");
        ensure!(!self.tags.is_empty(), "tags: expected at least one, found none");
        each_once("platforms", self.platforms.iter().map(Platform::with_default_variant))?;
        each_once("tags", self.tags.iter())?;
        each_once("guards", self.guards.iter())?;
        for tag in &self.tags {
            Tagged::parse(&format!("{}:{tag}", self.name)).with_context(|| format!("tags: read `{tag}`"))?;
        }
        let init = self.init_path();
        match self.entrypoint.first() {
            None => bail!("entrypoint: expected {init} and its arguments, found an empty list"),
            Some(first) if first != init => bail!("entrypoint: expected {init} as the first word, found `{first}`"),
            Some(_) => {}
        }
        for guard in &self.guards {
            ensure!(
                matches!(guard.as_str(), "dockerd" | "containerd"),
                "guards: expected dockerd or containerd (the names that the init guards), found `{guard}`"
            );
        }
        let carved = self.carve.iter().flat_map(|carve| carve.required.iter().chain(&carve.optional));
        for path in carved.chain(self.volumes.iter().flatten()) {
            ensure!(
                path.starts_with('/') && !path.split('/').any(|part| part == ".."),
                "expected an absolute path without `..`, found `{path}`"
            );
        }
        self.check_texts()?;
        for variable in self.env.keys().chain(self.keep_env.iter().flatten()) {
            ensure!(
                !variable.is_empty() && !variable.contains('='),
                "env: expected a variable's name, found `{variable}`"
            );
        }
        ensure!(!self.labels.contains_key(""), "labels: expected a name before each value, found an empty one");
        Ok(())
    }

    /// What is made of the init alone has nothing that could be carved, guarded or kept, and no base to take a time from.
    fn check_lone(&self) -> Result<()> {
        ensure!(self.runs == Runs::Init, "runs: expected init on the base {SCRATCH}: nothing else is in the image");
        ensure!(
            self.created.is_some(),
            "created: expected a time, as 2026-11-30T00:00:00Z: the base {SCRATCH} has none"
        );
        for (key, found) in [
            ("standin", self.standin.is_some()),
            ("guards", !self.guards.is_empty()),
            ("carve", self.carve.is_some()),
            ("keep_env", self.keep_env.is_some()),
        ] {
            ensure!(!found, "{key}: expected none on the base {SCRATCH}, which is empty");
        }
        Ok(())
    }

    /// Arguments and environment reach a program as C strings (execve(2)), which end at the first NUL.
    fn check_texts(&self) -> Result<()> {
        let pairs = [("env", &self.env), ("labels", &self.labels)];
        let pairs = pairs
            .into_iter()
            .flat_map(|(key, map)| map.iter().flat_map(move |(name, value)| [(key, name), (key, value)]));
        let words = self.entrypoint.iter().map(|word| ("entrypoint", word));
        let words = words.chain(self.cmd.iter().flatten().map(|word| ("cmd", word)));
        for (key, text) in pairs.chain(words) {
            ensure!(!text.contains('\0'), "{key}: expected text without NUL, found {text:?}");
        }
        Ok(())
    }
}

/// Refuses a list that names one thing twice.
fn each_once<T: Ord + std::fmt::Display>(key: &str, values: impl Iterator<Item = T>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for value in values {
        ensure!(!seen.contains(&value), "{key}: expected each once, found {value} twice");
        seen.insert(value);
    }
    Ok(())
}

/// Reads every `*.yaml` of a folder but the promotion file, sorted by name. Error: the folder or a definition cannot be read, or none is there.
pub fn read_definitions(folder: &Path) -> Result<Vec<ImageSpec>> {
    ensure!(
        !folder.is_file(),
        "read image definitions in {}: expected a folder, found a file\nhint: --images names the folder that holds the *.yaml files",
        folder.display()
    );
    let listing = fs::read_dir(folder).with_context(|| format!("read image definitions in {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in listing {
        let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
        let is_definition = path.extension().is_some_and(|extension| extension == "yaml");
        if is_definition && path.file_name().is_some_and(|name| name != PROMOTION_FILE) {
            files.push(path);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "read image definitions in {}: expected *.yaml files, found none", folder.display());
    files.iter().map(|path| read_definition(path)).collect()
}

fn read_definition(path: &Path) -> Result<ImageSpec> {
    let text = read_text(path, DEFINITION_BYTES_MAX)?;
    let stem =
        path.file_stem().and_then(|stem| stem.to_str()).context("read image definition: file name is not UTF-8")?;
    ImageSpec::parse(stem, &text)
}

/// The JSON Schema of a definition, as editors read it from `images/schema.json`.
pub fn json_schema() -> Result<String> {
    let mut text = serde_json::to_string_pretty(&schemars::schema_for!(ImageSpec)).context("print the JSON Schema")?;
    text.push('\n');
    Ok(text)
}
