//! `run`: trains a tuned choice, and compares its cost with the prediction.

use crate::args::RunArgs;
use crate::files;
use crate::interrupt;
use crate::notes;
use crate::output::{Cell, Facts, Table};
use crate::processes;
use crate::progress::watched;
use crate::verbs::report;
use crate::verbs::tune::{optimizer_of, precision_of};
use plimsoll_ir::Seconds;
use plimsoll_ir::config::Config;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_networks::{Mode, build};
use plimsoll_runtime::HostMemory;
use plimsoll_runtime::group::mpi::{Launched, World};
use plimsoll_runtime::group::threads;
use plimsoll_study::data::{DataSource, of_network};
use plimsoll_study::device::{cores, gpu_of_worker, is_cpu, of_processor, processor};
use plimsoll_study::request::{TrainRequest, Workers, only};
use plimsoll_study::trace_events::TraceEvents;
use plimsoll_study::training::{Trained, of_optimizer};
use plimsoll_study::tuning::missed;
use plimsoll_study::values::DeviceChoice;
use plimsoll_study::{Error, NetworkWorkload, Setup, Study, Watch, Workload};
use plimsoll_tuner::model::Model;
use std::path::Path;
use std::time::Duration;

/// Runs the verb.
pub fn run(args: &RunArgs, quiet: bool) -> Result<Vec<Table>, Error> {
    if let Some(launched) = processes::several().filter(|_| args.workers != 1) {
        let Launched { launcher, workers, .. } = launched;
        let message = format!(
            "{launcher} has started {workers} workers, and --workers {} are threads of one process",
            args.workers
        );
        return Err(Error::usage(message).help("leave one of the two out"));
    }
    let world = processes::join(Duration::from_secs_f64(args.timeout.0))?;
    let quiet = quiet || processes::is_spoken_for();
    watched(quiet, |watch| run_watched(args, world, watch))
}

fn run_watched(args: &RunArgs, world: Option<&World>, watch: &Watch<'_>) -> Result<Vec<Table>, Error> {
    line_is_sound(args)?;
    // The lock is taken before the choice is read, so that no other run replaces it; all other errors are reported
    // before a lock held by another run.
    let held = (!processes::is_spoken_for()).then(|| Study::of_config(&args.config).0.lock());
    let (study, path, config, schedule) = Study::choice_of(&args.config)?;
    if config.modelled {
        return Err(Error::nothing_runs(config.device));
    }
    let tuned = config.optimizer;
    of_optimizer(tuned, args.optimizer.unwrap_or(tuned))?;
    args.train.update(tuned)?;
    let network = build(&config.network)?;
    let setup = setup_of(&config, args, watch)?;
    let source = source(args, &config, &path)?;
    let data = of_network(&source, &network)?;
    let task = NetworkWorkload::of(network, data, setup).map_err(|error| {
        error.help("leave --data out for what it was tuned on, or tune again with other --data")
    })?;
    let task = task.trained_by(tuned);
    if let Some(out) = &args.trace_out {
        study.is_not(out)?;
        for input in [&path, &study.folder().join(&config.schedule)] {
            files::not_the_same(input, out)?;
        }
    }
    let count = world.map_or(args.workers as usize, |world| world.facts().workers);
    let workers = Workers { count, global_batch: args.global_batch };
    let (fresh, timed) = (args.fresh, args.trace_out.is_some());
    let request = TrainRequest { workers, fresh, timed, ..args.train.clone() };
    let choice = (&config, &schedule);
    let held = held.transpose()?;
    if held.is_some() {
        // The other workers make theirs once they have met worker 0.
        notes::tell(&study)?;
    }
    let noted = world.map(|world| notes::keep(&study, world));
    let Some(held) = held else {
        let group = world.expect("another process speaks for it").group();
        study.work(&task, choice, &request, group, watch.stop).map_err(processes::noted)?;
        return Ok(Vec::new());
    };
    let groups = world.map_or_else(|| threads(count), |world| vec![world.group()]);
    let trained = study.train(&task, choice, &request, groups, &held, watch);
    drop(noted);
    let trained = trained.map_err(processes::noted)?;
    if trained.iterations > trained.resumed_at && trained.global_batch == config.batch {
        missed(trained.iteration, &config.predicted).inspect(|words| {
            tracing::warn!("an iteration took {words}; `plimsoll tune --study DIR`, in a new folder, measures and tunes anew");
        });
    }
    if path == study.config() {
        report::keep_training(&study, &trained);
    }
    if let (Some(path), Some(measured)) = (&args.trace_out, &trained.timeline) {
        events(&task, &config, &schedule, &study.profile(), measured)?.write(path)?;
        tracing::info!("{} opens in ui.perfetto.dev", path.display());
    }
    let predicted = predicted(&config, &trained, world.is_some());
    Ok(vec![table(&task, &config, &trained, predicted)])
}

