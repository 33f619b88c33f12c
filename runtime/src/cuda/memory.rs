//! The allocations of a device `cuda`: one of device memory and one pinned host buffer, each of exactly its size.
//!
//! Free memory is checked first, so that a shortage is one clear error; the host's part is in `pinned.rs`.

use super::driver::{Context, DeviceMemory, PinnedMemory};
use super::graph::Streams;
use super::pinned::pinned_memory;
use crate::device::MemoryLayout;
use crate::error::{Error, MemoryKind};
use cudarc::driver::sys::cudaError_enum as Of;
use plimsoll_ir::Bytes;
use std::sync::Arc;

/// The memory of a device. It is dropped while the streams are idle.
pub(super) struct Memory {
    layout: MemoryLayout,
    /// `None` for 0 bytes.
    device: Option<DeviceMemory>,
    host: Option<PinnedMemory>,
}

impl Memory {
    /// Memory of no bytes.
    pub(super) fn empty() -> Memory {
        Memory { layout: MemoryLayout::default(), device: None, host: None }
    }

    /// Allocates exactly these bytes, all zeros; the host's on the given NUMA node, if any.
    pub(super) fn new(
        context: &Arc<Context>,
        streams: &Streams,
        layout: MemoryLayout,
        node: Option<u32>,
    ) -> Result<Memory, Error> {
        let device = device_memory(context, layout.device())?;
        let host = pinned_memory(context, layout.on_host(), node)?;
        let memory = Memory { layout, device, host };
        if let Some(device) = &memory.device {
            // SAFETY: the range is the whole allocation, and the stream is idle before this function returns.
            unsafe { streams.compute().zero(device.address(), layout.device().0 as usize) }?;
            streams.compute().synchronise()?;
        }
        Ok(memory)
    }

    /// The requested layout.
    pub(super) fn layout(&self) -> MemoryLayout {
        self.layout
    }

    /// Address of a byte of device memory.
    pub(super) fn device(&self, offset: Bytes) -> u64 {
        assert!(offset <= self.layout.device());
        self.device.as_ref().map_or(0, DeviceMemory::address) + offset.0
    }

    /// Address of a byte of host memory.
    pub(super) fn host(&mut self, offset: Bytes) -> *mut u8 {
        assert!(offset <= self.layout.on_host());
        let base = self.host.as_mut().map_or(std::ptr::null_mut(), PinnedMemory::base);
        base.wrapping_add(offset.0 as usize)
    }
}

fn device_memory(context: &Arc<Context>, bytes: Bytes) -> Result<Option<DeviceMemory>, Error> {
    if bytes == Bytes::ZERO {
        return Ok(None);
    }
    let available = Bytes(context.free_memory()?);
    let short = || Error::out_of_memory(MemoryKind::Device, bytes, available, &[]);
    if bytes > available {
        return Err(short());
    }
    let allocated = DeviceMemory::allocate(context, bytes.0 as usize).map(Some);
    allocated.map_err(|r| if r.is(Of::CUDA_ERROR_OUT_OF_MEMORY) { short() } else { r.into() })
}
