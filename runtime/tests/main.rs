//! The runtime's tests, except for those of the kernels, which also run on a GPU: one program, so that the tests are linked
//! once and run in parallel.
//!
//! `cargo test --release -p plimsoll-runtime --test main allocations` runs those of one file.

mod support;

mod allocations;
mod bf16;
mod data_files;
mod devices;
mod feeding;
mod pytorch;
mod same_bits;
mod training;
mod workers;
