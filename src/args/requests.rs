//! Conversion of options to requests.
//!
//! Contradictions that only options can have (an option for a different device, two that exclude each other) are
//! refused here.

use super::values::{
    DecayArg, DeviceChoice, DuplexArg, HostPlace, ObjectiveArg, OptimizerArg, RuleArg, SearchArg, ToolArg,
    ToolOptimizerArg,
};
use super::{
    ClusterArgs, DeviceArgs, EXPORTED_EPOCHS, ExportArgs, KernelArgs, NetworkArgs, RateArgs, SearchArgs,
    StudyArgs, TrainArgs, WorkloadArgs, defaults,
};
use crate::interrupt;
use plimsoll_ir::config::LearningRateRule;
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::{Bytes, Float, Optimizer, Precision, UpdateRule};
use plimsoll_runtime::{CpuOptions, HostMemory};
use plimsoll_study::device::{cores, cpu_options, of_processor};
use plimsoll_study::export::{Optimizer as ToolOptimizer, Tool, Wanted};
use plimsoll_study::naming::{self, Decides};
use plimsoll_study::request::{
    ClusterRequest, DecayShape, NetworkRequest, Objective, RateRequest, Searcher, TrainRequest, TuneRequest,
    Workers,
};
use plimsoll_study::{Error, NetworkWorkload, Setup, Study, Watch};
use plimsoll_tuner::rate::default_convexity;

impl NetworkArgs {
    /// Network, and the images that it is for.
    pub fn request(&self) -> NetworkRequest {
        let (name, image) = (self.network.clone(), self.image.map(|image| image.0));
        NetworkRequest { name, image, channels: self.channels, classes: self.classes }
    }
}

impl WorkloadArgs {
    /// Workload: the network with its data on the device.
    pub fn task(&self, watch: &Watch<'_>) -> Result<NetworkWorkload, Error> {
        let setup = self.device.setup(watch)?;
        let task = NetworkWorkload::new(&self.network.request(), &self.data.data, setup);
        task.map(|task| task.trained_by(self.optimizer.optimizer.into()))
    }
}

/// Error for an option of a different device.
fn only(option: &str, device: &str) -> Error {
    Error::usage(format_args!("{option} is for --device {device}"))
        .help("leave it out, or choose that device")
}

/// Checks that this machine has a core for each of `threads` threads.
pub fn threads_are_sound(threads: Option<u32>) -> Result<(), Error> {
    let cores = cores();
    let Some(threads) = threads.filter(|threads| *threads > cores) else { return Ok(()) };
    Err(Error::usage(format_args!(
        "--threads {threads} is more than the {cores} cores that this process may use"
    ))
    .help(format_args!("give at most {cores} with --threads, or leave --threads out")))
}

impl DeviceArgs {
    /// Device selected by the options.
    pub fn setup(&self, watch: &Watch<'_>) -> Result<Setup, Error> {
        let link = self.link.map(|rate| Link { duplex: self.duplex.into(), ..Link::symmetric(rate) });
        let half = self.duplex == DuplexArg::Half;
        match self.device {
            DeviceChoice::Cpu if half && link.is_none() => {
                Err(Error::usage("--duplex half is for a link that is paced, and there is no --link")
                    .help("give the --link that both ways are to share, or leave --duplex out"))
            }
            DeviceChoice::Cpu if self.no_graph => Err(only("--no-graph", "cuda")),
            DeviceChoice::Cpu if self.kernels.deterministic => Err(only("--deterministic", "cuda")),
            DeviceChoice::Cpu => {
                threads_are_sound(self.threads)?;
                let feature_maps = of_processor(self.kernels.precision.asked())?;
                Ok(processor(self.threads, link, feature_maps, &self.host, watch))
            }
            DeviceChoice::Cuda(_) if self.threads.is_some() => Err(only("--threads", "cpu")),
            DeviceChoice::Cuda(_) if link.is_some() => Err(only("--link", "cpu")),
            DeviceChoice::Cuda(_) | DeviceChoice::Modelled(_) if half => Err(only("--duplex half", "cpu")),
            DeviceChoice::Cuda(ordinal) => {
                let KernelArgs { precision, deterministic } = self.kernels;
                gpu(ordinal, !self.no_graph, &self.host, deterministic, precision.asked())
            }
            DeviceChoice::Modelled(_) if self.no_graph => Err(only("--no-graph", "cuda")),
            DeviceChoice::Modelled(_) if self.threads.is_some() => Err(only("--threads", "cpu")),
            DeviceChoice::Modelled(_) if link.is_some() => Err(only("--link", "cpu")),
            DeviceChoice::Modelled(_) if matches!(self.host, HostPlace::File(_)) => {
                Err(only("--host file:PATH", "cpu"))
            }
            DeviceChoice::Modelled(sheet) => Ok(Setup::modelled(sheet, self.kernels.precision_alone()?)?),
        }
    }
}

