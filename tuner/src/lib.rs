//! Decides: what stays on the device, what is swapped and what is recomputed, at which addresses, at which batch size and
//! learning rate.
//!
//! The way of a plan, floor by floor: a [`request`] is checked by [`plan`](fn@plan); `iteration` cuts the trace's tensors
//! into values and the gaps between their uses; a policy of [`policies`] decides about them, with what `decide` says of the
//! consequences, as a placement; `place` gives everything its address in the pool and makes the `schedule/1` with just the
//! waits that validity needs; [`plimsoll_ir::check`] judges it before anybody sees it, and [`bound`] says how good it is.
//!
//! Nothing here touches a device, reads a clock or an environment variable: what stops a search is handed in.
#![forbid(unsafe_code)]

pub mod bound;
mod compact;
mod decide;
pub mod exchange;
pub mod frontier;
pub mod goodput;
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
    Algorithms, Allow, Layers, Layrub, Limits, Outcome, Plan, PlanError, PlanRequest, Policy, Shortage,
    Status, Trick, Tricks, UnknownPolicy, Witness,
};
