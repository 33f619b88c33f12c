//! Training what was tuned: the config's schedule on the task's data, epoch by epoch, its state kept (`kept.rs`) where a device that
//! fails cannot take it along.
//!
//! What it deliberately does not do: choose anything. Batch, placement and rate stand in the config.

use crate::args::{DecayArg, TrainArgs};
use crate::doubts::Doubts;
use crate::failure::{Exit, Failure};
use crate::files;
use crate::interrupt;
use crate::kept::Kept;
use crate::progress;
use crate::study::{Held, Study};
use crate::task::{Task, median};
use plimsoll_ir::check::check;
use plimsoll_ir::config::Config;
use plimsoll_ir::profile::{alone, undisturbed};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, CommandId, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::{
    Checkpoint, Decay, Evaluation, LearningRateSchedule, Observation, Outcome, Trainer, TrainingPlan,
    state_bytes,
};
use plimsoll_tuner::state_copy::{CopyPlace, place_of_copy};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the device is asked how it is, at most: its driver takes milliseconds to tell.
const LOOK: Duration = Duration::from_secs(10);

/// A larger share of training for which others had the processors is told.
const TOLD: f64 = 0.05;

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
    /// An iteration of this run that nothing disturbs: `undisturbed`.
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
    /// It has chosen the learning rate, too, and can choose another.
    pub tunes: bool,
    /// No progress is shown.
    pub quiet: bool,
}

