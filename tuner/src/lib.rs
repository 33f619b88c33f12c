//! Planning: which tensors stay on the device, are swapped or are recomputed, at which addresses, at which batch size and
//! learning rate.
//!
//! The stages of a plan: [`plan`](fn@plan) checks a [`request`]; `iteration` cuts the trace's tensors into values and the gaps
//! between their uses; a policy of [`policies`] turns them into a placement, and `decide` computes the consequences of its
//! decisions; `place` assigns addresses in the pool and builds the `schedule/1` with only the waits that validity needs;
//! [`plimsoll_ir::check`] verifies it before it is returned, and [`bound`] limits how much faster a plan could be.
//!
//! This crate touches no device and reads no clock or environment variable: the caller passes in the conditions that stop a
//! search.
#![forbid(unsafe_code)]

pub mod bound;
mod compact;
mod decide;
pub mod exchange;
pub mod frontier;
mod iteration;
mod levels;
pub mod model;
mod numbers;
mod place;
pub mod plan;
pub mod policies;
mod random;
mod range_max;
pub mod rate;
pub mod request;
pub mod search;
pub mod state_copy;
mod threads;

pub use iteration::earlier::Earlier;
pub use place::address;
pub use plan::{plan, plan_by_control, plan_with_log};
pub use request::{
    Algorithms, Allow, Error, Kind, Layers, Layrub, Limits, Outcome, Plan, PlanRequest, Policy, Shortage,
    Status, Trick, Tricks, Witness,
};
