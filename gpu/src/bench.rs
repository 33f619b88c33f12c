//! What the measuring sections share: a network on the device, plans of it, and runs that are timed.
//!
//! An iteration is timed from the call that starts it to the return of the one that waits for its end. It runs as
//! `plimsoll run` trains on a GPU: it brings the next input from page-locked memory, which the host fills meanwhile, and copies
//! the state to the host. The learning rate is 0, so that every iteration computes on the same plain numbers.
//!
//! What it deliberately does not do: choose sizes or judge; the sections do.

use crate::ground::Ground;
use plimsoll::study::device::Gpu;
use plimsoll::study::error::{Error, Kind};
use plimsoll::study::version;
use plimsoll::study::workload::UNMEASURED;
use plimsoll::study::{NetworkWorkload, Setup, Workload};
use plimsoll_ir::network::{NetworkSpec, Shape};
use plimsoll_ir::profile::{LinkSamples, Profile};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Precision, Seconds, UpdateRule};
use plimsoll_networks::Mode;
use plimsoll_profiler::{
    Effort, ProfileRequest, SubjectError, Watch, batch_samples, centre, fractions, machine, schedule_with,
};
use plimsoll_runtime::cuda::survey;
use plimsoll_runtime::data::{Split, synthetic};
use plimsoll_runtime::{
    CudaOptions, Executor, LearningRateSchedule, Loaded, MemoryLayout, Trainer, TrainingPlan, state_bytes,
};
use plimsoll_tuner::state_copy::place_of_copy;
use plimsoll_tuner::{Limits, Outcome, Plan, PlanRequest, Policy};
use std::time::Instant;

/// Samples of the data, more than any batch: they are made when they are read.
const SAMPLES: usize = 1 << 20;

/// The device as the product opens it: cuDNN and cuBLAS, all alternatives to choose from.
pub fn cuda(precision: Precision) -> CudaOptions {
    CudaOptions { precision: Some(precision), ..CudaOptions::default() }
}

/// A network of the zoo for square images, on the device.
pub fn task(network: &str, side: u32, classes: u32, options: &CudaOptions) -> Result<NetworkWorkload, Error> {
    let spec = NetworkSpec { name: network.to_owned(), image: [side; 2], channels: 3, classes };
    let image = Shape { height: side, width: side, channels: 3 };
    let set = |seed| synthetic(image, classes, SAMPLES, seed);
    NetworkWorkload::of_spec(
        &spec,
        Split { train: set(1), test: set(2) },
        Setup::Cuda(Gpu::open(options.clone())?),
    )
}

/// A link before it was measured.
pub fn unmeasured() -> Link {
    Link::symmetric(UNMEASURED)
}

/// The plan of a policy, looked for until `seconds` are over; none where nothing fits.
pub fn plan(
    trace: &Trace,
    policy: Policy,
    budget: Bytes,
    link: Link,
    seconds: f64,
) -> Result<Option<Plan>, Error> {
    let begun = Instant::now();
    let expired = || begun.elapsed().as_secs_f64() > seconds;
    let searches = matches!(policy, Policy::Plimsoll | Policy::Optimal);
    let limits = Limits { evaluations: None, expired: searches.then_some(&expired) };
    let request = PlanRequest { limits, ..PlanRequest::new(budget, link, policy) };
    Ok(match plimsoll_tuner::plan(trace, &request)? {
        Outcome::Planned(plan) => Some(plan),
        Outcome::Infeasible(_) => None,
    })
}

/// More than any device has, and less than no number can say.
const UNLIMITED: Bytes = Bytes(1 << 50);

/// The plan that keeps everything; of a trace with seconds, each op in its fastest alternative.
pub fn keeping(trace: &Trace) -> Result<Plan, Error> {
    let measured = trace.ops.iter().any(|op| !op.alternatives.is_empty() && op.seconds > Seconds::ZERO);
    let policy = if measured { Policy::Plimsoll } else { Policy::Keep };
    let plan = plan(trace, policy, UNLIMITED, unmeasured(), KEEPING)?;
    plan.ok_or_else(|| Error::new(Kind::Internal, format_args!("everything does not fit {UNLIMITED}")))
}

/// Seconds to choose alternatives where everything fits.
const KEEPING: f64 = 2.0;

/// What keeping everything takes.
pub fn peak(trace: &Trace) -> Bytes {
    trace.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes)
}

