//! What the errors of a job mean for the user: the exit code, and what to do, in words of the command line.

use super::{Exit, Failure};
use plimsoll_ir::{Bytes, Fault};
use plimsoll_networks::NetworkError;
use plimsoll_profiler::ProfileError;
use plimsoll_runtime::{CudaError, DeviceError, GroupError, Instead, MemoryKind, RuntimeError};
use plimsoll_study::error::DataError;
use plimsoll_study::error::ExportError;
use plimsoll_study::error::SetupError;
use plimsoll_study::error::TuneError;
use plimsoll_study::error::WeightsError;
use plimsoll_study::error::{Doing, FileError};
use plimsoll_study::error::{Iteration, WorkloadError};
use plimsoll_study::error::{Retune, StudyError};
use plimsoll_study::error::{Saved, TrainError};
use plimsoll_study::network_workload::unbudgeted;
use plimsoll_study::{Error, Stopped};
use plimsoll_tuner::model::{FitError, UnknownOp};
use plimsoll_tuner::rate::RateError;
use plimsoll_tuner::{PlanError, Witness};
use std::io;

/// What to do where tuning was stopped.
const GOES_ON: &str = "the same command goes on from the profile";

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::File(error) => of_file(&error),
            Error::Study(error) => of_study(&error),
            Error::Network(error) => of_network(&error),
            Error::Data(error) => of_data(&error),
            Error::Setup(error) => of_setup(&error),
            Error::Cuda(error) => Failure::new(Exit::Device, cuda_error(&error)),
            Error::Workload(error) => of_workload(&error),
            Error::Plan(error) => of_plan(&error),
            Error::Profile(error) => of_profile(&error),
            Error::Fit(error) => Failure::usage(error),
            Error::UnknownOp(error) => Failure::usage(error),
            Error::Rate(error) => Failure::usage(error),
            Error::Tune(error) => of_tuning(&error),
            Error::Train(error) => of_training(*error),
            Error::Weights(error) => of_weights(&error),
            Error::Export(error) => of_export(&error),
            Error::Runtime(error) => of_runtime(&error),
            Error::NoRoomForState { source, state } => of_runtime(&source).help(format_args!(
                "{state} of it are for two copies of the state, which a device that fails cannot take along; \
                 --save-every 5min writes the state to its file that often, and takes none of it"
            )),
            Error::Invalid { .. } => Failure::new(Exit::Verification, error),
            Error::Stopped(stopped) => of_stopped(&stopped),
            Error::Bug(words) => Failure::new(Exit::Internal, words),
        }
    }
}

macro_rules! through_error {
    ($($kind:ty),* $(,)?) => {
        $(impl From<$kind> for Failure {
            fn from(error: $kind) -> Failure {
                Error::from(error).into()
            }
        })*
    };
}

through_error!(
    CudaError,
    DataError,
    ExportError,
    FileError,
    FitError,
    NetworkError,
    PlanError,
    ProfileError,
    RateError,
    RuntimeError,
    SetupError,
    StudyError,
    WeightsError,
    WorkloadError,
    TrainError,
    TuneError,
    UnknownOp,
);

fn of_file(error: &FileError) -> Failure {
    let failure = Failure::usage(error);
    let (doing, source) = match error {
        FileError::Io { doing, source, .. } => (doing, source),
        FileError::Damaged { list, .. } => {
            return failure.help(format_args!(
                "put the file back as it was, or remove its line from {} if you changed it yourself",
                list.display()
            ));
        }
        FileError::List { .. } => {
            return failure.help("remove that line; the file that it was of is then taken as it is");
        }
        FileError::OfStudy(_) => return failure.help("name another output"),
        FileError::Document { .. } | FileError::NotText { .. } | FileError::Input(_) => return failure,
    };
    match source.kind() {
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            failure.help("a file stands where a folder should be; choose another path")
        }
        io::ErrorKind::IsADirectory => failure.help("it is a folder; name a file in it"),
        io::ErrorKind::NotFound => failure.help("check the path; the folder must exist"),
        io::ErrorKind::PermissionDenied if *doing == Doing::Read => {
            failure.help("you may not read it: see to its permissions and those of the folders that it is in")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            failure.help("choose a folder that you may write to")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            failure.help("free some space, or choose a folder on another disk")
        }
        io::ErrorKind::FileTooLarge => {
            failure.help("raise the size that files of this process may have (`ulimit -f`)")
        }
        _ => failure,
    }
}

