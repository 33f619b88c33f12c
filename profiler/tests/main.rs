//! The profiler's tests: one program, so that they are linked once and run in parallel.
//!
//! `cargo test --release -p plimsoll-profiler --test main alternatives` runs the tests of one file.

mod alternatives;
mod devices;
