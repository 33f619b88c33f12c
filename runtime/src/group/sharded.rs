//! The sharded parameter server: each piece is summed by its owner, whatever carries the messages.
//!
//! To start a piece is to send one's nodes of it to its owner. The owner pushes the nodes of all workers into the tree, from
//! left to right, and sends the root to all. What is on the wire is (N - 1) / N of the numbers each way for every worker whose
//! range of virtual workers is one node of the tree.

use super::messages::{Head, Messages};
use super::tree::{Node, TreeSum};
use super::{Group, GroupError, GroupFacts, Piece};
use std::collections::VecDeque;

/// Words of a message before what it carries.
const HEAD: usize = 2;

/// Words that say which node follows, and of how many numbers.
const NODE: usize = 5;

/// A group on messages.
pub(super) struct Sharded<M> {
    messages: M,
    /// The pieces of this worker that are started, with its own nodes.
    own: VecDeque<(Piece, TreeSum)>,
    /// The sums of those that it has added up, which nobody has asked for yet.
    summed: VecDeque<(u32, Vec<f32>)>,
}

impl<M: Messages> Sharded<M> {
    pub(super) fn new(messages: M) -> Sharded<M> {
        Sharded { messages, own: VecDeque::new(), summed: VecDeque::new() }
    }

    fn send(&mut self, to: usize, head: Head, words: impl Iterator<Item = u32>) -> Result<(), GroupError> {
        self.messages.send(to, head.words().into_iter().chain(words).collect())
    }

    /// The next message of a worker, with its head.
    fn receive(&mut self, from: usize, head: Head) -> Result<Vec<u32>, GroupError> {
        let message = self.messages.receive(from)?;
        if message.get(..HEAD) == Some(&head.words()) {
            Ok(message)
        } else {
            Err(self.out_of_step(from, head, &message))
        }
    }

    fn out_of_step(&self, rank: usize, head: Head, message: &[u32]) -> GroupError {
        let (there, here) = (Head::in_words(message), Head::in_words(&head.words()));
        GroupError::OutOfStep { rank, me: self.facts().rank, there, here }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<M> {
        let GroupFacts { rank, workers, .. } = self.facts();
        (0..workers).filter(move |other| *other != rank)
    }

    /// Adds up the pieces of this worker that are started, and sends their sums to all.
    fn serve(&mut self) -> Result<(), GroupError> {
        while let Some((piece, mine)) = self.own.pop_front() {
            let mut all = TreeSum::over(mine.leaves());
            let GroupFacts { rank, workers, .. } = self.facts();
            for other in 0..workers {
                if other == rank {
                    mine.nodes().for_each(|(node, numbers)| all.push(node, numbers.to_vec()));
                    continue;
                }
                let head = Head::Nodes(piece.number);
                let message = self.receive(other, head)?;
                let pushed = push_nodes(&message[HEAD..], &piece, &mut all);
                pushed.ok_or_else(|| self.out_of_step(other, head, &[]))?;
            }
            let head = Head::Sum(piece.number);
            let Some(root) = all.root() else { return Err(self.out_of_step(rank, head, &[])) };
            for other in self.others() {
                self.send(other, head, root.iter().map(|number| number.to_bits()))?;
            }
            self.summed.push_back((piece.number, root.to_vec()));
        }
        Ok(())
    }
}

/// The words of the nodes of a piece.
fn node_words(piece: &Piece, mine: &TreeSum) -> Vec<u32> {
    let mut words = Vec::new();
    for (Node { first, end }, numbers) in mine.nodes() {
        let numbers = &numbers[piece.elements.clone()];
        words.extend([
            first as u32,
            (first >> 32) as u32,
            end as u32,
            (end >> 32) as u32,
            numbers.len() as u32,
        ]);
        words.extend(numbers.iter().map(|number| number.to_bits()));
    }
    words
}

/// Pushes nodes that arrived into a tree; none where they are no nodes of this piece that come next in it.
fn push_nodes(mut words: &[u32], piece: &Piece, all: &mut TreeSum) -> Option<()> {
    let mut next = all.nodes().last().map_or(0, |(node, _)| node.end);
    while !words.is_empty() {
        let [first, first_high, end, end_high, length] = *words.first_chunk::<NODE>()?;
        let whole = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let node = Node { first: whole(first, first_high), end: whole(end, end_high) };
        let numbers = words.get(NODE..NODE + length as usize)?;
        let fits = node.first == next && node.end > node.first && node.end <= all.leaves();
        if !fits || numbers.len() != piece.elements.len() {
            return None;
        }
        next = node.end;
        let mut room = all.room();
        room.extend(numbers.iter().map(|word| f32::from_bits(*word)));
        all.push(node, room);
        words = &words[NODE + numbers.len()..];
    }
    Some(())
}

impl<M: Messages> Group for Sharded<M> {
    fn facts(&self) -> GroupFacts {
        self.messages.facts()
    }

    fn start(&mut self, piece: &Piece, mine: &TreeSum) -> Result<(), GroupError> {
        if piece.owner != self.facts().rank {
            return self.send(piece.owner, Head::Nodes(piece.number), node_words(piece, mine).into_iter());
        }
        let mut own = TreeSum::over(mine.leaves());
        mine.nodes().for_each(|(node, numbers)| own.push(node, numbers[piece.elements.clone()].to_vec()));
        self.own.push_back((piece.clone(), own));
        Ok(())
    }

    fn finish(&mut self, piece: &Piece, sum: &mut [f32]) -> Result<(), GroupError> {
        // The others wait for this worker's pieces as it waits for theirs.
        self.serve()?;
        if piece.owner == self.facts().rank {
            let (number, own) = self.summed.pop_front().expect("it was started, and served");
            debug_assert_eq!(
                number, piece.number,
                "pieces are finished in the order in which they were started"
            );
            sum.copy_from_slice(&own);
            return Ok(());
        }
        let head = Head::Sum(piece.number);
        let message = self.receive(piece.owner, head)?;
        let numbers = &message[HEAD..];
        if numbers.len() != sum.len() {
            return Err(self.out_of_step(piece.owner, head, &[]));
        }
        sum.iter_mut().zip(numbers).for_each(|(sum, word)| *sum = f32::from_bits(*word));
        Ok(())
    }

    fn agree(&mut self, mine: &[u32]) -> Result<Vec<Vec<u32>>, GroupError> {
        for other in self.others() {
            self.send(other, Head::Agreement, mine.iter().copied())?;
        }
        let GroupFacts { rank, workers, .. } = self.facts();
        let said = (0..workers).map(|other| {
            if other == rank {
                return Ok(mine.to_vec());
            }
            self.receive(other, Head::Agreement).map(|message| message[HEAD..].to_vec())
        });
        said.collect()
    }

    fn at(&mut self, iterations: u64) {
        self.messages.at(iterations);
    }

    fn broadcast(&mut self, words: &mut Vec<u32>) -> Result<(), GroupError> {
        if self.facts().rank == 0 {
            return self
                .others()
                .try_for_each(|other| self.send(other, Head::Broadcast, words.iter().copied()));
        }
        *words = self.receive(0, Head::Broadcast)?.split_off(HEAD);
        Ok(())
    }
}
