//! Reads a tar as a stream: POSIX `ustar` and `pax` (IEEE Std 1003.1, `pax`, section "Extended Description") and GNU's long
//! names. Stricter and leaner than a general reader: memory stays bounded whatever a header claims, and an archive that
//! two readers could take differently is refused. Never touches the file system.

mod extension;

use std::fmt;
use std::io::{self, Read};

use tar::{EntryType, Header};

use self::extension::{Extended, Extension};
use crate::digest::Digest;
use crate::error::{Error, Result};

/// Largest pax header or GNU long name.
const EXTENSION_BYTES_MAX: u64 = 1024 * 1024;
const BLOCK_BYTES: usize = 512;

/// One member of an archive. Its content, if it is a file, is read from [`Archive::content`] before the next is asked for.
#[derive(Debug)]
pub(crate) struct Entry {
    /// As written, not cleaned.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// `0o7777` at most.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds since the epoch, and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File { size: u64 },
    HardLink { target: Vec<u8> },
    Symlink { target: Vec<u8> },
    CharacterDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
    Directory,
    Fifo,
}

/// An archive that is read front to back.
pub(crate) struct Archive<R> {
    reader: R,
    /// For errors.
    layer: Digest,
    /// What is unread of the current member's content.
    content: u64,
    /// The zeros between that and the next block.
    padding: u64,
}

impl<R: Read> Archive<R> {
    /// Reads the tar in `reader`, which is that of `layer`.
    pub(crate) fn new(reader: R, layer: Digest) -> Self {
        Self { reader, layer, content: 0, padding: 0 }
    }

