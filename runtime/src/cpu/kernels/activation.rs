//! Functions of each element, and their gradients: GELU, the sigmoid, x times it, and the two of lines that imitate those.
//!
//! What a function needs far from 0 comes from the smaller side: 1 less the sigmoid of x is the sigmoid of -x, which is small
//! by itself. CUDA's kernels do the same steps in `activation.cu`, and give the same bits. A number that is none stays none,
//! and where x is multiplied by what has become 0, minus infinity becomes one.
//!
//! What it deliberately does not do: ReLU, whose gradient needs one bit of x (`elementwise.rs`).

use super::elementwise::{map, relu};
use super::exponential::sigmoids;
use super::gelu::normal;
use super::maps::Map;
use super::threads::Threads;
use plimsoll_ir::network::Function;

/// Of a hard sigmoid: its slope, and half the width of what is not flat.
const SLOPE: f32 = 1.0 / 6.0;
const REACH: f32 = 3.0;

/// min(max(x / 6 + 1 / 2, 0), 1).
#[inline(always)]
fn hard_sigmoid(x: f32) -> f32 {
    relu(x + REACH, 2.0 * REACH) * SLOPE
}

/// Its derivative.
#[inline(always)]
fn hard_slope(x: f32) -> f32 {
    if x > -REACH && x < REACH { SLOPE } else { 0.0 }
}

/// y = f(x).
///
/// # Safety
/// Live operands of that many elements; y may be x.
pub(super) unsafe fn forward(n: u64, function: Function, x: Map, y: Map, threads: &Threads) {
    // SAFETY: the caller's promise.
    unsafe {
        match function {
            Function::Gelu => map(n, [x], y, threads, |[x]| x * normal(x).0),
            Function::Sigmoid => map(n, [x], y, threads, |[x]| sigmoids(x)[0]),
            Function::Silu => map(n, [x], y, threads, |[x]| x * sigmoids(x)[0]),
            Function::HardSigmoid => map(n, [x], y, threads, |[x]| hard_sigmoid(x)),
            Function::HardSwish => map(n, [x], y, threads, |[x]| x * hard_sigmoid(x)),
        }
    }
}

/// dx = dy * f'(x), or added to what dx holds. `inputs` is x, dy.
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
            Function::Sigmoid => slopes(n, accumulate, inputs, dx, threads, |x| {
                let [below, above] = sigmoids(x);
                below * above
            }),
            Function::Silu => slopes(n, accumulate, inputs, dx, threads, |x| {
                let [below, above] = sigmoids(x);
                below * (1.0 + x * above)
            }),
            Function::HardSigmoid => slopes(n, accumulate, inputs, dx, threads, hard_slope),
            Function::HardSwish => {
                slopes(n, accumulate, inputs, dx, threads, |x| hard_sigmoid(x) + x * hard_slope(x));
            }
        }
    }
}

/// dx = dy * slope(x), or added to what dx holds.
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
