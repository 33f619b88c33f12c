//! Bytes by position, a slot or an op, summed from stretches of positions that hold them.

use std::marker::PhantomData;
use std::ops::Range;

/// Increase of each position's bytes over the previous one. It counts modulo 2^64, so that a position may have fewer; the sums
/// are right as long as none is negative.
#[derive(Clone, Debug)]
pub(crate) struct Levels<At> {
    /// One more than there are positions: bytes held to the last one end behind it.
    more: Vec<u64>,
    at: PhantomData<At>,
}

impl<At> Default for Levels<At> {
    fn default() -> Levels<At> {
        Levels { more: Vec::new(), at: PhantomData }
    }
}

impl<At: Into<usize>> Levels<At> {
    /// Returns zero bytes at this many positions.
    pub fn new(count: usize) -> Levels<At> {
        let mut levels = Levels::default();
        levels.clear(count);
        levels
    }

    /// Resets to zero bytes at this many positions.
    pub fn clear(&mut self, count: usize) {
        self.more.clear();
        self.more.resize(count + 1, 0);
    }

    /// Adds bytes at these positions.
    #[inline]
    pub fn hold(&mut self, range: Range<At>, bytes: u64) {
        let [start, end] = [range.start, range.end].map(Into::into);
        self.more[start] = self.more[start].wrapping_add(bytes);
        self.more[end] = self.more[end].wrapping_sub(bytes);
    }

    /// Subtracts bytes at these positions.
    #[inline]
    pub fn free(&mut self, range: Range<At>, bytes: u64) {
        self.hold(range, bytes.wrapping_neg());
    }

    /// By position: its bytes.
    #[inline]
    pub fn sums(&self) -> impl Iterator<Item = u64> {
        let mut sum = 0u64;
        self.more[..self.more.len() - 1].iter().map(move |more| {
            sum = sum.wrapping_add(*more);
            sum
        })
    }
}
