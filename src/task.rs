//! A training task: a network, its data and a device, and the steps that several verbs take with them.
//!
//! Lowering, planning and loading are one call each here, with failures turned into the command line's. What is measured
//! or chosen lives in the verbs.

mod host;

use crate::args::{
    DataArgs, DataSource, DeviceArgs, DeviceChoice, DuplexArg, HostPlace, KernelArgs, NetworkArgs,
};
use crate::failure::{Exit, Failure};
use crate::interrupt;
use crate::onnx;
use crate::study::Study;
use crate::verbs::doctor::version;
use crate::verbs::plan::no_plan;
use plimsoll_ir::config::GpuKernels;
use plimsoll_ir::network::{Network, NetworkSpec, Shape};
use plimsoll_ir::profile::Profile;
use plimsoll_ir::program::{Call, Program, Way};
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, BytesPerSecond, CommandId, Seconds};
use plimsoll_networks::onnx::{OnnxNetwork, name_in_file};
use plimsoll_networks::{LowerOptions, Mode, NetworkError, ReluStorage, build, lower, usual};
use plimsoll_runtime::cuda::countable_batch;
use plimsoll_runtime::data::{self, Split};
use plimsoll_runtime::{
    Cpu, CpuOptions, CudaDevice, CudaOptions, Device, DeviceError, DeviceFacts, Executor, HostMemory,
    Kernels, Loaded, MemoryKind, MemoryLayout, Precision, RuntimeError, cpu,
};
use plimsoll_tuner::model::devices::{Modelled, Sheet};
use plimsoll_tuner::search::largest;
use plimsoll_tuner::{Allow, Limits, Outcome, Plan, PlanError, PlanRequest, Policy, plan};
use std::path::Path;
use std::rc::Rc;
use std::sync::Once;

/// Where a schedule only has to fit it is planned for a link of this rate, before the link was measured; the order of naive
/// swapping's commands is the same for every rate.
pub const UNMEASURED: BytesPerSecond = BytesPerSecond(1e10);

/// Without a budget, what keeping everything takes at this batch is taken: the CPU stands in for a device that is too
/// small for the batch of 32 that people start with.
pub const UNBUDGETED_BATCH: u64 = 16;

/// What a budget without a number leaves free on a GPU: for graphs, and for what others take meanwhile.
pub const GPU_MARGIN: Bytes = Bytes(512 << 20);

/// A budget without a number is a multiple of this on a GPU, so that a second run finds the same although a little more or
/// less is free.
const GPU_STEP: u64 = 256 << 20;
/// Characters of a text, where neither the network nor `--image` says.
const USUAL_LENGTH: u32 = 128;

/// A paced link below this draws a warning: no device has such a one, and a missing prefix of a unit looks like it.
const SLOW: BytesPerSecond = BytesPerSecond(1e6);

/// The share of the machine's memory that a budget without a number never passes.
const MACHINE_SHARE: f64 = 0.8;

/// Which device, and how it is set up.
#[derive(Clone)]
pub enum Setup {
    /// The processor.
    Cpu(CpuOptions),
    /// An NVIDIA GPU.
    Cuda(Gpu),
    /// A device that is not here: what it would take is known, and nothing runs on it.
    Modelled(Modelled),
}

/// A GPU: open from the start, since only its libraries know the ways of a call, and what they take of it counts.
#[derive(Clone)]
pub struct Gpu {
    options: CudaOptions,
    /// Allocates nothing; those that do share its libraries.
    open: Rc<CudaDevice>,
}

impl Gpu {
    /// Opens it, so that one that cannot be used is said before anything is planned for it.
    pub fn open(options: CudaOptions) -> Result<Gpu, Failure> {
        let open = Rc::new(CudaDevice::open(&options)?);
        Ok(Gpu { options, open })
    }

    /// Whether it replays iterations as graphs.
    pub fn graphs(&self) -> bool {
        self.options.graphs
    }

    /// Whose kernels it runs.
    pub fn kernels(&self) -> GpuKernels {
        let CudaOptions { kernels, precision, deterministic, .. } = self.options;
        let (libraries, tf32) = (kernels == Kernels::Libraries, precision == Precision::Tf32);
        GpuKernels { libraries, tf32, deterministic }
    }
}

