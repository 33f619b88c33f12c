//! Kernels that go through a tensor once: ReLU with its two gradients, dropout, sums, products, and the parts of a
//! concatenation.
//!
//! A tensor is cut into pieces of [`PIECE`] elements; a piece is one task, and fits a core's caches.
//!
//! Deliberately does not combine elements.

use super::Run;
use super::maps::Map;
use super::threads::Threads;
use super::vector::{Ptr, map_rows, vectorized};
use plimsoll_ir::philox::{philox4x32, unit_f32};

/// Elements of a task; a multiple of 8, so that no two tasks share a byte of a mask.
pub(super) const PIECE: usize = 1 << 14;

/// Calls `work(first element, count)` for the pieces of a tensor.
pub(super) fn pieces(elements: u64, threads: &Threads, work: impl Fn(usize, usize) + Sync) {
    pieces_with_lanes(elements, threads, |start, len, _| work(start, len));
}

/// [`pieces`], if a task uses its lane's own memory: calls `work(first element, count, lane)`.
pub(super) fn pieces_with_lanes(elements: u64, threads: &Threads, work: impl Fn(usize, usize, usize) + Sync) {
    let elements = elements as usize;
    threads.each(elements.div_ceil(PIECE), |task, lane| {
        let start = task * PIECE;
        work(start, PIECE.min(elements - start), lane);
    });
}

/// Calls `work(first row, rows, lane)` for tasks of about [`PIECE`] elements in rows of this width.
pub(super) fn tasks_of_rows(
    rows: usize,
    width: usize,
    threads: &Threads,
    work: impl Fn(usize, usize, usize) + Sync,
) {
    let of_task = (PIECE / width.max(1)).max(1);
    threads.each(rows.div_ceil(of_task), |task, lane| {
        let first = task * of_task;
        work(first, of_task.min(rows - first), lane);
    });
}

/// Elements of bf16 that are widened at once: a few of these arrays stay in a core's first cache.
const TILE: usize = 256;

/// `y = f(inputs)`, element by element; an input may be `y`.
///
/// # Safety
/// As [`map_rows`], for one row of all elements.
pub(super) unsafe fn map<const N: usize>(
    elements: u64,
    inputs: [Map; N],
    y: Map,
    threads: &Threads,
    f: impl Fn([f32; N]) -> f32 + Copy + Sync,
) {
    pieces(elements, threads, |start, len| {
        // SAFETY: the caller's promise, and pieces do not overlap.
        unsafe {
            match y {
                Map::F32(y) => {
                    let inputs = inputs.map(|input| input.place(start, 0));
                    map_rows(inputs, [], y.at(start), 1, len, move |x, []| f(x));
                }
                Map::Bf16 { .. } => map_tiles(inputs, y, start, len, f),
            }
        }
    });
}

/// `y = f(inputs)`, or added to y.
///
/// # Safety
/// As [`map`].
pub(super) unsafe fn map_or_add(
    elements: u64,
    accumulate: bool,
    [a, b]: [Map; 2],
    y: Map,
    threads: &Threads,
    f: impl Fn([f32; 2]) -> f32 + Copy + Sync,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if accumulate {
            map(elements, [a, b, y], y, threads, move |[a, b, y]| y + f([a, b]));
        } else {
            map(elements, [a, b], y, threads, f);
        }
    }
}

vectorized! {
    /// [`map`] for `len` elements of bf16 from `start` on.
    ///
    /// # Safety
    /// As [`map`].
    unsafe fn map_tiles [const N: usize, F: Fn([f32; N]) -> f32 + Copy]
        (inputs: [Map; N], y: Map, start: usize, len: usize, f: F)
    {
        let (mut from, mut to) = ([[0.0f32; TILE]; N], [0.0f32; TILE]);
        let end = start + len;
        for start in (start..end).step_by(TILE) {
            let len = TILE.min(end - start);
            // SAFETY: the caller's promise; a tile has `len` elements.
            unsafe {
                for (input, tile) in inputs.iter().zip(&mut from) {
                    input.copy_to(start, &mut tile[..len]);
                }
                for (i, to) in to[..len].iter_mut().enumerate() {
                    *to = f(std::array::from_fn(|n| from[n][i]));
                }
                y.copy_from(start, &to[..len]);
            }
        }
    }
}

