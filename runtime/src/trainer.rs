//! The trainer: initial parameters, batches in, metrics out, checkpoints, evaluation.
//!
//! An iteration writes images, labels and [`Hyper`], runs the schedule and reads the metrics. While the device runs, the
//! next batch is read from the data set. If the program was loaded for it, its state is copied to the host during the next
//! iteration (`state.rs`), and an iteration is finished, and reported, once its copy is there: training can continue from it
//! even if the device fails. Everything drawn (parameters, epoch orders, dropout) is drawn from the plan's seed by counter,
//! so the results depend only on the plan and the data: not on the schedule, nor on where a run was interrupted.
//!
//! If an update is made of several virtual workers, the iterations are those of `trainer/share.rs`.
//!
//! Deliberately does not choose a batch size, a rate or a schedule.

mod before;
mod meeting;
mod on_devices;
mod passes;
mod saved;
mod share;
mod source;
mod updates;
mod weights;

use crate::checkpoint::DataName;
use crate::data::{Batch, Dataset};
use crate::device::MemoryLayout;
use crate::error::{Error, Kind};
use crate::executor::{Executor, Iteration, Loaded};
use crate::group::Group;
use crate::state::Half;
use crate::training_plan::TrainingPlan;
use bytemuck::cast_slice_mut;
use plimsoll_ir::Seconds;
use plimsoll_ir::health::Health;
use plimsoll_ir::network::{NetworkSpec, Shape};
use plimsoll_ir::philox::{philox4x32, unit_f32};
use plimsoll_ir::program::{Hyper, Init, Region, Role};
use plimsoll_ir::simulate::Timeline;
use share::Share;
use source::{Feed, Place, Source};
use std::time::Instant;
pub use weights::Weights;

/// Separates the draws of parameters from those of orders and dropout.
const INIT_STREAM: u32 = 0x494e_4954;

/// Report on an iteration, once it is finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// The iteration, from 0.
    pub step: u64,
    /// Its epoch, from 0.
    pub epoch: u64,
    pub learning_rate: f64,
    /// Mean loss of the batch, before the update.
    pub loss: f32,
    /// Share of the batch that was classified correctly, before the update.
    pub accuracy: f32,
    /// From the first command to the end of the last.
    pub seconds: Seconds,
    /// Time from the end of the previous iteration to the first command of this one: writing the input, reading the metrics
    /// (Δ of AccUDNN eq. 3).
    pub between: Seconds,
    /// Part of `seconds` in which compute threads were ready to run while other processes had their processors; 0 if it is
    /// not counted.
    pub waited: Seconds,
}

/// Result of a call of [`Trainer::train`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All requested iterations are done.
    Finished,
    /// It was asked to pause; [`Trainer::train`] continues from there.
    Paused,
}

/// Results of a network on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss over all labels.
    pub loss: f64,
    /// Labels that were predicted correctly.
    pub correct: u64,
    /// Labels: one for each sample, or for each of its pixels or tokens.
    pub labels: u64,
    /// Samples evaluated.
    pub samples: u64,
}

impl Evaluation {
    /// Share of the labels that were predicted correctly.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.labels.max(1) as f64
    }
}