/// The CPU, with a warning if its link is paced very slowly. Ctrl-C ends the link's waiting.
pub fn processor(
    threads: Option<u32>,
    link: Option<Link>,
    feature_maps: Float,
    host: &HostPlace,
    watch: &Watch<'_>,
) -> Setup {
    let host = match host {
        HostPlace::Memory => HostMemory::Anonymous,
        HostPlace::File(path) => HostMemory::File(path.clone()),
    };
    let options = CpuOptions { hurry: interrupt::hurry(), host, feature_maps, ..cpu_options(threads, link) };
    let setup = Setup::Cpu(options);
    setup.warn_of_slow_link(watch);
    setup
}

/// A GPU; offloaded tensors go to pinned memory, which a file cannot provide.
pub fn gpu(
    ordinal: u32,
    graphs: bool,
    host: &HostPlace,
    deterministic: bool,
    precision: Option<Precision>,
) -> Result<Setup, Error> {
    match host {
        HostPlace::File(_) => Err(only("--host file:PATH", "cpu")),
        HostPlace::Memory => Ok(Setup::cuda(ordinal, graphs, deterministic, precision)?),
    }
}

impl KernelArgs {
    /// Precision chosen for a modelled device, which has no other kernel option.
    pub fn precision_alone(&self) -> Result<Option<Precision>, Error> {
        if self.deterministic { Err(only("--deterministic", "cuda")) } else { Ok(self.precision.asked()) }
    }
}

impl SearchArgs {
    /// Smallest batch to consider.
    pub fn least(&self, rate: &RateArgs, cluster: Option<&ClusterRequest>) -> u64 {
        // The learning rate belongs to an update of all workers.
        let usual = match cluster {
            None => rate.base_batch,
            Some(ClusterRequest { global_batch: Some(_), .. }) => 1,
            Some(cluster) => rate.base_batch.div_ceil(cluster.workers),
        };
        self.min_batch.unwrap_or(usual)
    }
}

impl ClusterArgs {
    /// Workers that a batch is chosen for; `None` for a single worker.
    pub fn request(&self) -> Result<Option<ClusterRequest>, Error> {
        let workers = self.workers.filter(|workers| *workers > 1);
        if self.nccl && workers.is_none() {
            return Err(Error::usage("--nccl is for several workers")
                .help("say how many with --workers, or leave it out"));
        }
        let nccl = self.nccl;
        match (workers, self.interconnect, self.global_batch) {
            (Some(workers), Some(interconnect), global_batch) => {
                Ok(Some(ClusterRequest { workers, interconnect, nccl, global_batch }))
            }
            (Some(_), None, _) => Err(Error::usage("--workers needs --interconnect")
                .help("add one, such as --interconnect 10Gbit/s,30us")),
            (None, None, None) => Ok(None),
            (None, ..) => Err(Error::usage("--interconnect and --global-batch are for several workers")
                .help("say how many with --workers")),
        }
    }
}

