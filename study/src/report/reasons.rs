//! The fate of every activation, and the reason for it, in words with the decisive numbers.
//!
//! The decision is read off the schedule: offloaded, recomputed or kept. The planner weighs all tensors at once, so no single
//! number made it decide; the words therefore state numbers that hold for this schedule and leave the judgement to the reader.
//! All numbers are worked out here:
//!
//! - *slack* is the time between an activation's last use in the forward pass and its first in the backward pass, if everything
//!   were kept;
//! - a *transfer* takes the link's latency and rate each way; an activation that is moved takes the time of its commands;
//! - memory is *short* across an activation if, in its slack, keeping everything would exceed the budget;
//! - the link is *free* in the predicted timeline, between the same two uses, while no transfer in that direction runs.
//!
//! This file does not state what a different schedule would have taken.

use plimsoll_ir::schedule::{Command, Schedule, Stream, moved};
use plimsoll_ir::simulate::{Cause, Span, Timeline};
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, CommandId, OpId, Seconds, TensorId};
use std::collections::BTreeSet;
use std::ops::Range;

/// Share of the pool below which an activation is called small.
const SMALL: f64 = 1e-3;

/// Fate of activations; several fields may hold for one that is partly swapped, or treated differently in two gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// `true` if some of it stays on the device from the forward to the backward pass.
    pub kept: bool,
    /// `true` if some of it leaves and returns.
    pub swapped: bool,
    /// `true` if it is recomputed.
    pub recomputed: bool,
}

impl Decision {
    /// Returns `kept`, `swapped`, `recomputed`, joined by ` + `; `none` if there is nothing to decide.
    pub fn words(self) -> String {
        let all = [(self.kept, "kept"), (self.swapped, "swapped"), (self.recomputed, "recomputed")];
        let words: Vec<&str> = all.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(" + ") }
    }
}

/// One activation that the backward pass needs, and its fate.
#[derive(Clone, Debug, PartialEq)]
pub struct Fate {
    /// The activation's tensor.
    pub tensor: TensorId,
    /// Op that wrote it last in the forward pass; `None` if it is there from the start.
    pub maker: Option<OpId>,
    /// Positions of its last use in the forward pass (0, the first op, if unused), and of the first use after it.
    pub between: (usize, usize),
    /// Size of the activation.
    pub bytes: Bytes,
    /// Decision about the activation.
    pub decision: Decision,
    /// Its offloads and prefetches, in order.
    pub transfers: Vec<CommandId>,
    /// Commands that recompute it.
    pub again: Vec<CommandId>,
}

/// An iteration prepared for explanations.
pub struct Iteration<'a> {
    /// Trace, with seconds.
    pub trace: &'a Trace,
    /// Valid schedule of the trace.
    pub schedule: &'a Schedule,
    /// Predicted times of its commands.
    pub predicted: &'a Timeline,
    /// Fate of each activation, in the order of the trace's tensors.
    pub fates: Vec<Fate>,
    /// By op: start time if everything were kept, and at the end the time when all ops are done.
    keeping: Vec<Seconds>,
    /// By op: bytes in use if everything were kept.
    in_use: Vec<Bytes>,
    /// By op: the command of its first run.
    first_run: Vec<Option<CommandId>>,
    /// By transfer stream: the spans of its commands.
    lanes: [Vec<Span>; 2],
    /// By tensor: time that compute waits for its transfers.
    stalls: Vec<Seconds>,
    /// By tensor: `true` if it is recomputed for others to read.
    recomputed: Vec<bool>,
}

