//! The host's reads and writes of the allocation while an iteration without a graph runs.
//!
//! They use a separate stream and a pinned host buffer: the driver copies other host memory more slowly itself, and may
//! wait for the device meanwhile. A copy is complete when its call returns, so any later command finds it done. Writes in
//! order are small; each has a separate place in the pinned host buffer until the iteration is over.

use super::CudaDevice;
use super::driver::{Context, CudaStream, PinnedMemory};
use super::pinned::pinned_memory;
use crate::device::in_range;
use crate::error::Error;
use plimsoll_ir::Bytes;
use std::sync::Arc;

/// Bytes copied at once, enough that the link's rate outweighs the fixed cost of a copy.
const AT_ONCE: usize = 4 << 20;

/// Bytes for writes in order.
const IN_ORDER: usize = 64 << 10;

/// Stream and pinned host buffer for reads and writes during an iteration.
pub(super) struct Way {
    stream: CudaStream,
    /// [`AT_ONCE`] bytes, followed by [`IN_ORDER`].
    pinned: PinnedMemory,
    /// Bytes of the latter part taken by this iteration's writes.
    taken: usize,
}

impl Way {
    /// Allocates the pinned host buffer on the given NUMA node, if any.
    pub(super) fn new(context: &Arc<Context>, node: Option<u32>) -> Result<Way, Error> {
        let pinned = pinned_memory(context, Bytes((AT_ONCE + IN_ORDER) as u64), node)?;
        let pinned = pinned.expect("it is of some bytes");
        Ok(Way { stream: CudaStream::new(context)?, pinned, taken: 0 })
    }

    /// Frees the places of writes in order. The device must be idle, so that nothing reads them any more.
    pub(super) fn begin(&mut self) {
        self.taken = 0;
    }

    /// # Safety
    /// The range is live memory of the device, which nothing writes meanwhile.
    pub(super) unsafe fn read(&mut self, mut device: u64, data: &mut [u8]) -> Result<(), Error> {
        for part in data.chunks_mut(AT_ONCE) {
            let room = self.pinned.base();
            // SAFETY: the caller's promise; a part fits the buffer, and the copy is over before the buffer is read or used
            // again.
            unsafe {
                self.stream.copy_to_host(room, device, part.len())?;
                self.stream.synchronise()?;
                std::ptr::copy_nonoverlapping(room, part.as_mut_ptr(), part.len());
            }
            device += part.len() as u64;
        }
        Ok(())
    }

    /// # Safety
    /// The range is live memory of the device, which nothing else touches meanwhile.
    pub(super) unsafe fn write(&mut self, mut device: u64, data: &[u8]) -> Result<(), Error> {
        for part in data.chunks(AT_ONCE) {
            let room = self.pinned.base();
            // SAFETY: as in `read`.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), room, part.len());
                self.stream.copy_to_device(device, room, part.len())?;
            }
            self.stream.synchronise()?;
            device += part.len() as u64;
        }
        Ok(())
    }

    /// Enqueues a write on a different stream.
    ///
    /// # Safety
    /// The range is live memory of the device until the stream is idle.
    pub(super) unsafe fn write_on(
        &mut self,
        stream: &CudaStream,
        device: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        assert!(data.len() <= IN_ORDER, "what is written in order is small");
        if self.taken + data.len() > IN_ORDER {
            stream.synchronise()?;
            self.taken = 0;
        }
        let room = self.pinned.base().wrapping_add(AT_ONCE + self.taken);
        self.taken += data.len();
        // SAFETY: the caller's promise; no other write takes this place until the stream is idle.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), room, data.len());
            Ok(stream.copy_to_device(device, room, data.len())?)
        }
    }
}

impl CudaDevice {
    /// Address of a range, and the way to it, unless the iteration has failed.
    pub(super) fn way(
        &mut self,
        offset: Bytes,
        length: usize,
    ) -> Result<(u64, &mut Way, &CudaStream), Error> {
        in_range(offset, Bytes(length as u64), self.memory.layout().device())?;
        if let Some(failure) = &self.now.failure {
            return Err(failure.clone());
        }
        self.gpu.context.enter()?;
        let way = self.way.as_mut().expect("who has none is asked for none");
        Ok((self.memory.device(offset), way, self.streams.compute()))
    }
}