/// How a study comes to a whole choice.
fn tune_again(retune: &Retune) -> String {
    let folder = retune.folder.display();
    if retune.holds_training {
        return format!(
            "{folder} holds a training: tune into another folder with `plimsoll tune --study DIR`"
        );
    }
    format!("run `plimsoll tune --study {folder}` with its other options; what was measured is used again")
}

fn of_study(error: &StudyError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        StudyError::File(error) => of_file(error),
        StudyError::Missing(_) | StudyError::NotTuned { measured: false, .. } => {
            failure.help("name a study's folder, as `plimsoll auto` and `plimsoll tune` make it")
        }
        StudyError::Foreign(_) => {
            failure.help("move it elsewhere, or choose another folder with --study DIR")
        }
        StudyError::NotTuned { retune, .. } => {
            failure.help(format_args!("it was measured and not tuned yet: {}", tune_again(retune)))
        }
        StudyError::Incomplete { retune, .. } | StudyError::Mixed { retune, .. } => {
            failure.help(tune_again(retune))
        }
        StudyError::Document { source, retune } => of_document(source, retune),
        StudyError::OfAnother(other_task) => {
            let other = "choose another folder with --study DIR, or leave --study out, which takes the one of just \
                         these options";
            failure.help(if other_task.retune.holds_training {
                format!("{other}; --fresh would forget the training there, too")
            } else {
                format!("{other}; or start anew with --fresh")
            })
        }
        StudyError::HoldsTraining(_) => {
            failure.help("choose another folder with --study DIR, or remove its training.safetensors")
        }
        StudyError::InUse(_) => failure.help("wait for its end, or take another folder"),
    }
}

/// A document of a study that cannot be used.
fn of_document(source: &FileError, retune: &Retune) -> Failure {
    let (failure, again) = (of_file(source), tune_again(retune));
    match source {
        FileError::Document { fault, .. } if matches!(**fault, Fault::OtherKind { .. }) => failure.help(
            format_args!("it was written by another version of Plimsoll; read it with that, or {again}"),
        ),
        FileError::Damaged { .. } => {
            let help = failure.help.clone().unwrap_or_default();
            failure.help(format_args!("{help}; or {again}"))
        }
        FileError::Document { .. } | FileError::NotText { .. } => failure.help(again),
        _ => failure,
    }
}

fn of_network(error: &NetworkError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        NetworkError::UnknownName { .. } => failure.help("`plimsoll networks` lists all that there are"),
        _ => failure,
    }
}

fn of_data(error: &DataError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        DataError::Images { .. } => failure.help("choose --data text, text:FILE, tokens:FILE or synthetic"),
        DataError::Texts { .. } => {
            failure.help("choose other --data; texts are for networks such as lstm or gpt-tiny")
        }
        DataError::Shape { .. } => {
            failure.help("leave --image, --channels and --classes out, or choose other --data")
        }
        DataError::Labels { .. } => failure.help("choose --data synthetic, which has as many as are learned"),
        DataError::TextWidth { length, .. } => failure
            .help(format_args!("give --image {length}x1 for texts of {length} characters, or leave it out")),
        DataError::Order { .. } => failure.help("choose fewer with --data synthetic:SAMPLES"),
    }
}

fn of_setup(error: &SetupError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        SetupError::Threads { cores, .. } => {
            failure.help(format_args!("give at most {cores} with --threads, or leave --threads out"))
        }
        SetupError::Precision { .. } => failure.help("leave --precision out: its default is f32 there"),
        SetupError::TooFewGpus { .. } => Failure::new(Exit::Device, error).help(
            "start at most as many workers on a machine as it has GPUs; --global-batch N gives an update of N samples on any \
             number of them",
        ),
        SetupError::OtherGpu { .. } => Failure::new(Exit::Device, error)
            .help("let the workers see GPUs of one kind only, by CUDA_VISIBLE_DEVICES"),
        SetupError::NcclWithoutGpu => failure.help("leave --nccl out, or choose --device cuda"),
        SetupError::NothingRuns { .. } => Failure::new(Exit::Device, error).help(
            "`profile`, `tune`, `auto` and `trace` say what it would take; to train, tune with --device cpu or cuda",
        ),
    }
}

