//! Runs: a choice, its prediction, its measurements, and comparisons of two runs.

use crate::request::ClusterRequest;
use plimsoll_ir::Seconds;
use plimsoll_ir::config::{Cluster, Figures};
use plimsoll_ir::profile::BatchSamples;
use plimsoll_ir::tuning::Run;
use plimsoll_tuner::search::{Candidate, Confirmed, Planned};

/// A plan that was run, or would have been if the device were not modelled.
pub(crate) struct Ran {
    pub plan: Planned,
    /// Figures predicted by the model, but for the measured time between iterations.
    pub predicted: Figures,
    /// Measured figures; `None` on a modelled device.
    pub measured: Option<Figures>,
    /// Results of the run; `None` on a modelled device.
    pub confirmed: Option<Confirmed>,
}

impl Ran {
    /// Returns a plan with its run, for an epoch of this many samples.
    pub fn new(plan: Planned, confirmed: Option<Confirmed>, predicted_error: f64, samples: u64) -> Ran {
        let Candidate { batch, iteration, sharing, peak, .. } = plan.candidate;
        let between_seconds = confirmed.as_ref().map_or(Seconds::ZERO, |ran| ran.between);
        let figures = |iteration_seconds, relative_error, peak_bytes| {
            let epoch_seconds = sharing.epoch(samples, batch, iteration_seconds + between_seconds);
            Figures { iteration_seconds, relative_error, between_seconds, epoch_seconds, peak_bytes }
        };
        let predicted = figures(iteration, predicted_error, peak);
        let measured = confirmed.as_ref().map(|ran| figures(ran.iteration, ran.scatter, ran.peak));
        Ran { plan, predicted, measured, confirmed }
    }

    /// Samples of its iteration.
    pub fn batch(&self) -> u64 {
        self.plan.candidate.batch
    }

    /// Returns the measured figures; for a modelled device, the model's.
    fn known(&self) -> Figures {
        self.measured.unwrap_or(self.predicted)
    }

    /// Returns the seconds of an epoch; of a modelled device, the model's.
    pub fn epoch(&self) -> Seconds {
        self.known().epoch_seconds
    }

    /// Returns the run for the record.
    pub fn run(&self, what: &str) -> Run {
        let (predicted, measured) = (Some(self.predicted), self.measured);
        Run { what: what.to_owned(), batch: self.batch(), predicted, measured, note: None }
    }

    /// Returns the workers' update: its passes as measured if they were, and its exchange as predicted.
    pub fn update(&self, asked: &ClusterRequest) -> Cluster {
        let Candidate { batch, sharing, .. } = self.plan.candidate;
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

    /// Returns `true` if a run took more or less time than predicted, by more than the stated error, or more memory; `false` if
    /// it was not run.
    pub fn is_off(&self) -> bool {
        let Some(measured) = self.measured else { return false };
        let Figures { iteration_seconds, relative_error, peak_bytes, .. } = self.predicted;
        let off = measured.iteration_seconds / iteration_seconds - 1.0;
        tracing::info!(
            "batch {}: predicted {iteration_seconds} within {:.1} %, measured {}, {:+.1} % off",
            self.batch(),
            relative_error * 100.0,
            measured.iteration_seconds,
            off * 100.0
        );
        // A time that is not a number is off.
        !(off.abs() <= relative_error && measured.peak_bytes <= peak_bytes)
    }

    /// Returns the source of the figures: `measured` or `modelled`.
    pub fn how_known(&self) -> &'static str {
        if self.measured.is_some() { "measured" } else { "modelled" }
    }

    /// Returns `true` if it neither swaps nor recomputes.
    pub fn keeps_everything(&self) -> bool {
        self.plan.candidate.keeps_everything()
    }

    /// Returns the scatter of the measurements; 0 if the plan was not run.
    pub fn scatter(&self) -> f64 {
        self.measured.map_or(0.0, |figures| figures.relative_error)
    }

    /// States why this run, which keeps everything, is better than `other`, if it is: its epoch is shorter by more than counts
    /// as equal, or it is equal to one that swaps or recomputes.
    pub fn better_than(&self, other: &Ran, within: f64) -> Option<String> {
        let (batch, known) = (self.batch(), self.how_known());
        if self.epoch() * (1.0 + within) <= other.epoch() {
            Some(format!("keeping everything at batch {batch} is {known} to be faster"))
        } else if !other.keeps_everything() && self.epoch() <= other.epoch() * (1.0 + within) {
            Some(format!("keeping everything at batch {batch} is {known} to be no slower"))
        } else {
            None
        }
    }

