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
    /// NCCL is to sum, and the workers have no GPUs.
    #[error("NCCL sums on GPUs alone")]
    NcclWithoutGpu,
    /// Each worker has a GPU of its own, and there are too few.
    #[error(
        "worker {number} of this machine would train on cuda:{ordinal}, and there {}",
        if *devices == 1 { "is one GPU".to_owned() } else { format!("are {devices} GPUs") }
    )]
    TooFewGpus {
        /// The worker, of those on this machine.
        number: u32,
        /// The GPU that it would have.
        ordinal: u32,
        /// How many there are.
        devices: u32,
    },
    /// A worker's GPU is not like that of the first.
    #[error("worker {number} of this machine would train on {found}, and the first on {wanted}")]
    OtherGpu {
        /// The worker, of those on this machine.
        number: u32,
        /// Its GPU.
        found: String,
        /// That of the first.
        wanted: String,
    },
    /// Something is to run on a device that is modelled.
    #[error("nothing can run on a device that is not here ({device})")]
    NothingRuns {
        /// The device.
        device: String,
    },
}
