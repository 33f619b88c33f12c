//! What a comparison of two studies says: `comparison/1`, plain data that the page shows and that a script gets as JSON.
//!
//! Seconds, bytes, bytes per second and shares (0.01 is 1 %) throughout, as in a report. What of a study is told as its report
//! tells it has the types of that.

use crate::report::data::{About, Batches, StepSeries};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Two studies, side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The format.
    pub kind: ComparisonKind,
    /// Which of them trains faster.
    pub verdict: Verdict,
    /// The settings in which they differ, and no others.
    pub settings: Vec<Difference>,
    /// The two, in the order in which they were named.
    pub studies: [Compared; 2],
    /// What to know before one believes the numbers.
    pub warnings: Vec<String>,
}

/// `comparison/1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum ComparisonKind {
    /// This version.
    #[serde(rename = "comparison/1")]
    Comparison1,
}

/// Which of two studies trains faster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The answer in one sentence.
    pub headline: String,
    /// How sure it is, and of what it does not tell.
    pub why: String,
    /// What is compared.
    pub by: Measure,
    /// The name of the faster one; none where they differ by no more than counts as equal.
    pub faster: Option<String>,
    /// By which share of the slower one's time the faster one is shorter.
    pub less: f64,
    /// Up to this share a difference counts as none.
    pub equal: f64,
}

/// What tells which of two studies trains faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// The time of an epoch: it has as many samples in both.
    Epoch,
    /// Samples a second by what they are worth at one noise scale.
    Goodput,
    /// Samples a second: their epochs are of different lengths.
    Samples,
}

/// A setting in which they differ, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The setting.
    pub setting: String,
    /// What it is in each.
    pub values: [String; 2],
}

/// One of two studies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// What it is called here: no two have the same name.
    pub name: String,
    /// What it is of, and where it comes from; its warnings are those of the comparison.
    pub about: About,
    /// The answer of its own report, in one sentence.
    pub headline: String,
    /// How its times are known, in words.
    pub times: String,
    /// What it chose.
    pub choice: Choice,
    /// Its curve over the batch.
    pub batches: Batches,
    /// Memory over one iteration.
    pub memory: MemoryOverTime,
}

/// What a study chose, and what that costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    /// Samples of one iteration.
    pub batch: u64,
    /// Samples of one update, of all workers together.
    pub global_batch: u64,
    /// The policy that made the plan.
    pub policy: String,
    /// The learning rate of an update.
    pub learning_rate: f64,
    /// The rule that it follows, in words with its base point.
    pub learning_rate_rule: String,
    /// Iterations over which the rate rises to it.
    pub warmup_iterations: u64,
    /// The model's.
    pub predicted_iteration_seconds: f64,
    /// The relative error that the prediction states.
    pub predicted_error: f64,
    /// Measured: the lower quartile; none where the device is modelled.
    pub iteration_seconds: Option<f64>,
    /// How far measurements lie apart, relative to it.
    pub relative_error: Option<f64>,
    /// Samples over the seconds of an epoch, of all workers together.
    pub samples_per_second: f64,
    /// One pass over the data: as measured, or as modelled.
    pub epoch_seconds: f64,
    /// The spread of what was measured, or the error that the model states.
    pub epoch_error: f64,
    /// What a sample of an update is worth, where the two are compared by goodput.
    pub efficiency: Option<f64>,
    /// Samples a second by what they are worth, where the two are compared by goodput.
    pub goodput: Option<f64>,
    /// Resident bytes and pool.
    pub peak_bytes: u64,
    /// The most bytes of feature maps that are on the device at once.
    pub at_peak_bytes: u64,
    /// Bytes that are swapped out in every iteration.
    pub offloaded_bytes: u64,
    /// Seconds in which the link swaps, out and in.
    pub swapping_seconds: f64,
    /// Ops that are recomputed in every iteration.
    pub recomputed_ops: u64,
    /// Bytes of the tensors that they write.
    pub recomputed_bytes: u64,
    /// Seconds that this takes.
    pub recomputing_seconds: f64,
    /// Seconds of the predicted iteration in which compute waits.
    pub stalled_seconds: f64,
    /// The host's memory for what is swapped.
    pub host_bytes: u64,
}

/// Memory over one iteration, as predicted. All times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryOverTime {
    /// The end of the iteration.
    pub end: u64,
    /// What the device may hold, parameters included.
    pub budget_bytes: u64,
    /// What stays all the time.
    pub resident_bytes: u64,
    /// Pool bytes in use, as steps.
    pub pool: StepSeries,
    /// Bytes of host copies, as steps.
    pub host: StepSeries,
}
