//! Why nothing can be trained, or not to its end.

use super::Retune;
use plimsoll_ir::check::Violation;
use plimsoll_ir::{Bytes, Optimizer};
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
    /// The machine whose folder has the file, where worker 0's folder may be another.
    pub host: Option<String>,
    /// The iterations that were asked for.
    pub total: u64,
    /// The request was to begin anew: made once more as it is, it would not go on from the file.
    pub fresh: bool,
}

/// Why nothing can be trained, or not to its end.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The schedule is of another iteration: another version of Plimsoll computes the network by other ops.
    #[error("{schedule} is not valid for the iteration that this version of Plimsoll computes: {violation}")]
    OtherIteration {
        /// The schedule's file.
        schedule: String,
        /// What is wrong with it.
        violation: Violation,
        /// How the study comes to a whole choice.
        retune: Retune,
    },
    /// The choice was made for another optimizer, which keeps other states on the device.
    #[error("the study was tuned for {tuned}, and {asked} is asked for")]
    OtherOptimizer {
        /// The config's.
        tuned: Optimizer,
        /// The training's.
        asked: Optimizer,
    },
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
    /// Each draw was to have an iteration of its own, and nothing is drawn.
    #[error("`{network}` drops no branches, so it has no draws of stochastic depth")]
    NoDraws {
        /// The network's name.
        network: String,
    },
    /// Each draw was to have an iteration of its own, and an update has several.
    #[error(
        "an update of {virtual_workers} batches has as many draws of stochastic depth, which all run by one plan"
    )]
    DrawsOfUpdate {
        /// Batches in an update.
        virtual_workers: u64,
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
    /// An update of so many samples is no whole number of batches.
    #[error("a global batch of {global} is no multiple of the batch of {batch}, which a virtual worker has")]
    NotShared {
        /// Samples in an update.
        global: u64,
        /// The config's batch.
        batch: u64,
    },
    /// There are more workers than batches in an update.
    #[error(
        "{workers} workers are more than the {} in an update of {global} samples",
        if *virtual_workers == 1 { "one batch".to_owned() } else { format!("{virtual_workers} batches") }
    )]
    TooManyWorkers {
        /// Workers.
        workers: usize,
        /// Batches of the config's size in an update.
        virtual_workers: u64,
        /// Samples in an update.
        global: u64,
        /// Whether an earlier training, which goes on, has updates of that size.
        earlier: bool,
    },
    /// There is no thread for a worker.
    #[error("there is no thread for worker {rank}: {why}")]
    NoThread {
        /// Which.
        rank: usize,
        /// What the system says.
        why: String,
    },
    /// A worker has ended, and so all have.
    #[error("worker {rank}: {source}")]
    Worker {
        /// Which.
        rank: usize,
        /// Why.
        source: RuntimeError,
        /// What is kept.
        saved: Saved,
        /// Why the newest state was lost, where it was.
        lost: Option<String>,
    },
    /// A sample cannot be read.
    #[error("{source}")]
    Data {
        /// Which, and why.
        source: RuntimeError,
        /// What is kept.
        saved: Saved,
        /// Why the newest state was lost, where it was.
        lost: Option<String>,
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
