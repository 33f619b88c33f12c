//! The device `cuda`: an NVIDIA GPU over the driver API, found at run time.
//!
//! One device allocation holds the resident part and the pool. One pinned host buffer holds offloaded tensors and the
//! copies of the state. Three streams run kernels and copies; a whole iteration is captured as one CUDA graph and replayed
//! (`graph.rs`). Iterations of workers that train together are not graphs: a fourth stream reads their completed results
//! while they run, and writes their next inputs (`beside.rs`); a fifth sums over the GPUs of all workers (`nccl.rs`).
//! Kernels are the CUDA C of `kernels/`, compiled by NVRTC for the device and kept in the user's cache. Nothing of CUDA is
//! linked: on a machine without it [`CudaDevice::open`] returns one error.
//!
//! Deliberately does not allocate, use the default stream, or wait for the device while an iteration is enqueued. It
//! reports the failure of a stream no sooner than [`Device::synchronise`], as the driver does.

mod beside;
mod compile;
mod driver;
mod error;
mod graph;
#[cfg(test)]
mod headers;
mod health;
mod kernels;
mod libraries;
mod memory;
mod nccl;
mod numa;
mod pinned;
mod presence;
mod ranges;
mod survey;
pub mod swaps;
mod table;
mod updates;

pub use compile::{KernelCode, user_cache};
pub use driver::GpuFacts;
pub use error::{Capability, Refusal};
pub use libraries::countable_batch;
pub use presence::LIBRARIES_VARIABLE;
use ranges::Ranges;
pub use survey::{Survey, survey, visible};

use crate::device::{
    Begun, Collective, Device, DeviceFacts, EventId, IterationId, Launch, MemoryLayout, Room, Transfer,
    in_range,
};
use crate::error::Error;
use beside::Way;
use compile::Compiler;
use driver::{Context, CudaStream, Driver, Event, Function, Module};

use graph::{Iterations, Streams};
use health::{Management, Watched};
use kernels::{Argument, Grid};
use libraries::Libraries;
use memory::Memory;
use nccl::Nccl;
use plimsoll_ir::health::Health;
use plimsoll_ir::program::{Call, KernelAlternative};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, Float, Precision, Seconds};
use presence::Search;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;
use updates::Update;

/// Setup of the device `cuda`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Index from 0 among the devices that `CUDA_VISIBLE_DEVICES` leaves.
    pub ordinal: u32,
    /// `true` if iterations are captured and replayed as graphs.
    pub graphs: bool,
    /// Folders searched for CUDA's libraries before those of [`LIBRARIES_VARIABLE`] and all others.
    pub libraries: Vec<PathBuf>,
    /// Folder of compiled kernels; `None` means the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Input precision of convolutions and matrix products, and storage of activations; `None` means PyTorch's default on
    /// the card ([`Precision::usual`]). Our own kernels have no TF32.
    pub precision: Option<Precision>,
    /// `true` if every call has one kernel, which gives the same bits each time.
    pub deterministic: bool,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions {
            ordinal: 0,
            graphs: true,
            libraries: Vec::new(),
            cache: None,
            precision: Some(Precision::F32),
            deterministic: false,
        }
    }
}

/// The device `cuda`.
///
/// Fields are dropped in order: graphs and events that refer to memory, then memory, then the context of all.
pub struct CudaDevice {
    facts: DeviceFacts,
    /// NUMA node nearest to the device, if there are several.
    node: Option<u32>,
    iterations: Iterations,
    /// Events without time stamps, for untimed iterations and for the waits of captured ones.
    plain: Vec<Event>,
    /// Events with time stamps, for timed iterations.
    timed: Vec<Event>,
    /// Start of the last timed iteration.
    origin: Event,
    functions: HashMap<&'static str, Function>,
    /// Addresses of the launch being enqueued.
    addresses: Vec<u64>,
    memory: Memory,
    /// Reads and writes during an iteration; `None` if iterations may be graphs.
    way: Option<Way>,
    /// Sums over the GPUs of several workers.
    nccl: Option<Nccl>,
    streams: Streams,
    gpu: Arc<Gpu>,
    now: Now,
}

/// Kernels and libraries shared by devices on one GPU; the libraries allocate GPU memory themselves.
struct Gpu {
    /// Names for profilers, if NVTX is installed.
    ranges: Option<Ranges>,
    /// NVML's view of the GPU, if NVML is installed.
    watched: Option<Watched>,
    libraries: Libraries,
    code: KernelCode,
    module: Module,
    context: Arc<Context>,
}

