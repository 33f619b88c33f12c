//! Dense 3x3 convolutions of stride 1 with 2.25 times fewer multiplications: Winograd's F(2x2, 3x3), in the form of Lavin
//! and Gray (2016), in its three directions.
//!
//! A tile is 2x2 outputs, and the 4x4 inputs that they depend on. With the matrices B, G and A of the paper, an output tile
//! is `A^T [ (G w G^T) . (B^T x B) ] A`: sums over channels of products at 16 points, thus 16 matrix products. Forward and
//! input gradient are the same computation, the latter with the filter turned and the channels swapped; the filter gradient
//! is `G^T [ (A dy A^T) . (B^T x B) ] G`. F(2x2) and no larger tile: its error is that of the plain sum.
//!
//! A task has some tiles and some channels of the output, such that its scratch memory is about as large as that of the
//! plain algorithm. Deliberately does not handle other windows, strides, dilations or groups; `conv` does.

use super::Run;
use super::matrix::{Matrix, lane_floats, product};
use super::vector::{Ptr, map_rows, vectorized};
use plimsoll_ir::program::ConvShape;
use std::array::from_fn;
use std::ops::{Add, Neg, Range, Sub};

/// Points of a tile, and so number of products.
const POINTS: usize = 16;
/// Channels that are transformed at once.
const LANES: usize = 16;
/// Largest number of tiles of a task.
const TILES: usize = 64;
/// Largest number of elements of a task's transformed filters, and smallest number of its channels.
const FILTERS: usize = 1 << 17;
const LEAST_CHANNELS: usize = 32;

/// Tiles below which transforming the filters costs more than it saves.
const LEAST_TILES: usize = 32;

/// Returns `true` if Winograd serves the convolution: the shape allows it, both sides have channels to fill vectors, there
/// are enough tiles, and not too much of them lies beyond the edge.
pub(super) fn serves(shape: &ConvShape) -> bool {
    let w = &shape.window;
    let whole = |channels: u32| (channels as usize).is_multiple_of(LEAST_CHANNELS);
    let can = w.size == [3, 3]
        && w.stride == [1, 1]
        && w.dilation == [1, 1]
        && w.padding.iter().all(|p| *p <= 2)
        && shape.groups == 1;
    let positions = shape.batch as usize * shape.output[0] as usize * shape.output[1] as usize;
    let tiles = shape.output.iter().fold(shape.batch as usize, |n, side| n * (*side as usize).div_ceil(2));
    can && whole(shape.in_channels)
        && whole(shape.out_channels)
        && tiles >= LEAST_TILES
        && 2 * positions >= 5 * tiles
}

/// 4x4 patches of an image, two apart: the inputs of tiles.
#[derive(Clone, Copy)]
struct Patches {
    batch: usize,
    image: [usize; 2],
    /// Tiles along rows and columns.
    tiles: [usize; 2],
    /// Rows and columns of zeros before the image.
    before: [usize; 2],
    channels: usize,
}

impl Patches {
    fn new(batch: u64, image: [u32; 2], out: [u32; 2], padding: [u32; 2], channels: u32) -> Patches {
        Patches {
            batch: batch as usize,
            image: image.map(|n| n as usize),
            tiles: out.map(|n| (n as usize).div_ceil(2)),
            before: padding.map(|n| n as usize),
            channels: channels as usize,
        }
    }

    fn count(&self) -> usize {
        self.batch * self.tiles[0] * self.tiles[1]
    }

    /// Image, first row and first column of a tile, in outputs.
    fn place(&self, tile: usize) -> [usize; 3] {
        let [rows, columns] = self.tiles;
        [tile / (rows * columns), tile / columns % rows * 2, tile % columns * 2]
    }

    /// Addresses of the 16 positions of a patch; `zeros` for those outside the image.
    fn of(&self, tile: usize, x: Ptr<f32>, zeros: Ptr<f32>) -> [Ptr<f32>; POINTS] {
        let [image, row, column] = self.place(tile);
        from_fn(|p| {
            let y = (row + p / 4).wrapping_sub(self.before[0]);
            let x_ = (column + p % 4).wrapping_sub(self.before[1]);
            if y < self.image[0] && x_ < self.image[1] {
                x.at(((image * self.image[0] + y) * self.image[1] + x_) * self.channels)
            } else {
                zeros
            }
        })
    }
}

