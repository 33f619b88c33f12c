//! What is asked of a job, as plain values.

use plimsoll_ir::config::LearningRateRule;
use plimsoll_ir::exchange::Interconnect;
use plimsoll_ir::{Seconds, UpdateRule};
use std::path::PathBuf;

/// Which network, for which images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRequest {
    /// Its name in the zoo.
    pub name: String,
    /// Height and width of the images in pixels; by default the data's.
    pub image: Option<[u32; 2]>,
    /// Channels of the images; by default the data's.
    pub channels: Option<u32>,
    /// Classes to tell apart; by default the data's.
    pub classes: Option<u32>,
}

impl NetworkRequest {
    /// A network of the zoo, for the data's own images.
    pub fn zoo(name: &str) -> NetworkRequest {
        NetworkRequest { name: name.to_owned(), image: None, channels: None, classes: None }
    }
}

/// Whose search chooses the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Searcher {
    /// The batch with the shortest epoch, planned by policy plimsoll.
    #[default]
    Plimsoll,
    /// AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall, planned by policy accudnn.
    Accudnn,
}

/// What the search for the batch is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Of the batches whose epoch is within 1 % of the shortest (or within what the runs scatter by, up to 3 %) the one that
    /// swaps and recomputes for the fewest seconds, then the smallest.
    #[default]
    Frugal,
    /// The shortest epoch, however much is swapped and recomputed for it.
    Fastest,
}

/// How the learning rate follows the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRequest {
    /// A batch for which a good learning rate is known.
    pub base_batch: u64,
    /// That learning rate.
    pub base_rate: f64,
    /// How the rate follows from the batch.
    pub rule: LearningRateRule,
}

/// The workers that a batch is chosen for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterRequest {
    /// How many, each with a device of this kind and this budget; at least 2.
    pub workers: u64,
    /// The network between them.
    pub interconnect: Interconnect,
    /// Whether their GPUs sum by NCCL; else their hosts do.
    pub nccl: bool,
    /// Samples in an update, of all of them, to be kept; by default a batch of each.
    pub global_batch: Option<u64>,
}

impl ClusterRequest {
    /// Whether an update can be made of iterations of a batch, at least one for each worker.
    pub fn takes(&self, batch: u64) -> bool {
        let fits = |global: u64| global.is_multiple_of(batch) && global / batch >= self.workers;
        self.global_batch.is_none_or(fits)
    }

    /// Samples in an update of iterations of a batch, of all workers.
    pub fn update_of(&self, batch: u64) -> u64 {
        self.global_batch.unwrap_or(self.workers.saturating_mul(batch))
    }
}

/// That an update is chosen by what its samples are worth, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoodputRequest {
    /// The gradient noise scale, in samples; above 0.
    pub noise_scale: f64,
    /// The samples over which batch norm normalised when it was measured, where that is known.
    pub batch_norm_over: Option<u64>,
}

/// How the rate changes during training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecayShape {
    /// Down to 0 along half a cosine.
    #[default]
    Cosine,
    /// The same all the time.
    Constant,
    /// To a tenth after each third of the iterations.
    Step,
}

/// Who trains together, and how large an update of theirs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// How many, as threads of this process; at least 1. Each has a device, and the budget, for itself.
    pub count: usize,
    /// Samples in an update, of all of them: a multiple of the config's batch. By default those of the training that goes on,
    /// else a batch of the config's for each worker.
    pub global_batch: Option<u64>,
}

impl Default for Workers {
    /// One, whose updates are of one batch.
    fn default() -> Workers {
        Workers { count: 1, global_batch: None }
    }
}

/// How to train.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainRequest {
    /// Passes over the training data, those of earlier runs included.
    pub epochs: u64,
    /// How the learning rate changes during training.
    pub decay: DecayShape,
    /// The optimizer, which is the one that was tuned for, and its settings.
    pub update: UpdateRule,
    /// The file of the weights to start from; none for drawn ones.
    pub weights: Option<PathBuf>,
    /// Of initial parameters, order of the data and dropout.
    pub seed: u64,
    /// How often the state is saved to its file; none for as often as takes a hundredth of the time.
    pub save_every: Option<Seconds>,
    /// Each iteration runs by the study's plan cut to its own draw of stochastic depth.
    pub per_draw: bool,
    /// An earlier training is forgotten, once it is sure that this one can begin.
    pub fresh: bool,
    /// Who trains it.
    pub workers: Workers,
    /// Two more iterations are run at the end, and the second is timed command by command; they change nothing that is kept.
    pub timed: bool,
}
