//! Properties of the result of any request, however odd: the body that the property tests and the fuzz target share.
//!
//! A plan is a valid schedule that keeps the budget, takes the stated time and no less than its bound; if there is none, the
//! witness names a real need; an invalid request is refused for its actual error. A bug in the planner itself
//! (`Kind::Internal`) is never acceptable, nor is a panic.
//!
//! This file deliberately neither compares policies nor measures the quality of a plan.

use plimsoll_ir::check::check;
use plimsoll_ir::schedule::{Command, Link, Schedule, piece_of};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document, Seconds};
use plimsoll_testing::{Choices, Hostile, hostile};
use plimsoll_tuner::bound::unbeatable;
use plimsoll_tuner::policies::optimal::MOST_OPS;
use plimsoll_tuner::{
    Allow, Error, Kind, Limits, Outcome, Plan, PlanRequest, Policy, Shortage, Status, Witness, plan,
};
use std::cell::Cell;

/// Decodes a case from some bytes and runs every policy.
pub fn judge_bytes(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let (recompute, swap) = (!choices.chance(60), !choices.chance(30));
    let allow = Allow { recompute, swap, pieces: !choices.chance(60), host: None };
    // Time that is never up, up at once, or up after a while.
    let polls = choices.pick(&[None, None, None, Some(0), Some(1), Some(7), Some(60)]);
    let evaluations = Some(choices.pick(&[100, 1, 0, 300]));
    let seed = choices.below(4);
    let Hostile { trace, budget, link } = hostile(&mut choices);
    let all: u128 = trace.tensors.iter().map(|tensor| u128::from(tensor.bytes.0)).sum();
    let quarters = choices.pick(&[None, None, Some(0), Some(1), Some(4)]);
    let host = quarters.map(|quarters| Bytes(u64::try_from(all / 4 * quarters).unwrap_or(u64::MAX)));
    let allow = Allow { host, ..allow };
    for policy in Policy::ALL {
        let polled = Cell::new(0);
        let expired = || {
            polled.set(polled.get() + 1);
            polls.is_some_and(|polls| polled.get() > polls)
        };
        let limits = Limits { evaluations, expired: polls.is_some().then_some(&expired) };
        judge(&trace, &PlanRequest { allow, limits, seed, ..PlanRequest::new(budget, link, policy) });
    }
}

/// Plans, and checks the result against the promised properties.
pub fn judge(trace: &Trace, request: &PlanRequest<'_>) {
    let what = format!("{} at {:?} under {}", trace.name, request.budget, request.policy);
    match plan(trace, request) {
        Ok(Outcome::Planned(plan)) => judge_plan(trace, request, &plan, &what),
        Ok(Outcome::Infeasible(witness)) => judge_witness(trace, request, &witness, &what),
        // `optimal` is for small traces.
        Err(Error { kind: Kind::Usage, message, .. }) => {
            let Link { offload_bytes_per_second: out, prefetch_bytes_per_second: back, .. } = request.link;
            let sound = |number: f64| (1e-9..=1e20).contains(&number);
            let large = trace.ops.len() > MOST_OPS || trace.tensors.len() > 8;
            assert!(
                trace.validate().is_err()
                    || !sound(out.0)
                    || !sound(back.0)
                    || !sound(request.link.latency_seconds.0)
                    || request.budget.0 > 1 << 62
                    || (request.policy == Policy::Optimal && large),
                "{what}: it is refused, and sound: {message}"
            );
        }
        Err(fault) => panic!("{what}: {fault}"),
    }
}

/// Checks the promised properties of a plan.
pub fn judge_plan(trace: &Trace, request: &PlanRequest<'_>, plan: &Plan, what: &str) {
    let Plan { schedule, makespan, moved, bound, status } = plan;
    check(trace, schedule).unwrap_or_else(|violation| panic!("{what}: {violation}"));
    assert_eq!(schedule.budget_bytes, request.budget, "{what}");
    assert!(schedule.pool_bytes + trace.resident_bytes <= request.budget, "{what}");
    let (host, limit) = (schedule.host_bytes(trace), request.allow.host);
    assert!(limit.is_none_or(|limit| host <= limit), "{what}: {host} of {limit:?} on the host");
    let timeline = simulate(trace, schedule);
    assert_eq!(timeline.makespan(), *makespan, "{what}");
    assert!(timeline.peak(trace, schedule) <= schedule.pool_bytes, "{what}");
    assert!(makespan.0.is_finite() && bound.0.is_finite(), "{what}: {makespan} over {bound}");
    assert!(*bound >= Seconds::ZERO && plan.gap() >= 0.0, "{what}: {bound}");
    assert!(makespan.0 >= bound.0 * (1.0 - 1e-9), "{what}: {makespan} beats {bound}");
    let transfers = schedule.commands.iter().filter_map(Command::transfer);
    let pieces = transfers.map(|(t, first, bytes)| piece_of(&trace.tensors[t.index()], first, bytes));
    let sum: u128 =
        pieces.map(|piece| piece.expect("a checked piece")).map(|p| u128::from(p.end - p.start)).sum();
    assert_eq!(u128::from(moved.0), sum.min(u128::from(u64::MAX)), "{what}");
    if *status == Status::Optimal && request.policy != Policy::Optimal {
        let unbeatable = unbeatable(trace, request, *bound);
        assert!(makespan.0 <= unbeatable.0 * (1.0 + 1e-9), "{what}: {makespan} of {unbeatable}");
    }
    let text = schedule.to_json();
    assert_eq!(Schedule::from_json(&text).as_ref(), Ok(schedule), "{what}: it is not read as it was written");
}

/// Checks that a witness names a real need.
pub fn judge_witness(trace: &Trace, request: &PlanRequest<'_>, witness: &Witness, what: &str) {
    let memory = trace.memory();
    let floor = memory.floor().expect("a valid trace has an op").1;
    let lives = trace.lives();
    let at_start = trace.tensors.iter().zip(lives).filter(|(_, life)| life.is_some_and(|l| l.born.is_none()));
    let start = trace.resident_bytes + at_start.map(|(tensor, _)| tensor.bytes).sum();
    assert_eq!(witness.name, trace.ops[witness.op.index()].name, "{what}");
    let most = if witness.why.is_of_host() { request.allow.host } else { Some(request.budget) };
    let most = most.unwrap_or_else(|| panic!("{what}: {witness}, and the host is not limited"));
    assert!(witness.needs > most, "{what}: {witness}");
    assert_eq!(witness.short_by, witness.needs - most, "{what}");
    assert!(!witness.to_string().is_empty(), "{what}");
    let hopeless = floor > request.budget || start > request.budget;
    match witness.why {
        Shortage::Floor => assert_eq!(witness.needs, memory.touched[witness.op.index()], "{what}"),
        Shortage::Start => assert_eq!(witness.needs, start, "{what}"),
        Shortage::Policy | Shortage::Tried | Shortage::Addresses | Shortage::Host | Shortage::HostTried => {
            assert!(!hopeless, "{what}: {witness}, and no plan would");
        }
    }
    if matches!(request.policy, Policy::Keep | Policy::Plimsoll) {
        // If everything overlaps everything, there is no choice.
        let sizes = trace.tensors.iter().map(|tensor| tensor.bytes.round_up(256).0);
        let workspace = trace.ops.iter().map(|op| op.least_workspace().round_up(256).0).max();
        let all = trace.resident_bytes.0 + sizes.sum::<u64>() + workspace.unwrap_or_default();
        assert!(request.budget < Bytes(all), "{what}: {witness}, of {all} bytes in all");
    }
}
