//! Random traces, random schedules for any trace that are valid by construction, and a call of each kind.
//!
//! Property tests of several crates use them: `check` must accept every one of them, and a device that runs one must end with
//! the same bytes as when it keeps everything. Nothing here calls `check`; the order of commands is derived a second time, on
//! purpose.
//!
//! No feature enables them: with one, building the program and then testing it would compile every crate twice.
//!
//! They deliberately do not make good schedules. Tensors are swapped only because the seed says so, and the pool is as large
//! as it turns out.

mod calls;
pub mod hand;
mod hostile;
mod place;
mod schedules;
mod traces;

pub use calls::every_call;
pub use hand::{GRAIN, between, coarse_trace_of, floor_and_peak};
pub use hostile::{Choices, Hostile, hostile};
pub use schedules::random_schedule;
pub use traces::{chain_trace, random_trace, random_trace_of};

use plimsoll_ir::philox::philox4x32;

/// A stream of random numbers: the same for the same seed, everywhere.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    /// Returns the stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random { seed, drawn: 0 }
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.drawn += 1;
        let [a, b, ..] = philox4x32(self.seed, [self.drawn as u32, (self.drawn >> 32) as u32, 0x7E57, 0]);
        u64::from(a) << 32 | u64::from(b)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    /// Returns `true` in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of several; `None` if there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len() as u64) as usize).copied()
    }
}
