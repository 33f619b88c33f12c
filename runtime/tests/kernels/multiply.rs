//! Products of two tensors, element by element, against plain f64 ones.
//!
//! Deliberately does not train; `same_bits` and the stand-in's tests run whole schedules with it.

use super::harness::{Random, check_accumulate, check_in_place, input, output};
use super::reference::{self, wide};
use plimsoll_ir::program::Call;

#[test]
fn products() {
    for n in super::LENGTHS {
        product_of(n, n as u32 % 1000);
    }
}

pub fn product_of(n: usize, seed: u32) {
    let random = &mut Random::new(seed);
    let [a, b] = [0, 1].map(|_| random.floats(n));
    let call = |accumulate| Call::Multiply { elements: n as u64, accumulate };
    let args = [input(&a), input(&b), output(n)];
    check_accumulate(call, &args, 2, &reference::product(&wide(&a), &wide(&b)));
    check_in_place(&call(false), &args, 0, 2);
}
