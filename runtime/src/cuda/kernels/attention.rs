//! The launches of attention: its matrix products, and the steps on the scores between them.
//!
//! Scores and probabilities are scratch: those of some groups of heads at a time, or of some rows of one group, so that the
//! scratch is bounded. Backward computes them again in the same blocks.
//!
//! Heads of queries that share a head of keys and values are a group. A product is one launch for the first head of every
//! group, one for the second, and so on: shared results are added up in that order, by the kernels of plain attention.
//!
//! The products are launches of our kernel, or a library's (`../libraries/attention.rs`): [`steps`] leaves them open.
//!
//! If activations are bf16, some samples at a time are widened to scratch, all computation is in f32, and each result is
//! rounded once when its sums are complete.
//!
//! Deliberately does not hold a formula (`attention.cu` does), or use shared memory: our own products are right and
//! deterministic, and slower than a library's.

use super::Argument::{F32, U32, U64};
use super::{Argument, Grid, Plan, flag, narrow};
use plimsoll_ir::program::{AttentionShape, Call};
use plimsoll_ir::{Bytes, Float};

/// Most pieces of a row of scores, and fewest positions of a piece.
const MOST_PIECES: u64 = 16;
const LEAST_POSITIONS: u64 = 8;

/// Floats of a block's scores: 32 MiB, which stay in the second-level cache of a large GPU from one launch to the next.
const SCORES: u64 = 1 << 23;

/// Rows and columns of a product's tile; most tiles of columns in a warp, and its threads; most blocks into which the rows
/// of a head are cut, reached from 90,000 positions on.
const TILE: u64 = 4;
const MOST_LANES: u64 = 8;
const WARP: u64 = 32;
const MOST_BLOCKS: u64 = 1024;

/// Numbers of qkv widened at a time: 16 MiB, but at least those of one sample. Small in tests, so that a test can afford
/// several samples.
const WIDENED: u64 = if cfg!(test) { 1 << 10 } else { 1 << 22 };

/// A matrix of each head: its start, and the distances between samples, groups, members of a group, rows and columns; 0
/// between members if they share it. A start may be below 0, wrapped around.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub tensor: Argument,
    pub start: u64,
    pub of_sample: u64,
    pub of_group: u64,
    pub of_member: u64,
    pub of_row: u64,
    pub of_column: u64,
}

impl Matrix {
    /// Columns of a head of queries, which come first in a tensor with rows of `of_row`.
    fn of_queries(s: &AttentionShape, tensor: Argument, of_row: u64) -> Matrix {
        let (of_sample, of_member) = (s.length.saturating_mul(of_row), s.of_head());
        let of_group = s.group().saturating_mul(of_member);
        Matrix { tensor, start: 0, of_sample, of_group, of_member, of_row, of_column: 1 }
    }

    /// Query, key and value in a tensor with the layout of qkv.
    fn parts(s: &AttentionShape, tensor: Argument) -> [Matrix; 3] {
        let query = Matrix::of_queries(s, tensor, s.qkv_width());
        let shared = |start: u64| Matrix { start, of_group: s.of_head(), of_member: 0, ..query };
        [query, shared(s.width), shared(s.width.saturating_add(s.kv_width()))]
    }

    /// The scores of a block, in a tensor that holds nothing else.
    fn scores(block: &Block<'_>, tensor: Argument) -> Matrix {
        let s = block.shape;
        let of_member = block.rows.saturating_mul(s.length);
        let (of_sample, of_group) = (s.heads.saturating_mul(of_member), s.group().saturating_mul(of_member));
        let start = block.first.wrapping_mul(of_group).wrapping_neg();
        Matrix { tensor, start, of_sample, of_group, of_member, of_row: s.length, of_column: 1 }
    }

    /// The same matrix in a tensor that begins with sample `first`.
    fn without_samples_before(self, first: u64) -> Matrix {
        Matrix { start: self.start.wrapping_sub(first.wrapping_mul(self.of_sample)), ..self }
    }

    /// Its rows from `row` on.
    fn from(self, row: u64) -> Matrix {
        Matrix { start: self.start.wrapping_add(row.wrapping_mul(self.of_row)), ..self }
    }

    fn transposed(self) -> Matrix {
        Matrix { of_row: self.of_column, of_column: self.of_row, ..self }
    }

    /// Arguments for one member of each group.
    fn arguments(&self, member: u64) -> [Argument; 6] {
        let Matrix { tensor, start, of_sample, of_group, of_member, of_row, of_column } = *self;
        let start = start.wrapping_add(member.wrapping_mul(of_member));
        [tensor, U64(start), U64(of_sample), U64(of_group), U64(of_row), U64(of_column)]
    }
}

