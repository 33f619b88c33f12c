//! Tests of requests and traces at the edge of validity: each gets a plan, a true witness or a clear error, and never a panic.

use crate::common::{assert_best, expires_after, planned, request};
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::trace::{Phase, TensorKind, Trace};
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds, TensorId};
use plimsoll_testing::{between, floor_and_peak, hand, random_trace_of};
use plimsoll_tuner::frontier::{Point, carry};
use plimsoll_tuner::policies::papers::accudnn::{Verdict, judge, satisfies};
use plimsoll_tuner::{Allow, Kind, Limits, PlanRequest, Policy, Shortage, Status, Trick, plan};

const ACCUDNN: Policy = Policy::Accudnn { as_printed: false };
const PRINTED: Policy = Policy::Accudnn { as_printed: true };

/// Returns a trace of tensors of these sizes and ops that read and write these, a second each. A tensor that is read before it is
/// written exists from the start; the second half of the ops is the backward pass.
fn trace(bytes: &[u64], ops: &[(&[usize], &[usize])]) -> Trace {
    let op = |(i, (reads, writes)): (usize, &(&[usize], &[usize]))| {
        let phase = if i * 2 < ops.len() { Phase::Forward } else { Phase::Backward };
        hand::op(&format!("op{i}"), phase, reads, writes)
    };
    let mut trace = hand::trace(bytes.iter().copied(), ops.iter().enumerate().map(op).collect());
    trace.tensors.iter_mut().for_each(|tensor| tensor.kind = TensorKind::Other);
    Trace { resident_bytes: Bytes(10), ..trace }
}

/// The same with lists of tensors that are made.
fn trace_of(bytes: &[u64], ops: &[(Vec<usize>, Vec<usize>)]) -> Trace {
    let ops: Vec<(&[usize], &[usize])> = ops.iter().map(|(r, w)| (r.as_slice(), w.as_slice())).collect();
    trace(bytes, &ops)
}

/// Returns a chain of this many layers, forward and backward: each backward op reads its layer's input and output.
fn chain(layers: usize, bytes: u64) -> Trace {
    let mut ops: Vec<(Vec<usize>, Vec<usize>)> = (0..layers).map(|i| (vec![i], vec![i + 1])).collect();
    let gradient = |i: usize| layers + 1 + i;
    ops.push((vec![layers], vec![gradient(layers)]));
    ops.extend((0..layers).rev().map(|i| (vec![i, i + 1, gradient(i + 1)], vec![gradient(i)])));
    let mut trace = trace_of(&vec![bytes; 2 * layers + 2], &ops);
    trace.tensors[layers + 1..].iter_mut().for_each(|t| t.kind = TensorKind::Gradient);
    trace
}

/// Checks every policy at every budget from nothing to plenty: valid plans and true witnesses.
fn check(name: &str, trace: &Trace) {
    let (Bytes(floor), Bytes(peak)) = floor_and_peak(trace);
    let trace = Trace { name: name.into(), ..trace.clone() };
    let mut compared = 0;
    for budget in [0, floor - 1, floor, floor + (peak - floor) / 3, peak, peak + peak / 8] {
        for duplex in [Duplex::Full, Duplex::Half] {
            for rate in [1e-9, 1.0, 1e300] {
                let plan_of =
                    |policy| (policy, planned(&trace, &request(Bytes(budget), rate, duplex, policy)));
                let plans = Policy::ALL.map(plan_of);
                compared += assert_best(&trace, &plans);
                let ours = plans[plans.len() - 1].1.is_ok();
                assert_eq!(ours, budget >= floor, "{name} at {budget} of {floor}..{peak}");
            }
        }
    }
    assert!(compared > 0, "{name}: no other policy has a plan");
}

