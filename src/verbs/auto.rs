//! `auto`: measures, tunes, trains and compares with the prediction, reusing what the study's folder holds of the
//! same workload. The Python package runs Python scripts.

use crate::args::{AutoArgs, command_line};
use crate::interrupt;
use crate::output::{Cell, Facts, Format, Table};
use crate::progress::watched;
use crate::verbs::report;
use crate::verbs::script::Script;
use crate::verbs::tune::{choice, cluster, figures, head};
use plimsoll_ir::Seconds;
use plimsoll_ir::config::Config;
use plimsoll_runtime::group::threads;
use plimsoll_study::error::Cause;
use plimsoll_study::report::{Tuned, rule_in_words};
use plimsoll_study::request::TrainRequest;
use plimsoll_study::training::Trained;
use plimsoll_study::tuning::missed;
use plimsoll_study::{Chosen, Error, NetworkWorkload, Study, Watch, Workload};

/// Runs the verb.
pub fn run(args: &AutoArgs, format: Format, quiet: bool) -> Result<Vec<Table>, Error> {
    if let Some(script) = Script::asked(args, format, quiet)? {
        return Err(script.needs_python());
    }
    watched(quiet, |watch| run_watched(args, watch))
}

fn run_watched(args: &AutoArgs, watch: &Watch<'_>) -> Result<Vec<Table>, Error> {
    let (task, study, request) =
        args.tune.open(&args.study, &args.train, (command_line(), interrupt::hurry()), watch)?;
    let (chosen, held) = study.choose(&task, &request, watch)?;
    let mut tables = match &chosen {
        Chosen::Now(tuned) => vec![choice(tuned), figures(tuned)],
        Chosen::Earlier(config, _) => vec![kept_choice(config)],
    };
    let (config, schedule) = chosen.parts();
    let tuned = config.cluster.is_some().then(|| Tuned::read(&study)).transpose()?;
    tables.extend(cluster(config, tuned.as_ref().map(|tuned| &tuned.tuning)));
    if task.setup.model().is_some() {
        tracing::warn!("{}: the study is tuned and reported, and nothing is trained", config.device);
        tables.push(report::write(&Tuned::read(&study)?.report()?, &study.report())?);
        return Ok(tables);
    }
    let training = TrainRequest { fresh: args.study.fresh, ..args.train.clone() };
    let trained = study.train(&task, (config, schedule), &training, threads(1), &held, watch);
    // `auto` chose the learning rate, and can choose a different one.
    let trained = trained.map_err(|error| match error.cause.as_deref() {
        Some(Cause::Diverged { lower }) => {
            let help =
                format!("start anew with a lower rate: the same command with --fresh and such as {lower}");
            error.help(help)
        }
        _ => error,
    })?;
    let alone = trained.global_batch == config.batch;
    if trained.iterations > trained.resumed_at && alone {
        missed(trained.iteration, &config.predicted).inspect(|words| {
            tracing::warn!(
                "an iteration took {words}; --fresh measures and trains anew, with --study DIR in another folder"
            );
        });
    }
    tables.push(outcome(&task, config, &trained, &study));
    tables.extend(report::after_training(&study, &trained)?);
    Ok(tables)
}

/// Choice that an earlier run made and measured.
fn kept_choice(config: &Config) -> Table {
    let measured = config.measured.as_ref();
    let mut facts = head(config);
    facts.extend([
        ("learning_rate", "learning rate", Cell::learning_rate(config.learning_rate.rate)),
        ("learning_rate_rule", "by", rule_in_words(&config.learning_rate).into()),
        ("predicted_iteration_seconds", "iteration, predicted", config.predicted.iteration_seconds.into()),
        ("iteration_seconds", "measured when tuned", measured.map(|m| m.iteration_seconds).into()),
    ]);
    Table::facts("choice", facts)
}

/// Result of training, predicted and measured.
fn outcome(task: &NetworkWorkload, config: &Config, trained: &Trained, study: &Study) -> Table {
    let trained_now = trained.iterations > trained.resumed_at;
    let measured = |cell: Cell| if trained_now { cell } else { Cell::None };
    // This worker makes all passes of an update in turn; the cluster's prediction does not cover that.
    let alone = |cell: Cell| if trained.global_batch == config.batch { cell } else { Cell::None };
    let epoch = (trained.iteration + trained.between) * (task.samples() as f64 / trained.global_batch as f64);
    let predicted = &config.predicted;
    let off = |measured: Seconds, predicted: Seconds| Cell::Share(measured / predicted - 1.0);
    let facts: Facts = vec![
        ("iterations", "iterations", trained.iterations.into()),
        ("global_batch", "global batch", trained.global_batch.into()),
        ("predicted_iteration_seconds", "iteration, predicted", alone(predicted.iteration_seconds.into())),
        ("iteration_seconds", "iteration, measured in training", measured(trained.iteration.into())),
        ("iteration_off", "off", alone(measured(off(trained.iteration, predicted.iteration_seconds)))),
        ("predicted_epoch_seconds", "epoch, predicted", alone(predicted.epoch_seconds.into())),
        ("epoch_seconds", "epoch, measured in training", measured(epoch.into())),
        ("predicted_peak_bytes", "peak, predicted", predicted.peak_bytes.into()),
        ("peak_bytes", "peak, allocated", trained.peak.into()),
        ("loss", "loss of the last epoch", measured(Cell::Number(f64::from(trained.loss), 4))),
        ("test_loss", "test loss", Cell::Number(trained.test.loss, 4)),
        ("test_accuracy", "test accuracy", Cell::Share(trained.test.accuracy())),
        ("test_samples", "on held-out samples", trained.test.samples.into()),
        ("study", "kept in", study.folder().display().to_string().into()),
    ];
    Table::facts("training", facts)
}
