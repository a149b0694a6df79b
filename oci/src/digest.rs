//! Content digests. A [`Digest`] names stored bytes (manifest, config, compressed layer), a [`DiffId`] names a layer's
//! uncompressed tar: two types, so that neither can be looked up by the other. Both come from hashing or from strict
//! parsing only, never from bytes that somebody claims to be a hash.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// The digest of a blob as it is stored and sent: `sha256:` and 64 lower-case hexadecimal digits.
/// Spec: image-spec `descriptor.md`, section "Digests". Of the registered algorithms only sha256 is taken: all else is
/// refused when parsed, so that no blob is ever trusted unhashed.
///
/// ```
/// let digest = oci::Digest::of(b"hello");
/// assert_eq!(digest.to_string(), "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
/// assert_eq!(digest.to_string().parse::<oci::Digest>().unwrap(), digest);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The digest of a layer's uncompressed tar, as listed in a config's `rootfs.diff_ids`.
/// Spec: image-spec `config.md`, section "Layer DiffID". Written as a [`Digest`] is.
///
/// A diff id and a digest do not mix:
///
/// ```compile_fail
/// let diff_id: oci::DiffId = oci::Digest::of(b"compressed");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiffId([u8; 32]);

/// Hashes bytes as they pass; ends in a [`Digest`] or a [`DiffId`], whichever the bytes are.
#[derive(Clone, Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn digest(self) -> Digest {
        Digest(self.0.finalize().into())
    }

    pub(crate) fn diff_id(self) -> DiffId {
        DiffId(self.0.finalize().into())
    }
}

macro_rules! sha256_name {
    ($name:ident, $noun:literal) => {
        impl $name {
            /// Hashes `bytes`.
            pub fn of(bytes: &[u8]) -> Self {
                Self(Sha256::digest(bytes).into())
            }

            /// Parses `sha256:<64 lower-case hexadecimal digits>`.
            ///
            /// # Errors
            /// [`Error::Grammar`] for any other algorithm, length or letter case.
            pub fn parse(text: &str) -> Result<Self> {
                parse_sha256(text).map(Self).ok_or_else(|| Error::Grammar {
                    noun: $noun,
                    text: text.to_owned(),
                    expected: "sha256: and 64 lower-case hexadecimal digits",
                })
            }

            /// The 64 hexadecimal digits, without the algorithm.
            pub fn hex(&self) -> String {
                self.0.iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "sha256:{}", self.hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

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

sha256_name!(Digest, "digest");
sha256_name!(DiffId, "diff id");

fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    let hex = text.strip_prefix("sha256:")?.as_bytes();
    if hex.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn prints_what_it_parsed() {
        assert_eq!(Digest::parse(EMPTY).unwrap().to_string(), EMPTY);
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(DiffId::of(b"").to_string(), EMPTY);
        let json = serde_json::to_string(&Digest::of(b"")).unwrap();
        assert_eq!(json, format!("\"{EMPTY}\""));
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), Digest::of(b""));
    }

    #[test]
    fn refuses_all_else() {
        let hex = &EMPTY[7..];
        for (bad, why) in [
            (hex.to_owned(), "no algorithm"),
            (format!("sha512:{hex}"), "another algorithm"),
            (format!("SHA256:{hex}"), "algorithm in capitals"),
            (EMPTY.to_uppercase(), "capitals"),
            (format!("sha256:{}", hex.to_uppercase()), "capital digits"),
            (format!("{EMPTY}0"), "65 digits"),
            (EMPTY[..70].to_owned(), "63 digits"),
            (format!("sha256:{}g", &hex[..63]), "not a hexadecimal digit"),
            (format!("sha256:{}é", &hex[..62]), "64 bytes, not ASCII"),
            (format!(" {EMPTY}"), "leading space"),
            (format!("{EMPTY}\n"), "trailing line feed"),
            (String::new(), "nothing"),
        ] {
            assert!(Digest::parse(&bad).is_err(), "{why}: {bad:?}");
            assert!(serde_json::from_value::<DiffId>(bad.clone().into()).is_err(), "{why}: {bad:?}");
        }
    }
}
