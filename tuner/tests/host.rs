//! Plans within a limit of host memory: none takes more, and what is refused names what it would take.

mod common;

use common::request;
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::testing::random_trace_of;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, check::check};
use plimsoll_tuner::{Outcome, PlanError, PlanRequest, Policy, Shortage, plan};

/// Budgets between floor and peak, where something has to move.
fn budget(trace: &Trace, quarter: u64) -> Bytes {
    let (floor, peak) = (trace.memory().floor().expect("an op").1, trace.memory().peak().expect("an op").1);
    floor + Bytes((peak - floor).0 * quarter / 4)
}

#[test]
fn no_plan_takes_more_of_the_host_than_there_is() {
    let (mut within, mut refused) = (0, 0);
    for seed in 0..24 {
        let trace = random_trace_of(30 + 5 * seed as usize, seed);
        for policy in Policy::ALL {
            let free = request(budget(&trace, 1 + seed % 3), 1e3, Duplex::Full, policy);
            let ask = |request: &PlanRequest<'_>| plan(&trace, request).expect("a sound request");
            let unlimited = ask(&free).plan().map(|plan| (plan.clone(), plan.schedule.host_bytes(&trace)));
            let Some((plain, takes)) = unlimited else { continue };
            // As much as it takes changes nothing.
            let enough = ask(&PlanRequest { host: Some(takes), ..free });
            let enough = enough.plan().unwrap_or_else(|| panic!("{policy} of {seed} at {takes}"));
            assert!(policy == Policy::Plimsoll || *enough == plain, "{policy} of {seed}");
            for limit in [Bytes(0), Bytes(takes.0 / 2), Bytes(takes.0.saturating_sub(1))] {
                let name = format!("{policy} of {seed} within {limit} of {takes}");
                match ask(&PlanRequest { host: Some(limit), ..free }) {
                    Outcome::Planned(made) => {
                        check(&trace, &made.schedule)
                            .unwrap_or_else(|violation| panic!("{name}: {violation}"));
                        assert!(made.schedule.host_bytes(&trace) <= limit, "{name}");
                        within += usize::from(takes > Bytes::ZERO);
                    }
                    Outcome::Infeasible(witness) => {
                        assert_eq!(witness.why, Shortage::Host, "{name}: {witness}");
                        assert_eq!(witness.needs, limit + witness.short_by, "{name}: {witness}");
                        // Policies that decide once name what they decided; the planner, the least of what it found.
                        assert!(policy == Policy::Plimsoll || witness.needs == takes, "{name}: {witness}");
                        assert!(witness.needs > limit, "{name}: {witness}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(within > 20 && refused > 100, "{within} plans, {refused} refusals");
}

/// Where ops can run again, the planner of this house does without the host: wherever one that only runs ops again has a plan,
/// it has one, and none that is slower.
#[test]
fn the_planner_recomputes_where_the_host_is_too_small() {
    let mut found = 0;
    for seed in 0..24 {
        let mut trace = random_trace_of(30 + 5 * seed as usize, seed);
        trace.ops.iter_mut().for_each(|op| op.recomputable = true);
        let of = |policy, host| {
            let free = request(budget(&trace, 1 + seed % 3), 1e3, Duplex::Full, policy);
            plan(&trace, &PlanRequest { host, ..free }).expect("a sound request")
        };
        let (ours, theirs) = (of(Policy::Plimsoll, Some(Bytes::ZERO)), of(Policy::Memonger, None));
        let Outcome::Planned(theirs) = theirs else { continue };
        let ours = ours.plan().unwrap_or_else(|| panic!("memonger has a plan for {seed}")).clone();
        assert!(ours.makespan.0 <= theirs.makespan.0 * (1.0 + 1e-6), "{seed}");
        assert_eq!(ours.moved, Bytes::ZERO, "{seed}");
        found += 1;
    }
    assert!(found > 5, "{found} of 24");
}

#[test]
fn the_optimum_within_a_host_is_not_asked_for() {
    let trace = random_trace_of(10, 1);
    let free = request(budget(&trace, 2), 1e3, Duplex::Full, Policy::Optimal);
    let asked = plan(&trace, &PlanRequest { host: Some(Bytes(1 << 20)), ..free });
    assert_eq!(asked, Err(PlanError::Host { policy: Policy::Optimal }));
}
