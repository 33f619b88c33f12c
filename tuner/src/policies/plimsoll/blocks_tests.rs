//! Blocks are found in a trace that has them, and not in others; a trace with fewer blocks is a similar network; copies of its
//! plans fit and are deterministic.

use super::super::problem::Problem;
use super::super::search::Search;
use super::*;
use crate::iteration::values::Values;
use crate::place::realise::Case;
use crate::request::{Limits, PlanRequest, Policy};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::{Phase, Tensor, TensorKind};
use plimsoll_ir::{Bytes, BytesPerSecond, Document, Seconds};
use plimsoll_testing::{between, chain_trace, hand, random_trace_of};

/// Forward and backward ops of a block.
const FORWARD: usize = 4;
const BACKWARD: usize = 4;

/// Residual network of this many equal blocks between a first op and a last one.
fn residual(blocks: usize) -> Trace {
    let mut trace = hand::trace([], Vec::new());
    let tensor = |trace: &mut Trace, kind, size: u64| {
        let name = format!("t{}", trace.tensors.len());
        trace.tensors.push(Tensor { name, bytes: Bytes(size << 20), kind });
        trace.tensors.len() - 1
    };
    let op = |trace: &mut Trace, kind: &str, phase, reads: &[usize], writes: &[usize]| {
        let number = trace.ops.len();
        // As measured: no two blocks take exactly as long.
        let seconds = Seconds(1e-3 * (1.0 + (number * 37 % 11) as f64 * 1e-3));
        let recomputable = phase == Phase::Forward;
        let op = hand::op(&format!("{kind}{number}"), phase, reads, writes);
        trace.ops.push(Op { kind: kind.to_owned(), seconds, recomputable, ..op });
    };
    let (map, grad) = (TensorKind::Activation, TensorKind::Gradient);
    let images = tensor(&mut trace, TensorKind::Input, 3);
    let mut stream = tensor(&mut trace, map, 8);
    op(&mut trace, "stem", Phase::Forward, &[images], &[stream]);
    let mut inside = Vec::new();
    for _ in 0..blocks {
        let [narrow, normal, wide] = [4, 4, 8].map(|size| tensor(&mut trace, map, size));
        let next = tensor(&mut trace, map, 8);
        op(&mut trace, "conv", Phase::Forward, &[stream], &[narrow]);
        op(&mut trace, "bn", Phase::Forward, &[narrow], &[normal]);
        op(&mut trace, "conv", Phase::Forward, &[normal], &[wide]);
        op(&mut trace, "add", Phase::Forward, &[wide, stream], &[next]);
        inside.push([stream, narrow, normal]);
        stream = next;
    }
    let mut gradient = tensor(&mut trace, grad, 8);
    op(&mut trace, "loss", Phase::Backward, &[stream], &[gradient]);
    for [input, narrow, normal] in inside.into_iter().rev() {
        let [first, second, third] = [4, 4, 8].map(|size| tensor(&mut trace, grad, size));
        let next = tensor(&mut trace, grad, 8);
        op(&mut trace, "conv", Phase::Backward, &[gradient, normal], &[first]);
        op(&mut trace, "bn", Phase::Backward, &[first, narrow], &[second]);
        op(&mut trace, "conv", Phase::Backward, &[second, input], &[third]);
        op(&mut trace, "add", Phase::Backward, &[third, gradient], &[next]);
        gradient = next;
    }
    op(&mut trace, "stem", Phase::Backward, &[gradient, images], &[]);
    trace
}

fn valid(trace: &Trace) -> Trace {
    Trace::from_json(&trace.to_json()).expect("a valid trace")
}

#[test]
fn equal_blocks_are_found_whatever_their_tensors_are_called() {
    let trace = valid(&residual(40));
    let blocks = Blocks::find(&trace);
    let found: Vec<(usize, usize, usize, usize, bool)> =
        blocks.strands.iter().map(|s| (s.first, s.period, s.blocks, s.family, s.falls)).collect();
    assert_eq!(found, [(1, FORWARD, 40, 0, false), (2 + 40 * FORWARD, BACKWARD, 40, 0, true)]);
    // The first block reads no block's output, and the last backward block reads no block's gradient.
    let equal = &blocks.equal[0];
    assert!(equal.start <= 1 && equal.end >= 39 && equal.end <= 40, "{equal:?}");
}

