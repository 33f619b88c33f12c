//! The errors of measuring, by the caller's remedy.

use crate::SubjectError;
use plimsoll_ir::Bytes;
use plimsoll_runtime::RuntimeError;
use std::path::PathBuf;

/// Reason why there is no profile. Everything measured before is in the journal.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Give different batch sizes.
    #[error(
        "batch sizes to measure must be at least 1, ascending and different, and at least one; got {batches:?}"
    )]
    Batches {
        /// Requested batch sizes.
        batches: Vec<u64>,
    },
    /// Run again: it continues from the journal.
    #[error(
        "stopped while measuring; what was measured is in the journal, and the same command goes on from there"
    )]
    Interrupted,
    /// Quieten the machine, or allow more time.
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
    /// Choose a different folder, or measure afresh.
    #[error(
        "the journal `{}` holds another measurement: {differs}; choose another folder for the study, or start afresh",
        path.display()
    )]
    OtherStudy {
        /// Journal file.
        path: PathBuf,
        /// First difference, in words.
        differs: String,
    },
    /// Wait for the other run to end.
    #[error("the journal `{}` is in use by another run; wait for its end, or choose another folder for the \
             study", path.display())]
    InUse {
        /// Journal file.
        path: PathBuf,
    },
    /// Restore the file, choose a different folder, or measure afresh.
    #[error("the journal `{}`: {why}", path.display())]
    Damaged {
        /// Journal file.
        path: PathBuf,
        /// Damaged line, and the remedy.
        why: String,
    },
    /// Give a path to a file that can be read and written.
    #[error("the journal `{}`: {why}", path.display())]
    Journal {
        /// Journal file.
        path: PathBuf,
        /// Obstacle, and the remedy.
        why: String,
    },
    /// Raise the budget.
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
    Runtime(#[from] RuntimeError),
}

impl From<plimsoll_runtime::DeviceError> for ProfileError {
    fn from(error: plimsoll_runtime::DeviceError) -> ProfileError {
        ProfileError::Runtime(error.into())
    }
}
