//! The seam: all that the executor knows of a machine.
//!
//! A device holds one allocation of device memory (the resident part first, then the pool) and one slab of host
//! memory, and runs three in-order streams that only events order. Enqueueing neither blocks nor allocates nor
//! fails: what goes wrong comes out of [`Device::synchronise`]. There is no closure in the seam, so that one
//! iteration can be captured whole and replayed ([`Begun::Replayed`]).
//!
//! What it deliberately does not do: plan, check or order anything. A [`Launch`] and a [`Transfer`] can only be
//! made by this crate's executor, from a schedule that was checked; this is what the devices' `unsafe` code stands
//! on.

use plimsoll_ir::health::{Health, OtherProcess};
use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, Float, OpId, Precision, Seconds};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::Arc;

/// What a device is, for reports and for keeping measurements of different machines apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// `cpu`, `null`, or the model of an accelerator.
    pub name: String,
    /// The machine around it: processor and operating system.
    pub system: String,
    /// Threads that compute, or multiprocessors.
    pub threads: u32,
    /// All of its memory; none where it has no limit.
    pub memory: Option<Bytes>,
    /// In what its kernels multiply, and store feature maps.
    pub precision: Precision,
}

/// What is allocated, exactly: device memory of `resident + pool` bytes in one piece, and host memory of
/// `host + state + input`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLayout {
    /// Parameters, gradients, optimizer state; from offset 0 of the allocation.
    pub resident: Bytes,
    /// The pool, right after it.
    pub pool: Bytes,
    /// The host slab: what offloaded tensors take on the host.
    pub host: Bytes,
    /// Two copies of a training's state, right after the slab; 0 where none is kept.
    pub state: Bytes,
    /// Two inputs of iterations to come, right after the state; 0 where each is written before its iteration.
    pub input: Bytes,
}

impl MemoryLayout {
    /// The least layout that holds both: for several programs that share one allocation.
    pub fn union(self, other: MemoryLayout) -> MemoryLayout {
        MemoryLayout {
            resident: self.resident.max(other.resident),
            pool: self.pool.max(other.pool),
            host: self.host.max(other.host),
            state: self.state.max(other.state),
            input: self.input.max(other.input),
        }
    }

    /// The one device allocation.
    pub fn device(self) -> Bytes {
        self.resident + self.pool
    }

    /// The host memory.
    pub fn on_host(self) -> Bytes {
        self.host + self.state + self.input
    }
}

/// What an iteration will enqueue at most, so that a device can make room for it beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Events, numbered from 0.
    pub events: u32,
    /// Launches, transfers, records and waits of one stream.
    pub commands: usize,
}

impl Room {
    /// The least room that holds both.
    pub fn union(self, other: Room) -> Room {
        Room { events: self.events.max(other.events), commands: self.commands.max(other.commands) }
    }
}

/// An event of a device, from 0; recorded anew in every iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

/// Names a fixed sequence of commands: two iterations with the same id enqueue the same commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IterationId {
    /// Tells sequences apart.
    pub number: u32,
    /// Whether [`Device::event_seconds`] is asked after it: time stamps cost something.
    pub timed: bool,
}

/// What the caller of [`Device::begin`] does next.
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
    pub(crate) op: OpId,
    pub(crate) name: CString,
    pub(crate) call: Call,
    pub(crate) alternative: u32,
    pub(crate) offsets: Vec<Bytes>,
    pub(crate) workspace: Bytes,
    pub(crate) workspace_bytes: Bytes,
    pub(crate) seconds: Seconds,
}

impl Launch {
    /// Whose kernel it is.
    pub fn op(&self) -> OpId {
        self.op
    }

    /// Its op's name, for profilers.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// What to compute.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Which of the device's alternatives: 0 for the usual one, k + 1 for alternative k of its op.
    pub fn alternative(&self) -> u32 {
        self.alternative
    }

    /// Where the operands start in the allocation, in the call's order.
    pub fn offsets(&self) -> &[Bytes] {
        &self.offsets
    }

    /// Where the scratch starts in the allocation; 0 where there is none.
    pub fn workspace(&self) -> Bytes {
        self.workspace
    }

    /// How much scratch there is.
    pub fn workspace_bytes(&self) -> Bytes {
        self.workspace_bytes
    }

    /// How long it is predicted to take.
    pub fn seconds(&self) -> Seconds {
        self.seconds
    }
}

/// A copy between the allocation and the host memory; its stream says which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub(crate) stream: Stream,
    pub(crate) device: Bytes,
    pub(crate) host: Bytes,
    pub(crate) bytes: Bytes,
}

impl Transfer {
    /// [`Stream::Offload`] (device to host) or [`Stream::Prefetch`] (host to device).
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// From the start of the allocation.
    pub fn device(&self) -> Bytes {
        self.device
    }

    /// From the start of the host memory.
    pub fn host(&self) -> Bytes {
        self.host
    }

