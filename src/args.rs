//! Options of the command line: one struct per verb, and the groups of options that verbs share.
//!
//! These doc comments are the help texts. Planned features are absent.

mod planning;
mod requests;
mod tuning;
mod values;

use planning::policy_help;
pub use planning::{CheckArgs, CompareArgs, PlanArgs, PlanningArgs, SimulateArgs};
pub use requests::{Exported, gpu, processor, study_of, threads_are_sound, tune_request};
pub use tuning::{AutoArgs, ClusterArgs, DemoArgs, ProfileArgs, TuneArgs};
pub use values::{
    DecayArg, DeviceChoice, DuplexArg, HostPlace, Image, NoiseArg, ObjectiveArg, OptimizerArg, PrecisionArg,
    ReluArg, RuleArg, SearchArg, ToolArg, ToolOptimizerArg,
};

use crate::output::Format;
use crate::progress::MessageFormat;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use plimsoll_ir::units::Size;
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_study::data::DataSource;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Heading of options that show the effect of a part of the planner, or reproduce a paper's choice. Training does not
/// need them.
const RESEARCH: &str = "Research options";

/// Loads a GPU to the line: measures a network and a machine, chooses batch size, placement and learning rate for a
/// memory budget, and trains exactly that.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Every option can be set in plimsoll.toml, too: see `plimsoll config --help`.")]
pub struct Cli {
    /// How to print results on stdout
    #[arg(long, global = true, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// Say nothing but results and errors
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Say more on stderr; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
    /// How progress, logs and errors are told on stderr
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", help_heading = "Output")]
    pub message_format: MessageFormat,
    /// Read settings from this file instead of ./plimsoll.toml or ~/.config/plimsoll/plimsoll.toml
    #[arg(long, global = true, value_name = "FILE", help_heading = "Output")]
    pub config_file: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Profile, tune, train and compare with the prediction, in one go
    ///
    /// Without options it trains resnet20 on the shipped handwritten digits within a budget that keeping every feature
    /// map on the device would not fit.
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
    /// Plan one trace within a budget, which writes a schedule, or show time over memory for a sweep of budgets
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
    /// Say how long a schedule takes, and where it stalls
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
    /// Make a page that a browser opens offline: of a study, or of a trace and its schedule
    ///
    /// With --format json it is printed as JSON instead (report/1); --format schema prints its schema.
    #[command(after_help = "Example: plimsoll report digits --out digits.html")]
    Report(ReportArgs),
    /// Say in words why a study's tuning chose what it chose, what limits it, and what becomes of a layer
    #[command(after_help = "Example: plimsoll explain digits --layer conv1")]
    Explain(ExplainArgs),
    /// List the networks, or show one layer by layer
    #[command(after_help = "Example: plimsoll networks resnet50")]
    Networks(NetworksArgs),
    /// Print one training iteration of a network as a trace
    #[command(after_help = "Example: plimsoll trace resnet50 --batch 32 -o resnet50.trace.json")]
    Trace(TraceArgs),
    /// Say what this machine offers, what is missing, and under mpirun how fast the network between the processes is
    #[command(after_help = "Example: plimsoll doctor")]
    Doctor(DoctorArgs),
    /// Print what was tuned as lines for torchrun, Accelerate, Lightning or DeepSpeed, or write what was trained
    ///
    /// Batch size of each worker, gradient accumulation, learning rate and warm-up. What Plimsoll plans inside an iteration
    /// (swapping, recomputing ops) stays behind: none of these tools can follow it.
    #[command(after_help = "Example: plimsoll export digits --to deepspeed --workers 4")]
    Export(ExportArgs),
    /// Show which settings hold and where they come from
    ///
    /// A setting is the option of the same name. Flags on the line come first, then the environment (PLIMSOLL_BUDGET for
    /// --budget), then the file plimsoll.toml, here or in ~/.config/plimsoll; in the file, the table of a command before what
    /// stands on top. Paths are taken from the current folder. A flag that the file sets is put off by --flag=false.
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

impl Verb {
    /// Name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Verb::Auto(_) => "auto",
            Verb::Demo(_) => "demo",
            Verb::Profile(_) => "profile",
            Verb::Tune(_) => "tune",
            Verb::Plan(_) => "plan",
            Verb::Compare(_) => "compare",
            Verb::Check(_) => "check",
            Verb::Simulate(_) => "simulate",
            Verb::Run(_) => "run",
            Verb::Verify(_) => "verify",
            Verb::Report(_) => "report",
            Verb::Explain(_) => "explain",
            Verb::Networks(_) => "networks",
            Verb::Trace(_) => "trace",
            Verb::Doctor(_) => "doctor",
            Verb::Export(_) => "export",
            Verb::Config(_) => "config",
            Verb::Completions(_) => "completions",
            Verb::Man(_) => "man",
        }
    }
}

