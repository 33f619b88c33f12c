//! Functions of each element, and their gradients: GELU and SiLU.
//!
//! Values far from 0 come from the smaller side: 1 less the sigmoid of x is the sigmoid of -x, which is small by itself.
//! CUDA's kernels do the same steps in `activation.cu`, and give the same bits. NaN stays NaN, and where x is multiplied by
//! a factor that has become 0, minus infinity becomes NaN.
//!
//! Deliberately does not include ReLU, whose gradient needs one bit of x (`elementwise.rs`).

use super::elementwise::map;
use super::exponential::sigmoids;
use super::gelu::normal;
use super::maps::Map;
use super::threads::Threads;
use plimsoll_ir::network::Function;

/// y = f(x).
///
/// # Safety
/// Live operands of that many elements; y may be x.
pub(super) unsafe fn forward(n: u64, function: Function, x: Map, y: Map, threads: &Threads) {
    // SAFETY: the caller's promise.
    unsafe {
        match function {
            Function::Gelu => map(n, [x], y, threads, |[x]| x * normal(x).0),
            Function::Silu => map(n, [x], y, threads, |[x]| x * sigmoids(x)[0]),
        }
    }
}

/// dx = dy * f'(x), or added to dx. `inputs` is x, dy.
///
/// # Safety
/// Live operands of that many elements; dx may be dy.
pub(super) unsafe fn backward(
    n: u64,
    function: Function,
    accumulate: bool,
    inputs: [Map; 2],
    dx: Map,
    threads: &Threads,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match function {
            Function::Gelu => slopes(n, accumulate, inputs, dx, threads, |x| {
                let (below, density) = normal(x);
                below + x * density
            }),
            Function::Silu => slopes(n, accumulate, inputs, dx, threads, |x| {
                let [below, above] = sigmoids(x);
                below * (1.0 + x * above)
            }),
        }
    }
}

/// dx = dy * slope(x), or added to dx.
///
/// # Safety
/// As [`backward`].
unsafe fn slopes(
    n: u64,
    accumulate: bool,
    [x, dy]: [Map; 2],
    dx: Map,
    threads: &Threads,
    slope: impl Fn(f32) -> f32 + Copy + Sync,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if accumulate {
            map(n, [x, dy, dx], dx, threads, move |[x, dy, dx]| dx + dy * slope(x));
        } else {
            map(n, [x, dy], dx, threads, move |[x, dy]| dy * slope(x));
        }
    }
}