/// Options that choose kernels.
pub fn with_kernels(options: CudaOptions, chosen: GpuKernels) -> CudaOptions {
    let GpuKernels { libraries, tf32, deterministic } = chosen;
    let kernels = if libraries { Kernels::Libraries } else { Kernels::Own };
    let precision = if tf32 { Precision::Tf32 } else { Precision::F32 };
    CudaOptions { kernels, precision, deterministic, ..options }
}

impl Setup {
    /// As the options say.
    pub fn new(args: &DeviceArgs) -> Result<Setup, Failure> {
        let duplex: DuplexArg = args.duplex;
        let link = args.link.map(|rate| Link { duplex: duplex.into(), ..Link::symmetric(rate) });
        let half = duplex == DuplexArg::Half;
        match args.device {
            DeviceChoice::Cpu if half && link.is_none() => {
                Err(Failure::usage("--duplex half is for a link that is paced, and there is no --link")
                    .help("give the --link that both ways are to share, or leave --duplex out"))
            }
            DeviceChoice::Cpu if args.no_graph => Err(only("--no-graph", "cuda")),
            DeviceChoice::Cpu if args.kernels.given().is_some() => {
                Err(only(args.kernels.given().unwrap_or_default(), "cuda"))
            }
            DeviceChoice::Cpu => {
                args.threads.map_or(Ok(()), as_many_cores)?;
                Ok(Setup::cpu(args.threads, link, &args.host))
            }
            DeviceChoice::Cuda(_) if args.threads.is_some() => Err(only("--threads", "cpu")),
            DeviceChoice::Cuda(_) if link.is_some() => Err(only("--link", "cpu")),
            DeviceChoice::Cuda(_) | DeviceChoice::Modelled(_) if half => Err(only("--duplex half", "cpu")),
            DeviceChoice::Cuda(ordinal) => {
                Setup::cuda(ordinal, !args.no_graph, &args.host, args.kernels.chosen()?)
            }
            DeviceChoice::Modelled(_) if args.no_graph => Err(only("--no-graph", "cuda")),
            DeviceChoice::Modelled(_) if args.threads.is_some() => Err(only("--threads", "cpu")),
            DeviceChoice::Modelled(_) if link.is_some() => Err(only("--link", "cpu")),
            DeviceChoice::Modelled(_) if matches!(args.host, HostPlace::File(_)) => {
                Err(only("--host file:PATH", "cpu"))
            }
            DeviceChoice::Modelled(sheet) => Setup::modelled(sheet, &args.kernels),
        }
    }

    /// A device of which only the data sheet is known.
    pub fn modelled(sheet: &'static Sheet, kernels: &KernelArgs) -> Result<Setup, Failure> {
        match kernels.given() {
            Some(option) if option != "--tf32" || kernels.deterministic => Err(only(option, "cuda")),
            Some(_) if sheet.tf32_peak.is_none() => {
                let message = format!("{} has no tensor cores for TF32", sheet.product);
                Err(Failure::usage(message).help("leave --tf32 out"))
            }
            _ => Ok(Setup::Modelled(Modelled { tf32: kernels.tf32, ..Modelled::new(sheet) })),
        }
    }

    /// The device that is modelled, where it is.
    pub fn model(&self) -> Option<Modelled> {
        if let Setup::Modelled(device) = self { Some(*device) } else { None }
    }

    /// The processor with so many threads, by default all cores but one.
    pub fn cpu(threads: Option<u32>, link: Option<Link>, host: &HostPlace) -> Setup {
        let (threads, host) = (threads.unwrap_or_else(default_threads), host_memory(host));
        link.and_then(slow).inspect(|words| tracing::warn!("{words}"));
        let hurry = interrupt::hurry();
        Setup::Cpu(CpuOptions { threads, link, hurry, host, ..CpuOptions::default() })
    }

    /// A GPU, with or without graphs; what is offloaded goes to pinned memory, and no file can be pinned.
    pub fn cuda(ordinal: u32, graphs: bool, host: &HostPlace, kernels: GpuKernels) -> Result<Setup, Failure> {
        match host {
            HostPlace::File(_) => Err(only("--host file:PATH", "cpu")),
            HostPlace::Memory => {
                let options = CudaOptions { ordinal, graphs, ..CudaOptions::default() };
                Ok(Setup::Cuda(Gpu::open(with_kernels(options, kernels))?))
            }
        }
    }

