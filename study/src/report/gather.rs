//! From a trace and its schedule to a report: the iteration, its memory, its layers.
//!
//! Times become whole nanoseconds and lists become columns here, and nowhere else. `tuned.rs` adds the results of a tuning,
//! `policies.rs` the plans of the other policies.
//!
//! This file does not check the schedule (the caller has), or judge it.

use crate::report::data::{
    About, Iteration, LaneView, Layer, Memory, Policies, Report, ReportKind, Residencies, Slices, StallView,
    StepSeries,
};
use crate::report::reasons::{self, Fate, common};
use crate::trace_events::{bytes_in_flight_over_time, cause, host_bytes_over_time, nanoseconds};
use plimsoll_ir::schedule::{Command, Holds, Schedule, Stream, moved};
use plimsoll_ir::simulate::{Span, Timeline, buffer_bytes, simulate};
use plimsoll_ir::trace::{Phase, TensorKind, Trace};
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_runtime::host_slab;
use std::collections::{BTreeMap, HashMap};

/// Inputs of an iteration's report.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Trace, with the seconds that the schedule was planned for.
    pub trace: &'a Trace,
    /// Valid schedule of the trace.
    pub schedule: &'a Schedule,
    /// Measured times of its commands, if measured.
    pub measured: Option<&'a Timeline>,
}

impl Subject<'_> {
    /// Returns the report of the iteration alone; `policies` compares the other policies.
    pub fn report(&self, policies: Policies, about: About) -> Report {
        let Subject { trace, schedule, measured } = *self;
        let predicted = simulate(trace, schedule);
        let mut names = Names::default();
        let mut timelines = vec![lane_view("predicted", trace, schedule, &predicted, &mut names)];
        timelines
            .extend(measured.map(|measured| lane_view("measured", trace, schedule, measured, &mut names)));
        let memory = self.memory(&predicted, &mut names);
        Report {
            kind: ReportKind::Report1,
            about,
            answer: None,
            settings: Vec::new(),
            batches: None,
            workers: None,
            iteration: Iteration {
                names: names.list,
                timelines,
                bound_seconds: policies.bound_seconds,
                compute_seconds: policies.compute_seconds,
            },
            memory,
            layers: layers(trace, schedule, &predicted, measured),
            fit: None,
            policies,
        }
    }

    /// Returns memory over the predicted iteration.
    fn memory(&self, predicted: &Timeline, names: &mut Names) -> Memory {
        let Subject { trace, schedule, .. } = *self;
        let pool = predicted.pool_bytes_over_time(trace, schedule);
        Memory {
            budget_bytes: schedule.budget_bytes.0,
            resident_bytes: trace.resident_bytes.0,
            pool_bytes: schedule.pool_bytes.0,
            alive_bytes: predicted.peak(trace, schedule).0,
            host_bytes: host_slab(trace, schedule).bytes().0,
            pool: steps(pool.iter().map(|step| (step.from, step.bytes.0))),
            keeping_everything_bytes: trace
                .memory()
                .peak()
                .map_or(trace.resident_bytes, |(_, bytes)| bytes)
                .0,
            keeping_everything: steps(keeping_everything(trace)),
            host: steps(host_bytes_over_time(trace, schedule, predicted)),
            in_flight: steps(bytes_in_flight_over_time(trace, schedule, predicted)),
            addresses: residencies(trace, schedule, predicted, names),
        }
    }
}

/// Distinct names.
#[derive(Default)]
pub(super) struct Names {
    list: Vec<String>,
    index: HashMap<String, u32>,
}

impl Names {
    /// Starts from known names.
    pub(super) fn from(list: Vec<String>) -> Names {
        let index = list.iter().cloned().zip(0..).collect();
        Names { list, index }
    }

    /// Returns all names.
    pub(super) fn into_list(self) -> Vec<String> {
        self.list
    }

    /// Returns the position of a name, adding it if it is new.
    pub(super) fn of(&mut self, name: &str) -> u32 {
        if let Some(known) = self.index.get(name) {
            return *known;
        }
        let new = self.list.len() as u32;
        self.list.push(name.to_owned());
        self.index.insert(name.to_owned(), new);
        new
    }
}

