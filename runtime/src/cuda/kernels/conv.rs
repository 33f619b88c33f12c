//! The launches of depthwise convolutions, in which every channel has a separate window, and those that add the bias of any
//! convolution and sum its gradient.
//!
//! Deliberately does not hold a formula (`depthwise.cu` does), or compute other convolutions, including those with several
//! filters for a channel: a library does (`../libraries`).

use super::Argument::{U32, U64};
use super::{Argument, PARALLEL, Plan, flag, narrow, norm, window};
use plimsoll_ir::program::{ConvShape, RowShape};

/// Positions of a line in one thread, as in `depthwise.cu`.
const ACROSS: u64 = 4;

/// Fewest positions in a split of the filter gradient.
const LEAST_POSITIONS: u64 = 64;

/// Returns `true` if a convolution has one filter for each channel, and no filter sees a second channel.
pub(crate) fn is_depthwise(shape: &ConvShape) -> bool {
    shape.groups > 1 && shape.in_channels == shape.groups && shape.out_channels == shape.groups
}

/// Positions of a convolution's whole batch, for images of this size.
fn positions(shape: &ConvShape, image: [u32; 2]) -> u64 {
    image.iter().fold(shape.batch, |n, side| n.saturating_mul(u64::from(*side)))
}

/// Groups of four channels.
fn fours(shape: &ConvShape) -> u64 {
    u64::from(shape.out_channels.div_ceil(4))
}

/// Threads for the positions of images of this size.
fn strips(shape: &ConvShape, [rows, columns]: [u32; 2]) -> u64 {
    let of_line = u64::from(columns).div_ceil(ACROSS);
    [u64::from(rows), of_line, fours(shape)].iter().fold(shape.batch, |n, of| n.saturating_mul(*of))
}

/// Last arguments of the kernels of all three passes.
fn numbers(shape: &ConvShape) -> Vec<Argument> {
    let ([height, width], [rows, columns]) = (shape.input, shape.output);
    let image = [height, width, rows, columns, shape.out_channels].map(U32);
    [&image[..], &window(&shape.window)].concat()
}

/// x, weight, \[bias\] -> y.
pub(super) fn forward(p: &mut Plan, shape: &ConvShape) {
    let n = strips(shape, shape.output);
    let (weight, [x, y], bias) =
        (p.multiplier("weight"), p.operands(["x", "y"]), p.operand_or("bias", "weight"));
    let leading = [x, weight, bias, y, U64(n), flag(shape.bias)];
    p.launch("depthwise_forward", n, [&leading[..], &numbers(shape)].concat());
}

/// dy, weight -> dx.
pub(super) fn backward_data(p: &mut Plan, shape: &ConvShape, accumulate: bool) {
    let n = strips(shape, shape.input);
    let (weight, [dy, dx]) = (p.multiplier("weight"), p.operands(["dy", "dx"]));
    let arguments = [&[dy, weight, dx, U64(n), flag(accumulate)], &numbers(shape)[..]].concat();
    p.launch("depthwise_backward_data", n, arguments);
}

/// x, dy -> dweight, \[dbias\].
pub(super) fn backward_filter(p: &mut Plan, shape: &ConvShape, accumulate: bool) {
    let positions = positions(shape, shape.output);
    let taps = shape.window.size.iter().fold(1u64, |n, side| n.saturating_mul(u64::from(*side)));
    let (weights, threads) = (taps * u64::from(shape.out_channels), taps.saturating_mul(fours(shape)));
    let splits = (PARALLEL / threads.max(1)).min(positions / LEAST_POSITIONS).max(1);
    let [x, dy, dweight] = p.operands(["x", "dy", "dweight"]);
    let parts = if splits > 1 { p.floats(splits.saturating_mul(weights)) } else { dweight };
    let leading = [x, dy, parts, flag(accumulate && splits == 1), U32(narrow(splits)), U64(positions)];
    let arguments = [&leading[..], &numbers(shape)].concat();
    p.launch("depthwise_backward_filter", splits.saturating_mul(threads), arguments);
    if splits > 1 {
        p.sum(parts, splits, weights, dweight, accumulate);
    }
    if shape.bias {
        bias_gradient(p, shape, accumulate);
    }
}

/// dbias = the sums of dy over positions, or added to dbias.
pub(super) fn bias_gradient(p: &mut Plan, shape: &ConvShape, accumulate: bool) {
    let rows = RowShape { rows: positions(shape, shape.output), channels: u64::from(shape.out_channels) };
    let [dy, dbias] = p.operands(["dy", "dbias"]);
    norm::channel_sums(p, &rows, dy, dbias, accumulate);
}

/// y = y + bias, after a convolution without one.
pub(super) fn add_bias(p: &mut Plan, shape: &ConvShape) {
    let elements = positions(shape, shape.output).saturating_mul(u64::from(shape.out_channels));
    let [bias, y] = p.operands(["bias", "y"]);
    let arguments = vec![y, bias, y, U64(elements), U32(shape.out_channels)];
    p.launch("add_bias", elements.div_ceil(4), arguments);
}
