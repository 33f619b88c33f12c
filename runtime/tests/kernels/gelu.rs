//! GELU and its gradient against the normal distribution in f64, and far out, where nothing but 0, x or NaN is left.
//!
//! What it deliberately does not do: judge the last digits far from 0, which the kernel's own tests do.

use super::harness::{Random, check, check_accumulate, check_in_place, floats, input, outcomes, output};
use super::reference::{self, wide};
use plimsoll_ir::program::Call;

pub fn gelu() {
    for n in super::LENGTHS {
        gelu_of(n, n as u32 % 1000);
    }
}

pub fn gelu_of(n: usize, seed: u32) {
    let elements = n as u64;
    let random = &mut Random::new(seed);
    let mut x: Vec<f32> = random.floats(n).iter().map(|x| 6.0 * x).collect();
    x[n / 2] = 0.0;
    let dy = random.floats(n);
    let forward = Call::GeluForward { elements };
    let args = [input(&x), output(n)];
    check(&forward, &args, &[(1, &reference::gelu(&wide(&x)))]);
    check_in_place(&forward, &args, 0, 1);
    let backward = |accumulate| Call::GeluBackward { elements, accumulate };
    let args = [input(&x), input(&dy), output(n)];
    check_accumulate(backward, &args, 2, &reference::gelu_gradient(&wide(&x), &wide(&dy)));
    check_in_place(&backward(false), &args, 1, 2);
}

pub fn gelu_gradients_are_derivatives() {
    let random = &mut Random::new(5);
    let [x, dy] = [0, 1].map(|_| wide(&random.floats(60)));
    let x: Vec<f64> = x.iter().map(|x| 4.0 * x).collect();
    let dx = reference::gelu_gradient(&x, &dy);
    reference::assert_gradient("gelu", &x, &dy, &dx, reference::gelu);
}

/// Far from 0 it is 0 or x, and a number that is none stays none.
pub fn gelu_has_no_surprises_far_out() {
    let x = [30.0, -30.0, 1e38, -1e38, f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
    for (by, got) in outcomes(&Call::GeluForward { elements: 7 }, &[input(&x), output(7)]) {
        let y = floats(&got[1]);
        assert_eq!(y[..5], [30.0, 0.0, 1e38, 0.0, f32::INFINITY], "{by}");
        assert!(y[5..].iter().all(|y| y.is_nan()), "{by}: {y:?}");
    }
    let args = [input(&x), input(&[2.0; 7]), output(7)];
    for (by, got) in outcomes(&Call::GeluBackward { elements: 7, accumulate: false }, &args) {
        let dx = floats(&got[2]);
        assert_eq!(dx[..4], [2.0, 0.0, 2.0, 0.0], "{by}");
        assert!(dx[4..].iter().all(|dx| dx.is_nan()), "{by}: {dx:?}");
    }
}
