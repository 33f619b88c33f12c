//! Static addresses: the place of each item in the pool, so that items present at the same time share no byte.
//!
//! # The data
//!
//! An [`Item`] is placed as a unit: a tensor with a separate home, or the workspace of a step. It consists of [`Block`]s, each
//! some of its bytes during some slots; a tensor of which one piece leaves and returns while the rest stays has several, and
//! other items may lie in the hole meanwhile. [`assign`] gives every item an offset such that no two blocks of different items
//! share a byte during a slot.
//!
//! # The way
//!
//! Three searches, each in a separate file, run until the pool's limit is met, after two walks that cost almost nothing (sweeps
//! of one state, or, if many items are present at a time, the walks of `holes.rs`):
//!
//! 1. `fit.rs`: best fit in several orders, and hill climbing over them, for lives that are mostly short.
//! 2. `sweep.rs`: walks through time that keep several states, for pools that are full all the time.
//! 3. `tree.rs`: from the bottom up with all possible inference, for limits that leave no slack at all. It searches completely
//!    for items that are solid, and is the only one that pays for a few hundred items with many conflicts.
//!
//! Each is needed. Of the 171 plans of the zoo (`WITHOUT=walks cargo test --release -p plimsoll-tuner --test main
//! plans_of_the_zoo`, 2026-11-29) 29 change without the walks over holes, 38 without the orders of best fit (`orders`), 19
//! without climbing over them (`climb`), 89 without plain sweeps (`sweeps`) and 16 without those of other tastes (`tastes`).
//! Without the tree (`tree`) none does, but of MiniMalloc's instances A to H, all of which are placed at their capacity, none is
//! (bench `addresses`). `sections.rs` prepares the problem of the tree.
//!
//! The work left after the first tries is shared between them in slices that double, and quadruple for the tree: if the others do
//! not find a solution soon, they do not find it. All are deterministic for a seed and bounded by an amount of work; a unit of it
//! is a look at one placed block, some 10 ns. Time ends them only if the caller's clock does.
//!
//! # Alignment
//!
//! Offsets of tensors are multiples of [`ALIGNMENT`], as CUDA's own allocator returns them and as wide loads prefer. A small
//! tensor whose size is no multiple of it needs less (a 64th of its size, and no less than 16, the widest single load of a GPU),
//! so that thousands of scalars and statistics do not cost 256 bytes each.
//!
//! Two deterministic sweeps run on two threads if that pays, with the same result as one after the other.
//!
//! This file deliberately proves nothing about the smallest pool. [`most_alive`] is the known bound.

mod fit;
mod holes;
mod sections;
mod sweep;
mod tree;

pub use crate::decide::placement::Slot;

use crate::decide::placement::{HomeId, Placement, ResidencyId};
use crate::levels::Levels;
use crate::numbers::counted;
use crate::random::Random;
use crate::request::{Trick, Tricks};
use crate::threads::each;
use fit::Fits;
use plimsoll_ir::define_id;
use std::ops::Range;
use sweep::{Taste, sweep};
use tree::Forest;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// Item placed as a unit.
    ItemId, "item");

/// Alignment of offsets if the budget allows, as GPUs and vector units prefer.
pub const ALIGNMENT: u64 = 256;

/// Smallest alignment of a small item, if any is requested: the widest single load of a GPU's thread.
pub const SMALL_ALIGNMENT: u64 = 16;

/// Some bytes of an item during some slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Slots during which the bytes are taken; not empty.
    pub slots: Range<Slot>,
    /// Bytes, counted from the item's first; not empty.
    pub bytes: Range<u64>,
}

/// Unit of placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Slots and bytes that enclose all of it.
    pub hull: Block,
    /// Its parts, if they differ from the hull; empty if the item fills the hull.
    pub blocks: Vec<Block>,
}

/// Addresses of all items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// By item: offset of its byte 0 from the start of the pool.
    pub offsets: TiVec<ItemId, u64>,
    /// Bytes from the start of the pool to the end of the highest block.
    pub height: u64,
    /// Order of the items in which best fit came near; for [`assign_like`]. Empty if best fit was not tried.
    pub order: Vec<ItemId>,
}

