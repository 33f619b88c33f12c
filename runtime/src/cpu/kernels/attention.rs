//! Scaled dot-product attention (Vaswani et al. 2017, eq. (1)) as matrix products, head by head and a block of positions at
//! a time.
//!
//! A row of qkv has query, key and value side by side, so that the three matrices of a head are the same rows at different
//! columns. With S = Q K^T / sqrt(w): P = softmax of each row of S, Y = P V. Backward: dV = P^T dY, dP = dY V^T,
//! dS = P * (dP - the sum of P * dP over the row) / sqrt(w), dQ = dS K, dK = dS^T Q. With `causal`, a block of positions
//! meets only those up to its last, and what lies above the diagonal within it is 0.
//!
//! What it deliberately does not do: go without the probabilities, which the trace keeps as a tensor like others, so that
//! it is the planner's choice what becomes of them; mask anything but the future.

use super::conv::{Matrix, lane_floats, product};
use super::exponential::exponential;
use super::threads::Threads;
use super::vector::{Ptr, along, map_row, vectorized};
use plimsoll_ir::program::AttentionShape;
use std::ops::Range;

/// Positions of a block: enough for the products, and few enough that a block of scores stays in a core's caches.
const ROWS: usize = 64;

/// An [`AttentionShape`] in the numbers that loops use.
#[derive(Clone, Copy)]
struct Sizes {
    /// Samples times heads.
    all: usize,
    heads: usize,
    length: usize,
    /// Channels of a head, and of all.
    width: usize,
    channels: usize,
    causal: bool,
    /// 1 / sqrt(channels of a head).
    scale: f32,
}

/// The matrices of one head of one sample in a tensor like qkv.
struct Head {
    query: Matrix,
    key: Matrix,
    value: Matrix,
}

/// The rows of a matrix from one on.
fn from(m: Matrix, row: usize) -> Matrix {
    Matrix { at: m.at.at(row * m.row), ..m }
}

impl Sizes {
    fn of(s: &AttentionShape) -> Sizes {
        let [batch, heads, length, channels] = [s.batch, s.heads, s.length, s.width].map(|n| n as usize);
        let width = channels / heads.max(1);
        let scale = (1.0 / (width as f64).sqrt()) as f32;
        Sizes { all: batch * heads, heads, length, width, channels, causal: s.causal, scale }
    }

    fn blocks(&self) -> usize {
        self.length.div_ceil(ROWS)
    }

    /// Positions of a block.
    fn rows(&self, block: usize) -> Range<usize> {
        block * ROWS..self.length.min((block + 1) * ROWS)
    }

    /// How many positions, from the first on, those before `end` see.
    fn seen(&self, end: usize) -> usize {
        if self.causal { end } else { self.length }
    }

    /// Of a tensor of `parts` times the channels, the columns of a head in one part; `number` counts samples and heads.
    fn part(&self, tensor: Ptr<f32>, parts: usize, part: usize, number: usize) -> Matrix {
        let (sample, head) = (number / self.heads, number % self.heads);
        let row = parts * self.channels;
        let first = sample * self.length * row + part * self.channels + head * self.width;
        Matrix::rows(tensor.at(first), row)
    }

    fn head(&self, qkv: Ptr<f32>, number: usize) -> Head {
        let [query, key, value] = [0, 1, 2].map(|part| self.part(qkv, 3, part, number));
        Head { query, key, value }
    }

    fn probabilities(&self, tensor: Ptr<f32>, number: usize) -> Matrix {
        Matrix::rows(tensor.at(number * self.length * self.length), self.length)
    }
}

/// The largest of a row.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = row.as_chunks::<16>();
    let mut parts = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        parts.iter_mut().zip(chunk).for_each(|(part, v)| *part = larger(*part, *v));
    }
    parts.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| larger(a, *b))
}

vectorized! {
    /// Turns rows of products of queries and keys into probabilities, 0 for positions that are not seen.
    ///
    /// # Safety
    /// The rows live, and nobody else touches them.
    unsafe fn softmax [](s: Sizes, rows: Range<usize>, probabilities: Matrix) {
        for row in rows {
            let at = probabilities.at.at(row * probabilities.row);
            let (seen, scale) = (s.seen(row + 1), s.scale);
            // SAFETY: the caller's promise: a row has as many elements as there are positions.
            unsafe {
                let largest = largest(at.slice(seen));
                map_row([at], [at], seen, |[v]| [exponential((v - largest) * scale)]);
                let share = (1.0 / along([at], seen, |[v]| v)) as f32;
                map_row([at], [at], seen, |[v]| [v * share]);
                at.at(seen).slice_mut(s.length - seen).fill(0.0);
            }
        }
    }
}

