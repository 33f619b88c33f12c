//! Shared parts of the sections: networks on the device, plans of them, and timed iterations.
//!
//! An iteration is timed from the call that starts it to the return of the one that waits for its end. It runs as `plimsoll
//! run` trains on a GPU: it copies the next input from a pinned host buffer, which the host fills meanwhile, and copies the
//! state to the host. The learning rate is 0, so that every iteration computes on the same numbers.

use plimsoll::study::device::Gpu;
use plimsoll::study::error::Error;
use plimsoll::study::workload::UNMEASURED;
use plimsoll::study::{NetworkWorkload, Setup, Workload, version};
use plimsoll_ir::network::{NetworkSpec, Shape};
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Precision, Seconds, UpdateRule};
use plimsoll_networks::{Mode, build};
use plimsoll_profiler::{Effort, ProfileRequest, SubjectError, Watch, centre, machine, schedule_with};
use plimsoll_runtime::data::{Split, synthetic};
use plimsoll_runtime::{
    CudaOptions, Executor, LearningRateSchedule, Loaded, MemoryLayout, Trainer, TrainingPlan, state_bytes,
};
use plimsoll_tuner::state_copy::place_of_copy;
use plimsoll_tuner::{Limits, Outcome, Plan, PlanRequest, Policy};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Prints a measurement of a section.
pub type Row<'a> = dyn Fn(Value) + 'a;

/// Prints one row of several objects; a later value replaces an earlier one with the same name.
pub fn print(parts: &[&Value]) {
    let parts = parts.iter().filter_map(|part| part.as_object()).flatten();
    let row: Map<String, Value> = parts.map(|(name, value)| (name.clone(), value.clone())).collect();
    println!("{}", Value::Object(row));
}

/// A network of the zoo for square images, and its training parameters.
pub struct Case {
    pub network: &'static str,
    pub image: u32,
    pub classes: u32,
    pub batch: u64,
    pub precision: Precision,
}

const fn case(network: &'static str, precision: Precision) -> Case {
    Case { network, image: 224, classes: 1000, batch: 64, precision }
}

/// Cases, most important first.
pub const CASES: [Case; 5] = [
    case("resnet50", Precision::Bf16),
    case("resnet50", Precision::Tf32),
    case("resnet50", Precision::F32),
    case("vgg16", Precision::Bf16),
    case("resnet152", Precision::Bf16),
];

const fn small(precision: Precision) -> Case {
    Case { network: "resnet20", image: 8, classes: 10, batch: 2, precision }
}

/// Cases in tiny sizes.
pub const SMALL_CASES: [Case; 3] = [small(Precision::Bf16), small(Precision::Tf32), small(Precision::F32)];

impl Case {
    /// The case as fields of a row.
    pub fn facts(&self) -> Value {
        json!({
            "network": self.network,
            "image": self.image,
            "classes": self.classes,
            "batch": self.batch,
            "precision": self.precision.name(),
        })
    }

    fn spec(&self) -> NetworkSpec {
        let (name, image) = (self.network.to_owned(), [self.image; 2]);
        NetworkSpec { name, image, channels: 3, classes: self.classes }
    }

    /// Number of trained parameters.
    pub fn parameters(&self) -> Result<u64, Error> {
        let network = build(&self.spec()).map_err(Error::usage)?;
        Ok(network.all_parameters())
    }

    /// Opens the network on the device as the product does: cuDNN and cuBLAS, with all alternatives.
    pub fn open(&self) -> Result<NetworkWorkload, Error> {
        let options = CudaOptions { precision: Some(self.precision), ..CudaOptions::default() };
        // More than any batch: samples are made when read.
        let samples = 1 << 20;
        let image = Shape { height: self.image, width: self.image, channels: 3 };
        let set = |seed| synthetic(image, self.classes, samples, seed);
        let data = Split { train: set(1), test: set(2) };
        NetworkWorkload::of_spec(&self.spec(), data, Setup::Cuda(Gpu::open(options)?))
    }
}

/// The plan of a policy, if one fits; a search stops after some seconds.
pub fn plan(
    trace: &Trace,
    policy: Policy,
    budget: Bytes,
    link: Link,
    seconds: f64,
) -> Result<Option<Plan>, Error> {
    let begun = Instant::now();
    let expired = || begun.elapsed().as_secs_f64() > seconds;
    let limits = Limits { evaluations: None, expired: (seconds > 0.0).then_some(&expired) };
    let request = PlanRequest { limits, ..PlanRequest::new(budget, link, policy) };
    Ok(match plimsoll_tuner::plan(trace, &request)? {
        Outcome::Planned(plan) => Some(plan),
        Outcome::Infeasible(_) => None,
    })
}

/// A placeholder for a link that is not measured yet.
pub fn unmeasured() -> Link {
    Link::symmetric(UNMEASURED)
}

/// Memory when everything is kept, each op in its usual alternative.
fn peak(trace: &Trace) -> Bytes {
    trace.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes)
}

/// A budget between the floor, below which no plan fits (0), and keeping everything (1); `None` gives more than any device
/// has.
pub fn budget(trace: &Trace, share: Option<f64>) -> Bytes {
    let Some(share) = share else { return Bytes(1 << 50) };
    let floor = trace.memory().floor().map_or(Bytes::ZERO, |(_, bytes)| bytes);
    floor + Bytes(((peak(trace) - floor).0 as f64 * share) as u64)
}