/// A budget between the floor, below which no plan fits (0), and what keeping everything takes (1).
pub fn budget(trace: &Trace, share: f64) -> Bytes {
    let floor = trace.memory().floor().map_or(Bytes::ZERO, |(_, bytes)| bytes);
    floor + Bytes(((peak(trace) - floor).0 as f64 * share) as u64)
}

/// The largest batch, up to `limit`, whose trace takes no more than a budget by some measure; to a 64th of it.
///
/// Memory is linear in the batch but for scratch, so that a line through what is known leads there in a few steps; each of them
/// asks the libraries about every shape, which takes time.
pub fn largest(
    task: &NetworkWorkload,
    budget: Bytes,
    limit: u64,
    measure: impl Fn(&Trace) -> Bytes,
) -> Result<Option<u64>, Error> {
    let at = |batch: u64| Ok::<_, Error>(measure(&task.trace(batch)?));
    let mut low = (task.smallest_batch(), at(task.smallest_batch())?);
    if low.1 > budget {
        return Ok(None);
    }
    let (mut slope, mut high) = (f64::INFINITY, limit + 1);
    let mut next = (2 * low.0).max(8);
    while high - low.0 > 1 + low.0 / 64 {
        let batch = next.clamp(low.0 + 1, high - 1);
        let bytes = at(batch)?;
        slope = slope.min((bytes.0 as f64 - low.1.0 as f64) / (batch - low.0) as f64).max(1.0);
        if bytes <= budget {
            low = (batch, bytes);
        } else {
            high = batch;
        }
        let guess = low.0 + ((budget - low.1).0 as f64 / slope) as u64;
        // A guess that lies too high is tried a little lower the next time.
        next = if guess >= high { (low.0 + high) / 2 } else { guess };
    }
    Ok(Some(low.0))
}

/// A policy's schedule at a batch, or at one that is a little smaller, where it does not fit as well as its bytes do.
pub fn fitting(
    task: &NetworkWorkload,
    policy: Policy,
    budget: Bytes,
    batch: u64,
) -> Result<Option<(u64, Program, Schedule)>, Error> {
    for less in 0..8 {
        let batch = batch.saturating_sub((batch / 64).max(1) * less).max(task.smallest_batch());
        let program = task.program(batch, Mode::Train)?;
        if let Some(plan) = plan(&program.trace, policy, budget, unmeasured(), f64::INFINITY)? {
            return Ok(Some((batch, program, plan.schedule)));
        }
    }
    Ok(None)
}

/// Fractions of a largest batch, as `profile` measures at.
pub fn batches(task: &NetworkWorkload, largest: u64) -> Vec<u64> {
    let mut batches: Vec<u64> =
        fractions(largest).into_iter().map(|k| k.max(task.smallest_batch())).collect();
    batches.dedup();
    batches
}

/// Measures a network at some batches, and at the middle one of them every op in all its alternatives.
///
/// It keeps everything where the device has the memory, whatever the budget, which is faster than swapping.
pub fn profile(
    task: &NetworkWorkload,
    budget: Bytes,
    batches: Vec<u64>,
    ground: &Ground,
) -> Result<Profile, Error> {
    let folder = tempfile::tempdir().map_err(|e| Error::io(&std::env::temp_dir(), "write", &e))?;
    let device = task.setup.device()?;
    let spare = task.budget(None)?;
    let largest = batches.last().copied().unwrap_or(1);
    let kept = peak(&task.trace(largest)?) + Bytes(ground.pick(SCRATCH, SMALL_SCRATCH));
    let (policy, within) =
        if kept <= spare { (Policy::Keep, kept.max(budget)) } else { (Policy::Naive, budget) };
    // Two rounds at least; a GPU that is alone repeats itself.
    let (at_least, time) = ground.pick((6, Seconds(6.0)), (3, Seconds::ZERO));
    let lasting = Seconds::ZERO;
    let effort = Effort { at_least, at_most: 12, time, lasting, bad: f64::INFINITY, ..Effort::default() };
    let middle = batches.get(batches.len() / 2).copied();
    let request = ProfileRequest {
        network: task.network.spec.clone(),
        optimizer: task.optimizer,
        machine: machine(&*device, None, &version()),
        budget: within,
        batches,
        effort,
        journal: folder.path().join("journal"),
        fresh: true,
    };
    let mut subject = |batch: u64, alternative: Option<u32>| {
        // In tiny sizes one of them is enough.
        let most = ground.pick(u32::MAX, 1);
        if alternative.is_some_and(|alternative| Some(batch) != middle || alternative >= most) {
            return Ok(None);
        }
        let program = task.program(batch, Mode::Train)?;
        let schedule = schedule_with(&program, alternative, |trace| {
            let plan = plan(trace, policy, within, unmeasured(), f64::INFINITY)?;
            Ok::<_, Error>(plan.map(|plan| plan.schedule))
        })?;
        let schedule = match (schedule, alternative) {
            (None, None) => Some(
                task.plan(&program.trace, policy, within, unmeasured(), &plimsoll::study::Watch::silent())?
                    .schedule,
            ),
            (schedule, _) => schedule,
        };
        Ok::<_, SubjectError>(schedule.map(|schedule| (program, schedule)))
    };
    let mut watch = Watch { stop: &|| false, progress: &mut |_| {}, warn: &mut |what| eprintln!("{what}") };
    Ok(plimsoll_profiler::profile(&request, &mut subject, device, &mut watch)?)
}

