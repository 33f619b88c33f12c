//! The launches of attention: its products of matrices, and what becomes of the scores between them.
//!
//! Backward goes through some heads at a time, since the gradient of their scores is scratch as large as their
//! probabilities.
//!
//! What it deliberately does not do: hold a formula; those are in `attention.cu`. Use shared memory or a library: its
//! products are right and deterministic, and slower than a library's.

use super::Argument::{F32, Operand, U32, U64};
use super::conv::Tiles;
use super::{Argument, Plan, flag, narrow};
use plimsoll_ir::program::AttentionShape;

/// Pieces of a row of scores at most, and positions that one has at least.
const MOST_PIECES: u64 = 16;
const LEAST_POSITIONS: u64 = 8;

/// Floats that the scores' gradient of the heads of one pass may take.
const SCRATCH_FLOATS: u64 = 1 << 24;

/// A matrix of each head: where it begins, and what lies from one sample, head, row and column to the next. A start may be
/// below 0, wrapped around.
#[derive(Clone, Copy)]
struct Matrix {
    tensor: Argument,
    start: u64,
    of_sample: u64,
    of_head: u64,
    of_row: u64,
    of_column: u64,
}

impl Matrix {
    /// Of a tensor of `parts` times the channels, a head's in one part.
    fn part(s: &AttentionShape, tensor: Argument, parts: u64, part: u64) -> Matrix {
        let of_row = parts.saturating_mul(s.width);
        Matrix {
            tensor,
            start: part.saturating_mul(s.width),
            of_sample: s.length.saturating_mul(of_row),
            of_head: s.width / s.heads.max(1),
            of_row,
            of_column: 1,
        }
    }

    /// The scores of heads, of which those before `first` are not there.
    fn scores(s: &AttentionShape, tensor: Argument, first: u64) -> Matrix {
        let of_head = s.length.saturating_mul(s.length);
        let of_sample = s.heads.saturating_mul(of_head);
        let start = first.wrapping_mul(of_head).wrapping_neg();
        Matrix { tensor, start, of_sample, of_head, of_row: s.length, of_column: 1 }
    }

    fn transposed(self) -> Matrix {
        Matrix { of_row: self.of_column, of_column: self.of_row, ..self }
    }

    fn arguments(&self) -> [Argument; 6] {
        let Matrix { tensor, start, of_sample, of_head, of_row, of_column } = *self;
        [tensor, U64(start), U64(of_sample), U64(of_head), U64(of_row), U64(of_column)]
    }
}

/// What a causal product may leave out; the numbers stand in `attention.cu`, too.
#[derive(Clone, Copy)]
enum Leaves {
    /// Results beyond the diagonal.
    Results = 1,
    /// Zeros of the left side beyond the diagonal.
    Beyond = 2,
    /// Zeros of the left side before it.
    Before = 3,
}

/// Some heads, by number.
struct Heads<'a> {
    shape: &'a AttentionShape,
    first: u64,
    count: u64,
    pieces: u64,
}

impl Heads<'_> {
    fn of(shape: &AttentionShape, first: u64, count: u64) -> Heads<'_> {
        let pieces = (shape.length / LEAST_POSITIONS).clamp(1, MOST_PIECES);
        Heads { shape, first, count, pieces }
    }

    /// Threads that share rows of scores: pieces of all rows.
    fn threads(&self) -> u64 {
        self.count.saturating_mul(self.shape.length).saturating_mul(self.pieces)
    }

    /// What the kernels on rows of scores take last.
    fn numbers(&self) -> [Argument; 4] {
        let (length, pieces) = (U32(narrow(self.shape.length)), U32(narrow(self.pieces)));
        [U64(self.threads()), length, pieces, flag(self.shape.causal)]
    }

    /// 1 / sqrt(channels of a head).
    fn scale(&self) -> Argument {
        let width = self.shape.width / self.shape.heads.max(1);
        F32((1.0 / (width as f64).sqrt()) as f32)
    }

    /// c = a * b, or added to it.
    fn product(&self, p: &mut Plan, add: bool, sides: [u64; 3], [c, a, b]: [&Matrix; 3], leaves: Leaves) {
        let [rows, columns, _] = sides;
        let tiles = Tiles::of(4, columns, rows, self.count);
        let causal = if self.shape.causal { leaves as u32 } else { 0 };
        let heads = [U64(self.first), U64(self.count), U32(narrow(self.shape.heads))];
        let sides = sides.map(|n| U32(narrow(n)));
        let arguments = [
            &[a, b, c].map(Matrix::arguments).concat()[..],
            &[U32(narrow(tiles.lanes))],
            &heads,
            &sides,
            &[U32(causal), flag(add)],
        ];
        p.launch("attention_product", tiles.threads, arguments.concat());
    }
}

