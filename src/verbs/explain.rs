//! `explain`: reasons of a tuning's choice, or effects of a schedule, as text for a terminal; everything about one
//! layer (its ops, its tensors, their decisions, the commands that move them); or the search for a plan, step by
//! step.

use crate::args::{ExplainArgs, ReportedArgs};
use crate::files::read_valid;
use crate::output::{Cell, Facts, Table};
use crate::verbs::profile::how_known;
use crate::verbs::tune::{busiest, caution, precision_of};
use plimsoll_ir::search_log::{SearchLog, SearchStep, StepResult};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_networks::nearest;
use plimsoll_study::report::explain::{CommandRun, Explanation, LayerExplained, TensorExplained};
use plimsoll_study::report::gather::Subject;
use plimsoll_study::report::workers::workers;
use plimsoll_study::report::{Layer, Tuned, rule_in_words};
use plimsoll_study::{Error, Study};
use plimsoll_tuner::rate::rate_of_update;

/// Layers listed without `--layer`.
const LISTED: usize = 5;

/// Runs the verb.
pub fn run(args: &ExplainArgs) -> Result<Vec<Table>, Error> {
    match &args.reported {
        ReportedArgs { trace: Some(trace), schedule: Some(schedule), .. } => {
            let (trace, schedule) = read_valid(trace, schedule)?;
            let explanation = Explanation::of(Subject { trace: &trace, schedule: &schedule, measured: None });
            tables(&explanation, args.layer.as_deref(), Vec::new())
        }
        ReportedArgs { study: Some(folder), .. } => {
            let study = Study::existing(folder)?;
            let tuned = Tuned::read(&study)?;
            if args.search_log {
                return search(&tuned.tuning.search).map(|table| vec![table]);
            }
            tables(&tuned.explanation(), args.layer.as_deref(), answer(&tuned)?)
        }
        _ => Err(Error::usage("what is explained is a study, or a trace and its schedule")),
    }
}

/// Steps of a search, in order. A study tuned by an earlier version has none.
fn search(log: &SearchLog) -> Result<Table, Error> {
    if log.steps.is_empty() {
        return Err(Error::usage("the study does not say how its plan was searched for")
            .help("`plimsoll tune --fresh` with the same options writes that down"));
    }
    let columns = [
        ("tried", "tried"),
        ("decided_seconds", "decided"),
        ("makespan_seconds", "plan"),
        ("moved_bytes", "moved"),
        ("result", "result"),
    ];
    let mut table = Table::new("search", &columns);
    for SearchStep { tried, decided_seconds, result } in &log.steps {
        let (makespan, moved, words) = match result {
            StepResult::Planned { makespan_seconds, moved_bytes } => {
                (Cell::from(*makespan_seconds), Cell::from(*moved_bytes), "planned".to_owned())
            }
            other => (Cell::None, Cell::None, other.to_string()),
        };
        table.rows.push(vec![tried.clone().into(), (*decided_seconds).into(), makespan, moved, words.into()]);
    }
    Ok(table)
}

/// Reasons of a tuning for its choice.
fn answer(tuned: &Tuned) -> Result<Facts, Error> {
    let config = &tuned.config;
    let rate = &config.learning_rate;
    let (of_update, samples) = rate_of_update(config)?;
    let mut facts: Facts = vec![
        ("times", "times", how_known(tuned.config.modelled, tuned.config.modelled_error).into()),
        ("precision", "precision", precision_of(&tuned.config).into()),
        ("answer", "answer", tuned.headline().into()),
        ("why", "why", tuned.why().into()),
        ("placement", "placement", tuned.placement().into()),
        ("learning_rate", "learning rate", Cell::learning_rate(of_update)),
        ("learning_rate_rule", "by", rule_in_words(rate).into()),
        ("learning_rate_caution", "caution", caution(rate, samples).into()),
    ];
    // A run of several workers has its own lines.
    if config.cluster.is_none() {
        facts.push(("warmup_iterations", "warm-up iterations", rate.warmup_iterations.into()));
    }
    facts.extend(workers(config, &tuned.tuning).into_iter().flat_map(|workers| {
        let busiest = busiest(&workers);
        [
            ("workers", "workers", workers.workers.into()),
            ("global_batch", "global batch", workers.global_batch.into()),
            ("update_seconds", "update", Cell::from(Seconds(workers.update_seconds))),
            ("exchange_seconds", "exchange adds, predicted", Seconds(workers.exchange_seconds).into()),
            ("busiest", "busiest resource", busiest.into()),
        ]
    }));
    Ok(facts)
}