/// min(max(x, 0), ceiling); NaN stays NaN, so that a run that diverged is noticed.
#[inline(always)]
pub(super) fn relu(x: f32, ceiling: f32) -> f32 {
    let above = if x <= 0.0 { 0.0 } else { x };
    if above >= ceiling { ceiling } else { above }
}

/// y = min(max(x, 0), ceiling).
///
/// # Safety
/// Live operands of that many elements; y may be x.
pub(super) unsafe fn relu_forward(elements: u64, ceiling: f32, run: &Run) {
    let [x, y] = run.maps(["x", "y"]);
    // SAFETY: the caller's promise.
    unsafe { map(elements, [x], y, run.threads, move |[x]| relu(x, ceiling)) };
}

/// dx = dy where 0 < y < ceiling.
///
/// # Safety
/// Live operands of that many elements; dx may be dy.
pub(super) unsafe fn relu_backward(elements: u64, ceiling: f32, accumulate: bool, run: &Run) {
    let [y, dy, dx] = run.maps(["y", "dy", "dx"]);
    let gradient = move |[y, dy]: [f32; 2]| if y > 0.0 && y < ceiling { dy } else { 0.0 };
    // SAFETY: the caller's promise.
    unsafe { map_or_add(elements, accumulate, [y, dy], dx, run.threads, gradient) };
}

/// y = a + b.
///
/// # Safety
/// Live operands of that many elements; y may be a or b.
pub(super) unsafe fn add(elements: u64, run: &Run) {
    let [a, b, y] = run.maps(["a", "b", "y"]);
    // SAFETY: the caller's promise.
    unsafe { map(elements, [a, b], y, run.threads, |[a, b]| a + b) };
}

/// y = a * b, or added to y.
///
/// # Safety
/// Live operands of that many elements; y may be a.
pub(super) unsafe fn multiply(elements: u64, accumulate: bool, run: &Run) {
    let [a, b, y] = run.maps(["a", "b", "y"]);
    // SAFETY: the caller's promise.
    unsafe { map_or_add(elements, accumulate, [a, b], y, run.threads, |[a, b]| a * b) };
}

vectorized! {
    /// y = min(max(x, 0), ceiling) and one bit an element, for `len` elements from a byte's first bit on.
    ///
    /// # Safety
    /// Live operands of that many elements, which nothing else touches; y may be x.
    unsafe fn mask_and_clip [](ceiling: f32, x: Ptr<f32>, y: Ptr<f32>, mask: Ptr<u8>, len: usize) {
        let whole = len / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: i + 8 <= len.
            unsafe {
                let v = x.at(i).0.cast::<[f32; 8]>().read();
                let mut bits = 0;
                for (l, v) in v.iter().enumerate() {
                    bits |= u8::from(*v > 0.0 && *v < ceiling) << l;
                }
                y.at(i).0.cast::<[f32; 8]>().write(v.map(|v| relu(v, ceiling)));
                mask.at(i / 8).set(bits);
            }
        }
        if whole < len {
            let mut bits = 0;
            for i in whole..len {
                // SAFETY: i < len.
                unsafe {
                    let v = x.at(i).get();
                    bits |= u8::from(v > 0.0 && v < ceiling) << (i - whole);
                    y.at(i).set(relu(v, ceiling));
                }
            }
            // SAFETY: the mask has a byte for every 8 elements begun.
            unsafe { mask.at(whole / 8).set(bits) };
        }
    }
}

