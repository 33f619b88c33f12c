//! Functions of each element, and their gradients: GELU and SiLU.
//!
//! Values far from 0 come from the smaller side: 1 less the sigmoid of x is the sigmoid of -x, which is small by itself.
//! CUDA's kernels do the same steps in `activation.cu`, and give the same bits. NaN stays NaN, and where x is multiplied by
//! a factor that has become 0, minus infinity becomes NaN.
//!
//! Deliberately does not include ReLU, whose gradient needs one bit of x (`elementwise.rs`).

use super::Run;
use super::elementwise::{map, map_or_add};
use super::exponential::sigmoids;
use super::gelu::normal;
use plimsoll_ir::network::Function;

/// y = f(x).
///
/// # Safety
/// Live operands of that many elements; y may be x.
pub(super) unsafe fn forward(n: u64, function: Function, run: &Run) {
    let ([x, y], threads) = (run.maps(["x", "y"]), run.threads);
    // SAFETY: the caller's promise.
    unsafe {
        match function {
            Function::Gelu => map(n, [x], y, threads, |[x]| x * normal(x).0),
            Function::Silu => map(n, [x], y, threads, |[x]| x * sigmoids(x)[0]),
        }
    }
}

/// dx = dy * f'(x), or added to dx.
///
/// # Safety
/// Live operands of that many elements; dx may be dy.
pub(super) unsafe fn backward(n: u64, function: Function, accumulate: bool, run: &Run) {
    let (inputs, dx) = (run.maps(["x", "dy"]), run.map("dx"));
    // SAFETY: the caller's promise.
    unsafe {
        match function {
            Function::Gelu => map_or_add(n, accumulate, inputs, dx, run.threads, |[x, dy]| {
                let (below, density) = normal(x);
                dy * (below + x * density)
            }),
            Function::Silu => map_or_add(n, accumulate, inputs, dx, run.threads, |[x, dy]| {
                let [below, above] = sigmoids(x);
                dy * (below * (1.0 + x * above))
            }),
        }
    }
}
