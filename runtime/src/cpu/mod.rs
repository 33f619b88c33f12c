//! The device `cpu`: the embedded default, and the reference behaviour of any device.
//!
//! A mapping of the exact size is the device memory, a second one (or a file) the host slab; the streams are three threads
//! with command queues, and events order them as on a GPU. Compute is f32, on activations in f32 or bf16, and deterministic,
//! on one thread or on N. The link can be paced ([`CpuOptions::link`]), so that a laptop shows the stalls of an accelerator
//! behind its bus.
//!
//! Two options are for tests: random delays before commands, which expose races, and a pool that is filled with NaN between
//! iterations, so that reading bytes that were never brought there computes NaN.

mod events;
pub mod kernels;
mod link;
mod memory;
mod stream;
mod system;
mod waited;

pub use link::Hurry;
pub use memory::HostMemory;
pub use system::available_bytes;
pub use system::machine_bytes;
pub(crate) use system::pinnable_bytes;
pub(crate) use system::{allocate_blocks, system_name};

use crate::device::{
    Begun, Device, DeviceFacts, EventId, IterationId, Launch, MemoryLayout, Room, Transfer, in_range,
};
use crate::error::Error;
use memory::Memory;
use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::{Bytes, Float, Precision, Seconds};
use std::sync::Arc;
use stream::{Streams, Task};

/// Configuration of the device `cpu`.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuOptions {
    /// Compute threads, at least 1.
    pub threads: u32,
    /// Storage format of activations and their gradients.
    pub feature_maps: Float,
    /// Link whose time transfers take; `None` means as fast as memory copies.
    pub link: Option<Link>,
    /// Switch that makes a paced link stop waiting.
    pub hurry: Hurry,
    /// Location of the host slab.
    pub host: HostMemory,
    /// For tests: seed of random delays of up to 100 us before every command.
    pub delays: Option<u64>,
    /// For tests: fill pool and host slab with NaN between iterations.
    pub poison: bool,
}

impl Default for CpuOptions {
    fn default() -> CpuOptions {
        CpuOptions {
            threads: 1,
            feature_maps: Float::F32,
            link: None,
            hurry: Hurry::default(),
            host: HostMemory::Anonymous,
            delays: None,
            poison: false,
        }
    }
}

impl CpuOptions {
    /// Precision of a device with these options.
    pub fn precision(&self) -> Precision {
        match self.feature_maps {
            Float::F32 => Precision::F32,
            Float::Bf16 => Precision::Bf16,
        }
    }

    /// Alternatives of a call on a device with these options.
    pub fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        let threads = self.threads.max(1);
        KernelAlternative::sole(match self.feature_maps {
            Float::F32 => kernels::workspace_bytes(call, threads),
            Float::Bf16 => kernels::bf16::workspace_bytes(call, threads),
        })
    }
}

/// The device `cpu`.
pub struct Cpu {
    options: CpuOptions,
    memory: Arc<Memory>,
    /// `None` until memory is allocated.
    streams: Option<Streams>,
}

impl Cpu {
    /// A device with nothing allocated.
    pub fn new(options: CpuOptions) -> Cpu {
        Cpu { options, memory: Arc::new(Memory::empty()), streams: None }
    }

    fn streams(&mut self) -> &mut Streams {
        self.streams.as_mut().expect("`allocate` comes before everything else")
    }

    /// Fills memory whose contents do not outlive an iteration with NaN. The streams are idle.
    fn poison(&mut self) {
        if self.options.poison {
            self.memory.poison();
        }
    }
}

impl Device for Cpu {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            name: "cpu".into(),
            system: system_name(),
            threads: self.options.threads.max(1),
            memory: machine_bytes(),
            precision: self.options.precision(),
        }
    }

    fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        self.options.alternatives(call)
    }

    fn allocate(&mut self, layout: MemoryLayout) -> Result<(), Error> {
        self.streams = None;
        self.memory = Arc::new(Memory::empty());
        self.memory = Arc::new(Memory::new(layout, &self.options.host)?);
        self.reserve(Room::default())?;
        self.poison();
        Ok(())
    }

    fn reserve(&mut self, room: Room) -> Result<(), Error> {
        self.streams = None;
        self.streams = Some(Streams::start(&self.options, &self.memory, room)?);
        Ok(())
    }

    fn begin(&mut self, _: IterationId) -> Begun {
        self.streams().begin();
        Begun::Enqueue
    }

    fn compute(&mut self, launch: &Arc<Launch>) {
        self.streams().push(Stream::Compute, Task::Compute(Arc::clone(launch)));
    }

    fn copy(&mut self, transfer: Transfer) {
        self.streams().push(transfer.stream, Task::Copy(transfer));
    }

    fn record(&mut self, stream: Stream, event: EventId) {
        self.streams().push(stream, Task::Record(event));
    }

    fn wait(&mut self, stream: Stream, event: EventId) {
        self.streams().push(stream, Task::Wait(event));
    }

    fn submit(&mut self) {
        self.streams().submit();
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        let outcome = self.streams().synchronise();
        self.poison();
        outcome
    }

    fn event_seconds(&mut self, event: EventId) -> Seconds {
        self.streams().event_seconds(event)
    }

    fn waited(&self) -> Option<Seconds> {
        self.streams.as_ref()?.waited()
    }

    fn write(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        self.streams().wait_until_idle();
        self.write_beside(offset, data)
    }

    fn read(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error> {
        self.streams().wait_until_idle();
        self.read_beside(offset, data)
    }

    fn read_behind(&mut self, event: EventId, offset: Bytes, data: &mut [u8]) -> Result<bool, Error> {
        let has_happened = self.streams().has_happened(event);
        if has_happened {
            // No command after the event writes it.
            self.read_beside(offset, data)?;
        }
        Ok(has_happened)
    }

    fn is_open(&self) -> bool {
        true
    }

    fn read_beside(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error> {
        in_range(offset, Bytes(data.len() as u64), self.memory.layout().device())?;
        // SAFETY: the range was checked, and no pending command writes it.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.device(offset), data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    fn write_beside(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        in_range(offset, Bytes(data.len() as u64), self.memory.layout().device())?;
        // SAFETY: the range was checked, and no enqueued command touches it; the queues' mutexes carry it to the threads
        // together with later commands.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.memory.device(offset), data.len()) };
        Ok(())
    }

    fn write_in_order(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        in_range(offset, Bytes(data.len() as u64), self.memory.layout().device())?;
        self.streams().push(Stream::Compute, Task::Write(offset, data.into()));
        Ok(())
    }

    fn host(&mut self, offset: Bytes, bytes: Bytes) -> Result<&mut [u8], Error> {
        in_range(offset, bytes, self.memory.layout().on_host())?;
        if bytes == Bytes::ZERO {
            return Ok(&mut []);
        }
        self.streams().wait_until_idle();
        // SAFETY: the range was checked, the streams are idle and `&mut self` keeps others from enqueueing, for as long as the
        // slice borrows the device.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.memory.host(offset), bytes.0 as usize) })
    }
}