    /// Whose kernels run, where that is to be chosen.
    pub fn kernels(&self) -> Option<GpuKernels> {
        if let Setup::Cuda(gpu) = self { Some(gpu.kernels()) } else { None }
    }

    /// Threads of the processor that compute; 1 where a GPU does.
    pub fn threads(&self) -> u32 {
        if let Setup::Cpu(options) = self { options.threads.max(1) } else { 1 }
    }

    /// The pace of the link; none for as fast as it goes.
    pub fn link(&self) -> Option<Link> {
        if let Setup::Cpu(options) = self { options.link } else { None }
    }

    /// How the device can run a call.
    pub fn ways(&self, call: &Call) -> Vec<Way> {
        match self {
            Setup::Cpu(_) => Way::sole(cpu::kernels::workspace_bytes(call, self.threads())),
            Setup::Cuda(gpu) => gpu.open.ways(call),
            Setup::Modelled(device) => device.ways(call),
        }
    }

    /// What is known of the device.
    pub fn facts(&self) -> Result<DeviceFacts, Failure> {
        let Setup::Modelled(device) = self else { return Ok(self.device()?.facts()) };
        let machine = device.machine("");
        let (name, system, threads) = (machine.device, machine.system, machine.threads);
        Ok(DeviceFacts { name, system, threads, memory: Some(device.sheet.memory) })
    }

    /// Whether a failure takes the device's memory along.
    pub fn can_be_lost(&self) -> bool {
        matches!(self, Setup::Cuda(_))
    }

    /// The device, with nothing allocated.
    pub fn device(&self) -> Result<Box<dyn Device>, Failure> {
        Ok(match self {
            Setup::Cpu(options) => Box::new(Cpu::new(options.clone())),
            Setup::Cuda(gpu) => Box::new(gpu.open.another()?),
            Setup::Modelled(device) => return Err(nothing_runs(&device.to_string())),
        })
    }
}

/// The failure of what would run on a device that is modelled.
pub fn nothing_runs(device: &str) -> Failure {
    let message = format!("nothing can run on a device that is not here ({device})");
    Failure::new(Exit::Device, message).help(
        "`profile`, `tune`, `auto` and `trace` say what it would take; to train, tune with --device cpu or cuda",
    )
}

/// An option that another device has.
fn only(option: &str, device: &str) -> Failure {
    Failure::usage(format_args!("{option} is for --device {device}"))
        .help("leave it out, or choose that device")
}

/// Where the host side lies.
fn host_memory(place: &HostPlace) -> HostMemory {
    match place {
        HostPlace::Memory => HostMemory::Anonymous,
        HostPlace::File(path) => HostMemory::File(path.clone()),
    }
}

/// The cores that this process may use.
pub fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).unwrap_or(u32::MAX)
}

/// All cores but one, which is left to the two transfer streams.
fn default_threads() -> u32 {
    cores().saturating_sub(1).max(1)
}

/// Makes sure that this machine has a core for each of so many threads.
pub fn as_many_cores(threads: u32) -> Result<(), Failure> {
    let cores = cores();
    if threads <= cores {
        return Ok(());
    }
    Err(Failure::usage(format_args!(
        "--threads {threads} is more than the {cores} cores that this process may use"
    ))
    .help(format_args!("give at most {cores}, or leave --threads out")))
}

/// What to say of a paced link on which training takes hours for what others do in a second.
fn slow(link: Link) -> Option<String> {
    let rate = link.offload_bytes_per_second.0.min(link.prefetch_bytes_per_second.0);
    let rate = BytesPerSecond(rate);
    (rate.0 < SLOW.0).then(|| {
        format!("the link is paced to {rate}: a tensor of 1 MiB takes {} each way", Bytes(1 << 20) / rate)
    })
}

/// A network, its data and a device.
pub struct Task {
    /// What is trained.
    pub network: Network,
    /// What it is trained on and tested with.
    pub data: Split,
    /// The device.
    pub setup: Setup,
    /// The architecture as a file, where the network is from one.
    pub architecture: Option<Vec<u8>>,
    /// Where the data are from, as `--data` takes it, where a command line said so.
    pub source: Option<DataSource>,
    /// What swapped tensors may take of the host's memory, where that was said.
    pub host_memory: Option<Bytes>,
}

