//! Platforms: operating system, architecture, variant. Knows names and the default variants, never what a machine can run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// What an image runs on, written `linux/amd64` or `linux/arm64/v8`.
/// Spec: image-spec `image-index.md`, property `platform`; the values are Go's `GOOS` and `GOARCH`.
///
/// ```
/// let platform = oci::Platform::parse("linux/arm/v7").unwrap();
/// assert_eq!(platform.variant.as_deref(), Some("v7"));
/// assert_eq!(platform.to_string(), "linux/arm/v7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Platform {
    /// `linux`, `windows`, ...
    pub os: String,
    /// `amd64`, `arm64`, `arm`, ...
    pub architecture: String,
    /// `v8`, `v7`, ...; most architectures have none.
    pub variant: Option<String>,
}

impl Platform {
    /// Parses `OS/ARCHITECTURE` or `OS/ARCHITECTURE/VARIANT`, each of lower-case letters, digits, `_`, `.` and `-`.
    ///
    /// # Errors
    /// [`Error::Grammar`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => return Err(grammar(text)),
        };
        if ![os, architecture, variant.unwrap_or("v")].into_iter().all(is_word) {
            return Err(grammar(text));
        }
        Ok(Self { os: os.to_owned(), architecture: architecture.to_owned(), variant: variant.map(str::to_owned) })
    }

    /// The platform that this program was compiled for.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "x86" => ("386", None),
            "aarch64" => ("arm64", None),
            "arm" => ("arm", Some("v7".to_owned())),
            "powerpc64" => ("ppc64le", None),
            "loongarch64" => ("loong64", None),
            other => (other, None),
        };
        Self { os: std::env::consts::OS.to_owned(), architecture: architecture.to_owned(), variant }
    }

    /// This platform with the variant that its architecture has when none is named: arm64 is v8, arm is v7
    /// (containerd's platform normalisation).
    pub fn with_default_variant(&self) -> Self {
        let default = match self.architecture.as_str() {
            "arm64" => Some("v8"),
            "arm" => Some("v7"),
            _ => None,
        };
        Self { variant: self.variant.clone().or(default.map(str::to_owned)), ..self.clone() }
    }

    /// Whether both are one platform once each has its architecture's default variant: `linux/arm64` and `linux/arm64/v8` are.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.with_default_variant() == other.with_default_variant()
    }
}

fn is_word(part: &str) -> bool {
    !part.is_empty()
        && part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'))
        && !part.starts_with('.')
}

fn grammar(text: &str) -> Error {
    Error::Grammar { noun: "platform", text: text.to_owned(), expected: "OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT" }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

impl FromStr for Platform {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl Serialize for Platform {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Platform {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_parsed() {
        for text in ["linux/amd64", "linux/arm64/v8", "linux/arm/v7", "windows/amd64", "linux/386", "unknown/unknown"] {
            assert_eq!(Platform::parse(text).unwrap().to_string(), text);
        }
        assert!(Platform::parse(&Platform::host().to_string()).is_ok());
    }

    #[test]
    fn refuses_all_else() {
        for (bad, why) in [
            ("", "nothing"),
            ("linux", "no architecture"),
            ("linux/", "empty architecture"),
            ("/amd64", "empty system"),
            ("linux/arm64/", "empty variant"),
            ("linux/arm64/v8/x", "four parts"),
            ("Linux/amd64", "capital"),
            ("linux/amd 64", "space"),
            ("linux/..", "climbs when used as a path"),
        ] {
            assert!(Platform::parse(bad).is_err(), "{why}: {bad:?}");
        }
    }

    #[test]
    fn only_arm_has_a_default_variant() {
        for (given, normal) in [
            ("linux/arm64", "linux/arm64/v8"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/arm/v6", "linux/arm/v6"),
            ("linux/amd64", "linux/amd64"),
        ] {
            assert_eq!(Platform::parse(given).unwrap().with_default_variant().to_string(), normal);
        }
    }
}