/// Items of a placement: one for each home with a residency, in order of home, then one for each step with a workspace, in order
/// of step.
#[derive(Clone, Debug, Default)]
pub struct Items {
    /// All items.
    pub items: TiVec<ItemId, Item>,
    /// By residency: its item.
    pub of_residency: TiVec<ResidencyId, ItemId>,
    /// By step: the item of its workspace, and the workspace's bytes.
    pub of_step: Vec<Option<(ItemId, u64)>>,
}

impl Items {
    /// Returns the items of a placement. `workspace` has the bytes of every step's workspace.
    pub fn new(placement: &Placement, workspace: &[u64]) -> Items {
        let mut items = Items::default();
        let homes = placement.residencies.iter().map(|r| r.home.next()).max().unwrap_or(HomeId(0));
        let mut item_of_home: TiVec<HomeId, Option<ItemId>> = vec![None; homes.index()].into();
        for residency in &placement.residencies {
            let block = Block { slots: residency.slots.clone(), bytes: residency.bytes.clone() };
            let known = item_of_home[residency.home];
            let item = match known {
                None => items.items.push_and_get_key(Item { hull: block, blocks: Vec::new() }),
                Some(item) => {
                    items.items[item].add(block);
                    item
                }
            };
            item_of_home[residency.home] = Some(item);
            items.of_residency.push(item);
        }
        for (slot, bytes) in (1..).map(Slot).zip(workspace) {
            let here = (*bytes > 0).then(|| {
                let hull = Block { slots: slot..slot.next(), bytes: 0..*bytes };
                (items.items.push_and_get_key(Item { hull, blocks: Vec::new() }), *bytes)
            });
            items.of_step.push(here);
        }
        items
    }
}

impl Item {
    fn add(&mut self, block: Block) {
        if self.blocks.is_empty() {
            self.blocks.push(self.hull.clone());
        }
        let hull = &mut self.hull;
        hull.slots = hull.slots.start.min(block.slots.start)..hull.slots.end.max(block.slots.end);
        hull.bytes = hull.bytes.start.min(block.bytes.start)..hull.bytes.end.max(block.bytes.end);
        self.blocks.push(block);
    }

    fn parts(&self) -> &[Block] {
        if self.blocks.is_empty() { std::slice::from_ref(&self.hull) } else { &self.blocks }
    }

    fn size(&self) -> u64 {
        self.hull.bytes.end
    }

    /// Returns the number of slots of its life.
    fn life(&self) -> u32 {
        self.hull.slots.end.0 - self.hull.slots.start.0
    }

    /// Returns the divisor of its offset if `alignment` (a power of two) is requested; see the head of this file.
    pub fn alignment(&self, alignment: u64) -> u64 {
        if alignment <= SMALL_ALIGNMENT || self.size().is_multiple_of(alignment) {
            return alignment;
        }
        let share = (self.size() / 64).max(1);
        (1u64 << share.ilog2()).clamp(SMALL_ALIGNMENT, alignment)
    }
}

/// Bytes that are taken during some slots.
#[derive(Clone, Copy, Debug)]
struct Taken {
    low: u64,
    high: u64,
    from: Slot,
    until: Slot,
}

impl Taken {
    fn new(block: &Block, offset: u64) -> Taken {
        Taken {
            low: offset.saturating_add(block.bytes.start),
            high: offset.saturating_add(block.bytes.end),
            from: block.slots.start,
            until: block.slots.end,
        }
    }

    /// Returns the offsets at which a block would take some of these bytes, as the first of them and the first after them; and
    /// `true` if there are any.
    #[inline(always)]
    fn forbids(&self, block: &Block) -> ((u64, u64), bool) {
        let first = self.low.saturating_add(1).saturating_sub(block.bytes.end);
        let free = self.high.saturating_sub(block.bytes.start);
        let meet = (self.from < block.slots.end) & (block.slots.start < self.until);
        ((first, free), meet & (free > first))
    }
}

/// Returns the most bytes that are taken during one slot: no pool is smaller.
pub fn most_alive(items: &TiSlice<ItemId, Item>) -> u64 {
    most_alive_in(items, 1)
}

