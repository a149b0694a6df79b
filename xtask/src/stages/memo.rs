//! What was done before with the same inputs: one small JSON file per result, named by the hash of all that went in.
//! A result is written whole or not at all, and never read under another key.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci::Digest;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::shared::write_whole;

/// The results of one stage.
#[derive(Debug, Clone)]
pub struct Memo {
    folder: PathBuf,
}

impl Memo {
    /// The memo of a stage below the cache folder.
    pub fn new(cache: &Path, stage: &str) -> Self {
        Self { folder: cache.join("memo").join(stage) }
    }

    /// The result for these inputs; none: never done, or its file is unreadable (then it is done again).
    pub fn get<T: DeserializeOwned>(&self, inputs: &impl Serialize) -> Result<Option<T>> {
        let path = self.path(inputs)?;
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    /// Keeps a result.
    pub fn put(&self, inputs: &impl Serialize, result: &impl Serialize) -> Result<()> {
        let path = self.path(inputs)?;
        fs::create_dir_all(&self.folder).with_context(|| format!("make {}", self.folder.display()))?;
        write_whole(&path, &serde_json::to_vec_pretty(result).context("print a result")?)
    }

    fn path(&self, inputs: &impl Serialize) -> Result<PathBuf> {
        let key = serde_json::to_vec(inputs).context("print the inputs of a stage")?;
        Ok(self.folder.join(format!("{}.json", Digest::of(&key).hex())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_found_under_its_inputs_only() {
        let folder = tempfile::tempdir().expect("make a folder");
        let memo = Memo::new(folder.path(), "derive");
        assert_eq!(memo.get::<u32>(&("a", 1)).expect("read"), None);
        memo.put(&("a", 1), &7).expect("write");
        assert_eq!(memo.get::<u32>(&("a", 1)).expect("read"), Some(7));
        assert_eq!(memo.get::<u32>(&("a", 2)).expect("read"), None);
    }

    #[test]
    fn a_half_written_result_counts_as_none() {
        let folder = tempfile::tempdir().expect("make a folder");
        let memo = Memo::new(folder.path(), "derive");
        memo.put(&"key", &vec!["x"; 100]).expect("write");
        let path = memo.path(&"key").expect("name");
        let bytes = fs::read(&path).expect("read");
        fs::write(&path, &bytes[..bytes.len() / 2]).expect("cut");
        assert_eq!(memo.get::<Vec<String>>(&"key").expect("read"), None);
    }
}
