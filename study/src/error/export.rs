//! Why nothing can be exported.

use plimsoll_ir::Bytes;
use plimsoll_tuner::rate::RateError;
use thiserror::Error;

/// Why nothing can be exported.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ExportError {
    /// There are no workers, or more than can be counted.
    #[error("{0} is no number of workers")]
    Workers(u64),
    /// Momentum is for SGD.
    #[error("momentum is for SGD")]
    Momentum,
    /// DeepSpeed has no schedule of the rate that falls in steps.
    #[error("DeepSpeed has no schedule that falls in steps")]
    Steps,
    /// No batch is known to fit without the plan.
    #[error("no batch is known that keeps everything within {budget}, as it must elsewhere")]
    NothingKept {
        /// What the device may hold.
        budget: Bytes,
    },
    /// The samples of an update cannot be shared out.
    #[error("{why}")]
    NotShared {
        /// Why.
        why: String,
        /// The nearest smaller number of samples that can be, if there is one.
        below: Option<u64>,
        /// The nearest larger.
        above: u64,
    },
    /// An update is larger than the data.
    #[error("a global batch of {global} is more than the {samples} samples that were tuned for")]
    TooLarge {
        /// Samples in an update.
        global: u64,
        /// Samples of the data.
        samples: u64,
    },
    /// There is no learning rate.
    #[error(transparent)]
    Rate(#[from] RateError),
}