impl<'a> Iteration<'a> {
    /// Prepares an iteration. The schedule is valid for the trace, and the timeline belongs to both.
    pub fn new(trace: &'a Trace, schedule: &'a Schedule, predicted: &'a Timeline) -> Iteration<'a> {
        let mut at = Seconds::ZERO;
        let mut keeping = vec![at];
        for op in &trace.ops {
            at += op.fastest_seconds();
            keeping.push(at);
        }
        let mut first_run = vec![None; trace.ops.len()];
        for (id, command) in schedule.numbered_commands() {
            if let Command::Compute { op, again: false, .. } = command {
                first_run[op.index()].get_or_insert(id);
            }
        }
        let lane = |stream| {
            let all = schedule.commands.iter().zip(&predicted.spans);
            all.filter(|(command, _)| command.stream() == stream).map(|(_, span)| *span).collect()
        };
        let lanes = [Stream::Offload, Stream::Prefetch].map(lane);
        let mut stalls = vec![Seconds::ZERO; trace.tensors.len()];
        for stall in predicted.stalls(schedule).iter().filter(|stall| stall.stream == Stream::Compute) {
            if let Cause::Offload(id) | Cause::Prefetch(id) | Cause::Link(id) = stall.cause
                && let Some((tensor, _)) = moved(trace, &schedule.commands[id.index()])
            {
                stalls[tensor.index()] += stall.span.seconds();
            }
        }
        let in_use = trace.memory().in_use;
        let recomputed = needed_again(schedule, trace.tensors.len());
        let fates = fates(trace, schedule, &recomputed);
        Iteration { trace, schedule, predicted, fates, keeping, in_use, first_run, lanes, stalls, recomputed }
    }

    /// Returns the time between two uses if everything were kept: from the end of one op to the start of the other.
    pub fn slack(&self, between: (usize, usize)) -> Seconds {
        (self.keeping[between.1] - self.keeping[between.0 + 1]).max(Seconds::ZERO)
    }

    /// Returns `true` if the tensor is made in the forward pass, or there from the start; otherwise it belongs to the backward
    /// pass.
    pub fn is_map(&self, fate: &Fate) -> bool {
        fate.maker.is_none_or(|op| self.trace.ops[op.index()].phase == Phase::Forward)
    }

    /// Returns the seconds of moving a whole activation, out and back.
    pub fn transfer(&self, bytes: Bytes) -> [Seconds; 2] {
        [Stream::Offload, Stream::Prefetch].map(|direction| self.schedule.link.seconds(direction, bytes))
    }

    /// Returns the time that compute waits for transfers of a tensor.
    pub fn stalled(&self, tensor: TensorId) -> Seconds {
        self.stalls[tensor.index()]
    }

    /// Returns the combined decision about several activations.
    pub fn decision(fates: &[&Fate]) -> Decision {
        fates.iter().fold(Decision::default(), |all, fate| Decision {
            kept: all.kept || fate.decision.kept,
            swapped: all.swapped || fate.decision.swapped,
            recomputed: all.recomputed || fate.decision.recomputed,
        })
    }

    /// Explains the decisions about one layer's activations: one sentence for each kind of decision.
    pub fn reason(&self, fates: &[&Fate]) -> String {
        if fates.is_empty() {
            return "none: the backward pass reads nothing that it makes".to_owned();
        }
        let (maps, others): (Vec<&Fate>, Vec<&Fate>) = fates.iter().partition(|fate| self.is_map(fate));
        let of = |which: fn(&Decision) -> bool| -> Vec<&Fate> {
            maps.iter().copied().filter(|fate| which(&fate.decision)).collect()
        };
        let mut groups = vec![
            (of(|d| d.kept && !d.swapped && !d.recomputed), Iteration::kept as fn(&Self, &[&Fate]) -> String),
            (of(|d| d.swapped), Iteration::swapped),
            (of(|d| d.recomputed), Iteration::recomputed),
        ];
        groups.retain(|(group, _)| !group.is_empty());
        let mixed = groups.len() > 1 && maps.len() > 1;
        let said = groups.iter().map(|(group, say)| match say(self, group) {
            said if mixed => said.replacen(": ", &format!(" ({} of {} maps): ", group.len(), maps.len()), 1),
            said => said,
        });
        let mut words: Vec<String> = said.collect();
        // Tensors of the backward pass have their own gaps.
        let others: Vec<&Fate> = others.into_iter().filter(|fate| fate.decision.swapped).collect();
        if !others.is_empty() {
            let of = if others.len() == 1 { "a gradient" } else { &format!("{} gradients", others.len()) };
            words.push(self.swapped(&others).replacen(": ", &format!(" ({of}): "), 1));
        }
        words.join("; ")
    }

    fn kept(&self, group: &[&Fate]) -> String {
        let between = common(group);
        let bytes: Bytes = group.iter().map(|fate| fate.bytes).sum();
        let open = between.0 + 1..between.1.max(between.0 + 1);
        let most = self.in_use[open.clone()].iter().copied().max();
        let budget = self.schedule.budget_bytes;
        let Some(most) = most else {
            return "kept: the backward pass reads it right after its last use forward".to_owned();
        };
        if most <= budget {
            return format!("kept: memory is not short across it (at most {most} of {budget} in use)");
        }
        let share = bytes.0 as f64 / self.schedule.pool_bytes.0.max(1) as f64;
        if share < SMALL {
            return format!("kept: small ({bytes}, {} of the pool)", percent(share));
        }
        let again = self.again_in_words(group);
        let (slack, [out, back]) = (self.slack(between), self.transfers(group));
        let moving = out + back;
        if moving > slack {
            return format!("kept: its transfer takes {moving}, the slack is {slack}{again}");
        }
        let free = self.free(between);
        if out > free[0] || back > free[1] {
            return format!(
                "kept: its transfer takes {out} out and {back} back; of the {} between its uses the link is free for {} out \
                 and {} back{again}",
                self.window(between).seconds(),
                free[0],
                free[1]
            );
        }
        format!(
            "kept: there is room for it, as others leave or are recomputed; its transfer would take {moving}, the slack is \
             {slack}{again}"
        )
    }

    /// Returns the seconds of recomputing these activations, if possible, as the end of a sentence.
    fn again_in_words(&self, group: &[&Fate]) -> String {
        let makers = || group.iter().filter_map(|fate| fate.maker);
        let possible = |op: OpId| self.trace.ops[op.index()].recomputable;
        if makers().count() < group.len() || !makers().all(possible) {
            return String::new();
        }
        let mut ops: Vec<OpId> = makers().collect();
        ops.dedup();
        let seconds: Seconds =
            ops.iter().map(|op| self.keeping[op.index() + 1] - self.keeping[op.index()]).sum();
        format!("; recomputing it would take {seconds}")
    }

    fn swapped(&self, group: &[&Fate]) -> String {
        let whole: Bytes = group.iter().map(|fate| fate.bytes).sum();
        let transfers: Vec<CommandId> = group.iter().flat_map(|fate| &fate.transfers).copied().collect();
        let sums = [Stream::Offload, Stream::Prefetch].map(|stream| {
            let of = |id: &&CommandId| self.schedule.commands[id.index()].stream() == stream;
            let ids = || transfers.iter().filter(of);
            let bytes = ids().map(|id| self.moved_bytes(*id)).fold(0, u64::saturating_add);
            (Bytes(bytes), ids().map(|id| self.seconds(*id)).sum::<Seconds>())
        });
        let [(out, leaving), (back, returning)] = sums;
        let partly = group.iter().any(|fate| fate.decision.kept);
        let mut words = if partly {
            format!("partly swapped: {out} of {whole} leave in {leaving}")
        } else {
            format!("swapped: {out} leave in {leaving}")
        };
        if back == out {
            words += &format!(" and return in {returning}");
        } else if back > Bytes::ZERO {
            // One host copy serves several gaps, and recomputed bytes need not return.
            words += &format!(" and {back} return in {returning}");
        }
        words += &format!(", the slack is {}", self.slack(common(group)));
        let gaps = group.iter().map(|fate| self.returns(fate)).max().unwrap_or(0);
        if gaps > 1 {
            words += &format!("; it returns {gaps} times");
        }
        let stalled: Seconds = group.iter().map(|fate| self.stalled(fate.tensor)).sum();
        if stalled > Seconds::ZERO {
            words += &format!("; compute waits {stalled} for it");
        }
        words
    }

    /// Returns how often an activation returns: the most prefetches of one of its bytes.
    fn returns(&self, fate: &Fate) -> usize {
        let pieces = pieces(self.trace, self.schedule, &fate.transfers, Stream::Prefetch);
        pieces.iter().map(|p| pieces.iter().filter(|q| q.contains(&p.start)).count()).max().unwrap_or(0)
    }

    fn recomputed(&self, group: &[&Fate]) -> String {
        let whole: Bytes = group.iter().map(|fate| fate.bytes).sum();
        // One run may make several activations.
        let runs: BTreeSet<CommandId> = group.iter().flat_map(|fate| &fate.again).copied().collect();
        let seconds: Seconds = runs.iter().map(|id| self.seconds(*id)).sum();
        let [out, back] = self.transfers(group);
        let moving = out + back;
        let often = match group.iter().map(|fate| self.times(fate)).max() {
            Some(times @ 2..) => format!(" {times} times"),
            _ => String::new(),
        };
        let others = match self.made_for_others(group, &runs) {
            Bytes::ZERO => String::new(),
            others => format!(", and {others} that others use"),
        };
        format!("recomputed: {seconds} to make {whole} again{often}{others}; moving it would take {moving}")
    }

    /// Returns the bytes of other tensors that these runs also make, if those are read.
    fn made_for_others(&self, group: &[&Fate], runs: &BTreeSet<CommandId>) -> Bytes {
        let made = runs.iter().flat_map(|id| match self.schedule.commands[id.index()] {
            Command::Compute { op, .. } => &self.trace.ops[op.index()].writes[..],
            _ => &[],
        });
        let counts =
            |t: &&TensorId| self.recomputed[t.index()] && !group.iter().any(|fate| fate.tensor == **t);
        let others: BTreeSet<&TensorId> = made.filter(counts).collect();
        others.iter().map(|t| self.trace.tensors[t.index()].bytes).sum()
    }

    /// Returns how often an activation is recomputed: the most runs of one op that writes it.
    pub fn times(&self, fate: &Fate) -> usize {
        let op = |id: &CommandId| match self.schedule.commands[id.index()] {
            Command::Compute { op, .. } => Some(op),
            _ => None,
        };
        let runs = |id| fate.again.iter().filter(|other| op(other) == op(id)).count();
        fate.again.iter().map(runs).max().unwrap_or(0)
    }

    /// Returns the total seconds of moving each of these whole activations, out and back.
    fn transfers(&self, group: &[&Fate]) -> [Seconds; 2] {
        group
            .iter()
            .map(|fate| self.transfer(fate.bytes))
            .fold([Seconds::ZERO; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    }

    /// Returns the predicted seconds of a command.
    pub fn seconds(&self, id: CommandId) -> Seconds {
        self.predicted.spans[id.index()].seconds()
    }

    /// Returns the bytes that a transfer moves.
    pub fn moved_bytes(&self, id: CommandId) -> u64 {
        moved(self.trace, &self.schedule.commands[id.index()]).map_or(0, |(_, piece)| piece.end - piece.start)
    }

    /// Returns the time between two uses in the predicted timeline.
    fn window(&self, between: (usize, usize)) -> Span {
        let span = |op: usize| self.first_run[op].map(|id| self.predicted.spans[id.index()]);
        let start = span(between.0).map_or(Seconds::ZERO, |span| span.end);
        let end = span(between.1).map_or(self.predicted.makespan(), |span| span.start);
        Span { start, end: end.max(start) }
    }

    /// Returns the time that each direction of the link is free between two uses.
    fn free(&self, between: (usize, usize)) -> [Seconds; 2] {
        let window = self.window(between);
        let inside =
            |span: &Span| (span.end.min(window.end) - span.start.max(window.start)).max(Seconds::ZERO);
        [0, 1].map(|direction: usize| window.seconds() - self.lanes[direction].iter().map(inside).sum())
    }
}

/// Returns the range in which none of several activations is used: after the last of their last uses, before the first of their
/// next uses.
pub fn common(group: &[&Fate]) -> (usize, usize) {
    let after = group.iter().map(|fate| fate.between.0).max().unwrap_or(0);
    let before = group.iter().map(|fate| fate.between.1).min().unwrap_or(0);
    (after, before.max(after + 1))
}

/// Formats a share in percent.
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 1e-3 { "less than 0.1 %".to_owned() } else { format!("{:.1} %", share * 100.0) }
}

/// Uses of a tensor that determine its fate.
#[derive(Clone, Default)]
struct Uses {
    maker: Option<OpId>,
    last_forward: Option<usize>,
    first_after: Option<usize>,
    /// `true` if the backward pass wrote it before reading it, so that the forward pass's contents are not needed.
    overwritten: bool,
}

fn uses(trace: &Trace) -> Vec<Uses> {
    let mut uses = vec![Uses::default(); trace.tensors.len()];
    for (i, op) in trace.ops.iter().enumerate() {
        let forward = op.phase == Phase::Forward;
        for t in &op.reads {
            let one = &mut uses[t.index()];
            if forward {
                one.last_forward = Some(i);
            } else if !one.overwritten {
                one.first_after.get_or_insert(i);
            }
        }
        for t in &op.writes {
            let one = &mut uses[t.index()];
            if forward {
                (one.maker, one.last_forward) = (Some(OpId::new(i)), Some(i));
            } else {
                one.overwritten = true;
            }
        }
    }
    uses
}

/// Returns the fate of every tensor that the forward pass leaves for the backward pass, or for a recomputation.
fn fates(trace: &Trace, schedule: &Schedule, recomputed: &[bool]) -> Vec<Fate> {
    let mut uses = uses(trace);
    let mut transfers: Vec<Vec<CommandId>> = vec![Vec::new(); trace.tensors.len()];
    let mut again: Vec<Vec<CommandId>> = vec![Vec::new(); trace.tensors.len()];
    let mut sources: Vec<Option<CommandId>> = vec![None; trace.tensors.len()];
    for (id, command) in schedule.numbered_commands() {
        match command {
            Command::Compute { op, again: true, .. } => {
                let op = &trace.ops[op.index()];
                for t in &op.reads {
                    sources[t.index()].get_or_insert(id);
                }
                op.writes.iter().for_each(|t| again[t.index()].push(id));
            }
            Command::Compute { .. } => {}
            Command::Offload { tensor, .. } | Command::Prefetch { tensor, .. } => {
                transfers[tensor.index()].push(id);
            }
        }
    }
    let next = next_ops(schedule, trace.ops.len());
    let mut fates = Vec::new();
    for (i, tensor) in trace.tensors.iter().enumerate().filter(|(_, tensor)| tensor.bytes > Bytes::ZERO) {
        let Uses { maker, last_forward, first_after, .. } = std::mem::take(&mut uses[i]);
        // A recomputation reads it before the op that needs its result.
        let source = sources[i].filter(|_| again[i].is_empty()).map(|id| next[id.index()]);
        let source = source.filter(|op| last_forward.is_some_and(|last| *op > last));
        let before = [first_after, source].into_iter().flatten().min();
        let moves = !transfers[i].is_empty();
        let (maker, between) = match before {
            Some(before) => (maker, (last_forward.unwrap_or(0).min(before.saturating_sub(1)), before)),
            // A gradient, or any other tensor of the backward pass, is listed if it is moved.
            None if moves => widest_gap(trace, TensorId::new(i)),
            None => continue,
        };
        let recomputed = recomputed[i] && !again[i].is_empty();
        let left: u64 = outside(trace, schedule, &transfers[i]);
        let kept = if moves { left < tensor.bytes.0 && !recomputed } else { !recomputed };
        fates.push(Fate {
            tensor: TensorId::new(i),
            maker,
            between,
            bytes: tensor.bytes,
            decision: Decision { kept, swapped: moves, recomputed },
            transfers: std::mem::take(&mut transfers[i]),
            again: if recomputed { std::mem::take(&mut again[i]) } else { Vec::new() },
        });
    }
    fates
}

/// Returns the op that first writes a tensor, and its two consecutive uses that lie farthest apart.
fn widest_gap(trace: &Trace, tensor: TensorId) -> (Option<OpId>, (usize, usize)) {
    let touches = |op: &plimsoll_ir::trace::Op| op.touches().any(|t| t == tensor);
    let all: Vec<usize> = (0..trace.ops.len()).filter(|i| touches(&trace.ops[*i])).collect();
    let widest = all.windows(2).map(|pair| (pair[0], pair[1])).max_by_key(|(a, b)| b - a);
    let maker = all.iter().copied().find(|i| trace.ops[*i].writes.contains(&tensor)).map(OpId::new);
    let first = all.first().copied().unwrap_or(0);
    (maker, widest.unwrap_or((first, first + 1)))
}

/// By tensor: `true` if a recomputation makes it for others. A recomputation with several outputs may make unneeded ones.
fn needed_again(schedule: &Schedule, tensors: usize) -> Vec<bool> {
    use plimsoll_ir::schedule::Holds;
    let mut needed = vec![false; tensors];
    for buffer in &schedule.buffers {
        let Holds::Tensor { tensor, .. } = buffer.holds else { continue };
        let Some(opens) = buffer.opens else { continue };
        let again = matches!(schedule.commands[opens.index()], Command::Compute { again: true, .. });
        needed[tensor.index()] |= again && buffer.closes.iter().any(|close| *close != opens);
    }
    needed
}

/// By command: the op of the next command that runs an op for the first time; the last op if there is none.
fn next_ops(schedule: &Schedule, ops: usize) -> Vec<usize> {
    let mut next = ops.saturating_sub(1);
    let mut all = vec![next; schedule.commands.len()];
    for (id, command) in schedule.commands.iter().enumerate().rev() {
        if let Command::Compute { op, again: false, .. } = command {
            next = op.index();
        }
        all[id] = next;
    }
    all
}

/// Returns the pieces that those of the transfers move that run on this stream.
fn pieces(trace: &Trace, schedule: &Schedule, transfers: &[CommandId], stream: Stream) -> Vec<Range<u64>> {
    let commands = transfers.iter().map(|id| &schedule.commands[id.index()]);
    let of_stream = commands.filter(|command| command.stream() == stream);
    of_stream.filter_map(|command| moved(trace, command).map(|(_, piece)| piece)).collect()
}

/// Returns how many bytes of a tensor its offloads copy, each counted once.
fn outside(trace: &Trace, schedule: &Schedule, transfers: &[CommandId]) -> u64 {
    let mut pieces = pieces(trace, schedule, transfers, Stream::Offload);
    pieces.sort_by_key(|piece| piece.start);
    let (mut end, mut sum) = (0, 0);
    for piece in pieces {
        sum += piece.end.saturating_sub(piece.start.max(end));
        end = end.max(piece.end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::BytesPerSecond;
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::simulate::simulate;
    use plimsoll_ir::trace::{Op, Tensor, TensorKind, TraceKind};
    use plimsoll_tuner::{Allow, Outcome, PlanRequest, Policy, plan};

    const MIB: u64 = 1 << 20;

    /// Returns a chain of four layers that each make an activation of the given MiB, in the given milliseconds; the backward pass
    /// reads them in reverse order.
    fn chain(sizes: [u64; 4], milliseconds: f64) -> Trace {
        let map = |i: usize| Tensor {
            name: format!("map{i}"),
            bytes: Bytes(sizes[i] * MIB),
            kind: TensorKind::Activation,
        };
        let op = |name: String, layer: usize, phase, reads: Vec<usize>, writes: Vec<usize>| Op {
            name,
            layer: format!("layer{layer}"),
            kind: "conv".into(),
            phase,
            seconds: Seconds(milliseconds / 1e3),
            reads: reads.into_iter().map(TensorId::new).collect(),
            writes: writes.into_iter().map(TensorId::new).collect(),
            workspace_bytes: Bytes::ZERO,
            flops: 0,
            recomputable: phase == Phase::Forward,
            alternatives: Vec::new(),
        };
        let forward = |i: usize| {
            let reads = if i == 0 { vec![] } else { vec![i - 1] };
            op(format!("f{i}"), i, Phase::Forward, reads, vec![i])
        };
        let mut ops: Vec<Op> = (0..4).map(forward).collect();
        ops.extend((0..4).rev().map(|i| op(format!("b{i}"), i, Phase::Backward, vec![i], vec![])));
        let tensors = (0..4).map(map).collect();
        Trace { kind: TraceKind, name: "chain".into(), batch: 1, resident_bytes: Bytes::ZERO, tensors, ops }
    }

    fn planned(trace: &Trace, mib: u64, rate: f64, swap: bool, policy: Policy) -> Schedule {
        let link = Link { latency_seconds: Seconds(1e-5), ..Link::symmetric(BytesPerSecond(rate)) };
        let allow = Allow { swap, recompute: !swap, pieces: false, host: None };
        let request = PlanRequest { allow, ..PlanRequest::new(Bytes(mib * MIB), link, policy) };
        match plan(trace, &request) {
            Ok(Outcome::Planned(plan)) => plan.schedule,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the decision and reason of every activation of a chain under a schedule.
    fn said(trace: &Trace, schedule: &Schedule) -> Vec<(String, String)> {
        let predicted = simulate(trace, schedule);
        let iteration = Iteration::new(trace, schedule, &predicted);
        assert_eq!(iteration.fates.len(), 4, "every map is read by the backward pass");
        let fates = iteration.fates.iter();
        fates.map(|fate| (fate.decision.words(), iteration.reason(&[fate]))).collect()
    }

    /// Checks the reason for the decision about one activation.
    #[track_caller]
    fn check(trace: &Trace, schedule: &Schedule, at: usize, expected: &str) {
        let all = said(trace, schedule);
        let (decision, reason) = &all[at];
        assert_eq!(reason, expected, "{all:?}");
        assert!(expected.starts_with(decision.as_str()), "{all:?}");
    }

    #[test]
    fn every_decision_is_told_with_the_numbers_that_decided() {
        let trace = chain([8; 4], 10.0);
        let roomy = planned(&trace, 64, 1e10, true, Policy::Plimsoll);
        for at in 0..3 {
            let expected = "kept: memory is not short across it (at most 32 MiB of 64 MiB in use)";
            check(&trace, &roomy, at, expected);
        }
        check(&trace, &roomy, 3, "kept: the backward pass reads it right after its last use forward");

        // 8 MiB at 10 GB/s and 10 us. Activation 0 is used last by op 1 and next by op 7, so ops 2 to 6 lie between, and so on.
        let swaps = planned(&trace, 24, 1e10, true, Policy::Plimsoll);
        let all = said(&trace, &swaps);
        let swapped: Vec<usize> = (0..4).filter(|at| all[*at].0 == "swapped").collect();
        assert_eq!(swapped.len(), 1, "one map of four does not fit: {all:?}");
        let slack = ["50 ms", "30 ms", "10 ms"][swapped[0]];
        let expected =
            format!("swapped: 8 MiB leave in 848.9 µs and return in 848.9 µs, the slack is {slack}");
        check(&trace, &swaps, swapped[0], &expected);

        let recomputes = planned(&trace, 24, 1e8, false, Policy::Plimsoll);
        let all = said(&trace, &recomputes);
        let again: Vec<usize> = (0..4).filter(|at| all[*at].0 == "recomputed").collect();
        assert!(!again.is_empty(), "{all:?}");
        for at in again {
            let expected = "recomputed: 10 ms to make 8 MiB again; moving it would take 167.8 ms";
            check(&trace, &recomputes, at, expected);
        }

        // Activation 2 has 10 ms of slack, and its transfer takes 16.8 ms.
        let slow = planned(&trace, 24, 1e9, true, Policy::Plimsoll);
        let expected =
            "kept: its transfer takes 16.8 ms, the slack is 10 ms; recomputing it would take 10 ms";
        check(&trace, &slow, 2, expected);

        let mut small = chain([40; 4], 10.0);
        small.tensors[2].bytes = Bytes(4096);
        let schedule = planned(&small, 90, 1e10, true, Policy::Plimsoll);
        check(&small, &schedule, 2, "kept: small (4 KiB, less than 0.1 % of the pool)");

        let hasty = chain([8; 4], 1.0);
        let all = said(&hasty, &planned(&hasty, 24, 1e9, true, Policy::Naive));
        let expected = "swapped: 8 MiB leave in 8.399 ms and return in 8.399 ms, the slack is 5 ms";
        assert!(all[0].1.starts_with(expected), "{all:?}");
        assert!(all.iter().any(|(_, reason)| reason.contains("; compute waits ")), "{all:?}");
    }

    #[test]
    fn maps_of_one_layer_are_told_of_together_by_what_becomes_of_them() {
        let trace = chain([8; 4], 10.0);
        let schedule = planned(&trace, 24, 1e10, true, Policy::Plimsoll);
        let predicted = simulate(&trace, &schedule);
        let iteration = Iteration::new(&trace, &schedule, &predicted);
        let all: Vec<&Fate> = iteration.fates.iter().collect();
        assert_eq!(Iteration::decision(&all).words(), "kept + swapped");
        let reason = iteration.reason(&all);
        assert!(reason.starts_with("kept (3 of 4 maps): "), "{reason}");
        assert!(reason.contains("; swapped (1 of 4 maps): 8 MiB leave"), "{reason}");
        assert_eq!(iteration.reason(&[]), "none: the backward pass reads nothing that it makes");
    }

    #[test]
    fn what_a_run_again_makes_besides_is_told_where_somebody_reads_it() {
        // Every layer also makes a mask of 4 KiB, which its backward op reads.
        let mut trace = chain([8; 4], 10.0);
        for layer in 0..4 {
            let mask = TensorId::new(trace.tensors.len());
            let (name, kind) = (format!("mask{layer}"), TensorKind::Other);
            trace.tensors.push(Tensor { name, bytes: Bytes(4096), kind });
            trace.ops[layer].writes.push(mask);
            trace.ops[7 - layer].reads.push(mask);
        }
        let schedule = planned(&trace, 25, 1e8, false, Policy::Plimsoll);
        let predicted = simulate(&trace, &schedule);
        let iteration = Iteration::new(&trace, &schedule, &predicted);
        let fate = |tensor: usize| {
            let found = iteration.fates.iter().find(|fate| fate.tensor == TensorId::new(tensor));
            found.expect("the backward pass reads it")
        };
        let again: Vec<usize> = (0..4).filter(|layer| fate(*layer).decision.recomputed).collect();
        assert!(!again.is_empty(), "32 MiB do not fit 25");
        for layer in again {
            let (map, mask) = (fate(layer), fate(layer + 4));
            let besides = if mask.decision.recomputed { ", and 4 KiB that others use" } else { "" };
            let expected =
                format!("recomputed: 10 ms to make 8 MiB again{besides}; moving it would take 167.8 ms");
            assert_eq!(iteration.reason(&[map]), expected);
            // Explained together, there are no others.
            let both = iteration.reason(&[map, mask]);
            assert!(!both.contains("that others use"), "{both}");
        }
    }
}
