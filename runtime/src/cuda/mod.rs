//! The device `cuda`: an NVIDIA GPU over the driver API, found at run time.
//!
//! One device allocation holds the resident part and the pool, one pinned slab what is offloaded; three streams run
//! kernels and copies, and a whole iteration is captured as one CUDA graph and replayed (`graph.rs`). Kernels are the CUDA C
//! of `kernels/`, compiled by NVRTC for the device at hand and kept in the user's cache. Nothing of CUDA is linked: a machine
//! without it is told so by [`CudaDevice::open`], in one message.
//!
//! What it deliberately does not do: allocate, use the default stream, or wait for the device while an iteration is
//! enqueued. It reports what a stream failed at no sooner than [`Device::synchronise`], as the driver does.

mod compile;
mod driver;
mod error;
mod graph;
mod health;
mod kernels;
mod memory;
mod numa;
mod presence;
mod table;

pub use driver::GpuFacts;
pub use error::{Capability, CudaError, Refusal};
pub use presence::LIBRARIES_VARIABLE;

use crate::device::{
    Begun, Device, DeviceError, DeviceFacts, EventId, IterationId, Launch, MemoryLayout, Room, Transfer,
    in_range,
};
use compile::{Compiler, user_cache};
use driver::{Context, Driver, Event, Function, Module};

use graph::{Iterations, Next, Streams};
use health::{Management, Watched};
use kernels::{Argument, Grid};
use memory::Memory;
use plimsoll_ir::health::Health;
use plimsoll_ir::program::{Call, Way};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::{Bytes, Seconds};
use presence::Search;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

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
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions { ordinal: 0, graphs: true, libraries: Vec::new(), cache: None }
    }
}

/// What a machine has of CUDA.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// The driver's file.
    pub driver: PathBuf,
    /// The version of CUDA that it is made for.
    pub version: (u32, u32),
    /// The driver's own version, such as `580.65.06`, as NVML tells, or why it tells nothing.
    pub driver_version: Result<String, CudaError>,
    /// The devices, in the driver's order, and how each is now, as far as NVML tells.
    pub devices: Vec<(GpuFacts, Health)>,
    /// NVRTC's file and version, or why there is none.
    pub compiler: Result<(PathBuf, (u32, u32)), CudaError>,
}

/// Looks what there is, and uses no device.
pub fn survey() -> Result<Survey, CudaError> {
    let search = Search::new(&[]);
    let driver = Driver::start(&search)?;
    let devices = (0..driver.devices()?).map(|n| driver.facts(n)).collect::<Result<Vec<_>, _>>()?;
    let management = Management::start(&search);
    let health = |gpu: &GpuFacts| management.as_ref().map_or(Health::default(), |nvml| nvml.health(&gpu.bus));
    let devices = devices
        .into_iter()
        .map(|gpu| {
            let health = health(&gpu);
            (gpu, health)
        })
        .collect();
    let driver_version = management.and_then(|nvml| nvml.driver_version());
    let version = driver.version()?;
    let compiler = Compiler::load(&search, version).map(|c| (c.path().to_owned(), c.version()));
    Ok(Survey { driver: driver.path().to_owned(), version, driver_version, devices, compiler })
}

/// The scratch that the device `cuda` needs for a call; asks no device.
pub fn workspace_bytes(call: &Call) -> Bytes {
    kernels::workspace_bytes(call)
}

/// The device `cuda`.
///
/// Fields are dropped in their order: what names memory, then memory, then the context that all are in.
pub struct CudaDevice {
    facts: DeviceFacts,
    /// NVML's view of it, where there is one.
    watched: Option<Watched>,
    /// The host's memory node beside the device, where there are several.
    node: Option<u32>,
    iterations: Iterations,
    /// Without time stamps, for iterations that are not timed.
    plain: Vec<Event>,
    /// With time stamps, for those that are.
    timed: Vec<Event>,
    /// The start of the last timed iteration.
    origin: Event,
    functions: HashMap<&'static str, Function>,
    module: Module,
    memory: Memory,
    streams: Streams,
    context: Arc<Context>,
    now: Now,
}