vectorized! {
    /// dx = dy where the bit is set, else 0, or added to dx; for `len` elements from a byte's first bit on.
    ///
    /// # Safety
    /// Live operands of that many elements, which nothing else touches; dx may be dy.
    unsafe fn pass_where_set [](accumulate: bool, mask: Ptr<u8>, dy: Ptr<f32>, dx: Ptr<f32>, len: usize) {
        let whole = len / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: i + 8 <= len.
            unsafe {
                let bits = mask.at(i / 8).get();
                let v = dy.at(i).0.cast::<[f32; 8]>().read();
                let mut out = if accumulate { dx.at(i).0.cast::<[f32; 8]>().read() } else { [0.0; 8] };
                for l in 0..8 {
                    out[l] += if bits & (1 << l) != 0 { v[l] } else { 0.0 };
                }
                dx.at(i).0.cast::<[f32; 8]>().write(out);
            }
        }
        for i in whole..len {
            // SAFETY: i < len.
            unsafe {
                let old = if accumulate { dx.at(i).get() } else { 0.0 };
                let set = mask.at(i / 8).get() & (1 << (i % 8)) != 0;
                dx.at(i).set(old + if set { dy.at(i).get() } else { 0.0 });
            }
        }
    }
}

vectorized! {
    /// Mask of the elements with 0 < y < ceiling, for `len` elements from a byte's first bit on.
    ///
    /// # Safety
    /// Live operands of that many elements, which nothing else writes.
    pub(super) unsafe fn mask_of [](ceiling: f32, y: Ptr<f32>, mask: Ptr<u8>, len: usize) {
        for start in (0..len).step_by(8) {
            let mut bits = 0;
            for l in 0..8.min(len - start) {
                // SAFETY: start + l < len, and the mask has a byte for every 8 elements begun.
                let v = unsafe { y.at(start + l).get() };
                bits |= u8::from(v > 0.0 && v < ceiling) << l;
            }
            // SAFETY: as above.
            unsafe { mask.at(start / 8).set(bits) };
        }
    }
}

/// dx = dy where the bit is set, else 0, for `len` elements whose first has the number `start` in the mask.
///
/// # Safety
/// Live operands of that many elements, which nothing else writes; dx may be dy.
pub(super) unsafe fn pass_where_set_from(
    start: usize,
    mask: Ptr<u8>,
    dy: Ptr<f32>,
    dx: Ptr<f32>,
    len: usize,
) {
    let head = (start.next_multiple_of(8) - start).min(len);
    // SAFETY: the caller's promise; the rest begins with a byte of the mask.
    unsafe {
        for i in 0..head {
            let set = mask.at((start + i) / 8).get() & (1 << ((start + i) % 8)) != 0;
            dx.at(i).set(0.0 + if set { dy.at(i).get() } else { 0.0 });
        }
        pass_where_set(false, mask.at((start + head) / 8), dy.at(head), dx.at(head), len - head);
    }
}

/// y = min(max(x, 0), ceiling), and the mask of the elements with 0 < x < ceiling.
///
/// # Safety
/// Live operands of that many elements; y may be x.
pub(super) unsafe fn relu_mask_forward(elements: u64, ceiling: f32, run: &Run) {
    let ([x, y], mask) = (run.all(["x", "y"]), run.at::<u8>("mask"));
    pieces(elements, run.threads, |i, len| {
        // SAFETY: the caller's promise; pieces share neither elements nor bytes of the mask.
        unsafe { mask_and_clip(ceiling, x.at(i), y.at(i), mask.at(i / 8), len) };
    });
}

/// dx = dy where the bit is set, else 0.
///
/// # Safety
/// Live operands of that many elements; dx may be dy.
pub(super) unsafe fn relu_mask_backward(elements: u64, accumulate: bool, run: &Run) {
    let ([dy, dx], mask) = (run.all(["dy", "dx"]), run.at::<u8>("mask"));
    pieces(elements, run.threads, |i, len| {
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe { pass_where_set(accumulate, mask.at(i / 8), dy.at(i), dx.at(i), len) };
    });
}

