//! Layer normalisation, and normalisation by the root of the mean square of each row (Zhang and Sennrich 2019), which is
//! the same without the mean and the shift (not `centred`): forward, with the statistics of each row, and backward.
//!
//! A row is read up to three times, from a core's caches: for its mean, for the squared distances from it (so that no large
//! numbers are subtracted), and for the output. The gradients of scale and shift are summed over the rows of a chunk, then
//! over chunks in their order, in f64.
//!
//! Deliberately keeps only one or two numbers a row for the backward pass.

use super::Run;
use super::norm::Chunks;
use super::threads::Threads;
use super::vector::{Ptr, along, map_row, vectorized};
use plimsoll_ir::program::RowShape;

/// Largest number of rows of a chunk: with more, long sums would be less precise.
const ROWS: usize = 128;
/// Channels of a task that combines the chunks' sums.
const CHANNELS: usize = 64;

/// Division of rows into chunks.
pub(super) fn chunks(shape: &RowShape) -> Chunks {
    Chunks::of(shape, ROWS)
}

vectorized! {
    /// Some rows of `forward`. `stats` holds the rows' means, if `centred`, and their inverse deviations or roots.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; y may be x.
    unsafe fn forward_rows [](
        centred: bool, inputs: [Ptr<f32>; 3], y: Ptr<f32>, stats: [Ptr<f32>; 2], rows: usize, channels: usize, epsilon: f32
    ) {
        let [x, gamma, beta] = inputs;
        let share = 1.0 / channels as f64;
        for row in 0..rows {
            let (x, y) = (x.at(row * channels), y.at(row * channels));
            // SAFETY: the caller's promise.
            unsafe {
                let mean = if centred { (along([x], channels, |[x]| x) * share) as f32 } else { 0.0 };
                let variance = along([x], channels, |[x]| (x - mean) * (x - mean)) * share;
                let inverse = (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32;
                stats[1].at(row).set(inverse);
                if centred {
                    stats[0].at(row).set(mean);
                    map_row([x, gamma, beta], [y], channels, |[x, gamma, beta]| {
                        [(x - mean) * inverse * gamma + beta]
                    });
                } else {
                    map_row([x, gamma], [y], channels, |[x, gamma]| [x * inverse * gamma]);
                }
            }
        }
    }
}

/// Operands of a kernel of both kinds: the second of a pair is the first if the kind lacks it.
fn pair(run: &Run, [first, second]: [&str; 2]) -> [Ptr<f32>; 2] {
    let first = run.f(first);
    [first, run.some(second).unwrap_or(first)]
}

/// Means and inverse deviations of rows from `first` on; without means, twice the inverse roots.
fn stats_of(centred: bool, chunks: Chunks, stats: Ptr<f32>, first: usize) -> [Ptr<f32>; 2] {
    [stats.at(first), stats.at(first + if centred { chunks.rows } else { 0 })]
}

/// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the statistics of each row, which go to `stats`. If not
/// `centred`, mean and beta are 0.
///
/// # Safety
/// Live operands of the shape; y may be x.
pub(super) unsafe fn forward(shape: &RowShape, centred: bool, epsilon: f32, run: &Run) {
    let chunks = chunks(shape);
    let c = chunks.channels;
    let ([x, y], [gamma, beta]) = (run.maps(["x", "y"]), pair(run, ["gamma", "beta"]));
    let stats = run.f("stats");
    chunks.each(run.threads, |_, start, rows, lane| {
        let stats = stats_of(centred, chunks, stats, start / c.max(1));
        // SAFETY: the caller's promise; chunks do not overlap.
        unsafe {
            let (from, to) = (x.read(start, rows * c, lane), y.place(start, lane));
            forward_rows(centred, [from, gamma, beta], to, stats, rows, c, epsilon);
            y.store(start, rows * c, lane);
        }
    });
}

/// Floats of workspace: the gradients of each chunk, of the scale and, if there is one, the shift.
pub(super) fn backward_scratch(shape: &RowShape, gradients: usize) -> usize {
    let chunks = chunks(shape);
    gradients * chunks.channels * chunks.count()
}

vectorized! {
    /// Some rows of `backward`; `sums` gets their contribution to dgamma and, if `centred`, dbeta.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; dx may be dy.
    unsafe fn backward_rows [](
        centred: bool, accumulate: bool, inputs: [Ptr<f32>; 3], stats: [Ptr<f32>; 2], dx: Ptr<f32>, sums: [Ptr<f32>; 2], rows: usize,
        channels: usize
    ) {
        let [x, dy, gamma] = inputs;
        let [dgamma, dbeta] = sums;
        let share = 1.0 / channels as f64;
        // SAFETY: the caller's promise.
        unsafe {
            if centred {
                map_row([], sums, channels, |[]| [0.0; 2]);
            } else {
                map_row([], [dgamma], channels, |[]| [0.0]);
            }
        }
        for row in 0..rows {
            let (x, dy, dx) = (x.at(row * channels), dy.at(row * channels), dx.at(row * channels));
            // SAFETY: the caller's promise.
            unsafe {
                let mean = if centred { stats[0].at(row).get() } else { 0.0 };
                let inverse = stats[1].at(row).get();
                let shift = if centred {
                    (along([dy, gamma], channels, |[dy, gamma]| dy * gamma) * share) as f32
                } else {
                    0.0
                };
                let product = along([x, dy, gamma], channels, |[x, dy, gamma]| dy * gamma * (x - mean));
                let slope = (product * f64::from(inverse) * share) as f32;
                let step = |x: f32, dy: f32, gamma: f32, dgamma: f32, dx: f32| {
                    let xhat = (x - mean) * inverse;
                    let gradient = inverse * (dy * gamma - shift - xhat * slope);
                    [dgamma + dy * xhat, if accumulate { dx + gradient } else { gradient }]
                };
                if centred {
                    map_row([x, dy, gamma, dgamma, dbeta, dx], [dgamma, dbeta, dx], channels, |[x, dy, gamma, dgamma, dbeta, dx]| {
                        let [dgamma, dx] = step(x, dy, gamma, dgamma, dx);
                        [dgamma, dbeta + dy, dx]
                    });
                } else {
                    map_row([x, dy, gamma, dgamma, dx], [dgamma, dx], channels, |[x, dy, gamma, dgamma, dx]| {
                        step(x, dy, gamma, dgamma, dx)
                    });
                }
            }
        }
    }
}

/// With xhat = (x - mean) / sqrt(variance + epsilon) and g = dy * gamma: dbeta = sum dy and dgamma = sum dy * xhat over
/// rows, dx = (g - mean of g - xhat * mean of g * xhat) / sqrt(variance + epsilon) with means over the row. If not
/// `centred`, the mean of x and that of g count as 0, and there is no dbeta.
///
/// # Safety
/// Live operands of the shape, and the workspace; dx may be dy.
pub(super) unsafe fn backward(shape: &RowShape, centred: bool, accumulate: bool, run: &Run) {
    let chunks = chunks(shape);
    let c = chunks.channels;
    let ([x, dy, dx], scratch) = (run.maps(["x", "dy", "dx"]), run.scratch);
    let ([gamma, stats], gradients) = (run.all(["gamma", "stats"]), pair(run, ["dgamma", "dbeta"]));
    let gradients = &gradients[..if centred { 2 } else { 1 }];
    chunks.each(run.threads, |chunk, start, rows, lane| {
        let stats = stats_of(centred, chunks, stats, start / c.max(1));
        let sums = scratch.at(gradients.len() * c * chunk);
        // SAFETY: the caller's promise; chunks do not overlap, and each has its own sums.
        unsafe {
            let [x, dy] = [x, dy].map(|map| map.read(start, rows * c, lane));
            let to = dx.read_if(accumulate, start, rows * c, lane);
            backward_rows(centred, accumulate, [x, dy, gamma], stats, to, [sums, sums.at(c)], rows, c);
            dx.store(start, rows * c, lane);
        }
    });
    // SAFETY: written by the tasks above, which are done; nothing else touches the gradients.
    unsafe { add_chunks(chunks, scratch, gradients, run.threads) };
}

/// Adds the chunks' sums to each of the gradients of parameters, in order, in f64: within a chunk, the sums of the first
/// gradient precede those of the next.
///
/// # Safety
/// `sums` holds them, and nothing else touches the gradients.
unsafe fn add_chunks(chunks: Chunks, sums: Ptr<f32>, gradients: &[Ptr<f32>], threads: &Threads) {
    let c = chunks.channels;
    threads.each(c.div_ceil(CHANNELS), |task, _| {
        let first = task * CHANNELS;
        let channels = CHANNELS.min(c - first);
        for (i, to) in gradients.iter().enumerate() {
            let mut totals = [0.0f64; CHANNELS];
            for chunk in 0..chunks.count() {
                // SAFETY: the caller's promise.
                let parts = unsafe { sums.at((gradients.len() * chunk + i) * c + first).slice(channels) };
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