/// 2x2 outputs of tiles in an image; fewer at its last row and column if its sides are odd.
#[derive(Clone, Copy)]
struct Outputs {
    image: [usize; 2],
    channels: usize,
}

impl Outputs {
    /// Addresses of the 4 positions of a tile; `None` outside the image.
    fn of(&self, [image, row, column]: [usize; 3], y: Ptr<f32>) -> [Option<Ptr<f32>>; 4] {
        from_fn(|p| {
            let (r, c) = (row + p / 2, column + p % 2);
            (r < self.image[0] && c < self.image[1])
                .then(|| y.at(((image * self.image[0] + r) * self.image[1] + c) * self.channels))
        })
    }
}

/// Numbers of [`LANES`] channels, computed at once: plain arrays, which the compiler keeps in vector registers.
#[derive(Clone, Copy)]
struct Lanes([f32; LANES]);

impl Lanes {
    /// Reads [`LANES`] channels.
    ///
    /// # Safety
    /// They lie in live memory that nothing writes.
    #[inline(always)]
    unsafe fn read(from: Ptr<f32>) -> Lanes {
        // SAFETY: the caller's promise.
        Lanes(unsafe { from.0.cast::<[f32; LANES]>().read() })
    }

    /// Writes them.
    ///
    /// # Safety
    /// They lie in live memory that nothing else touches.
    #[inline(always)]
    unsafe fn write(self, to: Ptr<f32>) {
        // SAFETY: the caller's promise.
        unsafe { to.0.cast::<[f32; LANES]>().write(self.0) }
    }

    #[inline(always)]
    fn half(mut self) -> Lanes {
        for x in &mut self.0 {
            *x *= 0.5;
        }
        self
    }
}

impl Add for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn add(mut self, other: Lanes) -> Lanes {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a += *b;
        }
        self
    }
}

impl Sub for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn sub(mut self, other: Lanes) -> Lanes {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a -= *b;
        }
        self
    }
}

impl Neg for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn neg(mut self) -> Lanes {
        for a in &mut self.0 {
            *a = -*a;
        }
        self
    }
}

