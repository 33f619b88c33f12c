//! Values that a trace's ops pass to each other, the gaps between their touches, and the possible decisions about them.
//!
//! # The data
//!
//! A *value* is a tensor in one version: it is made by one op (or exists from the start), read by later ones, and never changes.
//! An op that updates a tensor in place reads one value and makes the next of it; the first is gone then. A value is *touched* by
//! its maker and by its readers; between two touches, and after the last one, lies a [`Gap`], for which a [`Choice`] is made. The
//! gap after the last touch matters if an op that is recomputed reads the value; a value that is updated in place has none.
//!
//! [`Decisions`] are all choices about an iteration, with the part of each value that is swapped when it is, and the alternative
//! in which each op runs. [`crate::decide::walk`] computes their consequences.
//!
//! Tensors of 0 bytes need no decision and are left out.

use crate::iteration::uses::Uses;
use crate::request::Allow;
use plimsoll_ir::trace::{Op, Phase, Trace};
use plimsoll_ir::{Bytes, OpId, TensorId, define_id};
use std::collections::HashMap;
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

pub use crate::iteration::uses::ValueId;

define_id!(
    /// Gap between two touches of a value.
    GapId, "gap");

/// Unit in which the swapped leading part of a value is counted: this many parts are the whole value.
pub const PARTS: u8 = 8;

/// Part of the pool, as a divisor, above which a value is large.
const LARGE: u64 = 24;

/// Choice about a value between two touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Choice {
    /// It stays on the device, as long as an op reads it later.
    Keep,
    /// Its part leaves, and returns before the next op that reads it.
    Swap,
    /// It is given up, recomputed before the next op that reads it, and stays then.
    Recompute,
    /// It is given up, and recomputed each time that a recomputed op needs it.
    RecomputeEach,
}

/// Time between two touches of a value, or after the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub value: ValueId,
    /// Op of the previous touch; `None` for the start of the iteration.
    pub after: Option<OpId>,
    /// Op of the next touch; `None` if there is none.
    pub before: Option<OpId>,
    /// `true` if it may be swapped.
    pub swap: bool,
    /// `true` if it may be recomputed.
    pub recompute: bool,
}

/// Alternative of an op, including its usual kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpAlternative {
    /// In seconds.
    pub seconds: f64,
    /// In bytes.
    pub workspace: u64,
    /// Index among the op's alternatives; `None` for the op itself.
    pub alternative: Option<u32>,
}

/// Touch of a value by an op that reads or makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub value: ValueId,
    /// Gap that begins then; `None` if the value is updated in place.
    pub gap: Option<GapId>,
}

/// By op: a row of touches, adjacent to the next.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    starts: TiVec<OpId, usize>,
    entries: Vec<Touch>,
}

impl Rows {
    fn of(values: &TiSlice<OpId, Vec<ValueId>>) -> Rows {
        let mut rows = Rows { starts: vec![0].into(), entries: Vec::new() };
        for row in values {
            rows.entries.extend(row.iter().map(|value| Touch { value: *value, gap: None }));
            rows.starts.push(rows.entries.len());
        }
        rows
    }

    /// Returns the row of an op.
    #[inline]
    pub fn row(&self, op: OpId) -> &[Touch] {
        &self.entries[self.range(op)]
    }

    #[inline]
    fn range(&self, op: OpId) -> Range<usize> {
        self.starts[op]..self.starts[op.next()]
    }
}

/// Values of a trace; see the head of this file.
#[derive(Clone, Debug)]
pub struct Values {
    /// By value: its tensor, and its bytes; more than 0.
    pub tensor: TiVec<ValueId, TensorId>,
    /// See `tensor`.
    pub bytes: TiVec<ValueId, u64>,
    /// By value: op that makes it; `None` if it exists from the start.
    pub maker: TiVec<ValueId, Option<OpId>>,
    /// By value: the value that it is made of in place, and the value that is made of it.
    pub from: TiVec<ValueId, Option<ValueId>>,
    /// See `from`.
    pub becomes: TiVec<ValueId, Option<ValueId>>,
    /// By value: its first gap. One entry more than there are values.
    first_gap: TiVec<ValueId, GapId>,
    /// All gaps, those of a value adjacent in order of time.
    pub gaps: TiVec<GapId, Gap>,
    /// By op: values that it reads, and values that it makes.
    pub reads: Rows,
    /// See `reads`.
    pub writes: Rows,
    /// By op: possible alternatives, the fastest first, each with less workspace than the previous one.
    pub alternatives: TiVec<OpId, Vec<OpAlternative>>,
    /// First op that may change parameters, which have no versions: nothing is recomputed after it.
    pub update: OpId,
    /// Bytes above which a value is large.
    large: u64,
}

