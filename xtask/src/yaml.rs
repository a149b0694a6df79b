//! YAML read strictly: a doubled key is an error in maps too, where serde would silently keep the last one, and a number is no text.

use anyhow::{Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_yaml::Value;

/// Parses `text` into `T`. Error: not YAML, a doubled key, or not a `T`, with the line where the parser knows it; or a number or truth
/// value where `T` holds text, as other readers of the file would print it otherwise than it is written (the tag `20.10` as 20.1).
pub(crate) fn parse<T: DeserializeOwned + Serialize>(text: &str) -> Result<T> {
    // A byte order mark at the beginning says nothing (YAML 1.2.2, section 5.2), and the parser takes it for a document of its own.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // The untyped reading refuses doubled keys at every depth; the typed one knows which keys there are, and on which line.
    let written: Value = serde_yaml::from_str(text)?;
    check_keys("", &written)?;
    let parsed = serde_yaml::from_str(text)?;
    compare("", &written, &serde_yaml::to_value(&parsed)?)?;
    Ok(parsed)
}

/// The same of a part of what was parsed. Error: as [`parse`]'s, without the line.
pub(crate) fn part<T: DeserializeOwned + Serialize>(written: &Value) -> Result<T> {
    check_keys("", written)?;
    let parsed = serde_yaml::from_value(written.clone())?;
    compare("", written, &serde_yaml::to_value(&parsed)?)?;
    Ok(parsed)
}

/// Refuses keys that are no text; `key` is the innermost key around them.
fn check_keys(key: &str, written: &Value) -> Result<()> {
    match written {
        Value::Mapping(written) => written.iter().try_for_each(|(name, value)| match name.as_str() {
            Some(name) => check_keys(name, value),
            None => {
                let found = serde_yaml::to_string(name)?;
                bail!(
                    "{key}: expected text as a key, found the YAML value {}\nhint: put it in quotes",
                    found.trim_end()
                )
            }
        }),
        Value::Sequence(written) => written.iter().try_for_each(|value| check_keys(key, value)),
        _ => Ok(()),
    }
}

/// Refuses what was `written` as another kind of value than it was `read` as; `key` is the innermost key around both.
fn compare(key: &str, written: &Value, read: &Value) -> Result<()> {
    match (written, read) {
        (Value::Mapping(written), Value::Mapping(read)) => written.iter().try_for_each(|(name, value)| {
            read.get(name).map_or(Ok(()), |read| compare(name.as_str().unwrap_or(key), value, read))
        }),
        (Value::Sequence(written), Value::Sequence(read)) => {
            written.iter().zip(read).try_for_each(|(written, read)| compare(key, written, read))
        }
        (Value::Number(_) | Value::Bool(_), Value::String(_)) => {
            let found = serde_yaml::to_string(written)?;
            bail!("{key}: expected text, found the YAML value {}\nhint: put it in quotes", found.trim_end())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Document {
        tags: Vec<String>,
        floating: bool,
    }

    #[test]
    fn only_text_is_text() {
        let expected = Document { tags: vec!["20.10".to_owned(), "20-dind".to_owned()], floating: true };
        assert_eq!(parse::<Document>("tags: ['20.10', 20-dind]\nfloating: true").expect("parse"), expected);
        assert_eq!(parse::<Document>("\u{feff}tags: []\nfloating: true").expect("parse").tags.len(), 0);
        for (text, expected) in [
            ("tags: []\n20.10: true", ": expected text as a key, found the YAML value 20.1\nhint: put it in quotes"),
            ("tags: [20.10]\nfloating: true", "tags: expected text, found the YAML value 20.1\nhint: put it in quotes"),
            ("tags: [a, 20]\nfloating: true", "tags: expected text, found the YAML value 20\n"),
            ("tags: [true]\nfloating: true", "tags: expected text, found the YAML value true\n"),
            ("tags: []\nfloating: 'true'", "invalid type: string \"true\", expected a boolean"),
        ] {
            let error = parse::<Document>(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: expected {expected}, found {error}");
        }
    }
}
