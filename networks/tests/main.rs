//! The crate's tests: one program, so that they are linked once and run in parallel.
//!
//! `cargo test --release -p plimsoll-networks --test main golden` runs the tests of one file.

mod golden;
mod memory;
mod symbolic;
mod weights;
mod zoo;
