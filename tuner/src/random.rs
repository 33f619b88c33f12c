//! Small seeded generator (SplitMix64) for searches: the same seed gives the same plan on every machine.

use crate::numbers::real;

/// State of the generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Skips as many numbers as lie between two states of a generator.
    pub(crate) fn skip(&mut self, from: &Random, to: &Random) {
        self.0 = self.0.wrapping_add(to.0.wrapping_sub(from.0));
    }

    /// Returns a position below `count`, which is at least 1.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// Returns a number below a count of at most 256.
    pub(crate) fn below_u8(&mut self, count: usize) -> u8 {
        u8::try_from(self.below(count)).expect("below a count of at most 256")
    }

    /// Returns a number from 1 to `most`, equally likely in each octave.
    pub(crate) fn few(&mut self, most: usize) -> usize {
        // Rounded down, and above 0.
        real(most).powf(self.unit()) as usize
    }

    /// Returns a number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
