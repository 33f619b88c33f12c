//! Convolutions as matrix products, a cache-sized block of the input's matrix at a time.
//!
//! With channels innermost the output of a batch is one matrix `[positions][out channels]`, and the input one
//! `[positions][window and in channels]` (`columns`). The product runs over blocks of positions, which may span
//! images; a 1x1 window needs no block at all. A fully connected layer is a 1x1 convolution on a 1x1 image.
//! Most dense 3x3 convolutions of stride 1 use a different algorithm (`winograd`); the shape decides.
//!
//! Deliberately does not choose an algorithm by measuring; blocks follow from the shape alone, as do sums.

use super::Run;
use super::columns::{Columns, gather, scatter_add};
use super::matrix::{Matrix, lane_floats, product};
use super::norm;
use super::vector::map_rows;
use super::winograd;
use plimsoll_ir::program::{ConvShape, RowShape};
use std::ops::Range;

/// Target number of elements of a block of the matrix. It fits a second-level cache; a larger block was not faster, and its
/// workspace would reduce the memory for the batch.
const BLOCK: usize = 1 << 15;

/// Least number of positions of a block: with half of it, packing the weights again for each block costs 5 %.
const LEAST_POSITIONS: usize = 128;

/// Target number of columns of a filter-gradient task: fewer make a product too narrow, more leave threads idle.
const COLUMNS: usize = 128;

/// Input channels of a filter-gradient task, if the window is 1x1.
const CHANNELS: usize = 512;

/// With no more positions than this, and fewer than filters, packing the weights would cost as much as the product: the
/// product is computed transposed, which packs the input instead.
const FEW_POSITIONS: usize = 128;

/// Sizes of a convolution that its products use.
#[derive(Clone, Copy)]
struct Sizes {
    /// Output positions of the batch, and of one image.
    positions: usize,
    of_image: usize,
    groups: usize,
    /// Channels of the whole input and output.
    channels_in: usize,
    channels_out: usize,
    /// Output channels of a group.
    filters: usize,
    /// Weights of a filter: columns of the matrix.
    weights: usize,
    /// `true` if the matrix is the input itself.
    direct: bool,
}

impl Sizes {
    fn of(shape: &ConvShape) -> Sizes {
        let of_image = shape.output[0] as usize * shape.output[1] as usize;
        let columns = Columns::of(shape, 0);
        Sizes {
            positions: shape.batch as usize * of_image,
            of_image,
            groups: shape.groups as usize,
            channels_in: shape.in_channels as usize,
            channels_out: shape.out_channels as usize,
            filters: (shape.out_channels / shape.groups) as usize,
            weights: columns.taps[0] * columns.of_kernel_row(),
            direct: columns.is_input(),
        }
    }

    /// Returns `true` if the forward product is computed transposed.
    fn transposed(&self) -> bool {
        self.positions <= FEW_POSITIONS && self.positions < self.filters
    }

    /// Positions of a block of `width` columns.
    fn block(&self, width: usize) -> usize {
        (BLOCK / width.max(1)).max(LEAST_POSITIONS).min(self.positions)
    }
}

/// Splits positions into blocks.
fn blocks(positions: Range<usize>, block: usize) -> impl Iterator<Item = Range<usize>> {
    let end = positions.end;
    positions.step_by(block).map(move |start| start..end.min(start + block))
}

/// A lane's part of the workspace of [`forward`]: a block of the matrix, and of the transposed output.
fn forward_lane(s: &Sizes) -> [usize; 2] {
    let block = s.block(s.weights);
    let matrix = if s.direct { 0 } else { block * s.weights };
    [lane_floats(matrix), if s.transposed() { lane_floats(block * s.filters) } else { 0 }]
}

/// Floats of workspace for [`forward`].
pub(super) fn forward_scratch(shape: &ConvShape, lanes: usize) -> usize {
    if winograd::serves(shape) {
        return winograd::Work::forward(shape).scratch(lanes);
    }
    let [matrix, output] = forward_lane(&Sizes::of(shape));
    lanes * (matrix + output)
}

