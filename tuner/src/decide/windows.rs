//! Makespan of an iteration within a pool when given pieces are swapped, and the times at which their bytes leave and return.
//!
//! This evaluator, which searches call thousands of times, makes three passes over the slots of a [`Course`], each linear,
//! without allocating.
//!
//! 1. Forward, offloads: a piece's bytes join a queue after their last use; each slot takes from its front the bytes copied by
//!    then, and then as much as it needs to fit into the pool, waiting for it.
//! 2. Backward, prefetches, mirrored: a piece's bytes are held before their next use as long as every slot has room, so that each
//!    prefetch may start as early as memory allows.
//! 3. Forward, the three streams: an offload starts when its writer has ended, a prefetch when all pieces that left before its
//!    first slot have left, a step when its own bytes are present and the pieces that left before it have left.
//!
//! Addresses are not known yet, so pass 3 waits for every piece that leaves, while the lowered schedule waits only for those
//! whose bytes it takes: the makespan here is an upper bound of that of the schedule for the same order of transfers. Nor does
//! pass 3 look for room between two steps: a prefetch that would fit next to a leaving piece waits for it. An exact account of
//! the bytes at every instant was tried instead; it finds the same makespans on networks, and no better plans on small random
//! traces.

use crate::decide::placement::{Direction, Slot, Window};
use crate::levels::Levels;
use plimsoll_ir::schedule::{Duplex, Link, Stream};
use plimsoll_ir::{Bytes, define_id};
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// Move of a course.
    MoveId, "move");

/// Demands of an iteration on the streams and the pool: the steps in order, and the moves between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// Seconds of each slot's step; slot 0 takes none.
    pub seconds: TiVec<Slot, f64>,
    /// Minimum pool bytes of each slot: without swapped bytes, except at the slots of their two uses.
    pub need: TiVec<Slot, u64>,
    /// Swapped bytes, in order of `before`.
    pub moves: TiVec<MoveId, Move>,
}

/// Bytes that are off the device between two uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub bytes: u64,
    /// Slot of the last use before; 0 if there is none since the start.
    pub after: Slot,
    /// Slot of the next use; more than one later.
    pub before: Slot,
    /// Slot of the write that made the contents; 0 if they exist from the start.
    pub writer: Slot,
    /// `true` if they are copied to the host; `false` if the host holds them from an earlier move.
    pub offload: bool,
}

/// Cost of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Makespan in seconds.
    pub seconds: f64,
    /// Most bytes by which a slot exceeds the pool; 0 if it fits.
    pub overflow: u64,
    /// Excess bytes, summed over all slots.
    pub excess: u64,
    /// All bytes moved, both directions together.
    pub moved: u64,
}

/// Evaluator, with its memory.
#[derive(Clone, Debug)]
pub struct Clock {
    link: Link,
    half: bool,
    /// Moves that need an offload, in order of `after`, then of `writer`.
    offloads: Vec<MoveId>,
    queues: Queues,
    steps: Steps,
    windows: Windows,
    copies: Copies,
    /// Transfers in list order, each with the slot before which it is listed.
    sequence: Vec<(MoveId, Direction, Slot)>,
    /// Slots that exceed the pool.
    over: Vec<Slot>,
}

/// Moves that need an offload, sorted by the slot of their last use.
#[derive(Clone, Debug, Default)]
struct Queues {
    /// By slot: the last move so far whose `after` it is.
    last: TiVec<Slot, Option<MoveId>>,
    /// By move: the previous one in its slot.
    previous: TiVec<MoveId, Option<MoveId>>,
}

/// Steps of the iteration, by slot.
#[derive(Clone, Debug, Default)]
struct Steps {
    /// Minimum pool bytes that are taken, including bytes that wait to leave.
    taken: TiVec<Slot, u64>,
    /// First move whose bytes leave at this slot: from it on, none is held before the slot.
    unheld: TiVec<Slot, MoveId>,
    /// Start and end in seconds.
    start: TiVec<Slot, f64>,
    /// See `start`.
    done: TiVec<Slot, f64>,
}

/// Windows so far, by move.
#[derive(Clone, Debug, Default)]
struct Windows {
    /// Slot after the last one while the bytes have not left.
    leaves: TiVec<MoveId, Slot>,
    returns: TiVec<MoveId, Slot>,
    listed: TiVec<MoveId, Slot>,
}

/// Copies between device and host, by move, in seconds.
#[derive(Clone, Debug, Default)]
struct Copies {
    offload_seconds: TiVec<MoveId, f64>,
    prefetch_seconds: TiVec<MoveId, f64>,
    offload_end: TiVec<MoveId, f64>,
    prefetch_start: TiVec<MoveId, f64>,
    prefetch_end: TiVec<MoveId, f64>,
}

