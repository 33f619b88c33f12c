//! The launches that convert a convolution's tensors for a library, and its results back: windows as rows of a matrix, and
//! images by planes.
//!
//! Deliberately does not hold a formula (`layout.cu` does), or know the library's computation (`../libraries` does).

use super::Argument::{U32, U64};
use super::{Argument, Grid, Plan, flag, narrow, window};
use plimsoll_ir::program::{Call, ConvShape, STORAGE_ALIGNMENT};
use plimsoll_ir::{Bytes, Float};

/// Numbers in a block with these sides.
fn count(sides: impl IntoIterator<Item = u64>) -> u64 {
    sides.into_iter().fold(1, u64::saturating_mul)
}

/// Last arguments of the kernels on windows.
fn numbers(shape: &ConvShape) -> Vec<Argument> {
    let ([height, width], [rows, columns]) = (shape.input, shape.output);
    [&[height, width, rows, columns, shape.in_channels].map(U32)[..], &window(&shape.window)].concat()
}

/// Writes the windows of `images` images from `first` on as rows of a matrix at a byte offset in the workspace:
/// `[position][tap][channel]`.
pub(crate) fn gather_windows(
    call: &Call,
    float: Float,
    shape: &ConvShape,
    [first, images]: [u64; 2],
    at: u64,
) -> Vec<Grid> {
    let mut plan = Plan::of(call, float);
    let fours = u64::from(shape.in_channels.div_ceil(4));
    let sides = shape.output.into_iter().chain(shape.window.size).map(u64::from);
    let n = count(sides.chain([images, fours]));
    let leading = [plan.operand("x"), Argument::Workspace(at), U64(n), U64(first)];
    plan.launch("gather_windows", n, [&leading[..], &numbers(shape)].concat());
    plan.grids
}

/// dx of `images` images from `first` on, for windows of one pixel, from a matrix `[position][channel]` of f32 at a byte
/// offset in the workspace; or added to dx.
pub(crate) fn scatter_pixels(
    call: &Call,
    float: Float,
    shape: &ConvShape,
    [first, images]: [u64; 2],
    at: u64,
    accumulate: bool,
) -> Vec<Grid> {
    let mut plan = Plan::of(call, float);
    let fours = u64::from(shape.in_channels.div_ceil(4));
    let n = count(shape.input.map(u64::from).into_iter().chain([images, fours]));
    let leading = [Argument::Workspace(at), plan.operand("dx"), U64(n), U64(first), flag(accumulate)];
    plan.launch("scatter_pixels", n, [&leading[..], &numbers(shape)].concat());
    plan.grids
}

/// Rounds the weights of a convolution, for a library's products, to the workspace from byte `at` on.
pub(crate) fn round_weights(call: &Call, float: Float, at: u64) -> Vec<Grid> {
    let mut plan = Plan::of(call, float);
    let (weight, n) = (plan.operand("weight"), plan.numbers("weight"));
    plan.round(weight, Argument::Workspace(at), n, false);
    plan.grids
}

/// dweight from a library's result in the workspace from byte `at` on, stored as activations are; or added to dweight.
pub(crate) fn widen_gradient(call: &Call, float: Float, at: u64, accumulate: bool) -> Vec<Grid> {
    let mut plan = Plan::of(call, float);
    let (dweight, n) = (plan.operand("dweight"), plan.numbers("dweight"));
    plan.widen(Argument::Workspace(at), dweight, n, accumulate);
    plan.grids
}

/// Bytes of a convolution's weights, stored as activations are.
pub(crate) fn weights(shape: &ConvShape, float: Float) -> Bytes {
    Bytes(numbers_of_weights(shape).saturating_mul(float.bytes()))
}

fn numbers_of_weights(shape: &ConvShape) -> u64 {
    let depth = u64::from(shape.in_channels / shape.groups.max(1));
    count(shape.window.size.map(u64::from).into_iter().chain([depth, u64::from(shape.out_channels)]))
}

/// Byte offsets of x, dy and dweight by planes, one after the other in the workspace from byte `at` on, and their end.
pub(crate) fn planes(shape: &ConvShape, float: Float, at: u64) -> [u64; 4] {
    let image = |[height, width]: [u32; 2], channels: u32| {
        count([shape.batch, u64::from(height), u64::from(width), u64::from(channels)])
    };
    let x = image(shape.input, shape.in_channels);
    let dy = image(shape.output, shape.out_channels);
    let mut starts = [at; 4];
    for (place, numbers) in [x, dy, numbers_of_weights(shape)].into_iter().enumerate() {
        let bytes = numbers.saturating_mul(float.bytes()).checked_next_multiple_of(STORAGE_ALIGNMENT);
        starts[place + 1] = starts[place].saturating_add(bytes.unwrap_or(u64::MAX));
    }
    starts
}

/// x and dy by planes, NCHW, at the offsets of [`planes`]; without groups.
pub(crate) fn to_planes(call: &Call, float: Float, shape: &ConvShape, places: &[u64; 4]) -> Vec<Grid> {
    let mut plan = Plan::of(call, float);
    let pixels = |[height, width]: [u32; 2]| count([u64::from(height), u64::from(width)]);
    for (name, at, rows, columns) in [
        ("x", places[0], pixels(shape.input), u64::from(shape.in_channels)),
        ("dy", places[1], pixels(shape.output), u64::from(shape.out_channels)),
    ] {
        let leading = [plan.operand(name), Argument::Workspace(at)];
        let (threads, numbers) = squares([shape.batch, rows, columns]);
        plan.launch("to_planes", threads, [&leading[..], &numbers].concat());
    }
    plan.grids
}

/// dweight from its planes, KCRS, or added to dweight.
pub(crate) fn from_planes(
    call: &Call,
    float: Float,
    shape: &ConvShape,
    places: &[u64; 4],
    accumulate: bool,
) -> Vec<Grid> {
    let mut plan = Plan::of(call, float);
    let leading = [Argument::Workspace(places[2]), plan.operand("dweight")];
    let sides = [
        u64::from(shape.out_channels),
        u64::from(shape.in_channels),
        count(shape.window.size.map(u64::from)),
    ];
    let (threads, numbers) = squares(sides);
    plan.launch("from_planes", threads, [&leading[..], &numbers, &[flag(accumulate)]].concat());
    plan.grids
}

/// Threads that transpose `[batch][rows][columns]`, and their kernels' arguments for these sides.
fn squares([batch, rows, columns]: [u64; 3]) -> (u64, [Argument; 3]) {
    let n = count([batch, rows.div_ceil(4), columns.div_ceil(4)]);
    (n, [U64(n), U32(narrow(rows)), U32(narrow(columns))])
}
