//! Requests to jobs: one struct each for the options of a task, a tuning and a training.
//!
//! The command line and `plimsoll.toml` fill these structs, and their doc comments are the help texts; jobs read them, and the
//! default name of a study follows from them ([`crate::naming`]). Contradictions between options are refused here.

use crate::data::DataSource;
use crate::device::{Setup, of_processor, processor, threads_are_sound};
use crate::error::Error;
use crate::folder::Study;
use crate::naming;
use crate::network_workload::NetworkWorkload;
use crate::values::{self, AskedPrecision, DeviceChoice};
use crate::watch::Watch;
use clap::{Args, ValueEnum};
use plimsoll_ir::config::LearningRateRule;
use plimsoll_ir::exchange::Interconnect;
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, BytesPerSecond, Optimizer, Seconds, UpdateRule};
use plimsoll_runtime::{HostMemory, Hurry};
use plimsoll_tuner::rate::default_convexity;
use serde::Serialize;
use std::path::PathBuf;

/// Heading of options that show the effect of a part of the planner, or reproduce a paper's choice. Training does not
/// need them.
pub const RESEARCH: &str = "Research options";

/// Returns the default values of a group of options.
pub fn defaults<T: Args>() -> T {
    let group = T::augment_args(clap::Command::new("defaults"));
    let given = group.try_get_matches_from(["defaults"]).expect("no option of the group is required");
    T::from_arg_matches(&given).expect("defaults are values")
}

/// Network, and its input shape.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct NetworkRequest {
    /// A network of the zoo, such as resnet18, vgg16, alexnet; see `plimsoll networks`
    #[arg(long = "network", value_name = "NAME", default_value = "resnet20")]
    pub name: String,
    /// Image height and width in pixels, such as 64 or 48x64; by default the data's, or with images:FOLDER the network's
    #[arg(long, value_name = "PIXELS", value_parser = values::image)]
    pub image: Option<[u32; 2]>,
    /// Image channels; by default the data's, or with images:FOLDER the network's
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Classes to tell apart; by default the data's
    #[arg(long, value_name = "N")]
    pub classes: Option<u32>,
}

impl NetworkRequest {
    /// Returns a network of the zoo, with the data's image shape.
    pub fn zoo(name: &str) -> NetworkRequest {
        NetworkRequest { name: name.to_owned(), image: None, channels: None, classes: None }
    }
}

/// The precision of any device, and how a GPU chooses kernels.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct KernelOptions {
    /// Number format of convolutions and matrix products; bf16 also halves the bytes of activations. Sums and parameters are
    /// f32
    #[arg(long, value_name = "PRECISION", value_parser = values::precision(), default_value = "default")]
    pub precision: AskedPrecision,
    /// With cuda: run every call by one kernel, which gives the same bits each time
    #[arg(long)]
    pub deterministic: bool,
}

/// The device and how it is set up.
#[derive(Clone, Debug, Args)]
pub struct DeviceOptions {
    /// Training device: cpu; cuda or cuda:N, an NVIDIA GPU (new: so far tested without one); or a GPU that is not here,
    /// modelled from its data sheet, on which nothing runs: k40, m40, gtx1080ti, v100, a100-40gb, rtx4090, h100, h200
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceChoice,
    /// With cuda: enqueue the commands of every iteration one by one instead of replaying them as one CUDA graph
    #[arg(long)]
    pub no_graph: bool,
    #[command(flatten)]
    pub kernels: KernelOptions,
    /// Compute threads of the CPU; by default all cores but one, which is left to the two transfer streams
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// With cpu: pace the link between device and host to this rate each way, such as 12GB/s; by default it runs at full speed
    #[arg(long, value_name = "RATE")]
    pub link: Option<BytesPerSecond>,
    /// With a paced link: its duplex mode
    #[arg(long, value_parser = values::duplex(), default_value = "full")]
    pub duplex: Duplex,
    /// Host storage of swapped tensors: memory, or with cpu file:PATH
    #[arg(long, value_name = "PLACE", value_parser = values::host, default_value = "memory")]
    pub host: HostMemory,
}

/// Returns the error of an option of a different device.
pub fn only(option: &str, device: &str) -> Error {
    Error::usage(format_args!("{option} is for --device {device}"))
        .help("leave it out, or choose that device")
}