/// y = matrix * weight^T + bias.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn forward(shape: &ConvShape, run: &Run) {
    let ([x, weight, y], scratch) = (run.all(["x", "weight", "y"]), run.scratch);
    let bias = run.some("bias");
    if winograd::serves(shape) {
        // SAFETY: passed on.
        return unsafe { winograd::forward(shape, run) };
    }
    let s = Sizes::of(shape);
    let block = s.block(s.weights);
    let [lane_matrix, lane_output] = forward_lane(&s);
    let count = s.positions.div_ceil(block);
    run.threads.each(count * s.groups, |task, lane| {
        let group = task / count;
        let start = task % count * block;
        let rows = start..s.positions.min(start + block);
        let y = y.at(start * s.channels_out + group * s.filters);
        let columns = Columns::of(shape, group);
        let scratch = scratch.at(lane * (lane_matrix + lane_output));
        // SAFETY: the caller's promise; each task writes its own rows and channels, and a lane has its own scratch.
        unsafe {
            let matrix = if s.direct {
                Matrix::rows(x.at(start * s.channels_in + group * columns.depth), s.channels_in)
            } else {
                gather(&columns, rows.clone(), 0..columns.taps[0], x, scratch);
                Matrix::rows(scratch, s.weights)
            };
            let weight = Matrix::rows(weight.at(group * s.filters * s.weights), s.weights).transposed();
            let y = Matrix::rows(y, s.channels_out);
            let sizes = [rows.len(), s.filters, s.weights];
            if s.transposed() {
                let output = Matrix::rows(scratch.at(lane_matrix), rows.len()).transposed();
                product(false, sizes, output, matrix, weight);
                copy(rows.len(), s.filters, output, y);
            } else {
                product(false, sizes, y, matrix, weight);
            }
            if let Some(bias) = bias {
                let bias = bias.at(group * s.filters);
                for row in 0..rows.len() {
                    let y = y.at.at(row * s.channels_out);
                    map_rows([y, bias], [], y, 1, s.filters, |[y, bias], []| y + bias);
                }
            }
        }
    });
}

/// Copies the elements of a matrix to another of the same size.
///
/// # Safety
/// Live matrices that do not overlap; nothing else touches `to`.
unsafe fn copy(rows: usize, columns: usize, from: Matrix, to: Matrix) {
    for row in 0..rows {
        for column in 0..columns {
            let at = |m: Matrix| m.at.at(row * m.row + column * m.column);
            // SAFETY: the caller's promise.
            unsafe { at(to).set(at(from).get()) };
        }
    }
}

/// Division of the filter gradient by columns of the matrix, which are independent of one another. A task has some rows of
/// the window or, if the window is 1x1, some input channels.
struct FilterTasks {
    of_group: usize,
    /// Window rows of a task, and its columns; the last task may have fewer.
    kernel_rows: usize,
    width: usize,
}

impl FilterTasks {
    fn of(s: &Sizes, columns: &Columns) -> FilterTasks {
        if s.direct {
            return FilterTasks {
                of_group: columns.depth.div_ceil(CHANNELS),
                kernel_rows: 1,
                width: CHANNELS,
            };
        }
        let kernel_rows = COLUMNS.div_ceil(columns.of_kernel_row()).min(columns.taps[0]);
        FilterTasks {
            of_group: columns.taps[0].div_ceil(kernel_rows),
            kernel_rows,
            width: kernel_rows * columns.of_kernel_row(),
        }
    }
}

/// The output gradient as rows of channels.
fn output_rows(shape: &ConvShape, s: &Sizes) -> RowShape {
    RowShape { rows: s.positions as u64, channels: u64::from(shape.out_channels) }
}

/// Floats of workspace for [`backward_filter`]: a block for each lane; the sums for the bias come after.
pub(super) fn backward_filter_scratch(shape: &ConvShape, lanes: usize) -> usize {
    let s = Sizes::of(shape);
    let width = FilterTasks::of(&s, &Columns::of(shape, 0)).width;
    let blocks = if winograd::serves(shape) {
        winograd::Work::filter(shape).scratch(lanes)
    } else if s.direct {
        0
    } else {
        lanes * lane_floats(s.block(width) * width)
    };
    blocks.max(if shape.bias { norm::scratch(&output_rows(shape, &s)) } else { 0 })
}

/// dweight = dy^T * matrix; dbias = sums of dy over positions; or both added to what they hold.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn backward_filter(shape: &ConvShape, accumulate: bool, run: &Run) {
    // SAFETY: passed on; one part's data in the workspace are not needed by the next.
    unsafe {
        if winograd::serves(shape) {
            winograd::backward_filter(shape, accumulate, run);
        } else {
            plain_backward_filter(shape, accumulate, run);
        }
        if shape.bias {
            norm::channel_sums(&output_rows(shape, &Sizes::of(shape)), accumulate, run);
        }
    }
}

