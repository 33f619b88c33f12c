//! Limits of an iteration: the budget, the link, or computing itself; each with its numbers, and the one that costs most.

use plimsoll_ir::schedule::{Schedule, Stream};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};

use crate::report::reasons::percent;

/// Share of an iteration below which time besides computing limits nothing.
const LITTLE: f64 = 0.01;

/// The three limits, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Costliest limit, in a sentence.
    pub verdict: String,
    /// Memory above the budget that keeping everything would need, and the cost of recomputing.
    pub budget: String,
    /// Load of the link, and the time that compute waits for it.
    pub link: String,
    /// Share of the iteration in which ops run for the first time.
    pub compute: String,
}

impl Limits {
    /// Describes the limits of a predicted iteration. The schedule is valid for the trace.
    pub fn of(trace: &Trace, schedule: &Schedule, predicted: &Timeline) -> Limits {
        let totals = predicted.totals(trace, schedule);
        let makespan = predicted.makespan();
        let share = |seconds: Seconds| if makespan.0 > 0.0 { seconds / makespan } else { 0.0 };
        let [compute, out, back] = Stream::ALL.map(|stream| totals.busy[stream.index()]);
        let first = compute - totals.recomputed;
        // Waits of compute, and transfers that go on after its end.
        let waits = totals.stalled[Stream::Compute.index()] + totals.idle[Stream::Compute.index()];
        let (again, budget) = (totals.recomputed, schedule.budget_bytes);
        let moves = totals.offloaded > Bytes::ZERO || totals.prefetched > Bytes::ZERO;
        let (op, needs) = trace
            .memory()
            .peak()
            .map_or(("", Bytes::ZERO), |(op, bytes)| (trace.ops[op.index()].name.as_str(), bytes));
        let verdict = if share(waits) < LITTLE && share(again) < LITTLE {
            format!("computing: it takes {} of the iteration", percent(share(first)))
        } else if waits >= again {
            format!("the link: compute waits {waits} for it, {} of the iteration", percent(share(waits)))
        } else {
            format!("the budget: {again} go to recomputing ops, {} of the iteration", percent(share(again)))
        };
        let short = if needs <= budget {
            format!("keeping everything takes {needs}, which fits the budget of {budget}")
        } else {
            let by = needs - budget;
            format!("keeping everything takes {needs} at `{op}`, {by} more than the budget of {budget}")
        };
        let link = if moves {
            format!(
                "busy {} of the time out and {} back; compute waits {waits} ({}) for it",
                percent(share(out)),
                percent(share(back)),
                percent(share(waits))
            )
        } else {
            "nothing is moved".to_owned()
        };
        Limits {
            verdict,
            budget: format!("{short}; recomputing ops takes {again} ({})", percent(share(again))),
            link,
            compute: format!("{first} of {makespan} ({})", percent(share(first))),
        }
    }
}