impl Task {
    /// Opens the data and builds the network for it.
    pub fn new(network: &NetworkArgs, data: &DataArgs, setup: Setup) -> Result<Task, Failure> {
        if let Some(file) = &network.onnx {
            return Task::of_file(file, network, data, setup);
        }
        let source = &data.data;
        let data = open_data(source, network)?;
        if usual_text(&network.network).is_some() && !data.train.holds_tokens() {
            let message = format!("`{}` is for texts, and {} has images", network.network, data.train.name());
            return Err(Failure::usage(message).help("choose --data text, text:FILE or synthetic"));
        }
        let image = data.train.image();
        let spec = NetworkSpec {
            name: network.network.clone(),
            image: network.image.map_or([image.height, image.width], |i| i.0),
            channels: network.channels.unwrap_or(image.channels),
            classes: network.classes.unwrap_or(data.train.classes()),
        };
        Ok(Task { source: Some(source.whole()), ..Task::of_spec(&spec, data, setup)? })
    }

    /// Reads the network of an ONNX file, which takes its images from the data where it leaves their size open.
    fn of_file(file: &Path, network: &NetworkArgs, data: &DataArgs, setup: Setup) -> Result<Task, Failure> {
        let given = network.image.map(|image| image.0);
        let source = &data.data;
        let own = match source {
            DataSource::Synthetic(_) => None,
            _ => {
                let image = open_data(source, network)?.train.image();
                Some([image.height, image.width])
            }
        };
        let OnnxNetwork { network: found, architecture, .. } = onnx::network(file, given.or(own))?;
        let [height, width] = found.spec.image;
        if given.is_some_and(|given| given != [height, width]) {
            let message = format!("{} is for images of {height}x{width}", file.display());
            return Err(Failure::usage(message).help("leave --image out, or export again"));
        }
        let data = data_for(source, &found)?;
        let (architecture, source) = (Some(architecture), Some(source.whole()));
        Ok(Task { architecture, source, ..Task::of(found, data, setup)? })
    }

    /// A network that is named by its spec, which the data must fit.
    pub fn of_spec(spec: &NetworkSpec, data: Split, setup: Setup) -> Result<Task, Failure> {
        // Whether the data fit is said first.
        fits(spec, &data)?;
        Task::of(build(spec)?, data, setup)
    }

    /// A network that was built, which the data must fit.
    pub fn of(network: Network, data: Split, setup: Setup) -> Result<Task, Failure> {
        fits(&network.spec, &data)?;
        let (name, set) = (&network.spec.name, data.train.name());
        if !network.takes_tokens() && data.train.holds_tokens() {
            return Err(for_images(name, set));
        }
        if network.takes_tokens() && !data.train.holds_tokens() {
            return Err(Failure::usage(format!("`{name}` is for texts, and {set} has images"))
                .help("choose --data text, text:FILE or synthetic"));
        }
        let (wanted, held) = (network.labels(), data.train.labels() as u64);
        if wanted != held {
            let message = format!("`{name}` learns {wanted} labels of a sample, {set} has {held}");
            return Err(
                Failure::usage(message).help("choose --data synthetic, which has as many as are learned")
            );
        }
        Ok(Task { network, data, setup, architecture: None, source: None, host_memory: None })
    }

    /// Keeps a network that is from a file in the study; in place of another only where all is to be `fresh`, and nothing was
    /// trained with that one.
    pub fn keep_architecture(&self, study: &Study, fresh: bool) -> Result<(), Failure> {
        self.architecture.as_ref().map_or(Ok(()), |architecture| onnx::keep(study, architecture, fresh))
    }

    /// The network's iteration at a batch size, for this device.
    pub fn program(&self, batch: u64, mode: Mode) -> Result<Program, Failure> {
        let ways = |call: &Call| self.setup.ways(call);
        let options = LowerOptions { mode, relu: ReluStorage::Auto, draw: None, ways: &ways };
        Ok(lower(&self.network, batch, &options)?)
    }

