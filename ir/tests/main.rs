//! The crate's tests: one program, so that they are linked once and run beside each other.
//!
//! `cargo test --release -p plimsoll-ir --test main check_random` runs those of one file.

mod common;

mod check_random;
mod check_table;
mod documents;
mod exchange;
mod referee;
mod simulate;
