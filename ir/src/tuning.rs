//! `tuning/2`: what a tuning tried, measured and found out, so that a report can say why.
//!
//! The choice itself stands in `config/1`, its schedule in `schedule/1`, what the model was fitted to in `profile/1`. Here is
//! what none of them holds: every batch size that was planned in every round, what was run for comparison, the measured
//! timeline, and what the other policies make of the chosen batch.

use crate::config::Figures;
use crate::document::{Document, Fault, define_kind};
use crate::exchange::update::Busy;
use crate::profile::Machine;
use crate::search_log::SearchLog;
use crate::simulate::Timeline;
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

define_kind!(TuningKind, "tuning/2");

/// What a tuning tried, measured and found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: TuningKind,
    /// What made it.
    pub made: Made,
    /// Where everything was measured; where it is [`modelled`](Machine::modelled), nothing was.
    pub machine: Machine,
    /// What was asked for, and its limits.
    pub asked: Asked,
    /// The rounds of the search; each but the last ended with a refit of the model.
    pub rounds: Vec<Round>,
    /// Why this choice, in words.
    pub why: String,
    /// Whether the user gains nothing by changing the batch.
    pub keep_your_settings: bool,
    /// What was run, or why not: `chosen`, `keeping everything`, `yours`; where the user's batch does not fit, `yours,
    /// accumulated` and `yours, recomputing alone`; and the answer of the search that was not asked for:
    /// `AccUDNN's search` or `plimsoll's search`.
    pub runs: Vec<Run>,
    /// A typical iteration of the choice: when each command of its schedule ran. None where the machine is modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// How the plan of the choice was searched for.
    #[serde(default)]
    pub search: SearchLog,
    /// All policies at the chosen batch.
    pub policies: Comparison,
    /// An update of the workers that were tuned for; none of one alone, and of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersUpdate>,
    /// The training that followed; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
}

/// An update of the workers that were tuned for, as it is predicted, beside what it would be otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkersUpdate {
    /// How long each resource is at work in it.
    pub busy: Busy,
    /// What no order of the same work goes below.
    pub bound_seconds: Seconds,
    /// Where nothing is exchanged before the last pass is over.
    pub without_overlap_seconds: Seconds,
    /// By the number of workers, ascending, of which each makes as many passes of the same batch.
    pub scaling: Vec<UpdateOf>,
}

/// An update of so many workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateOf {
    /// How many.
    pub workers: u64,
    /// What it takes.
    pub seconds: Seconds,
}

/// What made a tuning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// The command line.
    pub command: String,
    /// The version of Plimsoll.
    pub version: String,
    /// Its commit, where the build knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The seed of the runs that were measured.
    pub seed: u64,
    /// When it ended: seconds since 1970, UTC.
    pub unix_seconds: u64,
}

/// What was asked for, and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The data, in words.
    pub data: String,
    /// Samples of an epoch.
    pub samples: u64,
    /// The smallest batch that was considered.
    pub least: u64,
    /// The largest that can be trained within the budget and the data.
    pub largest: u64,
    /// The largest that keeps everything; none where not even one sample does.
    pub keeps_all: Option<u64>,
}

/// One round of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Every batch size that has a plan, ascending.
    pub candidates: Vec<Planned>,
    /// Those without one, ascending.
    pub no_plan: Vec<u64>,
    /// The one that was run.
    pub chosen: u64,
    /// The share by which an epoch may be longer than the shortest and count as equal to it; 0 where the shortest was asked
    /// for.
    pub within: f64,
    /// Its iteration, as predicted.
    pub predicted_seconds: Seconds,
    /// And as measured; none where the machine is modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_seconds: Option<Seconds>,
    /// Whether the model was refitted with what was measured, and the search begun anew.
    pub refit: bool,
}

