//! Running a plan as training runs it, until an iteration's time is known.
//!
//! Iterations count once they are steady (`profiler::Settling`), until the standard error of their median is a third of a
//! percent, or there are enough of them. The processor time that other processes took is subtracted from each iteration; the
//! result is the lower quartile (`undisturbed`), as for training. A few more iterations are timed command by command: they join
//! the profile if the model is refitted, and reports show one of them.
//!
//! This file does not judge the measurements.

use crate::error::{Error, Kind};
use crate::tuning::GOES_ON;
use plimsoll_ir::Seconds;
use plimsoll_ir::profile::{BatchSamples, alone, undisturbed};
use plimsoll_profiler::{Centre, Settling, batch_samples, centre};
use plimsoll_runtime::data::Dataset;
use plimsoll_runtime::{Observation, Trainer};
use plimsoll_tuner::search::Confirmed;
use std::cell::RefCell;

/// Consecutive iterations that are no faster than those before them, for steadiness.
const STEADY: usize = 4;

/// Least and most iterations that count.
const MEASURED: (usize, usize) = (15, 60);

/// Least total time of these iterations: other load comes and goes in seconds.
const LASTING: Seconds = Seconds(2.0);

/// Sufficient relative standard error of the median.
const GOOD: f64 = 0.003;

/// Iterations that are timed command by command.
const TIMED: usize = 7;

/// Observations so far.
struct Observed {
    settling: Settling,
    steady: bool,
    seconds: Vec<Seconds>,
    waited: Vec<Seconds>,
    between: Vec<Seconds>,
}

impl Observed {
    fn take(&mut self, observation: &Observation) {
        if self.steady {
            self.seconds.push(observation.seconds);
            self.waited.push(observation.waited);
            self.between.push(observation.between);
        } else {
            self.steady = self.settling.is_steady_with(alone(observation.seconds, observation.waited));
        }
    }

    fn alone(&self) -> Vec<Seconds> {
        self.seconds.iter().zip(&self.waited).map(|(seconds, waited)| alone(*seconds, *waited)).collect()
    }

    fn is_enough(&self) -> bool {
        let (least, most) = MEASURED;
        let good = || centre(&self.alone()).is_some_and(|centre| centre.relative_error <= GOOD);
        let lasted = || self.seconds.iter().copied().sum::<Seconds>() >= LASTING;
        self.seconds.len() >= most || (self.seconds.len() >= least && lasted() && good())
    }
}

/// Runs a trainer from its current state, until an iteration's time is known.
pub fn confirm(
    trainer: &mut Trainer,
    data: &dyn Dataset,
    stop: &dyn Fn() -> bool,
) -> Result<Confirmed, Error> {
    let observed = RefCell::new(Observed {
        settling: Settling::after(STEADY),
        steady: false,
        seconds: Vec::new(),
        waited: Vec::new(),
        between: Vec::new(),
    });
    let mut observe = |observation: &Observation| observed.borrow_mut().take(observation);
    trainer.train(data, u64::MAX, &mut observe, &|| stop() || observed.borrow().is_enough())?;
    let observed = observed.into_inner();
    let stopped =
        || Error::new(Kind::Interrupted, "stopped while running a choice; the profile is kept").help(GOES_ON);
    // A hurried time is no measurement.
    if stop() || !observed.is_enough() {
        return Err(stopped());
    }
    let mut timelines = Vec::new();
    for _ in 0..TIMED {
        timelines.push(trainer.train_timed(data)?);
        if stop() {
            return Err(stopped());
        }
    }
    let loaded = trainer.loaded();
    let samples = batch_samples(loaded, &timelines, Seconds::ZERO);
    timelines.sort_by(|a, b| a.makespan().0.total_cmp(&b.makespan().0));
    let sum = |seconds: &[Seconds]| seconds.iter().copied().sum::<Seconds>();
    let alone = observed.alone();
    let Centre { median, deviation, .. } = centre(&alone).expect("iterations were measured");
    Ok(Confirmed {
        iteration: undisturbed(alone).expect("iterations were measured"),
        scatter: deviation / median,
        between: centre(&observed.between).map_or(Seconds::ZERO, |centre| centre.median),
        peak: trainer.layout().device(),
        timeline: timelines.swap_remove(TIMED / 2),
        taken_by_others: sum(&observed.waited) / sum(&observed.seconds),
        samples: BatchSamples { whole_seconds: observed.seconds, waited_seconds: observed.waited, ..samples },
    })
}
