//! Contents of a report: `report/1`, plain data that the page shows and that a script gets as JSON.
//!
//! All quantities are seconds, bytes, bytes per second and shares (0.01 is 1 %). Long lists are columns of one length, so that
//! an iteration of some thousand commands stays small. Parts that only a tuning knows (`answer`, `batches`, `workers`, `fit`)
//! are absent in the report of a trace and its schedule.

use serde::{Deserialize, Serialize};

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The format.
    pub kind: ReportKind,
    /// What it is about, and where it comes from.
    pub about: About,
    /// What to use, and what it costs; of a tuning.
    pub answer: Option<Answer>,
    /// Where there was no tuning: what runs, and what it stands beside; what runs first. Empty where nothing else is known.
    #[serde(default)]
    pub settings: Vec<Setting>,
    /// Time over batch size; of a tuning.
    pub batches: Option<Batches>,
    /// The workers; of a tuning for several.
    #[serde(default)]
    pub workers: Option<Workers>,
    /// One iteration, predicted and, where it was run, measured.
    pub iteration: Iteration,
    /// The pool, the host and the addresses over time.
    pub memory: Memory,
    /// What was decided, layer by layer, in the order of the forward pass.
    pub layers: Vec<Layer>,
    /// How well the model fits; of a tuning.
    pub fit: Option<Fit>,
    /// All policies at the same batch and budget.
    pub policies: Policies,
}

/// `report/1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReportKind {
    /// This version.
    #[serde(rename = "report/1")]
    Report1,
}

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The network's (or trace's) name.
    pub network: String,
    /// What it is trained on or with, in words, such as `28x28x1 images, 10 classes, 1500 samples`.
    pub data: Option<String>,
    /// Samples of one iteration.
    pub batch: u64,
    /// What the device may hold.
    pub budget_bytes: u64,
    /// The device, in words.
    pub device: Option<String>,
    /// Whether it is known by its data sheet alone, and nothing was measured.
    #[serde(default)]
    pub modelled: bool,
    /// The system, threads, driver and what else was found out of the machine: name and value.
    pub machine: Vec<(String, String)>,
    /// The version of Plimsoll that made what is reported, and the commit where it is known.
    pub plimsoll: String,
    /// The commit, where the build knew it.
    pub commit: Option<String>,
    /// The command that made it.
    pub command: Option<String>,
    /// The seed.
    pub seed: Option<u64>,
    /// When it was measured, in seconds since 1970.
    pub unix_seconds: Option<u64>,
    /// What to know before one believes the numbers (a busy machine, a device that throttles, ...).
    pub warnings: Vec<String>,
}

/// What to use, and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the user gains by changing anything.
    pub keep_your_settings: bool,
    /// The answer in one sentence.
    pub headline: String,
    /// Why, in a sentence or two.
    pub why: String,
    /// What stays, what is swapped, what is recomputed, in one sentence.
    pub placement: String,
    /// Samples of one iteration.
    pub batch: u64,
    /// The learning rate; where it was tuned for workers, that of an update of all of them.
    pub learning_rate: f64,
    /// Samples of the update that it is for.
    #[serde(default)]
    pub learning_rate_samples: u64,
    /// The rule that it follows, in words with its base point.
    pub learning_rate_rule: String,
    /// What to know before one trusts it; none where the batch is near the base point.
    pub learning_rate_caution: Option<String>,
    /// Iterations over which the rate rises to it, of one worker alone; a run of several says its own.
    pub warmup_iterations: u64,
    /// The choice, the user's own setting and keeping everything; the choice first.
    pub settings: Vec<Setting>,
    /// The training that followed, where there was one: name and value, in words.
    pub training: Vec<(String, String)>,
}

/// One way to train, predicted and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// `chosen`, `yours`, `keeping everything`, `AccUDNN's search` or `plimsoll's search`; of a step of PyTorch's `the plan` or
    /// `eager`.
    pub what: String,
    /// Samples of one iteration.
    pub batch: u64,
    /// The model's.
    pub predicted_iteration_seconds: Option<f64>,
    /// The relative error that the prediction states.
    pub predicted_error: Option<f64>,
    /// Measured: the lower quartile, an iteration that nothing disturbs.
    pub iteration_seconds: Option<f64>,
    /// How far measurements lie apart, relative to it.
    pub relative_error: Option<f64>,
    /// Measured; of a modelled device, the model's.
    pub samples_per_second: Option<f64>,
    /// What the device held; of a modelled device, what it would hold.
    pub peak_bytes: Option<u64>,
    /// Measured iterations and what passes between them, over one epoch; of a modelled device, the model's.
    pub epoch_seconds: Option<f64>,
    /// Why numbers are missing, where they are.
    pub note: Option<String>,
}

