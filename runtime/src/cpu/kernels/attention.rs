//! Scaled dot-product attention (Vaswani et al. 2017, eq. (1)) as matrix products, head by head and a block of positions at
//! a time.
//!
//! A row of qkv has query, key and value side by side, so that the three matrices of a head are the same rows at different
//! columns. Heads of queries that share a head of keys and values (grouped-query attention) read the same columns, and
//! backward one task goes through them in their order, adding up dK and dV. With S = Q K^T / sqrt(w): P = softmax of each row
//! of S, Y = P V. Backward: dV = P^T dY, dP = dY V^T, dS = P * (dP - the sum of P * dP over the row) / sqrt(w), dQ = dS K, dK
//! = dS^T Q. With `causal`, a block of positions meets only those up to its last, and what lies above the diagonal within it
//! is 0.
//!
//! What it deliberately does not do: go without the probabilities, which the trace keeps as a tensor like others, so that
//! it is the planner's choice what becomes of them; mask anything but the future.

use super::exponential::exponential;
use super::matrix::{Matrix, lane_floats, product};
use super::threads::Threads;
use super::vector::{Ptr, along, map_row, vectorized};
use plimsoll_ir::program::AttentionShape;
use std::ops::Range;

/// Positions of a block: enough for the products, and few enough that a block of scores stays in a core's caches.
const ROWS: usize = 64;

/// An [`AttentionShape`] in the numbers that loops use.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    /// Of queries, and those of them that share a head of keys and values.
    heads: usize,
    group: usize,
    length: usize,
    /// Channels of a head.
    width: usize,
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
        let [batch, heads, group, length, width] =
            [s.batch, s.heads, s.group(), s.length, s.of_head()].map(|n| n as usize);
        let scale = (1.0 / (width as f64).sqrt()) as f32;
        Sizes { batch, heads, group, length, width, causal: s.causal, scale }
    }

    /// Heads of keys, and of values.
    fn kv_heads(&self) -> usize {
        self.heads / self.group
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

    /// Of a tensor whose rows are `heads` heads side by side, the columns of one.
    fn columns(&self, tensor: Ptr<f32>, heads: usize, sample: usize, head: usize) -> Matrix {
        let row = heads * self.width;
        Matrix::rows(tensor.at(sample * self.length * row + head * self.width), row)
    }

    /// A head in a tensor like qkv; `number` counts samples and heads of queries.
    fn head(&self, qkv: Ptr<f32>, number: usize) -> Head {
        let (sample, head) = (number / self.heads, number % self.heads);
        let (shared, kv_heads) = (head / self.group, self.kv_heads());
        let columns = |head: usize| self.columns(qkv, self.heads + 2 * kv_heads, sample, head);
        Head {
            query: columns(head),
            key: columns(self.heads + shared),
            value: columns(self.heads + kv_heads + shared),
        }
    }

    /// A head in a tensor like y.
    fn output(&self, y: Ptr<f32>, number: usize) -> Matrix {
        self.columns(y, self.heads, number / self.heads, number % self.heads)
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
    threads.each(s.batch * s.heads * s.blocks(), |task, _| {
        let (number, rows) = (task / s.blocks(), s.rows(task % s.blocks()));
        let (head, probabilities) = (s.head(qkv, number), s.probabilities(probabilities, number));
        let y = s.output(y, number);
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

/// qkv, probabilities, dy -> dqkv, or added to it. A task has a head of keys and values, and those of queries that share it;
/// blocks go from the last to the first, since the last sees all positions, and so gives every row of dK and dV its first term.
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
    threads.each(s.batch * s.kv_heads(), |shared, lane| {
        let blocks = || (0..s.blocks()).rev().map(|block| s.rows(block));
        for (member, rows) in (0..s.group).flat_map(|member| blocks().map(move |rows| (member, rows))) {
            let number = shared * s.group + member;
            let (head, to) = (s.head(qkv, number), s.head(dqkv, number));
            let (probabilities, dy) = (s.probabilities(probabilities, number), s.output(dy, number));
            let (first, count, seen) = (rows.start, rows.len(), s.seen(rows.end));
            let add = accumulate || member > 0 || rows.end < s.length;
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