/// Predicted time of a training's iteration; `None` if the number of workers differs from the tuned one, or if
/// threads replace processes connected by a network.
fn predicted(config: &Config, trained: &Trained, are_processes: bool) -> Option<Seconds> {
    if trained.global_batch == config.batch {
        return Some(config.predicted.iteration_seconds);
    }
    let cluster = config.cluster.filter(|_| are_processes)?;
    let is_tuned_for =
        (trained.workers as u64, trained.global_batch) == (cluster.workers, cluster.global_batch);
    // The exchange between two updates is measured separately.
    let known = config.measured.unwrap_or(config.predicted);
    is_tuned_for.then(|| cluster.update_seconds - known.between_seconds)
}

/// Checks everything that the line alone shows to be wrong, independent of the study.
fn line_is_sound(args: &RunArgs) -> Result<(), Error> {
    if let Some(DeviceChoice::Modelled(sheet)) = args.device {
        return Err(Error::nothing_runs(sheet.product));
    }
    if let Some(path) = args.data.as_ref().and_then(DataSource::path) {
        std::fs::metadata(path).map_err(|error| Error::io(path, "read", &error))?;
    }
    args.trace_out.iter().try_for_each(|out| files::can_be_made(out))
}

/// Training data: the data that the config was tuned on, or different data, which a notice reports.
fn source(args: &RunArgs, config: &Config, path: &Path) -> Result<DataSource, Error> {
    let tuned = config.data.as_deref();
    if let Some(given) = args.data.as_ref().map(DataSource::whole) {
        if let Some(tuned) = tuned.filter(|tuned| *tuned != given.to_string()) {
            tracing::warn!(
                "tuned on {tuned}, and training on {given}: batch, schedule and learning rate stay as they were \
                 chosen for {tuned}"
            );
        }
        return Ok(given);
    }
    let place = path.display();
    let tuned = tuned.ok_or_else(|| {
        Error::usage(format_args!("{place} does not say on what data it was tuned"))
            .help("name them with --data, such as --data digits")
    })?;
    let source: DataSource =
        tuned.parse().map_err(|error| Error::usage(format_args!("{place}: data `{tuned}`: {error}")))?;
    if let Some(file) = source.path()
        && let Err(error) = std::fs::metadata(file)
    {
        let message = format!("{place} was tuned on {tuned}, which cannot be read: {error}");
        return Err(Error::usage(message).help("say with --data where they are now"));
    }
    Ok(source)
}

/// The iteration as measured, and as predicted if the study holds its profile.
fn events(
    task: &NetworkWorkload,
    config: &Config,
    schedule: &Schedule,
    profile: &Path,
    measured: &Timeline,
) -> Result<TraceEvents, Error> {
    let mut trace = task.program(config.batch, Mode::Train)?.trace;
    let mut events = TraceEvents::default();
    if profile.exists() {
        let profile: Profile = files::read(profile)?;
        Model::fit(&profile)?.fill(&mut trace)?;
        events.add("predicted", &trace, schedule, &simulate(&trace, schedule));
    } else {
        tracing::warn!("without {} nothing is predicted", profile.display());
    }
    events.add("measured", &trace, schedule, measured);
    Ok(events)
}

