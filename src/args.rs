//! Options of the command line: one struct per verb, and the groups of options that verbs share.
//!
//! These doc comments are the help texts. Planned features are absent.

mod planning;

use planning::policy_help;
pub use planning::{CheckArgs, CompareArgs, PlanArgs, PlanningArgs, SimulateArgs};

use crate::output::Format;
use crate::progress::MessageFormat;
use clap::builder::TypedValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use plimsoll_ir::units::Size;
use plimsoll_ir::{Optimizer, Seconds};
use plimsoll_networks::ReluStorage;
use plimsoll_runtime::HostMemory;
use plimsoll_study::data::DataSource;
use plimsoll_study::export::{Tool, Wanted};
use plimsoll_study::request::{
    KernelOptions, RESEARCH, StudyOptions, TaskOptions, TrainRequest, TuneOptions,
};
use plimsoll_study::values::{self, DeviceChoice};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Loads a GPU to the line: measures a network and a machine, chooses batch size, placement and learning rate for a
/// memory budget, and trains exactly that.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Every option can be set in plimsoll.toml, too: see `plimsoll config --help`.")]
pub struct Cli {
    /// Format of results on stdout
    #[arg(long, global = true, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// Print only results and errors
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Print more on stderr; give it twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
    /// Format of progress, logs and errors on stderr
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", help_heading = "Output")]
    pub message_format: MessageFormat,
    /// Read settings from this file instead of ./plimsoll.toml or ~/.config/plimsoll/plimsoll.toml
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output")]
    pub config_file: Option<PathBuf>,
    /// The command
    #[command(subcommand)]
    pub verb: Verb,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Profile, tune, train and compare with the prediction, in one go
    ///
    /// Without options it trains resnet20 on the shipped handwritten digits within a budget that keeping every
    /// activation on the device would exceed.
    #[command(
        after_help = "Example: plimsoll auto --network resnet18 --image 64 --data synthetic --budget 400MB"
    )]
    Auto(AutoArgs),
    /// Show on this CPU, in a minute, what a plan gains over a smaller batch, accumulation and recomputing
    ///
    /// Trains a text model whose batch of 32 does not fit the budget: with a smaller batch, with accumulated gradients, by
    /// recomputing alone, and by a plan that also swaps. The same as `auto` with certain options; `demo` prints them.
    #[command(after_help = "Example: plimsoll demo")]
    Demo(DemoArgs),
    /// Measure a network's layers and the link, at fractions of the largest batch
    #[command(after_help = "Example: plimsoll profile --network resnet20 --budget 5MB --study digits")]
    Profile(ProfileArgs),
    /// Choose batch size, placement and learning rate from a profile
    #[command(after_help = "Example: plimsoll tune --network resnet20 --budget 5MB --study digits")]
    Tune(TuneArgs),
    /// Plan one trace within a budget and write its schedule, or show time over memory for a sweep of budgets
    #[command(
        after_help = "Example: plimsoll plan resnet50.trace.json --budget 60% --link 12GB/s -o resnet50.schedule.json"
    )]
    Plan(PlanArgs),
    /// Plan one trace under every policy, at one budget or over a sweep of budgets (by default 5)
    #[command(after_help = "Example: plimsoll compare resnet50.trace.json --budget 60% --link 12GB/s")]
    Compare(CompareArgs),
    /// Prove a schedule free of races and within its budget
    #[command(after_help = "Example: plimsoll check resnet50.trace.json resnet50.schedule.json")]
    Check(CheckArgs),
    /// Predict the time of a schedule, and list its stalls
    #[command(
        after_help = "Example: plimsoll simulate resnet50.trace.json resnet50.schedule.json --trace-out iteration.json"
    )]
    Simulate(SimulateArgs),
    /// Train what was tuned
    #[command(after_help = "Example: plimsoll run digits --epochs 5")]
    Run(RunArgs),
    /// Train a few iterations twice, planned and keeping everything, and compare every bit
    #[command(after_help = "Example: plimsoll verify --network resnet20 --batch 32 --budget 70%")]
    Verify(VerifyArgs),
    /// Make a page, which a browser opens offline, from a study or from a trace and its schedule
    ///
    /// --format json prints the report as JSON instead (report/1).
    #[command(after_help = "Example: plimsoll report digits --out digits.html")]
    Report(ReportArgs),
    /// Explain in words a study's choice, its limits, and the treatment of a layer
    #[command(after_help = "Example: plimsoll explain digits --layer conv1")]
    Explain(ExplainArgs),
    /// List the networks, or show one layer by layer
    #[command(after_help = "Example: plimsoll networks resnet50")]
    Networks(NetworksArgs),
    /// Print one training iteration of a network as a trace
    #[command(after_help = "Example: plimsoll trace resnet50 --batch 32 -o resnet50.trace.json")]
    Trace(TraceArgs),
    /// Show what this machine offers and lacks, and under mpirun the speed of the network between the processes
    #[command(after_help = "Example: plimsoll doctor")]
    Doctor(DoctorArgs),
    /// Print what was tuned as lines for torchrun, Accelerate, Lightning or DeepSpeed, or write what was trained
    ///
    /// Batch size of each worker, gradient accumulation, learning rate and warm-up. The plan inside an iteration (swapped and
    /// recomputed tensors) is not exported: none of these tools can follow it.
    #[command(after_help = "Example: plimsoll export digits --to deepspeed --workers 4")]
    Export(ExportArgs),
    /// Show the settings in effect and their sources
    ///
    /// A setting is the option of the same name. Flags on the line come first, then the environment (PLIMSOLL_BUDGET for
    /// --budget), then the file plimsoll.toml, here or in ~/.config/plimsoll; in the file, the table of a command before
    /// the keys at the top. Paths are relative to the current folder. --flag=false turns off a flag that the file sets.
    #[command(after_help = "Example: plimsoll config show plan")]
    Config(ConfigArgs),
    /// Print the completions of a shell
    ///
    /// For bash: `plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll`; for zsh: to a file
    /// `_plimsoll` in a folder of `$fpath`; for fish: to `~/.config/fish/completions/plimsoll.fish`.
    #[command(after_help = "Example: plimsoll completions bash")]
    Completions(CompletionsArgs),
    /// Print the manual page of the program or of a command
    ///
    /// To read it: `plimsoll man > plimsoll.1 && man ./plimsoll.1`.
    #[command(after_help = "Example: plimsoll man plan")]
    Man(ManArgs),
}

