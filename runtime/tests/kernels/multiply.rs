//! Products with a scale and the scale's gradient against plain f64 ones: element by element, of channels, and of the
//! channels of samples.
//!
//! What it deliberately does not do: train; whole schedules with it are in `same_bits` and the stand-in's tests.

use super::harness::{Random, check_accumulate, check_in_place, input, output};
use super::reference::{self, wide};
use plimsoll_ir::program::{Call, ScaleShape};

pub fn products_with_scales() {
    let sides = [
        [1, 1, 1],
        [1, 5, 3],
        [4, 1, 7],
        [3, 2, 16],
        [2, 49, 33],
        [1, 3000, 5],
        [5, 700, 24],
        [40_003, 1, 1],
        [2, 1, 40_003],
    ];
    for (i, sides) in sides.into_iter().enumerate() {
        product_of(sides, i as u32);
    }
}

pub fn product_of([groups, rows, channels]: [u64; 3], seed: u32) {
    let shape = ScaleShape { groups, rows, channels, learned: false };
    let random = &mut Random::new(seed);
    let (n, scales) = ((groups * rows * channels) as usize, (groups * channels) as usize);
    let [x, dy, scale] = [n, n, scales].map(|n| random.floats(n));
    let multiply = |accumulate| Call::Multiply { shape, accumulate };
    let args = [input(&x), input(&scale), output(n)];
    check_accumulate(multiply, &args, 2, &reference::product(&shape, &wide(&x), &wide(&scale)));
    check_in_place(&multiply(false), &args, 0, 2);
    let args = [input(&x), input(&dy), output(scales)];
    let sums = reference::product_sums(&shape, &wide(&x), &wide(&dy));
    check_accumulate(|accumulate| Call::MultiplySums { shape, accumulate }, &args, 2, &sums);
}

pub fn gradients_of_products_are_derivatives() {
    for sides in [[1, 1, 1], [1, 5, 3], [4, 1, 3], [2, 3, 4]] {
        let [groups, rows, channels] = sides;
        let shape = ScaleShape { groups, rows, channels, learned: false };
        let random = &mut Random::new(rows as u32);
        let (n, scales) = ((groups * rows * channels) as usize, (groups * channels) as usize);
        let [x, dy, scale] = [n, n, scales].map(|n| wide(&random.floats(n)));
        let product = |x: &[f64], scale: &[f64]| reference::product(&shape, x, scale);
        let dx = reference::product(&shape, &dy, &scale);
        reference::assert_gradient("scaled", &x, &dy, &dx, |x| product(x, &scale));
        let dscale = reference::product_sums(&shape, &x, &dy);
        reference::assert_gradient("scale", &scale, &dy, &dscale, |scale| product(&x, scale));
    }
}
