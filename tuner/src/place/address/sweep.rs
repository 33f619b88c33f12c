//! Sweeps: a beam search that walks through time, forward or backward, and gives every item an offset when it comes.
//!
//! A state is the present content of the pool, as rectangles of bytes and time. An item may take either end of any hole that is
//! free for its whole life; the search keeps the few cheapest states of different content. A [`Taste`] defines the costs: above
//! all, an item should lie next to a neighbour that goes when it goes, so that both leave one large hole. Plans that move as much
//! as the link can carry keep the pool full all the time, and for them sweeps are the best known method. No single taste is best,
//! so several are tried.
//!
//! An item with several blocks reserves their bytes for the time when they are present, and others may use them before.
//!
//! This file deliberately does not backtrack. A state without a hole for an item grows above the limit, and is kept only if all
//! others have grown, too.

use super::{Addresses, Block, Effort, Item, ItemId, Taken, end, padded, trimmed};
use crate::decide::placement::Slot;
use crate::numbers::counted;
use crate::random::Random;
use plimsoll_ir::{Bytes, define_id};
use std::cmp::Reverse;
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// State of the search, past or present.
    PathId, "path");

/// Preferences of a sweep.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// `true` from the end of time to its start.
    pub backward: bool,
    /// Number of states kept.
    pub width: usize,
    /// Growth of the cost of a neighbour that goes at a different time, over the time between.
    pub curve: Curve,
    /// Share of both neighbours in that cost; the rest of 1 is the better neighbour's.
    pub both: f64,
    /// Cost of leaving a rest of the hole.
    pub rest: f64,
    /// Cost of the upper end of a hole, compared with the lower one.
    pub high: f64,
    /// Maximum of a random cost.
    pub noise: f64,
    /// Growth of costs with the item's size.
    pub power: f64,
}

/// Growth of a cost over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    Logarithm,
    Root,
    Line,
}

impl Taste {
    /// Returns the first two tastes that are tried.
    pub fn plain(backward: bool, width: usize) -> Taste {
        let curve = Curve::Logarithm;
        Taste { backward, width, curve, both: 0.0, rest: 0.0, high: 0.0, noise: 0.0, power: 0.5 }
    }

    /// Returns a random taste.
    pub fn any(width: usize, random: &mut Random) -> Taste {
        Taste {
            backward: random.below(2) == 0,
            width,
            curve: [Curve::Logarithm, Curve::Root, Curve::Line][random.below(3)],
            both: if random.unit() < 0.3 { random.unit() } else { 0.0 },
            rest: [0.0, 0.0, 0.01, 0.1][random.below(4)],
            high: [0.0, 0.0, 0.02, -0.02][random.below(4)],
            noise: [0.0, 0.02, 0.1, 0.3][random.below(4)],
            power: random.unit(),
        }
    }

    /// Returns the cost of an end of a hole, without the item's weight: the distances in time at which the neighbour there and
    /// the one at the other end go, as shares of 1, and the share of the limit that is left of the hole.
    pub fn cost(&self, near: f64, far: f64, left: f64, upper: bool, random: &mut Random) -> f64 {
        let Taste { both, rest, high, noise, .. } = *self;
        let far = if left > 0.0 { 1.0 } else { far };
        let mut cost = near.min(far) + both * (near + far) + noise * random.unit();
        if left > 0.0 {
            cost += rest * (1.0 - 0.5 * left);
        }
        cost + high * f64::from(u8::from(upper))
    }
}

/// One of several placements of the items so far.
#[derive(Clone, Debug, Default)]
struct SweepState {
    /// Bytes taken now or later, in order of the lowest byte.
    taken: Vec<Taken>,
    /// Hash of the taken bytes and their ends.
    content: u64,
    cost: f64,
    height: u64,
    /// Last step of the path to this state; `None` at the start.
    path: Option<PathId>,
}

/// State with one more item.
#[derive(Clone, Copy, Debug)]
struct Child {
    /// Rank, less is better: the height if that is above the limit, then the cost.
    rank: u128,
    height: u64,
    cost: f64,
    content: u64,
    /// Position of its parent state.
    parent: usize,
    offset: u64,
}

