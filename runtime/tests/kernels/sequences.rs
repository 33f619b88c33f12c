//! Calls of token networks other than attention: tables of tokens, biases and learned positions, and the steps of a long
//! short-term memory, with their gradients, against plain f64 versions.
//!
//! Deliberately does not train; `same_bits` and the stand-in's tests run whole schedules with them.

use super::harness::{
    Arg, Random, check, check_accumulate, check_in_place, cuda_outcomes, floats, input, labels, output,
    panics,
};
use super::reference::{self, wide};
use plimsoll_ir::program::{Call, EmbeddingShape, RowShape};

/// Rows and channels: of one position, and of learned positions, which have long rows.
#[test]
fn biases() {
    let shapes =
        [(1, 1), (3, 1), (5, 7), (1, 33), (3000, 24), (70, 2047), (3, 2048), (130, 2100), (2, 40_003)];
    (0..).zip(shapes).for_each(|(i, (rows, channels))| bias_of(rows, channels, i));
}

pub fn bias_of(rows: usize, channels: usize, seed: u32) {
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    let random = &mut Random::new(seed);
    let [x, bias] = [rows * channels, channels].map(|n| random.floats(n));
    let forward = Call::BiasForward { shape };
    let args = [input(&x), input(&bias), output(x.len())];
    check(&forward, &args, &[(2, &reference::bias(channels, &wide(&x), &wide(&bias)))]);
    check_in_place(&forward, &args, 0, 2);
    let dbias = reference::bias_gradient(channels, &wide(&x));
    let args = [input(&x), output(channels)];
    check_accumulate(|accumulate| Call::BiasBackward { shape, accumulate }, &args, 1, &dbias);
}

/// Batch, tokens of a sample, the first of them, their number, vocabulary, width.
#[test]
fn embeddings() {
    for (i, sides) in (0..).zip([
        [1, 1, 0, 1, 1, 1],
        [2, 3, 0, 3, 5, 7],
        [2, 5, 2, 1, 3, 64],
        [3, 9, 1, 8, 100, 33],
        [2, 40, 0, 40, 2, 130],
        [1, 300, 0, 300, 1000, 16],
        [64, 20, 7, 1, 90, 24],
    ]) {
        embedding_of(sides, i);
    }
}

fn embedding_shape([batch, length, first, count, vocabulary, width]: [u64; 6]) -> EmbeddingShape {
    EmbeddingShape { batch, length, first, count, vocabulary, width }
}

pub fn embedding_of(sides: [u64; 6], seed: u32) {
    let shape = embedding_shape(sides);
    let random = &mut Random::new(seed);
    let [batch, length, _, count, vocabulary, width] = sides.map(|n| n as usize);
    let inside = |i: usize| (shape.first as usize..shape.first as usize + count).contains(&(i % length));
    // Tokens that are not looked up may have any value.
    let token = |i| if inside(i) { random.below(vocabulary) as i32 } else { -7 };
    let tokens: Vec<i32> = (0..batch * length).map(token).collect();
    let weight = Random::new(seed + 500).floats(vocabulary * width);
    let y = reference::embedding(&shape, &tokens, &wide(&weight));
    let args = [labels(&tokens), input(&weight), output(y.len())];
    check(&Call::EmbeddingForward { shape }, &args, &[(2, &y)]);

    let dy = Random::new(seed + 600).floats(y.len());
    let dweight = reference::embedding_gradient(&shape, &tokens, &wide(&dy));
    if weight.len() < super::FEW {
        let y = |weight: &[f64]| reference::embedding(&shape, &tokens, weight);
        reference::assert_gradient("weight", &wide(&weight), &wide(&dy), &dweight, y);
    }
    let args = [labels(&tokens), input(&dy), output(weight.len())];
    check_accumulate(|accumulate| Call::EmbeddingBackward { shape, accumulate }, &args, 2, &dweight);
}

/// On the CPU a token beyond the table stops the run with an error that names it. On a device, which cannot stop, its row
/// is NaN, and nothing outside the table is read or written.
#[test]
fn tokens_beyond_the_table() {
    let shape = embedding_shape([2, 2, 0, 2, 11, 3]);
    let [forward, backward] =
        [Call::EmbeddingForward { shape }, Call::EmbeddingBackward { shape, accumulate: false }];
    let weight = Random::new(1).floats(33);
    for token in [-1, 11, i32::MAX, i32::MIN] {
        let tokens = labels(&[3, 5, token, 10]);
        let args = [tokens.clone(), input(&weight), output(12)];
        let back = [tokens, input(&weight[..12]), output(33)];
        for (call, args) in [(&forward, &args), (&backward, &back)] {
            let said = panics(call, args);
            let expected =
                format!("token {token}, at position 0 of sample 1, is not in the vocabulary of 11");
            assert!(said.contains(&expected), "{call:?}: {said}");
        }
        for (by, got) in cuda_outcomes(&forward, &args) {
            let y = floats(&got[2]);
            assert!(y[6..9].iter().all(|y| y.is_nan()), "{by}: {y:?}");
            assert_eq!(
                [&y[..6], &y[9..]].concat(),
                [&weight[9..12], &weight[15..18], &weight[30..]].concat()
            );
        }
        for (by, got) in cuda_outcomes(&backward, &back) {
            let dweight = floats(&got[2]);
            let known = [(9, 0), (15, 3), (30, 9)];
            let mut expected = vec![0.0; 33];
            for (to, from) in known {
                expected[to..to + 3].copy_from_slice(&weight[from..from + 3]);
            }
            assert_eq!(dweight, expected, "{by}");
        }
    }
}

