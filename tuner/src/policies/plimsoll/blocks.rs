//! Equal blocks of a deep network: finds them, and leaves most of them out, so that a few can be planned for all (`copies.rs`).
//!
//! Ops are alike if they have the same kind, phase and bytes of tensors. A stretch of ops that repeats itself is a *strand* of
//! blocks. The forward and the backward strand of the same blocks are a *family*, in which blocks have numbers: an op of one
//! strand reads the output of the other strand's block with the same number, or at the same distance for every block. Blocks are
//! *equal* if each touches the tensors that the previous one touches, one number further, or the very same tensors. So equal
//! blocks can be removed from the middle: the blocks behind them then touch the tensors before them instead.
//!
//! This file deliberately finds neither blocks within blocks nor equal blocks that do not follow each other. It ignores seconds,
//! which differ among equal blocks if they were measured.

use crate::numbers::real;
use plimsoll_ir::trace::{Op, Trace};
use plimsoll_ir::{OpId, TensorId};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use typed_index_collections::TiVec;

/// Minimum number of equal blocks in a row for a strand.
const FEWEST: usize = 4;

/// Minimum number of them that are left.
const LEFT: isize = 2;

/// Maximum number of comparisons of two ops when looking for strands.
const WORK: usize = 20_000_000;

/// Ops that repeat, block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strand {
    first: usize,
    /// Ops of a block.
    period: usize,
    blocks: usize,
    family: usize,
    /// Number of the first block; the next has one less or one more.
    base: isize,
    falls: bool,
}

impl Strand {
    fn ops(&self) -> Range<usize> {
        self.first..self.first + self.period * self.blocks
    }

    /// Returns the number of blocks of the strand before the block of an op.
    fn block(&self, op: usize) -> isize {
        ((op - self.first) / self.period).cast_signed()
    }

    fn number(&self, op: usize) -> isize {
        let block = self.block(op);
        if self.falls { self.base - block } else { self.base + block }
    }

    /// Returns the numbers of the blocks.
    fn numbers(&self) -> Range<isize> {
        let last = self.number(self.ops().end - 1);
        last.min(self.base)..last.max(self.base) + 1
    }

    /// Returns the first op of a block.
    fn start(&self, number: isize) -> usize {
        let block = if self.falls { self.base - number } else { number - self.base };
        self.first + block.cast_unsigned() * self.period
    }

    /// Returns the corresponding op in the block that is this many numbers further.
    fn further(&self, op: usize, blocks: isize) -> Option<usize> {
        let ops = if self.falls { -blocks } else { blocks } * self.period.cast_signed();
        op.checked_add_signed(ops).filter(|op| self.ops().contains(op))
    }
}

/// Equal blocks of a trace.
pub(super) struct Blocks<'a> {
    trace: &'a Trace,
    strands: Vec<Strand>,
    /// By op: its strand.
    strand: Vec<Option<usize>>,
    /// By tensor: the first op that touches it, and the index of that touch among the op's; `None` if no op touches it.
    first: TiVec<TensorId, Option<(usize, usize)>>,
    /// By family: the numbers of equal blocks; empty if there are none.
    equal: Vec<Range<isize>>,
}

/// Trace with fewer equal blocks.
pub(super) struct Folded {
    pub trace: Trace,
    /// By op of the whole trace: the op of this trace whose decision it copies, and the relative position of its block among the
    /// equal ones, from 0 to 1; 0 if it is in none.
    pub like: TiVec<OpId, (OpId, f64)>,
}