/// B^T x along one dimension.
#[inline(always)]
fn input_1d([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
    [a - c, b + c, c - b, b - d]
}

/// G w along one dimension.
#[inline(always)]
fn filter_1d([a, b, c]: [Lanes; 3]) -> [Lanes; 4] {
    [a, (a + c + b).half(), (a + c - b).half(), c]
}

/// G^T u along one dimension.
#[inline(always)]
fn filter_gradient_1d([a, b, c, d]: [Lanes; 4]) -> [Lanes; 3] {
    [a + (b + c).half(), (b - c).half(), (b + c).half() + d]
}

/// A^T m along one dimension.
#[inline(always)]
fn output_1d([a, b, c, d]: [Lanes; 4]) -> [Lanes; 2] {
    [a + b + c, b - c - d]
}

/// A y along one dimension.
#[inline(always)]
fn output_gradient_1d([a, b]: [Lanes; 2]) -> [Lanes; 4] {
    [a, a + b, a - b, -b]
}

/// Reads a square and transforms it along its rows, then along its columns.
///
/// # Safety
/// The square is live memory of `c` channels and [`LANES`] more.
#[inline(always)]
unsafe fn both<const I: usize, const O: usize>(
    x: &[[Ptr<f32>; I]; I],
    c: usize,
    f: impl Fn([Lanes; I]) -> [Lanes; O],
) -> [[Lanes; O]; O] {
    const ZERO: Lanes = Lanes([0.0; LANES]);
    let mut half = [[ZERO; I]; O];
    for r in 0..I {
        let mut row = [ZERO; I];
        for k in 0..I {
            // SAFETY: the caller's promise.
            row[k] = unsafe { Lanes::read(x[r][k].at(c)) };
        }
        let row = f(row);
        for k in 0..O {
            half[k][r] = row[k];
        }
    }
    let mut out = [[ZERO; O]; O];
    for k in 0..O {
        let column = f(half[k]);
        for r in 0..O {
            out[r][k] = column[r];
        }
    }
    out
}

vectorized! {
    /// Transforms squares of `I` x `I` inputs, by channels, to squares of `O` x `O` outputs, each `apart` from the last.
    ///
    /// # Safety
    /// Inputs and outputs are live memory of `channels` channels, a multiple of [`LANES`]; nothing else touches the outputs.
    unsafe fn transform [const I: usize, const O: usize, F: Fn([Lanes; I]) -> [Lanes; O] + Copy]
        (x: &[[Ptr<f32>; I]; I], y: Ptr<f32>, apart: usize, channels: usize, f: F)
    {
        for c in (0..channels).step_by(LANES) {
            // SAFETY: c + LANES <= channels.
            unsafe {
                let square = both(x, c, f);
                for (p, out) in square.as_flattened().iter().enumerate() {
                    out.write(y.at(p * apart + c));
                }
            }
        }
    }
}

vectorized! {
    /// Transforms a square of products to 2x2 outputs, with the bias, or added to what they hold.
    ///
    /// # Safety
    /// As [`transform`]; outputs do not overlap anything else.
    unsafe fn finish [] (
        m: &[[Ptr<f32>; 4]; 4],
        y: &[Option<Ptr<f32>>; 4],
        bias: Option<Ptr<f32>>,
        accumulate: bool,
        channels: usize,
    ) {
        for c in (0..channels).step_by(LANES) {
            // SAFETY: c + LANES <= channels.
            unsafe {
                let square = both(m, c, output_1d);
                for r in 0..2 {
                    for k in 0..2 {
                        let Some(y) = y[2 * r + k] else { continue };
                        let mut out = square[r][k];
                        if let Some(bias) = bias {
                            out = out + Lanes::read(bias.at(c));
                        }
                        if accumulate {
                            out = out + Lanes::read(y.at(c));
                        }
                        out.write(y.at(c));
                    }
                }
            }
        }
    }
}

/// The 3x3 taps of a filter `[3][3][channels]`, rotated by half a turn or not.
fn taps(filter: Ptr<f32>, channels: usize, turned: bool) -> [[Ptr<f32>; 3]; 3] {
    from_fn(|r| from_fn(|c| filter.at(if turned { 8 - (3 * r + c) } else { 3 * r + c } * channels)))
}

/// The 4x4 points of a `[point]` array, each `apart` from the last.
fn points(first: Ptr<f32>, apart: usize) -> [[Ptr<f32>; 4]; 4] {
    from_fn(|r| from_fn(|c| first.at((4 * r + c) * apart)))
}

/// Division of a convolution into tasks: by tiles and by output channels.
pub(super) struct Work {
    patches: Patches,
    outputs: Outputs,
    /// Output channels of a task, and number of tasks that share them.
    width: usize,
    parts: usize,
    /// Tiles of a task.
    tiles: usize,
}

impl Work {
    fn new(patches: Patches, outputs: Outputs) -> Work {
        let width = (FILTERS / POINTS / patches.channels / LEAST_CHANNELS * LEAST_CHANNELS)
            .clamp(LEAST_CHANNELS, outputs.channels);
        let tiles = TILES.min(patches.count());
        Work { patches, outputs, width, parts: outputs.channels.div_ceil(width), tiles }
    }

    /// Returns the work of a forward convolution.
    pub fn forward(s: &ConvShape) -> Work {
        let outputs = Outputs { image: s.output.map(|n| n as usize), channels: s.out_channels as usize };
        Work::new(Patches::new(s.batch, s.input, s.output, s.window.padding, s.in_channels), outputs)
    }

    /// The input gradient as a forward pass over the output's gradient.
    pub fn backward(s: &ConvShape) -> Work {
        let outputs = Outputs { image: s.input.map(|n| n as usize), channels: s.in_channels as usize };
        let padding = s.window.padding.map(|p| 2 - p);
        Work::new(Patches::new(s.batch, s.output, s.input, padding, s.out_channels), outputs)
    }

    /// The filter gradient: a task has all tiles, so it takes fewer channels to serve many threads.
    pub fn filter(s: &ConvShape) -> Work {
        let mut work = Work::forward(s);
        work.width = work.width.min((work.outputs.channels / 2).next_multiple_of(LEAST_CHANNELS));
        work.parts = work.outputs.channels.div_ceil(work.width);
        work
    }

    /// Scratch of a lane: transformed patches, filters and outputs, and zeros.
    fn lane(&self) -> [usize; 4] {
        let depth = self.patches.channels;
        let points = |n: usize| lane_floats(POINTS * n);
        [
            points(self.tiles * depth),
            points(self.width * depth),
            points(self.tiles * self.width),
            lane_floats(depth.max(self.width)),
        ]
    }

    /// Floats of workspace.
    pub fn scratch(&self, lanes: usize) -> usize {
        lanes * self.lane().iter().sum::<usize>()
    }

    /// Transforms the patches of some tiles to `[point][tile][channel]`.
    ///
    /// # Safety
    /// As [`forward`]; `to` and `zeros` are the lane's.
    unsafe fn transform_patches(&self, tiles: Range<usize>, x: Ptr<f32>, to: Ptr<f32>, zeros: Ptr<f32>) {
        let depth = self.patches.channels;
        let apart = tiles.len() * depth;
        // SAFETY: the lane's own.
        unsafe { zeros.slice_mut(depth.max(self.width)).fill(0.0) };
        for (i, tile) in tiles.enumerate() {
            let p = self.patches.of(tile, x, zeros);
            let square: [[Ptr<f32>; 4]; 4] = from_fn(|r| from_fn(|c| p[4 * r + c]));
            // SAFETY: the caller's promise.
            unsafe { transform(&square, to.at(i * depth), apart, depth, input_1d) };
        }
    }
}

/// Splits a lane's scratch.
fn cut(work: &Work, scratch: Ptr<f32>, lane: usize) -> [Ptr<f32>; 4] {
    let lens = work.lane();
    let mut start = scratch.at(lane * lens.iter().sum::<usize>());
    lens.map(|len| {
        let part = start;
        start = start.at(len);
        part
    })
}

/// y = x * weight + bias.
///
/// # Safety
/// Live operands of a shape that [`serves`], which do not overlap, and the workspace.
pub(super) unsafe fn forward(shape: &ConvShape, run: &Run) {
    let [x, weight, y] = run.all(["x", "weight", "y"]);
    let work = Work::forward(shape);
    let depth = work.patches.channels;
    let filters = |channels: Range<usize>, to: Ptr<f32>| {
        let width = channels.len();
        for (i, filter) in channels.enumerate() {
            let taps = taps(weight.at(filter * 9 * depth), depth, false);
            // SAFETY: the caller's promise; `to` is the lane's.
            unsafe { transform(&taps, to.at(i * depth), width * depth, depth, filter_1d) };
        }
        Matrix::rows(to, depth).transposed()
    };
    // SAFETY: passed on.
    unsafe { convolve(&work, filters, [x, y], run.some("bias"), false, run) };
}

/// dx = dy * turned weight, or added to dx.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn backward_data(shape: &ConvShape, accumulate: bool, run: &Run) {
    let [dy, weight, dx] = run.all(["dy", "weight", "dx"]);
    let work = Work::backward(shape);
    let (depth, all) = (work.patches.channels, work.outputs.channels);
    let filters = |channels: Range<usize>, to: Ptr<f32>| {
        let width = channels.len();
        for filter in 0..depth {
            let taps = taps(weight.at(filter * 9 * all + channels.start), all, true);
            // SAFETY: the caller's promise; `to` is the lane's.
            unsafe { transform(&taps, to.at(filter * width), depth * width, width, filter_1d) };
        }
        Matrix::rows(to, width)
    };
    // SAFETY: passed on.
    unsafe { convolve(&work, filters, [dy, dx], None, accumulate, run) };
}

