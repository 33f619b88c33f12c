//! `tune`: chooses batch size, placement and learning rate from a profile, confirms the choice by running it, and writes
//! it as a config and a schedule.

use crate::args::{TuneArgs, command_line};
use crate::interrupt;
use crate::output::{Cell, Facts, Table};
use crate::progress::watched;
use crate::verbs::profile::how_known;
use plimsoll_ir::Seconds;
use plimsoll_ir::config::{Cluster, Config, LearningRate};
use plimsoll_ir::tuning::Tuning;
use plimsoll_study::Error;
use plimsoll_study::report::{self, Workers, placement_in_words, rule_in_words};
use plimsoll_study::request::{TrainRequest, defaults};
use plimsoll_study::tuning::{Measured, Tuned, other_name};
use plimsoll_tuner::rate;
use plimsoll_tuner::search::Candidate;

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
        (
            "keeper_batch",
            "largest batch that keeps everything",
            tuned.keeper.map(|k| k.candidate.batch).into(),
        ),
        ("largest_batch", "largest batch that can be trained", tuned.tuning.asked.largest.into()),
        ("why", "why", tuned.tuning.why.clone().into()),
        ("yours", "your own setting", yours(tuned).into()),
        ("placement", "placement", placement_in_words(&tuned.chosen.candidate.moved).into()),
        ("learning_rate", "learning rate", Cell::learning_rate(rate.rate)),
        ("learning_rate_rule", "by", rule_in_words(rate).into()),
        ("learning_rate_caution", "caution", caution(rate, config.batch).into()),
        ("warmup_iterations", "warm-up iterations", rate.warmup_iterations.into()),
        ("refits", "refits of the model", tuned.refits().into()),
    ]);
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
    let known = config.measured.unwrap_or(config.predicted);
    let alone = config.batch as f64 / (known.iteration_seconds + known.between_seconds).0;
    let together = global_batch as f64 / update_seconds.0;
    warn_of_slow(workers, together / alone);
    let rate = rate::rate_of_update(config).map_or(Cell::None, |(rate, _)| Cell::learning_rate(rate));
    let caution = rate::caution(&config.learning_rate, global_batch);
    let mut facts: Facts = vec![
        ("workers", "workers", workers.into()),
        ("interconnect", "interconnect", interconnect.to_string().into()),
    ];
    facts.extend(nccl.then(|| ("sums", "sums", "by NCCL, on the GPUs".into())));
    facts.extend([
        ("global_batch", "global batch", global_batch.into()),
        ("passes", "passes of a worker", passes.into()),
        ("exchange_seconds", "exchange adds, predicted", exchange_seconds.into()),
        ("update_seconds", "update", update_seconds.into()),
        // The interconnect was given, not modelled; the model covers the passes.
        ("relative_error", "stated error of its passes", Cell::Share(config.predicted.relative_error)),
    ]);
    let workers_of = tuning.and_then(|tuning| report::workers::workers(config, tuning));
    facts.extend(workers_of.iter().flat_map(simulated));
    facts.extend([
        ("samples_per_second", "samples/s of all", Cell::Number(together, 0)),
        ("speedup", "times one worker", Cell::Number(together / alone, 2)),
        ("efficiency", "share of as many without exchange", Cell::Share(together / alone / workers as f64)),
        ("learning_rate", "learning rate of an update", rate),
        ("learning_rate_caution", "caution", caution.into()),
    ]);
    Some(Table::facts("workers", facts))
}

/// Warning about a learning rate far from its base point, with the option that keeps it near.
pub fn caution(rate: &LearningRate, batch: u64) -> Option<String> {
    rate::caution(rate, batch).map(|words| format!("{words}, or set --max-batch"))
}

/// Comparison with the base batch that keeps everything.
fn yours(tuned: &Tuned) -> String {
    let own = tuned.tuning.runs.iter().find(|run| run.what == "yours");
    let (batch, note) = own.map_or((0, None), |run| (run.batch, run.note.as_deref()));
    match (&tuned.yours, note) {
        _ if tuned.tuning.keep_your_settings => format!("batch {batch}: keep it"),
        (Some(yours), _) => {
            let known = if yours.figures.is_some() { "measured" } else { "modelled" };
            let how = longer(yours.progress() / tuned.chosen.progress());
            format!("batch {batch}: its epoch is {known} to take {how}")
        }
        (None, note) => format!("batch {batch}: {}", note.unwrap_or("it was not run")),
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
    let mut add = |what: &str, measured: &Measured| {
        let (candidate, figures) = (&measured.candidate, measured.figures);
        let known = measured.known();
        let whole = known.iteration_seconds + known.between_seconds;
        table.rows.push(vec![
            what.into(),
            candidate.batch.into(),
            candidate.iteration.into(),
            figures.map(|f| f.iteration_seconds).into(),
            figures.map_or(Cell::None, |f| Cell::Share(f.iteration_seconds / candidate.iteration - 1.0)),
            Cell::Share(measured.predicted_error),
            Cell::Number(candidate.sharing.samples_per_second(candidate.batch, whole), 0),
            known.peak_bytes.into(),
            known.epoch_seconds.into(),
        ]);
    };
    add("chosen", &tuned.chosen);
    let mut shown = vec![tuned.chosen.candidate.batch];
    for (what, measured) in [("keeping everything", &tuned.keeper), ("yours", &tuned.yours)] {
        if let Some(measured) = measured.as_ref().filter(|m| !shown.contains(&m.candidate.batch)) {
            add(what, measured);
            shown.push(measured.candidate.batch);
        }
    }
    for way in &tuned.ways {
        way.measured.iter().for_each(|measured| add(way.what, measured));
    }
    if let Some(other) = &tuned.other {
        add(other_name(tuned.search), other);
    }
    table.chosen(Some(0))
}

/// The whole curve as predicted.
fn curve(tuned: &Tuned) -> Table {
    let columns = [
        ("batch", "batch"),
        ("iteration_seconds", "iteration"),
        ("epoch_seconds", "epoch"),
        ("peak_bytes", "peak"),
        ("at_peak_bytes", "feature maps at peak"),
        ("offloaded_bytes", "swapped"),
        ("swapping_seconds", "swapping"),
        ("recomputed_bytes", "recomputed"),
        ("recomputing_seconds", "recomputing"),
    ];
    let mut table = Table::new("curve", &columns);
    for candidate in &tuned.curve {
        let Candidate { batch, iteration, epoch, peak, moved, .. } = candidate;
        table.rows.push(vec![
            (*batch).into(),
            (*iteration).into(),
            (*epoch).into(),
            (*peak).into(),
            moved.at_peak.into(),
            moved.offloaded.into(),
            moved.swapping.into(),
            moved.recomputed.into(),
            moved.recomputing.into(),
        ]);
    }
    let batch = tuned.chosen.candidate.batch;
    table.chosen(tuned.curve.iter().position(|candidate| candidate.batch == batch))
}
