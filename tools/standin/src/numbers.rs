//! Numbers as the libraries find them in device memory: f32, or bf16, which are widened when they are read and rounded once
//! when they are written.
//!
//! Does not compute with them: all sums are f32.

use crate::memory;

/// Storage format of a matrix or a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    F32,
    Bf16,
}

impl Numbers {
    /// Bytes of a number.
    pub fn bytes(self) -> u64 {
        match self {
            Numbers::F32 => 4,
            Numbers::Bf16 => 2,
        }
    }

    /// Reads the numbers of a range.
    ///
    /// # Safety
    /// Nothing writes to the range meanwhile.
    pub unsafe fn read(self, place: (u64, u64)) -> Result<Vec<f32>, String> {
        let (storage, count) = (found(place)?, (place.1 / self.bytes()) as usize);
        let half = |at: usize| {
            // SAFETY: the range was just found whole in one live allocation; the rest is the caller's promise.
            f32::from_bits(u32::from(unsafe { storage.cast::<u16>().add(at).read() }) << 16)
        };
        // SAFETY: as above.
        let float = |at: usize| unsafe { storage.cast::<f32>().add(at).read() };
        Ok(match self {
            Numbers::F32 => (0..count).map(float).collect(),
            Numbers::Bf16 => (0..count).map(half).collect(),
        })
    }

    /// Writes the numbers of a range.
    ///
    /// # Safety
    /// Nothing else reads or writes the range meanwhile.
    pub unsafe fn write(self, place: (u64, u64), numbers: &[f32]) -> Result<(), String> {
        let (storage, count) = (found(place)?, (place.1 / self.bytes()) as usize);
        for (at, number) in numbers.iter().enumerate().take(count) {
            // SAFETY: as in `read`.
            unsafe {
                match self {
                    Numbers::F32 => storage.cast::<f32>().add(at).write(*number),
                    Numbers::Bf16 => storage.cast::<u16>().add(at).write(bf16(*number)),
                }
            }
        }
        Ok(())
    }
}

/// The nearest bf16, ties to even.
fn bf16(number: f32) -> u16 {
    let (below, rest) = ((number.to_bits() >> 16) as u16, number.to_bits() & 0xffff);
    if number.is_nan() {
        return below | 0x40;
    }
    let up = rest > 0x8000 || rest == 0x8000 && below % 2 == 1;
    below + u16::from(up)
}

/// Fills scratch with bytes that no algorithm can use.
pub fn spoil(place: (u64, u64)) -> Result<(), String> {
    // SAFETY: the range was just found whole in one live allocation.
    unsafe { std::ptr::write_bytes(found(place)?, 0xff, place.1 as usize) };
    Ok(())
}

/// Host address of a range.
fn found((at, bytes): (u64, u64)) -> Result<*mut u8, String> {
    memory::device(at, bytes).map_err(|_| format!("nothing is at {at:#x} any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_bf16_is_read_rounded() {
        let at = memory::allocate(1024).expect("there is room");
        let written = [1.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1.004, f32::MAX, f32::NEG_INFINITY, -0.0];
        let rounded = [1.0, 1.0, 1.0 + 1.0 / 64.0, -1.007_812_5, f32::INFINITY, f32::NEG_INFINITY, -0.0];
        for (numbers, expected) in [(Numbers::F32, written), (Numbers::Bf16, rounded)] {
            let place = (at, numbers.bytes() * written.len() as u64);
            // SAFETY: nothing else uses the memory.
            let found = unsafe { numbers.write(place, &written).and_then(|()| numbers.read(place)) };
            assert_eq!(found, Ok(expected.to_vec()), "{numbers:?}");
        }
        memory::free(at).expect("it was allocated");
    }
}