/// The running iteration, or the last one.
#[derive(Default)]
struct Now {
    timed: bool,
    /// Events recorded by a timed iteration.
    recorded: Vec<EventId>,
    failure: Option<Error>,
    /// `true` if its profiler range is open.
    in_range: bool,
    /// Times by event, after a timed iteration.
    seconds: Vec<f64>,
    /// An update of parameters to launch before anything else on the compute stream.
    update: Option<Update>,
}

impl CudaDevice {
    /// Finds the libraries, retains the device and compiles the kernels for it. Allocates nothing yet.
    pub fn open(options: &CudaOptions) -> Result<CudaDevice, Error> {
        let search = Search::new(&options.libraries);
        let driver = Driver::start(&search)?;
        let gpu = driver.facts(options.ordinal)?;
        let precision = precision(options, &gpu)?;
        let version = driver.version()?;
        let compiler = Compiler::load(&search, version)?;
        let nvml = Management::start(&search).inspect_err(|why| tracing::debug!("{why}")).ok();
        let watched = nvml.map(|nvml| nvml.watch(&gpu.bus));
        let ranges = Ranges::start(&search).inspect_err(|why| tracing::debug!("{why}")).ok();
        let context = Context::retain(driver, options.ordinal)?;
        watched.iter().for_each(Watched::recognise);
        let cache = options.cache.clone().or_else(user_cache);
        let device = (gpu.name.as_str(), gpu.capability);
        let source = kernels::source(precision.feature_maps());
        let (module, code) = compiler.module(&context, &source, device, cache.as_deref())?;
        let deterministic = options.deterministic;
        let libraries =
            Libraries::start(&search, &context, version, gpu.capability, precision, deterministic)?;
        let words = libraries.words();
        let system =
            format!("{}, CUDA driver {}.{}, {words}", crate::cpu::system_name(), version.0, version.1);
        let (name, threads, memory) = (gpu.name, gpu.multiprocessors, Some(gpu.memory));
        let facts = DeviceFacts { name, system, threads, memory, precision };
        let (node, graphs) = (numa::node_of(&gpu.bus), options.graphs);
        let gpu = Gpu { ranges, watched, libraries, code, module, context };
        CudaDevice::on(Arc::new(gpu), facts, node, graphs)
    }

    /// Opens a second device on the same GPU, with separate memory, streams and graphs and with shared kernels and
    /// libraries.
    pub fn another(&self) -> Result<CudaDevice, Error> {
        self.gpu.context.enter()?;
        CudaDevice::on(Arc::clone(&self.gpu), self.facts.clone(), self.node, self.iterations.graphs())
    }

    /// Returns this device with graphs off, so that completed results can be read, and inputs written, before an iteration
    /// ends. For this it allocates some mebibytes of pinned memory in addition.
    pub fn without_graphs(mut self) -> Result<CudaDevice, Error> {
        self.gpu.context.enter()?;
        self.iterations = Iterations::new(false);
        self.way = Some(Way::new(&self.gpu.context, self.node)?);
        Ok(self)
    }

    fn on(gpu: Arc<Gpu>, facts: DeviceFacts, node: Option<u32>, graphs: bool) -> Result<CudaDevice, Error> {
        Ok(CudaDevice {
            facts,
            node,
            iterations: Iterations::new(graphs),
            plain: Vec::new(),
            timed: Vec::new(),
            origin: Event::new(&gpu.context, true)?,
            functions: HashMap::new(),
            addresses: Vec::new(),
            memory: Memory::empty(),
            way: None,
            nccl: None,
            streams: Streams::new(&gpu.context)?,
            gpu,
            now: Now::default(),
        })
    }

    /// Plimsoll's own kernels, as the device runs them.
    pub fn code(&self) -> &KernelCode {
        &self.gpu.code
    }

    /// Reason why a call whose alternatives were requested cannot run; `None` if all can.
    pub fn fault(&self) -> Option<Refusal> {
        self.gpu.libraries.failure()
    }

    /// Free device memory. Before [`Device::allocate`] this device itself holds only contexts, kernels and libraries.
    pub fn free_memory(&self) -> Result<Bytes, Error> {
        self.gpu.context.enter()?;
        Ok(Bytes(self.gpu.context.free_memory()?))
    }

    /// Storage format of activations.
    fn float(&self) -> Float {
        self.facts.precision.feature_maps()
    }

