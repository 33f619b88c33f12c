//! Layer normalisation, RMS normalisation, and their gradients against plain f64 sums, in rows of one channel to thousands.
//!
//! Deliberately does not train; `same_bits` and the stand-in's tests run whole schedules with it.

use super::harness::{Random, check, check_accumulate, check_in_place, input, outcomes, output};
use super::reference::{self, Norm, wide};
use super::{EPSILON, FEW};
use plimsoll_ir::program::{Call, RowShape};

const SHAPES: [(usize, usize); 11] =
    [(1, 1), (1, 2), (3, 1), (2, 3), (2, 9), (5, 31), (7, 32), (400, 8), (33, 259), (600, 40), (9, 3000)];

#[test]
fn layer_norm() {
    (0..).zip(SHAPES).for_each(|(i, (rows, channels))| layer_norm_of(rows, channels, i));
}

pub fn layer_norm_of(rows: usize, channels: usize, seed: u32) {
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let random = &mut Random::new(seed);
    // Far from 0, so that a variance by the difference of squares would show.
    let x: Vec<f32> = random.floats(rows * channels).iter().map(|x| x + 3.0).collect();
    let [gamma, beta] = [0, 1].map(|_| random.floats(channels));
    let dy = random.floats(rows * channels);
    let (wx, wgamma, wbeta, wdy) = (wide(&x), wide(&gamma), wide(&beta), wide(&dy));
    let norm = Norm { channels, epsilon: f64::from(EPSILON), by_row: true, centred: true };
    let [y, mean, inverse] = norm.forward(&wx, &wgamma, &wbeta);
    let stats = [mean, inverse].concat();
    let forward = Call::LayerNormForward { shape, epsilon: EPSILON };
    let args = [input(&x), input(&gamma), input(&beta), output(x.len()), output(2 * rows)];
    check(&forward, &args, &[(3, &y), (4, &stats)]);
    check_in_place(&forward, &args, 0, 3);

    let stats: Vec<f32> = stats.iter().map(|s| *s as f32).collect();
    let [dx, dgamma, dbeta] = norm.gradient(&wx, &wgamma, &wdy);
    if x.len() < FEW {
        let y = |x: &[f64], gamma: &[f64], beta: &[f64]| norm.forward(x, gamma, beta)[0].clone();
        reference::assert_gradient("x", &wx, &wdy, &dx, |x| y(x, &wgamma, &wbeta));
        reference::assert_gradient("gamma", &wgamma, &wdy, &dgamma, |g| y(&wx, g, &wbeta));
        reference::assert_gradient("beta", &wbeta, &wdy, &dbeta, |b| y(&wx, &wgamma, b));
    }
    let inputs = [input(&x), input(&dy), input(&gamma), input(&stats)];
    let args = [&inputs[..], &[output(x.len()), output(channels), output(channels)]].concat();
    let backward = |accumulate| Call::LayerNormBackward { shape, accumulate };
    check(&backward(false), &args, &[(5, &dgamma), (6, &dbeta)]);
    check_accumulate(backward, &args, 4, &dx);
    check_in_place(&backward(false), &args, 1, 4);
}

#[test]
fn rms_norm() {
    (0..).zip(SHAPES).for_each(|(i, (rows, channels))| rms_norm_of(rows, channels, i));
}

pub fn rms_norm_of(rows: usize, channels: usize, seed: u32) {
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let random = &mut Random::new(seed);
    let [x, dy] = [0, 1].map(|_| random.floats(rows * channels));
    let gamma = random.floats(channels);
    let (wx, wgamma, wdy) = (wide(&x), wide(&gamma), wide(&dy));
    let norm = Norm { channels, epsilon: f64::from(EPSILON), by_row: true, centred: false };
    let beta = vec![0.0; channels];
    let [y, _, inverse] = norm.forward(&wx, &wgamma, &beta);
    let forward = Call::RmsNormForward { shape, epsilon: EPSILON };
    let args = [input(&x), input(&gamma), output(x.len()), output(rows)];
    check(&forward, &args, &[(2, &y), (3, &inverse)]);
    check_in_place(&forward, &args, 0, 2);

    let stats: Vec<f32> = inverse.iter().map(|s| *s as f32).collect();
    let [dx, dgamma, _] = norm.gradient(&wx, &wgamma, &wdy);
    if x.len() < FEW {
        let y = |x: &[f64], gamma: &[f64]| norm.forward(x, gamma, &beta)[0].clone();
        reference::assert_gradient("x", &wx, &wdy, &dx, |x| y(x, &wgamma));
        reference::assert_gradient("gamma", &wgamma, &wdy, &dgamma, |gamma| y(&wx, gamma));
    }
    let args = [input(&x), input(&dy), input(&gamma), input(&stats), output(x.len()), output(channels)];
    let backward = |accumulate| Call::RmsNormBackward { shape, accumulate };
    check(&backward(false), &args, &[(5, &dgamma)]);
    check_accumulate(backward, &args, 4, &dx);
    check_in_place(&backward(false), &args, 1, 4);
}

/// Large numbers with small differences: the mean square less the square of the mean would lose all digits.
#[test]
fn large_rows_keep_their_variance() {
    let (rows, channels) = (6, 100);
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    // Integers, which f32 represents exactly, as it does the mean.
    let x: Vec<f32> = (0..rows * channels).map(|i| 1e6 + (i % 2) as f32 * 4.0 - 2.0).collect();
    let [gamma, beta] = [1.0, 0.0].map(|v| input(&vec![v; channels]));
    let args = [input(&x), gamma, beta, output(x.len()), output(2 * rows)];
    for (by, got) in outcomes(&Call::LayerNormForward { shape, epsilon: 1e-5 }, &args) {
        let y = super::harness::floats(&got[3]);
        let near = y.iter().zip(&x).all(|(y, x)| (y - (x - 1e6) / 2.0).abs() < 1e-5);
        assert!(near, "{by}: {:?}", &y[..4]);
    }
}