#[test]
fn odd_traces() {
    check("one op that touches nothing", &trace(&[], &[(&[], &[])]));
    check("one op", &trace(&[100, 50], &[(&[0], &[1])]));
    check("tensors that no op touches", &trace(&[100, 50, 7], &[(&[0], &[1]), (&[1], &[])]));
    check("nothing has any bytes", &trace(&[0, 0, 0], &[(&[0], &[1]), (&[1], &[2]), (&[0, 2], &[])]));
    check("dead tensors", &trace(&[9, 8, 7, 6], &[(&[], &[0]), (&[], &[1]), (&[], &[2]), (&[], &[3])]));
    let huge = 1u64 << 60;
    check("2^60 bytes", &trace(&[huge; 3], &[(&[], &[0]), (&[], &[1]), (&[1], &[2]), (&[0, 2], &[])]));
    check("updates in place", &trace(&[100], &[(&[0][..], &[0][..]); 40]));
    check("overwritten again and again", &trace(&[100], &[(&[][..], &[0][..]); 40]));
    let ids: Vec<usize> = (0..41).collect();
    let all: Vec<(Vec<usize>, Vec<usize>)> = (0..40).map(|i| (vec![0], vec![i + 1])).collect();
    check("one tensor in every op", &trace_of(&[100; 41], &all));
    check("all tensors in one op", &trace(&[100; 41], &[(&[], &ids[..20]), (&[], &ids[20..]), (&ids, &[])]));
    let mut timeless = chain(12, 100);
    timeless.ops.iter_mut().for_each(|op| op.seconds = Seconds::ZERO);
    check("no op takes any time", &timeless);
    check("a chain", &chain(12, 100));
}

#[test]
fn more_at_the_start_than_the_budget_holds_is_its_own_witness() {
    let trace = trace(&[60, 60, 60], &[(&[0], &[]), (&[1], &[]), (&[2], &[])]);
    for policy in Policy::ALL {
        let witness =
            planned(&trace, &request(Bytes(100), 1.0, Duplex::Full, policy)).expect_err("it does not fit");
        assert_eq!((witness.why, witness.needs, witness.short_by), (Shortage::Start, Bytes(190), Bytes(90)));
    }
}

#[test]
fn requests_that_mean_nothing_are_refused() {
    let refused = |trace: &Trace, request: &PlanRequest<'_>, words: &str| {
        let error = plan(trace, request).expect_err(words);
        assert!(error.kind == Kind::Usage && error.message.contains(words), "{error}");
    };
    let good = request(Bytes(1000), 1.0, Duplex::Full, Policy::Plimsoll);
    let link = |link: Link, words: &str| refused(&chain(3, 10), &PlanRequest { link, ..good }, words);
    for rate in [0.0, -1.0, 1e-300, f64::NAN, f64::INFINITY].map(BytesPerSecond) {
        let says = |way| format!("the link's {way} rate is {};", rate.0);
        link(Link { offload_bytes_per_second: rate, ..good.link }, &says("offload"));
        link(Link { prefetch_bytes_per_second: rate, ..good.link }, &says("prefetch"));
    }
    for latency_seconds in [-1.0, 1e300, f64::NAN, f64::INFINITY].map(Seconds) {
        link(Link { latency_seconds, ..good.link }, "the link's latency is");
    }
    let bad = request(Bytes(u64::MAX), 1.0, Duplex::Full, Policy::Keep);
    refused(&chain(3, 10), &bad, "is more than 2^62 bytes");
    let mut cyclic = chain(3, 10);
    cyclic.ops[0].reads.push(TensorId(99));
    refused(&cyclic, &good, "the trace cannot be planned");
}

