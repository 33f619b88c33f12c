//! Tests of plans adapted from earlier ones: valid for their new request, no worse than the earlier plan if that is still valid,
//! no worse than the mended plan alone; and errors for invalid earlier plans.

use crate::common::{LESS, planned, request};
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Command, Duplex};
use plimsoll_ir::trace::Trace;
use plimsoll_testing::{between, random_trace_of};
use plimsoll_tuner::{Earlier, Kind, Limits, Plan, PlanRequest, Policy, Witness, plan};
use std::ops::Range;

/// Returns budgets from the floor to the peak, in quarters.
fn budget(trace: &Trace, quarters: u64) -> Bytes {
    between(trace, quarters, 4)
}

fn earlier(trace: &Trace, request: &PlanRequest<'_>) -> Option<(Earlier, Plan)> {
    let plan = planned(trace, request).ok()?;
    let earlier = Earlier::new(trace, &plan.schedule).expect("a plan is valid for its trace");
    Some((earlier, plan))
}

/// Returns an earlier plan's adaptations: mended alone, and improved. The improved plan is no worse.
fn adapted(trace: &Trace, request: &PlanRequest<'_>, earlier: &Earlier) -> [Result<Plan, Witness>; 2] {
    let improved = PlanRequest { from: Some(earlier), ..*request };
    let expired = || true;
    let limits = Limits { expired: Some(&expired), ..request.limits };
    let [mended, improved] =
        [&PlanRequest { limits, ..improved }, &improved].map(|request| planned(trace, request));
    if let (Ok(mended), Ok(improved)) = (&mended, &improved) {
        let (mended, improved) = (mended.makespan, improved.makespan);
        assert!(improved.0 <= mended.0 * (1.0 + 1e-6), "{}: {improved} after {mended}", trace.name);
    }
    assert!(mended.is_err() || improved.is_ok(), "{}", trace.name);
    [mended, improved]
}

/// Returns the same ops with different sizes and times, some of them very different.
fn changed(trace: &Trace, seed: u64) -> Trace {
    let mut trace = trace.clone();
    trace.batch += 1;
    for (at, tensor) in (seed..).zip(&mut trace.tensors) {
        tensor.bytes = Bytes(tensor.bytes.0 * (4 + at * 7 % 3) / 4);
    }
    for (at, op) in (seed..).zip(&mut trace.ops) {
        op.seconds = op.seconds * (1.0 + 0.1 * (at * 5 % 7) as f64);
    }
    trace
}

#[test]
fn made_for_what_it_was_made_for_a_plan_is_no_worse() {
    let mut made = 0;
    for seed in 0..12 {
        let trace = random_trace_of(20 + seed as usize, seed);
        let duplex = if seed % 2 == 0 { Duplex::Full } else { Duplex::Half };
        let request = request(budget(&trace, seed % 4), 1e3, duplex, Policy::Plimsoll);
        let Some((earlier, plan)) = earlier(&trace, &request) else { continue };
        for adapted in adapted(&trace, &request, &earlier) {
            let adapted = adapted.expect("the earlier plan is one");
            assert!(adapted.makespan.0 <= plan.makespan.0 * (1.0 + 1e-6), "{}", trace.name);
            made += 1;
        }
        // More memory and a faster link make no plan slower.
        let wider = PlanRequest { budget: request.budget + Bytes(100), ..request };
        for adapted in adapted(&trace, &wider, &earlier) {
            assert!(adapted.expect("it fits").makespan.0 <= plan.makespan.0 * (1.0 + 1e-6), "{}", trace.name);
        }
    }
    assert!(made > 20, "{made}");
}