impl Clock {
    /// Returns an evaluator for this link.
    pub fn new(link: &Link) -> Clock {
        Clock {
            link: *link,
            half: link.duplex == Duplex::Half,
            offloads: Vec::new(),
            queues: Queues::default(),
            steps: Steps::default(),
            windows: Windows::default(),
            copies: Copies::default(),
            sequence: Vec::new(),
            over: Vec::new(),
        }
    }

    /// Returns the cost of a course within a pool of this many bytes.
    pub fn evaluate(&mut self, course: &Course, pool: u64) -> Cost {
        let moved = self.collect(course);
        let (overflow, excess) = self.release(course, pool);
        self.fetch(course, pool);
        Cost { seconds: self.run(course), overflow, excess, moved }
    }

    /// Returns the slots that exceeded the pool in the last evaluation.
    pub fn over(&self) -> &[Slot] {
        &self.over
    }

    /// Lists the offloads. Returns the bytes moved.
    fn collect(&mut self, course: &Course) -> u64 {
        let Clock { offloads, queues, steps, windows, copies, .. } = self;
        let (slots, moves) = (course.need.len(), course.moves.len());
        queues.last.clear();
        queues.last.resize(slots, None);
        queues.previous.resize(moves, None);
        steps.unheld.clear();
        steps.unheld.resize(slots + 1, course.moves.next_key());
        steps.taken.clear();
        steps.taken.extend_from_slice(&course.need);
        for by_slot in [&mut steps.start, &mut steps.done] {
            by_slot.resize(slots, 0.0);
        }
        for by_move in [&mut copies.offload_end, &mut copies.prefetch_start, &mut copies.prefetch_end] {
            by_move.resize(moves, 0.0);
        }
        let end = course.need.next_key();
        for by_move in [&mut windows.leaves, &mut windows.returns, &mut windows.listed] {
            by_move.resize(moves, end);
        }
        copies.offload_seconds.clear();
        copies.prefetch_seconds.clear();
        let mut moved = 0u64;
        for (m, piece) in (0..).map(MoveId).zip(&course.moves) {
            let seconds = |stream| self.link.seconds(stream, Bytes(piece.bytes)).0;
            copies.offload_seconds.push(seconds(Stream::Offload));
            copies.prefetch_seconds.push(seconds(Stream::Prefetch));
            // A tensor of 2^60 bytes may be moved more than eight times each way.
            moved = moved.saturating_add(piece.bytes);
            if piece.offload {
                moved = moved.saturating_add(piece.bytes);
                windows.leaves[m] = end;
                queues.previous[m] = queues.last[piece.after].replace(m);
            } else {
                // The host already has these bytes: they are free as soon as their last use is over.
                windows.leaves[m] = piece.after.next();
            }
        }
        offloads.clear();
        for last in &queues.last {
            let from = offloads.len();
            let mut next = *last;
            while let Some(m) = next {
                offloads.push(m);
                next = queues.previous[m];
            }
            // Of pieces with the same last use, the one that was written first goes first: it may start earlier.
            offloads[from..].sort_unstable_by_key(|m| (course.moves[*m].writer, *m));
        }
        moved
    }

    /// Pass 1: computes the slots at which each piece's bytes leave. Returns the overflow, maximum and sum, and counts bytes that
    /// wait to leave as taken.
    fn release(&mut self, course: &Course, pool: u64) -> (u64, u64) {
        let Clock { offloads, steps: Steps { taken, done, .. }, windows, copies, over, .. } = self;
        let moves = &course.moves;
        let (mut next, mut head, mut due) = (0, 0, MoveId(0));
        let (mut waiting, mut overflow) = (0, taken[Slot::START].saturating_sub(pool));
        let mut excess = overflow;
        over.clear();
        let (mut time, mut link) = (0.0f64, 0.0f64);
        done[Slot::START] = 0.0;
        for slot in Slot::each(Slot(1)..course.need.next_key()) {
            while let Some(&m) = offloads.get(next).filter(|m| moves[**m].after.next() == slot) {
                let piece = &moves[m];
                link = link.max(done[piece.writer]) + copies.offload_seconds[m];
                copies.offload_end[m] = link;
                waiting += piece.bytes;
                next += 1;
            }
            // The bytes must have left before they can return for this very slot.
            let mut must = head;
            while let Some(piece) = moves.get(due).filter(|piece| piece.before == slot) {
                if piece.offload && windows.leaves[due] > slot {
                    let at = offloads[must..next].iter().position(|m| *m == due);
                    must += at.map_or(0, |at| at + 1);
                }
                due = due.next();
            }
            while head < next {
                let m = offloads[head];
                let ended = copies.offload_end[m] <= time;
                if !ended && head >= must && taken[slot] + waiting <= pool {
                    break;
                }
                time = time.max(copies.offload_end[m]);
                windows.leaves[m] = slot;
                waiting -= moves[m].bytes;
                head += 1;
            }
            taken[slot] += waiting;
            if taken[slot] > pool {
                let beyond = taken[slot] - pool;
                overflow = overflow.max(beyond);
                excess = excess.saturating_add(beyond);
                over.push(slot);
            }
            time += course.seconds[slot];
            done[slot] = time;
        }
        (overflow, excess)
    }

