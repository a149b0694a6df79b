//! What the init decides, as pure functions over bytes and numbers: which options it was given, by which name it was
//! called, where a program may lie, what a signal and a wait status mean.
//!
//! Nothing here makes a system call, allocates or panics, so every decision is tested on the host by tables of cases.
//! What acts on the decisions is `main.rs`; what talks to the kernel is `sys.rs`.
#![cfg_attr(not(test), no_std)]

pub mod environment;
pub mod errno;
pub mod guard;
pub mod kernel;
pub mod numbers;
pub mod options;
pub mod pid_file;
pub mod search;
pub mod signals;
pub mod status;
pub mod text;

/// A process id as the kernel counts it in our PID namespace; 0 stands for one outside of it.
pub type Pid = libc::pid_t;

/// Our own name: the file's, and the one in `/proc/PID/comm` whatever name we were called by.
pub const NAME: &core::ffi::CStr = c"dind-init";
