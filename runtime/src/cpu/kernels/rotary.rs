//! Rotary position embeddings (Su et al. 2021, eq. (34)): pairs of channels turned by their position, and turned back.
//!
//! The sines and cosines are those of a position, the same for all heads and samples, so they are computed once a call, in
//! f64, into a table: a row of it has the cosines of a position, then the sines.
//!
//! What it deliberately does not do: keep the table between calls, which would be a tensor more for the planner, dearer to
//! swap than to compute.

use super::elementwise::PIECE;
use super::threads::Threads;
use super::vector::{Ptr, map_row, vectorized};
use plimsoll_ir::program::RotaryShape;

/// Floats of workspace: the table.
pub(super) fn scratch(shape: &RotaryShape) -> usize {
    shape.length as usize * shape.width as usize
}

/// The table: for each position the cosines of its angles, then their sines.
///
/// # Safety
/// The table has [`scratch`] elements, and nobody else touches it.
unsafe fn fill(shape: &RotaryShape, base: f32, table: Ptr<f32>, threads: &Threads) {
    let [length, width] = [shape.length, shape.width].map(|n| n as usize);
    let half = width / 2;
    threads.each(half, |i, _| {
        let step = f64::from(base).powf(-(i as f64) / half as f64);
        for position in 0..length {
            let (sine, cosine) = (position as f64 * step).sin_cos();
            let row = table.at(position * width + i);
            // SAFETY: the caller's promise; a task has a column of its own of each half.
            unsafe {
                row.set(cosine as f32);
                row.at(half).set(sine as f32);
            }
        }
    });
}

/// Which rows, and how they lie.
#[derive(Clone, Copy)]
struct Rows {
    first: usize,
    count: usize,
    length: usize,
    channels: usize,
    width: usize,
}

vectorized! {
    /// Turns the heads of some rows by the table, sines times `sign`.
    ///
    /// # Safety
    /// All are live and of these rows, and nobody else touches y; y may be x.
    unsafe fn turn [](rows: Rows, sign: f32, accumulate: bool, x: Ptr<f32>, y: Ptr<f32>, table: Ptr<f32>) {
        let half = rows.width / 2;
        for row in rows.first..rows.first + rows.count {
            let cosines = table.at(row % rows.length * rows.width);
            for head in (0..rows.channels).step_by(rows.width) {
                let at = row * rows.channels + head;
                let (x, y) = ([x.at(at), x.at(at + half)], [y.at(at), y.at(at + half)]);
                let inputs = [x[0], x[1], cosines, cosines.at(half)];
                // SAFETY: the caller's promise; of both halves as much is read before it is written.
                unsafe {
                    if accumulate {
                        let [a, b, c, s] = inputs;
                        map_row([a, b, c, s, y[0], y[1]], y, half, |[a, b, c, s, y, z]| {
                            [y + (a * c - b * (sign * s)), z + (b * c + a * (sign * s))]
                        });
                    } else {
                        map_row(inputs, y, half, |[a, b, c, s]| [a * c - b * (sign * s), b * c + a * (sign * s)]);
                    }
                }
            }
        }
    }
}

/// x -> y.
///
/// # Safety
/// Live operands of the shape, and the workspace; y may be x.
pub(super) unsafe fn forward(
    shape: &RotaryShape,
    base: f32,
    x: Ptr<f32>,
    y: Ptr<f32>,
    table: Ptr<f32>,
    threads: &Threads,
) {
    // SAFETY: passed on.
    unsafe { turned(shape, base, 1.0, false, [x, y], table, threads) }
}

/// dy -> dx, or added to it.
///
/// # Safety
/// Live operands of the shape, and the workspace; dx may be dy.
pub(super) unsafe fn backward(
    shape: &RotaryShape,
    base: f32,
    accumulate: bool,
    dy: Ptr<f32>,
    dx: Ptr<f32>,
    table: Ptr<f32>,
    threads: &Threads,
) {
    // SAFETY: passed on.
    unsafe { turned(shape, base, -1.0, accumulate, [dy, dx], table, threads) }
}

/// # Safety
/// As [`forward`] and [`backward`].
unsafe fn turned(
    shape: &RotaryShape,
    base: f32,
    sign: f32,
    accumulate: bool,
    [x, y]: [Ptr<f32>; 2],
    table: Ptr<f32>,
    threads: &Threads,
) {
    // SAFETY: the caller's promise.
    unsafe { fill(shape, base, table, threads) };
    let [batch, length, channels, width] =
        [shape.batch, shape.length, shape.channels, shape.width].map(|n| n as usize);
    let (all, of_task) = (batch * length, (PIECE / channels.max(1)).max(1));
    threads.each(all.div_ceil(of_task), |task, _| {
        let first = task * of_task;
        let rows = Rows { first, count: of_task.min(all - first), length, channels, width };
        // SAFETY: the caller's promise; tasks have rows of their own.
        unsafe { turn(rows, sign, accumulate, x, y, table) };
    });
}
