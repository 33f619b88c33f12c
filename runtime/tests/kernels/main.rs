//! The CPU's kernels, and the text of their CUDA twins, against plain f64 versions, whose gradients are checked by finite
//! differences: odd shapes, every `accumulate`, every in-place pair, 1, 2 and 3 threads, guards around every operand and
//! the workspace.
//!
//! Deliberately does not measure; the example `kernel_step` does.

mod activation;
mod attention;
mod batch_norm;
mod device;
mod harness;
mod layer_norm;
mod multiply;
mod nvrtc;
mod random;
mod reference;
mod sequences;
mod text;

use harness::{
    Arg, Random, check, check_accumulate, check_all_accumulate, check_in_place, floats, input, labels,
    outcome, outcomes, outcomes_in_bf16, output, updated, wide_floats,
};
use plimsoll_ir::network::Window;
use plimsoll_ir::philox::{philox4x32, unit_f32};
use plimsoll_ir::program::{Call, ConvShape, Hyper, PoolShape, RowShape};
use plimsoll_ir::{Optimizer, UpdateRule};
use reference::wide;

fn conv_shape(
    batch: u64,
    input: [u32; 2],
    channels: [u32; 2],
    window: Window,
    groups: u32,
    bias: bool,
) -> ConvShape {
    let output = window.output(input[0], input[1]).expect("the test's window fits");
    let [in_channels, out_channels] = channels;
    ConvShape { batch, input, in_channels, output, out_channels, window, groups, bias }
}

/// Small enough for finite differences and for the f64 loops.
fn conv_shapes() -> Vec<ConvShape> {
    let square = Window::square;
    let odd = Window { size: [3, 2], stride: [1, 2], padding: [2, 0], dilation: [1, 1] };
    let dilated = Window { size: [3, 3], stride: [1, 1], padding: [2, 2], dilation: [2, 2] };
    let far = Window { size: [2, 3], stride: [2, 1], padding: [0, 5], dilation: [3, 4] };
    let far_across = Window { size: [2, 3], stride: [1, 3], padding: [0, 4], dilation: [3, 2] };
    let padded_pixel = Window::square(1, 1, 1);
    // Two weights, and rows entirely of padding: many of the sums are zeros, of either sign.
    let pair = Window { size: [1, 2], stride: [1, 1], padding: [2, 0], dilation: [2, 2] };
    vec![
        conv_shape(1, [1, 1], [1, 1], square(1, 1, 0), 1, false),
        conv_shape(5, [1, 1], [17, 3], square(1, 1, 0), 1, true),
        conv_shape(1, [1, 1], [3, 5], square(3, 1, 1), 1, true),
        conv_shape(2, [5, 4], [3, 4], square(3, 1, 1), 1, false),
        conv_shape(5, [4, 3], [2, 3], square(3, 2, 1), 1, true),
        conv_shape(1, [9, 8], [1, 2], square(7, 2, 3), 1, false),
        conv_shape(2, [4, 4], [4, 6], square(1, 2, 0), 1, false),
        conv_shape(2, [4, 3], [4, 6], square(1, 1, 0), 2, true),
        conv_shape(2, [4, 5], [6, 4], square(3, 1, 1), 2, true),
        conv_shape(2, [5, 4], [8, 16], square(3, 2, 1), 2, true),
        conv_shape(2, [5, 5], [4, 4], square(3, 1, 1), 4, false),
        conv_shape(1, [9, 6], [3, 3], dilated, 3, true),
        conv_shape(2, [7, 9], [8, 8], square(3, 2, 1), 8, true),
        conv_shape(1, [4, 6], [6, 6], far_across, 6, false),
        conv_shape(1, [4, 6], [2, 3], odd, 1, true),
        conv_shape(2, [5, 6], [3, 2], dilated, 1, false),
        conv_shape(1, [6, 4], [2, 4], far, 2, true),
        conv_shape(2, [2, 2], [3, 3], padded_pixel, 1, false),
        conv_shape(3, [7, 5], [5, 7], Window { stride: [3, 2], ..square(1, 1, 0) }, 1, true),
        conv_shape(3, [5, 6], [8, 4], Window { padding: [1, 0], ..square(1, 2, 0) }, 1, false),
        conv_shape(2, [2, 3], [2, 2], square(3, 3, 2), 1, false),
        conv_shape(2, [1, 13], [3, 12], pair, 3, false),
    ]
}

