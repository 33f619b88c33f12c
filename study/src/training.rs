//! Training a tuned config: its schedule on the workload's data, epoch by epoch. `saving.rs` keeps the state outside
//! a device that can lose its memory; `workers.rs` has the workers that train together.
//!
//! This file deliberately chooses nothing: the config holds batch, placement and rate.

mod left;
mod saving;
mod workers;

use crate::documents;
use crate::error::{Error, Kind};
use crate::folder::Study;
use crate::network_workload::{NetworkWorkload, median};
use crate::request::{DecayShape, TrainRequest};
use crate::version;
use crate::watch::{Event, Watch};
use left::Newest;
use plimsoll_ir::check::check;
use plimsoll_ir::config::Config;
use plimsoll_ir::exchange::{NCCL_PIECE_BYTES, PIECE_BYTES};
use plimsoll_ir::health::Health;
use plimsoll_ir::profile::{alone, undisturbed};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, CommandId, Optimizer, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::{
    Checkpoint, Decay, Evaluation, Group, LearningRateSchedule, Observation, Outcome, Trainer, TrainingPlan,
    Weights, state_bytes,
};
use plimsoll_tuner::state_copy::{CopyPlace, place_of_copy};
use saving::{Saving, cannot_keep};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};
use workers::{Update, beside};

/// Least time between queries of the device's health: its driver takes milliseconds to answer.
const LOOK: Duration = Duration::from_secs(10);

/// Share of training that other processes may take before it is reported.
const TOLD: f64 = 0.05;

/// Results of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Iterations done in total.
    pub iterations: u64,
    /// Iterations done by earlier runs.
    pub resumed_at: u64,
    /// Mean loss over the last epoch that this run saw.
    pub loss: f32,
    /// Evaluation on the held-out samples.
    pub test: Evaluation,
    /// Seconds of an undisturbed iteration of this run (`undisturbed`).
    pub iteration: Seconds,
    /// Median time between two iterations.
    pub between: Seconds,
    /// Resident bytes and pool that were allocated, for each worker.
    pub peak: Bytes,
    /// Workers that trained together.
    pub workers: usize,
    /// Samples in an update of all workers.
    pub global_batch: u64,
    /// Learning rate of such an update, before its decay.
    pub rate: f64,
    /// Times of every command of one more iteration, if requested.
    pub timeline: Option<Timeline>,
}

/// A training to be made in a study.
#[derive(Clone, Copy)]
pub(crate) struct Training<'a> {
    pub task: &'a NetworkWorkload,
    pub choice: (&'a Config, &'a Schedule),
    pub request: &'a TrainRequest,
    pub study: &'a Study,
    pub watch: &'a Watch<'a>,
}

/// Checks that a training uses the optimizer for which its schedule was chosen.
pub fn of_optimizer(tuned: Optimizer, asked: Optimizer) -> Result<(), Error> {
    if tuned == asked {
        return Ok(());
    }
    Err(Error::usage(format_args!("the study was tuned for {tuned}, and {asked} is asked for")).help(
        format_args!(
            "leave --optimizer out, or tune into another folder with `plimsoll tune --study DIR --optimizer {asked}`"
        ),
    ))
}

