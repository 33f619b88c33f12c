//! Iterations in which ops are recomputed, as a trace of their own: each run of an op is an op there, and every copy of a
//! tensor that exists at a time is a tensor. What knows of gaps, windows and addresses then knows of recomputation.
//!
//! A *value* is a tensor in one version. Values that are given up are gone when the forward pass ends. Those of one group
//! are recomputed together, in the order of the trace, just before the first op that reads one of them; whatever their
//! makers read and is gone by then is recomputed before. An op that updates its input in place is recomputed on a fresh copy
//! of the input.

use super::naive::feature_maps;
use crate::decide::gaps::{Alternatives, GapId, Gaps};
use crate::decide::placement::Placement;
use crate::decide::windows::Clock;
use crate::place::address::{Addresses, Items, assign};
use crate::place::realise::{Attempt, Case, Realised};
use crate::request::{PlanError, Shortage};
use plimsoll_ir::trace::{Op, Phase, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId};
use std::collections::BTreeSet;
use typed_index_collections::TiVec;

/// The values of a trace: what each op reads and writes, and who makes and ends each.
pub(crate) struct Values {
    /// By op, in the order of its `reads` and `writes`.
    pub reads: Vec<Vec<usize>>,
    pub writes: Vec<Vec<usize>>,
    /// By value: its tensor, and the op that makes it; none where it is there from the start.
    pub tensor: Vec<TensorId>,
    pub maker: Vec<Option<usize>>,
    /// By value: what an op makes of it in place; and whether an op ends it, in place or by overwriting it.
    pub becomes: Vec<Option<usize>>,
    ended: Vec<bool>,
    /// By value: the one of the same tensor before it.
    before: Vec<Option<usize>>,
}

impl Values {
    pub fn new(trace: &Trace) -> Values {
        let tensor: Vec<TensorId> = (0..trace.tensors.len()).map(TensorId::new).collect();
        let mut current: Vec<usize> = (0..tensor.len()).collect();
        let (maker, becomes) = (vec![None; tensor.len()], vec![None; tensor.len()]);
        let (ended, before) = (vec![false; tensor.len()], vec![None; tensor.len()]);
        let (reads, writes) = (Vec::new(), Vec::new());
        let mut values = Values { reads, writes, tensor, maker, becomes, ended, before };
        for (i, op) in trace.ops.iter().enumerate() {
            values.reads.push(op.reads.iter().map(|t| current[t.index()]).collect());
            let mut writes = Vec::with_capacity(op.writes.len());
            for t in &op.writes {
                let value = values.tensor.len();
                if op.reads.contains(t) {
                    values.becomes[current[t.index()]] = Some(value);
                }
                values.ended[current[t.index()]] = true;
                values.ended.push(false);
                values.before.push(Some(current[t.index()]));
                values.tensor.push(*t);
                values.maker.push(Some(i));
                values.becomes.push(None);
                current[t.index()] = value;
                writes.push(value);
            }
            values.writes.push(writes);
        }
        values
    }

    /// Keeps what a forward op makes in place of a kept value, in its stead.
    pub fn keep_in_stead(&self, forward: usize, given_up: &mut [Option<usize>]) {
        for v in self.reads[..forward].iter().flatten() {
            let became = self.becomes[*v].filter(|_| given_up[*v].is_none());
            became.into_iter().for_each(|b| given_up[b] = None);
        }
    }

    /// Takes back the giving up of values that could not be recomputed, and of those that are read once parameters
    /// change, when nothing may be recomputed.
    pub fn restrict(&self, trace: &Trace, given_up: &mut [Option<usize>]) {
        for (_, reads) in trace.ops.iter().zip(&self.reads).filter(|(op, _)| op.phase == Phase::Update) {
            reads.iter().for_each(|v| given_up[*v] = None);
        }
        let mut again = vec![false; self.tensor.len()];
        for (i, op) in trace.ops.iter().enumerate() {
            let there = |v: &usize| given_up[*v].is_none() && !self.ended[*v];
            let can = op.recomputable
                && op.phase == Phase::Forward
                && self.reads[i].iter().all(|v| there(v) || again[*v]);
            for v in &self.writes[i] {
                again[*v] = can;
                given_up[*v] = given_up[*v].filter(|_| can);
            }
        }
    }
}

