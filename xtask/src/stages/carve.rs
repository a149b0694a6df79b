//! Carving: which files of an unpacked base a program needs, followed through symlinks, ELF needs and `#!` lines.
//! Reads the root file system below one folder and never leaves it; writes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use oci::Permissions;

use super::contents::{Contents, Entry};
use super::lookup::{follow, host};
use super::programs;
use crate::elf;
use crate::spec::CarveSpec;

/// The folders in which ld.so (glibc with Debian's multiarch, musl) looks without being told, by ELF machine.
fn library_folders(machine: elf::Machine) -> &'static [&'static str] {
    match machine {
        elf::Machine::X86_64 => &[
            "/lib/x86_64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu",
            "/lib64",
            "/usr/lib64",
            "/lib",
            "/usr/local/lib",
            "/usr/lib",
        ],
        elf::Machine::Aarch64 => &[
            "/lib/aarch64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/lib64",
            "/usr/lib64",
            "/lib",
            "/usr/local/lib",
            "/usr/lib",
        ],
    }
}

/// Collects what `spec` names below `root`, and what that needs. Error: a required path is missing, a program's library or
/// interpreter is missing, links loop, or a file is of a kind that a carved layer does not hold.
pub fn carve(root: &Path, spec: &CarveSpec) -> Result<Contents> {
    let mut carver = Carver { root, contents: Contents::new(), examined: BTreeSet::new(), queue: VecDeque::new() };
    for path in &spec.required {
        ensure!(carver.take(path)?, "carve {path}: the base has no such path");
    }
    for path in &spec.optional {
        carver.take(path)?;
    }
    while let Some(need) = carver.queue.pop_front() {
        carver.satisfy(need)?;
    }
    link_names(&mut carver.contents)?;
    Ok(carver.contents)
}

/// Turns the further names of a file into hard links to its first, which the sorted layer holds before them.
fn link_names(contents: &mut Contents) -> Result<()> {
    let mut first_names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    for (path, entry) in contents.iter_mut() {
        let Entry::File { permissions, source, .. } = entry else { continue };
        let metadata = fs::symlink_metadata(&*source).with_context(|| format!("look at {}", path.display()))?;
        let first = first_names.entry((metadata.dev(), metadata.ino())).or_insert_with(|| path.clone());
        if first != path {
            *entry = Entry::HardLink { permissions: *permissions, target: first.clone() };
        }
    }
    Ok(())
}

struct Carver<'a> {
    root: &'a Path,
    contents: Contents,
    examined: BTreeSet<PathBuf>,
    queue: VecDeque<Need>,
}

/// Something that a program needs in order to start.
enum Need {
    /// The interpreter of an ELF file or a script.
    Interpreter { path: String, of: PathBuf },
    /// A library, by soname.
    Library { soname: String, of: PathBuf, machine: elf::Machine, runpath: Vec<String> },
}