impl Training<'_> {
    /// Returns the trainers of this process's workers at the start of training, by rank.
    fn set_up(
        &self,
        update: &Update,
        weights: Option<String>,
        groups: Vec<Box<dyn Group>>,
    ) -> Result<Vec<Trainer>, Error> {
        let Training { task, choice: (config, schedule), request, .. } = *self;
        of_optimizer(config.optimizer, task.optimizer)?;
        let program = task.program(config.batch, Mode::Train)?;
        self.is_sound(&program)?;
        let (evaluate, evaluate_schedule) = task.evaluation(config.batch, config.budget_bytes, self.watch)?;
        let programs = [(&program, schedule), (&evaluate, &evaluate_schedule)];
        let iterations = self.total(update);
        let decay = match request.decay {
            DecayShape::Constant => Decay::Constant,
            DecayShape::Cosine => Decay::Cosine { iterations, floor: 0.0 },
            DecayShape::Step => Decay::Step { every: iterations.div_ceil(3), factor: 0.1 },
        };
        let plan = TrainingPlan {
            network: task.network.spec.clone(),
            batch: config.batch,
            virtual_workers: update.virtual_workers,
            seed: request.seed,
            rate: LearningRateSchedule {
                base: update.rate,
                warmup_iterations: update.warmup_iterations,
                decay,
            },
            update: request.update(task.optimizer)?,
            weights,
        };
        if update.virtual_workers > 1 {
            // Worker 0 also tests.
            let several = request.workers.count > 1;
            let nccl = several && config.cluster.is_some_and(|cluster| cluster.nccl);
            let trainer = |(number, group): (u32, Box<dyn Group>)| {
                let programs = if group.facts().rank == 0 { &programs[..] } else { &programs[..1] };
                let setup = &task.setup;
                let device = if several { setup.device_of_worker(number, nccl)? } else { setup.device()? };
                let piece = if nccl { NCCL_PIECE_BYTES } else { PIECE_BYTES };
                let (executor, loaded) = task.executor_apart(device, programs, piece)?;
                let [train, rest @ ..] = loaded.as_slice() else { unreachable!("a program was loaded") };
                let (train, evaluate) = (train.clone(), rest.first().cloned());
                let trainer = Trainer::sharing(executor, train, evaluate, plan.clone(), group)?;
                let known = config.measured.unwrap_or(config.predicted);
                Ok(trainer.built_as(version()).at_pace(known.iteration_seconds))
            };
            return (0..).zip(groups).map(trainer).collect();
        }
        let (executor, mut loaded) = match request.save_every {
            None if task.setup.can_be_lost() => {
                task.executor_keeping_state(&programs, self.place_copies(&program)?)?
            }
            // A device that computes in host memory has its state there, and with an explicit interval the file has the state.
            _ => task.executor(&programs)?,
        };
        let evaluate = loaded.pop();
        let train = loaded.pop().expect("two programs were loaded");
        Ok(vec![Trainer::new(executor, train, evaluate, plan)?])
    }

    /// Returns the updates of the whole training.
    fn total(&self, update: &Update) -> u64 {
        update.per_epoch * self.request.epochs
    }

    /// Reads the initial weights, if given.
    fn weights(&self) -> Result<Option<Weights>, Error> {
        let path = self.request.weights.as_ref();
        path.map(|path| crate::weights::read(path, &self.task.network)).transpose()
    }

    /// Checks that the schedule is valid for this program, even if an older version lowered the network differently, and that it
    /// keeps the budget of its config, whatever budget it states.
    fn is_sound(&self, program: &Program) -> Result<(), Error> {
        let Training { choice: (config, schedule), study, .. } = *self;
        let Config { schedule: file, budget_bytes: budget, .. } = config;
        if let Err(violation) = check(&program.trace, schedule) {
            let message = format!(
                "{file} is not valid for the iteration that this version of Plimsoll computes: {violation}"
            );
            return Err(Error::new(Kind::Verification, message).help(format_args!(
                "where another version tuned {}, go on with that one, or tune into another folder with `plimsoll tune --study DIR`",
                study.folder().display()
            )));
        }
        let takes = Bytes(program.trace.resident_bytes.0.saturating_add(schedule.pool_bytes.0));
        if takes > *budget {
            let message = format!("{file} takes {takes}, more than the {budget} that its config allows");
            let again = study.tune_again();
            return Err(Error::new(Kind::Verification, message)
                .help(format_args!("put the schedule back that was chosen with the config, or {again}")));
        }
        Ok(())
    }

    /// Returns the offload before which an iteration copies the state to the host, by the times of the study's trace; `None`,
    /// after all offloads, if the study has no trace of this program. Warns if the copy slows training down.
    fn place_copies(&self, program: &Program) -> Result<Option<CommandId>, Error> {
        let Training { choice: (_, schedule), study, watch, .. } = *self;
        if !study.trace().exists() {
            return Ok(None);
        }
        let trace: Trace = documents::read(&study.trace())?;
        let state = state_bytes(program);
        // The study's files may have changed: the times of a different iteration are no guide, and its schedule differs.
        if check(&trace, schedule).is_err() {
            return Ok(None);
        }
        let Some(place) = place_of_copy(&trace, schedule, state) else { return Ok(None) };
        if let Some(words) = slowed(simulate(&trace, schedule).makespan(), &place, state) {
            watch.warn(words);
        }
        Ok(place.before)
    }

    /// Trains, or continues from the study's checkpoint if there is one, and tests at the end. No other run works in the study.
    /// The groups are those of the workers of this process, worker 0's first.
    pub(crate) fn train(&self, mut groups: Vec<Box<dyn Group>>) -> Result<Trained, Error> {
        let Training { task, choice: (config, _), request, study, watch } = *self;
        let loading = watch.step("load", None);
        let saved =
            if request.fresh { None } else { Newest::of(load(&study.checkpoint(), watch)?, study, watch) };
        let state = saved.as_ref().map(|saved| &saved.state);
        let update = Update::of(task, config, (request, groups.len()), state, watch)?;
        if groups.len() < request.workers.count {
            update.tell(&mut *groups[0], study)?;
        }
        let weights = self.weights()?;
        let checksum = weights.as_ref().map(|weights| weights.checksum.clone());
        let mut trainers = self.set_up(&update, checksum, groups)?;
        drop(loading);
        let mut trainer = trainers.remove(0);
        self.begin(&mut trainer, (saved, weights), &update)?;
        beside(trainers, &*task.data.train, self.total(&update), || self.train_from(trainer, &update))
    }

    /// Trains as one of the other workers, by worker 0's settings, until training is complete or a worker is asked to stop.
    pub(crate) fn work(&self, mut group: Box<dyn Group>) -> Result<(), Error> {
        let Training { task, request, study, watch, .. } = *self;
        let rank = group.facts().rank;
        let (update, is_of_first) = Update::told(&mut *group, study)?;
        // Worker 0 starts from the weights; here they only identify the training.
        let checksum = self.weights()?.map(|weights| weights.checksum);
        let total = self.total(&update);
        for mut trainer in self.set_up(&update, checksum, vec![group])? {
            let asks = Cell::new(false);
            let pause = || {
                asks.set(watch.stops());
                asks.get()
            };
            let mut ended = trainer.train(&*task.data.train, total, &mut |_| {}, &pause);
            if asks.get() && matches!(ended, Ok(Outcome::Paused)) {
                // Worker 0 saves the state, and reports the pause.
                ended = trainer.leave().map(|()| Outcome::Paused);
            }
            ended.map_err(|error| {
                left::failed(error, (&mut trainer, rank), (study, is_of_first), (total, request.fresh))
            })?;
        }
        Ok(())
    }

    /// Trains from a trainer's current state, and tests at the end.
    fn train_from(&self, mut trainer: Trainer, update: &Update) -> Result<Trained, Error> {
        let Training { task, choice: (config, _), request, study, watch } = *self;
        let (per_epoch, peak, resumed_at) = (update.per_epoch, trainer.layout().device(), trainer.step());
        let total = self.total(update);
        let before = if request.fresh { study.training() } else { Vec::new() };
        // This call trains nothing yet. It rejects data other than those of earlier iterations, even if training is
        // complete, and workers that train something else.
        trainer.train(&*task.data.train, resumed_at, &mut |_| {}, &|| false)?;
        study.forget(&before)?;
        let mut seen = Seen::default();
        let checkpoint = study.checkpoint();
        let rate = (config.learning_rate.base_rate, study.folder());
        let mut saving = Saving::new(&checkpoint, (resumed_at, total), request, rate, watch);
        let (mut health, mut looked) = (Health::default(), None::<Instant>);
        let training = watch.step("train", Some(total));
        while trainer.step() < total {
            let epoch = trainer.step() / per_epoch;
            let reached = Cell::new(trainer.step());
            let mut observe = |observation: &Observation| {
                // An iteration hurried by Ctrl-C shows nothing about other processes.
                seen.take(observation, !watch.stops());
                reached.set(observation.step + 1);
                training.done(observation.step + 1);
            };
            let asks = Cell::new(false);
            let pause = || {
                asks.set(watch.stops() || saving.is_due(reached.get()));
                asks.get()
            };
            let outcome = trainer.train(&*task.data.train, (epoch + 1) * per_epoch, &mut observe, &pause);
            let outcome = outcome.map_err(|error| saving.failed(error, &mut trainer))?;
            let step = trainer.step();
            let has_left = outcome == Outcome::Paused && !asks.get();
            if outcome == Outcome::Paused
                || step == total
                || request.save_every.is_some()
                || saving.is_due(step)
            {
                saving.save(&mut trainer)?;
            }
            if looked.is_none_or(|at| at.elapsed() >= LOOK) {
                health = warn_of(health, trainer.seen(), watch);
                looked = Some(Instant::now());
            }
            if outcome == Outcome::Finished {
                let (loss, accuracy) = seen.last();
                training.at(&format!("loss {loss:.4}"));
                (watch.tell)(Event::Epoch { epoch: epoch + 1, of: request.epochs, loss, accuracy });
                seen.end_epoch(step < total);
            } else if has_left || watch.stops() {
                saving.write(&mut trainer)?;
                if !has_left {
                    // The others have nothing to save; if one of them is gone, the state is saved all the same.
                    let _ = trainer.leave();
                }
                let saved = saving.saved();
                let (step, path) = (saved.step.unwrap_or(0), saved.path.display());
                let message =
                    format!("stopped while training, after {step} of {total} iterations; saved to {path}");
                return Err(Error::new(Kind::Interrupted, message).help(saved.again()));
            }
        }
        // If the disk is full by now, the test and its result are still made.
        let written = saving.write(&mut trainer);
        drop(training);
        let iterations = trainer.step();
        let test = self.test(&mut trainer, &mut saving);
        written?;
        let (test, timeline) = test?;
        if seen.waited > TOLD * seen.by_the_clock {
            let share = seen.waited / seen.by_the_clock * 100.0;
            watch.warn(format_args!(
                "others had the processors for {share:.0} % of training; the iteration time excludes this"
            ));
        }
        Ok(Trained {
            iterations,
            resumed_at,
            loss: seen.last().0,
            test,
            iteration: undisturbed(seen.seconds).unwrap_or(Seconds::ZERO),
            between: median(&mut seen.between),
            peak,
            workers: request.workers.count,
            global_batch: trainer.plan().samples_of_update(),
            rate: update.rate,
            timeline,
        })
    }

    /// Continues from the study's newest state, if there is one and it is not to be discarded; else starts from the given weights,
    /// if any. First checks that the state can be saved.
    fn begin(
        &self,
        trainer: &mut Trainer,
        (saved, weights): (Option<Newest>, Option<Weights>),
        update: &Update,
    ) -> Result<(), Error> {
        let (Training { study, watch, .. }, per_epoch, total) = (*self, update.per_epoch, self.total(update));
        if let Some(saved) = saved {
            let before = resume(trainer, &saved.state, &saved.path)?;
            saved.settle(study)?;
            let (step, now) = (trainer.step(), trainer.plan().rate);
            let [trained, asked] = [step, total].map(|iterations| in_epochs(iterations, per_epoch));
            if step >= total {
                watch.notice(format_args!(
                    "trained for {trained}, asked for {asked}: nothing is left to train; more --epochs go on, --fresh begins anew"
                ));
            } else {
                tracing::info!("going on from iteration {step} of {total}");
                if before != now {
                    watch.warn(other_length((trained, asked), before, now, step));
                }
            }
        } else if let Some(weights) = weights {
            trainer.start_from(&weights)?;
        }
        if trainer.step() < total {
            Checkpoint::make_sure(&study.checkpoint(), trainer.saved_bytes()).map_err(cannot_keep)?;
        }
        Ok(())
    }

    /// Tests a trained network; then, if `timed`, runs two more iterations and returns the second's timeline.
    fn test(
        &self,
        trainer: &mut Trainer,
        saving: &mut Saving<'_>,
    ) -> Result<(Evaluation, Option<Timeline>), Error> {
        let (Training { task, watch, .. }, timed) = (*self, self.request.timed);
        let testing = watch.step("test", None);
        let (test, done) = (trainer.evaluate_until(&*task.data.test, watch.stop), trainer.step());
        let test = test.map_err(|error| saving.failed(error, trainer))?;
        drop(testing);
        let mut timeline = None;
        for _ in 0..if timed { 2 } else { 0 } {
            let timed = trainer.train_timed(&*task.data.train);
            timeline = Some(timed.map_err(|error| saving.failed(error, trainer))?);
        }
        // Iterations that were hurried show nothing of others.
        test.filter(|_| !timed || !watch.stops()).map(|test| (test, timeline)).ok_or_else(|| {
            let message = format!("stopped while testing, after all {done} iterations of the training");
            Error::new(Kind::Interrupted, message).help(saving.saved().again())
        })
    }
}

