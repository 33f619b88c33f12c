//! The tests of program and library, in one program, so that they are linked once and run in parallel.
//!
//! `cargo test --release -p plimsoll --test main chains` runs those of one file.

mod chains;
mod command_line;
mod examples;
mod export;
mod gpu_faults;
mod gpu_workers;
mod interrupts;
mod modelled;
mod mpi;
mod optimizers;
mod own_data;
mod pictures;
mod precision;
#[path = "support/program.rs"]
mod program;
mod report;
mod report_page;
mod said;
mod same_bits;
mod settings;
mod snapshots;
mod study_folder;
mod weights;
mod workers;