static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Records the line that this process runs, beginning with the program's name. The first call counts.
pub fn begin(line: Vec<OsString>) -> &'static [OsString] {
    LINE.get_or_init(|| line)
}

/// Line that this process runs, beginning with the program's name; empty if it runs none.
pub fn line() -> &'static [OsString] {
    LINE.get().map_or(&[], Vec::as_slice)
}

/// Command line as given, with words quoted where a shell would split them.
pub fn command_line() -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./:,%+@".contains(c);
    let quoted = |word: String| {
        let as_it_is = !word.is_empty() && word.chars().all(plain);
        if as_it_is { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = line().iter().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    std::iter::once("plimsoll".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Options of `auto` that a script decides for itself: all but budget, link and study.
fn of_networks() -> Vec<clap::Id> {
    let groups = [TuneOptions::augment_args, TrainRequest::augment_args, StudyOptions::augment_args];
    let all = groups.into_iter().fold(clap::Command::new("auto"), |command, group| group(command));
    let ids = all.get_arguments().map(|arg| arg.get_id().clone());
    ids.filter(|id| !["budget", "link", "study"].contains(&id.as_str())).collect()
}

/// `auto`
#[derive(Clone, Debug, Args)]
pub struct AutoArgs {
    /// Instead of a network: a Python script that calls plimsoll.tune. --budget and --link replace those of its calls, and a
    /// report of each planned step is written when the script ends. Needs the Python package
    #[arg(value_name = "SCRIPT", conflicts_with_all = of_networks())]
    pub script: Option<PathBuf>,
    /// Arguments of the script, after `--`
    #[arg(last = true, value_name = "ARGUMENTS", requires = "script")]
    pub script_arguments: Vec<OsString>,
    #[command(flatten)]
    pub tune: TuneOptions,
    #[command(flatten)]
    pub train: TrainRequest,
    #[command(flatten)]
    pub study: StudyOptions,
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
pub struct ProfileArgs {
    #[command(flatten)]
    pub task: TaskOptions,
    /// Device memory budget, such as 22GiB, 500MB, or 90% of the device's memory; by default the study's earlier budget;
    /// else, with cpu, the memory that keeping everything takes at a batch of 16 (or at 32, if less does not train); with
    /// cuda, the free memory less 512 MiB, in steps of 256 MiB
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Largest batch to consider
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_batch: Option<u64>,
    #[command(flatten)]
    pub study: StudyOptions,
}

/// `tune`
#[derive(Clone, Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    pub tune: TuneOptions,
    /// Passes over the data that will be trained; the warm-up takes at most a tenth of them
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: u64,
    #[command(flatten)]
    pub study: StudyOptions,
}

/// Parser of the longest silence of a worker; a worker sends a sign of life five times a second.
fn timeout() -> impl TypedValueParser<Value = Seconds> {
    values::such(|time: &Seconds| (1.0..=86_400.0).contains(&time.0), "a time from 1s to 24h, such as 5s")
}

/// `run`
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// A config/1 file that `tune` or `auto` wrote, or the study's folder that holds it
    pub config: PathBuf,
    /// Training data: digits, text, synthetic, synthetic:SAMPLES, images:FOLDER, text:FILE, tokens:FILE, mnist:FOLDER or
    /// cifar10:FOLDER; by default the data of the study
    #[arg(long, value_name = "SOURCE")]
    pub data: Option<DataSource>,
    /// Device of the kind that the study was tuned for: cpu, cuda or cuda:N; by default the first. With several workers, the
    /// device of the first worker on this machine; each further worker has the next GPU
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// With cuda: enqueue the commands of every iteration one by one instead of replaying them as one CUDA graph
    #[arg(long)]
    pub no_graph: bool,
    /// Host storage of swapped tensors: memory, or with cpu file:PATH
    #[arg(long, value_name = "PLACE", value_parser = values::host, default_value = "memory")]
    pub host: HostMemory,
    /// Optimizer; only the optimizer that the study was tuned for, which is the default
    #[arg(long, value_name = "NAME", value_parser = values::optimizer())]
    pub optimizer: Option<Optimizer>,
    #[command(flatten)]
    pub train: TrainRequest,
    /// Workers that train together, as threads of this process, each with the whole budget (and with cuda a GPU). Their number
    /// does not change the results of the same global batch. `mpirun -n N plimsoll run STUDY` has processes instead
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub workers: u64,
    /// Samples in an update of all workers together: a multiple of the tuned batch, from which the learning rate follows; fewer
    /// workers accumulate. By default that of the training that continues, else the tuned one, else a tuned batch for each
    /// worker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub global_batch: Option<u64>,
    /// Under mpirun: longest silence of a worker, after which the run ends
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = timeout())]
    pub timeout: Seconds,
    /// Write one more iteration, predicted and measured, as trace events, which ui.perfetto.dev and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
    /// Start anew, even if there is a checkpoint next to the config
    #[arg(long)]
    pub fresh: bool,
}