/// All choices about an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decisions {
    /// By gap.
    pub choices: TiVec<GapId, Choice>,
    /// By value: number of its [`PARTS`] that are swapped if it is; at least 1.
    pub parts: TiVec<ValueId, u8>,
    /// By op: index of its alternative.
    pub alternatives: TiVec<OpId, u8>,
    /// Gaps whose value is recomputed before a different op than the next one that needs it, and held from there on: op and gap,
    /// in order. The op lies within the gap; a gap has at most one entry.
    pub early: Vec<(OpId, GapId)>,
    /// Number of chunks into which the swapped part of a large value is cut, so that each leaves and returns separately; 1 if it
    /// moves as a whole. At most [`PARTS`].
    pub chunks: u8,
}

impl Values {
    /// Returns the values of a valid trace, with the possible decisions about them within a pool of this many bytes.
    pub fn new(trace: &Trace, pool: Bytes, allow: Allow) -> Values {
        let uses = Uses::of(trace);
        let becomes: TiVec<ValueId, Option<ValueId>> = uses.tensor.keys().map(|v| uses.becomes(v)).collect();
        let mut from: TiVec<ValueId, Option<ValueId>> = vec![None; becomes.len()].into();
        for (old, new) in becomes.iter_enumerated() {
            new.iter().for_each(|new| from[*new] = Some(old));
        }
        let Uses { tensor, maker, readers, reads, writes, .. } = uses;
        let update = trace.ops.iter().position(|op| op.phase == Phase::Update);
        let mut values = Values {
            bytes: tensor.iter().map(|t| trace.tensors[t.index()].bytes.0).collect(),
            tensor,
            maker,
            from,
            becomes,
            first_gap: TiVec::new(),
            gaps: TiVec::new(),
            reads: Rows::of(&reads),
            writes: Rows::of(&writes),
            alternatives: trace.ops.iter().map(|op| alternatives(trace, op, pool)).collect(),
            update: OpId::new(update.unwrap_or(trace.ops.len())),
            large: pool.0 / LARGE,
        };
        values.add_gaps(trace, &readers, allow);
        values
    }

    fn add_gaps(&mut self, trace: &Trace, readers: &TiSlice<ValueId, Vec<OpId>>, allow: Allow) {
        let can = self.recomputable(trace, allow);
        let mut newest: TiVec<TensorId, Option<ValueId>> = vec![None; trace.tensors.len()].into();
        self.tensor.iter_enumerated().for_each(|(v, tensor)| newest[*tensor] = Some(v));
        for v in self.tensor.keys() {
            self.first_gap.push(self.gaps.next_key());
            let mut after = self.maker[v];
            let least = self.part(v, if allow.pieces { 1 } else { PARTS });
            let hosted = allow.swap && allow.hosts(least);
            for &before in &readers[v] {
                let apart = before > after.map_or(OpId(0), OpId::next);
                let (swap, recompute) = (apart && hosted, apart && can[v] && before <= self.update);
                self.gaps.push(Gap { value: v, after, before: Some(before), swap, recompute });
                after = Some(before);
            }
            if self.becomes[v].is_none() {
                let wanted = readers[v].iter().any(|w| allow.recompute && trace.ops[w.index()].recomputable);
                // The host holds one version: an older one does not go there when a newer one may.
                let last = newest[self.tensor[v]] == Some(v);
                let (swap, recompute) = (wanted && last && hosted, wanted && can[v]);
                self.gaps.push(Gap { value: v, after, before: None, swap, recompute });
            }
        }
        self.first_gap.push(self.gaps.next_key());
        let mut next = self.first_gap.clone();
        for (gap, _) in next.iter_mut().zip(&self.maker).filter(|(_, maker)| maker.is_none()) {
            *gap = gap.next();
        }
        for op in self.alternatives.keys() {
            // Outputs come into being after the inputs are read.
            for rows in [&mut self.reads, &mut self.writes] {
                let row = rows.range(op);
                for touch in &mut rows.entries[row] {
                    let gap = &mut next[touch.value];
                    touch.gap = Some(*gap).filter(|gap| *gap < self.first_gap[touch.value.next()]);
                    *gap = gap.next();
                }
            }
        }
    }

