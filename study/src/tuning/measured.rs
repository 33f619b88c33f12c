//! Runs: a choice, its prediction, its measurements, and comparisons of two runs.

use crate::request::ClusterRequest;
use plimsoll_ir::Seconds;
use plimsoll_ir::config::{Cluster, Figures};
use plimsoll_ir::profile::BatchSamples;
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::tuning::Run;
use plimsoll_tuner::search::{Candidate, Observed, Planned, Verdict, confirm};

/// A choice and its measured times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The planner's figures; `between` is the measured one.
    pub candidate: Candidate,
    /// Measured iteration and other figures; `None` if the device is modelled.
    pub figures: Option<Figures>,
    /// Relative error of the prediction.
    pub predicted_error: f64,
}

impl Measured {
    /// Returns the model's prediction.
    pub fn predicted(&self) -> Figures {
        let candidate = &self.candidate;
        Figures {
            iteration_seconds: candidate.iteration,
            relative_error: self.predicted_error,
            between_seconds: candidate.between,
            epoch_seconds: candidate.epoch,
            peak_bytes: candidate.peak,
        }
    }

    /// Returns the run for the record.
    pub(crate) fn run(&self, what: &str) -> Run {
        let Candidate { batch, sharing, .. } = self.candidate;
        Run {
            what: what.to_owned(),
            batch,
            predicted: Some(self.predicted()),
            measured: self.figures,
            efficiency: (sharing.efficiency != 1.0).then_some(sharing.efficiency),
            note: None,
        }
    }

    /// Returns the time for as much progress as a pass over the data makes with samples of worth 1.
    pub fn progress(&self) -> Seconds {
        self.known().epoch_seconds * (1.0 / self.candidate.sharing.efficiency)
    }

    /// Returns the samples a second of all workers, weighed by their worth.
    pub fn goodput(&self) -> f64 {
        let Candidate { batch, sharing, .. } = self.candidate;
        let known = self.known();
        sharing.goodput(batch, known.iteration_seconds + known.between_seconds)
    }

    /// Returns the workers' update: its passes as measured if they were, and its exchange as predicted.
    pub(crate) fn update(&self, asked: &ClusterRequest) -> Cluster {
        let Candidate { batch, sharing, .. } = self.candidate;
        let known = self.known();
        Cluster {
            workers: asked.workers,
            interconnect: asked.interconnect,
            nccl: asked.nccl,
            global_batch: sharing.iterations * batch,
            passes: sharing.passes,
            exchange_seconds: sharing.exchange,
            update_seconds: sharing.update(known.iteration_seconds + known.between_seconds),
        }
    }

    /// Returns the measured figures; for a modelled device, the model's.
    pub fn known(&self) -> Figures {
        self.figures.unwrap_or_else(|| self.predicted())
    }
}

/// Returns the record of a way to train that was not run, with the reason.
pub(crate) fn no_run(what: &str, note: Option<String>) -> Run {
    Run { what: what.to_owned(), batch: 0, predicted: None, measured: None, efficiency: None, note }
}

/// A plan that was run, or would have been if the device were not modelled.
pub(crate) struct Ran {
    pub measured: Measured,
    pub plan: Planned,
    /// Timed samples; `None` on a modelled device.
    pub ran: Option<Timed>,
}

/// Samples and timeline of iterations that were timed command by command.
pub(crate) struct Timed {
    /// Samples that would correct the model.
    pub samples: BatchSamples,
    /// Timeline of a typical iteration.
    pub timeline: Timeline,
}

impl Ran {
    pub fn batch(&self) -> u64 {
        self.measured.candidate.batch
    }

    /// Returns [`Measured::progress`].
    pub fn progress(&self) -> Seconds {
        self.measured.progress()
    }

