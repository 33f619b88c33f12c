//! `check` accepts every schedule that is valid by construction, over random traces and the shared real traces.

use crate::common::broken_rule;
use plimsoll_ir::check::{check, locate};
use plimsoll_ir::ids::{CommandId, TensorId};
use plimsoll_ir::schedule::{Buffer, Command, Duplex, Holds};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document, Seconds};
use plimsoll_testing::{Random, random_schedule, random_trace};
use proptest::prelude::*;

/// Checks all properties of a valid schedule.
fn assert_valid(trace: &Trace, seed: u64) {
    let schedule = random_schedule(trace, seed);
    if let Err(violation) = check(trace, &schedule) {
        panic!("seed {seed}: {violation}\n{}{}", trace.to_json(), schedule.to_json());
    }
    let timeline = simulate(trace, &schedule);
    let peak = timeline.peak(trace, &schedule);
    assert!(
        peak <= schedule.pool_bytes,
        "seed {seed}: {peak:?} open at once in a pool of {:?}",
        schedule.pool_bytes
    );
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_sure_break_is_told_as_the_rule_that_it_breaks(trace_seed: u64, seed: u64) {
        for (name, rule, change) in crate::common::BREAKS {
            let mut trace = random_trace(trace_seed);
            let mut schedule = random_schedule(&trace, seed);
            if change(&mut trace, &mut schedule, &mut Random::new(seed)) {
                let violation = check(&trace, &schedule).expect_err(name).to_string();
                prop_assert_eq!(broken_rule(&violation), Some(*rule), "{}: {}", name, violation);
            }
        }
    }

    /// Checks that no parseable input makes `check` panic, however meaningless.
    #[test]
    fn nonsense_is_answered(trace_seed: u64, seed: u64) {
        let mut random = Random::new(seed);
        let mut trace = random_trace(trace_seed);
        let mut schedule = random_schedule(&trace, seed);
        for _ in 0..8 {
            if let Some((_, change)) = random.pick(crate::common::CHANGES)
                && !schedule.commands.is_empty()
            {
                change(&mut trace, &mut schedule, &mut random);
            }
            let wild = [0, 1, u64::from(u32::MAX), (1 << 62) - 1, 1 << 62, u64::MAX];
            let wild = random.pick(&wild).unwrap_or_default();
            let at = random.below(schedule.buffers.len() as u64) as usize;
            match (random.below(8), schedule.buffers.get_mut(at)) {
                (0, Some(buffer)) => buffer.offset = Bytes(wild),
                (1, Some(buffer)) => buffer.closes.push(CommandId(wild as u32)),
                (2, Some(buffer)) => buffer.holds = Holds::Workspace { command: CommandId(wild as u32) },
                (3, _) => schedule.pool_bytes = Bytes(wild),
                (4, _) => schedule.link.latency_seconds.0 = f64::from_bits(wild << 32),
                _ => {}
            }
            if check(&trace, &schedule).is_ok() {
                simulate(&trace, &schedule).totals(&trace, &schedule);
            }
        }
    }
}

#[test]
fn every_sure_break_can_be_made() {
    for (name, _, change) in crate::common::BREAKS {
        let is_made = |seed: &u64| {
            let mut trace = random_trace(*seed);
            let mut schedule = random_schedule(&trace, *seed);
            change(&mut trace, &mut schedule, &mut Random::new(*seed))
        };
        let made = (0..200).filter(is_made).count();
        assert!(made >= 5, "{name}: {made} of 200");
    }
}

/// Checks that the generator reaches all its intended cases.
#[test]
fn random_schedules_do_all_that_schedules_can() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..600 {
        let trace = random_trace(seed);
        let schedule = random_schedule(&trace, seed);
        let places = locate(&trace, &schedule).expect("it is valid by construction");
        let mut offloads = vec![0; trace.tensors.len()];
        let mut clean = vec![false; trace.tensors.len()];
        let mut homes: Vec<Vec<Bytes>> = vec![Vec::new(); trace.tensors.len()];
        let mut count = |what: &'static str, is: bool| *seen.entry(what).or_insert(0) += u32::from(is);
        count("half duplex", schedule.link.duplex == Duplex::Half);
        count("latency", schedule.link.latency_seconds > Seconds::ZERO);
        for (id, command) in schedule.numbered_commands() {
            if let Command::Compute { op, again, alternative, .. } = *command {
                let op = &trace.ops[op.index()];
                let in_place = op.writes.iter().any(|t| op.reads.contains(t));
                count("again", again);
                count("an update in place again", again && in_place);
                count("an alternative", alternative.is_some());
                let fetched = |t: &TensorId| clean[t.index()];
                count("again on what was prefetched", again && op.reads.iter().any(fetched));
                for (t, base) in places.tensors(id) {
                    let homes = &mut homes[t.index()];
                    count("at another address", homes.last().is_some_and(|home| home != base));
                    homes.push(*base);
                }
                let stands =
                    |t: &&TensorId| !op.reads.contains(t) && trace.tensors[t.index()].bytes > Bytes::ZERO;
                let opens = |t: &TensorId| {
                    let own = |b: &Buffer| {
                        b.opens == Some(id) && matches!(b.holds, Holds::Tensor { tensor, .. } if tensor == *t)
                    };
                    schedule.buffers.iter().any(own)
                };
                count("overwritten where it stands", op.writes.iter().filter(stands).any(|t| !opens(t)));
            }
            let Some((tensor, _, bytes)) = command.transfer() else { continue };
            let t = tensor.index();
            count("a piece", bytes.is_some_and(|bytes| bytes < trace.tensors[t].bytes));
            if matches!(command, Command::Offload { .. }) {
                offloads[t] += 1;
                clean[t] = false;
                count("offloaded in several gaps", offloads[t] > 1);
            } else {
                count("back twice from one offload", std::mem::replace(&mut clean[t], true));
            }
        }
    }
    assert_eq!(seen.len(), 11, "{seen:?}");
    for (what, times) in &seen {
        assert!(*times >= 20, "{what}: only {times} times\n{seen:?}");
    }
}

/// Tests a few hundred ops of a real network, and the largest that is quick enough.
#[test]
fn real_traces_pass_too() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces"));
    for name in ["vgg16-224-b256-k40", "resnet50-224-b64-v100", "unet-512-b8-v100", "googlenet-224-b128-v100"]
    {
        let Ok(text) = std::fs::read_to_string(folder.join(format!("{name}.trace.json"))) else {
            println!("skipped: no {name} in {}", folder.display());
            continue;
        };
        let trace = Trace::from_json(&text).expect("the shared traces can be read");
        let seeds = if trace.ops.len() < 1000 { 5 } else { 1 };
        (0..seeds).for_each(|seed| assert_valid(&trace, seed));
    }
}