    /// How many; at least 1.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

/// Why a device did not do what it was asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// Less memory is there than was asked for.
    #[error(
        "{needed} of {what} memory are needed and {available} are there{}; lower the budget or the batch",
        holders(held_by)
    )]
    OutOfMemory {
        /// Of which memory.
        what: MemoryKind,
        /// What was asked for.
        needed: Bytes,
        /// What there is.
        available: Bytes,
        /// Who else holds some of it, as far as is known.
        held_by: Vec<OtherProcess>,
    },
    /// The host slab's file cannot be had at its full size.
    #[error("the host file `{}` cannot hold {bytes}: {why}", path.display())]
    HostFile {
        /// Which.
        path: PathBuf,
        /// The slab's size.
        bytes: Bytes,
        /// What stands in the way, and what to do.
        why: String,
    },
    /// Something that a stream ran failed; the device can go on with a new iteration, its contents are undefined.
    #[error("`{what}` failed on the {stream:?} stream: {why}")]
    Failed {
        /// Which.
        stream: Stream,
        /// The kernel or transfer.
        what: String,
        /// The panic's or the driver's word.
        why: String,
    },
    /// The driver refused a call, or says that something failed earlier.
    #[error("the driver refused {why}; {what_to_do}")]
    Driver {
        /// The call and the driver's words.
        why: String,
        /// What to do.
        what_to_do: &'static str,
    },
    /// The driver finds no memory for what a call takes beside the allocation.
    #[error(
        "the driver refused {why}; lower the budget, or end what else uses the device (`nvidia-smi` lists it)"
    )]
    Full {
        /// The call and the driver's words.
        why: String,
    },
    /// The driver does not page-lock the host memory.
    #[error(
        "the driver refused {why}; this much host memory cannot be page-locked here: lower the budget or the batch so that \
         less is swapped, or see what a container or `ulimit -l` allows"
    )]
    NotPinned {
        /// The call and the driver's words.
        why: String,
    },
    /// The devices of the workers do not sum together.
    #[error("the workers' GPUs do not sum together: {why}; {what_to_do}")]
    NotTogether {
        /// What the library between them says.
        why: String,
        /// What to do.
        what_to_do: &'static str,
    },
    /// A read or write, or a transfer, leaves the memory that was allocated.
    #[error("{bytes} at byte {offset} are outside the {memory} that were allocated", offset = offset.0)]
    OutOfRange {
        /// First byte.
        offset: Bytes,
        /// How many.
        bytes: Bytes,
        /// The allocation.
        memory: Bytes,
    },
}

/// Which memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The device's.
    Device,
    /// The host's.
    Host,
    /// Of one machine whose memory is the device's and the host's.
    DeviceAndHost,
    /// The host's, page-locked.
    PinnedHost,
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemoryKind::Device => "device",
            MemoryKind::Host => "host",
            MemoryKind::DeviceAndHost => "device and host",
            MemoryKind::PinnedHost => "pinned host",
        })
    }
}

/// `, while process 7 (python, 9.00 GiB) is on the device, too`, or nothing where nobody is known.
fn holders(held_by: &[OtherProcess]) -> String {
    match held_by {
        [] => String::new(),
        [one] => format!(", while {one} is on the device, too"),
        all => {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!(", while others are on the device, too: {}", all.join(", "))
        }
    }
}

/// A machine that executes schedules.
///
/// The order of calls: `allocate` once, `reserve` after it and whenever more room is needed, then iterations. An
/// iteration is `begin`, the commands in list order, `synchronise`; `write`, `read` and `event_seconds` stand
/// between iterations.
pub trait Device: Send {
    /// What it is.
    fn facts(&self) -> DeviceFacts;

    /// How it is now, as its driver tells; none where there is nobody to tell. It takes milliseconds.
    fn health(&self) -> Option<Health> {
        None
    }

    /// How long the threads that compute were ready to run while others had their processors, in all so far; none where
    /// nobody counts that, or the device has processors of its own. It takes microseconds.
    fn waited(&self) -> Option<Seconds> {
        None
    }

    /// What the last iteration took, where the device goes by a clock of its own and not by the host's.
    fn simulated_seconds(&self) -> Option<Seconds> {
        None
    }

    /// Whether it can fail while the host goes on, and its memory with it.
    fn can_be_lost(&self) -> bool {
        false
    }

    /// Whether the slab is page-locked, and transfers of it are of another kind than those of other host memory.
    fn pins(&self) -> bool {
        false
    }

    /// Whether its kernels take feature maps that are stored so: those of its precision.
    fn stores(&self, feature_maps: Float) -> bool {
        self.facts().precision.feature_maps() == feature_maps
    }

    /// How this device can run a call, the usual alternative first; never empty. The same call has the same alternatives in
    /// the same order whenever it is asked.
    fn alternatives(&self, call: &Call) -> Vec<KernelAlternative>;

    /// The alternative of this number, where there is one.
    fn alternative(&self, call: &Call, number: u32) -> Option<KernelAlternative> {
        self.alternatives(call).into_iter().nth(number as usize)
    }

