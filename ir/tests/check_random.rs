//! `check` accepts every schedule that is valid by construction, over random traces and the shared real ones.

use plimsoll_ir::check::check;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::testing::{random_schedule, random_trace};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Document, Seconds};
use proptest::prelude::*;

/// Everything that must hold of a valid schedule.
fn assert_valid(trace: &Trace, seed: u64) {
    let schedule = random_schedule(trace, seed);
    if let Err(violation) = check(trace, &schedule) {
        panic!("seed {seed}: {violation}\n{}{}", trace.to_json(), schedule.to_json());
    }
    let timeline = simulate(trace, &schedule);
    let peak = timeline.peak(trace, &schedule);
    assert!(peak <= schedule.pool_bytes, "seed {seed}: {peak:?} open at once in a pool of {:?}", schedule.pool_bytes);
    assert_eq!(timeline.pool_bytes_over_time(trace, &schedule).last().map_or(0, |step| step.bytes.0), 0);
    let totals = timeline.totals(trace, &schedule);
    for (busy, (stalled, idle)) in totals.busy.iter().zip(totals.stalled.iter().zip(totals.idle)) {
        let sum = *busy + *stalled + idle;
        assert!((sum - timeline.makespan()).0.abs() <= 1e-9 * timeline.makespan().0.max(1.0), "seed {seed}");
    }
    assert!(timeline.makespan() >= trace.ops.iter().map(|op| op.seconds).fold(Seconds::ZERO, Seconds::min));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn schedules_that_are_valid_by_construction_pass(trace_seed: u64, seed: u64) {
        let trace = random_trace(trace_seed);
        prop_assert_eq!(trace.validate(), Ok(()));
        assert_valid(&trace, seed);
    }
}
