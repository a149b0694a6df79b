//! An OCI image layout on disk. Spec: image-spec `image-layout.md`. A blob appears under its digest whole and verified, or
//! not at all: it is written to a partial file beside the others, synced, and renamed. Runs may share a layout. Its index
//! never leads to Docker's media types; that is its callers' promise (see [`Manifest::to_oci`](crate::Manifest::to_oci)).

mod blob;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

pub(crate) use self::blob::{Expected, Incoming};
use self::blob::{PARTIAL, Partial, Verifying, read_some};
use crate::descriptor::{Descriptor, Family};
use crate::digest::Digest;
use crate::document::Document;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::manifest::MANIFEST_BYTES_MAX;

/// The content of the file `oci-layout`: the one layout version there is.
pub const OCI_LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
/// Largest `oci-layout` file that is read.
const OCI_LAYOUT_BYTES_MAX: u64 = 4096;
/// How much is read and written at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// A layout directory: `oci-layout`, `index.json` and `blobs/sha256/`.
#[derive(Clone, Debug)]
pub struct Layout {
    dir: PathBuf,
}

impl Layout {
    /// Opens the layout in `dir`, or makes one there, empty, with all missing parents. Removes what killed runs left
    /// half-written.
    ///
    /// # Errors
    /// [`Error::Document`] if `dir` holds a layout of another version; [`Error::Io`] if it cannot be read or written.
    pub fn open_or_create(dir: &Path) -> Result<Self> {
        let layout = Self { dir: dir.to_owned() };
        let blobs = layout.blobs();
        fs::create_dir_all(&blobs).map_err(Error::io(format!("create {}", blobs.display())))?;
        layout.sweep()?;
        layout.create("index.json", Index::new(Family::Oci, &[])?.bytes())?;
        layout.create("oci-layout", OCI_LAYOUT)?;
        Self::open(dir)
    }