/// The device as the config was tuned for it: scratch of its kernels is part of the schedule.
fn setup_of(config: &Config, args: &RunArgs, watch: &Watch<'_>) -> Result<Setup, Error> {
    let on_cpu = is_cpu(&config.device);
    match args.device.unwrap_or(if on_cpu { DeviceChoice::Cpu } else { DeviceChoice::Cuda(0) }) {
        DeviceChoice::Cpu if on_cpu && !args.no_graph => {
            let (threads, cores) = (config.threads, cores());
            if threads > cores {
                tracing::warn!(
                    "it was tuned for {threads} compute threads, and this process may use {cores} cores: iterations take \
                     longer than predicted; tune again for this machine"
                );
            }
            let feature_maps = of_processor(config.arithmetic())?;
            let (threads, hurry) = (Some(config.threads), interrupt::hurry());
            Ok(processor(threads, config.paced, feature_maps, &args.host, hurry, watch))
        }
        DeviceChoice::Cuda(ordinal) if !on_cpu => {
            let (ordinal, precision) = (of_process(ordinal)?, config.arithmetic());
            let tuned = format!("the config was tuned on `{}`", config.device);
            if args.host != HostMemory::Anonymous {
                return Err(only("--host file:PATH", "cpu").help(format_args!("leave --host out: {tuned}")));
            }
            Setup::cuda(ordinal, !args.no_graph, config.deterministic, precision)
                .map_err(|failure| failure.help(format_args!("{tuned}: for another --device, tune again")))
        }
        _ => Err(Error::usage(format_args!("the config was tuned on `{}`", config.device))
            .help("leave --device and --no-graph out, or tune again with that --device")),
    }
}

/// GPU of this process: the workers of a machine take its GPUs in order, beginning with the one named. A process that
/// sees only one GPU takes that one.
fn of_process(first: u32) -> Result<u32, Error> {
    let shows_one = std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|shown| !shown.contains(','));
    let Some(launched) = processes::several().filter(|_| !shows_one) else { return Ok(first) };
    let number = launched.on_machine.ok_or_else(|| {
        let launcher = launched.launcher;
        Error::usage(format_args!(
            "{launcher} does not number the workers of a machine, so none knows its GPU"
        ))
        .help("show each worker its own GPU by CUDA_VISIBLE_DEVICES")
    })?;
    if number == 0 { Ok(first) } else { Ok(gpu_of_worker(first, number)?) }
}

fn table(task: &NetworkWorkload, config: &Config, trained: &Trained, predicted: Option<Seconds>) -> Table {
    let epoch = |iteration: Seconds, between: Seconds| {
        Seconds((iteration + between).0 * task.samples() as f64 / trained.global_batch as f64)
    };
    let measured = trained.iterations > trained.resumed_at;
    let only_measured = |seconds: Seconds| if measured { seconds.into() } else { Cell::None };
    let mut facts: Facts = vec![
        ("network", "network", config.network.in_words().into()),
        ("precision", "precision", precision_of(config).into()),
    ];
    facts.extend(optimizer_of(config));
    facts.push(("batch", "batch", config.batch.into()));
    if trained.global_batch != config.batch {
        facts.push(("workers", "workers", (trained.workers as u64).into()));
        facts.push(("global_batch", "global batch", trained.global_batch.into()));
    }
    facts.extend([
        ("iterations", "iterations", trained.iterations.into()),
        ("resumed_at", "of them before this run", trained.resumed_at.into()),
        ("predicted_iteration_seconds", "iteration, predicted", predicted.into()),
        ("iteration_seconds", "iteration, measured", only_measured(trained.iteration)),
        ("epoch_seconds", "epoch, measured", only_measured(epoch(trained.iteration, trained.between))),
        ("peak_bytes", "peak", trained.peak.into()),
        ("learning_rate", "learning rate", Cell::learning_rate(trained.rate)),
        (
            "loss",
            "loss of the last epoch",
            if measured { Cell::Number(f64::from(trained.loss), 4) } else { Cell::None },
        ),
        ("test_loss", "test loss", Cell::Number(trained.test.loss, 4)),
        ("test_accuracy", "test accuracy", Cell::Share(trained.test.accuracy())),
    ]);
    Table::facts("run", facts)
}
