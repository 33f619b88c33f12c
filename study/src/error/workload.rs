//! Why a task cannot be done within its memory.

use plimsoll_ir::Bytes;
use plimsoll_ir::trace::Trace;
use plimsoll_tuner::{Shortage, Witness};
use thiserror::Error;

/// Why a task cannot be done within its memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkloadError {
    /// The budget is above the device's memory.
    #[error(
        "a budget of {budget} is more than the {memory} {}",
        if *.processor { "that this process may have" } else { "of the device" }
    )]
    Budget {
        /// The budget that is asked for.
        budget: Bytes,
        /// The memory that there is.
        memory: Bytes,
        /// Whether the device is the processor.
        processor: bool,
    },
    /// Swapped tensors are to take more of the host's memory than there is.
    #[error("{asked} of host memory is more than the {memory} that this process may have")]
    HostMemory {
        /// What is asked for.
        asked: Bytes,
        /// What there is.
        memory: Bytes,
    },
    /// No plan fits.
    #[error("{}", no_plan(.trace, *.budget, .witness))]
    NoPlan {
        /// The name of the trace and its batch, and what is resident.
        trace: Iteration,
        /// What the device may hold.
        budget: Bytes,
        /// The op and the bytes that it is short by.
        witness: Witness,
        /// The largest batch with a plan, where that was asked for; of that, none where no batch has one.
        largest: Option<Option<u64>>,
        /// Whether a limit of the host's memory was given.
        host_limited: bool,
    },
    /// No batch can be trained: what the host could hold of what is swapped is too little.
    #[error("no batch fits the budget with what the machine's own memory can hold of what is swapped")]
    NoBatch,
}

/// An iteration, in so far as a plan's absence is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iteration {
    /// The trace's name.
    pub name: String,
    /// Samples in the iteration.
    pub batch: u64,
    /// What stays on the device at any batch.
    pub resident: Bytes,
}

impl Iteration {
    /// Of a trace.
    pub fn of(trace: &Trace) -> Iteration {
        Iteration { name: trace.name.clone(), batch: trace.batch, resident: trace.resident_bytes }
    }
}

/// Says that no plan fits, or that none was found.
fn no_plan(trace: &Iteration, budget: Bytes, witness: &Witness) -> String {
    let Iteration { name, batch, .. } = trace;
    if witness.why.is_proved() || witness.why == Shortage::Policy {
        format!("no plan for {name} at batch {batch} fits a budget of {budget}: {witness}")
    } else {
        format!("no plan for {name} at batch {batch} was found within a budget of {budget}: {witness}")
    }
}