/// Large enough for several blocks and tasks.
fn large_conv_shapes() -> Vec<ConvShape> {
    vec![
        conv_shape(3, [20, 21], [16, 19], Window::square(3, 1, 1), 1, true),
        conv_shape(4, [18, 17], [3, 32], Window::square(7, 2, 3), 1, false),
        conv_shape(40, [4, 3], [24, 16], Window::square(3, 2, 1), 2, true),
        conv_shape(30, [1, 1], [1100, 10], Window::square(1, 1, 0), 1, true),
        conv_shape(3, [16, 19], [48, 33], Window::square(1, 1, 0), 1, false),
        conv_shape(16, [2, 2], [40, 70], Window::square(3, 1, 1), 1, true),
        // More windows than a library gets at once.
        conv_shape(2, [16, 16], [8192, 1], Window::square(3, 1, 1), 1, false),
        // Depthwise: splits of the filter gradient that are summed in one stage and in two.
        conv_shape(3, [20, 21], [36, 36], Window::square(3, 1, 1), 36, true),
        conv_shape(40, [12, 13], [10, 10], Window::square(5, 2, 2), 10, false),
        conv_shape(12, [20, 20], [5, 5], Window::square(3, 1, 1), 5, true),
        // For Winograd: even and odd sides, every padding, many tiles and many channels; and just too few tiles.
        conv_shape(17, [5, 4], [32, 32], Window::square(3, 1, 0), 1, false),
        conv_shape(6, [2, 3], [64, 32], Window::square(3, 1, 2), 1, true),
        conv_shape(3, [13, 16], [32, 96], Window::square(3, 1, 1), 1, true),
        conv_shape(16, [3, 2], [544, 32], Window::square(3, 1, 1), 1, false),
        conv_shape(16, [2, 4], [32, 544], Window::square(3, 1, 1), 1, true),
        conv_shape(15, [2, 4], [32, 64], Window::square(3, 1, 1), 1, true),
    ]
}

#[test]
fn convolutions() {
    (0..).zip(conv_shapes().into_iter().chain(large_conv_shapes())).for_each(|(i, s)| convolution(s, i));
}

fn convolution(s: ConvShape, seed: u32) {
    let n = reference::conv_sizes(&s);
    let random = &mut Random::new(seed);
    let [x, w, b, dy] = [n.x, n.weight, n.out, n.y].map(|n| random.floats(n));
    let [wx, ww, wdy] = [&x, &w, &dy].map(|v| wide(v));

    let mut args = vec![input(&x), input(&w)];
    args.extend(s.bias.then(|| input(&b)));
    args.push(output(n.y));
    check(
        &Call::ConvForward { shape: s },
        &args,
        &[(args.len() - 1, &reference::conv(&s, &wx, &ww, &wide(&b)))],
    );

    let [dx, dw, db] = reference::conv_gradient(&s, &wx, &ww, &wdy);
    if (n.x + n.weight) * n.y < 400_000 {
        let wb = wide(&b);
        reference::assert_gradient("x", &wx, &wdy, &dx, |x| reference::conv(&s, x, &ww, &wb));
        reference::assert_gradient("weight", &ww, &wdy, &dw, |w| reference::conv(&s, &wx, w, &wb));
        if s.bias {
            reference::assert_gradient("bias", &wb, &wdy, &db, |b| reference::conv(&s, &wx, &ww, b));
        }
        // A transposed convolution is the gradient of x as a function of dy; its own gradients are the other two passes.
        let transposed = |dy: &[f64], w: &[f64]| reference::conv_gradient(&s, &wx, w, dy)[0].clone();
        let plain = reference::conv(&s, &wx, &ww, &vec![0.0; n.out]);
        reference::assert_gradient("transposed x", &wdy, &wx, &plain, |dy| transposed(dy, &ww));
        reference::assert_gradient("transposed weight", &ww, &wx, &dw, |w| transposed(&wdy, w));
    }
    let mut args = vec![input(&x), input(&dy), output(n.weight)];
    args.extend(s.bias.then(|| output(n.out)));
    let mut expected: Vec<(usize, &[f64])> = vec![(2, &dw)];
    if s.bias {
        expected.push((3, &db));
    }
    check_all_accumulate(|accumulate| Call::ConvBackwardFilter { shape: s, accumulate }, &args, &expected);

    let args = [input(&dy), input(&w), output(n.x)];
    check_accumulate(|accumulate| Call::ConvBackwardData { shape: s, accumulate }, &args, 2, &dx);
}

