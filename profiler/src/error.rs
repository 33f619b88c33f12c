//! The errors of measuring, by the caller's remedy.

use crate::SubjectError;
use plimsoll_ir::Bytes;
use plimsoll_runtime::Error;

/// Reason why there is no profile. Everything measured before is in the journal.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Remedy: other batch sizes, or a journal that it can read and write and that no other run uses.
    #[error("{0}")]
    Unusable(String),
    /// Remedy: a different folder, or measuring afresh. The journal is damaged, or of a different measurement.
    #[error("{0}")]
    OtherJournal(String),
    /// Remedy: run again, which continues from the journal.
    #[error(
        "stopped while measuring; what was measured is in the journal, and the same command goes on from there"
    )]
    Interrupted,
    /// Remedy: a quieter machine, or more time.
    #[error(
        "too noisy to decide: at batch {batch} the median iteration is known to {:.0} % only after {samples} repetitions, \
         mostly because of `{op}`; end other programs, or allow more time, and run again: it goes on from the journal",
        spread * 100.0
    )]
    Noisy {
        /// Batch size.
        batch: u64,
        /// Op whose times spread most, in seconds.
        op: String,
        /// Relative standard error of the median iteration.
        spread: f64,
        /// Timed iterations.
        samples: usize,
    },
    /// Remedy: a higher budget.
    #[error(
        "measuring the link needs two buffers of 256 B beside what stays on the device; the budget leaves {left}"
    )]
    NoRoom {
        /// Bytes that the budget leaves for the pool.
        left: Bytes,
    },
    /// The program or the schedule could not be made.
    #[error("at batch {batch}: {source}")]
    Subject {
        /// Batch size.
        batch: u64,
        /// Error of the caller.
        source: SubjectError,
    },
    /// The device or the executor failed.
    #[error(transparent)]
    Runtime(#[from] Error),
}
