//! A network with its data on a device, and the steps that several verbs take with it.
//!
//! Lowering, planning and loading are one call each here; failures become the errors of this crate. Measurements and
//! choices belong to the verbs.

mod confirm;
mod profiling;

pub use confirm::confirm;

use crate::data::{self, DataSource, fits};
use crate::device::Setup;
use crate::error::Error;
use crate::folder::Study;
use crate::request::{ClusterRequest, NetworkRequest};
use crate::watch::Watch;
use crate::workload::{About, SEED, UNMEASURED, Workload};
use plimsoll_ir::exchange::{Exchange, Form, NCCL_PIECE_BYTES, Overlap, PIECE_BYTES};
use plimsoll_ir::network::{Network, NetworkSpec};
use plimsoll_ir::profile::Profile;
use plimsoll_ir::program::{Call, Program};
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, CommandId, Optimizer, Seconds, UpdateRule};
use plimsoll_networks::{LowerOptions, Mode, ReluStorage, build, lower};
use plimsoll_runtime::cuda::countable_batch;
use plimsoll_runtime::data::Split;
use plimsoll_runtime::{
    CpuOptions, Device, Executor, HostMemory, Kind as Fault, LearningRateSchedule, Loaded, MemoryKind,
    MemoryLayout, Trainer, TrainingPlan, cpu,
};
use plimsoll_tuner::exchange::{Workers, exchange};
use plimsoll_tuner::search::Confirmed;
use plimsoll_tuner::{Outcome, Policy};
use std::sync::Once;

/// Batch whose memory with everything kept is the default budget: the CPU stands in for a device that is too small
/// for the usual starting batch of 32.
pub const UNBUDGETED_BATCH: u64 = 16;

/// Memory that an unspecified budget leaves free on a GPU: for graphs, and for other processes.
pub const GPU_MARGIN: Bytes = Bytes(512 << 20);

/// An unspecified budget on a GPU is a multiple of this, so that a second run gets the same budget when free memory differs
/// slightly.
const GPU_STEP: u64 = 256 << 20;
/// Share of the machine's memory that an unspecified budget never exceeds.
const MACHINE_SHARE: f64 = 0.8;

/// Share of the machine's memory for offloaded tensors. It is a share of all memory, not of free memory, so that a second run
/// plans the same; if too little is free, the allocation fails with an error.
const HOST_SHARE: f64 = 0.7;

/// A network, its data and a device.
pub struct NetworkWorkload {
    /// Network to train.
    pub network: Network,
    /// Data to train on and test with.
    pub data: Split,
    /// The device.
    pub setup: Setup,
    /// Source of the data, as `--data` accepts it, if a command line named it.
    pub source: Option<DataSource>,
    /// Host memory limit for swapped tensors, if given.
    pub host_memory: Option<Bytes>,
    /// Optimizer that updates the parameters; its state for each parameter is resident.
    pub optimizer: Optimizer,
}

impl NetworkWorkload {
    /// Opens the data and builds the network for it.
    ///
    /// # Errors
    ///
    /// The network or the data are unavailable, or do not match.
    pub fn new(
        request: &NetworkRequest,
        source: &DataSource,
        setup: Setup,
    ) -> Result<NetworkWorkload, Error> {
        let name = &request.name;
        let data = data::open(source, name, request)?;
        if data::usual_text(name).is_some() && !data.train.holds_tokens() {
            return Err(Error::images(name, data.train.name()));
        }
        let image = data.train.image();
        let spec = NetworkSpec {
            name: name.clone(),
            image: request.image.unwrap_or([image.height, image.width]),
            channels: request.channels.unwrap_or(image.channels),
            classes: request.classes.unwrap_or(data.train.classes()),
        };
        Ok(NetworkWorkload { source: Some(source.whole()), ..NetworkWorkload::of_spec(&spec, data, setup)? })
    }

    /// Builds a network from its spec, which the data must fit.
    pub fn of_spec(spec: &NetworkSpec, data: Split, setup: Setup) -> Result<NetworkWorkload, Error> {
        // A mismatch with the data is the first error to report.
        fits(spec, &data)?;
        NetworkWorkload::of(build(spec)?, data, setup)
    }

