//! What an engine of several workers has to offer: messages from one worker to another, those first that are needed first.
//!
//! A message is words of 32 bits, behind a head that says what it is of, so that workers that are at different places of a
//! training find out instead of adding up what does not belong together.

use super::rooms::Rooms;
use super::{GroupError, GroupFacts};

/// Words of a message before what it carries.
pub(super) const HEAD: usize = 3;

/// What a message is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The sender's nodes of a piece.
    Nodes(u32),
    /// The sum of a piece.
    Sum(u32),
    /// What the sender says to all.
    Agreement,
    /// What worker 0 has for all.
    Broadcast,
}

impl Head {
    /// Its words in a round, behind so many messages of pieces to the same worker. A round ends where all workers forget their
    /// pieces.
    pub(super) fn words(self, round: u32, behind: u32) -> [u32; HEAD] {
        match self {
            Head::Nodes(piece) => [1, piece, round],
            Head::Sum(piece) => [2, piece, round],
            Head::Agreement => [3, behind, round],
            Head::Broadcast => [4, behind, round],
        }
    }

    /// Whether it is that of a message, in a round.
    pub(super) fn is_of(self, message: &[u32], round: u32) -> bool {
        let behind = message.get(1).copied().unwrap_or_default();
        message.starts_with(&self.words(round, behind))
    }

    /// Whether a message is of no piece, and all that was sent of pieces before it has come, where so many messages have in
    /// this round.
    pub(super) fn is_next(message: &[u32], round: u32, heard: u32) -> bool {
        matches!(message, [3 | 4, behind, of, ..] if *of != round || *behind == heard)
    }

    /// Whether a message is of a piece that was forgotten before this round.
    pub(super) fn is_forgotten(message: &[u32], round: u32) -> bool {
        matches!(message, [1 | 2, _, of, ..] if *of != round)
    }

    /// Whether a message is of a piece.
    pub(super) fn is_of_piece(message: &[u32]) -> bool {
        matches!(message, [1 | 2, ..])
    }

    /// Of a message's first words, in words.
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
    /// Who this worker is.
    fn facts(&self) -> GroupFacts;

    /// Sends a message, which arrives behind those that were sent to that worker before and are needed as soon: it may overtake
    /// those that are needed later. Waits for nobody.
    fn send(&mut self, to: usize, needed: u32, message: Vec<u32>) -> Result<(), GroupError>;

    /// The buffers of messages, of those that are sent and of those that are received.
    fn rooms(&self) -> &Rooms;

    /// Says how many iterations this worker has done.
    fn at(&mut self, _iterations: u64) {}

    /// The next message of any worker, where there is one already, and whose it is. Whether the others still live is told by
    /// [`Messages::receive`].
    fn arrived(&mut self) -> Option<(usize, Vec<u32>)>;

    /// Whom this worker has lost, as far as is heard.
    fn lost(&mut self) -> Option<GroupError>;

    /// Whether all workers before this one are lost.
    fn is_first_left(&mut self) -> bool {
        self.facts().rank == 0
    }

    /// Waits for the next message of any worker, as long as the awaited one lives.
    fn receive(&mut self, awaited: usize) -> Result<(usize, Vec<u32>), GroupError>;
}
