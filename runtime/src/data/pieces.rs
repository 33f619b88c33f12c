//! Texts cut into samples: pieces of a fixed number of tokens, each token labelled with the next one.
//!
//! Pieces are consecutive, so that an epoch uses every token once.
//!
//! Deliberately does not know where tokens are stored.

use super::{Dataset, Input};
use crate::error::Error;
use plimsoll_ir::network::Shape;
use std::ops::Range;
use std::sync::Arc;

/// Source of tokens, each below the pieces' number of classes.
pub(super) trait Tokens: Send + Sync {
    /// Reads tokens from position `first` on. Panics if there are fewer.
    ///
    /// # Errors
    ///
    /// They cannot be read, or one is not below `vocabulary`.
    fn read(&self, first: usize, tokens: &mut [i32], vocabulary: u32) -> Result<(), Error>;
}

/// Pieces of a part of a text.
pub(super) struct Pieces<T> {
    name: String,
    tokens: Arc<T>,
    /// Position of the part's first token.
    first: usize,
    pieces: usize,
    length: u32,
    vocabulary: u32,
}

impl<T: Tokens> Pieces<T> {
    /// Pieces of this many tokens each, from this part of a text; the part has room for at least one.
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

/// Length of the longest piece of a part of this many tokens, whose last token is only a label.
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

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), Error> {
        assert!(index < self.pieces, "piece {index} of {}", self.pieces);
        let length = self.length as usize;
        let mut piece = vec![0; length + 1];
        self.tokens.read(self.first + index * length, &mut piece, self.vocabulary)?;
        input.tokens().copy_from_slice(&piece[..length]);
        labels.copy_from_slice(&piece[1..]);
        Ok(())
    }
}
