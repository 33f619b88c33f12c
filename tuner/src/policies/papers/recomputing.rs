//! Iterations with recomputed ops, as separate traces: each run of an op is an op there, and every copy of a tensor that exists
//! at a time is a tensor. Code for gaps, windows and addresses then handles recomputation.
//!
//! A *value* is a tensor in one version. Values that are given up are gone when the forward pass ends. Those of one group are
//! recomputed together, in the order of the trace, just before the first op that reads one of them; inputs of their makers that
//! are gone by then are recomputed before. An op that updates its input in place is recomputed on a fresh copy of the input.

use super::naive::feature_maps;
use crate::decide::gaps::{Alternatives, GapId, Gaps};
use crate::decide::placement::Placement;
use crate::decide::windows::Clock;
use crate::iteration::uses::{Uses, ValueId};
use crate::place::realise::{Attempt, Case, Realised, fullest};
use crate::request::{Error, Shortage};
use plimsoll_ir::trace::{Op, Phase, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId};
use std::collections::BTreeSet;
use typed_index_collections::TiVec;

/// By value: the group with which it is recomputed; `None` for a value that stays.
pub(crate) type GivenUp = TiVec<ValueId, Option<usize>>;

/// Keeps the value that a forward op makes in place of a kept value, instead of that value.
pub(crate) fn keep_in_stead(uses: &Uses, forward: usize, given_up: &mut GivenUp) {
    for &v in uses.reads.iter().take(forward).flatten() {
        let became = uses.becomes(v).filter(|_| given_up[v].is_none());
        became.into_iter().for_each(|b| given_up[b] = None);
    }
}

/// Keeps values that could not be recomputed, and those that are read once parameters change, when nothing may be recomputed.
pub(crate) fn restrict(trace: &Trace, uses: &Uses, given_up: &mut GivenUp) {
    for (_, reads) in trace.ops.iter().zip(&uses.reads).filter(|(op, _)| op.phase == Phase::Update) {
        reads.iter().for_each(|v| given_up[*v] = None);
    }
    let mut again: TiVec<ValueId, bool> = vec![false; uses.tensor.len()].into();
    for (op, (reads, writes)) in trace.ops.iter().zip(uses.reads.iter().zip(&uses.writes)) {
        let there = |v: ValueId| given_up[v].is_none() && uses.next[v].is_none();
        let can =
            op.recomputable && op.phase == Phase::Forward && reads.iter().all(|v| there(*v) || again[*v]);
        for v in writes {
            again[*v] = can;
            given_up[*v] = given_up[*v].filter(|_| can);
        }
    }
}

/// Iteration with recomputation, as a trace.
pub(crate) struct Unrolled {
    pub trace: Trace,
    /// By op and tensor of it: the op or tensor of the original that it is a run or a copy of.
    ops: Vec<OpId>,
    tensors: Vec<TensorId>,
    again: Vec<bool>,
}

struct Unrolling<'a> {
    trace: &'a Trace,
    uses: &'a Uses,
    /// By value: copy that holds it.
    present: TiVec<ValueId, Option<TensorId>>,
    out: Unrolled,
    /// Bytes of all tensors of the unrolled trace.
    copies: u64,
}

/// Maximum number of runs of an iteration, in addition to two per op.
const RUNS: usize = 20_000;

/// Maximum bytes of all copies of tensors together.
const COPIES: u64 = 1 << 62;

impl Unrolled {
    /// Returns the unrolled iteration; `given_up` has passed [`restrict`]. `None` if so many ops would run again, or so many
    /// bytes be made, that the iteration is too large to count: rows of updates in place that are recomputed one by one need the
    /// square of their length.
    pub fn new(trace: &Trace, uses: &Uses, given_up: &GivenUp) -> Option<Unrolled> {
        let mut groups: Vec<Vec<ValueId>> = Vec::new();
        for (v, group) in given_up.iter_enumerated() {
            if let Some(group) = group {
                groups.resize(groups.len().max(*group + 1), Vec::new());
                groups[*group].push(v);
            }
        }
        let empty = Trace { tensors: trace.tensors.clone(), ops: Vec::new(), ..trace.clone() };
        let tensors: Vec<TensorId> = (0..trace.tensors.len()).map(TensorId::new).collect();
        let at_start = uses.tensor.iter().zip(&uses.maker).map(|(t, maker)| maker.is_none().then_some(*t));
        let present = at_start.collect();
        let out = Unrolled { trace: empty, ops: Vec::new(), tensors, again: Vec::new() };
        let runs = 2 * trace.ops.len() + RUNS;
        let copies = trace.tensors.iter().map(|tensor| tensor.bytes.0).sum();
        let mut unrolling = Unrolling { trace, uses, present, out, copies };
        let forward = trace.ops.iter().take_while(|op| op.phase == Phase::Forward).count();
        for op in uses.reads.keys() {
            if op.index() == forward {
                groups.iter().flatten().for_each(|v| unrolling.present[*v] = None);
            }
            if op.index() >= forward {
                unrolling.recompute_for(op, given_up, &groups);
            }
            unrolling.run(op, false);
            if unrolling.out.ops.len() > runs || unrolling.copies > COPIES {
                return None;
            }
        }
        Some(unrolling.out)
    }
}

