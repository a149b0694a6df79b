//! Layers that we make: a tar and its gzip whose bytes depend on nothing but what is put in. Each header field is set here,
//! none is taken from the machine; a path that would need an extension of the tar format is refused.

use std::io::{self, Read, Write};

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use crate::config::ImageConfig;
use crate::descriptor::{Descriptor, OCI_LAYER_GZIP};
use crate::digest::{DiffId, Digest, Hasher};
use crate::error::{Error, Result};
use crate::layout::{Incoming, Layout};
use crate::manifest::Manifest;
use crate::timestamp::Timestamp;

/// The compression level of our layers. Part of their bytes, like the backend and its version in Cargo.toml.
const GZIP_LEVEL: u32 = 6;
/// The OS byte of the gzip header: unknown (RFC 1952, section 2.3.1).
const GZIP_OS_UNKNOWN: u8 = 255;
const BLOCK_BYTES: usize = 512;
const CHUNK_BYTES: usize = 64 * 1024;
/// The largest id that seven octal digits can write.
const ID_MAX: u32 = 0o7_777_777;
/// The largest file that eleven octal digits can write.
const FILE_BYTES_MAX: u64 = 0o77_777_777_777;

/// A layer in both of its forms: compressed as it is stored, and the tar within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The compressed blob.
    pub descriptor: Descriptor,
    /// The tar within.
    pub diff_id: DiffId,
}

impl Layer {
    /// The layers of an image, lowest first: the manifest's blobs paired with the config's diff ids.
    ///
    /// # Errors
    /// [`Error::Document`] if there are not as many of the one as of the other.
    pub fn of_image(manifest: &Manifest, config: &ImageConfig) -> Result<Vec<Self>> {
        let (blobs, diff_ids) = (manifest.layers(), config.diff_ids());
        if blobs.len() != diff_ids.len() {
            let problem =
                format!("expected {} layers as the config has diff ids, found {}", diff_ids.len(), blobs.len());
            return Err(Error::document(format!("manifest {}", manifest.digest()), problem));
        }
        let pair = |(blob, diff_id): (&Descriptor, &DiffId)| Self { descriptor: blob.clone(), diff_id: *diff_id };
        Ok(blobs.iter().zip(diff_ids).map(pair).collect())
    }
}

/// Who owns an entry of a layer, and what its mode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The permission bits, with set-user-id, set-group-id and sticky: `0o7777` at most.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Permissions {
    /// Owned by root, group root.
    pub const fn root(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0 }
    }
}

/// Writes one layer into a layout as a stream, in the order of the calls. Format: POSIX.1-1988 `ustar`, gzip per RFC 1952
/// with mtime 0, OS 255 and no name. Nothing is stored before [`Self::finish`].
pub struct LayerWriter {
    tar: Hashing<GzEncoder<Counting<Incoming>>>,
    mtime: Timestamp,
}

