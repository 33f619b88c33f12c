//! Products with a scale: element by element, of each channel, or of each channel of each sample; and the scale's gradient.
//!
//! The gradient of a scale is a sum over the positions of its group. These are cut into chunks, each summed by one task, and
//! the chunks' sums are added in their order, in f64.
//!
//! What it deliberately does not do: products of matrices.

use super::elementwise::{PIECE, map};
use super::maps::Map;
use super::threads::Threads;
use super::vector::{Ptr, map_rows, sum_rows};
use plimsoll_ir::program::ScaleShape;

/// A [`ScaleShape`] in the numbers that loops use, and how the rows of a group are cut.
#[derive(Clone, Copy)]
struct Chunks {
    groups: usize,
    rows: usize,
    channels: usize,
    rows_of_chunk: usize,
}

impl Chunks {
    fn of(shape: &ScaleShape) -> Chunks {
        let [groups, rows, channels] = [shape.groups, shape.rows, shape.channels].map(|n| n as usize);
        Chunks { groups, rows, channels, rows_of_chunk: (PIECE / channels.max(1)).max(8) }
    }

    /// Chunks of a group.
    fn count(self) -> usize {
        self.rows.div_ceil(self.rows_of_chunk)
    }

    /// Calls `work(chunk among all, group, first element, rows)` for each.
    fn each(self, threads: &Threads, work: impl Fn(usize, usize, usize, usize) + Sync) {
        threads.each(self.groups * self.count(), |chunk, _| {
            let (group, of_group) = (chunk / self.count(), chunk % self.count());
            let first = of_group * self.rows_of_chunk;
            let rows = self.rows_of_chunk.min(self.rows - first);
            work(chunk, group, (group * self.rows + first) * self.channels, rows);
        });
    }
}

/// y = x * scale, or added to what y holds. `inputs` is x, scale.
///
/// # Safety
/// Live operands of the shape; y may be x.
pub(super) unsafe fn multiply(
    shape: &ScaleShape,
    accumulate: bool,
    [x, scale]: [Ptr<f32>; 2],
    y: Ptr<f32>,
    threads: &Threads,
) {
    if shape.rows == 1 {
        // As long as there is one row in a group, the scale goes along with what it scales.
        let elements = shape.groups * shape.channels;
        // SAFETY: the caller's promise.
        return unsafe {
            let [x, scale, y] = [x, scale, y].map(Map::F32);
            if accumulate {
                map(elements, [x, scale, y], y, threads, |[x, s, y]| y + x * s);
            } else {
                map(elements, [x, scale], y, threads, |[x, s]| x * s);
            }
        };
    }
    let chunks = Chunks::of(shape);
    let c = chunks.channels;
    chunks.each(threads, |_, group, start, rows| {
        let (x, y, scale) = (x.at(start), y.at(start), scale.at(group * c));
        // SAFETY: the caller's promise; chunks do not overlap.
        unsafe {
            if accumulate {
                map_rows([x, y], [scale], y, rows, c, |[x, y], [s]| y + x * s);
            } else {
                map_rows([x], [scale], y, rows, c, |[x], [s]| x * s);
            }
        }
    });
}

/// Floats of workspace for [`sums`]: the sums of each chunk.
pub(super) fn sums_scratch(shape: &ScaleShape) -> usize {
    let chunks = Chunks::of(shape);
    chunks.groups * chunks.count() * chunks.channels
}

/// dscale = the sums of x * dy over the rows of each group, or added to dscale. `inputs` is x, dy.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn sums(
    shape: &ScaleShape,
    accumulate: bool,
    [x, dy]: [Ptr<f32>; 2],
    dscale: Ptr<f32>,
    scratch: Ptr<f32>,
    threads: &Threads,
) {
    let chunks = Chunks::of(shape);
    let c = chunks.channels;
    chunks.each(threads, |chunk, _, start, rows| {
        // SAFETY: the caller's promise; each chunk writes sums of its own.
        unsafe {
            sum_rows([x.at(start), dy.at(start)], [], scratch.at(chunk * c), rows, c, |[x, dy], []| x * dy);
        }
    });
    threads.each(chunks.groups, |group, _| {
        let parts = scratch.at(group * chunks.count() * c);
        for channel in 0..c {
            // SAFETY: written by the tasks above, which are done.
            let part = |k: usize| f64::from(unsafe { parts.at(k * c + channel).get() });
            let sum = (0..chunks.count()).map(part).sum::<f64>() as f32;
            let to = dscale.at(group * c + channel);
            // SAFETY: the caller's promise; a group is one task's.
            unsafe { to.set(if accumulate { to.get() + sum } else { sum }) };
        }
    });
}