/// The common part of both: `filters` transforms the filters of some output channels, and returns the matrix
/// `[depth][channels]` of the first point; the others follow, each after `depth * channels` elements.
///
/// # Safety
/// As [`forward`].
unsafe fn convolve(
    work: &Work,
    filters: impl Fn(Range<usize>, Ptr<f32>) -> Matrix + Sync,
    [x, y]: [Ptr<f32>; 2],
    bias: Option<Ptr<f32>>,
    accumulate: bool,
    run: &Run,
) {
    let scratch = run.scratch;
    let (count, depth) = (work.patches.count(), work.patches.channels);
    run.threads.each(count.div_ceil(work.tiles) * work.parts, |task, lane| {
        let (block, part) = (task / work.parts, task % work.parts);
        let tiles = block * work.tiles..count.min((block + 1) * work.tiles);
        let channels = part * work.width..work.outputs.channels.min((part + 1) * work.width);
        let (height, width) = (tiles.len(), channels.len());
        let [patches, transformed, m, zeros] = cut(work, scratch, lane);
        // SAFETY: the caller's promise; each task writes its own outputs, and a lane has its own scratch.
        unsafe {
            work.transform_patches(tiles.clone(), x, patches, zeros);
            let filters = filters(channels.clone(), transformed);
            for point in 0..POINTS {
                let patches = Matrix::rows(patches.at(point * height * depth), depth);
                let filters = Matrix { at: filters.at.at(point * depth * width), ..filters };
                let m = Matrix::rows(m.at(point * height * width), width);
                product(false, [height, width, depth], m, patches, filters);
            }
            for (i, tile) in tiles.enumerate() {
                let m = points(m.at(i * width), height * width);
                let y = work.outputs.of(work.patches.place(tile), y.at(channels.start));
                finish(&m, &y, bias.map(|b| b.at(channels.start)), accumulate, width);
            }
        }
    });
}

