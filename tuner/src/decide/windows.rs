//! How long an iteration takes within a pool when given pieces are swapped, and when their bytes leave and return.
//!
//! This is the evaluator that searches call thousands of times: three passes over the slots of a [`Course`], each linear,
//! without allocating.
//!
//! 1. Forward, offloads: a piece's bytes join a queue after their last use; each slot takes from its front what has been
//!    copied by then, and then as much as it needs to fit into the pool, waiting for it.
//! 2. Backward, prefetches, the same mirrored: a piece's bytes are held before their next use as long as every slot has
//!    room, so that each prefetch may start as early as memory allows.
//! 3. Forward, the three streams: an offload starts when its writer has ended, a prefetch when all that left before its
//!    first slot has left, a step when its own bytes are there and what left before it has left.
//!
//! Addresses are not known yet, so pass 3 waits for everything that leaves, where the lowered schedule waits only for
//! those whose bytes it takes: the time told here is an upper bound of that of the schedule for the same order of
//! transfers. Nor does pass 3 look for room between two steps: a prefetch that would fit beside what is still leaving waits
//! for it. An exact account of the bytes at every instant was tried instead; it finds the same makespans on networks, and
//! no better plans on small random traces.

use crate::decide::placement::Window;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Duplex, Link, Stream};

const UNSET: u32 = u32::MAX;

/// The two ways of a transfer, as positions.
const OFFLOAD: u8 = 0;
const PREFETCH: u8 = 1;

/// What an iteration asks of the streams and of the pool: the steps in order, and what is swapped between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// How long each slot's step takes, in seconds; slot 0 takes none.
    pub seconds: Vec<f64>,
    /// The pool bytes that each slot needs at least: without what is swapped, but at the slots of its two uses.
    pub need: Vec<u64>,
    /// What is swapped, in order of `before`.
    pub moves: Vec<Move>,
}

/// Bytes that are off the device between two uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// How many.
    pub bytes: u64,
    /// The slot of the last use before; 0 where there is none since the start.
    pub after: u32,
    /// The slot of the next use; more than one later.
    pub before: u32,
    /// The slot of the write that made the contents, 0 where they are there from the start.
    pub writer: u32,
    /// They are copied to the host; where not, it holds them from an earlier move.
    pub offload: bool,
}

/// What an iteration costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The makespan in seconds.
    pub seconds: f64,
    /// The most bytes by which a slot exceeds the pool; 0 where it fits.
    pub overflow: u64,
    /// The same, summed over all slots.
    pub excess: u64,
    /// All bytes moved, both ways together.
    pub moved: u64,
}

/// The evaluator, with its memory.
#[derive(Clone, Debug)]
pub struct Clock {
    link: Link,
    half: bool,
    /// By position: the moves that need an offload, in order of `after`, then of `writer`.
    offloads: Vec<u32>,
    /// By slot: the last move so far whose `after` it is, and by move the one before it.
    chain: Vec<u32>,
    previous: Vec<u32>,
    /// By slot: room in the pool, which prefetch must not be held any longer, start and end in seconds.
    room: Vec<i64>,
    pop_to: Vec<u32>,
    start: Vec<f64>,
    done: Vec<f64>,
    /// By move: its window so far, the seconds of its transfers, and when they start and end.
    leaves: Vec<u32>,
    returns: Vec<u32>,
    listed: Vec<u32>,
    offload_seconds: Vec<f64>,
    prefetch_seconds: Vec<f64>,
    offload_end: Vec<f64>,
    prefetch_start: Vec<f64>,
    prefetch_end: Vec<f64>,
    /// The transfers in list order: move, way, and the slot before which each is listed.
    sequence: Vec<(u32, u8, u32)>,
    /// The slots that exceed the pool.
    over: Vec<u32>,
}

impl Clock {
    /// An evaluator for this link.
    pub fn new(link: &Link) -> Clock {
        Clock {
            link: *link,
            half: link.duplex == Duplex::Half,
            offloads: Vec::new(),
            chain: Vec::new(),
            previous: Vec::new(),
            room: Vec::new(),
            pop_to: Vec::new(),
            start: Vec::new(),
            done: Vec::new(),
            leaves: Vec::new(),
            returns: Vec::new(),
            listed: Vec::new(),
            offload_seconds: Vec::new(),
            prefetch_seconds: Vec::new(),
            offload_end: Vec::new(),
            prefetch_start: Vec::new(),
            prefetch_end: Vec::new(),
            sequence: Vec::new(),
            over: Vec::new(),
        }
    }

