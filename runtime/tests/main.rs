//! The runtime's tests, but for those of the kernels, with which a GPU is tried, too: one program, so that they are linked once
//! and run beside each other.
//!
//! `cargo test --release -p plimsoll-runtime --test main allocations` runs those of one file.

mod support;

mod allocations;
mod bf16;
mod data_files;
mod devices;
mod draws;
mod feeding;
mod pytorch;
mod same_bits;
mod training;
mod workers;
