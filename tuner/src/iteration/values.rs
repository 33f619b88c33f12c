//! What a trace's ops hand to each other, and what can be decided about it: values, and the gaps between their touches.
//!
//! # The data
//!
//! A *value* is a tensor in one version: it is made by one op (or there from the start), read by later ones, and never
//! changes. An op that updates a tensor in place reads one value and makes another of it; the first is gone then. A value
//! is *touched* by its maker and by its readers; between two touches, and after the last one, lies a [`Gap`], for which a
//! [`Choice`] is made. The gap after the last touch matters where an op that is recomputed reads the value; a value that is
//! updated in place has none.
//!
//! [`Decisions`] are all choices about an iteration, with the part of each value that is swapped when it is, and the way in
//! which each op runs. What follows from them is worked out by [`crate::decide::walk`].
//!
//! Tensors of 0 bytes need no decision and are left out.

use crate::request::Allow;
use plimsoll_ir::trace::{Op, Phase, Trace};
use plimsoll_ir::{Bytes, TensorId};

/// No op, value or slot.
pub const NONE: u32 = u32::MAX;

/// A value is swapped whole or a leading part of it, counted in these.
pub const PARTS: u8 = 8;

/// What takes more than this part of the pool is large.
const LARGE: u64 = 24;

/// What becomes of a value between two touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Choice {
    /// It stays on the device, as long as anything reads it later.
    Keep,
    /// Its part leaves, and returns before whatever reads it next.
    Swap,
    /// It is given up, recomputed before whatever reads it next, and stays then.
    Recompute,
    /// It is given up, and recomputed each time that an op which is recomputed needs it.
    RecomputeEach,
}

/// The time between two touches of a value, or after the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Of which value.
    pub value: u32,
    /// The op of the touch before; [`NONE`] for the start of the iteration.
    pub after: u32,
    /// The op of the next touch; [`NONE`] where there is none.
    pub before: u32,
    /// Whether it may be swapped, and whether it may be recomputed.
    pub swap: bool,
    /// See `swap`.
    pub recompute: bool,
}

/// One alternative of an op, its usual kernel included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpAlternative {
    /// In seconds.
    pub seconds: f64,
    /// In bytes.
    pub workspace: u64,
    /// Which of the op's alternatives; none for the op as it stands.
    pub alternative: Option<u32>,
}

/// An op reads or makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Which value.
    pub value: u32,
    /// The gap that begins then.
    pub gap: u32,
}

/// Rows of different lengths, side by side.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    starts: Vec<u32>,
    entries: Vec<Touch>,
}

impl Rows {
    fn push(&mut self, row: impl IntoIterator<Item = u32>) {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        self.entries.extend(row.into_iter().map(|value| Touch { value, gap: NONE }));
        self.starts.push(self.entries.len() as u32);
    }