impl DeviceOptions {
    /// Opens the device; `hurry` ends the waiting of a paced link.
    fn setup(&self, hurry: Hurry, watch: &Watch<'_>) -> Result<Setup, Error> {
        let DeviceOptions { device, kernels, .. } = *self;
        let half = self.duplex == Duplex::Half;
        if half && self.link.is_none() && device == DeviceChoice::Cpu {
            return Err(Error::usage("--duplex half is for a link that is paced, and there is no --link")
                .help("give the --link that both ways are to share, or leave --duplex out"));
        }
        let kind = match device {
            DeviceChoice::Cpu => "cpu",
            DeviceChoice::Cuda(_) => "cuda",
            DeviceChoice::Modelled(_) => "",
        };
        let foreign = [
            ("--no-graph", "cuda", self.no_graph),
            ("--deterministic", "cuda", kernels.deterministic),
            ("--threads", "cpu", self.threads.is_some()),
            ("--link", "cpu", self.link.is_some()),
            ("--duplex half", "cpu", half),
            ("--host file:PATH", "cpu", self.host != HostMemory::Anonymous),
        ];
        if let Some((option, of, _)) = foreign.into_iter().find(|(_, of, given)| *given && *of != kind) {
            return Err(only(option, of));
        }
        match device {
            DeviceChoice::Cpu => {
                threads_are_sound(self.threads)?;
                let link = self.link.map(|rate| Link { duplex: self.duplex, ..Link::symmetric(rate) });
                let feature_maps = of_processor(kernels.precision)?;
                Ok(processor(self.threads, link, feature_maps, &self.host, hurry, watch))
            }
            DeviceChoice::Cuda(ordinal) => {
                Setup::cuda(ordinal, !self.no_graph, kernels.deterministic, kernels.precision)
            }
            DeviceChoice::Modelled(sheet) => Setup::modelled(sheet, kernels.precision),
        }
    }
}

/// A task: network, data, device and optimizer.
#[derive(Clone, Debug, Args)]
pub struct TaskOptions {
    #[command(flatten)]
    pub network: NetworkRequest,
    /// Training data: digits, text, synthetic, synthetic:SAMPLES, images:FOLDER (a folder of JPEG or PNG files for each
    /// class), text:FILE, tokens:FILE (16-bit tokens, NumPy's .npy, or a folder with train.bin), mnist:FOLDER or cifar10:FOLDER
    #[arg(long, value_name = "SOURCE", default_value = "digits")]
    pub data: DataSource,
    #[command(flatten)]
    pub device: DeviceOptions,
    /// Optimizer; its state (one number a parameter for sgd, two for adamw) stays on the device
    #[arg(long, value_name = "NAME", value_parser = values::optimizer(), default_value = "sgd")]
    pub optimizer: Optimizer,
}

impl TaskOptions {
    /// Opens the network with its data on the device; `hurry` ends the waiting of a paced link.
    ///
    /// # Errors
    ///
    /// An option belongs to a different device; device, network or data are unavailable, or do not match.
    pub fn open(&self, hurry: Hurry, watch: &Watch<'_>) -> Result<NetworkWorkload, Error> {
        let setup = self.device.setup(hurry, watch)?;
        Ok(NetworkWorkload::new(&self.network, &self.data, setup)?.trained_by(self.optimizer))
    }
}

/// The folder that keeps results.
#[derive(Clone, Debug, Args)]
pub struct StudyOptions {
    /// The study's folder: journal, profile, config, schedule, checkpoint; a second run continues from it. By default
    /// studies/NETWORK-DATA-DEVICE-BUDGET-DIGITS, without the budget if none is given; the digits stand for all options that
    /// affect the choice and the training (not --epochs and --save-every), so that the same command finds its study again
    #[arg(long, value_name = "DIR")]
    pub study: Option<PathBuf>,
    /// Discard earlier results of this command in the study's folder, and start anew
    #[arg(long)]
    pub fresh: bool,
}

/// Search that chooses the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
pub enum Searcher {
    /// The batch with the shortest epoch, planned by policy plimsoll
    #[default]
    Plimsoll,
    /// AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall, planned by policy accudnn
    Accudnn,
}

/// Goal of the search for the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
pub enum Objective {
    /// Of the batches whose epoch is within 1 % of the shortest (or within the scatter of the runs, up to 3 %), the one with
    /// the fewest seconds of swapping and recomputing, then the smallest
    #[default]
    Frugal,
    /// The shortest epoch, however much is swapped and recomputed for it
    Fastest,
}