const EPSILON: f32 = 0.1;

/// Most elements whose gradients are compared with finite differences.
const FEW: usize = 150;

#[test]
fn batch_norm_running_and_inference() {
    for (rows, channels) in [(1, 1), (5, 3), (40, 33)] {
        batch_norm_after_training_of(rows, channels, rows as u32);
    }
}

fn batch_norm_after_training_of(rows: u64, channels: usize, seed: u32) {
    let shape = RowShape { rows, channels: channels as u64 };
    let random = &mut Random::new(seed);
    let mean = random.floats(channels);
    let variance: Vec<f32> = (0..channels).map(|_| 0.1 + random.unit()).collect();
    let inverse: Vec<f32> = variance.iter().map(|v| 1.0 / (v + EPSILON).sqrt()).collect();
    let old = [0, 1].map(|_| random.floats(channels));
    let unbias = rows as f64 / (rows as f64 - 1.0).max(1.0);
    let moved = |old: &[f32], now: &[f32], factor: f64| -> Vec<f64> {
        old.iter().zip(now).map(|(o, n)| f64::from(*o) * 0.9 + 0.1 * factor * f64::from(*n)).collect()
    };
    let running = Call::BatchNormRunning { shape, epsilon: EPSILON, momentum: 0.1 };
    let stats = input(&[mean.clone(), inverse].concat());
    let args = [stats, updated(&old[0]), updated(&old[1])];
    let expected = [moved(&old[0], &mean, 1.0), moved(&old[1], &variance, unbias)];
    check(&running, &args, &[(1, &expected[0]), (2, &expected[1])]);

    let x = random.floats(rows as usize * channels);
    let [gamma, beta] = [0, 1].map(|_| random.floats(channels));
    let y: Vec<f64> = (0..x.len())
        .map(|i| {
            let at = |v: &[f32]| f64::from(v[i % channels]);
            let scale = at(&gamma) / (at(&variance) + f64::from(EPSILON)).sqrt();
            (f64::from(x[i]) - at(&mean)) * scale + at(&beta)
        })
        .collect();
    let inference = Call::BatchNormInference { shape, epsilon: EPSILON };
    let args = [input(&x), input(&gamma), input(&beta), input(&mean), input(&variance), output(x.len())];
    check(&inference, &args, &[(5, &y)]);
    check_in_place(&inference, &args, 0, 5);
}

/// Lengths around the sizes of vectors, mask bytes and pieces.
const LENGTHS: [usize; 8] = [1, 3, 8, 15, 17, 64, 1001, 40_003];

#[test]
fn relu_add_and_their_gradients() {
    for n in LENGTHS {
        add_of(n, n as u32 % 1000);
        for ceiling in [f32::INFINITY, 0.4] {
            relu_of(n, ceiling, n as u32 % 1000);
        }
    }
}

