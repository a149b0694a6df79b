//! The pipeline's command line: definitions to plan to images to verdicts to the record. See ARCHITECTURE.md for the map.

mod apt;
pub mod args;
pub mod bench;
pub mod cmd;
pub mod digests;
pub mod elf;
pub mod linters;
pub mod lock;
pub mod plan;
mod program;
pub mod progress;
pub mod promotion;
pub mod record;
pub mod registry;
pub mod session;
pub mod shared;
pub mod spec;
pub mod stages;
pub mod standin;
pub mod tools;
mod yaml;
