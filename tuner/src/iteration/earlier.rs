//! An existing plan, as decisions about a different trace, budget or link.
//!
//! A schedule shows the decision about each gap: swapped if it contains a prefetch, recomputed if the op that makes its value
//! runs a second time, and else kept ([`Earlier::new`]). Two traces share a tensor or an op that has the same name in both, for
//! example with a different batch size, or a network with a layer more. A gap is the same if its value and the op at its end are,
//! or else the op at its start ([`Earlier::decisions`]). Values that only the new trace has are kept; those that only the earlier
//! one had are left out.
//!
//! This file deliberately does not make the decisions fit (`policies/plimsoll/adapted.rs`).

use crate::iteration::values::{Choice, Decisions, GapId, OpAlternative, PARTS, ValueId, Values};
use crate::request::{Allow, Error};
use plimsoll_ir::schedule::{Command, Schedule, moved};
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{Document, OpId, TensorId, check};
use std::collections::HashMap;
use typed_index_collections::{TiSlice, TiVec};

/// Schedule with the decisions about its trace, from which plans for other traces can be made.
#[derive(Clone, Debug)]
pub struct Earlier {
    trace: String,
    schedule: Schedule,
    ops: Names<OpId>,
    tensors: Names<TensorId>,
    values: Values,
    value_of: HashMap<(TensorId, Option<OpId>), ValueId>,
    decisions: Decisions,
    /// By op: name of the alternative in which it runs; `None` for the op itself.
    alternatives: TiVec<OpId, Option<String>>,
}

impl Earlier {
    /// Reads the decisions of a schedule about its trace.
    ///
    /// # Errors
    ///
    /// The trace contradicts itself, or the schedule is not valid for it.
    pub fn new(trace: &Trace, schedule: &Schedule) -> Result<Earlier, Error> {
        trace.validate()?;
        check::check(trace, schedule).map_err(|violation| {
            let Trace { name, batch, .. } = trace;
            Error::usage(format_args!(
                "the earlier schedule is not valid for its trace, `{name}` at batch {batch}: {violation}"
            ))
        })?;
        let pool = schedule.budget_bytes.saturating_sub(trace.resident_bytes);
        let values = Values::new(trace, pool, Allow::ALL);
        let mut alternatives: TiVec<OpId, Option<u32>> = vec![None; trace.ops.len()].into();
        for command in &schedule.commands {
            if let Command::Compute { op, again: false, alternative, .. } = command {
                alternatives[*op] = *alternative;
            }
        }
        let name = |(op, k): (&Op, &Option<u32>)| alternative_name(op, *k).map(str::to_owned);
        Ok(Earlier {
            trace: trace.name.clone(),
            schedule: schedule.clone(),
            ops: Names::new(trace.ops.iter().map(|op| op.name.as_str())),
            tensors: Names::new(trace.tensors.iter().map(|tensor| tensor.name.as_str())),
            value_of: values.by_maker(),
            decisions: Reading::new(&values).read(trace, schedule),
            alternatives: trace.ops.iter().zip(&alternatives).map(name).collect(),
            values,
        })
    }

    /// Returns the name of the schedule's trace.
    pub fn trace(&self) -> &str {
        &self.trace
    }