fn relu_of(n: usize, ceiling: f32, seed: u32) {
    let elements = n as u64;
    let random = &mut Random::new(seed);
    let mut x = random.floats(n);
    x[n / 2] = 0.0;
    x[n / 3] = ceiling.min(1.0);
    let dy = random.floats(n);
    let y: Vec<f32> = x.iter().map(|x| x.clamp(0.0, ceiling)).collect();
    let inside = |x: f32| x > 0.0 && x < ceiling;
    let dx = reference::relu_gradient(f64::from(ceiling), &wide(&x), &wide(&dy));

    let forward = Call::ReluForward { elements, ceiling };
    check(&forward, &[input(&x), output(n)], &[(1, &wide(&y))]);
    check_in_place(&forward, &[input(&x), output(n)], 0, 1);
    let backward = |accumulate| Call::ReluBackward { elements, ceiling, accumulate };
    let args = [input(&y), input(&dy), output(n)];
    check_accumulate(backward, &args, 2, &dx);
    check_in_place(&backward(false), &args, 1, 2);

    let forward = Call::ReluMaskForward { elements, ceiling };
    let args = [input(&x), output(n), Arg::Out(n.div_ceil(8))];
    check(&forward, &args, &[(1, &wide(&y))]);
    check_in_place(&forward, &args, 0, 1);
    let mask = outcome(&forward, &args).remove(2);
    for (i, x) in x.iter().enumerate() {
        assert_eq!(mask[i / 8] >> (i % 8) & 1 == 1, inside(*x), "bit {i} of {n}");
    }
    let backward = |accumulate| Call::ReluMaskBackward { elements, accumulate };
    let args = [Arg::In(mask), input(&dy), output(n)];
    check_accumulate(backward, &args, 2, &dx);
    check_in_place(&backward(false), &args, 1, 2);
}

fn add_of(n: usize, seed: u32) {
    let elements = n as u64;
    let random = &mut Random::new(seed);
    let [x, y] = [0, 1].map(|_| random.floats(n));
    let sum: Vec<f64> = x.iter().zip(&y).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
    let args = [input(&x), input(&y), output(n)];
    check(&Call::Add { elements }, &args, &[(2, &sum)]);
    check_in_place(&Call::Add { elements }, &args, 0, 2);
}

#[test]
fn a_number_that_is_none_stays_none() {
    let x = [f32::NAN, 1.0, -1.0, -0.0, f32::INFINITY];
    for ceiling in [f32::INFINITY, 6.0] {
        for (_, got) in outcomes(&Call::ReluForward { elements: 5, ceiling }, &[input(&x), output(5)]) {
            let y = floats(&got[1]);
            assert!(y[0].is_nan());
            assert_eq!(y[1..], [1.0, 0.0, 0.0, ceiling]);
        }
    }
}

#[test]
fn dropout() {
    for n in LENGTHS {
        dropout_of(n, 0.3, [5, 6, 7, 4]);
    }
}

/// Seed and step from which a kernel draws.
fn hyper(seed_low: u32, seed_high: u32, step: u32) -> Arg {
    let update = UpdateRule::usual(Optimizer::Sgd).numbers(0.0, 0);
    Arg::In(Hyper { seed_low, seed_high, step, update }.to_bytes().to_vec())
}

/// The numbers of an update.
fn numbers(rule: UpdateRule, rate: f64, step: u32) -> Arg {
    let update = rule.numbers(rate, u64::from(step));
    Arg::In(Hyper { seed_low: 1, seed_high: 2, step, update }.to_bytes().to_vec())
}

fn dropout_of(n: usize, probability: f32, [seed_low, seed_high, step, stream]: [u32; 4]) {
    let hyper = hyper(seed_low, seed_high, step);
    let x = Random::new(1).floats(n);
    let elements = n as u64;
    let seed = u64::from(seed_high) << 32 | u64::from(seed_low);
    let kept: Vec<bool> = (0..n)
        .map(|i| {
            let word = philox4x32(seed, [(i / 4) as u32, 0, step, stream])[i % 4];
            unit_f32(word) >= probability
        })
        .collect();
    let y = reference::dropout(f64::from(probability), &kept, &wide(&x));
    let args = [hyper, input(&x), output(n)];
    let forward = Call::DropoutForward { elements, probability, stream };
    check(&forward, &args, &[(2, &y)]);
    check_in_place(&forward, &args, 1, 2);
    let backward = |accumulate| Call::DropoutBackward { elements, probability, stream, accumulate };
    check_accumulate(backward, &args, 2, &y);
    check_in_place(&backward(false), &args, 1, 2);
}

