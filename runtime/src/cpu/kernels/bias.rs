//! Biases: added to every row, and their gradient.
//!
//! A row is the channels of one position or, for learned positions, a whole sample: few rows of very many channels. So long
//! rows are themselves cut, and the gradient is summed without scratch, each channel by one task.
//!
//! Deliberately does not add the bias of a convolution, which is part of that call.

use super::Run;
use super::elementwise::{pieces, tasks_of_rows};
use super::norm;
use super::vector::{Ptr, map_rows, vectorized};
use plimsoll_ir::program::RowShape;

/// Number of channels from which on they are shared among tasks.
const LONG: u64 = 2048;
/// Channels of a task of long rows.
const CHANNELS: usize = 256;
/// Rows that are summed in f32 before the sum is added in f64.
const ROWS: usize = 64;

/// y = x + bias, row by row.
///
/// # Safety
/// Live operands of the shape; y may be x.
pub(super) unsafe fn forward(shape: &RowShape, run: &Run) {
    let ([x, bias, y], threads) = (run.all(["x", "bias", "y"]), run.threads);
    let [rows, channels] = [shape.rows, shape.channels].map(|n| n as usize);
    if shape.channels >= LONG {
        pieces(shape.rows * shape.channels, threads, |start, len| {
            let mut i = start;
            while i < start + len {
                let run = (channels - i % channels).min(start + len - i);
                let (x, bias, y) = (x.at(i), bias.at(i % channels), y.at(i));
                // SAFETY: the caller's promise; pieces do not overlap, and the run ends with the row at the latest.
                unsafe { map_rows([x, bias], [], y, 1, run, |[x, b], []| x + b) };
                i += run;
            }
        });
        return;
    }
    tasks_of_rows(rows, channels, threads, |first, count, _| {
        let (x, y) = (x.at(first * channels), y.at(first * channels));
        // SAFETY: the caller's promise; each task has its own rows.
        unsafe { map_rows([x], [bias], y, count, channels, |[x], [b]| x + b) };
    });
}

/// Floats of workspace for [`backward`].
pub(super) fn backward_scratch(shape: &RowShape) -> usize {
    if shape.channels >= LONG { 0 } else { norm::scratch(shape) }
}

/// dbias = the sum of dy's rows, or added to dbias.
///
/// # Safety
/// Live operands of the shape, and the workspace.
pub(super) unsafe fn backward(shape: &RowShape, accumulate: bool, run: &Run) {
    if shape.channels < LONG {
        // SAFETY: passed on.
        return unsafe { norm::channel_sums(shape, accumulate, run) };
    }
    let [rows, channels] = [shape.rows, shape.channels].map(|n| n as usize);
    let [dy, dbias] = run.all(["dy", "dbias"]);
    run.threads.each(channels.div_ceil(CHANNELS), |task, _| {
        let first = task * CHANNELS;
        let some = CHANNELS.min(channels - first);
        // SAFETY: the caller's promise; each task has its own channels.
        unsafe { sum_some(accumulate, dy.at(first), dbias.at(first), rows, channels, some) };
    });
}

vectorized! {
    /// Sums `some` channels, at most [`CHANNELS`], of rows at a distance of `apart`.
    ///
    /// # Safety
    /// Live memory of these rows; nothing else touches the sums.
    unsafe fn sum_some [](accumulate: bool, dy: Ptr<f32>, dbias: Ptr<f32>, rows: usize, apart: usize, some: usize) {
        let mut totals = [0.0f64; CHANNELS];
        for start in (0..rows).step_by(ROWS) {
            let mut sums = [0.0f32; CHANNELS];
            for row in start..rows.min(start + ROWS) {
                // SAFETY: the caller's promise.
                let dy = unsafe { dy.at(row * apart).slice(some) };
                sums.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
            }
            totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
        }
        // SAFETY: the caller's promise.
        let dbias = unsafe { dbias.slice_mut(some) };
        for (dbias, total) in dbias.iter_mut().zip(totals) {
            *dbias = if accumulate { *dbias + total as f32 } else { total as f32 };
        }
    }
}
