//! A walk through time that indexes the holes between items, for hundreds of thousands of items, or hundreds at a time.
//!
//! As in a sweep of one state, every item is placed when it comes, forward or backward, at an end of a hole, preferably next to a
//! neighbour that goes when it goes. But the walk examines only some holes: those that it fits best by size, and those whose
//! neighbours go at about its time. Both are found in ordered sets, so that an item costs the logarithm of the number of items
//! present, while a sweep goes through all of them.
//!
//! This file deliberately does not use the holes inside an item. Its hull is taken as long as any part of it is present.

use super::sweep::{Away, Taste, Time};
use super::{Addresses, Effort, Item, ItemId, padded, trimmed};
use crate::decide::placement::Slot;
use crate::random::Random;
use plimsoll_ir::{Bytes, define_id};
use std::collections::BTreeSet;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// Stretch of the pool.
    StretchId, "stretch");

/// Holes examined for an item: by size, and by time in each direction.
const LOOKS: usize = 8;

/// Fixed work of placing an item: some tenths of a microsecond.
const WORK: u64 = 30;

/// Stretch of the pool, either free or taken by one item; the last is free and has no end.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    low: u64,
    high: u64,
    /// Stretches below and above it; `None` at the ends of the pool.
    before: Option<StretchId>,
    after: Option<StretchId>,
    /// End of the item's life; `None` for a hole.
    until: Option<Slot>,
}

struct Pool<'a> {
    limit: u64,
    taste: &'a Taste,
    away: Away,
    stretches: TiVec<StretchId, Stretch>,
    spare: Vec<StretchId>,
    last: StretchId,
    height: u64,
    /// Holes except the last one: by bytes, and by the time when each neighbour goes.
    by_size: BTreeSet<(u64, StretchId)>,
    by_time: BTreeSet<(Slot, StretchId)>,
}

/// Item to place, its time turned.
struct Piece {
    size: u64,
    alignment: u64,
    until: Slot,
}

/// Possible place.
#[derive(Clone, Copy, Debug)]
struct Choice {
    cost: f64,
    offset: u64,
    hole: StretchId,
}

/// Returns offsets for all items, at most `limit` high if that is found; `None` if the effort ended first.
pub fn walk(
    items: &TiSlice<ItemId, Item>,
    alignment: u64,
    limit: u64,
    taste: &Taste,
    random: &mut Random,
    effort: &mut Effort<'_>,
) -> Option<Addresses> {
    let time = Time::new(items, taste.backward);
    let turn = |i: ItemId| time.turn(&items[i].hull.slots);
    let mut goes: Vec<ItemId> = items.keys().collect();
    goes.sort_by_cached_key(|i| (turn(*i).end, *i));
    let mut gone = goes.into_iter().peekable();
    let mut pool = Pool::new(limit, time.end, taste);
    let mut stretch_of: TiVec<ItemId, Option<StretchId>> = vec![None; items.len()].into();
    let mut offsets: TiVec<ItemId, u64> = vec![0; items.len()].into();
    for i in time.arrivals(items) {
        let item = &items[i];
        let slots = turn(i);
        while let Some(other) = gone.next_if(|o| turn(*o).end <= slots.start) {
            pool.free(stretch_of[other].expect("what goes has come before"));
        }
        let piece = Piece { size: item.size(), alignment: item.alignment(alignment), until: slots.end };
        let choice = pool.choose(&piece, random);
        offsets[i] = choice.offset;
        stretch_of[i] = Some(pool.take(choice, &piece));
        effort.spend(WORK);
        if effort.spent() {
            return None;
        }
    }
    Some(Addresses { offsets, height: pool.height, order: Vec::new() })
}