/// All heads of all samples.
fn all(s: &AttentionShape) -> u64 {
    s.batch.saturating_mul(s.heads)
}

/// qkv -> y, probabilities.
pub(super) fn forward(p: &mut Plan, s: &AttentionShape) {
    let heads = Heads::of(s, 0, all(s));
    let [query, key, value] = [0, 1, 2].map(|part| Matrix::part(s, Operand(0), 3, part));
    let (y, scores) = (Matrix::part(s, Operand(1), 1, 0), Matrix::scores(s, Operand(2), 0));
    let width = s.width / s.heads.max(1);
    let [largest, sums] = [0, 1].map(|_| p.floats(heads.threads()));
    let sides = [s.length, s.length, width];
    heads.product(p, false, sides, [&scores, &query, &key.transposed()], Leaves::Results);
    let (probabilities, threads, numbers) = (Operand(2), heads.threads(), heads.numbers());
    p.launch("attention_largest", threads, [&[probabilities, largest], &numbers[..]].concat());
    let leading = [probabilities, largest, sums];
    p.launch("attention_exponentials", threads, [&leading, &numbers[..], &[heads.scale()]].concat());
    p.launch("attention_scale", threads, [&[probabilities, sums], &numbers[..]].concat());
    heads.product(p, false, [s.length, width, s.length], [&y, &scores, &value], Leaves::Beyond);
}

/// qkv, probabilities, dy -> dqkv.
pub(super) fn backward(p: &mut Plan, s: &AttentionShape, accumulate: bool) {
    let of_head = s.length.saturating_mul(s.length);
    let some = (SCRATCH_FLOATS / of_head.max(1)).clamp(1, all(s).max(1));
    let gradient = p.floats(some.saturating_mul(of_head));
    let sums = p.floats(Heads::of(s, 0, some).threads());
    let [query, key, value] = [0, 1, 2].map(|part| Matrix::part(s, Operand(0), 3, part));
    let [dquery, dkey, dvalue] = [0, 1, 2].map(|part| Matrix::part(s, Operand(3), 3, part));
    let (probabilities, dy) = (Matrix::scores(s, Operand(1), 0), Matrix::part(s, Operand(2), 1, 0));
    let width = s.width / s.heads.max(1);
    let (of_scores, of_part) = ([s.length, s.length, width], [s.length, width, s.length]);
    let mut first = 0;
    while first < all(s) {
        let heads = Heads::of(s, first, some.min(all(s) - first));
        let scores = Matrix::scores(s, gradient, first);
        let operands = [&dvalue, &probabilities.transposed(), &dy];
        heads.product(p, accumulate, of_part, operands, Leaves::Before);
        heads.product(p, false, of_scores, [&scores, &dy, &value.transposed()], Leaves::Results);
        let rows = U64(first.saturating_mul(s.length));
        let (threads, numbers) = (heads.threads(), heads.numbers());
        let leading = [Operand(1), gradient, sums, rows];
        p.launch("attention_means", threads, [&leading, &numbers[..]].concat());
        let arguments = [&leading, &numbers[..], &[heads.scale()]].concat();
        p.launch("attention_scores_gradient", threads, arguments);
        heads.product(p, accumulate, of_part, [&dquery, &scores, &key], Leaves::Beyond);
        heads.product(p, accumulate, of_part, [&dkey, &scores.transposed(), &query], Leaves::Before);
        first = first.saturating_add(some);
    }
}