#[test]
fn none_are_found_where_there_are_none() {
    for seed in 0..40 {
        let trace = random_trace_of(120, seed);
        assert!(Blocks::find(&trace).fold(0.1).is_none(), "{seed}");
    }
    // The layers of a chain all have different sizes.
    let trace = chain_trace(100);
    assert!(Blocks::find(&trace).strands.is_empty());
    // Three are not enough.
    assert!(Blocks::find(&residual(3)).fold(0.1).is_none());
}

/// Apart from seconds and names, the remaining trace of a deep network is the network of this many blocks.
#[test]
fn a_folded_network_is_one_of_fewer_blocks() {
    let trace = residual(100);
    let folded = Blocks::find(&trace).fold(0.1).expect("most blocks can be left out");
    let count = (folded.trace.ops.len() - 3) / (FORWARD + BACKWARD);
    assert!((10..=14).contains(&count), "{count} blocks");
    valid(&folded.trace);
    let few = residual(count);
    let (folded_memory, memory) = (folded.trace.memory(), few.memory());
    assert_eq!(folded_memory.in_use, memory.in_use);
    for (op, of) in folded.trace.ops.iter().zip(&few.ops) {
        assert_eq!((&op.kind, op.phase, op.reads.len()), (&of.kind, of.phase, of.reads.len()), "{}", op.name);
    }
    let mut used = vec![0; folded.trace.ops.len()];
    for (op, (like, depth)) in trace.ops.iter().zip(&folded.like) {
        let model = &folded.trace.ops[like.index()];
        assert_eq!((&op.kind, op.phase), (&model.kind, model.phase), "{}", op.name);
        assert!((0.0..=1.0).contains(depth), "{}: {depth}", op.name);
        used[like.index()] += 1;
    }
    assert!(used.iter().all(|times| (1..=20).contains(times)), "{used:?}");
}

#[test]
fn a_trace_that_is_not_deep_is_not_folded() {
    assert!(Blocks::find(&residual(40)).fold(0.9).is_none());
    assert!(Blocks::find(&residual(40)).fold(1.5).is_none());
}

#[test]
fn a_copy_fits_and_is_the_same_each_time() {
    let trace = residual(200);
    let budget = between(&trace, 1, 5);
    let link = Link::symmetric(BytesPerSecond(2e9));
    let limits = Limits { evaluations: Some(2000), ..Limits::default() };
    let request = PlanRequest { limits, ..PlanRequest::new(budget, link, Policy::Plimsoll) };
    let pool = (budget - trace.resident_bytes).0;
    let bound = crate::bound::lower_bound(&trace, budget, &link, request.allow);
    let case = Case { trace: &trace, request: &request, pool, bound, within: Seconds(f64::INFINITY) };
    let values = Values::new(&trace, Bytes(pool), request.allow);
    let folded = Blocks::find(&trace).fold(0.3).expect("most blocks can be left out");
    let problem = Problem::new(&case, &values);
    let copies = || {
        let mut search = Search::new(&problem, 2000, usize::MAX);
        search.make_copies(&folded, f64::INFINITY);
        let copies = search.further.clone();
        let fits: Vec<f64> = copies
            .iter()
            .map(|copy| search.look(copy.clone()))
            .filter(|(_, need)| *need <= pool)
            .map(|(judged, _)| judged.cost.seconds)
            .collect();
        (copies, fits)
    };
    let (first, fits) = copies();
    assert!(!first.is_empty());
    let best = fits.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(best >= bound.0 * (1.0 - 1e-9), "{best} is less than {bound}");
    assert!(best <= bound.0 * 1.1, "{best} of {bound}");
    assert_eq!(copies().0, first);
}