#[test]
fn parts_of_a_concatenation() {
    for (rows, channels, first, total) in [(1, 1, 0, 1), (5, 3, 2, 7), (700, 40, 8, 64)] {
        part_of(rows, [first, channels, total], 3);
    }
}

fn part_of(rows: usize, [first, channels, total]: [usize; 3], seed: u32) {
    let random = &mut Random::new(seed);
    let (part, whole) = (random.floats(rows * channels), random.floats(rows * total));
    let lengths = [first, channels, total];
    let joined = reference::joined(lengths, &wide(&part), &wide(&whole));
    let [r, c, f, t] = [rows, channels, first, total].map(|n| n as u64);
    let call = Call::ConcatPart { rows: r, channels: c, first: f, total: t };
    check(&call, &[input(&part), updated(&whole)], &[(1, &joined)]);
    let taken = reference::taken(lengths, &wide(&whole));
    let split = |accumulate| Call::SplitPart { rows: r, channels: c, first: f, total: t, accumulate };
    check_accumulate(split, &[input(&whole), output(part.len())], 1, &taken);
}

#[test]
fn gradients_of_what_is_linear_in_parts_are_derivatives() {
    let random = &mut Random::new(9);
    let [x, dy, bias] = [24, 24, 6].map(|n| wide(&random.floats(n)));
    for ceiling in [f64::INFINITY, 0.4] {
        let dx = reference::relu_gradient(ceiling, &x, &dy);
        reference::assert_gradient("relu", &x, &dy, &dx, |x| reference::relu(ceiling, x));
    }
    let kept: Vec<bool> = (0..x.len()).map(|i| i % 3 > 0).collect();
    let dx = reference::dropout(0.3, &kept, &dy);
    reference::assert_gradient("dropout", &x, &dy, &dx, |x| reference::dropout(0.3, &kept, x));
    let dbias = reference::bias_gradient(6, &dy);
    reference::assert_gradient("bias", &bias, &dy, &dbias, |bias| reference::bias(6, &x, bias));
    reference::assert_gradient("biased", &x, &dy, &dy, |x| reference::bias(6, x, &bias));
    let lengths = [1, 2, 8];
    let dpart = reference::taken(lengths, &dy);
    let part = &x[..6];
    reference::assert_gradient("part", part, &dy, &dpart, |part| reference::joined(lengths, part, &x));
    let sum = |x: &[f64]| -> Vec<f64> { x.iter().zip(&dy).map(|(a, b)| a + b).collect() };
    reference::assert_gradient("sum", &x, &dy, &dy, sum);
}

fn pool_shapes() -> Vec<PoolShape> {
    let shape = |batch, input: [u32; 2], channels, window: Window| {
        let output = window.output(input[0], input[1]).expect("the test's window fits");
        PoolShape { batch, input, output, channels, window }
    };
    let ceil = |batch, input: [u32; 2], channels, window: Window| {
        let output = window.output_ceil(input[0], input[1]).expect("the test's window fits");
        let within = shape(batch, input, channels, window);
        assert_ne!(output, within.output, "the last windows reach beyond the padding");
        PoolShape { output, ..within }
    };
    let dilated = Window { size: [2, 3], stride: [1, 2], padding: [1, 1], dilation: [2, 1] };
    vec![
        shape(1, [1, 1], 1, Window::square(1, 1, 0)),
        shape(5, [4, 4], 3, Window::square(2, 2, 0)),
        shape(2, [7, 6], 17, Window::square(3, 2, 1)),
        shape(1, [5, 5], 2, Window::square(3, 1, 1)),
        shape(5, [3, 4], 33, Window { size: [3, 4], stride: [1, 1], padding: [0, 0], dilation: [1, 1] }),
        shape(2, [5, 6], 4, dilated),
        shape(2, [1, 3], 1, Window::square(2, 3, 1)),
        ceil(2, [6, 8], 5, Window::square(3, 2, 0)),
        ceil(1, [6, 7], 3, Window::square(4, 3, 1)),
        ceil(3, [2, 5], 1, Window { size: [1, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] }),
    ]
}

