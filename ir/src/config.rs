//! `config/1`: what was chosen for a training run, why, and what it was measured to take.
//!
//! It names everything that `run` needs: the network, the data, the batch, the schedule (by file), the learning rate. A
//! training script reads the same numbers from it.

use crate::document::{Document, Fault, define_kind};
use crate::exchange::Interconnect;
use crate::network::NetworkSpec;
use crate::optimizer::Optimizer;
use crate::precision::Precision;
use crate::schedule::Link;
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

define_kind!(ConfigKind, "config/1");

/// No machine computes on more threads.
const THREADS_MAX: u32 = 1024;

/// What was chosen for a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: ConfigKind,
    /// What is trained.
    pub network: NetworkSpec,
    /// The data that it was tuned on, as the command line takes it, files by their whole path; none where an older version
    /// wrote this, or where the data had no name on a command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Where it was tuned: device name and compute threads.
    pub device: String,
    /// Compute threads.
    pub threads: u32,
    /// The link that the plan stands on.
    pub link: Link,
    /// The link's pace where the device was told to pace it; none where it runs as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paced: Option<Link>,
    /// On a GPU: whether every op has one kernel, which gives the same bits each time. A schedule's alternatives follow.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub deterministic: bool,
    /// In what convolutions and matrix products multiply; none where an older version wrote this: [`Config::arithmetic`] says
    /// what that one meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Whether the device is known by its data sheet alone: then nothing here was measured, and nothing can be run.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub modelled: bool,
    /// Of a modelled device: how far the times may be off a real one's, as a share; nine of ten are off by no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_error: Option<f64>,
    /// Who updates the parameters; SGD where nothing is said.
    #[serde(default, skip_serializing_if = "Optimizer::is_usual")]
    pub optimizer: Optimizer,
    /// What the device may hold.
    pub budget_bytes: Bytes,
    /// The chosen samples in an iteration.
    pub batch: u64,
    /// The largest batch that keeps everything within the budget; none where none does (or where an older version wrote this).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps_all: Option<u64>,
    /// The policy that made the schedule.
    pub policy: String,
    /// The schedule's file, relative to the config.
    pub schedule: String,
    /// The workers that it was chosen for; none for one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// By which noise scale an update was chosen; none where each of its samples counted the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<Goodput>,
    /// The learning rate, and where it comes from.
    pub learning_rate: LearningRate,
    /// What the model says of an iteration.
    pub predicted: Figures,
    /// What was measured; none where the choice was not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Figures>,
}

/// The workers that a training was tuned for, and an update of theirs as predicted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// How many, at least 2.
    pub workers: u64,
    /// The network between them.
    pub interconnect: Interconnect,
    /// Whether their GPUs sum by NCCL; else their hosts do.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub nccl: bool,
    /// Samples in an update, of all of them: a multiple of the batch.
    pub global_batch: u64,
    /// Passes of the worker that has the most of them.
    pub passes: u64,
    /// What the exchange adds to an update.
    pub exchange_seconds: Seconds,
    /// An update.
    pub update_seconds: Seconds,
}

/// By which noise scale an update was chosen, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goodput {
    /// The gradient noise scale, in samples.
    pub noise_scale: f64,
    /// The samples over which batch norm normalised when it was measured, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_norm_over: Option<u64>,
    /// What a sample of an update is worth, beside one of the base batch.
    pub efficiency: f64,
}

/// The learning rate, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRate {
    /// At the chosen batch.
    pub rate: f64,
    /// How it follows from the base point.
    pub rule: LearningRateRule,
    /// The batch that the user knows a good rate for.
    pub base_batch: u64,
    /// That rate.
    pub base_rate: f64,
    /// Iterations in which the rate rises linearly from a small value.
    pub warmup_iterations: u64,
}

/// How a learning rate follows from the base point, with q = batch / base batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LearningRateRule {
    /// base * q.
    Linear,
    /// base * sqrt(q).
    SquareRoot,
    /// AccUDNN eq. (9): (1 - (1 - base * c)^q) / c, with c the convexity of the objective.
    Accudnn {
        /// c; above 0, and base * c below 1.
        convexity: f64,
    },
}

/// What an iteration takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// One iteration.
    pub iteration_seconds: Seconds,
    /// The relative error that goes with it: of the model on held-out samples, or the spread of the measurement.
    pub relative_error: f64,
    /// Between iterations: input, synchronisation (Δ of AccUDNN eq. 3).
    pub between_seconds: Seconds,
    /// One pass over the training set.
    pub epoch_seconds: Seconds,
    /// Resident bytes and pool.
    pub peak_bytes: Bytes,
}

/// What is wrong with a rate that is none.
const NO_RATE: &str = "a learning rate is above 0, and f32 holds it: from 1.2e-38 to 3.4e38";

/// Whether training, which computes in f32, can have this learning rate.
pub fn is_rate(rate: f64) -> bool {
    (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&rate)
}

impl Config {
    /// In what convolutions and matrix products multiply, as this version or an older one wrote it. None of an older version's
    /// modelled device, of which only the device's name says it.
    pub fn arithmetic(&self) -> Option<Precision> {
        self.precision.or((!self.modelled).then_some(Precision::F32))
    }
}

impl Document for Config {
    const KIND: &'static str = "config/1";

    fn validate(&self) -> Result<(), Fault> {
        let fault =
            |place: &str, why: &str| Err(Fault::Meaning { place: place.to_owned(), why: why.to_owned() });
        if self.batch == 0 || self.learning_rate.base_batch == 0 {
            return fault("batch", "a batch has at least 1 sample");
        }
        if let Some(cluster) = self.cluster {
            let Cluster {
                workers, interconnect, global_batch, passes, exchange_seconds, update_seconds, ..
            } = cluster;
            if workers < 2 || global_batch < workers || global_batch % self.batch != 0 {
                return fault("cluster", "at least 2 workers share a multiple of the batch");
            }
            let sound = |seconds: Seconds| seconds.0.is_finite() && seconds.0 >= 0.0;
            if passes == 0
                || !sound(exchange_seconds)
                || !(sound(update_seconds) && update_seconds > Seconds::ZERO)
            {
                return fault("cluster", "an update has at least 1 pass, and takes time");
            }
            interconnect.validate("cluster.interconnect")?;
        }
        let above_zero = |number: f64| number.is_finite() && number > 0.0;
        if self.goodput.is_some_and(|g| !above_zero(g.noise_scale) || !above_zero(g.efficiency)) {
            return fault("goodput", "noise scale and efficiency are above 0");
        }
        if !is_rate(self.learning_rate.rate) {
            return fault("learning_rate.rate", NO_RATE);
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return fault("threads", "there are 1 to 1024 compute threads");
        }
        if !is_rate(self.learning_rate.base_rate) {
            return fault("learning_rate.base_rate", NO_RATE);
        }
        self.link.validate("link")?;
        if let Some(paced) = &self.paced {
            paced.validate("paced")?;
        }
        Ok(())
    }
}
