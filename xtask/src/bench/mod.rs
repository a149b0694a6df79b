//! What benchmarks and tests measure with: a real registry that tells what it was asked, and a wire that counts bytes.

mod base;
mod measure;
mod registry;
pub mod scale;
mod wire;

pub use base::LAYERS;
pub use measure::{Usage, measure};
pub use registry::{Registry, configuration, read_only};
pub use wire::Wire;