/// Returns a warning if a copy of the state takes more than a hundredth of an iteration, even at the best place.
fn slowed(without: Seconds, place: &CopyPlace, state: Bytes) -> Option<String> {
    let (with, more) = (place.makespan, place.makespan / without - 1.0);
    (more > 0.01).then(|| {
        format!(
            "the way to the host has no room for a copy of the state ({state}) beside every iteration, which a device that \
             fails cannot take along: an iteration of {without} takes {with}, {:.1} % more. --save-every 5min writes the state \
             to its file that often instead",
            more * 100.0
        )
    })
}

/// Formats a number of iterations, in epochs if it is whole epochs.
fn in_epochs(iterations: u64, per_epoch: u64) -> String {
    match (iterations / per_epoch, iterations % per_epoch) {
        (1, 0) => "1 epoch".to_owned(),
        (epochs, 0) => format!("{epochs} epochs"),
        (epochs, left) => {
            format!("{} and {left} of {per_epoch} iterations", in_epochs(epochs * per_epoch, per_epoch))
        }
    }
}

/// Returns a warning about a training that continues with a number of epochs different from the one over which its decay was
/// spread.
fn other_length(
    (trained, asked): (String, String),
    before: LearningRateSchedule,
    now: LearningRateSchedule,
    step: u64,
) -> String {
    let (last, next) = (before.at(step.saturating_sub(1)), now.at(step));
    format!(
        "trained for {trained}, asked for {asked}: from here on the decay of the learning rate is spread over {asked}, so the \
         rate, which was {last:.3e} in the last iteration, is {next:.3e} in the next. That is another training than {asked} from \
         the start, for which there is --fresh"
    )
}