/// A network in training on an executor: fills in the samples and the learning rate of each iteration, reads its loss, and
/// saves and restores everything that training depends on.
///
/// ```
/// use plimsoll_ir::network::NetworkSpec;
/// use plimsoll_ir::program::KernelAlternative;
/// use plimsoll_ir::schedule::Link;
/// use plimsoll_ir::{Bytes, BytesPerSecond, Optimizer, UpdateRule};
/// use plimsoll_networks::{LowerOptions, build, lower};
/// use plimsoll_runtime::cpu::kernels::workspace_bytes;
/// use plimsoll_runtime::data::digits;
/// use plimsoll_runtime::{Cpu, CpuOptions, Executor, LearningRateSchedule, MemoryLayout, Trainer, TrainingPlan};
/// use plimsoll_tuner::{PlanRequest, Policy, plan};
///
/// let spec = NetworkSpec { name: "mlp".into(), image: [8, 8], channels: 1, classes: 10 };
/// let alternatives = |call: &_| KernelAlternative::sole(workspace_bytes(call, 1));
/// let program = lower(&build(&spec)?, 8, &LowerOptions { alternatives: &alternatives, ..LowerOptions::default() })?;
/// let link = Link::symmetric(BytesPerSecond(10e9));
/// let planned = plan(&program.trace, &PlanRequest::new(Bytes(1 << 20), link, Policy::Plimsoll))?;
/// let schedule = &planned.plan().ok_or("a mebibyte is enough")?.schedule;
///
/// let layout = MemoryLayout::of(&program, schedule);
/// let mut executor = Executor::new(Box::new(Cpu::new(CpuOptions::default())), layout)?;
/// let loaded = executor.load(&program, schedule)?;
/// let rate = LearningRateSchedule::constant(0.05);
/// let update = UpdateRule::usual(Optimizer::Sgd);
/// let how = TrainingPlan { network: spec, batch: 8, virtual_workers: 1, seed: 1, rate, update, weights: None };
/// let mut trainer = Trainer::new(executor, loaded, None, how)?;
/// // Ten iterations; between them the last function returns `true` to pause.
/// trainer.train(&*digits().train, 10, &mut |seen| println!("loss {}", seen.loss), &|| false)?;
/// assert_eq!(trainer.step(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer {
    /// State shared with other workers or accumulated; `None` in a plain training. Dropped first: the other workers learn of
    /// the end of this one before its device is freed.
    share: Option<Box<Share>>,
    executor: Executor,
    train: Loaded,
    evaluate: Option<Loaded>,
    plan: TrainingPlan,
    /// Version of the program, as workers compare it.
    version: String,
    step: u64,
    /// Data set of the training so far, and the iterations of its epoch.
    data: Option<(DataName, u64)>,
    feed: Option<Feed>,
    /// Newest whole copy of the state.
    copied: Option<Copied>,
    /// Copy that the running iteration makes, and its stamp.
    copying: Option<(Copied, [u8; Hyper::BYTES])>,
    /// Input that is already on the device, brought by the previous iteration or pass.
    fed: Option<Place>,
    /// Slot that was filled last, and its input.
    filled: Option<(Half, Place)>,
    /// `true` if the device's health is read in the next iteration; below, the last health read.
    look: bool,
    seen: Option<Health>,
}

/// A copy of the state: its place, and the iterations done in it.
#[derive(Clone, Copy)]
struct Copied {
    half: Half,
    step: u64,
}

/// Results of an iteration, a pass or an evaluated batch: mean loss of its labels that count, number of those that were
/// predicted correctly, and of all that count.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Metrics([f32; 3]);

impl Metrics {
    fn read(from: impl FnOnce(&mut [u8]) -> Result<(), Error>) -> Result<Metrics, Error> {
        let mut numbers = [0.0; 3];
        from(cast_slice_mut(&mut numbers))?;
        Ok(Metrics(numbers))
    }

    /// Number of labels that count.
    fn counted(self) -> f32 {
        self.0[2]
    }
}

/// Sums over all labels that count, added in this order: losses, correct predictions, labels.
fn sums(all: &[Metrics]) -> [f64; 3] {
    all.iter().fold([0.0; 3], |[loss, correct, counted], one| {
        let [own, own_correct, own_counted] = one.0.map(f64::from);
        [loss + own * own_counted, correct + own_correct, counted + own_counted]
    })
}

/// Mean loss over all labels that count.
fn mean_loss(all: &[Metrics]) -> f32 {
    let [loss, _, counted] = sums(all);
    (loss / counted.max(1.0)) as f32
}

impl Trainer {
    /// Starts a new training: parameters are drawn, and all other resident regions get their initial values.
    ///
    /// Errors: the plan has a different batch or optimizer, or several virtual workers, which [`Trainer::sharing`] takes.
    pub fn new(
        executor: Executor,
        train: Loaded,
        evaluate: Option<Loaded>,
        plan: TrainingPlan,
    ) -> Result<Trainer, Error> {
        let (what, workers) = ("virtual workers of a plain training", plan.virtual_workers);
        Error::unless(workers == 1, what, 1, workers)?;
        Trainer::with(executor, train, evaluate, plan, None)
    }

    /// Creates one worker of a group, as [`Trainer::new`] does: each update is made of the gradients of all virtual workers
    /// of the plan, of which this worker has a part. All results (parameters, optimizer state, running statistics) are the
    /// same bits in every group.
    ///
    /// All workers make the same calls of [`Trainer::train`], except that worker 0 may pause and continue; worker 0's state
    /// is sent to all at the first call. If the workers' devices sum by themselves ([`crate::Device::collective`]), they add
    /// in an order of their choice: other groups may give different bits.
    ///
    /// Errors: those of `new`; the program was not loaded in two parts ([`Executor::load_apart`]); there are more workers
    /// than virtual workers.
    pub fn sharing(
        mut executor: Executor,
        train: Loaded,
        evaluate: Option<Loaded>,
        plan: TrainingPlan,
        group: Box<dyn Group>,
    ) -> Result<Trainer, Error> {
        let share = Share::new(group, &mut executor, &train, &plan)?;
        Trainer::with(executor, train, evaluate, plan, Some(Box::new(share)))
    }