    /// Returns the source of the figures: `measured` or `modelled`.
    pub fn how_known(&self) -> &'static str {
        if self.measured.figures.is_some() { "measured" } else { "modelled" }
    }

    pub fn keeps_everything(&self) -> bool {
        self.measured.candidate.keeps_everything()
    }

    /// Returns the scatter of the measurements; 0 if the plan was not run.
    pub fn scatter(&self) -> f64 {
        self.measured.figures.map_or(0.0, |figures| figures.relative_error)
    }

    /// States why this run, which keeps everything, is better than `other`, if it is: its epoch is shorter by more than counts
    /// as equal, or it is equal to one that swaps or recomputes.
    pub fn better_than(&self, other: &Ran, within: f64) -> Option<String> {
        let (batch, known) = (self.batch(), self.how_known());
        if self.progress() * (1.0 + within) <= other.progress() {
            Some(format!("keeping everything at batch {batch} is {known} to be faster"))
        } else if !other.keeps_everything() && self.progress() <= other.progress() * (1.0 + within) {
            Some(format!("keeping everything at batch {batch} is {known} to be no slower"))
        } else {
            None
        }
    }

    /// States that `other` gains nothing over this run, if that is so: it is faster by no more than the scatter of both, or
    /// than counts as equal.
    pub fn no_slower(&self, other: &Ran, within: f64) -> Option<String> {
        let gain = 1.0 - other.progress() / self.progress();
        let equal = self.scatter().hypot(other.scatter()).max(within);
        let (own, batch, known) = (self.batch(), other.batch(), self.how_known());
        if gain <= 0.0 {
            Some(format!(
                "your own batch of {own}, with everything kept, is {known} to be no slower than {batch}"
            ))
        } else if gain <= equal {
            let [gain, equal] = [gain, equal].map(|share| share * 100.0);
            Some(format!(
                "batch {batch} is {known} to gain {gain:.1} % over your own {own}, and {equal:.1} % counts as equal: \
                 no gain is shown"
            ))
        } else {
            None
        }
    }
}

/// Describes an iteration whose time differs from its prediction by more than the stated error, with all three numbers.
pub fn missed(measured: Seconds, predicted: &Figures) -> Option<String> {
    let Figures { iteration_seconds: said, relative_error: stated, .. } = *predicted;
    let off = measured / said - 1.0;
    let [off_percent, stated_percent] = [off, stated].map(|share| share * 100.0);
    (off.abs() > stated).then(|| {
        format!(
            "{measured}, {off_percent:+.1} % off the predicted {said}, for which an error of {stated_percent:.1} % was \
             stated: the machine was busier or calmer than when it was measured, or the profile is of another time"
        )
    })
}

/// Does the same for a run for comparison; `None` if it was not run.
pub fn run_missed(run: &Run) -> Option<String> {
    let Run { what, batch, .. } = run;
    let words = missed(run.measured?.iteration_seconds, &run.predicted?)?;
    Some(format!("At batch {batch} ({what}) an iteration took {words}"))
}

/// Returns `true` if a plan's time differs from the prediction by more than the model's stated error; `false` if it was not
/// run.
pub(crate) fn wants_refit(ran: &Ran) -> bool {
    let Some(figures) = &ran.measured.figures else { return false };
    let (said, error) = (predicted(&ran.measured), ran.measured.predicted_error * 100.0);
    let off = (figures.iteration_seconds / said.iteration - 1.0) * 100.0;
    tracing::info!(
        "batch {}: predicted {} within {error:.1} %, measured {}, {off:+.1} % off",
        ran.batch(),
        said.iteration,
        figures.iteration_seconds
    );
    matches!(confirm(&said, &observed(figures)), Verdict::Refit { .. })
}

/// Returns the model's prediction.
fn predicted(measured: &Measured) -> Observed {
    let Candidate { iteration, peak, .. } = measured.candidate;
    Observed { iteration, peak, relative_error: measured.predicted_error }
}

fn observed(figures: &Figures) -> Observed {
    let Figures { iteration_seconds: iteration, peak_bytes: peak, relative_error, .. } = *figures;
    Observed { iteration, peak, relative_error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_that_was_further_off_than_stated_is_told_with_both_numbers() {
        let check = |measured: f64, says: &[&str]| {
            let predicted = Figures {
                iteration_seconds: Seconds(0.01),
                relative_error: 0.086,
                between_seconds: Seconds::ZERO,
                epoch_seconds: Seconds(1.0),
                peak_bytes: plimsoll_ir::Bytes(1),
            };
            let said = missed(Seconds(measured), &predicted);
            assert_eq!(said.is_some(), !says.is_empty(), "{said:?}");
            let said = said.unwrap_or_default();
            says.iter().for_each(|words| assert!(said.contains(words), "{said}"));
        };
        check(0.010_8, &[]);
        check(0.009_2, &[]);
        check(0.023_98, &["23.98 ms", "+139.8 % off", "10 ms", "8.6 %"]);
        check(0.008, &["-20.0 % off"]);
    }
}
