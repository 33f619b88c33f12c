//! The crate's tests: one program, so that they are linked once and run beside each other.
//!
//! `cargo test --release -p plimsoll-networks --test main golden` runs those of one file.

mod golden;
mod memory;
mod symbolic;
mod zoo;
