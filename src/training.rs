//! Training what was tuned: the config's schedule on the task's data, epoch by epoch, its state kept (`kept.rs`) where a device that
//! fails cannot take it along.
//!
//! What it deliberately does not do: choose anything. Batch, placement and rate stand in the config.

use crate::args::{DecayArg, TrainArgs};
use crate::doubts::Doubts;
use crate::failure::{Exit, Failure};
use crate::interrupt;
use crate::kept::Kept;
use crate::progress;
use crate::study::Study;
use crate::task::{Task, median};
use plimsoll_ir::config::Config;
use plimsoll_ir::schedule::{Schedule, Stream, moved};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::{
    Checkpoint, Decay, Evaluation, LearningRateSchedule, Observation, Outcome, Trainer, TrainingPlan,
};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often the device is asked how it is, at most: its driver takes milliseconds to tell.
const LOOK: Duration = Duration::from_secs(10);

/// What came of training.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Iterations done in all.
    pub iterations: u64,
    /// Iterations that an earlier run had done.
    pub resumed_at: u64,
    /// Mean loss over the last epoch that this run saw.
    pub loss: f32,
    /// On the held-out samples.
    pub test: Evaluation,
    /// The median iteration of this run.
    pub iteration: Seconds,
    /// The median time between two iterations.
    pub between: Seconds,
    /// Resident bytes and pool that were allocated.
    pub peak: Bytes,
    /// When every command of one more iteration ran, where that was asked for.
    pub timeline: Option<Timeline>,
}

/// The rate of every iteration.
fn rate_schedule(config: &Config, args: &TrainArgs, iterations: u64) -> LearningRateSchedule {
    let decay = match args.decay {
        DecayArg::Constant => Decay::Constant,
        DecayArg::Cosine => Decay::Cosine { iterations, floor: 0.0 },
        DecayArg::Step => Decay::Step { every: iterations.div_ceil(3), factor: 0.1 },
    };
    let rate = &config.learning_rate;
    LearningRateSchedule { base: rate.rate, warmup_iterations: rate.warmup_iterations, decay }
}

/// How a command trains, besides what its options say of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// An earlier training is forgotten, once it is sure that this one can begin.
    pub fresh: bool,
    /// Two more iterations are run at the end, and the second is timed command by command; they change nothing that is kept.
    pub timed: bool,
    /// No progress is shown.
    pub quiet: bool,
}

/// A trainer at the start of training, and the iterations of an epoch.
fn set_up(
    task: &Task,
    config: &Config,
    schedule: &Schedule,
    args: &TrainArgs,
) -> Result<(Trainer, u64), Failure> {
    let program = task.program(config.batch, Mode::Train)?;
    let (evaluate, evaluate_schedule) = task.evaluation(config.batch, config.budget_bytes)?;
    let programs = [(&program, schedule), (&evaluate, &evaluate_schedule)];
    let (executor, mut loaded) = match args.save_every {
        None => task.executor_keeping_state(&programs)?,
        // Who says how often the state is saved has it in its file, and nowhere else.
        Some(_) => task.executor(&programs)?,
    };
    let per_epoch = task.samples() / config.batch;
    if per_epoch == 0 {
        let (name, samples, batch) = (task.data.train.name(), task.samples(), config.batch);
        let message = format!("{name} has {samples} samples, fewer than the batch of {batch}");
        return Err(Failure::usage(message).help("choose other --data, or tune anew for this one"));
    }
    let plan = TrainingPlan {
        network: task.network.spec.clone(),
        batch: config.batch,
        seed: args.seed,
        rate: rate_schedule(config, args, per_epoch * args.epochs),
        momentum: args.momentum,
        weight_decay: args.weight_decay,
    };
    let evaluate = loaded.pop();
    let train = loaded.pop().expect("two programs were loaded");
    Ok((Trainer::new(executor, train, evaluate, plan)?, per_epoch))
}

/// What to say where copies of a state of this size cannot be made beside the iterations: together with what is swapped out, they keep
/// the link busy for longer than an iteration was predicted to take.
fn slowed_by_copies(state: Bytes, trace: &Trace, schedule: &Schedule, iteration: Seconds) -> Option<String> {
    let seconds = |bytes: u64| schedule.link.seconds(Stream::Offload, Bytes(bytes)).0;
    let offloads = schedule.commands.iter().filter(|command| command.stream() == Stream::Offload);
    let pieces =
        offloads.filter_map(|command| moved(trace, command)).map(|(_, piece)| piece.end - piece.start);
    let copying = seconds(state.0);
    let (copying, busy) = (Seconds(copying), Seconds(copying + pieces.map(seconds).sum::<f64>()));
    (state > Bytes::ZERO && busy > iteration).then(|| {
        format!(
            "the way to the host is busy for {busy} of an iteration of {iteration}, for {copying} of them with a copy of the \
             state ({state}), so that a device that fails takes nothing along: this slows training down. --save-every 5min \
             writes the state to its file that often instead"
        )
    })
}