    /// The next member; none after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let mut extended = Extended::default();
        loop {
            self.skip(self.content + self.padding)?;
            (self.content, self.padding) = (0, 0);
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(|error| self.damaged(error))?;
            match header.entry_type() {
                EntryType::XHeader => {
                    self.extension(size)?.parse_pax(&mut extended).map_err(|why| self.damaged(why))?;
                }
                // Defaults for all members; what writes them (git) says nothing that matters here.
                EntryType::XGlobalHeader => drop(self.extension(size)?),
                EntryType::GNULongName => extended.path = Some(self.extension(size)?.until_nul()),
                EntryType::GNULongLink => extended.link = Some(self.extension(size)?.until_nul()),
                _ => return self.member(&header, size, extended).map(Some),
            }
        }
    }

    /// What is unread of the current member's content.
    pub(crate) fn content(&mut self) -> Content<'_, R> {
        Content { archive: self }
    }

    /// Reads what follows the last member, and gives the reader back.
    pub(crate) fn finish(mut self) -> Result<R> {
        io::copy(&mut self.reader, &mut io::sink()).map_err(|error| self.failed(error))?;
        Ok(self.reader)
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let Some(block) = self.block()? else { return Ok(None) };
        if block.iter().all(|byte| *byte == 0) {
            return match self.block()? {
                Some(next) if next.iter().any(|byte| *byte != 0) => {
                    Err(self.damaged("a lone block of zeros in the tar"))
                }
                _ => Ok(None),
            };
        }
        let header = Header::from_byte_slice(&block).clone();
        // The sum of all bytes, with the checksum's own eight taken as spaces.
        let outside: u32 = block[..148].iter().chain(&block[156..]).map(|byte| u32::from(*byte)).sum();
        let (expected, found) = (header.cksum().map_err(|error| self.damaged(error))?, outside + 8 * u32::from(b' '));
        if expected != found {
            return Err(self.damaged(format!("tar header checksum: expected {expected}, found {found}")));
        }
        Ok(Some(header))
    }

    fn member(&mut self, header: &Header, size: u64, extended: Extended) -> Result<Entry> {
        let path = extended.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = extended.link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        let size = extended.size.unwrap_or(size);
        let kind = kind(header, size, &path, link).map_err(|why| entry(&path, why))?;
        let id = |number: io::Result<u64>, extended: Option<u32>| match extended {
            Some(id) => Ok(id),
            None => number.map_err(|error| error.to_string()).and_then(|id| {
                u32::try_from(id).map_err(|_| format!("owner: expected at most {}, found {id}", u32::MAX))
            }),
        };
        self.content = if let Kind::File { size } = kind { size } else { 0 };
        self.padding = self.content.next_multiple_of(BLOCK_BYTES as u64) - self.content;
        let mtime = || {
            let seconds = header.mtime().map_err(|error| error.to_string())?;
            i64::try_from(seconds).map(|seconds| (seconds, 0)).map_err(|_| format!("impossible mtime {seconds}"))
        };
        let numbers = || {
            let mode = header.mode().map_err(|error| error.to_string())?;
            let mtime = extended.mtime.map_or_else(mtime, Ok)?;
            Ok((mode & 0o7777, id(header.uid(), extended.uid)?, id(header.gid(), extended.gid)?, mtime))
        };
        let (mode, uid, gid, mtime) = numbers().map_err(|why: String| entry(&path, why))?;
        Ok(Entry { path, kind, mode, uid, gid, mtime, xattrs: extended.xattrs })
    }

    fn extension(&mut self, size: u64) -> Result<Extension> {
        if size > EXTENSION_BYTES_MAX {
            let subject = format!("extended tar header of layer {}", self.layer);
            return Err(Error::TooLarge { subject, limit: EXTENSION_BYTES_MAX });
        }
        let mut bytes = vec![0; size as usize];
        self.reader.read_exact(&mut bytes).map_err(|error| self.failed(error))?;
        self.padding = size.next_multiple_of(BLOCK_BYTES as u64) - size;
        Ok(Extension(bytes))
    }

    /// The next block; none where the archive ends between two.
    fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>> {
        let mut block = [0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.reader.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(self.damaged("the tar ends in mid-header")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(Some(block))
    }

    fn skip(&mut self, count: u64) -> Result<()> {
        let skipped = io::copy(&mut self.reader.by_ref().take(count), &mut io::sink());
        match skipped.map_err(|error| self.failed(error))? {
            skipped if skipped == count => Ok(()),
            _ => Err(self.damaged("the tar ends in mid-file")),
        }
    }

    fn damaged(&self, problem: impl fmt::Display) -> Error {
        Error::Archive { layer: self.layer, problem: format!("{problem}") }
    }

    /// An error of the reader below: one of ours that went through it, or a damaged stream.
    fn failed(&self, error: io::Error) -> Error {
        match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.damaged("it ends too early"),
            Err(error) => self.damaged(error),
        }
    }
}

/// Reads the content of a member.
pub(crate) struct Content<'a, R> {
    archive: &'a mut Archive<R>,
}

impl<R: Read> Content<'_, R> {
    /// Up to a buffer's worth; 0 at the end of the content, and only there.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let room = buffer.len().min(usize::try_from(self.archive.content).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        loop {
            match self.archive.reader.read(&mut buffer[..room]) {
                Ok(0) => return Err(self.archive.damaged("the tar ends in mid-file")),
                Ok(count) => {
                    self.archive.content -= count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.archive.failed(error)),
            }
        }
    }
}

fn kind(header: &Header, size: u64, path: &[u8], link: Option<Vec<u8>>) -> Result<Kind, String> {
    let target = || link.filter(|link| !link.is_empty()).ok_or("a link without a target".to_owned());
    let device = || {
        let number =
            |number: io::Result<Option<u32>>| number.ok().flatten().ok_or("a device without numbers".to_owned());
        Ok::<_, String>((number(header.device_major())?, number(header.device_minor())?))
    };
    let kind = match header.entry_type() {
        // Before ustar, a closing slash was all that told a directory.
        EntryType::Regular if path.ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous => Kind::File { size },
        EntryType::Link => Kind::HardLink { target: target()? },
        EntryType::Symlink => Kind::Symlink { target: target()? },
        EntryType::Char => device().map(|(major, minor)| Kind::CharacterDevice { major, minor })?,
        EntryType::Block => device().map(|(major, minor)| Kind::BlockDevice { major, minor })?,
        EntryType::Directory => Kind::Directory,
        EntryType::Fifo => Kind::Fifo,
        EntryType::GNUSparse => return Err("sparse files are not supported".to_owned()),
        other => return Err(format!("unknown tar entry type {:?}", char::from(other.as_byte()))),
    };
    // Some readers skip such content, some read it as headers.
    if size != 0 && !matches!(kind, Kind::File { .. }) {
        return Err(format!("expected no content, found {size} bytes"));
    }
    Ok(kind)
}

