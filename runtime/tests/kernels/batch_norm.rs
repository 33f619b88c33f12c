//! Batch normalisation, alone and fused with a sum, a ReLU, or both.
//!
//! Compared with plain f64 versions, whose gradients are checked by finite differences; and with the separate calls, whose
//! bits the fused ones must give.

use super::EPSILON;
use super::harness::{
    Arg, Random, check, check_accumulate, check_in_place, floats, input, outcome, outcomes, output,
};
use super::reference::{self, Norm, wide};
use plimsoll_ir::program::{After, Call, FusedRelu, RowShape};

/// All fused operations, and none.
fn every_after() -> Vec<After> {
    let relus = [f32::INFINITY, 0.7]
        .into_iter()
        .flat_map(|ceiling| [false, true].map(|mask| Some(FusedRelu { ceiling, mask })));
    let relus: Vec<Option<FusedRelu>> = relus.chain([None]).collect();
    [false, true]
        .into_iter()
        .flat_map(|add| relus.iter().map(move |relu| After { add, relu: *relu }))
        .collect()
}

const SHAPES: [(usize, usize); 8] =
    [(1, 1), (2, 3), (5, 1), (7, 16), (33, 19), (3000, 24), (500, 64), (4, 5000)];

#[test]
fn batch_norm() {
    (0..).zip(SHAPES).for_each(|(i, (rows, channels))| batch_norm_of(rows, channels, After::default(), i));
}

#[test]
#[ignore = "minutes: CI runs it"]
fn batch_norm_and_what_follows() {
    for (i, (rows, channels)) in (0..).zip(SHAPES) {
        every_after().into_iter().for_each(|then| batch_norm_of(rows, channels, then, i));
    }
}

/// Tests one of them, chosen by the seed.
pub fn some_after(rows: usize, channels: usize, seed: u32) {
    let all = every_after();
    batch_norm_of(rows, channels, all[seed as usize % all.len()], seed);
}

/// y of the fused operations, in f64.
fn follow(then: &After, normal: &[f64], r: &[f64]) -> Vec<f64> {
    let sum = normal.iter().zip(r).map(|(n, r)| if then.add { n + r } else { *n });
    sum.map(|v| then.relu.map_or(v, |relu| v.clamp(0.0, f64::from(relu.ceiling)))).collect()
}

/// Gradient of the sum.
fn passed(then: &After, y: &[f64], dy: &[f64]) -> Vec<f64> {
    let inside = |y: f64| then.relu.is_none_or(|relu| y > 0.0 && y < f64::from(relu.ceiling));
    y.iter().zip(dy).map(|(y, dy)| if inside(*y) { *dy } else { 0.0 }).collect()
}

fn batch_norm_of(rows: usize, channels: usize, then: After, seed: u32) {
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let (n, random) = (rows * channels, &mut Random::new(seed));
    // Far from 0, so that a variance by the difference of squares would show.
    let x: Vec<f32> = random.floats(n).iter().map(|x| x + 3.0).collect();
    let [gamma, beta] = [0, 1].map(|_| random.floats(channels));
    let [r, dy] = [0, 1].map(|_| random.floats(n));
    let norm = Norm { channels, epsilon: f64::from(EPSILON), by_row: false, centred: true };
    let [normal, mean, inverse] = norm.forward(&wide(&x), &wide(&gamma), &wide(&beta));
    let stats = [mean, inverse].concat();

    let forward = Call::BatchNormForward { shape, epsilon: EPSILON, then };
    let mut args = vec![input(&x), input(&gamma), input(&beta)];
    args.extend(then.add.then(|| input(&r)));
    args.extend([output(n), output(2 * channels)]);
    args.extend(then.masks().then(|| Arg::Out(n.div_ceil(8))));
    let y = 3 + usize::from(then.add);
    check(&forward, &args, &[(y, &follow(&then, &normal, &wide(&r))), (y + 1, &stats)]);
    if then.add {
        check_in_place(&forward, &args, 3, 4);
    }
    assert_one_by_one(&then, shape, &args, &r);

    // The ceiling is an element of some output, with elements at both ends.
    let ceiling = then.relu.map_or(1.0, |relu| relu.ceiling);
    let y: Vec<f32> = random.floats(n).iter().map(|v| v.clamp(0.0, ceiling)).collect();
    let stats: Vec<f32> = stats.iter().map(|s| *s as f32).collect();
    let dr = passed(&then, &wide(&y), &wide(&dy));
    let [dx, dgamma, dbeta] = norm.gradient(&wide(&x), &wide(&gamma), &dr);
    let mut args = vec![input(&x), input(&dy), input(&gamma), input(&stats)];
    args.extend(then.relu.map(|relu| if relu.mask { mask_of(&y, ceiling) } else { input(&y) }));
    let at = args.len();
    args.extend([output(n), output(channels), output(channels)]);
    args.extend(then.add.then(|| output(n)));
    let backward = |accumulate| Call::BatchNormBackward { shape, then, accumulate };
    let mut expected = vec![(at + 1, &dgamma[..]), (at + 2, &dbeta)];
    expected.extend(then.add.then_some((at + 3, &dr[..])));
    check(&backward(false), &args, &expected);
    check_accumulate(backward, &args, at, &dx);
    check_in_place(&backward(false), &args, 1, if then.add { at + 3 } else { at });
    assert_gradients_one_by_one(&then, shape, &args, at);
}

/// A mask of one bit per element, as [`Call::ReluMaskForward`] gives it.
fn mask_of(y: &[f32], ceiling: f32) -> Arg {
    let call = Call::ReluMaskForward { elements: y.len() as u64, ceiling };
    Arg::In(outcome(&call, &[input(y), output(y.len()), Arg::Out(y.len().div_ceil(8))]).remove(2))
}

