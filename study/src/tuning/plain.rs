//! The user's own batch if keeping everything does not fit: the usual ways to train it without a planner, run for comparison.
//!
//! - *Accumulated*: passes of the largest part of the batch that keeps everything, and one update after the last of them. Batch
//!   normalisation then sees only the part, so a network that has it trains differently.
//! - *Recomputing alone*: checkpoints, set by the planner. It is the fastest plan that it finds without swapping, so
//!   checkpoints set by hand (Chen et al. 2016, `torch.utils.checkpoint`) are hardly faster.
//!
//! This file does not decide. None of these ways is ever chosen: the plan of the user's batch may do all that the second does,
//! and a batch below the user's own is a different recipe.

use super::Tuner;
use super::measured::{Measured, Ran, no_run};
use crate::error::Error;
use plimsoll_ir::config::Figures;
use plimsoll_ir::trace::Phase;
use plimsoll_ir::tuning::Run;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_tuner::model::Model;
use plimsoll_tuner::search::{Candidate, Sharing};
use plimsoll_tuner::{Allow, Outcome, PlanRequest, Policy, plan_with_log};

/// Names of the ways.
pub const ACCUMULATED: &str = "yours, accumulated";
/// See [`ACCUMULATED`].
pub const RECOMPUTED: &str = "yours, recomputing alone";

/// A way to train the user's own batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// Name: one of the constants above.
    pub what: &'static str,
    /// Samples of a pass.
    pub batch: u64,
    /// Measured times; `None` if it does not fit.
    pub measured: Option<Measured>,
    /// Description, or the reason why it does not fit.
    pub note: String,
}

impl Way {
    /// Returns the run for the record.
    pub(super) fn run(&self) -> Run {
        let note = Some(self.note.clone());
        let none = Run { batch: self.batch, ..no_run(self.what, note.clone()) };
        self.measured.map_or(none, |measured| Run { note, ..measured.run(self.what) })
    }
}

impl Tuner<'_> {
    /// Returns both ways; none if the user's batch keeps everything, is no batch of these data, or is that of several workers.
    pub(super) fn plain_ways(&self, model: &Model, keeper: Option<&Ran>) -> Result<Vec<Way>, Error> {
        let base = self.request.rate.base_batch;
        let range = self.workload.smallest_batch()..=self.workload.samples();
        if self.request.cluster.is_some() || !range.contains(&base) {
            return Ok(Vec::new());
        }
        let needs = self.workload.trace(base)?.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        if needs <= self.request.budget {
            return Ok(Vec::new());
        }
        Ok(vec![self.accumulated(model, keeper, base)?, self.recomputed(model, base)?])
    }

    fn accumulated(&self, model: &Model, keeper: Option<&Ran>, base: u64) -> Result<Way, Error> {
        let what = ACCUMULATED;
        let least = self.workload.smallest_batch();
        let most = self.keeps_all.unwrap_or(0).min(base / 2);
        let Some(part) = (least..=most).rev().find(|part| base.is_multiple_of(*part)) else {
            let note = format!("no part of {base} keeps everything within the budget");
            return Ok(Way { what, batch: base, measured: None, note });
        };
        let passes = base / part;
        let (candidate, plan) = self.kept(model, part)?;
        let updates = plan.trace.ops.iter().filter(|op| op.phase == Phase::Update);
        let update: Seconds = updates.map(|op| op.seconds).sum();
        let repeated = update * (passes - 1) as f64;
        let sharing = Sharing { iterations: passes, passes, repeated, ..Sharing::ALONE };
        let epoch = |iteration| sharing.epoch(self.workload.samples(), part, iteration);
        let candidate = Candidate { sharing, epoch: epoch(candidate.iteration), ..candidate };
        let known = keeper.filter(|keeper| keeper.batch() == part).map(|keeper| keeper.measured);
        let measured = match known {
            None => self.measure(model, candidate, plan)?.measured,
            // A pass of this batch was already run.
            Some(known) => {
                let between = known.candidate.between;
                let of_passes = |figures: Figures| Figures {
                    epoch_seconds: epoch(figures.iteration_seconds + figures.between_seconds),
                    ..figures
                };
                let candidate =
                    Candidate { between, epoch: epoch(candidate.iteration + between), ..candidate };
                Measured { candidate, figures: known.figures.map(of_passes), ..known }
            }
        };
        let note = format!("{passes} passes of {part} for an update of {base}, everything kept");
        Ok(Way { what, batch: part, measured: Some(measured), note })
    }

    fn recomputed(&self, model: &Model, base: u64) -> Result<Way, Error> {
        let mut trace = self.workload.trace(base)?;
        model.fill(&mut trace)?;
        let (budget, link) = (self.request.budget, model.link());
        let request = self.workload.plan_request(Policy::Plimsoll, budget, link, self.watch);
        let allow = Allow { swap: false, ..request.allow };
        let (outcome, log) = plan_with_log(&trace, &PlanRequest { allow, ..request })?;
        let note = match &outcome {
            Outcome::Infeasible(witness) => format!("it does not fit: {witness}"),
            Outcome::Planned(_) => "the fastest plan that was found without swapping".to_owned(),
        };
        let way = Way { what: RECOMPUTED, batch: base, measured: None, note };
        let Some(plan) = self.fitting(trace, outcome, log)? else { return Ok(way) };
        let candidate = self.search_request().candidate(base, &plan);
        Ok(Way { measured: Some(self.measure(model, candidate, plan)?.measured), ..way })
    }
}
