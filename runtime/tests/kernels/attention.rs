//! Attention and its gradient against plain f64 sums: one head and many, one position and several blocks of them, causal and
//! not.
//!
//! What it deliberately does not do: train; whole schedules with it are in `same_bits` and the stand-in's tests.

use super::harness::{Random, check, check_accumulate, floats, input, outcomes, output};
use super::reference::{self, wide};
use plimsoll_ir::program::{AttentionShape, Call};

fn shape([batch, length, heads, width]: [u64; 4], causal: bool) -> AttentionShape {
    AttentionShape { batch, length, heads, width, causal }
}

pub fn attention() {
    for (i, sides) in [
        [1, 1, 1, 1],
        [2, 1, 2, 6],
        [1, 2, 1, 3],
        [3, 5, 2, 2],
        [2, 17, 3, 15],
        [2, 64, 2, 16],
        [1, 65, 4, 20],
        [2, 131, 1, 9],
        [1, 200, 2, 64],
    ]
    .into_iter()
    .enumerate()
    {
        for causal in [false, true] {
            attention_of(sides, causal, i as u32);
        }
    }
}

pub fn attention_of(sides: [u64; 4], causal: bool, seed: u32) {
    let s = shape(sides, causal);
    let random = &mut Random::new(seed);
    let y = (s.batch * s.length * s.width) as usize;
    // Queries and keys large enough that some positions count far more than others.
    let qkv: Vec<f32> = random.floats(3 * y).iter().map(|v| 3.0 * v).collect();
    let dy = random.floats(y);
    let [expected, probabilities] = reference::attention(&s, &wide(&qkv));
    let args = [input(&qkv), output(y), output(probabilities.len())];
    check(&Call::AttentionForward { shape: s }, &args, &[(1, &expected), (2, &probabilities)]);

    let dqkv = reference::attention_gradient(&s, &wide(&qkv), &wide(&dy));
    let narrow: Vec<f32> = probabilities.iter().map(|p| *p as f32).collect();
    let args = [input(&qkv), input(&narrow), input(&dy), output(3 * y)];
    check_accumulate(|accumulate| Call::AttentionBackward { shape: s, accumulate }, &args, 3, &dqkv);
}

pub fn attention_gradients_are_derivatives() {
    for (sides, causal) in
        [([1, 1, 1, 2], false), ([2, 3, 2, 4], true), ([1, 4, 1, 3], false), ([1, 5, 3, 3], true)]
    {
        let s = shape(sides, causal);
        let random = &mut Random::new(sides[1] as u32);
        let y = (s.batch * s.length * s.width) as usize;
        let [qkv, dy] = [3 * y, y].map(|n| wide(&random.floats(n)));
        let dqkv = reference::attention_gradient(&s, &qkv, &dy);
        reference::assert_gradient("qkv", &qkv, &dy, &dqkv, |qkv| {
            let [y, _] = reference::attention(&s, qkv);
            y
        });
    }
}

/// Scores whose exponentials no f32 holds; and a future that is no number, of which no position before it knows.
pub fn attention_has_no_surprises_far_out() {
    let forward = |causal| Call::AttentionForward { shape: shape([1, 2, 1, 1], causal) };
    let args = [input(&[200.0, 1.0, 3.0, 200.0, -1.0, 5.0]), output(2), output(4)];
    for (by, got) in outcomes(&forward(false), &args) {
        assert_eq!(floats(&got[1]), [3.0, 3.0], "{by}");
        assert_eq!(floats(&got[2]), [1.0, 0.0, 1.0, 0.0], "{by}");
    }
    let args = [input(&[1.0, 1.0, 3.0, f32::NAN, f32::NAN, 5.0]), output(2), output(4)];
    for (by, got) in outcomes(&forward(true), &args) {
        let [y, probabilities] = [1, 2].map(|i| floats(&got[i]));
        assert_eq!((y[0], &probabilities[..2]), (3.0, &[1.0, 0.0][..]), "{by}");
        assert!(y[1].is_nan(), "{by}");
    }
}