/// `verify`
#[derive(Clone, Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub task: TaskOptions,
    /// Samples in an iteration
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,
    /// Device memory budget: bytes, a size, or a share of the memory that keeping everything takes; by default halfway between
    /// that memory and the smallest feasible budget
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Planning policy
    #[arg(long, value_name = "NAME", default_value = "plimsoll", help = policy_help())]
    pub policy: String,
    /// Iterations to compare after
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: u64,
    /// Seed of parameters and data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The subject of a report: a study, or a trace and its schedule.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("reported").args(["study", "trace"]).required(true)))]
pub struct ReportedArgs {
    /// A study's folder, as `tune` and `auto` make it
    pub study: Option<PathBuf>,
    /// Instead of a study: a trace/1 file
    #[arg(long, value_name = "TRACE", requires = "schedule")]
    pub trace: Option<PathBuf>,
    /// With --trace: a schedule/1 file
    #[arg(long, value_name = "SCHEDULE", requires = "trace")]
    pub schedule: Option<PathBuf>,
}

/// `report`
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub reported: ReportedArgs,
    /// Output file; by default report.html in the study's folder, or here
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `explain`
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub reported: ReportedArgs,
    /// Explain this layer in full
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
    /// Show each step of the search for the study's plan, and its result
    #[arg(long, conflicts_with_all = ["layer", "trace"])]
    pub search_log: bool,
}