fn entry(path: &[u8], problem: String) -> Error {
    Error::Entry { path: String::from_utf8_lossy(path).into_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Entry>> {
        let mut archive = Archive::new(bytes, Digest::of(bytes));
        let mut entries = Vec::new();
        while let Some(entry) = archive.next()? {
            entries.push(entry);
        }
        archive.finish().map(|_| entries)
    }

    fn header(path: &str, kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_path(path).unwrap();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(size);
        header.set_cksum();
        header
    }

    fn padded(content: &[u8]) -> Vec<u8> {
        let mut bytes = content.to_vec();
        bytes.resize(content.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut content = Vec::new();
        for (key, value) in records {
            // Two digits of length are enough here.
            let length = 2 + 1 + key.len() + 1 + value.len() + 1;
            content.extend(format!("{length:02} {key}=").into_bytes());
            content.extend(*value);
            content.push(b'\n');
        }
        [header("pax", EntryType::XHeader, content.len() as u64).as_bytes().to_vec(), padded(&content)].concat()
    }

    #[test]
    fn pax_values_are_bytes() {
        let capability = b"\x01\0\0\x02\n\0=\n\0";
        let bytes = [
            pax(&[("path", b"long\xff"), ("uid", b"300000"), ("mtime", b"-1.5"), ("SCHILY.xattr.user.a", capability)]),
            header("short", EntryType::Regular, 3).as_bytes().to_vec(),
            padded(b"abc"),
            header("next", EntryType::Directory, 0).as_bytes().to_vec(),
        ]
        .concat();
        let entries = read(&bytes).unwrap();
        let first = &entries[0];
        assert_eq!(
            (&first.path[..], first.uid, first.gid, first.mtime),
            (&b"long\xff"[..], 300_000, 0, (-2, 500_000_000))
        );
        assert_eq!(first.xattrs, [(b"user.a".to_vec(), capability.to_vec())]);
        assert_eq!((&entries[1].path[..], entries[1].xattrs.len()), (&b"next"[..], 0));
    }

    #[test]
    fn damage_is_named() {
        let file = header("f", EntryType::Regular, 3).as_bytes().to_vec();
        let mut flipped = file.clone();
        flipped[0] ^= 1;
        let long = header("l", EntryType::XHeader, EXTENSION_BYTES_MAX + 1).as_bytes().to_vec();
        for (bytes, why) in [
            (file[..100].to_vec(), "mid-header"),
            ([&file[..], b"ab"].concat(), "mid-file"),
            (flipped, "checksum: expected"),
            (vec![b'x'; 512], "numeric field"),
            ([vec![0; 512], file.clone()].concat(), "lone block"),
            (header("d", EntryType::Directory, 1).as_bytes().to_vec(), "expected no content"),
            (header("s", EntryType::GNUSparse, 0).as_bytes().to_vec(), "sparse"),
            (header("s", EntryType::new(b'V'), 0).as_bytes().to_vec(), "entry type 'V'"),
            (header("l", EntryType::Symlink, 0).as_bytes().to_vec(), "without a target"),
            (pax(&[("size", b"x")]), "impossible value"),
            ([header("p", EntryType::XHeader, 4).as_bytes().to_vec(), padded(b"99 a")].concat(), "damaged pax"),
            (long, "larger than the limit"),
        ] {
            let error = read(&bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn an_archive_may_end_without_its_two_blocks() {
        assert_eq!(read(b"").unwrap().len(), 0);
        assert_eq!(read(header("d", EntryType::Directory, 0).as_bytes()).unwrap().len(), 1);
    }
}
