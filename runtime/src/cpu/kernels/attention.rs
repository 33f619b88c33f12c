//! Scaled dot-product attention (Vaswani et al. 2017, eq. (1)) as matrix products, head by head and a block of positions at
//! a time.
//!
//! A row of qkv has query, key and value next to each other, so that the three matrices of a head are the same rows at
//! different columns. Query heads that share a head of keys and values (grouped-query attention) read the same columns;
//! backward, one task goes through them in order and adds up dK and dV. With S = Q K^T / sqrt(w): P = softmax of each row of
//! S, Y = P V. Backward: dV = P^T dY, dP = dY V^T, dS = P * (dP - the sum of P * dP over the row) / sqrt(w), dQ = dS K, dK =
//! dS^T Q. With `causal`, a block of positions sees only those up to its last, and elements above the diagonal within it are
//! zero.
//!
//! S and P exist a block at a time, in scratch: backward recomputes them, by the same products, from the two numbers that
//! forward kept of each row (Dao et al. 2022, section 3.1).
//!
//! Deliberately does not cut rows, so that a block's softmax and its gradient need no second pass, or mask anything but the
//! future.

use super::Run;
use super::exponential::exponential;
use super::matrix::{Matrix, lane_floats, product};
use super::vector::{Ptr, along, map_row, vectorized};
use plimsoll_ir::program::AttentionShape;
use std::ops::Range;

/// Positions of a block: enough for the products, and few enough that a block of scores fits a core's caches.
const ROWS: usize = 64;

/// An [`AttentionShape`] in the number types that loops use.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    /// Number of query heads, and of those that share a head of keys and values.
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

/// Rows of a matrix from `row` on.
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

    /// Number of heads of keys, and of values.
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

    /// Number of positions, from the first on, that positions before `end` see.
    fn seen(&self, end: usize) -> usize {
        if self.causal { end } else { self.length }
    }

    /// Columns of one head in a tensor whose rows are `heads` adjacent heads.
    fn columns(&self, tensor: Ptr<f32>, heads: usize, sample: usize, head: usize) -> Matrix {
        let row = heads * self.width;
        Matrix::rows(tensor.at(sample * self.length * row + head * self.width), row)
    }

    /// A head in a tensor like qkv; `number` counts samples and query heads.
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

    /// The two numbers of a head's first row; those of the other rows follow.
    fn stats(&self, tensor: Ptr<f32>, number: usize) -> Ptr<f32> {
        tensor.at(number * self.length * 2)
    }
}

/// Largest element of a row.
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

/// Floats of one lane's workspace for this many blocks of scores.
fn blocks_of_scores(shape: &AttentionShape, blocks: usize) -> usize {
    let length = shape.length as usize;
    lane_floats(blocks * length.min(ROWS) * length)
}

/// Floats of workspace for [`forward`]: a block of scores for each lane.
pub(super) fn forward_scratch(shape: &AttentionShape, lanes: usize) -> usize {
    lanes * blocks_of_scores(shape, 1)
}

vectorized! {
    /// Turns a block of products of queries and keys, those of `rows`, into probabilities, 0 for positions that are not
    /// seen, and stores each row's largest product and 1 / the sum of its exponentials.
    ///
    /// # Safety
    /// The block and the head's `stats` are live, and nothing else touches these rows of them.
    unsafe fn softmax [](s: Sizes, rows: Range<usize>, block: Matrix, stats: Ptr<f32>) {
        let end = s.seen(rows.end);
        for (i, row) in rows.enumerate() {
            let (at, stats) = (block.at.at(i * block.row), stats.at(2 * row));
            let (seen, scale) = (s.seen(row + 1), s.scale);
            // SAFETY: the caller's promise: a row of the block has as many elements as its last row sees positions.
            unsafe {
                let largest = largest(at.slice(seen));
                map_row([at], [at], seen, |[v]| [exponential((v - largest) * scale)]);
                let share = (1.0 / along([at], seen, |[v]| v)) as f32;
                map_row([at], [at], seen, |[v]| [v * share]);
                at.at(seen).slice_mut(end - seen).fill(0.0);
                stats.set(largest);
                stats.at(1).set(share);
            }
        }
    }
}