/// Time over batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batches {
    /// Every batch size that was planned, from the smallest.
    pub points: Vec<BatchPoint>,
    /// The batch sizes that were profiled or run, and what was measured there.
    pub measured: Vec<BatchMeasured>,
    /// The chosen one.
    pub chosen: u64,
    /// The share by which an epoch may be longer than the shortest and count as equal to it.
    pub within: f64,
    /// The largest that keeps everything.
    pub keeps_all: Option<u64>,
    /// The largest that can be trained at all within the budget.
    pub largest: u64,
    /// The user's own.
    pub yours: u64,
    /// Samples of an epoch.
    pub samples: u64,
    /// Batch sizes for which no plan fits.
    pub no_plan: Vec<u64>,
}

/// One planned batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchPoint {
    /// Samples of one iteration.
    pub batch: u64,
    /// Predicted.
    pub iteration_seconds: f64,
    /// Predicted.
    pub epoch_seconds: f64,
    /// The stated error of both.
    pub relative_error: f64,
    /// The floor: what the ops alone take, were there no budget.
    pub compute_seconds: f64,
    /// What the device would hold.
    pub peak_bytes: u64,
    /// The most bytes of feature maps that are on the device at once.
    pub at_peak_bytes: u64,
    /// Bytes that are swapped out in every iteration.
    pub offloaded_bytes: u64,
    /// Seconds in which the link swaps, out and in.
    pub swapping_seconds: f64,
    /// Ops that are recomputed.
    pub recomputed_ops: u64,
    /// Bytes of the tensors that they write; none where an older version tuned.
    #[serde(default)]
    pub recomputed_bytes: Option<u64>,
    /// Seconds that this takes.
    pub recomputing_seconds: f64,
}

/// One measured batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchMeasured {
    /// Samples of one iteration.
    pub batch: u64,
    /// What was run, such as `chosen`, `keeping everything`, `yours`, `AccUDNN's search`.
    pub what: String,
    /// The lower quartile: an iteration that nothing disturbs.
    pub iteration_seconds: f64,
    /// How far measurements lie apart, relative to it.
    pub relative_error: f64,
    /// With what passes between iterations.
    pub epoch_seconds: f64,
}

/// The workers that a batch was chosen for, and an update of theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workers {
    /// How many.
    pub workers: u64,
    /// The network between them: its rate and latency.
    pub interconnect: String,
    /// Whether their GPUs sum by NCCL; else their hosts do.
    pub nccl: bool,
    /// Samples in an update.
    pub global_batch: u64,
    /// Passes of the worker that has the most of them.
    pub passes: u64,
    /// An update: iterations as they were measured (or modelled), with what the exchange adds.
    pub update_seconds: f64,
    /// What the exchange adds, as predicted.
    pub exchange_seconds: f64,
    /// An update as it is simulated, from predicted iterations. What follows compares with this.
    pub predicted_update_seconds: f64,
    /// The same where nothing is exchanged before the last pass is over.
    pub without_overlap_seconds: f64,
    /// Of what the exchange would add then, the share that overlap hides; none where it would add nothing.
    pub hidden: Option<f64>,
    /// No order of the same work is shorter.
    pub bound_seconds: f64,
    /// Of all workers.
    pub samples_per_second: f64,
    /// One worker alone by the user's own setting, or with everything kept; none where neither can be run.
    pub single: Option<Single>,
    /// How long each resource is at work in an update.
    pub resources: Vec<ResourceShare>,
    /// By the number of workers, from one on.
    pub scaling: Vec<Scaled>,
}

