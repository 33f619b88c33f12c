//! Stochastic gradient descent with momentum and L2 penalty: the update of one parameter.
//!
//! What it deliberately does not do: schedule the learning rate, which comes with each iteration.

use super::elementwise::pieces;
use super::threads::Threads;
use super::vector::{Ptr, vectorized};

vectorized! {
    /// m = momentum * m + gradient + decay * parameter; parameter -= rate * m.
    ///
    /// # Safety
    /// Live operands of that many elements that nobody else touches; written ones may be read ones, place by place.
    unsafe fn update [](rates: [f32; 3], read: [Ptr<f32>; 3], written: [Ptr<f32>; 2], len: usize) {
        const LANES: usize = 16;
        let [rate, momentum, decay] = rates;
        let one = |p: f32, g: f32, m: f32| {
            let m = momentum * m + (g + decay * p);
            (p - rate * m, m)
        };
        let whole = len / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            // SAFETY: i + LANES <= len.
            unsafe {
                let [p, g, m] = read.map(|r| r.at(i).0.cast::<[f32; LANES]>().read());
                let mut out = [[0.0; LANES]; 2];
                for l in 0..LANES {
                    (out[0][l], out[1][l]) = one(p[l], g[l], m[l]);
                }
                written[0].at(i).0.cast::<[f32; LANES]>().write(out[0]);
                written[1].at(i).0.cast::<[f32; LANES]>().write(out[1]);
            }
        }
        for i in whole..len {
            // SAFETY: i < len.
            unsafe {
                let [p, g, m] = read.map(|r| r.at(i).get());
                let (p, m) = one(p, g, m);
                written[0].at(i).set(p);
                written[1].at(i).set(m);
            }
        }
    }
}

/// One step. `read` is parameter, gradient, momentum; `written` is parameter, momentum.
///
/// # Safety
/// `hyper` holds [`plimsoll_ir::program::Hyper`]; live operands of that many elements; written ones may be read ones.
pub(super) unsafe fn step(
    elements: u64,
    decay: bool,
    hyper: Ptr<f32>,
    read: [Ptr<f32>; 3],
    written: [Ptr<f32>; 2],
    threads: &Threads,
) {
    // SAFETY: the caller's promise; rate, momentum and decay are the first words.
    let [rate, momentum, weight_decay] = unsafe { [hyper.get(), hyper.at(1).get(), hyper.at(2).get()] };
    let rates = [rate, momentum, if decay { weight_decay } else { 0.0 }];
    pieces(elements, threads, |start, len| {
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe { update(rates, read.map(|p| p.at(start)), written.map(|p| p.at(start)), len) };
    });
}
