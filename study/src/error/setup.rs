//! Why a device cannot be used as asked.

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
    /// A modelled device without tensor cores for TF32 is to multiply in it.
    #[error("{product} has no tensor cores for TF32")]
    Tf32 {
        /// The device.
        product: &'static str,
    },
    /// Something is to run on a device that is modelled.
    #[error("nothing can run on a device that is not here ({device})")]
    NothingRuns {
        /// The device.
        device: String,
    },
}