/// What alternatives may take beside what keeping everything takes in the usual ones.
const SCRATCH: u64 = 2 << 30;
const SMALL_SCRATCH: u64 = 4 << 20;

/// The link, as it is measured on a network that is small beside the transfers.
pub fn link(ground: &Ground) -> Result<LinkSamples, Error> {
    let task = task("mlp", ground.pick(32, 8), 10, &cuda(Precision::F32))?;
    // Room for the largest transfers, twice.
    let budget = Bytes(ground.pick(512 << 20, 16 << 20));
    Ok(profile(&task, budget, vec![8], ground)?.link)
}

/// A schedule on the device, ready to run.
pub struct Runner {
    executor: Executor,
    loaded: Loaded,
    images: Vec<u8>,
    labels: Vec<u8>,
    /// Iterations so far that fed each other; none where the input is written before the clock starts.
    fed: Option<u64>,
}

impl Runner {
    /// Takes the memory and draws parameters, for iterations that are fed and copy the state, as in training; the trace's
    /// seconds say when that is copied.
    pub fn new(task: &NetworkWorkload, trace: &Trace, schedule: &Schedule) -> Result<Runner, Error> {
        let program = task.program(trace.batch, Mode::Train)?;
        let before = place_of_copy(trace, schedule, state_bytes(&program)).and_then(|place| place.before);
        let made = task.executor_keeping_state(&[(&program, schedule)], before)?;
        let mut runner = Runner::on(task, &program, made, Some(0))?;
        runner.write_input()?;
        Ok(runner)
    }

    /// The same for iterations alone: nothing is copied beside them, and their input is in its place when the clock starts.
    pub fn bare(task: &NetworkWorkload, batch: u64, schedule: &Schedule) -> Result<Runner, Error> {
        let program = task.program(batch, Mode::Train)?;
        Runner::on(task, &program, task.executor(&[(&program, schedule)])?, None)
    }

