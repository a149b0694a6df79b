//! Where things lie: from the files of Debian's packages to the places of the official image (facts: its Dockerfiles of July 2021
//! and May 2023). Reads the unpacked packages, writes only the few files that maintainer scripts would have made.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use oci::Permissions;

use super::places::{
    ADMINISTRATION, DIRECTORIES, DOCKER, IPTABLES, KEPT, LEFT_OUT, LEGACY_FOLDER, NO_APPLETS, PROGRAMS,
};
use super::scripts::{SCRIPTS, script};
use crate::spec::Flavour;
use crate::stages::contents::{Contents, Entry};

/// The unpacked packages, and a folder for the files that are made from them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources<'a> {
    /// Made by `Selection::unpack`.
    pub(super) packages: &'a Path,
    /// Written to; must outlive the contents, whose entries name files in it.
    pub(super) made: &'a Path,
}

/// The layers of an image, lowest first, except for the flavour's.
#[derive(Debug)]
pub(super) struct Arrangement {
    /// Debian's part.
    pub(super) system: Contents,
    /// dockerd's programs.
    pub(super) docker: Contents,
    /// containerd's and runc's.
    pub(super) containerd: Contents,
}

impl Arrangement {
    /// Sorts the packages' files into layers and adds what maintainer scripts would have made.
    pub(super) fn new(sources: Sources<'_>) -> Result<Self> {
        let mut found = Contents::new();
        walk(sources.packages, Path::new(""), &mut found)?;
        let mut arranged = Self { system: Contents::new(), docker: Contents::new(), containerd: Contents::new() };
        for (path, entry) in found {
            let text = path.to_str().with_context(|| format!("arrange {}: the name is not UTF-8", path.display()))?;
            if let Some((_, layer)) = PROGRAMS.iter().find(|(from, _)| *from == text) {
                let layer = if *layer == DOCKER { &mut arranged.docker } else { &mut arranged.containerd };
                layer.insert(program_place(text), entry);
            } else if is_kept(text) {
                arranged.system.insert(absolute(text), entry);
            }
        }
        for (from, _) in PROGRAMS {
            let place = program_place(from);
            if !arranged.docker.contains_key(&place) && !arranged.containerd.contains_key(&place) {
                bail!("arrange {from}: no package brought it");
            }
        }
        for &(path, mode) in DIRECTORIES {
            arranged.system.insert(absolute(path), Entry::Directory(Permissions::root(mode)));
        }
        link_iptables(&mut arranged.system);
        make_configuration(sources, &mut arranged.system)?;
        link_applets(sources.packages, &mut arranged.system)?;
        for layer in [&mut arranged.system, &mut arranged.docker, &mut arranged.containerd] {
            add_parents(layer);
        }
        Ok(arranged)
    }

    /// The topmost layer: scripts, the remapped user, and the folders for certificates.
    pub(super) fn flavour(flavour: Flavour, sources: Sources<'_>) -> Result<Contents> {
        let name = match flavour {
            Flavour::Pre => "pre",
            Flavour::Post => "post",
        };
        let made = sources.made.join(name);
        let mut contents = Contents::new();
        for (name, _) in SCRIPTS {
            make(&made, &mut contents, &format!("usr/local/bin/{name}"), 0o755, script(name, flavour).as_bytes())?;
        }
        let masters = sources.packages.join("usr/share/base-passwd");
        let passwd = account_file(&masters.join("passwd.master"))?
            + "dockremap:x:100:101:Linux User:/home/dockremap:/sbin/nologin\n";
        let group = account_file(&masters.join("group.master"))? + "dockremap:x:101:dockremap\n";
        make(&made, &mut contents, "etc/passwd", 0o644, passwd.as_bytes())?;
        make(&made, &mut contents, "etc/group", 0o644, group.as_bytes())?;
        for name in ["subuid", "subgid"] {
            make(&made, &mut contents, &format!("etc/{name}"), 0o644, b"dockremap:165536:65536\n")?;
        }
        for folder in ["certs", "certs/client"] {
            contents.insert(absolute(folder), Entry::Directory(Permissions::root(0o1777)));
        }
        add_parents(&mut contents);
        Ok(contents)
    }
}

