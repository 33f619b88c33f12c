//! A walk through time that knows the holes between what is there, for items by the hundred thousand, or hundreds at a time.
//!
//! As in a sweep of one state, every item is placed when it comes, forward or backward, at an end of a hole, best beside
//! a neighbour that goes when it goes. But not every hole is looked at: only those that it fits best by size, and those
//! whose neighbours go at about its time. Both are found in ordered sets, so that an item costs the logarithm of what is
//! there, where a sweep goes through all of it.
//!
//! What this file does not do: use the holes inside an item. Its hull is taken as long as any part of it is there.

use super::sweep::{Taste, Time};
use super::{Addresses, Effort, Item, padded, trimmed};
use crate::random::Random;
use std::collections::BTreeSet;

/// Holes that are looked at for an item: by size, and by time in each direction.
const LOOKS: usize = 8;

/// The work of placing an item, whatever is there: some tenths of a microsecond.
const WORK: u64 = 30;

/// A stretch of the pool, either free or taken by one item; the last is free and has no end.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    low: u64,
    high: u64,
    before: u32,
    after: u32,
    /// When the item goes; [`FREE`] for a hole.
    until: u32,
}

const FREE: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

struct Pool<'a> {
    limit: u64,
    taste: &'a Taste,
    /// By time between the item's end and that of a neighbour: its cost.
    away: Vec<f64>,
    stretches: Vec<Stretch>,
    spare: Vec<u32>,
    last: u32,
    height: u64,
    /// Holes but the last one: by bytes, and by when each neighbour goes.
    by_size: BTreeSet<(u64, u32)>,
    by_time: BTreeSet<(u32, u32)>,
}

/// What is to be placed, its time turned.
struct Piece {
    size: u64,
    alignment: u64,
    until: u32,
}

/// Where it may be placed.
#[derive(Clone, Copy, Debug)]
struct Choice {
    cost: f64,
    offset: u64,
    hole: u32,
}

/// Offsets for all items, at most `limit` high where that is found; none where the effort ended on the way.
pub fn walk(
    items: &[Item],
    alignment: u64,
    limit: u64,
    taste: &Taste,
    random: &mut Random,
    effort: &mut Effort<'_>,
) -> Option<Addresses> {
    let time = Time::new(items, taste.backward);
    let turn = |i: u32| time.turn(&items[i as usize].hull.slots);
    let mut goes: Vec<u32> = (0..items.len() as u32).collect();
    goes.sort_by_cached_key(|i| (turn(*i).end, *i));
    let mut gone = goes.into_iter().peekable();
    let mut pool = Pool::new(limit, time.end, taste);
    let mut stretch_of = vec![NONE; items.len()];
    let mut offsets = vec![0; items.len()];
    for i in time.arrivals(items) {
        let item = &items[i as usize];
        let slots = turn(i);
        while let Some(other) = gone.next_if(|o| turn(*o).end <= slots.start) {
            pool.free(stretch_of[other as usize]);
        }
        let piece = Piece { size: item.size(), alignment: item.alignment(alignment), until: slots.end };
        let choice = pool.choose(&piece, random);
        offsets[i as usize] = choice.offset;
        stretch_of[i as usize] = pool.take(choice, &piece);
        effort.spend(WORK);
        if effort.spent() {
            return None;
        }
    }
    Some(Addresses { offsets, height: pool.height, order: Vec::new() })
}