    /// States that `other` gains nothing over this run, if that is so: it is faster by no more than the scatter of both, or
    /// than counts as equal.
    pub fn no_slower(&self, other: &Ran, within: f64) -> Option<String> {
        let gain = 1.0 - other.epoch() / self.epoch();
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

/// Returns the record of a way to train that was not run, with the reason.
pub(crate) fn no_run(what: &str, note: Option<String>) -> Run {
    Run { what: what.to_owned(), batch: 0, predicted: None, measured: None, note }
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

/// Replaces the profile's samples of the same batch size, or adds the new ones. Older samples were measured under a different
/// plan or at a different time, and would outvote the new ones. An alternative that did not run this time keeps its samples.
pub(crate) fn take_in(batches: &mut Vec<BatchSamples>, new: BatchSamples) {
    match batches.iter_mut().find(|b| b.batch == new.batch) {
        Some(known) => {
            let ops = std::mem::take(&mut known.ops).into_iter().zip(new.ops);
            let ops = ops.map(|(known, new)| known.replaced_by(new)).collect();
            *known = BatchSamples { ops, ..new };
        }
        None => {
            batches.push(new);
            batches.sort_by_key(|b| b.batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::profile::{AlternativeSamples, OpSamples};
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::trace::Phase;
    use plimsoll_ir::{Bytes, BytesPerSecond};
    use plimsoll_testing::chain_trace;
    use plimsoll_tuner::search::Sharing;
    use plimsoll_tuner::{PlanRequest, Policy, plan};

    #[test]
    fn a_prediction_that_was_further_off_than_stated_is_told_with_both_numbers() {
        let check = |measured: f64, says: &[&str]| {
            let predicted = Figures {
                iteration_seconds: Seconds(0.01),
                relative_error: 0.086,
                between_seconds: Seconds::ZERO,
                epoch_seconds: Seconds(1.0),
                peak_bytes: Bytes(1),
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

    #[test]
    fn a_run_is_off_beyond_the_stated_error_or_with_a_larger_peak() {
        let figures = |iteration, relative_error, peak| Figures {
            iteration_seconds: Seconds(iteration),
            relative_error,
            between_seconds: Seconds::ZERO,
            epoch_seconds: Seconds(1.0),
            peak_bytes: Bytes(peak),
        };
        let trace = chain_trace(2);
        let request = PlanRequest::new(Bytes(1 << 40), Link::symmetric(BytesPerSecond(1e9)), Policy::Keep);
        let outcome = plan(&trace, &request).expect("a sound request");
        let schedule = outcome.plan().expect("memory is plenty").schedule.clone();
        let plan = Planned::new(trace, schedule, Sharing::ALONE, 10);
        let mut ran = Ran { predicted: figures(1.0, 0.05, 100), ..Ran::new(plan, None, 0.0, 10) };
        assert!(!ran.is_off(), "it was not run");
        let mut is_off = |iteration, scatter, peak| {
            ran.measured = Some(figures(iteration, scatter, peak));
            ran.is_off()
        };
        // A measurement that scatters does not excuse the prediction.
        assert!(is_off(1.06, 0.02, 100) && is_off(0.9, 0.0, 100));
        assert!(!is_off(1.04, 0.02, 100) && !is_off(0.96, 0.0, 90));
        assert!(is_off(1.0, 0.0, 101) && is_off(f64::NAN, 0.0, 100));
    }

    fn samples(batch: u64, usual: &[f64], alternative: &[f64]) -> BatchSamples {
        let seconds = |all: &[f64]| all.iter().copied().map(Seconds).collect::<Vec<_>>();
        let alternative = AlternativeSamples {
            name: "lean".into(),
            workspace_bytes: Bytes::ZERO,
            seconds: seconds(alternative),
        };
        let alternatives = if alternative.seconds.is_empty() { vec![] } else { vec![alternative] };
        let (name, kind) = ("a.forward".into(), "conv".into());
        let op =
            OpSamples { name, kind, phase: Phase::Forward, flops: 1, seconds: seconds(usual), alternatives };
        BatchSamples { whole_seconds: seconds(usual), ops: vec![op], ..BatchSamples::none(batch) }
    }

    #[test]
    fn samples_of_a_refit_stand_in_the_place_of_older_ones() {
        let mut batches = vec![samples(2, &[1.0, 1.0], &[3.0]), samples(8, &[4.0], &[])];
        take_in(&mut batches, samples(4, &[2.0], &[]));
        take_in(&mut batches, samples(2, &[1.5], &[]));
        assert_eq!(batches.iter().map(|b| b.batch).collect::<Vec<_>>(), [2, 4, 8]);
        assert_eq!(batches[0].whole_seconds, [Seconds(1.5)]);
        assert_eq!(batches[0].ops[0].seconds, [Seconds(1.5)], "older ones do not outvote it");
        assert_eq!(batches[0].ops[0].alternatives[0].seconds, [Seconds(3.0)], "what did not run stays");
    }
}
