//! AdamW: the update of one parameter.
//!
//! Deliberately does not correct the moments; the correction is in the numbers that come with each iteration.

use super::Run;
use super::elementwise::pieces;
use super::vector::{Ptr, vectorized};
use plimsoll_ir::UpdateNumbers;
use plimsoll_ir::program::Hyper;

vectorized! {
    /// One step, as the call's documentation defines it; without a gradient the result is that of a gradient of 0, to the
    /// bit.
    ///
    /// # Safety
    /// Live operands of that many elements that do not overlap and that nothing else touches.
    unsafe fn update [](
        numbers: [f32; UpdateNumbers::WORDS],
        operands: [Ptr<f32>; 3],
        gradient: Option<Ptr<f32>>,
        len: usize,
    ) {
        let [keep, beta1, rest1, beta2, rest2, root, epsilon, length] = numbers;
        // SAFETY: the caller's promise.
        let [parameter, first, second] = operands.map(|operand| unsafe { operand.slice_mut(len) });
        let step = |p: &mut f32, m: &mut f32, v: &mut f32, g: f32| {
            *m = beta1 * *m + rest1 * g;
            *v = beta2 * *v + rest2 * g * g;
            *p = keep * *p - length * *m / (root * v.sqrt() + epsilon);
        };
        let all = parameter.iter_mut().zip(first).zip(second);
        match gradient {
            Some(gradient) => {
                // SAFETY: the caller's promise.
                let gradient = unsafe { gradient.slice(len) };
                all.zip(gradient).for_each(|(((p, m), v), g)| step(p, m, v, *g));
            }
            None => all.for_each(|((p, m), v)| step(p, m, v, 0.0)),
        }
    }
}

/// One step.
///
/// # Safety
/// `hyper` holds [`Hyper`]; live operands of that many elements that do not overlap.
pub(super) unsafe fn step(elements: u64, run: &Run) {
    let hyper = run.f("hyper");
    let operands = run.all(["parameter", "first moment", "second moment"]);
    let gradient = run.some("gradient");
    // SAFETY: the caller's promise.
    let numbers = std::array::from_fn(|word| unsafe { hyper.at(Hyper::UPDATE + word).get() });
    pieces(elements, run.threads, |start, len| {
        let gradient = gradient.map(|gradient| gradient.at(start));
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe { update(numbers, operands.map(|operand| operand.at(start)), gradient, len) };
    });
}