/// Measures the link and a network's ops at a batch, each op in all its alternatives, keeping everything.
pub fn profile(task: &NetworkWorkload, batch: u64, small: bool) -> Result<Profile, Error> {
    let folder = tempfile::tempdir().map_err(|e| Error::io(&std::env::temp_dir(), "write", &e))?;
    let device = task.setup.device()?;
    // In addition to the usual alternatives' scratch; the link needs room for its largest transfers, twice.
    let scratch = Bytes(if small { 16 << 20 } else { 2 << 30 });
    let within = peak(&task.trace(batch)?) + scratch;
    // At least two rounds; an unshared GPU repeats its times.
    let (at_least, time) = if small { (3, Seconds::ZERO) } else { (6, Seconds(6.0)) };
    let lasting = Seconds::ZERO;
    let request = ProfileRequest {
        network: task.network.spec.clone(),
        optimizer: task.optimizer,
        machine: machine(&*device, None, &version()),
        budget: within,
        batches: vec![batch],
        effort: Effort { at_least, at_most: 12, time, lasting, bad: f64::INFINITY, ..Effort::default() },
        journal: folder.path().join("journal"),
        fresh: true,
    };
    let mut subject = |batch: u64, alternative: Option<u32>| {
        // One alternative suffices in tiny sizes.
        if small && alternative.is_some_and(|alternative| alternative > 0) {
            return Ok(None);
        }
        let program = task.program(batch, Mode::Train)?;
        let schedule = schedule_with(&program, alternative, |trace| {
            let plan = plan(trace, Policy::Keep, within, unmeasured(), 0.0)?;
            Ok::<_, Error>(plan.map(|plan| plan.schedule))
        })?;
        Ok::<_, SubjectError>(schedule.map(|schedule| (program, schedule)))
    };
    let mut watch = Watch { stop: &|| false, progress: &mut |_| {}, warn: &mut |what| eprintln!("{what}") };
    Ok(plimsoll_profiler::profile(&request, &mut subject, device, &mut watch)?)
}

/// A schedule on the device, ready to run.
pub struct Runner {
    executor: Executor,
    loaded: Loaded,
    images: Vec<u8>,
    labels: Vec<u8>,
    /// Iterations so far.
    iteration: u64,
}

impl Runner {
    /// Allocates memory and draws parameters; the trace's seconds decide when the state is copied.
    pub fn new(task: &NetworkWorkload, trace: &Trace, schedule: &Schedule) -> Result<Runner, Error> {
        let program = task.program(trace.batch, Mode::Train)?;
        let before = place_of_copy(trace, schedule, state_bytes(&program)).and_then(|place| place.before);
        let (executor, mut loaded) = task.executor_keeping_state(&[(&program, schedule)], before)?;
        let plan = TrainingPlan {
            network: task.network.spec.clone(),
            batch: trace.batch,
            virtual_workers: 1,
            seed: 1,
            rate: LearningRateSchedule::constant(0.0),
            update: UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.0 },
            weights: None,
        };
        let (executor, loaded) = Trainer::new(executor, loaded.remove(0), None, plan)?.into_parts();
        let stored = trace.tensors[program.images.index()].bytes.0;
        let images = noise(4 * (stored / program.feature_maps.bytes()) as usize);
        let label = |i: usize| (i as u32 % task.network.spec.classes).to_le_bytes();
        let labels = (0..program.label_count() as usize).flat_map(label).collect();
        let mut runner = Runner { executor, loaded, images, labels, iteration: 0 };
        runner.executor.write_images(&runner.loaded, &runner.images)?;
        runner.executor.write_labels(&runner.loaded, &runner.labels)?;
        Ok(runner)
    }

    /// Allocated memory.
    pub fn layout(&self) -> MemoryLayout {
        self.executor.layout()
    }

    /// Runs some iterations, and returns the time of each.
    pub fn iterations(&mut self, count: usize) -> Result<Vec<Seconds>, Error> {
        let mut all = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            self.executor.run_feeding(&self.loaded, self.iteration, &self.images, &self.labels)?;
            all.push(Seconds(start.elapsed().as_secs_f64()));
            self.iteration += 1;
        }
        Ok(all)
    }

    /// Mean loss of the last iteration.
    pub fn loss(&mut self) -> Result<f64, Error> {
        let mut bytes = [0; 12];
        self.executor.read_region(self.loaded.metrics(), &mut bytes)?;
        Ok(f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }
}

/// Iterations before the measurement. Two alternate, each with a slot for its own input; of each, the first loads kernels,
/// the second is captured, the third replays.
pub const WARM_UP: usize = 6;

/// Numbers in [-1, 1) of this many bytes, which repeat after a while; no measurement depends on the pictures.
fn noise(bytes: usize) -> Vec<u8> {
    let number = |i: u64| (i * 2_654_435_761 % 4093) as f32 / 2046.5 - 1.0;
    let few: Vec<u8> = (0..4093).flat_map(|i| number(i).to_le_bytes()).collect();
    let mut all = few.repeat(bytes.div_ceil(few.len()));
    all.truncate(bytes);
    all
}

/// Median and median absolute deviation.
pub fn centre_of(seconds: &[Seconds]) -> (Seconds, Seconds) {
    let centre = centre(seconds).expect("there are samples");
    (centre.median, centre.deviation)
}
