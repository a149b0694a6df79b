//! Image references by the grammar of the distribution project's `reference` package (also image-spec and
//! distribution-spec `spec.md`, section "Pulling manifests"). A tag or digest is never assumed: `latest` does not exist here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::Digest;
use crate::error::{Error, Result};

/// The registry of names that name none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Longest repository name, registry included (`NameTotalLengthMax` of the grammar).
const NAME_BYTES_MAX: usize = 255;
/// Longest tag.
const TAG_BYTES_MAX: usize = 128;

/// A repository in a registry, fully qualified: `docker.io/library/docker`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repository {
    registry: String,
    path: String,
}

/// A tag of a repository: `docker.io/library/docker:20-dind`. It may name other bytes tomorrow.
///
/// ```
/// let base = oci::Tagged::parse("docker:20-dind").unwrap();
/// assert_eq!(base.to_string(), "docker.io/library/docker:20-dind");
/// assert!(oci::Tagged::parse("docker").is_err(), "no default tag exists");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tagged {
    /// Where the tag is.
    pub repository: Repository,
    tag: String,
}

/// Bytes in a repository, by digest: `docker.io/library/docker:20-dind@sha256:…`. The tag, where there is one, tells a
/// person what was meant, and decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pinned {
    /// Where the bytes are.
    pub repository: Repository,
    tag: Option<String>,
    /// Which bytes.
    pub digest: Digest,
}

/// Either kind of reference, where a user may give one or the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// By tag.
    Tagged(Tagged),
    /// By digest.
    Pinned(Pinned),
}

impl Repository {
    /// Parses `[HOST[:PORT]/]PATH`. The first component is a host if it has a `.` or `:`, is `localhost`, or has a capital;
    /// else the registry is docker.io, where a path of one component is below `library/`.
    ///
    /// # Errors
    /// [`Error::Grammar`] for anything else, a tag or digest included.
    pub fn parse(text: &str) -> Result<Self> {
        let error = || Error::Grammar {
            noun: "repository",
            text: text.to_owned(),
            expected: if is_bare_registry(text) {
                "a path after the registry: HOST[:PORT]/PATH"
            } else {
                "[HOST[:PORT]/]PATH of lower-case words, at most 255 bytes"
            },
        };
        let (registry, path) = match text.split_once('/') {
            Some((host, path)) if looks_like_host(host) => (host, path.to_owned()),
            _ => (DEFAULT_REGISTRY, text.to_owned()),
        };
        let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
        let path = if registry == DEFAULT_REGISTRY && !path.contains('/') { format!("library/{path}") } else { path };
        if !is_host(registry) || !path.split('/').all(is_path_component) {
            return Err(error());
        }
        if registry.len() + 1 + path.len() > NAME_BYTES_MAX {
            return Err(error());
        }
        Ok(Self { registry: registry.to_owned(), path })
    }

    /// `HOST` or `HOST:PORT`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The name that the registry knows: `library/docker`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A tag of this repository.
    ///
    /// # Errors
    /// [`Error::Grammar`] if `tag` is not `[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}`.
    pub fn tagged(&self, tag: &str) -> Result<Tagged> {
        if !is_tag(tag) {
            return Err(Error::Grammar {
                noun: "tag",
                text: tag.to_owned(),
                expected: "a letter, digit or _, then at most 127 letters, digits, _, . and -",
            });
        }
        Ok(Tagged { repository: self.clone(), tag: tag.to_owned() })
    }

    /// The bytes of `digest` in this repository.
    pub fn pinned(&self, digest: Digest) -> Pinned {
        Pinned { repository: self.clone(), tag: None, digest }
    }
}

impl Tagged {
    /// Parses `REPOSITORY:TAG`.
    ///
    /// # Errors
    /// [`Error::Grammar`] for anything else: no tag, an empty one, or a digest.
    pub fn parse(text: &str) -> Result<Self> {
        match split_tag(text) {
            (name, Some(tag)) if !text.contains('@') => Repository::parse(name)?.tagged(tag),
            _ => Err(Error::Grammar {
                noun: "tagged reference",
                text: text.to_owned(),
                expected: "REPOSITORY:TAG without a digest",
            }),
        }
    }

    /// The tag alone.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// This tag, held to the bytes that it names now.
    pub fn pin(&self, digest: Digest) -> Pinned {
        Pinned { repository: self.repository.clone(), tag: Some(self.tag.clone()), digest }
    }
}

impl Pinned {
    /// Parses `REPOSITORY[:TAG]@sha256:HEX`.
    ///
    /// # Errors
    /// [`Error::Grammar`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, digest) = text.split_once('@').ok_or_else(|| Error::Grammar {
            noun: "pinned reference",
            text: text.to_owned(),
            expected: "REPOSITORY[:TAG]@sha256:HEX",
        })?;
        let digest = Digest::parse(digest)?;
        match split_tag(name) {
            (name, Some(tag)) => Ok(Repository::parse(name)?.tagged(tag)?.pin(digest)),
            (name, None) => Ok(Repository::parse(name)?.pinned(digest)),
        }
    }

    /// The tag that the digest was found under, where it is known.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }
}

impl Reference {
    /// Parses `REPOSITORY:TAG` or `REPOSITORY[:TAG]@sha256:HEX`.
    ///
    /// # Errors
    /// [`Error::Grammar`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        if text.contains('@') { Pinned::parse(text).map(Self::Pinned) } else { Tagged::parse(text).map(Self::Tagged) }
    }

    /// Where it is.
    pub fn repository(&self) -> &Repository {
        match self {
            Self::Tagged(tagged) => &tagged.repository,
            Self::Pinned(pinned) => &pinned.repository,
        }
    }
}

