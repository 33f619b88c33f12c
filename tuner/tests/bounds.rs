//! Tests of the lower bounds against schedules: random valid ones of every kind, and the planner's.

use crate::common::{expires_after, planned, request};
use plimsoll_ir::schedule::{Command, Duplex, Link, Schedule};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::{Tensor, TensorKind, Trace};
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds, TensorId};
use plimsoll_testing::{Random, between, chain_trace, random_schedule, random_trace, random_trace_of};
use plimsoll_tuner::bound::joint::relax;
use plimsoll_tuner::bound::{lower_bound, lower_bound_within};
use plimsoll_tuner::{Allow, Limits, PlanRequest, Policy};

const ONLY_OFFLOADS: Allow = Allow { recompute: false, ..Allow::ALL };

/// Returns a random link on which a tensor of a random trace takes from a hundredth of an op's time to some ten times as long.
fn slow_link(random: &mut Random) -> Link {
    let mut rate = || BytesPerSecond(10f64.powf(1.5 + random.below(1000) as f64 * 3e-3));
    let (offload_bytes_per_second, prefetch_bytes_per_second) = (rate(), rate());
    let latency_seconds = Seconds(if random.percent(50) { 0.0 } else { random.below(300) as f64 * 1e-3 });
    let duplex = if random.percent(50) { Duplex::Half } else { Duplex::Full };
    Link { offload_bytes_per_second, prefetch_bytes_per_second, latency_seconds, duplex }
}

/// Allowed means, under which schedules can be bounded.
const MEANS: [(&str, Allow); 3] = [
    ("swapping and recomputing", Allow::ALL),
    ("swapping", ONLY_OFFLOADS),
    ("recomputing", Allow { swap: false, ..Allow::ALL }),
];

/// Checks that a valid schedule, at a budget of exactly its peak, is no faster than any bound for its means. Returns the bounds
/// that exceed the ops' seconds, and those that are reached.
fn check(trace: &Trace, schedule: &Schedule) -> [[bool; 3]; 2] {
    let timeline = simulate(trace, schedule);
    let budget = trace.resident_bytes + timeline.peak(trace, schedule);
    let makespan = timeline.makespan().0;
    let total = trace.fastest_seconds().0;
    let again = schedule.commands.iter().any(|c| matches!(c, Command::Compute { again: true, .. }));
    let moves = schedule.commands.iter().any(|c| c.transfer().is_some());
    let mut said = [[false; 3]; 2];
    for (at, (what, allow)) in MEANS.into_iter().enumerate() {
        if (again && !allow.recompute) || (moves && !allow.swap) {
            continue;
        }
        let bound = lower_bound(trace, budget, &schedule.link, allow).0;
        assert!(makespan >= bound * (1.0 - 1e-9), "{}: {makespan} beats {bound}, by {what}", trace.name);
        said[0][at] = bound > total * (1.0 + 1e-9);
        said[1][at] = said[0][at] && makespan <= bound * (1.0 + 1e-6);
    }
    said
}

/// Sums up the results of [`check`].
fn count(sums: &mut [[u32; 3]; 2], said: [[bool; 3]; 2]) {
    sums.iter_mut().flatten().zip(said.into_iter().flatten()).for_each(|(sum, said)| *sum += u32::from(said));
}

/// Returns the trace with weights that come and go: tensors on the device from the start which forward and backward ops read, and
/// which the last ops update.
fn with_weights(mut trace: Trace, random: &mut Random) -> Trace {
    let ops = trace.ops.len();
    for weight in 0..random.below(1 + ops as u64 / 3) as usize {
        let id = TensorId::new(trace.tensors.len());
        let (bytes, name) = (Bytes(1 + random.below(400)), format!("weight{weight}"));
        trace.tensors.push(Tensor { name, bytes, kind: TensorKind::Other });
        let forward = random.below(ops as u64) as usize;
        for reader in [forward, ops - 1 - forward] {
            if !trace.ops[reader].reads.contains(&id) {
                trace.ops[reader].reads.push(id);
            }
        }
        if random.percent(50) {
            trace.ops[forward.max(ops - 1 - forward)].writes.push(id);
        }
    }
    trace
}

