//! Options of the commands that work on traces and schedules alone: plan, compare, check, simulate.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_study::request::RESEARCH;
use plimsoll_study::values;
use plimsoll_tuner::{Policy, Trick};
use std::path::PathBuf;

/// Options of every plan of a trace.
#[derive(Clone, Debug, Args)]
pub struct PlanningArgs {
    /// A trace/1 file, or `-` for standard input
    pub trace: PathBuf,
    /// Device memory budget: bytes, a size such as 22GiB, or a share such as 60% of the trace's peak
    #[arg(long, value_name = "BYTES|SIZE|PERCENT", conflicts_with = "sweep")]
    pub budget: Option<Size>,
    /// Number of budgets in equal steps, from just above the bytes that the largest op touches to the peak
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub sweep: Option<u32>,
    /// Host memory limit for swapped tensors, such as 64GiB; by default unlimited
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,
    /// Rate of the link each way, such as 12.2GB/s
    #[arg(long, value_name = "RATE")]
    pub link: BytesPerSecond,
    /// Host-to-device rate, if different from --link
    #[arg(long, value_name = "RATE")]
    pub prefetch_link: Option<BytesPerSecond>,
    /// Latency of every transfer, such as 10us
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub latency: Seconds,
    /// Duplex mode of the link
    #[arg(long, value_parser = values::duplex(), default_value = "full")]
    pub duplex: Duplex,
    /// Recompute nothing
    #[arg(long)]
    pub no_recompute: bool,
    /// Swap nothing
    #[arg(long)]
    pub no_swap: bool,
    /// Swap whole tensors only
    #[arg(long, help_heading = RESEARCH)]
    pub no_pieces: bool,
    /// Time limit of each plan (bound, search and addresses together); the best plan so far is taken
    #[arg(long, value_name = "TIME")]
    pub time_limit: Option<Seconds>,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = RESEARCH)]
    pub seed: u64,
    /// Search without these tricks, separated by commas, to see their value
    #[arg(long, value_name = "TRICKS", value_delimiter = ',', value_parser = trick(), help_heading = RESEARCH)]
    pub without: Vec<Trick>,
}

/// `plan`
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("budgets").args(["budget", "sweep"]).required(true)))]
pub struct PlanArgs {
    #[command(flatten)]
    pub planning: PlanningArgs,
    /// Planning policy
    #[arg(long, value_name = "NAME", default_value = "plimsoll", help = policy_help())]
    pub policy: String,
    /// Start from this schedule/1 file, made for a different budget, link or batch, or for a trace that differs a little; this
    /// takes a part of the time of a new plan. The lower bound is then the time of the ops alone
    #[arg(long, value_name = "SCHEDULE", conflicts_with = "sweep")]
    pub from: Option<PathBuf>,
    /// The trace/1 file that --from is for; by default the trace that is planned
    #[arg(long, value_name = "TRACE", requires = "from")]
    pub from_trace: Option<PathBuf>,
    /// Output schedule/1 file: a path, or `-` for standard output; with --sweep a folder, for a schedule of every budget.
    /// Without it only the answer is printed
    #[arg(short, long, value_name = "SCHEDULE")]
    pub output: Option<PathBuf>,
}

/// `compare`, over 5 budgets if none is given.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    pub planning: PlanningArgs,
    /// Policies to compare, separated by commas; by default all that take a trace of any size
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<String>,
}

/// Tricks that can be named, each with its description.
fn trick() -> impl TypedValueParser<Value = Trick> {
    let all = Trick::ALL.iter().map(|trick| PossibleValue::new(trick.name()).help(trick.about()));
    PossibleValuesParser::new(all).try_map(|name| name.parse::<Trick>())
}

/// Help text that lists the policies.
pub(super) fn policy_help() -> String {
    format!("Planning policy: {}", Policy::names())
}

/// `check`
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// A trace/1 file, or `-` for standard input
    pub trace: PathBuf,
    /// A schedule/1 file, or `-` for standard input
    pub schedule: PathBuf,
}

/// `simulate`
#[derive(Clone, Debug, Args)]
pub struct SimulateArgs {
    /// A trace/1 file, or `-` for standard input
    pub trace: PathBuf,
    /// A schedule/1 file, or `-` for standard input
    pub schedule: PathBuf,
    /// Also list start and end of every command
    #[arg(long)]
    pub commands: bool,
    /// Write the timeline as trace events, which ui.perfetto.dev and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
}