    /// Pass 2: computes the slots from which each piece's bytes are held again.
    fn fetch(&mut self, course: &Course, pool: u64) {
        let Clock { steps: Steps { taken, unheld, .. }, windows: Windows { leaves, returns, .. }, .. } = self;
        let moves = &course.moves;
        for (m, leaves) in (0..).map(MoveId).zip(leaves.iter()) {
            unheld[*leaves] = m.min(unheld[*leaves]);
        }
        // The moves from `front` to `enter` are held.
        let (mut enter, mut front) = (moves.next_key(), moves.next_key());
        let mut held = 0;
        for slot in Slot::each(Slot::START..course.need.next_key()).rev() {
            while let Some(m) = enter.previous().filter(|m| moves[*m].before == slot.next()) {
                enter = m;
                held += moves[m].bytes;
            }
            let must = unheld[slot.next()];
            while let Some(m) =
                front.previous().filter(|m| *m >= enter && (*m >= must || taken[slot] + held > pool))
            {
                front = m;
                returns[m] = slot.next();
                held -= moves[m].bytes;
            }
        }
    }

    /// Pass 3: the three streams. Returns the makespan.
    fn run(&mut self, course: &Course) -> f64 {
        let Clock { offloads, steps: Steps { start, done, .. }, windows, copies, sequence, half, .. } = self;
        let moves = &course.moves;
        // Slot before which an offload is listed: after its writer, and not before its predecessor.
        let listing =
            |at: usize, previous: Slot| offloads.get(at).map(|m| previous.max(moves[*m].writer.next()));
        let (mut listed, mut left, mut came, mut due) = (0, 0, MoveId(0), MoveId(0));
        let mut next_listed = listing(0, Slot::START);
        sequence.clear();
        let (mut out, mut into, mut gate, mut time) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        for slot in Slot::each(Slot::START..course.need.next_key()) {
            while next_listed == Some(slot) {
                let m = offloads[listed];
                let free = if *half { out.max(into) } else { out };
                out = free.max(done[moves[m].writer]) + copies.offload_seconds[m];
                copies.offload_end[m] = out;
                windows.listed[m] = slot;
                sequence.push((m, Direction::Offload, slot));
                listed += 1;
                next_listed = listing(listed, slot);
            }
            while let Some(&m) = offloads.get(left).filter(|m| windows.leaves[**m] <= slot) {
                gate = gate.max(copies.offload_end[m]);
                left += 1;
            }
            while came < moves.next_key() && windows.returns[came] == slot {
                let free = if *half { out.max(into) } else { into };
                copies.prefetch_start[came] = free.max(time).max(gate);
                into = copies.prefetch_start[came] + copies.prefetch_seconds[came];
                copies.prefetch_end[came] = into;
                sequence.push((came, Direction::Prefetch, slot));
                came = came.next();
            }
            let mut begin = time.max(gate);
            while moves.get(due).is_some_and(|piece| piece.before == slot) {
                begin = begin.max(copies.prefetch_end[due]);
                due = due.next();
            }
            start[slot] = begin;
            time = begin + course.seconds[slot];
            done[slot] = time;
        }
        time.max(out).max(into)
    }

    /// Returns the windows of the moves of the last evaluation, which was of this course.
    ///
    /// `tighten` between 0 and 1 is the share of slack that is given up so that addresses are easier to find: 0 leaves every
    /// window as wide as memory allows, 1 delays every prefetch, and every step before the fullest slot, as far as the makespan
    /// allows, and lets bytes leave as soon as their offload has ended then. The remaining slack covers times that differ from
    /// the prediction.
    pub fn windows(&mut self, course: &Course, tighten: f64) -> TiVec<MoveId, Window> {
        let Windows { leaves, returns, listed } = &self.windows;
        let window = |(m, piece): (MoveId, &Move)| {
            let offload = piece.offload.then_some(listed[m]);
            Window { leaves: leaves[m], returns: returns[m], offload }
        };
        let mut windows: TiVec<MoveId, Window> = course.moves.iter_enumerated().map(window).collect();
        if tighten > 0.0 {
            self.delay(course, tighten);
            self.narrow(course, &mut windows);
        }
        windows
    }