impl Carver<'_> {
    /// Takes a path of the definition, and everything below it where it ends in `/`. False: the base does not have it.
    fn take(&mut self, path: &str) -> Result<bool> {
        let Some(real) = self.add(Path::new(path)).with_context(|| format!("carve {path}"))? else { return Ok(false) };
        if path.ends_with('/') {
            self.add_below(&real).with_context(|| format!("carve {path}"))?;
        }
        Ok(true)
    }

    fn add_below(&mut self, folder: &Path) -> Result<()> {
        let listing = fs::read_dir(self.host(folder)).with_context(|| format!("list {}", folder.display()))?;
        let mut names: Vec<_> =
            listing.map(|entry| entry.map(|entry| entry.file_name())).collect::<std::io::Result<_>>()?;
        names.sort();
        for name in names {
            let path = folder.join(name);
            let metadata =
                fs::symlink_metadata(self.host(&path)).with_context(|| format!("look at {}", path.display()))?;
            if metadata.is_symlink() {
                // A link to nowhere is carved as it is: the base has it too.
                self.add(&path)?;
                continue;
            }
            if let Some(real) = self.add(&path)?
                && metadata.is_dir()
            {
                self.add_below(&real)?;
            }
        }
        Ok(())
    }

    /// Adds a path with its parents and every link on the way, and returns where it really lies; none: it is not there.
    fn add(&mut self, path: &Path) -> Result<Option<PathBuf>> {
        let root = self.root;
        let Some(here) = follow(root, path, &mut |step, metadata| self.record(step, metadata))? else {
            return Ok(None);
        };
        self.examine(&here)?;
        Ok(Some(here))
    }

    fn record(&mut self, path: &Path, metadata: &fs::Metadata) -> Result<()> {
        let permissions = Permissions { mode: metadata.mode() & 0o7777, uid: metadata.uid(), gid: metadata.gid() };
        let kind = metadata.file_type();
        let entry = if kind.is_dir() {
            Entry::Directory(permissions)
        } else if kind.is_symlink() {
            let target = fs::read_link(self.host(path)).with_context(|| format!("read link {}", path.display()))?;
            Entry::Symlink { target }
        } else if kind.is_file() {
            Entry::File { permissions, source: self.host(path), size: metadata.len() }
        } else {
            let what = if kind.is_socket() { "socket" } else { "device or fifo" };
            bail!("carve {}: expected a file, folder or link, found a {what}", path.display());
        };
        self.contents.insert(path.to_owned(), entry);
        Ok(())
    }

    /// Queues what the file at `path` needs, once.
    fn examine(&mut self, path: &Path) -> Result<()> {
        let host = self.host(path);
        if !host.is_file() || !self.examined.insert(path.to_owned()) {
            return Ok(());
        }
        let head = programs::head(&host)?;
        if let Some(interpreter) = programs::shebang(&head) {
            self.queue.push_back(Need::Interpreter { path: interpreter.to_owned(), of: path.to_owned() });
        }
        if !head.starts_with(elf::MAGIC) {
            return Ok(());
        }
        let needs = elf::dependencies(&host).with_context(|| format!("read what {} needs", path.display()))?;
        if let Some(interpreter) = needs.interpreter {
            self.queue.push_back(Need::Interpreter { path: interpreter, of: path.to_owned() });
        }
        for soname in needs.needed {
            let runpath = needs.runpath.clone();
            self.queue.push_back(Need::Library { soname, of: path.to_owned(), machine: needs.machine, runpath });
        }
        Ok(())
    }

    fn satisfy(&mut self, need: Need) -> Result<()> {
        match need {
            Need::Interpreter { path, of } => {
                let found = self.add(Path::new(&path))?;
                ensure!(found.is_some(), "carve {}: its interpreter {path} is not in the base", of.display());
            }
            Need::Library { soname, of, machine, runpath } => {
                let origin = of.parent().unwrap_or(Path::new("/")).display().to_string();
                let own = runpath.iter().map(|folder| folder.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin));
                let folders: Vec<String> =
                    own.chain(library_folders(machine).iter().map(ToString::to_string)).collect();
                for folder in &folders {
                    let candidate = Path::new(folder).join(&soname);
                    // Looked up before it is added, so that a wrong folder's links are not carved.
                    if matches!(follow(self.root, &candidate, &mut |_, _| Ok(())), Ok(Some(_))) {
                        self.add(&candidate)?;
                        return Ok(());
                    }
                }
                bail!("carve {}: its library {soname} is in none of {}", of.display(), folders.join(", "));
            }
        }
        Ok(())
    }

    fn host(&self, path: &Path) -> PathBuf {
        host(self.root, path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn spec(required: &[&str], optional: &[&str]) -> CarveSpec {
        let owned = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
        CarveSpec { required: owned(required), optional: owned(optional) }
    }

    /// `/bin -> usr/bin`, a script there that names `/bin/sh`, an absolute link, and a folder with files.
    fn base() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("make a root");
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("usr/bin")).expect("make a folder");
        fs::create_dir_all(at("etc/certs/old")).expect("make a folder");
        symlink("usr/bin", at("bin")).expect("make a link");
        fs::write(at("usr/bin/tool"), "#!/bin/sh -e\n").expect("write a script");
        fs::write(at("usr/bin/shell"), "not really a program").expect("write a file");
        symlink("/usr/bin/shell", at("usr/bin/sh")).expect("make a link");
        symlink("loop", at("loop")).expect("make a link");
        fs::write(at("etc/certs/a"), "a").expect("write a file");
        fs::hard_link(at("etc/certs/a"), at("etc/certs/old/a")).expect("make a hard link");
        root
    }

    fn check(required: &[&str], expected: &[&str]) {
        let root = base();
        let contents = carve(root.path(), &spec(required, &["/absent"])).expect("carve");
        let found: Vec<_> = contents.keys().map(|path| path.display().to_string()).collect();
        assert_eq!(found, expected, "{required:?}");
    }

    #[test]
    fn links_and_interpreters_are_followed() {
        check(&["/bin/tool"], &["/bin", "/usr", "/usr/bin", "/usr/bin/sh", "/usr/bin/shell", "/usr/bin/tool"]);
        check(&["/usr/bin/shell"], &["/usr", "/usr/bin", "/usr/bin/shell"]);
    }

    #[test]
    fn a_trailing_slash_brings_what_lies_below() {
        check(&["/etc/certs"], &["/etc", "/etc/certs"]);
        check(&["/etc/certs/"], &["/etc", "/etc/certs", "/etc/certs/a", "/etc/certs/old", "/etc/certs/old/a"]);
    }

    #[test]
    fn a_second_name_of_a_file_is_a_hard_link() {
        let root = base();
        let contents = carve(root.path(), &spec(&["/etc/certs/old/a", "/etc/certs/a"], &[])).expect("carve");
        assert!(matches!(contents.get(Path::new("/etc/certs/a")), Some(Entry::File { .. })));
        assert!(
            matches!(contents.get(Path::new("/etc/certs/old/a")), Some(Entry::HardLink { target, .. }) if target == Path::new("/etc/certs/a"))
        );
    }

    #[test]
    fn what_cannot_be_carved_says_why() {
        for (path, expected) in [("/nowhere", "no such path"), ("/loop", "more than 40 links")] {
            let error = format!("{:#}", carve(base().path(), &spec(&[path], &[])).expect_err(path));
            assert!(error.contains(expected), "{path}: {error}");
        }
    }
}