/// Parts that a causal product may leave out, with their numbers in `attention.cu`.
#[derive(Clone, Copy)]
pub(crate) enum Leaves {
    /// Results beyond the diagonal.
    Results = 1,
    /// Zeros of the left side beyond the diagonal.
    Beyond = 2,
    /// Zeros of the left side before it.
    Before = 3,
}

/// Some rows of some groups of heads, by number; all rows if there are several groups.
struct Block<'a> {
    shape: &'a AttentionShape,
    first: u64,
    groups: u64,
    /// Position of the first row.
    offset: u64,
    rows: u64,
}

/// Groups and rows of a block.
fn sides_of_blocks(s: &AttentionShape) -> [u64; 2] {
    let of_row = s.group().saturating_mul(s.length).max(1);
    let fitting = (SCORES / of_row / TILE * TILE).max(TILE).max(s.length.div_ceil(MOST_BLOCKS));
    let rows = fitting.min(s.length).max(1);
    let groups = SCORES / of_row.saturating_mul(rows);
    [groups.clamp(1, all(s).max(1)), rows]
}

/// Starts of the pieces of a whole.
fn starts(all: u64, each: u64) -> impl Iterator<Item = u64> {
    (0..all.div_ceil(each)).map(move |i| i * each)
}

/// All blocks of some samples, in order.
fn blocks(shape: &AttentionShape, samples: Samples) -> impl Iterator<Item = Block<'_>> {
    let [groups, rows] = sides_of_blocks(shape);
    let [before, here] = [samples.first, samples.count].map(|n| n.saturating_mul(shape.kv_heads));
    starts(here, groups).flat_map(move |first| {
        starts(shape.length, rows).map(move |offset| Block {
            shape,
            first: before + first,
            groups: groups.min(here - first),
            offset,
            rows: rows.min(shape.length - offset),
        })
    })
}

/// Samples whose tensors are in f32 at the same time.
#[derive(Clone, Copy)]
struct Samples {
    first: u64,
    count: u64,
}

impl Samples {
    /// Number of samples at a time: all if activations are f32.
    fn each(p: &Plan, s: &AttentionShape) -> u64 {
        let of_sample = s.length.saturating_mul(s.qkv_width()).max(1);
        let widened = if p.float == Float::F32 { s.batch } else { WIDENED / of_sample };
        widened.min(s.batch).max(1)
    }

    /// All batches of samples, in order.
    fn all(p: &Plan, s: &AttentionShape) -> impl Iterator<Item = Samples> + use<> {
        let (each, batch) = (Samples::each(p, s), s.batch);
        starts(batch, each).map(move |first| Samples { first, count: each.min(batch - first) })
    }

    /// Numbers before these samples, and in them, of a tensor with rows of `channels`.
    fn numbers(self, s: &AttentionShape, channels: u64) -> [u64; 2] {
        [self.first, self.count].map(|n| n.saturating_mul(s.length).saturating_mul(channels))
    }
}

/// A tensor with rows of `channels`, and the f32 copy of some of its samples: in scratch, or the tensor itself if it is
/// f32.
struct Wide {
    tensor: Argument,
    here: Argument,
    channels: u64,
}

impl Wide {
    fn of(p: &mut Plan, s: &AttentionShape, tensor: Argument, channels: u64) -> Wide {
        let here = match p.float {
            Float::F32 => tensor,
            Float::Bf16 => {
                let [_, most] = Samples { first: 0, count: Samples::each(p, s) }.numbers(s, channels);
                p.floats(most)
            }
        };
        Wide { tensor, here, channels }
    }

    /// Widens these samples, if the tensor is not f32.
    fn read(&self, p: &mut Plan, s: &AttentionShape, samples: Samples) {
        if p.float != Float::F32 {
            let [first, n] = samples.numbers(s, self.channels);
            p.widen_from(first, self.tensor, self.here, n, false);
        }
    }

    /// Rounds these samples into the tensor, or adds them to it, if it is not f32.
    fn write(&self, p: &mut Plan, s: &AttentionShape, samples: Samples, accumulate: bool) {
        if p.float != Float::F32 {
            let [first, n] = samples.numbers(s, self.channels);
            p.round_from(first, self.here, self.tensor, n, accumulate);
        }
    }

    /// A matrix of the tensor in the f32 copy of these samples.
    fn place(&self, p: &Plan, matrix: Matrix, samples: Samples) -> Matrix {
        if p.float == Float::F32 { matrix } else { matrix.without_samples_before(samples.first) }
    }
}

/// Scratch for the scores of a block.
fn scores(p: &mut Plan, s: &AttentionShape) -> Argument {
    let [groups, rows] = sides_of_blocks(s);
    let sides = [groups, s.group(), rows, s.length];
    p.floats(sides.into_iter().fold(1, u64::saturating_mul))
}

