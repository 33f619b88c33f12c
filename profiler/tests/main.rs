//! The profiler's tests: one program, so that they are linked once and run beside each other.
//!
//! `cargo test --release -p plimsoll-profiler --test main alternatives` runs those of one file.

mod alternatives;
mod devices;
