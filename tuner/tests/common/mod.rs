//! Checks shared by every test of a plan.

pub mod judge;

use judge::{judge_plan, judge_witness};
use plimsoll_ir::schedule::{Command, Duplex, Link, place_on_host};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond};
use plimsoll_testing::{floor_and_peak, random_trace, random_trace_of};
use plimsoll_tuner::bound::least_moved;
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, Shortage, Witness, plan};
use std::cell::Cell;
use std::ops::Range;

/// Means of which each is missing something.
pub const LESS: [Allow; 3] = [
    Allow { recompute: false, ..Allow::ALL },
    Allow { swap: false, ..Allow::ALL },
    Allow { pieces: false, ..Allow::ALL },
];

/// Returns random traces, of few ops or this many, every fourth with tensors large enough for pieces; and a kind of link.
pub fn random_traces(seeds: Range<u64>, ops: usize) -> impl Iterator<Item = (u64, Trace, Duplex)> {
    seeds.map(move |seed| {
        let mut trace = if seed % 3 == 0 { random_trace_of(ops, seed) } else { random_trace(seed) };
        if seed % 4 == 1 {
            trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * 1000);
        }
        (seed, trace, if seed % 2 == 0 { Duplex::Full } else { Duplex::Half })
    })
}

/// Returns a clock that expires when it has been asked more than this many times.
pub fn expires_after(polls: u32) -> impl Fn() -> bool {
    let left = Cell::new(polls);
    move || left.replace(left.get().saturating_sub(1)) == 0
}

/// Returns a request with few evaluations, so that tests are quick.
pub fn request(budget: Bytes, rate: f64, duplex: Duplex, policy: Policy) -> PlanRequest<'static> {
    let link = Link { duplex, ..Link::symmetric(BytesPerSecond(rate)) };
    let limits = Limits { evaluations: Some(150), expired: None };
    PlanRequest { limits, seed: 7, ..PlanRequest::new(budget, link, policy) }
}

/// Plans, and checks all promised properties of a plan or of a witness.
pub fn planned(trace: &Trace, request: &PlanRequest<'_>) -> Result<Plan, Witness> {
    let what = format!("{} at {} under {}", trace.name, request.budget, request.policy);
    match plan(trace, request).unwrap_or_else(|error| panic!("{what}: {error}")) {
        Outcome::Planned(plan) => {
            judge_plan(trace, request, &plan, &what);
            assert_neat(trace, request, &plan, &what);
            Ok(plan)
        }
        Outcome::Infeasible(witness) => {
            judge_witness(trace, request, &witness, &what);
            assert_honest(trace, request, &witness, &what);
            Err(witness)
        }
    }
}

/// Returns `true` for a size or an offset such as those of a network's own tensors.
fn is_aligned(bytes: Bytes) -> bool {
    bytes.0.is_multiple_of(256)
}

/// Checks properties of plans for traces of ordinary sizes: aligned places, no more moved bytes or waits than expected.
fn assert_neat(trace: &Trace, request: &PlanRequest<'_>, plan: &Plan, what: &str) {
    let schedule = &plan.schedule;
    let of_alternatives = trace.ops.iter().flat_map(|op| &op.alternatives).map(|a| a.workspace_bytes);
    let workspaces = trace.ops.iter().map(|op| op.workspace_bytes).chain(of_alternatives);
    let mut sizes = trace.tensors.iter().map(|t| t.bytes).chain(workspaces);
    if sizes.all(is_aligned) {
        assert!(schedule.buffers.iter().all(|buffer| is_aligned(buffer.offset)), "{what}: kernels need that");
    }
    let again = |command: &Command| matches!(command, Command::Compute { again: true, .. });
    let offloads_only = !schedule.commands.iter().any(again);
    assert!(!offloads_only || plan.moved >= least_moved(trace, request.budget), "{what}: {}", plan.moved);
    let most = schedule.commands.iter().map(|c| c.waits().len()).max();
    assert!(most <= Some(2), "{what}: {most:?} waits");
}

/// Checks that a witness does not name a need that a plan could avoid under a different name.
fn assert_honest(trace: &Trace, request: &PlanRequest<'_>, witness: &Witness, what: &str) {
    let Allow { swap, recompute, host, .. } = request.allow;
    assert!(swap || !witness.why.is_of_host(), "{what}: {witness}");
    if matches!(witness.why, Shortage::Policy | Shortage::Tried) {
        let swap = swap && host.is_none_or(|host| place_on_host(1) <= host.0);
        let searched = request.policy == Policy::Plimsoll && (swap || recompute);
        assert_eq!(witness.why == Shortage::Tried, searched, "{what}: what is not proved is not claimed");
        let swaps_all = request.policy == Policy::Plimsoll && swap && host.is_none();
        assert!(!swaps_all, "{what}: it can swap everything");
        let (floor, peak) = floor_and_peak(trace);
        assert!(witness.needs <= peak.max(floor) * 2, "{what}");
    }
}

/// Checks `plimsoll` against the others: it has a plan if one of them has, none of theirs is faster by more than a millionth, and
/// none that is as fast moves fewer bytes. Returns the number of others that have a plan.
#[must_use]
pub fn assert_best(trace: &Trace, plans: &[(Policy, Result<Plan, Witness>)]) -> usize {
    let of = |policy| plans.iter().find(|p| p.0 == policy).map(|p| &p.1);
    let Some(best) = of(Policy::Plimsoll) else { panic!("plimsoll was not asked") };
    let mut compared = 0;
    for (policy, plan) in plans.iter().filter(|(policy, _)| *policy != Policy::Plimsoll) {
        let Ok(plan) = plan else { continue };
        let what = format!("{}, {policy}", trace.name);
        let best = best.as_ref().unwrap_or_else(|witness| panic!("{what} has a plan, but {witness}"));
        let (ours, theirs) = (best.makespan, plan.makespan);
        assert!(ours.0 <= theirs.0 * (1.0 + 1e-6), "{what}: {ours} against {theirs}");
        assert!(ours < theirs || best.moved <= plan.moved, "{what}: {} against {}", best.moved, plan.moved);
        compared += 1;
    }
    compared
}