/// Whenever time is up, the plan is about as fast as the best of the simple policies' plans, for which a command with some
/// milliseconds does not wait; and if time is never up, the plan is the one that is found without complete plans during the
/// search.
#[test]
fn at_any_time_there_is_a_plan_as_good_as_the_simple_ones() {
    as_good_as_the_simple_ones(0..3);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn at_any_time_there_is_a_plan_as_good_as_the_simple_ones_of_larger_traces() {
    as_good_as_the_simple_ones(3..10);
}

fn as_good_as_the_simple_ones(seeds: std::ops::Range<u64>) {
    let mut compared = 0;
    for seed in seeds {
        let trace = random_trace_of(40 + 10 * seed as usize, seed);
        let budget = between(&trace, 1 + seed % 3, 4);
        let of = |policy| request(budget, 1e3, Duplex::Full, policy);
        let simple = [Policy::Greedy, ACCUDNN, Policy::AutoSwap];
        let simple = simple.iter().filter_map(|policy| planned(&trace, &of(*policy)).ok());
        let best = simple.map(|plan| plan.makespan.0).fold(f64::INFINITY, f64::min);
        compared += usize::from(best.is_finite());
        let whole = planned(&trace, &of(Policy::Plimsoll));
        let mut last = f64::INFINITY;
        for polls in [0, 10, 100, 1000, u32::MAX] {
            let expired = expires_after(polls);
            let limits = Limits { expired: Some(&expired), ..of(Policy::Plimsoll).limits };
            let anytime = PlanRequest { limits, anytime: true, ..of(Policy::Plimsoll) };
            let plan = planned(&trace, &anytime);
            last = plan.as_ref().map_or(f64::INFINITY, |plan| plan.makespan.0);
            let slower = if polls < u32::MAX { 1.05 } else { 1.0 + 1e-6 };
            assert!(last <= best * slower, "{seed}, {polls} polls: {last} against {best}");
            if polls == u32::MAX {
                assert_eq!(plan, whole, "{seed}");
            }
        }
        assert!(last.is_finite(), "{seed}: no plan");
    }
    assert!(compared > 0, "the simple policies have no plan");
}

#[test]
fn optimal_is_what_recomputing_cannot_beat_either() {
    // A tensor that exists from the start leaves in 2 s, an op of 1 s takes its place, and it returns in 2 s.
    let mut trace = trace(&[100, 100], &[(&[0], &[]), (&[], &[1]), (&[0], &[])]);
    [0, 2].into_iter().for_each(|op| trace.ops[op].seconds = Seconds::ZERO);
    // If ops may be recomputed, the bound covers that too, and is weaker.
    for (recomputable, budget, status, gap) in [
        (false, 110, Status::Optimal, 0.0),
        (true, 110, Status::Feasible, 0.25),
        (false, 210, Status::Optimal, 0.0),
        (true, 210, Status::Optimal, 0.0),
    ] {
        trace.ops[0].recomputable = recomputable;
        let request = request(Bytes(budget), 50.0, Duplex::Full, Policy::Plimsoll);
        let plan = planned(&trace, &request).expect("it fits");
        assert_eq!((plan.status, plan.gap()), (status, gap), "{recomputable} {budget}");
    }
}

/// Op 0 needs 200 bytes of workspace in addition to its output. Just before op 3, which reads that output, 150 bytes of op 2 are
/// alive, and it has no room to run again; before op 2 it has, and its output can be held from there. Between them op 1 leaves no
/// room for it.
#[test]
fn an_op_runs_again_where_there_is_room_for_it() {
    let mut trace = trace(&[100, 150], &[(&[], &[0]), (&[], &[]), (&[], &[1]), (&[0, 1], &[])]);
    (trace.ops[0].workspace_bytes, trace.ops[1].workspace_bytes) = (Bytes(200), Bytes(350));
    trace.ops[0].recomputable = true;
    let mut alone = request(Bytes(10 + 400), 1e-3, Duplex::Full, Policy::Plimsoll);
    alone.allow.swap = false;
    let plan = planned(&trace, &alone).expect("it fits where the op is recomputed early");
    assert_eq!(plan.makespan, Seconds(5.0));
    let without = [Trick::Early].into_iter().collect();
    assert!(planned(&trace, &PlanRequest { without, ..alone }).is_err(), "nothing else fits");
    // Over such a slow link this is also the fastest way.
    alone.allow.swap = true;
    assert_eq!(planned(&trace, &alone).expect("it fits").makespan, Seconds(5.0));
}

#[test]
fn nothing_is_known_of_a_trace_whose_ops_take_no_time() {
    let mut trace = trace(&[100, 100], &[(&[0], &[]), (&[], &[1]), (&[0], &[])]);
    let at = |trace: &Trace, policy| {
        let request = request(Bytes(110), 50.0, Duplex::Full, policy);
        planned(trace, &request).expect("it fits").status
    };
    assert_eq!(at(&trace, Policy::Plimsoll), Status::Optimal);
    trace.ops.iter_mut().for_each(|op| op.seconds = Seconds::ZERO);
    for policy in [Policy::Plimsoll, Policy::Naive, Policy::Optimal] {
        assert_eq!(at(&trace, policy), Status::Unknown, "{policy}");
    }
    // Nor if a plan is that of a different budget.
    let mut whole = request(Bytes(210), 50.0, Duplex::Full, Policy::Keep);
    whole.allow.recompute = false;
    let points = [210, 1000].map(|budget| Point {
        budget: Bytes(budget),
        outcome: plan(&trace, &PlanRequest { budget: Bytes(budget), ..whole }).expect("a sound request"),
    });
    let carried = carry(&trace, &whole, points.to_vec()).expect("a sound request");
    assert!(carried.iter().all(|p| p.outcome.plan().is_some_and(|p| p.status == Status::Unknown)));
}

#[test]
fn optimal_is_what_takes_the_bound_of_everything_that_is_allowed() {
    // Over such a slow link nothing returns: the first op's output is recomputed, which takes its second.
    let mut trace = trace(&[100, 100, 100], &[(&[], &[0]), (&[], &[1]), (&[0], &[2])]);
    trace.ops[0].recomputable = true;
    trace.tensors[2].bytes = Bytes::ZERO;
    let plan = planned(&trace, &request(Bytes(110), 1e-8, Duplex::Full, Policy::Plimsoll)).expect("it fits");
    assert_eq!((plan.makespan, plan.status), (Seconds(4.0), Status::Optimal));
    // Without recomputing it leaves while the second op waits, which no other schedule that only offloads can avoid.
    [0, 2].into_iter().for_each(|op| trace.ops[op].seconds = Seconds::ZERO);
    let request = request(Bytes(110), 50.0, Duplex::Full, Policy::Plimsoll);
    let allow = Allow { recompute: false, ..Allow::default() };
    let plan = planned(&trace, &PlanRequest { allow, ..request }).expect("it fits");
    assert_eq!((plan.makespan, plan.gap(), plan.status), (Seconds(5.0), 0.0, Status::Feasible));
}

#[test]
fn sizes_that_are_not_aligned_are_no_reason_for_want_of_room() {
    // A chain of two layers, of which the first one's activation is recomputed. Aligned, its places leave gaps; unaligned, they
    // fill the pool except for 5 bytes.
    let mut trace = trace(
        &[4, 300, 100, 100, 100, 100],
        &[(&[0], &[1]), (&[1], &[2]), (&[2], &[3]), (&[2, 3], &[4]), (&[0, 1, 4], &[5])],
    );
    trace.ops[0].recomputable = true;
    // Memonger's segments end with the forward pass, and find nothing here.
    trace.ops[2].phase = Phase::Backward;
    for budget in [519, 525, 600] {
        let mut request = request(Bytes(budget), 1e9, Duplex::Full, Policy::Plimsoll);
        request.allow.swap = false;
        let plan = planned(&trace, &request).unwrap_or_else(|witness| panic!("{witness}"));
        assert_eq!(plan.makespan, Seconds(6.0), "{budget} B");
    }
}

#[test]
fn nothing_more_is_swapped_than_needed() {
    // The link hides everything, so that every policy reaches the bound: one tensor has to leave for every 25,600 bytes that the
    // budget lacks.
    let trace = chain(12, 25_600);
    let peak = trace.memory().peak().expect("a trace has an op").1;
    for lacks in [25_600, 51_200, 128_000] {
        let request = request(peak - Bytes(lacks), 1e12, Duplex::Full, Policy::Plimsoll);
        let plan = planned(&trace, &request).expect("it fits");
        assert!(plan.gap() < 1e-6);
        assert_eq!(plan.moved, Bytes(2 * lacks));
    }
}

#[test]
fn policies_have_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("best".parse::<Policy>().is_err());
}

