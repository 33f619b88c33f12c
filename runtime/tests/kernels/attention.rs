//! Attention and its gradient against plain f64 sums: one head and several, shared or not, one position and several blocks,
//! causal or not, heads that fill several scratches and rows that do, scores in the hundreds.
//!
//! Deliberately does not train; `same_bits` and the stand-in's tests run whole schedules with it.

use super::FEW;
use super::harness::{Arg, Random, check, check_accumulate, check_in_place, floats, input, outcomes, output};
use super::reference::{self, wide};
use plimsoll_ir::program::{AttentionShape, Call, RotaryShape};

/// Samples, positions, heads of keys, heads of queries for each of these, channels of a head.
fn shape([batch, length, kv_heads, group, of_head]: [u64; 5], causal: bool) -> AttentionShape {
    let heads = kv_heads * group;
    AttentionShape { batch, length, heads, kv_heads, width: heads * of_head, causal }
}

#[test]
fn attention() {
    for (i, sides) in (0..).zip([
        [1, 1, 1, 1, 1],
        [2, 1, 2, 1, 3],
        [1, 2, 1, 1, 3],
        [3, 5, 2, 1, 1],
        [2, 17, 3, 1, 5],
        [2, 64, 2, 1, 8],
        [1, 65, 4, 1, 5],
        [2, 131, 1, 1, 9],
        [1, 200, 2, 1, 32],
        [1, 1, 1, 2, 1],
        [2, 17, 2, 3, 5],
        [2, 131, 1, 4, 9],
        [1, 65, 3, 2, 4],
        [2, 3, 2, 2, 2],
    ]) {
        [false, true].into_iter().for_each(|causal| attention_of(sides, causal, i));
    }
}

pub fn attention_of(sides: [u64; 5], causal: bool, seed: u32) {
    let s = shape(sides, causal);
    let random = &mut Random::new(seed);
    let [y, all] = [s.width, s.qkv_width()].map(|width| (s.batch * s.length * width) as usize);
    // Queries and keys large enough that some positions count far more than others.
    let qkv: Vec<f32> = random.floats(all).iter().map(|v| 3.0 * v).collect();
    let dy = random.floats(y);
    let [expected, stats] = reference::attention(&s, &wide(&qkv));
    let args = [input(&qkv), output(y), output(stats.len())];
    check(&Call::AttentionForward { shape: s }, &args, &[(1, &expected), (2, &stats)]);

    let dqkv = reference::attention_gradient(&s, &wide(&qkv), &wide(&dy));
    if qkv.len() < FEW {
        let y = |qkv: &[f64]| reference::attention(&s, qkv)[0].clone();
        reference::assert_gradient("qkv", &wide(&qkv), &wide(&dy), &dqkv, y);
    }
    let narrow: Vec<f32> = stats.iter().map(|v| *v as f32).collect();
    let args = [input(&qkv), input(&narrow), input(&dy), output(all)];
    check_accumulate(|accumulate| Call::AttentionBackward { shape: s, accumulate }, &args, 3, &dqkv);
}

/// CUDA's kernels have 2^23 scores in scratch: those of some heads of keys at a time, or of some rows if one head has more.
#[test]
#[ignore = "minutes: CI runs it"]
fn attention_goes_through_its_scratch_in_parts() {
    for causal in [false, true] {
        // 2^22 pairs for each head of keys: two at a time, and then the third.
        attention_of([1, 16, 3, 1 << 14, 1], causal, 1);
        // 2^13 * 33 pairs a row: 28 rows at a time.
        attention_of([1, 33, 1, 1 << 13, 1], causal, 2);
    }
}

/// Products up to several thousand, whose scores in f32 are right to a few ten-thousandths of 1, and so are the
/// probabilities.
#[test]
fn attention_of_large_scores() {
    for causal in [false, true] {
        let s = shape([1, 300, 2, 1, 16], causal);
        let random = &mut Random::new(9);
        let qkv: Vec<f32> =
            random.floats((s.length * s.qkv_width()) as usize).iter().map(|v| 24.0 * v).collect();
        let [y, stats] = reference::attention(&s, &wide(&qkv));
        assert!(stats.iter().copied().fold(0.0, f64::max) > 1000.0, "the products are large");
        let args = [input(&qkv), output(y.len()), output(stats.len())];
        for (by, got) in outcomes(&Call::AttentionForward { shape: s }, &args) {
            assert_within(&by, &floats(&got[1]), &y, 1e-3);
            // Backward from the numbers that the same kernels kept.
            let dy = Random::new(10).floats(y.len());
            let expected = reference::attention_gradient(&s, &wide(&qkv), &wide(&dy));
            let args = [input(&qkv), Arg::In(got[2].clone()), input(&dy), output(qkv.len())];
            for (by, got) in outcomes(&Call::AttentionBackward { shape: s, accumulate: false }, &args) {
                assert_within(&by, &floats(&got[3]), &expected, 1e-3);
            }
        }
    }
}

