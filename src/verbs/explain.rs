//! `explain`: why a tuning chose what it chose, or what a schedule does, in words for a terminal; of one layer everything
//! (its ops, its tensors, what becomes of them, the commands that move them); or how a plan was searched for, step by step.

use crate::args::{ExplainArgs, ReportedArgs};
use crate::failure::Failure;
use crate::files::read_valid;
use crate::output::{Cell, Table};
use crate::verbs::profile::how_known;
use crate::verbs::tune::caution;
use plimsoll_ir::schedule::{Command, Schedule, Stream};
use plimsoll_ir::search_log::{SearchLog, SearchStep, StepResult};
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_networks::nearest;
use plimsoll_study::Study;
use plimsoll_study::report::Layer;
use plimsoll_study::report::gather::layers;
use plimsoll_study::report::limits::Limits;
use plimsoll_study::report::reasons::{Fate, Iteration};
use plimsoll_study::report::{Tuned, rule_in_words};
use plimsoll_study::trace_events::describe;

/// Layers that are listed without `--layer`.
const LISTED: usize = 5;

/// What is explained.
struct Subject<'a> {
    trace: &'a Trace,
    schedule: &'a Schedule,
    predicted: Timeline,
    measured: Option<&'a Timeline>,
}

/// Runs the verb.
pub fn run(args: &ExplainArgs) -> Result<Vec<Table>, Failure> {
    match &args.reported {
        ReportedArgs { trace: Some(trace), schedule: Some(schedule), .. } => {
            let (trace, schedule) = read_valid(trace, schedule)?;
            let predicted = simulate(&trace, &schedule);
            let subject = Subject { trace: &trace, schedule: &schedule, predicted, measured: None };
            subject.tables(args.layer.as_deref(), Vec::new())
        }
        ReportedArgs { study: Some(folder), .. } => {
            let study = Study::existing(folder)?;
            let tuned = Tuned::read(&study)?;
            if args.search_log {
                return search(&tuned.tuning.search).map(|table| vec![table]);
            }
            let predicted = simulate(&tuned.trace, &tuned.schedule);
            let measured = tuned.tuning.timeline.as_ref();
            let subject = Subject { trace: &tuned.trace, schedule: &tuned.schedule, predicted, measured };
            subject.tables(args.layer.as_deref(), answer(&tuned))
        }
        _ => Err(Failure::usage("what is explained is a study, or a trace and its schedule")),
    }
}

