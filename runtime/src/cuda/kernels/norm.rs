//! The launches of normalisations: statistics in parts, joined as often as needed, then one pass over the elements.
//!
//! Deliberately does not hold a formula; `norm.cu` does.

use super::Argument::{F32, U32, U64};
use super::{Argument, FAN, PARALLEL, Plan, elements, flag, narrow};
use plimsoll_ir::program::{After, RowShape};

/// Fewest rows of a part: with fewer, the parts would be as large as a tensor.
const LEAST_ROWS: u64 = 16;

/// Number of parts of a sum over rows.
pub(super) fn parts(shape: &RowShape) -> u64 {
    let most = u64::from(narrow(shape.rows.div_ceil(LEAST_ROWS))).max(1);
    (PARALLEL / shape.channels.max(1)).clamp(1, most)
}

/// Threads with four channels of a part each.
fn threads(parts: u64, shape: &RowShape) -> u64 {
    parts.saturating_mul(shape.channels.div_ceil(4))
}

/// `to` = the sums of x over all rows, for each channel, or added to `to`: the gradient of a bias.
pub(super) fn channel_sums(p: &mut Plan, shape: &RowShape, x: Argument, to: Argument, accumulate: bool) {
    let count = parts(shape);
    let width = shape.channels;
    let of_parts = p.floats(count.saturating_mul(width));
    let arguments = vec![x, of_parts, U64(shape.rows), U32(narrow(width)), U32(narrow(count))];
    p.launch("channel_parts", threads(count, shape), arguments);
    p.sum(of_parts, count, width, to, accumulate);
}

/// Ceiling of the following ReLU, in the storage format of activations: clipped elements are equal to it afterwards.
fn ceiling(p: &Plan, then: &After) -> Argument {
    F32(then.relu.map_or(f32::INFINITY, |relu| p.float.nearest(relu.ceiling)))
}

/// x, gamma, beta, \[r\] -> y, stats, \[mask\].
pub(super) fn forward(p: &mut Plan, shape: &RowShape, epsilon: f32, then: &After) {
    let [x, gamma, beta, y, stats] = p.operands(["x", "gamma", "beta", "y", "stats"]);
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let total = parts(shape);
    let of = |parts: u64| parts.saturating_mul(shape.channels);
    let mut moments = p.floats(of(2 * total));
    p.launch("moment_parts", threads(total, shape), vec![x, moments, rows, channels, U32(narrow(total))]);
    let (mut count, mut span) = (total, 1);
    while count > FAN {
        let groups = count.div_ceil(FAN);
        let joined = p.floats(of(2 * groups));
        let numbers = [total, span, count, FAN].map(|n| U32(narrow(n)));
        let leading = [moments, joined, U64(of(groups)), rows, channels];
        p.launch("moment_join", of(groups), [&leading[..], &numbers[..]].concat());
        (moments, count, span) = (joined, groups, span * FAN);
    }
    let scale = p.floats(shape.channels);
    let numbers = [total, span, count].map(|n| U32(narrow(n)));
    let leading = [moments, gamma, stats, scale, rows, channels];
    p.launch("batch_norm_stats", shape.channels, [&leading[..], &numbers[..], &[F32(epsilon)]].concat());
    let n = elements(shape);
    if *then == After::default() {
        p.launch("batch_norm_apply", n.div_ceil(4), vec![x, stats, scale, beta, y, U64(n), channels]);
        return;
    }
    let (r, mask) = (p.operand_or("r", "x"), p.operand_or("mask", "y"));
    let numbers = [flag(then.add), flag(then.relu.is_some()), ceiling(p, then), flag(then.masks())];
    let leading = [x, stats, scale, beta, r, y, mask, U64(n), channels];
    p.launch("batch_norm_apply_then", n.div_ceil(8), [&leading[..], &numbers[..]].concat());
}