impl<'a> Blocks<'a> {
    /// Returns the repeated blocks of a trace.
    pub fn find(trace: &'a Trace) -> Blocks<'a> {
        let mut first: TiVec<TensorId, _> = vec![None; trace.tensors.len()].into();
        for (i, op) in trace.ops.iter().enumerate() {
            touched(op).enumerate().for_each(|(at, t)| _ = first[t].get_or_insert((i, at)));
        }
        let strands = strands(&looks(trace));
        let mut strand = vec![None; trace.ops.len()];
        for (s, of) in strands.iter().enumerate() {
            strand[of.ops()].fill(Some(s));
        }
        let mut blocks = Blocks { trace, strands, strand, first, equal: Vec::new() };
        blocks.relate();
        blocks.equal = (0..blocks.strands.len()).map(|family| blocks.equal(family)).collect();
        blocks
    }

    fn strand_of(&self, op: usize) -> Option<&Strand> {
        self.strand[op].map(|s| &self.strands[s])
    }

    /// Joins strands that read each other's outputs into one family, with numbers that most of them agree on.
    fn relate(&mut self) {
        for s in 0..self.strands.len() {
            let strand = self.strands[s];
            let mut votes: HashMap<(usize, bool, isize), usize> = HashMap::new();
            for op in strand.ops() {
                let block = strand.block(op);
                for t in &self.trace.ops[op].reads {
                    let Some((maker, _)) = self.first[*t] else { continue };
                    let earlier = self.strand[maker].filter(|of| *of < s);
                    let Some(of) = earlier.map(|of| self.strands[of]) else { continue };
                    let number = of.number(maker);
                    *votes.entry((of.family, false, number - block)).or_default() += 1;
                    *votes.entry((of.family, true, number + block)).or_default() += 1;
                }
            }
            let most = votes.into_iter().max_by_key(|(kin, votes)| (*votes, Reverse(*kin)));
            let kin = most.filter(|(_, votes)| *votes >= strand.blocks).map(|(kin, _)| kin);
            let (family, falls, base) = kin.unwrap_or((s, false, 0));
            self.strands[s] = Strand { family, falls, base, ..strand };
        }
    }

    fn family(&self, family: usize) -> impl Iterator<Item = &Strand> {
        self.strands.iter().filter(move |strand| strand.family == family)
    }

    /// Returns the longest run of equal blocks.
    fn equal(&self, family: usize) -> Range<isize> {
        let numbers = self.family(family).map(Strand::numbers);
        let Some(common) = numbers.reduce(|a, b| a.start.max(b.start)..a.end.min(b.end)) else { return 0..0 };
        let (mut longest, mut from) = (0..0, common.start);
        for next in common.start + 1..=common.end {
            if next == common.end || !self.goes_on(family, next - 1) {
                if next - from > longest.end - longest.start {
                    longest = from..next;
                }
                from = next;
            }
        }
        longest
    }

    /// Returns `true` if the next block touches the tensors of this one, one number further, in every strand.
    fn goes_on(&self, family: usize, number: isize) -> bool {
        self.family(family).all(|strand| {
            let start = strand.start(number);
            (start..start + strand.period).all(|op| {
                let Some(next) = strand.further(op, 1) else { return false };
                let mut pairs = touched(&self.trace.ops[op]).zip(touched(&self.trace.ops[next]));
                pairs.all(|(t, u)| t == u || self.follows(family, t, u))
            })
        })
    }

    /// Returns `true` if `next` is in the next block the counterpart of `tensor` in this one.
    fn follows(&self, family: usize, tensor: TensorId, next: TensorId) -> bool {
        let (Some((op, at)), Some((further, place))) = (self.first[tensor], self.first[next]) else {
            return false;
        };
        let strand = self.strand_of(op).filter(|strand| strand.family == family);
        at == place && strand.is_some_and(|strand| strand.further(op, 1) == Some(further))
    }

    /// Returns the trace with about this share of the equal blocks of each family; `None` if that is not at most half of its ops.
    pub fn fold(&self, share: f64) -> Option<Folded> {
        let cut = |equal: &Range<isize>| {
            let count = equal.end - equal.start;
            let left = (real(count.cast_unsigned()) * share).ceil() as isize;
            let left = left.clamp(LEFT.min(count), count);
            let from = equal.start + left / 2;
            from..from + count - left
        };
        let folding = Folding { blocks: self, out: self.equal.iter().map(cut).collect() };
        // By op: its position among the ops that are left.
        let mut place: Vec<Option<OpId>> = vec![None; self.trace.ops.len()];
        let mut ops: TiVec<OpId, Op> = TiVec::new();
        for (at, place) in place.iter_mut().enumerate().filter(|(at, _)| !folding.leaves_out(*at)) {
            *place = Some(ops.push_and_get_key(folding.op(at)));
        }
        if ops.len() * 2 > place.len() {
            return None;
        }
        let like = |op: usize| place[folding.like(op)].expect("ops are decided after some that are left");
        let like = (0..place.len()).map(|op| (like(op), folding.depth(op))).collect();
        let ops = ops.into();
        let Trace { kind, name, batch, resident_bytes, tensors, .. } = self.trace.clone();
        Some(Folded { trace: Trace { kind, name, batch, resident_bytes, tensors, ops }, like })
    }
}

/// Equal blocks being left out.
struct Folding<'a> {
    blocks: &'a Blocks<'a>,
    /// By family: numbers of the blocks that are left out.
    out: Vec<Range<isize>>,
}

