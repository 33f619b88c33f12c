//! Tests of the planner against the optimum on small random traces. The tests of `src/policies/optimal` verify the optimum.

use crate::common::{planned, request};
use plimsoll_ir::Seconds;
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::trace::Trace;
use plimsoll_testing::{GRAIN, Random, between, coarse_trace_of};
use plimsoll_tuner::policies::optimal::{MOST_OPS, least};
use plimsoll_tuner::{Allow, Limits, Outcome, PlanRequest, Policy, Status, Trick, plan};

/// Whole tensors are swapped, and ops are recomputed.
const HYBRID: Allow = Allow { pieces: false, ..Allow::ALL };

/// Whole tensors are swapped.
const SWAP: Allow = Allow { recompute: false, ..HYBRID };

/// Returns a request at a budget between floor and the middle between floor and peak.
fn small_request(trace: &Trace, seed: u64, allow: Allow) -> PlanRequest<'static> {
    let budget = between(trace, seed % 5, 8);
    let duplex = if seed.is_multiple_of(3) { Duplex::Half } else { Duplex::Full };
    let mut request = request(budget, 600.0 * GRAIN as f64, duplex, Policy::Plimsoll);
    (request.allow, request.limits.evaluations) = (allow, None);
    // Nothing is recomputed early in the optimal policy's space; and the planner must come near it without that search.
    request.without = [Trick::Early, Trick::Exact].into_iter().collect();
    if seed.is_multiple_of(7) {
        request.link.latency_seconds = Seconds(0.05);
    }
    request
}

/// Returns the mean ratio of the planner to the optimum on random traces. A planner's schedule at the lower bound is the optimum;
/// there are as many traces as needed for `count` others.
fn mean_ratio(name: &str, allow: Allow, most_ops: u64, count: usize) -> f64 {
    let (mut ratios, mut without, mut at_bound) = (Vec::new(), 0, 0);
    for seed in 0.. {
        if ratios.len() == count {
            break;
        }
        let trace = coarse_trace_of(4 + Random::new(seed).below(most_ops - 3), seed);
        let request = small_request(&trace, seed, allow);
        let Ok(plan) = planned(&trace, &request) else {
            without += 1;
            continue;
        };
        if plan.makespan <= plan.bound * (1.0 + 1e-9) {
            at_bound += 1;
            continue;
        }
        let what = format!("{name}, seed {seed}: {} under a bound of {}", plan.makespan, plan.bound);
        // The optimum must be found anew: the planner's makespan is only an upper limit.
        let least = least(&trace, &request, plan.makespan * (1.0 + 1e-6)).expect("it is small");
        let least = least.unwrap_or_else(|| panic!("{what} is none of the optimal policy's space"));
        assert!(least.reached, "{what}: at least {}", least.seconds);
        assert!(least.seconds * (1.0 + 1e-9) >= plan.bound, "{what}: {}", least.seconds);
        ratios.push(plan.makespan / least.seconds);
    }
    let sum = ratios.iter().map(|r| r.ln()).sum::<f64>();
    let (mean, others) = ((sum / (count + at_bound) as f64).exp(), (sum / count as f64).exp());
    let worst = ratios.iter().copied().fold(1.0, f64::max);
    println!(
        "{name}: {} traces and {without} without a plan: mean {mean:.4}, worst {worst:.4}",
        count + at_bound
    );
    println!("    {at_bound} of them at the bound, mean of the others {others:.4}");
    mean
}

#[test]
#[ignore = "minutes: CI runs it"]
fn plimsoll_that_swaps_is_never_better_than_the_optimum_and_seldom_worse() {
    let mean = mean_ratio("swapping", SWAP, 14, 150);
    assert!(mean < 1.02, "on average {mean} of the optimum");
}

#[test]
fn plimsoll_is_never_better_than_the_optimum_and_seldom_worse() {
    let mean = mean_ratio("swapping and recomputing", HYBRID, 10, 150);
    assert!(mean < 1.02, "on average {mean} of the optimum");
}

#[test]
fn plans_are_valid_and_no_slower_than_the_planners() {
    let mut proved = 0;
    for seed in 0..80 {
        let trace = coarse_trace_of(4 + seed % 6, seed);
        let allow = [SWAP, HYBRID][(seed % 2) as usize];
        let mut request = small_request(&trace, seed, allow);
        let ours = planned(&trace, &request);
        request.policy = Policy::Optimal;
        let best = planned(&trace, &request);
        match (ours, best) {
            (Ok(ours), Ok(best)) => {
                assert!(best.makespan <= ours.makespan, "seed {seed}");
                assert!(best.status != Status::Optimal || best.gap() < 1e-8, "seed {seed}");
                proved += u32::from(best.status == Status::Optimal);
            }
            (Ok(_), Err(witness)) => panic!("seed {seed}: {witness}"),
            (Err(_), _) => {}
        }
    }
    assert!(proved > 60, "{proved} plans are proved optimal");
}

#[test]
fn large_traces_are_refused_and_time_is_kept() {
    let trace = coarse_trace_of(MOST_OPS as u64 + 1, 3);
    let mut request = small_request(&trace, 1, HYBRID);
    request.policy = Policy::Optimal;
    let error = plan(&trace, &request).expect_err("one op too many");
    assert!(error.message.contains(&format!("it has 33 ops, where at most {MOST_OPS}")), "{error}");
    let trace = coarse_trace_of(MOST_OPS as u64, 5);
    let mut request = small_request(&trace, 1, HYBRID);
    (request.policy, request.limits) =
        (Policy::Optimal, Limits { evaluations: Some(100), expired: Some(&|| true) });
    match plan(&trace, &request) {
        Ok(Outcome::Planned(plan)) => assert_eq!(plan.status, Status::OutOfTime),
        other => panic!("{other:?}"),
    }
}