/// A trainer at the start of training, and the iterations of an epoch.
fn set_up(
    task: &Task,
    config: &Config,
    schedule: &Schedule,
    args: &TrainArgs,
    study: &Study,
) -> Result<(Trainer, u64), Failure> {
    let program = task.program(config.batch, Mode::Train)?;
    within_budget(&program, config, schedule, study)?;
    let (evaluate, evaluate_schedule) = task.evaluation(config.batch, config.budget_bytes)?;
    let programs = [(&program, schedule), (&evaluate, &evaluate_schedule)];
    let (executor, mut loaded) = match args.save_every {
        None if task.setup.can_be_lost() => {
            task.executor_keeping_state(&programs, place_copies(study, &program, schedule)?)?
        }
        // What computes in the host's memory has the state there, and who says how often it is saved has it in its file.
        _ => task.executor(&programs)?,
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

/// Makes sure that a schedule keeps the budget of its config, whatever budget it says itself.
fn within_budget(
    program: &Program,
    config: &Config,
    schedule: &Schedule,
    study: &Study,
) -> Result<(), Failure> {
    let takes = Bytes(program.trace.resident_bytes.0.saturating_add(schedule.pool_bytes.0));
    if takes <= config.budget_bytes {
        return Ok(());
    }
    let (name, budget) = (&config.schedule, config.budget_bytes);
    let message = format!("{name} takes {takes}, more than the {budget} that its config allows");
    Err(Failure::new(Exit::Verification, message).help(format_args!(
        "put the schedule back that was chosen with the config, or {}",
        study.tune_again()
    )))
}

/// Where the state is copied to the host beside an iteration, by the times of the study's trace; behind what is swapped out where the
/// study has none for this program. Says so where it slows training down.
fn place_copies(study: &Study, program: &Program, schedule: &Schedule) -> Result<Option<CommandId>, Failure> {
    if !study.trace().exists() {
        return Ok(None);
    }
    let trace: Trace = files::read(&study.trace())?;
    let state = state_bytes(program);
    // Whatever became of the study's files: times of another iteration are no guide, and its schedule is another.
    if check(&trace, schedule).is_err() {
        return Ok(None);
    }
    let Some(place) = place_of_copy(&trace, schedule, state) else { return Ok(None) };
    slowed(simulate(&trace, schedule).makespan(), &place, state).inspect(|words| tracing::warn!("{words}"));
    Ok(place.before)
}

/// What to say where a copy of the state takes more than a hundredth of an iteration, wherever it is made.
fn slowed(without: Seconds, place: &CopyPlace, state: Bytes) -> Option<String> {
    let added = place.makespan / without - 1.0;
    (added > 0.01).then(|| {
        format!(
            "the way to the host has no room for a copy of the state ({state}) beside every iteration, which a device that fails \
             cannot take along: an iteration of {without} takes {}, {:.1} % more. --save-every 5min writes the state to its file \
             that often instead",
            place.makespan,
            added * 100.0
        )
    })
}

/// Trains, or goes on from the study's checkpoint where there is one, and tests at the end. No other run works in the study.
pub fn train(
    task: &Task,
    config: &Config,
    schedule: &Schedule,
    args: &TrainArgs,
    study: &Study,
    _alone: &Held,
    manner: Manner,
) -> Result<Trained, Failure> {
    let Manner { fresh, timed, tunes, quiet } = manner;
    let loading = progress::spinner("load", quiet);
    let (mut trainer, per_epoch) = set_up(task, config, schedule, args, study)?;
    drop(loading);
    let checkpoint = &study.checkpoint();
    let (total, peak) = (per_epoch * args.epochs, trainer.layout().device());
    begin(&mut trainer, study, (args.epochs, per_epoch), fresh)?;
    let resumed_at = trainer.step();
    // Nothing is trained yet, but data that is not what training began with is refused, even where all is done.
    trainer.train(&*task.data.train, resumed_at, &mut |_| {}, &|| false)?;
    let mut seen = Seen::default();
    let mut kept = Kept::new(checkpoint, resumed_at, total, fresh, args.save_every);
    kept.lower_rate = lower_rate(config, study, tunes);
    let (mut doubts, mut looked) = (Doubts::default(), None::<Instant>);
    let bar = progress::bar("train", total, quiet);
    while trainer.step() < total {
        let epoch = trainer.step() / per_epoch;
        let reached = Cell::new(trainer.step());
        let mut observe = |observation: &Observation| {
            // An iteration that Ctrl-C hurried shows nothing of others.
            seen.take(observation, !interrupt::pressed());
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
            let message =
                format!("stopped while training, after {step} of {total} iterations; saved to {path}");
            return Err(Failure::new(Exit::Interrupted, message).help(kept.again()));
        }
    }
    // A disk that is full by now takes neither the test nor its result along.
    let written = kept.write(&mut trainer);
    bar.finish_and_clear();
    let iterations = trainer.step();
    let test = test(task, &mut trainer, &mut kept, timed, quiet);
    written?;
    let (test, timeline) = test?;
    if seen.waited > TOLD * seen.by_the_clock {
        let share = seen.waited / seen.by_the_clock * 100.0;
        tracing::warn!(
            "others had the processors for {share:.0} % of training; its iteration is told without that"
        );
    }
    Ok(Trained {
        iterations,
        resumed_at,
        loss: seen.last().0,
        test,
        iteration: undisturbed(seen.seconds).unwrap_or(Seconds::ZERO),
        between: median(&mut seen.between),
        peak,
        timeline,
    })
}

/// Goes on from the study's checkpoint where there is one and it is not to be forgotten, once it is sure that the state can be kept.
fn begin(
    trainer: &mut Trainer,
    study: &Study,
    (epochs, per_epoch): (u64, u64),
    fresh: bool,
) -> Result<(), Failure> {
    let checkpoint = &study.checkpoint();
    let total = epochs * per_epoch;
    if checkpoint.exists() && !fresh {
        let before = resume(trainer, checkpoint)?;
        let (step, now) = (trainer.step(), trainer.plan().rate);
        if step >= total {
            tracing::info!(
                "trained for {}, asked for {}: nothing is left to train; more --epochs go on, --fresh begins anew",
                in_epochs(step, per_epoch),
                in_epochs(total, per_epoch)
            );
        } else {
            tracing::info!("going on from iteration {step} of {total}");
        }
        if step < total && before != now {
            tracing::warn!("{}", other_length(before, now, step, (epochs, per_epoch)));
        }
    }
    if trainer.step() < total {
        Checkpoint::make_sure(checkpoint, trainer.saved_bytes()).map_err(|error| {
            Failure::from(error).help("nothing was trained: the training's state could not be kept")
        })?;
    }
    if fresh {
        study.forget(std::slice::from_ref(checkpoint))?;
    }
    Ok(())
}

/// So many iterations, in epochs where they are whole ones.
fn in_epochs(iterations: u64, per_epoch: u64) -> String {
    match (iterations / per_epoch, iterations % per_epoch) {
        (1, 0) => "1 epoch".to_owned(),
        (epochs, 0) => format!("{epochs} epochs"),
        (epochs, left) => {
            format!("{} and {left} of {per_epoch} iterations", in_epochs(epochs * per_epoch, per_epoch))
        }
    }
}

/// What to say of a training that goes on for other than the epochs over which the decay of its rate was spread until now.
fn other_length(
    before: LearningRateSchedule,
    now: LearningRateSchedule,
    step: u64,
    (epochs, per_epoch): (u64, u64),
) -> String {
    let asked = in_epochs(epochs * per_epoch, per_epoch);
    format!(
        "trained for {}, asked for {asked}: from here on the decay of the learning rate is spread over {asked}, so the rate, which was \
         {:.3e} in the last iteration, is {:.3e} in the next. That is another training than {asked} from the start, for which there is \
         --fresh",
        in_epochs(step, per_epoch),
        before.at(step.saturating_sub(1)),
        now.at(step),
    )
}

/// Tests a network that is trained; then, where that was asked for, runs two more iterations and gives the second's timeline.
fn test(
    task: &Task,
    trainer: &mut Trainer,
    kept: &mut Kept<'_>,
    timed: bool,
    quiet: bool,
) -> Result<(Evaluation, Option<Timeline>), Failure> {
    let testing = progress::spinner("test", quiet);
    let (test, done) = (trainer.evaluate_until(&*task.data.test, &interrupt::pressed), trainer.step());
    let test = test.map_err(|error| kept.failure(error, trainer))?;
    drop(testing);
    let mut timeline = None;
    for _ in 0..if timed { 2 } else { 0 } {
        let timed = trainer.train_timed(&*task.data.train);
        timeline = Some(timed.map_err(|error| kept.failure(error, trainer))?);
    }
    // Iterations that were hurried show nothing of others.
    test.filter(|_| !timed || !interrupt::pressed()).map(|test| (test, timeline)).ok_or_else(|| {
        let message = format!("stopped while testing, after all {done} iterations of the training");
        Failure::new(Exit::Interrupted, message).help(kept.again())
    })
}

/// What to do where a training diverges: it has to begin anew, with a lower rate.
fn lower_rate(config: &Config, study: &Study, tunes: bool) -> String {
    let rate = &config.learning_rate;
    // A tenth, to three digits.
    let tenth: f64 = format!("{:.2e}", rate.base_rate / 10.0).parse().expect("it is a number");
    let lower = format!("--base-rate {tenth}, where it was {}", rate.base_rate);
    let folder = study.folder().display();
    match tunes {
        true => format!("start anew with a lower rate: the same command with --fresh and such as {lower}"),
        false => format!(
            "start anew with a lower rate: tune into another folder with `plimsoll tune --study DIR`, its other options and \
             such as {lower}; or change learning_rate.rate in a config of your own beside that of {folder}, and run that \
             with --fresh"
        ),
    }
}

/// Goes on from a checkpoint; gives the rates that were planned when it was saved.
fn resume(trainer: &mut Trainer, checkpoint: &Path) -> Result<LearningRateSchedule, Failure> {
    let saved = Checkpoint::load(checkpoint).map_err(|error| {
        Failure::from(error).help("put the file back as it was, or start anew with --fresh")
    })?;
    if !saved.has_checksum() {
        tracing::warn!(
            "{} is from an older version and has no checksum: whether it is damaged is not known",
            checkpoint.display()
        );
    }
    trainer.resume(&saved, checkpoint).map_err(|error| match Failure::from(error) {
        // The file is as good as before.
        failure if failure.exit == Exit::Device => failure,
        failure => failure.help("train with the same options, or start anew with --fresh"),
    })?;
    Ok(saved.progress.plan.rate)
}

/// What this run observed.
#[derive(Default)]
struct Seen {
    /// Loss and accuracy of the iterations of the last epoch.
    losses: Vec<(f32, f32)>,
    /// Of each iteration, without what others took of the processors.
    seconds: Vec<Seconds>,
    between: Vec<f64>,
    /// What others took, of all iterations, and what these took by the clock.
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

    #[test]
    fn what_diverged_begins_anew_with_a_lower_rate_in_the_way_of_its_command() {
        let text = include_str!("../tests/data/chosen.config.json");
        let config = <Config as plimsoll_ir::Document>::from_json(text).expect("a config");
        let (study, _) = Study::of_config(Path::new("digits/chosen.config.json"));
        let of_auto = lower_rate(&config, &study, true);
        assert!(of_auto.contains("the same command with --fresh and such as --base-rate 0.005"), "{of_auto}");
        let of_run = lower_rate(&config, &study, false);
        for part in
            ["`plimsoll tune --study DIR`", "--base-rate 0.005, where it was 0.05", "beside that of digits"]
        {
            assert!(of_run.contains(part), "{part} in: {of_run}");
        }
    }

    #[test]
    fn more_epochs_are_told_with_the_rates_before_and_behind() {
        let of = |iterations| LearningRateSchedule {
            base: 0.05,
            warmup_iterations: 0,
            decay: Decay::Cosine { iterations, floor: 0.0 },
        };
        let words = other_length(of(1120), of(11200), 1120, (200, 56));
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
        for part in ["(1 MiB)", "an iteration of 2 s takes 2.5 s, 25.0 % more", "--save-every"] {
            assert!(words.contains(part), "`{part}` in: {words}");
        }
    }
}
