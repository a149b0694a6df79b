//! The directory that layers are unpacked into. Each path is resolved by the kernel with the directory as root
//! (`openat2(2)`, `RESOLVE_IN_ROOT`), so that no link leads out; the last name is never followed. A directory's time
//! is what its own entry says, whatever comes and goes within it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    fstat, futimens, linkat, lsetxattr, makedev, mkdirat, mknodat, openat, openat2, statat, symlinkat, unlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::path::EntryPath;
use crate::archive::{Entry, Kind};
use crate::error::{Error, Result};

/// How often a path is resolved anew when the kernel says that a rename elsewhere disturbed it (`openat2(2)`, EAGAIN).
const RESOLVE_ATTEMPTS_MAX: u32 = 128;
/// The mode of directories that a layer relies on and no layer declares.
const UNDECLARED_MODE: u32 = 0o755;
/// How much of a file is copied at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// The root of an unpacked image.
pub(super) struct Tree {
    root: OwnedFd,
}

/// A directory of the tree whose content is about to change, and its times from before.
struct Parent {
    dir: OwnedFd,
    times: Timestamps,
}

impl Tree {
    pub(super) fn open(root: &Path) -> Result<Self> {
        let root_fd = openat(rustix::fs::CWD, root, DIRECTORY, Mode::empty());
        Ok(Self { root: root_fd.map_err(|errno| Error::io(format!("open {}", root.display()))(errno.into()))? })
    }

    /// Puts an entry at `path`, in the place of what is there; a directory only takes over the metadata. `write` gives the
    /// content of a file.
    pub(super) fn put(
        &self,
        path: &EntryPath,
        entry: &Entry,
        link: Option<&EntryPath>,
        write: impl FnOnce(&mut fs::File) -> Result<()>,
    ) -> Result<()> {
        let Some((parents, name)) = path.split() else {
            if entry.kind != Kind::Directory {
                return Err(refused(path, "would replace the root"));
            }
            let root = self.root.try_clone().map_err(Error::io("open the root"))?;
            return set_metadata(&root, OsStr::new("."), path, entry);
        };
        let parent = self.parent(parents, path)?;
        clear(&parent.dir, name, entry.kind == Kind::Directory).map_err(failed("replace", path))?;
        let dir = &parent.dir;
        let created = match &entry.kind {
            Kind::File { .. } => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(dir, name, flags, Mode::from(0o600)).map_err(failed("create", path))?;
                write(&mut fs::File::from(file))?;
                Ok(())
            }
            Kind::HardLink { .. } => {
                let target = link.ok_or_else(|| refused(path, "is a hard link without a target"))?;
                self.hard_link(target, dir, name, path)?;
                // The metadata are the target's, set with it.
                return parent.restore().map_err(failed("set times above", path));
            }
            Kind::Directory => create_directory(dir, name),
            Kind::Symlink { target } => symlinkat(target.as_slice(), dir, name),
            Kind::Fifo => create_node(dir, name, FileType::Fifo, (0, 0)),
            Kind::CharacterDevice { major, minor } => {
                create_node(dir, name, FileType::CharacterDevice, (*major, *minor))
            }
            Kind::BlockDevice { major, minor } => create_node(dir, name, FileType::BlockDevice, (*major, *minor)),
        };
        created.map_err(failed("create", path))?;
        set_metadata(dir, name, path, entry)?;
        parent.restore().map_err(failed("set times above", path))
    }

    /// Removes what is at `path`, with all below it. Nothing there is no error: a whiteout may hide nothing.
    pub(super) fn remove(&self, path: &EntryPath) -> Result<()> {
        let Some((parents, name)) = path.split() else { return Ok(()) };
        let Some(dir) = self.existing(parents).map_err(failed("find", path))? else { return Ok(()) };
        let parent = Parent::new(dir).map_err(failed("find", path))?;
        clear(&parent.dir, name, false).map_err(failed("remove", path))?;
        parent.restore().map_err(failed("set times above", path))
    }

    /// Removes all that is in the directory at `path`.
    pub(super) fn empty(&self, path: &EntryPath) -> Result<()> {
        let Some(dir) = self.existing(path.names()).map_err(failed("find", path))? else { return Ok(()) };
        let parent = Parent::new(dir).map_err(failed("find", path))?;
        empty(&parent.dir).map_err(failed("empty", path))?;
        parent.restore().map_err(failed("set times of", path))
    }

    fn hard_link(&self, target: &EntryPath, dir: &OwnedFd, name: &OsStr, path: &EntryPath) -> Result<()> {
        let missing = || refused(path, &format!("is a hard link to {}, which is not there", show(target)));
        let (parents, target_name) = target.split().ok_or_else(missing)?;
        let parent = self.existing(parents).map_err(failed("find target of", path))?.ok_or_else(missing)?;
        match linkat(&parent, target_name, dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Err(missing()),
            result => result.map_err(failed("link", path)),
        }
    }

    /// The directory of these names, made where it is missing.
    fn parent(&self, names: &[OsString], path: &EntryPath) -> Result<Parent> {
        let verb = "find directory of";
        if let Some(dir) = self.existing(names).map_err(failed(verb, path))? {
            return Parent::new(dir).map_err(failed(verb, path));
        }
        for depth in 0..names.len() {
            let above = self
                .existing(&names[..depth])
                .map_err(failed(verb, path))?
                .ok_or_else(|| refused(path, "has no directory"))?;
            let above = Parent::new(above).map_err(failed(verb, path))?;
            match mkdirat(&above.dir, &names[depth], Mode::from(0o700)) {
                Ok(()) => {
                    chmodat(&above.dir, &names[depth], Mode::from(UNDECLARED_MODE), AtFlags::empty())
                        .map_err(failed(verb, path))?;
                    above.restore().map_err(failed(verb, path))?;
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(verb, path)(errno)),
            }
        }
        let dir = self.existing(names).map_err(failed(verb, path))?;
        Parent::new(dir.ok_or_else(|| refused(path, "lies below a symbolic link to nothing"))?)
            .map_err(failed(verb, path))
    }

    /// The directory of these names; none if one of them is missing.
    fn existing(&self, names: &[OsString]) -> io::Result<Option<OwnedFd>> {
        let path: PathBuf = if names.is_empty() { ".".into() } else { names.iter().collect() };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..RESOLVE_ATTEMPTS_MAX {
            match openat2(&self.root, &path, DIRECTORY, Mode::empty(), resolve) {
                Ok(dir) => return Ok(Some(dir)),
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::AGAIN.into())
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Parent {
    fn new(dir: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&dir)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: stat.st_atime as _, tv_nsec: stat.st_atime_nsec as _ },
            last_modification: Timespec { tv_sec: stat.st_mtime as _, tv_nsec: stat.st_mtime_nsec as _ },
        };
        Ok(Self { dir, times })
    }

    fn restore(self) -> io::Result<()> {
        Ok(futimens(&self.dir, &self.times)?)
    }
}