/// Which network, for which images.
#[derive(Clone, Debug, Args)]
pub struct NetworkArgs {
    /// A network of the zoo, such as resnet18, vgg16, alexnet; see `plimsoll networks`
    #[arg(long, value_name = "NAME", default_value = "resnet20")]
    pub network: String,
    /// Image height and width in pixels, such as 64 or 48x64; by default the data's, or with images:FOLDER the network's
    #[arg(long, value_name = "PIXELS")]
    pub image: Option<Image>,
    /// Image channels; by default the data's, or with images:FOLDER the network's
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Classes to tell apart; by default the data's
    #[arg(long, value_name = "N")]
    pub classes: Option<u32>,
}

/// The data's option.
#[derive(Clone, Debug, Args)]
pub struct DataArgs {
    /// What to train on: digits, text, synthetic, synthetic:SAMPLES, images:FOLDER (a folder of JPEG or PNG files for each
    /// class), text:FILE, tokens:FILE (16-bit tokens, NumPy's .npy, or a folder with train.bin), mnist:FOLDER or cifar10:FOLDER
    #[arg(long, value_name = "SOURCE", default_value = "digits")]
    pub data: DataSource,
}

/// The device and how it is set up.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// What trains: cpu; or cuda or cuda:N, an NVIDIA GPU (new: so far tested without one). Or a GPU that is not here,
    /// modelled from its data sheet, on which nothing runs: k40, m40, gtx1080ti, v100, a100-40gb, rtx4090, h100, h200
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceChoice,
    /// With cuda: enqueue the commands of every iteration one by one instead of replaying them as one CUDA graph
    #[arg(long)]
    pub no_graph: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "the group is documented where it is defined")]
    pub kernels: KernelArgs,
    /// Compute threads of the CPU; by default all cores but one, which is left to the two transfer streams
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// With cpu: pace the link between device and host to this rate each way, such as 12GB/s; by default as fast as it goes
    #[arg(long, value_name = "RATE")]
    pub link: Option<BytesPerSecond>,
    /// With a paced link: whether both ways can be busy at once
    #[arg(long, value_enum, default_value_t)]
    pub duplex: DuplexArg,
    /// Where swapped tensors go: memory, or with cpu file:PATH
    #[arg(long, value_name = "PLACE", default_value = "memory")]
    pub host: HostPlace,
}

/// The precision of any device, and how a GPU chooses kernels.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct KernelArgs {
    /// Number format of convolutions and matrix products; bf16 also halves the bytes of feature maps. Sums and parameters are
    /// f32
    #[arg(long, value_enum, value_name = "PRECISION", default_value_t)]
    pub precision: PrecisionArg,
    /// With cuda: run every call by one kernel, which gives the same bits each time
    #[arg(long)]
    pub deterministic: bool,
}

/// What is worked on, and where.
#[derive(Clone, Debug, Args)]
#[allow(missing_docs, reason = "the groups are documented where they are defined")]
pub struct WorkloadArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub optimizer: OptimizerArgs,
}

/// The optimizer's option.
#[derive(Clone, Debug, Args)]
pub struct OptimizerArgs {
    /// The optimizer; what it keeps for each parameter (sgd one number, adamw two) stays on the device
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub optimizer: OptimizerArg,
}

/// What was done is kept in this folder.
#[derive(Clone, Debug, Args)]
pub struct StudyArgs {
    /// The study's folder: journal, profile, config, schedule, checkpoint; a second run continues from it. By default
    /// studies/NETWORK-DATA-DEVICE-BUDGET-DIGITS, without the budget where none is given; the digits stand for all options that
    /// decide the choice and the training (not --epochs and --save-every), so that the same command finds its own study
    #[arg(long, value_name = "DIR")]
    pub study: Option<PathBuf>,
    /// Throw away what this command made in the study's folder earlier, and start anew
    #[arg(long)]
    pub fresh: bool,
}

