//! The data types that the crates of Plimsoll pass to one another.
//!
//! A [`network::Network`] is lowered to a [`program::Program`] (the computation of each op) and a [`trace::Trace`] (the
//! tensors and seconds of each op). The tuner turns a trace into a [`schedule::Schedule`]: a static program for three
//! streams. [`check`] proves a schedule free of races, [`simulate`] predicts its timeline. A [`profile::Profile`] holds
//! measurements, a [`config::Config`] the choice made from them, a [`tuning::Tuning`] everything tried on the way. An
//! [`exchange::Exchange`] describes the messages between the workers of one training, next to a schedule.
//!
//! The crate does no IO, has no `unsafe`, and imports no other crate of the workspace: its values can be printed, saved,
//! compared and trusted by themselves.
#![forbid(unsafe_code)]

pub mod check;
pub mod checksum;
pub mod config;
pub mod document;
pub mod exchange;
pub mod health;
pub mod ids;
pub mod network;
pub mod optimizer;
pub mod philox;
pub mod precision;
pub mod profile;
pub mod program;
pub mod schedule;
pub mod search_log;
pub mod simulate;
pub mod trace;
pub mod tuning;
pub mod units;

pub use document::{Document, Fault};
pub use ids::{BufferId, CommandId, LayerId, OpId, TensorId};
pub use optimizer::{Optimizer, UpdateNumbers, UpdateRule};
pub use precision::{Float, Precision};
pub use units::{Bytes, BytesPerSecond, Seconds};
