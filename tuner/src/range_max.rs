//! Segment tree: a number for each op or slot, with addition to a range and the maximum of a range, each in logarithmic time.
//!
//! This file deliberately does not grow the tree.

use std::marker::PhantomData;
use std::ops::Range;
use typed_index_collections::TiSlice;

/// Value of an absent number, so low that sums with it stay so.
const NOTHING: i64 = i64::MIN / 2;

/// Lower limit of the initial numbers.
const LEAST: i64 = i64::MIN / 4;

/// For each position, an op or a slot: the bytes that it needs beyond a pool, below 0 if it leaves some.
#[derive(Clone)]
pub(crate) struct RangeMax<At> {
    /// By node, leaves from `count` on: the largest below it, including additions to it and below, excluding additions to all of
    /// a node above.
    largest: Vec<i64>,
    /// By inner node: amount added to all below it at once.
    added: Vec<i64>,
    count: usize,
    at: PhantomData<At>,
}

impl<At: From<usize> + Into<usize>> RangeMax<At> {
    /// By position: bytes needed beyond a pool.
    pub fn beyond(needs: &TiSlice<At, u64>, pool: u64) -> RangeMax<At> {
        let count = needs.len().next_power_of_two();
        let mut largest = vec![NOTHING; 2 * count];
        for (leaf, need) in largest[count..].iter_mut().zip(needs) {
            let (over, spare) = (need.saturating_sub(pool), pool.saturating_sub(*need));
            *leaf = signed(over).min(i64::MAX / 4) - signed(spare).min(-LEAST);
        }
        for node in (1..count).rev() {
            largest[node] = largest[2 * node].max(largest[2 * node + 1]);
        }
        RangeMax { largest, added: vec![0; count], count, at: PhantomData }
    }

    /// Returns `true` if any position needs more than the pool.
    pub fn is_over(&self) -> bool {
        self.largest[1] > 0
    }

    /// Returns `true` if any position of a range needs more than the pool.
    pub fn is_over_in(&self, range: Range<At>) -> bool {
        self.max(range) > 0
    }

    /// Returns `true` if the pool has room for this many more bytes at all positions of a range.
    pub fn has_room(&self, range: Range<At>, bytes: u64) -> bool {
        self.max(range).saturating_add(signed(bytes)) <= 0
    }

    /// Returns the first of the positions that need most.
    pub fn argmax(&self) -> At {
        let mut node = 1;
        while node < self.count {
            node *= 2;
            node += usize::from(self.largest[node + 1] > self.largest[node]);
        }
        At::from(node - self.count)
    }

    /// Adds bytes at all positions of a range.
    pub fn add(&mut self, range: Range<At>, bytes: u64) {
        self.add_below(1, 0..self.count, &positions(range), signed(bytes));
    }

    /// Subtracts bytes at all positions of a range.
    pub fn take(&mut self, range: Range<At>, bytes: u64) {
        self.add_below(1, 0..self.count, &positions(range), -signed(bytes));
    }

    /// Returns the largest of a range; very low for an empty one.
    fn max(&self, range: Range<At>) -> i64 {
        self.max_below(1, 0..self.count, &positions(range))
    }

    fn max_below(&self, node: usize, of: Range<usize>, range: &Range<usize>) -> i64 {
        if range.start >= of.end || range.end <= of.start {
            return NOTHING;
        }
        if range.start <= of.start && of.end <= range.end {
            return self.largest[node];
        }
        let middle = of.start.midpoint(of.end);
        let low = self.max_below(2 * node, of.start..middle, range);
        let high = self.max_below(2 * node + 1, middle..of.end, range);
        low.max(high).saturating_add(self.added[node])
    }

    fn add_below(&mut self, node: usize, of: Range<usize>, range: &Range<usize>, change: i64) {
        if range.start >= of.end || range.end <= of.start {
            return;
        }
        if range.start <= of.start && of.end <= range.end {
            self.largest[node] += change;
            if node < self.count {
                self.added[node] += change;
            }
            return;
        }
        let middle = of.start.midpoint(of.end);
        self.add_below(2 * node, of.start..middle, range, change);
        self.add_below(2 * node + 1, middle..of.end, range, change);
        self.largest[node] = self.largest[2 * node].max(self.largest[2 * node + 1]) + self.added[node];
    }
}

/// Returns a number of bytes as a signed number.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn positions<At: Into<usize>>(range: Range<At>) -> Range<usize> {
    range.start.into()..range.end.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use plimsoll_ir::OpId;
    use typed_index_collections::TiVec;

    #[test]
    fn a_pool_of_any_size_has_a_side() {
        let beyond = |needs: &[u64], pool| RangeMax::<OpId>::beyond(TiSlice::from_ref(needs), pool);
        assert!(!beyond(&[0, 1 << 62], u64::MAX).is_over());
        assert!(beyond(&[0, u64::MAX], 0).is_over());
    }

    #[test]
    fn it_says_what_a_list_of_numbers_says() {
        let mut random = Random::new(7);
        for count in [1, 2, 37, 64] {
            let needs: TiVec<OpId, u64> = (0..count).map(|_| random.below(41) as u64).collect();
            let mut list: Vec<i64> = needs.iter().map(|need| *need as i64 - 20).collect();
            let mut tree = RangeMax::beyond(&needs, 20);
            for _ in 0..200 {
                let first = random.below(count);
                let range = first..first + random.below(count - first + 1);
                let ops = OpId::new(range.start)..OpId::new(range.end);
                let most = list[range.clone()].iter().copied().max();
                let found = Some(tree.max(ops.clone())).filter(|found| *found > LEAST);
                assert_eq!(found, most, "{range:?} of {list:?}");
                assert_eq!(tree.is_over_in(ops.clone()), most.is_some_and(|most| most > 0));
                assert_eq!(tree.has_room(ops.clone(), 3), most.is_none_or(|most| most + 3 <= 0));
                let all = list.iter().copied().max().expect("not empty");
                assert_eq!((tree.is_over(), list[tree.argmax().index()]), (all > 0, all), "{list:?}");
                let change = random.below(13) as i64 - 6;
                list[range.clone()].iter_mut().for_each(|number| *number += change);
                if change < 0 {
                    tree.take(ops, change.unsigned_abs());
                } else {
                    tree.add(ops, change.unsigned_abs());
                }
            }
        }
    }
}