/// The budget and what limits the search.
#[derive(Clone, Debug, Args)]
pub struct SearchArgs {
    /// What the device may hold, such as 22GiB, 500MB, or 90% of the device's memory; by default what the study was begun
    /// with; else, with cpu, what keeping everything takes at a batch of 16 (or at the least batch, where less does not
    /// train it), as if the device were just that small; with cuda, what is free less 512 MiB, in steps of 256 MiB; with a
    /// modelled device, its memory less as much
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// What swapped tensors may take of the host's memory, such as 64GiB; by default 70 % of the machine's (with a modelled
    /// device, of one in which it is common), and with --host file:PATH any number of bytes
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,
    /// Whose search chooses the batch and who plans it; the other's answer is run beside it
    #[arg(long, value_enum, value_name = "WHOSE", default_value_t, help_heading = RESEARCH)]
    pub search: SearchArg,
    /// What the batch is chosen for
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub objective: ObjectiveArg,
    /// Choose the samples of an update by goodput: throughput by what a sample is worth, which falls where an update is larger
    /// than the gradient's noise asks for. NOISE is the gradient noise scale in samples, or the folder of a study whose
    /// training measured it (see `run`). With --workers, also the passes of each in an update
    #[arg(long, value_name = "NOISE")]
    pub goodput: Option<NoiseArg>,
    /// No batch smaller than this; by default the base batch, below which your learning rate is untried; with --workers the
    /// base batch divided by them, with --global-batch or --goodput 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub min_batch: Option<u64>,
    /// No batch larger than this
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_batch: Option<u64>,
}

/// How the learning rate follows the batch.
#[derive(Clone, Debug, Args)]
pub struct RateArgs {
    /// A batch that you know a good learning rate for
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub base_batch: u64,
    /// That learning rate; by default 0.05 with sgd and 0.001 with adamw
    #[arg(long, value_name = "RATE")]
    pub base_rate: Option<f64>,
    /// How the rate follows from the batch, with q = batch / base batch; by default accudnn with sgd and square-root with adamw
    #[arg(long, value_enum)]
    pub rate_rule: Option<RuleArg>,
    /// c of AccUDNN eq. (9): no batch gets a rate above 1 / c; by default 32 base rates
    #[arg(long, value_name = "C", help_heading = RESEARCH)]
    pub convexity: Option<f64>,
}