fn of_workload(error: &WorkloadError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        WorkloadError::Budget { processor: true, .. } => {
            failure.help("lower --budget; to plan for a larger device, model one with --device")
        }
        WorkloadError::Budget { processor: false, .. } => {
            failure.help("lower --budget, or choose another --device")
        }
        WorkloadError::HostMemory { .. } => failure
            .help("lower --host-memory; to plan for another machine, model a device of it with --device"),
        WorkloadError::NoPlan { trace, budget, witness, largest, host_limited } => {
            let raise = match (witness.why.is_of_host(), host_limited) {
                (true, true) => "raise --budget or --host-memory",
                _ => "raise --budget",
            };
            let failure = Failure::new(Exit::NoPlan, error);
            match largest {
                None => failure.help(what_would_fit(trace, *budget, witness)),
                Some(None) => failure.help(format_args!("no batch fits; {raise}")),
                Some(Some(batch)) => {
                    failure.help(format_args!("the largest batch that fits is {batch}; or {raise}"))
                }
            }
        }
        WorkloadError::NoBatch => Failure::new(Exit::NoPlan, error).help("raise --budget"),
    }
}

/// What to do where nothing fits. A trace knows only its own batch; what is not resident is taken to be proportional to it.
fn what_would_fit(trace: &Iteration, budget: Bytes, witness: &Witness) -> String {
    let Iteration { batch, resident, .. } = trace;
    if witness.why.is_of_host() {
        return raise_host_memory(witness);
    }
    let room = budget.saturating_sub(*resident).0 as f64;
    let needs = witness.needs.saturating_sub(*resident).0 as f64;
    let fits = (*batch as f64 * room / needs) as u64;
    if budget <= *resident {
        format!("raise --budget: {resident} stay on the device at any batch")
    } else if fits == 0 && witness.why.is_proved() {
        "raise --budget: not even one sample fits".to_owned()
    } else if fits == 0 {
        "raise --budget: no plan was found for one sample, which does not prove that there is none".to_owned()
    } else {
        format!("raise --budget, or lower the batch to about {fits}")
    }
}

/// What to do where the host has too little memory.
pub fn raise_host_memory(witness: &Witness) -> String {
    let about = if witness.why.is_proved() { "at least" } else { "about" };
    let needs = witness.needs;
    format!(
        "raise --host-memory to {about} {needs}, or raise --budget or lower the batch, so that less is swapped"
    )
}

fn of_plan(error: &PlanError) -> Failure {
    let exit = match error {
        PlanError::Unrelated { .. } => {
            return Failure::new(Exit::Usage, error).help("leave --from out, so that the plan is made anew");
        }
        PlanError::Trace(_)
        | PlanError::Link { .. }
        | PlanError::Budget(_)
        | PlanError::TooLarge { .. }
        | PlanError::Earlier { .. } => Exit::Usage,
        PlanError::Lowering { .. } | PlanError::Invalid { .. } => Exit::Internal,
    };
    Failure::new(exit, error)
}

fn of_profile(error: &ProfileError) -> Failure {
    let exit = match error {
        ProfileError::Interrupted => Exit::Interrupted,
        ProfileError::Noisy { .. } => Exit::Noisy,
        ProfileError::NoRoom { .. } => Exit::NoPlan,
        ProfileError::Runtime(_) | ProfileError::Subject { .. } => Exit::Internal,
        ProfileError::OtherStudy { .. } | ProfileError::Damaged { .. } => {
            return Failure::usage(format_args!("{error} with --fresh"));
        }
        ProfileError::Batches { .. } | ProfileError::InUse { .. } | ProfileError::Journal { .. } => {
            Exit::Usage
        }
    };
    Failure::new(exit, error)
}

