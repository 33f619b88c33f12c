//! `tune`: chooses batch size, placement and learning rate from a profile, confirms the choice by running it, and writes
//! it as a config and a schedule.

use crate::args::{TuneArgs, command_line};
use crate::interrupt;
use crate::output::{Cell, Facts, Table};
use crate::progress::watched;
use crate::verbs::profile::how_known;
use plimsoll_ir::Seconds;
use plimsoll_ir::config::{Cluster, Config, Figures, LearningRate};
use plimsoll_ir::tuning::{Run, Tuning};
use plimsoll_study::Error;
use plimsoll_study::report::{self, Workers, placement_in_words, rule_in_words};
use plimsoll_study::request::{TrainRequest, defaults};
use plimsoll_study::tuning::Tuned;
use plimsoll_tuner::rate;
use plimsoll_tuner::search::moved;

/// Runs the verb.
pub fn run(args: &TuneArgs, quiet: bool) -> Result<Vec<Table>, Error> {
    let (tuned, study) = watched(quiet, |watch| {
        let train = TrainRequest { epochs: args.epochs, ..defaults() };
        let (task, study, request) =
            args.tune.open(&args.study, &train, (command_line(), interrupt::hurry()), watch)?;
        Ok::<_, Error>((study.tune(&task, &request, watch)?, study))
    })?;
    let folder = study.folder().display();
    tracing::info!("`plimsoll report {folder}` shows all of it");
    let kept = Table::facts("study", vec![("study", "kept in", folder.to_string().into())]);
    let tables = [choice(&tuned), figures(&tuned), curve(&tuned)].into_iter();
    Ok(tables.chain(cluster(&tuned.config, Some(&tuned.tuning))).chain([kept]).collect())
}

/// First facts of every table of a choice.
pub fn head(config: &Config) -> Facts {
    let mut facts: Facts = vec![
        ("network", "network", config.network.in_words().into()),
        ("times", "times", how_known(config.modelled, config.modelled_error).into()),
        ("precision", "precision", precision_of(config).into()),
    ];
    facts.extend(optimizer_of(config));
    facts.extend([
        ("budget_bytes", "budget", config.budget_bytes.into()),
        ("batch", "batch", config.batch.into()),
    ]);
    facts
}

/// Optimizer, for a table; `None` for the default.
pub fn optimizer_of(config: &Config) -> Option<(&'static str, &'static str, Cell)> {
    let optimizer = config.optimizer;
    (!optimizer.is_usual()).then(|| ("optimizer", "optimizer", optimizer.to_string().into()))
}

/// Precision of convolutions and matrix products, for a table.
pub fn precision_of(config: &Config) -> Option<String> {
    config.arithmetic().map(|precision| precision.to_string())
}

/// The choice.
pub fn choice(tuned: &Tuned) -> Table {
    let config = &tuned.config;
    let rate = &config.learning_rate;
    let mut facts = head(config);
    facts.extend([
        ("keeper_batch", "largest batch that keeps everything", config.keeps_all.into()),
        ("largest_batch", "largest batch that can be trained", tuned.tuning.asked.largest.into()),
        ("why", "why", tuned.tuning.why.clone().into()),
        ("yours", "your own setting", yours(tuned).into()),
        ("placement", "placement", placement_in_words(&moved(&tuned.trace, &tuned.schedule)).into()),
        ("learning_rate", "learning rate", Cell::learning_rate(rate.rate)),
        ("learning_rate_rule", "by", rule_in_words(rate).into()),
        ("learning_rate_caution", "caution", caution(rate, config.batch).into()),
        ("warmup_iterations", "warm-up iterations", rate.warmup_iterations.into()),
    ]);
    facts.extend([("refits", "refits of the model", tuned.refits().into())]);
    Table::facts("choice", facts)
}

/// Description of the resource that is busy for most of an update.
pub fn busiest(workers: &Workers) -> Option<String> {
    let most = workers.resources.iter().max_by(|a, b| a.share.total_cmp(&b.share))?;
    Some(format!("{}, {:.0} % of the time", most.resource, most.share * 100.0))
}

/// Simulated facts of an update: time hidden by overlap, lower bound, and comparison with one worker.
fn simulated(workers: &Workers) -> Facts {
    let single = workers.single.as_ref();
    let times = single.map(|one| format!("{:.2} times, {} at batch {}", one.times, one.what, one.batch));
    vec![
        (
            "without_overlap_seconds",
            "update without overlap, simulated",
            Seconds(workers.without_overlap_seconds).into(),
        ),
        ("bound_seconds", "lower bound of an update, simulated", Seconds(workers.bound_seconds).into()),
        ("busiest", "busiest resource", busiest(workers).into()),
        ("over_single", "over one worker alone", times.into()),
    ]
}

/// Warns if several workers train no faster than one.
fn warn_of_slow(workers: u64, times: f64) {
    if times < 1.0 {
        tracing::warn!(
            "{workers} workers together train {times:.2} times as many samples a second as one alone: the exchange costs \
             more time than sharing the batch saves; a larger --global-batch has fewer updates, and one worker needs no \
             exchange"
        );
    }
}