/// The iteration that runs, or ran last.
#[derive(Default)]
struct Now {
    timed: bool,
    /// The events that were recorded, where it is timed.
    recorded: Vec<EventId>,
    /// The first failure.
    failure: Option<DeviceError>,
    /// By event, after a timed iteration.
    seconds: Vec<f64>,
}

impl CudaDevice {
    /// Finds the libraries, takes hold of the device and compiles the kernels for it. Nothing is allocated yet.
    pub fn open(options: &CudaOptions) -> Result<CudaDevice, CudaError> {
        let search = Search::new(&options.libraries);
        let driver = Driver::start(&search)?;
        let gpu = driver.facts(options.ordinal)?;
        let version = driver.version()?;
        let compiler = Compiler::load(&search, version)?;
        let watched = match Management::start(&search) {
            Ok(nvml) => Some(nvml.watch(&gpu.bus)),
            Err(why) => {
                tracing::debug!("{why}");
                None
            }
        };
        let context = Context::retain(driver, options.ordinal)?;
        watched.iter().for_each(Watched::recognise);
        let cache = options.cache.clone().or_else(user_cache);
        let device = (gpu.name.as_str(), gpu.capability);
        let module = compiler.module(&context, &kernels::source(), device, cache.as_deref())?;
        let system = format!("{}, CUDA driver {}.{}", crate::cpu::system_name(), version.0, version.1);
        Ok(CudaDevice {
            facts: DeviceFacts {
                name: gpu.name,
                system,
                threads: gpu.multiprocessors,
                memory: Some(gpu.memory),
            },
            watched,
            node: numa::node_of(&gpu.bus),
            iterations: Iterations::new(options.graphs),
            plain: Vec::new(),
            timed: Vec::new(),
            origin: Event::new(&context, true)?,
            functions: HashMap::new(),
            module,
            memory: Memory::empty(),
            streams: Streams::new(&context)?,
            context,
            now: Now::default(),
        })
    }

    /// Device memory that nobody holds now; of what it holds itself, only contexts and kernels before [`Device::allocate`].
    pub fn free_memory(&self) -> Result<Bytes, DeviceError> {
        self.context.enter()?;
        Ok(Bytes(self.context.free_memory()?))
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

    /// Enqueues the launches of a call.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        for grid in kernels::grids(launch.call()) {
            let function = match self.functions.get(grid.kernel) {
                Some(function) => *function,
                None => {
                    let function = self.module.function(grid.kernel)?;
                    self.functions.insert(grid.kernel, function);
                    function
                }
            };
            let mut arguments: Vec<u64> = grid.arguments.iter().map(|a| self.argument(a, launch)).collect();
            let Grid { blocks, threads, .. } = grid;
            // SAFETY: `kernels` gives the arguments of its own kernels' parameters; the executor has made sure that the
            // operands and the scratch that a call spans lie in the allocation, which lives as long as the streams are
            // busy, and a checked schedule orders who touches them.
            unsafe { self.streams.compute().launch(function, blocks, threads, &mut arguments) }
                .map_err(|refusal| refused(launch.call().name(), &refusal))?;
        }
        Ok(())
    }

    /// An argument as its kernel reads it: from the first byte of a cell, little-endian.
    fn argument(&self, argument: &Argument, launch: &Launch) -> u64 {
        match *argument {
            Argument::Operand(index) => self.memory.device(launch.offsets()[index]),
            Argument::Workspace(byte) => self.memory.device(launch.workspace()) + byte,
            Argument::U32(value) => u64::from(value),
            Argument::U64(value) => value,
            Argument::F32(value) => u64::from(value.to_bits()),
        }
    }

    fn event(&self, event: EventId) -> &Event {
        let events = if self.now.timed { &self.timed } else { &self.plain };
        &events[event.0 as usize]
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
    fn quiesce(&self) {
        if let Err(refusal) = self.context.enter().and_then(|()| self.streams.synchronise()) {
            tracing::debug!("while the streams come to rest: {refusal}");
        }
    }
}

