//! Best fit in a given order, and hill climbing over orders.
//!
//! Each item in turn goes into the narrowest hole that is free for its whole life. The orders weigh size against length of life;
//! then the highest items are moved to the front, as long as the pool grows no higher. This places plans with few long lives at
//! once.
//!
//! This file deliberately places items one by one, and does not optimise several items of the same time together; the sweeps and
//! the tree do.

use super::{Addresses, Block, Effort, Item, ItemId, Taken, end, padded};
use crate::numbers::counted;
use crate::random::Random;
use plimsoll_ir::Bytes;
use typed_index_collections::{TiSlice, TiVec};

/// Weights of the orders: powers of size and of life.
const ORDERS: [(f64, f64); 8] =
    [(1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.5), (0.5, 1.0), (1.0, 0.25), (1.0, 2.0), (2.0, 1.0)];

/// Mean excess of an accepted order over the current one, as a share.
const PATIENCE: f64 = 0.1;

/// Search over orders that can be continued.
pub(super) struct Fits<'a> {
    items: &'a TiSlice<ItemId, Item>,
    alignment: u64,
    limit: u64,
    shelf: Shelf,
    /// Number of [`ORDERS`] that were tried.
    tried: usize,
    /// Order with the smallest excess so far, and its result; empty if there is none.
    pub order: Vec<ItemId>,
    current: Fit,
    /// Excess above which an order is given up.
    bar: u64,
    /// Lowest addresses so far.
    pub lowest: Option<Addresses>,
}

/// Result of an order.
struct Fit {
    offsets: TiVec<ItemId, u64>,
    /// Bytes by which the items' ends lie above the limit, summed up. It shows better than the height if a change helps.
    excess: u64,
}

impl<'a> Fits<'a> {
    /// Returns a search for addresses below a limit.
    pub fn new(items: &'a TiSlice<ItemId, Item>, alignment: u64, limit: u64) -> Fits<'a> {
        let current = Fit { offsets: TiVec::new(), excess: u64::MAX };
        let shelf = Shelf::new(items);
        Fits {
            items,
            alignment,
            limit,
            shelf,
            tried: 0,
            order: Vec::new(),
            current,
            bar: u64::MAX,
            lowest: None,
        }
    }

    /// Begins with a known order; or with none.
    pub fn begin(&mut self, order: &[ItemId], effort: &mut Effort<'_>) {
        let known = order.len() == self.items.len() && !effort.spent();
        if let Some(found) = known.then(|| self.fit(order, 0, effort)).flatten() {
            (self.order, self.current) = (order.to_vec(), found);
        }
    }

    /// Tries orders until one ends within the limit, the effort is spent, or there are no more.
    pub fn orders(&mut self, effort: &mut Effort<'_>) {
        while self.tried < ORDERS.len() && self.current.excess > 0 && !effort.spent() {
            let (size_power, life_power) = ORDERS[self.tried];
            self.tried += 1;
            let score = |item: &Item| {
                size_power * Bytes(item.size()).to_f64().ln() + life_power * f64::from(item.life()).ln()
            };
            let scores: TiVec<ItemId, f64> = self.items.iter().map(score).collect();
            let mut order: Vec<ItemId> = self.items.keys().collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
            self.bar = self.current.excess;
            if let Some(found) = self.fit(&order, 0, effort) {
                (self.order, self.current) = (order, found);
            }
        }
    }

    /// Changes the best order, until it ends within the limit or the effort is spent.
    pub fn climb(&mut self, random: &mut Random, effort: &mut Effort<'_>) {
        while !self.order.is_empty() && self.current.excess > 0 && !effort.spent() {
            let top = |i: ItemId| self.current.offsets[i].saturating_add(self.items[i].size());
            let above: Vec<usize> =
                (0..self.order.len()).filter(|at| top(self.order[*at]) > self.limit).collect();
            effort.spend(2 * counted(self.order.len()));
            let from = above[random.below(above.len())];
            let to = random.below(from.max(1));
            let mut order = self.order.clone();
            if random.unit() < 0.5 {
                order.swap(from, to);
            } else {
                order[to..=from].rotate_right(1);
            }
            // Slightly worse is good enough, or the climb would end in a local optimum.
            let worse = 1.0 - PATIENCE * (1.0 - random.unit()).ln();
            self.bar = Bytes(self.current.excess).share(worse).0;
            // Items before the change keep their places.
            if let Some(found) = self.fit(&order, to, effort) {
                (self.order, self.current) = (order, found);
            }
        }
    }

    /// Places all items in this order, the first `known` of them as in `current`; `None` if the excess is more than `bar`, or the
    /// effort is spent.
    fn fit(&mut self, order: &[ItemId], known: usize, effort: &mut Effort<'_>) -> Option<Fit> {
        let mut offsets: TiVec<ItemId, u64> = vec![0; self.items.len()].into();
        let (mut excess, mut height) = (0u64, 0);
        let mut taken = Forbidden::default();
        self.shelf.clear();
        for (at, &i) in order.iter().enumerate() {
            let item = &self.items[i];
            let offset = if at < known {
                self.current.offsets[i]
            } else {
                taken.count = 0;
                let mut looked = 1;
                for part in item.parts() {
                    looked += self.shelf.conflicts(part, &mut taken);
                }
                effort.spend(counted(looked));
                narrowest(&mut taken.ranges[..taken.count], item.alignment(self.alignment))
            };
            let top = offset.saturating_add(item.size());
            height = height.max(top);
            excess = excess.saturating_add(top.saturating_sub(self.limit));
            if excess > self.bar || effort.spent() {
                return None;
            }
            for part in item.parts() {
                effort.spend(counted(self.shelf.put(part, offset)));
            }
            offsets[i] = offset;
        }
        if self.lowest.as_ref().is_none_or(|lowest| height < lowest.height) {
            self.lowest = Some(Addresses { offsets: offsets.clone(), height, order: Vec::new() });
        }
        Some(Fit { offsets, excess })
    }
}

/// Returns the start of the narrowest hole between ranges of forbidden offsets, each given as the first forbidden and the first
/// allowed offset after it; the space above all counts as the widest.
fn narrowest(forbidden: &mut [(u64, u64)], alignment: u64) -> u64 {
    // Most of them are in order already: see the shelf.
    forbidden.sort_by_key(|range| range.0);
    let (mut free, mut best) = (0u64, None::<(u64, u64)>);
    for &(from, until) in forbidden.iter() {
        if from > free {
            let width = from - free;
            if best.is_none_or(|b| width < b.0) {
                best = Some((width, free));
            }
        }
        if until > free {
            free = padded(until, alignment);
        }
    }
    best.map_or(free, |b| b.1)
}

/// Placed items, indexed by time. Every list is in order of the lowest byte, so that the union of several needs little sorting.
struct Shelf {
    /// Number of slots of a stretch.
    stretch: usize,
    /// By stretch: blocks that begin in it.
    begins: Vec<Vec<Taken>>,
    /// By stretch: blocks that are present at some slot of it.
    there: Vec<Vec<Taken>>,
}

/// Shortest stretch, in slots.
const STRETCH: usize = 16;

/// Maximum mean number of stretches per item, which limits the shelf's memory.
const ACROSS: usize = 64;

impl Shelf {
    fn new(items: &TiSlice<ItemId, Item>) -> Shelf {
        let lives: usize = items.iter().map(|i| i.hull.slots.end.index() - i.hull.slots.start.index()).sum();
        let stretch = STRETCH.max(lives / (ACROSS * items.len().max(1)));
        let count = end(items).index() / stretch + 1;
        Shelf { stretch, begins: vec![Vec::new(); count], there: vec![Vec::new(); count] }
    }

