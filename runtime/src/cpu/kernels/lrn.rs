//! Local response normalisation across channels (AlexNet §3.3) and its gradient.
//!
//! With d = bias + alpha / size * (sum of x^2 over the neighbourhood): y = x * d^-beta, and
//! dx = dy * d^-beta - 2 alpha beta / size * x * (sum of dy * x * d^(-beta - 1) over the neighbourhood).
//!
//! Deliberately does not keep d between forward and backward: recomputing it is cheaper than its memory.

use super::Run;
use super::elementwise::tasks_of_rows;
use super::threads::Threads;
use plimsoll_ir::program::RowShape;

/// Numbers of the layer, named as in [`plimsoll_ir::network::LayerKind::Lrn`].
#[derive(Clone, Copy)]
pub(super) struct Lrn {
    pub size: u32,
    pub alpha: f32,
    pub beta: f32,
    pub bias: f32,
}

impl Lrn {
    /// Sum of f over the neighbourhood of a channel; cut at the first and last channel.
    fn around(&self, channel: usize, channels: usize, f: impl Fn(usize) -> f32) -> f32 {
        let reach = self.size as usize / 2;
        (channel.saturating_sub(reach)..channels.min(channel + reach + 1)).map(f).sum()
    }

    /// d of a channel.
    fn divisor(&self, x: &[f32], channel: usize) -> f32 {
        self.bias + self.alpha / self.size as f32 * self.around(channel, x.len(), |c| x[c] * x[c])
    }

    /// d^-beta; 0.75 is the common value, and two roots are much faster than a power.
    fn power(&self, d: f32) -> f32 {
        if self.beta == 0.75 { 1.0 / (d.sqrt() * d.sqrt().sqrt()) } else { d.powf(-self.beta) }
    }
}

/// Calls `work(first element of the row, lane)` for each row.
fn rows(shape: &RowShape, threads: &Threads, work: impl Fn(usize, usize) + Sync) {
    let [rows, channels] = [shape.rows, shape.channels].map(|n| n as usize);
    tasks_of_rows(rows, channels, threads, |first, count, lane| {
        (first..first + count).for_each(|row| work(row * channels, lane));
    });
}

/// y = x * d^-beta.
///
/// # Safety
/// Live operands of the shape that do not overlap.
pub(super) unsafe fn forward(shape: &RowShape, lrn: &Lrn, run: &Run) {
    let [x, y] = run.all(["x", "y"]);
    let channels = shape.channels as usize;
    rows(shape, run.threads, |start, _| {
        // SAFETY: the caller's promise; rows do not overlap.
        let (x, y) = unsafe { (x.at(start).slice(channels), y.at(start).slice_mut(channels)) };
        for c in 0..channels {
            y[c] = x[c] * lrn.power(lrn.divisor(x, c));
        }
    });
}

/// Floats of workspace: d^-beta and dy * x * d^(-beta - 1) of a row, for each lane.
pub(super) fn backward_scratch(shape: &RowShape, lanes: usize) -> usize {
    2 * shape.channels as usize * lanes
}

/// dx, or dx added to what it holds.
///
/// # Safety
/// Live operands of the shape that do not overlap, and the workspace.
pub(super) unsafe fn backward(shape: &RowShape, lrn: &Lrn, accumulate: bool, run: &Run) {
    let ([x, dy, dx], scratch) = (run.all(["x", "dy", "dx"]), run.scratch);
    let channels = shape.channels as usize;
    let factor = 2.0 * lrn.alpha * lrn.beta / lrn.size as f32;
    rows(shape, run.threads, |start, lane| {
        // SAFETY: the caller's promise; rows do not overlap, and a lane has its own scratch.
        let (x, dy, dx, scratch) = unsafe {
            (
                x.at(start).slice(channels),
                dy.at(start).slice(channels),
                dx.at(start).slice_mut(channels),
                scratch.at(2 * channels * lane).slice_mut(2 * channels),
            )
        };
        let (power, product) = scratch.split_at_mut(channels);
        for c in 0..channels {
            let d = lrn.divisor(x, c);
            power[c] = lrn.power(d);
            product[c] = dy[c] * x[c] * power[c] / d;
        }
        for c in 0..channels {
            let gradient = dy[c] * power[c] - factor * x[c] * lrn.around(c, channels, |j| product[j]);
            dx[c] = if accumulate { dx[c] + gradient } else { gradient };
        }
    });
}
