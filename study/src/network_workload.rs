//! A training task: a network, its data and a device, and the steps that several verbs take with them.
//!
//! Lowering, planning and loading are one call each here, with failures turned into the command line's. What is measured
//! or chosen lives in the verbs.

mod confirm;
mod host;
mod profiling;

pub use confirm::confirm;
use host::HOST_SHARE;

use crate::data::{self, DataSource, fits};
use crate::device::Setup;
use crate::error::{DataError, Error, TuneError, WorkloadError};
use crate::folder::Study;
use crate::request::{ClusterRequest, NetworkRequest};
use crate::watch::Watch;
use crate::workload::{About, Confirmed, SEED, UNMEASURED, Workload};
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
    Device, DeviceError, Executor, LearningRateSchedule, Loaded, MemoryKind, MemoryLayout, RuntimeError,
    Trainer, TrainingPlan,
};
use plimsoll_tuner::exchange::{Workers, exchange};
use plimsoll_tuner::{Outcome, Policy};
use std::sync::Once;

/// Without a budget, what keeping everything takes at this batch is taken: the CPU stands in for a device that is too
/// small for the batch of 32 that people start with.
pub const UNBUDGETED_BATCH: u64 = 16;

/// What a budget without a number leaves free on a GPU: for graphs, and for what others take meanwhile.
pub const GPU_MARGIN: Bytes = Bytes(512 << 20);

/// A budget without a number is a multiple of this on a GPU, so that a second run finds the same although a little more or
/// less is free.
const GPU_STEP: u64 = 256 << 20;
/// The share of the machine's memory that a budget without a number never passes.
const MACHINE_SHARE: f64 = 0.8;

/// A network, its data and a device.
pub struct NetworkWorkload {
    /// What is trained.
    pub network: Network,
    /// What it is trained on and tested with.
    pub data: Split,
    /// The device.
    pub setup: Setup,
    /// Where the data are from, as `--data` takes it, where a command line said so.
    pub source: Option<DataSource>,
    /// What swapped tensors may take of the host's memory, where that was said.
    pub host_memory: Option<Bytes>,
    /// Who updates the parameters; what it keeps for each is resident.
    pub optimizer: Optimizer,
}

impl NetworkWorkload {
    /// Opens the data and builds the network for it.
    ///
    /// # Errors
    ///
    /// The network or the data cannot be had, or do not go together.
    pub fn new(
        request: &NetworkRequest,
        source: &DataSource,
        setup: Setup,
    ) -> Result<NetworkWorkload, Error> {
        let name = &request.name;
        let data = data::open(source, name, request)?;
        if data::usual_text(name).is_some() && !data.train.holds_tokens() {
            return Err(
                DataError::Images { network: name.clone(), data: data.train.name().to_owned() }.into()
            );
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

    /// A network that is named by its spec, which the data must fit.
    pub fn of_spec(spec: &NetworkSpec, data: Split, setup: Setup) -> Result<NetworkWorkload, Error> {
        // Whether the data fit is said first.
        fits(spec, &data)?;
        NetworkWorkload::of(build(spec)?, data, setup)
    }

    /// A network that was built, which the data must fit.
    pub fn of(network: Network, data: Split, setup: Setup) -> Result<NetworkWorkload, Error> {
        fits(&network.spec, &data)?;
        let (name, set) = (network.spec.name.clone(), data.train.name().to_owned());
        match (network.takes_tokens(), data.train.holds_tokens()) {
            (false, true) => return Err(DataError::Texts { network: name, data: set }.into()),
            (true, false) => return Err(DataError::Images { network: name, data: set }.into()),
            _ => {}
        }
        let (wanted, has) = (network.labels(), data.train.labels() as u64);
        if wanted != has {
            return Err(DataError::Labels { network: name, wanted, data: set, has }.into());
        }
        let (source, host_memory) = (None, None);
        Ok(NetworkWorkload { network, data, setup, source, host_memory, optimizer: Optimizer::Sgd })
    }

    /// The same task, trained by this optimizer.
    pub fn trained_by(self, optimizer: Optimizer) -> NetworkWorkload {
        NetworkWorkload { optimizer, ..self }
    }

    /// The network's iteration at a batch size, for this device.
    pub fn program(&self, batch: u64, mode: Mode) -> Result<Program, Error> {
        let alternatives = |call: &Call| self.setup.alternatives(call);
        let feature_maps = self.setup.precision().feature_maps();
        let (relu, fuse) = (ReluStorage::Auto, self.setup.fuses());
        let (optimizer, alternatives) = (self.optimizer, &alternatives);
        let more = LowerOptions::default();
        let options = LowerOptions { mode, relu, optimizer, feature_maps, fuse, alternatives, ..more };
        Ok(lower(&self.network, batch, &options)?)
    }

    /// The budget of a study: what is given, else what the study was begun with, unless it is to be `fresh`: a study is of
    /// one budget, and what is free, or which batch is the least, changes from run to run. Else as
    /// [`NetworkWorkload::budget`] says; on a processor at least what keeps everything of the least batch that is wanted,
    /// where less does not train it.
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

    /// What keeping everything takes at a batch, as far as the machine has it.
    fn budget_of(&self, batch: u64) -> Result<Bytes, Error> {
        let machine = self.setup.facts()?.memory.unwrap_or(Bytes(u64::MAX >> 2));
        let peak = self.trace(batch)?.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        Ok(peak.min(Size::Share(MACHINE_SHARE).of(machine)))
    }

    /// The budget in bytes: what is given (a share is one of the device's memory, and none is above it), or
    /// [`UNBUDGETED_BATCH`]'s, or on a GPU what is free, less [`GPU_MARGIN`]; on a modelled one all of its memory, less as
    /// much.
    pub fn budget(&self, given: Option<Size>) -> Result<Bytes, Error> {
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
                let processor = matches!(self.setup, Setup::Cpu(_));
                return Err(WorkloadError::Budget { budget, memory: machine, processor }.into());
            }
            return Ok(budget);
        }
        self.budget_of(UNBUDGETED_BATCH)
    }