/// How to train.
#[derive(Clone, Debug, Args)]
pub struct TrainArgs {
    /// Passes over the training data, those of earlier runs included; more than last time go on from there
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: u64,
    /// How the learning rate changes during training
    #[arg(long, value_enum, default_value_t)]
    pub decay: DecayArg,
    /// Momentum of sgd: the share of the old momentum that is kept; by default 0.9
    #[arg(long, value_name = "M", value_parser = values::momentum)]
    pub momentum: Option<f32>,
    /// beta1 of adamw: the share of the first moment that is kept; by default 0.9
    #[arg(long, value_name = "B", value_parser = values::beta)]
    pub beta1: Option<f64>,
    /// beta2 of adamw: the share of the second moment that is kept; by default 0.999
    #[arg(long, value_name = "B", value_parser = values::beta)]
    pub beta2: Option<f64>,
    /// epsilon of adamw, added to the square root of the second moment; by default 1e-8
    #[arg(long, value_name = "E", value_parser = values::epsilon)]
    pub epsilon: Option<f64>,
    /// Weight decay: with sgd a penalty in the gradient (L2), by default 5e-4; with adamw decoupled from it, by default 1e-2
    #[arg(long, value_name = "W", value_parser = values::weight_decay)]
    pub weight_decay: Option<f32>,
    /// Start from the weights in this safetensors file, which has the names and shapes that `export --to safetensors` writes;
    /// by default they are drawn
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Seed of initial parameters, order of the data and dropout
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Save the training's state to its file this often, such as 5min, and after each epoch; 0s for after every iteration. By
    /// default as often as takes a hundredth of the time; a GPU's is copied to host memory in every iteration besides, and
    /// saved where the GPU fails
    #[arg(long, value_name = "TIME")]
    pub save_every: Option<Seconds>,
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

/// Default values of a group of options.
pub fn defaults<T: Args>() -> T {
    let group = T::augment_args(clap::Command::new("defaults"));
    let given = group.try_get_matches_from(["defaults"]).expect("no option of the group is required");
    T::from_arg_matches(&given).expect("defaults are values")
}

/// Options of `auto` that a script decides for itself: all but budget, link and study.
fn of_networks() -> Vec<clap::Id> {
    let groups = [
        WorkloadArgs::augment_args,
        ClusterArgs::augment_args,
        SearchArgs::augment_args,
        RateArgs::augment_args,
        TrainArgs::augment_args,
        StudyArgs::augment_args,
    ];
    let all = groups.into_iter().fold(clap::Command::new("auto"), |command, group| group(command));
    let ids = all.get_arguments().map(|arg| arg.get_id().clone());
    ids.filter(|id| !["budget", "link", "study"].contains(&id.as_str())).collect()
}

/// `run`
#[derive(Clone, Debug, Args)]
#[allow(missing_docs, reason = "the groups are documented where they are defined")]
pub struct RunArgs {
    /// A config/1 file that `tune` or `auto` wrote, or the study's folder that holds it
    pub config: PathBuf,
    /// What to train on: digits, text, synthetic, synthetic:SAMPLES, images:FOLDER, text:FILE, tokens:FILE, mnist:FOLDER or
    /// cifar10:FOLDER; by default what the study was tuned on
    #[arg(long, value_name = "SOURCE")]
    pub data: Option<DataSource>,
    /// Which device of the kind that it was tuned for: cpu, cuda or cuda:N; by default the first. With several
    /// workers, that of the first on this machine; each other one has the next GPU
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// With cuda: enqueue the commands of every iteration one by one instead of replaying them as one CUDA graph
    #[arg(long)]
    pub no_graph: bool,
    /// Where swapped tensors go: memory, or with cpu file:PATH
    #[arg(long, value_name = "PLACE", default_value = "memory")]
    pub host: HostPlace,
    /// The optimizer; only the one that the study was tuned for, which is the default
    #[arg(long, value_enum, value_name = "NAME")]
    pub optimizer: Option<OptimizerArg>,
    #[command(flatten)]
    pub train: TrainArgs,
    /// Workers that train together, as threads of this process, each with the budget (and with cuda a GPU) for itself. How many
    /// there are changes no number of the same global batch. `mpirun -n N plimsoll run STUDY` has processes instead
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub workers: u64,
    /// Samples in an update, of all workers together: a multiple of the tuned batch, by which the learning rate follows; fewer
    /// workers accumulate. By default that of the training that goes on, else the one that was tuned for, else a tuned batch
    /// for each worker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub global_batch: Option<u64>,
    /// With stochastic depth: run each iteration by the plan cut to its own draw, made while the one before runs. What a draw
    /// drops is then not computed, and the numbers stay the same
    #[arg(long, conflicts_with_all = ["trace_out", "memory_snapshot"])]
    pub per_draw: bool,
    /// Under mpirun: a worker that shows no sign of life for so long ends the run
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::timeout)]
    pub timeout: Seconds,
    /// Write one more iteration, predicted and measured, as trace events, which ui.perfetto.dev and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
    /// Write the device's memory over one more iteration, as measured, as a snapshot (.pickle), which
    /// pytorch.org/memory_viz opens
    #[arg(long, value_name = "FILE")]
    pub memory_snapshot: Option<PathBuf>,
    /// Start anew even where a checkpoint lies beside the config
    #[arg(long)]
    pub fresh: bool,
}

/// `verify`
#[derive(Clone, Debug, Args)]
#[allow(missing_docs, reason = "the groups are documented where they are defined")]
pub struct VerifyArgs {
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Samples in an iteration
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,
    /// What the device may hold: bytes, a size, or a share of what keeping everything takes; by default halfway between
    /// that and the least that any plan needs
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Who decides
    #[arg(long, value_name = "NAME", default_value = "plimsoll", help = policy_help())]
    pub policy: String,
    /// Iterations to compare after
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: u64,
    /// Seed of parameters and data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// What is reported: a study, or a trace and its schedule.
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
    #[allow(missing_docs, reason = "the group is documented where it is defined")]
    pub reported: ReportedArgs,
    /// Where to write it; by default report.html in the study's folder, or here
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `explain`
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "the group is documented where it is defined")]
    pub reported: ReportedArgs,
    /// Say all there is to say of this layer
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
    /// Show how the study's plan was searched for: each step, and what came of it
    #[arg(long, conflicts_with_all = ["layer", "trace"])]
    pub search_log: bool,
}