/// stats, running mean, running variance -> running mean, running variance.
pub(super) fn running(p: &mut Plan, shape: &RowShape, [epsilon, momentum]: [f32; 2]) {
    let operands = p.operands(["stats", "running mean", "running variance"]);
    let numbers = [U64(shape.rows), U32(narrow(shape.channels)), F32(epsilon), F32(momentum)];
    p.launch("batch_norm_running", shape.channels, [&operands[..], &numbers].concat());
}

/// x, gamma, beta, running mean, running variance -> y.
pub(super) fn inference(p: &mut Plan, shape: &RowShape, epsilon: f32) {
    let n = elements(shape);
    let arguments = p.all_operands_and(&[U64(n), U32(narrow(shape.channels)), F32(epsilon)]);
    p.launch("batch_norm_inference", n.div_ceil(4), arguments);
}

/// x, dy, gamma, stats, \[kept\] -> dx, dgamma, dbeta, \[dr\].
pub(super) fn backward(p: &mut Plan, shape: &RowShape, then: &After, accumulate: bool) {
    let [x, dy, gamma, stats, dx, dgamma, dbeta] =
        p.operands(["x", "dy", "gamma", "stats", "dx", "dgamma", "dbeta"]);
    let (rows, channels) = (U64(shape.rows), U32(narrow(shape.channels)));
    let count = parts(shape);
    let width = shape.channels.saturating_mul(2);
    let of_parts = p.floats(count.saturating_mul(width));
    let [sums, slopes] = [0, 1].map(|_| p.floats(width));
    // Gate of dy: open, or closed by the output or the mask of a ReLU. Kernels read at most one of the two.
    let gate = U32(then.relu.map_or(0, |relu| if relu.mask { 2 } else { 1 }));
    let (kept, dr, ceiling) = (p.operand_or("kept", "x"), p.operand_or("dr", "dx"), ceiling(p, then));
    // The mean is the first half of stats.
    let numbers = [rows, channels, U32(narrow(count))];
    if *then == After::default() {
        let arguments = [&[x, dy, stats, of_parts], &numbers[..]].concat();
        p.launch("gradient_parts", threads(count, shape), arguments);
    } else {
        let leading = [x, dy, stats, kept, kept, dr, of_parts];
        let arguments = [&leading[..], &numbers[..], &[gate, ceiling, flag(then.add)]].concat();
        p.launch("gradient_parts_behind", threads(count, shape), arguments);
    }
    // dr already holds the gradient that passes.
    let (dy, gate) = if then.add { (dr, U32(0)) } else { (dy, gate) };
    p.sum(of_parts, count, width, sums, false);
    let arguments = vec![sums, stats, dgamma, dbeta, slopes, rows, channels];
    p.launch("batch_norm_slopes", shape.channels, arguments);
    let n = elements(shape);
    let leading = [x, dy, kept, kept, gamma, stats, slopes, dx, U64(n), channels];
    let arguments = [&leading[..], &[gate, ceiling, flag(accumulate)]].concat();
    p.launch("batch_norm_backward", n.div_ceil(4), arguments);
}

/// x -> y; or with `accumulate`, x, dy -> dx. `numbers` are alpha, beta, bias.
pub(super) fn lrn(p: &mut Plan, shape: &RowShape, numbers: [f32; 3], size: u32, accumulate: Option<bool>) {
    let [alpha, beta, bias] = numbers;
    let n = elements(shape);
    let around = [U32(narrow(shape.channels)), U32(size / 2), F32(alpha / size as f32), F32(beta), F32(bias)];
    match accumulate {
        None => {
            let arguments = p.all_operands_and(&[&[U64(n)], &around[..]].concat());
            p.launch("lrn_forward", n, arguments);
        }
        Some(accumulate) => {
            let factor = 2.0 * alpha * beta / size as f32;
            let last = [F32(factor), flag(accumulate)];
            let arguments = p.all_operands_and(&[&[U64(n)], &around[..], &last[..]].concat());
            p.launch("lrn_backward", n, arguments);
        }
    }
}
