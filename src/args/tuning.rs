//! The options of the verbs that measure and choose: `auto`, `demo`, `profile`, `tune`.

use super::{RateArgs, SearchArgs, StudyArgs, TrainArgs, WorkloadArgs, of_networks};
use clap::Args;
use plimsoll_ir::exchange::Interconnect;
use plimsoll_ir::units::Size;
use std::ffi::OsString;
use std::path::PathBuf;

/// `auto`
#[derive(Clone, Debug, Args)]
#[allow(missing_docs, reason = "the groups are documented where they are defined")]
pub struct AutoArgs {
    /// Instead of a network: a Python script that calls plimsoll.tune. --budget and --link replace those of its calls, and a
    /// report of each planned step is written when the script ends. Needs the Python package
    #[arg(value_name = "SCRIPT", conflicts_with_all = of_networks())]
    pub script: Option<PathBuf>,
    /// Arguments of the script, after `--`
    #[arg(last = true, value_name = "ARGUMENTS", requires = "script")]
    pub script_arguments: Vec<OsString>,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub rate: RateArgs,
    #[command(flatten)]
    pub train: TrainArgs,
    #[command(flatten)]
    pub study: StudyArgs,
}

/// The workers that a batch is chosen for.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
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

/// `demo`
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// The study's folder; by default studies/demo. A second run shows the measurements of the first
    #[arg(long, value_name = "DIR")]
    pub study: Option<PathBuf>,
    /// Discard the study in that folder, and measure anew
    #[arg(long)]
    pub fresh: bool,
}

/// `profile`
#[derive(Clone, Debug, Args)]
#[allow(missing_docs, reason = "the groups are documented where they are defined")]
pub struct ProfileArgs {
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Device memory budget, such as 22GiB, 500MB, or 90% of the device's memory; by default the study's earlier budget;
    /// else, with cpu, the memory that keeping everything takes at a batch of 16 (or at 32, if less does not train); with
    /// cuda, the free memory less 512 MiB, in steps of 256 MiB
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Largest batch to consider
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_batch: Option<u64>,
    #[command(flatten)]
    pub study: StudyArgs,
}

/// `tune`
#[derive(Clone, Debug, Args)]
#[allow(missing_docs, reason = "the groups are documented where they are defined")]
pub struct TuneArgs {
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub rate: RateArgs,
    /// Passes over the data that will be trained; the warm-up takes at most a tenth of them
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: u64,
    #[command(flatten)]
    pub study: StudyArgs,
}