impl<'a> Pool<'a> {
    fn new(limit: u64, end: Slot, taste: &'a Taste) -> Pool<'a> {
        let all = Stretch { low: 0, high: u64::MAX, before: None, after: None, until: None };
        let (spare, by_size, by_time) = Default::default();
        Pool {
            limit,
            taste,
            away: Away::new(taste.curve, end),
            stretches: vec![all].into(),
            spare,
            last: StretchId(0),
            height: 0,
            by_size,
            by_time,
        }
    }

    fn at(&mut self, stretch: StretchId) -> &mut Stretch {
        &mut self.stretches[stretch]
    }

    /// Returns the slots at which the stretches below and above a hole go; at once for the ends of the pool.
    fn edges(&self, hole: StretchId) -> [Slot; 2] {
        let Stretch { before, after, .. } = self.stretches[hole];
        let until = |n: StretchId| self.stretches[n].until.expect("holes side by side are one");
        [before, after].map(|neighbour| neighbour.map_or(Slot::START, until))
    }

    /// Adds a hole to both sets.
    fn list(&mut self, hole: StretchId) {
        if hole != self.last {
            let Stretch { low, high, .. } = self.stretches[hole];
            self.by_size.insert((high - low, hole));
            self.by_time.extend(self.edges(hole).map(|until| (until, hole)));
        }
    }

    /// Removes a hole from both sets, while its neighbours are unchanged.
    fn unlist(&mut self, hole: StretchId) {
        if hole != self.last {
            let Stretch { low, high, .. } = self.stretches[hole];
            self.by_size.remove(&(high - low, hole));
            self.edges(hole).iter().for_each(|until| _ = self.by_time.remove(&(*until, hole)));
        }
    }

    /// Returns the cheapest end of the examined holes.
    fn choose(&self, piece: &Piece, random: &mut Random) -> Choice {
        let mut best: Option<Choice> = None;
        let mut offer = |hole: StretchId| self.ends(hole, piece, random, &mut best);
        self.by_size.range((piece.size, StretchId(0))..).take(LOOKS).for_each(|(_, hole)| offer(*hole));
        let at = (piece.until, StretchId(0));
        self.by_time.range(at..).take(LOOKS).for_each(|(_, hole)| offer(*hole));
        self.by_time.range(..at).rev().take(LOOKS).for_each(|(_, hole)| offer(*hole));
        offer(self.last);
        let above_all = padded(self.stretches[self.last].low, piece.alignment);
        best.unwrap_or(Choice { cost: 0.0, offset: above_all, hole: self.last })
    }

    /// Offers both ends of a hole, if the piece fits there below the limit.
    fn ends(&self, hole: StretchId, piece: &Piece, random: &mut Random, best: &mut Option<Choice>) {
        let Stretch { low, high, .. } = self.stretches[hole];
        let first = padded(low, piece.alignment);
        let high = high.min(self.limit.max(self.height));
        let last = trimmed(high.saturating_sub(piece.size), piece.alignment);
        if first > last || piece.size > high {
            return;
        }
        let taste = self.taste;
        let [near, far] = self.edges(hole).map(|edge| self.away.cost(piece.until, edge));
        let share = Bytes(last - first).to_f64() / Bytes(self.limit.max(1)).to_f64();
        for (offset, near, far) in [(first, near, far), (last, far, near)] {
            let cost = taste.cost(near, far, share, offset == last && first < last, random);
            if best.is_none_or(|best| (cost, offset) < (best.cost, best.offset)) {
                *best = Some(Choice { cost, offset, hole });
            }
            if first == last {
                break;
            }
        }
    }

    /// Takes a part of a hole, which splits into the rest below, the taken stretch and the rest above. Returns the taken stretch.
    fn take(&mut self, choice: Choice, piece: &Piece) -> StretchId {
        let Choice { offset, hole, .. } = choice;
        self.unlist(hole);
        let Stretch { low, high, .. } = self.stretches[hole];
        let top = offset.saturating_add(piece.size);
        self.height = self.height.max(top);
        let below = (low < offset).then(|| self.cut(hole, offset));
        // The rest above keeps the hole's id, so that the last one is always the last.
        let taken = if top < high || hole == self.last { self.cut(hole, top) } else { hole };
        self.at(taken).until = Some(piece.until);
        below.into_iter().for_each(|below| self.list(below));
        if taken != hole {
            self.list(hole);
        }
        taken
    }

    /// Cuts off the part below `at`, as a separate hole.
    fn cut(&mut self, hole: StretchId, at: u64) -> StretchId {
        let Stretch { low, before, .. } = self.stretches[hole];
        let part = Stretch { low, high: at, before, after: Some(hole), until: None };
        let name = match self.spare.pop() {
            Some(name) => {
                *self.at(name) = part;
                name
            }
            None => self.stretches.push_and_get_key(part),
        };
        if let Some(before) = before {
            self.at(before).after = Some(name);
        }
        let rest = self.at(hole);
        (rest.low, rest.before) = (at, Some(name));
        name
    }

    /// Frees a stretch, and joins it with the adjacent holes.
    fn free(&mut self, stretch: StretchId) {
        let Stretch { before, after, .. } = self.stretches[stretch];
        let is_free = |n: &StretchId| self.stretches[*n].until.is_none();
        let (below, above) = (before.filter(is_free), after.filter(is_free));
        below.into_iter().chain(above).for_each(|hole| self.unlist(hole));
        self.at(stretch).until = None;
        let mut hole = stretch;
        if let Some(below) = below {
            self.join(below, hole);
        }
        if let Some(above) = above {
            self.join(hole, above);
            hole = above;
        }
        self.list(hole);
    }

    /// Joins a hole with the one below it.
    fn join(&mut self, lower: StretchId, upper: StretchId) {
        let Stretch { low, before, .. } = self.stretches[lower];
        let joined = self.at(upper);
        (joined.low, joined.before) = (low, before);
        if let Some(before) = before {
            self.at(before).after = Some(upper);
        }
        self.spare.push(lower);
    }
}