/// The steps of a search, in order. A study that an earlier version tuned has none.
fn search(log: &SearchLog) -> Result<Table, Failure> {
    if log.steps.is_empty() {
        return Err(Failure::usage("the study does not say how its plan was searched for")
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

type Facts = Vec<(&'static str, &'static str, Cell)>;

/// What a tuning has to say of its choice.
fn answer(tuned: &Tuned) -> Facts {
    let rate = &tuned.config.learning_rate;
    vec![
        ("times", "times", how_known(tuned.config.modelled, tuned.config.modelled_error).into()),
        ("answer", "answer", tuned.headline().into()),
        ("why", "why", tuned.why().into()),
        ("placement", "placement", tuned.placement().into()),
        ("learning_rate", "learning rate", Cell::learning_rate(rate.rate)),
        ("learning_rate_rule", "by", rule_in_words(rate).into()),
        ("learning_rate_caution", "caution", caution(rate, tuned.config.batch).into()),
        ("warmup_iterations", "warm-up iterations", rate.warmup_iterations.into()),
    ]
}

impl Subject<'_> {
    fn tables(&self, layer: Option<&str>, answer: Facts) -> Result<Vec<Table>, Failure> {
        let all = layers(self.trace, self.schedule, &self.predicted, self.measured);
        match layer {
            None => {
                let listed = listed(&all, self.what_it_costs());
                let left_out = all.len() - listed.rows.len();
                Ok(vec![self.whole(answer, left_out), listed])
            }
            Some(name) => match all.iter().find(|layer| layer.layer == name) {
                Some(layer) => Ok(self.one(layer)),
                None => {
                    let names = nearest(name, all.iter().map(|layer| layer.layer.as_str()));
                    let failure = Failure::usage(format_args!("`{}` has no layer `{name}`", self.trace.name));
                    Err(failure.help(match names.is_empty() {
                        true => "`plimsoll report` of the same shows all layers".to_owned(),
                        false => format!("did you mean {}?", names.join(", ")),
                    }))
                }
            },
        }
    }

    /// The iteration, and what limits it.
    fn whole(&self, mut facts: Facts, left_out: usize) -> Table {
        let Subject { trace, schedule, predicted, measured } = self;
        let limits = Limits::of(trace, schedule, predicted);
        facts.splice(
            0..0,
            [
                ("network", "network", trace.name.clone().into()),
                ("batch", "batch", trace.batch.into()),
                ("budget_bytes", "budget", schedule.budget_bytes.into()),
            ],
        );
        facts.extend([
            ("predicted_seconds", "iteration, predicted", Cell::from(predicted.makespan())),
            ("measured_seconds", "measured", measured.map(Timeline::makespan).into()),
            ("limit", "what limits it", limits.verdict.into()),
            ("limit_budget", "  budget", limits.budget.into()),
            ("limit_link", "  link", limits.link.into()),
            ("limit_compute", "  computing", limits.compute.into()),
            ("layers_left_out", "layers left out below, shown by --layer", (left_out as u64).into()),
        ]);
        Table::facts("explanation", facts)
    }

    /// By layer name: what moving and recomputing its maps takes, and what compute waits for it.
    fn what_it_costs(&self) -> impl Fn(&str) -> Seconds + use<> {
        let iteration = Iteration::new(self.trace, self.schedule, &self.predicted);
        let mut costs: std::collections::HashMap<String, Seconds> = Default::default();
        for fate in &iteration.fates {
            let seconds: Seconds = fate.transfers.iter().map(|id| iteration.seconds(*id)).sum();
            *costs.entry(layer_of(self.trace, fate).to_owned()).or_default() +=
                seconds + iteration.stalled(fate.tensor);
        }
        for (id, command) in self.schedule.numbered_commands() {
            if let Command::Compute { op, again: true, .. } = command {
                let layer = self.trace.ops[op.index()].layer.clone();
                *costs.entry(layer).or_default() += iteration.seconds(id);
            }
        }
        move |layer| costs.get(layer).copied().unwrap_or(Seconds::ZERO)
    }

    /// All that there is to say of one layer.
    fn one(&self, layer: &Layer) -> Vec<Table> {
        let iteration = Iteration::new(self.trace, self.schedule, &self.predicted);
        let fates: Vec<&Fate> =
            iteration.fates.iter().filter(|fate| layer_of(self.trace, fate) == layer.layer).collect();
        let facts = Table::facts(
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
                (
                    "transfer_seconds",
                    "moving all of them, out and back",
                    Seconds(layer.transfer_seconds).into(),
                ),
                ("slack_seconds", "slack", Seconds(layer.slack_seconds).into()),
                ("recomputed_seconds", "recomputed", Seconds(layer.recomputed_seconds).into()),
            ],
        );
        vec![facts, self.ops(&layer.layer), self.tensors(&iteration, &fates), self.commands(&fates)]
    }

    fn ops(&self, layer: &str) -> Table {
        let columns = [
            ("op", "op"),
            ("phase", "phase"),
            ("start", "start"),
            ("seconds", "predicted"),
            ("measured_seconds", "measured"),
        ];
        let mut table = Table::new("ops", &columns);
        for (id, command) in self.schedule.numbered_commands() {
            let Command::Compute { op, again, .. } = command else { continue };
            let op = &self.trace.ops[op.index()];
            if op.layer != layer {
                continue;
            }
            let phase = match op.phase {
                _ if *again => "again",
                Phase::Forward => "forward",
                Phase::Backward => "backward",
                Phase::Update => "update",
            };
            let span = self.predicted.spans[id.index()];
            let measured = self.measured.map(|timeline| timeline.spans[id.index()].seconds());
            table.rows.push(vec![
                op.name.clone().into(),
                phase.into(),
                span.start.into(),
                span.seconds().into(),
                measured.into(),
            ]);
        }
        table
    }

    fn tensors(&self, iteration: &Iteration<'_>, fates: &[&Fate]) -> Table {
        let columns = [("tensor", "tensor"), ("bytes", "bytes"), ("decision", "decision"), ("reason", "why")];
        let mut table = Table::new("tensors", &columns);
        for fate in fates {
            table.rows.push(vec![
                self.trace.tensors[fate.tensor.index()].name.clone().into(),
                fate.bytes.into(),
                fate.decision.words().into(),
                iteration.reason(&[fate]).into(),
            ]);
        }
        table
    }

    /// The commands that move the layer's tensors.
    fn commands(&self, fates: &[&Fate]) -> Table {
        let columns = [
            ("command", "command"),
            ("stream", "stream"),
            ("bytes", "bytes"),
            ("start", "start"),
            ("seconds", "predicted"),
            ("measured_seconds", "measured"),
        ];
        let mut table = Table::new("commands", &columns);
        let iteration = Iteration::new(self.trace, self.schedule, &self.predicted);
        let mut moves: Vec<_> = fates.iter().flat_map(|fate| fate.transfers.iter().copied()).collect();
        moves.sort_by(|a, b| {
            let start = |id: &plimsoll_ir::CommandId| self.predicted.spans[id.index()].start.0;
            start(a).total_cmp(&start(b))
        });
        for id in moves {
            let command = &self.schedule.commands[id.index()];
            let stream = if command.stream() == Stream::Offload { "swap-out" } else { "swap-in" };
            let measured = self.measured.map(|timeline| timeline.spans[id.index()].seconds());
            table.rows.push(vec![
                describe(self.trace, command).into(),
                stream.into(),
                Bytes(iteration.moved_bytes(id)).into(),
                self.predicted.spans[id.index()].start.into(),
                iteration.seconds(id).into(),
                measured.into(),
            ]);
        }
        table
    }
}

/// The layer that a tensor is told of with.
fn layer_of<'t>(trace: &'t Trace, fate: &Fate) -> &'t str {
    fate.maker.map_or(plimsoll_study::report::gather::INPUT, |op| &trace.ops[op.index()].layer)
}

/// The layers that matter most: those on which most time goes beside running each op once, then those with the largest maps.
fn listed(all: &[Layer], cost: impl Fn(&str) -> Seconds) -> Table {
    let columns = [
        ("layer", "layer"),
        ("kind", "kind"),
        ("feature_map_bytes", "feature maps"),
        ("decision", "decision"),
        ("cost_seconds", "moving, again, waiting"),
        ("reason", "why"),
    ];
    let mut table = Table::new("layers", &columns);
    let mut ranked: Vec<&Layer> = all.iter().collect();
    ranked.sort_by(|a, b| {
        let costs = cost(&b.layer).0.total_cmp(&cost(&a.layer).0);
        costs.then(b.feature_map_bytes.cmp(&a.feature_map_bytes))
    });
    for layer in ranked.into_iter().take(LISTED) {
        table.rows.push(vec![
            layer.layer.clone().into(),
            layer.kind.clone().into(),
            Bytes(layer.feature_map_bytes).into(),
            layer.decision.clone().into(),
            cost(&layer.layer).into(),
            layer.reason.clone().into(),
        ]);
    }
    table
}