/// An iteration with recomputation, as a trace.
pub(crate) struct Unrolled {
    pub trace: Trace,
    /// By op and tensor of it: which op or tensor of the original it is a run or a copy of.
    ops: Vec<OpId>,
    tensors: Vec<TensorId>,
    again: Vec<bool>,
}

struct Unrolling<'a> {
    trace: &'a Trace,
    values: &'a Values,
    /// By value: the copy that holds it.
    present: Vec<Option<TensorId>>,
    /// By value: the last op of the trace that reads it.
    last_read: Vec<usize>,
    out: Unrolled,
    /// The bytes of all tensors of the unrolled trace.
    copies: u64,
}

/// So many more runs than two an op an iteration may have.
const RUNS: usize = 20_000;

/// The bytes that all copies of tensors together may have.
const COPIES: u64 = 1 << 62;

impl Unrolled {
    /// `given_up` has the group of every value that is given up; [`Values::restrict`] has seen it. None where so many ops
    /// would run again, or so many bytes be made, that the iteration could not be counted with: rows of updates in place
    /// that are recomputed one by one need the square of their length.
    pub fn new(trace: &Trace, values: &Values, given_up: &[Option<usize>]) -> Option<Unrolled> {
        let mut last_read = vec![0; values.tensor.len()];
        for (i, reads) in values.reads.iter().enumerate() {
            reads.iter().for_each(|v| last_read[*v] = i);
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (v, group) in given_up.iter().enumerate() {
            if let Some(group) = group {
                groups.resize(groups.len().max(*group + 1), Vec::new());
                groups[*group].push(v);
            }
        }
        let empty = Trace { tensors: trace.tensors.clone(), ops: Vec::new(), ..trace.clone() };
        let tensors: Vec<TensorId> = (0..trace.tensors.len()).map(TensorId::new).collect();
        let mut present = vec![None; values.tensor.len()];
        tensors.iter().for_each(|t| present[t.index()] = Some(*t));
        let out = Unrolled { trace: empty, ops: Vec::new(), tensors, again: Vec::new() };
        let runs = 2 * trace.ops.len() + RUNS;
        let copies = trace.tensors.iter().map(|tensor| tensor.bytes.0).sum();
        let mut unrolling = Unrolling { trace, values, present, last_read, out, copies };
        let forward = trace.ops.iter().take_while(|op| op.phase == Phase::Forward).count();
        for i in 0..trace.ops.len() {
            if i == forward {
                groups.iter().flatten().for_each(|v| unrolling.present[*v] = None);
            }
            if i >= forward {
                unrolling.make_again(i, given_up, &groups);
            }
            unrolling.run(i, false);
            if unrolling.out.ops.len() > runs || unrolling.copies > COPIES {
                return None;
            }
        }
        Some(unrolling.out)
    }
}

impl Unrolling<'_> {
    /// Recomputes what the op needs and is gone.
    fn make_again(&mut self, i: usize, given_up: &[Option<usize>], groups: &[Vec<usize>]) {
        let gone = |present: &[Option<TensorId>], v: &usize| present[*v].is_none();
        let mut wanted: Vec<usize> =
            self.values.reads[i].iter().copied().filter(|v| gone(&self.present, v)).collect();
        let of_groups: BTreeSet<usize> = wanted.iter().filter_map(|v| given_up[*v]).collect();
        for group in of_groups {
            let later = groups[group].iter().filter(|v| self.last_read[**v] >= i);
            wanted.extend(later.filter(|v| gone(&self.present, v)));
        }
        let mut makers = BTreeSet::new();
        while let Some(v) = wanted.pop() {
            let maker = self.values.maker[v].expect("what is there from the start is never given up");
            if makers.insert(maker) {
                wanted.extend(self.values.reads[maker].iter().filter(|v| gone(&self.present, v)));
            }
        }
        makers.into_iter().for_each(|maker| self.run(maker, true));
    }

