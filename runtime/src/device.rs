//! The interface between the executor and a machine.
//!
//! A device holds one allocation of device memory (the resident part first, then the pool) and one slab of host memory, and
//! runs three in-order streams that only events order. Enqueueing neither blocks nor allocates nor fails: errors come out of
//! [`Device::synchronise`]. The interface takes no closures, so that one iteration can be captured whole and replayed
//! ([`Begun::Replayed`]).
//!
//! Deliberately does not plan, check or order anything. Only this crate's executor can make a [`Launch`] or a [`Transfer`],
//! from a schedule that was checked; the devices' `unsafe` code relies on that.

pub use crate::error::MemoryKind;
use crate::error::{Error, Kind};
use plimsoll_ir::health::Health;
use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, Float, OpId, Precision, Seconds};
use std::ffi::CString;
use std::sync::Arc;

/// Identity of a device, for reports and for keeping measurements of different machines apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// `cpu`, `null`, or the model of an accelerator.
    pub name: String,
    /// The host: processor and operating system.
    pub system: String,
    /// Compute threads, or multiprocessors.
    pub threads: u32,
    /// Device memory; `None` means unlimited.
    pub memory: Option<Bytes>,
    /// Precision of the products in its kernels, and of stored activations.
    pub precision: Precision,
}

/// Exact sizes of what is allocated: device memory of `resident + pool` bytes in one piece, and host memory of
/// `host + state + input`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLayout {
    /// Parameters, gradients, optimizer state; from offset 0 of the allocation.
    pub resident: Bytes,
    /// The pool, right after the resident part.
    pub pool: Bytes,
    /// The host slab, which holds offloaded tensors.
    pub host: Bytes,
    /// Two copies of a training's state, right after the slab; 0 if no copy is kept.
    pub state: Bytes,
    /// Inputs of two later iterations, right after the state; 0 if each input is written before its iteration.
    pub input: Bytes,
}

impl MemoryLayout {
    /// Returns the smallest layout that holds both, for several programs that share one allocation.
    pub fn union(self, other: MemoryLayout) -> MemoryLayout {
        MemoryLayout {
            resident: self.resident.max(other.resident),
            pool: self.pool.max(other.pool),
            host: self.host.max(other.host),
            state: self.state.max(other.state),
            input: self.input.max(other.input),
        }
    }

    /// Size of the device allocation.
    pub fn device(self) -> Bytes {
        self.resident + self.pool
    }

    /// Size of the host memory.
    pub fn on_host(self) -> Bytes {
        self.host + self.state + self.input
    }
}

/// Upper bounds on what an iteration enqueues, so that a device can reserve room beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Events, numbered from 0.
    pub events: u32,
    /// Launches, transfers, records and waits of one stream.
    pub commands: usize,
}

impl Room {
    /// Returns the smallest room that holds both.
    pub fn union(self, other: Room) -> Room {
        Room { events: self.events.max(other.events), commands: self.commands.max(other.commands) }
    }
}

/// An event of a device, from 0; recorded anew in every iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

/// Id of a fixed sequence of commands: two iterations with the same id enqueue the same commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IterationId {
    /// Number of the sequence.
    pub number: u32,
    /// `true` if [`Device::event_seconds`] will be called after the iteration: time stamps have a cost.
    pub timed: bool,
}

/// Next step for the caller of [`Device::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Enqueue the iteration's commands, in list order.
    Enqueue,
    /// Nothing: the device had captured this iteration and has launched it whole.
    Replayed,
}

/// A kernel with its addresses, made once for all iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Op that the kernel computes.
    pub(crate) op: OpId,
    /// Name of the op, for profilers.
    pub(crate) name: CString,
    /// Computation to run.
    pub(crate) call: Call,
    /// Number of the device's alternative: 0 for the usual one, k + 1 for alternative k of the op.
    pub(crate) alternative: u32,
    /// Offsets of the operands in the allocation, in the call's order.
    pub(crate) offsets: Vec<Bytes>,
    /// Offset of the scratch in the allocation; 0 if there is none.
    pub(crate) workspace: Bytes,
    /// Bytes of scratch.
    pub(crate) workspace_bytes: Bytes,
    /// Predicted duration.
    pub(crate) seconds: Seconds,
}

/// A copy between the allocation and the host memory; its stream gives the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// [`Stream::Offload`] (device to host) or [`Stream::Prefetch`] (host to device).
    pub(crate) stream: Stream,
    /// Offset from the start of the allocation.
    pub(crate) device: Bytes,
    /// Offset from the start of the host memory.
    pub(crate) host: Bytes,
    /// Bytes to copy; at least 1.
    pub(crate) bytes: Bytes,
}

impl Transfer {
    /// Its stream, which gives the direction.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Offset from the start of the allocation.
    pub fn device(&self) -> Bytes {
        self.device
    }

    /// Offset from the start of the host memory.
    pub fn host(&self) -> Bytes {
        self.host
    }

    /// Bytes to copy.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

/// A machine that executes schedules.
///
/// Order of calls: `allocate` once, `reserve` after it and whenever more room is needed, then iterations. An iteration is
/// `begin`, the commands in list order, `synchronise`; `write`, `read` and `event_seconds` are called between iterations.
pub trait Device: Send {
    /// Identity of the device.
    fn facts(&self) -> DeviceFacts;

    /// Current health as the driver reports it; `None` if there is no driver. Takes milliseconds.
    fn health(&self) -> Option<Health> {
        None
    }

    /// Total time so far in which compute threads were ready to run while other processes had their processors; `None` if
    /// the system does not count it, or the device has its own processors. Takes microseconds.
    fn waited(&self) -> Option<Seconds> {
        None
    }