/// dweight = dy^T * matrix, or added to it.
///
/// # Safety
/// As [`backward_filter`].
unsafe fn plain_backward_filter(shape: &ConvShape, accumulate: bool, run: &Run) {
    let ([x, dy, dweight], scratch) = (run.all(["x", "dy", "dweight"]), run.scratch);
    let s = Sizes::of(shape);
    let tasks = FilterTasks::of(&s, &Columns::of(shape, 0));
    let block = if s.direct { s.positions } else { s.block(tasks.width) };
    run.threads.each(tasks.of_group * s.groups, |task, lane| {
        let (group, part) = (task / tasks.of_group, task % tasks.of_group);
        let columns = Columns::of(shape, group);
        let first = part * tasks.width;
        let width = tasks.width.min(s.weights - first);
        let kernel_rows = part * tasks.kernel_rows..columns.taps[0].min((part + 1) * tasks.kernel_rows);
        let dweight = Matrix::rows(dweight.at(group * s.filters * s.weights + first), s.weights);
        for rows in blocks(0..s.positions, block) {
            // SAFETY: the caller's promise; each task writes its own columns, and a lane has its own scratch.
            unsafe {
                let matrix = if s.direct {
                    Matrix::rows(x.at(group * columns.depth + first), s.channels_in)
                } else {
                    let scratch = scratch.at(lane * lane_floats(block * tasks.width));
                    gather(&columns, rows.clone(), kernel_rows.clone(), x, scratch);
                    Matrix::rows(scratch, width)
                };
                let dy = Matrix::rows(dy.at(rows.start * s.channels_out + group * s.filters), s.channels_out);
                let add = accumulate || rows.start > 0;
                product(add, [s.filters, width, rows.len()], dweight, dy.transposed(), matrix);
            }
        }
    });
}

/// Images of an input-gradient task: sums of different images never meet.
fn images_of_task(s: &Sizes) -> usize {
    LEAST_POSITIONS.div_ceil(s.of_image)
}

/// Positions of a block of the input gradient.
fn data_block(s: &Sizes) -> usize {
    s.block(s.weights).min(images_of_task(s) * s.of_image)
}

/// Floats of workspace for [`backward_data`]: a block for each lane.
pub(super) fn backward_data_scratch(shape: &ConvShape, lanes: usize) -> usize {
    if winograd::serves(shape) {
        return winograd::Work::backward(shape).scratch(lanes);
    }
    let s = Sizes::of(shape);
    if s.direct { 0 } else { lanes * lane_floats(data_block(&s) * s.weights) }
}

/// dx = dy * weight, each column of the product added to the elements that it came from.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn backward_data(shape: &ConvShape, accumulate: bool, run: &Run) {
    let ([dy, weight, dx], scratch) = (run.all(["dy", "weight", "dx"]), run.scratch);
    if winograd::serves(shape) {
        // SAFETY: passed on.
        return unsafe { winograd::backward_data(shape, accumulate, run) };
    }
    let s = Sizes::of(shape);
    let batch = shape.batch as usize;
    let input = shape.input[0] as usize * shape.input[1] as usize * s.channels_in;
    let (images, block) = (images_of_task(&s), data_block(&s));
    run.threads.each(batch.div_ceil(images), |task, lane| {
        let images = task * images..batch.min((task + 1) * images);
        let scratch = scratch.at(lane * lane_floats(block * s.weights));
        if !accumulate && !s.direct {
            // SAFETY: images of this task.
            unsafe { dx.at(images.start * input).slice_mut(images.len() * input).fill(0.0) };
        }
        for group in 0..s.groups {
            let columns = Columns::of(shape, group);
            let weight = Matrix::rows(weight.at(group * s.filters * s.weights), s.weights);
            for rows in blocks(images.start * s.of_image..images.end * s.of_image, block) {
                let dy = Matrix::rows(dy.at(rows.start * s.channels_out + group * s.filters), s.channels_out);
                let sizes = [rows.len(), s.weights, s.filters];
                // SAFETY: the caller's promise; each task writes its own images, and a lane has its own scratch.
                unsafe {
                    if s.direct {
                        let dx = dx.at(rows.start * s.channels_in + group * columns.depth);
                        product(accumulate, sizes, Matrix::rows(dx, s.channels_in), dy, weight);
                    } else {
                        product(false, sizes, Matrix::rows(scratch, s.weights), dy, weight);
                        scatter_add(&columns, rows, scratch, dx);
                    }
                }
            }
        }
    });
}
