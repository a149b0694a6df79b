//! The benchmarks, and what they and tests measure with: a real registry that tells what it was asked, a wire that counts bytes, processes
//! whose time and memory are noted; and the init beside others. Judges nothing; trials do.

mod base;
mod contest;
pub mod init;
mod measure;
mod peers;
mod registry;
pub mod scale;
pub mod table;
mod wire;

pub use base::LAYERS;
pub use contest::{Contest, PHASES, Phase};
pub use measure::{Usage, measure};
pub use registry::{Registry, configuration, read_only};
pub use wire::Wire;
