//! Max and average pooling, forward and backward.
//!
//! Backward is a gather: each input position reads the windows that cover it, so tasks write their own places and sums have
//! one order.
//!
//! Deliberately does not keep the input for max pooling's gradient; one byte an output suffices.

use super::Run;
use super::threads::Threads;
use super::vector::{Ptr, map_rows, vectorized};
use plimsoll_ir::network::Window;
use plimsoll_ir::program::PoolShape;

/// Input position under a window's tap along one dimension; `None` in the padding.
fn tap_input(window: &Window, d: usize, output: usize, tap: usize, input: usize) -> Option<usize> {
    (output * window.stride[d] as usize + tap * window.dilation[d] as usize)
        .checked_sub(window.padding[d] as usize)
        .filter(|i| *i < input)
}

/// Output whose window has this tap over an input position along one dimension, if there is one.
fn tap_output(window: &Window, d: usize, input: usize, tap: usize, output: usize) -> Option<usize> {
    let reach = (input + window.padding[d] as usize).checked_sub(tap * window.dilation[d] as usize)?;
    let stride = window.stride[d] as usize;
    (reach.is_multiple_of(stride) && reach / stride < output).then_some(reach / stride)
}

/// A [`PoolShape`] in the number types that loops use.
struct Grid<'a> {
    window: &'a Window,
    size: [usize; 2],
    input: [usize; 2],
    output: [usize; 2],
    channels: usize,
    batch: usize,
}