/// The newest time that a package gives to a file of its own, in seconds since 1970: as reproducible as the packages.
pub(super) fn newest(packages: &Path) -> Result<u64> {
    let mut newest = 0;
    let mut folders = vec![packages.join("usr")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                newest = newest.max(u64::try_from(metadata.mtime()).unwrap_or(0));
            }
        }
    }
    Ok(newest)
}

fn walk(root: &Path, folder: &Path, found: &mut Contents) -> Result<()> {
    let place = root.join(folder);
    for entry in fs::read_dir(&place).with_context(|| format!("list {}", place.display()))? {
        let entry = entry.with_context(|| format!("list {}", place.display()))?;
        let path = folder.join(entry.file_name());
        let metadata = entry.metadata().with_context(|| format!("look at {}", entry.path().display()))?;
        let permissions = Permissions { mode: metadata.mode() & 0o7777, uid: metadata.uid(), gid: metadata.gid() };
        if metadata.is_dir() {
            walk(root, &path, found)?;
            found.insert(path, Entry::Directory(permissions));
        } else if metadata.is_symlink() {
            let target =
                fs::read_link(entry.path()).with_context(|| format!("read link {}", entry.path().display()))?;
            found.insert(path, Entry::Symlink { target });
        } else if metadata.is_file() {
            found.insert(path, Entry::File { permissions, source: entry.path(), size: metadata.len() });
        }
        // Devices are mmdebstrap's; a container's runtime makes its own.
    }
    Ok(())
}

fn is_kept(path: &str) -> bool {
    let below = |folder: &&str| path == *folder || path.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/'));
    let copyright = path.starts_with("usr/share/doc/") && path.ends_with("/copyright");
    copyright || (KEPT.iter().any(below) && !LEFT_OUT.iter().any(below))
}

/// /usr/local/bin, and docker-init for what Debian calls tini-static.
fn program_place(from: &str) -> PathBuf {
    let name = from.rsplit('/').next().unwrap_or(from);
    Path::new("/usr/local/bin").join(if name == "tini-static" { "docker-init" } else { name })
}

fn absolute(path: &str) -> PathBuf {
    Path::new("/").join(path)
}

fn add_parents(contents: &mut Contents) {
    let parents: Vec<_> = contents.keys().flat_map(|path| path.ancestors().skip(1).map(Path::to_owned)).collect();
    for parent in parents.into_iter().filter(|parent| parent != Path::new("/")) {
        contents.entry(parent).or_insert(Entry::Directory(Permissions::root(0o755)));
    }
}

fn make(folder: &Path, contents: &mut Contents, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
    let source = folder.join(path);
    let parent = source.parent().unwrap_or(folder);
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    fs::write(&source, bytes).with_context(|| format!("write {}", source.display()))?;
    contents
        .insert(absolute(path), Entry::File { permissions: Permissions::root(mode), source, size: bytes.len() as u64 });
    Ok(())
}

fn link(contents: &mut Contents, path: &str, target: &str) {
    contents.insert(absolute(path), Entry::Symlink { target: target.into() });
}

fn link_iptables(system: &mut Contents) {
    for name in IPTABLES {
        link(system, &format!("usr/sbin/{name}"), "xtables-nft-multi");
        link(system, &format!("{LEGACY_FOLDER}/{name}"), "/usr/sbin/xtables-legacy-multi");
    }
}

/// Accounts, name service, certificates, and links of /var: base-files', base-passwd's and ca-certificates' postinst.
fn make_configuration(sources: Sources<'_>, system: &mut Contents) -> Result<()> {
    let made = sources.made.join("system");
    let share = sources.packages.join("usr/share");
    for name in ["passwd", "group"] {
        let accounts = account_file(&share.join(format!("base-passwd/{name}.master")))?;
        make(&made, system, &format!("etc/{name}"), 0o644, accounts.as_bytes())?;
    }
    make(&made, system, "etc/nsswitch.conf", 0o644, b"hosts: files dns\n")?;
    // Empty: whoever needs an identity makes one (machine-id(5)).
    make(&made, system, "etc/machine-id", 0o444, b"")?;
    let certificates = bundle(&share.join("ca-certificates"))?;
    make(&made, system, "etc/ssl/certs/ca-certificates.crt", 0o644, &certificates)?;
    link(system, "etc/ssl/cert.pem", "certs/ca-certificates.crt");
    link(system, "usr/lib/ssl/cert.pem", "/etc/ssl/cert.pem");
    link(system, "var/run", "/run");
    link(system, "var/lock", "/run/lock");
    Ok(())
}