/// Splits at the colon after the last slash; a colon before it belongs to a port.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    let name = text.rfind('/').map_or(0, |slash| slash + 1);
    match text[name..].find(':') {
        Some(colon) => (&text[..name + colon], Some(&text[name + colon + 1..])),
        None => (text, None),
    }
}

fn looks_like_host(component: &str) -> bool {
    component == "localhost"
        || component.contains(['.', ':'])
        || component.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// A host by its look and a port, and nothing else: `127.0.0.1:5000`.
fn is_bare_registry(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or("", |(host, _)| host);
    is_host(text) && (host == "localhost" || host.contains(['.', ':']))
}

/// `host[:port]`, where host is a name of labels, an IPv4 address (a name by its form) or an IPv6 address in brackets.
pub(crate) fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port_fits = port.is_none_or(|port| !port.starts_with('+') && port.parse::<u16>().is_ok_and(|port| port > 0));
    let host_fits = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(is_label),
    };
    port_fits && host_fits
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_path_component(component: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends_in_words = component.bytes().next().is_some_and(is_word) && component.bytes().last().is_some_and(is_word);
    ends_in_words
        && component
            .split(|c: char| c.is_ascii() && is_word(c as u8))
            .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    tag.len() <= TAG_BYTES_MAX
        && tag.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)
    }
}

impl fmt::Display for Tagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.repository, self.tag)
    }
}

impl fmt::Display for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        write!(f, "@{}", self.digest)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tagged(tagged) => tagged.fmt(f),
            Self::Pinned(pinned) => pinned.fmt(f),
        }
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::parse(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(Repository);
as_text!(Tagged);
as_text!(Pinned);
as_text!(Reference);

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:4e1e22f471afc7ed5e024127396f56db392c1b6fc81fc0c05c0e072fb51909fe";

    #[test]
    fn tagged_references_are_qualified() {
        for (text, full) in [
            ("docker:20-dind", "docker.io/library/docker:20-dind"),
            ("docker.io/docker:20-dind", "docker.io/library/docker:20-dind"),
            ("index.docker.io/library/docker:20-dind", "docker.io/library/docker:20-dind"),
            ("grafana/grafana:1.0", "docker.io/grafana/grafana:1.0"),
            ("localhost/x:1", "localhost/x:1"),
            ("localhost:5000/x:1", "localhost:5000/x:1"),
            ("127.0.0.1:5000/library/docker:a", "127.0.0.1:5000/library/docker:a"),
            ("[::1]:5000/x:1", "[::1]:5000/x:1"),
            ("[::1]/x:1", "[::1]/x:1"),
            ("ghcr.io/a/b-c/d__e/f.g:_V1.2-x", "ghcr.io/a/b-c/d__e/f.g:_V1.2-x"),
            ("Registry/x:1", "Registry/x:1"),
            ("a---b/c:1", "docker.io/a---b/c:1"),
        ] {
            assert_eq!(Tagged::parse(text).unwrap().to_string(), full, "{text}");
            assert_eq!(Tagged::parse(full).unwrap().to_string(), full);
        }
    }

    #[test]
    fn pinned_references_keep_their_tag() {
        let pinned = Pinned::parse(&format!("docker:20-dind@{DIGEST}")).unwrap();
        assert_eq!(pinned.tag(), Some("20-dind"));
        assert_eq!(pinned.to_string(), format!("docker.io/library/docker:20-dind@{DIGEST}"));
        let bare = Pinned::parse(&format!("localhost:5000/x@{DIGEST}")).unwrap();
        assert_eq!((bare.tag(), bare.to_string()), (None, format!("localhost:5000/x@{DIGEST}")));
    }

    #[test]
    fn refuses_all_else() {
        let long = "a".repeat(256);
        for (bad, why) in [
            ("docker".to_owned(), "no tag"),
            ("localhost:5000/x".to_owned(), "a port is no tag"),
            ("docker:".to_owned(), "empty tag"),
            (format!("docker:{}", "t".repeat(129)), "tag of 129 bytes"),
            ("docker:-x".to_owned(), "tag begins with -"),
            ("docker:a/b".to_owned(), "slash in tag"),
            ("Docker:1".to_owned(), "capital in path"),
            ("a/../b:1".to_owned(), "climbs"),
            ("a//b:1".to_owned(), "empty component"),
            ("/a:1".to_owned(), "leading slash"),
            ("a/:1".to_owned(), "trailing slash"),
            ("a___b:1".to_owned(), "three underscores"),
            ("a..b:1".to_owned(), "two dots"),
            ("-a:1".to_owned(), "path begins with -"),
            ("a-:1".to_owned(), "path ends with -"),
            ("é:1".to_owned(), "not ASCII"),
            ("localhost:0/x:1".to_owned(), "port 0"),
            ("localhost:65536/x:1".to_owned(), "port too large"),
            ("localhost:+1/x:1".to_owned(), "signed port"),
            ("[::g]:1/x:1".to_owned(), "not an address"),
            ("-a.b/x:1".to_owned(), "host begins with -"),
            ("a.b./x:1".to_owned(), "empty label"),
            ("http://localhost/x:1".to_owned(), "a URL"),
            (format!("{long}:1"), "name of 256 bytes"),
            (format!("docker:1@{DIGEST}"), "a digest"),
            (" docker:1".to_owned(), "space"),
            (String::new(), "nothing"),
        ] {
            assert!(Tagged::parse(&bad).is_err(), "{why}: {bad:?}");
        }
        for bad in ["docker:20-dind", "docker@", "docker@sha256:12", "@", "a@b@c"] {
            assert!(Pinned::parse(bad).is_err(), "{bad:?}");
        }
    }
}