#[test]
fn pooling() {
    for (i, s) in pool_shapes().into_iter().enumerate() {
        pooling_of(s, i as u32);
    }
}

fn pooling_of(s: PoolShape, seed: u32) {
    let random = &mut Random::new(seed);
    let pixels = |p: [u32; 2]| s.batch as usize * (p[0] * p[1] * s.channels) as usize;
    let (nx, ny) = (pixels(s.input), pixels(s.output));
    // Few distinct values, so that there are ties.
    let x: Vec<f32> = (0..nx).map(|_| random.below(5) as f32 - 2.0).collect();
    let dy = random.floats(ny);
    let (y, places) = reference::max_pool(&s, &wide(&x));
    let args = [input(&x), output(ny), Arg::Out(ny)];
    check(&Call::MaxPoolForward { shape: s }, &args, &[(1, &y)]);
    assert_eq!(outcome(&Call::MaxPoolForward { shape: s }, &args)[2], places, "{s:?}");
    let dx = reference::max_pool_gradient(&s, &wide(&x), &wide(&dy));
    let args = [Arg::In(places), input(&dy), output(nx)];
    check_accumulate(|accumulate| Call::MaxPoolBackward { shape: s, accumulate }, &args, 2, &dx);

    let y = reference::avg_pool(&s, &wide(&x));
    check(&Call::AvgPoolForward { shape: s }, &[input(&x), output(ny)], &[(1, &y)]);
    let dx = reference::avg_pool_gradient(&s, &wide(&dy));
    let args = [input(&dy), output(nx)];
    check_accumulate(|accumulate| Call::AvgPoolBackward { shape: s, accumulate }, &args, 1, &dx);
}

#[test]
fn pooling_gradients_are_derivatives() {
    for (i, s) in pool_shapes().into_iter().enumerate() {
        let random = &mut Random::new(100 + i as u32);
        let pixels = |p: [u32; 2]| s.batch as usize * (p[0] * p[1] * s.channels) as usize;
        // Without ties, which have no derivative.
        let [x, dy] = [s.input, s.output].map(|p| wide(&random.floats(pixels(p))));
        let dx = reference::max_pool_gradient(&s, &x, &dy);
        reference::assert_gradient("max", &x, &dy, &dx, |x| reference::max_pool(&s, x).0);
        let dx = reference::avg_pool_gradient(&s, &dy);
        reference::assert_gradient("avg", &x, &dy, &dx, |x| reference::avg_pool(&s, x));
    }
}

#[test]
fn local_response_normalisation() {
    for (rows, channels, size, beta) in [(1, 1, 5, 0.75), (3, 4, 5, 0.75), (5, 16, 3, 0.5), (400, 7, 1, 0.75)]
    {
        local_response_normalisation_of(rows, channels, size, beta, channels as u32);
    }
}

fn local_response_normalisation_of(rows: usize, channels: usize, size: u32, beta: f32, seed: u32) {
    let random = &mut Random::new(seed);
    let [x, dy] = [0, 1].map(|_| random.floats(rows * channels));
    let (alpha, bias) = (0.5, 2.0);
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let numbers = (size, f64::from(alpha), f64::from(beta), f64::from(bias));
    let y = reference::lrn(channels, numbers, &wide(&x));
    let forward = Call::LrnForward { shape, size, alpha, beta, bias };
    check(&forward, &[input(&x), output(x.len())], &[(1, &y)]);
    let dx = reference::lrn_gradient(channels, numbers, &wide(&x), &wide(&dy));
    let backward = |accumulate| Call::LrnBackward { shape, size, alpha, beta, bias, accumulate };
    check_accumulate(backward, &[input(&x), input(&dy), output(x.len())], 2, &dx);
    if rows < 100 {
        let f = |x: &[f64]| reference::lrn(channels, numbers, x);
        reference::assert_gradient("lrn", &wide(&x), &wide(&dy), &dx, f);
    }
}