    /// Opens the layout in `dir`.
    ///
    /// # Errors
    /// [`Error::Document`] if it is of another version; [`Error::Io`] if there is none.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("oci-layout");
        let bytes = read_file(&path, OCI_LAYOUT_BYTES_MAX)?;
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| Error::document(path.display(), error))?;
        let version = &value["imageLayoutVersion"];
        if version != "1.0.0" {
            let problem = format!("imageLayoutVersion: expected \"1.0.0\", found {version}");
            return Err(Error::document(path.display(), problem));
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Where the layout is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a blob is, or would be.
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    /// Whether the blob is here in its full size. Its bytes were verified when it came, and are again when it is read.
    pub fn has(&self, blob: &Descriptor) -> bool {
        fs::metadata(self.blob_path(&blob.digest)).is_ok_and(|meta| meta.is_file() && meta.len() == blob.size)
    }

    /// Whether the blob is here with the very bytes that its digest names: all of them are read. A damaged one is removed, so that
    /// it can be stored anew.
    ///
    /// # Errors
    /// [`Error::Io`] if a damaged blob cannot be removed.
    pub fn verified(&self, blob: &Descriptor) -> Result<bool> {
        if self.read(blob, |_| Ok::<_, Error>(())).is_ok() {
            return Ok(true);
        }
        let path = self.blob_path(&blob.digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(format!("remove damaged blob {}", path.display()))(error))
            }
            _ => Ok(false),
        }
    }

    /// Stores `bytes` and names them as `media_type`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn put(&self, media_type: &str, bytes: &[u8]) -> Result<Descriptor> {
        let descriptor = Descriptor::of(media_type, bytes);
        if !self.has(&descriptor) {
            let mut blob = self.incoming()?;
            blob.write_all(bytes).map_err(Error::io(format!("write blob {}", descriptor.digest)))?;
            blob.commit()?;
        }
        Ok(descriptor)
    }

    /// Stores what `reader` gives, if it is what `expected` names. At most one byte past its size is read.
    ///
    /// # Errors
    /// [`Error::SizeMismatch`], [`Error::DigestMismatch`], [`Error::Io`]; then nothing was stored.
    pub fn put_stream(&self, expected: &Descriptor, mut reader: impl Read) -> Result<()> {
        let mut blob = self.expect(expected)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count =
                read_some(&mut reader, &mut chunk).map_err(Error::io(format!("read blob {}", expected.digest)))?;
            if count == 0 {
                return blob.finish();
            }
            blob.write(&chunk[..count])?;
        }
    }

    /// Gives a blob's bytes to `consume`, never more than its size, and then checks all of them, those too that `consume`
    /// left unread. What `consume` returns is handed on only after the check; what it did in between is the caller's to
    /// undo.
    ///
    /// # Errors
    /// Those of `consume`; [`Error::SizeMismatch`], [`Error::DigestMismatch`], [`Error::Io`].
    pub fn read<T, E: From<Error>>(
        &self,
        blob: &Descriptor,
        consume: impl FnOnce(&mut dyn Read) -> Result<T, E>,
    ) -> Result<T, E> {
        let path = self.blob_path(&blob.digest);
        let file = File::open(&path).map_err(Error::io(format!("open blob {}", path.display())))?;
        let mut reader = Verifying::new(file, blob.size);
        let value = consume(&mut reader);
        let checked = reader.finish(&path, blob);
        // Damaged bytes explain any complaint of the consumer; its own error counts where they are sound.
        checked?;
        value
    }

    /// A whole small blob, a manifest or config.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above 4 MiB, else as [`Self::read`].
    pub fn bytes(&self, blob: &Descriptor) -> Result<Vec<u8>> {
        if blob.size > MANIFEST_BYTES_MAX {
            return Err(Error::TooLarge { subject: format!("blob {}", blob.digest), limit: MANIFEST_BYTES_MAX });
        }
        self.read(blob, |reader| {
            let mut bytes = Vec::with_capacity(blob.size as usize);
            reader.read_to_end(&mut bytes).map_err(Error::io(format!("read blob {}", blob.digest)))?;
            Ok(bytes)
        })
    }

    /// A manifest or index by its digest alone; none if it is not here, or not with these bytes.
    ///
    /// # Errors
    /// As [`Document::parse`]; [`Error::Io`] if it is here and cannot be read.
    pub fn document(&self, digest: &Digest) -> Result<Option<Document>> {
        let path = self.blob_path(digest);
        if !path.exists() {
            return Ok(None);
        }
        match read_file(&path, MANIFEST_BYTES_MAX) {
            Ok(bytes) if Digest::of(&bytes) == *digest => Document::parse(bytes).map(Some),
            Ok(_) | Err(Error::TooLarge { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces `index.json` by an OCI index of `manifests`, whose platforms and tags
    /// ([`Descriptor::with_ref_name`]) are written as given.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Io`].
    pub fn write_index(&self, manifests: &[Descriptor]) -> Result<()> {
        self.replace("index.json", Index::new(Family::Oci, manifests)?.bytes())
    }

    /// Reads `index.json`.
    ///
    /// # Errors
    /// As [`Index::parse`], and [`Error::Io`].
    pub fn index(&self) -> Result<Index> {
        Index::parse(read_file(&self.dir.join("index.json"), MANIFEST_BYTES_MAX)?)
    }

    /// A blob whose digest is not known yet.
    pub(crate) fn incoming(&self) -> Result<Incoming> {
        Incoming::create(&self.blobs())
    }

    /// A blob that must turn out to be `expected`.
    pub(crate) fn expect(&self, expected: &Descriptor) -> Result<Expected> {
        Ok(Expected::new(self.incoming()?, expected))
    }

    fn blobs(&self) -> PathBuf {
        self.dir.join("blobs/sha256")
    }

    /// Writes a file that is not there; another run may be doing the same.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        if path.exists() { Ok(()) } else { self.partial(&path, bytes)?.link(&path) }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        self.partial(&path, bytes)?.rename(&path)
    }

    fn partial(&self, path: &Path, bytes: &[u8]) -> Result<Partial> {
        let mut partial = Partial::create(&self.dir)?;
        partial.file.write_all(bytes).map_err(Error::io(format!("write {}", path.display())))?;
        Ok(partial)
    }

    /// Removes partial files that no living process holds locked.
    fn sweep(&self) -> Result<()> {
        for dir in [&self.dir, &self.blobs()] {
            let entries = fs::read_dir(dir).map_err(Error::io(format!("list {}", dir.display())))?;
            for entry in entries {
                let entry = entry.map_err(Error::io(format!("list {}", dir.display())))?;
                if !entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                    continue;
                }
                // Whatever fails here, another run is at it: finishing, or sweeping as we do.
                if let Ok(file) = File::open(entry.path())
                    && file.try_lock().is_ok()
                {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        Ok(())
    }
}

fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Error::io(format!("open {}", path.display())))?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Error::io(format!("read {}", path.display())))?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLarge { subject: path.display().to_string(), limit });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::platform::Platform;

    fn layout() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&dir.path().join("new/layout")).unwrap();
        (dir, layout)
    }

    fn files(layout: &Layout) -> usize {
        fs::read_dir(layout.blobs()).unwrap().count()
    }

    #[test]
    fn f08_a_new_layout_is_empty_and_stays_what_it_is() {
        let (_dir, layout) = layout();
        assert_eq!(layout.index().unwrap().manifests(), []);
        let entry = layout.put("text/plain", b"abc").unwrap().with_ref_name("1").with_platform(Platform::host());
        layout.write_index(std::slice::from_ref(&entry)).unwrap();
        let again = Layout::open_or_create(layout.dir()).unwrap();
        assert_eq!(again.index().unwrap().named("1"), [&entry]);
        assert_eq!(again.bytes(&entry).unwrap(), b"abc");
    }

    #[test]
    fn another_version_is_refused() {
        let (_dir, layout) = layout();
        fs::write(layout.dir().join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
        let error = Layout::open_or_create(layout.dir()).unwrap_err().to_string();
        assert!(error.ends_with(r#"imageLayoutVersion: expected "1.0.0", found "2.0.0""#), "{error}");
        assert!(matches!(Layout::open(&layout.blobs()), Err(Error::Io { .. })));
    }

    #[test]
    fn f10_only_the_promised_bytes_are_stored() {
        let (_dir, layout) = layout();
        let promised = Descriptor::of("text/plain", b"abc");
        for wrong in [&b"ab"[..], b"abcd", b"abx", b""] {
            let error = layout.put_stream(&promised, wrong).unwrap_err();
            assert!(matches!(error, Error::SizeMismatch { .. } | Error::DigestMismatch { .. }), "{error}");
            assert_eq!((layout.has(&promised), files(&layout)), (false, 0));
        }
        // An endless source is left at the first byte too many, give or take a buffer.
        assert!(layout.put_stream(&promised, io::repeat(b'a')).is_err());
        layout.put_stream(&promised, &b"abc"[..]).unwrap();
        assert_eq!((layout.has(&promised), files(&layout)), (true, 1));
    }

    #[test]
    fn damage_on_disk_is_found_when_read() {
        for (damaged, found) in [("abx", "digest"), ("ab", "2 bytes"), ("abcd", "found more")] {
            let (_dir, layout) = layout();
            let blob = layout.put("text/plain", b"abc").unwrap();
            fs::write(layout.blob_path(&blob.digest), damaged).unwrap();
            // Even where the consumer reads nothing, or fails of its own.
            assert!(layout.read(&blob, |_| Ok::<_, Error>(())).is_err(), "{found}");
            assert!(
                !matches!(layout.read(&blob, |_| Err::<(), _>(Error::Interrupted)), Err(Error::Interrupted)),
                "{found}"
            );
        }
    }

    #[test]
    fn documents_are_found_by_digest_alone() {
        let (_dir, layout) = layout();
        let index = Index::new(Family::Docker, &[]).unwrap();
        let digest = index.digest();
        assert!(layout.document(&digest).unwrap().is_none());
        layout.put(index.media_type(), index.bytes()).unwrap();
        assert_eq!(layout.document(&digest).unwrap().unwrap().descriptor(), index.descriptor());
        fs::write(layout.blob_path(&digest), "other bytes").unwrap();
        assert!(layout.document(&digest).unwrap().is_none());
    }

    #[test]
    fn a_consumer_gets_the_blob_and_no_more() {
        let (_dir, layout) = layout();
        let blob = layout.put("text/plain", b"abc").unwrap();
        let mut text = String::new();
        layout.read(&blob, |reader| reader.read_to_string(&mut text).map_err(Error::io("read"))).unwrap();
        assert_eq!(text, "abc");
        assert!(matches!(layout.read(&blob, |_| Err::<(), _>(Error::Interrupted)), Err(Error::Interrupted)));
    }

    #[test]
    fn what_a_killed_run_left_is_swept_and_what_a_living_one_writes_is_not() {
        let (_dir, layout) = layout();
        fs::write(layout.blobs().join(".partial-1-0"), "half").unwrap();
        fs::write(layout.dir().join(".partial-1-1"), "half").unwrap();
        let mut living = layout.incoming().unwrap();
        living.write_all(b"abc").unwrap();
        Layout::open_or_create(layout.dir()).unwrap();
        assert!(!layout.dir().join(".partial-1-1").exists());
        assert_eq!(files(&layout), 1, "the living one's");
        let digest = living.commit().unwrap();
        assert_eq!(fs::read(layout.blob_path(&digest)).unwrap(), b"abc");
    }
}
