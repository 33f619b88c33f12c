//! The other order of streams: one piece of work at a time, always of the most eager stream that can go on.
//!
//! Which stream is how eager is one of six orders, or is drawn anew every few steps from a seed. Nothing runs before the host
//! waits, and then only until what it waits for is done. Under a fixed order every stream is as far ahead of the less eager
//! ones as waits let it, and those as far behind; a fault that shows only in between needs the drawn ones. Either way a
//! missing wait shows without luck in timing, and the same calls give the same order of work each time.
//!
//! What it deliberately does not do: know a stream. `state.rs` has them, and has them take turns by what is said here.

use crate::delays::mix;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fixed orders, from number 1: how late each of three streams is served.
const FIXED: [[u64; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

static ORDER: AtomicU64 = AtomicU64::new(0);

/// The pieces of work since the order was chosen.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// From now on: 1 to 6 for a fixed order, a larger number as the seed of drawn ones, 0 for streams that run by themselves.
pub fn choose(order: u64) {
    ORDER.store(order, Ordering::SeqCst);
    STEPS.store(0, Ordering::SeqCst);
}

/// Whether streams take turns.
pub fn on() -> bool {
    ORDER.load(Ordering::SeqCst) > 0
}

/// A piece of work was done.
pub fn step() {
    STEPS.fetch_add(1, Ordering::SeqCst);
}

/// How late a stream is served now.
pub fn rank(stream: u32) -> u64 {
    let order = ORDER.load(Ordering::SeqCst);
    match FIXED.get((order as usize).wrapping_sub(1)) {
        Some(fixed) => fixed[stream as usize % fixed.len()],
        None => {
            let streak = 1 + mix(order) % 12;
            mix(mix(order ^ (STEPS.load(Ordering::SeqCst) / streak) << 32) ^ u64::from(stream))
        }
    }
}