    /// Duration of the last iteration, if the device uses a simulated clock instead of the host's.
    fn simulated_seconds(&self) -> Option<Seconds> {
        None
    }

    /// Returns `true` if the device and its memory can fail while the host continues.
    fn can_be_lost(&self) -> bool {
        false
    }

    /// Returns `true` if the slab is pinned, and its transfers differ in kind from those of other host memory.
    fn pins(&self) -> bool {
        false
    }

    /// Returns `true` if its kernels take activations in this format, the one of its precision.
    fn stores(&self, feature_maps: Float) -> bool {
        self.facts().precision.feature_maps() == feature_maps
    }

    /// Alternatives that this device has for a call, the usual one first; never empty. The same call always has the same
    /// alternatives in the same order.
    fn alternatives(&self, call: &Call) -> Vec<KernelAlternative>;

    /// Alternative with this number, if there is one.
    fn alternative(&self, call: &Call, number: u32) -> Option<KernelAlternative> {
        self.alternatives(call).into_iter().nth(number as usize)
    }

    /// Allocates zeroed device memory and host memory. Memory allocated earlier is freed first.
    fn allocate(&mut self, memory: MemoryLayout) -> Result<(), Error>;

    /// Makes room for iterations with this many events and commands.
    fn reserve(&mut self, room: Room) -> Result<(), Error>;

    /// Starts an iteration; if it is timed, this is the zero of [`Device::event_seconds`].
    fn begin(&mut self, iteration: IterationId) -> Begun;

    /// Enqueues a kernel on the compute stream.
    fn compute(&mut self, launch: &Arc<Launch>);

    /// Returns `true` if a launch and the next one on the compute stream run as one kernel when nothing is between them on
    /// that stream.
    fn joins(&self, _launch: &Launch, _next: &Launch) -> bool {
        false
    }

    /// Enqueues a transfer on its stream.
    fn copy(&mut self, transfer: Transfer);

    /// Enqueues the recording of an event, which happens once all earlier commands of the stream have ended.
    fn record(&mut self, stream: Stream, event: EventId);

    /// Enqueues a wait for an event whose recording was enqueued earlier in this iteration.
    fn wait(&mut self, stream: Stream, event: EventId);

    /// Starts enqueued commands that have not begun, and ends a capture: once for a whole captured iteration, otherwise once
    /// for each part. [`Device::synchronise`] does it too.
    fn submit(&mut self) {}

    /// Waits until all streams are idle, and returns the first failure of the iteration.
    fn synchronise(&mut self) -> Result<(), Error>;

    /// Time of an event since the start of the last iteration, which was timed.
    fn event_seconds(&mut self, event: EventId) -> Seconds;

    /// Writes to the allocation, between iterations.
    fn write(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error>;

    /// Reads from the allocation, between iterations.
    fn read(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error>;

    /// Reads data that a running iteration writes no more, if an event recorded after the last write has happened; otherwise
    /// returns `false`. A device that cannot tell waits for the end of the iteration.
    fn read_behind(&mut self, _event: EventId, offset: Bytes, data: &mut [u8]) -> Result<bool, Error> {
        self.synchronise()?;
        self.read(offset, data)?;
        Ok(true)
    }

    /// Returns `true` if the host can read and write the allocation while an iteration runs, by the next three methods.
    fn is_open(&self) -> bool {
        false
    }

    /// Reads bytes that no pending command writes.
    fn read_beside(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error> {
        self.read(offset, data)
    }

    /// Writes bytes that no pending command touches; commands enqueued later read the new bytes.
    fn write_beside(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        self.write(offset, data)
    }

    /// Enqueues a write on the compute stream.
    fn write_in_order(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        self.write(offset, data)
    }

    /// Sums over the devices of several workers; `None` if the device cannot sum and the hosts must.
    fn collective(&mut self) -> Option<&mut dyn Collective> {
        None
    }

    /// A part of the host memory, between iterations, or during one that does not touch it; available even after the device
    /// is lost.
    fn host(&mut self, offset: Bytes, bytes: Bytes) -> Result<&mut [u8], Error>;
}

/// Sums over the devices of several workers, made by the devices themselves, in an order that they choose.
///
/// Order of calls: `join` once, on all devices; then `sum`, each once the device is ready for it. All devices make the same
/// calls. No call waits: if a worker is gone, a sum never ends until it is abandoned.
pub trait Collective {
    /// Invitation, as words that one worker sends to the others so that they can join.
    fn invite(&mut self) -> Result<Vec<u32>, Error>;

    /// Begins to join the workers with the same invitation; `workers` is their number, `rank` the number of this one.
    fn join(&mut self, invitation: &[u32], rank: usize, workers: usize) -> Result<(), Error>;

    /// Returns `true` if a sum can be begun.
    fn is_ready(&mut self) -> Result<bool, Error>;

    /// Begins f32 sums after the earlier ones. Each range is an offset and a count; the sum over all workers of their
    /// numbers, each times its worker's factor, replaces the numbers. No command touches the ranges until the sum is done.
    fn sum(&mut self, ranges: &[(Bytes, u64)], factor: f32) -> Result<(), Error>;

    /// Returns `true` if every sum that was begun is done.
    fn is_done(&mut self) -> Result<bool, Error>;

    /// Ends unfinished sums on this device only, and waits until they no longer touch memory; the workers must join again.
    fn abandon(&mut self);
}

/// Checks that a range lies in an allocation.
pub(crate) fn in_range(offset: Bytes, bytes: Bytes, memory: Bytes) -> Result<(), Error> {
    match offset.0.checked_add(bytes.0) {
        Some(end) if end <= memory.0 => Ok(()),
        _ => {
            let message =
                format!("{bytes} at byte {} are outside the {memory} that were allocated", offset.0);
            Err(Error::new(Kind::Internal, message))
        }
    }
}
