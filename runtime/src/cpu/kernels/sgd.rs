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
    /// Live operands of that many elements that do not overlap and that nobody else touches.
    unsafe fn update [](rates: [f32; 3], operands: [Ptr<f32>; 3], len: usize) {
        let [rate, momentum, decay] = rates;
        let [parameter, gradient, old] = operands;
        // SAFETY: the caller's promise.
        let (parameter, gradient, old) =
            unsafe { (parameter.slice_mut(len), gradient.slice(len), old.slice_mut(len)) };
        for ((p, g), m) in parameter.iter_mut().zip(gradient).zip(old) {
            *m = momentum * *m + (*g + decay * *p);
            *p -= rate * *m;
        }
    }
}

/// One step. `operands` is parameter, gradient, momentum.
///
/// # Safety
/// `hyper` holds [`plimsoll_ir::program::Hyper`]; live operands of that many elements that do not overlap.
pub(super) unsafe fn step(
    elements: u64,
    decay: bool,
    hyper: Ptr<f32>,
    operands: [Ptr<f32>; 3],
    threads: &Threads,
) {
    // SAFETY: the caller's promise; rate, momentum and decay are the first words.
    let [rate, momentum, weight_decay] = unsafe { [hyper.get(), hyper.at(1).get(), hyper.at(2).get()] };
    let rates = [rate, momentum, if decay { weight_decay } else { 0.0 }];
    pieces(elements, threads, |start, len| {
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe { update(rates, operands.map(|p| p.at(start)), len) };
    });
}
