//! Blobs on their way into a layout and out of it: hashed as they pass. On the way in, a blob is a partial file under another
//! name until it is known to be whole; on the way out, its reader never gives more than was promised.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::CHUNK_BYTES;
use crate::descriptor::Descriptor;
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};

/// How the names of partial files begin.
pub(super) const PARTIAL: &str = ".partial-";

/// A blob on its way into a layout: hashed as it is written, under its digest once committed. Dropped before, it is gone.
pub(crate) struct Incoming {
    partial: Partial,
    hasher: Hasher,
    blobs: PathBuf,
}

impl Incoming {
    pub(super) fn create(blobs: &Path) -> Result<Self> {
        Ok(Self { partial: Partial::create(blobs)?, hasher: Hasher::default(), blobs: blobs.to_owned() })
    }

    /// Syncs the bytes and gives them their name.
    pub(crate) fn commit(self) -> Result<Digest> {
        let digest = self.hasher.digest();
        self.partial.rename(&self.blobs.join(digest.hex()))?;
        Ok(digest)
    }
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.partial.file.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.partial.file.flush()
    }
}

/// A blob on its way whose descriptor is known; it stops at the first byte too many.
pub(crate) struct Expected {
    incoming: Incoming,
    expected: Descriptor,
    count: u64,
}

impl Expected {
    pub(super) fn new(incoming: Incoming, expected: &Descriptor) -> Self {
        Self { incoming, expected: expected.clone(), count: 0 }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.count += bytes.len() as u64;
        if self.count > self.expected.size {
            return Err(self.size_mismatch());
        }
        self.incoming.write_all(bytes).map_err(Error::io(format!("write blob {}", self.expected.digest)))
    }

    /// Bytes written so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn finish(self) -> Result<()> {
        if self.count != self.expected.size {
            return Err(self.size_mismatch());
        }
        let found = self.incoming.hasher.clone().digest();
        if found != self.expected.digest {
            let subject = format!("blob {}", self.expected.digest);
            return Err(Error::DigestMismatch { subject, expected: self.expected.digest, found });
        }
        self.incoming.commit().map(|_| ())
    }

    fn size_mismatch(&self) -> Error {
        let subject = format!("blob {}", self.expected.digest);
        Error::SizeMismatch { subject, expected: self.expected.size, found: self.count }
    }
}

/// A file under a temporary name in the directory where it shall appear. It stays locked while its process lives, which is
/// how a layout's sweep tells it from what a killed one left.
pub(super) struct Partial {
    path: PathBuf,
    pub(super) file: File,
    renamed: bool,
}

impl Partial {
    pub(super) fn create(dir: &Path) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("{PARTIAL}{}-{count}", std::process::id()));
            let file = match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => file,
                // Another container's process of the same number, or what one of the same number left.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::io(format!("create {}", path.display()))(error)),
            };
            file.lock().map_err(Error::io(format!("lock {}", path.display())))?;
            // Swept between its creation and its lock: begin again.
            if path.exists() {
                return Ok(Self { path, file, renamed: false });
            }
        }
    }

    /// Makes it appear as `to`, in the place of what is there.
    pub(super) fn rename(mut self, to: &Path) -> Result<()> {
        let name = |partial: &mut Self| {
            partial.file.sync_all()?;
            fs::rename(&partial.path, to)?;
            partial.renamed = true;
            sync_parent(to)
        };
        name(&mut self).map_err(Error::io(format!("write {}", to.display())))
    }

    /// Makes it appear as `to` unless something is there, which then stays.
    pub(super) fn link(self, to: &Path) -> Result<()> {
        let name = || {
            self.file.sync_all()?;
            match fs::hard_link(&self.path, to) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => sync_parent(to),
            }
        };
        name().map_err(Error::io(format!("write {}", to.display())))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.renamed {
            // Best effort: what stays is swept by the next run.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A name itself must survive a power cut before anyone relies on it.
fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads a blob's file up to its promised size, and hashes it on the way.
pub(super) struct Verifying {
    file: File,
    hasher: Hasher,
    count: u64,
    size: u64,
}

impl Verifying {
    pub(super) fn new(file: File, size: u64) -> Self {
        Self { file, hasher: Hasher::default(), count: 0, size }
    }

    pub(super) fn finish(mut self, path: &Path, blob: &Descriptor) -> Result<()> {
        let action = || format!("read blob {}", path.display());
        let mut rest = vec![0; CHUNK_BYTES];
        while read_some(&mut self, &mut rest).map_err(Error::io(action()))? > 0 {}
        let beyond = read_some(&mut self.file, &mut rest[..1]).map_err(Error::io(action()))? as u64;
        let subject = format!("blob {}", path.display());
        if self.count + beyond != blob.size {
            return Err(Error::SizeMismatch { subject, expected: blob.size, found: self.count + beyond });
        }
        match self.hasher.digest() {
            found if found == blob.digest => Ok(()),
            found => Err(Error::DigestMismatch { subject, expected: blob.digest, found }),
        }
    }
}

impl Read for Verifying {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.count).unwrap_or(usize::MAX);
        let room = buffer.len().min(left);
        let count = self.file.read(&mut buffer[..room])?;
        self.hasher.update(&buffer[..count]);
        self.count += count as u64;
        Ok(count)
    }
}

/// One `read` that is not disturbed by a signal.
pub(super) fn read_some(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match reader.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
