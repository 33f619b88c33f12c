//! `tuning/2`: the record of a tuning, from which a report explains the choice.
//!
//! `config/1` holds the choice, `schedule/1` its schedule, `profile/1` the samples that the model was fitted to. This
//! document adds every batch size that was planned in every round, the runs for comparison, the measured timeline, and the
//! other policies' results at the chosen batch.

use crate::config::Figures;
use crate::document::{Document, Fault, define_kind};
use crate::exchange::update::Busy;
use crate::profile::Machine;
use crate::search_log::SearchLog;
use crate::simulate::Timeline;
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

define_kind!(TuningKind, "tuning/2");

/// The record of a tuning: everything that was tried and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: TuningKind,
    /// Origin of the document.
    pub made: Made,
    /// Machine that everything was measured on; nothing was measured if it is [`modelled`](Machine::modelled).
    pub machine: Machine,
    /// The request and its limits.
    pub asked: Asked,
    /// Rounds of the search; each but the last ended with a refit of the model.
    pub rounds: Vec<Round>,
    /// Reason for the choice, in words.
    pub why: String,
    /// `true` if changing the batch gains the user nothing.
    pub keep_your_settings: bool,
    /// Runs, with the reason where one was skipped: `chosen`, `keeping everything`, `yours`; where the user's batch does not
    /// fit, `yours, accumulated` and `yours, recomputing alone`; and the result of the search that was not requested:
    /// `AccUDNN's search` or `plimsoll's search`.
    pub runs: Vec<Run>,
    /// A typical iteration of the choice: start and end of each command. `None` on a modelled machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Steps of the search for the plan of the choice.
    #[serde(default)]
    pub search: SearchLog,
    /// All policies at the chosen batch.
    pub policies: Comparison,
    /// Update of the workers that were tuned for; `None` for a single worker or an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersUpdate>,
    /// The training that followed; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
}

/// A predicted update of the workers that were tuned for, with figures to compare it with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkersUpdate {
    /// Busy time of each resource during the update.
    pub busy: Busy,
    /// Lower bound over all orders of the same work.
    pub bound_seconds: Seconds,
    /// Duration if nothing is exchanged before the last pass is over.
    pub without_overlap_seconds: Seconds,
    /// Updates by number of workers, ascending; each worker makes as many passes of the same batch.
    pub scaling: Vec<UpdateOf>,
}

/// An update of this many workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateOf {
    /// Number of workers.
    pub workers: u64,
    /// Duration of the update.
    pub seconds: Seconds,
}

/// Origin of a tuning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// The command line.
    pub command: String,
    /// Version of Plimsoll.
    pub version: String,
    /// Commit, if the build knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Seed of the measured runs.
    pub seed: u64,
    /// End of the tuning: seconds since 1970, UTC.
    pub unix_seconds: u64,
}

/// The request and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The data, in words.
    pub data: String,
    /// Samples of an epoch.
    pub samples: u64,
    /// Smallest batch considered.
    pub least: u64,
    /// Largest batch that can be trained within the budget and the data.
    pub largest: u64,
    /// Largest batch that keeps everything; `None` if not even one sample does.
    pub keeps_all: Option<u64>,
}

/// One round of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Batch sizes that have a plan, ascending.
    pub candidates: Vec<Planned>,
    /// Batch sizes without a plan, ascending.
    pub no_plan: Vec<u64>,
    /// Batch size that was run.
    pub chosen: u64,
    /// Share by which an epoch may exceed the shortest one and count as equal; 0 if the shortest was requested.
    pub within: f64,
    /// Predicted iteration of the chosen batch.
    pub predicted_seconds: Seconds,
    /// Measured iteration of the chosen batch; `None` on a modelled machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_seconds: Option<Seconds>,
    /// `true` if the model was refitted with the measurements and the search restarted.
    pub refit: bool,
}

/// One planned batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    /// Samples of one iteration.
    pub batch: u64,
    /// Predicted iteration, stalls included.
    pub iteration_seconds: Seconds,
    /// Relative error stated by the prediction.
    pub relative_error: f64,
    /// Time of the ops alone.
    pub compute_seconds: Seconds,
    /// Resident bytes and pool.
    pub peak_bytes: Bytes,
    /// Most bytes of activations on the device at once.
    pub at_peak_bytes: Bytes,
    /// Bytes swapped out in every iteration.
    pub offloaded_bytes: Bytes,
    /// Seconds in which the link swaps, out and in, stalls or not.
    pub swapping_seconds: Seconds,
    pub recomputed_ops: u64,
    /// Bytes of the tensors that the recomputed ops write; `None` in documents of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recomputed_bytes: Option<Bytes>,
    /// Seconds of recompute.
    pub recomputing_seconds: Seconds,
    /// One pass of all workers over the data; `None` in documents of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_seconds: Option<Seconds>,
}

