//! Programs of an unpacked base: that what the image starts is there, and made for the image's platform. A base whose files are of
//! another machine (copied in by a build that crossed platforms) would otherwise fail only where it is run. Executes nothing.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use oci::ImageConfig;

use super::lookup::{follow, host};
use crate::elf::{self, Machine};
use crate::spec::ImageSpec;

/// A `#!` line is no longer than this (BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h).
const SHEBANG_BYTES_MAX: u64 = 256;

/// As many scripts as may interpret each other before the kernel gives up (exec_binprm, fs/exec.c).
const SCRIPTS_MAX: usize = 5;

/// Checks the base that is unpacked at `root`: every ELF file in the folders of PATH (daemons, shims, runc, the shell) is for the
/// platform of `config`, and what the entrypoint and the guards lead to is such a file, or a script that one interprets.
///
/// Error: the file, and the expected and found machine; or that a program is missing.
pub fn check(spec: &ImageSpec, root: &Path, config: &ImageConfig) -> Result<()> {
    let machine = Machine::of(config.platform())?;
    let folders: Vec<_> = config.path().unwrap_or_default().split(':').map(Path::new).collect();
    for folder in &folders {
        for program in listed(root, folder)? {
            if head(&host(root, &program))?.starts_with(elf::MAGIC) {
                check_machine(root, &program, machine)?;
            }
        }
    }
    for name in spec.guards.iter().map(String::as_str).chain(command(spec, config)) {
        check_started(root, &folders, name, machine).with_context(|| format!("start {name}"))?;
    }
    Ok(())
}

/// What the first bytes of a file tell of how it is executed.
pub fn head(file: &Path) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    let opened = File::open(file).with_context(|| format!("open {}", file.display()))?;
    opened.take(SHEBANG_BYTES_MAX).read_to_end(&mut head).with_context(|| format!("read {}", file.display()))?;
    Ok(head)
}

/// The interpreter that a script's first line names.
pub fn shebang(head: &[u8]) -> Option<&str> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()
}

/// The program that the init starts by default: the first word behind `--`, since its options may take values, or that of Cmd. Without
/// a `--`, the first word that is no option.
fn command<'a>(spec: &'a ImageSpec, config: &'a ImageConfig) -> Option<&'a str> {
    let words = spec.entrypoint.get(1..).unwrap_or_default();
    let own = match words.iter().position(|word| word == "--") {
        Some(end) => words.get(end + 1),
        None => words.iter().find(|word| !word.starts_with('-')),
    };
    let of_cmd = || match &spec.cmd {
        Some(cmd) => cmd.first().map(String::as_str),
        None => config.cmd().first().copied(),
    };
    own.map(String::as_str).or_else(of_cmd)
}

/// The regular files of a folder on PATH, as they really lie in the image.
fn listed(root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let Some(real) = regular_or_folder(root, folder).filter(|real| host(root, real).is_dir()) else {
        return Ok(Vec::new());
    };
    let list = || -> std::io::Result<Vec<_>> {
        fs::read_dir(host(root, &real))?.map(|entry| Ok(entry?.file_name())).collect()
    };
    let mut names = list().with_context(|| format!("list {}", folder.display()))?;
    names.sort();
    Ok(names.into_iter().filter_map(|name| file(root, &real.join(name))).collect())
}

/// A regular file, as it really lies in the image.
fn file(root: &Path, path: &Path) -> Option<PathBuf> {
    let is_file = |real: &PathBuf| fs::symlink_metadata(host(root, real)).is_ok_and(|found| found.is_file());
    regular_or_folder(root, path).filter(is_file)
}

fn regular_or_folder(root: &Path, path: &Path) -> Option<PathBuf> {
    // A link that loops is no program and no folder of programs: execve(2) does not find one there either.
    follow(root, path, &mut |_, _| Ok(())).ok().flatten()
}

/// Follows a name over PATH and the `#!` lines of scripts to an ELF file.
fn check_started(root: &Path, folders: &[&Path], name: &str, machine: Machine) -> Result<()> {
    let mut program = if name.contains('/') {
        file(root, Path::new(name))
    } else {
        folders.iter().find_map(|folder| file(root, &folder.join(name)))
    }
    .with_context(|| {
        format!("find program {name}: expected it in the base, found no such file (PATH {})", join(folders))
    })?;
    for _ in 0..SCRIPTS_MAX {
        let head = head(&host(root, &program))?;
        if head.starts_with(elf::MAGIC) {
            return check_machine(root, &program, machine);
        }
        let Some(interpreter) = shebang(&head) else {
            bail!("check program {}: expected an ELF file of {machine} or a script, found neither", program.display());
        };
        program = file(root, Path::new(interpreter))
            .with_context(|| format!("find the interpreter of {}: the base has no {interpreter}", program.display()))?;
    }
    bail!(
        "check program {}: expected at most {SCRIPTS_MAX} scripts that interpret each other, found more",
        program.display()
    )
}

