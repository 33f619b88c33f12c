//! Stochastic gradient descent with momentum and L2 penalty: the update of one parameter.
//!
//! Deliberately does not schedule the learning rate, which comes with each iteration.

use super::elementwise::pieces;
use super::threads::Threads;
use super::vector::{Ptr, vectorized};
use plimsoll_ir::program::Hyper;

vectorized! {
    /// m = momentum * m + gradient + decay * parameter; parameter -= rate * m.
    ///
    /// # Safety
    /// Live operands of that many elements that do not overlap and that nothing else touches.
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

vectorized! {
    /// [`update`] with a gradient of 0, to the bit.
    ///
    /// # Safety
    /// Live operands of that many elements that do not overlap and that nothing else touches.
    unsafe fn coast [](rates: [f32; 3], operands: [Ptr<f32>; 2], len: usize) {
        let [rate, momentum, decay] = rates;
        let [parameter, old] = operands;
        // SAFETY: the caller's promise.
        let (parameter, old) = unsafe { (parameter.slice_mut(len), old.slice_mut(len)) };
        for (p, m) in parameter.iter_mut().zip(old) {
            *m = momentum * *m + (0.0 + decay * *p);
            *p -= rate * *m;
        }
    }
}

/// One step. `operands` is parameter, gradient (if there is one), momentum.
///
/// # Safety
/// `hyper` holds [`Hyper`]; live operands of that many elements that do not overlap.
pub(super) unsafe fn step(
    elements: u64,
    decay: bool,
    hyper: Ptr<f32>,
    operands: (Ptr<f32>, Option<Ptr<f32>>, Ptr<f32>),
    threads: &Threads,
) {
    let (parameter, gradient, old) = operands;
    // SAFETY: the caller's promise; rate, momentum and decay are the first words of the update's numbers.
    let [rate, momentum, weight_decay] =
        [0, 1, 2].map(|word| unsafe { hyper.at(Hyper::UPDATE + word).get() });
    let rates = [rate, momentum, if decay { weight_decay } else { 0.0 }];
    pieces(elements, threads, |start, len| {
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe {
            match gradient {
                Some(gradient) => update(rates, [parameter, gradient, old].map(|p| p.at(start)), len),
                None => coast(rates, [parameter, old].map(|p| p.at(start)), len),
            }
        };
    });
}