/// One worker alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Single {
    /// `yours` or `keeping everything`.
    pub what: String,
    /// Samples of one iteration.
    pub batch: u64,
    /// As measured, or modelled.
    pub samples_per_second: f64,
    /// As the model predicts it.
    pub predicted_samples_per_second: Option<f64>,
    /// So many times as many samples a second have all workers.
    pub times: f64,
}

/// How long a resource is at work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResourceShare {
    /// `compute`, `link, out`, `link, back` or `interconnect`; a half-duplex link is one, `link`.
    pub resource: String,
    /// In an update.
    pub busy_seconds: f64,
    /// Of the predicted update.
    pub share: f64,
}

/// An update of so many workers, as predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaled {
    /// How many.
    pub workers: u64,
    /// Samples in an update: each worker makes as many passes of the same batch.
    pub global_batch: u64,
    /// What it takes.
    pub update_seconds: f64,
    /// Of all of them.
    pub samples_per_second: f64,
    /// The share of as many workers that exchange nothing.
    pub efficiency: f64,
}

/// One iteration on three lanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// The names that `Slices::name` counts from 0.
    pub names: Vec<String>,
    /// `predicted` first, then `measured` where it was run.
    pub timelines: Vec<LaneView>,
    /// No schedule is shorter than this, within the budget.
    pub bound_seconds: f64,
    /// What the ops alone take.
    pub compute_seconds: f64,
}

/// One timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneView {
    /// `predicted` or `measured`.
    pub name: String,
    /// The end of the last command.
    pub makespan_seconds: f64,
    /// All commands.
    pub slices: Slices,
    /// All stalls of compute, in order.
    pub stalls: Vec<StallView>,
    /// By lane (compute, swap-out, swap-in): seconds at work.
    pub busy_seconds: [f64; 3],
}

/// Commands as columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slices {
    /// 0 compute, 1 swap-out, 2 swap-in.
    pub lane: Vec<u8>,
    /// Nanoseconds from the start of the iteration.
    pub start: Vec<u64>,
    /// Nanoseconds that it takes.
    pub length: Vec<u64>,
    /// The position in `Iteration::names`.
    pub name: Vec<u32>,
    /// 0 forward, 1 backward, 2 update, 3 recomputed, 4 offload, 5 prefetch.
    pub what: Vec<u8>,
    /// Bytes moved; 0 for compute.
    pub bytes: Vec<u64>,
}

/// Compute waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StallView {
    /// Nanoseconds from the start of the iteration.
    pub start: u64,
    /// Nanoseconds that it takes.
    pub length: u64,
    /// What was waited for, in words.
    pub cause: String,
}

/// Memory over time. All times are nanoseconds of the predicted timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The line: what the device may hold, parameters included.
    pub budget_bytes: u64,
    /// Parameters, optimizer state and what else stays all the time.
    pub resident_bytes: u64,
    /// The pool's bytes, as allocated (addresses included).
    pub pool_bytes: u64,
    /// Most bytes alive in the pool at one time.
    pub alive_bytes: u64,
    /// The host's slab.
    pub host_bytes: u64,
    /// Pool bytes in use, as steps.
    pub pool: StepSeries,
    /// The least that keeps everything, parameters included: every op run in its leanest alternative.
    pub keeping_everything_bytes: u64,
    /// The pool's bytes in use were everything kept so (its own timeline, without a budget).
    pub keeping_everything: StepSeries,
    /// Bytes of host copies.
    pub host: StepSeries,
    /// Bytes on their way.
    pub in_flight: StepSeries,
    /// Every residency of a tensor in the pool: a rectangle of time and addresses.
    pub addresses: Residencies,
}

/// A step function: from `at[i]` on it is `bytes[i]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSeries {
    /// Nanoseconds, ascending.
    pub at: Vec<u64>,
    /// Bytes.
    pub bytes: Vec<u64>,
}

/// Rectangles as columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Residencies {
    /// The position in `Iteration::names`.
    pub name: Vec<u32>,
    /// 0 feature map, 1 gradient, 2 workspace, 3 other.
    pub what: Vec<u8>,
    /// Nanoseconds from the start of the iteration.
    pub start: Vec<u64>,
    /// Nanoseconds that it takes.
    pub length: Vec<u64>,
    /// The first byte, from the start of the pool.
    pub offset: Vec<u64>,
    /// How many bytes.
    pub bytes: Vec<u64>,
}

