//! The bytes of every slot, where bytes come and go over ranges of slots: both the largest in a range and adding to one
//! cost a logarithm.
//!
//! A row of slots is halved again and again; every node has the largest of its slots, less what is still to be added to
//! all of them, which is kept at the nodes above.
//!
//! What this file does not do: say what a single slot has, but as the largest of a range of one.

use std::ops::Range;

/// Bytes by slot.
pub(crate) struct Load {
    /// By node: the largest of its slots, less what the nodes above add. Node 1 is all slots, node i has i * 2 and i * 2 + 1.
    most: Vec<i64>,
    /// By node: what is added to all of its slots, contained in its `most`.
    added: Vec<i64>,
    slots: usize,
}

impl Load {
    /// These bytes.
    pub fn new(bytes: &[u64]) -> Load {
        let slots = bytes.len().next_power_of_two();
        let mut load = Load { most: vec![0; 2 * slots], added: vec![0; 2 * slots], slots };
        for (slot, bytes) in bytes.iter().enumerate() {
            load.most[slots + slot] = *bytes as i64;
        }
        (1..slots).rev().for_each(|node| load.most[node] = load.most[2 * node].max(load.most[2 * node + 1]));
        load
    }

    /// The largest in a range; 0 in an empty one.
    pub fn most(&self, range: Range<usize>) -> u64 {
        self.most_below(1, 0..self.slots, &range).max(0) as u64
    }

    /// Takes bytes away from every slot of a range.
    pub fn take(&mut self, range: Range<usize>, bytes: u64) {
        if !range.is_empty() {
            self.add_below(1, 0..self.slots, &range, -(bytes as i64));
        }
    }

    fn most_below(&self, node: usize, slots: Range<usize>, range: &Range<usize>) -> i64 {
        if range.start <= slots.start && slots.end <= range.end {
            return self.most[node];
        }
        let middle = slots.start.midpoint(slots.end);
        let mut most = 0;
        if range.start < middle && slots.start < range.end {
            most = self.most_below(2 * node, slots.start..middle, range) + self.added[node];
        }
        if middle < range.end && range.start < slots.end {
            most = most.max(self.most_below(2 * node + 1, middle..slots.end, range) + self.added[node]);
        }
        most
    }

    fn add_below(&mut self, node: usize, slots: Range<usize>, range: &Range<usize>, bytes: i64) {
        if range.start <= slots.start && slots.end <= range.end {
            self.most[node] += bytes;
            self.added[node] += bytes;
            return;
        }
        let middle = slots.start.midpoint(slots.end);
        if range.start < middle && slots.start < range.end {
            self.add_below(2 * node, slots.start..middle, range, bytes);
        }
        if middle < range.end && range.start < slots.end {
            self.add_below(2 * node + 1, middle..slots.end, range, bytes);
        }
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Against an array.
    #[test]
    fn it_is_what_an_array_would_be() {
        let mut random = Random::new(3);
        for slots in [1, 2, 3, 7, 8, 40] {
            let mut bytes: Vec<u64> = (0..slots).map(|_| 10_000 + random.below(1000) as u64).collect();
            let mut load = Load::new(&bytes);
            for _ in 0..200 {
                let (a, b) = (random.below(slots + 1), random.below(slots + 1));
                let range = a.min(b)..a.max(b);
                let most = bytes[range.clone()].iter().copied().max().unwrap_or_default();
                assert_eq!(load.most(range.clone()), most);
                let taken = random.below(40) as u64;
                load.take(range.clone(), taken);
                bytes[range].iter_mut().for_each(|bytes| *bytes -= taken);
            }
        }
    }
}