/// qkv -> y, stats.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn forward(shape: &AttentionShape, run: &Run) {
    let [qkv, y, stats] = run.all(["qkv", "y", "stats"]);
    let scratch = run.scratch;
    let s = Sizes::of(shape);
    let lane_len = forward_scratch(shape, 1);
    run.threads.each(s.batch * s.heads * s.blocks(), |task, lane| {
        let (number, rows) = (task / s.blocks(), s.rows(task % s.blocks()));
        let (head, y, stats) = (s.head(qkv, number), s.output(y, number), s.stats(stats, number));
        let (first, count, seen) = (rows.start, rows.len(), s.seen(rows.end));
        let block = Matrix::rows(scratch.at(lane * lane_len), seen);
        // SAFETY: the caller's promise; blocks of positions do not overlap, and a lane has its own scratch.
        unsafe {
            product(false, [count, seen, s.width], block, from(head.query, first), head.key.transposed());
            softmax(s, rows, block, stats);
            product(false, [count, s.width, seen], from(y, first), block, head.value);
        }
    });
}

/// Floats of workspace for [`backward`]: a block of the probabilities and one of their gradient for each lane.
pub(super) fn backward_scratch(shape: &AttentionShape, lanes: usize) -> usize {
    lanes * blocks_of_scores(shape, 2)
}

vectorized! {
    /// Recomputes the probabilities from a block of products of queries and keys, those of `rows`, and turns the
    /// probabilities' gradient into the scores', both in place.
    ///
    /// # Safety
    /// Both blocks and the head's `stats` are live, and nothing else touches the blocks or writes these rows' numbers.
    unsafe fn softmax_gradient [](
        s: Sizes,
        rows: Range<usize>,
        block: Matrix,
        gradient: Matrix,
        stats: Ptr<f32>,
    ) {
        let end = s.seen(rows.end);
        for (i, row) in rows.enumerate() {
            let (p, d, stats) = (block.at.at(i * block.row), gradient.at.at(i * gradient.row), stats.at(2 * row));
            let (seen, scale) = (s.seen(row + 1), s.scale);
            // SAFETY: the caller's promise.
            unsafe {
                let (largest, share) = (stats.get(), stats.at(1).get());
                map_row([p], [p], seen, |[v]| [exponential((v - largest) * scale) * share]);
                let mean = along([p, d], seen, |[p, d]| p * d) as f32;
                map_row([p, d], [d], seen, |[p, d]| [p * (d - mean) * scale]);
                p.at(seen).slice_mut(end - seen).fill(0.0);
                d.at(seen).slice_mut(end - seen).fill(0.0);
            }
        }
    }
}

/// qkv, stats, dy -> dqkv, or added to it. A task has a head of keys and values, and the query heads that share it; blocks
/// go from the last to the first, since the last sees all positions, and so gives every row of dK and dV its first term.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn backward(shape: &AttentionShape, accumulate: bool, run: &Run) {
    let [qkv, stats, dy, dqkv] = run.all(["qkv", "stats", "dy", "dqkv"]);
    let scratch = run.scratch;
    let s = Sizes::of(shape);
    let lane_len = backward_scratch(shape, 1);
    run.threads.each(s.batch * s.kv_heads(), |shared, lane| {
        let scratch = scratch.at(lane * lane_len);
        let blocks = || (0..s.blocks()).rev().map(|block| s.rows(block));
        for (member, rows) in (0..s.group).flat_map(|member| blocks().map(move |rows| (member, rows))) {
            let number = shared * s.group + member;
            let (head, to) = (s.head(qkv, number), s.head(dqkv, number));
            let (first, count, seen) = (rows.start, rows.len(), s.seen(rows.end));
            let (query, dy, stats) =
                (from(head.query, first), from(s.output(dy, number), first), s.stats(stats, number));
            let add = accumulate || member > 0 || rows.end < s.length;
            let (block, gradient) =
                (Matrix::rows(scratch, seen), Matrix::rows(scratch.at(count * seen), seen));
            // SAFETY: the caller's promise; each head has its own columns, and a lane has its own scratch.
            unsafe {
                product(false, [count, seen, s.width], block, query, head.key.transposed());
                product(false, [count, seen, s.width], gradient, dy, head.value.transposed());
                softmax_gradient(s, rows, block, gradient, stats);
                product(add, [seen, s.width, count], to.value, block.transposed(), dy);
                product(accumulate, [count, s.width, seen], from(to.query, first), gradient, head.key);
                product(add, [seen, s.width, count], to.key, gradient.transposed(), query);
            }
        }
    });
}