/// dweight = sum over tiles of the products of transformed patches and transformed output gradients, transformed back; or
/// added to it.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn backward_filter(shape: &ConvShape, accumulate: bool, run: &Run) {
    let ([x, dy, dweight], scratch) = (run.all(["x", "dy", "dweight"]), run.scratch);
    let work = Work::filter(shape);
    let (count, depth) = (work.patches.count(), work.patches.channels);
    run.threads.each(work.parts, |part, lane| {
        let channels = part * work.width..work.outputs.channels.min((part + 1) * work.width);
        let width = channels.len();
        let [patches, sums, gradients, zeros] = cut(&work, scratch, lane);
        for start in (0..count).step_by(work.tiles) {
            let tiles = start..count.min(start + work.tiles);
            let height = tiles.len();
            // SAFETY: the caller's promise; each task writes its own filters, and a lane has its own scratch.
            unsafe {
                work.transform_patches(tiles.clone(), x, patches, zeros);
                for (i, tile) in tiles.enumerate() {
                    let p = work.outputs.of(work.patches.place(tile), dy.at(channels.start));
                    let p = p.map(|p| p.unwrap_or(zeros));
                    let square = [[p[0], p[1]], [p[2], p[3]]];
                    transform(&square, gradients.at(i * width), height * width, width, output_gradient_1d);
                }
                for point in 0..POINTS {
                    let patches = Matrix::rows(patches.at(point * height * depth), depth);
                    let gradients = Matrix::rows(gradients.at(point * height * width), width).transposed();
                    let sums = Matrix::rows(sums.at(point * width * depth), depth);
                    product(start > 0, [width, depth, height], sums, gradients, patches);
                }
            }
        }
        for (i, filter) in channels.enumerate() {
            let sums = points(sums.at(i * depth), width * depth);
            let dweight = dweight.at(filter * 9 * depth);
            // SAFETY: as above; the patches, of 16 points, are no longer needed.
            unsafe {
                if accumulate {
                    transform(&sums, patches, depth, depth, filter_gradient_1d);
                    map_rows([dweight, patches], [], dweight, 1, 9 * depth, |[old, new], []| old + new);
                } else {
                    transform(&sums, dweight, depth, depth, filter_gradient_1d);
                }
            }
        }
    });
}
