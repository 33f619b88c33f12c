//! Tables of tokens: a row for each token, and the gradient of the table.
//!
//! The gradient is cut by channels: a task goes through all tokens in order and adds to its channels of the tokens' rows, so
//! that each row is one sum in one order.
//!
//! Deliberately does not skip a token (there is no padding token), or keep a sparse gradient.

use super::Run;
use super::elementwise::tasks_of_rows;
use super::vector::{Ptr, map_rows};
use plimsoll_ir::program::EmbeddingShape;

/// Channels of a gradient task.
const CHANNELS: usize = 64;

/// Iterates over looked-up tokens by number.
struct Lookup {
    tokens: Ptr<i32>,
    length: usize,
    first: usize,
    count: usize,
    all: usize,
    vocabulary: usize,
    width: usize,
}

impl Lookup {
    fn of(s: &EmbeddingShape, tokens: Ptr<i32>) -> Lookup {
        let [length, first, count] = [s.length, s.first, s.count].map(|n| n as usize);
        let [all, vocabulary, width] = [s.batch * s.count, s.vocabulary, s.width].map(|n| n as usize);
        Lookup { tokens, length, first, count, all, vocabulary, width }
    }

    /// First element of the table row of looked-up token number `i`.
    ///
    /// # Safety
    /// The tokens are live.
    ///
    /// # Panics
    /// If the table has no such row.
    unsafe fn row(&self, i: usize) -> usize {
        let (sample, at) = (i / self.count, self.first + i % self.count);
        // SAFETY: the caller's promise.
        let token = unsafe { self.tokens.at(sample * self.length + at).get() };
        let row = usize::try_from(token).ok().filter(|row| *row < self.vocabulary);
        let row = row.unwrap_or_else(|| {
            panic!(
                "token {token}, at position {at} of sample {sample}, is not in the vocabulary of {} tokens, \
                 0 to {}",
                self.vocabulary,
                self.vocabulary.saturating_sub(1)
            )
        });
        row * self.width
    }
}

/// y = the table rows of the tokens.
///
/// # Safety
/// Live operands of the shape that do not overlap.
///
/// # Panics
/// If a token is not in the vocabulary.
pub(super) unsafe fn forward(shape: &EmbeddingShape, run: &Run) {
    let [weight, y] = run.all(["weight", "y"]);
    let lookup = Lookup::of(shape, run.at("tokens"));
    tasks_of_rows(lookup.all, lookup.width, run.threads, |first, count, _| {
        for i in first..first + count {
            // SAFETY: the caller's promise; the row is in the table, and each token has its own place in y.
            unsafe {
                let from = weight.at(lookup.row(i));
                from.0.copy_to_nonoverlapping(y.at(i * lookup.width).0, lookup.width);
            }
        }
    });
}

/// dweight = for each row the sum of dy at the positions of its token, or added to dweight.
///
/// # Safety
/// Live operands of the shape that do not overlap.
///
/// # Panics
/// If a token is not in the vocabulary.
pub(super) unsafe fn backward(shape: &EmbeddingShape, accumulate: bool, run: &Run) {
    let [dy, dweight] = run.all(["dy", "dweight"]);
    let lookup = Lookup::of(shape, run.at("tokens"));
    let width = lookup.width;
    run.threads.each(width.div_ceil(CHANNELS), |task, _| {
        let first = task * CHANNELS;
        let channels = CHANNELS.min(width - first);
        if !accumulate {
            for row in 0..lookup.vocabulary {
                // SAFETY: the caller's promise; each task has its own channels.
                unsafe { dweight.at(row * width + first).slice_mut(channels).fill(0.0) };
            }
        }
        for i in 0..lookup.all {
            // SAFETY: as above; the row is in the table.
            unsafe {
                let sum = dweight.at(lookup.row(i) + first);
                let dy = dy.at(i * width + first);
                map_rows([sum, dy], [], sum, 1, channels, |[sum, dy], []| sum + dy);
            }
        }
    });
}