impl Unrolling<'_> {
    /// Recomputes the absent inputs of the op.
    fn recompute_for(&mut self, op: OpId, given_up: &GivenUp, groups: &[Vec<ValueId>]) {
        let Unrolling { uses, present, .. } = self;
        let gone = |v: &ValueId| present[*v].is_none();
        let mut wanted: Vec<ValueId> = uses.reads[op].iter().copied().filter(gone).collect();
        let of_groups: BTreeSet<usize> = wanted.iter().filter_map(|v| given_up[*v]).collect();
        for group in of_groups {
            let later = groups[group].iter().copied().filter(|v| uses.readers[*v].last() >= Some(&op));
            wanted.extend(later.filter(gone));
        }
        let mut makers = BTreeSet::new();
        while let Some(v) = wanted.pop() {
            let maker = uses.maker[v].expect("what is there from the start is never given up");
            if makers.insert(maker) {
                wanted.extend(uses.reads[maker].iter().copied().filter(gone));
            }
        }
        makers.into_iter().for_each(|maker| self.run(maker, true));
    }

    fn run(&mut self, at: OpId, again: bool) {
        let (op, uses) = (&self.trace.ops[at.index()], self.uses);
        let copy = |v: &ValueId| self.present[*v].expect("what an op reads was made before it");
        let reads: Vec<TensorId> = uses.reads[at].iter().map(copy).collect();
        let mut writes = Vec::with_capacity(op.writes.len());
        for &made in &uses.writes[at] {
            let tensor = uses.tensor[made];
            let copy = match uses.reads[at].iter().position(|read| uses.tensor[*read] == tensor) {
                Some(k) => {
                    self.present[uses.reads[at][k]] = None;
                    reads[k]
                }
                None => self.copy_for(tensor, made, again),
            };
            writes.push(copy);
            self.present[made].get_or_insert(copy);
        }
        // All recomputation is in the backward pass.
        let phase = if again { Phase::Backward } else { op.phase };
        self.out.trace.ops.push(Op { reads, writes, phase, ..op.clone() });
        self.out.ops.push(at);
        self.out.again.push(again);
    }

    /// Returns the tensor's own place, if nothing else is left by then, or a fresh one for recomputed values.
    fn copy_for(&mut self, tensor: TensorId, value: ValueId, again: bool) -> TensorId {
        if !again {
            let before = self.uses.previous[value].filter(|v| self.present[*v] == Some(tensor));
            before.into_iter().for_each(|v| self.present[v] = None);
            return tensor;
        }
        self.out.trace.tensors.push(self.trace.tensors[tensor.index()].clone());
        self.copies = self.copies.saturating_add(self.trace.tensors[tensor.index()].bytes.0);
        self.out.tensors.push(tensor);
        TensorId::new(self.out.tensors.len() - 1)
    }
}

impl Case<'_> {
    /// Returns the schedule of an iteration with recomputation. If it does not fit and `swap` is `true`, as many of the least
    /// recently used activations as needed are swapped.
    pub(crate) fn realise_unrolled(
        &self,
        unrolled: &Unrolled,
        swap: bool,
        attempts: &[Attempt],
    ) -> Result<Realised, Error> {
        let gaps = Gaps::new(&unrolled.trace, Bytes(self.pool), Alternatives::BesideOwn);
        let swapped = if swap { least_recent(&unrolled.trace, &gaps, self.pool) } else { gaps.none() };
        let (op, most) = fullest(&gaps.least(&swapped));
        let op = unrolled.ops[op.index()];
        if most > self.pool {
            return Ok(self.short(op, most, Shortage::Policy));
        }
        if self.is_slow(&gaps.course(&swapped).0) {
            return Ok(Realised::Slow);
        }
        let mut clock = Clock::new(&self.request.link);
        let mut lowest = u64::MAX;
        for attempt in self.useful(attempts) {
            let (mut placement, items) = self.place(&gaps, &mut clock, &swapped, attempt);
            unrolled.rename(&mut placement);
            if let Some(found) = self.with_addresses(attempt, &mut lowest, &placement, &items)? {
                return Ok(found);
            }
        }
        Ok(self.short(op, lowest, Shortage::Addresses))
    }
}

impl Unrolled {
    /// Translates a placement of the unrolled trace to the original.
    fn rename(&self, placement: &mut Placement) {
        for (step, (op, again)) in placement.steps.iter_mut().zip(self.ops.iter().zip(&self.again)) {
            (step.op, step.again) = (*op, *again);
        }
        for residency in &mut placement.residencies {
            residency.tensor = self.tensors[residency.tensor.index()];
        }
    }
}

/// By gap: the activations whose last use in the forward pass is longest ago, as many as are needed for all to fit.
fn least_recent(trace: &Trace, gaps: &Gaps, pool: u64) -> TiVec<GapId, bool> {
    let maps = feature_maps(trace, gaps);
    let mut order: Vec<GapId> = maps.keys().filter(|g| maps[*g]).collect();
    order.sort_by_key(|g| (gaps.gaps[*g].after, *g));
    let of = |count: usize| {
        let mut swapped = gaps.none();
        order[..count].iter().for_each(|g| swapped[*g] = true);
        swapped
    };
    // Each further one only frees bytes.
    let all: Vec<usize> = (0..order.len()).collect();
    of(all.partition_point(|count| gaps.least(&of(*count)).iter().any(|bytes| *bytes > pool)))
}
