//! The fixed binary tree that sums the gradients of an update, for any assignment of gradients to workers.
//!
//! Its leaves are the virtual workers in their order. Each level adds neighbours in pairs, and passes up one without a
//! neighbour. A worker adds up the nodes that lie whole within its range of leaves, and sends the rest.

use std::ops::Range;

/// A node of the tree: the sum of the virtual workers from `first` up to `end`, half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// First virtual worker.
    pub first: u64,
    /// End of the range.
    pub end: u64,
}

impl Node {
    /// Returns the node of one virtual worker.
    pub fn leaf(number: u64) -> Node {
        Node { first: number, end: number + 1 }
    }

    /// Returns `true` if the tree over this many leaves adds the two: left is full and at an even place of its level, right
    /// is everything at the odd place next to it.
    pub fn is_paired_with(self, right: Node, leaves: u64) -> bool {
        let size = self.end - self.first;
        size.is_power_of_two()
            && self.first.is_multiple_of(2 * size)
            && right.first == self.end
            && right.end == (self.end + size).min(leaves)
    }
}

/// Returns the number of tree nodes, over this many leaves, that a non-empty range of them sums to.
pub fn nodes(range: Range<u64>, leaves: u64) -> u64 {
    let mut all: Vec<Node> = Vec::new();
    for leaf in range {
        all.push(Node::leaf(leaf));
        while let [.., left, right] = all[..]
            && left.is_paired_with(right, leaves)
        {
            all.pop();
            all.last_mut().expect("there are two").end = right.end;
        }
    }
    all.len() as u64
}

/// Returns the most nodes that any worker sends, if each makes this many passes in an update: 1 for powers of two.
pub fn most_nodes(workers: u64, passes: u64) -> u64 {
    let leaves = workers.saturating_mul(passes);
    let of_worker = |rank| nodes(rank * passes..(rank + 1) * passes, leaves);
    if passes.is_power_of_two() { 1 } else { (0..workers).map(of_worker).max().unwrap_or(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_sends_one_node_where_its_passes_are_a_whole_subtree() {
        for (workers, passes, most) in [(2, 1, 1), (3, 4, 1), (2, 3, 2), (3, 3, 2), (8, 7, 3), (1, 5, 1)] {
            assert_eq!(most_nodes(workers, passes), most, "{workers} x {passes}");
        }
        // Leaf 3 pairs with leaf 2, outside the range; leaves 4 and 5 are a pair.
        assert_eq!(nodes(3..6, 6), 2);
        assert_eq!(nodes(1..7, 8), 4);
        for passes in [1, 2, 4, 8] {
            for workers in 1..9 {
                let of_worker = |rank| nodes(rank * passes..(rank + 1) * passes, workers * passes);
                assert!((0..workers).all(|rank| of_worker(rank) == 1), "{workers} x {passes}");
            }
        }
    }
}