fn of_weights(error: &WeightsError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        WeightsError::File(error) => of_file(error),
        WeightsError::Foreign { .. } => failure
            .help("save the weights with safetensors.torch.save_file, or with `plimsoll export --to safetensors`"),
        WeightsError::Other { .. } => failure.help(
            "tensors have the names of the network's layers, which `plimsoll networks NAME` lists, and PyTorch's shapes, in \
             f32; rename or convert them in the file",
        ),
        WeightsError::NotFinite { .. } => failure.help("a training cannot start from it; take other weights"),
        WeightsError::OtherNetwork { .. } => failure.help("export the study that the training was made in"),
    }
}

fn of_tuning(error: &TuneError) -> Failure {
    match error {
        TuneError::NoBatch { .. } => Failure::usage(error)
            .help("lower --min-batch, which is the base batch by default, or raise --max-batch"),
        TuneError::Unreachable { host, .. } => {
            let raise = host.map_or("--budget", |_| "--budget or --host-memory");
            Failure::new(Exit::NoPlan, error).help(format_args!("raise {raise}, or lower --min-batch"))
        }
        TuneError::NothingToExchange => Failure::usage(error).help("leave --workers out"),
        TuneError::NoShare { .. } => Failure::usage(error)
            .help("choose a --global-batch with more divisors, fewer --workers, or another --min-batch or --max-batch"),
        TuneError::TooFewSamples { .. } => {
            Failure::usage(error).help("lower --global-batch, --workers or --min-batch, or choose other --data")
        }
        TuneError::NoAlgorithm2 { .. } => Failure::new(Exit::NoPlan, error)
            .help("raise --budget, lower --min-batch, or leave out --search accudnn"),
        TuneError::NoPlan { .. } => Failure::new(Exit::NoPlan, error),
        TuneError::Unexpected(_) => Failure::new(Exit::Internal, error),
    }
}

fn of_export(error: &ExportError) -> Failure {
    let failure = Failure::usage(error);
    match error {
        ExportError::Workers(_) | ExportError::Rate(_) => failure,
        ExportError::Momentum => {
            Failure::usage("--momentum is for --optimizer sgd")
                .help("leave --momentum out, or add --optimizer sgd")
        }
        ExportError::Steps => failure.help("ask for --decay cosine or --decay constant"),
        ExportError::NothingKept { .. } => failure.help(
            "tune with a larger --budget, or export the plan's own batch with --as-planned, for a runtime that \
             follows the plan",
        ),
        ExportError::NotShared { below, above, .. } => {
            let below = below.map_or(String::new(), |below| format!("{below} and "));
            failure.help(format_args!("the nearest that are: {below}{above}; or choose other --workers"))
        }
        ExportError::TooLarge { .. } => failure.help("lower --global-batch or --workers"),
    }
}

fn of_runtime(error: &RuntimeError) -> Failure {
    let exit = match error {
        RuntimeError::Schedule(_) => Exit::Verification,
        RuntimeError::Device(DeviceError::OutOfRange { .. }) | RuntimeError::Draw { .. } => Exit::Internal,
        RuntimeError::Group(GroupError::Different { .. }) => Exit::Usage,
        RuntimeError::Device(_) | RuntimeError::Group(_) => Exit::Device,
        RuntimeError::Mismatch { .. }
        | RuntimeError::Data { .. }
        | RuntimeError::Checkpoint { .. }
        | RuntimeError::Overflowed { .. }
        | RuntimeError::Diverged { .. } => Exit::Usage,
    };
    let failure = Failure::new(exit, error);
    match error {
        RuntimeError::Device(DeviceError::OutOfMemory { what: MemoryKind::Device, available, .. }) => failure
            .help(match unbudgeted(*available) {
                Bytes::ZERO => "end what else is on the GPU; `plimsoll doctor` shows it".to_owned(),
                fits => format!(
                    "--budget {}MiB fits now; or end what else is on the GPU, which `plimsoll doctor` shows",
                    fits.0 >> 20
                ),
            }),
        RuntimeError::Device(DeviceError::Full { .. } | DeviceError::NotPinned { .. }) => {
            failure.help("--budget sets the budget")
        }
        RuntimeError::Device(DeviceError::NotTogether { .. }) => failure.help(
            "where it stays so, tune without --nccl into another folder, so that the workers' hosts sum",
        ),
        _ => failure,
    }
}

