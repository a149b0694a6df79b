//! The static programs: builds the init (and the suite's probe) for a platform and checks what came out.
//!
//! One recipe links for every machine, with rust-lld; only where the compiler comes from differs (toolchain.rs).
//!
//! Same sources, same compiler, same musl: same bytes, wherever the checkout lies and whatever RUSTFLAGS says. Neither
//! the clock nor git is asked.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oci::{Digest, Interrupt, Platform};
use xshell::{Shell, cmd};

use super::toolchain::{Installed, Toolchain};
use crate::elf::{self, Machine};
use crate::progress::Progress;
use crate::session::Session;

/// The init is no larger than this, so that it costs an image nothing.
pub const INIT_BYTES_MAX: u64 = 24 << 10;

/// Separates the flags in CARGO_ENCODED_RUSTFLAGS (the cargo book, environment variables).
const FLAG_SEPARATOR: &str = "\x1f";

/// What the linker leaves out of the init, below the root.
const LINK_SCRIPT: &str = "init/link.ld";

/// What makes the init small, and static whatever the target's habit. `noseparate-code` and `norelro` save the padding
/// between segments that a program without relocations does not need; one segment for code and constants saves a resident page.
const FLAGS: &[&str] = &[
    "-Clinker-flavor=ld.lld",
    "-Ctarget-feature=+crt-static",
    "-Crelocation-model=static",
    "-Cforce-unwind-tables=no",
    "-Clink-arg=--build-id=none",
    "-Clink-arg=--gc-sections",
    "-Clink-arg=--icf=all",
    "-Clink-arg=-O2",
    "-Clink-arg=--no-eh-frame-hdr",
    "-Clink-arg=--no-rosegment",
    "-Clink-arg=-znorelro",
    "-Clink-arg=-znoseparate-code",
];

/// A static program that was built and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticProgram {
    /// Where it lies, below `target/` of the workspace.
    pub path: PathBuf,
    /// The sha256 of its bytes.
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
    /// What it runs on.
    pub platform: Platform,
}

/// Builds the init for `platform` and says so on one line. Error: see [`build`].
pub fn stage(platform: &Platform, session: &Session) -> Result<StaticProgram> {
    let stage = session.progress.stage("init", platform);
    let built = build(&session.facts.root, platform, &session.interrupt, &mut |what| stage.doing(what))?;
    stage.done(format!("dind-init {:.1} KB, static musl", built.size as f64 / 1000.0));
    Ok(built)
}

/// Builds the probe for this machine and says so on one line. Error: see [`build_probe`].
pub fn stage_probe(root: &Path, platform: &Platform, progress: &Progress) -> Result<StaticProgram> {
    let stage = progress.stage("probe", platform);
    let built = build_probe(root, platform)?;
    stage.done(format!("probe {:.1} MB, static", built.size as f64 / 1e6));
    Ok(built)
}

/// Builds the init of the workspace at `root` for `platform`; with nothing changed, cargo finds that out and this is quick.
/// Tells `doing` what it waits for. Error: no way to build for the platform (with a hint how to get one), the compiler's, or a
/// program that is not what an image may hold: another machine's, not static, or too large.
pub fn build(
    root: &Path,
    platform: &Platform,
    interrupt: &Interrupt,
    doing: &mut dyn FnMut(&str),
) -> Result<StaticProgram> {
    let mut build = || {
        let built = link(root, platform, Symbols::AsProfiled, interrupt, doing)?;
        ensure!(built.size <= INIT_BYTES_MAX, "size: expected at most {INIT_BYTES_MAX} bytes, found {}", built.size);
        Ok(built)
    };
    build().with_context(|| format!("build init for {platform}"))
}

/// Builds the init for `platform` twice, for those who look where its bytes are, be they too many: as it is shipped, and with the names of
/// what is in it. Error: as [`build`], but for the size.
pub fn build_named(platform: &Platform, session: &Session) -> Result<[StaticProgram; 2]> {
    let stage = session.progress.stage("init", platform);
    let build = |symbols| {
        link(&session.facts.root, platform, symbols, &session.interrupt, &mut |what| stage.doing(what))
            .with_context(|| format!("build init for {platform}"))
    };
    Ok([build(Symbols::AsProfiled)?, build(Symbols::Kept)?])
}

fn link(
    root: &Path,
    platform: &Platform,
    symbols: Symbols,
    interrupt: &Interrupt,
    doing: &mut dyn FnMut(&str),
) -> Result<StaticProgram> {
    let machine = Machine::of(platform)?;
    let recipe = Recipe { symbols, ..Recipe::init(root, Toolchain::find(root, machine, interrupt, doing)?) };
    checked(recipe.cargo(root, "dind-init", "init")?, machine, platform)
}

