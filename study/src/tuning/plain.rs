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
use super::measured::{Ran, no_run};
use crate::error::Error;
use plimsoll_ir::trace::Phase;
use plimsoll_ir::tuning::Run;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_tuner::search::{Planned, Sharing};
use plimsoll_tuner::{Allow, PlanRequest, Policy};

/// Names of the ways.
pub const ACCUMULATED: &str = "yours, accumulated";
/// See [`ACCUMULATED`].
pub const RECOMPUTED: &str = "yours, recomputing alone";

impl Tuner<'_> {
    /// Returns both ways; none if the user's batch keeps everything, is no batch of these data, or is that of several workers.
    pub(super) fn plain_ways(&mut self, keeper: Option<&Ran>) -> Result<Vec<Run>, Error> {
        let base = self.request.rate.base_batch;
        let range = self.workload.smallest_batch()..=self.workload.samples();
        if self.request.cluster.is_some() || !range.contains(&base) {
            return Ok(Vec::new());
        }
        let needs = self.workload.trace(base)?.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        if needs <= self.request.budget {
            return Ok(Vec::new());
        }
        Ok(vec![self.accumulated(keeper, base)?, self.recomputed(base)?])
    }

    fn accumulated(&mut self, keeper: Option<&Ran>, base: u64) -> Result<Run, Error> {
        let what = ACCUMULATED;
        let least = self.workload.smallest_batch();
        let most = self.keeps_all.unwrap_or(0).min(base / 2);
        let Some(part) = (least..=most).rev().find(|part| base.is_multiple_of(*part)) else {
            let note = format!("no part of {base} keeps everything within the budget");
            return Ok(Run { batch: base, ..no_run(what, Some(note)) });
        };
        let passes = base / part;
        let Planned { trace, schedule, .. } = self.kept(part)?;
        let updates = trace.ops.iter().filter(|op| op.phase == Phase::Update);
        let update: Seconds = updates.map(|op| op.seconds).sum();
        let repeated = update * (passes - 1) as f64;
        let sharing = Sharing { iterations: passes, passes, repeated, ..Sharing::ALONE };
        let plan = Planned::new(trace, schedule, sharing, self.workload.samples());
        let ran = match keeper.filter(|keeper| keeper.batch() == part) {
            None => self.measure(plan)?,
            // A pass of this batch was already run.
            Some(known) => self.ran(plan, known.confirmed.clone()),
        };
        let note = format!("{passes} passes of {part} for an update of {base}, everything kept");
        Ok(Run { note: Some(note), ..ran.run(what) })
    }

    fn recomputed(&mut self, base: u64) -> Result<Run, Error> {
        let request = self.plan_request(Policy::Plimsoll);
        let allow = Allow { swap: false, ..request.allow };
        match self.planned(self.trace(base)?, &PlanRequest { allow, ..request })? {
            Err(witness) => {
                let note = format!("it does not fit: {witness}");
                Ok(Run { batch: base, ..no_run(RECOMPUTED, Some(note)) })
            }
            Ok(plan) => {
                let note = "the fastest plan that was found without swapping".to_owned();
                Ok(Run { note: Some(note), ..self.measure(plan)?.run(RECOMPUTED) })
            }
        }
    }
}