impl Child {
    fn new(height: u64, limit: u64, cost: f64, parent: usize, offset: u64) -> Child {
        // The bits of a float that is not negative are in its order.
        let bits = cost.to_bits();
        let bits = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
        let rank = u128::from(height.max(limit)) << 64 | u128::from(bits);
        Child { rank, height, cost, content: 0, parent, offset }
    }

    /// Order among siblings.
    fn order(&self) -> (u128, u64) {
        (self.rank, self.offset)
    }
}

/// Possible offsets of an item: from the first to the last, and the slots at which its neighbours go.
#[derive(Clone, Copy, Debug)]
struct Hole {
    first: u64,
    last: u64,
    below: Slot,
    above: Slot,
}

/// Time in the direction of a walk: forward, or from its end to its start.
pub(super) struct Time {
    /// Slot after the last.
    pub end: Slot,
    backward: bool,
}

impl Time {
    /// Returns the direction of a sweep over these items.
    pub fn new(items: &TiSlice<ItemId, Item>, backward: bool) -> Time {
        Time { end: end(items), backward }
    }

    /// Returns slots in the order of the walk.
    pub fn turn(&self, slots: &Range<Slot>) -> Range<Slot> {
        let from_end = |slot: Slot| Slot(self.end.0 - slot.0);
        if self.backward { from_end(slots.end)..from_end(slots.start) } else { slots.clone() }
    }

    /// Returns the items in order of arrival; of simultaneous ones the longest-lived first, then the largest.
    pub fn arrivals(&self, items: &TiSlice<ItemId, Item>) -> Vec<ItemId> {
        let mut order: Vec<ItemId> = items.keys().collect();
        order.sort_by_cached_key(|i| {
            let slots = self.turn(&items[*i].hull.slots);
            (slots.start, Reverse(slots.end), Reverse(items[*i].size()), *i)
        });
        order
    }
}

/// Maximum number of children of one state in the choice among all.
const CHILDREN: usize = 6;

/// Returns offsets for all items, at most `limit` high if that is found; `None` if the effort ended first.
pub fn sweep(
    items: &TiSlice<ItemId, Item>,
    alignment: u64,
    limit: u64,
    taste: &Taste,
    random: &mut Random,
    effort: &mut Effort<'_>,
) -> Option<Addresses> {
    let time = Time::new(items, taste.backward);
    let order = time.arrivals(items);
    let mut walk = Walk::new(limit, time.end, taste);
    let mut blocks: Vec<Block> = Vec::new();
    for &i in &order {
        let item = &items[i];
        blocks.clear();
        blocks.extend(
            item.parts().iter().map(|b| Block { slots: time.turn(&b.slots), bytes: b.bytes.clone() }),
        );
        walk.advance(time.turn(&item.hull.slots).start);
        walk.place(&Piece::new(item, &blocks, alignment, &walk), random, effort);
        if effort.spent() {
            return None;
        }
    }
    Some(walk.addresses(items, &order))
}

/// Item being placed, its time turned.
struct Piece<'a> {
    blocks: &'a [Block],
    size: u64,
    alignment: u64,
    /// Slots at which the neighbours at its lower and upper edge go.
    lower: Slot,
    upper: Slot,
    /// Weight of its size in costs.
    weight: f64,
}

impl<'a> Piece<'a> {
    fn new(item: &Item, blocks: &'a [Block], alignment: u64, walk: &Walk<'_>) -> Piece<'a> {
        let size = item.size();
        let edge = |at: &dyn Fn(&Block) -> bool| blocks.iter().filter(|b| at(b)).map(|b| b.slots.end).min();
        Piece {
            blocks,
            size,
            alignment: item.alignment(alignment),
            lower: edge(&|b| b.bytes.start == 0).unwrap_or(Slot::START),
            upper: edge(&|b| b.bytes.end == size).unwrap_or(Slot::START),
            weight: (Bytes(size).to_f64() / walk.unit()).min(1.0).powf(walk.taste.power),
        }
    }
}

struct Walk<'a> {
    limit: u64,
    taste: &'a Taste,
    away: Away,
    /// Slot at which the first present item goes; `None` if there is none.
    goes: Option<Slot>,
    states: Vec<SweepState>,
    /// All states of the search: the previous one, and the offset of the item.
    paths: TiVec<PathId, (Option<PathId>, u64)>,
    children: Vec<Child>,
    holes: Vec<Hole>,
    spare: Vec<SweepState>,
}