    /// A profile at these batch sizes, as the model of a device that is not here gives it.
    pub fn modelled_profile(
        &self,
        device: &Modelled,
        budget: Bytes,
        batches: &[u64],
    ) -> Result<Profile, Failure> {
        let mut programs = Vec::new();
        for batch in batches {
            let mut program = self.program(*batch, Mode::Train)?;
            device.fill(&mut program);
            programs.push(program);
        }
        Ok(device.profile(&self.network.spec, budget, &programs, &version()))
    }

    /// The trace of a training iteration; its seconds are 0.
    pub fn trace(&self, batch: u64) -> Result<Trace, Failure> {
        Ok(self.program(batch, Mode::Train)?.trace)
    }

    /// The budget of a study: what is given, else what the study was begun with, unless it is to be `fresh`: a study is of one
    /// budget, and what is free, or which batch is the least, changes from run to run. Else as [`Task::budget`] says; on a processor
    /// at least what keeps everything of the least batch that is wanted, where less does not train it.
    pub fn budget_in(
        &self,
        study: &Study,
        fresh: bool,
        given: Option<Size>,
        least: u64,
    ) -> Result<Bytes, Failure> {
        let asks = given.is_none() && !fresh && self.setup.model().is_none();
        let begun = asks.then(|| study.budget());
        if let Some(budget) = begun.flatten() {
            return Ok(budget);
        }
        let budget = self.budget(given)?;
        if given.is_none()
            && matches!(self.setup, Setup::Cpu(_))
            && self.largest_trainable(budget, least)?.is_none_or(|largest| largest < least)
        {
            return self.budget_of(least);
        }
        Ok(budget)
    }

    /// What keeping everything takes at a batch, as far as the machine has it.
    fn budget_of(&self, batch: u64) -> Result<Bytes, Failure> {
        let machine = self.setup.facts()?.memory.unwrap_or(Bytes(u64::MAX >> 2));
        let peak = self.trace(batch)?.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        Ok(peak.min(Size::Share(MACHINE_SHARE).of(machine)))
    }

    /// The budget in bytes: what is given (a share is one of the device's memory, and none is above it), or
    /// [`UNBUDGETED_BATCH`]'s, or on a GPU what is free, less [`GPU_MARGIN`]; on a modelled one all of its memory, less as much.
    pub fn budget(&self, given: Option<Size>) -> Result<Bytes, Failure> {
        if given.is_none()
            && let Setup::Cuda(gpu) = &self.setup
        {
            let free = gpu.open.free_memory().map_err(RuntimeError::from)?;
            return Ok(unbudgeted(free));
        }
        let machine = self.setup.facts()?.memory.unwrap_or(Bytes(u64::MAX >> 2));
        if given.is_none() && self.setup.model().is_some() {
            return Ok(unbudgeted(machine));
        }
        if let Some(size) = given {
            let budget = size.of(machine);
            if budget > machine {
                let (whose, help) = match &self.setup {
                    Setup::Cpu(_) => (
                        "that this process may have",
                        "lower --budget; to plan for a larger device, model one with --device",
                    ),
                    Setup::Cuda(_) | Setup::Modelled(_) => {
                        ("of the device", "lower --budget, or choose another --device")
                    }
                };
                let message = format!("a budget of {budget} is more than the {machine} {whose}");
                return Err(Failure::usage(message).help(help));
            }
            return Ok(budget);
        }
        self.budget_of(UNBUDGETED_BATCH)
    }

    /// The largest batch, up to `limit`, at which a policy finds a plan that the host has memory for; none where it finds none
    /// for one sample.
    pub fn largest_batch(&self, policy: Policy, budget: Bytes, limit: u64) -> Result<Option<u64>, Failure> {
        let link = self.setup.link().unwrap_or(Link::symmetric(UNMEASURED));
        let least = self.smallest_batch();
        let found = largest(limit, &mut |batch: u64| {
            // One position of one sample has no variance; a batch of two tells whether the network can be trained.
            let batch = batch.max(least);
            let trace = self.trace(batch)?;
            let outcome = self.outcome(&trace, policy, budget, link)?;
            Ok::<_, Failure>(outcome.plan().is_some_and(|plan| self.fits_host(&trace, &plan.schedule)))
        })?;
        Ok(found.map(|batch| batch.max(least)))
    }

