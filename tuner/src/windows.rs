//! How long an iteration takes when given gaps are swapped within a pool, and when bytes leave and return.
//!
//! This is the evaluator that searches call thousands of times: three passes over the slots, each linear, without
//! allocating.
//!
//! 1. Forward, offloads: a gap's bytes join a queue after their last use; each slot takes from its front what has been
//!    copied by then, and then as much as it needs to fit into the pool, waiting for it.
//! 2. Backward, prefetches, the same mirrored: a gap's bytes are held before their next use as long as every slot has
//!    room, so that each prefetch may start as early as memory allows.
//! 3. Forward, the three streams: an offload starts when its writer has ended, a prefetch when all that left before its
//!    first slot has left, a step when its own bytes are there and what left before it has left.
//!
//! Addresses are not known yet, so pass 3 waits for everything that leaves, where the lowered schedule waits only for
//! those whose bytes it takes: the time told here is an upper bound of that of the schedule for the same order of
//! transfers. Pieces of tensors need nothing special: a gap is a gap.

use crate::gaps::Gaps;
use crate::placement::Window;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Duplex, Link, Stream};

const UNSET: u32 = u32::MAX;

/// The two ways of a transfer, as positions.
const OFFLOAD: u8 = 0;
const PREFETCH: u8 = 1;

/// What swapping a set of gaps costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The makespan in seconds.
    pub seconds: f64,
    /// The most bytes by which a slot exceeds the pool; 0 where it fits.
    pub overflow: u64,
    /// All bytes moved, both ways together.
    pub moved: u64,
}

/// The evaluator, with its memory.
#[derive(Clone, Debug)]
pub struct Clock<'a> {
    gaps: &'a Gaps,
    half: bool,
    /// Seconds of each gap's offload and prefetch.
    offload_seconds: Vec<f64>,
    prefetch_seconds: Vec<f64>,
    /// All gaps in order of `after`, and of `before`.
    by_after: Vec<u32>,
    by_before: Vec<u32>,
    /// The swapped ones: those that need an offload, and all.
    offloads: Vec<u32>,
    prefetches: Vec<u32>,
    /// By version: the evaluation that last offloaded it.
    seen: Vec<u32>,
    evaluation: u32,
    /// By slot: room in the pool, which prefetch must not be held any longer, start and end in seconds.
    room: Vec<i64>,
    pop_to: Vec<u32>,
    start: Vec<f64>,
    done: Vec<f64>,
    /// By gap: its window so far, and when its transfers end in seconds.
    leaves: Vec<u32>,
    returns: Vec<u32>,
    listed: Vec<u32>,
    offload_end: Vec<f64>,
    prefetch_start: Vec<f64>,
    prefetch_end: Vec<f64>,
    /// The transfers in list order: gap, way, and the slot before which each is listed.
    sequence: Vec<(u32, u8, u32)>,
}

