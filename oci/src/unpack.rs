//! Unpacks layers.

use std::path::Path;

use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::layout::Layout;
use crate::progress::Interrupt;

/// Bounds of what is unpacked.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest uncompressed layer in bytes.
    pub layer_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { layer_bytes: 16 << 30 }
    }
}

/// Applies `layers`, lowest first, to the directory `root`.
pub fn unpack(_layout: &Layout, _layers: &[Layer], root: &Path, _limits: Limits, _interrupt: &Interrupt) -> Result<()> {
    Err(Error::Entry { path: root.display().to_string(), problem: "not written yet".to_owned() })
}