/// One way to train, run or planned for comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name; see [`Tuning::runs`].
    pub what: String,
    /// Samples of one iteration.
    pub batch: u64,
    /// Figures predicted by the model.
    pub predicted: Option<Figures>,
    pub measured: Option<Figures>,
    /// Reason why it was not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// All policies at the same batch, budget and link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Lower bound of every schedule.
    pub bound_seconds: Seconds,
    /// Time of the ops alone.
    pub compute_seconds: Seconds,
    /// One row per policy, fastest first, those without a plan last.
    pub rows: Vec<PolicyRun>,
}

/// One policy's result at the chosen batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRun {
    /// Name of the policy.
    pub policy: String,
    /// Makespan; `None` without a plan.
    pub makespan_seconds: Option<Seconds>,
    pub offloaded_bytes: Bytes,
    pub prefetched_bytes: Bytes,
    /// Bytes of the tensors that recomputed ops write; `None` in documents of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recomputed_bytes: Option<Bytes>,
    /// Seconds of recomputed ops.
    pub recomputed_seconds: Seconds,
    /// Seconds in which compute stalls.
    pub stalled_seconds: Seconds,
    /// Resident bytes and pool.
    pub device_bytes: Option<Bytes>,
    /// Duration of planning.
    pub planning_seconds: Option<Seconds>,
    /// Reason why there is no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Costs and results of training with the choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Iterations in all.
    pub iterations: u64,
    /// Median iteration.
    pub iteration_seconds: Seconds,
    /// Median time between two iterations.
    pub between_seconds: Seconds,
    /// Loss of the last epoch.
    pub loss: f64,
    /// Loss on the held-out samples.
    pub test_loss: f64,
    /// Share of the held-out samples classified correctly.
    pub test_accuracy: f64,
    /// Number of held-out samples.
    pub test_samples: u64,
    /// Peak bytes on the device.
    pub peak_bytes: Bytes,
    /// Samples of an iteration, if it was an update of several batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
}

impl Document for Tuning {
    const KIND: &'static str = "tuning/2";

    fn validate(&self) -> Result<(), Fault> {
        let fault = |place: String, why: &str| Err(Fault::Meaning { place, why: why.to_owned() });
        if self.asked.samples == 0 {
            return fault("asked.samples".into(), "an epoch has at least 1 sample");
        }
        let Some(last) = self.rounds.last() else {
            return fault("rounds".into(), "a tuning has at least one round");
        };
        for (i, round) in self.rounds.iter().enumerate() {
            if !round.candidates.iter().any(|candidate| candidate.batch == round.chosen) {
                return fault(format!("rounds[{i}].chosen"), "what was chosen is none of the candidates");
            }
            if !(0.0..1.0).contains(&round.within) {
                return fault(format!("rounds[{i}].within"), "it is a share, from 0 to below 1");
            }
            if !round.candidates.is_sorted_by(|a, b| a.batch < b.batch) || round.candidates[0].batch == 0 {
                return fault(format!("rounds[{i}].candidates"), "batches are at least 1, and ascend");
            }
        }
        if last.refit {
            return fault("rounds".into(), "a refit is followed by another round");
        }
        let chosen = self.runs.iter().find(|run| run.what == "chosen");
        let known = |run: &Run| if self.machine.modelled { run.predicted } else { run.measured };
        if chosen.is_none_or(|run| known(run).is_none() || run.batch == 0) {
            return fault("runs".into(), "what was chosen was measured; there is no such run");
        }
        let is_measured = |run: &Run| run.measured.is_some();
        if self.machine.modelled && (self.timeline.is_some() || self.runs.iter().any(is_measured)) {
            return fault("machine.modelled".into(), "on a modelled machine nothing is measured");
        }
        if !self.machine.modelled && self.timeline.is_none() {
            return fault("timeline".into(), "what was chosen was run");
        }
        let takes_time =
            |of: &UpdateOf| of.workers > 0 && of.seconds.0.is_finite() && of.seconds > Seconds::ZERO;
        let scales =
            |all: &[UpdateOf]| all.iter().all(takes_time) && all.is_sorted_by(|a, b| a.workers < b.workers);
        if self.workers.as_ref().is_some_and(|update| !scales(&update.scaling)) {
            return fault(
                "workers.scaling".into(),
                "numbers of workers ascend from 1, and updates take time",
            );
        }
        let ordered = |span: &crate::simulate::Span| {
            span.start.0.is_finite()
                && span.end.0.is_finite()
                && 0.0 <= span.start.0
                && span.start.0 <= span.end.0
        };
        if !self.timeline.iter().flat_map(|timeline| &timeline.spans).all(ordered) {
            return fault(
                "timeline".into(),
                "a command ends no earlier than it begins, and begins at 0 or later",
            );
        }
        Ok(())
    }
}