/// The images that a network is built for.
#[derive(Clone, Debug, Args)]
pub struct ShapeArgs {
    /// Image height and width in pixels; by default those that the network was published for
    #[arg(long, value_name = "PIXELS", value_parser = values::image)]
    pub image: Option<[u32; 2]>,
    /// Image channels
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Classes to tell apart
    #[arg(long, value_name = "N")]
    pub classes: Option<u32>,
}

/// `networks`
#[derive(Clone, Debug, Args)]
pub struct NetworksArgs {
    /// Show this network layer by layer
    pub name: Option<String>,
    #[command(flatten)]
    pub shape: ShapeArgs,
}

/// `trace`
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// A network of the zoo, such as resnet18; see `plimsoll networks`
    pub name: String,
    /// Samples in the iteration
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub batch: u64,
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Optimizer; its state (one number a parameter for sgd, two for adamw) stays on the device
    #[arg(long, value_name = "NAME", value_parser = values::optimizer(), default_value = "sgd")]
    pub optimizer: Optimizer,
    /// Tensor that ReLU keeps for its backward pass
    #[arg(long, value_parser = values::relu(), default_value = "auto", help_heading = RESEARCH)]
    pub relu: ReluStorage,
    /// Take the ops' seconds from the model of this profile/1 file; without it they are 0. A profile of a GPU needs that GPU,
    /// whose libraries state their scratch
    #[arg(long, value_name = "PROFILE", conflicts_with = "device")]
    pub profile: Option<PathBuf>,
    /// Take the ops' seconds from the model of a device that is not here: k40, m40, gtx1080ti, v100, a100-40gb, rtx4090, h100
    /// or h200
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    #[command(flatten)]
    pub kernels: KernelOptions,
    /// Output: a path, or `-` for standard output, which is the default
    #[arg(short, long, value_name = "TRACE")]
    pub output: Option<PathBuf>,
}

/// `doctor`
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Compute threads to report for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

/// `export`
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// A config/1 file that `tune` or `auto` wrote, or the study's folder that holds it
    pub config: PathBuf,
    /// The tool
    #[arg(long, value_name = "TOOL", value_enum)]
    pub to: Tool,
    #[command(flatten)]
    pub wanted: Wanted,
    /// With --to safetensors: the file to write
    #[arg(short, long, value_name = "FILE", required_if_eq("to", "safetensors"))]
    pub output: Option<PathBuf>,
}

/// `config`
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// The view
    #[command(subcommand)]
    pub what: ConfigVerb,
}

/// A view of `config`.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print the options of a command that are set, and the source of each value
    Show(ConfigShowArgs),
}

/// `config show`
#[derive(Clone, Debug, Args)]
pub struct ConfigShowArgs {
    /// Also show the options that have their defaults
    #[arg(long)]
    pub all: bool,
    /// A command, with any of its options, such as `tune --budget 90%`; by default all commands
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `completions`
#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_parser = values::one_of(&SHELLS))]
    pub shell: Shell,
}

/// The shells that there are completions for.
const SHELLS: [(&str, Shell, &str); 3] =
    [("bash", Shell::Bash, "bash"), ("zsh", Shell::Zsh, "zsh"), ("fish", Shell::Fish, "fish")];

/// `man`
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// A command, such as auto; by default the program
    pub command: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn a_script_takes_budget_link_and_study_only() {
        let program = Cli::command();
        let auto = program.find_subcommand("auto").expect("a command");
        let options = crate::settings::settable(auto).map(|(arg, _)| arg.get_id().clone());
        let mut own: Vec<clap::Id> =
            options.filter(|id| !["budget", "link", "study"].contains(&id.as_str())).collect();
        let mut refused = of_networks();
        own.sort_unstable();
        refused.sort_unstable();
        assert_eq!(own, refused);
    }

    #[test]
    fn every_command_has_an_example_that_it_takes() {
        let program = Cli::command();
        for command in program.get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = help.strip_prefix("Example: ").unwrap_or_else(|| panic!("{command} has none"));
            let read = program.clone().try_get_matches_from(example.split_whitespace()).expect(example);
            assert_eq!(read.subcommand_name(), Some(command.get_name()), "{example}");
        }
    }
}