/// Parameters of a dropout.
pub(super) struct Dropout {
    pub elements: u64,
    /// Probability that an element is dropped.
    pub probability: f32,
    /// Number of the layer among those that draw.
    pub stream: u32,
}

/// y = x / (1 - p) where kept, else 0, or added to y. Forward and backward are the same map, drawn from one counter.
///
/// # Safety
/// `hyper` holds [`plimsoll_ir::program::Hyper`]; live operands of that many elements; y may be x.
pub(super) unsafe fn dropout(drop: &Dropout, accumulate: bool, [x, y]: [Map; 2], run: &Run) {
    let hyper = run.at::<u32>("hyper");
    // SAFETY: the caller's promise; seed low, seed high and step are the first three words.
    let [low, high, step] = unsafe { [0, 1, 2].map(|word| hyper.at(word).get()) };
    let seed = u64::from(high) << 32 | u64::from(low);
    let &Dropout { elements, probability, stream } = drop;
    let scale = 1.0 / (1.0 - probability);
    let words = move |block: u64| philox4x32(seed, [block as u32, (block >> 32) as u32, step, stream]);
    let each = move |start: usize, len: usize, x: Ptr<f32>, y: Ptr<f32>| {
        for first in (0..len).step_by(4) {
            for (i, word) in (first..len).zip(words(((start + first) / 4) as u64)) {
                // SAFETY: i < len, and pieces do not overlap.
                unsafe {
                    let kept = if unit_f32(word) < probability { 0.0 } else { x.at(i).get() * scale };
                    y.at(i).set(if accumulate { y.at(i).get() + kept } else { kept });
                }
            }
        }
    };
    pieces_with_lanes(elements, run.threads, |start, len, lane| {
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe {
            let (from, to) = (x.read(start, len, lane), y.read_if(accumulate, start, len, lane));
            each(start, len, from, to);
            y.store(start, len, lane);
        }
    });
}

/// Channels `first..first + channels` of rows of `total` channels.
pub(super) struct Part {
    /// Rows of either tensor.
    pub rows: u64,
    pub channels: u64,
    /// The part's first channel in the whole.
    pub first: u64,
    /// Channels of the whole.
    pub total: u64,
}

impl Part {
    /// Calls `work(element of the part, element of the whole)` with the first elements of each row.
    fn rows(&self, threads: &Threads, work: impl Fn(usize, usize) + Sync) {
        let [rows, channels, first, total] =
            [self.rows, self.channels, self.first, self.total].map(|n| n as usize);
        tasks_of_rows(rows, channels, threads, |start, count, _| {
            (start..start + count).for_each(|row| work(row * channels, row * total + first));
        });
    }
}

/// Copies x to its channels of y.
///
/// # Safety
/// x has the part's elements, y the whole's, and they do not overlap.
pub(super) unsafe fn concat_part(part: &Part, run: &Run) {
    let [x, y] = run.all(["x", "y"]);
    part.rows(run.threads, |of_part, of_whole| {
        // SAFETY: the caller's promise; rows do not overlap.
        unsafe { x.at(of_part).0.copy_to_nonoverlapping(y.at(of_whole).0, part.channels as usize) };
    });
}

/// Copies its channels of dy to dx, or adds them.
///
/// # Safety
/// dx has the part's elements, dy the whole's, and they do not overlap.
pub(super) unsafe fn split_part(part: &Part, accumulate: bool, run: &Run) {
    let [dy, dx] = run.all(["dy", "dx"]);
    let channels = part.channels as usize;
    part.rows(run.threads, |of_part, of_whole| {
        // SAFETY: the caller's promise; rows do not overlap.
        unsafe {
            let (dx, dy) = (dx.at(of_part), dy.at(of_whole));
            if accumulate {
                map_rows([dx, dy], [], dx, 1, channels, |[a, b], []| a + b);
            } else {
                dy.0.copy_to_nonoverlapping(dx.0, channels);
            }
        }
    });
}
