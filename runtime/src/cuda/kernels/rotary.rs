//! The launches of rotary position embeddings: a table of sines and cosines, and the rotation by it.
//!
//! Deliberately does not hold a formula; `rotary.cu` does.

use super::Argument::{F32, U32, U64};
use super::{Plan, flag, narrow};
use plimsoll_ir::program::RotaryShape;

/// x -> y.
pub(super) fn forward(p: &mut Plan, shape: &RotaryShape, base: f32) {
    turn(p, shape, base, ["x", "y"], 1.0, false);
}

/// dy -> dx.
pub(super) fn backward(p: &mut Plan, shape: &RotaryShape, base: f32, accumulate: bool) {
    turn(p, shape, base, ["dy", "dx"], -1.0, accumulate);
}

/// `from`, rotated -> `to`.
fn turn(p: &mut Plan, s: &RotaryShape, base: f32, [from, to]: [&str; 2], sign: f32, accumulate: bool) {
    let [from, to] = p.operands([from, to]);
    let half = s.width / 2;
    let angles = s.length.saturating_mul(half);
    let table = p.floats(s.length.saturating_mul(s.width));
    p.launch("rotary_table", angles, vec![table, U64(angles), U32(narrow(half)), F32(base)]);
    let pairs = s.elements() / 2;
    let sides = [s.length, s.channels, half].map(|n| U32(narrow(n)));
    let leading = [from, table, to, U64(pairs)];
    p.launch("rotary_turn", pairs, [&leading[..], &sides, &[F32(sign), flag(accumulate)]].concat());
}