    /// Returns the schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Returns the same decisions about the values of a different trace; `None` if the traces share no value. They need not fit.
    pub(crate) fn decisions(&self, trace: &Trace, values: &Values) -> Option<Decisions> {
        let ops: TiVec<OpId, Option<OpId>> =
            self.ops.of_all(trace.ops.iter().map(|op| op.name.as_str())).into();
        let tensors: TiVec<TensorId, Option<TensorId>> =
            self.tensors.of_all(trace.tensors.iter().map(|tensor| tensor.name.as_str())).into();
        let mut decisions = values.keep_all();
        decisions.chunks = self.decisions.chunks;
        let mut shares = false;
        let mut gap_of: TiVec<GapId, Option<GapId>> = vec![None; self.values.gaps.len()].into();
        // The earlier op; the inner `None` is the start or the end of the iteration.
        let like = |op: Option<OpId>| op.map_or(Some(None), |op| ops[op].map(Some));
        for v in values.tensor.keys() {
            let (Some(tensor), Some(maker)) = (tensors[values.tensor[v]], like(values.maker[v])) else {
                continue;
            };
            let Some(&known) = self.value_of.get(&(tensor, maker)) else { continue };
            shares = true;
            decisions.parts[v] = self.decisions.parts[known];
            for g in values.gaps_of(v) {
                let gap = &values.gaps[g];
                let Some(same) = self.gap_like(known, like(gap.after), like(gap.before)) else { continue };
                let choice = self.decisions.choices[same];
                if choice.is_open(gap) {
                    decisions.choices[g] = choice;
                    gap_of[same] = Some(g);
                }
            }
        }
        self.add_early(values, &ops, &gap_of, &mut decisions);
        for (op, here) in trace.ops.iter().zip(values.alternatives.keys()) {
            let Some(known) = ops[here] else { continue };
            let name = self.alternatives[known].as_deref();
            let same = |of: &OpAlternative| alternative_name(op, of.alternative) == name;
            let at = values.alternatives[here].iter().position(same).unwrap_or_default();
            decisions.alternatives[here] = u8::try_from(at).unwrap_or_default();
        }
        shares.then_some(decisions)
    }

    /// Returns the gap of an earlier value that ends with this op, or else begins after the other op; `None` for ops that the
    /// earlier trace lacks.
    fn gap_like(
        &self,
        value: ValueId,
        after: Option<Option<OpId>>,
        before: Option<Option<OpId>>,
    ) -> Option<GapId> {
        let likeness = |g: &GapId| {
            let gap = &self.values.gaps[*g];
            (before == Some(gap.before), after == Some(gap.after))
        };
        let best = self.values.gaps_of(value).max_by_key(likeness)?;
        (likeness(&best) > (false, false)).then_some(best)
    }

    fn add_early(
        &self,
        values: &Values,
        ops: &TiSlice<OpId, Option<OpId>>,
        gap_of: &TiSlice<GapId, Option<GapId>>,
        decisions: &mut Decisions,
    ) {
        for (known, gap) in &self.decisions.early {
            let op = ops.keys().rev().find(|op| ops[*op] == Some(*known));
            if let (Some(op), Some(g)) = (op, gap_of[*gap]) {
                let gap = &values.gaps[g];
                if gap.begin() <= op && gap.before.is_some_and(|before| op < before) {
                    decisions.set_early(g, Some(op));
                }
            }
        }
    }
}

fn alternative_name(op: &Op, alternative: Option<u32>) -> Option<&str> {
    alternative.map(|k| op.alternatives[k as usize].name.as_str())
}

/// By name: positions of the items that have it, in order.
#[derive(Clone, Debug)]
struct Names<Id>(HashMap<String, Vec<Id>>);

impl<Id: Copy + From<usize>> Names<Id> {
    fn new<'n>(names: impl Iterator<Item = &'n str>) -> Names<Id> {
        let mut all: HashMap<String, Vec<Id>> = HashMap::new();
        for (at, name) in names.enumerate() {
            all.entry(name.to_owned()).or_default().push(Id::from(at));
        }
        Names(all)
    }

    /// For each of these names, returns its position here: the first position at its first occurrence, the second at the next;
    /// `None` if there is none.
    fn of_all<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<Option<Id>> {
        let mut came: HashMap<&str, usize> = HashMap::new();
        names
            .map(|name| {
                let at = came.entry(name).or_default();
                *at += 1;
                self.0.get(name)?.get(*at - 1).copied()
            })
            .collect()
    }
}

