//! The launches of convolutions: how many tiles there are, how large, and into how many splits a sum over positions falls.
//!
//! What it deliberately does not do: hold a formula; those are in `conv.cu`.

use super::Argument::{U32, U64};
use super::{Argument, FAN, Plan, depthwise, flag, narrow, norm, positions, window};
use plimsoll_ir::program::{ConvShape, RowShape};

/// Threads of a block: a tile of eights takes most of the registers that there are.
const THREADS: u32 = 128;

/// Threads of a warp, whose tiles form a block.
const WARP: u64 = 32;

/// With fewer threads than this, tiles of fours keep more of a device busy than eights. In tests it is small, so that
/// shapes that a test can afford come both ways.
const ENOUGH: u64 = if cfg!(test) { 1 << 7 } else { 1 << 15 };

/// Positions that a split of the filter gradient has at least.
const LEAST_POSITIONS: u64 = 64;

/// Floats that the splits of the filter gradient take together at most: workspace is memory that a batch cannot have.
const SPLIT_FLOATS: u64 = 1 << 22;

/// Tiles of one side times tiles of the other, in blocks of a warp, `rest` times over.
pub(super) struct Tiles {
    /// Tiles of a warp on the side that lies innermost in memory.
    pub lanes: u64,
    /// The threads of all tiles.
    pub threads: u64,
}

impl Tiles {
    pub fn of(tile: u64, across: u64, along: u64, rest: u64) -> Tiles {
        let (across, along) = (across.div_ceil(tile), along.div_ceil(tile));
        let lanes = across.next_power_of_two().min(8);
        let blocks = across.div_ceil(lanes).saturating_mul(along.div_ceil(WARP / lanes));
        Tiles { lanes, threads: blocks.saturating_mul(rest).saturating_mul(WARP) }
    }

    /// Where channels of a group come in fours, eights if there are enough tiles, else fours; of `kernels`, for tiles of
    /// eight, of four and of any shape, the one to take.
    fn choose(
        shape: &ConvShape,
        [across, along, rest]: [u64; 3],
        kernels: [&'static str; 3],
    ) -> (Tiles, &'static str) {
        let [depth, filters, _] = sides(shape);
        let [eights, fours] = [8, 4].map(|tile| Tiles::of(tile, across, along, rest));
        if depth % 4 != 0 || filters % 4 != 0 {
            return (fours, kernels[2]);
        }
        // A side of at most 4 leaves half of each eight idle.
        let fills = across > 4 && along > 4 && eights.threads >= ENOUGH;
        if fills { (eights, kernels[0]) } else { (fours, kernels[1]) }
    }
}

/// What all three kernels take, in their order.
fn numbers(shape: &ConvShape, lanes_and_more: &[u64], positions: u64) -> Vec<Argument> {
    let leading = lanes_and_more.iter().map(|n| U32(narrow(*n))).chain([U64(positions)]);
    let ([height, width], [rows, columns]) = (shape.input, shape.output);
    let image = [height, width, shape.in_channels, rows, columns, shape.out_channels, shape.groups];
    leading.chain(image.map(U32)).chain(window(&shape.window)).collect()
}

/// Channels of a group of the input and of the output, and how many groups.
fn sides(shape: &ConvShape) -> [u64; 3] {
    let groups = shape.groups.max(1);
    [shape.in_channels / groups, shape.out_channels / groups, groups].map(u64::from)
}

/// x, weight, \[bias\] -> y.
pub(super) fn forward(p: &mut Plan, shape: &ConvShape) {
    if depthwise::is_depthwise(shape) {
        return depthwise::forward(p, shape);
    }
    let [_, filters, groups] = sides(shape);
    let positions = positions(shape, shape.output);
    let kernels = ["conv_forward_8", "conv_forward_4", "conv_forward_any"];
    let (tiles, kernel) = Tiles::choose(shape, [filters, positions, groups], kernels);
    let (weight, [x, y], bias) =
        (p.multiplier("weight"), p.operands(["x", "y"]), p.operand_or("bias", "weight"));
    let leading = [x, weight, bias, y, flag(shape.bias)];
    let arguments = [&leading[..], &numbers(shape, &[tiles.lanes], positions)].concat();
    p.launch_blocks_of(THREADS, kernel, tiles.threads, arguments);
}

/// dy, weight -> dx.
pub(super) fn backward_data(p: &mut Plan, shape: &ConvShape, accumulate: bool) {
    if depthwise::is_depthwise(shape) {
        return depthwise::backward_data(p, shape, accumulate);
    }
    let [depth, _, groups] = sides(shape);
    let positions = positions(shape, shape.input);
    let kernels = ["conv_backward_data_8", "conv_backward_data_4", "conv_backward_data_any"];
    let (tiles, kernel) = Tiles::choose(shape, [depth, positions, groups], kernels);
    let numbers = numbers(shape, &[tiles.lanes], positions);
    let (weight, [dy, dx]) = (p.multiplier("weight"), p.operands(["dy", "dx"]));
    let arguments = [&[dy, weight, dx, flag(accumulate)], &numbers[..]].concat();
    p.launch_blocks_of(THREADS, kernel, tiles.threads, arguments);
}

/// x, dy -> dweight, \[dbias\].
pub(super) fn backward_filter(p: &mut Plan, shape: &ConvShape, accumulate: bool) {
    if depthwise::is_depthwise(shape) {
        depthwise::backward_filter(p, shape, accumulate);
    } else {
        filter_gradient(p, shape, accumulate);
    }
    if shape.bias {
        bias_gradient(p, shape, accumulate);
    }
}

/// x, dy -> dweight.
fn filter_gradient(p: &mut Plan, shape: &ConvShape, accumulate: bool) {
    let [depth, filters, groups] = sides(shape);
    let positions = positions(shape, shape.output);
    let taps = shape.window.size.iter().fold(groups, |n, side| n.saturating_mul(u64::from(*side)));
    let weights = [filters, depth].iter().fold(taps, |n, side| n.saturating_mul(*side));
    let whole = Tiles::of(8, depth, filters, taps);
    let most = (SPLIT_FLOATS / weights.max(1)).min(positions / LEAST_POSITIONS).clamp(1, FAN);
    let splits = (2 * ENOUGH).div_ceil(whole.threads.max(1)).clamp(1, most);
    let kernels = ["conv_backward_filter_8", "conv_backward_filter_4", "conv_backward_filter_any"];
    let (tiles, kernel) = Tiles::choose(shape, [depth, filters, taps.saturating_mul(splits)], kernels);
    let [x, dy, dweight] = p.operands(["x", "dy", "dweight"]);
    let parts = if splits > 1 { p.floats(splits.saturating_mul(weights)) } else { dweight };
    let leading = [x, dy, parts, flag(accumulate && splits == 1)];
    let arguments = [&leading[..], &numbers(shape, &[tiles.lanes, splits], positions)].concat();
    p.launch_blocks_of(THREADS, kernel, tiles.threads, arguments);
    if splits > 1 {
        p.sum(parts, splits, weights, dweight, accumulate);
    }
}

/// dbias = the sums of dy over positions, or added to what it holds.
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