/// The workers that a batch is chosen for.
#[derive(Clone, Debug, Args)]
pub struct ClusterOptions {
    /// Choose the batch for this number of workers that train together, each with this budget: by the time of an update, with
    /// the exchange that goes on during the last backward pass. Needs --interconnect
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536), help_heading = "Workers")]
    pub workers: Option<u64>,
    /// Network between the workers: the rate at which each can send and, after a comma, the latency of a message, such as
    /// 10Gbit/s or 10Gbit/s,30us
    #[arg(long, value_name = "RATE[,TIME]", help_heading = "Workers")]
    pub interconnect: Option<Interconnect>,
    /// Samples in an update of all workers together: only batches that divide it are considered, and a worker makes several
    /// passes where needed. By default one batch of each worker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Workers")]
    pub global_batch: Option<u64>,
    /// Sum gradients on the workers' GPUs by NCCL; they do not pass the hosts. NCCL chooses the order of additions, so a
    /// different number of workers gives different bits. --interconnect is then the bus bandwidth of nccl-tests
    #[arg(long, help_heading = "Workers")]
    pub nccl: bool,
}

/// Workers that a batch is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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

impl ClusterOptions {
    /// Returns the workers; `None` for a single worker.
    fn request(&self) -> Result<Option<ClusterRequest>, Error> {
        let ClusterOptions { interconnect, global_batch, nccl, .. } = *self;
        match (self.workers.filter(|workers| *workers > 1), interconnect) {
            (Some(workers), Some(interconnect)) => {
                Ok(Some(ClusterRequest { workers, interconnect, nccl, global_batch }))
            }
            (Some(_), None) => Err(Error::usage("--workers needs --interconnect")
                .help("add one, such as --interconnect 10Gbit/s,30us")),
            (None, _) if nccl => Err(Error::usage("--nccl is for several workers")
                .help("say how many with --workers, or leave it out")),
            (None, None) if global_batch.is_none() => Ok(None),
            (None, _) => Err(Error::usage("--interconnect and --global-batch are for several workers")
                .help("say how many with --workers")),
        }
    }
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

/// The budget and what limits the search.
#[derive(Clone, Debug, Args)]
pub struct SearchOptions {
    /// Device memory budget, such as 22GiB, 500MB, or 90% of the device's memory; by default the study's earlier budget;
    /// else, with cpu, the memory that keeping everything takes at a batch of 16 (or at the smallest batch that trains); with
    /// cuda, the free memory less 512 MiB, in steps of 256 MiB; with a modelled device, its memory less 512 MiB
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Host memory limit for swapped tensors, such as 64GiB; by default 70 % of the machine's (with a modelled device, of a
    /// usual machine for it), and unlimited with --host file:PATH
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,
    /// Search that chooses the batch, with its planning policy; the answer of the other search is run for comparison
    #[arg(long, value_enum, value_name = "WHOSE", default_value_t, help_heading = RESEARCH)]
    pub search: Searcher,
    /// Objective of the search for the batch
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub objective: Objective,
    /// Smallest batch to consider; by default the base batch, below which your learning rate is untried; with --workers the
    /// base batch divided by them, with --global-batch 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub min_batch: Option<u64>,
    /// Largest batch to consider
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_batch: Option<u64>,
}

/// Rule by which the learning rate follows from the base point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RateRule {
    /// AccUDNN eq. (9): (1 - (1 - base * c)^q) / c
    Accudnn,
    /// base * q
    Linear,
    /// base * sqrt(q)
    SquareRoot,
}

/// The rule by which the learning rate follows the batch.
#[derive(Clone, Debug, Args)]
pub struct RateOptions {
    /// A batch with a known good learning rate
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub base_batch: u64,
    /// Learning rate at the base batch; by default 0.05 with sgd and 0.001 with adamw
    #[arg(long, value_name = "RATE")]
    pub base_rate: Option<f64>,
    /// Rule for the learning rate, with q = batch / base batch; by default accudnn with sgd and square-root with adamw
    #[arg(long, value_enum)]
    pub rate_rule: Option<RateRule>,
    /// c of AccUDNN eq. (9): no batch gets a rate above 1 / c; by default 32 base rates
    #[arg(long, value_name = "C", help_heading = RESEARCH)]
    pub convexity: Option<f64>,
}

/// Relation of the learning rate to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateRequest {
    /// Batch for which a good learning rate is known.
    pub base_batch: u64,
    /// Good learning rate at the base batch.
    pub base_rate: f64,
    /// Rule that derives the rate from the batch.
    pub rule: LearningRateRule,
}