#[test]
fn memory_that_was_released_is_subtracted_but_not_as_printed() {
    // Every op makes a tensor; those of two ops die at every second op. Four are alive at most, and there is room for six:
    // nothing has to wait. To the letter, every op after the sixth waits for a separate release, and releases come only at every
    // second op.
    let reads = |i: usize| if i % 2 == 1 { i.saturating_sub(2)..i } else { i.max(1) - 1..i };
    let ops: Vec<(Vec<usize>, Vec<usize>)> = (0..20).map(|i| (reads(i).collect(), vec![i])).collect();
    let mut trace = trace_of(&[100; 20], &ops);
    trace.ops.iter_mut().for_each(|op| op.phase = Phase::Forward);
    let link = request(Bytes(610), 1e3, Duplex::Full, ACCUDNN).link;
    let read = |reading| judge(&trace, Bytes(610), &link, reading);
    assert!(read(false).satisfied());
    let printed = read(true);
    assert!(!printed.satisfied() && printed.violating[0].index() > 6, "{:?}", printed.violating);
    assert!(satisfies(&trace, Bytes(610), &link));
}

#[test]
fn a_prefetch_waits_for_its_data_and_a_layer_for_what_an_offload_frees() {
    // Tensor 0 is made in the first second, read last in the second one, and read again in the fourth. It takes 2 s each way:
    // it is on the host at 3 s, when op 2, which needs its room, should have been running for a second, and back at 5 s.
    let mut map = trace(&[100, 10, 100], &[(&[], &[0]), (&[0], &[1]), (&[], &[2]), (&[0], &[])]);
    map.ops[1].phase = Phase::Forward;
    let link = request(Bytes(160), 50.0, Duplex::Full, ACCUDNN).link;
    let ready = |verdict: &Verdict| verdict.t_ready.iter().map(|s| s.0).collect::<Vec<f64>>();
    let verdict = judge(&map, Bytes(160), &link, false);
    assert_eq!(ready(&verdict), [0.0, 0.0, 3.0, 5.0]);
    assert_eq!(verdict.violating.iter().map(|op| op.index()).collect::<Vec<usize>>(), [2, 3]);
    assert!(verdict.pinned.is_empty(), "there is no room for it beside tensor 2");
    // To the letter nothing waits for an offload: at 5 s each way it is on the host at 6 s, and counts as back at 8 s.
    let slow = request(Bytes(160), 20.0, Duplex::Full, ACCUDNN).link;
    let back = |reading| ready(&judge(&map, Bytes(160), &slow, reading))[3];
    assert_eq!((back(false), back(true)), (11.0, 8.0));
    // With room for both it stays, and nothing waits.
    let verdict = judge(&map, Bytes(210), &link, false);
    assert_eq!((ready(&verdict), &verdict.violating), (vec![0.0, 0.0, 2.0, 2.0], &Vec::new()));
    assert_eq!(verdict.pinned, [TensorId(0)]);
}