/// Builds the suite's probe, a std program, for `platform`, which is this machine's: nothing else runs it. Rust's musl
/// target where it is installed, else the GNU target, whose C library can be linked statically too. Error: as [`build`].
pub fn build_probe(root: &Path, platform: &Platform) -> Result<StaticProgram> {
    let build = || {
        let machine = Machine::of(platform)?;
        let musl = format!("{machine}-unknown-linux-musl");
        let installed = Installed::find()?.has(&musl);
        let target = if installed { musl } else { format!("{machine}-unknown-linux-gnu") };
        let flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
        let recipe = Recipe { target, flags, variables: Vec::new(), symbols: Symbols::AsProfiled };
        checked(recipe.cargo(root, "probe", "dev")?, machine, platform)
    };
    build().with_context(|| format!("build probe for {platform}"))
}

fn checked(path: PathBuf, machine: Machine, platform: &Platform) -> Result<StaticProgram> {
    elf::check_static(&path, machine)?;
    let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(StaticProgram { digest: Digest::of(&bytes), size: bytes.len() as u64, platform: platform.clone(), path })
}

/// How a program is compiled and linked.
#[derive(Debug)]
struct Recipe {
    /// The target as rustc names it.
    target: String,
    /// All of rustc's flags that are not cargo's own.
    flags: Vec<String>,
    /// What cargo's environment has besides.
    variables: Vec<(&'static str, OsString)>,
    /// What becomes of the symbol table.
    symbols: Symbols,
}

/// Whether a program keeps the names of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symbols {
    /// As its profile says.
    AsProfiled,
    Kept,
}

impl Recipe {
    /// The init's, which is linked in one way by whatever compiler.
    fn init(root: &Path, toolchain: Toolchain) -> Self {
        let linker = format!("-Clinker={}", toolchain.linker.display());
        let script = format!("-Clink-arg=-T{}", root.join(LINK_SCRIPT).display());
        let flags = FLAGS.iter().map(ToString::to_string).chain([linker, script]);
        let library = toolchain.c_library().into_iter().map(|argument| format!("-Clink-arg={argument}"));
        Self {
            flags: flags.chain(library).collect(),
            target: toolchain.target,
            variables: toolchain.variables,
            symbols: Symbols::AsProfiled,
        }
    }

    /// Has cargo build `package`, in a target folder of its own and the target's: the lock of the default one is held while
    /// xtask runs by `cargo xtask`, and other flags or another compiler would make cargo forget what it knows of these.
    fn cargo(&self, root: &Path, package: &str, profile: &str) -> Result<PathBuf> {
        let remap = format!("--remap-path-prefix={}=.", root.display());
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).chain([remap.as_str()]).collect();
        let target = &self.target;
        let (suffix, strip) = match self.symbols {
            Symbols::AsProfiled => ("", None),
            Symbols::Kept => ("-symbols", Some(format!("--config=profile.{profile}.strip=false"))),
        };
        let folder = root.join("target/static").join(format!("{package}-{target}{suffix}"));
        let shell = Shell::new()?;
        shell.change_dir(root);
        // Of all places that flags may come from this one wins, so that no other can change the program.
        shell.set_var("CARGO_ENCODED_RUSTFLAGS", flags.join(FLAG_SEPARATOR));
        shell.set_var("DIND_INIT_SOURCES", sources(root)?);
        for (name, value) in &self.variables {
            shell.set_var(name, value);
        }
        let built = cmd!(
            shell,
            "cargo build --quiet --locked --package {package} --bin {package} --target {target} --profile {profile} --target-dir {folder} {strip...}"
        );
        built.quiet().run()?;
        // The one profile whose folder is not called like it.
        let outcome = if profile == "dev" { "debug" } else { profile };
        Ok(folder.join(target).join(outcome).join(package))
    }
}

/// The first seven digits of a digest over the init's sources, which `--version` shows where tini shows git's commit.
fn sources(root: &Path) -> Result<String> {
    let mut files = vec![root.join(LINK_SCRIPT)];
    let mut folders = vec![root.join("init/src")];
    while let Some(folder) = folders.pop() {
        let listing = fs::read_dir(&folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let paths =
            listing.with_context(|| format!("list {}", folder.display()))?.into_iter().map(|entry| entry.path());
        let (below, here): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
        folders.extend(below);
        files.extend(here);
    }
    files.sort();
    let mut text = Vec::new();
    for file in files {
        text.extend(fs::read(&file).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(Digest::of(&text).hex().chars().take(7).collect())
}
