//! Checks shared by every test of a plan.

pub mod coarse;
pub mod judge;

use plimsoll_ir::check::check;
use plimsoll_ir::schedule::{Command, Duplex, Link, piece_of, place_on_host};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond};
use plimsoll_tuner::bound::{least_moved, unbeatable};
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanRequest, Policy, Shortage, Status, Witness, plan};

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
            assert_valid(trace, request, &plan, &what);
            Ok(plan)
        }
        Outcome::Infeasible(witness) => {
            assert_true(trace, request, &witness, &what);
            Err(witness)
        }
    }
}

/// Returns `true` for a size or an offset such as those of a network's own tensors.
fn is_aligned(bytes: Bytes) -> bool {
    bytes.0.is_multiple_of(256)
}

fn assert_valid(trace: &Trace, request: &PlanRequest<'_>, plan: &Plan, what: &str) {
    let schedule = &plan.schedule;
    check(trace, schedule).unwrap_or_else(|violation| panic!("{what}: {violation}"));
    assert_eq!(schedule.budget_bytes, request.budget, "{what}");
    assert!(schedule.pool_bytes + trace.resident_bytes <= request.budget, "{what}");
    let of_alternatives = trace.ops.iter().flat_map(|op| &op.alternatives).map(|a| a.workspace_bytes);
    let workspaces = trace.ops.iter().map(|op| op.workspace_bytes).chain(of_alternatives);
    let mut sizes = trace.tensors.iter().map(|t| t.bytes).chain(workspaces);
    if sizes.all(is_aligned) {
        assert!(schedule.buffers.iter().all(|buffer| is_aligned(buffer.offset)), "{what}: kernels need that");
    }
    let (host, limit) = (schedule.host_bytes(trace), request.allow.host);
    assert!(limit.is_none_or(|limit| host <= limit), "{what}: {host} of {limit:?} on the host");
    assert_eq!(simulate(trace, schedule).makespan(), plan.makespan, "{what}");
    assert!(plan.makespan.0 >= plan.bound.0 * (1.0 - 1e-9), "{what}: {} beats {}", plan.makespan, plan.bound);
    let transfers = schedule.commands.iter().filter_map(Command::transfer);
    let pieces = transfers.map(|(t, first, bytes)| piece_of(&trace.tensors[t.index()], first, bytes));
    let moved: u64 = pieces.map(|piece| piece.expect("a checked piece")).map(|p| p.end - p.start).sum();
    assert_eq!(plan.moved, Bytes(moved), "{what}");
    let again = |command: &Command| matches!(command, Command::Compute { again: true, .. });
    let offloads_only = !schedule.commands.iter().any(again);
    assert!(!offloads_only || plan.moved >= least_moved(trace, request.budget), "{what}: {moved} bytes");
    if plan.status == Status::Optimal && request.policy != Policy::Optimal {
        let unbeatable = unbeatable(trace, request, plan.bound);
        assert!(plan.makespan.0 <= unbeatable.0 * (1.0 + 1e-9), "{what}: {} of {unbeatable}", plan.makespan);
    }
    let most = schedule.commands.iter().map(|c| c.waits().len()).max();
    assert!(most <= Some(2), "{what}: {most:?} waits");
}

/// Checks that a witness names a real need, and none that a plan could avoid under a different name.
fn assert_true(trace: &Trace, request: &PlanRequest<'_>, witness: &Witness, what: &str) {
    let memory = trace.memory();
    assert_eq!(witness.name, trace.ops[witness.op.index()].name, "{what}");
    if witness.why.is_of_host() {
        let limit = request.allow.host.unwrap_or_else(|| panic!("{what}: the host is not limited"));
        assert!(witness.needs > limit && request.allow.swap, "{what}: {witness}");
        assert_eq!(witness.short_by, witness.needs - limit, "{what}");
        return;
    }
    assert!(witness.needs > request.budget, "{what}: {witness}");
    assert_eq!(witness.short_by, witness.needs - request.budget, "{what}");
    let floor = memory.floor().expect("a trace has an op").1;
    match witness.why {
        Shortage::Floor => assert_eq!(witness.needs, memory.touched[witness.op.index()], "{what}"),
        Shortage::Start => assert!(witness.op.index() == 0 && floor <= request.budget, "{what}"),
        Shortage::Policy | Shortage::Tried => {
            let Allow { swap, recompute, host, .. } = request.allow;
            let swap = swap && host.is_none_or(|host| place_on_host(1) <= host.0);
            let searched = request.policy == Policy::Plimsoll && (swap || recompute);
            assert_eq!(witness.why == Shortage::Tried, searched, "{what}: what is not proved is not claimed");
            assert!(
                request.policy != Policy::Plimsoll || !swap || host.is_some(),
                "{what}: it can swap everything"
            );
            assert!(floor <= request.budget, "{what}");
            assert!(witness.needs <= memory.peak().expect("a trace has an op").1.max(floor) * 2, "{what}");
        }
        Shortage::Addresses => assert!(floor <= request.budget, "{what}"),
        Shortage::Host | Shortage::HostTried => unreachable!("it has returned"),
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
