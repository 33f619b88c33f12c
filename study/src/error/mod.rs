//! Why a job failed: one enum for all of them, each variant with what a caller needs to act on it.
//!
//! What to do is not said here: a command line names its options, and a Python package its arguments.

mod data;
mod export;
mod file;
mod setup;
mod study;
mod train;
mod tune;
mod weights;
mod workload;

pub use data::DataError;
pub use export::ExportError;
pub use file::{Doing, FileError};
pub use setup::SetupError;
pub use study::{OfAnother, Retune, StudyError};
pub use train::{Saved, TrainError};
pub(crate) use tune::NO_ALGORITHM_2;
pub use tune::TuneError;
pub use weights::{OtherTensors, WeightsError};
pub use workload::{Iteration, WorkloadError};

use plimsoll_ir::Bytes;
use plimsoll_ir::check::Violation;
use plimsoll_networks::NetworkError;
use plimsoll_profiler::ProfileError;
use plimsoll_runtime::{CudaError, RuntimeError};
use plimsoll_tuner::PlanError;
use plimsoll_tuner::model::{FitError, UnknownOp};
use plimsoll_tuner::rate::RateError;
use std::path::PathBuf;

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A study's folder cannot be used.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// A network cannot be built or lowered.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Data and network do not go together.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A device cannot be used as asked.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A GPU cannot be opened.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A task cannot be done within its memory.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The planner refuses its input, or has a bug.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nothing could be measured.
    #[error(transparent)]
    Profile(ProfileError),
    /// A profile gives no model.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A model knows no times of an op.
    #[error(transparent)]
    UnknownOp(#[from] UnknownOp),
    /// There is no learning rate.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// Nothing can be tuned.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// Nothing can be trained.
    #[error(transparent)]
    Train(Box<TrainError>),
    /// Weights cannot be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Nothing can be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The device, its memory, or what runs on it.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The host has no memory for what is swapped with two copies of the state.
    #[error("{source}")]
    NoRoomForState {
        /// What the device says.
        source: RuntimeError,
        /// What the copies take.
        state: Bytes,
    },
    /// A schedule is not valid for its trace.
    #[error("{} is not valid: {violation}", path.display())]
    Invalid {
        /// The schedule's file.
        path: PathBuf,
        /// What is wrong with it.
        violation: Violation,
    },
    /// The caller's watch stopped it; what was done is saved.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// A bug.
    #[error("{0}")]
    Bug(String),
}

/// Where a job was stopped, and what is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Nothing was chosen; the plans that were made are kept.
    #[error("stopped while searching batch sizes; the profile is kept")]
    Searching,
    /// A choice was not run to its end.
    #[error("stopped while running a choice; the profile is kept")]
    Confirming,
    /// Not every policy was planned.
    #[error("stopped while comparing policies for the report")]
    Comparing {
        /// Whether that was part of a tuning, whose profile is kept.
        tuning: bool,
    },
    /// The state is saved.
    #[error(
        "stopped while training, after {} of {} iterations; saved to {}",
        .0.step.unwrap_or(0), .0.total, .0.path.display()
    )]
    Training(Saved),
    /// The training is over, and its state saved.
    #[error("stopped while testing, after all {done} iterations of the training")]
    Testing {
        /// The iterations of the training.
        done: u64,
        /// What is kept.
        saved: Saved,
    },
}

impl From<TrainError> for Error {
    fn from(error: TrainError) -> Error {
        Error::Train(Box::new(error))
    }
}

impl From<ProfileError> for Error {
    fn from(error: ProfileError) -> Error {
        match error {
            ProfileError::Runtime(inner) => inner.into(),
            // What the job itself failed with while the profiler asked for a program.
            ProfileError::Subject { source, batch } => match source.downcast::<Error>() {
                Ok(error) => *error,
                Err(other) => Error::Bug(format!("at batch {batch}: {other}")),
            },
            other => Error::Profile(other),
        }
    }
}
