//! Normalisation by the root of the mean square of each row (Zhang and Sennrich 2019): forward and backward.
//!
//! Like layer normalisation without the mean: rows are cut into the same chunks, read from a core's caches, and the gradient
//! of the scale combines the chunks' sums in order, in f64.
//!
//! Deliberately keeps only one number a row for the backward pass.

use super::layer_norm::{Chunks, add_chunks};
use super::maps::Map;
use super::threads::Threads;
use super::vector::{Ptr, along, map_row, vectorized};
use plimsoll_ir::program::RowShape;

vectorized! {
    /// Some rows of `forward`; `stats` holds the rows' inverse roots.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; y may be x.
    unsafe fn forward_rows [](inputs: [Ptr<f32>; 2], y: Ptr<f32>, stats: Ptr<f32>, rows: usize, channels: usize, epsilon: f32) {
        let [x, gamma] = inputs;
        let share = 1.0 / channels as f64;
        for row in 0..rows {
            let (x, y) = (x.at(row * channels), y.at(row * channels));
            // SAFETY: the caller's promise.
            unsafe {
                let square = along([x], channels, |[x]| x * x) * share;
                let inverse = (1.0 / (square + f64::from(epsilon)).sqrt()) as f32;
                stats.at(row).set(inverse);
                map_row([x, gamma], [y], channels, |[x, gamma]| [x * inverse * gamma]);
            }
        }
    }
}

/// y = x / sqrt(mean square + epsilon) * gamma. The inverse roots go to `stats`.
///
/// # Safety
/// Live operands of the shape; y may be x.
pub(super) unsafe fn forward(
    shape: &RowShape,
    epsilon: f32,
    [x, y]: [Map; 2],
    gamma: Ptr<f32>,
    stats: Ptr<f32>,
    threads: &Threads,
) {
    let chunks = Chunks::of(shape);
    let c = chunks.channels;
    chunks.each(threads, |_, first, rows, lane| {
        // SAFETY: the caller's promise; chunks do not overlap.
        unsafe {
            let (from, to) = (x.read(first * c, rows * c, lane), y.place(first * c, lane));
            forward_rows([from, gamma], to, stats.at(first), rows, c, epsilon);
            y.store(first * c, rows * c, lane);
        }
    });
}

/// Floats of workspace: the gradient of the scale from each chunk.
pub(super) fn backward_scratch(shape: &RowShape) -> usize {
    let chunks = Chunks::of(shape);
    chunks.channels * chunks.count()
}

vectorized! {
    /// Some rows of `backward`; `sums` gets their contribution to dgamma.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; dx may be dy.
    unsafe fn backward_rows [](
        accumulate: bool, inputs: [Ptr<f32>; 3], stats: Ptr<f32>, dx: Ptr<f32>, sums: Ptr<f32>, rows: usize, channels: usize
    ) {
        let [x, dy, gamma] = inputs;
        let share = 1.0 / channels as f64;
        // SAFETY: the caller's promise.
        unsafe { map_row([], [sums], channels, |[]| [0.0]) };
        for row in 0..rows {
            let (x, dy, dx) = (x.at(row * channels), dy.at(row * channels), dx.at(row * channels));
            // SAFETY: the caller's promise.
            unsafe {
                let inverse = stats.at(row).get();
                let product = along([x, dy, gamma], channels, |[x, dy, gamma]| dy * gamma * x);
                let slope = (product * f64::from(inverse) * share) as f32;
                map_row([x, dy, gamma, sums, dx], [sums, dx], channels, |[x, dy, gamma, sum, dx]| {
                    let xhat = x * inverse;
                    let gradient = inverse * (dy * gamma - xhat * slope);
                    [sum + dy * xhat, if accumulate { dx + gradient } else { gradient }]
                });
            }
        }
    }
}

/// With xhat = x / sqrt(mean square + epsilon) and g = dy * gamma: dgamma = sum dy * xhat over rows,
/// dx = (g - xhat * mean of g * xhat) / sqrt(mean square + epsilon) with the mean over the row.
///
/// # Safety
/// Live operands of the shape, and the workspace; dx may be dy.
pub(super) unsafe fn backward(
    shape: &RowShape,
    accumulate: bool,
    [x, dy, dx]: [Map; 3],
    [gamma, stats]: [Ptr<f32>; 2],
    dgamma: Ptr<f32>,
    scratch: Ptr<f32>,
    threads: &Threads,
) {
    let chunks = Chunks::of(shape);
    let c = chunks.channels;
    chunks.each(threads, |chunk, first, rows, lane| {
        let (stats, sums) = (stats.at(first), scratch.at(c * chunk));
        // SAFETY: the caller's promise; chunks do not overlap, and each has its own sums.
        unsafe {
            let [x, dy] = [x, dy].map(|map| map.read(first * c, rows * c, lane));
            let to = dx.read_if(accumulate, first * c, rows * c, lane);
            backward_rows(accumulate, [x, dy, gamma], stats, to, sums, rows, c);
            dx.store(first * c, rows * c, lane);
        }
    });
    // SAFETY: written by the tasks above, which are done; nothing else touches the gradient.
    unsafe { add_chunks(chunks, scratch, [dgamma], threads) };
}
