//! What a task's swapped tensors may take of the host's memory.
//!
//! What this file does not do: plan within it, which the tuner does.

use super::NetworkWorkload;
use crate::device::Setup;
use crate::error::Error;
use plimsoll_ir::Bytes;
use plimsoll_runtime::{CpuOptions, HostMemory, cpu};

/// The share of the machine's memory that what is offloaded may take. Of all of it and not of what is free now, so that a
/// second run plans the same; where too little is free, allocating it says so.
pub(super) const HOST_SHARE: f64 = 0.7;

impl NetworkWorkload {
    /// The same task where swapped tensors may take so much of the host's memory: no more than the machine has, where it is
    /// this one.
    pub fn within(self, host_memory: Option<Bytes>) -> Result<NetworkWorkload, Error> {
        let machine = self.machine_memory();
        if let (Some(asked), Some(machine), None) = (host_memory, machine, self.setup.model())
            && asked > machine
        {
            let message =
                format!("{asked} of host memory is more than the {machine} that this process may have");
            return Err(Error::usage(message).help(
                "lower --host-memory; to plan for another machine, model a device of it with --device",
            ));
        }
        Ok(NetworkWorkload { host_memory, ..self })
    }

    /// The memory of the machine that the device is in, for what is swapped; none for a file, or where nothing is known.
    pub(super) fn machine_memory(&self) -> Option<Bytes> {
        match &self.setup {
            Setup::Modelled(device) => Some(device.sheet.host),
            Setup::Cpu(CpuOptions { host: HostMemory::File(_), .. }) => None,
            Setup::Cpu(_) | Setup::Cuda(_) => cpu::machine_bytes(),
        }
    }
}