#[test]
fn no_random_schedule_beats_a_bound() {
    let mut sums = [[0; 3]; 2];
    for seed in 0..10_000 {
        let mut random = Random::new(seed ^ 0xB0);
        let mut trace = if seed % 4 == 0 { random_trace_of(40, seed) } else { random_trace(seed) };
        if random.percent(30) {
            // Without recomputable ops: schedules that only offload.
            trace.ops.iter_mut().for_each(|op| op.recomputable = false);
        }
        if seed % 3 == 0 {
            trace = with_weights(trace, &mut random);
        }
        let mut schedule = random_schedule(&trace, seed);
        schedule.link = slow_link(&mut random);
        count(&mut sums, check(&trace, &schedule));
    }
    println!("bounds above the ops' seconds, and reached: {sums:?}");
    let [above, _] = sums;
    assert!(above[0] > 300 && above[1] > 300, "{above:?} schedules are a test of the bounds: too few");
}

#[test]
fn no_policy_beats_a_bound() {
    let mut sums = [[0; 3]; 2];
    for seed in 0..30 {
        let mut random = Random::new(seed ^ 0xB1);
        let mut trace = random_trace_of(2 + random.below(20) as usize, seed);
        if seed % 3 == 0 {
            trace = with_weights(trace, &mut random);
        }
        // Addresses are aligned: for large tensors that costs nothing.
        trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * 4096);
        let mut link = slow_link(&mut random);
        link.offload_bytes_per_second = BytesPerSecond(link.offload_bytes_per_second.0 * 4096.0);
        link.prefetch_bytes_per_second = BytesPerSecond(link.prefetch_bytes_per_second.0 * 4096.0);
        let budget = between(&trace, random.below(4), 5);
        for policy in plimsoll_tuner::policies::taking(&trace).into_iter().filter(|p| *p != Policy::Optimal) {
            for (_, allow) in MEANS.into_iter().filter(|_| policy == Policy::Plimsoll).chain([MEANS[0]]) {
                let request = PlanRequest { link, allow, ..request(budget, 1.0, Duplex::Full, policy) };
                if let Ok(plan) = planned(&trace, &request) {
                    count(&mut sums, check(&trace, &plan.schedule));
                }
            }
        }
    }
    println!("bounds above the ops' seconds, and reached: {sums:?}");
    assert!(sums[0].iter().all(|count| *count > 2), "{sums:?} plans are a test of the bounds: too few");
}

