//! A device as a bench: all batch sizes loaded at once, run in any order.
//!
//! Programs of one network share their resident regions, so one executor holds the schedules of all batch sizes, in one
//! allocation of the largest, and changing the batch size between two iterations costs nothing. Parameters are small random
//! numbers and the learning rate is 0, so that every iteration computes on the same plain numbers: no NaN, and no denormals,
//! which make arithmetic slow.

use crate::alternatives::most_alternatives;
use crate::bench::Bench;
use crate::error::ProfileError;
use crate::link::{self, Probe};
use crate::rounds::{Progress, Stage};
use crate::{Subject, Watch};
use plimsoll_ir::health::Health;
use plimsoll_ir::philox::{philox4x32, unit_f32};
use plimsoll_ir::profile::{
    AlternativeSamples, BatchSamples, BesideSamples, LinkSamples, OpSamples, PageableSamples, TransferSample,
};
use plimsoll_ir::program::{Hyper, Init, Program, Region, Role};
use plimsoll_ir::schedule::{Command, Link, Schedule, Stream, moved};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds, UpdateRule};
use plimsoll_runtime::{Begun, Device, EventId, Executor, IterationId, Loaded, MemoryLayout, Room, Whole};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A device, and the programs and schedules to measure on it.
pub(crate) struct DeviceBench<'s, 'c> {
    /// Device, until it is prepared.
    device: Option<Box<dyn Device>>,
    subject: &'s mut Subject<'c>,
    budget: Bytes,
    /// Link of the probes' schedules: its duplex decides if the executor lets both directions run at once.
    link: Link,
    /// Executor, once it is prepared.
    executor: Option<Executor>,
    batches: Vec<Prepared>,
    overhead: Seconds,
    /// `true` once ops have run for a while.
    awake: bool,
    /// Bytes that the budget leaves besides the resident bytes.
    pool: Bytes,
}

/// One batch size.
pub(crate) struct Prepared {
    pub loaded: Loaded,
    /// Same batch size with ops in their alternatives of a number.
    alternatives: Vec<(u32, Loaded)>,
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Prepared {
    /// Returns a loaded program with meaningless input.
    pub fn new(program: &Program, loaded: Loaded) -> Prepared {
        Prepared { loaded, alternatives: Vec::new(), images: noise(program), labels: labels(program) }
    }

    /// Writes the input of an iteration of this batch size.
    pub fn write_input(&self, executor: &mut Executor, loaded: &Loaded) -> Result<(), ProfileError> {
        executor.write_images(loaded, &self.images)?;
        Ok(executor.write_labels(loaded, &self.labels)?)
    }
}

impl<'s, 'c> DeviceBench<'s, 'c> {
    /// Returns a bench that runs a subject on a device, within a budget.
    pub fn new(
        device: Box<dyn Device>,
        subject: &'s mut Subject<'c>,
        budget: Bytes,
        paced: Option<Link>,
    ) -> DeviceBench<'s, 'c> {
        DeviceBench {
            device: Some(device),
            subject,
            budget,
            // Without a pace the device does not order the directions, and the rate only informs a reader of the schedule.
            link: paced.unwrap_or(Link::symmetric(BytesPerSecond(1e9))),
            executor: None,
            batches: Vec::new(),
            overhead: Seconds::ZERO,
            awake: false,
            pool: Bytes::ZERO,
        }
    }
}

/// The order of calls that [`DeviceBench`] requires.
const PREPARED: &str = "a bench is prepared before it measures";

impl Bench for DeviceBench<'_, '_> {
    fn calibrate(&mut self) -> Result<Seconds, ProfileError> {
        calibrate(&mut **self.device.as_mut().expect("a bench is calibrated before it is prepared"))
    }

