//! A segment tree: a number for each op or slot; all of a range may be added to, and a range asked for its largest, each in the
//! logarithm of the numbers.
//!
//! What it does not do: grow.

use std::ops::Range;

/// Stands for no number at all, so low that sums with it stay so.
const NOTHING: i64 = i64::MIN / 2;

/// No number is lower at first.
const LEAST: i64 = i64::MIN / 4;

/// The numbers.
#[derive(Clone)]
pub(crate) struct RangeMax {
    /// By node, leaves from `count` on: the largest below it, with what was added to it and below, not with what was added
    /// to all of a node above.
    largest: Vec<i64>,
    /// By inner node: what was added to all below it at once.
    added: Vec<i64>,
    count: usize,
}

impl RangeMax {
    /// By slot or op: the bytes that it needs beyond the pool, below 0 where it leaves some.
    pub fn beyond(needs: &[u64], pool: u64) -> RangeMax {
        let count = needs.len().next_power_of_two();
        let mut largest = vec![NOTHING; 2 * count];
        for (leaf, need) in largest[count..].iter_mut().zip(needs) {
            let beyond = i128::from(*need) - i128::from(pool);
            *leaf = beyond.clamp(i128::from(LEAST), i128::from(i64::MAX / 4)) as i64;
        }
        for node in (1..count).rev() {
            largest[node] = largest[2 * node].max(largest[2 * node + 1]);
        }
        RangeMax { largest, added: vec![0; count], count }
    }

    /// Whether any is above 0.
    pub fn is_over(&self) -> bool {
        self.largest[1] > 0
    }

    /// The position of the first of the largest.
    pub fn argmax(&self) -> usize {
        let mut node = 1;
        while node < self.count {
            node *= 2;
            node += usize::from(self.largest[node + 1] > self.largest[node]);
        }
        node - self.count
    }

    /// The largest of a range; very low for an empty one.
    pub fn max(&self, range: Range<usize>) -> i64 {
        self.max_below(1, 0..self.count, &range)
    }

    /// Adds to all of a range.
    pub fn add(&mut self, range: Range<usize>, change: i64) {
        self.add_below(1, 0..self.count, &range, change);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_pool_of_any_size_has_a_side() {
        assert!(!RangeMax::beyond(&[0, 1 << 62], u64::MAX).is_over());
        assert!(RangeMax::beyond(&[0, u64::MAX], 0).is_over());
    }

    #[test]
    fn it_says_what_a_list_of_numbers_says() {
        let mut random = Random::new(7);
        for count in [1, 2, 37, 64] {
            let needs: Vec<u64> = (0..count).map(|_| random.below(41) as u64).collect();
            let mut list: Vec<i64> = needs.iter().map(|need| *need as i64 - 20).collect();
            let mut tree = RangeMax::beyond(&needs, 20);
            for _ in 0..200 {
                let first = random.below(count);
                let range = first..first + random.below(count - first + 1);
                let found = Some(tree.max(range.clone())).filter(|found| *found > LEAST);
                assert_eq!(found, list[range.clone()].iter().copied().max(), "{range:?} of {list:?}");
                let all = list.iter().copied().max().expect("not empty");
                assert_eq!((tree.is_over(), list[tree.argmax()]), (all > 0, all), "{list:?}");
                let change = random.below(13) as i64 - 6;
                list[range.clone()].iter_mut().for_each(|number| *number += change);
                tree.add(range, change);
            }
        }
    }
}