/// Scratch for one number of each piece of a block's rows.
fn of_pieces(p: &mut Plan, s: &AttentionShape) -> Argument {
    let [groups, rows] = sides_of_blocks(s);
    p.floats(Block { shape: s, first: 0, groups, offset: 0, rows }.threads())
}

impl Block<'_> {
    fn pieces(&self) -> u64 {
        (self.shape.length / LEAST_POSITIONS).clamp(1, MOST_PIECES)
    }

    /// Threads for rows of scores: pieces of all rows.
    fn threads(&self) -> u64 {
        let heads = self.groups.saturating_mul(self.shape.group());
        heads.saturating_mul(self.rows).saturating_mul(self.pieces())
    }

    /// Launches a kernel on rows of scores: `leading`, then the arguments common to these kernels, then `last`.
    fn rows(&self, p: &mut Plan, kernel: &'static str, leading: &[Argument], last: &[Argument]) {
        let (threads, head) = (self.threads(), self.first.saturating_mul(self.shape.group()));
        let sides = [self.rows, self.shape.length, self.pieces(), self.offset].map(|n| U32(narrow(n)));
        let numbers = [U64(threads), U64(head)];
        let arguments = [leading, &numbers, &sides, &[flag(self.shape.causal)], last].concat();
        p.launch(kernel, threads, arguments);
    }

    /// 1 / sqrt(channels of a head).
    fn scale(&self) -> Argument {
        F32((1.0 / (self.shape.of_head() as f64).sqrt()) as f32)
    }

    /// c = a * b of this block, or added to c.
    fn product(&self, add: bool, sides: [u64; 3], [c, a, b]: [Matrix; 3], leaves: Leaves) -> Product {
        let Block { shape, first, groups, offset, .. } = *self;
        Product { shape: *shape, first, groups, offset, sides, c, a, b, add, leaves }
    }
}

/// c = a * b for each head of some groups, or added to c; the sum over a group's members if they share c.
pub(crate) struct Product {
    pub shape: AttentionShape,
    /// Number of the first group, and their count.
    pub first: u64,
    pub groups: u64,
    /// Position of the first row of scores.
    offset: u64,
    /// Rows and columns of c, and length of the sums.
    pub sides: [u64; 3],
    pub c: Matrix,
    pub a: Matrix,
    pub b: Matrix,
    add: bool,
    leaves: Leaves,
}

impl Product {
    /// Returns `true` if the product of this member of each group is added to c.
    pub(crate) fn adds(&self, member: u64) -> bool {
        self.add || member > 0 && self.c.of_member == 0
    }

    /// Launches it with our kernel.
    fn launch(&self, p: &mut Plan) {
        let [rows, columns, _] = self.sides;
        let (across, along) = (columns.div_ceil(TILE), rows.div_ceil(TILE));
        let lanes = across.next_power_of_two().min(MOST_LANES);
        let blocks = across.div_ceil(lanes).saturating_mul(along.div_ceil(WARP / lanes));
        let threads = blocks.saturating_mul(self.groups).saturating_mul(WARP);
        let causal = if self.shape.causal { self.leaves as u32 } else { 0 };
        let groups = [U64(self.first), U64(self.groups), U32(narrow(self.shape.kv_heads))];
        let sides = self.sides.map(|n| U32(narrow(n)));
        for member in 0..self.shape.group() {
            let arguments = [
                &[self.a, self.b, self.c].map(|matrix| matrix.arguments(member)).concat()[..],
                &[U32(narrow(lanes))],
                &groups,
                &sides,
                &[U32(narrow(self.offset)), U32(causal), flag(self.adds(member))],
            ];
            p.launch("attention_product", threads, arguments.concat());
        }
    }
}

/// A step of a call, in order.
pub(crate) enum Step {
    /// Our own kernels.
    Own(Vec<Grid>),
    Product(Box<Product>),
}

/// The steps of attention, whose products the caller computes, and the scratch of the others; `None` for other calls.
pub(crate) fn steps(call: &Call, float: Float) -> Option<(Vec<Step>, Bytes)> {
    let (mut plan, mut steps) = (Plan::of(call, float), Vec::new());
    let mut multiply = |p: &mut Plan, product: Product| {
        steps.push(Step::Own(std::mem::take(&mut p.grids)));
        steps.push(Step::Product(Box::new(product)));
    };
    match *call {
        Call::AttentionForward { shape } => go_forward(&mut plan, &shape, &mut multiply),
        Call::AttentionBackward { shape, accumulate } => {
            go_backward(&mut plan, &shape, accumulate, &mut multiply);
        }
        _ => return None,
    }
    steps.push(Step::Own(plan.grids));
    Some((steps, Bytes(plan.scratch)))
}

