//! A step of a long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gates of Gers et al. 2000): the
//! element-wise part after the matrix products of the gates, and its gradient.
//!
//! With the gates' activations i, f, g, o: cell = f * previous + i * g and h = o * tanh(cell). Backward, with t = tanh(cell)
//! and d = dcell + dh * o * (1 - t^2), the gradient of the cell: the gates' activations get d * g, d * previous, d * i and
//! dh * t, each times the slope of its function, which follows from its value; the previous cell gets d * f. tanh(cell) is
//! recomputed, since that is cheaper than keeping it.
//!
//! Deliberately does not compute the products, which are convolutions, or keep a state from one iteration to the next.

use super::Run;
use super::elementwise::tasks_of_rows;
use super::exponential::{sigmoid, tanh};
use super::vector::{Ptr, map_row, vectorized};
use plimsoll_ir::program::RowShape;

/// The four gates of a row.
fn gates(row: Ptr<f32>, channels: usize) -> [Ptr<f32>; 4] {
    [row, row.at(channels), row.at(2 * channels), row.at(3 * channels)]
}

vectorized! {
    /// Some rows of [`forward`]; `outputs` is h, cell, activated.
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; activated may be gates.
    unsafe fn forward_rows [](x: Ptr<f32>, previous: Option<Ptr<f32>>, outputs: [Ptr<f32>; 3], rows: usize, channels: usize) {
        let step = |gates: [f32; 4], previous: f32| {
            let [i, f, o] = [gates[0], gates[1], gates[3]].map(sigmoid);
            let g = tanh(gates[2]);
            let cell = f * previous + i * g;
            [o * tanh(cell), cell, i, f, g, o]
        };
        for row in 0..rows {
            let start = row * channels;
            let [h, cell] = [outputs[0], outputs[1]].map(|p| p.at(start));
            let [i, f, g, o] = gates(x.at(4 * start), channels);
            let [ai, af, ag, ao] = gates(outputs[2].at(4 * start), channels);
            let outputs = [h, cell, ai, af, ag, ao];
            // SAFETY: the caller's promise.
            unsafe {
                match previous {
                    Some(previous) => {
                        map_row([i, f, g, o, previous.at(start)], outputs, channels, |[i, f, g, o, previous]| {
                            step([i, f, g, o], previous)
                        });
                    }
                    None => map_row([i, f, g, o], outputs, channels, |gates| step(gates, 0.0)),
                }
            }
        }
    }
}

/// gates, \[previous\] -> h, cell, activated. A missing previous cell counts as 0.
///
/// # Safety
/// Live operands of the shape; activated may be gates.
pub(super) unsafe fn forward(shape: &RowShape, run: &Run) {
    let [gates, h, cell, activated] = run.all(["gates", "h", "cell", "activated"]);
    let previous = run.some("previous");
    let [rows, channels] = [shape.rows, shape.channels].map(|n| n as usize);
    tasks_of_rows(rows, 4 * channels, run.threads, |first, rows, _| {
        let start = first * channels;
        let outputs = [h.at(start), cell.at(start), activated.at(4 * start)];
        let previous = previous.map(|p| p.at(start));
        // SAFETY: the caller's promise; each task has its own rows.
        unsafe { forward_rows(gates.at(4 * start), previous, outputs, rows, channels) };
    });
}

/// Operands of a step's gradient in addition to the gates.
#[derive(Clone, Copy)]
struct Backward {
    /// Previous cell; `None` in the first step.
    previous: Option<Ptr<f32>>,
    /// Cell of this step.
    cell: Ptr<f32>,
    /// Gradient of h.
    dh: Ptr<f32>,
    /// Gradient of the cell from the next step; `None` in the last step.
    dcell: Option<Ptr<f32>>,
    /// Gradient for the previous step; `None` in the first step, and may be `dcell`.
    dprevious: Option<Ptr<f32>>,
}