    /// By value: `true` if it can be recomputed at any time. The inputs of its maker are kept as long as they are needed, or are
    /// recomputed themselves; an input that was updated in place must be recomputable.
    fn recomputable(&self, trace: &Trace, allow: Allow) -> TiVec<ValueId, bool> {
        let mut can: TiVec<ValueId, bool> = vec![false; self.tensor.len()].into();
        for (here, op) in (0..).map(OpId).zip(&trace.ops) {
            let there = |z: &Touch| self.becomes[z.value].is_none() || can[z.value];
            let made = allow.recompute && op.recomputable && self.reads.row(here).iter().all(there);
            self.writes.row(here).iter().for_each(|y| can[y.value] = made);
        }
        can
    }

    /// Returns the value of each tensor by each of its makers; `None` for the start of the iteration.
    pub fn by_maker(&self) -> HashMap<(TensorId, Option<OpId>), ValueId> {
        self.tensor.iter_enumerated().map(|(v, tensor)| ((*tensor, self.maker[v]), v)).collect()
    }

    /// Returns the gaps of a value, in order of time.
    #[inline]
    pub fn gaps_of(&self, value: ValueId) -> impl DoubleEndedIterator<Item = GapId> + Clone + use<> {
        GapId::each(self.first_gap[value]..self.first_gap[value.next()])
    }

    /// Returns the last gap of a value that begins before an op.
    pub fn gap_before(&self, value: ValueId, op: OpId) -> Option<GapId> {
        let (first, until) = (self.first_gap[value], self.first_gap[value.next()]);
        let begun = self.gaps.raw[first.index()..until.index()].partition_point(|gap| gap.after < Some(op));
        begun.checked_sub(1).map(|last| GapId::new(first.index() + last))
    }

    /// Returns decisions that keep every value until its last read, and run every op in its fastest alternative.
    pub fn keep_all(&self) -> Decisions {
        let choice = |gap: &Gap| {
            if gap.before.is_none() && gap.recompute { Choice::RecomputeEach } else { Choice::Keep }
        };
        Decisions {
            choices: self.gaps.iter().map(choice).collect(),
            parts: vec![PARTS; self.tensor.len()].into(),
            alternatives: vec![0; self.alternatives.len()].into(),
            early: Vec::new(),
            chunks: 1,
        }
    }

    /// Returns the ends of the chunks of a value's swapped part, counted from its first byte. The first chunk begins there.
    #[inline]
    pub fn chunk_ends(&self, value: ValueId, decisions: &Decisions) -> impl Iterator<Item = u64> {
        let parts = decisions.parts[value];
        let chunks = if self.bytes[value] > self.large { decisions.chunks.min(parts) } else { 1 };
        (1..=chunks).map(move |chunk| self.part(value, parts * chunk / chunks))
    }

    /// Returns the bytes of this many [`PARTS`] of a value.
    #[inline]
    pub fn part(&self, value: ValueId, parts: u8) -> u64 {
        let bytes = self.bytes[value];
        // A part is as aligned as its tensor.
        if parts == PARTS {
            bytes
        } else {
            bytes.div_ceil(u64::from(PARTS)).next_multiple_of(4096) * u64::from(parts)
        }
        .min(bytes)
    }
}

impl Gap {
    /// Returns the first op after the previous touch.
    pub fn begin(&self) -> OpId {
        self.after.map_or(OpId(0), OpId::next)
    }

    /// Returns `true` if the gap begins before an op, and ends after it or with it.
    pub fn leads_to(&self, op: OpId) -> bool {
        self.after < Some(op) && self.before.is_none_or(|before| before >= op)
    }
}