/// A device that is not there, with the options that do without what it lacks.
pub fn cuda_error(error: &CudaError) -> String {
    match error.instead() {
        Some(Instead::Cpu) => format!("{error}, or choose --device cpu"),
        Some(Instead::Hosts) => format!("{error}; or tune without --nccl, so that the workers' hosts sum"),
        None => error.to_string(),
    }
}

fn of_training(error: TrainError) -> Failure {
    match error {
        TrainError::OtherIteration { ref retune, .. } => Failure::new(Exit::Verification, &error).help(
            format_args!(
                "where another version tuned {}, go on with that one, or tune into another folder with `plimsoll tune --study \
                 DIR`",
                retune.folder.display()
            ),
        ),
        TrainError::OtherOptimizer { asked, .. } => Failure::usage(&error).help(format_args!(
            "leave --optimizer out, or tune into another folder with `plimsoll tune --study DIR --optimizer {asked}`"
        )),
        TrainError::OverBudget { ref retune, .. } => Failure::new(Exit::Verification, &error).help(
            format_args!("put the schedule back that was chosen with the config, or {}", tune_again(retune)),
        ),
        TrainError::NoDraws { .. } => Failure::usage(error)
            .help("leave --per-draw out, or tune a network with stochastic depth such as resnet-sd110"),
        TrainError::DrawsOfUpdate { .. } => {
            Failure::usage(error).help("leave --per-draw out, or --workers and --global-batch")
        }
        TrainError::TooFewSamples { .. } => Failure::usage(error)
            .help("choose other --data, lower --global-batch or --workers, or tune anew for these data"),
        TrainError::NotShared { global, batch } => {
            let below = global / batch * batch;
            let (above, below) = (below.saturating_add(batch), (below > 0).then(|| format!("{below} and ")));
            Failure::usage(error)
                .help(format_args!("the nearest that are: {}{above}", below.unwrap_or_default()))
        }
        TrainError::TooManyWorkers { earlier, .. } => Failure::usage(&error).help(if earlier {
            "the training that goes on has updates of that size: lower --workers, or start anew with --fresh"
        } else {
            "lower --workers, or raise --global-batch"
        }),
        TrainError::NoThread { .. } => Failure::new(Exit::Device, &error).help("lower --workers"),
        TrainError::Worker { rank, source, saved, lost } => {
            let Failure { exit, .. } = of_runtime(&source);
            // What the others say of a worker names it.
            let message = match &source {
                RuntimeError::Group(error) => error.to_string(),
                own => format!("worker {rank}: {own}"),
            };
            Failure::new(exit, message).help(kept(&saved, lost.as_ref()))
        }
        TrainError::Data { source, saved, lost } => of_runtime(&source).help(kept(&saved, lost.as_ref())),
        TrainError::CannotKeep(source) => {
            of_runtime(&source).help("nothing was trained: the training's state could not be kept")
        }
        TrainError::Unreadable(source) => {
            of_runtime(&source).help("put the file back as it was, or start anew with --fresh")
        }
        TrainError::OtherTraining(source) => {
            of_runtime(&source).help("train with the same options, or start anew with --fresh")
        }
        TrainError::Device { source, saved, lost } => of_runtime(&source).help(kept(&saved, lost.as_ref())),
        TrainError::NotSaved { source, step, saved } => of_runtime(&source)
            .help(format_args!("the state after {step} iterations is not kept: {}", holds(&saved))),
        TrainError::Diverged { .. } => of_diverged(error, false),
    }
}

/// What a training failed with, of a command that chose the learning rate, too, and can choose another, or of one that did not.
pub fn of_trained(error: Error, tunes: bool) -> Failure {
    match error {
        Error::Train(error) if matches!(*error, TrainError::Diverged { .. }) => of_diverged(*error, tunes),
        other => other.into(),
    }
}