    /// Wraps a network that is already built, which the data must fit.
    pub fn of(network: Network, data: Split, setup: Setup) -> Result<NetworkWorkload, Error> {
        fits(&network.spec, &data)?;
        let (name, set) = (&network.spec.name, data.train.name());
        match (network.takes_tokens(), data.train.holds_tokens()) {
            (false, true) => return Err(Error::texts(name, set)),
            (true, false) => return Err(Error::images(name, set)),
            _ => {}
        }
        let (wanted, has) = (network.labels(), data.train.labels() as u64);
        if wanted != has {
            return Err(Error::usage(format_args!(
                "`{name}` learns {wanted} labels of a sample, {set} has {has}"
            ))
            .help("choose --data synthetic, which has as many as are learned"));
        }
        let (source, host_memory) = (None, None);
        Ok(NetworkWorkload { network, data, setup, source, host_memory, optimizer: Optimizer::Sgd })
    }

    /// Returns the same task with this optimizer.
    pub fn trained_by(self, optimizer: Optimizer) -> NetworkWorkload {
        NetworkWorkload { optimizer, ..self }
    }

    /// Limits host memory for swapped tensors; at most the memory of this machine, if the device is here.
    pub fn within(self, host_memory: Option<Bytes>) -> Result<NetworkWorkload, Error> {
        let machine = self.machine_memory();
        if let (Some(asked), Some(machine), None) = (host_memory, machine, self.setup.model())
            && asked > machine
        {
            let message =
                format!("{asked} of host memory is more than the {machine} that this process may have");
            return Err(Error::usage(message).help(
                "lower --host-memory; to plan for another machine, model a device of it with --device",
            ));
        }
        Ok(NetworkWorkload { host_memory, ..self })
    }

    /// Returns the memory of the device's host for swapped tensors; `None` if they go to a file, or if nothing is known.
    fn machine_memory(&self) -> Option<Bytes> {
        match &self.setup {
            Setup::Modelled(device) => Some(device.sheet.host),
            Setup::Cpu(CpuOptions { host: HostMemory::File(_), .. }) => None,
            Setup::Cpu(_) | Setup::Cuda(_) => cpu::machine_bytes(),
        }
    }

    /// Lowers the network to its iteration at a batch size, for this device.
    pub fn program(&self, batch: u64, mode: Mode) -> Result<Program, Error> {
        let alternatives = |call: &Call| self.setup.alternatives(call);
        let feature_maps = self.setup.precision().feature_maps();
        let (relu, fuse) = (ReluStorage::Auto, self.setup.fuses());
        let (optimizer, alternatives) = (self.optimizer, &alternatives);
        let more = LowerOptions::default();
        let options = LowerOptions { mode, relu, optimizer, feature_maps, fuse, alternatives, ..more };
        Ok(lower(&self.network, batch, &options)?)
    }

    /// Returns the budget of a study: the given budget, else, unless `fresh`, the budget that the study was begun with. A study
    /// has one budget, whereas free memory and the least batch change from run to run. Otherwise returns
    /// [`NetworkWorkload::budget`]; on a processor, if that cannot train the least wanted batch, the memory that keeps
    /// everything at that batch.
    pub fn budget_in(
        &self,
        study: &Study,
        fresh: bool,
        given: Option<Size>,
        least: u64,
        watch: &Watch<'_>,
    ) -> Result<Bytes, Error> {
        let asks = given.is_none() && !fresh && self.setup.model().is_none();
        let begun = asks.then(|| study.budget());
        if let Some(budget) = begun.flatten() {
            return Ok(budget);
        }
        let budget = self.budget(given)?;
        if given.is_none()
            && matches!(self.setup, Setup::Cpu(_))
            && self.largest_trainable(budget, least, watch)?.is_none_or(|largest| largest < least)
        {
            return self.budget_of(least);
        }
        Ok(budget)
    }

    /// Returns the memory that keeps everything at a batch, limited by the machine's memory.
    fn budget_of(&self, batch: u64) -> Result<Bytes, Error> {
        let machine = self.setup.facts()?.memory.unwrap_or(Bytes(u64::MAX >> 2));
        let peak = self.trace(batch)?.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        Ok(peak.min(Size::Share(MACHINE_SHARE).of(machine)))
    }

    /// Returns the budget in bytes. A given budget is used as it is (a share is of the device's memory, which no budget may
    /// exceed). The default is the memory of [`UNBUDGETED_BATCH`]; on a GPU, free memory less [`GPU_MARGIN`]; on a modelled
    /// device, all its memory less the same margin.
    pub fn budget(&self, given: Option<Size>) -> Result<Bytes, Error> {
        let machine = || Ok::<_, Error>(self.setup.facts()?.memory.unwrap_or(Bytes(u64::MAX >> 2)));
        let Some(size) = given else {
            return match &self.setup {
                Setup::Cuda(gpu) => Ok(unbudgeted(gpu.open.free_memory()?)),
                Setup::Modelled(_) => Ok(unbudgeted(machine()?)),
                Setup::Cpu(_) => self.budget_of(UNBUDGETED_BATCH),
            };
        };
        let machine = machine()?;
        let budget = size.of(machine);
        if budget <= machine {
            return Ok(budget);
        }
        let (owner, other) = match self.setup {
            Setup::Cpu(_) => {
                ("that this process may have", "; to plan for a larger device, model one with --device")
            }
            _ => ("of the device", ", or choose another --device"),
        };
        Err(Error::usage(format_args!("a budget of {budget} is more than the {machine} {owner}"))
            .help(format_args!("lower --budget{other}")))
    }

