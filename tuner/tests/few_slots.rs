//! A pool of few large tensors: uniform chains whose pool holds three and a half to five and a half of them, only swapped.
//!
//! An exact search over halves of tensors, each of which leaves and returns separately, takes just the bound by windows; so the
//! bound is the optimum there. That search ignores addresses: halves may lie apart, and a tensor that an op uses lies in one
//! place. Plans take just as long all the same: alternately the first and the last bytes of a tensor come first (the trick
//! `turns`; without it plans took up to 1.11 times as long).

use crate::common::{planned, request};
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::trace::{Op, Phase, Trace};
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_testing::hand;
use plimsoll_tuner::policies::optimal::least;
use plimsoll_tuner::{Allow, Limits, PlanRequest, Policy};

/// Bytes of a tensor, and seconds of an op.
const SIZE: u64 = 1 << 24;
const OP: Seconds = Seconds(0.01);

/// Tolerance for sums of floats.
const HAIR: f64 = 1e-9;

/// Forward and backward through this many layers; a backward op reads its layer's input. Each tensor has this many parts.
fn chain(layers: usize, parts: usize) -> Trace {
    let parts_of =
        |of: &[usize]| -> Vec<usize> { of.iter().flat_map(|at| at * parts..(at + 1) * parts).collect() };
    let op = |phase, reads: &[usize], writes: usize| {
        let op = hand::op(&format!("op{writes}"), phase, &parts_of(reads), &parts_of(&[writes]));
        Op { kind: "conv".into(), seconds: OP, recomputable: true, ..op }
    };
    let gradient = |at: usize| layers + 1 + at;
    let mut ops = vec![op(Phase::Forward, &[], 0)];
    ops.extend((0..layers).map(|at| op(Phase::Forward, &[at], at + 1)));
    ops.push(op(Phase::Backward, &[layers], gradient(layers)));
    let backward = |at| op(Phase::Backward, &[at, gradient(at + 1)], gradient(at));
    ops.extend((0..layers).rev().map(backward));
    hand::trace(vec![SIZE / parts as u64; (2 * layers + 2) * parts], ops)
}

#[test]
fn plans_and_halves_take_what_the_bound_says() {
    for layers in [4, 5] {
        for half_slots in [7, 8, 9, 11] {
            for ops_a_tensor in [0.5, 1.0, 2.0] {
                let budget = Bytes(SIZE * half_slots / 2);
                let rate = SIZE as f64 / (OP.0 * ops_a_tensor);
                let request = PlanRequest {
                    allow: Allow { recompute: false, ..Allow::ALL },
                    limits: Limits::default(),
                    ..request(budget, rate, Duplex::Full, Policy::Plimsoll)
                };
                let what = format!("{layers} layers, {half_slots} half slots, {ops_a_tensor} ops a tensor");
                let plan = planned(&chain(layers, 1), &request).unwrap_or_else(|w| panic!("{what}: {w}"));
                let late = Seconds(plan.makespan.0 * (1.0 + 1e-6));
                let halves = least(&chain(layers, 2), &request, late).expect("it is small");
                let halves = halves.unwrap_or_else(|| panic!("{what}: whole tensors took {}", plan.makespan));
                assert!(halves.reached, "{what}: more states than are looked at");
                let bound = plan.bound.0 * (1.0 + HAIR);
                assert!(halves.seconds.0 <= bound, "{what}: halves take {}", halves.seconds);
                let (whole, halves) = (plan.makespan, halves.seconds);
                assert!(whole.0 <= bound, "{what}: {whole} where halves take {halves}");
            }
        }
    }
}
