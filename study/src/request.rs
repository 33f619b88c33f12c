//! Requests to jobs, as plain values.

use plimsoll_ir::config::LearningRateRule;
use plimsoll_ir::exchange::Interconnect;
use plimsoll_ir::{Bytes, Seconds, UpdateRule};
use std::path::PathBuf;

/// Network, and its input shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRequest {
    /// Name in the zoo.
    pub name: String,
    /// Height and width of the images in pixels; by default the data's.
    pub image: Option<[u32; 2]>,
    /// Channels of the images; by default the data's.
    pub channels: Option<u32>,
    /// Classes; by default the data's.
    pub classes: Option<u32>,
}

impl NetworkRequest {
    /// Returns a network of the zoo, with the data's image shape.
    pub fn zoo(name: &str) -> NetworkRequest {
        NetworkRequest { name: name.to_owned(), image: None, channels: None, classes: None }
    }
}

/// Search that chooses the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Searcher {
    /// Batch with the shortest epoch, planned by policy plimsoll.
    #[default]
    Plimsoll,
    /// AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall, planned by policy accudnn.
    Accudnn,
}

/// Goal of the search for the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Of the batches whose epoch is within 1 % of the shortest (or within the scatter of the runs, up to 3 %), the one that
    /// spends the fewest seconds on swapping and recomputing, then the smallest.
    #[default]
    Frugal,
    /// The shortest epoch, whatever it swaps and recomputes.
    Fastest,
}

/// Relation of the learning rate to the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRequest {
    /// Batch for which a good learning rate is known.
    pub base_batch: u64,
    /// Good learning rate at the base batch.
    pub base_rate: f64,
    /// Rule that derives the rate from the batch.
    pub rule: LearningRateRule,
}

/// Workers that a batch is chosen for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterRequest {
    /// Number of workers, each with a device of this kind and this budget; at least 2.
    pub workers: u64,
    /// Network between the workers.
    pub interconnect: Interconnect,
    /// `true` if their GPUs sum by NCCL; otherwise their hosts do.
    pub nccl: bool,
    /// Samples in an update of all workers, to be kept; by default one batch of each.
    pub global_batch: Option<u64>,
}

impl ClusterRequest {
    /// Returns `true` if an update divides into iterations of this batch, at least one for each worker.
    pub fn takes(&self, batch: u64) -> bool {
        let fits = |global: u64| global.is_multiple_of(batch) && global / batch >= self.workers;
        self.global_batch.is_none_or(fits)
    }

    /// Returns the samples in an update of all workers, at this batch.
    pub fn update_of(&self, batch: u64) -> u64 {
        self.global_batch.unwrap_or(self.workers.saturating_mul(batch))
    }
}

/// The request that tuning answers.
#[derive(Clone, Debug)]
pub struct TuneRequest {
    /// Memory budget of the device.
    pub budget: Bytes,
    /// Search that chooses the batch.
    pub search: Searcher,
    /// Goal of the search.
    pub objective: Objective,
    /// Smallest batch to consider.
    pub min_batch: u64,
    /// Largest batch to consider.
    pub max_batch: Option<u64>,
    /// Workers that the batch is for; `None` for a single worker.
    pub cluster: Option<ClusterRequest>,
    /// Base point and rule of the learning rate.
    pub rate: RateRequest,
    /// Epochs of the planned training; the warm-up takes at most a tenth of them.
    pub epochs: u64,
    /// Command of the request, for the record.
    pub command: String,
    /// `true` to discard the study's contents, measurements included.
    pub fresh: bool,
}

/// Decay of the rate during training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecayShape {
    /// Down to 0 along half a cosine.
    #[default]
    Cosine,
    /// Constant rate.
    Constant,
    /// Down to a tenth after each third of the iterations.
    Step,
}

/// Workers that train together, and the size of their update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Number of workers, as threads of this process; at least 1. Each has a device and the full budget.
    pub count: usize,
    /// Samples in an update of all workers, a multiple of the config's batch. By default as in the training that continues,
    /// else one of the config's batches for each worker.
    pub global_batch: Option<u64>,
}

impl Default for Workers {
    /// One worker, whose updates are of one batch.
    fn default() -> Workers {
        Workers { count: 1, global_batch: None }
    }
}

/// Settings of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainRequest {
    /// Passes over the training data, including those of earlier runs.
    pub epochs: u64,
    /// Decay of the learning rate during training.
    pub decay: DecayShape,
    /// Settings of the optimizer, which must be the one that was tuned for.
    pub update: UpdateRule,
    /// File of initial weights; `None` draws them.
    pub weights: Option<PathBuf>,
    /// Seed of initial parameters, order of the data and dropout.
    pub seed: u64,
    /// Interval between saves of the state to its file; `None` saves as often as costs one percent of the time.
    pub save_every: Option<Seconds>,
    /// `true` to run each iteration by the study's plan, cut to its own draw of stochastic depth.
    pub per_draw: bool,
    /// `true` to discard an earlier training, once this one is certain to begin.
    pub fresh: bool,
    /// Workers of the training.
    pub workers: Workers,
    /// `true` to run two more iterations at the end and time the second command by command; they change no saved state.
    pub timed: bool,
}
