//! The crate's tests: one program, so that they are linked once and run in parallel.
//!
//! `cargo test --release -p plimsoll-ir --test main check_random` runs the tests of one file.

mod common;

mod check_random;
mod check_table;
mod documents;
mod exchange;
mod operands;
mod referee;
mod simulate;