impl Folding<'_> {
    fn leaves_out(&self, op: usize) -> bool {
        self.blocks.strand_of(op).is_some_and(|strand| self.out[strand.family].contains(&strand.number(op)))
    }

    /// Returns the op, with the tensors that are left.
    fn op(&self, at: usize) -> Op {
        let op = &self.blocks.trace.ops[at];
        let all = |ts: &[TensorId]| ts.iter().filter_map(|t| self.instead(at, *t)).collect();
        Op { reads: all(&op.reads), writes: all(&op.writes), ..op.clone() }
    }

    /// Returns the tensor that an op touches instead of `tensor`: that of the block that is now as far away. `None` if the tensor
    /// belongs to a block that is left out and the op to no such family.
    fn instead(&self, op: usize, tensor: TensorId) -> Option<TensorId> {
        let (maker, at) = self.blocks.first[tensor]?;
        if !self.leaves_out(maker) {
            return Some(tensor);
        }
        let strand = self.blocks.strand_of(maker)?;
        let own = self.blocks.strand_of(op).filter(|own| own.family == strand.family)?;
        let out = &self.out[strand.family];
        let count = out.end - out.start;
        let further = if own.number(op) < out.start { count } else { -count };
        touched(&self.blocks.trace.ops[strand.further(maker, further)?]).nth(at)
    }

    fn depth(&self, op: usize) -> f64 {
        let Some(strand) = self.blocks.strand_of(op) else { return 0.0 };
        let equal = &self.blocks.equal[strand.family];
        let before = (strand.number(op) - equal.start).clamp(0, equal.end - equal.start);
        real(before.cast_unsigned()) / real((equal.end - equal.start).max(1).cast_unsigned())
    }

    /// Returns the remaining op whose decision this one copies. The remaining blocks are repeated in order, so that each block
    /// has the neighbours that it was planned with.
    fn like(&self, op: usize) -> usize {
        let Some(strand) = self.blocks.strand_of(op) else { return op };
        let (out, equal) = (&self.out[strand.family], &self.blocks.equal[strand.family]);
        let (number, count) = (strand.number(op), equal.end - equal.start);
        let left = count - (out.end - out.start);
        if !equal.contains(&number) || out.is_empty() {
            return op;
        }
        // As many repetitions as there is room for; if they do not fill it exactly, some blocks come twice.
        let rounds = (count + left / 2) / left;
        let at = number - equal.start;
        let first = |round: isize| (round * count + rounds - 1) / rounds;
        let round = at * rounds / count;
        let (begin, end) = (first(round), first(round + 1));
        let model = equal.start + (at - begin) * left / (end - begin).max(left);
        let model = if model < out.start { model } else { model + out.end - out.start };
        strand.start(model) + (op - strand.first) % strand.period
    }
}

fn touched(op: &Op) -> impl Iterator<Item = TensorId> + '_ {
    op.reads.iter().chain(&op.writes).copied()
}

/// By op: a number that it shares with similar ops.
fn looks(trace: &Trace) -> Vec<usize> {
    let mut known = HashMap::new();
    let mut looks = Vec::with_capacity(trace.ops.len());
    for op in &trace.ops {
        let bytes: Vec<_> = touched(op).map(|t| trace.tensors[t.index()].bytes).collect();
        let look = (&op.kind, op.phase, op.recomputable, op.reads.len(), bytes, op.alternatives.len());
        let next = known.len();
        looks.push(*known.entry(look).or_insert(next));
    }
    looks
}

/// Returns the stretches that repeat, the longest first, without overlap; in order of time.
fn strands(looks: &[usize]) -> Vec<Strand> {
    let count = looks.len();
    let longest = (count / FEWEST).min(WORK / count.max(1));
    let mut all: Vec<(usize, Strand)> = Vec::new();
    for period in 1..=longest {
        let mut repeated = 0;
        for i in 0..=count - period {
            if i < count - period && looks[i] == looks[i + period] {
                repeated += 1;
                continue;
            }
            let (first, blocks) = (i - repeated, repeated / period + 1);
            if blocks >= FEWEST {
                all.push((repeated, Strand { first, period, blocks, family: 0, base: 0, falls: false }));
            }
            repeated = 0;
        }
    }
    all.sort_by_key(|(repeated, strand)| (Reverse(*repeated), strand.period, strand.first));
    let mut taken = vec![false; count];
    let mut chosen: Vec<Strand> = Vec::new();
    for (_, strand) in all {
        if strand.ops().all(|op| !taken[op]) {
            taken[strand.ops()].fill(true);
            chosen.push(strand);
        }
    }
    chosen.sort_by_key(|strand| strand.first);
    chosen
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
