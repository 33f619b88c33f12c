//! Stochastic gradient descent with momentum and L2 penalty: the update of one parameter.
//!
//! Deliberately does not schedule the learning rate, which comes with each iteration.

use super::Run;
use super::elementwise::pieces;
use super::vector::{Ptr, vectorized};
use plimsoll_ir::program::Hyper;

vectorized! {
    /// m = momentum * m + gradient + decay * parameter; parameter -= rate * m. Without a gradient the result is that of a
    /// gradient of 0, to the bit.
    ///
    /// # Safety
    /// Live operands of that many elements that do not overlap and that nothing else touches.
    unsafe fn update [](rates: [f32; 3], operands: [Ptr<f32>; 2], gradient: Option<Ptr<f32>>, len: usize) {
        let [rate, momentum, decay] = rates;
        // SAFETY: the caller's promise.
        let [parameter, old] = operands.map(|operand| unsafe { operand.slice_mut(len) });
        let step = |p: &mut f32, m: &mut f32, g: f32| {
            *m = momentum * *m + (g + decay * *p);
            *p -= rate * *m;
        };
        let all = parameter.iter_mut().zip(old);
        match gradient {
            Some(gradient) => {
                // SAFETY: the caller's promise.
                let gradient = unsafe { gradient.slice(len) };
                all.zip(gradient).for_each(|((p, m), g)| step(p, m, *g));
            }
            None => all.for_each(|(p, m)| step(p, m, 0.0)),
        }
    }
}

/// One step.
///
/// # Safety
/// `hyper` holds [`Hyper`]; live operands of that many elements that do not overlap.
pub(super) unsafe fn step(elements: u64, decay: bool, run: &Run) {
    let [hyper, parameter, old] = run.all(["hyper", "parameter", "momentum"]);
    let gradient = run.some("gradient");
    // SAFETY: the caller's promise; rate, momentum and decay are the first words of the update's numbers.
    let [rate, momentum, weight_decay] =
        [0, 1, 2].map(|word| unsafe { hyper.at(Hyper::UPDATE + word).get() });
    let rates = [rate, momentum, if decay { weight_decay } else { 0.0 }];
    pieces(elements, run.threads, |start, len| {
        let gradient = gradient.map(|gradient| gradient.at(start));
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe { update(rates, [parameter, old].map(|p| p.at(start)), gradient, len) };
    });
}