    /// The data in words, with their shape and number.
    fn data_in_words(&self) -> String {
        let data = &self.data.train;
        if data.holds_tokens() {
            let length = data.image().height;
            return format!(
                "{}: texts of {length}, {} tokens, {} samples",
                data.name(),
                data.classes(),
                data.len()
            );
        }
        format!(
            "{}: {} images, {} classes, {} samples",
            data.name(),
            data.image(),
            data.classes(),
            data.len()
        )
    }

    /// The program and schedule of evaluation: at most `batch` samples at once, fewer where the pool has no room for more.
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

    /// An executor whose one allocation serves all of these, each loaded. Where its host memory is page-locked, iterations that
    /// train bring each other's input.
    pub fn executor(&self, programs: &[(&Program, &Schedule)]) -> Result<(Executor, Vec<Loaded>), Error> {
        let device = self.setup.device()?;
        let layout = layout_of(programs, &*device);
        load(Executor::new(device, layout)?, programs)
    }

    /// The same on this device, the first of them loaded in two parts: its pass, and its update. What workers sum is cut into
    /// pieces of about so many bytes.
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

    /// The same; the state that the first of them trains is kept on the host, copied before this offload of its schedule or
    /// behind all.
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
            let of_host = match &error {
                RuntimeError::Device(DeviceError::OutOfMemory { what, .. }) => *what != MemoryKind::Device,
                RuntimeError::Device(DeviceError::NotPinned { .. }) => true,
                _ => false,
            };
            if of_host { Error::NoRoomForState { source: error, state } } else { error.into() }
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
            // Several passes of a worker are added up on its host.
            true => (passes > 1, Overlap::Backward(NCCL_PIECE_BYTES)),
            // A processor's device memory is the host's.
            false => (!matches!(self.setup, Setup::Cpu(_)), Overlap::Forward(PIECE_BYTES)),
        };
        let workers = Workers { count, interconnect, form, staged, passes, overlap };
        let exchange = exchange(&self.program(batch, Mode::Train)?, &workers);
        Ok(exchange.ok_or(TuneError::NothingToExchange)?)
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

/// What some programs need in turn on a device; with slots for inputs where it page-locks them.
fn layout_of(programs: &[(&Program, &Schedule)], device: &dyn Device) -> MemoryLayout {
    let layouts = programs.iter().map(|(program, schedule)| {
        let layout = MemoryLayout::of(program, schedule);
        if device.pins() { layout.feeding(program) } else { layout }
    });
    layouts.fold(MemoryLayout::default(), MemoryLayout::union)
}

/// An executor with these programs.
fn load(
    mut executor: Executor,
    programs: &[(&Program, &Schedule)],
) -> Result<(Executor, Vec<Loaded>), Error> {
    let loaded = programs.iter().map(|(p, s)| executor.load(p, s)).collect::<Result<Vec<_>, _>>()?;
    Ok((executor, loaded))
}

/// The budget of a GPU with so much free memory.
pub fn unbudgeted(free: Bytes) -> Bytes {
    let left = free.saturating_sub(GPU_MARGIN);
    Bytes(left.0 / GPU_STEP * GPU_STEP)
}

/// The middle of some times; 0 of none.
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
