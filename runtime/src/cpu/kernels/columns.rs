//! A convolution's input as a matrix: one row for each output position, one column for each weight of a filter.
//!
//! The matrix never exists as a whole: kernels request some of its rows, and the columns of some kernel rows, and get them
//! in cache-sized scratch memory. With channels innermost, a row of the window is one run of memory.
//!
//! Deliberately does not multiply.

use super::vector::{Ptr, vectorized};
use plimsoll_ir::program::ConvShape;
use std::ops::Range;

/// The matrix of one group of a convolution.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Rows and columns of the window.
    pub taps: [usize; 2],
    /// Channels of the group.
    pub depth: usize,
    input: [usize; 2],
    output: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    /// Channels of the whole input.
    channels: usize,
    /// The group's first channel.
    first: usize,
}

/// A run of a matrix row: zeros (padding), or consecutive elements of the input.
struct Run {
    /// Column, counted from the first of the requested columns.
    column: usize,
    len: usize,
    /// First input element; `None` in the padding.
    element: Option<usize>,
}

impl Columns {
    /// Matrix of group number `group`.
    pub fn of(shape: &ConvShape, group: usize) -> Columns {
        let both = |n: [u32; 2]| n.map(|n| n as usize);
        let depth = (shape.in_channels / shape.groups) as usize;
        Columns {
            taps: both(shape.window.size),
            depth,
            input: both(shape.input),
            output: both(shape.output),
            stride: both(shape.window.stride),
            padding: both(shape.window.padding),
            dilation: both(shape.window.dilation),
            channels: shape.in_channels as usize,
            first: group * depth,
        }
    }

    /// Columns of one row of the window.
    pub fn of_kernel_row(&self) -> usize {
        self.taps[1] * self.depth
    }

    /// Returns `true` if the matrix is the input itself, with rows of all its channels.
    pub fn is_input(&self) -> bool {
        self.taps == [1, 1] && self.stride == [1, 1] && self.padding == [0, 0]
    }

    /// Calls `each` with the runs that make up some kernel rows of one matrix row, from the first column to the last.
    #[inline(always)]
    fn runs(&self, row: usize, kernel_rows: Range<usize>, mut each: impl FnMut(Run)) {
        let [height, width] = self.output;
        let (image, oy, ox) = (row / (height * width), row / width % height, row % width);
        let step = self.dilation[1] * self.channels;
        // Taps of the window that lie in the image's columns; the same for all kernel rows.
        let left = ox * self.stride[1];
        let low = self.padding[1].saturating_sub(left).div_ceil(self.dilation[1]).min(self.taps[1]);
        let room = (self.input[1] + self.padding[1]).saturating_sub(left).div_ceil(self.dilation[1]);
        let high = room.min(self.taps[1]).max(low);
        let dense = self.depth == step;
        for (k, ky) in kernel_rows.enumerate() {
            let column = k * self.of_kernel_row();
            let down = oy * self.stride[0] + ky * self.dilation[0];
            let iy = down.wrapping_sub(self.padding[0]);
            if iy >= self.input[0] {
                each(Run { column, len: self.of_kernel_row(), element: None });
                continue;
            }
            each(Run { column, len: low * self.depth, element: None });
            if high > low {
                let ix = left + low * self.dilation[1] - self.padding[1];
                let start = ((image * self.input[0] + iy) * self.input[1] + ix) * self.channels + self.first;
                if dense {
                    let column = column + low * self.depth;
                    each(Run { column, len: (high - low) * self.depth, element: Some(start) });
                } else {
                    for tap in low..high {
                        let element = Some(start + (tap - low) * step);
                        each(Run { column: column + tap * self.depth, len: self.depth, element });
                    }
                }
            }
            each(Run {
                column: column + high * self.depth,
                len: (self.taps[1] - high) * self.depth,
                element: None,
            });
        }
    }
}

vectorized! {
    /// Writes some rows of the matrix, with the columns of some kernel rows, one row after another (im2col).
    ///
    /// # Safety
    /// `x` is the whole input; `matrix` has room, and nothing else touches it.
    pub(super) unsafe fn gather []
        (columns: &Columns, rows: Range<usize>, kernel_rows: Range<usize>, x: Ptr<f32>, matrix: Ptr<f32>)
    {
        let wide = kernel_rows.len() * columns.of_kernel_row();
        for (r, row) in rows.enumerate() {
            let matrix = matrix.at(r * wide);
            columns.runs(row, kernel_rows.clone(), |run| {
                let to = matrix.at(run.column);
                // SAFETY: runs lie in the row and in the input; the caller's promise.
                unsafe {
                    match run.element {
                        Some(element) => x.at(element).0.copy_to_nonoverlapping(to.0, run.len),
                        None => to.slice_mut(run.len).fill(0.0),
                    }
                }
            });
        }
    }
}

vectorized! {
    /// Adds some rows of the matrix, all columns, to the elements that they came from (col2im).
    ///
    /// # Safety
    /// `x` is the whole input, and nothing else touches its images of the rows; `matrix` holds the rows.
    pub(super) unsafe fn scatter_add [](columns: &Columns, rows: Range<usize>, matrix: Ptr<f32>, x: Ptr<f32>) {
        let wide = columns.taps[0] * columns.of_kernel_row();
        for (r, row) in rows.enumerate() {
            let matrix = matrix.at(r * wide);
            columns.runs(row, 0..columns.taps[0], |run| {
                if let Some(element) = run.element {
                    // SAFETY: runs lie in the row and in the input, which do not overlap; the caller's promise.
                    let (from, to) = unsafe { (matrix.at(run.column).slice(run.len), x.at(element).slice_mut(run.len)) };
                    for (to, from) in to.iter_mut().zip(from) {
                        *to += *from;
                    }
                }
            });
        }
    }
}
