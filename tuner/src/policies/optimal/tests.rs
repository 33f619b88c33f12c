//! Tests of the search without each of its tricks: the same minimum makespan, found by examining more states. A mixed-integer
//! program (`tests/program.rs`), which shares only the parts of a trace with the search, gives the same result.

mod program;

use super::search::{Action, Found, Order, fastest};
use super::space::{Space, only};
use crate::request::{Allow, Policy, Trick, Tricks};
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_testing::random_trace_of;
use program::Solved;
use std::ops::Range;

/// Returns the result of a search without some tricks on a random trace of that many ops or a few more, and the number of states
/// examined.
fn search(ops: u64, seed: u64, allow: Allow, without: Tricks) -> (Option<f64>, usize) {
    let trace = random_trace_of((ops + seed % 4) as usize, seed);
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("an op").1.0, memory.peak().expect("an op").1.0);
    let pool = floor + (peak - floor) * (seed % 5) / 8 - trace.resident_bytes.0;
    let duplex = if seed.is_multiple_of(3) { Duplex::Half } else { Duplex::Full };
    let link = Link { duplex, ..Link::symmetric(BytesPerSecond(600.0)) };
    let space = Space::new(&trace, pool, &link, allow);
    let (found, states) = fastest(&space, f64::INFINITY, 1_000_000, Order::Best, &|| false, without);
    match found {
        Found::Fastest(commands) => (Some(super::end(&commands)), states),
        Found::Nothing => (None, states),
        Found::Late { bound, .. } => panic!("seed {seed}: {states} states did not do, bound {bound}"),
    }
}

fn check(trick: Trick, allow: Allow, ops: u64, seeds: u64) {
    assert_eq!(trick.policy(), Some(Policy::Optimal));
    let (mut with_all, mut with_less) = (0, 0);
    for seed in 0..seeds {
        let (all, states) = search(ops, seed, allow, Tricks::NONE);
        let (less, more) = search(ops, seed, allow, [trick].into_iter().collect());
        let same = match (all, less) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a,
            (a, b) => a == b,
        };
        assert!(same, "without {trick}, seed {seed}: {all:?}, {less:?}");
        (with_all, with_less) = (with_all + states, with_less + more);
    }
    println!("without {trick} {with_less} states instead of {with_all}");
    assert!(with_less > with_all, "{trick} is of no use: {with_less} states without it, {with_all} with it");
}

const HYBRID: Allow = Allow { pieces: false, ..Allow::ALL };

const SWAP: Allow = Allow { recompute: false, ..HYBRID };

#[test]
fn bounds() {
    check(Trick::Bounds, HYBRID, 4, 60);
    check(Trick::Bounds, SWAP, 4, 60);
}

#[test]
fn prompt_offloads() {
    check(Trick::Prompt, HYBRID, 8, 60);
    check(Trick::Prompt, SWAP, 14, 60);
}

#[test]
fn dominance() {
    check(Trick::Dominance, HYBRID, 4, 12);
    check(Trick::Dominance, SWAP, 4, 40);
}

/// Returns a random trace of some of these ops, with large tensors, so that the host's grain does not count.
fn coarse_trace_of(ops: &Range<u64>, seed: u64) -> Trace {
    let mut trace = random_trace_of((ops.start + seed % (ops.end - ops.start)) as usize, seed);
    trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * GRAIN);
    let alternatives = trace.ops.iter_mut().flat_map(|op| {
        op.workspace_bytes = op.workspace_bytes * GRAIN;
        &mut op.alternatives
    });
    alternatives.for_each(|alternative| alternative.workspace_bytes = alternative.workspace_bytes * GRAIN);
    trace
}

const GRAIN: u64 = 4096;

/// Returns the space of a trace between floor and the middle between floor and peak.
fn space_of(trace: &Trace, seed: u64, allow: Allow) -> Space {
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("an op").1, memory.peak().expect("an op").1);
    let budget = floor + Bytes((peak - floor).0 * (seed % 5) / 8);
    let duplex = if seed.is_multiple_of(3) { Duplex::Half } else { Duplex::Full };
    let latency_seconds = Seconds(if seed.is_multiple_of(7) { 0.05 } else { 0.0 });
    let rate = BytesPerSecond(600.0 * GRAIN as f64);
    let link = Link { duplex, latency_seconds, ..Link::symmetric(rate) };
    Space::new(trace, budget.0 - trace.resident_bytes.0, &link, allow)
}

/// Returns the minimum makespan by search, and the host bytes of its commands; `None` if no iteration fits.
fn searched(space: &Space) -> Option<(f64, u64)> {
    match fastest(space, f64::INFINITY, 1_000_000, Order::Best, &|| false, Tricks::NONE).0 {
        Found::Fastest(commands) => {
            let offloaded = commands.iter().fold(0, |set, command| match command.action {
                Action::Offload { value } => set | only(value),
                _ => set,
            });
            Some((super::end(&commands), space.on_host(offloaded)))
        }
        Found::Nothing => None,
        Found::Late { bound, .. } => panic!("1,000,000 states did not do, bound {bound}"),
    }
}

/// Asserts that search and program agree. Returns `true` if the program was small enough to be solved.
fn agrees(space: &Space, most_choices: usize, what: &str) -> bool {
    let searched = searched(space).map(|(seconds, _)| seconds);
    let within = searched.map_or(f64::INFINITY, |seconds| seconds * 1.1);
    match (searched, program::least(space, within, most_choices)) {
        (_, Solved::Open) => return false,
        (None, Solved::Nothing) => {}
        (Some(a), Solved::Least(b)) => assert!((a / b - 1.0).abs() < 1e-5, "{what}: {a}, {b}"),
        (searched, solved) => panic!("{what}: {searched:?}, {solved:?}"),
    }
    true
}

/// Returns the number of traces of these ops, whose programs have at most this many choices, on which both agree.
fn agree(allow: Allow, ops: Range<u64>, seeds: u64, most_choices: usize) -> usize {
    let agrees = |seed: &u64| {
        let space = space_of(&coarse_trace_of(&ops, *seed), *seed, allow);
        agrees(&space, most_choices, &format!("{allow:?}, seed {seed}"))
    };
    (0..seeds).filter(agrees).count()
}

#[test]
fn search_and_program_agree_on_swapping() {
    let same = agree(SWAP, 4..12, 300, 90);
    assert!(same > 100, "{same}");
}

#[test]
fn search_and_program_agree_on_running_again() {
    let same = agree(HYBRID, 2..6, 300, 60);
    assert!(same > 50, "{same}");
}

#[test]
fn search_and_program_agree_within_the_hosts_memory() {
    let mut same = 0;
    for seed in 0..60 {
        let allow = if seed % 2 == 0 { HYBRID } else { SWAP };
        let trace = coarse_trace_of(&(4..9), seed);
        let Some((_, takes)) = searched(&space_of(&trace, seed, allow)) else { continue };
        for host in [takes, takes.saturating_sub(1), takes / 2].into_iter().filter(|_| takes > 0) {
            let space = space_of(&trace, seed, Allow { host: Some(Bytes(host)), ..allow });
            let what = format!("seed {seed} within {host} of {takes}");
            same += usize::from(agrees(&space, 60, &what));
        }
    }
    assert!(same > 20, "{same}");
}
