//! Rotary position embeddings (Su et al. 2021, eq. (34)): pairs of channels rotated by their position, and rotated back.
//!
//! The sines and cosines depend on the position only, not on head or sample, so they are computed once a call, in f64, into
//! a table: each row has the cosines of a position, then the sines.
//!
//! Deliberately does not keep the table between calls: it would be another tensor for the planner, costlier to swap than to
//! compute.

use super::Run;
use super::elementwise::tasks_of_rows;
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
/// The table has [`scratch`] elements, and nothing else touches it.
unsafe fn fill(shape: &RotaryShape, base: f32, table: Ptr<f32>, threads: &Threads) {
    let [length, width] = [shape.length, shape.width].map(|n| n as usize);
    let half = width / 2;
    threads.each(half, |i, _| {
        let step = f64::from(base).powf(-(i as f64) / half as f64);
        for position in 0..length {
            let (sine, cosine) = (position as f64 * step).sin_cos();
            let row = table.at(position * width + i);
            // SAFETY: the caller's promise; a task has its own column of each half.
            unsafe {
                row.set(cosine as f32);
                row.at(half).set(sine as f32);
            }
        }
    });
}

/// Range of rows, and their layout.
#[derive(Clone, Copy)]
struct Rows {
    first: usize,
    count: usize,
    length: usize,
    channels: usize,
    width: usize,
}

vectorized! {
    /// Rotates the heads of some rows by the table, sines times `sign`.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches y; y may be x.
    unsafe fn turn [](rows: Rows, sign: f32, accumulate: bool, x: Ptr<f32>, y: Ptr<f32>, table: Ptr<f32>) {
        let half = rows.width / 2;
        for row in rows.first..rows.first + rows.count {
            let cosines = table.at(row % rows.length * rows.width);
            for head in (0..rows.channels).step_by(rows.width) {
                let at = row * rows.channels + head;
                let (x, y) = ([x.at(at), x.at(at + half)], [y.at(at), y.at(at + half)]);
                let inputs = [x[0], x[1], cosines, cosines.at(half)];
                // SAFETY: the caller's promise; the same number of elements of both halves is read before any is written.
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
pub(super) unsafe fn forward(shape: &RotaryShape, base: f32, run: &Run) {
    // SAFETY: passed on.
    unsafe { turned(shape, base, 1.0, false, run.all(["x", "y"]), run) }
}

/// dy -> dx, or added to it.
///
/// # Safety
/// Live operands of the shape, and the workspace; dx may be dy.
pub(super) unsafe fn backward(shape: &RotaryShape, base: f32, accumulate: bool, run: &Run) {
    // SAFETY: passed on.
    unsafe { turned(shape, base, -1.0, accumulate, run.all(["dy", "dx"]), run) }
}

/// # Safety
/// As [`forward`] and [`backward`].
unsafe fn turned(
    shape: &RotaryShape,
    base: f32,
    sign: f32,
    accumulate: bool,
    [x, y]: [Ptr<f32>; 2],
    run: &Run,
) {
    let (table, threads) = (run.scratch, run.threads);
    // SAFETY: the caller's promise.
    unsafe { fill(shape, base, table, threads) };
    let [batch, length, channels, width] =
        [shape.batch, shape.length, shape.channels, shape.width].map(|n| n as usize);
    tasks_of_rows(batch * length, channels, threads, |first, count, _| {
        let rows = Rows { first, count, length, channels, width };
        // SAFETY: the caller's promise; each task has its own rows.
        unsafe { turn(rows, sign, accumulate, x, y, table) };
    });
}