impl RateOptions {
    /// Returns the rule that sets the learning rate from the batch, for this optimizer.
    fn request(&self, optimizer: Optimizer) -> Result<RateRequest, Error> {
        let RateOptions { base_batch, base_rate, rate_rule, convexity } = *self;
        let (usual_rate, usual_rule) = match optimizer {
            Optimizer::Sgd => (0.05, RateRule::Accudnn),
            Optimizer::Adamw => (1e-3, RateRule::SquareRoot),
        };
        let (base_rate, rule) = (base_rate.unwrap_or(usual_rate), rate_rule.unwrap_or(usual_rule));
        if convexity.is_some() && rule != RateRule::Accudnn {
            return Err(Error::usage("--convexity is for --rate-rule accudnn")
                .help("leave --convexity out, or add --rate-rule accudnn"));
        }
        let rule = match rule {
            RateRule::Linear => LearningRateRule::Linear,
            RateRule::SquareRoot => LearningRateRule::SquareRoot,
            RateRule::Accudnn => LearningRateRule::Accudnn {
                convexity: convexity.unwrap_or_else(|| default_convexity(base_rate)),
            },
        };
        Ok(RateRequest { base_batch, base_rate, rule })
    }
}

/// A task and its tuning.
#[derive(Clone, Debug, Args)]
pub struct TuneOptions {
    #[command(flatten)]
    pub task: TaskOptions,
    #[command(flatten)]
    pub cluster: ClusterOptions,
    #[command(flatten)]
    pub search: SearchOptions,
    #[command(flatten)]
    pub rate: RateOptions,
}

/// The request that tuning answers. Fields that take part in no study's name are skipped.
#[derive(Clone, Debug, Serialize)]
pub struct TuneRequest {
    /// Memory budget of the device.
    #[serde(skip)]
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
    #[serde(skip)]
    pub epochs: u64,
    /// Command of the request, for the record.
    #[serde(skip)]
    pub command: String,
    /// `true` to discard the study's contents, measurements included.
    #[serde(skip)]
    pub fresh: bool,
}

impl TuneOptions {
    /// Returns the request of a command within this budget.
    pub fn request(&self, budget: Bytes, command: String) -> Result<TuneRequest, Error> {
        let SearchOptions { search, objective, max_batch, .. } = self.search;
        let cluster = self.cluster.request()?;
        // The learning rate belongs to an update of all workers.
        let least = match cluster {
            None => self.rate.base_batch,
            Some(ClusterRequest { global_batch: Some(_), .. }) => 1,
            Some(cluster) => self.rate.base_batch.div_ceil(cluster.workers),
        };
        let (min_batch, rate) =
            (self.search.min_batch.unwrap_or(least), self.rate.request(self.task.optimizer)?);
        let (epochs, fresh) = (defaults::<TrainRequest>().epochs, false);
        Ok(TuneRequest {
            budget,
            search,
            objective,
            min_batch,
            max_batch,
            cluster,
            rate,
            epochs,
            command,
            fresh,
        })
    }

    /// Returns the study of a task, which may not exist yet: the one named, else the task's own.
    pub fn study(
        &self,
        task: &NetworkWorkload,
        named: &StudyOptions,
        train: &TrainRequest,
    ) -> Result<Study, Error> {
        match &named.study {
            Some(folder) => Ok(Study::at(folder)),
            None => Ok(Study::at(&naming::folder(task, self, train)?)),
        }
    }

    /// Opens a task with its study, and returns the request of a command that tunes it for a training.
    ///
    /// # Errors
    ///
    /// Options contradict each other; device, network or data are unavailable, or do not match; or the budget exceeds the
    /// device's memory.
    pub fn open(
        &self,
        named: &StudyOptions,
        train: &TrainRequest,
        (command, hurry): (String, Hurry),
        watch: &Watch<'_>,
    ) -> Result<(NetworkWorkload, Study, TuneRequest), Error> {
        let task = self.task.open(hurry, watch)?.within(self.search.host_memory)?;
        task.setup.takes(self.cluster.nccl)?;
        train.update(task.optimizer)?;
        let study = self.study(&task, named, train)?;
        let mut request = self.request(Bytes::ZERO, command)?;
        (request.epochs, request.fresh) = (train.epochs, named.fresh);
        request.budget = task.budget_in(&study, named.fresh, self.search.budget, request.min_batch, watch)?;
        Ok((task, study, request))
    }
}

