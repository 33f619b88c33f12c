//! `tune`: chooses batch size, placement and learning rate from a profile, confirms the choice by running it, and writes
//! it as a config and a schedule.

use crate::args::{TuneArgs, defaults};
use crate::failure::Failure;
use crate::naming;
use crate::output::{Cell, Table};
use crate::ran::Measured;
use crate::record::other_name;
use crate::study::{Held, Study};
use crate::task::{Setup, Task};
use crate::tuning::{TuneRequest, Tuned, caution, least, tune};
use crate::verbs::profile::{how_known, largest, measure};
use plimsoll_ir::config::{LearningRate, LearningRateRule};
use plimsoll_ir::profile::Profile;
use plimsoll_ir::{Bytes, Document};
use plimsoll_tuner::model::Model;
use plimsoll_tuner::search::Moved;

/// Runs the verb.
pub fn run(args: &TuneArgs, quiet: bool) -> Result<Vec<Table>, Failure> {
    let task = Task::new(&args.network, &args.data, Setup::new(&args.device)?)?;
    let task = task.within(args.search.host_memory)?;
    let study = naming::study(&task, &args.study, &args.search, &args.rate, &defaults())?;
    let least = least(&args.search, &args.rate);
    let budget = task.budget_in(&study, args.study.fresh, args.search.budget, least)?;
    let request = TuneRequest::new(budget, &args.search, &args.rate, args.epochs);
    let batches = request.min_batch..=request.limit(&task)?;
    let largest = largest(&task, budget, &batches, quiet)?;
    study.make()?;
    let held = study.lock()?;
    study.without_training()?;
    let made = [vec![study.journal(), study.profile()], study.choice()].concat();
    study.are_ours(&made)?;
    let forgotten = args.study.fresh.then_some(made);
    let mut profile = measure(&task, budget, largest, &study, forgotten.as_deref(), quiet)?;
    let tuned = tune(&task, &mut profile, &request, &study, quiet)?;
    keep(&study, &held, &tuned, &profile)?;
    let folder = study.folder().display();
    tracing::info!("`plimsoll report {folder}` shows all of it");
    let kept = Table::facts("study", vec![("study", "kept in", folder.to_string().into())]);
    Ok(vec![choice(&tuned), figures(&tuned), curve(&tuned), kept])
}

/// Writes the profile, with what refits added to it, the model that it gives, what was tried, schedule and config to the study,
/// together.
pub fn keep(study: &Study, held: &Held, tuned: &Tuned, profile: &Profile) -> Result<(), Failure> {
    let model = Model::fit(profile).map_err(Failure::usage)?;
    let model = serde_json::to_string_pretty(&model).expect("numbers and names can be written");
    let texts = [
        (study.profile(), profile.to_json()),
        (study.model(), model + "\n"),
        (study.trace(), tuned.trace.to_json()),
        (study.schedule(), tuned.schedule.to_json()),
        (study.tuning(), tuned.tuning.to_json()),
        (study.config(), tuned.config.to_json()),
    ];
    study.put_together(held, &texts.map(|(path, text)| (path, text.into_bytes())))
}

/// Where a learning rate comes from.
pub fn rule_in_words(rate: &LearningRate) -> String {
    let rule = match rate.rule {
        LearningRateRule::Linear => "linear".to_owned(),
        LearningRateRule::SquareRoot => "square root".to_owned(),
        LearningRateRule::Accudnn { convexity } => format!("AccUDNN eq. (9), c = {convexity:.4}"),
    };
    format!("{rule}, from {} at batch {}", rate.base_rate, rate.base_batch)
}

/// What was chosen.
pub fn choice(tuned: &Tuned) -> Table {
    let config = &tuned.config;
    let rate = &config.learning_rate;
    Table::facts(
        "choice",
        vec![
            ("network", "network", config.network.in_words().into()),
            ("times", "times", how_known(config.modelled, config.modelled_error).into()),
            ("budget_bytes", "budget", config.budget_bytes.into()),
            ("batch", "batch", config.batch.into()),
            (
                "keeper_batch",
                "largest batch that keeps everything",
                tuned.keeper.map(|k| k.candidate.batch).into(),
            ),
            ("largest_batch", "largest batch that can be trained", tuned.tuning.asked.largest.into()),
            ("why", "why", tuned.tuning.why.clone().into()),
            ("yours", "your own setting", yours(tuned).into()),
            ("placement", "placement", placement(&tuned.chosen.candidate.moved).into()),
            ("learning_rate", "learning rate", Cell::learning_rate(rate.rate)),
            ("learning_rate_rule", "by", rule_in_words(rate).into()),
            ("learning_rate_caution", "caution", caution(rate, config.batch).into()),
            ("warmup_iterations", "warm-up iterations", rate.warmup_iterations.into()),
            ("refits", "refits of the model", tuned.refits().into()),
        ],
    )
}

/// How the base batch, with everything kept, compares.
fn yours(tuned: &Tuned) -> String {
    let own = tuned.tuning.runs.iter().find(|run| run.what == "yours");
    let (batch, note) = own.map_or((0, None), |run| (run.batch, run.note.as_deref()));
    match (&tuned.yours, note) {
        _ if tuned.tuning.keep_your_settings => format!("batch {batch}: keep it"),
        (Some(yours), _) => {
            let gain = 1.0 - tuned.chosen.known().epoch_seconds / yours.known().epoch_seconds;
            let known = if yours.figures.is_some() { "measured" } else { "modelled" };
            format!("batch {batch}: its epoch is {known} to take {:.1} % longer", 100.0 * gain / (1.0 - gain))
        }
        (None, note) => format!("batch {batch}: {}", note.unwrap_or("it was not run")),
    }
}

/// What stays, what is swapped and what is recomputed in an iteration, in words.
pub fn placement(moved: &Moved) -> String {
    let Moved { at_peak, offloaded, swapping, recomputed_ops, recomputing } = *moved;
    if offloaded == Bytes::ZERO && recomputed_ops == 0 {
        return format!("everything is kept ({at_peak} of feature maps at the peak)");
    }
    let mut parts = vec![format!("{at_peak} of feature maps on the device at the peak")];
    if offloaded > Bytes::ZERO {
        parts.push(format!("{offloaded} swapped in every iteration ({swapping} of the link)"));
    }
    if recomputed_ops > 0 {
        let ops = if recomputed_ops == 1 { "op" } else { "ops" };
        parts.push(format!("{recomputed_ops} {ops} recomputed ({recomputing})"));
    }
    parts.join(", ")
}

/// Predicted beside measured, the choice beside keeping everything.
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
            Cell::Number(candidate.batch as f64 / whole.0, 0),
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
    if let Some(other) = &tuned.other {
        add(other_name(tuned.search), other);
    }
    table
}

/// The whole curve, as predicted.
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
            ("recomputing_seconds", "recomputed"),
        ],
    );
    for candidate in &tuned.curve {
        table.rows.push(vec![
            candidate.batch.into(),
            candidate.iteration.into(),
            candidate.epoch.into(),
            candidate.peak.into(),
            candidate.moved.at_peak.into(),
            candidate.moved.offloaded.into(),
            candidate.moved.recomputing.into(),
        ]);
    }
    table
}