#[test]
fn no_plan_beats_a_bound_and_more_budget_never_raises_one() {
    plans_beside_bounds(0..16);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn no_plan_of_more_traces_beats_a_bound() {
    plans_beside_bounds(16..60);
}

fn plans_beside_bounds(seeds: std::ops::Range<u64>) {
    let (mut plans, mut asked) = (0, 0);
    for seed in seeds {
        let trace = if seed % 4 == 0 { random_trace_of(50, seed) } else { random_trace(seed) };
        let duplex = if seed % 2 == 0 { Duplex::Full } else { Duplex::Half };
        let mut last = [Seconds(f64::INFINITY); 2];
        for share in [0, 5, 10, 20, 40, 60, 80, 100] {
            let budget = between(&trace, share, 100);
            let mut request = request(budget, [300.0, 1e3, 4e3][seed as usize % 3], duplex, Policy::Plimsoll);
            request.allow = ONLY_OFFLOADS;
            let bounds =
                [Allow::default(), ONLY_OFFLOADS].map(|a| lower_bound(&trace, budget, &request.link, a));
            assert!(bounds[0].0 <= bounds[1].0 * (1.0 + 1e-5), "{bounds:?}: what may do more may be as fast");
            for (bound, last) in bounds.iter().zip(&mut last) {
                assert!(bound.0 <= last.0 * (1.0 + 1e-5), "{seed}: {last} at less, {bound} at {budget}");
                *last = *bound;
            }
            if let Ok(plan) = planned(&trace, &request) {
                let time = plan.makespan.0;
                assert!(time >= bounds[1].0 * (1.0 - 1e-9), "{seed}: {time} {bounds:?}");
                plans += 1;
            }
            asked += 1;
        }
    }
    assert!(plans * 2 >= asked, "{plans} plans of {asked}");
}

#[test]
fn numbers_at_the_edge_of_sense_give_a_finite_bound() {
    for seed in 0..40 {
        let mut trace = random_trace(seed);
        match seed % 4 {
            0 => trace.tensors.iter_mut().for_each(|t| t.bytes = t.bytes * (1 << 46)),
            1 => trace.ops.iter_mut().for_each(|op| op.seconds = Seconds::ZERO),
            2 => trace.ops.iter_mut().for_each(|op| op.seconds = op.seconds * 1e-12),
            _ => trace.ops.iter_mut().for_each(|op| op.seconds = op.seconds * 1e12),
        }
        let floor = trace.memory().floor().expect("an op").1;
        for rate in [1e-300, 1e-3, 1.0, 1e9, 1e300] {
            let link = Link::symmetric(BytesPerSecond(rate));
            for allow in [Allow::default(), ONLY_OFFLOADS] {
                for budget in [Bytes::ZERO, floor, floor + Bytes(1), Bytes(1 << 62)] {
                    let bound = lower_bound(&trace, budget, &link, allow);
                    assert!(bound.0 >= 0.0 && (bound.0.is_finite() || rate < 1.0), "{bound} at {rate}");
                }
            }
        }
    }
}

#[test]
fn what_is_proved_when_time_is_up_is_a_bound() {
    let mut sharper = 0;
    for seed in 0..60 {
        let trace = random_trace_of(40, seed);
        let budget = between(&trace, 1, 4);
        let link = Link::symmetric(BytesPerSecond(1e3));
        let mut before = Seconds::ZERO;
        let full = lower_bound(&trace, budget, &link, Allow::default());
        for polls in [0u32, 1, 5, 25, 125, 10_000] {
            let expired = expires_after(polls);
            let limits = Limits { expired: Some(&expired), ..Limits::default() };
            let bound = lower_bound_within(&trace, budget, &link, Allow::default(), &limits);
            assert!(before <= bound && bound <= full, "{seed}: {before}, {bound} after {polls}, {full}");
            sharper += u32::from(before < bound && polls > 0);
            before = bound;
        }
        assert_eq!(before, full, "{seed}");
    }
    assert!(sharper > 20, "{sharper}");
}

#[test]
fn several_instants_say_more_than_one() {
    let again = Allow { swap: false, ..Allow::ALL };
    let link = Link::symmetric(BytesPerSecond(1e9));
    let (mut more, mut most) = (0, 1.0f64);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        // Chains that run again, and chains with weights that come and go.
        let (mut trace, allow) =
            (chain_trace(6 + seed as usize % 20), if seed % 2 == 0 { again } else { Allow::default() });
        if allow.swap {
            let ops = trace.ops.len();
            for i in 0..ops / 2 {
                let id = TensorId::new(trace.tensors.len());
                let (name, bytes) = (format!("weight{i}"), Bytes(4096 * random.below(100)));
                trace.tensors.push(Tensor { name, bytes, kind: TensorKind::Other });
                trace.ops[i].reads.push(id);
                trace.ops[ops - 1 - i].reads.push(id);
            }
        }
        let budget = between(&trace, 1, 4);
        let one = relax(&trace, budget, &link, Allow { swap: true, ..allow }, &Limits::default()).bound;
        let now = lower_bound(&trace, budget, &link, allow);
        assert!(now.0 >= one.0 * (1.0 - 1e-6), "{seed}: {now} of {one}");
        more += u32::from(now.0 > one.0 * 1.005);
        most = most.max(now / one);
    }
    println!("{more} of 40, at most {most}");
    assert!(more > 10, "{more} of 40, at most {most}");
}