impl<'a> Pool<'a> {
    fn new(limit: u64, end: u32, taste: &'a Taste) -> Pool<'a> {
        let all = Stretch { low: 0, high: u64::MAX, before: NONE, after: NONE, until: FREE };
        let (spare, by_size, by_time) = Default::default();
        Pool {
            limit,
            taste,
            away: taste.curve.table(end),
            stretches: vec![all],
            spare,
            last: 0,
            height: 0,
            by_size,
            by_time,
        }
    }

    fn at(&mut self, stretch: u32) -> &mut Stretch {
        &mut self.stretches[stretch as usize]
    }

    /// When what lies below and above a stretch goes; at once for the ends of the pool.
    fn edges(&self, stretch: u32) -> [u32; 2] {
        let Stretch { before, after, .. } = self.stretches[stretch as usize];
        [before, after].map(|n| if n == NONE { 0 } else { self.stretches[n as usize].until })
    }

    /// Puts a hole into both sets.
    fn list(&mut self, hole: u32) {
        if hole != self.last {
            let Stretch { low, high, .. } = self.stretches[hole as usize];
            self.by_size.insert((high - low, hole));
            self.by_time.extend(self.edges(hole).map(|until| (until, hole)));
        }
    }

    /// Takes it out of them, as long as its neighbours are what they were.
    fn unlist(&mut self, hole: u32) {
        if hole != self.last {
            let Stretch { low, high, .. } = self.stretches[hole as usize];
            self.by_size.remove(&(high - low, hole));
            self.edges(hole).iter().for_each(|until| _ = self.by_time.remove(&(*until, hole)));
        }
    }

    /// The cheapest end of those holes that are looked at.
    fn choose(&self, piece: &Piece, random: &mut Random) -> Choice {
        let mut best: Option<Choice> = None;
        let mut offer = |hole: u32| self.ends(hole, piece, random, &mut best);
        self.by_size.range((piece.size, 0)..).take(LOOKS).for_each(|(_, hole)| offer(*hole));
        let at = (piece.until, 0);
        self.by_time.range(at..).take(LOOKS).for_each(|(_, hole)| offer(*hole));
        self.by_time.range(..at).rev().take(LOOKS).for_each(|(_, hole)| offer(*hole));
        offer(self.last);
        let above_all = padded(self.stretches[self.last as usize].low, piece.alignment);
        best.unwrap_or(Choice { cost: 0.0, offset: above_all, hole: self.last })
    }

    /// Offers both ends of a hole, if the piece fits there below the limit.
    fn ends(&self, hole: u32, piece: &Piece, random: &mut Random, best: &mut Option<Choice>) {
        let Stretch { low, high, .. } = self.stretches[hole as usize];
        let first = padded(low, piece.alignment);
        let high = high.min(self.limit.max(self.height));
        let last = trimmed(high.saturating_sub(piece.size), piece.alignment);
        if first > last || piece.size > high {
            return;
        }
        let taste = self.taste;
        let [near, far] = self.edges(hole).map(|edge| self.away[edge.abs_diff(piece.until) as usize]);
        let share = (last - first) as f64 / self.limit.max(1) as f64;
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

    /// Takes a part of a hole, which falls into what is left below, what is taken and what is left above. Gives the
    /// stretch that is taken.
    fn take(&mut self, choice: Choice, piece: &Piece) -> u32 {
        let Choice { offset, hole, .. } = choice;
        self.unlist(hole);
        let Stretch { low, high, .. } = self.stretches[hole as usize];
        let top = offset.saturating_add(piece.size);
        self.height = self.height.max(top);
        let below = (low < offset).then(|| self.cut(hole, offset));
        // What is left above keeps the hole's name, so that the last one is always the last.
        let taken = if top < high || hole == self.last { self.cut(hole, top) } else { hole };
        self.at(taken).until = piece.until;
        below.into_iter().for_each(|below| self.list(below));
        if taken != hole {
            self.list(hole);
        }
        taken
    }

    /// Cuts off what lies below `at`, as a hole of its own.
    fn cut(&mut self, hole: u32, at: u64) -> u32 {
        let Stretch { low, before, .. } = self.stretches[hole as usize];
        let part = Stretch { low, high: at, before, after: hole, until: FREE };
        let name = match self.spare.pop() {
            Some(name) => {
                *self.at(name) = part;
                name
            }
            None => {
                self.stretches.push(part);
                self.stretches.len() as u32 - 1
            }
        };
        if before != NONE {
            self.at(before).after = name;
        }
        let rest = self.at(hole);
        (rest.low, rest.before) = (at, name);
        name
    }

    /// Frees a stretch, and joins it with the holes beside it.
    fn free(&mut self, stretch: u32) {
        let Stretch { before, after, .. } = self.stretches[stretch as usize];
        let is_free = |n: u32| n != NONE && self.stretches[n as usize].until == FREE;
        let (below, above) = (is_free(before), is_free(after));
        if below {
            self.unlist(before);
        }
        if above {
            self.unlist(after);
        }
        self.at(stretch).until = FREE;
        let mut hole = stretch;
        if below {
            self.join(before, hole);
        }
        if above {
            self.join(hole, after);
            hole = after;
        }
        self.list(hole);
    }

    /// Joins a hole with the one below it.
    fn join(&mut self, lower: u32, upper: u32) {
        let Stretch { low, before, .. } = self.stretches[lower as usize];
        let joined = self.at(upper);
        (joined.low, joined.before) = (low, before);
        if before != NONE {
            self.at(before).after = upper;
        }
        self.spare.push(lower);
    }
}
