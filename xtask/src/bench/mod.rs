//! What benchmarks and tests measure with: a real registry that tells what it was asked, and a wire that counts bytes.

mod registry;
mod wire;

pub use registry::{Registry, configuration, read_only};
pub use wire::Wire;