impl<'a> Walk<'a> {
    fn new(limit: u64, end: Slot, taste: &'a Taste) -> Walk<'a> {
        let (paths, children, holes, spare) = Default::default();
        Walk {
            limit,
            taste,
            away: Away::new(taste.curve, end),
            goes: None,
            states: vec![SweepState::default()],
            paths,
            children,
            holes,
            spare,
        }
    }

    /// Returns the unit of sizes: the limit, as a real number above 0.
    fn unit(&self) -> f64 {
        Bytes(self.limit.max(1)).to_f64()
    }

    /// Removes items that are gone by now.
    fn advance(&mut self, now: Slot) {
        if self.goes.is_none_or(|goes| now < goes) {
            return;
        }
        for SweepState { taken, content, .. } in &mut self.states {
            let gone = taken.iter().position(|t| t.until <= now).unwrap_or(taken.len());
            let mut left = gone;
            for at in gone..taken.len() {
                let t = taken[at];
                taken[left] = t;
                if t.until > now {
                    left += 1;
                } else {
                    *content ^= mark(&t);
                }
            }
            taken.truncate(left);
        }
        // All states hold the same items, at different places.
        let left = self.states.first().map_or(&[][..], |state| &state.taken);
        self.goes = left.iter().map(|t| t.until).min();
    }

    /// Adds one item to every state, and chooses among the children.
    fn place(&mut self, piece: &Piece<'_>, random: &mut Random, effort: &mut Effort<'_>) {
        self.children.clear();
        self.goes = piece.blocks.iter().map(|b| b.slots.end).chain(self.goes).min();
        for at in 0..self.states.len() {
            let state = &self.states[at];
            let roof = self.limit.max(state.height);
            find_holes(state, piece, roof, &mut self.holes);
            effort.spend(counted(state.taken.len() * piece.blocks.len() + 4 * self.holes.len()));
            self.breed(at, piece, random);
        }
        self.children.sort_unstable_by_key(|child| (child.rank, child.content));
        let mut next = std::mem::take(&mut self.spare);
        let mut count = 0;
        for child in &self.children {
            if count == self.taste.width {
                break;
            }
            if next[..count].iter().any(|state| state.content == child.content) {
                continue;
            }
            if next.len() == count {
                next.push(SweepState::default());
            }
            let parent = &self.states[child.parent];
            let path = self.paths.push_and_get_key((parent.path, child.offset));
            next[count].follow(parent, child, piece.blocks, path);
            effort.spend(counted(parent.taken.len()) / 4);
            count += 1;
        }
        next.truncate(count);
        self.spare = std::mem::replace(&mut self.states, next);
    }

    /// Returns the children of one state: both ends of every hole, the cheapest few of them.
    fn breed(&mut self, parent: usize, piece: &Piece<'_>, random: &mut Random) {
        let Piece { blocks, size, lower, upper, weight, .. } = *piece;
        let state = &self.states[parent];
        let (from, mut born) = (self.children.len(), 0);
        let unit = self.unit();
        for hole in &self.holes {
            let slack = hole.last - hole.first;
            let share = Bytes(slack).to_f64() / unit;
            let (below, above) = (self.away.cost(lower, hole.below), self.away.cost(upper, hole.above));
            let ends = [(hole.first, below, above), (hole.last, above, below)];
            for (end, (offset, near, far)) in ends.into_iter().enumerate().take(1 + usize::from(slack > 0)) {
                let cost = state.cost + self.taste.cost(near, far, share, end == 1, random) * weight;
                let height = state.height.max(offset.saturating_add(size));
                let child = Child::new(height, self.limit, cost, parent, offset);
                offer(&mut self.children, from, child);
                born += 1;
            }
        }
        if born > CHILDREN {
            self.children[from..].sort_unstable_by_key(Child::order);
        }
        for child in &mut self.children[from..] {
            child.content =
                blocks.iter().fold(state.content, |all, block| all ^ mark(&Taken::new(block, child.offset)));
        }
    }

    fn addresses(&self, items: &TiSlice<ItemId, Item>, order: &[ItemId]) -> Addresses {
        let mut found = Addresses { offsets: vec![0; items.len()].into(), ..Addresses::default() };
        let Some(best) = self.states.iter().min_by_key(|state| state.height) else { return found };
        found.height = best.height;
        let mut path = best.path;
        for &i in order.iter().rev() {
            let Some(step) = path else { break };
            (path, found.offsets[i]) = self.paths[step];
        }
        found
    }
}

/// Adds a child to its siblings, of which at most [`CHILDREN`] are kept.
fn offer(children: &mut Vec<Child>, from: usize, child: Child) {
    let born = &mut children[from..];
    if born.len() < CHILDREN {
        children.push(child);
    } else if let Some(worst) = born.iter_mut().max_by_key(|sibling| sibling.order())
        && child.order() < worst.order()
    {
        *worst = child;
    }
}

impl SweepState {
    /// Becomes the state that `child` describes, in place.
    fn follow(&mut self, parent: &SweepState, child: &Child, blocks: &[Block], path: PathId) {
        self.taken.clone_from(&parent.taken);
        for block in blocks {
            let new = Taken::new(block, child.offset);
            let at = self.taken.partition_point(|t| t.low < new.low);
            self.taken.insert(at, new);
        }
        (self.cost, self.height, self.content, self.path) =
            (child.cost, child.height, child.content, Some(path));
    }
}

/// Cost of a neighbour that goes at a different time than an edge, from 0 for the same to 1 for all time.
pub(super) struct Away(
    /// By slots between them.
    Vec<f64>,
);

impl Away {
    /// Returns the costs of being away until a slot.
    pub fn new(curve: Curve, end: Slot) -> Away {
        let all = f64::from(end.0);
        let of = |slots: u32| {
            let time = f64::from(slots);
            match curve {
                Curve::Logarithm => time.ln_1p() / all.ln_1p(),
                Curve::Root => (time / all).sqrt(),
                Curve::Line => time / all,
            }
        };
        Away((0..=end.0).map(of).collect())
    }