/// Asserts that numbers differ by at most a share of the largest.
fn assert_within(by: &str, got: &[f32], expected: &[f64], share: f64) {
    let largest = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*g) - e).abs() / largest;
        assert!(error <= share, "{by}: element {i} is {g}, expected {e}: {error:e} of the largest");
    }
}

/// Scores whose exponentials exceed f32; and a NaN at a future position, which affects no earlier one.
#[test]
fn attention_has_no_surprises_far_out() {
    let forward = |causal| Call::AttentionForward { shape: shape([1, 2, 1, 1, 1], causal) };
    let args = [input(&[200.0, 1.0, 3.0, 200.0, -1.0, 5.0]), output(2), output(4)];
    for (by, got) in outcomes(&forward(false), &args) {
        assert_eq!(floats(&got[1]), [3.0, 3.0], "{by}");
        assert_eq!(floats(&got[2]), [200.0, 1.0, 200.0, 1.0], "{by}");
    }
    let args = [input(&[1.0, 1.0, 3.0, f32::NAN, f32::NAN, 5.0]), output(2), output(4)];
    for (by, got) in outcomes(&forward(true), &args) {
        let [y, stats] = [1, 2].map(|i| floats(&got[i]));
        assert_eq!((y[0], &stats[..2]), (3.0, &[1.0, 1.0][..]), "{by}");
        assert!(y[1].is_nan(), "{by}");
    }
}

#[test]
fn rotary() {
    for (i, (sides, base)) in (0..).zip([
        ([1, 1, 1, 2], 1e4),
        ([2, 3, 2, 4], 1e4),
        ([1, 7, 3, 6], 100.0),
        ([2, 65, 4, 32], 1e4),
        ([1, 300, 1, 64], 5e5),
        ([3, 41, 5, 34], 7.5),
    ]) {
        rotary_of(sides, base, i);
    }
}

/// Samples, positions, heads, channels of a head.
pub fn rotary_of([batch, length, heads, width]: [u64; 4], base: f32, seed: u32) {
    let shape = RotaryShape { batch, length, channels: heads * width, width };
    let random = &mut Random::new(seed);
    let x = random.floats(shape.elements() as usize);
    let forward = Call::RotaryForward { shape, base };
    let args = [input(&x), output(x.len())];
    check(&forward, &args, &[(1, &reference::rotary(&shape, base, false, &wide(&x)))]);
    check_in_place(&forward, &args, 0, 1);
    let dx = reference::rotary(&shape, base, true, &wide(&x));
    if x.len() < FEW {
        let y = |x: &[f64]| reference::rotary(&shape, base, false, x);
        reference::assert_gradient("x", &wide(&x), &wide(&x), &dx, y);
    }
    check_accumulate(|accumulate| Call::RotaryBackward { shape, base, accumulate }, &args, 1, &dx);
    check_in_place(&Call::RotaryBackward { shape, base, accumulate: false }, &args, 0, 1);
}

/// The product of a query and a key depends only on their distance, which is the purpose of the layer; and positions in the
/// thousands are as exact as the first.
#[test]
fn rotary_products_know_distances() {
    let shape = RotaryShape { batch: 1, length: 5000, channels: 8, width: 8 };
    let row: Vec<f32> = Random::new(3).floats(8);
    let x: Vec<f32> = row.iter().copied().cycle().take(8 * 5000).collect();
    for (by, got) in outcomes(&Call::RotaryForward { shape, base: 1e4 }, &[input(&x), output(x.len())]) {
        let y = wide(&floats(&got[1]));
        let at = |position: usize| &y[8 * position..8 * position + 8];
        let product = |i: usize, j: usize| -> f64 { at(i).iter().zip(at(j)).map(|(a, b)| a * b).sum() };
        for distance in [0, 1, 7, 100] {
            let off = (product(distance, 0) - product(4899 + distance, 4899)).abs();
            assert!(off < 1e-5, "{by}: {distance} apart, {off:e}");
        }
        assert_eq!(floats(&got[1])[..8], row, "{by}: position 0 stays");
    }
}
