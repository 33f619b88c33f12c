//! Plimsoll loads a GPU to the line: it measures a network and a machine, chooses batch size, placement and learning rate
//! for a memory budget, and trains exactly that.
//!
//! The crates of the house are re-exported under their short names; [`study`] joins them to the jobs that the command line
//! offers. The rest is the command line itself, a thin layer: it turns options into requests ([`args`]), calls the job
//! ([`verbs`]), lays the result out as tables ([`output`]), and says what to do where the job fails ([`failure`]);
//! [`program`] is all of that for one line.
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
