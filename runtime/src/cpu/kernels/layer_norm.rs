//! Layer normalisation: forward, with the statistics of each row, and backward.
//!
//! A row is read up to three times, from a core's caches: for its mean, for the squared distances from it (so that no large
//! numbers are subtracted), and for the output. The gradients of scale and shift are summed over the rows of a chunk, then
//! over chunks in their order, in f64.
//!
//! Deliberately keeps only two numbers a row for the backward pass.

use super::maps::Map;
use super::threads::Threads;
use super::vector::{Ptr, along, map_row, vectorized};
use plimsoll_ir::program::RowShape;

/// Elements of a chunk of rows.
const CHUNK: usize = 1 << 14;
/// Least and largest rows of a chunk: with fewer, the chunks' sums would be as large as a tensor; with more, long sums would
/// be less precise.
const ROWS: [usize; 2] = [8, 128];
/// Channels of a task that combines the chunks' sums.
const CHANNELS: usize = 64;

/// Division of rows into chunks.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    pub rows: usize,
    pub channels: usize,
    rows_of_chunk: usize,
}

impl Chunks {
    pub fn of(shape: &RowShape) -> Chunks {
        let [rows, channels] = [shape.rows, shape.channels].map(|n| n as usize);
        Chunks { rows, channels, rows_of_chunk: (CHUNK / channels.max(1)).clamp(ROWS[0], ROWS[1]) }
    }

    pub fn count(self) -> usize {
        self.rows.div_ceil(self.rows_of_chunk)
    }

    /// Elements of the largest chunk of an activation.
    pub fn elements(self) -> usize {
        self.rows_of_chunk.min(self.rows) * self.channels
    }

    /// Calls `work(chunk, first row, rows, lane)` for each.
    pub fn each(self, threads: &Threads, work: impl Fn(usize, usize, usize, usize) + Sync) {
        threads.each(self.count(), |chunk, lane| {
            let first = chunk * self.rows_of_chunk;
            work(chunk, first, self.rows_of_chunk.min(self.rows - first), lane);
        });
    }
}