/// One planned batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    /// Samples of one iteration.
    pub batch: u64,
    /// Predicted, stalls included.
    pub iteration_seconds: Seconds,
    /// The relative error that the prediction states.
    pub relative_error: f64,
    /// What the ops alone take.
    pub compute_seconds: Seconds,
    /// Resident bytes and pool.
    pub peak_bytes: Bytes,
    /// The most bytes of feature maps that are on the device at once.
    pub at_peak_bytes: Bytes,
    /// Bytes that are swapped out in every iteration.
    pub offloaded_bytes: Bytes,
    /// Seconds in which the link swaps, out and in, whether compute waits or not.
    pub swapping_seconds: Seconds,
    /// Ops that are recomputed.
    pub recomputed_ops: u64,
    /// Bytes of the tensors that they write; none where an older version wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recomputed_bytes: Option<Bytes>,
    /// Seconds that this takes.
    pub recomputing_seconds: Seconds,
    /// Samples of an update, where what they are worth was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// What a sample of such an update is worth, beside one of the base batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<f64>,
    /// One pass over the data, of all workers; none where an older version wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_seconds: Option<Seconds>,
}

/// One way to train that was run for comparison, or was to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// See [`Tuning::runs`].
    pub what: String,
    /// Samples of one iteration.
    pub batch: u64,
    /// What the model says of it.
    pub predicted: Option<Figures>,
    /// What was measured.
    pub measured: Option<Figures>,
    /// What a sample of its updates is worth, beside one of the base batch; none where that was not asked about, or as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efficiency: Option<f64>,
    /// Why it was not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// All policies at the same batch, budget and link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// No schedule is shorter than this.
    pub bound_seconds: Seconds,
    /// What the ops alone take.
    pub compute_seconds: Seconds,
    /// One a policy, the fastest first, those without a plan last.
    pub rows: Vec<PolicyRun>,
}

/// What one policy makes of the chosen batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRun {
    /// Its name.
    pub policy: String,
    /// One iteration; none where it has no plan.
    pub makespan_seconds: Option<Seconds>,
    /// Bytes that leave.
    pub offloaded_bytes: Bytes,
    /// Bytes that are prefetched.
    pub prefetched_bytes: Bytes,
    /// Bytes of the tensors that recomputed ops write; none where an older version wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recomputed_bytes: Option<Bytes>,
    /// Seconds of ops that are recomputed.
    pub recomputed_seconds: Seconds,
    /// Seconds that compute waits.
    pub stalled_seconds: Seconds,
    /// Resident bytes and pool.
    pub device_bytes: Option<Bytes>,
    /// What planning took.
    pub planning_seconds: Option<Seconds>,
    /// Why it has no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What training with the choice took and gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Iterations in all.
    pub iterations: u64,
    /// The median iteration, and what passes between two.
    pub iteration_seconds: Seconds,
    /// See `iteration_seconds`.
    pub between_seconds: Seconds,
    /// Of the last epoch.
    pub loss: f64,
    /// On samples that were held out.
    pub test_loss: f64,
    /// The share of them that is told right.
    pub test_accuracy: f64,
    /// How many they are.
    pub test_samples: u64,
    /// What the device held.
    pub peak_bytes: Bytes,
    /// Samples of an iteration, where that was an update of several batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// Iterations of the last run under the plan of their own draw of stochastic depth, where it had such plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn: Option<u64>,
    /// The gradient noise scale at the end, where it could be told: such an update shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_scale: Option<NoiseScale>,
}

/// A gradient noise scale that was measured: in about so many samples, the noise of an update's gradient is as large as the
/// gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoiseScale {
    /// In samples.
    pub samples: f64,
    /// Its standard error, as a share of it.
    pub relative_error: f64,
    /// Samples over which batch norm normalised, where the network has it: with other batches it is another noise scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_norm_over: Option<u64>,
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
        let noise = self.training.and_then(|training| training.noise_scale);
        if noise.is_some_and(|noise| !(noise.samples > 0.0 && noise.relative_error >= 0.0)) {
            return fault("training.noise_scale".into(), "it is above 0, and its error no less than 0");
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