    /// Allocates device memory and host memory, all of it zeros. What was allocated before is given back first.
    fn allocate(&mut self, memory: MemoryLayout) -> Result<(), DeviceError>;

    /// Makes room for iterations of so many events and commands.
    fn reserve(&mut self, room: Room) -> Result<(), DeviceError>;

    /// Starts an iteration; where it is timed, this is the zero of [`Device::event_seconds`].
    fn begin(&mut self, iteration: IterationId) -> Begun;

    /// Enqueues a kernel on the compute stream.
    fn compute(&mut self, launch: &Arc<Launch>);

    /// Whether a launch and the next one on the compute stream run as one kernel, where nothing is between them on that stream.
    fn joins(&self, _launch: &Launch, _next: &Launch) -> bool {
        false
    }

    /// Enqueues a transfer on its stream.
    fn copy(&mut self, transfer: Transfer);

    /// Enqueues the recording of an event: it happens when everything before it on the stream has ended.
    fn record(&mut self, stream: Stream, event: EventId);

    /// Enqueues a wait for an event whose recording was enqueued earlier in this iteration.
    fn wait(&mut self, stream: Stream, event: EventId);

    /// Lets what was enqueued begin, if it has not yet, and ends a capture: one hand-over for the whole iteration, or one for
    /// each of its parts where it is no capture. [`Device::synchronise`] does it too.
    fn submit(&mut self) {}

    /// Waits until all streams are idle. The first failure of the iteration comes out here.
    fn synchronise(&mut self) -> Result<(), DeviceError>;

    /// When an event of the last iteration, which was timed, happened, since its start.
    fn event_seconds(&mut self, event: EventId) -> Seconds;

    /// Writes to the allocation, between iterations.
    fn write(&mut self, offset: Bytes, data: &[u8]) -> Result<(), DeviceError>;

    /// Reads from the allocation, between iterations.
    fn read(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Reads what an iteration that runs has written for the last time, where an event behind that has happened; false where it
    /// has not yet. A device that cannot tell waits for the end of the iteration.
    fn read_behind(&mut self, _event: EventId, offset: Bytes, data: &mut [u8]) -> Result<bool, DeviceError> {
        self.synchronise()?;
        self.read(offset, data)?;
        Ok(true)
    }

    /// The allocation while an iteration runs; none where the host has no way to it then.
    fn beside(&mut self) -> Option<&mut dyn Beside> {
        None
    }

    /// The way to sums over the devices of several workers; none where it has none, and the hosts sum.
    fn collective(&mut self) -> Option<&mut dyn Collective> {
        None
    }

    /// A part of the host memory, between iterations, or while one runs that does not touch it; also where the device is
    /// lost.
    fn host(&mut self, offset: Bytes, bytes: Bytes) -> Result<&mut [u8], DeviceError>;
}

/// The allocation beside an iteration that runs.
pub trait Beside {
    /// Reads what no enqueued command that is still to run writes.
    fn read_beside(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes what no enqueued command that is still to run touches; commands that are enqueued later read the new bytes.
    fn write_beside(&mut self, offset: Bytes, data: &[u8]) -> Result<(), DeviceError>;

    /// Enqueues a write on the compute stream.
    fn write_in_order(&mut self, offset: Bytes, data: &[u8]) -> Result<(), DeviceError>;
}

/// Sums over the devices of several workers, made by the devices themselves, in an order of their own.
///
/// The order of calls: `join` once, on all devices; then `sum`, each once the device is ready for it. All devices make the same
/// calls. None of them waits: what was begun comes to no end where another worker is gone, until it is abandoned.
pub trait Collective {
    /// What one of the workers tells the others, in words, so that they find each other.
    fn invite(&mut self) -> Result<Vec<u32>, DeviceError>;

    /// Begins to join those with the same invitation: so many workers, this one with this number.
    fn join(&mut self, invitation: &[u32], rank: usize, workers: usize) -> Result<(), DeviceError>;

    /// Whether a sum can be begun.
    fn is_ready(&mut self) -> Result<bool, DeviceError>;

    /// Begins sums of f32 numbers, behind those before: at each of these bytes so many, in whose place the sum over all workers
    /// comes, of what each worker has times its own factor. No command touches them until it is done.
    fn sum(&mut self, ranges: &[(Bytes, u64)], factor: f32) -> Result<(), DeviceError>;

    /// Whether all that was begun is done.
    fn is_done(&mut self) -> Result<bool, DeviceError>;

    /// Ends what was begun and is not done, here and not elsewhere, and waits until nothing of it touches memory; the workers
    /// have to join anew.
    fn abandon(&mut self);
}

/// Makes sure that a range lies in an allocation.
pub(crate) fn in_range(offset: Bytes, bytes: Bytes, memory: Bytes) -> Result<(), DeviceError> {
    match offset.0.checked_add(bytes.0) {
        Some(end) if end <= memory.0 => Ok(()),
        _ => Err(DeviceError::OutOfRange { offset, bytes, memory }),
    }
}