    /// Runs `act` unless the iteration has failed, and keeps its failure.
    fn attempt<T>(&mut self, act: impl FnOnce(&mut CudaDevice) -> Result<T, Error>) -> Option<T> {
        if self.now.failure.is_some() {
            return None;
        }
        match act(self) {
            Ok(value) => Some(value),
            Err(error) => {
                self.now.failure = Some(error);
                None
            }
        }
    }

    /// Runs `act` within a profiler range of this name.
    fn named<T>(&mut self, name: &CStr, act: impl FnOnce(&mut CudaDevice) -> T) -> T {
        self.gpu.ranges.iter().for_each(|ranges| ranges.open(name));
        let done = act(self);
        self.gpu.ranges.iter().for_each(Ranges::close);
        done
    }

    /// Closes the iteration's profiler range, if open.
    fn end_range(&mut self) {
        if std::mem::take(&mut self.now.in_range) {
            self.gpu.ranges.iter().for_each(Ranges::close);
        }
    }

    /// Enqueues a call by its alternative. Updates of parameters are held back as long as more may follow.
    fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        if let Some(update) = Update::of(launch) {
            let joined = self.now.update.and_then(|held| held.joined(&update));
            if joined.is_none() {
                self.launch_update()?;
            }
            self.now.update = joined.or(Some(update));
            return Ok(());
        }
        self.launch_update()?;
        let by_library = self.launch_of_library(launch)?;
        let (call, float) = (&launch.call, self.float());
        let grids =
            if by_library { kernels::after_library(call, float).0 } else { kernels::grids(call, float) };
        self.launch_grids(&grids, call, &launch.offsets, launch.workspace)
    }

    /// Enqueues the update that is held back, if any.
    fn launch_update(&mut self) -> Result<(), Error> {
        let Some(update) = self.now.update.take() else { return Ok(()) };
        let call = update.call();
        self.launch_grids(&kernels::grids(&call, self.float()), &call, update.offsets(), Bytes::ZERO)
    }

    /// Enqueues our own kernels for a call whose operands and scratch start at these offsets.
    fn launch_grids(
        &mut self,
        grids: &[Grid],
        call: &Call,
        offsets: &[Bytes],
        workspace: Bytes,
    ) -> Result<(), Error> {
        let CudaDevice { gpu, functions, memory, streams, .. } = self;
        let place = Place { memory, offsets, workspace };
        launch_grids(&gpu.module, functions, streams.compute(), grids, call, &place)
    }

    /// Enqueues a library's part of a call, by its alternative; returns `true` if there is one.
    fn launch_of_library(&mut self, launch: &Launch) -> Result<bool, Error> {
        let CudaDevice { gpu, functions, memory, streams, addresses, .. } = self;
        addresses.clear();
        addresses.extend(launch.offsets.iter().map(|offset| memory.device(*offset)));
        let (call, alternative) = (&launch.call, launch.alternative);
        let (stream, place) =
            (streams.compute(), Place { memory, offsets: &launch.offsets, workspace: launch.workspace });
        let workspace = memory.device(place.workspace);
        let mut own = |grids: &[Grid]| launch_grids(&gpu.module, functions, stream, grids, call, &place);
        // SAFETY: as for our own kernels: the executor has checked that operands and scratch lie in the allocation, and
        // answers for its life and order of use.
        unsafe { gpu.libraries.enqueue(stream, call, alternative, addresses, workspace, &mut own) }
    }

    /// The event that streams wait for. A capture uses only events without time stamps for waits; it records the others
    /// when it runs.
    fn event(&self, event: EventId) -> &Event {
        let stamped = self.now.timed && !self.iterations.is_captured();
        let events = if stamped { &self.timed } else { &self.plain };
        &events[event.0 as usize]
    }

    /// Ends the enqueueing if it has not ended yet: from here on the compute stream is behind the others.
    fn end_iteration(&mut self) {
        self.attempt(CudaDevice::launch_update);
        let whole = self.now.failure.is_none();
        let ended = self.iterations.end(&self.streams, whole, &self.now.recorded);
        if let Err(refusal) = ended {
            self.now.failure.get_or_insert(refusal.into());
        }
    }

    /// Waits for the compute stream, which is behind the others, and reads the times of the iteration's events.
    fn finish(&mut self) -> Result<(), Error> {
        self.streams.compute().synchronise()?;
        if self.now.timed {
            for event in &self.now.recorded {
                self.now.seconds[event.0 as usize] =
                    self.timed[event.0 as usize].seconds_since(&self.origin)?;
            }
        }
        Ok(())
    }

    /// Stream and address for reading or writing a range between iterations; `None` for 0 bytes.
    fn place(&self, offset: Bytes, length: usize) -> Result<Option<(&CudaStream, u64)>, Error> {
        in_range(offset, Bytes(length as u64), self.memory.layout().device())?;
        self.gpu.context.enter()?;
        Ok((length > 0).then(|| (self.streams.compute(), self.memory.device(offset))))
    }

    /// Waits until nothing touches the memory any more, as is the case if the context is lost.
    fn quiesce(&mut self) {
        self.nccl.iter_mut().for_each(Nccl::quiesce);
        driver::given_back(self.gpu.context.enter().and_then(|()| self.streams.synchronise()));
    }
}

