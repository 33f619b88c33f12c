//! The launches of attention: its products of matrices, and what becomes of the scores between them.
//!
//! Heads of queries that share a head of keys and values are a group, and a product is one launch for the first head of every
//! group, one for the second, and so on: what the members share is then added up in their order, by the kernels that plain
//! attention has. Backward goes through some groups at a time, since the gradient of their scores is scratch as large as
//! their probabilities.
//!
//! What it deliberately does not do: hold a formula; those are in `attention.cu`. Use shared memory or a library: its
//! products are right and deterministic, and slower than a library's.

use super::Argument::{F32, U32, U64};
use super::conv::Tiles;
use super::{Argument, Plan, flag, narrow};
use plimsoll_ir::program::AttentionShape;

/// Pieces of a row of scores at most, and positions that one has at least.
const MOST_PIECES: u64 = 16;
const LEAST_POSITIONS: u64 = 8;

/// Floats that the scores' gradient of the groups of one pass may take.
const SCRATCH_FLOATS: u64 = 1 << 24;

/// A matrix of each head: where it begins, and what lies from one sample, group, member of a group, row and column to the
/// next; 0 from member to member where they share it. A start may be below 0, wrapped around.
#[derive(Clone, Copy)]
struct Matrix {
    tensor: Argument,
    start: u64,
    of_sample: u64,
    of_group: u64,
    of_member: u64,
    of_row: u64,
    of_column: u64,
}

impl Matrix {
    /// The columns of a head of queries, in a tensor of rows of `of_row` that begin with them.
    fn of_queries(s: &AttentionShape, tensor: Argument, of_row: u64) -> Matrix {
        let (of_sample, of_member) = (s.length.saturating_mul(of_row), s.of_head());
        let of_group = s.group().saturating_mul(of_member);
        Matrix { tensor, start: 0, of_sample, of_group, of_member, of_row, of_column: 1 }
    }

    /// Query, key and value in a tensor like qkv.
    fn parts(s: &AttentionShape, tensor: Argument) -> [Matrix; 3] {
        let query = Matrix::of_queries(s, tensor, s.qkv_width());
        let shared = |start: u64| Matrix { start, of_group: s.of_head(), of_member: 0, ..query };
        [query, shared(s.width), shared(s.width.saturating_add(s.kv_width()))]
    }

    /// The scores of heads, of which those of the groups before `first` are not there.
    fn scores(s: &AttentionShape, tensor: Argument, first: u64) -> Matrix {
        let of_member = s.length.saturating_mul(s.length);
        let (of_sample, of_group) = (s.heads.saturating_mul(of_member), s.group().saturating_mul(of_member));
        let start = first.wrapping_mul(of_group).wrapping_neg();
        Matrix { tensor, start, of_sample, of_group, of_member, of_row: s.length, of_column: 1 }
    }

    fn transposed(self) -> Matrix {
        Matrix { of_row: self.of_column, of_column: self.of_row, ..self }
    }

    /// Of one member of each group.
    fn arguments(&self, member: u64) -> [Argument; 6] {
        let Matrix { tensor, start, of_sample, of_group, of_member, of_row, of_column } = *self;
        let start = start.wrapping_add(member.wrapping_mul(of_member));
        [tensor, U64(start), U64(of_sample), U64(of_group), U64(of_row), U64(of_column)]
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

/// Some groups of heads, by number.
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
        let heads = self.count.saturating_mul(self.shape.group());
        heads.saturating_mul(self.shape.length).saturating_mul(self.pieces)
    }

    /// What the kernels on rows of scores take last.
    fn numbers(&self) -> [Argument; 4] {
        let (length, pieces) = (U32(narrow(self.shape.length)), U32(narrow(self.pieces)));
        [U64(self.threads()), length, pieces, flag(self.shape.causal)]
    }

    /// 1 / sqrt(channels of a head).
    fn scale(&self) -> Argument {
        F32((1.0 / (self.shape.of_head() as f64).sqrt()) as f32)
    }