/// Returns start and length in nanoseconds.
fn in_nanoseconds(span: Span) -> (u64, u64) {
    let [start, end] = [span.start, span.end].map(nanoseconds);
    (start, end.saturating_sub(start))
}

fn lane_view(
    name: &str,
    trace: &Trace,
    schedule: &Schedule,
    timeline: &Timeline,
    names: &mut Names,
) -> LaneView {
    let mut slices = Slices::default();
    for (command, span) in schedule.commands.iter().zip(&timeline.spans) {
        let (start, length) = in_nanoseconds(*span);
        let (what, bytes) = match command {
            Command::Compute { again: true, .. } => (3, 0),
            Command::Compute { op, .. } => match trace.ops[op.index()].phase {
                Phase::Forward => (0, 0),
                Phase::Backward => (1, 0),
                Phase::Update => (2, 0),
            },
            Command::Offload { .. } | Command::Prefetch { .. } => {
                let bytes = moved(trace, command).map_or(0, |(_, piece)| piece.end - piece.start);
                (if command.stream() == Stream::Offload { 4 } else { 5 }, bytes)
            }
        };
        slices.lane.push(command.stream().index() as u8);
        slices.start.push(start);
        slices.length.push(length);
        slices.name.push(names.of(name_of(trace, command)));
        slices.what.push(what);
        slices.bytes.push(bytes);
    }
    let stalls = timeline.stalls(schedule).into_iter().filter(|stall| stall.stream == Stream::Compute);
    let stalls = stalls.map(|stall| {
        let (start, length) = in_nanoseconds(stall.span);
        StallView { start, length, cause: cause(trace, schedule, stall.cause) }
    });
    LaneView {
        name: name.to_owned(),
        makespan_seconds: timeline.makespan().0,
        slices,
        stalls: stalls.filter(|stall| stall.length > 0).collect(),
        busy_seconds: timeline.totals(trace, schedule).busy.map(|busy| busy.0),
    }
}

/// Returns the name of a command's op or tensor.
fn name_of<'t>(trace: &'t Trace, command: &Command) -> &'t str {
    match command {
        Command::Compute { op, .. } => &trace.ops[op.index()].name,
        Command::Offload { tensor, .. } | Command::Prefetch { tensor, .. } => {
            &trace.tensors[tensor.index()].name
        }
    }
}

/// Returns a step series from 0 on. Of several values in one nanosecond the last counts; unchanged values are left out.
fn steps(values: impl IntoIterator<Item = (Seconds, u64)>) -> StepSeries {
    let mut series = StepSeries { at: vec![0], bytes: vec![0] };
    for (at, bytes) in values {
        let at = nanoseconds(at);
        if series.at.last() == Some(&at) {
            series.at.pop();
            series.bytes.pop();
        }
        if series.bytes.last() != Some(&bytes) {
            series.at.push(at);
            series.bytes.push(bytes);
        }
    }
    series
}

/// Returns the bytes in use besides resident bytes, if everything were kept and every op run in its leanest alternative.
fn keeping_everything(trace: &Trace) -> Vec<(Seconds, u64)> {
    let (mut at, mut values) = (Seconds::ZERO, Vec::with_capacity(trace.ops.len() + 1));
    for (op, in_use) in trace.ops.iter().zip(trace.memory().in_use) {
        values.push((at, in_use.saturating_sub(trace.resident_bytes).0));
        let own = (op.workspace_bytes, op.seconds);
        let others =
            op.alternatives.iter().map(|alternative| (alternative.workspace_bytes, alternative.seconds));
        at += others.fold(own, |best, alternative| if alternative < best { alternative } else { best }).1;
    }
    values.push((at, 0));
    values
}

fn residencies(trace: &Trace, schedule: &Schedule, predicted: &Timeline, names: &mut Names) -> Residencies {
    let mut all = Residencies::default();
    for (id, buffer) in schedule.numbered_buffers() {
        let bytes = buffer_bytes(trace, schedule, id);
        let (start, length) = in_nanoseconds(predicted.buffer_span(schedule, id));
        if bytes == Bytes::ZERO {
            continue;
        }
        let (name, what) = match buffer.holds {
            Holds::Tensor { tensor, .. } => {
                let tensor = &trace.tensors[tensor.index()];
                let what = match tensor.kind {
                    TensorKind::Activation => 0,
                    TensorKind::Gradient => 1,
                    TensorKind::Input | TensorKind::Other => 3,
                };
                (tensor.name.as_str(), what)
            }
            Holds::Workspace { command } => (name_of(trace, &schedule.commands[command.index()]), 2),
        };
        all.name.push(names.of(name));
        all.what.push(what);
        all.start.push(start);
        all.length.push(length);
        all.offset.push(buffer.offset.0);
        all.bytes.push(bytes.0);
    }
    all
}

