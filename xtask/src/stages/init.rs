//! The static programs: builds the init (and the suite's probe) for a platform and checks what came out.
//!
//! The normal way is Rust's musl target. Where its standard library is not installed, `core` of the installed GNU target
//! serves: the init is `no_std`, so that nothing but the C library differs, and musl's own start files and libc.a are
//! linked in place of glibc's. Both ways use one linker, rust-lld.
//!
//! Same sources, same compiler, same musl: same bytes, wherever the checkout lies and whatever RUSTFLAGS says. Neither
//! the clock nor git is asked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use oci::{Digest, Platform};
use xshell::{Shell, cmd};

use crate::elf::{self, Machine};
use crate::progress::Progress;

/// The init is no larger than this, so that it costs an image nothing.
pub const INIT_BYTES_MAX: u64 = 24 << 10;

/// Separates the flags in CARGO_ENCODED_RUSTFLAGS (the cargo book, environment variables).
const FLAG_SEPARATOR: &str = "\x1f";

/// What makes the init small, and static whatever the target's habit. `noseparate-code` and `norelro` save the padding
/// between segments that a program without relocations does not need.
const FLAGS: &[&str] = &[
    "-Clinker=rust-lld",
    "-Clinker-flavor=ld.lld",
    "-Ctarget-feature=+crt-static",
    "-Crelocation-model=static",
    "-Cforce-unwind-tables=no",
    "-Clink-arg=--build-id=none",
    "-Clink-arg=--gc-sections",
    "-Clink-arg=-znorelro",
    "-Clink-arg=-znoseparate-code",
];