/// An update of the workers that the batch was chosen for; `None` for one worker. Results of its simulation come from
/// the tuning.
pub fn cluster(config: &Config, tuning: Option<&Tuning>) -> Option<Table> {
    let Cluster { workers, interconnect, nccl, global_batch, passes, exchange_seconds, update_seconds } =
        config.cluster?;
    let simulated = tuning.and_then(|tuning| report::workers::workers(config, tuning)).map(|w| simulated(&w));
    let sums = nccl.then(|| ("sums", "sums", "by NCCL, on the GPUs".into()));
    let known = config.measured.unwrap_or(config.predicted);
    let alone = config.batch as f64 / (known.iteration_seconds + known.between_seconds).0;
    let together = global_batch as f64 / update_seconds.0;
    warn_of_slow(workers, together / alone);
    let between = [
        ("workers", "workers", workers.into()),
        ("interconnect", "interconnect", interconnect.to_string().into()),
    ];
    let between = between.into_iter().chain(sums);
    Some(Table::facts(
        "workers",
        between
            .chain([
                ("global_batch", "global batch", global_batch.into()),
                ("passes", "passes of a worker", passes.into()),
                ("exchange_seconds", "exchange adds, predicted", exchange_seconds.into()),
                ("update_seconds", "update", update_seconds.into()),
                // The interconnect was given, not modelled; the model covers the passes.
                (
                    "relative_error",
                    "stated error of its passes",
                    Cell::Share(config.predicted.relative_error),
                ),
            ])
            .chain(simulated.into_iter().flatten())
            .chain([
                ("samples_per_second", "samples/s of all", Cell::Number(together, 0)),
                ("speedup", "times one worker", Cell::Number(together / alone, 2)),
                (
                    "efficiency",
                    "share of as many without exchange",
                    Cell::Share(together / alone / workers as f64),
                ),
                (
                    "learning_rate",
                    "learning rate of an update",
                    rate::rate_of_update(config).map_or(Cell::None, |(rate, _)| Cell::learning_rate(rate)),
                ),
                (
                    "learning_rate_caution",
                    "caution",
                    rate::caution(&config.learning_rate, global_batch).into(),
                ),
            ])
            .collect(),
    ))
}

/// Warning about a learning rate far from its base point, with the option that keeps it near.
pub fn caution(rate: &LearningRate, batch: u64) -> Option<String> {
    rate::caution(rate, batch).map(|words| format!("{words}, or set --max-batch"))
}

/// Comparison with the base batch that keeps everything.
fn yours(tuned: &Tuned) -> String {
    let run = |what: &str| tuned.tuning.runs.iter().find(|run| run.what == what);
    let epoch = |run: &Run| run.measured.or(run.predicted).map(|figures| figures.epoch_seconds);
    let Some(own) = run("yours") else { return "it was not run".to_owned() };
    let batch = own.batch;
    match (epoch(own), run("chosen").and_then(epoch)) {
        _ if tuned.tuning.keep_your_settings => format!("batch {batch}: keep it"),
        (Some(yours), Some(chosen)) => {
            let known = if own.measured.is_some() { "measured" } else { "modelled" };
            format!("batch {batch}: its epoch is {known} to take {}", longer(yours / chosen))
        }
        _ => format!("batch {batch}: {}", own.note.as_deref().unwrap_or("it was not run")),
    }
}

/// A ratio of times, in words.
fn longer(times: f64) -> String {
    let (percent, way) = if times < 1.0 { (1.0 - times, "shorter") } else { (times - 1.0, "longer") };
    format!("{:.1} % {way}", 100.0 * percent)
}

/// Predicted and measured figures of the choice, and of keeping everything.
pub fn figures(tuned: &Tuned) -> Table {
    let mut table = Table::new(
        "figures",
        &[
            ("what", ""),
            ("batch", "batch"),
            ("predicted_iteration_seconds", "iteration, predicted"),
            ("iteration_seconds", "measured"),
            ("off", "off"),
            ("predicted_error", "stated error"),
            ("samples_per_second", "samples/s"),
            ("peak_bytes", "peak"),
            ("epoch_seconds", "epoch"),
        ],
    );
    let mut shown = Vec::new();
    for Run { what, batch, predicted, measured, .. } in &tuned.tuning.runs {
        let Some(predicted) = predicted else { continue };
        // These two may be the choice itself.
        if ["keeping everything", "yours"].contains(&what.as_str()) && shown.contains(batch) {
            continue;
        }
        shown.push(*batch);
        let known = measured.unwrap_or(*predicted);
        let off = |f: Figures| Cell::Share(f.iteration_seconds / predicted.iteration_seconds - 1.0);
        table.rows.push(vec![
            what.as_str().into(),
            (*batch).into(),
            predicted.iteration_seconds.into(),
            measured.map(|f| f.iteration_seconds).into(),
            measured.map_or(Cell::None, off),
            Cell::Share(predicted.relative_error),
            Cell::Number(tuned.tuning.asked.samples as f64 / known.epoch_seconds.0, 0),
            known.peak_bytes.into(),
            known.epoch_seconds.into(),
        ]);
    }
    table.chosen(Some(0))
}

/// The whole curve as predicted.
fn curve(tuned: &Tuned) -> Table {
    let mut table = Table::new(
        "curve",
        &[
            ("batch", "batch"),
            ("iteration_seconds", "iteration"),
            ("epoch_seconds", "epoch"),
            ("peak_bytes", "peak"),
            ("at_peak_bytes", "feature maps at peak"),
            ("offloaded_bytes", "swapped"),
            ("swapping_seconds", "swapping"),
            ("recomputed_bytes", "recomputed"),
            ("recomputing_seconds", "recomputing"),
        ],
    );
    let candidates = tuned.tuning.rounds.last().map(|round| round.candidates.as_slice()).unwrap_or_default();
    for candidate in candidates {
        table.rows.push(vec![
            candidate.batch.into(),
            candidate.iteration_seconds.into(),
            candidate.epoch_seconds.into(),
            candidate.peak_bytes.into(),
            candidate.at_peak_bytes.into(),
            candidate.offloaded_bytes.into(),
            candidate.swapping_seconds.into(),
            candidate.recomputed_bytes.into(),
            candidate.recomputing_seconds.into(),
        ]);
    }
    let batch = tuned.config.batch;
    table.chosen(candidates.iter().position(|candidate| candidate.batch == batch))
}