#[test]
fn softmax_cross_entropy() {
    let cases: [(usize, Vec<i32>); 5] = [
        (1, vec![0]),
        (10, vec![3, -1, 9, 0, 5]),
        (3, vec![-1, -1]),
        (17, (0..70).map(|i| i % 18 - 1).collect()),
        (300, vec![299, -1, 0, 31, 32]),
    ];
    for (channels, of_samples) in cases {
        softmax_cross_entropy_of(channels, &of_samples, of_samples.len() as u32);
    }
}

fn softmax_cross_entropy_of(channels: usize, of_samples: &[i32], seed: u32) {
    let rows = of_samples.len();
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let random = &mut Random::new(seed);
    let mut logits: Vec<f32> = random.floats(rows * channels).iter().map(|v| 8.0 * v).collect();
    // A tie for the largest: the first class is the answer.
    logits[..channels.min(2)].fill(9.0);
    // Every other sample is answered correctly, and half of these have an equal in the last class.
    for (row, label) in of_samples.iter().enumerate().filter(|(row, label)| row % 2 == 1 && **label >= 0) {
        logits[row * channels + *label as usize] = 9.0;
        if row % 4 == 1 {
            logits[(row + 1) * channels - 1] = 9.0;
        }
    }
    let (differences, metrics) = reference::softmax_cross_entropy(channels, &wide(&logits), of_samples);
    let forward = Call::SoftmaxCrossEntropyForward { shape };
    let args = [input(&logits), labels(of_samples), output(logits.len()), output(3)];
    check(&forward, &args, &[(2, &differences), (3, &metrics)]);
    check_in_place(&forward, &args, 0, 2);

    let gradient = reference::softmax_cross_entropy_gradient(&differences, of_samples);
    let narrow: Vec<f32> = differences.iter().map(|d| *d as f32).collect();
    let backward = Call::SoftmaxCrossEntropyBackward { shape };
    let args = [input(&narrow), labels(of_samples), output(logits.len())];
    check(&backward, &args, &[(2, &gradient)]);
    check_in_place(&backward, &args, 0, 2);
    let loss = |x: &[f64]| vec![reference::softmax_cross_entropy(channels, x, of_samples).1[0]];
    reference::assert_gradient("loss", &wide(&logits), &[1.0], &gradient, loss);
}

#[test]
fn huge_logits_stay_finite() {
    let shape = RowShape { rows: 1, channels: 3 };
    let args = [input(&[1e4, -1e4, 0.0]), labels(&[1]), output(3), output(3)];
    for (_, got) in outcomes(&Call::SoftmaxCrossEntropyForward { shape }, &args) {
        assert_eq!(floats(&got[2]), [1.0, -1.0, 0.0]);
        assert_eq!(floats(&got[3]), [2e4, 0.0, 1.0]);
    }
}

/// In bf16 a probability above 0.998 is 1: the tensor keeps the label's difference from it, to bf16's eight bits.
#[test]
fn a_confident_answer_has_a_gradient_in_bf16() {
    let channels = 3;
    let shape = RowShape { rows: 5, channels: channels as u64 };
    // Probabilities of the labels: 0.9999, 0.9991, 0.5, a padded sample of NaN, and 0.00005.
    let logits =
        [10.0, 0.0, 0.0, 0.0, 7.0, -8.0, 1.0, 1.0, -40.0, f32::NAN, f32::INFINITY, 0.0, 10.0, 0.0, 0.0];
    let of_samples = [0, 1, 0, -1, 1];
    let mut numbers = wide(&logits);
    numbers[9..12].fill(0.0);
    let (differences, metrics) = reference::softmax_cross_entropy(channels, &numbers, &of_samples);
    let gradient = reference::softmax_cross_entropy_gradient(&differences, &of_samples);
    let forward = Call::SoftmaxCrossEntropyForward { shape };
    let args = [input(&logits), labels(&of_samples), output(logits.len()), output(3)];
    for (by, got) in outcomes_in_bf16(&forward, &args) {
        let kept = wide_floats(&got[2]);
        let backward = Call::SoftmaxCrossEntropyBackward { shape };
        let args = [input(&kept), labels(&of_samples), output(logits.len())];
        let (_, passed) =
            outcomes_in_bf16(&backward, &args).into_iter().find(|(who, _)| *who == by).expect("both have it");
        for (c, (found, expected)) in wide_floats(&passed[2]).into_iter().zip(&gradient).enumerate() {
            // Rounded when kept, and when scaled.
            let off = (f64::from(found) - expected).abs();
            assert!(off <= expected.abs() / 128.0, "gradient {c} by {by} is {found}, expected {expected}");
        }
        for (found, expected) in floats(&got[3]).into_iter().zip(metrics) {
            assert!((f64::from(found) - expected).abs() < 1e-5, "{by}: {found} of {metrics:?}");
        }
    }
}

