//! Decides: what stays on the device, what is swapped and what is recomputed, at which addresses, at which batch size and
//! learning rate.
//!
//! The way of a plan: a [`Trace`](plimsoll_ir::trace::Trace) becomes [`values`] and the gaps between their touches (for
//! policies that only offload whole tensors, [`gaps`]), a policy of [`policies`] chooses among them with the evaluator,
//! [`walk`](mod@walk) and [`windows`], [`placement`] states the decision as data,
//! [`address`] gives everything its place in the pool, [`lower`](mod@lower) makes the `schedule/1` with just the waits that
//! validity needs, and [`plimsoll_ir::check`] judges it before anybody sees it. [`plan`](fn@plan) is the whole way.
//!
//! Nothing here touches a device, reads a clock or an environment variable: what stops a search is handed in.
#![forbid(unsafe_code)]

pub mod bound;
pub mod decide;
pub mod frontier;
pub mod iteration;
pub mod model;
pub mod place;
pub mod plan;
pub mod policies;
mod random;
mod range_max;
pub mod rate;
pub mod request;
pub mod search;
pub mod state_copy;
mod threads;

pub use plan::plan;
pub use request::{
    Allow, Limits, Outcome, Plan, PlanError, PlanRequest, Policy, Shortage, Status, Trick, Tricks,
    UnknownPolicy, Witness,
};