    /// c = a * b, or added to it; the sum over a group's members where they share c.
    fn product(&self, p: &mut Plan, add: bool, sides: [u64; 3], [c, a, b]: [&Matrix; 3], leaves: Leaves) {
        let [rows, columns, _] = sides;
        let tiles = Tiles::of(4, columns, rows, self.count);
        let causal = if self.shape.causal { leaves as u32 } else { 0 };
        let groups = [U64(self.first), U64(self.count), U32(narrow(self.shape.kv_heads))];
        let sides = sides.map(|n| U32(narrow(n)));
        for member in 0..self.shape.group() {
            let add = add || member > 0 && c.of_member == 0;
            let arguments = [
                &[a, b, c].map(|matrix| matrix.arguments(member)).concat()[..],
                &[U32(narrow(tiles.lanes))],
                &groups,
                &sides,
                &[U32(causal), flag(add)],
            ];
            p.launch("attention_product", tiles.threads, arguments.concat());
        }
    }
}

/// All groups of all samples.
fn all(s: &AttentionShape) -> u64 {
    s.batch.saturating_mul(s.kv_heads)
}

/// qkv -> y, probabilities.
pub(super) fn forward(p: &mut Plan, s: &AttentionShape) {
    let heads = Heads::of(s, 0, all(s));
    let [qkv, y, probabilities] = p.operands(["qkv", "y", "probabilities"]);
    let [query, key, value] = Matrix::parts(s, qkv);
    let (y, scores) = (Matrix::of_queries(s, y, s.width), Matrix::scores(s, probabilities, 0));
    let width = s.of_head();
    let [largest, sums] = [0, 1].map(|_| p.floats(heads.threads()));
    let sides = [s.length, s.length, width];
    heads.product(p, false, sides, [&scores, &query, &key.transposed()], Leaves::Results);
    let (threads, numbers) = (heads.threads(), heads.numbers());
    p.launch("attention_largest", threads, [&[probabilities, largest], &numbers[..]].concat());
    let leading = [probabilities, largest, sums];
    p.launch("attention_exponentials", threads, [&leading, &numbers[..], &[heads.scale()]].concat());
    p.launch("attention_scale", threads, [&[probabilities, sums], &numbers[..]].concat());
    heads.product(p, false, [s.length, width, s.length], [&y, &scores, &value], Leaves::Beyond);
}

/// qkv, probabilities, dy -> dqkv.
pub(super) fn backward(p: &mut Plan, s: &AttentionShape, accumulate: bool) {
    let of_group = s.length.saturating_mul(s.length).saturating_mul(s.group());
    let some = (SCRATCH_FLOATS / of_group.max(1)).clamp(1, all(s).max(1));
    let gradient = p.floats(some.saturating_mul(of_group));
    let sums = p.floats(Heads::of(s, 0, some).threads());
    let [qkv, softmax, dy, dqkv] = p.operands(["qkv", "probabilities", "dy", "dqkv"]);
    let [query, key, value] = Matrix::parts(s, qkv);
    let [dquery, dkey, dvalue] = Matrix::parts(s, dqkv);
    let (probabilities, dy) = (Matrix::scores(s, softmax, 0), Matrix::of_queries(s, dy, s.width));
    let width = s.of_head();
    let (of_scores, of_part) = ([s.length, s.length, width], [s.length, width, s.length]);
    let mut first = 0;
    while first < all(s) {
        let heads = Heads::of(s, first, some.min(all(s) - first));
        let scores = Matrix::scores(s, gradient, first);
        let operands = [&dvalue, &probabilities.transposed(), &dy];
        heads.product(p, accumulate, of_part, operands, Leaves::Before);
        heads.product(p, false, of_scores, [&scores, &dy, &value.transposed()], Leaves::Results);
        let rows = U64(first.saturating_mul(s.group()).saturating_mul(s.length));
        let (threads, numbers) = (heads.threads(), heads.numbers());
        let leading = [softmax, gradient, sums, rows];
        p.launch("attention_means", threads, [&leading, &numbers[..]].concat());
        let arguments = [&leading, &numbers[..], &[heads.scale()]].concat();
        p.launch("attention_scores_gradient", threads, arguments);
        heads.product(p, accumulate, of_part, [&dquery, &scores, &key], Leaves::Beyond);
        heads.product(p, accumulate, of_part, [&dkey, &scores.transposed(), &query], Leaves::Before);
        first = first.saturating_add(some);
    }
}