vectorized! {
    /// Some rows of `forward`. `stats` holds the rows' means and inverse deviations.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; y may be x.
    unsafe fn forward_rows [](
        inputs: [Ptr<f32>; 3], y: Ptr<f32>, stats: [Ptr<f32>; 2], rows: usize, channels: usize, epsilon: f32
    ) {
        let [x, gamma, beta] = inputs;
        let share = 1.0 / channels as f64;
        for row in 0..rows {
            let (x, y) = (x.at(row * channels), y.at(row * channels));
            // SAFETY: the caller's promise.
            unsafe {
                let mean = (along([x], channels, |[x]| x) * share) as f32;
                let variance = along([x], channels, |[x]| (x - mean) * (x - mean)) * share;
                let inverse = (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32;
                stats[0].at(row).set(mean);
                stats[1].at(row).set(inverse);
                map_row([x, gamma, beta], [y], channels, |[x, gamma, beta]| {
                    [(x - mean) * inverse * gamma + beta]
                });
            }
        }
    }
}

/// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the statistics of each row, which go to `stats`.
///
/// # Safety
/// Live operands of the shape; y may be x.
pub(super) unsafe fn forward(
    shape: &RowShape,
    epsilon: f32,
    [x, y]: [Map; 2],
    [gamma, beta]: [Ptr<f32>; 2],
    stats: Ptr<f32>,
    threads: &Threads,
) {
    let chunks = Chunks::of(shape);
    let c = chunks.channels;
    chunks.each(threads, |_, first, rows, lane| {
        let stats = [stats.at(first), stats.at(chunks.rows + first)];
        // SAFETY: the caller's promise; chunks do not overlap.
        unsafe {
            let (from, to) = (x.read(first * c, rows * c, lane), y.place(first * c, lane));
            forward_rows([from, gamma, beta], to, stats, rows, c, epsilon);
            y.store(first * c, rows * c, lane);
        }
    });
}

/// Floats of workspace: the gradients of scale and shift from each chunk.
pub(super) fn backward_scratch(shape: &RowShape) -> usize {
    let chunks = Chunks::of(shape);
    2 * chunks.channels * chunks.count()
}

vectorized! {
    /// Some rows of `backward`; `sums` gets their contribution to dgamma and dbeta.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; dx may be dy.
    unsafe fn backward_rows [](
        accumulate: bool, inputs: [Ptr<f32>; 3], stats: [Ptr<f32>; 2], dx: Ptr<f32>, sums: [Ptr<f32>; 2], rows: usize,
        channels: usize
    ) {
        let [x, dy, gamma] = inputs;
        let [dgamma, dbeta] = sums;
        let share = 1.0 / channels as f64;
        // SAFETY: the caller's promise.
        unsafe { map_row([], sums, channels, |[]| [0.0; 2]) };
        for row in 0..rows {
            let (x, dy, dx) = (x.at(row * channels), dy.at(row * channels), dx.at(row * channels));
            // SAFETY: the caller's promise.
            unsafe {
                let (mean, inverse) = (stats[0].at(row).get(), stats[1].at(row).get());
                let shift = (along([dy, gamma], channels, |[dy, gamma]| dy * gamma) * share) as f32;
                let product = along([x, dy, gamma], channels, |[x, dy, gamma]| dy * gamma * (x - mean));
                let slope = (product * f64::from(inverse) * share) as f32;
                map_row([x, dy, gamma, dgamma, dbeta, dx], [dgamma, dbeta, dx], channels, |[x, dy, gamma, dgamma, dbeta, dx]| {
                    let xhat = (x - mean) * inverse;
                    let gradient = inverse * (dy * gamma - shift - xhat * slope);
                    [dgamma + dy * xhat, dbeta + dy, if accumulate { dx + gradient } else { gradient }]
                });
            }
        }
    }
}

/// With xhat = (x - mean) / sqrt(variance + epsilon) and g = dy * gamma: dbeta = sum dy and dgamma = sum dy * xhat over
/// rows, dx = (g - mean of g - xhat * mean of g * xhat) / sqrt(variance + epsilon) with means over the row.
///
/// # Safety
/// Live operands of the shape, and the workspace; dx may be dy.
pub(super) unsafe fn backward(
    shape: &RowShape,
    accumulate: bool,
    [x, dy, dx]: [Map; 3],
    [gamma, stats]: [Ptr<f32>; 2],
    gradients: [Ptr<f32>; 2],
    scratch: Ptr<f32>,
    threads: &Threads,
) {
    let chunks = Chunks::of(shape);
    let c = chunks.channels;
    chunks.each(threads, |chunk, first, rows, lane| {
        let stats = [stats.at(first), stats.at(chunks.rows + first)];
        let sums = [scratch.at(2 * c * chunk), scratch.at(2 * c * chunk + c)];
        // SAFETY: the caller's promise; chunks do not overlap, and each has its own sums.
        unsafe {
            let [x, dy] = [x, dy].map(|map| map.read(first * c, rows * c, lane));
            let to = dx.read_if(accumulate, first * c, rows * c, lane);
            backward_rows(accumulate, [x, dy, gamma], stats, to, sums, rows, c);
            dx.store(first * c, rows * c, lane);
        }
    });
    // SAFETY: written by the tasks above, which are done; nothing else touches the gradients, dgamma and dbeta.
    unsafe { add_chunks(chunks, scratch, gradients, threads) };
}

/// Adds the chunks' sums to each of the gradients of parameters, in order, in f64: within a chunk, the sums of the first
/// gradient precede those of the next.
///
/// # Safety
/// `sums` holds them, and nothing else touches the gradients.
pub(super) unsafe fn add_chunks<const N: usize>(
    chunks: Chunks,
    sums: Ptr<f32>,
    gradients: [Ptr<f32>; N],
    threads: &Threads,
) {
    let c = chunks.channels;
    threads.each(c.div_ceil(CHANNELS), |task, _| {
        let first = task * CHANNELS;
        let channels = CHANNELS.min(c - first);
        for (i, to) in gradients.into_iter().enumerate() {
            let mut totals = [0.0f64; CHANNELS];
            for chunk in 0..chunks.count() {
                // SAFETY: the caller's promise.
                let parts = unsafe { sums.at(N * c * chunk + i * c + first).slice(channels) };
                for (total, part) in totals.iter_mut().zip(parts) {
                    *total += f64::from(*part);
                }
            }
            for (channel, total) in totals[..channels].iter().enumerate() {
                // SAFETY: the caller's promise; a channel is one task's.
                unsafe { to.at(first + channel).set(*total as f32) };
            }
        }
    });
}
