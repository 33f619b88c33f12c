//! The device `cuda`: an NVIDIA GPU over the driver API, found at run time.
//!
//! One device allocation holds the resident part and the pool, one pinned mapping what is offloaded and the copies of the
//! state; three streams run kernels and copies, and a whole iteration is captured as one CUDA graph and replayed (`graph.rs`).
//! Iterations of workers that train together are no graphs, and a fourth stream reads what one has completed while it goes on,
//! and writes what it needs next (`beside.rs`); a fifth sums over the GPUs of all (`nccl.rs`). Kernels are the CUDA C of
//! `kernels/`, compiled by NVRTC for the device at hand and kept in the user's cache. Nothing of CUDA is linked: a machine
//! without it is told so by [`CudaDevice::open`], in one message.
//!
//! What it deliberately does not do: allocate, use the default stream, or wait for the device while an iteration is
//! enqueued. It reports what a stream failed at no sooner than [`Device::synchronise`], as the driver does.

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
pub use error::{Capability, CudaError, Instead, Refusal};
pub use libraries::{Found, countable_batch};
pub use presence::LIBRARIES_VARIABLE;
use ranges::Ranges;
pub use survey::{Survey, survey, visible};

use crate::device::{
    Begun, Beside, Collective, Device, DeviceError, DeviceFacts, EventId, IterationId, Launch, MemoryLayout,
    Room, Transfer, in_range,
};
use beside::Way;
use compile::Compiler;
use driver::{Context, CudaStream, Driver, Event, Function, Module};

use graph::{Iterations, Next, Streams};
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
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;
use updates::Update;

/// How the device `cuda` is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which device, of those that `CUDA_VISIBLE_DEVICES` leaves, from 0.
    pub ordinal: u32,
    /// Whether iterations are captured and replayed as graphs.
    pub graphs: bool,
    /// Folders that are searched for CUDA's libraries before those of [`LIBRARIES_VARIABLE`] and all others.
    pub libraries: Vec<PathBuf>,
    /// Where compiled kernels are kept; none for the user's cache folder.
    pub cache: Option<PathBuf>,
    /// In what convolutions and matrix products multiply, and feature maps are stored; none for what PyTorch does by default on
    /// the card ([`Precision::usual`]). Our own kernels have no TF32.
    pub precision: Option<Precision>,
    /// Whether every call has one kernel, which gives the same bits each time.
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
/// Fields are dropped in their order: what names memory, then memory, then the context that all are in.
pub struct CudaDevice {
    facts: DeviceFacts,
    /// The host's memory node beside the device, where there are several.
    node: Option<u32>,
    iterations: Iterations,
    /// Without time stamps, for iterations that are not timed, and for the waits of those that are captured.
    plain: Vec<Event>,
    /// With time stamps, for those that are timed.
    timed: Vec<Event>,
    /// The start of the last timed iteration.
    origin: Event,
    functions: HashMap<&'static str, Function>,
    /// The addresses of the launch that is enqueued.
    addresses: Vec<u64>,
    memory: Memory,
    /// For what is read and written beside an iteration; none of a device whose iterations may be graphs.
    way: Option<Way>,
    /// For sums over the GPUs of several workers.
    nccl: Option<Nccl>,
    streams: Streams,
    gpu: Arc<Gpu>,
    now: Now,
}

/// What devices on one GPU share: kernels and libraries, which take memory of it themselves.
struct Gpu {
    /// Names for profilers, where NVTX is there.
    ranges: Option<Ranges>,
    /// NVML's view of it, where there is one.
    watched: Option<Watched>,
    libraries: Libraries,
    code: KernelCode,
    module: Module,
    context: Arc<Context>,
}

/// The iteration that runs, or ran last.
#[derive(Default)]
struct Now {
    timed: bool,
    /// The events that were recorded, where it is timed.
    recorded: Vec<EventId>,
    /// The first failure.
    failure: Option<DeviceError>,
    /// Whether its range is open.
    in_range: bool,
    /// By event, after a timed iteration.
    seconds: Vec<f64>,
    /// An update of parameters that is launched before anything else on the compute stream.
    update: Option<Update>,
}