/// Returns the slot after the last at which anything is present.
fn end(items: &TiSlice<ItemId, Item>) -> Slot {
    items.iter().map(|i| i.hull.slots.end).max().unwrap_or(Slot::START)
}

/// Returns the most bytes taken during one slot if every block takes a whole number of grains.
fn most_alive_in(items: &TiSlice<ItemId, Item>, grain: u64) -> u64 {
    let mut change: TiVec<Slot, i128> = vec![0; end(items).index() + 1].into();
    for block in items.iter().flat_map(Item::parts) {
        let bytes = i128::from((block.bytes.end - block.bytes.start).next_multiple_of(grain));
        change[block.slots.start] += bytes;
        change[block.slots.end] -= bytes;
    }
    let mut alive = 0;
    let most = change.into_iter().fold(0, |most, change| {
        alive += change;
        alive.max(most)
    });
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// Returns `true` if the alignment alone takes too much: the space between starts at multiples of a grain is a whole number of
/// grains.
fn hopeless(items: &TiSlice<ItemId, Item>, limit: u64, alignment: u64) -> bool {
    let grain = items.iter().map(|item| item.alignment(alignment)).min().unwrap_or(1);
    let mut blocks = items.iter().flat_map(Item::parts);
    blocks.all(|block| block.bytes.start.is_multiple_of(grain))
        && most_alive_in(items, grain) > limit.saturating_add(grain - 1)
}

/// Limits of a search for addresses.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Looks at placed blocks, some 10 ns each.
    pub looks: u64,
    /// Returns `true` once time is up. The best addresses so far are then returned at once, once there are some.
    pub expired: Option<&'a dyn Fn() -> bool>,
    /// Tricks that the search leaves out.
    pub without: Tricks,
}

impl Work<'_> {
    /// Returns the work limited to the amount that this many items can use: best fit in one order looks at each pair of items
    /// once. Every stage of a search requests addresses again, and without this limit it took 10 s for seven items that narrowly
    /// missed the pool.
    fn for_so_many(self, items: usize) -> Self {
        let count = counted(items);
        let most = count.saturating_pow(3).saturating_mul(ORDERS_PER_ITEM);
        Work { looks: self.looks.min(most), ..self }
    }
}

impl From<u64> for Work<'_> {
    fn from(looks: u64) -> Self {
        Work { looks, expired: None, without: Tricks::NONE }
    }
}

/// Finds addresses whose height is at most `limit`, or the lowest that `work` allows; if there can be none, some with little
/// work. `alignment` is a power of two.
pub fn assign<'a>(
    items: &TiSlice<ItemId, Item>,
    limit: u64,
    alignment: u64,
    work: impl Into<Work<'a>>,
    seed: u64,
) -> Addresses {
    assign_like(items, &[], limit, alignment, work, seed)
}

/// Finds addresses for items that resemble others for which an order is known: all items in this order, or none.
pub fn assign_like<'a>(
    items: &TiSlice<ItemId, Item>,
    order: &[ItemId],
    limit: u64,
    alignment: u64,
    work: impl Into<Work<'a>>,
    seed: u64,
) -> Addresses {
    // Stacked, all fit in this.
    let all = items.iter().map(|i| padded(i.size(), alignment)).fold(0, u64::saturating_add);
    let items = compressed(items);
    let mut effort = Effort::new(work.into().for_so_many(items.len()));
    if hopeless(&items, limit, alignment) {
        effort.end();
    }
    let mut search = Search {
        items: &items,
        limit: limit.min(all),
        alignment,
        effort,
        random: Random::new(seed),
        best: Addresses { offsets: vec![0; items.len()].into(), height: u64::MAX, order: Vec::new() },
    };
    search.run(order);
    search.best
}

/// Returns the same items in a time of which every instant begins or ends a block.
fn compressed(items: &TiSlice<ItemId, Item>) -> TiVec<ItemId, Item> {
    let blocks = items.iter().flat_map(Item::parts);
    let mut instants: Vec<Slot> = blocks.flat_map(|b| [b.slots.start, b.slots.end]).collect();
    instants.sort_unstable();
    instants.dedup();
    let at = |slot: Slot| Slot::new(instants.partition_point(|instant| *instant < slot));
    let block = |b: &Block| Block { slots: at(b.slots.start)..at(b.slots.end), bytes: b.bytes.clone() };
    let item = |i: &Item| Item { hull: block(&i.hull), blocks: i.blocks.iter().map(block).collect() };
    items.iter().map(item).collect()
}

