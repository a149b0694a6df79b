//! The steps of the pipeline, a file each. Each takes the value that the one before it made; none reads the environment or the clock.

pub mod archive;
pub mod base;
pub mod carry;
pub mod carve;
pub mod contents;
pub mod derive;
pub mod derived;
pub mod edges;
pub mod evidence;
pub mod gate;
pub mod identity;
pub mod init;
pub mod judge;
pub mod legs;
pub mod lookup;
pub mod memo;
pub mod oddities;
pub mod programs;
pub mod promote;
pub mod publish;
pub mod rootfs;
mod toolchain;
