//! Explanations: the limits of an iteration, the cost of each layer, and all details of one layer.
//!
//! This file formats nothing, and leaves the reasons to `reasons.rs`.

use crate::report::Layer;
use crate::report::gather::{INPUT, Subject, layers};
use crate::report::limits::Limits;
use crate::report::reasons::{Fate, Iteration};
use crate::trace_events::describe;
use plimsoll_ir::schedule::{Command, Stream};
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{Bytes, CommandId, Seconds};
use std::collections::HashMap;

/// Explanation of an iteration: by its limits, by its layers, or by one layer.
pub struct Explanation<'a> {
    /// Explained iteration.
    pub subject: Subject<'a>,
    /// Predicted times of the commands.
    pub predicted: Timeline,
    /// All layers, in the order of the network.
    pub layers: Vec<Layer>,
}

/// Details of one layer.
#[derive(Clone, Debug)]
pub struct LayerExplained<'a> {
    /// Its times, its activations, their fate and the reasons.
    pub layer: &'a Layer,
    /// All runs of its ops, in the order of the schedule.
    pub ops: Vec<CommandRun>,
    /// Activations that the backward pass needs.
    pub tensors: Vec<TensorExplained>,
    /// Transfers of these activations, by their predicted start.
    pub transfers: Vec<CommandRun>,
}

/// One run of an op, or one transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandRun {
    /// Name of the op, or description of the transfer.
    pub name: String,
    /// Pass of the op, or `recomputed`; of a transfer `swap-out` or `swap-in`.
    pub what: &'static str,
    /// Bytes moved; 0 for an op.
    pub bytes: Bytes,
    /// Predicted start.
    pub start: Seconds,
    pub predicted: Seconds,
    /// Measured seconds, if measured.
    pub measured: Option<Seconds>,
}

/// An activation, and its fate.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorExplained {
    /// Name of the tensor.
    pub tensor: String,
    /// Size of the tensor.
    pub bytes: Bytes,
    /// `kept`, `swapped`, `recomputed`, joined by ` + `.
    pub decision: String,
    /// Reason, with the numbers that decided.
    pub reason: String,
}

impl<'a> Explanation<'a> {
    /// Explains an iteration.
    pub fn of(subject: Subject<'a>) -> Explanation<'a> {
        let predicted = simulate(subject.trace, subject.schedule);
        let layers = layers(subject.trace, subject.schedule, &predicted, subject.measured);
        Explanation { subject, predicted, layers }
    }

    /// Returns the limits of the iteration.
    pub fn limits(&self) -> Limits {
        Limits::of(self.subject.trace, self.subject.schedule, &self.predicted)
    }

    /// Returns all layers with their cost: the seconds of moving and recomputing their activations and of waiting for them. The
    /// highest cost comes first, then the largest activations.
    pub fn layers_by_cost(&self) -> Vec<(Seconds, &Layer)> {
        let Subject { trace, schedule, .. } = self.subject;
        let iteration = self.iteration();
        let mut costs: HashMap<&str, Seconds> = HashMap::new();
        for fate in &iteration.fates {
            let moving: Seconds = fate.transfers.iter().map(|id| iteration.seconds(*id)).sum();
            *costs.entry(self.layer_of(fate)).or_default() += moving + iteration.stalled(fate.tensor);
        }
        for (id, command) in schedule.numbered_commands() {
            if let Command::Compute { op, again: true, .. } = command {
                *costs.entry(&trace.ops[op.index()].layer).or_default() += iteration.seconds(id);
            }
        }
        let cost = |layer: &Layer| costs.get(layer.layer.as_str()).copied().unwrap_or_default();
        let mut ranked: Vec<(Seconds, &Layer)> =
            self.layers.iter().map(|layer| (cost(layer), layer)).collect();
        ranked.sort_by(|(a_cost, a), (b_cost, b)| {
            b_cost.0.total_cmp(&a_cost.0).then(b.feature_map_bytes.cmp(&a.feature_map_bytes))
        });
        ranked
    }

    /// Returns the details of a layer; `None` if the trace has no layer of this name.
    pub fn layer(&self, name: &str) -> Option<LayerExplained<'_>> {
        let layer = self.layers.iter().find(|layer| layer.layer == name)?;
        let Subject { trace, schedule, .. } = self.subject;
        let iteration = self.iteration();
        let fates: Vec<&Fate> = iteration.fates.iter().filter(|fate| self.layer_of(fate) == name).collect();
        let tensors = fates.iter().map(|fate| TensorExplained {
            tensor: trace.tensors[fate.tensor.index()].name.clone(),
            bytes: fate.bytes,
            decision: fate.decision.words(),
            reason: iteration.reason(&[fate]),
        });
        let run = |id: CommandId, name: String, what| CommandRun {
            name,
            what,
            bytes: Bytes(iteration.moved_bytes(id)),
            start: self.predicted.spans[id.index()].start,
            predicted: iteration.seconds(id),
            measured: self.subject.measured.map(|timeline| timeline.spans[id.index()].seconds()),
        };
        let ops = schedule.numbered_commands().filter_map(|(id, command)| {
            let Command::Compute { op, again, .. } = command else { return None };
            let op = &trace.ops[op.index()];
            let what = if *again { "recomputed" } else { phase_words(op.phase) };
            (op.layer == name).then(|| run(id, op.name.clone(), what))
        });
        let transfers = fates.iter().flat_map(|fate| &fate.transfers).map(|id| {
            let command = &schedule.commands[id.index()];
            let what = if command.stream() == Stream::Offload { "swap-out" } else { "swap-in" };
            run(*id, describe(trace, command), what)
        });
        let mut transfers: Vec<CommandRun> = transfers.collect();
        transfers.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
        Some(LayerExplained { layer, ops: ops.collect(), tensors: tensors.collect(), transfers })
    }

    fn iteration(&self) -> Iteration<'_> {
        Iteration::new(self.subject.trace, self.subject.schedule, &self.predicted)
    }

    /// Returns the layer under which a tensor is listed.
    fn layer_of(&self, fate: &Fate) -> &'a str {
        fate.maker.map_or(INPUT, |op| &self.subject.trace.ops[op.index()].layer)
    }
}

/// Returns the name of a pass.
pub(super) fn phase_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::planned_chain;

    #[test]
    fn costs_rank_the_layers_and_one_layer_lists_what_it_runs_and_moves() {
        let (trace, schedule, _) = planned_chain();
        let explanation = Explanation::of(Subject { trace: &trace, schedule: &schedule, measured: None });
        let ranked = explanation.layers_by_cost();
        assert_eq!(ranked.len(), explanation.layers.len());
        assert!(ranked.windows(2).all(|pair| pair[0].0 >= pair[1].0));
        let (cost, dearest) = ranked[0];
        assert!(cost > Seconds::ZERO, "the budget is below the peak");
        let explained = explanation.layer(&dearest.layer).expect("it is one of the layers");
        let moving: Seconds = explained.transfers.iter().map(|transfer| transfer.predicted).sum();
        let again: Seconds =
            explained.ops.iter().filter(|op| op.what == "recomputed").map(|op| op.predicted).sum();
        assert!(moving + again > Seconds::ZERO && moving + again <= cost * 1.000001);
        assert!(!explained.tensors.is_empty());
        assert!(explanation.layer("no such layer").is_none());
    }
}