/// Remaining work.
#[derive(Clone, Copy)]
struct Effort<'a> {
    left: u64,
    /// The clock is checked when less than this is left.
    look_at: u64,
    work: Work<'a>,
    late: bool,
}

/// Work between two looks at the clock, some 1 ms.
const BETWEEN_LOOKS: u64 = 100_000;

impl<'a> Effort<'a> {
    fn new(work: Work<'a>) -> Effort<'a> {
        let mut effort = Effort { left: work.looks, look_at: 0, work, late: false };
        effort.look();
        effort
    }

    fn spend(&mut self, work: u64) {
        self.left = self.left.saturating_sub(work);
        if self.left < self.look_at {
            self.look();
        }
    }

    /// Ends the work if time is up.
    fn look(&mut self) {
        self.look_at = self.work.expired.map_or(0, |_| self.left.saturating_sub(BETWEEN_LOOKS));
        if self.work.expired.is_some_and(|expired| expired()) {
            self.end();
        }
    }

    fn end(&mut self) {
        (self.left, self.look_at, self.late) = (0, 0, true);
    }

    fn spent(&self) -> bool {
        self.left == 0
    }

    /// Takes away up to `work`.
    fn slice(&mut self, work: u64) -> Effort<'a> {
        let left = work.min(self.left);
        let slice = Effort { left, look_at: self.look_at.saturating_sub(self.left - left), ..*self };
        self.left -= left;
        slice
    }

    /// Gives back the rest of a slice.
    fn put_back(&mut self, slice: Effort<'a>) {
        self.left += slice.left;
        self.look_at = self.look_at.min(self.left);
        if slice.late {
            self.end();
        }
    }
}

/// Orders per item that are worth a try. From some 150 items on no caller has enough work for this many.
const ORDERS_PER_ITEM: u64 = 30;

/// First slice of work, in units per item.
const FIRST_SLICE: u64 = 1000;

/// Number of states that a sweep keeps.
const WIDTH: usize = 8;

/// Number of blocks per item up to which a sweep of one state is faster than a walk over holes; above it, a walk comes first.
const SHORT_SWEEP: u64 = 50;

/// A sweep of one state runs after walks if the work suffices for this many.
const SWEEPS: u64 = 10;

/// Number of blocks above which only walks run, unless the work suffices for that many sweeps.
const LONG_SWEEP: u64 = 300_000_000;

/// Sweeps of several states are worth a second thread each if there are this many items, and this much work is left.
const MANY_ITEMS: usize = 100;
const LONG_LOOK: u64 = 100_000;

struct Search<'a> {
    items: &'a TiSlice<ItemId, Item>,
    limit: u64,
    alignment: u64,
    effort: Effort<'a>,
    random: Random,
    best: Addresses,
}

