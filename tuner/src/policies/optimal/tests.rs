//! The search without each of its tricks: the same least makespan, found by looking at more states.

use super::search::{Found, Order, fastest};
use super::space::Space;
use crate::request::{Allow, PlanRequest, Policy};
use crate::request::{Trick, Tricks};
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::testing::random_trace_of;
use plimsoll_ir::{Bytes, BytesPerSecond};

/// What a search without some tricks finds of a random trace of that many ops or a few more, and how many states it looks at.
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

#[test]
fn what_is_proved_is_no_more_than_the_program_says() {
    let mut corrected = 0;
    for seed in 0..12 {
        let trace = random_trace_of(5, seed);
        let memory = trace.memory();
        let (floor, peak) = (memory.floor().expect("an op").1.0, memory.peak().expect("an op").1.0);
        let budget = Bytes(floor + (peak - floor) / 4);
        let link = Link::symmetric(BytesPerSecond(600.0));
        let mut request = PlanRequest { allow: SWAP, ..PlanRequest::new(budget, link, Policy::Optimal) };
        let space = Space::new(&trace, budget.0 - trace.resident_bytes.0, &link, SWAP);
        let found = fastest(&space, f64::INFINITY, 1_000_000, Order::Best, &|| false, Tricks::NONE).0;
        let Found::Fastest(commands) = found else { continue };
        let least = super::end(&commands);
        assert_eq!(super::proved(&space, &request, least), least);
        // A search that were wrong would be found out.
        let proved = super::proved(&space, &request, least * 1.1);
        corrected += usize::from((proved / least - 1.0).abs() < 1e-5);
        request.without = [Trick::Program].into_iter().collect();
        assert_eq!(super::proved(&space, &request, least * 1.1), least * 1.1);
    }
    assert!(corrected >= 6, "{corrected}");
}