    fn prepare(&mut self, batches: &[u64], overhead: Seconds) -> Result<(), ProfileError> {
        self.overhead = overhead;
        let mut layout = MemoryLayout::default();
        let mut subjects = Vec::new();
        for batch in batches {
            let mut make = |alternative| {
                let made = (self.subject)(*batch, alternative);
                let made = made.map_err(|source| ProfileError::Subject { batch: *batch, source })?;
                if let Some((program, schedule)) = &made {
                    layout = layout.union(MemoryLayout::of(program, schedule));
                }
                Ok::<_, ProfileError>(made)
            };
            let (program, schedule) = make(None)?.expect("there is always one of the usual alternatives");
            let mut alternatives = Vec::new();
            for number in 0..most_alternatives(&program.trace) {
                alternatives
                    .extend(make(Some(number))?.map(|(program, schedule)| (number, program, schedule)));
            }
            subjects.push((program, schedule, alternatives));
        }
        self.pool = self.budget.saturating_sub(layout.resident);
        for size in link::sizes(self.pool)? {
            for probe in [Probe::alone(size, self.link), Probe::together(size, self.link)] {
                layout = layout.union(MemoryLayout::of(&probe.program, &probe.schedule));
            }
        }
        if let Some(size) = link::size_beside(self.pool) {
            let probe = Probe::beside(size, self.link, [1, 1]);
            layout = layout.union(MemoryLayout::of(&probe.program, &probe.schedule));
        }
        let device = self.device.take().expect("a bench is prepared once");
        let mut executor = Executor::new(device, layout)?;
        for (program, schedule, alternatives) in &subjects {
            let loaded = executor.load(program, schedule)?;
            let load = |(number, program, schedule): &(u32, Program, Schedule)| {
                Ok((*number, executor.load(program, schedule)?))
            };
            let alternatives = alternatives.iter().map(load).collect::<Result<Vec<_>, ProfileError>>()?;
            self.batches.push(Prepared { alternatives, ..Prepared::new(program, loaded) });
        }
        if let Some(first) = self.batches.first() {
            initialise(&mut executor, &first.loaded)?;
        }
        self.executor = Some(executor);
        Ok(())
    }

    fn link(&mut self, watch: &mut Watch<'_>) -> Result<LinkSamples, ProfileError> {
        let executor = self.executor.as_mut().expect(PREPARED);
        let mut samples = link::no_samples();
        let sizes = link::sizes(self.pool)?;
        let largest = Probe::alone(*sizes.last().expect("there is a size"), self.link);
        let largest = largest.load(executor)?;
        wake(executor, &largest)?;
        for (done, size) in sizes.iter().enumerate() {
            let mut run = |probe: &Probe, together: bool, into: [&mut Vec<_>; 2]| {
                let loaded = probe.load(executor)?;
                let [out, back] = into;
                for repetition in 0..=link::RUNS {
                    if (watch.stop)() {
                        return Err(ProfileError::Interrupted);
                    }
                    let timeline = executor.run_timed(&loaded)?;
                    if repetition > 0 {
                        let [offloads, prefetches] = probe.samples(&timeline, together);
                        out.extend(offloads);
                        back.extend(prefetches);
                    }
                }
                Ok(())
            };
            run(
                &Probe::alone(*size, self.link),
                false,
                [&mut samples.offload_alone, &mut samples.prefetch_alone],
            )?;
            run(
                &Probe::together(*size, self.link),
                true,
                [&mut samples.offload_together, &mut samples.prefetch_together],
            )?;
            (watch.progress)(Progress { stage: Stage::Link, done: done + 1, of: sizes.len() });
            if !(link::go_on(&samples.offload_alone) && link::go_on(&samples.prefetch_alone)) {
                break;
            }
        }
        samples.pageable = pageable(executor, &samples.offload_alone)?;
        if let Some(size) = link::size_beside(self.pool) {
            // No larger than a size that took long enough: on a slow link a larger transfer takes its time and shows nothing
            // new.
            let largest = samples.offload_alone.last().map_or(size, |sample| sample.bytes);
            let size = size.min(largest.max(link::LEAST_BESIDE));
            samples.beside = beside(executor, size, self.link, self.overhead, &samples, watch)?;
        }
        // The stop may have hurried the last of them.
        if (watch.stop)() { Err(ProfileError::Interrupted) } else { Ok(samples) }
    }

    fn warm_up(&mut self, position: usize, alternative: Option<u32>) -> Result<Option<Health>, ProfileError> {
        let awake = std::mem::replace(&mut self.awake, true);
        let (executor, loaded) = self.ready(position, alternative)?;
        if !awake {
            wake(executor, loaded)?;
        }
        Ok(executor.run_watched(loaded)?)
    }