    /// What a course costs within a pool of so many bytes.
    pub fn evaluate(&mut self, course: &Course, pool: u64) -> Cost {
        let moved = self.collect(course, pool);
        let (overflow, excess) = self.release(course);
        self.fetch(course);
        Cost { seconds: self.run(course), overflow, excess, moved }
    }

    /// The slots that exceeded the pool in the last evaluation.
    pub fn over(&self) -> &[u32] {
        &self.over
    }

    /// Lists the offloads and works out the room at every slot. Gives the bytes moved.
    fn collect(&mut self, course: &Course, pool: u64) -> u64 {
        let (slots, moves) = (course.need.len(), course.moves.len());
        self.chain.clear();
        self.chain.resize(slots, UNSET);
        self.pop_to.clear();
        self.pop_to.resize(slots + 1, UNSET);
        self.room.clear();
        self.room.extend(course.need.iter().map(|need| pool as i64 - *need as i64));
        for by_slot in [&mut self.start, &mut self.done] {
            by_slot.resize(slots, 0.0);
        }
        for by_move in [&mut self.offload_end, &mut self.prefetch_start, &mut self.prefetch_end] {
            by_move.resize(moves, 0.0);
        }
        for by_move in [&mut self.previous, &mut self.leaves, &mut self.returns, &mut self.listed] {
            by_move.resize(moves, UNSET);
        }
        self.offload_seconds.clear();
        self.prefetch_seconds.clear();
        let mut moved = 0u64;
        for (m, piece) in course.moves.iter().enumerate() {
            let seconds = |stream| self.link.seconds(stream, Bytes(piece.bytes)).0;
            self.offload_seconds.push(seconds(Stream::Offload));
            self.prefetch_seconds.push(seconds(Stream::Prefetch));
            self.listed[m] = UNSET;
            // A tensor of 2^60 bytes may be moved more than eight times each way.
            moved = moved.saturating_add(piece.bytes);
            if piece.offload {
                moved = moved.saturating_add(piece.bytes);
                self.leaves[m] = UNSET;
                self.previous[m] = self.chain[piece.after as usize];
                self.chain[piece.after as usize] = m as u32;
            } else {
                // The host has these bytes already: they are free as soon as their last use is over.
                self.leaves[m] = piece.after + 1;
            }
        }
        self.offloads.clear();
        for slot in 0..slots {
            let from = self.offloads.len();
            let mut m = self.chain[slot];
            while m != UNSET {
                self.offloads.push(m);
                m = self.previous[m as usize];
            }
            // Of pieces whose last use is the same the one that was written first goes first: it may start earlier.
            self.offloads[from..].sort_unstable_by_key(|m| (course.moves[*m as usize].writer, *m));
        }
        moved
    }

    /// Pass 1: when each piece's bytes leave. Gives the overflow, at most and summed, and takes what waits to leave out of
    /// `room`.
    fn release(&mut self, course: &Course) -> (u64, u64) {
        let moves = &course.moves;
        let (mut next, mut head, mut due) = (0, 0, 0);
        let (mut waiting, mut overflow) = (0i64, (-self.room[0]).max(0) as u64);
        let mut excess = overflow;
        self.over.clear();
        let (mut time, mut link) = (0.0f64, 0.0f64);
        self.done[0] = 0.0;
        for slot in 1..course.need.len() {
            while let Some(&m) =
                self.offloads.get(next).filter(|m| moves[**m as usize].after as usize + 1 == slot)
            {
                let piece = &moves[m as usize];
                link = link.max(self.done[piece.writer as usize]) + self.offload_seconds[m as usize];
                self.offload_end[m as usize] = link;
                waiting += piece.bytes as i64;
                next += 1;
            }
            // The bytes must have left before they can return for this very slot.
            let mut must = head;
            while let Some(piece) = moves.get(due).filter(|piece| piece.before as usize == slot) {
                if piece.offload && self.leaves[due] == UNSET {
                    let at = self.offloads[must..next].iter().position(|o| *o as usize == due);
                    must += at.map_or(0, |at| at + 1);
                }
                due += 1;
            }
            while head < next {
                let m = self.offloads[head] as usize;
                let ended = self.offload_end[m] <= time;
                if !ended && head >= must && waiting <= self.room[slot] {
                    break;
                }
                time = time.max(self.offload_end[m]);
                self.leaves[m] = slot as u32;
                waiting -= moves[m].bytes as i64;
                head += 1;
            }
            self.room[slot] -= waiting;
            if self.room[slot] < 0 {
                let over = self.room[slot].unsigned_abs();
                overflow = overflow.max(over);
                excess = excess.saturating_add(over);
                self.over.push(slot as u32);
            }
            time += course.seconds[slot];
            self.done[slot] = time;
        }
        (overflow, excess)
    }