    fn with(
        executor: Executor,
        train: Loaded,
        evaluate: Option<Loaded>,
        plan: TrainingPlan,
        share: Option<Box<Share>>,
    ) -> Result<Trainer, Error> {
        let batch = train.batch();
        Error::unless(plan.batch == batch, "batch of the training plan", batch, plan.batch)?;
        let (states, planned) = (Region::optimizer_of(train.resident()), plan.update.optimizer());
        Error::unless(states == planned, "optimizer of the training plan", states, planned)?;
        if let Some(evaluate) = evaluate.as_ref().filter(|e| e.resident() != train.resident()) {
            let found = format!("{} regions of another network", evaluate.resident().len());
            let (what, expected) = ("resident part of the evaluation", train.resident().len());
            return Err(Error::mismatch(what, expected, found));
        }
        let mut trainer = Trainer {
            executor,
            train,
            evaluate,
            plan,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            share,
            step: 0,
            data: None,
            feed: None,
            copied: None,
            copying: None,
            fed: None,
            filled: None,
            look: true,
            seen: None,
        };
        trainer.initialise()?;
        Ok(trainer)
    }

    /// Iterations done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The network and how it is trained.
    pub fn plan(&self) -> &TrainingPlan {
        &self.plan
    }

    /// Device health in the middle of the first iteration after the previous call, if the device reports it; an idle device
    /// shows no throttling.
    pub fn seen(&mut self) -> Option<Health> {
        self.look = true;
        self.seen.take()
    }

    /// Memory allocated for it.
    pub fn layout(&self) -> MemoryLayout {
        self.executor.layout()
    }

    /// The training program under its schedule.
    pub fn loaded(&self) -> &Loaded {
        &self.train
    }

    /// Returns the executor and the training program, for callers that run iterations on their own input.
    pub fn into_parts(self) -> (Executor, Loaded) {
        (self.executor, self.train)
    }

    /// Iterations of an epoch of this many samples; samples that do not fill a last batch are left out of that epoch.
    pub fn iterations_per_epoch(&self, samples: usize) -> u64 {
        samples as u64 / self.plan.samples_of_update()
    }

    fn initialise(&mut self) -> Result<(), Error> {
        for (number, region) in (0..).zip(self.train.resident()) {
            let mut values = vec![0.0; region.elements() as usize];
            match region.role {
                Role::Parameter(init) => draw(init, self.plan.seed, number, &mut values),
                Role::State(value) => values.fill(value),
                Role::Momentum | Role::FirstMoment | Role::SecondMoment => {}
                Role::Gradient | Role::Hyper | Role::Metrics => {}
            }
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.executor.write_region(region, &bytes)?;
        }
        Ok(())
    }

    /// Checks that a data set fits the network, and that it is the one that training began with.
    fn accept(&mut self, data: &dyn Dataset) -> Result<u64, Error> {
        self.check_shape(data)?;
        let per_epoch = self.iterations_per_epoch(data.len());
        let expected = format_args!("at most the {} samples of {}", data.len(), data.name());
        Error::unless(per_epoch > 0, "batch", expected, self.plan.samples_of_update())?;
        let name = DataName { name: data.name().to_owned(), samples: data.len() as u64 };
        if let Some((begun, _)) = self.data.as_ref().filter(|(begun, _)| *begun != name) {
            let show = |d: &DataName| format!("{} ({} samples)", d.name, d.samples);
            return Err(Error::mismatch("data set to go on with", show(begun), show(&name)));
        }
        self.data = Some((name, per_epoch));
        Ok(per_epoch)
    }

