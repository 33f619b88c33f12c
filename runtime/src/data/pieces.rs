//! Texts cut into samples: pieces of so many tokens, each with the token that follows as its label.
//!
//! Pieces lie end to end, so that an epoch takes every token once.
//!
//! What it deliberately does not do: know where tokens lie.

use super::{Dataset, Input};
use crate::error::RuntimeError;
use plimsoll_ir::network::Shape;
use std::ops::Range;
use std::sync::Arc;

/// Where tokens lie, each below a number of classes that the pieces have.
pub(super) trait Tokens: Send + Sync {
    /// Gives tokens from this place on. Panics where there are fewer.
    ///
    /// # Errors
    ///
    /// They cannot be read, or one is not below `vocabulary`.
    fn read(&self, first: usize, tokens: &mut [i32], vocabulary: u32) -> Result<(), RuntimeError>;
}

/// Pieces of a part of a text.
pub(super) struct Pieces<T> {
    name: String,
    tokens: Arc<T>,
    /// Where the part starts.
    first: usize,
    pieces: usize,
    length: u32,
    vocabulary: u32,
}

impl<T: Tokens> Pieces<T> {
    /// Of so many tokens each, of this part of a text; it has at least one.
    pub(super) fn of(
        name: String,
        tokens: &Arc<T>,
        part: Range<usize>,
        length: u32,
        vocabulary: u32,
    ) -> Pieces<T> {
        let pieces = (part.len() - 1) / length as usize;
        Pieces { name, tokens: Arc::clone(tokens), first: part.start, pieces, length, vocabulary }
    }
}

/// The longest piece of a part of so many tokens, of which the last is only a label.
pub(super) fn longest(tokens: usize) -> usize {
    tokens.saturating_sub(1)
}

impl<T: Tokens> Dataset for Pieces<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.pieces
    }

    fn image(&self) -> Shape {
        Shape { height: self.length, width: 1, channels: 1 }
    }

    fn classes(&self) -> u32 {
        self.vocabulary
    }

    fn labels(&self) -> usize {
        self.length as usize
    }

    fn holds_tokens(&self) -> bool {
        true
    }

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), RuntimeError> {
        assert!(index < self.pieces, "piece {index} of {}", self.pieces);
        let length = self.length as usize;
        let mut piece = vec![0; length + 1];
        self.tokens.read(self.first + index * length, &mut piece, self.vocabulary)?;
        input.tokens().copy_from_slice(&piece[..length]);
        labels.copy_from_slice(&piece[1..]);
        Ok(())
    }
}