/// Trains, or goes on from the study's checkpoint where there is one, and tests at the end.
pub fn train(
    task: &Task,
    config: &Config,
    schedule: &Schedule,
    args: &TrainArgs,
    study: &Study,
    manner: Manner,
) -> Result<Trained, Failure> {
    let Manner { fresh, timed, quiet } = manner;
    let _alone = study.lock()?;
    let loading = progress::spinner("load", quiet);
    let (mut trainer, per_epoch) = set_up(task, config, schedule, args)?;
    drop(loading);
    let checkpoint = &study.checkpoint();
    if fresh {
        study.forget(std::slice::from_ref(checkpoint))?;
    }
    let (total, peak) = (per_epoch * args.epochs, trainer.layout().device());
    let state = Bytes(trainer.layout().state.0 / 2);
    slowed_by_copies(state, trainer.loaded().trace(), schedule, config.predicted.iteration_seconds)
        .inspect(|words| tracing::warn!("{words}"));
    if checkpoint.exists() {
        let saved = Checkpoint::load(checkpoint).map_err(|error| {
            Failure::from(error).help("put the file back as it was, or start anew with --fresh")
        })?;
        trainer.resume(&saved, checkpoint).map_err(|error| {
            Failure::from(error).help("train with the same options, or start anew with --fresh")
        })?;
        tracing::info!("going on from iteration {} of {total}", trainer.step());
    }
    let resumed_at = trainer.step();
    // Nothing is trained yet, but data that is not what training began with is refused, even where all is done.
    trainer.train(&*task.data.train, resumed_at, &mut |_| {}, &|| false)?;
    let mut seen = Seen::default();
    let mut kept = Kept::new(checkpoint, resumed_at, total, fresh, args.save_every);
    let (mut doubts, mut looked) = (Doubts::default(), None::<Instant>);
    let bar = progress::bar("train", total, quiet);
    while trainer.step() < total {
        let epoch = trainer.step() / per_epoch;
        let reached = Cell::new(trainer.step());
        let mut observe = |observation: &Observation| {
            seen.take(observation);
            reached.set(observation.step + 1);
            bar.set_position(observation.step + 1);
        };
        let pause = || interrupt::pressed() || kept.is_due(reached.get());
        let outcome = trainer.train(&*task.data.train, (epoch + 1) * per_epoch, &mut observe, &pause);
        let outcome = outcome.map_err(|error| kept.failure(error, &mut trainer))?;
        let step = trainer.step();
        if outcome == Outcome::Paused || step == total || args.save_every.is_some() || kept.is_due(step) {
            kept.save(&mut trainer)?;
        }
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            bar.suspend(|| doubts.say(trainer.seen()));
            looked = Some(Instant::now());
        }
        if outcome == Outcome::Finished {
            let (loss, accuracy) = seen.last();
            bar.set_message(format!("loss {loss:.4}"));
            if bar.is_hidden() {
                tracing::info!(
                    "epoch {} of {}: loss {loss:.4}, accuracy {:.1} %",
                    epoch + 1,
                    args.epochs,
                    accuracy * 100.0
                );
            }
            seen.end_epoch(step < total);
        } else if interrupt::pressed() {
            kept.write(&mut trainer)?;
            let path = checkpoint.display();
            let message = format!("stopped after {step} of {total} iterations; saved to {path}");
            return Err(Failure::new(Exit::Interrupted, message).help(kept.again()));
        }
    }
    kept.write(&mut trainer)?;
    bar.finish_and_clear();
    let testing = progress::spinner("test", quiet);
    let test = trainer.evaluate(&*task.data.test).map_err(|error| kept.failure(error, &mut trainer))?;
    drop(testing);
    let (iterations, mut timeline) = (trainer.step(), None);
    for _ in 0..if timed { 2 } else { 0 } {
        timeline = Some(trainer.train_timed(&*task.data.train)?);
    }
    Ok(Trained {
        iterations,
        resumed_at,
        loss: seen.last().0,
        test,
        iteration: median(&mut seen.seconds),
        between: median(&mut seen.between),
        peak,
        timeline,
    })
}

/// What this run observed.
#[derive(Default)]
struct Seen {
    /// Loss and accuracy of the iterations of the last epoch.
    losses: Vec<(f32, f32)>,
    seconds: Vec<f64>,
    between: Vec<f64>,
}

impl Seen {
    fn take(&mut self, observation: &Observation) {
        self.losses.push((observation.loss, observation.accuracy));
        self.seconds.push(observation.seconds.0);
        self.between.push(observation.between.0);
    }

    /// Forgets the epoch where another follows.
    fn end_epoch(&mut self, another_follows: bool) {
        if another_follows {
            self.losses.clear();
        }
    }

    /// Mean loss and accuracy over the last epoch; NaN where this run had nothing to do.
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
    use plimsoll_ir::BytesPerSecond;
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::testing::{random_schedule, random_trace};

    #[test]
    fn copies_that_take_longer_than_the_iterations_beside_them_are_told() {
        let trace = random_trace(3);
        let mut schedule = random_schedule(&trace, 3);
        schedule.link = Link::symmetric(BytesPerSecond(1e6));
        let offloads = schedule.commands.iter().filter_map(|command| match command.stream() {
            Stream::Offload => moved(&trace, command),
            _ => None,
        });
        let swapped: u64 = offloads.map(|(_, piece)| piece.end - piece.start).sum();
        assert!(swapped > 0);
        let told = |state: u64, spare: f64| {
            let busy = (state + swapped) as f64 * 1e-6;
            slowed_by_copies(Bytes(state), &trace, &schedule, Seconds(busy + spare))
        };
        assert_eq!(told(1 << 20, 1e-3), None);
        let words = told(1 << 20, -1e-3).expect("the link is busy for too long");
        assert!(words.contains("a copy of the state (1 MiB)") && words.contains("--save-every"), "{words}");
        assert_eq!(told(0, -1e-3), None, "what is swapped was planned");
    }
}