impl Backward {
    /// The same from element `i` on.
    fn at(self, i: usize) -> Backward {
        let on = |p: Option<Ptr<f32>>| p.map(|p| p.at(i));
        let (previous, dcell, dprevious) = (on(self.previous), on(self.dcell), on(self.dprevious));
        Backward { previous, cell: self.cell.at(i), dh: self.dh.at(i), dcell, dprevious }
    }
}

vectorized! {
    /// Some rows of [`backward`].
    ///
    /// # Safety
    /// All are live and of these rows, and nothing else touches them; dgates may be activated, dprevious may be dcell.
    unsafe fn backward_rows [](activated: Ptr<f32>, other: Backward, dgates: Ptr<f32>, rows: usize, channels: usize) {
        let step = |[i, f, g, o]: [f32; 4], [previous, cell, dh, dcell]: [f32; 4]| {
            let t = tanh(cell);
            let d = dcell + dh * o * (1.0 - t * t);
            let di = d * g * i * (1.0 - i);
            let df = d * previous * f * (1.0 - f);
            let dg = d * i * (1.0 - g * g);
            [di, df, dg, dh * t * o * (1.0 - o), d * f]
        };
        for row in 0..rows {
            let start = row * channels;
            let Backward { previous, cell, dh, dcell, dprevious } = other.at(start);
            let [i, f, g, o] = gates(activated.at(4 * start), channels);
            let [di, df, dg, d_o] = gates(dgates.at(4 * start), channels);
            // SAFETY: the caller's promise.
            unsafe {
                match (previous.zip(dprevious), dcell) {
                    (Some((previous, dprevious)), Some(dcell)) => {
                        let (inputs, outputs) = ([i, f, g, o, previous, cell, dh, dcell], [di, df, dg, d_o, dprevious]);
                        map_row(inputs, outputs, channels, |[i, f, g, o, previous, cell, dh, dcell]| {
                            step([i, f, g, o], [previous, cell, dh, dcell])
                        });
                    }
                    (Some((previous, dprevious)), None) => {
                        let (inputs, outputs) = ([i, f, g, o, previous, cell, dh], [di, df, dg, d_o, dprevious]);
                        map_row(inputs, outputs, channels, |[i, f, g, o, previous, cell, dh]| {
                            step([i, f, g, o], [previous, cell, dh, 0.0])
                        });
                    }
                    (None, Some(dcell)) => {
                        map_row([i, f, g, o, cell, dh, dcell], [di, df, dg, d_o], channels, |[i, f, g, o, cell, dh, dcell]| {
                            let [di, df, dg, d_o, _] = step([i, f, g, o], [0.0, cell, dh, dcell]);
                            [di, df, dg, d_o]
                        });
                    }
                    (None, None) => {
                        map_row([i, f, g, o, cell, dh], [di, df, dg, d_o], channels, |[i, f, g, o, cell, dh]| {
                            let [di, df, dg, d_o, _] = step([i, f, g, o], [0.0, cell, dh, 0.0]);
                            [di, df, dg, d_o]
                        });
                    }
                }
            }
        }
    }
}

/// activated, \[previous\], cell, dh, \[dcell\] -> dgates, \[dprevious\].
///
/// # Safety
/// Live operands of the shape; dgates may be activated, dprevious may be dcell. There is a dprevious if there is a previous
/// cell.
pub(super) unsafe fn backward(shape: &RowShape, run: &Run) {
    let [activated, dgates] = run.all(["activated", "dgates"]);
    let other = Backward {
        previous: run.some("previous"),
        cell: run.f("cell"),
        dh: run.f("dh"),
        dcell: run.some("dcell"),
        dprevious: run.some("dprevious"),
    };
    let [rows, channels] = [shape.rows, shape.channels].map(|n| n as usize);
    tasks_of_rows(rows, 4 * channels, run.threads, |first, rows, _| {
        let start = first * channels;
        let (activated, dgates) = (activated.at(4 * start), dgates.at(4 * start));
        // SAFETY: the caller's promise; each task has its own rows.
        unsafe { backward_rows(activated, other.at(start), dgates, rows, channels) };
    });
}