/// Decay of the rate during training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
pub enum DecayShape {
    /// Down to 0 along half a cosine
    #[default]
    Cosine,
    /// Constant
    Constant,
    /// To a tenth after each third of the iterations
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

/// Options of a training. A study's name has the optimizer's settings and the weights in another form; other fields that
/// take part in no study's name are skipped.
#[derive(Clone, Debug, PartialEq, Args, Serialize)]
pub struct TrainRequest {
    /// Passes over the training data, including those of earlier runs; a larger number than last time continues the training
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip)]
    pub epochs: u64,
    /// Schedule of the learning rate during training
    #[arg(long, value_enum, default_value_t)]
    pub decay: DecayShape,
    /// Momentum of sgd; by default 0.9
    #[arg(long, value_name = "M", value_parser = values::momentum())]
    #[serde(skip)]
    pub momentum: Option<f32>,
    /// beta1 of adamw, for the first moment; by default 0.9
    #[arg(long, value_name = "B", value_parser = values::beta())]
    #[serde(skip)]
    pub beta1: Option<f64>,
    /// beta2 of adamw, for the second moment; by default 0.999
    #[arg(long, value_name = "B", value_parser = values::beta())]
    #[serde(skip)]
    pub beta2: Option<f64>,
    /// epsilon of adamw, added to the square root of the second moment; by default 1e-8
    #[arg(long, value_name = "E", value_parser = values::epsilon())]
    #[serde(skip)]
    pub epsilon: Option<f64>,
    /// Weight decay: with sgd a penalty in the gradient (L2), by default 5e-4; with adamw decoupled from it, by default 1e-2
    #[arg(long, value_name = "W", value_parser = values::weight_decay())]
    #[serde(skip)]
    pub weight_decay: Option<f32>,
    /// Initial weights: a safetensors file with the names and shapes that `export --to safetensors` writes; by default they
    /// are drawn
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub weights: Option<PathBuf>,
    /// Seed of initial parameters, order of the data and dropout
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Interval for saving the training state, such as 5min, in addition to each epoch; 0s saves after every iteration. By
    /// default saving takes a hundredth of the time. The state of a GPU is also copied to host memory in every iteration, and
    /// saved if the GPU fails
    #[arg(long, value_name = "TIME")]
    #[serde(skip)]
    pub save_every: Option<Seconds>,
    /// `true` to discard an earlier training, once this one is certain to begin.
    #[arg(skip)]
    #[serde(skip)]
    pub fresh: bool,
    /// Workers of the training.
    #[arg(skip)]
    #[serde(skip)]
    pub workers: Workers,
    /// `true` to run two more iterations at the end and time the second command by command; they change no saved state.
    #[arg(skip)]
    #[serde(skip)]
    pub timed: bool,
}

impl TrainRequest {
    /// Returns the optimizer with its settings.
    ///
    /// # Errors
    ///
    /// A setting belongs to a different optimizer.
    pub fn update(&self, optimizer: Optimizer) -> Result<UpdateRule, Error> {
        let of_moments = [("--beta1", self.beta1), ("--beta2", self.beta2), ("--epsilon", self.epsilon)];
        let foreign = match optimizer {
            Optimizer::Sgd => of_moments.iter().find(|(_, given)| given.is_some()).map(|(option, _)| *option),
            Optimizer::Adamw => self.momentum.map(|_| "--momentum"),
        };
        if let Some(option) = foreign {
            let other = if optimizer == Optimizer::Sgd { Optimizer::Adamw } else { Optimizer::Sgd };
            return Err(Error::usage(format_args!("{option} is for --optimizer {other}"))
                .help("leave it out, or choose that optimizer"));
        }
        Ok(match UpdateRule::usual(optimizer) {
            UpdateRule::Sgd { momentum, weight_decay } => UpdateRule::Sgd {
                momentum: self.momentum.unwrap_or(momentum),
                weight_decay: self.weight_decay.unwrap_or(weight_decay),
            },
            UpdateRule::Adamw { beta1, beta2, epsilon, weight_decay } => UpdateRule::Adamw {
                beta1: self.beta1.unwrap_or(beta1),
                beta2: self.beta2.unwrap_or(beta2),
                epsilon: self.epsilon.unwrap_or(epsilon),
                weight_decay: self.weight_decay.unwrap_or(weight_decay),
            },
        })
    }
}