impl Decisions {
    /// Returns the gaps whose values are recomputed before this op although it does not need them.
    pub fn early_at(&self, op: OpId) -> &[(OpId, GapId)] {
        let from = self.early.partition_point(|entry| entry.0 < op);
        let count = self.early[from..].iter().take_while(|entry| entry.0 == op).count();
        &self.early[from..from + count]
    }

    /// Returns the op before which the value of a gap is recomputed; `None` if that is the one that needs it.
    pub fn early_of(&self, gap: GapId) -> Option<OpId> {
        self.early.iter().find(|entry| entry.1 == gap).map(|entry| entry.0)
    }

    /// Has the value of a gap recomputed before this op, or, with `None`, before the one that needs it. Returns the previous
    /// decision.
    pub fn set_early(&mut self, gap: GapId, op: Option<OpId>) -> Option<OpId> {
        let old = self.early.iter().position(|entry| entry.1 == gap).map(|at| self.early.remove(at).0);
        if let Some(op) = op {
            let at = self.early.partition_point(|entry| *entry < (op, gap));
            self.early.insert(at, (op, gap));
        }
        old
    }

    /// Returns `true` if the value of a gap is given up.
    pub fn recomputes(&self, gap: GapId) -> bool {
        matches!(self.choices[gap], Choice::Recompute | Choice::RecomputeEach)
    }
}

impl Choice {
    /// Returns `true` if a gap may have this choice.
    pub fn is_open(self, gap: &Gap) -> bool {
        match self {
            Choice::Keep => true,
            Choice::Swap => gap.swap,
            Choice::Recompute | Choice::RecomputeEach => gap.recompute,
        }
    }
}

/// Returns the alternatives of an op that fit next to its operands; the leanest if none does.
pub fn alternatives(trace: &Trace, op: &Op, pool: Bytes) -> Vec<OpAlternative> {
    let room = pool.saturating_sub(trace.touched_bytes(op)).0;
    let mut all =
        vec![OpAlternative { seconds: op.seconds.0, workspace: op.workspace_bytes.0, alternative: None }];
    all.extend((0..).zip(&op.alternatives).map(|(k, a)| OpAlternative {
        seconds: a.seconds.0,
        workspace: a.workspace_bytes.0,
        alternative: Some(k),
    }));
    let leanest = all.iter().map(|alternative| alternative.workspace).min().unwrap_or_default();
    all.retain(|alternative| alternative.workspace <= room.max(leanest));
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.workspace.cmp(&b.workspace)));
    let mut least = u64::MAX;
    all.retain(|alternative| {
        let leaner = alternative.workspace < least;
        least = least.min(alternative.workspace);
        leaner
    });
    all.truncate(usize::from(u8::MAX));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::Seconds;
    use plimsoll_ir::trace::{Phase, Tensor, TensorKind, TraceKind};

    #[test]
    fn the_host_holds_the_newest_version_only() {
        // Tensor 0 is overwritten; an op that is recomputed may read either version.
        let ops: [(&[u32], u32); 5] = [(&[], 0), (&[0], 1), (&[], 0), (&[0, 1], 2), (&[1, 2], 3)];
        let tensor = |t| Tensor { name: format!("t{t}"), bytes: Bytes(100), kind: TensorKind::Other };
        let op = |(i, (reads, write)): (usize, (&[u32], u32))| Op {
            name: format!("op{i}"),
            kind: String::new(),
            layer: String::new(),
            phase: Phase::Forward,
            seconds: Seconds(1.0),
            flops: 0,
            reads: reads.iter().map(|t| TensorId(*t)).collect(),
            writes: vec![TensorId(write)],
            workspace_bytes: Bytes::ZERO,
            recomputable: true,
            alternatives: Vec::new(),
        };
        let trace = Trace {
            kind: TraceKind,
            name: "versions".to_owned(),
            batch: 1,
            resident_bytes: Bytes::ZERO,
            tensors: (0..4).map(tensor).collect(),
            ops: ops.into_iter().enumerate().map(op).collect(),
        };
        let values = Values::new(&trace, Bytes(1000), Allow::default());
        let versions = values.tensor.keys().filter(|v| values.tensor[*v].0 == 0);
        let after_last: Vec<bool> =
            versions.filter_map(|v| values.gaps_of(v).last()).map(|g| values.gaps[g].swap).collect();
        assert_eq!(after_last, [false, true]);
    }
}