impl Search<'_> {
    fn run(&mut self, order: &[ItemId]) {
        let looks = looks(self.items);
        let walks = self.uses(Trick::Walks);
        if looks > LONG_SWEEP && walks {
            self.walk(looks.saturating_mul(SWEEPS));
        }
        let mut fits = Fits::new(self.items, self.alignment, self.limit);
        fits.begin(order, &mut self.effort);
        self.offer(fits.lowest.as_ref());
        if self.best.height > self.limit {
            let short = looks <= SHORT_SWEEP * counted(self.items.len());
            if !short && walks {
                self.walk(0);
            }
            if short || self.effort.left / SWEEPS > looks {
                self.sweep_both_ways(1);
            }
            self.look(&mut fits);
        }
        if self.best.height == u64::MAX {
            self.walk(0);
        }
        self.best.order = fits.order;
    }

    fn uses(&self, trick: Trick) -> bool {
        !self.effort.work.without.contains(trick)
    }

    /// Runs two walks over holes, and more while less than `few` is left of the work.
    fn walk(&mut self, few: u64) {
        let mut tastes = vec![Taste::plain(false, 1), Taste::plain(true, 1)];
        while self.best.height == u64::MAX
            || (!self.ended() && (!tastes.is_empty() || self.effort.left < few))
        {
            let taste = tastes.pop().unwrap_or_else(|| Taste::any(1, &mut self.random));
            self.attempt(None, |search, effort| {
                let Search { items, alignment, limit, ref mut random, .. } = *search;
                holes::walk(items, alignment, limit, &taste, random, effort)
            });
        }
    }

    fn look(&mut self, fits: &mut Fits<'_>) {
        if self.ended() {
            return;
        }
        if self.uses(Trick::Orders) {
            fits.orders(&mut self.effort);
            self.offer(fits.lowest.as_ref());
        }
        self.sweep_at_once();
        let [climb, tastes, tree] = [Trick::Climb, Trick::Tastes, Trick::Tree].map(|trick| self.uses(trick));
        let mut forest = None;
        let mut slice = FIRST_SLICE * counted(self.items.len());
        let mut tree_slice = slice;
        while !self.ended() {
            let before = self.effort.left;
            if climb {
                let mut effort = self.effort.slice(slice);
                fits.climb(&mut self.random, &mut effort);
                self.effort.put_back(effort);
                self.offer(fits.lowest.as_ref());
            }
            let until = self.effort.left.saturating_sub(slice);
            while tastes && !self.ended() && self.effort.left > until {
                let taste = Taste::any(WIDTH, &mut self.random);
                self.sweep(taste, Some(slice));
            }
            slice *= 2;
            if tree && !self.ended() {
                let forest =
                    forest.get_or_insert_with(|| Forest::new(self.items, self.alignment, self.limit));
                let mut effort = self.effort.slice(tree_slice);
                let found = forest.search(&mut self.random, &mut effort);
                self.effort.put_back(effort);
                self.offer(found.as_ref());
                tree_slice = tree_slice.saturating_mul(4);
            }
            if self.effort.left == before && (!tree || tree_slice > before) {
                // None of the searches in use finds more.
                break;
            }
        }
    }

    fn ended(&self) -> bool {
        self.best.height <= self.limit || self.effort.spent()
    }

    fn offer(&mut self, found: Option<&Addresses>) {
        if let Some(found) = found.filter(|found| found.height < self.best.height) {
            (self.best.offsets, self.best.height) = (found.offsets.clone(), found.height);
        }
    }

    /// Runs two plain sweeps that keep this many states.
    fn sweep_both_ways(&mut self, width: usize) {
        if self.uses(Trick::Sweeps) {
            self.sweep(Taste::plain(true, width), None);
            self.sweep(Taste::plain(false, width), None);
        }
    }

    /// Runs two plain sweeps that keep several states, at once if that is worthwhile. They are deterministic, and only skip the
    /// random generator's numbers.
    fn sweep_at_once(&mut self) {
        let Search { items, limit, alignment, ref random, effort, .. } = *self;
        if self.best.height == u64::MAX || effort.left < LONG_LOOK || self.items.len() < MANY_ITEMS {
            return self.sweep_both_ways(WIDTH);
        }
        if self.ended() || !self.uses(Trick::Sweeps) {
            return;
        }
        let (left, Work { expired, without, .. }) = (effort.left, effort.work);
        let alternatives = each(2, true, expired, |at, expired| {
            let (mut random, looks) = (random.clone(), left);
            let mut effort = Effort::new(Work { looks, expired, without });
            let taste = Taste::plain(at == 0, WIDTH);
            let found = sweep(items, alignment, limit, &taste, &mut random, &mut effort);
            (found, looks - effort.left, random)
        });
        let from = self.random.clone();
        for (found, looks, to) in alternatives {
            if self.ended() {
                break;
            }
            // As if one had followed the other: a result that the work would not have sufficed for is dropped.
            self.effort.spend(looks);
            self.random.skip(&from, &to);
            let in_time = !self.effort.spent();
            self.offer(found.as_ref().filter(|_| in_time));
        }
    }

    /// Runs a sweep with at most this much of the work.
    fn sweep(&mut self, taste: Taste, most: Option<u64>) {
        self.attempt(most, |search, effort| {
            sweep(search.items, search.alignment, search.limit, &taste, &mut search.random, effort)
        });
    }

    /// Runs a search with at most this much of the work. The first is finished whatever the work, so that there always is an
    /// answer.
    fn attempt(
        &mut self,
        most: Option<u64>,
        find: impl FnOnce(&mut Self, &mut Effort<'_>) -> Option<Addresses>,
    ) {
        let first = self.best.height == u64::MAX;
        if !first && self.ended() {
            return;
        }
        let mut effort =
            if first { Effort::new(u64::MAX.into()) } else { self.effort.slice(most.unwrap_or(u64::MAX)) };
        let found = find(self, &mut effort);
        if first {
            self.effort.spend(u64::MAX - effort.left);
        } else {
            self.effort.put_back(effort);
        }
        self.offer(found.as_ref());
    }
}

