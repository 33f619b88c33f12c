//! Host memory limit for a task's swapped tensors.
//!
//! Planning within the limit is the tuner's task.

use super::NetworkWorkload;
use crate::device::Setup;
use crate::error::Error;
use plimsoll_ir::Bytes;
use plimsoll_runtime::{CpuOptions, HostMemory, cpu};

/// Share of the machine's memory for offloaded tensors. It is a share of all memory, not of free memory, so that a second run
/// plans the same; if too little is free, the allocation fails with an error.
pub(super) const HOST_SHARE: f64 = 0.7;

impl NetworkWorkload {
    /// Limits host memory for swapped tensors; at most the memory of this machine, if the device is here.
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

    /// Returns the memory of the device's host for swapped tensors; `None` if they go to a file, or if nothing is known.
    pub(super) fn machine_memory(&self) -> Option<Bytes> {
        match &self.setup {
            Setup::Modelled(device) => Some(device.sheet.host),
            Setup::Cpu(CpuOptions { host: HostMemory::File(_), .. }) => None,
            Setup::Cpu(_) | Setup::Cuda(_) => cpu::machine_bytes(),
        }
    }
}
