//! Where the compiler of the init comes from, and with it `core` and musl. Decides nothing about how a program is linked.
//!
//! The normal way is Rust's musl target. Where its standard library is not installed, `core` of an installed GNU target
//! serves: the init is `no_std`, so that nothing but the C library differs, and musl's own start files and libc.a are linked in
//! place of glibc's. Where that is not installed either, Debian's compiler and its `core` do: packages unpacked below
//! `target/`, for which neither root nor anything of the host's apt is needed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use oci::{Interrupt, Platform};
use xshell::{Shell, cmd};

use crate::apt::{self, Apt};
use crate::elf::Machine;
use crate::program;
use crate::shared::take_turn;

/// musl's start files, in the order in which they are linked; libc.a is beside them.
const START_FILES: [&str; 3] = ["crt1.o", "crti.o", "crtn.o"];

/// The Debian release of the packages. Its security archive brings the compiler that the current browser needs, so that it
/// is a recent one, and it is built for the C library that the release has, so that it runs on later ones, too.
const SUITE: &str = "bookworm";

/// Brings the compiler, and by what it depends on its libraries and this machine's standard library.
const COMPILER: &str = "rustc-web";

/// The standard library, whose package has the compiler's version.
const STANDARD_LIBRARY: &str = "libstd-rust-web-dev";

/// What is not downloaded: a machine with cargo links its own programs already, and these libraries are apt's own.
const ASSUMED: &[&str] =
    &["binutils", "gcc", "libc-dev", "libc6", "libgcc-s1", "liblzma5", "libstdc++6", "libzstd1", "zlib1g"];

/// A compiler for one machine.
#[derive(Debug)]
pub(super) struct Toolchain {
    /// The target as rustc names it.
    pub(super) target: String,
    /// rust-lld, which links for every machine.
    pub(super) linker: PathBuf,
    /// The folder with musl's start files and libc.a; none where the target brings its own.
    musl: Option<PathBuf>,
    /// What cargo needs in its environment to use this compiler.
    pub(super) variables: Vec<(&'static str, OsString)>,
}

impl Toolchain {
    /// The compiler for `machine`; says what it waits for. Error: there is none, and Debian's packages cannot be had.
    pub(super) fn find(
        root: &Path,
        machine: Machine,
        interrupt: &Interrupt,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let installed = Installed::find()?;
        let linker = installed.linker();
        let (musl, gnu) = (format!("{machine}-unknown-linux-musl"), format!("{machine}-unknown-linux-gnu"));
        if installed.has(&musl) {
            return Ok(Self { target: musl, linker, musl: None, variables: Vec::new() });
        }
        let below = format!("usr/lib/{machine}-linux-musl");
        let mut store = Store { home: root.join("target/toolchain"), interrupt, doing };
        if installed.has(&gnu) {
            let on_host = Path::new("/").join(&below);
            let libraries = if is_musl(&on_host) { on_host } else { store.musl(machine)?.join(below) };
            return Ok(Self { target: gnu, linker, musl: Some(libraries), variables: Vec::new() });
        }
        let host = Machine::of(&Platform::host())?;
        let unpacked = store.compiler(machine, host)?;
        let libraries = ["usr/lib", "lib"].map(|folder| unpacked.join(format!("{folder}/{host}-linux-gnu")));
        let variables = vec![
            ("RUSTC", unpacked.join("usr/bin/rustc").into_os_string()),
            ("LD_LIBRARY_PATH", std::env::join_paths(libraries).context("name the compiler's libraries")?),
        ];
        Ok(Self { target: gnu, linker, musl: Some(unpacked.join(below)), variables })
    }

    /// The linker's arguments that name the C library.
    pub(super) fn c_library(&self) -> Vec<String> {
        match &self.musl {
            // std would name the library; it is not there to do so.
            None => vec!["-lc".to_owned()],
            Some(folder) => {
                let files = START_FILES.map(|file| folder.join(file).display().to_string());
                [format!("-L{}", folder.display())].into_iter().chain(files).collect()
            }
        }
    }
}

/// The compiler that cargo uses by itself.
#[derive(Debug)]
pub(super) struct Installed {
    /// The folder with a folder of each target.
    targets: PathBuf,
    /// The folder of this machine's target.
    host: PathBuf,
}

impl Installed {
    /// Asks rustc. Error: it is not there.
    pub(super) fn find() -> Result<Self> {
        let shell = Shell::new()?;
        let libraries = cmd!(shell, "rustc --print target-libdir").quiet().read().context("find the compiler")?;
        let host = Path::new(&libraries).parent().context("find the compiler: its libraries lie in the root")?;
        let targets = host.parent().context("find the compiler: its target lies in the root")?;
        Ok(Self { targets: targets.to_owned(), host: host.to_owned() })
    }

    /// Whether there is a standard library for `target`.
    pub(super) fn has(&self, target: &str) -> bool {
        self.targets.join(target).join("lib").is_dir()
    }

