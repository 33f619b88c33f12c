//! The search without each of its tricks: the same least makespan, found by looking at more states.

use super::search::{Found, Switches, fastest};
use super::space::Space;
use crate::plan::Allow;
use plimsoll_ir::BytesPerSecond;
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::testing::random_trace_of;

/// What a search with these switches finds of a random trace of that many ops or a few more, and how many states it looks at.
fn search(ops: u64, seed: u64, allow: Allow, switches: Switches) -> (Option<f64>, usize) {
    let trace = random_trace_of((ops + seed % 4) as usize, seed);
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("an op").1.0, memory.peak().expect("an op").1.0);
    let pool = floor + (peak - floor) * (seed % 5) / 8 - trace.resident_bytes.0;
    let duplex = if seed.is_multiple_of(3) { Duplex::Half } else { Duplex::Full };
    let link = Link { duplex, ..Link::symmetric(BytesPerSecond(600.0)) };
    let space = Space::new(&trace, pool, &link, allow);
    let (found, states) = fastest(&space, f64::INFINITY, 1_000_000, &|| false, switches);
    match found {
        Found::Fastest(commands) => (Some(super::end(&commands)), states),
        Found::Nothing => (None, states),
        Found::Late { bound } => panic!("seed {seed}: {states} states did not do, bound {bound}"),
    }
}

fn check(name: &str, allow: Allow, ops: u64, seeds: u64, without: Switches) {
    let (mut with_all, mut with_less) = (0, 0);
    for seed in 0..seeds {
        let (all, states) = search(ops, seed, allow, Switches::default());
        let (less, more) = search(ops, seed, allow, without);
        let same = match (all, less) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a,
            (a, b) => a == b,
        };
        assert!(same, "without {name}, seed {seed}: {all:?}, {less:?}");
        (with_all, with_less) = (with_all + states, with_less + more);
    }
    println!("without {name} {with_less} states instead of {with_all}");
    assert!(with_less > with_all, "{name} is of no use: {with_less} states without it, {with_all} with it");
}

const HYBRID: Allow = Allow { recompute: true, swap: true, pieces: false };

const SWAP: Allow = Allow { recompute: false, ..HYBRID };

#[test]
fn bounds() {
    let without = Switches { bounds: false, ..Switches::default() };
    check("bounds", HYBRID, 4, 60, without);
    check("bounds", SWAP, 4, 60, without);
}

#[test]
fn prompt_offloads() {
    let without = Switches { prompt: false, ..Switches::default() };
    check("prompt offloads", HYBRID, 8, 60, without);
    check("prompt offloads", SWAP, 14, 60, without);
}

#[test]
fn dominance() {
    let without = Switches { dominance: false, ..Switches::default() };
    check("dominance", HYBRID, 4, 12, without);
    check("dominance", SWAP, 4, 40, without);
}
