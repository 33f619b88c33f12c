//! The room that is left at every slot of an iteration, as maps get pinned: the least over a range of slots, and a change to all
//! of a range, each in the logarithm of the slots.
//!
//! What it does not do: give room back.

use std::ops::Range;

/// By slot, how many bytes are left; a tree of the least.
pub(super) struct Room {
    slots: usize,
    /// By node: the least of its slots, less what was taken from all of it and of what it lies in.
    least: Vec<i64>,
    /// By node: what was taken from all of its slots at once.
    taken: Vec<i64>,
}

impl Room {
    /// The room beside what each slot needs, in a pool of so many bytes; below 0 where a slot does not fit.
    pub fn new(needs: &[u64], pool: u64) -> Room {
        let leaves = needs.len().next_power_of_two();
        let mut least = vec![i64::MAX; 2 * leaves];
        for (leaf, need) in least[leaves..].iter_mut().zip(needs) {
            *leaf = pool as i64 - *need as i64;
        }
        for node in (1..leaves).rev() {
            least[node] = least[2 * node].min(least[2 * node + 1]);
        }
        Room { slots: leaves, least, taken: vec![0; 2 * leaves] }
    }

    /// Takes so many bytes at all of these slots, where each has as much; tells whether it did.
    pub fn take(&mut self, slots: Range<usize>, bytes: u64) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let whole = 0..self.slots;
        let fits = self.least_of(1, whole.clone(), &slots) >= bytes;
        if fits {
            self.take_of(1, whole, &slots, bytes);
        }
        fits
    }

    fn least_of(&self, node: usize, of: Range<usize>, wanted: &Range<usize>) -> i64 {
        if wanted.end <= of.start || of.end <= wanted.start {
            return i64::MAX;
        }
        if wanted.start <= of.start && of.end <= wanted.end {
            return self.least[node];
        }
        let middle = of.start.midpoint(of.end);
        let left = self.least_of(2 * node, of.start..middle, wanted);
        let right = self.least_of(2 * node + 1, middle..of.end, wanted);
        left.min(right).saturating_sub(self.taken[node])
    }

    fn take_of(&mut self, node: usize, of: Range<usize>, wanted: &Range<usize>, bytes: i64) {
        if wanted.end <= of.start || of.end <= wanted.start {
            return;
        }
        if wanted.start <= of.start && of.end <= wanted.end {
            self.least[node] -= bytes;
            self.taken[node] += bytes;
            return;
        }
        let middle = of.start.midpoint(of.end);
        self.take_of(2 * node, of.start..middle, wanted, bytes);
        self.take_of(2 * node + 1, middle..of.end, wanted, bytes);
        self.least[node] =
            self.least[2 * node].min(self.least[2 * node + 1]).saturating_sub(self.taken[node]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of slots, for ranges that follow from a linear congruence.
    #[test]
    fn room_is_what_a_list_of_slots_says() {
        let needs: Vec<u64> = (0..37).map(|slot| (slot * 53) % 41).collect();
        let mut plain: Vec<i64> = needs.iter().map(|need| 60 - *need as i64).collect();
        let mut room = Room::new(&needs, 60);
        let (mut taken, mut refused, mut state) = (0, 0, 7u64);
        for _ in 0..400 {
            let mut draw = |most: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % most
            };
            let (first, bytes) = (draw(37) as usize, draw(6));
            let slots = first..(first + draw(20) as usize).min(37);
            let fits = plain[slots.clone()].iter().all(|left| *left >= bytes as i64);
            if fits {
                plain[slots.clone()].iter_mut().for_each(|left| *left -= bytes as i64);
            }
            assert_eq!(room.take(slots.clone(), bytes), fits, "{bytes} of {slots:?}");
            *(if fits { &mut taken } else { &mut refused }) += 1;
        }
        assert!(taken > 20 && refused > 20, "{taken} taken, {refused} refused");
    }

    #[test]
    fn what_does_not_fit_as_it_is_gives_nothing() {
        let mut room = Room::new(&[5, 20, 5], 10);
        assert!(!room.take(0..2, 0) && room.take(2..3, 5) && !room.take(2..3, 1));
    }
}
