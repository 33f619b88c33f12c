//! Layer normalisation, RMS normalisation, and their gradients against plain f64 sums, in rows of one channel to thousands.
//!
//! Deliberately does not train; `same_bits` and the stand-in's tests run whole schedules with it.

use super::harness::{Random, check, check_accumulate, check_in_place, input, outcomes, output};
use super::reference::{self, wide};
use plimsoll_ir::program::{Call, RowShape};

const EPSILON: f32 = 1e-2;

#[test]
fn layer_norm() {
    for (i, (rows, channels)) in
        [(1, 1), (1, 2), (3, 1), (2, 3), (5, 31), (7, 32), (400, 8), (33, 259), (600, 40), (9, 3000)]
            .into_iter()
            .enumerate()
    {
        layer_norm_of(rows, channels, i as u32);
    }
}

pub fn layer_norm_of(rows: usize, channels: usize, seed: u32) {
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let random = &mut Random::new(seed);
    // Far from 0, so that a variance by the difference of squares would show.
    let x: Vec<f32> = random.floats(rows * channels).iter().map(|x| x + 3.0).collect();
    let [gamma, beta] = [0, 1].map(|_| random.floats(channels));
    let dy = random.floats(rows * channels);
    let (wx, wgamma, wbeta, wdy) = (wide(&x), wide(&gamma), wide(&beta), wide(&dy));
    let e = f64::from(EPSILON);

    let [y, mean, inverse] = reference::layer_norm(channels, e, &wx, &wgamma, &wbeta);
    let stats = [mean, inverse].concat();
    let forward = Call::LayerNormForward { shape, epsilon: EPSILON };
    let args = [input(&x), input(&gamma), input(&beta), output(x.len()), output(2 * rows)];
    check(&forward, &args, &[(3, &y), (4, &stats)]);
    check_in_place(&forward, &args, 0, 3);

    let stats: Vec<f32> = stats.iter().map(|s| *s as f32).collect();
    let [dx, dgamma, dbeta] = reference::layer_norm_gradient(channels, e, &wx, &wgamma, &wdy);
    let inputs = [input(&x), input(&dy), input(&gamma), input(&stats)];
    let args = [&inputs[..], &[output(x.len()), output(channels), output(channels)]].concat();
    let backward = |accumulate| Call::LayerNormBackward { shape, accumulate };
    check(&backward(false), &args, &[(5, &dgamma), (6, &dbeta)]);
    check_accumulate(backward, &args, 4, &dx);
    check_in_place(&backward(false), &args, 1, 4);
}

#[test]
fn rms_norm() {
    for (i, (rows, channels)) in
        [(1, 1), (1, 2), (3, 1), (5, 31), (7, 32), (400, 8), (33, 259), (600, 40), (9, 3000)]
            .into_iter()
            .enumerate()
    {
        rms_norm_of(rows, channels, i as u32);
    }
}

pub fn rms_norm_of(rows: usize, channels: usize, seed: u32) {
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let random = &mut Random::new(seed);
    let [x, dy] = [0, 1].map(|_| random.floats(rows * channels));
    let gamma = random.floats(channels);
    let (wx, wgamma, wdy) = (wide(&x), wide(&gamma), wide(&dy));
    let e = f64::from(EPSILON);

    let [y, inverse] = reference::rms_norm(channels, e, &wx, &wgamma);
    let forward = Call::RmsNormForward { shape, epsilon: EPSILON };
    let args = [input(&x), input(&gamma), output(x.len()), output(rows)];
    check(&forward, &args, &[(2, &y), (3, &inverse)]);
    check_in_place(&forward, &args, 0, 2);

    let stats: Vec<f32> = inverse.iter().map(|s| *s as f32).collect();
    let [dx, dgamma] = reference::rms_norm_gradient(channels, e, &wx, &wgamma, &wdy);
    let args = [input(&x), input(&dy), input(&gamma), input(&stats), output(x.len()), output(channels)];
    let backward = |accumulate| Call::RmsNormBackward { shape, accumulate };
    check(&backward(false), &args, &[(5, &dgamma)]);
    check_accumulate(backward, &args, 4, &dx);
    check_in_place(&backward(false), &args, 1, 4);
}

#[test]
fn rms_norm_gradients_are_derivatives() {
    for (rows, channels) in [(1, 1), (1, 2), (5, 3), (2, 9)] {
        let random = &mut Random::new(rows as u32);
        let [x, dy] = [0, 1].map(|_| wide(&random.floats(rows * channels)));
        let gamma = wide(&random.floats(channels));
        let [dx, dgamma] = reference::rms_norm_gradient(channels, 0.1, &x, &gamma, &dy);
        let y = |x: &[f64], gamma: &[f64]| {
            let [y, _] = reference::rms_norm(channels, 0.1, x, gamma);
            y
        };
        reference::assert_gradient("x", &x, &dy, &dx, |x| y(x, &gamma));
        reference::assert_gradient("gamma", &gamma, &dy, &dgamma, |gamma| y(&x, gamma));
    }
}

#[test]
fn layer_norm_gradients_are_derivatives() {
    for (rows, channels) in [(1, 2), (5, 3), (2, 9)] {
        let random = &mut Random::new(rows as u32);
        let [x, dy] = [0, 1].map(|_| wide(&random.floats(rows * channels)));
        let [gamma, beta] = [0, 1].map(|_| wide(&random.floats(channels)));
        let e = 0.1;
        let [dx, dgamma, dbeta] = reference::layer_norm_gradient(channels, e, &x, &gamma, &dy);
        let y = |x: &[f64], gamma: &[f64], beta: &[f64]| {
            let [y, ..] = reference::layer_norm(channels, e, x, gamma, beta);
            y
        };
        reference::assert_gradient("x", &x, &dy, &dx, |x| y(x, &gamma, &beta));
        reference::assert_gradient("gamma", &gamma, &dy, &dgamma, |g| y(&x, g, &beta));
        reference::assert_gradient("beta", &beta, &dy, &dbeta, |b| y(&x, &gamma, b));
    }
}

/// Large numbers with small differences: the mean square less the square of the mean would lose all digits.
#[test]
fn large_rows_keep_their_variance() {
    let (rows, channels) = (6, 100);
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    // Integers, which f32 represents exactly, as it does the mean.
    let x: Vec<f32> = (0..rows * channels).map(|i| 1e6 + (i % 2) as f32 * 4.0 - 2.0).collect();
    let args = [
        input(&x),
        input(&vec![1.0; channels]),
        input(&vec![0.0; channels]),
        output(x.len()),
        output(2 * rows),
    ];
    for (by, got) in outcomes(&Call::LayerNormForward { shape, epsilon: 1e-5 }, &args) {
        let y = super::harness::floats(&got[3]);
        let near = y.iter().zip(&x).all(|(y, x)| (y - (x - 1e6) / 2.0).abs() < 1e-5);
        assert!(near, "{by}: {:?}", &y[..4]);
    }
}