    /// Moves the times of the last evaluation towards the latest that keep its makespan: those of prefetches, and of the steps
    /// before the fullest slot. Offloads stay as early as the steps permit.
    ///
    /// Times that keep all constraints form a convex set, so a point between the earliest and the latest keeps them too.
    fn delay(&mut self, course: &Course, share: f64) {
        let Clock { steps: Steps { start, done, .. }, windows, copies, sequence, half, .. } = self;
        let moves = &course.moves;
        let slots = course.need.len();
        let fullest = course.fullest_unswapped();
        // By slot: the time by which its op must have ended for transfers, and the time by which all pieces that left before it
        // must have left.
        let mut ends: TiVec<Slot, f64> = vec![f64::INFINITY; slots].into();
        let mut gates: TiVec<Slot, f64> = vec![f64::INFINITY; slots + 1].into();
        let mut next = [f64::INFINITY; 2];
        let mut sequenced = sequence.iter().rev().peekable();
        for slot in Slot::each(Slot::START..course.need.next_key()).rev() {
            if slot < fullest {
                let latest = (ends[slot].min(start[slot.next()]) - course.seconds[slot]).max(start[slot]);
                start[slot] += (latest - start[slot]) * share;
                done[slot] = start[slot] + course.seconds[slot];
            }
            gates[slot] = gates[slot.next()].min(start[slot]);
            while let Some(&(m, direction, _)) = sequenced.next_if(|(_, _, listed)| *listed == slot) {
                let next = &mut next[usize::from(!*half && direction == Direction::Prefetch)];
                if direction == Direction::Prefetch {
                    let earliest = copies.prefetch_start[m];
                    let end = next.min(start[moves[m].before]);
                    let latest = (end - copies.prefetch_seconds[m]).max(earliest);
                    *next = earliest + (latest - earliest) * share;
                    copies.prefetch_start[m] = *next;
                    gates[slot] = gates[slot].min(*next);
                    let step = slot.previous().expect("bytes return after a step that they left before");
                    ends[step] = ends[step].min(*next);
                } else {
                    *next = next.min(gates[windows.leaves[m]]) - copies.offload_seconds[m];
                    let writer = &mut ends[moves[m].writer];
                    *writer = writer.min(*next);
                }
            }
        }
        let mut link = 0.0f64;
        for &(m, direction, _) in sequence.iter() {
            if direction == Direction::Offload {
                link = link.max(done[moves[m].writer]) + copies.offload_seconds[m];
                copies.offload_end[m] = link;
            } else if *half {
                link = link.max(copies.prefetch_start[m] + copies.prefetch_seconds[m]);
            }
        }
    }

    /// Makes each window as narrow as the times allow.
    fn narrow(&self, course: &Course, windows: &mut TiSlice<MoveId, Window>) {
        let Clock { steps: Steps { start, done, .. }, copies, .. } = self;
        let moves = &course.moves;
        // Sums in a different order: a tiny difference is no reason to wait a whole step.
        let hair = 1e-12 * done.raw[done.len() - 1];
        let first = |times: &TiVec<Slot, f64>, slots: Range<Slot>, is_before: &dyn Fn(f64) -> bool| {
            let range = slots.start.index()..slots.end.index();
            Slot::new(range.start + times.raw[range].partition_point(|time| is_before(*time)))
        };
        for (m, window) in windows.iter_mut_enumerated() {
            if let Some(listed) = window.offload {
                let ended = copies.offload_end[m] - hair;
                let early = first(start, moves[m].after.next()..window.leaves, &|start| start < ended);
                window.leaves = early.max(listed);
            }
        }
        let mut latest = course.need.next_key();
        for (m, window) in windows.iter_mut_enumerated().rev() {
            let begins = copies.prefetch_start[m] + hair;
            let late = first(done, window.returns..moves[m].before, &|done| done <= begins);
            latest = latest.min(late);
            window.returns = latest.max(window.returns);
        }
    }
}

impl Course {
    /// Returns the slot that would need most if nothing were swapped; the last of equals.
    fn fullest_unswapped(&self) -> Slot {
        let mut away = Levels::new(self.need.len());
        for piece in &self.moves {
            away.hold(piece.after.next()..piece.before, piece.bytes);
        }
        let unswapped = self.need.iter().zip(away.sums()).map(|(need, away)| need + away);
        let slots = (0..).map(Slot).zip(unswapped);
        slots.max_by_key(|(slot, bytes)| (*bytes, *slot)).map_or(Slot::START, |(slot, _)| slot)
    }
}
