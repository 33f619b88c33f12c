//! The tuner's tests: one program, so that they are linked once and run in parallel.
//!
//! `cargo test --release -p plimsoll-tuner --test main cliffs` runs those of one file.

mod common;

mod address;
mod bounds;
mod cliffs;
mod dqn;
mod earlier;
mod edges;
mod exchange;
mod few_slots;
mod first;
mod frontier;
mod golden;
mod host;
mod hostile;
mod optimal;
mod papers;
mod random;
mod traces;
mod tricks;
