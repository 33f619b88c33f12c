//! Property tests over traces, links and budgets at the edge of validity and beyond it; the fuzz target in `tools/fuzz/` tests
//! the same on a fuzzer's inputs.
//!
//! The random input is a string of bytes, so that a failure is shrunk to a short one; add it to `cases` once it is fixed.

use crate::common::judge::{judge, judge_bytes};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::{BytesPerSecond, Document};
use plimsoll_testing::{Choices, Random, between, chain_trace, floor_and_peak, hostile};
use plimsoll_tuner::{Algorithms, Layers, Limits, PlanRequest, Policy};
use proptest::prelude::*;
use std::time::{Duration, Instant};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_request_gets_a_plan_a_witness_or_a_reason(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        judge_bytes(&bytes);
    }
}

/// A long string of random bytes.
fn bytes(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..600).map(|_| random.below(256) as u8).collect()
}

#[test]
fn so_do_the_same_requests_every_day() {
    (0..50).for_each(|seed| judge_bytes(&bytes(seed)));
}

#[test]
fn the_cases_are_as_odd_as_they_should_be() {
    let mut valid = 0;
    let mut refused = 0;
    let (mut most, mut largest, mut fits) = (0, 0, 0);
    for seed in 0..1000 {
        let case = hostile(&mut Choices::new(&bytes(seed)));
        if case.trace.validate().is_err() {
            refused += 1;
            continue;
        }
        valid += 1;
        let (floor, peak) = floor_and_peak(&case.trace);
        fits += u32::from(floor <= case.budget && case.budget < peak);
        most = most.max(case.trace.ops.len());
        largest =
            case.trace.tensors.iter().map(|tensor| tensor.bytes.0).max().unwrap_or_default().max(largest);
    }
    println!(
        "{valid} valid, {refused} not; {fits} between floor and peak; {most} ops, {largest} bytes at most"
    );
    assert!(valid > 600 && refused > 50 && fits > 150, "{valid} {refused} {fits}");
    assert!(most > 60 && largest >= 1 << 60, "{most} {largest}");
}

#[test]
#[ignore = "minutes: CI runs it"]
fn fifty_thousand_ops_are_planned_within_seconds() {
    let trace = chain_trace(25_000);
    let (peak, budget) = (between(&trace, 1, 1), between(&trace, 2, 5));
    let link = Link::symmetric(BytesPerSecond(3e9));
    for policy in [
        Policy::Keep,
        Policy::Vdnn { layers: Layers::All, algorithms: Algorithms::FastestThatFit },
        Policy::Memonger { searched: false },
        Policy::Plimsoll,
    ] {
        let start = Instant::now();
        let expired = || start.elapsed() > Duration::from_secs(2);
        let limits = Limits { evaluations: None, expired: Some(&expired) };
        let budget = if policy == Policy::Keep { peak * 2 } else { budget };
        let request = PlanRequest { limits, ..PlanRequest::new(budget, link, policy) };
        judge(&trace, &request);
        println!("{policy}: {:.1} s", start.elapsed().as_secs_f64());
        // Wide enough for a slow, shared machine; a square of the ops would take minutes.
        assert!(start.elapsed() < Duration::from_secs(60), "{policy}: {:?}", start.elapsed());
    }
}