/// The images that a network is built for.
#[derive(Clone, Debug, Args)]
pub struct ShapeArgs {
    /// Image height and width in pixels; by default what the network was published for
    #[arg(long, value_name = "PIXELS")]
    pub image: Option<Image>,
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
    #[allow(missing_docs, reason = "the group is documented where it is defined")]
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
    #[allow(missing_docs, reason = "the group is documented where it is defined")]
    pub shape: ShapeArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "the group is documented where it is defined")]
    pub optimizer: OptimizerArgs,
    /// What ReLU keeps for its backward pass
    #[arg(long, value_enum, default_value_t, help_heading = RESEARCH)]
    pub relu: ReluArg,
    /// With stochastic depth: only what the draw of this iteration leaves; without it, ops that serve every draw
    #[arg(long, value_name = "ITERATION", help_heading = RESEARCH)]
    pub draw: Option<u32>,
    /// With --draw: the seed of the training
    #[arg(long, value_name = "N", default_value_t = 1, requires = "draw", help_heading = RESEARCH)]
    pub seed: u64,
    /// Take the ops' seconds from the model of this profile/1 file; without it they are 0. One of a GPU asks for that GPU,
    /// whose libraries know their scratch
    #[arg(long, value_name = "PROFILE", conflicts_with = "device")]
    pub profile: Option<PathBuf>,
    /// Take the ops' seconds from the model of a device that is not here: k40, m40, gtx1080ti, v100, a100-40gb, rtx4090, h100
    /// or h200
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "the group is documented where it is defined")]
    pub kernels: KernelArgs,
    /// Where to write it: a path, or `-` for standard output, which is the default
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

/// Default number of passes over the data for a training in another tool.
pub(crate) const EXPORTED_EPOCHS: u64 = 20;

/// `export`
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// A config/1 file that `tune` or `auto` wrote, or the study's folder that holds it
    pub config: PathBuf,
    /// The tool
    #[arg(long, value_name = "TOOL", value_enum)]
    pub to: ToolArg,
    /// Workers that train together, each on a device of its own; by default those that were tuned for, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub workers: Option<u64>,
    /// Samples in an update, of all workers together; by default those that were tuned for with --workers, else about one tuned
    /// batch of each. More are accumulated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub global_batch: Option<u64>,
    /// Passes over the data that will be trained; the warm-up of an update of more than one batch takes at most a tenth of them
    #[arg(long, value_name = "N", default_value_t = EXPORTED_EPOCHS, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: u64,
    /// How the learning rate falls after the warm-up
    #[arg(long, value_enum, value_name = "SHAPE", default_value_t)]
    pub decay: DecayArg,
    /// The optimizer there; by default the one that was tuned for
    #[arg(long, value_enum, value_name = "NAME")]
    pub optimizer: Option<ToolOptimizerArg>,
    /// Momentum of SGD: the share of the old momentum that is kept; by default 0.9
    #[arg(long, value_name = "M", value_parser = values::momentum)]
    pub momentum: Option<f32>,
    /// Weight decay; by default 5e-4 with SGD, 1e-2 with AdamW where it was tuned for, and else the tool's own
    #[arg(long, value_name = "W", value_parser = values::weight_decay)]
    pub weight_decay: Option<f32>,
    /// The batch of the plan, for a runtime that follows the plan; by default the largest batch that keeps everything and
    /// shares the update out
    #[arg(long)]
    pub as_planned: bool,
    /// With --to safetensors: the file to write
    #[arg(short, long, value_name = "FILE", required_if_eq("to", "safetensors"))]
    pub output: Option<PathBuf>,
}

/// `config`
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// What to show
    #[command(subcommand)]
    pub what: ConfigVerb,
}

/// What `config` shows.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print what is set of a command's options, and where each value comes from
    Show(ConfigShowArgs),
    /// Print the JSON schema of plimsoll.toml, for editors
    Schema,
}

/// `config show`
#[derive(Clone, Debug, Args)]
pub struct ConfigShowArgs {
    /// Show the options that have their defaults, too
    #[arg(long)]
    pub all: bool,
    /// A command, with as many of its options as you like, such as `tune --budget 90%`; without one all commands
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `completions`
#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The shells that there are completions for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// `man`
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// A command, such as auto; without one the program
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
            let read = Cli::try_parse_from(example.split_whitespace());
            assert_eq!(read.map(|cli| cli.verb.name()).ok(), Some(command.get_name()), "{example}");
        }
    }
}