/// musl's start files, in the order in which they are linked; libc.a is beside them.
const START_FILES: [&str; 3] = ["crt1.o", "crti.o", "crtn.o"];

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
pub fn stage(root: &Path, platform: &Platform, progress: &Progress) -> Result<StaticProgram> {
    let stage = progress.stage("init", platform);
    let built = build(root, platform)?;
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
/// Error: no way to build for the platform (with a hint how to get one), the compiler's, or a program that is not what an
/// image may hold: another machine's, not static, or too large.
pub fn build(root: &Path, platform: &Platform) -> Result<StaticProgram> {
    let build = || {
        let machine = Machine::of(platform)?;
        let recipe = Recipe::find(root, machine)?;
        let path = recipe.cargo(root, "dind-init", "init")?;
        let built = checked(path, machine, platform)?;
        ensure!(built.size <= INIT_BYTES_MAX, "size: expected at most {INIT_BYTES_MAX} bytes, found {}", built.size);
        Ok(built)
    };
    build().with_context(|| format!("build init for {platform}"))
}

/// Builds the suite's probe, a std program, for `platform`, which is this machine's: nothing else runs it. Rust's musl
/// target where it is installed, else the GNU target, whose C library can be linked statically too. Error: as [`build`].
pub fn build_probe(root: &Path, platform: &Platform) -> Result<StaticProgram> {
    let build = || {
        let machine = Machine::of(platform)?;
        let musl = format!("{machine}-unknown-linux-musl");
        let installed = has_target(&sysroot()?, &musl);
        let target = if installed { musl } else { format!("{machine}-unknown-linux-gnu") };
        let recipe = Recipe { target, flags: vec!["-Ctarget-feature=+crt-static".to_owned()] };
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
}

impl Recipe {
    fn find(root: &Path, machine: Machine) -> Result<Self> {
        let sysroot = sysroot()?;
        let (musl, gnu) = (format!("{machine}-unknown-linux-musl"), format!("{machine}-unknown-linux-gnu"));
        let mut flags: Vec<String> = FLAGS.iter().map(ToString::to_string).collect();
        if has_target(&sysroot, &musl) {
            // std would name the library; it is not there to do so.
            flags.push("-Clink-arg=-lc".to_owned());
            return Ok(Self { target: musl, flags });
        }
        if !has_target(&sysroot, &gnu) {
            bail!(
                "find a target: expected {musl} or {gnu} in {}, found neither\nhint: rustup target add {musl}",
                sysroot.display()
            );
        }
        let libraries = musl_libraries(root, machine)?;
        flags.push(format!("-Clink-arg=-L{}", libraries.display()));
        flags.extend(START_FILES.map(|file| format!("-Clink-arg={}", libraries.join(file).display())));
        Ok(Self { target: gnu, flags })
    }

    /// Has cargo build `package`, in a target folder of its own: the lock of the default one is held while xtask runs by
    /// `cargo xtask`, and the flags would make cargo forget what it built there.
    fn cargo(&self, root: &Path, package: &str, profile: &str) -> Result<PathBuf> {
        let folder = root.join("target/static").join(package);
        let remap = format!("--remap-path-prefix={}=.", root.display());
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).chain([remap.as_str()]).collect();
        let target = &self.target;
        let shell = Shell::new()?;
        shell.change_dir(root);
        // Of all places that flags may come from this one wins, so that no other can change the program.
        shell.set_var("CARGO_ENCODED_RUSTFLAGS", flags.join(FLAG_SEPARATOR));
        shell.set_var("DIND_INIT_SOURCES", sources(root)?);
        let built = cmd!(
            shell,
            "cargo build --quiet --locked --package {package} --bin {package} --target {target} --profile {profile} --target-dir {folder}"
        );
        built.quiet().run()?;
        // The one profile whose folder is not called like it.
        let outcome = if profile == "dev" { "debug" } else { profile };
        Ok(folder.join(target).join(outcome).join(package))
    }
}

/// The folder with the compiler's targets.
fn sysroot() -> Result<PathBuf> {
    let shell = Shell::new()?;
    Ok(cmd!(shell, "rustc --print sysroot").quiet().read().context("find the compiler's targets")?.into())
}

fn has_target(sysroot: &Path, target: &str) -> bool {
    sysroot.join("lib/rustlib").join(target).join("lib").is_dir()
}

/// The first seven digits of a digest over the init's sources, which `--version` shows where tini shows git's commit.
fn sources(root: &Path) -> Result<String> {
    let mut files = Vec::new();
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

/// The folder with musl's start files and libc.a: the system's, or one that is downloaded once and kept below `target/`.
fn musl_libraries(root: &Path, machine: Machine) -> Result<PathBuf> {
    let below = format!("usr/lib/{machine}-linux-musl");
    let downloaded = root.join("target/toolchain").join(format!("musl-{machine}"));
    for candidate in [Path::new("/").join(&below), downloaded.join(&below)] {
        if candidate.join("libc.a").is_file() && START_FILES.iter().all(|file| candidate.join(file).is_file()) {
            return Ok(candidate);
        }
    }
    download_musl(&downloaded, machine).with_context(|| {
        format!(
            "find musl for {machine}: not in /{below}, and no Debian package to be had\n\
             hint: cargo xtask setup, or rustup target add {machine}-unknown-linux-musl"
        )
    })?;
    Ok(downloaded.join(below))
}

/// Unpacks Debian's musl-dev at `folder`, which appears complete or not at all; root is not needed.
fn download_musl(folder: &Path, machine: Machine) -> Result<()> {
    let architecture = match machine {
        Machine::X86_64 => "amd64",
        Machine::Aarch64 => "arm64",
    };
    let shell = Shell::new()?;
    let partial = folder.with_extension("partial");
    shell.remove_path(&partial)?;
    shell.create_dir(partial.join("package"))?;
    shell.change_dir(partial.join("package"));
    cmd!(shell, "apt-get download --quiet musl-dev:{architecture}").quiet().ignore_stdout().run()?;
    let packages = shell.read_dir(partial.join("package"))?;
    for package in packages {
        cmd!(shell, "dpkg-deb --extract {package} {partial}").quiet().run()?;
    }
    shell.remove_path(folder)?;
    fs::rename(&partial, folder).with_context(|| format!("keep {}", folder.display()))
}
