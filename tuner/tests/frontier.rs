//! More budget never gives a longer makespan, for any trace, link and policy.

use crate::common::{planned, request};
use plimsoll_ir::Bytes;
use plimsoll_ir::check::check;
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_testing::{random_trace, random_trace_of};
use plimsoll_tuner::frontier::{Point, budgets, carry};
use plimsoll_tuner::{Limits, Outcome, Error, PlanRequest, Policy, Status, plan};

/// Plans a trace at each of these budgets, and carries the plans.
fn frontier(trace: &Trace, request: &PlanRequest<'_>, budgets: &[Bytes]) -> Result<Vec<Point>, Error> {
    let point = |&budget: &Bytes| {
        let outcome = plan(trace, &PlanRequest { budget, ..*request })?;
        Ok(Point { budget, outcome })
    };
    carry(trace, request, budgets.iter().map(point).collect::<Result<_, Error>>()?)
}

/// The points are in order, monotone, valid for their own budgets, and none is slower than the plan made alone.
#[track_caller]
fn check_points(trace: &Trace, points: &[Point], alone: &[Point]) {
    let name = &trace.name;
    assert!(points.is_sorted_by_key(|point| point.budget), "{name}");
    let mut before = None;
    for (point, alone) in points.iter().zip(alone) {
        assert_eq!(point.budget, alone.budget, "{name}");
        let Some(plan) = point.outcome.plan() else {
            assert!(before.is_none(), "{name}: a smaller budget than {} has a plan", point.budget);
            assert_eq!(point, alone, "{name}");
            continue;
        };
        assert_eq!(plan.schedule.budget_bytes, point.budget, "{name}");
        assert_eq!(check(trace, &plan.schedule), Ok(()), "{name}");
        assert_eq!(simulate(trace, &plan.schedule).makespan(), plan.makespan, "{name}");
        assert!(
            plan.makespan.0 >= plan.bound.0 * (1.0 - 1e-9),
            "{name}: {} at {}",
            plan.makespan,
            plan.bound
        );
        assert!(before.is_none_or(|before| plan.makespan <= before), "{name}: slower at {}", point.budget);
        let own = alone.outcome.plan();
        assert!(own.is_none_or(|own| plan.makespan.0 <= own.makespan.0 * (1.0 + 1e-6)), "{name}");
        before = Some(plan.makespan);
    }
}

#[test]
fn more_budget_never_costs_time() {
    let mut carried = 0;
    for seed in 0..26 {
        let mut trace = if seed % 3 == 0 { random_trace_of(40, seed) } else { random_trace(seed) };
        if seed % 4 == 1 {
            trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * 1000);
        }
        let duplex = if seed % 2 == 0 { Duplex::Full } else { Duplex::Half };
        // Plans of the papers' policies often get slower, so that there is something to carry.
        let policy = if seed % 8 == 1 { Policy::Plimsoll } else { Policy::ALL[seed as usize % 16] };
        let mut budgets = budgets(&trace, if policy == Policy::Plimsoll { 4 } else { 12 });
        // From below the floor, and in any order.
        budgets.push(budgets[0].saturating_sub(Bytes(1 << 40)));
        let rotation = seed as usize % budgets.len();
        budgets.rotate_left(rotation);
        let limits = Limits { evaluations: Some(30), expired: None };
        let request = PlanRequest { limits, ..request(Bytes::ZERO, 1e3, duplex, policy) };
        let points = frontier(&trace, &request, &budgets).expect("a sound trace");
        budgets.sort();
        let alone = |&budget: &Bytes| {
            let planned = planned(&trace, &PlanRequest { budget, ..request });
            Point { budget, outcome: planned.map_or_else(Outcome::Infeasible, Outcome::Planned) }
        };
        let alone: Vec<Point> = budgets.iter().map(alone).collect();
        check_points(&trace, &points, &alone);
        carried += points.iter().zip(&alone).filter(|(point, alone)| point != alone).count();
    }
    assert!(carried > 0, "nothing was ever carried, so that nothing was tested");
}

#[test]
fn a_plan_is_carried_up_to_larger_budgets_and_down_to_those_that_its_pool_fits() {
    let request = request(Bytes::ZERO, 1e3, Duplex::Full, Policy::Greedy);
    let all = |seed| {
        let trace = random_trace_of(40, seed);
        let budgets = budgets(&trace, 6);
        let points = frontier(&trace, &request, &budgets).expect("a sound trace");
        let plans = points.iter().map(|point| point.outcome.plan().cloned()).collect::<Option<Vec<_>>>()?;
        let faster = |a: usize, b: usize| plans[a].makespan < plans[b].makespan;
        (budgets.len() == 6 && faster(5, 3) && faster(2, 1)).then_some((trace, budgets, plans))
    };
    let (trace, budgets, plans) = (0..50).find_map(all).expect("a trace that more budget makes faster twice");
    let at = |k: usize, plan: usize| {
        let mut plan = plans[plan].clone();
        plan.schedule.budget_bytes = budgets[k];
        Point { budget: budgets[k], outcome: Outcome::Planned(plan) }
    };
    // The slow plan of budget 1 was found at 3 and 4 as well, that of budget 2 at 5.
    let mixed = vec![at(5, 2), at(4, 1), at(3, 1), at(2, 2), at(1, 1)];
    let carried = carry(&trace, &request, mixed).expect("valid plans");
    let times: Vec<_> = carried.iter().map(|p| p.outcome.plan().expect("a plan").makespan).collect();
    assert_eq!(times, [1, 2, 2, 2, 2].map(|k| plans[k].makespan));
    assert!(carried.iter().all(|p| p.outcome.plan().is_some_and(|plan| plan.status != Status::OutOfTime)));
    // And a budget without a plan takes one from the budget above, if that leaves enough unused.
    let witness = frontier(&trace, &request, &[Bytes(1)]).expect("a sound trace").remove(0).outcome;
    let spare = plans[2].schedule.pool_bytes + trace.resident_bytes;
    let short = Point { budget: spare, outcome: witness.clone() };
    let shorter = Point { budget: spare - Bytes(1), outcome: witness.clone() };
    let carried = carry(&trace, &request, vec![shorter.clone(), short, at(2, 2)]).expect("valid plans");
    assert_eq!(carried[0], shorter);
    assert_eq!(carried[1].outcome.plan().expect("carried down").makespan, plans[2].makespan);
}

#[test]
fn budgets_are_in_equal_steps_from_above_the_floor_to_the_peak() {
    let trace = random_trace_of(40, 3);
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("ops").1, memory.peak().expect("ops").1);
    let all = budgets(&trace, 4);
    assert_eq!((all.len(), all[3]), (4, peak));
    assert!(all[0] > floor && all.is_sorted());
    let mut trace = trace;
    trace.ops.truncate(1);
    trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = Bytes::ZERO);
    assert_eq!(budgets(&trace, 4).len(), 1, "floor and peak are the same");
}