#[test]
fn lstm_steps() {
    let shapes = [(1, 1), (2, 3), (5, 16), (3, 33), (64, 100), (9, 700)];
    (0..).zip(shapes).for_each(|(i, (rows, channels))| lstm_of(rows, channels, i));
}

pub fn lstm_of(rows: usize, channels: usize, seed: u32) {
    let n = rows * channels;
    let random = &mut Random::new(seed);
    let gates: Vec<f32> = random.floats(4 * n).iter().map(|x| 5.0 * x).collect();
    let [previous, dh, dcell] = [0, 1, 2].map(|_| random.floats(n));
    let shape = RowShape { rows: rows as u64, channels: channels as u64 };
    if n < super::FEW {
        let ([gates, previous], [dh, dcell]) =
            ([&gates, &previous].map(|v| wide(v)), [&dh, &dcell].map(|v| wide(v)));
        let [dgates, dprevious] = reference::lstm_gradient(channels, &gates, &previous, &dh, &dcell);
        let step = |gates: &[f64], previous: &[f64]| reference::lstm(channels, gates, previous)[..2].concat();
        let weights = [dh, dcell].concat();
        reference::assert_gradient("gates", &gates, &weights, &dgates, |g| step(g, &previous));
        reference::assert_gradient("previous", &previous, &weights, &dprevious, |p| step(&gates, p));
    }
    for first in [false, true] {
        lstm_forward_of(shape, first, &gates, &previous);
        for last in [false, true] {
            lstm_backward_of(shape, [first, last], &gates, [&previous, &dh, &dcell]);
        }
    }
}

fn lstm_forward_of(shape: RowShape, first: bool, gates: &[f32], previous: &[f32]) {
    let before = if first { vec![0.0; previous.len()] } else { wide(previous) };
    let [h, cell, activated] = reference::lstm(shape.channels as usize, &wide(gates), &before);
    let mut args = vec![input(gates)];
    args.extend((!first).then(|| input(previous)));
    let read = args.len();
    args.extend([h.len(), h.len(), gates.len()].map(output));
    let call = Call::LstmForward { shape, first };
    check(&call, &args, &[(read, &h), (read + 1, &cell), (read + 2, &activated)]);
    check_in_place(&call, &args, 0, read + 2);
}

/// `others` are previous, dh, dcell.
fn lstm_backward_of(shape: RowShape, [first, last]: [bool; 2], gates: &[f32], others: [&[f32]; 3]) {
    let [previous, dh, dcell] = others;
    let channels = shape.channels as usize;
    let or_zeros = |zeros: bool, v: &[f32]| if zeros { vec![0.0; v.len()] } else { wide(v) };
    let before = or_zeros(first, previous);
    let [_, cell, activated] = reference::lstm(channels, &wide(gates), &before);
    let [dgates, dprevious] =
        reference::lstm_gradient(channels, &wide(gates), &before, &wide(dh), &or_zeros(last, dcell));
    let narrow = |v: &[f64]| input(&v.iter().map(|v| *v as f32).collect::<Vec<_>>());
    let mut args: Vec<Arg> = vec![narrow(&activated)];
    args.extend((!first).then(|| input(previous)));
    args.extend([narrow(&cell), input(dh)]);
    args.extend((!last).then(|| input(dcell)));
    let read = args.len();
    args.push(output(gates.len()));
    args.extend((!first).then(|| output(dh.len())));
    let call = Call::LstmBackward { shape, first, last };
    let mut expected: Vec<(usize, &[f64])> = vec![(read, &dgates)];
    expected.extend((!first).then_some((read + 1, &dprevious[..])));
    check(&call, &args, &expected);
    check_in_place(&call, &args, 0, read);
    if !first && !last {
        check_in_place(&call, &args, read - 1, read + 1);
    }
}

/// Gates that are all open or shut, and a NaN.
#[test]
fn lstm_has_no_surprises_far_out() {
    let shape = RowShape { rows: 1, channels: 1 };
    let far = f32::INFINITY;
    for (gates, cell) in [
        ([far, -far, far, far], 1.0),
        ([-far, far, 3.0, far], 5.0),
        ([1e30, 1e30, -1e30, 1e30], 4.0),
        ([-200.0, -200.0, 200.0, -200.0], 0.0),
    ] {
        let args = [input(&gates), input(&[5.0]), output(1), output(1), output(4)];
        for (by, got) in super::outcomes(&Call::LstmForward { shape, first: false }, &args) {
            assert_eq!(floats(&got[3]), [cell], "{by}: {gates:?}");
        }
    }
    for gate in 0..4 {
        let mut gates = [0.5; 4];
        gates[gate] = f32::NAN;
        let args = [input(&gates), input(&[5.0]), output(1), output(1), output(4)];
        for (by, got) in super::outcomes(&Call::LstmForward { shape, first: false }, &args) {
            assert!(floats(&got[2])[0].is_nan() && floats(&got[4])[gate].is_nan(), "{by}: {gates:?}");
        }
    }
}
