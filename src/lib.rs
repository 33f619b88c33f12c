//! Plimsoll loads a GPU to the line: it measures a network and a machine, chooses batch size, placement and learning rate
//! for a memory budget, and trains exactly that.
//!
//! Plimsoll's crates are re-exported under their short names; [`study`] combines them into the jobs of the command
//! line. The rest is the command line itself, a thin layer: it parses options into requests ([`args`]), calls the job
//! ([`verbs`]), and formats the result as tables ([`output`]); [`program`] does all of that for one line, and turns an error
//! ([`study::Error`]) into a message and an exit code.
#![forbid(unsafe_code)]

pub use plimsoll_ir as ir;
pub use plimsoll_networks as networks;
pub use plimsoll_profiler as profiler;
pub use plimsoll_runtime as runtime;
pub use plimsoll_study as study;
pub use plimsoll_tuner as tuner;

pub mod args;
pub mod files;
pub mod interrupt;
mod notes;
pub mod output;
pub mod processes;
pub mod program;
pub mod progress;
pub mod settings;
mod terminal;
pub mod verbs;