    fn check_shape(&self, data: &dyn Dataset) -> Result<(), Error> {
        let NetworkSpec { image: [height, width], channels, classes, name } = &self.plan.network;
        let expected = Shape { height: *height, width: *width, channels: *channels };
        let (image, of, tokens) = (data.image(), data.name(), data.holds_tokens());
        Error::unless(image == expected, format_args!("images of {of} for {name}"), expected, image)?;
        let (found, what) = (data.classes(), format_args!("classes of {of} for {name}"));
        Error::unless(found <= *classes, what, format_args!("at most {classes}"), found)?;
        let kind = |tokens| if tokens { "texts" } else { "images" };
        let (takes, what) =
            (self.train.program().vocabulary().is_some(), format_args!("samples of {of} for {name}"));
        Error::unless(tokens == takes, what, kind(takes), kind(tokens))?;
        let (each, found) = (self.train.program().label_count() / self.train.batch(), data.labels());
        let what = format_args!("labels of a sample of {of} for {name}");
        Error::unless(found as u64 == each, what, each, found)?;
        Error::unless(!data.is_empty(), format_args!("samples of {of}"), "at least 1", 0)
    }

    /// Trains until `until` iterations are done in all, counted from the start of training.
    ///
    /// `observe` is called for every finished iteration; if its state is copied, or its update is made during the next
    /// forward pass, only once the next iteration has ended. `pause` is called before every iteration, and ends the call if
    /// it returns `true`; the batch that was read ahead is kept for the next call. Errors: a data set that does not fit, a
    /// device that fails, a loss that is not finite.
    pub fn train(
        &mut self,
        data: &dyn Dataset,
        until: u64,
        observe: &mut dyn FnMut(&Observation),
        pause: &dyn Fn() -> bool,
    ) -> Result<Outcome, Error> {
        let per_epoch = self.accept(data)?;
        let mut feed = self.feed.take().unwrap_or_else(|| Feed::new(data, &self.plan));
        let mut source = Source { feed: &mut feed, data, per_epoch };
        let outcome = match self.share.take() {
            None => self.train_from(&mut source, until, observe, pause),
            Some(mut share) => {
                let outcome = self.train_sharing(&mut share, &mut source, until, observe, pause);
                self.share = Some(share);
                outcome
            }
        };
        self.feed = Some(feed);
        outcome
    }

    fn train_from(
        &mut self,
        source: &mut Source<'_>,
        until: u64,
        observe: &mut dyn FnMut(&Observation),
        pause: &dyn Fn() -> bool,
    ) -> Result<Outcome, Error> {
        let mut last_end = Instant::now();
        // Ended on the device, but not copied yet.
        let mut ended: Option<Observation> = None;
        let outcome = loop {
            if self.step >= until {
                break Outcome::Finished;
            }
            if pause() {
                break Outcome::Paused;
            }
            let (step, learning_rate) = (self.step, self.plan.rate.at(self.step));
            let stamp = self.write_input(source, (step, 0), learning_rate, self.plan.seed)?;
            let copied_to = ended.as_ref().map(|_| self.next_copy().half);
            let slot = self.next_slot(source, (step + 1, 0), copied_to)?;
            let waited = self.executor.device().waited();
            let start = Instant::now();
            let iteration = match (&ended, slot) {
                (Some(_), _) => {
                    let copy = self.next_copy();
                    self.copying = Some((copy, stamp));
                    Iteration::Copying(copy.half)
                }
                (None, Some(slot)) => Iteration::Feeding(slot),
                (None, None) => Iteration::Plain,
            };
            self.executor.start_as(&self.train, iteration);
            // Meanwhile the host prepares the next inputs.
            let prepared = self.read_ahead(source, slot, [(step + 1, 0), (step + 2, 0)]);
            if std::mem::take(&mut self.look) {
                self.seen = self.executor.device().health();
            }
            self.executor.finish()?;
            let end = Instant::now();
            prepared?;
            self.step += 1;
            self.fed = slot.map(|_| (self.step, 0));
            if let Some(observation) = ended.take() {
                self.copied = self.copying.take().map(|(copy, _)| copy);
                observe(&observation);
            }
            let metrics = [self.metrics()?];
            passes::is_finite(step, &metrics)?;
            let observation =
                self.observation(step, source.per_epoch, &metrics, [last_end, start, end], waited);
            if self.train.keeps_state() {
                ended = Some(observation);
            } else {
                observe(&observation);
            }
            last_end = end;
        };
        if let Some(observation) = ended {
            let copy = self.next_copy();
            self.executor.run_as(&self.train, Iteration::StateAlone(copy.half))?;
            self.copied = Some(copy);
            observe(&observation);
        }
        Ok(outcome)
    }

