//! YAML read strictly: a doubled key is an error in maps too, where serde would silently keep the last one.

use anyhow::Result;
use serde::de::DeserializeOwned;

/// Parses `text` into `T`. Error: not YAML, a doubled key, or not a `T`, with the line where the parser knows it.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    // The untyped reading refuses doubled keys at every depth; the typed one knows which keys there are, and on which line.
    let _: serde_yaml::Value = serde_yaml::from_str(text)?;
    Ok(serde_yaml::from_str(text)?)
}