/// Operands after a call with kernels number `which`; `None` if there are not so many.
fn by(which: usize, call: &Call, args: &[Arg]) -> Option<Vec<Vec<u8>>> {
    outcomes(call, args).into_iter().nth(which).map(|(_, outcome)| outcome)
}

/// Asserts that the forward pass has the bits of separate normalisation, sum and ReLU, with all kernels.
fn assert_one_by_one(then: &After, shape: RowShape, args: &[Arg], r: &[f32]) {
    let (elements, n) = (shape.rows * shape.channels, r.len());
    let fused = Call::BatchNormForward { shape, epsilon: EPSILON, then: *then };
    let alone = Call::BatchNormForward { shape, epsilon: EPSILON, then: After::default() };
    for (which, (who, found)) in outcomes(&fused, args).into_iter().enumerate() {
        let of_norm = [&args[..3], &[output(n), output(2 * shape.channels as usize)]].concat();
        let mut parts = by(which, &alone, &of_norm).expect("it computed before").split_off(3);
        if then.add {
            let of_add = [Arg::In(parts[0].clone()), input(r), output(n)];
            parts[0] = by(which, &Call::Add { elements }, &of_add).expect("as above").remove(2);
        }
        if let Some(FusedRelu { ceiling, .. }) = then.relu {
            let of_relu = [Arg::In(parts[0].clone()), output(n), Arg::Out(n.div_ceil(8))];
            let mut clipped =
                by(which, &Call::ReluMaskForward { elements, ceiling }, &of_relu).expect("as above");
            parts.extend(then.masks().then(|| clipped.remove(2)));
            parts[0] = clipped.remove(1);
        }
        assert!(parts == found[3 + usize::from(then.add)..], "{fused:?} by {who} is not what its parts give");
    }
}

/// Asserts the same of the backward pass, whose dx is operand `at`.
fn assert_gradients_one_by_one(then: &After, shape: RowShape, args: &[Arg], at: usize) {
    let elements = shape.rows * shape.channels;
    let n = elements as usize;
    let fused = Call::BatchNormBackward { shape, then: *then, accumulate: false };
    let alone = Call::BatchNormBackward { shape, then: After::default(), accumulate: false };
    for (which, (who, found)) in outcomes(&fused, args).into_iter().enumerate() {
        let dr = match then.relu {
            None => args[1].clone(),
            Some(FusedRelu { ceiling, mask }) => {
                let call = match mask {
                    true => Call::ReluMaskBackward { elements, accumulate: false },
                    false => Call::ReluBackward { elements, ceiling, accumulate: false },
                };
                let of_relu = [args[4].clone(), args[1].clone(), output(n)];
                Arg::In(by(which, &call, &of_relu).expect("it computed before").remove(2))
            }
        };
        let of_norm = [&[args[0].clone(), dr.clone()], &args[2..4], &args[at..at + 3]].concat();
        let mut parts = by(which, &alone, &of_norm).expect("as above").split_off(4);
        if let (true, Arg::In(dr)) = (then.add, dr) {
            parts.push(dr);
        }
        assert!(parts == found[at..], "{fused:?} by {who} is not what its parts give");
    }
}

#[test]
fn gradients_are_derivatives() {
    for (rows, channels) in [(2, 1), (5, 3), (9, 2)] {
        for then in every_after() {
            let random = &mut Random::new(rows as u32);
            let [x, dy, r] = [0, 1, 2].map(|_| wide(&random.floats(rows * channels)));
            let [gamma, beta] = [0, 1].map(|_| wide(&random.floats(channels)));
            let norm = Norm { channels, epsilon: 0.1, by_row: false, centred: true };
            let y = |x: &[f64], gamma: &[f64], beta: &[f64], r: &[f64]| {
                follow(&then, &norm.forward(x, gamma, beta)[0], r)
            };
            let dr = passed(&then, &y(&x, &gamma, &beta, &r), &dy);
            let [dx, dgamma, dbeta] = norm.gradient(&x, &gamma, &dr);
            reference::assert_gradient("x", &x, &dy, &dx, |x| y(x, &gamma, &beta, &r));
            reference::assert_gradient("gamma", &gamma, &dy, &dgamma, |g| y(&x, g, &beta, &r));
            reference::assert_gradient("beta", &beta, &dy, &dbeta, |b| y(&x, &gamma, b, &r));
            if then.add {
                reference::assert_gradient("r", &r, &dy, &dr, |r| y(&x, &gamma, &beta, r));
            }
        }
    }
}

/// A diverged run stays visible: NaN stays NaN, and its gradient passes nowhere.
#[test]
fn what_is_no_number_stays_none_behind_a_relu() {
    let shape = RowShape { rows: 3, channels: 1 };
    for mask in [false, true] {
        let then = After { add: true, relu: Some(FusedRelu { ceiling: 6.0, mask }) };
        let call = Call::BatchNormForward { shape, epsilon: EPSILON, then };
        let mut args = vec![input(&[1.0, 2.0, 3.0]), input(&[1.0]), input(&[0.0])];
        args.extend([input(&[f32::NAN, 9.0, 1.0]), output(3), output(2)]);
        args.extend(mask.then_some(Arg::Out(1)));
        for (_, found) in outcomes(&call, &args) {
            let y = floats(&found[4]);
            assert!(y[0].is_nan() && y[1] == 6.0 && y[2] > 1.0 && y[2] < 6.0, "{y:?}");
            assert!(!mask || found[6] == [0b100]);
        }
    }
}
