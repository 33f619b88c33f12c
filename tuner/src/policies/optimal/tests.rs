//! Tests of the search without each of its tricks: the same minimum makespan, found by examining more states. A mixed-integer
//! program (`tests/program.rs`), which shares only the parts of a trace with the search, gives the same result.

mod program;

use super::search::{Action, Found, Order, Timed, fastest};
use super::space::{Space, only};
use crate::request::{Allow, Policy, Trick, Tricks};
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_testing::{GRAIN, between, coarse_trace_of};
use program::Solved;
use std::ops::Range;

/// Commands that a search without some tricks finds in a space, and the number of states examined; `None` if no iteration fits.
fn search(space: &Space, without: Tricks) -> (Option<Vec<Timed>>, usize) {
    let (found, states) = fastest(space, f64::INFINITY, 1_000_000, Order::Best, &|| false, without);
    match found {
        Found::Fastest(commands) => (Some(commands), states),
        Found::Nothing => (None, states),
        Found::Late { bound, .. } => panic!("{states} states did not do, bound {bound}"),
    }
}

fn check(trick: Trick, allow: Allow, ops: u64, seeds: u64) {
    assert_eq!(trick.policy(), Some(Policy::Optimal));
    let (mut with_all, mut with_less) = (0, 0);
    for seed in 0..seeds {
        let space = space_of(&coarse_trace_of(ops + seed % 4, seed), seed, allow);
        let (all, states) = search(&space, Tricks::NONE);
        let (less, more) = search(&space, [trick].into_iter().collect());
        let [all, less] = [all, less].map(|commands| commands.map(|commands| super::end(&commands)));
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

/// Returns the space of a trace between floor and the middle between floor and peak.
fn space_of(trace: &Trace, seed: u64, allow: Allow) -> Space {
    let budget = between(trace, seed % 5, 8);
    let duplex = if seed.is_multiple_of(3) { Duplex::Half } else { Duplex::Full };
    let latency_seconds = Seconds(if seed.is_multiple_of(7) { 0.05 } else { 0.0 });
    let rate = BytesPerSecond(600.0 * GRAIN as f64);
    let link = Link { duplex, latency_seconds, ..Link::symmetric(rate) };
    Space::new(trace, budget.0 - trace.resident_bytes.0, &link, allow)
}

/// Returns the minimum makespan by search, and the host bytes of its commands; `None` if no iteration fits.
fn searched(space: &Space) -> Option<(f64, u64)> {
    let commands = search(space, Tricks::NONE).0?;
    let offloaded = commands.iter().fold(0, |set, command| match command.action {
        Action::Offload { value } => set | only(value),
        _ => set,
    });
    Some((super::end(&commands), space.on_host(offloaded)))
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
        let space = space_of(&coarse_trace_of(ops.start + seed % (ops.end - ops.start), *seed), *seed, allow);
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
        let trace = coarse_trace_of(4 + seed % 5, seed);
        let Some((_, takes)) = searched(&space_of(&trace, seed, allow)) else { continue };
        for host in [takes, takes.saturating_sub(1), takes / 2].into_iter().filter(|_| takes > 0) {
            let space = space_of(&trace, seed, Allow { host: Some(Bytes(host)), ..allow });
            let what = format!("seed {seed} within {host} of {takes}");
            same += usize::from(agrees(&space, 60, &what));
        }
    }
    assert!(same > 20, "{same}");
}
