//! Sums over the virtual workers, by the fixed binary tree of [`plimsoll_ir::exchange::tree`].
//!
//! A worker adds up the nodes that lie whole within its range of virtual workers, and has a few nodes left
//! ([`TreeSum::nodes`]); the nodes of all workers give the root. Since every addition is one of the tree's, the root is the
//! same bits for every split of the range.

pub use plimsoll_ir::exchange::tree::Node;

/// Sums of numbers, all of one length, over some of the leaves; added as soon as the tree allows.
#[derive(Debug)]
pub struct TreeSum {
    leaves: u64,
    /// From left to right.
    nodes: Vec<(Node, Vec<f32>)>,
    /// Buffers for reuse.
    spare: Vec<Vec<f32>>,
}

impl TreeSum {
    /// An empty sum of a tree with this many leaves.
    pub fn over(leaves: u64) -> TreeSum {
        TreeSum { leaves, nodes: Vec::new(), spare: Vec::new() }
    }

    /// Number of leaves of the tree.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Buffer for the numbers of a node, with arbitrary contents.
    pub fn room(&mut self, numbers: usize) -> Vec<f32> {
        let mut room = self.spare.pop().unwrap_or_default();
        room.resize(numbers, 0.0);
        room
    }

    /// Adds a node; it is the first, or begins where the last one ended.
    pub fn push(&mut self, node: Node, numbers: Vec<f32>) {
        debug_assert!(
            self.nodes.last().is_none_or(|(last, _)| last.end == node.first),
            "nodes come in order"
        );
        self.nodes.push((node, numbers));
        self.add_pairs();
    }

    /// Adds a node to the last one if the tree adds these two; otherwise does nothing and returns `false`.
    pub fn add(&mut self, node: Node, numbers: &[f32]) -> bool {
        let Some((last, sum)) = self.nodes.last_mut() else { return false };
        let is_added = last.is_paired_with(node, self.leaves);
        if is_added {
            sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            last.end = node.end;
            self.add_pairs();
        }
        is_added
    }

    fn add_pairs(&mut self) {
        while let [.., (left, _), (right, _)] = self.nodes.as_slice()
            && left.is_paired_with(*right, self.leaves)
        {
            let (right, added) = self.nodes.pop().expect("there are two");
            let (left, sum) = self.nodes.last_mut().expect("there are two");
            sum.iter_mut().zip(&added).for_each(|(sum, number)| *sum += number);
            left.end = right.end;
            self.spare.push(added);
        }
    }

    /// Summed nodes, from left to right.
    pub fn nodes(&self) -> impl Iterator<Item = (Node, &[f32])> {
        self.nodes.iter().map(|(node, numbers)| (*node, numbers.as_slice()))
    }

    /// Takes out the summed nodes, from left to right.
    pub fn take_nodes(&mut self) -> impl Iterator<Item = (Node, Vec<f32>)> {
        self.nodes.drain(..)
    }

    /// Sum over all leaves, once it is complete.
    pub fn root(&self) -> Option<&[f32]> {
        match self.nodes.as_slice() {
            [(Node { first: 0, end }, numbers)] if *end == self.leaves => Some(numbers),
            _ => None,
        }
    }

    /// Buffers of its nodes, and spare ones.
    pub(super) fn into_rooms(self) -> impl Iterator<Item = Vec<f32>> {
        self.nodes.into_iter().map(|(_, numbers)| numbers).chain(self.spare)
    }

    /// Forgets all sums and keeps their buffers.
    pub fn clear(&mut self) {
        self.spare.extend(self.nodes.drain(..).map(|(_, numbers)| numbers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number whose sums round.
    fn number(leaf: u64) -> f32 {
        let word = (leaf + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((word >> 40) as f32 / 8_388_608.0 - 1.0) * 10f32.powi((word % 7) as i32 - 3)
    }

    /// Sum level by level, as defined at the head of this file.
    fn by_levels(leaves: u64) -> f32 {
        let mut level: Vec<f32> = (0..leaves).map(number).collect();
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap_or(0.0))
                .collect();
        }
        level[0]
    }

    /// Sum of the nodes of workers that begin at these leaves, in one tree.
    fn by_workers(leaves: u64, begins: &[u64]) -> f32 {
        let mut all = TreeSum::over(leaves);
        let ends = begins.iter().skip(1).chain([&leaves]);
        for (begin, end) in begins.iter().zip(ends) {
            let mut mine = TreeSum::over(leaves);
            (*begin..*end).for_each(|leaf| mine.push(Node::leaf(leaf), vec![number(leaf)]));
            let most = 2 * (leaves.ilog2() as usize + 1);
            assert!(mine.nodes().count() <= most, "{begin}..{end} of {leaves}: {mine:?}");
            mine.nodes().for_each(|(node, numbers)| all.push(node, numbers.to_vec()));
        }
        all.root().expect("all leaves are in it")[0]
    }

    #[test]
    fn every_split_gives_the_bits_of_the_levels() {
        let mut in_order_differs = false;
        for leaves in 1..40u64 {
            let expected = by_levels(leaves);
            in_order_differs |= (0..leaves).map(number).sum::<f32>() != expected;
            assert_eq!(by_workers(leaves, &[0]).to_bits(), expected.to_bits(), "{leaves} leaves of one");
            for first in 1..leaves {
                for second in first + 1..=leaves {
                    let begins = [0, first, second];
                    let begins = if second == leaves { &begins[..2] } else { &begins };
                    let found = by_workers(leaves, begins);
                    assert_eq!(found.to_bits(), expected.to_bits(), "{leaves} leaves from {begins:?}");
                }
            }
        }
        assert!(in_order_differs, "the numbers show no order of sums");
    }

    #[test]
    fn a_whole_subtree_is_one_node() {
        let mut sums = TreeSum::over(8);
        (4..8).for_each(|leaf| sums.push(Node::leaf(leaf), vec![1.0]));
        assert_eq!(sums.nodes().collect::<Vec<_>>(), [(Node { first: 4, end: 8 }, &[4.0][..])]);
        assert_eq!(sums.root(), None);
        sums.clear();
        assert_eq!((sums.nodes().count(), sums.room(2).len()), (0, 2));
    }
}