    /// Describes the data, with their shape and number.
    fn data_in_words(&self) -> String {
        let data = &self.data.train;
        let (name, classes, samples) = (data.name(), data.classes(), data.len());
        if data.holds_tokens() {
            let length = data.image().height;
            return format!("{name}: texts of {length}, {classes} tokens, {samples} samples");
        }
        format!("{name}: {} images, {classes} classes, {samples} samples", data.image())
    }

    /// Returns the program and schedule of evaluation: at most `batch` samples at once, fewer if the pool has no room for more.
    pub fn evaluation(
        &self,
        batch: u64,
        budget: Bytes,
        watch: &Watch<'_>,
    ) -> Result<(Program, Schedule), Error> {
        let link = Link::symmetric(UNMEASURED);
        let mut batch = batch;
        loop {
            let mut program = self.program(batch, Mode::Evaluate)?;
            program.trace.order_alternatives();
            for policy in [Policy::Keep, Policy::Plimsoll] {
                if let (Outcome::Planned(plan), _) =
                    self.outcome(&program.trace, policy, budget, link, watch)?
                {
                    return Ok((program, plan.schedule));
                }
            }
            if batch == 1 {
                let plan = self.plan(&program.trace, Policy::Plimsoll, budget, link, watch)?;
                return Ok((program, plan.schedule));
            }
            batch /= 2;
        }
    }

    /// Returns an executor whose single allocation serves all these programs, and the loaded programs. If host memory is
    /// page-locked, iterations that train transfer each other's input.
    pub fn executor(&self, programs: &[(&Program, &Schedule)]) -> Result<(Executor, Vec<Loaded>), Error> {
        let device = self.setup.device()?;
        let layout = layout_of(programs, &*device);
        load(Executor::new(device, layout)?, programs)
    }

    /// Does the same on this device, with the first program loaded in two parts: its pass, and its update. The sums of workers
    /// are cut into pieces of about `piece` bytes.
    pub fn executor_apart(
        &self,
        device: Box<dyn Device>,
        programs: &[(&Program, &Schedule)],
        piece: Bytes,
    ) -> Result<(Executor, Vec<Loaded>), Error> {
        let [(trained, schedule), others @ ..] = programs else { return self.executor(programs) };
        let layout = layout_of(programs, &*device);
        let mut executor = Executor::new(device, layout)?;
        let trained = executor.load_apart(trained, schedule, piece)?;
        let (executor, others) = load(executor, others)?;
        Ok((executor, [vec![trained], others].concat()))
    }

    /// Does the same, and keeps the state that the first program trains on the host. The state is copied before this offload of
    /// its schedule, or after all of them.
    pub fn executor_keeping_state(
        &self,
        programs: &[(&Program, &Schedule)],
        before: Option<CommandId>,
    ) -> Result<(Executor, Vec<Loaded>), Error> {
        let [(trained, schedule), others @ ..] = programs else { return self.executor(programs) };
        let device = self.setup.device()?;
        let layout = layout_of(programs, &*device).keeping_state(trained);
        let state = layout.state;
        let mut executor = Executor::new(device, layout).map_err(|error| {
            let of_host = match error.kind {
                Fault::OutOfMemory { what, .. } => what != MemoryKind::Device,
                Fault::NotPinned => true,
                _ => false,
            };
            let error = Error::from(error);
            if !of_host {
                return error;
            }
            error.help(format_args!(
                "{state} of it are for two copies of the state, which a device that fails cannot take along; \
                 --save-every 5min writes the state to its file that often, and takes none of it"
            ))
        })?;
        let trained = executor.load_keeping_state(trained, schedule, before)?;
        let (executor, others) = load(executor, others)?;
        Ok((executor, [vec![trained], others].concat()))
    }
}