/// A training that diverged: it has to begin anew, with a lower rate.
fn of_diverged(error: TrainError, tunes: bool) -> Failure {
    let TrainError::Diverged { source, base_rate, folder, saved } = error else { return of_training(error) };
    let kept = saved.step.map_or_else(String::new, |step| {
        let (total, path) = (saved.total, saved.path.display());
        format!("; the state after {step} of {total} iterations stays in {path} until then")
    });
    // A tenth, to three digits.
    let tenth: f64 = format!("{:.2e}", base_rate / 10.0).parse().expect("it is a number");
    let (lower, folder) = (format!("--base-rate {tenth}, where it was {base_rate}"), folder.display());
    of_runtime(&source).help(if tunes {
        format!("start anew with a lower rate: the same command with --fresh and such as {lower}{kept}")
    } else {
        format!(
            "start anew with a lower rate: tune into another folder with `plimsoll tune --study DIR`, its other options and \
             such as {lower}; or change learning_rate.rate in a config of your own beside that of {folder}, and run that \
             with --fresh{kept}"
        )
    })
}

/// What a training's file holds, and how to go on from it.
fn holds(saved: &Saved) -> String {
    let Saved { path, step, host, total, .. } = saved;
    match step {
        Some(step) => {
            let place = host.as_ref().map_or_else(String::new, |host| {
                format!(" on {host}, and worker 0 needs this file in its own study's folder")
            });
            let path = path.display();
            format!("the state after {step} of {total} iterations is kept in {path}{place}; {}", again(saved))
        }
        None => "nothing was saved yet; the same command begins anew".to_owned(),
    }
}

/// The same, and why the newest state is not in it, where that was lost.
fn kept(saved: &Saved, lost: Option<&impl std::fmt::Display>) -> String {
    let Some(why) = lost else { return holds(saved) };
    format!("{}; the newest state was lost: {why}", holds(saved))
}

/// How to go on from what is kept.
fn again(saved: &Saved) -> &'static str {
    if saved.fresh {
        "the same command without --fresh goes on from there"
    } else {
        "the same command goes on from there"
    }
}

fn of_stopped(stopped: &Stopped) -> Failure {
    let failure = Failure::new(Exit::Interrupted, stopped);
    match stopped {
        Stopped::Searching | Stopped::Confirming | Stopped::Comparing { tuning: true } => {
            failure.help(GOES_ON)
        }
        Stopped::Comparing { tuning: false } => failure,
        Stopped::Training(saved) | Stopped::Testing { saved, .. } => failure.help(again(saved)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each machine may have a folder of its own.
    #[test]
    fn a_state_that_another_machine_keeps_is_said_with_its_name() {
        let path = "digits/training.worker-1.safetensors".into();
        let (step, host) = (Some(7), Some("second".to_owned()));
        let mut saved = Saved { path, step, host, total: 10, fresh: true };
        let kept = "the state after 7 of 10 iterations is kept in digits/training.worker-1.safetensors";
        let of_second = format!(
            "{kept} on second, and worker 0 needs this file in its own study's folder; \
             the same command without --fresh goes on from there"
        );
        assert_eq!(holds(&saved), of_second);
        saved.host = None;
        assert_eq!(holds(&saved), format!("{kept}; the same command without --fresh goes on from there"));
    }

    #[test]
    fn what_diverged_begins_anew_with_a_lower_rate_in_the_way_of_its_command() {
        let diverged = || {
            let saved = Saved {
                path: "digits/training.safetensors".into(),
                step: Some(7),
                host: None,
                total: 10,
                fresh: false,
            };
            let source = RuntimeError::Diverged { step: 8, loss: f32::NAN };
            Error::from(TrainError::Diverged { source, base_rate: 0.05, folder: "digits".into(), saved })
        };
        let help = |tunes| of_trained(diverged(), tunes).help.expect("it says what to do");
        let of_auto = help(true);
        assert!(of_auto.contains("the same command with --fresh and such as --base-rate 0.005"), "{of_auto}");
        let of_run = help(false);
        for part in [
            "`plimsoll tune --study DIR`",
            "--base-rate 0.005, where it was 0.05",
            "beside that of digits",
            "the state after 7 of 10 iterations stays in digits/training.safetensors until then",
        ] {
            assert!(of_run.contains(part), "{part} in: {of_run}");
        }
    }
}
