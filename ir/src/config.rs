//! `config/1`: the choice for a training run, its reason, and its measured times.
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

/// Maximum compute threads of any machine.
const THREADS_MAX: u32 = 1024;

/// The choice for a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: ConfigKind,
    /// Network to train.
    pub network: NetworkSpec,
    /// Data of the tuning, as the command line takes it, files by their absolute path; `None` in documents of an older
    /// version, or if the data had no name on a command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Name of the device that it was tuned on.
    pub device: String,
    /// Compute threads.
    pub threads: u32,
    /// Link that the plan assumes.
    pub link: Link,
    /// Pace of the link, if the device was set to pace it; `None` if it runs at full speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paced: Option<Link>,
    /// For a GPU, `true` if every op has one kernel, which gives the same bits each time. A schedule's alternatives follow.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub deterministic: bool,
    /// Precision of convolutions and matrix products; `None` in documents of an older version, whose meaning
    /// [`Config::arithmetic`] returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// `true` if the device is known by its data sheet alone: nothing here was measured, and nothing can be run.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub modelled: bool,
    /// For a modelled device, the share by which times may differ from a real device's; nine of ten differ by no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_error: Option<f64>,
    /// Optimizer of the parameters; SGD if absent.
    #[serde(default, skip_serializing_if = "Optimizer::is_usual")]
    pub optimizer: Optimizer,
    /// Device memory budget.
    pub budget_bytes: Bytes,
    /// Chosen samples of an iteration.
    pub batch: u64,
    /// Largest batch that keeps everything within the budget; `None` if no batch does (or in documents of an older version).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps_all: Option<u64>,
    /// Policy that made the schedule.
    pub policy: String,
    /// File of the schedule, relative to the config.
    pub schedule: String,
    /// Workers that it was chosen for; `None` for a single worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// The learning rate and its origin.
    pub learning_rate: LearningRate,
    /// Figures predicted by the model.
    pub predicted: Figures,
    /// Measured figures; `None` if the choice was not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Figures>,
}

/// The workers that a training was tuned for, and their predicted update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Number of workers, at least 2.
    pub workers: u64,
    /// Network between them.
    pub interconnect: Interconnect,
    /// `true` if their GPUs sum by NCCL; otherwise their hosts sum.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub nccl: bool,
    /// Samples in an update of all workers: a multiple of the batch.
    pub global_batch: u64,
    /// Passes of the worker with the most passes.
    pub passes: u64,
    /// Seconds that the exchange adds to an update.
    pub exchange_seconds: Seconds,
    pub update_seconds: Seconds,
}

/// The learning rate and its origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearningRate {
    /// Rate at the chosen batch.
    pub rate: f64,
    /// Rule that derives it from the base point.
    pub rule: LearningRateRule,
    /// Batch for which the user knows a good rate.
    pub base_batch: u64,
    /// Rate at the base batch.
    pub base_rate: f64,
    /// Iterations in which the rate rises linearly from a small value.
    pub warmup_iterations: u64,
}

/// Rule that derives a learning rate from the base point, with q = batch / base batch.
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

/// Times and memory of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// One iteration.
    pub iteration_seconds: Seconds,
    /// Relative error of the iteration: of the model on held-out samples, or the spread of the measurement.
    pub relative_error: f64,
    /// Time between iterations: input, synchronisation (Δ of AccUDNN eq. 3).
    pub between_seconds: Seconds,
    /// One pass over the training set.
    pub epoch_seconds: Seconds,
    /// Resident bytes and pool.
    pub peak_bytes: Bytes,
}

/// The fault of an invalid rate.
const NO_RATE: &str = "a learning rate is above 0, and f32 holds it: from 1.2e-38 to 3.4e38";

/// Returns `true` if training, which computes in f32, can have this learning rate.
pub fn is_rate(rate: f64) -> bool {
    (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&rate)
}

impl Config {
    /// Returns the input precision of convolutions and matrix products, as written by this version or an older one.
    /// `None` for an older version's modelled device, whose precision only its name states.
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
