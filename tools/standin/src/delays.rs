//! Delay of each stream: a pure function of a seed, the stream's number and the number of its command.
//!
//! Under one seed a stream is prompt, late or very late as a whole, and each command also has its own chance: a missing wait
//! shows when the side that should be waited for is late, whichever that is. Seed 0 means no delays.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static SEED: AtomicU64 = AtomicU64::new(0);

/// Number of commands of each stream so far; streams with higher numbers share counters.
static COMMANDS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Sets the seed from now on.
pub fn seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// Waits before the next command of a stream.
pub fn pause(stream: u32) {
    let seed = SEED.load(Ordering::Relaxed);
    let command = COMMANDS[stream as usize % COMMANDS.len()].fetch_add(1, Ordering::Relaxed);
    let delay = delay(seed, stream, command);
    if delay > Duration::ZERO {
        std::thread::sleep(delay);
    }
}

/// Duration of [`pause`].
fn delay(seed: u64, stream: u32, command: u64) -> Duration {
    if seed == 0 {
        return Duration::ZERO;
    }
    // Three consecutive seeds make each of three streams the late one once.
    let lateness = [0, 1, 8][((seed + u64::from(stream)) % 3) as usize];
    let random = mix(seed ^ mix((u64::from(stream) << 40) ^ command));
    let micros = if random & 1 == 0 { 0 } else { (random >> 8) % 60 };
    Duration::from_micros(micros * lateness)
}

/// Mixes the bits of a number (the finaliser of SplitMix64).
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_three_streams_is_the_late_one_under_one_of_three_seeds() {
        let total = |seed, stream| (0..100).map(|command| delay(seed, stream, command)).sum::<Duration>();
        for stream in 0..3 {
            let mut totals = [1, 2, 3].map(|seed| total(seed, stream));
            totals.sort();
            assert!(totals[0].is_zero() && totals[2] > 4 * totals[1] && !totals[1].is_zero(), "{totals:?}");
        }
        assert_eq!(total(0, 1), Duration::ZERO);
    }
}