#[test]
fn what_is_needed_first_is_pinned_first_as_long_as_there_is_room() {
    // The link takes 2 s for an activation that an op takes 1 s for: some have to stay.
    let trace = chain(20, 1000);
    let link = request(Bytes(16_000), 500.0, Duplex::Full, ACCUDNN).link;
    let verdict = judge(&trace, Bytes(16_000), &link, false);
    let pinned: Vec<u32> = verdict.pinned.iter().map(|t| t.0).collect();
    assert!(pinned.len() > 5, "{pinned:?}");
    // In a chain, the activation made last is needed first.
    assert!(pinned.is_sorted_by(|a, b| a > b) && pinned[0] >= 18, "{pinned:?}");
    let printed = judge(&trace, Bytes(16_000), &link, true);
    let printed: Vec<u32> = printed.pinned.iter().map(|t| t.0).collect();
    assert!(printed[0] < 5, "{printed:?}");
    // A pool of 15,990 bytes has room for 15 activations, of which an op of the backward pass takes 4: its two activations, and
    // its two gradients. So all but two of those that can be next to an op are kept, and no more.
    let kept = pinned.len();
    assert!((11..=14).contains(&kept), "{kept} of {pinned:?}");
    assert!(printed.len() < kept, "{printed:?} against {pinned:?}");
}

#[test]
fn accudnn_pins_what_would_stall() {
    let trace = chain(20, 1000);
    let budget = Bytes(16_000);
    let of = |policy, budget| {
        planned(&trace, &request(budget, 600.0, Duplex::Full, policy)).expect("it fits").makespan
    };
    let link = request(budget, 600.0, Duplex::Full, ACCUDNN).link;
    assert!(!judge(&trace, budget, &link, false).pinned.is_empty());
    assert!(of(ACCUDNN, budget) < of(PRINTED, budget));
    assert!(of(ACCUDNN, budget) < of(Policy::Naive, budget));
    // If nothing needs to move, nothing stalls.
    let peak = trace.memory().peak().expect("a trace has an op").1;
    assert_eq!(of(ACCUDNN, peak), trace.compute_seconds());
    assert!(of(PRINTED, peak) > trace.compute_seconds());
    // A link that hides everything: eq. (6) holds, and nothing is pinned.
    let fast = request(budget, 1e9, Duplex::Full, ACCUDNN).link;
    assert!(judge(&trace, budget, &fast, false).pinned.is_empty());
    assert!(satisfies(&trace, budget, &fast));
}
