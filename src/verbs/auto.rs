//! `auto`: measures, tunes, trains and compares with the prediction. What the study's folder holds of the same task is used.

use crate::args::AutoArgs;
use crate::failure::Failure;
use crate::naming;
use crate::output::{Cell, Table};
use crate::ran::beyond_stated;
use crate::report::study::Tuned;
use crate::study::Study;
use crate::task::{Setup, Task};
use crate::training::{Manner, Trained, train};
use crate::tuning::{TuneRequest, least, tune};
use crate::verbs::profile::{exact, how_known, in_words, largest, measure};
use crate::verbs::report;
use crate::verbs::tune::{choice, figures, keep, rule_in_words};
use plimsoll_ir::Seconds;
use plimsoll_ir::config::{Config, GpuKernels, LearningRateRule};
use plimsoll_ir::schedule::{Link, Schedule};

/// Runs the verb.
pub fn run(args: &AutoArgs, quiet: bool) -> Result<Vec<Table>, Failure> {
    let task = Task::new(&args.network, &args.data, Setup::new(&args.device)?)?;
    let task = task.within(args.search.host_memory)?;
    let fresh = args.study.fresh;
    let study = naming::study(&task, &args.study, &args.search, &args.rate, &args.train)?;
    let budget = task.budget_in(&study, fresh, args.search.budget, least(&args.search, &args.rate))?;
    let request = TuneRequest::new(budget, &args.search, &args.rate, args.train.epochs);
    let batches = request.min_batch..=request.limit(&task)?;
    let largest = largest(&task, budget, &batches, quiet)?;
    study.make()?;
    let held = study.lock()?;
    study.are_ours(&study.files())?;
    let mut tables = Vec::new();
    let known = if fresh { None } else { earlier(&study, &task, &request)? };
    let (config, schedule) = match known {
        Some((config, schedule)) => {
            task.keep_architecture(&study, fresh)?;
            tracing::info!("using the choice in {}; --fresh makes a new one", study.config().display());
            tables.push(kept_choice(&config));
            (config, schedule)
        }
        None => {
            let trained = vec![study.journal(), study.profile(), study.checkpoint()];
            let forgotten = fresh.then(|| [trained, study.choice()].concat());
            let mut profile = measure(&task, budget, largest, &study, forgotten.as_deref(), quiet)?;
            let tuned = tune(&task, &mut profile, &request, &study, quiet)?;
            keep(&study, &held, &tuned, &profile)?;
            tables.extend([choice(&tuned), figures(&tuned)]);
            (tuned.config, tuned.schedule)
        }
    };
    if task.setup.model().is_some() {
        tracing::warn!("{}: the study is tuned and reported, and nothing is trained", config.device);
        tables.push(report::write(&Tuned::read(&study)?.report()?, &study.report())?);
        return Ok(tables);
    }
    let manner = Manner { fresh, timed: false, tunes: true, quiet };
    let trained = train(&task, &config, &schedule, &args.train, &study, &held, manner)?;
    if trained.iterations > trained.resumed_at {
        beyond_stated(trained.iteration, &config.predicted).inspect(|words| {
            tracing::warn!(
                "an iteration took {words}; --fresh measures and trains anew, with --study DIR in another folder"
            );
        });
    }
    tables.push(outcome(&task, &config, &trained, &study));
    tables.extend(report::after_training(&study, &trained)?);
    Ok(tables)
}

