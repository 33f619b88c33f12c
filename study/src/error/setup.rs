//! Why a device cannot be used as asked.

use plimsoll_ir::Precision;
use thiserror::Error;

/// Why a device cannot be used as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SetupError {
    /// There are fewer cores than threads.
    #[error("{threads} compute threads are more than the {cores} cores that this process may use")]
    Threads {
        /// The threads that are asked for.
        threads: u32,
        /// The cores that there are.
        cores: u32,
    },
    /// A device is to compute in what it does not have.
    #[error("{device} has no tensor cores for {precision}")]
    Precision {
        /// The device.
        device: String,
        /// What was asked for.
        precision: Precision,
    },
    /// Something is to run on a device that is modelled.
    #[error("nothing can run on a device that is not here ({device})")]
    NothingRuns {
        /// The device.
        device: String,
    },
}