/// Makes room for `name`: what is there goes, but for a directory that `keep_directory` spares.
fn clear(dir: &OwnedFd, name: &OsStr, keep_directory: bool) -> io::Result<()> {
    let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory if keep_directory => Ok(()),
        // The standard library walks by descriptors and never through a link.
        FileType::Directory => fs::remove_dir_all(by_descriptor(dir, name)),
        _ => Ok(unlinkat(dir, name, AtFlags::empty())?),
    }
}

fn empty(dir: &OwnedFd) -> io::Result<()> {
    for member in Dir::read_from(dir)? {
        let member = member?;
        let name = member.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            clear(dir, std::os::unix::ffi::OsStrExt::from_bytes(name), false)?;
        }
    }
    Ok(())
}

fn create_directory(dir: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match mkdirat(dir, name, Mode::from(0o700)) {
        Err(Errno::EXIST) => Ok(()),
        result => result,
    }
}

fn create_node(dir: &OwnedFd, name: &OsStr, kind: FileType, (major, minor): (u32, u32)) -> Result<(), Errno> {
    mknodat(dir, name, kind, Mode::from(0o600), makedev(major, minor))
}

/// Owner before attributes before mode: `chown(2)` clears set-user-id bits and file capabilities.
fn set_metadata(dir: &OwnedFd, name: &OsStr, path: &EntryPath, entry: &Entry) -> Result<()> {
    let owner = (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)));
    chownat(dir, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("set owner of", path))?;
    for (attribute, value) in &entry.xattrs {
        match &attribute[..] {
            // The label belongs to the host's policy, not to the image.
            b"security.selinux" => continue,
            name if name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.") => {
                return Err(refused(path, "has an attribute that an overlay mount would obey"));
            }
            _ => {}
        }
        lsetxattr(by_descriptor(dir, name), attribute.as_slice(), value, XattrFlags::empty())
            .map_err(failed("set attributes of", path))?;
    }
    if !matches!(entry.kind, Kind::Symlink { .. }) {
        chmodat(dir, name, Mode::from(entry.mode), AtFlags::empty()).map_err(failed("set mode of", path))?;
    }
    let (seconds, nanoseconds) = entry.mtime;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("set times of", path))
}

/// A path to `name` in an open directory, for calls that take no descriptor.
fn by_descriptor(dir: &impl AsFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_fd().as_raw_fd().to_string()).join(name)
}

fn show(path: &EntryPath) -> String {
    let path: PathBuf = path.names().iter().collect();
    path.display().to_string()
}

fn refused(path: &EntryPath, problem: &str) -> Error {
    Error::Entry { path: show(path), problem: problem.to_owned() }
}

fn failed<E: Into<io::Error>>(verb: &str, path: &EntryPath) -> impl FnOnce(E) -> Error + use<E> {
    let action = format!("{verb} {:?}", show(path));
    move |error| Error::Io { action, source: error.into() }
}

/// Copies a file's content piece by piece.
pub(super) fn copy(
    file: &mut fs::File,
    path: &EntryPath,
    mut read: impl FnMut(&mut [u8]) -> Result<usize>,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        file.write_all(&chunk[..count]).map_err(failed("write", path))?;
    }
}