/// Warns of changes in the device's health, if the device reports it; returns all that is known of it.
fn warn_of(known: Health, now: Option<Health>, watch: &Watch<'_>) -> Health {
    let Some(now) = now else { return known };
    now.warnings(&known).iter().for_each(|warning| watch.warn(warning));
    known.then(now)
}

/// Reads the study's checkpoint, if there is one.
fn load(checkpoint: &Path, watch: &Watch<'_>) -> Result<Option<Checkpoint>, Error> {
    if !checkpoint.exists() {
        return Ok(None);
    }
    let saved = Checkpoint::load(checkpoint).map_err(|error| {
        Error::from(error).help("put the file back as it was, or start anew with --fresh")
    })?;
    if !saved.has_checksum() {
        watch.warn(format_args!(
            "{} is from an older version and has no checksum: whether it is damaged is not known",
            checkpoint.display()
        ));
    }
    Ok(Some(saved))
}

/// Continues from a checkpoint; returns the rates that were planned when it was saved.
fn resume(
    trainer: &mut Trainer,
    saved: &Checkpoint,
    checkpoint: &Path,
) -> Result<LearningRateSchedule, Error> {
    trainer.resume(saved, checkpoint).map_err(|error| match error.is_of_device() {
        // The file remains valid.
        true => Error::from(error),
        false => Error::from(error).help("train with the same options, or start anew with --fresh"),
    })?;
    Ok(saved.progress.plan.rate)
}

