//! Paths of archive entries, cleaned: what a name means below the root, and which names are whiteouts. Decides only; the
//! tree acts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::error::{Error, Result};

/// How names of whiteouts begin. Spec: image-spec `layer.md`, section "Whiteouts".
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of all that lower layers have in a directory (same, section "Opaque Whiteout").
const OPAQUE: &[u8] = b".wh..wh..opq";

/// A path below the root: names only, neither `.` nor `..`. The root itself has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryPath(Vec<OsString>);

/// What an entry's name asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The entry itself appears here.
    Put(EntryPath),
    /// What lower layers have here goes.
    Remove(EntryPath),
    /// What lower layers have in this directory goes.
    Empty(EntryPath),
    /// Book-keeping of AUFS (`.wh..wh.plnk` and others), which old images hold: nothing.
    Nothing,
}

impl Change {
    /// # Errors
    /// As [`EntryPath::parse`]; also for names that begin as a whiteout and are none.
    pub(super) fn parse(name: &[u8]) -> Result<Self> {
        let path = EntryPath::parse(name)?;
        let Some((last, parents)) = path.0.split_last() else { return Ok(Self::Put(path)) };
        if parents.iter().any(|parent| parent.as_bytes().starts_with(WHITEOUT)) {
            return Err(entry(name, "lies in a directory whose name is reserved for whiteouts"));
        }
        let parent = EntryPath(parents.to_vec());
        match last.as_bytes() {
            OPAQUE => Ok(Self::Empty(parent)),
            last if last.starts_with(b".wh..wh.") => Ok(Self::Nothing),
            last => match last.strip_prefix(WHITEOUT) {
                None => Ok(Self::Put(path)),
                Some(b"" | b"." | b"..") => Err(entry(name, "is a whiteout that names no entry of its directory")),
                Some(hidden) => Ok(Self::Remove(parent.join(OsStr::from_bytes(hidden)))),
            },
        }
    }
}

impl EntryPath {
    /// Cleans a name as archives write it: relative or absolute (both mean: from the root), with `.` and doubled or closing
    /// slashes.
    ///
    /// # Errors
    /// [`Error::Entry`] if it is empty, holds a NUL, or climbs by `..`.
    pub(super) fn parse(name: &[u8]) -> Result<Self> {
        if name.is_empty() {
            return Err(entry(name, "has no name"));
        }
        if name.contains(&0) {
            return Err(entry(name, "has a NUL in its name"));
        }
        let names = name.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let names: Vec<OsString> = names.map(|name| OsStr::from_bytes(name).to_owned()).collect();
        if names.iter().any(|name| name == "..") {
            return Err(entry(name, "climbs by .. in its name"));
        }
        Ok(Self(names))
    }

    /// The directory it is in, and its name there; none for the root.
    pub(super) fn split(&self) -> Option<(&[OsString], &OsStr)> {
        self.0.split_last().map(|(last, parents)| (parents, last.as_os_str()))
    }

    /// All names, from the root.
    pub(super) fn names(&self) -> &[OsString] {
        &self.0
    }

    fn join(mut self, name: &OsStr) -> Self {
        self.0.push(name.to_owned());
        self
    }
}

fn entry(name: &[u8], problem: &str) -> Error {
    Error::Entry { path: String::from_utf8_lossy(name).into_owned(), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &[&str]) -> EntryPath {
        EntryPath(names.iter().map(Into::into).collect())
    }

    #[test]
    fn names_are_cleaned() {
        for (name, change) in [
            ("a/b", Change::Put(path(&["a", "b"]))),
            ("./a//b/", Change::Put(path(&["a", "b"]))),
            ("/a/./b", Change::Put(path(&["a", "b"]))),
            ("./", Change::Put(path(&[]))),
            ("/", Change::Put(path(&[]))),
            ("a/..b", Change::Put(path(&["a", "..b"]))),
            ("a/.wh.b", Change::Remove(path(&["a", "b"]))),
            (".wh.b", Change::Remove(path(&["b"]))),
            ("a/.wh...b", Change::Remove(path(&["a", "..b"]))),
            ("a/.wh..wh..opq", Change::Empty(path(&["a"]))),
            (".wh..wh..opq", Change::Empty(path(&[]))),
            (".wh..wh.plnk", Change::Nothing),
        ] {
            assert_eq!(Change::parse(name.as_bytes()).unwrap(), change, "{name}");
        }
    }

    #[test]
    fn refuses_all_else() {
        for (name, why) in [
            (&b""[..], "no name"),
            (b"a\0b", "NUL"),
            (b"../x", "climbs"),
            (b"a/../../x", "climbs"),
            (b"a/..", "climbs"),
            (b"/../x", "climbs"),
            (b".wh.", "names no entry"),
            (b"a/.wh..", "names no entry"),
            (b"a/.wh...", "names no entry"),
            (b".wh.a/b", "reserved"),
        ] {
            let error = Change::parse(name).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
