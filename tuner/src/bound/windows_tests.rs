//! Tests of the windows against their definition, pair by pair, and against bounds computed by hand.

use super::*;
use plimsoll_ir::BytesPerSecond;
use plimsoll_ir::trace::Phase;
use plimsoll_testing::{Random, between, floor_and_peak, hand, random_trace, random_trace_of};

const ENDLESS: Limits<'_> = Limits { evaluations: None, expired: None };

/// Gap: the instants of its two ends, the later one that of the op which reads, and the instant that its value was made.
struct Gap {
    ends: (usize, usize),
    made: usize,
    bytes: u64,
}

fn gaps(all: &Values) -> Vec<Gap> {
    let of_value = |value: &super::super::values::Value| -> Vec<Gap> {
        let touches: Vec<usize> =
            std::iter::once(value.slot).chain(value.readers.iter().map(|r| r + 1)).collect();
        touches.windows(2).map(|t| Gap { ends: (t[0], t[1]), made: value.slot, bytes: value.bytes }).collect()
    };
    all.values.iter().flat_map(of_value).collect()
}

/// Returns the longest path over all windows, as the head of the file defines them.
fn by_definition(trace: &Trace, budget: Bytes, link: &Link) -> f64 {
    let all = Values::of(trace, false);
    let (gaps, room) = (gaps(&all), (budget - trace.resident_bytes).0);
    let sum = |holds: &dyn Fn(&Gap) -> bool| gaps.iter().filter(|g| holds(g)).map(|g| g.bytes).sum::<u64>();
    let largest = trace.tensors.iter().map(|t| t.bytes.0).max().unwrap_or(1);
    let time = |bytes: u64, rate: BytesPerSecond| {
        bytes as f64 / rate.0 + link.latency_seconds.0 * bytes.div_ceil(largest.max(1)) as f64
    };
    let mut longest = vec![0.0f64; trace.ops.len() + 1];
    for j in 0..trace.ops.len() {
        for i in 0..=j {
            // From instant i, the end of op i - 1, to the start of op j.
            let need = sum(&|g| g.ends.0 < i && g.ends.1 > i && g.ends.1 <= j + 1);
            let free = if i == 0 { u64::MAX } else { room - all.touched[i - 1] };
            let beside = sum(&|g| g.ends.0 <= j && g.ends.1 > j + 1) + all.touched[j];
            let away = sum(&|g| g.ends.0 <= j && g.ends.1 > j + 1 && g.made < i);
            let back = time(need.saturating_sub(free), link.prefetch_bytes_per_second);
            let out = time(beside.saturating_sub(room).saturating_sub(away), link.offload_bytes_per_second);
            let linked = if link.duplex == Duplex::Half { back + out } else { back.max(out) };
            let seconds = linked.max(all.until[j] - all.until[i]) + all.seconds[j];
            longest[j + 1] = longest[j + 1].max(longest[i] + seconds);
        }
    }
    longest[trace.ops.len()]
}

#[test]
fn one_pass_gives_what_the_definition_gives() {
    let mut sharp = 0;
    for seed in 0..400 {
        let trace = if seed % 3 == 0 { random_trace_of(40, seed) } else { random_trace(seed) };
        let mut random = Random::new(seed);
        let mut rate = || BytesPerSecond(200.0 + random.below(3000) as f64);
        let mut link = Link { offload_bytes_per_second: rate(), ..Link::symmetric(rate()) };
        link.latency_seconds = Seconds(random.below(3) as f64 * 0.05);
        link.duplex = if random.percent(50) { Duplex::Half } else { Duplex::Full };
        let (floor, peak) = floor_and_peak(&trace);
        let budget = floor + Bytes(random.below((peak - floor).0 + 1));
        let (found, defined) =
            (bound(&trace, budget, &link, &ENDLESS).0, by_definition(&trace, budget, &link));
        assert!((found - defined).abs() <= 1e-9 * defined, "seed {seed}: {found}, {defined}");
        sharp += u32::from(found > trace.fastest_seconds().0 * (1.0 + 1e-9));
    }
    assert!(sharp > 100, "{sharp} bounds say more than the ops' seconds: too few");
}

#[test]
fn what_comes_back_twice_is_counted_twice() {
    // A tensor that exists from the start is read by every other op; between, an op writes as much. Next to that 10 of its 100
    // bytes have room: 9 s to leave before op 1 and 9 s to return after op 1, and after op 3; 1 s for each of these five ops, but
    // op 0 runs while the tensor leaves.
    let touches: [(&[usize], &[usize]); 5] =
        [(&[0], &[]), (&[], &[1]), (&[0], &[]), (&[], &[2]), (&[0], &[])];
    let ops = touches.map(|(reads, writes)| hand::op("op", Phase::Forward, reads, writes));
    let trace = hand::trace([100; 3], ops.into());
    let link = Link::symmetric(BytesPerSecond(10.0));
    assert_eq!(bound(&trace, Bytes(110), &link, &ENDLESS), Seconds(31.0));
}

#[test]
fn fewer_windows_give_a_lower_bound() {
    let trace = random_trace_of(3000, 5);
    let (all, link) = (Values::of(&trace, false), Link::symmetric(BytesPerSecond(1e2)));
    let room = (between(&trace, 1, 8) - trace.resident_bytes).0;
    let windows = Windows::new(&all, room, &link);
    let starts = windows.starts();
    assert!(starts.contains(&false), "all of {} ops are starts", starts.len());
    let some = bound(&trace, Bytes(room) + trace.resident_bytes, &link, &ENDLESS).0;
    let mut longest = vec![0.0f64; starts.len() + 1];
    for from in 0..starts.len() {
        windows.go(from, &mut longest);
        longest[from + 1] = longest[from + 1].max(longest[from] + all.seconds[from]);
    }
    let every = longest[starts.len()];
    println!("{some} of {every}");
    assert!(some <= every && some > every * 0.9, "{some} of {every}");
}