impl<'a> Clock<'a> {
    /// An evaluator for these gaps behind this link.
    pub fn new(gaps: &'a Gaps, link: &Link) -> Clock<'a> {
        let count = gaps.gaps.len();
        let slots = gaps.base.len();
        let seconds = |stream| gaps.gaps.iter().map(|g| link.seconds(stream, Bytes(g.bytes)).0).collect();
        let mut by_after: Vec<u32> = (0..count as u32).collect();
        let mut by_before = by_after.clone();
        by_after.sort_by_key(|g| gaps.gaps[*g as usize].after);
        by_before.sort_by_key(|g| gaps.gaps[*g as usize].before);
        Clock {
            gaps,
            half: link.duplex == Duplex::Half,
            offload_seconds: seconds(Stream::Offload),
            prefetch_seconds: seconds(Stream::Prefetch),
            by_after,
            by_before,
            offloads: Vec::with_capacity(count),
            prefetches: Vec::with_capacity(count),
            seen: vec![0; gaps.versions as usize],
            evaluation: 0,
            room: vec![0; slots + 1],
            pop_to: vec![UNSET; slots + 1],
            start: vec![0.0; slots],
            done: vec![0.0; slots],
            leaves: vec![UNSET; count],
            returns: vec![UNSET; count],
            listed: vec![UNSET; count],
            offload_end: vec![0.0; count],
            prefetch_start: vec![0.0; count],
            prefetch_end: vec![0.0; count],
            sequence: Vec::with_capacity(2 * count),
        }
    }

    /// What it costs to swap just these gaps within a pool of so many bytes. One entry of `swapped` a gap.
    pub fn evaluate(&mut self, swapped: &[bool], pool: u64) -> Cost {
        let moved = self.collect(swapped, pool);
        let overflow = self.release();
        self.fetch();
        Cost { seconds: self.run(), overflow, moved }
    }

    /// Lists the swapped gaps and works out the room that they leave at every slot. Gives the bytes moved.
    fn collect(&mut self, swapped: &[bool], pool: u64) -> u64 {
        let Clock { gaps, room, .. } = self;
        self.evaluation += 1;
        self.offloads.clear();
        self.prefetches.clear();
        room.fill(0);
        let mut moved = 0;
        for &g in &self.by_after {
            if !swapped[g as usize] {
                continue;
            }
            let gap = &gaps.gaps[g as usize];
            room[gap.after as usize + 1] += gap.bytes as i64;
            room[gap.before as usize] -= gap.bytes as i64;
            moved += gap.bytes;
            if self.seen[gap.version as usize] == self.evaluation {
                // The host has this version already: the bytes are free as soon as their last use is over.
                self.leaves[g as usize] = gap.after + 1;
                self.listed[g as usize] = UNSET;
            } else {
                self.seen[gap.version as usize] = self.evaluation;
                self.leaves[g as usize] = UNSET;
                self.offloads.push(g);
                moved += gap.bytes;
            }
        }
        self.prefetches.extend(self.by_before.iter().filter(|g| swapped[**g as usize]));
        let mut freed = 0;
        for (room, base) in room.iter_mut().zip(&gaps.base) {
            freed += *room;
            *room = pool as i64 + freed - *base as i64;
        }
        moved
    }

    /// Pass 1: when each gap's bytes leave. Gives the overflow, and takes what waits to leave out of `room`.
    fn release(&mut self) -> u64 {
        let gaps = &self.gaps.gaps;
        let (mut next, mut head, mut due) = (0, 0, 0);
        let (mut waiting, mut overflow) = (0i64, (-self.room[0]).max(0));
        let (mut time, mut link) = (0.0f64, 0.0f64);
        self.done[0] = 0.0;
        for slot in 1..self.gaps.base.len() {
            while let Some(&g) =
                self.offloads.get(next).filter(|g| gaps[**g as usize].after as usize + 1 == slot)
            {
                let gap = &gaps[g as usize];
                link = link.max(self.done[gap.writer as usize]) + self.offload_seconds[g as usize];
                self.offload_end[g as usize] = link;
                waiting += gap.bytes as i64;
                next += 1;
            }
            // The bytes must have left before they can return for this very slot.
            let mut must = head;
            while let Some(&g) =
                self.prefetches.get(due).filter(|g| gaps[**g as usize].before as usize == slot)
            {
                if self.leaves[g as usize] == UNSET {
                    let at = self.offloads[must..next].iter().position(|o| *o == g);
                    must += at.map_or(0, |at| at + 1);
                }
                due += 1;
            }
            while head < next {
                let g = self.offloads[head] as usize;
                let ended = self.offload_end[g] <= time;
                if !ended && head >= must && waiting <= self.room[slot] {
                    break;
                }
                time = time.max(self.offload_end[g]);
                self.leaves[g] = slot as u32;
                waiting -= gaps[g].bytes as i64;
                head += 1;
            }
            self.room[slot] -= waiting;
            overflow = overflow.max(-self.room[slot]);
            time += self.gaps.seconds[slot];
            self.done[slot] = time;
        }
        overflow as u64
    }

    /// Pass 2: from when each gap's bytes are held again.
    fn fetch(&mut self) {
        let gaps = &self.gaps.gaps;
        self.pop_to.fill(UNSET);
        for (at, g) in self.prefetches.iter().enumerate() {
            let last = &mut self.pop_to[self.leaves[*g as usize] as usize];
            *last = (*last).min(at as u32);
        }
        let (mut enter, mut front) = (self.prefetches.len(), self.prefetches.len());
        let mut held = 0i64;
        for slot in (0..self.gaps.base.len()).rev() {
            while enter > 0 && gaps[self.prefetches[enter - 1] as usize].before as usize == slot + 1 {
                enter -= 1;
                held += gaps[self.prefetches[enter] as usize].bytes as i64;
            }
            let must = self.pop_to[slot + 1];
            while front > enter && (front as u32 > must || held > self.room[slot]) {
                front -= 1;
                let g = self.prefetches[front] as usize;
                self.returns[g] = slot as u32 + 1;
                held -= gaps[g].bytes as i64;
            }
        }
    }

    /// Pass 3: the three streams. Gives the makespan.
    fn run(&mut self) -> f64 {
        let gaps = &self.gaps.gaps;
        let (mut listed, mut left, mut came, mut due) = (0, 0, 0, 0);
        let mut next_listed = self.listing(0, 0);
        self.sequence.clear();
        let (mut out, mut into, mut gate, mut time) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        for slot in 0..self.gaps.base.len() {
            while listed < self.offloads.len() && next_listed as usize == slot {
                let g = self.offloads[listed] as usize;
                let free = if self.half { out.max(into) } else { out };
                out = free.max(self.done[gaps[g].writer as usize]) + self.offload_seconds[g];
                self.offload_end[g] = out;
                self.listed[g] = next_listed;
                self.sequence.push((g as u32, OFFLOAD, next_listed));
                listed += 1;
                next_listed = self.listing(listed, next_listed);
            }
            while let Some(&g) =
                self.offloads.get(left).filter(|g| self.leaves[**g as usize] as usize <= slot)
            {
                gate = gate.max(self.offload_end[g as usize]);
                left += 1;
            }
            while let Some(&g) =
                self.prefetches.get(came).filter(|g| self.returns[**g as usize] as usize == slot)
            {
                let g = g as usize;
                let free = if self.half { out.max(into) } else { into };
                self.prefetch_start[g] = free.max(time).max(gate);
                into = self.prefetch_start[g] + self.prefetch_seconds[g];
                self.prefetch_end[g] = into;
                self.sequence.push((g as u32, PREFETCH, slot as u32));
                came += 1;
            }
            let mut start = time.max(gate);
            while let Some(&g) =
                self.prefetches.get(due).filter(|g| gaps[**g as usize].before as usize == slot)
            {
                start = start.max(self.prefetch_end[g as usize]);
                due += 1;
            }
            self.start[slot] = start;
            time = start + self.gaps.seconds[slot];
            self.done[slot] = time;
        }
        time.max(out).max(into)
    }

    /// Before which slot the offload at this position is listed: after its writer, and not before its predecessor.
    fn listing(&self, at: usize, previous: u32) -> u32 {
        self.offloads.get(at).map_or(UNSET, |g| previous.max(self.gaps.gaps[*g as usize].writer + 1))
    }

    /// The windows of the last evaluation; none for a gap that is kept.
    ///
    /// `tighten` between 0 and 1 says how much slack is given up so that addresses are easier to find: 0 leaves every
    /// window as wide as memory allows, 1 delays every prefetch, and every step before the fullest slot, as far as the
    /// makespan allows, and lets bytes leave as soon as their offload has ended then. What is not given up is room for
    /// times that differ from the prediction.
    pub fn windows(&mut self, swapped: &[bool], tighten: f64) -> Vec<Option<Window>> {
        let mut windows: Vec<Option<Window>> = vec![None; self.gaps.gaps.len()];
        for (g, window) in windows.iter_mut().enumerate().filter(|(g, _)| swapped[*g]) {
            let offload = (self.listed[g] != UNSET).then_some(self.listed[g]);
            *window = Some(Window { leaves: self.leaves[g], returns: self.returns[g], offload });
        }
        if tighten > 0.0 {
            self.delay(tighten);
            self.narrow(&mut windows);
        }
        windows
    }

    /// Moves the times of the last evaluation towards the latest that keep its makespan: those of prefetches, and of
    /// the steps before the fullest slot. Offloads stay as early as the steps let them.
    ///
    /// Times that keep all constraints form a convex set, so a point between the earliest and the latest keeps them too.
    fn delay(&mut self, share: f64) {
        let gaps = &self.gaps.gaps;
        let slots = self.gaps.base.len();
        let fullest = (0..slots).rev().max_by_key(|s| self.gaps.base[*s]).unwrap_or(0);
        // By slot: before when its op must have ended for transfers, and when all that left before it must have left.
        let mut ends = vec![f64::INFINITY; slots];
        let mut gates = vec![f64::INFINITY; slots + 1];
        let mut next = [f64::INFINITY; 2];
        let mut sequence = self.sequence.len();
        for slot in (0..slots).rev() {
            if slot < fullest {
                let following = self.start[slot + 1];
                let latest = (ends[slot].min(following) - self.gaps.seconds[slot]).max(self.start[slot]);
                self.start[slot] += (latest - self.start[slot]) * share;
                self.done[slot] = self.start[slot] + self.gaps.seconds[slot];
            }
            gates[slot] = gates[slot + 1].min(self.start[slot]);
            while sequence > 0 && self.sequence[sequence - 1].2 as usize == slot {
                sequence -= 1;
                let (g, way, _) = self.sequence[sequence];
                let (g, link) = (g as usize, if self.half { 0 } else { way as usize });
                if way == PREFETCH {
                    let earliest = self.prefetch_start[g];
                    let end = next[link].min(self.start[gaps[g].before as usize]);
                    let latest = (end - self.prefetch_seconds[g]).max(earliest);
                    self.prefetch_start[g] = earliest + (latest - earliest) * share;
                    next[link] = self.prefetch_start[g];
                    gates[slot] = gates[slot].min(next[link]);
                    ends[slot - 1] = ends[slot - 1].min(next[link]);
                } else {
                    let end = next[link].min(gates[self.leaves[g] as usize]);
                    next[link] = end - self.offload_seconds[g];
                    let writer = &mut ends[gaps[g].writer as usize];
                    *writer = writer.min(next[link]);
                }
            }
        }
        let mut link = 0.0f64;
        for &(g, way, _) in &self.sequence {
            let g = g as usize;
            if way == OFFLOAD {
                link = link.max(self.done[gaps[g].writer as usize]) + self.offload_seconds[g];
                self.offload_end[g] = link;
            } else if self.half {
                link = link.max(self.prefetch_start[g] + self.prefetch_seconds[g]);
            }
        }
    }

    /// Makes each window as narrow as the times allow.
    fn narrow(&self, windows: &mut [Option<Window>]) {
        let gaps = &self.gaps.gaps;
        // Sums in another order: a hair's breadth is no reason to wait a whole step.
        let hair = 1e-12 * self.done[self.done.len() - 1];
        for (g, window) in windows.iter_mut().enumerate() {
            let Some(window) = window else { continue };
            if let Some(listed) = window.offload {
                let (from, until) = (gaps[g].after as usize + 1, window.leaves as usize);
                let ended = self.offload_end[g] - hair;
                let early = from + self.start[from..until].partition_point(|start| *start < ended);
                window.leaves = (early as u32).max(listed);
            }
        }
        let mut latest_slot = UNSET;
        for &g in self.prefetches.iter().rev() {
            let Some(window) = &mut windows[g as usize] else { continue };
            let (from, until) = (window.returns as usize, gaps[g as usize].before as usize);
            let begins = self.prefetch_start[g as usize] + hair;
            let late = from + self.done[from..until].partition_point(|done| *done <= begins);
            latest_slot = latest_slot.min(late as u32);
            window.returns = latest_slot.max(window.returns);
        }
    }
}