/// Layer of the tensors that are on the device from the start.
pub const INPUT: &str = "input";

/// Returns one line per layer, in the order of each layer's first op. Tensors on the device from the start come first, if the
/// backward pass needs them.
pub fn layers(
    trace: &Trace,
    schedule: &Schedule,
    predicted: &Timeline,
    measured: Option<&Timeline>,
) -> Vec<Layer> {
    let iteration = reasons::Iteration::new(trace, schedule, predicted);
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut layers: Vec<Layer> = Vec::new();
    let mut fates: Vec<Vec<&Fate>> = Vec::new();
    let from_start = || iteration.fates.iter().filter(|fate| fate.maker.is_none());
    if from_start().next().is_some() {
        layers.push(empty_layer(INPUT, INPUT));
        fates.push(from_start().collect());
    }
    for op in &trace.ops {
        places.entry(&op.layer).or_insert_with(|| {
            layers.push(empty_layer(&op.layer, &op.kind));
            fates.push(Vec::new());
            layers.len() - 1
        });
    }
    for fate in &iteration.fates {
        if let Some(maker) = fate.maker {
            fates[places[trace.ops[maker.index()].layer.as_str()]].push(fate);
        }
    }
    for (id, command) in schedule.numbered_commands() {
        let Command::Compute { op, again, .. } = command else { continue };
        let op = &trace.ops[op.index()];
        let layer = &mut layers[places[op.layer.as_str()]];
        let seconds = predicted.spans[id.index()].seconds().0;
        match op.phase {
            _ if *again => {
                layer.recomputed_bytes += trace.written_bytes(op).0;
                layer.recomputed_seconds += seconds;
            }
            Phase::Forward => layer.forward_seconds += seconds,
            Phase::Backward => layer.backward_seconds += seconds,
            Phase::Update => {}
        }
        if let Some(measured) = measured.filter(|_| !again && op.phase != Phase::Update) {
            *layer.measured_seconds.get_or_insert(0.0) += measured.spans[id.index()].seconds().0;
        }
    }
    for (layer, fates) in layers.iter_mut().zip(&fates) {
        describe(&iteration, layer, fates);
    }
    layers
}

fn empty_layer(name: &str, kind: &str) -> Layer {
    Layer { layer: name.to_owned(), kind: kind.to_owned(), ..Layer::default() }
}

/// Fills in the fate of a layer's activations, and the reasons.
fn describe(iteration: &reasons::Iteration<'_>, layer: &mut Layer, fates: &[&Fate]) {
    let commands = &iteration.schedule.commands;
    let offloads = fates.iter().flat_map(|fate| &fate.transfers);
    let offloads = offloads.filter(|id| commands[id.index()].stream() == Stream::Offload);
    layer.offloaded_bytes = offloads.map(|id| iteration.moved_bytes(*id)).sum();
    let maps: Vec<&Fate> = fates.iter().copied().filter(|fate| iteration.is_map(fate)).collect();
    layer.feature_map_bytes = maps.iter().map(|fate| fate.bytes.0).sum();
    let transfers = maps.iter().flat_map(|fate| iteration.transfer(fate.bytes));
    layer.transfer_seconds = transfers.map(|seconds| seconds.0).sum();
    if !maps.is_empty() {
        layer.slack_seconds = iteration.slack(common(&maps)).0;
    }
    layer.decision = reasons::Iteration::decision(fates).words();
    layer.reason = iteration.reason(fates);
    if fates.is_empty() && layer.recomputed_seconds > 0.0 {
        let again = Seconds(layer.recomputed_seconds);
        layer.reason = format!(
            "none: the backward pass reads nothing that it makes; it is recomputed ({again}) for what others make of it"
        );
    }
}