    /// Pass 2: from when each piece's bytes are held again.
    fn fetch(&mut self, course: &Course) {
        let moves = &course.moves;
        for (at, leaves) in self.leaves[..moves.len()].iter().enumerate() {
            let last = &mut self.pop_to[*leaves as usize];
            *last = (*last).min(at as u32);
        }
        let (mut enter, mut front) = (moves.len(), moves.len());
        let mut held = 0i64;
        for slot in (0..course.need.len()).rev() {
            while enter > 0 && moves[enter - 1].before as usize == slot + 1 {
                enter -= 1;
                held += moves[enter].bytes as i64;
            }
            let must = self.pop_to[slot + 1];
            while front > enter && (front as u32 > must || held > self.room[slot]) {
                front -= 1;
                self.returns[front] = slot as u32 + 1;
                held -= moves[front].bytes as i64;
            }
        }
    }

    /// Pass 3: the three streams. Gives the makespan.
    fn run(&mut self, course: &Course) -> f64 {
        let moves = &course.moves;
        let (mut listed, mut left, mut came, mut due) = (0, 0, 0, 0);
        let mut next_listed = self.listing(course, 0, 0);
        self.sequence.clear();
        let (mut out, mut into, mut gate, mut time) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        for slot in 0..course.need.len() {
            while listed < self.offloads.len() && next_listed as usize == slot {
                let m = self.offloads[listed] as usize;
                let free = if self.half { out.max(into) } else { out };
                out = free.max(self.done[moves[m].writer as usize]) + self.offload_seconds[m];
                self.offload_end[m] = out;
                self.listed[m] = next_listed;
                self.sequence.push((m as u32, OFFLOAD, next_listed));
                listed += 1;
                next_listed = self.listing(course, listed, next_listed);
            }
            while let Some(&m) =
                self.offloads.get(left).filter(|m| self.leaves[**m as usize] as usize <= slot)
            {
                gate = gate.max(self.offload_end[m as usize]);
                left += 1;
            }
            while came < moves.len() && self.returns[came] as usize == slot {
                let free = if self.half { out.max(into) } else { into };
                self.prefetch_start[came] = free.max(time).max(gate);
                into = self.prefetch_start[came] + self.prefetch_seconds[came];
                self.prefetch_end[came] = into;
                self.sequence.push((came as u32, PREFETCH, slot as u32));
                came += 1;
            }
            let mut start = time.max(gate);
            while moves.get(due).is_some_and(|piece| piece.before as usize == slot) {
                start = start.max(self.prefetch_end[due]);
                due += 1;
            }
            self.start[slot] = start;
            time = start + course.seconds[slot];
            self.done[slot] = time;
        }
        time.max(out).max(into)
    }

    /// Before which slot the offload at this position is listed: after its writer, and not before its predecessor.
    fn listing(&self, course: &Course, at: usize, previous: u32) -> u32 {
        self.offloads.get(at).map_or(UNSET, |m| previous.max(course.moves[*m as usize].writer + 1))
    }

    /// The windows of the moves of the last evaluation, which was of this course.
    ///
    /// `tighten` between 0 and 1 says how much slack is given up so that addresses are easier to find: 0 leaves every
    /// window as wide as memory allows, 1 delays every prefetch, and every step before the fullest slot, as far as the
    /// makespan allows, and lets bytes leave as soon as their offload has ended then. What is not given up is room for
    /// times that differ from the prediction.
    pub fn windows(&mut self, course: &Course, tighten: f64) -> Vec<Window> {
        let window = |(m, piece): (usize, &Move)| {
            let offload = piece.offload.then_some(self.listed[m]);
            Window { leaves: self.leaves[m], returns: self.returns[m], offload }
        };
        let mut windows: Vec<Window> = course.moves.iter().enumerate().map(window).collect();
        if tighten > 0.0 {
            self.delay(course, tighten);
            self.narrow(course, &mut windows);
        }
        windows
    }

