//! The device `null`: no memory and no work, only the clock of formats.md ("Time").
//!
//! A stream's clock is the end of its last command; a launch takes its predicted seconds and a transfer takes the time that
//! its link gives. Execution takes exactly the times of `simulate`, to the last bit, because it adds the same numbers in the
//! same order. Reads return zeros.

use crate::device::{
    Begun, Device, DeviceFacts, EventId, IterationId, Launch, MemoryLayout, Room, Transfer, in_range,
};
use crate::error::Error;
use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::{Bytes, Float, Precision, Seconds};
use std::sync::Arc;

/// A device whose commands take their predicted time and do nothing.
#[derive(Clone, Debug)]
pub struct Null {
    link: Link,
    memory: MemoryLayout,
    clocks: [Seconds; 3],
    events: Vec<Seconds>,
    /// Stand-in for any part of the host memory.
    zeros: Vec<u8>,
}

impl Null {
    /// Creates a device with this link; the executor enforces its duplex.
    pub fn new(link: Link) -> Null {
        Null {
            link,
            memory: MemoryLayout::default(),
            clocks: [Seconds::ZERO; 3],
            events: Vec::new(),
            zeros: Vec::new(),
        }
    }
}

impl Device for Null {
    fn facts(&self) -> DeviceFacts {
        let (name, system, precision) = ("null".into(), "simulated".into(), Precision::F32);
        DeviceFacts { name, system, threads: 1, memory: None, precision }
    }

    /// Always `true`: it reads no activations.
    fn stores(&self, _: Float) -> bool {
        true
    }

    fn alternatives(&self, _: &Call) -> Vec<KernelAlternative> {
        KernelAlternative::sole(Bytes::ZERO)
    }

    /// Accepts any alternative number of a trace; it takes the seconds of that alternative.
    fn alternative(&self, call: &Call, _: u32) -> Option<KernelAlternative> {
        self.alternatives(call).pop()
    }

    fn allocate(&mut self, memory: MemoryLayout) -> Result<(), Error> {
        self.memory = memory;
        Ok(())
    }

    fn reserve(&mut self, room: Room) -> Result<(), Error> {
        self.events = vec![Seconds::ZERO; room.events as usize];
        Ok(())
    }

    fn begin(&mut self, _: IterationId) -> Begun {
        self.clocks = [Seconds::ZERO; 3];
        Begun::Enqueue
    }

    fn compute(&mut self, launch: &Arc<Launch>) {
        self.clocks[Stream::Compute.index()] += launch.seconds;
    }

    fn copy(&mut self, transfer: Transfer) {
        self.clocks[transfer.stream.index()] += self.link.seconds(transfer.stream, transfer.bytes);
    }

    fn record(&mut self, stream: Stream, event: EventId) {
        self.events[event.0 as usize] = self.clocks[stream.index()];
    }

    fn wait(&mut self, stream: Stream, event: EventId) {
        let clock = &mut self.clocks[stream.index()];
        *clock = clock.max(self.events[event.0 as usize]);
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn event_seconds(&mut self, event: EventId) -> Seconds {
        self.events[event.0 as usize]
    }

    fn simulated_seconds(&self) -> Option<Seconds> {
        self.clocks.iter().copied().reduce(Seconds::max)
    }

    fn write(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        in_range(offset, Bytes(data.len() as u64), self.memory.device())
    }

    fn read(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error> {
        data.fill(0);
        in_range(offset, Bytes(data.len() as u64), self.memory.device())
    }

    fn host(&mut self, offset: Bytes, bytes: Bytes) -> Result<&mut [u8], Error> {
        in_range(offset, bytes, self.memory.on_host())?;
        self.zeros.clear();
        self.zeros.resize(bytes.0 as usize, 0);
        Ok(&mut self.zeros)
    }
}