impl Workload for NetworkWorkload {
    fn about(&self) -> Result<About, Error> {
        let setup = &self.setup;
        Ok(About {
            network: self.network.spec.clone(),
            data: self.source.as_ref().map(ToString::to_string),
            data_in_words: self.data_in_words(),
            device: setup.facts()?.name,
            threads: setup.threads(),
            paced: setup.link(),
            deterministic: setup.is_deterministic(),
            precision: setup.precision(),
            optimizer: self.optimizer,
            modelled_error: setup.model().map(|device| device.error()),
        })
    }

    fn samples(&self) -> u64 {
        self.data.train.len() as u64
    }

    fn most(&self, asked: Option<u64>) -> Result<u64, Error> {
        let most = asked.unwrap_or(u64::MAX).min(self.samples());
        if !matches!(self.setup, Setup::Cuda(_)) {
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

    fn trace(&self, batch: u64) -> Result<Trace, Error> {
        Ok(self.program(batch, Mode::Train)?.trace)
    }

    fn pace(&self) -> Option<Link> {
        self.setup.link()
    }

    fn host_memory(&self) -> Option<Bytes> {
        self.host_memory
    }

    fn host_limit(&self) -> Option<Bytes> {
        self.host_memory.or_else(|| Some(Size::Share(HOST_SHARE).of(self.machine_memory()?)))
    }

    fn measure(
        &self,
        batches: &[u64],
        budget: Bytes,
        study: &Study,
        fresh: bool,
        watch: &Watch<'_>,
    ) -> Result<Profile, Error> {
        profiling::profile(self, batches, budget, study, fresh, watch)
    }

    fn exchange(&self, batch: u64, cluster: &ClusterRequest, passes: u64) -> Result<Exchange, Error> {
        let ClusterRequest { workers: count, interconnect, nccl, .. } = *cluster;
        let form = Form::Sharded;
        let (staged, overlap) = match nccl {
            // The host adds up several passes of a worker.
            true => (passes > 1, Overlap::Backward(NCCL_PIECE_BYTES)),
            // The CPU's device memory is host memory.
            false => (!matches!(self.setup, Setup::Cpu(_)), Overlap::Forward(PIECE_BYTES)),
        };
        let workers = Workers { count, interconnect, form, staged, passes, overlap };
        let exchange = exchange(&self.program(batch, Mode::Train)?, &workers);
        exchange.ok_or_else(|| {
            Error::usage("the network has no parameters: workers have nothing to exchange")
                .help("leave --workers out")
        })
    }

    fn run(&self, batch: u64, schedule: &Schedule, watch: &Watch<'_>) -> Result<Option<Confirmed>, Error> {
        if self.setup.model().is_some() {
            return Ok(None);
        }
        let program = self.program(batch, Mode::Train)?;
        let (executor, mut loaded) = self.executor(&[(&program, schedule)])?;
        let training = TrainingPlan {
            network: self.network.spec.clone(),
            batch,
            virtual_workers: 1,
            seed: SEED,
            rate: LearningRateSchedule::constant(0.0),
            update: UpdateRule::usual(self.optimizer),
            weights: None,
        };
        let trained = loaded.remove(0);
        let mut trainer = Trainer::new(executor, trained, None, training)?;
        confirm(&mut trainer, &*self.data.train, watch.stop).map(Some)
    }
}

/// Returns the memory that programs need when they run in turn on a device, with slots for inputs if the device page-locks
/// them.
fn layout_of(programs: &[(&Program, &Schedule)], device: &dyn Device) -> MemoryLayout {
    let layouts = programs.iter().map(|(program, schedule)| {
        let layout = MemoryLayout::of(program, schedule);
        if device.pins() { layout.feeding(program) } else { layout }
    });
    layouts.fold(MemoryLayout::default(), MemoryLayout::union)
}

/// Loads these programs into an executor.
fn load(
    mut executor: Executor,
    programs: &[(&Program, &Schedule)],
) -> Result<(Executor, Vec<Loaded>), Error> {
    let loaded = programs.iter().map(|(p, s)| executor.load(p, s)).collect::<Result<Vec<_>, _>>()?;
    Ok((executor, loaded))
}

/// Returns the default budget of a GPU with this much free memory.
pub fn unbudgeted(free: Bytes) -> Bytes {
    let left = free.saturating_sub(GPU_MARGIN);
    Bytes(left.0 / GPU_STEP * GPU_STEP)
}

/// Returns the median of these times; 0 if there are none.
pub fn median(seconds: &mut [f64]) -> Seconds {
    seconds.sort_by(f64::total_cmp);
    match seconds.len() {
        0 => Seconds::ZERO,
        n => Seconds((seconds[(n - 1) / 2] + seconds[n / 2]) / 2.0),
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
