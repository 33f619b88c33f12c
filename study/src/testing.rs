//! Test support: an iteration whose plan swaps, stalls and recomputes.

use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond};
use plimsoll_testing::chain_trace;
use plimsoll_tuner::{Outcome, PlanRequest, Policy, plan};

/// Returns a chain with a budget an eighth of the way from its floor to its peak, with its schedule and predicted timeline.
pub(crate) fn planned_chain() -> (Trace, Schedule, Timeline) {
    let trace = chain_trace(30);
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("an op").1, memory.peak().expect("an op").1);
    let budget = floor + Bytes((peak - floor).0 / 8);
    let request = PlanRequest::new(budget, Link::symmetric(BytesPerSecond(5e9)), Policy::Plimsoll);
    let Ok(Outcome::Planned(plan)) = plan(&trace, &request) else { panic!("a chain has a plan") };
    let timeline = simulate(&trace, &plan.schedule);
    (trace, plan.schedule, timeline)
}