    fn clear(&mut self) {
        self.begins.iter_mut().chain(&mut self.there).for_each(Vec::clear);
    }

    /// Returns the first and the last stretch of a block.
    fn across(&self, block: &Block) -> (usize, usize) {
        (block.slots.start.index() / self.stretch, (block.slots.end.index() - 1) / self.stretch)
    }

    /// Adds a block. Returns the number of lists it was added to.
    fn put(&mut self, block: &Block, offset: u64) -> usize {
        let taken = Taken::new(block, offset);
        let (first, last) = self.across(block);
        insert(&mut self.begins[first], taken);
        self.there[first..=last].iter_mut().for_each(|list| insert(list, taken));
        1 + last - first
    }

    /// Adds the offsets that an item may not have because of its part `part`. Returns the number of blocks examined.
    fn conflicts(&self, part: &Block, forbidden: &mut Forbidden) -> usize {
        let (first, last) = self.across(part);
        let mut looked = 1;
        let begins = self.begins[first + 1..=last].iter();
        for list in std::iter::once(&self.there[first]).chain(begins) {
            looked += list.len() + 1;
            let ranges = forbidden.room(list.len());
            let mut count = 0;
            // Some meet the part and some do not, in no order that a processor could predict: each is written, and the next
            // overwrites it if it does not count.
            for t in list {
                let (range, meets) = t.forbids(part);
                ranges[count] = range;
                count += usize::from(meets);
            }
            forbidden.count += count;
        }
        looked
    }
}

/// Ranges of forbidden offsets, each given as the first forbidden and the first allowed offset after it.
#[derive(Default)]
struct Forbidden {
    ranges: Vec<(u64, u64)>,
    /// Number of ranges; the other entries are spare room.
    count: usize,
}

impl Forbidden {
    /// Returns room for this many more.
    fn room(&mut self, more: usize) -> &mut [(u64, u64)] {
        let until = self.count + more;
        if self.ranges.len() < until {
            self.ranges.resize(until, (0, 0));
        }
        &mut self.ranges[self.count..until]
    }
}

fn insert(list: &mut Vec<Taken>, taken: Taken) {
    list.insert(list.partition_point(|t| t.low <= taken.low), taken);
}
