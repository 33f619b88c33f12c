//! Interface of an engine of several workers: messages from one worker to another, in the order in which they are needed.
//!
//! A message is words of 32 bits, after a head that identifies them, so that workers at different points of a training
//! notice it instead of adding up numbers that do not belong together.

use super::rooms::Rooms;
use super::{GroupError, GroupFacts};

/// Words of a message before its contents.
pub(super) const HEAD: usize = 3;

/// Subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The sender's nodes of a piece.
    Nodes(u32),
    /// The sum of a piece.
    Sum(u32),
    /// Words of the sender for all workers.
    Agreement,
    /// Words of worker 0 for all workers.
    Broadcast,
}

impl Head {
    /// Its words in a round, after `behind` messages of pieces to the same worker. A round ends when all workers forget
    /// their pieces.
    pub(super) fn words(self, round: u32, behind: u32) -> [u32; HEAD] {
        match self {
            Head::Nodes(piece) => [1, piece, round],
            Head::Sum(piece) => [2, piece, round],
            Head::Agreement => [3, behind, round],
            Head::Broadcast => [4, behind, round],
        }
    }

    /// Returns `true` if a message has this head, in this round.
    pub(super) fn is_of(self, message: &[u32], round: u32) -> bool {
        let behind = message.get(1).copied().unwrap_or_default();
        message.starts_with(&self.words(round, behind))
    }

    /// Returns `true` if a message belongs to no piece, and all earlier messages of pieces have come, given that `heard`
    /// messages have come in this round.
    pub(super) fn is_next(message: &[u32], round: u32, heard: u32) -> bool {
        matches!(message, [3 | 4, behind, of, ..] if *of != round || *behind == heard)
    }

    /// Returns `true` if a message belongs to a piece that was forgotten before this round.
    pub(super) fn is_forgotten(message: &[u32], round: u32) -> bool {
        matches!(message, [1 | 2, _, of, ..] if *of != round)
    }

    /// Returns `true` if a message belongs to a piece.
    pub(super) fn is_of_piece(message: &[u32]) -> bool {
        matches!(message, [1 | 2, ..])
    }

    /// Description of a message, from its first words.
    pub(super) fn in_words(words: &[u32]) -> String {
        match words {
            [1, piece, ..] => format!("the nodes of piece {piece}"),
            [2, piece, ..] => format!("the sum of piece {piece}"),
            [3, ..] => "an agreement".to_owned(),
            [4, ..] => "a broadcast".to_owned(),
            _ => "a message of another kind".to_owned(),
        }
    }
}

/// Messages between the workers of a group.
pub(super) trait Messages: Send {
    /// Identity of this worker.
    fn facts(&self) -> GroupFacts;

    /// Sends a message without waiting. It arrives after earlier messages to that worker that are needed as soon, and may
    /// overtake messages that are needed later.
    fn send(&mut self, to: usize, needed: u32, message: Vec<u32>) -> Result<(), GroupError>;

    /// Buffers of sent and received messages.
    fn rooms(&self) -> &Rooms;

    /// Sets the number of iterations that this worker has done.
    fn at(&mut self, _iterations: u64) {}

    /// The next message of any worker that has already arrived, and its sender. Only [`Messages::receive`] reports that
    /// other workers are lost.
    fn arrived(&mut self) -> Option<(usize, Vec<u32>)>;

    /// A worker that this one has lost, as far as known.
    fn lost(&mut self) -> Option<GroupError>;

    /// Returns `true` if all workers before this one are lost.
    fn is_first_left(&mut self) -> bool {
        self.facts().rank == 0
    }

    /// Waits for the next message of any worker, as long as the awaited worker lives.
    fn receive(&mut self, awaited: usize) -> Result<(usize, Vec<u32>), GroupError>;
}
