//! Activations as kernels read and write them: f32 in place, or bf16, of which a task has its chunk in an f32 buffer that
//! its lane owns.
//!
//! Widening is exact. Rounding is to the nearest, ties to even, once for each element that a kernel writes.
//!
//! Deliberately does not compute, or know other users of a buffer.

use super::vector::{Ptr, vectorized};
pub(crate) use plimsoll_ir::precision::bf16 as rounded;

/// Value of a bf16.
#[inline(always)]
pub(super) fn number(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

vectorized! {
    /// Widens `len` elements.
    ///
    /// # Safety
    /// Live memory of that length, which nothing else writes; the two do not overlap.
    pub(super) unsafe fn widen [](from: Ptr<u16>, to: Ptr<f32>, len: usize) {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (from.slice(len), to.slice_mut(len)) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = number(*from);
        }
    }
}

vectorized! {
    /// Rounds `len` elements.
    ///
    /// # Safety
    /// As [`widen`].
    pub(super) unsafe fn narrow [](from: Ptr<f32>, to: Ptr<u16>, len: usize) {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (from.slice(len), to.slice_mut(len)) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = rounded(*from);
        }
    }
}

vectorized! {
    /// Rounds `len` elements to bf16 numbers, stored as f32.
    ///
    /// # Safety
    /// As [`widen`].
    pub(super) unsafe fn round [](from: Ptr<f32>, to: Ptr<f32>, len: usize) {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (from.slice(len), to.slice_mut(len)) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = number(rounded(*from));
        }
    }
}

/// An activation, or a gradient of one, for a kernel that takes it in any storage: element by element, or in chunks.
#[derive(Clone, Copy)]
pub(super) enum Map {
    /// Read and written in place.
    F32(Ptr<f32>),
    /// Read and written by chunks, in the lane's buffer or in the kernel's own array.
    Bf16 {
        /// Address of the elements.
        at: Ptr<u16>,
        /// One buffer for each lane.
        buffers: Ptr<f32>,
        /// Elements of a buffer: those of the largest chunk; 0 for kernels that need none.
        chunk: usize,
    },
}

impl Map {
    /// Place where a kernel reads `len` elements from `start` on, and may write their new values.
    ///
    /// # Safety
    /// The elements are live and no more than a chunk, nothing else writes them, and the lane is the task's own.
    #[inline(always)]
    pub unsafe fn read(self, start: usize, len: usize, lane: usize) -> Ptr<f32> {
        if let Map::Bf16 { at, .. } = self {
            // SAFETY: the caller's promise.
            unsafe { widen(at.at(start), self.place(start, lane), len) };
        }
        self.place(start, lane)
    }

    /// Place where a kernel writes the elements from `start` on without having read them.
    #[inline(always)]
    pub fn place(self, start: usize, lane: usize) -> Ptr<f32> {
        match self {
            Map::F32(at) => at.at(start),
            Map::Bf16 { buffers, chunk, .. } => buffers.at(lane * chunk),
        }
    }

    /// [`Map::read`] if the old values are needed, else [`Map::place`].
    ///
    /// # Safety
    /// As [`Map::read`].
    #[inline(always)]
    pub unsafe fn read_if(self, reads: bool, start: usize, len: usize, lane: usize) -> Ptr<f32> {
        // SAFETY: the caller's promise.
        if reads { unsafe { self.read(start, len, lane) } } else { self.place(start, lane) }
    }

    /// Copies elements from `start` on.
    ///
    /// # Safety
    /// They are live, and nothing else writes them.
    #[inline(always)]
    pub unsafe fn copy_to(self, start: usize, to: &mut [f32]) {
        for (i, to) in (start..).zip(to) {
            // SAFETY: the caller's promise.
            unsafe {
                *to = match self {
                    Map::F32(at) => at.at(i).get(),
                    Map::Bf16 { at, .. } => number(at.at(i).get()),
                };
            }
        }
    }

    /// Overwrites elements from `start` on, rounded if they are stored as bf16.
    ///
    /// # Safety
    /// They are live, and nothing else reads or writes them.
    #[inline(always)]
    pub unsafe fn copy_from(self, start: usize, from: &[f32]) {
        for (i, from) in (start..).zip(from) {
            // SAFETY: the caller's promise.
            unsafe {
                match self {
                    Map::F32(at) => at.at(i).set(*from),
                    Map::Bf16 { at, .. } => at.at(i).set(rounded(*from)),
                }
            }
        }
    }

    /// Stores the values that were written to the place of `len` elements from `start` on.
    ///
    /// # Safety
    /// As [`Map::read`], and nothing else reads them.
    #[inline(always)]
    pub unsafe fn store(self, start: usize, len: usize, lane: usize) {
        if let Map::Bf16 { at, .. } = self {
            // SAFETY: the caller's promise.
            unsafe { narrow(self.place(start, lane), at.at(start), len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearest bf16, by search among the two neighbours, in f64.
    fn nearest(value: f32) -> u16 {
        let below = (value.to_bits() >> 16) as u16;
        let above = below.wrapping_add(1);
        let value = f64::from(value);
        let far = |half: u16| (f64::from(number(half)) - value).abs();
        match far(below).total_cmp(&far(above)) {
            std::cmp::Ordering::Less => below,
            std::cmp::Ordering::Greater => above,
            std::cmp::Ordering::Equal => {
                if below.is_multiple_of(2) {
                    below
                } else {
                    above
                }
            }
        }
    }

    #[test]
    fn numbers_round_to_the_nearest_and_ties_to_even() {
        assert_eq!(number(rounded(1.0)), 1.0);
        // 1 + 1/256 lies between 1 and 1 + 1/128, whose last bits are 0 and 1; 1 + 3/256 between 1 + 1/128 and 1 + 1/64.
        assert_eq!(number(rounded(1.0 + 1.0 / 256.0)), 1.0);
        assert_eq!(number(rounded(1.0 + 3.0 / 256.0)), 1.0 + 1.0 / 64.0);
        assert_eq!(number(rounded(-1.004)), -1.007_812_5);
        assert_eq!(rounded(f32::MAX), rounded(f32::INFINITY));
        assert_eq!(rounded(f32::NEG_INFINITY), 0xff80);
        assert_eq!(rounded(-0.0), 0x8000);
        for bits in [0x7f80_0001, 0xffff_ffff, 0x7fc0_0000, 0x7fff_ffff] {
            assert!(number(rounded(f32::from_bits(bits))).is_nan(), "{bits:x}");
        }
        for step in 0..100_000u32 {
            let value = f32::from_bits(step.wrapping_mul(0x9e37_79b1));
            // Beyond the largest bf16 the neighbour is infinite, and no distance is defined.
            if value.is_finite() && value.abs() < 3.3e38 {
                assert_eq!(rounded(value), nearest(value), "{value:e}");
            }
        }
    }

    #[test]
    fn every_bf16_comes_back_as_it_was() {
        let all: Vec<u16> = (0..=u16::MAX).filter(|half| !number(*half).is_nan()).collect();
        let mut wide = vec![0.0f32; all.len()];
        let mut back = vec![0u16; all.len()];
        // SAFETY: vectors of one length.
        unsafe {
            widen(Ptr(all.as_ptr().cast_mut()), Ptr(wide.as_mut_ptr()), all.len());
            narrow(Ptr(wide.as_mut_ptr()), Ptr(back.as_mut_ptr()), all.len());
        }
        assert_eq!(all, back);
    }
}