impl<'a> Grid<'a> {
    fn of(shape: &'a PoolShape) -> Grid<'a> {
        Grid {
            window: &shape.window,
            size: shape.window.size.map(|n| n as usize),
            input: shape.input.map(|n| n as usize),
            output: shape.output.map(|n| n as usize),
            channels: shape.channels as usize,
            batch: shape.batch as usize,
        }
    }

    /// Calls `work(element of y, taps)` for each output position; taps are pairs of number and element of x, in order.
    fn outputs(&self, threads: &Threads, work: impl Fn(usize, &mut Taps) + Sync) {
        self.positions([self.output, self.input], tap_input, threads, work);
    }

    /// Calls `work(element of x, taps)` for each input position; taps are pairs of number and element of y, in order.
    fn inputs(&self, threads: &Threads, work: impl Fn(usize, &mut Taps) + Sync) {
        self.positions([self.input, self.output], tap_output, threads, work);
    }

    /// Calls `work(element, taps)` for each position of one side, with the elements of the other side; `at` gives a place
    /// there from the dimension, a place on this side, a tap, and the size of the other side.
    #[inline(always)]
    fn positions(
        &self,
        [own, other]: [[usize; 2]; 2],
        at: impl Fn(&Window, usize, usize, usize, usize) -> Option<usize> + Copy + Sync,
        threads: &Threads,
        work: impl Fn(usize, &mut Taps) + Sync,
    ) {
        let [height, width] = own;
        threads.each(self.batch * height, |task, _| {
            let (image, y) = (task / height, task % height);
            for x in 0..width {
                let rows =
                    (0..self.size[0]).filter_map(|row| Some((row, at(self.window, 0, y, row, other[0])?)));
                let mut taps = rows.flat_map(|(row, other_y)| {
                    (0..self.size[1]).filter_map(move |column| {
                        let other_x = at(self.window, 1, x, column, other[1])?;
                        let position = (image * other[0] + other_y) * other[1] + other_x;
                        Some((row * self.size[1] + column, position * self.channels))
                    })
                });
                work((task * width + x) * self.channels, &mut taps);
            }
        });
    }
}

/// Taps of a window, as pairs of number and element.
type Taps<'a> = dyn Iterator<Item = (usize, usize)> + 'a;

vectorized! {
    /// Stores x and its tap where x is larger than y; NaN counts as larger than all.
    ///
    /// # Safety
    /// Live memory of `channels` channels, not overlapping, that nothing else touches.
    unsafe fn keep_larger [](x: Ptr<f32>, y: Ptr<f32>, places: Ptr<u8>, tap: u8, channels: usize) {
        // SAFETY: the caller's promise.
        let (x, y, places) = unsafe { (x.slice(channels), y.slice_mut(channels), places.slice_mut(channels)) };
        for ((x, y), place) in x.iter().zip(y).zip(places) {
            let larger = *x > *y || x.is_nan();
            *y = if larger { *x } else { *y };
            *place = if larger { tap } else { *place };
        }
    }
}

vectorized! {
    /// Adds dy to dx where the place is this tap.
    ///
    /// # Safety
    /// Live memory of `channels` channels, not overlapping, that nothing else touches.
    unsafe fn add_where [](places: Ptr<u8>, dy: Ptr<f32>, dx: Ptr<f32>, tap: u8, channels: usize) {
        // SAFETY: the caller's promise.
        let (places, dy, dx) = unsafe { (places.slice(channels), dy.slice(channels), dx.slice_mut(channels)) };
        for ((place, dy), dx) in places.iter().zip(dy).zip(dx) {
            *dx += if *place == tap { *dy } else { 0.0 };
        }
    }
}

/// y = the largest of each window, places = its tap, the first of equals. A window that lies wholly in the padding gives
/// minus infinity.
///
/// # Safety
/// Live operands of the shape that do not overlap.
pub(super) unsafe fn max_forward(shape: &PoolShape, run: &Run) {
    let ([x, y], places) = (run.all(["x", "y"]), run.at::<u8>("places"));
    let grid = Grid::of(shape);
    grid.outputs(run.threads, |out, taps| {
        let (y, places, c) = (y.at(out), places.at(out), grid.channels);
        // SAFETY: the caller's promise; output positions do not overlap.
        unsafe {
            match taps.next() {
                Some((tap, i)) => {
                    x.at(i).0.copy_to_nonoverlapping(y.0, c);
                    places.0.write_bytes(tap as u8, c);
                }
                None => {
                    y.slice_mut(c).fill(f32::NEG_INFINITY);
                    places.0.write_bytes(0, c);
                }
            }
            for (tap, i) in taps {
                keep_larger(x.at(i), y, places, tap as u8, c);
            }
        }
    });
}

/// dx = the dy of the windows in which x was the largest.
///
/// # Safety
/// Live operands of the shape that do not overlap.
pub(super) unsafe fn max_backward(shape: &PoolShape, accumulate: bool, run: &Run) {
    let ([dy, dx], places) = (run.all(["dy", "dx"]), run.at::<u8>("places"));
    let grid = Grid::of(shape);
    grid.inputs(run.threads, |input, taps| {
        let (dx, c) = (dx.at(input), grid.channels);
        // SAFETY: the caller's promise; input positions do not overlap.
        unsafe {
            if !accumulate {
                dx.slice_mut(c).fill(0.0);
            }
            for (tap, i) in taps {
                add_where(places.at(i), dy.at(i), dx, tap as u8, c);
            }
        }
    });
}

/// y = the mean of each window, padding counted as zeros.
///
/// # Safety
/// Live operands of the shape that do not overlap.
pub(super) unsafe fn avg_forward(shape: &PoolShape, run: &Run) {
    let [x, y] = run.all(["x", "y"]);
    let grid = Grid::of(shape);
    let share = 1.0 / (grid.size[0] * grid.size[1]) as f32;
    grid.outputs(run.threads, |out, taps| {
        let (y, c) = (y.at(out), grid.channels);
        // SAFETY: the caller's promise; output positions do not overlap.
        unsafe {
            y.slice_mut(c).fill(0.0);
            for (_, i) in taps {
                map_rows([y, x.at(i)], [], y, 1, c, |[y, x], []| y + x);
            }
            map_rows([y], [], y, 1, c, move |[y], []| y * share);
        }
    });
}

/// dx = the shares of the windows that cover it.
///
/// # Safety
/// Live operands of the shape that do not overlap.
pub(super) unsafe fn avg_backward(shape: &PoolShape, accumulate: bool, run: &Run) {
    let [dy, dx] = run.all(["dy", "dx"]);
    let grid = Grid::of(shape);
    let share = 1.0 / (grid.size[0] * grid.size[1]) as f32;
    grid.inputs(run.threads, |input, taps| {
        let (dx, c) = (dx.at(input), grid.channels);
        // SAFETY: the caller's promise; input positions do not overlap.
        unsafe {
            if !accumulate {
                dx.slice_mut(c).fill(0.0);
            }
            for (_, i) in taps {
                map_rows([dx, dy.at(i)], [], dx, 1, c, move |[dx, dy], []| dx + dy * share);
            }
        }
    });
}