/// Addresses of a call's operands and scratch.
struct Place<'a> {
    memory: &'a Memory,
    offsets: &'a [Bytes],
    workspace: Bytes,
}

impl Place<'_> {
    /// An argument as its kernel reads it: from the first byte of a cell, little-endian.
    fn argument(&self, argument: &Argument) -> u64 {
        match *argument {
            Argument::Operand(index) => self.memory.device(self.offsets[index]),
            Argument::Workspace(byte) => self.memory.device(self.workspace) + byte,
            Argument::U32(value) => u64::from(value),
            Argument::U64(value) => value,
            Argument::F32(value) => u64::from(value.to_bits()),
        }
    }
}

/// Enqueues our own kernels for a call; `functions` caches those used before.
fn launch_grids(
    module: &Module,
    functions: &mut HashMap<&'static str, Function>,
    stream: &CudaStream,
    grids: &[Grid],
    call: &Call,
    place: &Place<'_>,
) -> Result<(), Error> {
    for grid in grids {
        let function = match functions.entry(grid.kernel) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(module.function(grid.kernel)?),
        };
        let mut arguments: Vec<u64> = grid.arguments.iter().map(|a| place.argument(a)).collect();
        let Grid { blocks, threads, .. } = *grid;
        // SAFETY: `kernels` gives the arguments of its own kernels' parameters. The executor has checked that a call's
        // operands and scratch lie in the allocation, which lives as long as the streams are busy; a checked schedule
        // orders all accesses. No tensor lies in the gap between adjoining updates.
        unsafe { stream.launch(function, blocks, threads, &mut arguments) }
            // The cause may be an earlier failure.
            .map_err(|refusal| {
                error::refused(&refusal, format_args!("{refusal}, launching `{}`", call.name()))
            })?;
    }
    Ok(())
}

/// Least compute capability whose tensor cores have TF32: Ampere's.
const LEAST_WITH_TF32: Capability = Capability { major: 8, minor: 0 };

impl GpuFacts {
    /// Returns `true` if the tensor cores have TF32.
    pub fn has_tf32(&self) -> bool {
        self.capability >= LEAST_WITH_TF32
    }
}

/// Precision of products on a card: as requested, or PyTorch's default.
fn precision(options: &CudaOptions, gpu: &GpuFacts) -> Result<Precision, Error> {
    let has_tf32 = gpu.has_tf32();
    match options.precision {
        None => Ok(Precision::usual(has_tf32)),
        // Tensor cores gained bf16 together with TF32.
        Some(precision) if precision != Precision::F32 && !has_tf32 => Err(Error::device(format!(
            "{} has compute capability {}, and no tensor cores for {precision}, which came with 8.0; compute in f32, as \
                 is the default there",
            gpu.name, gpu.capability
        ))),
        Some(precision) => Ok(precision),
    }
}

/// A refusal by a library. Libraries load kernels at first use, and say little of why that fails.
fn failed(what: &str, refusal: &Refusal) -> Error {
    let why = match libraries::broken_installation(refusal.code) {
        Some(_) => refusal.to_string(),
        None => format!("{refusal}; if the device is nearly full, lower the budget"),
    };
    Error::failed(Stream::Compute, what, why)
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.quiesce();
        self.gpu.libraries.forget(self.streams.compute());
    }
}

impl Device for CudaDevice {
    fn facts(&self) -> DeviceFacts {
        self.facts.clone()
    }

    fn health(&self) -> Option<Health> {
        self.gpu.watched.as_ref().map(Watched::health)
    }

    fn can_be_lost(&self) -> bool {
        true
    }