    /// The smallest batch that can be lowered: 1, or 2 where batch normalisation sees a single position.
    pub fn smallest_batch(&self) -> u64 {
        if self.trace(1).is_ok() { 1 } else { 2 }
    }

    /// What a policy makes of a trace.
    pub fn outcome(
        &self,
        trace: &Trace,
        policy: Policy,
        budget: Bytes,
        link: Link,
    ) -> Result<Outcome, Failure> {
        // The others take no time worth stopping, and what is stopped early may miss what fits.
        let searches = matches!(policy, Policy::Plimsoll | Policy::Optimal);
        let stop: &dyn Fn() -> bool = &interrupt::pressed;
        let limits = Limits { evaluations: None, expired: searches.then_some(stop) };
        let allow = Allow { host: self.host_limit(), ..Allow::ALL };
        let request = PlanRequest { limits, allow, ..PlanRequest::new(budget, link, policy) };
        Ok(plan(trace, &request)?)
    }

    /// The plan of a policy, or the failure that says what does not fit and which batch would.
    pub fn plan(&self, trace: &Trace, policy: Policy, budget: Bytes, link: Link) -> Result<Plan, Failure> {
        match self.outcome(trace, policy, budget, link)? {
            Outcome::Planned(plan) => Ok(plan),
            Outcome::Infeasible(witness) => {
                let failure = no_plan(trace, budget, &witness);
                let raise = match (witness.why.is_of_host(), self.host_memory) {
                    (true, Some(_)) => "raise --budget or --host-memory",
                    _ => "raise --budget",
                };
                Err(failure.help(match self.largest_batch(policy, budget, trace.batch)? {
                    Some(batch) => format!("the largest batch that fits is {batch}; or {raise}"),
                    None => format!("no batch fits; {raise}"),
                }))
            }
        }
    }

    /// The program and schedule of evaluation: at most `batch` samples at once, fewer where the pool has no room for more.
    pub fn evaluation(&self, batch: u64, budget: Bytes) -> Result<(Program, Schedule), Failure> {
        let link = Link::symmetric(UNMEASURED);
        let mut batch = batch;
        loop {
            let mut program = self.program(batch, Mode::Evaluate)?;
            program.trace.order_ways();
            for policy in [Policy::Keep, Policy::Plimsoll] {
                if let Outcome::Planned(plan) = self.outcome(&program.trace, policy, budget, link)? {
                    return Ok((program, plan.schedule));
                }
            }
            if batch == 1 {
                let plan = self.plan(&program.trace, Policy::Plimsoll, budget, link)?;
                return Ok((program, plan.schedule));
            }
            batch /= 2;
        }
    }

    /// An executor whose one allocation serves all of these, each loaded.
    pub fn executor(&self, programs: &[(&Program, &Schedule)]) -> Result<(Executor, Vec<Loaded>), Failure> {
        load(Executor::new(self.setup.device()?, layout_of(programs))?, programs)
    }

    /// The same; the state that the first of them trains is kept on the host, copied before this offload of its schedule or behind all.
    pub fn executor_keeping_state(
        &self,
        programs: &[(&Program, &Schedule)],
        before: Option<CommandId>,
    ) -> Result<(Executor, Vec<Loaded>), Failure> {
        let [(trained, schedule), others @ ..] = programs else { return self.executor(programs) };
        let layout = layout_of(programs).keeping_state(trained);
        let mut executor = Executor::new(self.setup.device()?, layout).map_err(|error| {
            let of_host = match &error {
                RuntimeError::Device(DeviceError::OutOfMemory { what, .. }) => *what != MemoryKind::Device,
                RuntimeError::Device(DeviceError::NotPinned { .. }) => true,
                _ => false,
            };
            let failure = Failure::from(error);
            if !of_host {
                return failure;
            }
            failure.help(format_args!(
                "{} of it are for two copies of the state, which a device that fails cannot take along; --save-every 5min writes the \
                 state to its file that often, and takes none of it",
                layout.state
            ))
        })?;
        let trained = executor.load_keeping_state(trained, schedule, before)?;
        let (executor, others) = load(executor, others)?;
        Ok((executor, [vec![trained], others].concat()))
    }