    fn on(
        task: &NetworkWorkload,
        program: &Program,
        (executor, mut loaded): (Executor, Vec<Loaded>),
        fed: Option<u64>,
    ) -> Result<Runner, Error> {
        let plan = TrainingPlan {
            network: task.network.spec.clone(),
            batch: program.trace.batch,
            virtual_workers: 1,
            seed: 1,
            rate: LearningRateSchedule::constant(0.0),
            update: UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.0 },
            weights: None,
        };
        let (executor, loaded) = Trainer::new(executor, loaded.remove(0), None, plan)?.into_parts();
        let numbers = program.trace.tensors[program.images.index()].bytes.0 / bytes_of_an_input(program);
        let images = match program.vocabulary() {
            None => noise(4 * numbers as usize),
            Some(tokens) => {
                (0..numbers).flat_map(|i| ((i % u64::from(tokens)) as i32).to_le_bytes()).collect()
            }
        };
        let classes = i64::from(task.network.spec.classes);
        let labels =
            (0..program.label_count() as i64).flat_map(|i| ((i % classes) as i32).to_le_bytes()).collect();
        Ok(Runner { executor, loaded, images, labels, fed })
    }

    /// What was allocated.
    pub fn layout(&self) -> MemoryLayout {
        self.executor.layout()
    }

    fn write_input(&mut self) -> Result<(), Error> {
        self.executor.write_images(&self.loaded, &self.images)?;
        Ok(self.executor.write_labels(&self.loaded, &self.labels)?)
    }

    /// One iteration.
    pub fn iterate(&mut self) -> Result<Seconds, Error> {
        if self.fed.is_none() {
            self.write_input()?;
        }
        let start = Instant::now();
        match &mut self.fed {
            Some(iteration) => {
                self.executor.run_feeding(&self.loaded, *iteration, &self.images, &self.labels)?;
                *iteration += 1;
            }
            None => self.executor.run(&self.loaded)?,
        }
        Ok(Seconds(start.elapsed().as_secs_f64()))
    }

    /// So many iterations.
    pub fn iterations(&mut self, count: usize) -> Result<Vec<Seconds>, Error> {
        (0..count).map(|_| self.iterate()).collect()
    }

    /// The mean loss of the last iteration.
    pub fn loss(&mut self) -> Result<f64, Error> {
        let mut bytes = [0; 12];
        self.executor.read_region(self.loaded.metrics(), &mut bytes)?;
        Ok(f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }

    /// The trace with the median seconds of every op, and no alternative but the usual, the only one that is timed.
    pub fn timed_trace(&mut self, count: usize) -> Result<Trace, Error> {
        let mut timelines = Vec::new();
        // The first is enqueued command by command, and the others are a graph, as those of training are.
        for _ in 0..=count {
            self.write_input()?;
            timelines.push(self.executor.run_timed(&self.loaded)?);
        }
        timelines.remove(0);
        let mut trace = self.loaded.trace().clone();
        let samples = batch_samples(&self.loaded, &timelines, Seconds::ZERO);
        for (op, samples) in trace.ops.iter_mut().zip(samples.ops) {
            op.seconds = middle(&samples.seconds).0;
            op.alternatives.clear();
        }
        Ok(trace)
    }
}

/// What the device stores of a number of an image, or of a token.
fn bytes_of_an_input(program: &Program) -> u64 {
    if program.vocabulary().is_some() { 4 } else { program.feature_maps.bytes() }
}

/// So many bytes of numbers in [-1, 1) that repeat after a while; nothing here depends on the pictures.
fn noise(bytes: usize) -> Vec<u8> {
    let number = |i: u64| (i * 2_654_435_761 % 4093) as f32 / 2046.5 - 1.0;
    let few: Vec<u8> = (0..4093).flat_map(|i| number(i).to_le_bytes()).collect();
    let mut all = few.repeat(bytes.div_ceil(few.len()));
    all.truncate(bytes);
    all
}

/// Median, and the median absolute deviation as a share of it.
pub fn middle(seconds: &[Seconds]) -> (Seconds, f64) {
    let centre = centre(seconds).expect("there are samples");
    (centre.median, centre.deviation / centre.median)
}

/// Iterations of several in turn, so many rounds of `count` each after a warm-up that captures them: the seconds of each.
pub fn in_turn(runners: &mut [Runner], rounds: usize, count: usize) -> Result<Vec<Vec<Seconds>>, Error> {
    let mut seconds = vec![Vec::new(); runners.len()];
    for round in 0..=rounds {
        for (runner, seconds) in runners.iter_mut().zip(&mut seconds) {
            let taken = runner.iterations(if round == 0 { WARM_UP } else { count })?;
            seconds.extend(taken.into_iter().filter(|_| round > 0));
        }
    }
    Ok(seconds)
}

/// Iterations before any that counts. Two take turns, each with a slot for the input of its own; of each, the first loads
/// kernels, the second is captured, the third replays.
pub const WARM_UP: usize = 6;

/// Device memory, as NVML sees it; nothing where it is not there.
pub struct Meter {
    /// Free memory before this process held anything.
    untouched: Option<Bytes>,
    /// What context and libraries take.
    pub context: Option<Bytes>,
}

impl Meter {
    /// Does what opens the device, and sees what that takes.
    pub fn around<T>(open: impl FnOnce() -> Result<T, Error>) -> Result<(T, Meter), Error> {
        let untouched = free();
        let opened = open()?;
        let context = Option::zip(untouched, free()).map(|(before, after)| before.saturating_sub(after));
        Ok((opened, Meter { untouched, context }))
    }

    /// What is held now, with context and libraries.
    pub fn held(&self) -> Option<Bytes> {
        Option::zip(self.untouched, free()).map(|(before, now)| before.saturating_sub(now))
    }
}

/// Free memory of the device.
fn free() -> Option<Bytes> {
    survey().ok()?.devices.first()?.1.memory_bytes.now
}