/// qkv -> y, probabilities.
///
/// # Safety
/// Live operands of the shape that do not overlap.
pub(super) unsafe fn forward(
    shape: &AttentionShape,
    qkv: Ptr<f32>,
    y: Ptr<f32>,
    probabilities: Ptr<f32>,
    threads: &Threads,
) {
    let s = Sizes::of(shape);
    threads.each(s.all * s.blocks(), |task, _| {
        let (number, rows) = (task / s.blocks(), s.rows(task % s.blocks()));
        let (head, probabilities) = (s.head(qkv, number), s.probabilities(probabilities, number));
        let y = s.part(y, 1, 0, number);
        let (first, count, seen) = (rows.start, rows.len(), s.seen(rows.end));
        let block = from(probabilities, first);
        // SAFETY: the caller's promise; blocks of positions do not overlap.
        unsafe {
            product(false, [count, seen, s.width], block, from(head.query, first), head.key.transposed());
            softmax(s, rows, probabilities);
            product(false, [count, s.width, seen], from(y, first), block, head.value);
        }
    });
}

/// Floats of workspace for [`backward`]: a block of the scores' gradient for each lane.
pub(super) fn backward_scratch(shape: &AttentionShape, lanes: usize) -> usize {
    let length = shape.length as usize;
    lanes * lane_floats(length.min(ROWS) * length)
}

vectorized! {
    /// Turns rows of the probabilities' gradient into rows of the scores', in place.
    ///
    /// # Safety
    /// The rows live, and nobody else touches the gradient.
    unsafe fn softmax_gradient [](s: Sizes, rows: Range<usize>, probabilities: Matrix, gradient: Matrix) {
        let end = s.seen(rows.end);
        for (i, row) in rows.enumerate() {
            let (p, d) = (probabilities.at.at(row * probabilities.row), gradient.at.at(i * gradient.row));
            let (seen, scale) = (s.seen(row + 1), s.scale);
            // SAFETY: the caller's promise.
            unsafe {
                let mean = along([p, d], seen, |[p, d]| p * d) as f32;
                map_row([p, d], [d], seen, |[p, d]| [p * (d - mean) * scale]);
                d.at(seen).slice_mut(end - seen).fill(0.0);
            }
        }
    }
}

/// qkv, probabilities, dy -> dqkv, or added to it. A task has a head; blocks go from the last to the first, since the last
/// sees all positions, and so gives every row of dK and dV its first term.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn backward(
    shape: &AttentionShape,
    accumulate: bool,
    [qkv, probabilities, dy]: [Ptr<f32>; 3],
    dqkv: Ptr<f32>,
    scratch: Ptr<f32>,
    threads: &Threads,
) {
    let s = Sizes::of(shape);
    let lane_len = backward_scratch(shape, 1);
    threads.each(s.all, |number, lane| {
        let (head, to) = (s.head(qkv, number), s.head(dqkv, number));
        let (probabilities, dy) = (s.probabilities(probabilities, number), s.part(dy, 1, 0, number));
        for rows in (0..s.blocks()).rev().map(|block| s.rows(block)) {
            let (first, count, seen) = (rows.start, rows.len(), s.seen(rows.end));
            let add = accumulate || rows.end < s.length;
            let (of_block, dy) = (from(probabilities, first), from(dy, first));
            let scores = Matrix::rows(scratch.at(lane * lane_len), seen);
            // SAFETY: the caller's promise; heads have columns of their own, a lane has scratch of its own.
            unsafe {
                product(add, [seen, s.width, count], to.value, of_block.transposed(), dy);
                product(false, [count, seen, s.width], scores, dy, head.value.transposed());
                softmax_gradient(s, rows, probabilities, scores);
                product(accumulate, [count, s.width, seen], from(to.query, first), scores, head.key);
                product(add, [seen, s.width, count], to.key, scores.transposed(), from(head.query, first));
            }
        }
    });
}
