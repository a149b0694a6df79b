//! Pure decisions of the init.
#![no_std]
