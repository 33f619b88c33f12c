//! Why nothing can be tuned.

use plimsoll_ir::Bytes;
use thiserror::Error;

/// What is said where AccUDNN's search has no answer.
pub(crate) const NO_ALGORITHM_2: &str = "AccUDNN's eq. (6) holds, with a plan that fits, at no batch";

/// Why nothing can be tuned.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TuneError {
    /// The request's batches contradict each other, or the data.
    #[error("no batch is at least {least} and at most {most} ({samples} samples to train on)")]
    NoBatch {
        /// The least batch that is asked for.
        least: u64,
        /// The largest batch that can be considered.
        most: u64,
        /// Samples to train on.
        samples: u64,
    },
    /// The least batch that is asked for does not fit.
    #[error(
        "within {budget}{} the largest batch that can be trained is {largest}; asked for is at least {least}",
        .host.map_or(String::new(), |host| format!(" and {host} of host memory"))
    )]
    Unreachable {
        /// What the device may hold.
        budget: Bytes,
        /// What swapped tensors may take of the host's memory, where that was said.
        host: Option<Bytes>,
        /// The largest batch that can be trained.
        largest: u64,
        /// The least batch that is asked for.
        least: u64,
    },
    /// There is nothing that workers would sum.
    #[error("the network has no parameters: workers have nothing to exchange")]
    NothingToExchange,
    /// No batch makes an update of the size that is to be kept.
    #[error(
        "no batch from {least} to {most} divides a global batch of {global} into at least {workers} parts"
    )]
    NoShare {
        /// The least batch that was considered.
        least: u64,
        /// The largest.
        most: u64,
        /// How many workers share it.
        workers: u64,
        /// Samples in an update.
        global: u64,
    },
    /// An update of all workers takes more samples than there are.
    #[error("an update of {workers} workers takes {update} samples, and there are {samples} to train on")]
    TooFewSamples {
        /// How many workers share it.
        workers: u64,
        /// Samples in it, with the least batch that is asked for.
        update: u64,
        /// Samples to train on.
        samples: u64,
    },
    /// AccUDNN's search has no answer.
    #[error("{NO_ALGORITHM_2} from {least} to {most}")]
    NoAlgorithm2 {
        /// The least batch that was considered.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// No batch size has a plan.
    #[error(
        "no plan fits at any of the {tried} batch sizes that were tried; raise the budget, or lower the largest batch"
    )]
    NoPlan {
        /// How many were tried.
        tried: usize,
    },
    /// A bug.
    #[error("{0}")]
    Unexpected(String),
}