    fn alternatives(&self, position: usize) -> Vec<u32> {
        self.batches[position].alternatives.iter().map(|(number, _)| *number).collect()
    }

    fn whole(&mut self, position: usize) -> Result<Whole, ProfileError> {
        let (executor, loaded) = self.ready(position, None)?;
        Ok(executor.run_whole(loaded)?)
    }

    fn iterate(&mut self, position: usize, alternative: Option<u32>) -> Result<BatchSamples, ProfileError> {
        let overhead = self.overhead;
        let (executor, loaded) = self.ready(position, alternative)?;
        let timeline = executor.run_timed(loaded)?;
        let mut samples = batch_samples(loaded, &[timeline], overhead);
        if let Some(number) = alternative {
            keep_alternative(&mut samples, loaded.trace(), number);
        }
        Ok(samples)
    }
}

impl DeviceBench<'_, '_> {
    /// Writes the inputs of an iteration; returns the executor and the loaded program.
    fn ready(
        &mut self,
        position: usize,
        alternative: Option<u32>,
    ) -> Result<(&mut Executor, &Loaded), ProfileError> {
        let executor = self.executor.as_mut().expect(PREPARED);
        let prepared = &self.batches[position];
        let loaded = match alternative {
            None => &prepared.loaded,
            Some(number) => {
                &prepared
                    .alternatives
                    .iter()
                    .find(|(n, _)| *n == number)
                    .expect("one of those that can be measured")
                    .1
            }
        };
        prepared.write_input(executor, loaded)?;
        Ok((executor, loaded))
    }
}

/// Keeps only the samples of alternatives of a number: the rest only completed the iteration.
fn keep_alternative(samples: &mut BatchSamples, trace: &Trace, number: u32) {
    samples.iteration_seconds.clear();
    samples.other_seconds.clear();
    samples.offloaded_bytes = None;
    for (samples, op) in samples.ops.iter_mut().zip(&trace.ops) {
        let name = op.alternatives.get(number as usize).map(|alternative| &alternative.name);
        samples.seconds.clear();
        samples.alternatives.retain(|alternative| Some(&alternative.name) == name);
    }
}

/// Time for which a discrete device is kept busy before it is timed.
const WAKING: Duration = Duration::from_millis(300);

/// Runs an iteration until a sleeping device is awake: at rest its link runs at the lowest rate, and its clocks too. A
/// processor does not sleep while this runs on it.
fn wake(executor: &mut Executor, loaded: &Loaded) -> Result<(), ProfileError> {
    let begun = Instant::now();
    while executor.device().pins() && begun.elapsed() < WAKING {
        executor.run_timed(loaded)?;
    }
    Ok(())
}

/// Times copies of pageable host memory of the transferred sizes; `None` if the device treats all host memory alike.
fn pageable(
    executor: &mut Executor,
    transferred: &[TransferSample],
) -> Result<Option<PageableSamples>, ProfileError> {
    if !executor.device().pins() {
        return Ok(None);
    }
    let sizes: BTreeSet<Bytes> = transferred.iter().map(|sample| sample.bytes).collect();
    let mut samples = PageableSamples::default();
    for bytes in sizes {
        // Its pages are mapped, like those of any buffer used before.
        let mut host = vec![1u8; bytes.0 as usize];
        for repetition in 0..=link::RUNS {
            let [prefetch, offload] = executor.time_plain_copies(&mut host)?;
            if repetition > 0 {
                samples.prefetch.push(TransferSample { bytes, seconds: prefetch });
                samples.offload.push(TransferSample { bytes, seconds: offload });
            }
        }
    }
    Ok(Some(samples))
}

/// Times an op that is bound by memory: alone, during offloads, during prefetches, during both; `None` if the op takes no
/// time.
fn beside(
    executor: &mut Executor,
    size: Bytes,
    planned: Link,
    overhead: Seconds,
    known: &LinkSamples,
    watch: &mut Watch<'_>,
) -> Result<Option<BesideSamples>, ProfileError> {
    let mut run = |counts: [u32; 2]| {
        let probe = Probe::beside(size, planned, counts);
        let loaded = probe.load(executor)?;
        wake(executor, &loaded)?;
        let mut seconds = Vec::new();
        for repetition in 0..=link::RUNS {
            if (watch.stop)() {
                return Err(ProfileError::Interrupted);
            }
            let timeline = executor.run_timed(&loaded)?;
            if repetition > 0 {
                seconds.extend(probe.touches(&timeline, overhead));
            }
        }
        Ok(seconds)
    };
    let alone = run([0, 0])?;
    if alone.is_empty() {
        return Ok(None);
    }
    let lasts = alone.iter().copied().sum::<Seconds>() * (1.0 / link::RUNS as f64);
    let out = link::count_beside(size, lasts, &known.offload_alone);
    let back = link::count_beside(size, lasts, &known.prefetch_alone);
    Ok(Some(BesideSamples {
        bytes: size,
        alone,
        offloading: run([out, 0])?,
        prefetching: run([0, back])?,
        both: run([out, back])?,
    }))
}

/// Returns the samples of one batch size from timed iterations: each op's first run (recomputes excluded), less the overhead
/// of timing it, by the alternative that ran. Ops that the device joins share one overhead.
pub fn batch_samples(loaded: &Loaded, timelines: &[Timeline], overhead: Seconds) -> BatchSamples {
    let (trace, schedule) = (loaded.trace(), loaded.schedule());
    let mut ops: Vec<OpSamples> = trace
        .ops
        .iter()
        .map(|op| OpSamples {
            name: op.name.clone(),
            kind: op.kind.clone(),
            phase: op.phase,
            flops: op.flops,
            seconds: Vec::with_capacity(timelines.len()),
            alternatives: Vec::new(),
        })
        .collect();
    let mut iteration_seconds = Vec::with_capacity(timelines.len());
    for timeline in timelines {
        for (id, command) in schedule.numbered_commands() {
            if let Command::Compute { op, again: false, alternative, .. } = command {
                let span = timeline.spans[id.index()];
                let overhead = overhead.0 * loaded.share_of_events(id);
                let seconds = Seconds((span.end.0 - span.start.0 - overhead).max(0.0));
                let samples = &mut ops[op.index()];
                match alternative.map(|number| &trace.ops[op.index()].alternatives[number as usize]) {
                    None => samples.seconds.push(seconds),
                    Some(alternative) => {
                        match samples.alternatives.iter_mut().find(|known| known.name == alternative.name) {
                            Some(known) => known.seconds.push(seconds),
                            None => samples.alternatives.push(AlternativeSamples {
                                name: alternative.name.clone(),
                                workspace_bytes: alternative.workspace_bytes,
                                seconds: vec![seconds],
                            }),
                        }
                    }
                }
            }
        }
        iteration_seconds.push(timeline.spans.iter().map(|span| span.end).fold(Seconds::ZERO, Seconds::max));
    }
    let leaves = |command: &Command| match command {
        Command::Offload { .. } => moved(trace, command).map(|(_, piece)| Bytes(piece.end - piece.start)),
        _ => None,
    };
    let offloaded_bytes = Some(schedule.commands.iter().filter_map(leaves).sum());
    let other_seconds =
        timelines.iter().map(|timeline| other_seconds(schedule, timeline, overhead)).collect();
    BatchSamples { iteration_seconds, other_seconds, offloaded_bytes, ops, ..BatchSamples::none(trace.batch) }
}

/// Returns the compute stream's time in waits for transfers, and in recomputed ops, in one iteration.
fn other_seconds(schedule: &Schedule, timeline: &Timeline, overhead: Seconds) -> Seconds {
    let mut other = 0.0f64;
    let mut last_end: Option<f64> = None;
    for (id, command) in schedule.numbered_commands() {
        let Command::Compute { again, ref waits, .. } = *command else { continue };
        let span = timeline.spans[id.index()];
        if again {
            other += (span.end.0 - span.start.0 - overhead.0).max(0.0);
        }
        // The time between two commands without waits is the cost of recording their events, which no iteration of training
        // has.
        if let Some(end) = last_end.filter(|_| !waits.is_empty()) {
            other += (span.start.0 - end - overhead.0).max(0.0);
        }
        last_end = Some(span.end.0);
    }
    Seconds(other)
}

/// Events in one calibration.
const EVENTS: u32 = 256;

const CALIBRATIONS: u32 = 9;

/// Measures the cost of an event for the stream that records it: the time between two with nothing between them. The lower
/// quartile, so that no more is subtracted than is certain: a stream that catches up with the thread that feeds it waits,
/// which no timed op does.
fn calibrate(device: &mut dyn Device) -> Result<Seconds, ProfileError> {
    device.allocate(MemoryLayout::default())?;
    device.reserve(Room { events: EVENTS, commands: EVENTS as usize })?;
    let mut costs = Vec::new();
    for _ in 0..CALIBRATIONS {
        // Device::begin with one id for the same commands each time.
        if device.begin(IterationId { number: u32::MAX, timed: true }) == Begun::Enqueue {
            (0..EVENTS).for_each(|event| device.record(Stream::Compute, EventId(event)));
        }
        device.synchronise()?;
        let times: Vec<Seconds> = (0..EVENTS).map(|event| device.event_seconds(EventId(event))).collect();
        costs.extend(times.windows(2).map(|pair| pair[1].0 - pair[0].0));
    }
    costs.sort_unstable_by(f64::total_cmp);
    Ok(Seconds(costs[costs.len() / 4].max(0.0)))
}

fn images_bytes(program: &Program) -> Bytes {
    program.trace.tensors[program.images.index()].bytes
}

/// Returns numbers in [-1, 1), the same every time, as f32 bytes; or tokens.
fn noise(program: &Program) -> Vec<u8> {
    let vocabulary = program.vocabulary();
    let of_number = vocabulary.map_or(program.feature_maps.bytes(), |_| 4);
    let numbers = uniform(0).take((images_bytes(program).0 / of_number) as usize);
    match vocabulary {
        None => numbers.flat_map(f32::to_le_bytes).collect(),
        Some(vocabulary) => {
            let token = |number: f32| ((number + 1.0) / 2.0 * vocabulary as f32) as u32;
            numbers.flat_map(|number| token(number).min(vocabulary - 1).to_le_bytes()).collect()
        }
    }
}

/// Returns label 0 everywhere: every network has a class 0.
fn labels(program: &Program) -> Vec<u8> {
    vec![0; 4 * program.label_count() as usize]
}

/// Returns an endless stream of numbers in [-1, 1).
fn uniform(stream: u32) -> impl Iterator<Item = f32> {
    (0u64..).flat_map(move |i| {
        let words = philox4x32(1, [i as u32, (i >> 32) as u32, 0, stream]);
        words.map(|word| 2.0 * unit_f32(word) - 1.0)
    })
}

/// Draws parameters of the right size, sets statistics to their start, and the learning rate to 0.
pub(crate) fn initialise(executor: &mut Executor, loaded: &Loaded) -> Result<(), ProfileError> {
    let rule = UpdateRule::usual(Region::optimizer_of(loaded.resident()));
    let hyper = Hyper { seed_low: 1, seed_high: 0, step: 0, update: rule.numbers(0.0, 0) };
    for (number, region) in (0..).zip(loaded.resident()) {
        let count = region.elements() as usize;
        let scaled = |scale: f32| uniform(number).take(count).map(|v| v * scale).collect::<Vec<f32>>();
        let values = match region.role {
            Role::Parameter(Init::Constant(value)) | Role::State(value) => vec![value; count],
            Role::Parameter(Init::Uniform(bound)) => scaled(bound),
            // A uniform distribution within sqrt(3) times the deviation has the same deviation.
            Role::Parameter(Init::Normal(deviation)) => scaled(deviation * 3f32.sqrt()),
            Role::Momentum | Role::FirstMoment | Role::SecondMoment => continue,
            Role::Gradient | Role::Hyper | Role::Metrics => continue,
        };
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        executor.write_region(region, &bytes)?;
    }
    Ok(executor.write_region(loaded.hyper(), &hyper.to_bytes())?)
}