/// A master file of base-passwd, with the image's only shell.
fn account_file(master: &Path) -> Result<String> {
    let text = fs::read_to_string(master).with_context(|| format!("read {}", master.display()))?;
    Ok(text.replace(":/bin/bash\n", ":/bin/sh\n"))
}

/// All certificates below a folder, in the order of their names.
fn bundle(folder: &Path) -> Result<Vec<u8>> {
    let mut found = Contents::new();
    walk(folder, Path::new(""), &mut found)?;
    let mut bytes = Vec::new();
    for entry in found.values() {
        if let Entry::File { source, .. } = entry {
            bytes.extend(fs::read(source).with_context(|| format!("read {}", source.display()))?);
        }
    }
    Ok(bytes)
}

/// Links each applet of busybox where no program has its name.
fn link_applets(packages: &Path, system: &mut Contents) -> Result<()> {
    let path = packages.join("usr/bin/busybox");
    let program = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let names = applets(&program).with_context(|| format!("read {}: no table of applets in it", path.display()))?;
    for name in names.iter().filter(|name| !NO_APPLETS.contains(&name.as_str())) {
        let administration = ADMINISTRATION.contains(&name.as_str());
        let held =
            ["usr/bin", "usr/sbin"].iter().any(|folder| system.contains_key(&absolute(&format!("{folder}/{name}"))));
        match (held, administration) {
            (true, _) => {}
            (false, true) => link(system, &format!("usr/sbin/{name}"), "../bin/busybox"),
            (false, false) => link(system, &format!("usr/bin/{name}"), "busybox"),
        }
    }
    Ok(())
}

/// The applets of a busybox, from the sorted table of names in its read-only data (busybox `include/applet_tables.h`), which
/// begins with `[` and `[[` and ends with an empty name: no program of another architecture has to be run.
fn applets(program: &[u8]) -> Option<Vec<String>> {
    const BEGIN: &[u8] = b"\0[\0[[\0";
    let begin = program.windows(BEGIN.len()).position(|window| window == BEGIN)? + 1;
    let names = program[begin..].split(|byte| *byte == 0).take_while(|name| !name.is_empty());
    names.map(|name| String::from_utf8(name.to_vec()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_the_image_has() {
        for (path, kept) in [
            ("bin", true),
            ("usr/sbin/xtables-nft-multi", true),
            ("usr/lib/x86_64-linux-gnu/libc.so.6", true),
            ("usr/lib/x86_64-linux-gnu/gconv/UTF-16.so", false),
            ("usr/lib/systemd/system/docker.service", false),
            ("usr/bin/w", false),
            ("usr/bin/which", true),
            ("usr/share/doc/runc/copyright", true),
            ("usr/share/doc/runc/changelog.Debian.gz", false),
            ("etc/hostname", false),
            ("etc/default/docker", false),
            ("var/lib/dpkg/status", false),
        ] {
            assert_eq!(is_kept(path), kept, "{path}");
        }
    }

    #[test]
    fn applets_come_from_the_table_in_the_program() {
        let program = b"\x7fELF [\0 junk\0[\0[[\0ash\0cat\0\0more\0";
        assert_eq!(applets(program).unwrap(), ["[", "[[", "ash", "cat"]);
        assert_eq!(applets(b"\x7fELF no table"), None);
    }

    #[test]
    fn every_entry_has_its_parents() {
        let mut contents = Contents::new();
        link(&mut contents, "usr/local/bin/x", "y");
        add_parents(&mut contents);
        let paths: Vec<_> = contents.keys().map(|path| path.display().to_string()).collect();
        assert_eq!(paths, ["/usr", "/usr/local", "/usr/local/bin", "/usr/local/bin/x"]);
    }
}