impl CudaDevice {
    /// Finds the libraries, takes hold of the device and compiles the kernels for it. Nothing is allocated yet.
    pub fn open(options: &CudaOptions) -> Result<CudaDevice, CudaError> {
        let search = Search::new(&options.libraries);
        let driver = Driver::start(&search)?;
        let gpu = driver.facts(options.ordinal)?;
        let precision = precision(options, &gpu)?;
        let version = driver.version()?;
        let compiler = Compiler::load(&search, version)?;
        let watched = match Management::start(&search) {
            Ok(nvml) => Some(nvml.watch(&gpu.bus)),
            Err(why) => {
                tracing::debug!("{why}");
                None
            }
        };
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

    /// Another device on the same GPU, with memory, streams and graphs of its own; kernels and libraries are shared.
    pub fn another(&self) -> Result<CudaDevice, CudaError> {
        self.gpu.context.enter()?;
        CudaDevice::on(Arc::clone(&self.gpu), self.facts.clone(), self.node, self.iterations.graphs())
    }

    /// The same; its iterations are never graphs, so that what they complete can be read before they end, and what they need
    /// written. For this it has some mebibytes of pinned memory besides what is allocated.
    pub fn without_graphs(mut self) -> Result<CudaDevice, DeviceError> {
        self.gpu.context.enter()?;
        self.iterations = Iterations::new(false);
        self.way = Some(Way::new(&self.gpu.context, self.node)?);
        Ok(self)
    }

    fn on(
        gpu: Arc<Gpu>,
        facts: DeviceFacts,
        node: Option<u32>,
        graphs: bool,
    ) -> Result<CudaDevice, CudaError> {
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

    /// Why one of the calls whose alternatives were asked for cannot be run; none where all can.
    pub fn fault(&self) -> Option<Refusal> {
        self.gpu.libraries.failure()
    }

    /// Device memory that nobody holds now; of what it holds itself, only contexts, kernels and libraries
    /// before [`Device::allocate`].
    pub fn free_memory(&self) -> Result<Bytes, DeviceError> {
        self.gpu.context.enter()?;
        Ok(Bytes(self.gpu.context.free_memory()?))
    }

    /// In what feature maps are stored.
    fn float(&self) -> Float {
        self.facts.precision.feature_maps()
    }

    /// Does something unless the iteration has failed, and keeps its failure.
    fn attempt<T>(&mut self, act: impl FnOnce(&mut CudaDevice) -> Result<T, DeviceError>) -> Option<T> {
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

    /// Does something within a range of that name.
    fn named<T>(&mut self, name: &CStr, act: impl FnOnce(&mut CudaDevice) -> T) -> T {
        if let Some(ranges) = &self.gpu.ranges {
            ranges.open(name);
        }
        let done = act(self);
        if let Some(ranges) = &self.gpu.ranges {
            ranges.close();
        }
        done
    }

    /// Opens the range of an iteration, which ends when the device has been waited for.
    fn begin_range(&mut self, name: &CStr) {
        if let Some(ranges) = &self.gpu.ranges {
            ranges.open(name);
            self.now.in_range = true;
        }
    }

    /// Closes it, where it is open.
    fn end_range(&mut self) {
        if std::mem::take(&mut self.now.in_range)
            && let Some(ranges) = &self.gpu.ranges
        {
            ranges.close();
        }
    }

    /// Enqueues a call, by its alternative. Updates of parameters are held back as long as more of them may follow.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
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
        let (call, float) = (launch.call(), self.float());
        let grids =
            if by_library { kernels::after_library(call, float).0 } else { kernels::grids(call, float) };
        self.launch_grids(&grids, launch.call(), launch.offsets(), launch.workspace())
    }

    /// Enqueues the update that is held back, where there is one.
    fn launch_update(&mut self) -> Result<(), DeviceError> {
        let Some(update) = self.now.update.take() else { return Ok(()) };
        let call = update.call();
        self.launch_grids(&kernels::grids(&call, self.float()), &call, update.offsets(), Bytes::ZERO)
    }

    /// Enqueues our own kernels for a call, whose operands and scratch start at these offsets.
    fn launch_grids(
        &mut self,
        grids: &[Grid],
        call: &Call,
        offsets: &[Bytes],
        workspace: Bytes,
    ) -> Result<(), DeviceError> {
        let CudaDevice { gpu, functions, memory, streams, .. } = self;
        let place = Place { memory, offsets, workspace };
        launch_grids(&gpu.module, functions, streams.compute(), grids, call, &place)
    }

    /// Enqueues what a library does of a call, by its alternative; whether it does anything.
    fn launch_of_library(&mut self, launch: &Launch) -> Result<bool, DeviceError> {
        let CudaDevice { gpu, functions, memory, streams, addresses, .. } = self;
        addresses.clear();
        addresses.extend(launch.offsets().iter().map(|offset| memory.device(*offset)));
        let (call, alternative) = (launch.call(), launch.alternative());
        let (stream, place) =
            (streams.compute(), Place { memory, offsets: launch.offsets(), workspace: launch.workspace() });
        let workspace = memory.device(place.workspace);
        let mut own = |grids: &[Grid]| launch_grids(&gpu.module, functions, stream, grids, call, &place);
        // SAFETY: as for our own kernels: the executor has made sure that operands and scratch lie in the allocation, whose
        // life and order of use it answers for.
        unsafe { gpu.libraries.enqueue(stream, call, alternative, addresses, workspace, &mut own) }
    }

    /// The event that streams wait for. A capture knows those without time stamps alone: it records the others when it runs.
    fn event(&self, event: EventId) -> &Event {
        let stamped = self.now.timed && !self.iterations.is_captured();
        let events = if stamped { &self.timed } else { &self.plain };
        &events[event.0 as usize]
    }

    /// Ends the enqueueing, if it has not ended yet: the compute stream is behind the others from here on.
    fn end_iteration(&mut self) {
        self.attempt(CudaDevice::launch_update);
        let whole = self.now.failure.is_none();
        let ended = self.iterations.end(&self.streams, whole, &self.now.recorded);
        if let Err(refusal) = ended {
            self.now.failure.get_or_insert(refusal.into());
        }
    }

    /// Waits for the compute stream, which is behind the others, and reads what the iteration's events say.
    fn finish(&mut self) -> Result<(), DeviceError> {
        self.streams.compute().synchronise()?;
        if self.now.timed {
            for event in &self.now.recorded {
                self.now.seconds[event.0 as usize] =
                    self.timed[event.0 as usize].seconds_since(&self.origin)?;
            }
        }
        Ok(())
    }

    /// Waits until nothing touches the memory any more. Where the context is lost, nothing does.
    fn quiesce(&mut self) {
        self.nccl.iter_mut().for_each(Nccl::quiesce);
        if let Err(refusal) = self.gpu.context.enter().and_then(|()| self.streams.synchronise()) {
            tracing::debug!("while the streams come to rest: {refusal}");
        }
    }
}

/// Where a call finds everything.
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

/// Enqueues our own kernels for a call; `functions` are those that were used before.
fn launch_grids(
    module: &Module,
    functions: &mut HashMap<&'static str, Function>,
    stream: &CudaStream,
    grids: &[Grid],
    call: &Call,
    place: &Place<'_>,
) -> Result<(), DeviceError> {
    for grid in grids {
        let function = match functions.get(grid.kernel) {
            Some(function) => *function,
            None => {
                let function = module.function(grid.kernel)?;
                functions.insert(grid.kernel, function);
                function
            }
        };
        let mut arguments: Vec<u64> = grid.arguments.iter().map(|a| place.argument(a)).collect();
        let Grid { blocks, threads, .. } = *grid;
        // SAFETY: `kernels` gives the arguments of its own kernels' parameters; the executor has made sure that the
        // operands and the scratch that a call spans lie in the allocation, which lives as long as the streams are
        // busy, and a checked schedule orders who touches them. What lies between adjoining updates is nobody's.
        unsafe { stream.launch(function, blocks, threads, &mut arguments) }
            .map_err(|refusal| refused(call.name(), &refusal))?;
    }
    Ok(())
}

/// The least compute capability whose tensor cores have TF32: Ampere's.
const LEAST_WITH_TF32: Capability = Capability { major: 8, minor: 0 };

impl GpuFacts {
    /// Whether its tensor cores have TF32.
    pub fn has_tf32(&self) -> bool {
        self.capability >= LEAST_WITH_TF32
    }
}

/// In what a card is to multiply: as asked, or as PyTorch does by default.
fn precision(options: &CudaOptions, gpu: &GpuFacts) -> Result<Precision, CudaError> {
    let has_tf32 = gpu.has_tf32();
    match options.precision {
        None => Ok(Precision::usual(has_tf32)),
        // bf16 came to tensor cores with TF32.
        Some(precision) if precision != Precision::F32 && !has_tf32 => {
            Err(CudaError::Precision { device: gpu.name.clone(), capability: gpu.capability, precision })
        }
        Some(precision) => Ok(precision),
    }
}

/// A launch that was refused: for itself, or for something that failed before it.
fn refused(what: &str, refusal: &Refusal) -> DeviceError {
    error::refused(refusal, format!("{refusal}, launching `{what}`"))
}

/// What a library said no to. It loads kernels when they are first used, and says little of why that fails.
fn failed(what: &str, refusal: &Refusal) -> DeviceError {
    let why = match libraries::broken_installation(refusal.code) {
        Some(_) => refusal.to_string(),
        None => format!("{refusal}; if the device is nearly full, lower the budget"),
    };
    DeviceError::Failed { stream: Stream::Compute, what: what.to_owned(), why }
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

    fn allocate(&mut self, layout: MemoryLayout) -> Result<(), DeviceError> {
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

    fn reserve(&mut self, room: Room) -> Result<(), DeviceError> {
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
        self.begin_range(c"iteration");
        self.now.timed = iteration.timed;
        self.now.recorded.clear();
        self.now.failure = None;
        self.now.update = None;
        self.way.iter_mut().for_each(Way::begin);
        let next = self.attempt(|device| {
            device.gpu.context.enter()?;
            Ok(device.iterations.begin(iteration, &device.streams, &device.origin)?)
        });
        if next != Some(Next::Nothing) {
            return Begun::Enqueue;
        }
        if iteration.timed {
            self.now.recorded.extend(self.iterations.recorded(iteration));
        }
        Begun::Replayed
    }

    fn compute(&mut self, launch: &Arc<Launch>) {
        self.attempt(|device| device.named(launch.name(), |device| device.launch(launch)));
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
            // checked schedule orders who touches it.
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

    /// Only a capture ends with it: of what is not captured more may follow.
    fn submit(&mut self) {
        self.attempt(CudaDevice::launch_update);
        if self.iterations.is_captured() {
            self.end_iteration();
        }
    }

    fn synchronise(&mut self) -> Result<(), DeviceError> {
        let entered = self.gpu.context.enter();
        self.end_iteration();
        self.attempt(|device| {
            entered?;
            device.finish()
        });
        if self.now.failure.is_some() {
            // What was enqueued before the failure may still run.
            self.quiesce();
        }
        self.end_range();
        self.now.failure.take().map_or(Ok(()), Err)
    }

    fn event_seconds(&mut self, event: EventId) -> Seconds {
        Seconds(self.now.seconds[event.0 as usize])
    }

    fn write(&mut self, offset: Bytes, data: &[u8]) -> Result<(), DeviceError> {
        in_range(offset, Bytes(data.len() as u64), self.memory.layout().device())?;
        if data.is_empty() {
            return Ok(());
        }
        self.gpu.context.enter()?;
        let (stream, address) = (self.streams.compute(), self.memory.device(offset));
        // SAFETY: the range was checked, the streams are idle between iterations, and `data` is borrowed until the stream
        // is idle again.
        unsafe { stream.copy_to_device(address, data.as_ptr(), data.len()) }?;
        Ok(stream.synchronise()?)
    }

    fn read(&mut self, offset: Bytes, data: &mut [u8]) -> Result<(), DeviceError> {
        in_range(offset, Bytes(data.len() as u64), self.memory.layout().device())?;
        if data.is_empty() {
            return Ok(());
        }
        self.gpu.context.enter()?;
        let (stream, address) = (self.streams.compute(), self.memory.device(offset));
        // SAFETY: as in `write`.
        unsafe { stream.copy_to_host(data.as_mut_ptr(), address, data.len()) }?;
        Ok(stream.synchronise()?)
    }

    /// An event of a graph says nothing while the graph runs: the end of an iteration that may be one is waited for.
    fn read_behind(&mut self, event: EventId, offset: Bytes, data: &mut [u8]) -> Result<bool, DeviceError> {
        if self.way.is_none() || self.now.failure.is_some() {
            self.synchronise()?;
            return self.read(offset, data).map(|()| true);
        }
        self.gpu.context.enter()?;
        if !self.event(event).has_happened()? {
            return Ok(false);
        }
        // No command behind the event writes it.
        self.read_beside(offset, data)?;
        Ok(true)
    }

    fn beside(&mut self) -> Option<&mut dyn Beside> {
        if self.way.is_some() { Some(self) } else { None }
    }

    fn collective(&mut self) -> Option<&mut dyn Collective> {
        if self.nccl.is_some() { Some(self) } else { None }
    }

    fn host(&mut self, offset: Bytes, bytes: Bytes) -> Result<&mut [u8], DeviceError> {
        in_range(offset, bytes, self.memory.layout().on_host())?;
        if bytes == Bytes::ZERO {
            return Ok(&mut []);
        }
        // SAFETY: the range was checked, and the mapping is this process's own, whatever became of the device; the streams are
        // idle, or touch other parts of it (of which the trainer makes sure), or their context is lost and `synchronise` has
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
