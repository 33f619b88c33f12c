//! Properties over random traces: updates in place, overwriting, tensors of 0 bytes, dead ones, ones that exist from the start,
//! workspaces, alternatives, ops that take no time; every policy, both kinds of link, budgets from below the floor to above the
//! peak.

use crate::common::{assert_best, planned, random_traces, request};
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Command, Duplex};
use plimsoll_ir::trace::Trace;
use plimsoll_testing::{between, random_trace_of};
use plimsoll_tuner::{Allow, PlanRequest, Policy, Shortage};
use std::ops::Range;

/// Returns floor less one, and this many hundredths of the way from floor to peak.
fn budgets(trace: &Trace) -> Vec<Bytes> {
    let mut budgets: Vec<Bytes> = [0, 10, 30, 60, 100, 150].map(|part| between(trace, part, 100)).into();
    budgets.extend(budgets[0].0.checked_sub(1).map(Bytes));
    budgets
}

#[test]
fn every_policy_gives_a_valid_plan_or_a_true_witness_and_none_beats_plimsoll() {
    none_beats_plimsoll(0..4);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn so_it_is_for_more_traces() {
    none_beats_plimsoll(4..24);
    ops_run_again(20..150);
}

fn none_beats_plimsoll(seeds: Range<u64>) {
    let (mut unplaced, mut asked, mut compared) = (0, 0, 0);
    for (_, trace, duplex) in random_traces(seeds, 60) {
        for budget in budgets(&trace) {
            let plan_of = |policy| (policy, planned(&trace, &request(budget, 1e3, duplex, policy)));
            let plans = Policy::ALL.map(plan_of);
            compared += assert_best(&trace, &plans);
            let fragmented = |w: &plimsoll_tuner::Witness| w.why == Shortage::Addresses;
            unplaced += usize::from(plans[plans.len() - 1].1.as_ref().is_err_and(fragmented));
            asked += 1;
        }
    }
    println!("no addresses in {unplaced} of {asked}");
    assert!(compared > asked, "{compared} plans of other policies for {asked} requests");
    assert!(unplaced * 50 < asked, "no addresses in {unplaced} of {asked}");
}

#[test]
fn without_swapping_and_recomputing_every_policy_keeps() {
    for seed in 0..12 {
        let trace = random_trace_of(30, seed);
        for budget in budgets(&trace) {
            let keep = planned(&trace, &request(budget, 1e3, Duplex::Full, Policy::Keep));
            for policy in Policy::ALL {
                let allow = Allow { swap: false, recompute: false, ..Allow::default() };
                let request = PlanRequest { allow, ..request(budget, 1e3, Duplex::Full, policy) };
                assert_eq!(planned(&trace, &request), keep, "{policy}");
            }
        }
    }
}

#[test]
fn ops_run_again_in_valid_plans() {
    ops_run_again(0..20);
}

fn ops_run_again(seeds: Range<u64>) {
    let (mut again, traces) = (0, (seeds.end - seeds.start) as usize);
    for seed in seeds {
        let mut trace = random_trace_of(10 + seed as usize % 50, seed);
        // Of two ops, one is cheap to SuperNeurons.
        trace.ops.iter_mut().step_by(2).for_each(|op| op.kind = "relu".into());
        for budget in budgets(&trace) {
            for policy in [Policy::Memonger { searched: false }, Policy::SuperNeurons] {
                let plan = planned(&trace, &request(budget, 1e3, Duplex::Full, policy));
                let commands = plan.map_or(Vec::new(), |plan| plan.schedule.commands);
                let runs = commands.iter().filter(|c| matches!(c, Command::Compute { again: true, .. }));
                again += runs.count();
            }
        }
    }
    assert!(again > traces, "{again} ops of {traces} traces run again");
}