fn check_machine(root: &Path, program: &Path, machine: Machine) -> Result<()> {
    elf::check_machine(&host(root, program), machine).with_context(|| format!("check program {}", program.display()))
}

fn join(folders: &[&Path]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use object::elf::{EM_386, EM_AARCH64, EM_X86_64, PF_R};
    use oci::{Platform, Timestamp};

    use super::*;
    use crate::elf::tests::minimal;

    const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

    /// A base of the published one's shape: the daemons in /usr/local/bin, the entrypoint a script, `/bin -> usr/bin`.
    fn base(machine: object::elf::Machine) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("make a root");
        for folder in ["usr/local/bin", "usr/bin"] {
            fs::create_dir_all(root.path().join(folder)).expect("make a folder");
        }
        symlink("usr/bin", root.path().join("bin")).expect("make a link");
        symlink("/loop", root.path().join("usr/bin/loop")).expect("make a link");
        for program in
            ["local/bin/dockerd", "local/bin/containerd", "local/bin/containerd-shim", "local/bin/runc", "bin/busybox"]
        {
            fs::write(root.path().join("usr").join(program), minimal(machine, PF_R.0)).expect("write a program");
        }
        symlink("/bin/busybox", root.path().join("usr/bin/sh")).expect("make a link");
        fs::write(root.path().join("usr/local/bin/dockerd-entrypoint.sh"), "#!/bin/sh\n").expect("write a script");
        root
    }

    fn config() -> ImageConfig {
        let platform = Platform::parse("linux/arm64/v8").expect("a platform");
        let created = Timestamp::from_epoch(1_600_000_000).expect("a time");
        ImageConfig::new(&platform, created).edit().set_env("PATH", PATH).finish()
    }

    fn check_dind(root: &Path) -> Result<(), String> {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/dind.yaml"));
        let spec = ImageSpec::parse("dind", &text.expect("read dind.yaml")).expect("a definition");
        check(&spec, root, &config()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_base_of_the_platforms_machine_passes() {
        assert_eq!(check_dind(base(EM_AARCH64).path()), Ok(()));
    }

    #[test]
    fn a_program_of_another_machine_is_named() {
        for program in
            ["usr/local/bin/dockerd", "usr/local/bin/containerd-shim", "usr/local/bin/runc", "usr/bin/busybox"]
        {
            let root = base(EM_AARCH64);
            fs::write(root.path().join(program), minimal(EM_X86_64, PF_R.0)).expect("write a program");
            let error = check_dind(root.path()).expect_err(program);
            let expected = format!("check program /{program}: ");
            assert!(
                error.contains(&expected) && error.contains("expected aarch64, found x86_64"),
                "{program}: {error}"
            );
        }
        let error = check_dind(base(EM_386).path()).expect_err("another machine altogether");
        assert!(error.contains("found e_machine 3"), "{error}");
    }

    #[test]
    fn what_is_started_must_be_there_and_lead_to_a_program() {
        let cases: [(&str, Option<&str>, &str); 4] = [
            ("usr/local/bin/dockerd-entrypoint.sh", None, "find program dockerd-entrypoint.sh"),
            ("usr/local/bin/dockerd-entrypoint.sh", Some("#!/bin/ash\n"), "the base has no /bin/ash"),
            ("usr/local/bin/dockerd", Some("dockerd"), "expected an ELF file of aarch64 or a script, found neither"),
            ("usr/bin/busybox", Some("#!/bin/sh\n"), "found more"),
        ];
        for (path, text, expected) in cases {
            let root = base(EM_AARCH64);
            fs::remove_file(root.path().join(path)).expect("remove a file");
            if let Some(text) = text {
                fs::write(root.path().join(path), text).expect("write a file");
            }
            let error = check_dind(root.path()).expect_err(expected);
            assert!(error.contains(expected), "{path}: expected {expected}, found {error}");
        }
    }
}
