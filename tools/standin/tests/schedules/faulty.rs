//! A device that forgets or confuses one command of every iteration.
//!
//! It receives correct commands; it stands between the executor and the real device, which does not know it. A transfer
//! cannot be made here, so a wrong one is a different transfer of the same iteration.

use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_runtime::{
    Begun, Device, DeviceFacts, Error, EventId, IterationId, Launch, MemoryLayout, Room, Transfer,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The fault; numbers count from 0 within an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Does not enqueue this wait for data.
    DroppedWait(usize),
    /// Does not enqueue this wait for the last use of a place.
    EarlyFree(usize),
    /// Sends this transfer to the place of a different one of its stream, of the same length.
    WrongOffset(usize),
    /// Reverses the direction of this prefetch.
    WrongDirection(usize),
    /// Reports a failure of this iteration after all of it is done.
    Fails(usize),
    /// The same, without its last transfer.
    FailsShort(usize),
}

/// Purpose of a wait: data, or a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Data,
    Place,
}

/// Purpose of one stream's waits for another: offloads read places, and write only to the host.
fn reason(waiting: Stream, on: Stream) -> Reason {
    match (waiting, on) {
        (Stream::Compute, Stream::Prefetch) | (Stream::Offload, _) | (Stream::Prefetch, Stream::Offload) => {
            Reason::Data
        }
        _ => Reason::Place,
    }
}

/// Flag of a fault that was planted, shared with the test.
pub type Planted = Arc<AtomicBool>;

/// A device with a fault.
pub struct Faulty<D> {
    inner: D,
    fault: Fault,
    planted: Planted,
    /// Iterations begun.
    begun: usize,
    /// The transfer held back until it is known not to be the last.
    held: Option<Transfer>,
    /// Number of streams still busy although the device reports an end; checked after each iteration.
    busy: Box<dyn Fn() -> usize + Send>,
    recorded: HashMap<EventId, Stream>,
    waits: [usize; 2],
    transfers: Vec<Transfer>,
    /// Transfers of the first iteration.
    known: Vec<Transfer>,
}

impl<D: Device> Faulty<D> {
    /// Wraps a device.
    pub fn new(inner: D, fault: Fault, busy: impl Fn() -> usize + Send + 'static) -> (Self, Planted) {
        let planted = Planted::default();
        let faulty = Faulty {
            inner,
            fault,
            planted: planted.clone(),
            begun: 0,
            held: None,
            busy: Box::new(busy),
            recorded: HashMap::new(),
            waits: [0; 2],
            transfers: Vec::new(),
            known: Vec::new(),
        };
        (faulty, planted)
    }

    fn plant(&self) {
        self.planted.store(true, Ordering::Relaxed);
    }

    /// The transfer in place of the right one.
    fn instead(&self, right: Transfer) -> Option<Transfer> {
        let others = self.known.iter().copied();
        let at = self.transfers.len();
        let is_prefetch = |t: &&Transfer| t.stream() == Stream::Prefetch;
        let prefetches = self.transfers.iter().filter(is_prefetch).count();
        match self.fault {
            Fault::WrongOffset(n) if n == at => {
                let fits = |t: &Transfer| t.stream() == right.stream() && t.bytes() == right.bytes();
                others.filter(fits).find(|t| t.device() != right.device() && t.host() != right.host())
            }
            Fault::WrongDirection(n) if n == prefetches && right.stream() == Stream::Prefetch => {
                let fits = |t: &Transfer| t.host() == right.host() && t.bytes() == right.bytes();
                others.filter(fits).find(|t| t.stream() == Stream::Offload)
            }
            _ => None,
        }
    }
}

impl<D: Device> Device for Faulty<D> {
    fn facts(&self) -> DeviceFacts {
        self.inner.facts()
    }

    fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        self.inner.alternatives(call)
    }

    fn allocate(&mut self, memory: MemoryLayout) -> Result<(), Error> {
        self.inner.allocate(memory)
    }

    fn reserve(&mut self, room: Room) -> Result<(), Error> {
        self.inner.reserve(room)
    }

    fn begin(&mut self, iteration: IterationId) -> Begun {
        self.waits = [0; 2];
        self.begun += 1;
        if self.known.is_empty() {
            self.known = std::mem::take(&mut self.transfers);
        }
        self.transfers.clear();
        self.inner.begin(iteration)
    }

    fn compute(&mut self, launch: &Arc<Launch>) {
        self.inner.compute(launch);
    }

    fn joins(&self, launch: &Launch, next: &Launch) -> bool {
        self.inner.joins(launch, next)
    }

    fn copy(&mut self, transfer: Transfer) {
        let wrong = self.instead(transfer);
        self.transfers.push(transfer);
        if wrong.is_some() {
            self.plant();
        }
        let right = wrong.unwrap_or(transfer);
        if self.fault != Fault::FailsShort(self.begun - 1) {
            self.inner.copy(right);
        } else if let Some(before) = self.held.replace(right) {
            self.inner.copy(before);
        }
    }

    fn record(&mut self, stream: Stream, event: EventId) {
        self.recorded.insert(event, stream);
        self.inner.record(stream, event);
    }

    fn wait(&mut self, stream: Stream, event: EventId) {
        let reason = reason(stream, self.recorded[&event]);
        let number = self.waits[reason as usize];
        self.waits[reason as usize] += 1;
        let dropped = match self.fault {
            Fault::DroppedWait(n) => reason == Reason::Data && n == number,
            Fault::EarlyFree(n) => reason == Reason::Place && n == number,
            _ => false,
        };
        if dropped {
            self.plant();
        } else {
            self.inner.wait(stream, event);
        }
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        self.inner.synchronise()?;
        let now = self.begun.wrapping_sub(1);
        if [Fault::Fails(now), Fault::FailsShort(now)].contains(&self.fault) {
            self.plant();
            return Err(Error::failed(Stream::Compute, "this iteration", "as the test asked"));
        }
        let busy = (self.busy)();
        if busy > 0 {
            let why = format!("{busy} streams still run after it");
            return Err(Error::failed(Stream::Compute, "the end of an iteration", why));
        }
        Ok(())
    }

    fn event_seconds(&mut self, event: EventId) -> Seconds {
        self.inner.event_seconds(event)
    }

    fn write(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        self.inner.write(offset, data)
    }

    fn read(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error> {
        self.inner.read(offset, data)
    }

    fn host(&mut self, offset: Bytes, bytes: Bytes) -> Result<&mut [u8], Error> {
        self.inner.host(offset, bytes)
    }
}