    fn pins(&self) -> bool {
        true
    }

    fn alternatives(&self, call: &Call) -> Vec<KernelAlternative> {
        self.gpu.libraries.alternatives(call)
    }

    fn allocate(&mut self, layout: MemoryLayout) -> Result<(), Error> {
        self.gpu.context.enter()?;
        self.quiesce();
        self.iterations.forget();
        self.memory = Memory::empty();
        let memory = Memory::new(&self.gpu.context, &self.streams, layout, self.node);
        self.memory = memory.map_err(|error| match &self.gpu.watched {
            Some(watched) => watched.with_holders(error),
            None => error,
        })?;
        Ok(())
    }

    fn reserve(&mut self, room: Room) -> Result<(), Error> {
        self.gpu.context.enter()?;
        let events = room.events as usize;
        while self.plain.len() < events {
            self.plain.push(Event::new(&self.gpu.context, false)?);
            self.timed.push(Event::new(&self.gpu.context, true)?);
        }
        self.now.recorded.reserve(events);
        self.now.seconds.resize(events.max(self.now.seconds.len()), 0.0);
        Ok(())
    }

    fn begin(&mut self, iteration: IterationId) -> Begun {
        self.end_range();
        // Ends once the device has been waited for.
        self.gpu.ranges.iter().for_each(|ranges| ranges.open(c"iteration"));
        self.now.in_range = true;
        self.now.timed = iteration.timed;
        self.now.recorded.clear();
        self.now.failure = None;
        self.now.update = None;
        self.way.iter_mut().for_each(Way::begin);
        let next = self.attempt(|device| {
            device.gpu.context.enter()?;
            Ok(device.iterations.begin(iteration, &device.streams, &device.origin)?)
        });
        if next != Some(Begun::Replayed) {
            return Begun::Enqueue;
        }
        if iteration.timed {
            self.now.recorded.extend(self.iterations.recorded(iteration));
        }
        Begun::Replayed
    }

    fn compute(&mut self, launch: &Arc<Launch>) {
        self.attempt(|device| device.named(&launch.name, |device| device.launch(launch)));
    }

    fn joins(&self, launch: &Launch, next: &Launch) -> bool {
        Option::zip(Update::of(launch), Update::of(next))
            .is_some_and(|(update, next)| update.joined(&next).is_some())
    }

    fn copy(&mut self, transfer: Transfer) {
        let name = if transfer.stream == Stream::Offload { c"offload" } else { c"prefetch" };
        let copy = |device: &mut CudaDevice| {
            let Transfer { stream, bytes, .. } = transfer;
            let (on_device, on_host) =
                (device.memory.device(transfer.device), device.memory.host(transfer.host));
            let (length, queue) = (bytes.0 as usize, device.streams.get(stream));
            // SAFETY: the executor made the transfer for this memory, which lives as long as the streams are busy; a
            // checked schedule orders all accesses.
            let enqueued = unsafe {
                match stream {
                    Stream::Offload => queue.copy_to_host(on_host, on_device, length),
                    _ => queue.copy_to_device(on_device, on_host, length),
                }
            };
            Ok(enqueued?)
        };
        self.attempt(|device| device.named(name, copy));
    }

    fn record(&mut self, stream: Stream, event: EventId) {
        self.attempt(|device| {
            if stream == Stream::Compute {
                device.launch_update()?;
            }
            let queue = device.streams.get(stream);
            if device.now.timed {
                // Before the event that others wait for, so that they start after the time stamp.
                if device.iterations.is_captured() {
                    queue.record_when_launched(&device.timed[event.0 as usize])?;
                }
                device.now.recorded.push(event);
            }
            Ok(queue.record(device.event(event))?)
        });
    }

    fn wait(&mut self, stream: Stream, event: EventId) {
        self.attempt(|device| {
            if stream == Stream::Compute {
                device.launch_update()?;
            }
            Ok(device.streams.get(stream).wait(device.event(event))?)
        });
    }

    /// Submits a captured iteration; more commands may follow in one that is not captured.
    fn submit(&mut self) {
        self.attempt(CudaDevice::launch_update);
        if self.iterations.is_captured() {
            self.end_iteration();
        }
    }

    fn synchronise(&mut self) -> Result<(), Error> {
        let entered = self.gpu.context.enter();
        self.end_iteration();
        self.attempt(|device| {
            entered?;
            device.finish()
        });
        if self.now.failure.is_some() {
            // Commands enqueued before the failure may still run.
            self.quiesce();
        }
        self.end_range();
        self.now.failure.take().map_or(Ok(()), Err)
    }