    fn run(&mut self, i: usize, again: bool) {
        let op = &self.trace.ops[i];
        let reads: Vec<TensorId> = self.values.reads[i]
            .iter()
            .map(|v| self.present[*v].expect("what an op reads was made before it"))
            .collect();
        let mut writes = Vec::with_capacity(op.writes.len());
        for (t, value) in op.writes.iter().zip(&self.values.writes[i]) {
            let copy = match op.reads.iter().position(|read| read == t) {
                Some(k) => {
                    self.present[self.values.reads[i][k]] = None;
                    reads[k]
                }
                None => self.copy_for(*t, *value, again),
            };
            writes.push(copy);
            self.present[*value].get_or_insert(copy);
        }
        // All recomputation is in the backward pass.
        let phase = if again { Phase::Backward } else { op.phase };
        self.out.trace.ops.push(Op { reads, writes, phase, ..op.clone() });
        self.out.ops.push(OpId::new(i));
        self.out.again.push(again);
    }

    /// The tensor's own place, where nothing else is left then, or a fresh one for what is recomputed.
    fn copy_for(&mut self, tensor: TensorId, value: usize, again: bool) -> TensorId {
        if !again {
            let before = self.values.before[value].filter(|v| self.present[*v] == Some(tensor));
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
    /// The schedule of an iteration with recomputation. Where it does not fit, the feature maps that were used least
    /// recently are swapped, as many as are needed, if `swap`.
    pub(crate) fn realise_unrolled(
        &self,
        unrolled: &Unrolled,
        swap: bool,
        attempts: &[Attempt],
    ) -> Result<Realised, PlanError> {
        let gaps = Gaps::new(&unrolled.trace, Bytes(self.pool), Alternatives::BesideOwn, &|_| 1);
        let swapped = if swap { least_recent(&unrolled.trace, &gaps, self.pool) } else { gaps.none() };
        let needs = gaps.least(&swapped);
        let fullest = needs.iter_enumerated().rev().max_by_key(|(_, bytes)| **bytes);
        let most = fullest.map_or(0, |(_, most)| *most);
        let op = unrolled.ops[fullest.and_then(|(slot, _)| slot.op()).map_or(0, OpId::index)];
        let short = |bytes: u64, why| {
            Ok(Realised::Short(self.witness(op, Bytes(bytes) + self.trace.resident_bytes, why)))
        };
        if most > self.pool {
            return short(most, Shortage::Policy);
        }
        if self.is_slow(&gaps.course(&swapped).0) {
            return Ok(Realised::Slow);
        }
        let mut clock = Clock::new(&self.request.link);
        let mut lowest = u64::MAX;
        for attempt in attempts {
            let pool = Bytes(self.pool).share(attempt.pool).0;
            let mut placement = gaps.placement(&gaps.windows(&mut clock, &swapped, pool, attempt.tighten));
            unrolled.rename(&mut placement);
            let items = Items::new(&placement, &gaps.workspace.raw[1..]);
            let addresses: Addresses = assign(
                &items.items,
                self.pool,
                attempt.alignment,
                self.work(attempt.work),
                self.request.seed,
            );
            lowest = lowest.min(addresses.height);
            if addresses.height <= self.pool {
                return self.finish(&placement, &items, &addresses);
            }
        }
        short(lowest, Shortage::Addresses)
    }
}

impl Unrolled {
    /// Says in the terms of the original what a placement says in those of the unrolled trace.
    fn rename(&self, placement: &mut Placement) {
        for (step, (op, again)) in placement.steps.iter_mut().zip(self.ops.iter().zip(&self.again)) {
            (step.op, step.again) = (*op, *again);
        }
        for residency in &mut placement.residencies {
            residency.tensor = self.tensors[residency.tensor.index()];
        }
    }
}

/// By gap: the feature maps whose last use in the forward pass is longest ago, as many as are needed for all to fit.
fn least_recent(trace: &Trace, gaps: &Gaps, pool: u64) -> TiVec<GapId, bool> {
    let maps = feature_maps(trace, gaps);
    let mut order: Vec<GapId> = maps.keys().filter(|g| maps[*g]).collect();
    order.sort_by_key(|g| (gaps.gaps[*g].after, *g));
    let of = |count: usize| {
        let mut swapped = gaps.none();
        order[..count].iter().for_each(|g| swapped[*g] = true);
        swapped
    };
    let (mut low, mut high) = (0, order.len());
    while low < high {
        let middle = (low + high) / 2;
        if gaps.least(&of(middle)).iter().all(|bytes| *bytes <= pool) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    of(low)
}