impl LayerWriter {
    /// Begins a layer all of whose entries carry the time `mtime`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new(layout: &Layout, mtime: Timestamp) -> Result<Self> {
        let blob = Counting { inner: layout.incoming()?, count: 0 };
        let gzip =
            GzBuilder::new().mtime(0).operating_system(GZIP_OS_UNKNOWN).write(blob, Compression::new(GZIP_LEVEL));
        Ok(Self { tar: Hashing { inner: gzip, hasher: Hasher::default() }, mtime })
    }

    /// Adds a directory.
    ///
    /// # Errors
    /// [`Error::Entry`] if the path or the permissions do not fit a ustar header; [`Error::Io`].
    pub fn directory(&mut self, path: &str, permissions: Permissions) -> Result<()> {
        // The closing slash marks a directory also for readers of the format before ustar.
        let header = self.header(&format!("{}/", relative(path)?), EntryType::Directory, permissions, 0)?;
        self.write(path, header.as_bytes())
    }

    /// Adds a regular file that holds `content`.
    ///
    /// # Errors
    /// As [`Self::directory`].
    pub fn file(&mut self, path: &str, permissions: Permissions, content: &[u8]) -> Result<()> {
        self.file_from(path, permissions, content.len() as u64, content)
    }

    /// Adds a regular file of exactly `size` bytes from `reader`.
    ///
    /// # Errors
    /// As [`Self::directory`]; [`Error::SizeMismatch`] if `reader` ends early or has more, as when a file changes while it
    /// is read.
    pub fn file_from(&mut self, path: &str, permissions: Permissions, size: u64, mut reader: impl Read) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(entry(path, format!("{size} bytes need an extension of the tar format")));
        }
        let header = self.header(relative(path)?, EntryType::Regular, permissions, size)?;
        self.write(path, header.as_bytes())?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut found = 0;
        loop {
            let count = match reader.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(Error::io(format!("read content of {path}")))?,
            };
            found += count as u64;
            if found > size || (count == 0 && found < size) {
                return Err(Error::SizeMismatch { subject: format!("content of {path}"), expected: size, found });
            }
            if count == 0 {
                break;
            }
            self.write(path, &chunk[..count])?;
        }
        let used = (size % BLOCK_BYTES as u64) as usize;
        let padding = if used == 0 { 0 } else { BLOCK_BYTES - used };
        self.write(path, &[0; BLOCK_BYTES][..padding])
    }

    /// Adds a symbolic link, owned by root, whose text is `target`.
    ///
    /// # Errors
    /// As [`Self::directory`], for either path.
    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.link(path, EntryType::Symlink, Permissions::root(0o777), target)
    }

    /// Adds another name for the file that this layer, or one below it, has at `target`.
    ///
    /// # Errors
    /// As [`Self::directory`], for either path.
    pub fn hard_link(&mut self, path: &str, permissions: Permissions, target: &str) -> Result<()> {
        self.link(path, EntryType::Link, permissions, relative(target)?)
    }

    /// Ends the layer and stores it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<Layer> {
        // Two blocks of zeros end an archive.
        self.write("its end", &[0; 2 * BLOCK_BYTES])?;
        let diff_id = self.tar.hasher.diff_id();
        let blob = self.tar.inner.finish().map_err(Error::io("compress layer"))?;
        let size = blob.count;
        let digest: Digest = blob.inner.commit()?;
        Ok(Layer { descriptor: Descriptor::new(OCI_LAYER_GZIP, digest, size), diff_id })
    }

    fn link(&mut self, path: &str, kind: EntryType, permissions: Permissions, target: &str) -> Result<()> {
        let mut header = self.header(relative(path)?, kind, permissions, 0)?;
        if target.is_empty() || target.contains('\0') {
            return Err(entry(path, format!("links to {target:?}")));
        }
        header.set_link_name_literal(target).map_err(|_| {
            entry(path, format!("link target {target:?} needs an extension of the tar format: more than 100 bytes"))
        })?;
        header.set_cksum();
        self.write(path, header.as_bytes())
    }

    fn header(&self, path: &str, kind: EntryType, permissions: Permissions, size: u64) -> Result<Header> {
        let Permissions { mode, uid, gid } = permissions;
        if mode > 0o7777 {
            return Err(entry(path, format!("mode {mode:o}: expected at most 7777")));
        }
        if uid.max(gid) > ID_MAX {
            return Err(entry(path, format!("owner {uid}:{gid} needs an extension of the tar format")));
        }
        let mut header = Header::new_ustar();
        header
            .set_path(path)
            .map_err(|error| entry(path, format!("path needs an extension of the tar format: {error}")))?;
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_size(size);
        header.set_mtime(self.mtime.epoch());
        header.set_cksum();
        Ok(header)
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.tar.write_all(bytes).map_err(Error::io(format!("write {path} to layer")))
    }
}

/// A path as layers hold it: relative, without `.`, `..` or empty components.
fn relative(path: &str) -> Result<&str> {
    let plain = path.strip_prefix('/').unwrap_or(path);
    if plain.contains('\0') || plain.split('/').any(|component| matches!(component, "" | "." | "..")) {
        return Err(entry(path, "expected names with single slashes between them, none of them . or ..".to_owned()));
    }
    Ok(plain)
}

fn entry(path: &str, problem: String) -> Error {
    Error::Entry { path: path.to_owned(), problem }
}

/// Hashes what passes.
struct Hashing<W> {
    inner: W,
    hasher: Hasher,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Counts what passes.
struct Counting<W> {
    inner: W,
    count: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn layout() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(dir.path()).unwrap();
        (dir, layout)
    }

    fn writer(layout: &Layout) -> LayerWriter {
        LayerWriter::new(layout, Timestamp::from_epoch(1_674_187_200).unwrap()).unwrap()
    }

    fn small(layout: &Layout) -> Layer {
        let mut layer = writer(layout);
        layer.directory("usr/local/sbin", Permissions::root(0o755)).unwrap();
        layer.file("usr/local/sbin/dind-init", Permissions::root(0o755), &b"init".repeat(1000)).unwrap();
        layer.file("etc/secret", Permissions { mode: 0o4640, uid: 1000, gid: 2_097_151 }, b"").unwrap();
        layer.symlink("usr/local/sbin/dockerd", "dind-init").unwrap();
        layer.hard_link("usr/local/sbin/again", Permissions::root(0o755), "/usr/local/sbin/dind-init").unwrap();
        layer.finish().unwrap()
    }