    /// Samples to train on.
    pub fn samples(&self) -> u64 {
        self.data.train.len() as u64
    }

    /// The largest batch to consider: what was asked for, but no more than there are samples, nor than cuDNN counts.
    pub fn most(&self, asked: Option<u64>) -> Result<u64, Failure> {
        let most = asked.unwrap_or(u64::MAX).min(self.samples());
        if self.setup.kernels().is_none_or(|kernels| !kernels.libraries) {
            return Ok(most);
        }
        let program = self.program(self.smallest_batch(), Mode::Train)?;
        let countable = countable_batch(program.kernels.iter().map(|kernel| &kernel.call));
        if countable < most {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::info!(
                    "cuDNN takes no tensor of 2^31 elements: no batch over {countable} is considered"
                );
            });
        }
        Ok(most.min(countable))
    }
}

/// The failure of a network for images that is given texts.
fn for_images(name: &str, data: &str) -> Failure {
    Failure::usage(format!("`{name}` is for images, and {data} has texts"))
        .help("choose other --data; texts are for networks such as lstm or gpt-tiny")
}

/// What some programs need in turn.
fn layout_of(programs: &[(&Program, &Schedule)]) -> MemoryLayout {
    let layouts = programs.iter().map(|(program, schedule)| MemoryLayout::of(program, schedule));
    layouts.fold(MemoryLayout::default(), MemoryLayout::union)
}

/// An executor with these programs.
fn load(
    mut executor: Executor,
    programs: &[(&Program, &Schedule)],
) -> Result<(Executor, Vec<Loaded>), Failure> {
    let loaded = programs.iter().map(|(p, s)| executor.load(p, s)).collect::<Result<Vec<_>, _>>()?;
    Ok((executor, loaded))
}

/// Whether the data are what a network takes.
fn fits(spec: &NetworkSpec, data: &Split) -> Result<(), Failure> {
    let wanted = Shape { height: spec.image[0], width: spec.image[1], channels: spec.channels };
    if data.train.image() == wanted && data.train.classes() <= spec.classes {
        return Ok(());
    }
    let message = format!(
        "{} has images of {} in {} classes, the network is for {wanted} in {}",
        data.train.name(),
        data.train.image(),
        data.train.classes(),
        spec.classes
    );
    Err(Failure::usage(message).help(match name_in_file(&spec.name) {
        None => "leave --image, --channels and --classes out, or choose other --data",
        Some(_) => "choose other --data, such as --data synthetic, or export the network for these",
    }))
}

/// The budget of a GPU with so much free memory.
fn unbudgeted(free: Bytes) -> Bytes {
    let left = free.saturating_sub(GPU_MARGIN);
    Bytes(left.0 / GPU_STEP * GPU_STEP)
}

/// Reads or makes the data for a network of the zoo, by its name and what was asked for.
pub fn open_data(source: &DataSource, network: &NetworkArgs) -> Result<Split, Failure> {
    match source {
        DataSource::Text(file) => {
            let usual = usual_text(&network.network).map_or(USUAL_LENGTH, |spec| spec.image[0]);
            text(file.as_deref(), network.image.map_or([usual, 1], |i| i.0))
        }
        DataSource::Synthetic(_) => {
            let images =
                NetworkSpec { name: network.network.clone(), image: [32; 2], channels: 3, classes: 10 };
            let usual = usual_text(&network.network).unwrap_or(images);
            let network = build(&NetworkSpec {
                image: network.image.map_or(usual.image, |i| i.0),
                channels: network.channels.unwrap_or(usual.channels),
                classes: network.classes.unwrap_or(usual.classes),
                ..usual
            })?;
            data_for(source, &network)
        }
        files => in_files(files),
    }
}

/// Reads or makes the data for a network.
pub fn data_for(source: &DataSource, network: &Network) -> Result<Split, Failure> {
    match source {
        DataSource::Text(_) if !network.takes_tokens() => Err(for_images(&network.spec.name, "--data text")),
        DataSource::Text(file) => text(file.as_deref(), network.spec.image),
        DataSource::Synthetic(samples) => {
            // Samples are made when they are read; only their order in an epoch is held, four bytes each.
            let order = Bytes(samples.saturating_mul(4));
            if let Some(available) = cpu::available_bytes().filter(|available| order > *available) {
                let message =
                    format!("the order of {samples} samples takes {order}, and {available} are there");
                return Err(Failure::usage(message).help("choose fewer with --data synthetic:SAMPLES"));
            }
            let set = |samples: u64, seed| data::synthetic_like(network, samples as usize, seed);
            Ok(Split { train: set(*samples, 1), test: set((*samples / 10).max(1), 2) })
        }
        files => in_files(files),
    }
}

