//! Tests of the policy `dqn`: its plans are valid and near the optimum of small traces; its log has the last policy. `golden`
//! tests that they are the same for a seed.

use crate::common::{planned, request};
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::search_log::SearchStep;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_testing::{between, chain_trace, random_trace_of};
use plimsoll_tuner::policies::papers::dqn::Control;
use plimsoll_tuner::{Allow, Limits, PlanRequest, Policy, Status, plan_by_control, plan_with_log};

fn budget(trace: &Trace, share: u64) -> Bytes {
    between(trace, share, 100)
}

#[test]
fn it_comes_near_the_optimum_of_a_chain() {
    near_the_optimum(&[60]);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn it_comes_near_the_optimum_of_a_chain_at_other_budgets() {
    near_the_optimum(&[20, 40, 80]);
}

fn near_the_optimum(shares: &[u64]) {
    for &share in shares {
        let trace = chain_trace(12);
        let of = |policy, evaluations| {
            let limits = Limits { evaluations: Some(evaluations), expired: None };
            let allow = Allow { pieces: false, ..Allow::ALL };
            let request = request(budget(&trace, share), 5e9, Duplex::Full, policy);
            planned(&trace, &PlanRequest { limits, allow, ..request }).expect("a chain has a plan").makespan
        };
        let (best, found) = (of(Policy::Optimal, 100_000), of(Policy::Dqn, 3000));
        println!("{share} %: {:.4} of the optimum", found / best);
        assert!(found.0 <= best.0 * 1.02, "{share} %: {found}, at best {best}");
    }
}

#[test]
fn the_log_has_the_last_policy_and_no_more_than_forty_steps() {
    let trace = chain_trace(40);
    let limits = Limits { evaluations: Some(2000), expired: None };
    let request = request(budget(&trace, 30), 5e9, Duplex::Full, Policy::Dqn);
    let request = PlanRequest { limits, ..request };
    let (outcome, log) = plan_with_log(&trace, &request).expect("a sound request");
    let plan = outcome.plan().expect("a chain has a plan");
    let is_last = |step: &&SearchStep| step.tried.starts_with("last policy, after");
    let last = log.steps.iter().find(is_last).expect("the last policy");
    let decided = last.decided_seconds.expect("it decided something");
    assert!(decided.0 >= trace.fastest_seconds().0, "{decided}");
    assert!(log.steps.len() > 5 && log.steps.len() <= 40, "{} steps", log.steps.len());
    assert!(plan.makespan.0 >= trace.fastest_seconds().0);
}

#[test]
fn where_time_is_up_it_gives_what_it_has() {
    let trace = chain_trace(40);
    let expired = || true;
    let limits = Limits { evaluations: None, expired: Some(&expired) };
    let request = PlanRequest { limits, ..request(budget(&trace, 30), 5e9, Duplex::Full, Policy::Dqn) };
    let plan = planned(&trace, &request).expect("offloading everything fits");
    assert_eq!(plan.status, Status::OutOfTime);
}

#[test]
fn odd_traces_have_valid_plans_or_true_witnesses() {
    let mut timeless = chain_trace(20);
    timeless.ops.iter_mut().for_each(|op| op.seconds = Seconds::ZERO);
    let mut weightless = chain_trace(20);
    weightless.tensors.iter_mut().for_each(|tensor| tensor.bytes = Bytes::ZERO);
    let mut enormous = chain_trace(4);
    enormous.tensors.iter_mut().for_each(|tensor| tensor.bytes = Bytes(1 << 58));
    for trace in [timeless, weightless, enormous] {
        for share in [0, 50, 99, 100] {
            for rate in [1e-9, 1.0, 1e300] {
                let request = request(budget(&trace, share), rate, Duplex::Half, Policy::Dqn);
                let plan = planned(&trace, &request);
                assert!(plan.is_ok(), "{} at {share}: {plan:?}", trace.name);
            }
        }
    }
    // In some of these, everything fits but has no addresses.
    for seed in 0..60 {
        let trace = random_trace_of(20 + seed as usize % 30, seed);
        let (share, duplex) =
            ([100, 20, 50][seed as usize % 3], [Duplex::Full, Duplex::Half][seed as usize % 2]);
        let mut request = request(budget(&trace, share), 1e3, duplex, Policy::Dqn);
        request.allow.recompute = seed % 4 < 2;
        let _ = planned(&trace, &request);
    }
}

#[test]
fn controls_give_valid_plans() {
    let mut plans = 0;
    for seed in 0..8 {
        let trace = random_trace_of(40, seed);
        let request = request(budget(&trace, 50), 1e3, Duplex::Full, Policy::Dqn);
        for control in [Control::Random, Control::Annealing] {
            let (outcome, _) = plan_by_control(&trace, &request, control).expect("a sound request");
            let Some(plan) = outcome.plan() else { continue };
            plimsoll_ir::check::check(&trace, &plan.schedule).expect("a valid schedule");
            let makespan = plimsoll_ir::simulate::simulate(&trace, &plan.schedule).makespan();
            assert_eq!(makespan, plan.makespan, "{control:?}, seed {seed}");
            plans += 1;
        }
    }
    assert!(plans >= 8, "{plans} plans of 16");
}