/// A launch that was refused: for itself, or for something that failed before it.
fn refused(what: &str, refusal: &Refusal) -> DeviceError {
    DeviceError::Driver {
        why: format!("{refusal}, launching `{what}`"),
        what_to_do: error::advice(refusal.code),
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.quiesce();
    }
}

impl Device for CudaDevice {
    fn facts(&self) -> DeviceFacts {
        self.facts.clone()
    }

    fn health(&self) -> Option<Health> {
        self.watched.as_ref().map(Watched::health)
    }

    fn pins(&self) -> bool {
        true
    }

    fn ways(&self, call: &Call) -> Vec<Way> {
        Way::sole(workspace_bytes(call))
    }

    fn allocate(&mut self, layout: MemoryLayout) -> Result<(), DeviceError> {
        self.context.enter()?;
        self.quiesce();
        self.iterations.forget();
        self.memory = Memory::empty();
        let memory = Memory::new(&self.context, &self.streams, layout, self.node);
        self.memory = memory.map_err(|error| match &self.watched {
            Some(watched) => watched.with_holders(error),
            None => error,
        })?;
        Ok(())
    }

    fn reserve(&mut self, room: Room) -> Result<(), DeviceError> {
        self.context.enter()?;
        let events = room.events as usize;
        while self.plain.len() < events {
            self.plain.push(Event::new(&self.context, false)?);
            self.timed.push(Event::new(&self.context, true)?);
        }
        self.now.recorded.reserve(events);
        self.now.seconds.resize(events.max(self.now.seconds.len()), 0.0);
        Ok(())
    }

    fn begin(&mut self, iteration: IterationId) -> Begun {
        self.now.timed = iteration.timed;
        self.now.recorded.clear();
        self.now.failure = None;
        let next = self.attempt(|device| {
            device.context.enter()?;
            if iteration.timed {
                device.streams.compute().record(&device.origin)?;
            }
            Ok(device.iterations.begin(iteration, &device.streams)?)
        });
        if next == Some(Next::Nothing) { Begun::Replayed } else { Begun::Enqueue }
    }

    fn compute(&mut self, launch: &Arc<Launch>) {
        self.attempt(|device| device.launch(launch));
    }

    fn copy(&mut self, transfer: Transfer) {
        self.attempt(|device| {
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
        });
    }

    fn record(&mut self, stream: Stream, event: EventId) {
        self.attempt(|device| {
            device.streams.get(stream).record(device.event(event))?;
            if device.now.timed {
                device.now.recorded.push(event);
            }
            Ok(())
        });
    }

    fn wait(&mut self, stream: Stream, event: EventId) {
        self.attempt(|device| Ok(device.streams.get(stream).wait(device.event(event))?));
    }

    fn submit(&mut self) {
        let whole = self.now.failure.is_none();
        let ended = self.iterations.end(&self.streams, whole);
        if let Err(refusal) = ended {
            self.now.failure.get_or_insert(refusal.into());
        }
    }

    fn synchronise(&mut self) -> Result<(), DeviceError> {
        let entered = self.context.enter();
        self.submit();
        if self.now.failure.is_some() {
            // What was enqueued before the failure may still run.
            self.quiesce();
        }
        self.attempt(|device| {
            entered?;
            device.finish()
        });
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
        self.context.enter()?;
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
        self.context.enter()?;
        let (stream, address) = (self.streams.compute(), self.memory.device(offset));
        // SAFETY: as in `write`.
        unsafe { stream.copy_to_host(data.as_mut_ptr(), address, data.len()) }?;
        Ok(stream.synchronise()?)
    }
}