impl RateArgs {
    /// Rule that sets the learning rate from the batch, for this optimizer.
    pub fn request(&self, optimizer: Optimizer) -> RateRequest {
        let RateArgs { base_batch, base_rate, convexity, .. } = *self;
        let base_rate = base_rate.unwrap_or_else(|| usual_rate(optimizer));
        let rule = match self.rule(optimizer) {
            RuleArg::Linear => LearningRateRule::Linear,
            RuleArg::SquareRoot => LearningRateRule::SquareRoot,
            RuleArg::Accudnn => {
                let convexity = convexity.unwrap_or_else(|| default_convexity(base_rate));
                LearningRateRule::Accudnn { convexity }
            }
        };
        RateRequest { base_batch, base_rate, rule }
    }

    fn rule(&self, optimizer: Optimizer) -> RuleArg {
        self.rate_rule.unwrap_or(match optimizer {
            Optimizer::Sgd => RuleArg::Accudnn,
            Optimizer::Adamw => RuleArg::SquareRoot,
        })
    }

    fn are_sound(&self, optimizer: Optimizer) -> Result<(), Error> {
        if self.convexity.is_none() || self.rule(optimizer) == RuleArg::Accudnn {
            return Ok(());
        }
        Err(Error::usage("--convexity is for --rate-rule accudnn")
            .help("leave --convexity out, or add --rate-rule accudnn"))
    }
}

/// Default base rate.
fn usual_rate(optimizer: Optimizer) -> f64 {
    match optimizer {
        Optimizer::Sgd => 0.05,
        Optimizer::Adamw => 1e-3,
    }
}

impl TrainArgs {
    /// Training request with this optimizer.
    pub fn request(&self, optimizer: Optimizer, fresh: bool, timed: bool) -> Result<TrainRequest, Error> {
        let TrainArgs { epochs, decay, seed, save_every, .. } = *self;
        let (decay, update) = (decay.into(), self.update(optimizer)?);
        let (workers, per_draw) = (Workers::default(), false);
        let weights =
            self.weights.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        Ok(TrainRequest { epochs, decay, update, weights, seed, save_every, per_draw, fresh, workers, timed })
    }