    /// Cost of an edge next to this neighbour.
    pub fn cost(&self, edge: Slot, neighbour: Slot) -> f64 {
        self.0[neighbour.index().abs_diff(edge.index())]
    }
}

/// Returns a hash of the taken bytes and their end; the hashes of a state are combined by exclusive or.
fn mark(taken: &Taken) -> u64 {
    let mut mark = taken.low.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ taken.high.rotate_left(32).wrapping_mul(0xBF58_476D_1CE4_E5B9)
        ^ u64::from(taken.until.0).wrapping_mul(0x94D0_49BB_1331_11EB);
    mark = (mark ^ (mark >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mark ^ (mark >> 32)
}

/// Returns the free space after some taken bytes, and the slot at which the item below it goes; the hole before them is added.
#[inline(always)]
fn next_hole(
    free: (u64, Slot),
    taken: (u64, u64, Slot),
    alignment: u64,
    holes: &mut Vec<Hole>,
) -> (u64, Slot) {
    let (first, until, goes) = taken;
    if first > free.0 {
        holes.push(Hole { first: free.0, last: trimmed(first - 1, alignment), below: free.1, above: goes });
    }
    if until > free.0 { (padded(until, alignment), goes) } else { free }
}

/// Returns the holes for an item, none of which ends above `roof`; if there is none, the space above all else.
fn find_holes(state: &SweepState, piece: &Piece<'_>, roof: u64, holes: &mut Vec<Hole>) {
    holes.clear();
    let Piece { blocks, size, alignment, .. } = *piece;
    let mut free = (0, Slot::START);
    let between = |block: &Block, t: &Taken| {
        let ((first, until), meet) = t.forbids(block);
        meet.then_some((first, until, t.until))
    };
    if let [block] = blocks {
        for t in &state.taken {
            if let Some(taken) = between(block, t) {
                free = next_hole(free, taken, alignment, holes);
            }
        }
    } else {
        let pairs = blocks.iter().flat_map(|b| state.taken.iter().filter_map(move |t| between(b, t)));
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable();
        for taken in pairs {
            free = next_hole(free, taken, alignment, holes);
        }
    }
    let (first, below) = free;
    let last = trimmed(roof.saturating_sub(size), alignment);
    if first <= last || holes.is_empty() {
        holes.push(Hole { first, last: last.max(first), below, above: Slot::START });
    }
}