    /// One row.
    pub fn row(&self, at: usize) -> &[Touch] {
        &self.entries[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// The values of a trace; see the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// By value: its tensor, and its bytes; more than 0.
    pub tensor: Vec<TensorId>,
    /// See `tensor`.
    pub bytes: Vec<u64>,
    /// By value: the op that makes it; [`NONE`] where it is there from the start.
    pub maker: Vec<u32>,
    /// By value: the one that it is made of in place, and the one that is made of it; [`NONE`] where there is none.
    pub from: Vec<u32>,
    /// See `from`.
    pub becomes: Vec<u32>,
    /// By value: its first gap. One entry more than there are values.
    pub first_gap: Vec<u32>,
    /// All gaps, those of a value side by side in order of time.
    pub gaps: Vec<Gap>,
    /// By op: the values that it reads, and those that it makes, each with the gap that begins then ([`NONE`] where the
    /// value is updated in place).
    pub reads: Rows,
    /// See `reads`.
    pub writes: Rows,
    /// By op: the ways in which it may run, the fastest first, each with less workspace than the one before.
    pub alternatives: Vec<Vec<OpAlternative>>,
    /// The first op that may change parameters, which have no versions: nothing is recomputed after it.
    pub update: u32,
    /// In bytes: what is larger is large.
    large: u64,
}

/// All choices about an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decisions {
    /// By gap.
    pub choices: Vec<Choice>,
    /// By value: how many of its [`PARTS`] are swapped where it is; at least 1.
    pub parts: Vec<u8>,
    /// By op: which of its ways.
    pub alternatives: Vec<u8>,
    /// Gaps whose value is recomputed before another op than the one that next asks for it, and held from there on: op and
    /// gap, in order. The op lies within the gap; a gap has one entry at most.
    pub early: Vec<(u32, u32)>,
    /// Into so many chunks what is swapped of a large value is cut, so that each leaves and returns by itself; 1 where it
    /// goes as one. At most [`PARTS`].
    pub chunks: u8,
}

impl Values {
    /// The values of a valid trace, and what may be decided about them within a pool of so many bytes.
    pub fn new(trace: &Trace, pool: Bytes, allow: Allow) -> Values {
        let mut values = Values { large: pool.0 / LARGE, ..Values::default() };
        let mut readers: Vec<Vec<u32>> = Vec::new();
        let mut current = vec![NONE; trace.tensors.len()];
        for (i, op) in trace.ops.iter().enumerate() {
            let sized = |t: &&TensorId| trace.tensors[t.index()].bytes > Bytes::ZERO;
            let mut row = Vec::with_capacity(op.reads.len());
            for t in op.reads.iter().filter(sized) {
                if current[t.index()] == NONE {
                    current[t.index()] = values.add(trace, *t, NONE, &mut readers);
                }
                readers[current[t.index()] as usize].push(i as u32);
                row.push(current[t.index()]);
            }
            values.reads.push(row);
            let mut row = Vec::with_capacity(op.writes.len());
            for t in op.writes.iter().filter(sized) {
                let value = values.add(trace, *t, i as u32, &mut readers);
                let old = std::mem::replace(&mut current[t.index()], value);
                if op.reads.contains(t) {
                    values.from[value as usize] = old;
                    values.becomes[old as usize] = value;
                }
                row.push(value);
            }
            values.writes.push(row);
            values.alternatives.push(alternatives(trace, op, pool));
        }
        values.add_gaps(trace, &readers, allow);
        values
    }

    fn add(&mut self, trace: &Trace, tensor: TensorId, maker: u32, readers: &mut Vec<Vec<u32>>) -> u32 {
        self.tensor.push(tensor);
        self.bytes.push(trace.tensors[tensor.index()].bytes.0);
        self.maker.push(maker);
        self.from.push(NONE);
        self.becomes.push(NONE);
        readers.push(Vec::new());
        self.tensor.len() as u32 - 1
    }

    fn add_gaps(&mut self, trace: &Trace, readers: &[Vec<u32>], allow: Allow) {
        let can = self.recomputable(trace, allow);
        // Before the first op that may change some parameters ops may be recomputed.
        let update =
            trace.ops.iter().position(|op| op.phase == Phase::Update).unwrap_or(trace.ops.len()) as u32;
        self.update = update;
        let mut newest = vec![NONE; trace.tensors.len()];
        (0..self.tensor.len()).for_each(|v| newest[self.tensor[v].index()] = v as u32);
        for v in 0..self.tensor.len() {
            self.first_gap.push(self.gaps.len() as u32);
            let mut after = self.maker[v];
            let least = self.part(v as u32, if allow.pieces { 1 } else { PARTS });
            let hosted = allow.swap && allow.hosts(least);
            for &before in &readers[v] {
                let apart = before > after.wrapping_add(1);
                let (swap, recompute) = (apart && hosted, apart && can[v] && before <= update);
                self.gaps.push(Gap { value: v as u32, after, before, swap, recompute });
                after = before;
            }
            if self.becomes[v] == NONE {
                let wanted =
                    readers[v].iter().any(|w| allow.recompute && trace.ops[*w as usize].recomputable);
                // The host holds one version: an older one does not go there when a newer one may.
                let last = newest[self.tensor[v].index()] == v as u32;
                let (swap, recompute) = (wanted && last && hosted, wanted && can[v]);
                self.gaps.push(Gap { value: v as u32, after, before: NONE, swap, recompute });
            }
        }
        self.first_gap.push(self.gaps.len() as u32);
        let mut next = self.first_gap.clone();
        next.iter_mut().zip(&self.maker).for_each(|(gap, maker)| *gap += u32::from(*maker == NONE));
        for op in 0..self.alternatives.len() {
            // What is made comes into being after what is read.
            for rows in [&mut self.reads, &mut self.writes] {
                let (from, until) = (rows.starts[op] as usize, rows.starts[op + 1] as usize);
                for touch in &mut rows.entries[from..until] {
                    let gap = &mut next[touch.value as usize];
                    if *gap < self.first_gap[touch.value as usize + 1] {
                        touch.gap = *gap;
                    }
                    *gap += 1;
                }
            }
        }
    }