/// Reads data that are what they are, whatever the network.
fn in_files(source: &DataSource) -> Result<Split, Failure> {
    Ok(match source {
        DataSource::Mnist(folder) => data::mnist(folder)?,
        DataSource::Cifar10(folder) => data::cifar10(folder)?,
        _ => data::digits(),
    })
}

/// Reads a text, cut to so many characters by 1.
fn text(file: Option<&Path>, [length, width]: [u32; 2]) -> Result<Split, Failure> {
    if width != 1 {
        let message = format!("texts have no width, and --image says {length}x{width}");
        return Err(Failure::usage(message)
            .help(format!("give --image {length}x1 for texts of {length} characters, or leave it out")));
    }
    Ok(match file {
        Some(file) => data::text_file(file, length)?,
        None => data::text(length)?,
    })
}

/// What a network for texts was made for; none for other networks.
fn usual_text(name: &str) -> Option<NetworkSpec> {
    usual(name).filter(|spec| spec.image[1] == 1)
}

/// The middle of some times; 0 of none.
pub fn median(seconds: &mut [f64]) -> Seconds {
    seconds.sort_by(f64::total_cmp);
    match seconds.len() {
        0 => Seconds::ZERO,
        n => Seconds((seconds[(n - 1) / 2] + seconds[n / 2]) / 2.0),
    }
}

impl From<NetworkError> for Failure {
    fn from(error: NetworkError) -> Failure {
        let failure = Failure::usage(&error);
        match error {
            NetworkError::UnknownName { .. } => failure.help("`plimsoll networks` lists all that there are"),
            _ => failure,
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        let exit = match error {
            PlanError::Trace(_)
            | PlanError::Link { .. }
            | PlanError::Budget(_)
            | PlanError::TooLarge { .. } => Exit::Usage,
            PlanError::Lowering { .. } | PlanError::Invalid { .. } => Exit::Internal,
        };
        Failure::new(exit, error)
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        let exit = match &error {
            RuntimeError::Schedule(_) => Exit::Verification,
            RuntimeError::Device(DeviceError::OutOfRange { .. }) => Exit::Internal,
            RuntimeError::Device(_) => Exit::Device,
            RuntimeError::Mismatch { .. }
            | RuntimeError::Data { .. }
            | RuntimeError::Checkpoint { .. }
            | RuntimeError::Overflowed { .. }
            | RuntimeError::Diverged { .. } => Exit::Usage,
        };
        let free = match &error {
            RuntimeError::Device(DeviceError::OutOfMemory {
                what: MemoryKind::Device, available, ..
            }) => Some(*available),
            _ => None,
        };
        let lower = match &error {
            RuntimeError::Device(DeviceError::Full { .. } | DeviceError::NotPinned { .. }) => {
                Some("--budget sets the budget")
            }
            _ => None,
        };
        let failure = Failure::new(exit, error);
        match free.map(unbudgeted) {
            Some(Bytes::ZERO) => failure.help("end what else is on the GPU; `plimsoll doctor` shows it"),
            Some(fits) => failure.help(format!(
                "--budget {}MiB fits now; or end what else is on the GPU, which `plimsoll doctor` shows",
                fits.0 >> 20
            )),
            None => lower.into_iter().fold(failure, Failure::help),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_without_a_budget_keeps_a_margin_and_a_round_number() {
        let check = |free: u64, expected: u64| assert_eq!(unbudgeted(Bytes(free)), Bytes(expected), "{free}");
        check(139 << 30, (139 << 30) - (512 << 20));
        check((139 << 30) + 12345, (139 << 30) - (512 << 20));
        check((139 << 30) - 12345, (139 << 30) - (768 << 20));
        check(600 << 20, 0);
        check(0, 0);
    }
}
