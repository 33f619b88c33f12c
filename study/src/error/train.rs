//! Why nothing can be trained, or not to its end.

use super::Retune;
use plimsoll_ir::Bytes;
use plimsoll_runtime::RuntimeError;
use std::path::PathBuf;
use thiserror::Error;

/// What is kept of a training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The file of the state.
    pub path: PathBuf,
    /// The iterations after which it is the state; none where there is no file yet.
    pub step: Option<u64>,
    /// The iterations that were asked for.
    pub total: u64,
    /// The request was to begin anew: made once more as it is, it would not go on from the file.
    pub fresh: bool,
}

/// Why nothing can be trained, or not to its end.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The schedule takes more than its config allows.
    #[error("{schedule} takes {takes}, more than the {budget} that its config allows")]
    OverBudget {
        /// The schedule's file.
        schedule: String,
        /// What it takes with what is resident.
        takes: Bytes,
        /// What the config allows.
        budget: Bytes,
        /// How the study comes to a whole choice.
        retune: Retune,
    },
    /// The data have fewer samples than a batch.
    #[error("{data} has {samples} samples, fewer than the batch of {batch}")]
    TooFewSamples {
        /// The data's name.
        data: String,
        /// Their samples.
        samples: u64,
        /// The batch.
        batch: u64,
    },
    /// The state could not be kept: nothing was trained.
    #[error("{0}")]
    CannotKeep(RuntimeError),
    /// The state of an earlier training cannot be read.
    #[error("{0}")]
    Unreadable(RuntimeError),
    /// It is of a training with other options.
    #[error("{0}")]
    OtherTraining(RuntimeError),
    /// The device failed.
    #[error("{source}")]
    Device {
        /// What it says.
        source: RuntimeError,
        /// What is saving.
        saved: Saved,
        /// Why the newest state was lost, where it was.
        lost: Option<RuntimeError>,
    },
    /// The state cannot be written.
    #[error("{source}")]
    NotSaved {
        /// Why.
        source: RuntimeError,
        /// Iterations that are trained.
        step: u64,
        /// What is saving.
        saved: Saved,
    },
    /// Numbers left what f32 holds.
    #[error("{source}")]
    Diverged {
        /// Where.
        source: RuntimeError,
        /// The base rate of the config, which was too high.
        base_rate: f64,
        /// The study's folder.
        folder: PathBuf,
        /// What is saving.
        saved: Saved,
    },
}