/// Returns the sum of the blocks present when items come: the looks of a sweep of one state.
fn looks(items: &TiSlice<ItemId, Item>) -> u64 {
    let end = end(items);
    let mut there: Levels<Slot> = Levels::new(end.index());
    let mut comes: TiVec<Slot, u64> = vec![0; end.index()].into();
    for item in items {
        let (Block { slots, .. }, parts) = (&item.hull, counted(item.parts().len()));
        there.hold(slots.clone(), parts);
        comes[slots.start] += parts;
    }
    there.sums().zip(comes).map(|(there, comes)| there * comes).fold(0, u64::saturating_add)
}

/// Returns the next multiple of a power of two, or the largest number.
fn padded(bytes: u64, alignment: u64) -> u64 {
    bytes.checked_add(alignment - 1).map_or(u64::MAX, |bytes| trimmed(bytes, alignment))
}

/// Returns the previous multiple of a power of two.
fn trimmed(bytes: u64, alignment: u64) -> u64 {
    bytes & !(alignment - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(random: &mut Random, count: usize) -> TiVec<ItemId, Item> {
        let mut item = || {
            let (start, life) = (random.below(300), 1 + random.below(150));
            let bytes = 256 * (1 + random.below(50) as u64);
            Item {
                hull: Block { slots: Slot::new(start)..Slot::new(start + life), bytes: 0..bytes },
                blocks: Vec::new(),
            }
        };
        (0..count).map(|_| item()).collect()
    }

    #[test]
    fn few_items_are_given_up_soon_whatever_the_work() {
        // Some cannot be placed in as many bytes as are alive; with all of this work each of them would take weeks.
        let missed = (0..200).filter(|seed| {
            let items = items(&mut Random::new(*seed), 8);
            let alive = most_alive(&items);
            assign(&items, alive, 1, 1 << 56, *seed).height > alive
        });
        assert!(missed.count() > 0);
    }

    #[test]
    fn sweeps_at_once_are_sweeps_one_after_the_other() {
        let (mut cut, mut ended) = (0, 0);
        for seed in 0..40 {
            let items = items(&mut Random::new(seed), 2 * MANY_ITEMS);
            // More than is alive, or so much that the first sweep suffices; work for both, or for less than both.
            let limit = most_alive(&items) * [1, 2][seed as usize % 2];
            let looks = LONG_LOOK * [1, 2, 100][seed as usize % 3];
            let run = |at_once: bool| {
                let best = Addresses { offsets: TiVec::new(), height: u64::MAX - 1, order: Vec::new() };
                let (random, effort) = (Random::new(seed), Effort::new(looks.into()));
                let mut search = Search { items: &items, limit, alignment: ALIGNMENT, effort, random, best };
                if at_once {
                    search.sweep_at_once();
                } else {
                    search.sweep_both_ways(WIDTH);
                }
                search
            };
            let one_by_one = run(false);
            let at_once = run(true);
            assert_eq!(at_once.best, one_by_one.best, "{seed}");
            assert_eq!(at_once.effort.left, one_by_one.effort.left, "{seed}");
            if !one_by_one.ended() {
                assert_eq!(at_once.random.clone().unit(), one_by_one.random.clone().unit(), "{seed}");
            }
            cut += u32::from(one_by_one.effort.spent());
            ended += u32::from(one_by_one.best.height <= limit);
        }
        assert!(cut > 0 && ended > 0 && cut + ended < 40, "{cut}, {ended}");
    }
}