/// Observations of this run.
#[derive(Default)]
struct Seen {
    /// Loss and accuracy of each iteration of the last epoch.
    losses: Vec<(f32, f32)>,
    /// Seconds of each iteration, without the processor time that other processes took.
    seconds: Vec<Seconds>,
    between: Vec<f64>,
    /// Time that other processes took from all iterations, and the iterations' wall-clock time.
    waited: f64,
    by_the_clock: f64,
}

impl Seen {
    fn take(&mut self, observation: &Observation, timed: bool) {
        self.losses.push((observation.loss, observation.accuracy));
        if !timed {
            return;
        }
        self.seconds.push(alone(observation.seconds, observation.waited));
        self.waited += observation.waited.0;
        self.by_the_clock += observation.seconds.0;
        self.between.push(observation.between.0);
    }

    /// Clears the epoch's losses if a further epoch follows.
    fn end_epoch(&mut self, another_follows: bool) {
        if another_follows {
            self.losses.clear();
        }
    }

    /// Returns mean loss and accuracy over the last epoch; NaN if this run had nothing to do.
    fn last(&self) -> (f32, f32) {
        let count = self.losses.len() as f32;
        let sum =
            self.losses.iter().fold((0.0, 0.0), |sum, (loss, accuracy)| (sum.0 + loss, sum.1 + accuracy));
        (sum.0 / count, sum.1 / count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_epochs_are_told_with_the_rates_before_and_behind() {
        let of = |iterations| LearningRateSchedule {
            base: 0.05,
            warmup_iterations: 0,
            decay: Decay::Cosine { iterations, floor: 0.0 },
        };
        let lengths = (in_epochs(1120, 56), in_epochs(11200, 56));
        let words = other_length(lengths, of(1120), of(11200), 1120);
        assert!(words.contains("trained for 20 epochs, asked for 200 epochs"), "{words}");
        assert!(
            words.contains("was 9.835e-8 in the last") && words.contains("is 4.878e-2 in the next"),
            "{words}"
        );
        assert_eq!(in_epochs(56, 56), "1 epoch");
        assert_eq!(in_epochs(60, 56), "1 epoch and 4 of 56 iterations");
    }

    #[test]
    fn a_copy_that_takes_more_than_a_hundredth_of_an_iteration_is_told() {
        let of = |makespan: f64| {
            let place = CopyPlace { before: None, makespan: Seconds(makespan), whole: Seconds(1.0) };
            slowed(Seconds(2.0), &place, Bytes(1 << 20))
        };
        assert_eq!(of(2.019), None);
        let words = of(2.5).expect("a quarter more is told");
        for part in ["(1 MiB)", "an iteration of 2 s takes 2.5 s, 25.0 % more"] {
            assert!(words.contains(part), "`{part}` in: {words}");
        }
    }
}