    /// Optimizer with its settings.
    fn update(&self, optimizer: Optimizer) -> Result<UpdateRule, Error> {
        let of_moments = [("--beta1", self.beta1), ("--beta2", self.beta2), ("--epsilon", self.epsilon)];
        let of_moments = of_moments.iter().find(|(_, given)| given.is_some());
        let foreign = match optimizer {
            Optimizer::Sgd => of_moments.map(|(option, _)| (*option, Optimizer::Adamw)),
            Optimizer::Adamw => self.momentum.map(|_| ("--momentum", Optimizer::Sgd)),
        };
        if let Some((option, other)) = foreign {
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

impl ExportArgs {
    /// Request for a training in another tool.
    pub fn wanted(&self) -> Wanted {
        let ExportArgs { workers, epochs, momentum, weight_decay, as_planned, .. } = *self;
        let (global, decay) = (self.global_batch, self.decay.into());
        let optimizer = self.optimizer.map(Into::into);
        Wanted { workers, global, epochs, decay, optimizer, momentum, weight_decay, as_planned }
    }

    /// Option about a training in another tool that is given and is not the default, if any.
    pub fn setting(&self) -> Option<&'static str> {
        let settings = [
            ("--workers", self.workers.is_some()),
            ("--global-batch", self.global_batch.is_some()),
            ("--epochs", self.epochs != EXPORTED_EPOCHS),
            ("--decay", self.decay != DecayArg::default()),
            ("--optimizer", self.optimizer.is_some()),
            ("--momentum", self.momentum.is_some()),
            ("--weight-decay", self.weight_decay.is_some()),
            ("--as-planned", self.as_planned),
        ];
        settings.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

/// Tuning request within a budget.
pub fn tune_request(
    budget: Bytes,
    search: &SearchArgs,
    cluster: &ClusterArgs,
    (rate, optimizer): (&RateArgs, Optimizer),
    epochs: u64,
    fresh: bool,
) -> Result<TuneRequest, Error> {
    rate.are_sound(optimizer)?;
    let cluster = cluster.request()?;
    Ok(TuneRequest {
        budget,
        search: search.search.into(),
        objective: search.objective.into(),
        min_batch: search.least(rate, cluster.as_ref()),
        max_batch: search.max_batch,
        cluster,
        rate: rate.request(optimizer),
        epochs,
        command: super::command_line(),
        fresh,
    })
}

/// Options that decide the choice and the training.
pub fn decides(
    search: &SearchArgs,
    cluster: &ClusterArgs,
    rate: &RateArgs,
    train: &TrainArgs,
    optimizer: Optimizer,
) -> Result<Decides, Error> {
    let cluster = cluster.request()?;
    Ok(Decides {
        budget: search.budget,
        host_memory: search.host_memory,
        search: search.search.into(),
        objective: search.objective.into(),
        min_batch: search.least(rate, cluster.as_ref()),
        max_batch: search.max_batch,
        cluster,
        rate: rate.request(optimizer),
        train: train.request(optimizer, false, false)?,
    })
}

/// Study of a workload with these options, which may not exist yet: the one named, else the workload's own.
pub fn study_of(
    task: &NetworkWorkload,
    study: &StudyArgs,
    search: &SearchArgs,
    cluster: &ClusterArgs,
    rate: &RateArgs,
    train: &TrainArgs,
) -> Result<Study, Error> {
    if let Some(folder) = &study.study {
        return Ok(Study::at(folder));
    }
    let usual = decides(&defaults(), &defaults(), &defaults(), &defaults(), Optimizer::default())?;
    let asked = decides(search, cluster, rate, train, task.optimizer)?;
    Ok(Study::at(&naming::folder(task, &asked, &usual)?))
}

impl From<DuplexArg> for Duplex {
    fn from(arg: DuplexArg) -> Duplex {
        match arg {
            DuplexArg::Full => Duplex::Full,
            DuplexArg::Half => Duplex::Half,
        }
    }
}

impl From<SearchArg> for Searcher {
    fn from(arg: SearchArg) -> Searcher {
        match arg {
            SearchArg::Plimsoll => Searcher::Plimsoll,
            SearchArg::Accudnn => Searcher::Accudnn,
        }
    }
}

impl From<ObjectiveArg> for Objective {
    fn from(arg: ObjectiveArg) -> Objective {
        match arg {
            ObjectiveArg::Frugal => Objective::Frugal,
            ObjectiveArg::Fastest => Objective::Fastest,
        }
    }
}

impl From<DecayArg> for DecayShape {
    fn from(arg: DecayArg) -> DecayShape {
        match arg {
            DecayArg::Cosine => DecayShape::Cosine,
            DecayArg::Constant => DecayShape::Constant,
            DecayArg::Step => DecayShape::Step,
        }
    }
}

/// Export request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// Settings for a training in this tool.
    Settings(Tool),
    /// Trained weights.
    Weights,
}

impl From<ToolArg> for Exported {
    fn from(arg: ToolArg) -> Exported {
        match arg {
            ToolArg::Torchrun => Exported::Settings(Tool::Torchrun),
            ToolArg::Accelerate => Exported::Settings(Tool::Accelerate),
            ToolArg::Lightning => Exported::Settings(Tool::Lightning),
            ToolArg::Deepspeed => Exported::Settings(Tool::Deepspeed),
            ToolArg::Safetensors => Exported::Weights,
        }
    }
}

impl From<OptimizerArg> for Optimizer {
    fn from(arg: OptimizerArg) -> Optimizer {
        match arg {
            OptimizerArg::Sgd => Optimizer::Sgd,
            OptimizerArg::Adamw => Optimizer::Adamw,
        }
    }
}

impl From<ToolOptimizerArg> for ToolOptimizer {
    fn from(arg: ToolOptimizerArg) -> ToolOptimizer {
        match arg {
            ToolOptimizerArg::Sgd => ToolOptimizer::Sgd,
            ToolOptimizerArg::Adam => ToolOptimizer::Adam,
            ToolOptimizerArg::Adamw => ToolOptimizer::Adamw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    fn task(workload: &WorkloadArgs) -> NetworkWorkload {
        workload.task(&Watch::silent()).expect("a task")
    }

    /// Name that a line of `auto` or `tune` gives its study.
    fn named(line: &str) -> String {
        let words = ["plimsoll"].into_iter().chain(line.split_whitespace());
        let folder = match Cli::parse_from(words).verb {
            Verb::Auto(args) => {
                let task = task(&args.workload);
                study_of(&task, &args.study, &args.search, &args.cluster, &args.rate, &args.train)
            }
            Verb::Tune(args) => {
                let task = task(&args.workload);
                study_of(&task, &args.study, &args.search, &args.cluster, &args.rate, &defaults())
            }
            other => panic!("{other:?}"),
        };
        let folder = folder.expect("a name").folder().display().to_string();
        folder.strip_prefix("studies/").unwrap_or_else(|| panic!("{folder}")).to_owned()
    }

    #[test]
    fn what_decides_has_a_name_of_its_own_and_what_does_not_has_not() {
        let usual = "auto --network mlp --threads 1";
        let all = [
            "",
            "--budget 40MiB",
            "--budget 60MiB",
            "--link 12GB/s",
            "--link 13GB/s",
            "--link 12GB/s --duplex half",
            "--image 8 --channels 1 --classes 11",
            "--data synthetic --image 8 --channels 1",
            "--data synthetic:40 --image 8 --channels 1",
            "--host file:slab",
            "--precision bf16",
            "--host-memory 1GiB",
            "--search accudnn",
            "--objective fastest",
            "--min-batch 8",
            "--max-batch 64",
            "--base-batch 64",
            "--base-rate 0.1",
            "--rate-rule linear",
            "--convexity 0.5",
            "--decay constant",
            "--momentum 0.8",
            "--weights a.safetensors",
            "--weights b.safetensors",
            "--weight-decay 0",
            "--optimizer adamw",
            "--optimizer adamw --beta1 0.8",
            "--optimizer adamw --beta2 0.99",
            "--optimizer adamw --epsilon 1e-6",
            "--optimizer adamw --weight-decay 0.1",
            "--optimizer adamw --base-rate 0.05",
            "--optimizer adamw --rate-rule linear",
            "--seed 2",
            "--workers 2 --interconnect 1Gbit/s",
            "--workers 2 --interconnect 1Gbit/s --nccl",
        ];
        let mut names: Vec<String> = all.iter().map(|more| named(&format!("{usual} {more}"))).collect();
        let modelled =
            ["h100", "k40", "h100 --precision f32", "h100 --precision tf32", "h100 --precision bf16"];
        names.extend(modelled.iter().map(|device| named(&format!("auto --network mlp --device {device}"))));
        let readable = |at: usize, words: &str| {
            let (said, digits) = names[at].rsplit_once('-').expect("words and digits");
            assert_eq!((said, digits.len()), (words, 6));
        };
        readable(0, "mlp-digits-cpu");
        readable(1, "mlp-digits-cpu-40MiB");
        readable(7, "mlp-synthetic-cpu");
        readable(all.len(), "mlp-digits-h100");
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name} is of two lines, one of them {:?}", all.get(at));
        }
        for (line, same) in [
            ("--epochs 200", 0),
            ("--save-every 5min", 0),
            ("--fresh", 0),
            ("--min-batch 32", 0),
            ("--rate-rule accudnn --base-rate 0.05 --optimizer sgd --momentum 0.9", 0),
            ("--seed 1 --decay cosine --data digits", 0),
            ("--budget 41943040B", 1),
            ("--link 12000MB/s", 3),
        ] {
            assert_eq!(named(&format!("{usual} {line}")), names[same], "{line}");
        }
        assert_eq!(named(&usual.replace("auto", "tune")), names[0]);
    }
}