    fn linker(&self) -> PathBuf {
        self.host.join("bin/rust-lld")
    }
}

fn is_musl(folder: &Path) -> bool {
    folder.join("libc.a").is_file() && START_FILES.iter().all(|file| folder.join(file).is_file())
}

fn debian_architecture(machine: Machine) -> &'static str {
    match machine {
        Machine::X86_64 => "amd64",
        Machine::Aarch64 => "arm64",
    }
}

/// Folders of unpacked packages; each is complete or absent.
struct Store<'a> {
    home: PathBuf,
    interrupt: &'a Interrupt,
    doing: &'a mut dyn FnMut(&str),
}

impl Store<'_> {
    /// The folder with musl for `machine`.
    fn musl(&mut self, machine: Machine) -> Result<PathBuf> {
        let architecture = debian_architecture(machine);
        self.folder("musl", machine, architecture, |packages| packages.download("musl-dev"))
    }

    /// The folder with a compiler that runs on `host`, for `machine`.
    fn compiler(&mut self, machine: Machine, host: Machine) -> Result<PathBuf> {
        let (from, to) = (debian_architecture(host), debian_architecture(machine));
        self.folder("rust", machine, &format!("{from},{to}"), |packages| {
            packages.download_whole(COMPILER)?;
            // Another version's library would not do.
            let version = packages.version(STANDARD_LIBRARY)?;
            packages.download(&format!("{STANDARD_LIBRARY}:{to}={version}"))?;
            packages.download(&format!("musl-dev:{to}"))
        })
    }

    /// The folder `name` of `machine`; where it is not there, `download` gets what it holds.
    fn folder(
        &mut self,
        name: &str,
        machine: Machine,
        architectures: &str,
        download: impl FnOnce(&Packages) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = self.home.join(format!("{name}-{machine}"));
        if folder.is_dir() {
            return Ok(folder);
        }
        fs::create_dir_all(&self.home).with_context(|| format!("create {}", self.home.display()))?;
        let doing = &mut *self.doing;
        let _turn = take_turn(&self.home.join("lock"), self.interrupt, &mut || doing("waiting for another run"))?;
        if folder.is_dir() {
            return Ok(folder);
        }
        // Also what a killed run left.
        let partial = self.home.join("partial");
        remove(&partial)?;
        let packages = Packages::new(partial.join("apt"), architectures, self.interrupt);
        doing(&format!("fetching {name} from Debian"));
        packages.update().and_then(|()| download(&packages)).or_else(|error| {
            self.interrupt.check()?;
            bail!(
                "fetch {name} for {machine} from Debian: {error:#}\n\
                 hint: rustup target add {machine}-unknown-linux-musl does without deb.debian.org"
            )
        })?;
        doing(&format!("unpacking {name}"));
        let root = partial.join("root");
        packages.unpack(&root)?;
        fs::rename(&root, &folder).with_context(|| format!("move {} into place", folder.display()))?;
        remove(&partial)?;
        Ok(folder)
    }
}

/// Packages that are being downloaded, by an apt of their own.
struct Packages<'a> {
    apt: Apt,
    interrupt: &'a Interrupt,
}

impl<'a> Packages<'a> {
    fn new(home: PathBuf, architectures: &str, interrupt: &'a Interrupt) -> Self {
        let own = architectures.split(',').next().unwrap_or_default();
        let apt = Apt {
            lists: home.join("lists"),
            home,
            sources: apt::archive(SUITE),
            status: apt::assumed_status(ASSUMED, own),
            architectures: architectures.to_owned(),
        };
        Self { apt, interrupt }
    }

    fn apt(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.apt.command()?;
        command.args(arguments);
        program::run(command, self.interrupt, &mut |_| {})
    }

    fn update(&self) -> Result<()> {
        let lists = self.apt.lists.join("partial");
        fs::create_dir_all(&lists).with_context(|| format!("create {}", lists.display()))?;
        self.apt(&["update", "--error-on=any"])
    }

    /// A package without what it depends on.
    fn download(&self, package: &str) -> Result<()> {
        self.apt(&["download", package])
    }

    /// A package with what it depends on.
    fn download_whole(&self, package: &str) -> Result<()> {
        self.apt(&["install", "--yes", "--download-only", package])
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        let files = Shell::new()?.read_dir(self.apt.packages())?;
        Ok(files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect())
    }

    /// The version of a package that is here.
    fn version(&self, package: &str) -> Result<String> {
        let start = format!("{package}_");
        let files = self.files()?;
        let file =
            files.iter().find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)));
        let file = file.with_context(|| format!("find the version of {package}: apt did not download it"))?;
        let shell = Shell::new()?;
        Ok(cmd!(shell, "dpkg-deb --field {file} Version").quiet().read()?)
    }

    fn unpack(&self, root: &Path) -> Result<()> {
        for file in self.files()? {
            let mut command = Command::new("dpkg-deb");
            command.arg("--extract").args([&file, root]);
            program::run(command, self.interrupt, &mut |_| {})?;
        }
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}