    /// Report on an iteration with these results. The times are the end of the previous iteration, and start and end of
    /// this one; `waited` is from [`crate::Device::waited`] at its start.
    fn observation(
        &self,
        step: u64,
        per_epoch: u64,
        results: &[Metrics],
        [last_end, start, end]: [Instant; 3],
        waited: Option<Seconds>,
    ) -> Observation {
        let [_, correct, counted] = sums(results);
        Observation {
            step,
            epoch: step / per_epoch,
            learning_rate: self.plan.rate.at(step),
            loss: mean_loss(results),
            accuracy: (correct / counted.max(1.0)) as f32,
            seconds: Seconds((end - start).as_secs_f64()),
            between: Seconds((start - last_end).as_secs_f64()),
            waited: self.executor.waited_since(waited),
        }
    }

    /// Puts an input into a slot, unless it is already there.
    fn fill(&mut self, source: &mut Source<'_>, slot: Half, place: Place) -> Result<(), Error> {
        if self.filled == Some((slot, place)) {
            return Ok(());
        }
        let batch = source.batch_of(place)?;
        self.filled = None;
        self.executor.fill_slot(&self.train, slot, batch.images(), batch.labels())?;
        self.filled = Some((slot, place));
        Ok(())
    }

    /// Slot from which an iteration or a pass brings the next input; the slot holds that input from here on. It is the slot
    /// of the half to which the iteration copies the state; if it copies none, the slot that already holds this input, else
    /// the one that the next copy does not use. `None` if each input is written.
    fn next_slot(
        &mut self,
        source: &mut Source<'_>,
        next: Place,
        copied_to: Option<Half>,
    ) -> Result<Option<Half>, Error> {
        if !self.train.feeds() {
            return Ok(None);
        }
        let slot = copied_to.unwrap_or_else(|| match self.filled {
            Some((slot, place)) if place == next => slot,
            _ => self.next_copy().half.next(),
        });
        self.fill(source, slot, next)?;
        Ok(Some(slot))
    }

    /// Reads the next input; if that comes from a slot, reads the one after it into the other slot. An input that cannot be
    /// read is read again when it is needed, and reported then: the running iteration does not depend on it.
    fn read_ahead(
        &mut self,
        source: &mut Source<'_>,
        slot: Option<Half>,
        [next, after]: [Place; 2],
    ) -> Result<(), Error> {
        let read = match slot {
            Some(slot) => self.fill(source, slot.next(), after),
            None => source.batch_of(next).map(drop),
        };
        match read {
            Err(error) if error.kind == Kind::Data => Ok(()),
            other => other,
        }
    }

    /// Current iteration count, and the half to which the state is copied next.
    fn next_copy(&self) -> Copied {
        Copied { half: self.copied.map_or(Half::First, |newest| newest.half.next()), step: self.step }
    }

    /// Runs the next training iteration, and returns the measured start and end of every command.
    pub fn train_timed(&mut self, data: &dyn Dataset) -> Result<Timeline, Error> {
        let per_epoch = self.accept(data)?;
        let mut feed = Feed::new(data, &self.plan);
        self.fed = None;
        let first = self.share.as_ref().map_or(0, |share| share.first());
        let mut source = Source { feed: &mut feed, data, per_epoch };
        self.write_input(&mut source, (self.step, first), self.plan.rate.at(self.step), self.plan.seed)?;
        let timeline = self.executor.run_timed(&self.train)?;
        self.step += 1;
        Ok(timeline)
    }

    /// Runs the network forward over a whole set; changes nothing.
    pub fn evaluate(&mut self, data: &dyn Dataset) -> Result<Evaluation, Error> {
        let whole = self.evaluate_until(data, &|| false)?;
        Ok(whole.expect("nobody stopped it"))
    }