    /// A new compressor, or one used differently, shows here before it shows as images that nobody can rebuild.
    #[test]
    fn f29_the_bytes_are_golden() {
        let (_dir, layout) = layout();
        let layer = small(&layout);
        expect_test::expect![[r#"
            tar sha256:2a7d10fb2bcc788a647b286faeee748136a4c71bd799cba47ff547244ce51ae6
            gzip sha256:5fc884fc651114ce77167a8b52c3703b1eccfe291b6a1887dabb3f18bb94ac23 236 bytes"#]]
        .assert_eq(&format!("tar {}\ngzip {} {} bytes", layer.diff_id, layer.descriptor.digest, layer.descriptor.size));
        assert_eq!(small(&layout), layer);
    }

    #[test]
    fn f28_the_gzip_header_is_fixed() {
        let (_dir, layout) = layout();
        let bytes = fs::read(layout.blob_path(&small(&layout).descriptor.digest)).unwrap();
        // Magic, deflate, no flags, mtime 0, no extra flags, OS unknown.
        assert_eq!(bytes[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    }

    #[test]
    fn f27_header_fields_are_ours() {
        let (_dir, layout) = layout();
        let layer = small(&layout);
        let blob = fs::File::open(layout.blob_path(&layer.descriptor.digest)).unwrap();
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(blob).read_to_end(&mut tar).unwrap();
        assert_eq!(DiffId::of(&tar), layer.diff_id);
        let mut archive = tar::Archive::new(&tar[..]);
        let mut lines = String::new();
        for entry in archive.entries().unwrap().raw(true) {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.username().unwrap(), header.groupname().unwrap()), (Some(""), Some("")));
            assert_eq!(header.mtime().unwrap(), 1_674_187_200);
            let link = header.link_name().unwrap().map_or(String::new(), |link| format!(" -> {}", link.display()));
            lines += &format!(
                "{:?} {:o} {}:{} {} {}{link}\n",
                header.entry_type(),
                header.mode().unwrap(),
                header.uid().unwrap(),
                header.gid().unwrap(),
                header.size().unwrap(),
                String::from_utf8_lossy(&header.path_bytes()),
            );
        }
        expect_test::expect![[r#"
            Directory 755 0:0 0 usr/local/sbin/
            Regular 755 0:0 4000 usr/local/sbin/dind-init
            Regular 4640 1000:2097151 0 etc/secret
            Symlink 777 0:0 0 usr/local/sbin/dockerd -> dind-init
            Link 755 0:0 0 usr/local/sbin/again -> usr/local/sbin/dind-init
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn f27_what_needs_an_extension_is_refused() {
        let (_dir, layout) = layout();
        let root = Permissions::root(0o644);
        let long_name = "n".repeat(101);
        for (path, why) in [
            (long_name.as_str(), "needs an extension"),
            ("a/../b", "none of them . or .."),
            ("./a", "none of them . or .."),
            ("a//b", "single slashes"),
            ("a/", "single slashes"),
            ("", "single slashes"),
            ("/", "single slashes"),
            ("a\0b", "single slashes"),
        ] {
            let error = writer(&layout).file(path, root, b"").unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let prefixed = format!("{}/{}", "p".repeat(155), "n".repeat(100));
        writer(&layout).file(&prefixed, root, b"").unwrap();
        let wrong = [
            Permissions::root(0o10000),
            Permissions { uid: ID_MAX + 1, ..root },
            Permissions { gid: u32::MAX, ..root },
        ];
        assert!(wrong.into_iter().all(|wrong| writer(&layout).file("a", wrong, b"").is_err()));
        assert!(writer(&layout).symlink("a", &"t".repeat(101)).is_err());
        assert!(writer(&layout).symlink("a", "").is_err());
        assert!(writer(&layout).hard_link("a", root, "../b").is_err());
        assert!(writer(&layout).file_from("a", root, FILE_BYTES_MAX + 1, io::empty()).is_err());
    }

    #[test]
    fn a_file_must_keep_its_size() {
        let (_dir, layout) = layout();
        for size in [2, 4] {
            let result = writer(&layout).file_from("a", Permissions::root(0o644), size, &b"abc"[..]);
            assert!(matches!(result, Err(Error::SizeMismatch { .. })), "{size}");
        }
    }

    #[test]
    fn an_unfinished_layer_leaves_nothing() {
        let (_dir, layout) = layout();
        let mut layer = writer(&layout);
        layer.file("a", Permissions::root(0o644), b"abc").unwrap();
        drop(layer);
        assert_eq!(fs::read_dir(layout.dir().join("blobs/sha256")).unwrap().count(), 0);
    }
}
