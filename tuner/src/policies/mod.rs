//! Planning policies. Each returns a set of swapped gaps, or, if its paper fixes them (`vdnn`, `layrub`, `tflms`), also their
//! windows and synchronisation, or decisions about values (`plimsoll`). Addresses, waits, check and clock are the same for all,
//! so that policies can be compared. Those of papers are in [`papers`].
//!
//! - `keep`: no gap.
//! - `naive`: every activation, from the forward pass to the backward pass.
//! - `accudnn`: the same, except for those that `t_ready` predicts would stall the device; and the paper's version to the letter.
//! - `vdnn`: the inputs of layers, layer by layer; each offload ends before the next layer starts.
//! - `layrub`: every activation, layer by layer, and back one layer ahead.
//! - `greedy`, `dynprog`, `baselines`: the trace as a chain, whose stages are offloaded or not.
//! - `superneurons`, `memonger`: ops are recomputed, as in a trace in which each run is an op.
//! - `dqn`: a deep Q-network, trained on the trace, offloads and recomputes.
//! - `plimsoll`: a search among keeping, swapping and recomputing.
//! - [`optimal`]: the fastest iteration, for small traces.

pub mod optimal;
pub mod papers;
mod plimsoll;

use crate::bound::{lower_bound_within, offload_bound, unbeatable};
use crate::iteration::values::Values;
use crate::place::realise::{Case, Fitting, Realised};
use crate::policies::papers::dqn::Control;
use crate::policies::papers::{
    accudnn, baselines, dynprog, greedy, keep, layrub, memonger, naive, superneurons, vdnn,
};
use crate::request::{Allow, Error, Layrub, Outcome, Plan, PlanRequest, Policy, Status};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};

/// Returns all policies that take this trace; Plimsoll's own planner is the last.
pub fn taking(trace: &Trace) -> Vec<Policy> {
    let mut all = Policy::ALL.to_vec();
    all.insert(all.len() - 1, Policy::Dqn);
    if optimal::takes(trace) {
        all.insert(all.len() - 1, Policy::Optimal);
    }
    all
}

/// Returns the number of evaluations that `plimsoll` makes if the request does not limit them.
pub fn suggested_evaluations(trace: &Trace, request: &PlanRequest<'_>) -> u64 {
    let pool = request.budget.saturating_sub(trace.resident_bytes);
    plimsoll::suggested(&Values::new(trace, pool, request.allow))
}

/// Runs a request's policy, and logs its search. The request was checked, and its budget is not below the floor.
pub(crate) fn decide(trace: &Trace, request: &PlanRequest<'_>) -> Result<(Outcome, SearchLog), Error> {
    let pool = request.budget.0 - trace.resident_bytes.0;
    // Searching policies swap nothing if the host has no room for a byte; the others ignore the host's limit.
    let searches = matches!(request.policy, Policy::Plimsoll | Policy::Optimal);
    let Allow { swap, recompute, .. } = request.allow;
    let swap = swap && (!searches || request.allow.hosts(1));
    let host = request.allow.host.filter(|_| swap);
    let request = &PlanRequest { allow: Allow { swap, host, ..request.allow }, ..*request };
    let allowed = match request.policy {
        Policy::Memonger { .. } => recompute,
        Policy::SuperNeurons | Policy::Plimsoll | Policy::Optimal => recompute || swap,
        _ => swap,
    };
    let policy = if allowed { request.policy } else { Policy::Keep };
    let bound = match policy {
        Policy::Plimsoll if recompute || !swap => trace.fastest_seconds(),
        Policy::Memonger { .. } | Policy::SuperNeurons | Policy::Dqn | Policy::Optimal => {
            lower_bound_within(trace, request.budget, &request.link, request.allow, &request.limits)
        }
        _ => offload_bound(trace, request.budget, &request.link, &request.limits),
    };
    let case = Case { trace, request, pool, bound, within: Seconds(f64::INFINITY) };
    Ok(match run(&case, policy)? {
        Made::Searched(outcome, log) => (outcome, log),
        Made::Ruled(realised) => (case.outcome(realised, Status::Feasible), SearchLog::default()),
    })
}

/// Made of a policy.
enum Made {
    /// Of one that searches.
    Searched(Outcome, SearchLog),
    /// Of one with a fixed rule.
    Ruled(Realised),
}

/// Runs a policy.
fn run(case: &Case<'_>, policy: Policy) -> Result<Made, Error> {
    let searched = |(outcome, log)| Made::Searched(outcome, log);
    let ruled = match policy {
        Policy::Plimsoll => return plimsoll::decide(case).map(searched),
        Policy::Optimal => return optimal::decide(case).map(searched),
        Policy::Dqn => return papers::dqn::decide(case).map(searched),
        Policy::Keep | Policy::Layrub(Layrub::Intra) => keep::keep(case, case.exhaustive()),
        Policy::Naive => naive::realise(case),
        Policy::Accudnn { as_printed } => accudnn::realise(case, as_printed),
        Policy::Vdnn { layers, algorithms } => vdnn::realise(case, layers, algorithms),
        Policy::VdnnDyn => vdnn::dynamic(case),
        Policy::Layrub(Layrub::Inter | Layrub::Hybrid) => layrub::inter(case),
        Policy::Greedy => greedy::realise(case),
        Policy::DynProg => dynprog::realise(case),
        Policy::VdnnRatio => baselines::ratio(case),
        Policy::Tflms => baselines::tflms(case),
        Policy::AutoSwap => baselines::autoswap(case),
        Policy::SuperNeurons => superneurons::realise(case),
        Policy::Memonger { searched: false } => memonger::realise(case),
        Policy::Memonger { searched: true } => memonger::searched(case),
    };
    ruled.map(Made::Ruled)
}

/// Runs a search that learns nothing, with the actions of [`Policy::Dqn`]. The request was checked, and its budget is not below
/// the floor.
pub(crate) fn control(
    trace: &Trace,
    request: &PlanRequest<'_>,
    control: Control,
) -> Result<(Outcome, SearchLog), Error> {
    let pool = request.budget.0 - trace.resident_bytes.0;
    let (bound, within) = (trace.fastest_seconds(), Seconds(f64::INFINITY));
    papers::dqn::decide_by_control(&Case { trace, request, pool, bound, within }, control)
}

impl Case<'_> {
    /// Returns the outcome of a policy's result. `status` is for a plan that is not proved optimal.
    pub(crate) fn outcome(&self, realised: Realised, status: Status) -> Outcome {
        match realised {
            Realised::Short(witness) => Outcome::Infeasible(witness),
            Realised::Slow => unreachable!("nothing is slow where any makespan will do"),
            Realised::Fits(Fitting { schedule, makespan, moved, .. }) => {
                let optimal = makespan.0 <= unbeatable(self.trace, self.request, self.bound).0 * (1.0 + 1e-9);
                let status = if optimal { Status::Optimal } else { status };
                let (schedule, moved) = (*schedule, Bytes(moved));
                Outcome::Planned(Plan { schedule, makespan, moved, bound: self.bound, status })
            }
        }
    }
}
