//! The scripts of the stand-in, run by a real shell with stub programs.