/// One layer's line of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Its name.
    pub layer: String,
    /// What it computes, such as `conv2d`.
    pub kind: String,
    /// What its ops take in the forward pass.
    pub forward_seconds: f64,
    /// In the backward pass.
    pub backward_seconds: f64,
    /// What its ops took when measured, forward and backward; none where it was not run.
    pub measured_seconds: Option<f64>,
    /// Its feature maps that the backward pass reads.
    pub feature_map_bytes: u64,
    /// What becomes of them: `kept`, `swapped`, `recomputed`, several joined by ` + `, or `none` where there are none.
    pub decision: String,
    /// Why, in words with the numbers that decided.
    pub reason: String,
    /// Bytes that leave.
    pub offloaded_bytes: u64,
    /// Bytes of the tensors that its recomputed ops write.
    #[serde(default)]
    pub recomputed_bytes: u64,
    /// Seconds of its ops that are recomputed.
    pub recomputed_seconds: f64,
    /// What moving all its feature maps out and back takes on the link.
    pub transfer_seconds: f64,
    /// The time between their last use forward and their first backward, less nothing: what a transfer can hide in.
    pub slack_seconds: f64,
}

/// How well the model fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Each layer type's samples.
    pub kinds: Vec<FitKind>,
    /// Whole iterations at batch sizes that were held out of the fit.
    pub held_out: Vec<FitHeldOut>,
    /// The link.
    pub link: Vec<FitLink>,
    /// In words: what fits, what does not, what was measured of the slowdown beside transfers.
    pub notes: Vec<String>,
}

/// One layer type, columns of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FitKind {
    /// Such as `conv2d forward`.
    pub kind: String,
    /// Median of |measured / predicted - 1|.
    pub median_error: f64,
    /// The largest of them.
    pub worst_error: f64,
    /// Predicted seconds of each sample.
    pub predicted: Vec<f64>,
    /// Measured seconds of each sample.
    pub measured: Vec<f64>,
    /// Its batch size.
    pub batch: Vec<u64>,
    /// Its op's name: the position in `Iteration::names`.
    pub op: Vec<u32>,
}

/// An iteration that was held out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitHeldOut {
    /// Samples of one iteration.
    pub batch: u64,
    /// Whether smaller and larger ones were in the fit.
    pub inside: bool,
    /// Predicted.
    pub predicted_seconds: f64,
    /// Measured.
    pub measured_seconds: f64,
}

/// One way of the link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitLink {
    /// `offload alone`, `prefetch alone`, `offload beside prefetch`, `prefetch beside offload`, `offload, pageable`, ...
    pub what: String,
    /// The fitted rate.
    pub bytes_per_second: f64,
    /// The fitted latency.
    pub latency_seconds: f64,
    /// Median of |measured / fitted - 1| over the samples.
    pub median_error: f64,
    /// The largest of them.
    pub worst_error: f64,
    /// Bytes of each sample.
    pub bytes: Vec<u64>,
    /// Seconds of each sample.
    pub seconds: Vec<f64>,
}

/// All policies at the same batch and budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// No schedule is shorter than this.
    pub bound_seconds: f64,
    /// What the ops alone take.
    pub compute_seconds: f64,
    /// One row a policy, the fastest first, those without a plan last.
    pub rows: Vec<PolicyRow>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// Its name.
    pub policy: String,
    /// Where it comes from, such as `vDNN`.
    pub paper: String,
    /// Its makespan; none where it has no plan.
    pub makespan_seconds: Option<f64>,
    /// Bytes that leave.
    pub offloaded_bytes: u64,
    /// Bytes that are prefetched.
    pub prefetched_bytes: u64,
    /// Bytes of the tensors that recomputed ops write; none where an older version tuned.
    #[serde(default)]
    pub recomputed_bytes: Option<u64>,
    /// Seconds of ops that are recomputed.
    pub recomputed_seconds: f64,
    /// Seconds that compute waits.
    pub stalled_seconds: f64,
    /// The pool's bytes and what is resident.
    pub device_bytes: Option<u64>,
    /// What planning took; none where the plan is an earlier one.
    pub planning_seconds: Option<f64>,
    /// Why it has no plan.
    pub note: Option<String>,
}
