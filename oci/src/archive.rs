//! Reads tar.