    fn event_seconds(&mut self, event: EventId) -> Seconds {
        Seconds(self.now.seconds[event.0 as usize])
    }

    fn write(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        let Some((stream, address)) = self.place(offset, data.len())? else { return Ok(()) };
        // SAFETY: the range was checked, the streams are idle between iterations, and `data` is borrowed until the stream
        // is idle again.
        unsafe { stream.copy_to_device(address, data.as_ptr(), data.len()) }?;
        Ok(stream.synchronise()?)
    }

    fn read(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error> {
        let Some((stream, address)) = self.place(offset, data.len())? else { return Ok(()) };
        // SAFETY: as in `write`.
        unsafe { stream.copy_to_host(data.as_mut_ptr(), address, data.len()) }?;
        Ok(stream.synchronise()?)
    }

    /// An event inside a graph cannot be queried while the graph runs; so this waits for the end of an iteration that may
    /// be a graph.
    fn read_behind(&mut self, event: EventId, offset: Bytes, data: &mut [u8]) -> Result<bool, Error> {
        if self.way.is_none() || self.now.failure.is_some() {
            self.synchronise()?;
            return self.read(offset, data).map(|()| true);
        }
        self.gpu.context.enter()?;
        if !self.event(event).has_happened()? {
            return Ok(false);
        }
        // No command behind the event writes the range.
        self.read_beside(offset, data)?;
        Ok(true)
    }

    fn is_open(&self) -> bool {
        self.way.is_some()
    }

    fn read_beside(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), Error> {
        let (address, way, _) = self.way(offset, data.len())?;
        // SAFETY: the range was checked, and no command still to run writes it.
        unsafe { way.read(address, data) }
    }

    fn write_beside(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        let (address, way, _) = self.way(offset, data.len())?;
        // SAFETY: the range was checked, and no enqueued command touches it; later commands find it written.
        unsafe { way.write(address, data) }
    }

    fn write_in_order(&mut self, offset: Bytes, data: &[u8]) -> Result<(), Error> {
        // If nothing has failed, this launches the update that is held back first.
        self.way(offset, data.len())?;
        self.launch_update()?;
        let (address, way, stream) = self.way(offset, data.len())?;
        // SAFETY: the range was checked, and the device frees no memory before its streams are idle.
        unsafe { way.write_on(stream, address, data) }
    }

    fn collective(&mut self) -> Option<&mut dyn Collective> {
        if self.nccl.is_some() { Some(self) } else { None }
    }

    fn host(&mut self, offset: Bytes, bytes: Bytes) -> Result<&mut [u8], Error> {
        in_range(offset, bytes, self.memory.layout().on_host())?;
        if bytes == Bytes::ZERO {
            return Ok(&mut []);
        }
        // SAFETY: the range was checked, and the mapping is this process's own even if the device has failed. The streams
        // are idle, or touch other parts of it (the trainer ensures this), or their context is lost and `synchronise` has
        // waited until nothing touches memory any more.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.memory.host(offset), bytes.0 as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_tf32_and_bf16_from_ampere_on_and_an_older_one_refuses_them_by_name() {
        let check = |major, asked, expected: Result<Precision, &str>| {
            let (name, capability) = ("Tesla V100".to_owned(), Capability { major, minor: 0 });
            let gpu = GpuFacts {
                name,
                capability,
                multiprocessors: 80,
                memory: Bytes(1 << 34),
                bus: String::new(),
            };
            let options = CudaOptions { precision: asked, ..CudaOptions::default() };
            match (precision(&options, &gpu), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{asked:?} on {capability}"),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                (found, _) => panic!("{asked:?} on {capability}: {found:?}"),
            }
        };
        check(8, None, Ok(Precision::Tf32Convolutions));
        check(7, None, Ok(Precision::F32));
        check(9, Some(Precision::F32), Ok(Precision::F32));
        check(9, Some(Precision::Tf32), Ok(Precision::Tf32));
        let refusal = "Tesla V100 has compute capability 7.0, and no tensor cores for TF32";
        check(7, Some(Precision::Tf32), Err(refusal));
        let refusal = "Tesla V100 has compute capability 7.0, and no tensor cores for bf16";
        check(7, Some(Precision::Bf16), Err(refusal));
        check(8, Some(Precision::Bf16), Ok(Precision::Bf16));
    }
}
