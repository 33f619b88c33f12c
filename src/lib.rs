//! Plimsoll loads a GPU to the line: it measures a network and a machine, chooses batch size, placement and learning rate
//! for a memory budget, and trains exactly that.
//!
//! The crates of the house are re-exported under their short names; [`task::Task`] joins them to the jobs that the
//! command line offers. The command line itself is here too ([`args`], [`verbs`]), a thin layer: it reads options, calls the
//! job, and lays the result out as tables.
#![forbid(unsafe_code)]

pub use plimsoll_ir as ir;
pub use plimsoll_networks as networks;
pub use plimsoll_profiler as profiler;
pub use plimsoll_runtime as runtime;
pub use plimsoll_tuner as tuner;

pub mod args;
pub mod checksums;
pub mod confirming;
pub mod doubts;
pub mod export;
pub mod failure;
pub mod files;
pub mod interrupt;
mod kept;
pub mod memory_snapshot;
pub mod naming;
pub mod onnx;
pub mod output;
pub mod profile_cache;
pub mod progress;
pub mod ran;
pub mod record;
pub mod report;
pub mod settings;
pub mod study;
pub mod task;
mod terminal;
pub mod trace_events;
pub mod training;
pub mod tried;
pub mod tuning;
pub mod verbs;
