//! Functions of each element and their gradients against f64, also far out, where only 0, 1, x or NaN is left.
//!
//! Deliberately does not judge the last digits far from 0, which the kernels' own tests do.

use super::harness::{Random, check, check_accumulate, check_in_place, floats, input, outcomes, output};
use super::reference::{self, wide};
use plimsoll_ir::network::Function;
use plimsoll_ir::program::Call;

#[test]
fn activations() {
    for function in Function::ALL {
        for n in super::LENGTHS {
            activation_of(function, n, n as u32 % 1000);
        }
    }
}

pub fn activation_of(function: Function, n: usize, seed: u32) {
    let elements = n as u64;
    let random = &mut Random::new(seed);
    let mut x: Vec<f32> = random.floats(n).iter().map(|x| 6.0 * x).collect();
    x[n / 2] = 0.0;
    let dy = random.floats(n);
    let forward = Call::ActivationForward { elements, function };
    let args = [input(&x), output(n)];
    check(&forward, &args, &[(1, &reference::activation(function, &wide(&x)))]);
    check_in_place(&forward, &args, 0, 1);
    let backward = |accumulate| Call::ActivationBackward { elements, function, accumulate };
    let args = [input(&x), input(&dy), output(n)];
    let gradient = reference::activation_gradient(function, &wide(&x), &wide(&dy));
    if n < super::FEW {
        let y = |x: &[f64]| reference::activation(function, x);
        reference::assert_gradient(function.name(), &wide(&x), &wide(&dy), &gradient, y);
    }
    check_accumulate(backward, &args, 2, &gradient);
    check_in_place(&backward(false), &args, 1, 2);
}

/// Far from 0 a function is 0 or x; NaN stays NaN.
#[test]
fn activations_have_no_surprises_far_out() {
    let x = [100.0, -100.0, 1e38, -1e38, f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
    for function in Function::ALL {
        let call = Call::ActivationForward { elements: 7, function };
        for (by, got) in outcomes(&call, &[input(&x), output(7)]) {
            let y = floats(&got[1]);
            assert_eq!(y[..5], [100.0, 0.0, 1e38, 0.0, f32::INFINITY], "{function:?} by {by}");
            assert!(y[5].is_nan(), "{function:?} by {by}: {y:?}");
            // 0 * infinity is NaN.
            assert!(y[6].is_nan(), "{function:?} by {by}: {y:?}");
        }
        let args = [input(&x[..4]), input(&[2.0; 4]), output(4)];
        let call = Call::ActivationBackward { elements: 4, function, accumulate: false };
        for (by, got) in outcomes(&call, &args) {
            assert_eq!(floats(&got[2]), [2.0, 0.0, 2.0, 0.0], "{function:?} by {by}");
        }
    }
}