/// The choice that the study holds, where it was made for this very task.
fn earlier(
    study: &Study,
    task: &Task,
    request: &TuneRequest<'_>,
) -> Result<Option<(Config, Schedule)>, Failure> {
    if !study.config().exists() {
        return Ok(None);
    }
    let (config, schedule) = study.chosen()?;
    let rate = &config.learning_rate;
    let rate_of = |rule, batch: u64, rate: f64| {
        let rule = match rule {
            LearningRateRule::Linear => "linear".to_owned(),
            LearningRateRule::SquareRoot => "square root".to_owned(),
            LearningRateRule::Accudnn { convexity } => format!("AccUDNN eq. (9), c = {convexity}"),
        };
        format!("{rule}, from {rate} at batch {batch}")
    };
    let device = |name: &str, threads: u32| format!("{name} with {threads} threads");
    let pace = |link: Option<Link>| {
        link.map_or("as fast as it goes".to_owned(), |l| {
            let (out, back) = (l.offload_bytes_per_second.0, l.prefetch_bytes_per_second.0);
            format!("{out} B/s out, {back} B/s back, {:?} duplex, {} each", l.duplex, l.latency_seconds)
        })
    };
    let kernels = |kernels: Option<GpuKernels>| {
        kernels.map_or("none".to_owned(), |k| {
            let GpuKernels { libraries, tf32, deterministic } = k;
            format!("libraries {libraries}, TF32 {tf32}, deterministic {deterministic}")
        })
    };
    // A choice holds for a host as large as it needs.
    let swapped = schedule.host_bytes(&task.trace(config.batch)?);
    let fits = task.host_limit().is_none_or(|limit| swapped <= limit);
    let host = task.host_limit().filter(|_| !fits).unwrap_or(swapped);
    let limit = request.limit(task)?;
    let data = task.source.as_ref().map_or_else(String::new, ToString::to_string);
    let (least, batch) = (request.min_batch, config.batch);
    let batches =
        if (least..=limit).contains(&batch) { batch.to_string() } else { format!("{least} to {limit}") };
    let compared = [
        ("network", in_words(&config.network), in_words(&task.network.spec)),
        // A config of an older version does not say.
        ("data", config.data.clone().unwrap_or_else(|| data.clone()), data),
        (
            "device",
            device(&config.device, config.threads),
            device(&task.setup.facts()?.name, task.setup.threads()),
        ),
        // Without a number it follows from the network and the device.
        ("budget", exact(config.budget_bytes), exact(request.budget)),
        ("host memory", exact(swapped), exact(host)),
        ("pace of the link", pace(config.paced), pace(task.setup.link())),
        ("choice of kernels", kernels(config.kernels), kernels(task.setup.kernels())),
        ("search", config.policy.clone(), request.policy().to_string()),
        ("batch", batch.to_string(), batches),
        (
            "learning rate",
            rate_of(rate.rule, rate.base_batch, rate.base_rate),
            rate_of(request.rule(), request.rate.base_batch, request.rate.base_rate),
        ),
    ];
    study.is_of("the choice for", &compared)?;
    Ok(Some((config, schedule)))
}

/// The choice that an earlier run made and measured.
fn kept_choice(config: &Config) -> Table {
    let measured = config.measured.as_ref();
    Table::facts(
        "choice",
        vec![
            ("network", "network", config.network.in_words().into()),
            ("times", "times", how_known(config.modelled, config.modelled_error).into()),
            ("budget_bytes", "budget", config.budget_bytes.into()),
            ("batch", "batch", config.batch.into()),
            ("learning_rate", "learning rate", Cell::learning_rate(config.learning_rate.rate)),
            ("learning_rate_rule", "by", rule_in_words(&config.learning_rate).into()),
            (
                "predicted_iteration_seconds",
                "iteration, predicted",
                config.predicted.iteration_seconds.into(),
            ),
            ("iteration_seconds", "measured when tuned", measured.map(|m| m.iteration_seconds).into()),
        ],
    )
}

/// What training gave, predicted beside measured.
fn outcome(task: &Task, config: &Config, trained: &Trained, study: &Study) -> Table {
    let trained_now = trained.iterations > trained.resumed_at;
    let measured = |cell: Cell| if trained_now { cell } else { Cell::None };
    let epoch = (trained.iteration + trained.between) * (task.samples() as f64 / config.batch as f64);
    let predicted = &config.predicted;
    let off = |measured: Seconds, predicted: Seconds| Cell::Share(measured / predicted - 1.0);
    Table::facts(
        "training",
        vec![
            ("iterations", "iterations", trained.iterations.into()),
            ("predicted_iteration_seconds", "iteration, predicted", predicted.iteration_seconds.into()),
            ("iteration_seconds", "iteration, measured in training", measured(trained.iteration.into())),
            ("iteration_off", "off", measured(off(trained.iteration, predicted.iteration_seconds))),
            ("predicted_epoch_seconds", "epoch, predicted", predicted.epoch_seconds.into()),
            ("epoch_seconds", "epoch, measured in training", measured(epoch.into())),
            ("predicted_peak_bytes", "peak, predicted", predicted.peak_bytes.into()),
            ("peak_bytes", "peak, allocated", trained.peak.into()),
            ("loss", "loss of the last epoch", measured(Cell::Number(f64::from(trained.loss), 4))),
            ("test_loss", "test loss", Cell::Number(trained.test.loss, 4)),
            ("test_accuracy", "test accuracy", Cell::Share(trained.test.accuracy())),
            ("test_samples", "on held-out samples", trained.test.samples.into()),
            ("study", "kept in", study.folder().display().to_string().into()),
        ],
    )
}