/// Computes a product.
type Multiply<'a> = &'a mut dyn FnMut(&mut Plan, Product);

/// Groups of all samples.
fn all(s: &AttentionShape) -> u64 {
    s.batch.saturating_mul(s.kv_heads)
}

/// qkv -> y, stats.
pub(super) fn forward(p: &mut Plan, s: &AttentionShape) {
    go_forward(p, s, &mut |p, product| product.launch(p));
}

/// qkv, stats, dy -> dqkv.
pub(super) fn backward(p: &mut Plan, s: &AttentionShape, accumulate: bool) {
    go_backward(p, s, accumulate, &mut |p, product| product.launch(p));
}

fn go_forward(p: &mut Plan, s: &AttentionShape, multiply: Multiply<'_>) {
    let [qkv, y, stats] = p.operands(["qkv", "y", "stats"]);
    let (qkv, y) = (Wide::of(p, s, qkv, s.qkv_width()), Wide::of(p, s, y, s.width));
    let room = scores(p, s);
    let [largest, sums] = [0, 1].map(|_| of_pieces(p, s));
    let width = s.of_head();
    for samples in Samples::all(p, s) {
        qkv.read(p, s, samples);
        let [query, key, value] = Matrix::parts(s, qkv.here).map(|part| qkv.place(p, part, samples));
        let of_y = y.place(p, Matrix::of_queries(s, y.here, s.width), samples);
        for block in blocks(s, samples) {
            let scores = Matrix::scores(&block, room);
            let (query, of_y, scale) = (query.from(block.offset), of_y.from(block.offset), block.scale());
            let (pairs, of_rows) = ([block.rows, s.length, width], [block.rows, width, s.length]);
            multiply(p, block.product(false, pairs, [scores, query, key.transposed()], Leaves::Results));
            block.rows(p, "attention_largest", &[room, largest], &[]);
            block.rows(p, "attention_exponentials", &[room, largest, sums], &[scale]);
            block.rows(p, "attention_scale", &[room, largest, sums, stats], &[]);
            multiply(p, block.product(false, of_rows, [of_y, scores, value], Leaves::Beyond));
        }
        y.write(p, s, samples, false);
    }
}

fn go_backward(p: &mut Plan, s: &AttentionShape, accumulate: bool, multiply: Multiply<'_>) {
    let [qkv, stats, dy, dqkv] = p.operands(["qkv", "stats", "dy", "dqkv"]);
    let [qkv, dqkv] = [qkv, dqkv].map(|tensor| Wide::of(p, s, tensor, s.qkv_width()));
    let dy = Wide::of(p, s, dy, s.width);
    let [of_scores, of_gradient] = [0, 1].map(|_| scores(p, s));
    let sums = of_pieces(p, s);
    let width = s.of_head();
    // If activations are bf16, the whole gradient is added at once, so that the sum is rounded once.
    let adds = accumulate && p.float == Float::F32;
    for samples in Samples::all(p, s) {
        qkv.read(p, s, samples);
        dy.read(p, s, samples);
        let [query, key, value] = Matrix::parts(s, qkv.here).map(|part| qkv.place(p, part, samples));
        let [dquery, dkey, dvalue] = Matrix::parts(s, dqkv.here).map(|part| dqkv.place(p, part, samples));
        let of_dy = dy.place(p, Matrix::of_queries(s, dy.here, s.width), samples);
        for block in blocks(s, samples) {
            let [scores, gradient] = [of_scores, of_gradient].map(|room| Matrix::scores(&block, room));
            let [query, dquery, dy] = [query, dquery, of_dy].map(|matrix| matrix.from(block.offset));
            let (pairs, of_rows) = ([block.rows, s.length, width], [block.rows, width, s.length]);
            let (of_keys, scale) = ([s.length, width, block.rows], block.scale());
            // The contribution of later rows to keys and values is added to that of the first.
            let add = adds || block.offset > 0;
            multiply(p, block.product(false, pairs, [scores, query, key.transposed()], Leaves::Results));
            multiply(p, block.product(false, pairs, [gradient, dy, value.transposed()], Leaves::Results));
            block.rows(p, "attention_means", &[of_scores, of_gradient, stats, sums], &[scale]);
            multiply(p, block.product(add, of_keys, [dvalue, scores.transposed(), dy], Leaves::Before));
            block.rows(p, "attention_scores_gradient", &[of_scores, of_gradient, sums], &[scale]);
            multiply(p, block.product(adds, of_rows, [dquery, gradient, key], Leaves::Beyond));
            multiply(p, block.product(add, of_keys, [dkey, gradient.transposed(), query], Leaves::Before));
        }
        dqkv.write(p, s, samples, accumulate);
    }
}