/// Tables of an explanation: of one layer, or of the iteration.
fn tables(explanation: &Explanation<'_>, layer: Option<&str>, answer: Facts) -> Result<Vec<Table>, Error> {
    let Some(name) = layer else {
        let listed = listed(explanation);
        let left_out = explanation.layers.len() - listed.rows.len();
        return Ok(vec![whole(explanation, answer, left_out), listed]);
    };
    let Some(explained) = explanation.layer(name) else {
        let names = nearest(name, explanation.layers.iter().map(|layer| layer.layer.as_str()));
        let trace = &explanation.subject.trace.name;
        let failure = Error::usage(format_args!("`{trace}` has no layer `{name}`"));
        return Err(failure.help(match names.is_empty() {
            true => "`plimsoll report` of the same shows all layers".to_owned(),
            false => format!("did you mean {}?", names.join(", ")),
        }));
    };
    let LayerExplained { layer, ops, tensors, transfers } = explained;
    let ops = of_runs("ops", &[("op", "op"), ("phase", "phase")], ops);
    let transfers =
        of_runs("commands", &[("command", "command"), ("stream", "stream"), ("bytes", "bytes")], transfers);
    Ok(vec![of_layer(layer), ops, of_tensors(tensors), transfers])
}

/// Table of the iteration and its limits.
fn whole(explanation: &Explanation<'_>, answer: Facts, left_out: usize) -> Table {
    let Subject { trace, schedule, measured } = explanation.subject;
    let limits = explanation.limits();
    let mut facts = vec![
        ("network", "network", trace.name.clone().into()),
        ("batch", "batch", trace.batch.into()),
        ("budget_bytes", "budget", schedule.budget_bytes.into()),
    ];
    facts.extend(answer);
    facts.extend([
        ("predicted_seconds", "iteration, predicted", Cell::from(explanation.predicted.makespan())),
        ("measured_seconds", "measured", measured.map(Timeline::makespan).into()),
        ("limit", "what limits it", limits.verdict.into()),
        ("limit_budget", "  budget", limits.budget.into()),
        ("limit_link", "  link", limits.link.into()),
        ("limit_compute", "  computing", limits.compute.into()),
        ("layers_left_out", "layers left out below, shown by --layer", (left_out as u64).into()),
    ]);
    Table::facts("explanation", facts)
}

/// Layers with the most time beyond running each op once.
fn listed(explanation: &Explanation<'_>) -> Table {
    let columns = [
        ("layer", "layer"),
        ("kind", "kind"),
        ("feature_map_bytes", "feature maps"),
        ("decision", "decision"),
        ("cost_seconds", "moving, recomputing, waiting"),
        ("reason", "why"),
    ];
    let mut table = Table::new("layers", &columns);
    for (cost, layer) in explanation.layers_by_cost().into_iter().take(LISTED) {
        table.rows.push(vec![
            layer.layer.clone().into(),
            layer.kind.clone().into(),
            Bytes(layer.feature_map_bytes).into(),
            layer.decision.clone().into(),
            cost.into(),
            layer.reason.clone().into(),
        ]);
    }
    table
}

/// Totals of a layer, and decisions for its activations.
fn of_layer(layer: &Layer) -> Table {
    Table::facts(
        "layer",
        vec![
            ("layer", "layer", layer.layer.clone().into()),
            ("kind", "kind", layer.kind.clone().into()),
            ("forward_seconds", "forward", Seconds(layer.forward_seconds).into()),
            ("backward_seconds", "backward", Seconds(layer.backward_seconds).into()),
            ("measured_seconds", "both, measured", layer.measured_seconds.map(Seconds).into()),
            ("feature_map_bytes", "feature maps", Bytes(layer.feature_map_bytes).into()),
            ("decision", "decision", layer.decision.clone().into()),
            ("reason", "why", layer.reason.clone().into()),
            ("transfer_seconds", "moving all of them, out and back", Seconds(layer.transfer_seconds).into()),
            ("slack_seconds", "slack", Seconds(layer.slack_seconds).into()),
            ("offloaded_bytes", "swapped", Bytes(layer.offloaded_bytes).into()),
            ("recomputed_bytes", "recomputed", Bytes(layer.recomputed_bytes).into()),
            ("recomputed_seconds", "recomputing", Seconds(layer.recomputed_seconds).into()),
        ],
    )
}

/// The runs of ops or transfers, under these heads and those of their times.
fn of_runs(key: &'static str, heads: &[(&'static str, &'static str)], runs: Vec<CommandRun>) -> Table {
    let times = [("start", "start"), ("seconds", "predicted"), ("measured_seconds", "measured")];
    let mut table = Table::new(key, &[heads, &times].concat());
    for CommandRun { name, what, bytes, start, predicted, measured } in runs {
        let mut row = vec![name.into(), what.into(), bytes.into()];
        row.truncate(heads.len());
        row.extend([start.into(), predicted.into(), measured.into()]);
        table.rows.push(row);
    }
    table
}

fn of_tensors(tensors: Vec<TensorExplained>) -> Table {
    let columns = [("tensor", "tensor"), ("bytes", "bytes"), ("decision", "decision"), ("reason", "why")];
    let mut table = Table::new("tensors", &columns);
    for TensorExplained { tensor, bytes, decision, reason } in tensors {
        table.rows.push(vec![tensor.into(), bytes.into(), decision.into(), reason.into()]);
    }
    table
}
