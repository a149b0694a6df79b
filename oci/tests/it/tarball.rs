//! Tars as others write them, well-formed and hostile, put into a layout as layers.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use oci::{Descriptor, DiffId, Layer, Layout};
use tar::{EntryType, Header};

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A tar in the making. Entries belong to whoever runs the test, so that most tests need no root.
#[derive(Clone, Default)]
pub(crate) struct Tarball {
    bytes: Vec<u8>,
    records: Vec<u8>,
}

impl Tarball {
    pub(crate) fn file(self, path: &str, content: &str) -> Self {
        self.entry(path, EntryType::Regular, content.as_bytes(), |header| header.set_mode(0o644))
    }

    pub(crate) fn directory(self, path: &str) -> Self {
        self.entry(path, EntryType::Directory, b"", |header| header.set_mode(0o755))
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Symlink, b"", |header| header.set_link_name_literal(target).unwrap())
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, EntryType::Link, b"", |header| header.set_link_name_literal(target).unwrap())
    }

    /// Adds a pax record to the next entry.
    pub(crate) fn pax(mut self, key: &str, value: &[u8]) -> Self {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|length| length.to_string().len() + rest == *length).unwrap();
        self.records.extend(format!("{length} {key}=").bytes().chain(value.iter().copied()).chain(*b"\n"));
        self
    }

    /// Adds an entry whose name is written as it is, however bad, and whose header `change` has the last word on.
    pub(crate) fn entry(
        mut self,
        path: &str,
        kind: EntryType,
        content: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Self {
        let records = std::mem::take(&mut self.records);
        if !records.is_empty() {
            self = self.entry("pax", EntryType::XHeader, &records, (|_| {}) as fn(&mut Header));
        }
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        change(&mut header);
        header.set_cksum();
        self.raw(header.as_bytes()).raw(content)
    }

    /// Adds bytes, filled up to whole blocks.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// The tar, closed.
    pub(crate) fn tar(&self) -> Vec<u8> {
        [&self.bytes[..], &[0; 1024]].concat()
    }

    /// Stores the tar as a layer.
    pub(crate) fn store(&self, layout: &Layout) -> Layer {
        store(layout, &gzip(&self.tar()), DiffId::of(&self.tar()))
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Stores bytes, whatever they are, as a layer.
pub(crate) fn store(layout: &Layout, blob: &[u8], diff_id: DiffId) -> Layer {
    let descriptor: Descriptor = layout.put(GZIP, blob).unwrap();
    Layer { descriptor, diff_id }
}
