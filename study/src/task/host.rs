//! What a task's swapped tensors may take of the host's memory, and which batches that lets through.
//!
//! What this file does not do: plan within it, which the tuner does.

use super::{Task, TaskError, UNMEASURED};
use crate::device::Setup;
use crate::error::Error;
use crate::watch::Watch;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::units::Size;
use plimsoll_runtime::{CpuOptions, HostMemory, cpu};
use plimsoll_tuner::{Outcome, Policy};

/// The share of the machine's memory that what is offloaded may take. Of all of it and not of what is free now, so that a second
/// run plans the same; where too little is free, allocating it says so.
const HOST_SHARE: f64 = 0.7;

impl Task {
    /// The largest batch, up to `limit`, that can be trained with everything kept or everything swapped; where that ends at the
    /// host's memory, or by recomputing.
    pub fn largest_trainable(
        &self,
        budget: Bytes,
        limit: u64,
        watch: &Watch<'_>,
    ) -> Result<Option<u64>, Error> {
        // Where the host has less memory than the device, keeping may go further than swapping.
        let kept = self.largest_batch(Policy::Keep, budget, limit, watch)?;
        let most = self.largest_batch(Policy::Naive, budget, limit, watch)?.max(kept);
        let next = most.map_or(self.smallest_batch(), |most| most + 1);
        if next > limit || !self.is_short_of_host(next, budget, watch)? {
            return Ok(most);
        }
        Ok(self.largest_batch(Policy::Memonger, budget, limit, watch)?.max(most))
    }

    /// Whether it is the host that has no memory for swapping everything at a batch.
    fn is_short_of_host(&self, batch: u64, budget: Bytes, watch: &Watch<'_>) -> Result<bool, Error> {
        let outcome =
            self.outcome(&self.trace(batch)?, Policy::Naive, budget, Link::symmetric(UNMEASURED), watch)?;
        Ok(matches!(outcome, Outcome::Infeasible(witness) if witness.why.is_of_host()))
    }

    /// The same task where swapped tensors may take so much of the host's memory: no more than the machine has, where it is
    /// this one.
    pub fn within(self, host_memory: Option<Bytes>) -> Result<Task, TaskError> {
        let machine = self.machine_memory();
        if let (Some(asked), Some(machine), None) = (host_memory, machine, self.setup.model())
            && asked > machine
        {
            return Err(TaskError::HostMemory { asked, memory: machine });
        }
        Ok(Task { host_memory, ..self })
    }

    /// The memory of the machine that the device is in, for what is swapped; none for a file, or where nothing is known.
    fn machine_memory(&self) -> Option<Bytes> {
        match &self.setup {
            Setup::Modelled(device) => Some(device.sheet.host),
            Setup::Cpu(CpuOptions { host: HostMemory::File(_), .. }) => None,
            Setup::Cpu(_) | Setup::Cuda(_) => cpu::machine_bytes(),
        }
    }

    /// What swapped tensors may take of the host's memory: what was said, else 70 % of the machine's. None for any
    /// number of bytes: in a file, or where nothing is known.
    pub fn host_limit(&self) -> Option<Bytes> {
        self.host_memory.or_else(|| Some(Size::Share(HOST_SHARE).of(self.machine_memory()?)))
    }

    /// Whether there is the memory on the host for what a schedule offloads.
    pub fn fits_host(&self, trace: &Trace, schedule: &Schedule) -> bool {
        self.host_limit().is_none_or(|room| schedule.host_bytes(trace) <= room)
    }
}