#[test]
fn plans_are_made_for_other_budgets_links_and_traces() {
    made_for_others(0..2);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn so_they_are_of_more_traces() {
    made_for_others(2..8);
    only_what_is_allowed(3..12);
}

fn made_for_others(seeds: Range<u64>) {
    let (mut asked, mut made, mut missed) = (0, 0, 0);
    for seed in seeds {
        let trace = random_trace_of(20 + 2 * seed as usize, seed);
        let first = request(budget(&trace, 2), 1e3, Duplex::Full, Policy::Plimsoll);
        let Some((earlier, _)) = earlier(&trace, &first) else { continue };
        let other = changed(&trace, seed);
        for (trace, budget, rate) in [
            (&trace, budget(&trace, 1), 1e3),
            (&trace, budget(&trace, 3), 1e3),
            (&trace, first.budget, 2e2),
            (&trace, first.budget, 1e4),
            (&other, budget(&other, 2), 1e3),
            (&other, budget(&other, 0), 1e3),
        ] {
            let duplex = if seed % 3 == 0 { Duplex::Half } else { Duplex::Full };
            let request = request(budget, rate, duplex, Policy::Plimsoll);
            let [mended, improved] = adapted(trace, &request, &earlier);
            assert_eq!(improved, adapted(trace, &request, &earlier)[1], "the same request, the same plan");
            asked += 1;
            made += u32::from(mended.is_ok());
            missed += u32::from(mended.is_err() && planned(trace, &request).is_ok());
        }
    }
    println!("{made} made, {missed} missed");
    assert!(made * 5 > asked * 4 && missed == 0, "{made} of {asked} made, {missed} missed");
}

#[test]
fn a_plan_does_only_what_is_allowed_whatever_the_earlier_one_did() {
    only_what_is_allowed(0..3);
}

fn only_what_is_allowed(seeds: Range<u64>) {
    let (mut asked, mut made) = (0, 0);
    for seed in seeds {
        let mut trace = random_trace_of(20 + seed as usize, seed);
        // Large enough for pieces.
        trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * 1000);
        let whole = request(budget(&trace, 1 + seed % 3), 1e6, Duplex::Full, Policy::Plimsoll);
        let Some((earlier, _)) = earlier(&trace, &whole) else { continue };
        for allow in LESS {
            asked += 2;
            let request = PlanRequest { allow, ..whole };
            for plan in adapted(&trace, &request, &earlier).into_iter().flatten() {
                for command in &plan.schedule.commands {
                    let moves = command.transfer();
                    let piece = moves.is_some_and(|(_, first, bytes)| first.is_some() || bytes.is_some());
                    let again = matches!(command, Command::Compute { again: true, .. });
                    let allowed =
                        [(allow.swap, moves.is_some()), (allow.pieces, piece), (allow.recompute, again)];
                    assert!(allowed.iter().all(|(may, does)| *may || !does), "{allow:?}: {command:?}");
                }
                made += 1;
            }
        }
    }
    assert!(made * 2 > asked, "{made} of {asked}");
}

#[test]
fn what_is_no_earlier_plan_is_refused() {
    let trace = random_trace_of(30, 1);
    let whole = request(budget(&trace, 2), 1e3, Duplex::Full, Policy::Plimsoll);
    let (known, made) = earlier(&trace, &whole).expect("there is a plan");
    let mut damaged = made.schedule.clone();
    damaged.commands.pop();
    let refused = Earlier::new(&trace, &damaged).expect_err("it is not valid");
    assert!(refused.message.contains("the earlier schedule is not valid for its trace"), "{refused}");
    let mut other = trace.clone();
    other.ops.iter_mut().for_each(|op| op.name.push('x'));
    other.tensors.iter_mut().for_each(|tensor| tensor.name.push('x'));
    let asked = PlanRequest { from: Some(&known), ..whole };
    let refused = plan(&other, &asked).expect_err("it shares no name");
    assert!(
        refused.message.contains("which has no tensor of") && refused.kind == Kind::Unrelated,
        "{refused}"
    );
    // Below the floor the answer is that of a new plan.
    let floor = PlanRequest { budget: budget(&trace, 0) - Bytes(1), ..whole };
    assert_eq!(plan(&trace, &PlanRequest { from: Some(&known), ..floor }), plan(&trace, &floor));
}