    /// As `evaluate`, but calls `stop` before each batch; `None` if it returned `true`.
    ///
    /// Errors: a data set that does not fit, a device that fails, a loss that is not finite.
    pub fn evaluate_until(
        &mut self,
        data: &dyn Dataset,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Evaluation>, Error> {
        self.check_shape(data)?;
        let Some(evaluate) = &self.evaluate else {
            let (what, expected) = ("programs of the trainer", "one for evaluation");
            return Err(Error::mismatch(what, expected, "only training"));
        };
        // Its input uses the same memory.
        self.fed = None;
        let samples = evaluate.batch() as usize;
        let mut batch = Batch::new(evaluate.batch(), data);
        let mut results = Vec::new();
        for first in (0..data.len()).step_by(samples) {
            if stop() {
                return Ok(None);
            }
            let evaluate = self.evaluate.as_ref().expect("it was there just now");
            batch.fill(data, first..(first + samples).min(data.len()))?;
            self.executor.write_images(evaluate, batch.images())?;
            self.executor.write_labels(evaluate, batch.labels())?;
            self.executor.run(evaluate)?;
            results.push(self.metrics()?);
        }
        let [loss, correct, labels] = sums(&results);
        let loss = loss / labels;
        if !loss.is_finite() {
            return Err(Error::diverged(self.step, loss as f32));
        }
        let (correct, labels, samples) = (correct as u64, labels as u64, data.len() as u64);
        Ok(Some(Evaluation { loss, correct, labels, samples }))
    }

    /// Writes the input of the next training iteration or pass, unless it is already on the device, and its hyperparameters
    /// with this dropout seed. Returns the hyperparameters.
    fn write_input(
        &mut self,
        source: &mut Source<'_>,
        place: Place,
        learning_rate: f64,
        seed: u64,
    ) -> Result<[u8; Hyper::BYTES], Error> {
        if self.fed.take() != Some(place) {
            let batch = source.batch_of(place)?;
            self.executor.write_images(&self.train, batch.images())?;
            self.executor.write_labels(&self.train, batch.labels())?;
        }
        let bytes = self.hyper(self.step, learning_rate, seed);
        self.executor.write_region(self.train.hyper(), &bytes)?;
        Ok(bytes)
    }

    fn hyper(&self, step: u64, learning_rate: f64, seed: u64) -> [u8; Hyper::BYTES] {
        let hyper = Hyper {
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            step: step as u32,
            update: self.plan.update.numbers(learning_rate, step),
        };
        hyper.to_bytes()
    }

    fn metrics(&mut self) -> Result<Metrics, Error> {
        Metrics::read(|bytes| self.executor.read_region(self.train.metrics(), bytes))
    }
}

/// Draws a region's initial values: element i from counter [i / 4, region, ...], so that the order of drawing does not
/// matter.
fn draw(init: Init, seed: u64, region: u32, values: &mut [f32]) {
    for (block, four) in (0u64..).zip(values.chunks_mut(4)) {
        let words = philox4x32(seed, [block as u32, (block >> 32) as u32, region, INIT_STREAM]);
        let numbers = match init {
            Init::Constant(value) => [value; 4],
            Init::Uniform(bound) => words.map(|w| (2.0 * unit_f32(w) - 1.0) * bound),
            Init::Normal(deviation) => {
                let [a, b] = normal_pair(words[0], words[1]);
                let [c, d] = normal_pair(words[2], words[3]);
                [a, b, c, d].map(|n| n * deviation)
            }
        };
        four.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
    }
}

/// Two independent standard normal numbers (Box and Muller).
fn normal_pair(first: u32, second: u32) -> [f32; 2] {
    let radius = (-2.0 * (1.0 - f64::from(unit_f32(first))).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * f64::from(unit_f32(second))).sin_cos();
    [(radius * cos) as f32, (radius * sin) as f32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_the_mean_over_the_labels_that_count() {
        let all = [[1.0, 2.0, 2.0], [4.0, 0.0, 1.0], [0.0, 0.0, 0.0]].map(Metrics);
        assert_eq!((sums(&all), mean_loss(&all)), ([6.0, 2.0, 3.0], 2.0));
        assert_eq!(mean_loss(&[Metrics([0.1, 1.0, 3.0])]), 0.1, "of one it is its own");
        assert_eq!(mean_loss(&[Metrics([0.0; 3])]), 0.0);
    }

    #[test]
    fn draws_have_the_moments_of_their_distribution() {
        let mut values = vec![0.0; 40_000];
        for (init, deviation) in [(Init::Normal(0.5), 0.5), (Init::Uniform(0.3), 0.3 / f64::sqrt(3.0))] {
            draw(init, 3, 0, &mut values);
            let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
            let variance =
                values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / values.len() as f64;
            assert!(mean.abs() < 0.02 * deviation, "{init:?}: mean {mean}");
            assert!(
                (variance.sqrt() / deviation - 1.0).abs() < 0.02,
                "{init:?}: deviation {}",
                variance.sqrt()
            );
        }
        let mut other = vec![0.0; 40_000];
        draw(Init::Uniform(0.3), 3, 1, &mut other);
        assert_ne!(values, other, "every region has draws of its own");
    }
}
