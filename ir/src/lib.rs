//! The words of Plimsoll: what every other crate hands to the next, as plain data.
//!
//! A [`network::Network`] is lowered to a [`program::Program`] (what each op computes) and a [`trace::Trace`] (what each
//! op touches and how long it takes). The tuner turns a trace into a [`schedule::Schedule`]: a static program for three
//! streams. [`check`] proves a schedule free of races, [`simulate`] says how long it takes. A [`profile::Profile`] is
//! what was measured, a [`config::Config`] what was chosen, a [`tuning::Tuning`] what was tried for it.
//! An [`exchange::Exchange`] is what the workers of one training send each other, beside a schedule.
//!
//! Nothing here does IO, nothing is `unsafe`, and no other crate of the house is imported: what stands here can be
//! printed, saved, compared and trusted on its own.
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
pub mod testing;
pub mod trace;
pub mod tuning;
pub mod units;

pub use document::{Document, Fault};
pub use ids::{BufferId, CommandId, LayerId, OpId, TensorId};
pub use optimizer::{Optimizer, UpdateNumbers, UpdateRule};
pub use precision::{Float, Precision};
pub use units::{Bytes, BytesPerSecond, Seconds};