#[test]
fn stochastic_gradient_descent() {
    for n in LENGTHS {
        descent_of(n, 11);
    }
}

fn descent_of(n: usize, seed: u32) {
    let hyper = numbers(UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.01 }, 0.1, 0);
    let random = &mut Random::new(seed);
    let [p, g, m] = [0, 1, 2].map(|_| random.floats(n));
    for decay in [false, true] {
        let moved: Vec<f64> = (0..n)
            .map(|i| {
                let penalty = if decay { 0.01 * f64::from(p[i]) } else { 0.0 };
                0.9 * f64::from(m[i]) + f64::from(g[i]) + penalty
            })
            .collect();
        let stepped: Vec<f64> = p.iter().zip(&moved).map(|(p, m)| f64::from(*p) - 0.1 * m).collect();
        let args = [hyper.clone(), updated(&p), input(&g), updated(&m)];
        check(&Call::Sgd { elements: n as u64, decay }, &args, &[(1, &stepped), (3, &moved)]);
    }
}

/// In f64, by the paper's own formulas.
#[test]
fn adam_with_decoupled_decay() {
    let (beta1, beta2, epsilon, rate, decay) = (0.8, 0.99, 1e-3, 0.1, 0.25);
    let rule = UpdateRule::Adamw { beta1, beta2, epsilon, weight_decay: decay as f32 };
    for (n, step) in LENGTHS.into_iter().zip([0, 1, 9, 1000, u32::MAX].into_iter().cycle()) {
        let hyper = numbers(rule, rate, step);
        let random = &mut Random::new(12);
        let [p, g, m] = [0, 1, 2].map(|_| random.floats(n));
        let v: Vec<f32> = random.floats(n).into_iter().map(f32::abs).collect();
        let mean = |beta: f64, old: f32, new: f64| beta * f64::from(old) + (1.0 - beta) * new;
        let first: Vec<f64> = (0..n).map(|i| mean(beta1, m[i], f64::from(g[i]))).collect();
        let second: Vec<f64> = (0..n).map(|i| mean(beta2, v[i], f64::from(g[i]).powi(2))).collect();
        let t = f64::from(step) + 1.0;
        let corrected = |beta: f64, moment: f64| moment / (1.0 - beta.powf(t));
        let stepped = |i: usize| {
            let step = corrected(beta1, first[i]) / (corrected(beta2, second[i]).sqrt() + epsilon);
            f64::from(p[i]) * (1.0 - rate * decay) - rate * step
        };
        let stepped: Vec<f64> = (0..n).map(stepped).collect();
        let args = [hyper, updated(&p), input(&g), updated(&m), updated(&v)];
        check(&Call::Adamw { elements: n as u64 }, &args, &[(1, &stepped), (3, &first), (4, &second)]);
    }
}

/// The gap between adjoining parameters is 0 and stays so, and nothing without a gradient moves by itself.
#[test]
fn nothing_comes_of_nothing_by_adamw() {
    let zeros = [0.0; 5];
    let hyper = numbers(UpdateRule::usual(Optimizer::Adamw), 1e-3, 0);
    let args = [hyper, updated(&zeros), input(&zeros), updated(&zeros), updated(&zeros)];
    for (by, got) in outcomes(&Call::Adamw { elements: 5 }, &args) {
        for operand in [1, 3, 4] {
            assert_eq!(floats(&got[operand]), zeros, "{by}");
        }
    }
}