/// Observed behaviour of a schedule in a gap.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Prefetched bytes, and their number of pieces.
    bytes: u64,
    pieces: u8,
    /// Number of times that its value is recomputed.
    runs: u32,
    /// Op before which it is recomputed, if nothing that runs for that op reads it.
    early: Option<OpId>,
    /// `true` if a recomputed op reads it, and it was not recomputed before.
    read: bool,
}

/// Reader of a schedule, from its first command to the last.
struct Reading<'a> {
    values: &'a Values,
    seen: TiVec<GapId, Seen>,
    /// By value: the gap that it is in.
    gap: TiVec<ValueId, Option<GapId>>,
    /// By tensor: its newest value.
    newest: HashMap<TensorId, ValueId>,
    /// Ops that are recomputed for the next op of the trace.
    again: Vec<OpId>,
    /// By value: `true` if one of the later of these, or that op, reads it.
    wanted: TiVec<ValueId, bool>,
}

impl<'a> Reading<'a> {
    fn new(values: &'a Values) -> Reading<'a> {
        let at_start = |v: ValueId| if values.maker[v].is_none() { values.gaps_of(v).next() } else { None };
        let there = values.tensor.keys().filter(|v| values.maker[*v].is_none());
        Reading {
            values,
            seen: vec![Seen::default(); values.gaps.len()].into(),
            gap: values.tensor.keys().map(at_start).collect(),
            newest: there.map(|v| (values.tensor[v], v)).collect(),
            again: Vec::new(),
            wanted: vec![false; values.tensor.len()].into(),
        }
    }

    fn read(mut self, trace: &Trace, schedule: &Schedule) -> Decisions {
        for command in &schedule.commands {
            match command {
                Command::Compute { op, again: true, .. } => self.again.push(*op),
                Command::Compute { op, .. } => self.run(*op),
                Command::Prefetch { .. } => self.prefetch(trace, command),
                Command::Offload { .. } => {}
            }
        }
        self.decisions()
    }

    fn prefetch(&mut self, trace: &Trace, command: &Command) {
        let moved = moved(trace, command);
        let Some((tensor, bytes)) = moved else { unreachable!("a checked schedule moves what there is") };
        if let Some(g) = self.newest.get(&tensor).and_then(|v| self.gap[*v]) {
            let seen = &mut self.seen[g];
            seen.bytes += bytes.end - bytes.start;
            seen.pieces = seen.pieces.saturating_add(1);
        }
    }

    /// Runs an op of the trace, after those that are recomputed for it.
    fn run(&mut self, op: OpId) {
        let values = self.values;
        let (reads, writes) = (values.reads.row(op), values.writes.row(op));
        if !self.again.is_empty() {
            reads.iter().for_each(|z| self.wanted[z.value] = true);
            self.run_again(op);
            reads.iter().for_each(|z| self.wanted[z.value] = false);
        }
        self.newest.extend(writes.iter().map(|y| (values.tensor[y.value], y.value)));
        reads.iter().chain(writes).for_each(|touch| self.gap[touch.value] = touch.gap);
    }

    fn run_again(&mut self, serves: OpId) {
        let values = self.values;
        let again = std::mem::take(&mut self.again);
        for &op in &again {
            for z in values.reads.row(op) {
                if let Some(g) = self.gap[z.value] {
                    self.seen[g].read |= self.seen[g].runs == 0;
                }
            }
            for y in values.writes.row(op) {
                if let Some(g) = self.gap[y.value] {
                    self.seen[g].runs += 1;
                }
            }
        }
        for &op in again.iter().rev() {
            for y in values.writes.row(op) {
                if let Some(g) = self.gap[y.value].filter(|_| !self.wanted[y.value]) {
                    self.seen[g].early = Some(serves);
                }
            }
            values.reads.row(op).iter().for_each(|z| self.wanted[z.value] = true);
        }
        for &op in &again {
            values.reads.row(op).iter().for_each(|z| self.wanted[z.value] = false);
        }
    }

    fn decisions(self) -> Decisions {
        let values = self.values;
        let mut decisions = values.keep_all();
        let mut swapped: TiVec<ValueId, u64> = vec![0; values.tensor.len()].into();
        for (g, seen) in self.seen.iter_enumerated() {
            let gap = &values.gaps[g];
            let choice = match seen {
                Seen { bytes: 1.., .. } => Choice::Swap,
                Seen { runs: 2.., .. } => Choice::RecomputeEach,
                Seen { runs: 1, .. } => Choice::Recompute,
                Seen { read: true, .. } => Choice::Keep,
                _ => decisions.choices[g],
            };
            if !choice.is_open(gap) {
                continue;
            }
            decisions.choices[g] = choice;
            if choice == Choice::Swap {
                swapped[gap.value] = swapped[gap.value].max(seen.bytes);
                decisions.chunks = decisions.chunks.max(seen.pieces.min(PARTS));
            } else if let Some(op) =
                seen.early.filter(|_| choice == Choice::Recompute && gap.before.is_some())
            {
                decisions.set_early(g, Some(op));
            }
        }
        for (v, bytes) in swapped.iter_enumerated().filter(|(_, bytes)| **bytes > 0) {
            decisions.parts[v] = (1..PARTS).find(|parts| values.part(v, *parts) >= *bytes).unwrap_or(PARTS);
        }
        decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::walk::{Iteration, Limit, Walk};
    use crate::{Limits, Outcome, PlanRequest, Policy, plan};
    use plimsoll_ir::schedule::Link;
    use plimsoll_ir::{Bytes, BytesPerSecond};
    use plimsoll_testing::random_trace_of;

    /// The decisions read from a schedule lead to the same steps and to the same bytes moved.
    #[test]
    fn what_is_read_of_a_schedule_is_what_it_does() {
        let (mut again, mut swapped) = (0, 0);
        for seed in 0..60 {
            let trace = random_trace_of(20 + seed as usize, seed);
            let memory = trace.memory();
            let [floor, peak] = [memory.floor(), memory.peak()].map(|most| most.expect("there are ops").1);
            let budget = floor + Bytes((peak - floor).0 * (1 + seed % 3) / 4);
            let limits = Limits { evaluations: Some(150), expired: None };
            let link = Link::symmetric(BytesPerSecond(1e3));
            let request = PlanRequest { limits, ..PlanRequest::new(budget, link, Policy::Plimsoll) };
            let Ok(Outcome::Planned(plan)) = plan(&trace, &request) else { continue };
            let earlier = Earlier::new(&trace, &plan.schedule).expect("a plan is valid");
            let pool = (budget - trace.resident_bytes).0;
            let values = Values::new(&trace, Bytes(pool), Allow::ALL);
            let decisions = earlier.decisions(&trace, &values).expect("it is the same trace");
            assert_eq!(decisions.choices, earlier.decisions.choices, "seed {seed}");
            let mut walk = Walk::default();
            let margins = TiSlice::from_ref(&[]);
            assert!(
                walk.go(Iteration { values: &values, decisions: &decisions, margins, pool }, Limit::NONE)
            );
            let commands = plan.schedule.commands.iter();
            let ran: Vec<OpId> = commands
                .filter_map(|c| match c {
                    Command::Compute { op, .. } => Some(*op),
                    _ => None,
                })
                .collect();
            let walked: Vec<OpId> = walk.steps.iter().map(|run| run.op).collect();
            assert_eq!(walked, ran, "seed {seed}");
            let bytes = |offload: bool| -> u64 {
                walk.course.moves.iter().filter(|m| !offload || m.offload).map(|m| m.bytes).sum()
            };
            assert_eq!(bytes(false) + bytes(true), plan.moved.0, "seed {seed}");
            again += ran.len() - trace.ops.len();
            swapped += bytes(true);
        }
        assert!(again > 20 && swapped > 0, "{again} and {swapped}");
    }
}
