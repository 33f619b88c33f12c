//! The alternative order of streams: one piece of work at a time, always of the most eager stream that can continue.
//!
//! The eagerness of streams is one of six orders, or is drawn anew every few steps from a seed. Nothing runs before the host
//! waits, and then only until its wait is over. Under a fixed order every stream is as far ahead of the less eager ones as
//! waits allow, and those as far behind; a fault that shows only in between needs the drawn orders. Either way a missing
//! wait shows without luck in timing, and the same calls give the same order of work each time.
//!
//! Deliberately does not know streams. `state.rs` owns them, and makes them take turns by the rank given here.

use crate::delays::mix;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fixed orders, from number 1: the rank of each of three streams.
const FIXED: [[u64; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

static ORDER: AtomicU64 = AtomicU64::new(0);

/// Pieces of work since the order was chosen.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// Sets the order from now on: 1 to 6 for a fixed order, a larger number as the seed of drawn ones, 0 for independent
/// streams.
pub fn choose(order: u64) {
    ORDER.store(order, Ordering::SeqCst);
    STEPS.store(0, Ordering::SeqCst);
}

/// Returns `true` if streams take turns.
pub fn on() -> bool {
    ORDER.load(Ordering::SeqCst) > 0
}

/// Counts a piece of work that was done.
pub fn step() {
    STEPS.fetch_add(1, Ordering::SeqCst);
}

/// Rank of a stream now: a later one is served later.
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