    /// Moves the times of the last evaluation towards the latest that keep its makespan: those of prefetches, and of
    /// the steps before the fullest slot. Offloads stay as early as the steps let them.
    ///
    /// Times that keep all constraints form a convex set, so a point between the earliest and the latest keeps them too.
    fn delay(&mut self, course: &Course, share: f64) {
        let moves = &course.moves;
        let slots = course.need.len();
        let fullest = course.fullest_unswapped();
        // By slot: before when its op must have ended for transfers, and when all that left before it must have left.
        let mut ends = vec![f64::INFINITY; slots];
        let mut gates = vec![f64::INFINITY; slots + 1];
        let mut next = [f64::INFINITY; 2];
        let mut sequence = self.sequence.len();
        for slot in (0..slots).rev() {
            if slot < fullest {
                let following = self.start[slot + 1];
                let latest = (ends[slot].min(following) - course.seconds[slot]).max(self.start[slot]);
                self.start[slot] += (latest - self.start[slot]) * share;
                self.done[slot] = self.start[slot] + course.seconds[slot];
            }
            gates[slot] = gates[slot + 1].min(self.start[slot]);
            while sequence > 0 && self.sequence[sequence - 1].2 as usize == slot {
                sequence -= 1;
                let (m, direction, _) = self.sequence[sequence];
                let (m, link) = (m as usize, if self.half { 0 } else { direction as usize });
                if direction == PREFETCH {
                    let earliest = self.prefetch_start[m];
                    let end = next[link].min(self.start[moves[m].before as usize]);
                    let latest = (end - self.prefetch_seconds[m]).max(earliest);
                    self.prefetch_start[m] = earliest + (latest - earliest) * share;
                    next[link] = self.prefetch_start[m];
                    gates[slot] = gates[slot].min(next[link]);
                    ends[slot - 1] = ends[slot - 1].min(next[link]);
                } else {
                    let end = next[link].min(gates[self.leaves[m] as usize]);
                    next[link] = end - self.offload_seconds[m];
                    let writer = &mut ends[moves[m].writer as usize];
                    *writer = writer.min(next[link]);
                }
            }
        }
        let mut link = 0.0f64;
        for &(m, direction, _) in &self.sequence {
            let m = m as usize;
            if direction == OFFLOAD {
                link = link.max(self.done[moves[m].writer as usize]) + self.offload_seconds[m];
                self.offload_end[m] = link;
            } else if self.half {
                link = link.max(self.prefetch_start[m] + self.prefetch_seconds[m]);
            }
        }
    }

    /// Makes each window as narrow as the times allow.
    fn narrow(&self, course: &Course, windows: &mut [Window]) {
        let moves = &course.moves;
        // Sums in another order: a hair's breadth is no reason to wait a whole step.
        let hair = 1e-12 * self.done[self.done.len() - 1];
        for (m, window) in windows.iter_mut().enumerate() {
            if let Some(listed) = window.offload {
                let (from, until) = (moves[m].after as usize + 1, window.leaves as usize);
                let ended = self.offload_end[m] - hair;
                let early = from + self.start[from..until].partition_point(|start| *start < ended);
                window.leaves = (early as u32).max(listed);
            }
        }
        let mut latest_slot = UNSET;
        for (m, window) in windows.iter_mut().enumerate().rev() {
            let (from, until) = (window.returns as usize, moves[m].before as usize);
            let begins = self.prefetch_start[m] + hair;
            let late = from + self.done[from..until].partition_point(|done| *done <= begins);
            latest_slot = latest_slot.min(late as u32);
            window.returns = latest_slot.max(window.returns);
        }
    }
}

impl Course {
    /// The slot that would need most if nothing were swapped; the last of equals.
    fn fullest_unswapped(&self) -> usize {
        let mut change = vec![0i64; self.need.len() + 1];
        for piece in &self.moves {
            change[piece.after as usize + 1] += piece.bytes as i64;
            change[piece.before as usize] -= piece.bytes as i64;
        }
        let mut away = 0;
        let unswapped = self.need.iter().zip(change).map(|(need, change)| {
            away += change;
            *need as i64 + away
        });
        unswapped.enumerate().max_by_key(|(slot, bytes)| (*bytes, *slot)).map_or(0, |(slot, _)| slot)
    }
}