    /// By value: whether it can be recomputed at any time. What its maker reads is kept as long as it is needed, or is
    /// recomputed itself; it must be that where it was updated in place.
    fn recomputable(&self, trace: &Trace, allow: Allow) -> Vec<bool> {
        let mut can = vec![false; self.tensor.len()];
        for (i, op) in trace.ops.iter().enumerate() {
            let inputs = self.reads.row(i);
            let there = |z: &Touch| self.becomes[z.value as usize] == NONE || can[z.value as usize];
            let made = allow.recompute && op.recomputable && inputs.iter().all(there);
            self.writes.row(i).iter().for_each(|v| can[v.value as usize] = made);
        }
        can
    }

    /// Everything stays, what is not read any more goes, and every op runs in its fastest alternative.
    pub fn keep_all(&self) -> Decisions {
        let choice = |gap: &Gap| {
            if gap.before == NONE && gap.recompute { Choice::RecomputeEach } else { Choice::Keep }
        };
        Decisions {
            choices: self.gaps.iter().map(choice).collect(),
            parts: vec![PARTS; self.tensor.len()],
            alternatives: vec![0; self.alternatives.len()],
            early: Vec::new(),
            chunks: 1,
        }
    }

    /// Where the chunks end of what is swapped of a value, counted from its first byte. The first begins there.
    pub fn chunk_ends(&self, value: u32, decisions: &Decisions) -> impl Iterator<Item = u64> {
        let parts = u32::from(decisions.parts[value as usize]);
        let cut = self.bytes[value as usize] > self.large;
        let chunks = if cut { u32::from(decisions.chunks).min(parts) } else { 1 };
        (1..=chunks).map(move |chunk| self.part(value, (parts * chunk / chunks) as u8))
    }

    /// The bytes of a value that so many of its [`PARTS`] are.
    pub fn part(&self, value: u32, parts: u8) -> u64 {
        let bytes = self.bytes[value as usize];
        // A part is as aligned as its tensor.
        if parts == PARTS {
            bytes
        } else {
            bytes.div_ceil(u64::from(PARTS)).next_multiple_of(4096) * u64::from(parts)
        }
        .min(bytes)
    }
}

impl Decisions {
    /// The gaps whose values are recomputed before this op although it does not ask for them.
    pub fn early_at(&self, op: u32) -> &[(u32, u32)] {
        let from = self.early.partition_point(|entry| entry.0 < op);
        let count = self.early[from..].iter().take_while(|entry| entry.0 == op).count();
        &self.early[from..from + count]
    }

    /// Before which op the value of a gap is recomputed; [`NONE`] where that is the one that asks for it.
    pub fn early_of(&self, gap: u32) -> u32 {
        self.early.iter().find(|entry| entry.1 == gap).map_or(NONE, |entry| entry.0)
    }

    /// Has the value of a gap recomputed before this op, or, with [`NONE`], before the one that asks for it. Gives what was
    /// decided before.
    pub fn set_early(&mut self, gap: u32, op: u32) -> u32 {
        let old =
            self.early.iter().position(|entry| entry.1 == gap).map_or(NONE, |at| self.early.remove(at).0);
        if op != NONE {
            let at = self.early.partition_point(|entry| *entry < (op, gap));
            self.early.insert(at, (op, gap));
        }
        old
    }
}

impl Choice {
    /// Whether a gap may be decided so.
    pub fn is_open(self, gap: &Gap) -> bool {
        match self {
            Choice::Keep => true,
            Choice::Swap => gap.swap,
            Choice::Recompute | Choice::RecomputeEach => gap.recompute,
        }
    }
}

/// The ways of an op that fit beside what it touches; the leanest where none does.
fn alternatives(trace: &Trace, op: &Op, pool: Bytes) -> Vec<OpAlternative> {
    let room = pool.saturating_sub(trace.touched_bytes(op)).0;
    let mut all =
        vec![OpAlternative { seconds: op.seconds.0, workspace: op.workspace_bytes.0, alternative: None }];
    all.extend(op.alternatives.iter().enumerate().map(|(k, a)| OpAlternative {
        seconds: a.seconds.0,
        workspace: a.workspace_bytes.0,
        alternative: Some(k as u32),
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
