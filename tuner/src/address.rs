//! Static addresses: where in the pool each thing lies, so that things which are there at the same time share no byte.
//!
//! # The data
//!
//! An [`Item`] is placed as one: a tensor with a home of its own, or the workspace of a step. It is made of [`Block`]s,
//! each some of its bytes during some slots; a tensor of which one piece leaves and returns while the rest stays has
//! several, and others may lie in the hole meanwhile. [`assign`] gives every item an offset such that no two blocks of
//! different items share a byte during a slot.
//!
//! # The way
//!
//! Two families, cheapest first, until the pool's limit is met:
//!
//! 1. *Sweeps* through time, forward or backward, that give each item the hole which suits it best, for example the
//!    one whose neighbour dies nearest to when this item dies. They treat an item as one solid block.
//! 2. *Best fit* over several orders (size against length of life), each item into the narrowest hole that is free for
//!    as long as it lives; then hill climbing over the best order, moving what lies highest to the front.
//!
//! All are deterministic for a seed and bounded by an amount of work, not by time.
//!
//! What this file does not do: it proves nothing about the least pool. [`most_alive`] is the bound that is known.

use crate::placement::Placement;
use crate::random::Random;
use std::ops::Range;

/// Offsets are multiples of this where the budget allows: what GPUs and vector units like to find.
pub const ALIGNMENT: u64 = 256;

/// Some bytes of an item during some slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// During which slots; not empty.
    pub slots: Range<u32>,
    /// Which bytes, counted from the item's first; not empty.
    pub bytes: Range<u64>,
}

/// What is placed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The slots and bytes that enclose all of it.
    pub hull: Block,
    /// Its parts, where they differ from the hull; empty where the hull is all there is.
    pub blocks: Vec<Block>,
}

/// Where everything lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// By item: the offset of its byte 0 from the start of the pool.
    pub offsets: Vec<u64>,
    /// The bytes from the start of the pool to the end of the highest block.
    pub height: u64,
}

/// The items of a placement: one for each home with a residency, in order of home, then one for each step with a
/// workspace, in order of step.
#[derive(Clone, Debug, Default)]
pub struct Items {
    /// The items.
    pub items: Vec<Item>,
    /// By residency: its item.
    pub of_residency: Vec<u32>,
    /// By step: the item of its workspace, and the workspace's bytes.
    pub of_step: Vec<Option<(u32, u64)>>,
}

impl Items {
    /// What a placement asks addresses for. `workspace` has the bytes of every step's workspace.
    pub fn new(placement: &Placement, workspace: &[u64]) -> Items {
        let mut items = Items::default();
        let homes = placement.residencies.iter().map(|r| r.home + 1).max().unwrap_or_default();
        let mut item_of_home = vec![u32::MAX; homes as usize];
        for residency in &placement.residencies {
            let block = Block { slots: residency.slots.clone(), bytes: residency.bytes.clone() };
            let item = &mut item_of_home[residency.home as usize];
            if *item == u32::MAX {
                *item = items.items.len() as u32;
                items.items.push(Item { hull: block, blocks: Vec::new() });
            } else {
                items.items[*item as usize].add(block);
            }
            items.of_residency.push(*item);
        }
        for (step, bytes) in workspace.iter().enumerate() {
            let here = (*bytes > 0).then_some((items.items.len() as u32, *bytes));
            if here.is_some() {
                let slot = step as u32 + 1;
                let hull = Block { slots: slot..slot + 1, bytes: 0..*bytes };
                items.items.push(Item { hull, blocks: Vec::new() });
            }
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

    fn life(&self) -> u32 {
        self.hull.slots.end - self.hull.slots.start
    }
}

/// The most bytes that are taken during one slot: no pool is smaller.
pub fn most_alive(items: &[Item]) -> u64 {
    let end = items.iter().map(|i| i.hull.slots.end).max().unwrap_or_default();
    let mut change = vec![0i64; end as usize + 1];
    for block in items.iter().flat_map(Item::parts) {
        change[block.slots.start as usize] += (block.bytes.end - block.bytes.start) as i64;
        change[block.slots.end as usize] -= (block.bytes.end - block.bytes.start) as i64;
    }
    let mut alive = 0;
    let mut most = 0;
    for change in change {
        alive += change;
        most = most.max(alive);
    }
    most as u64
}

/// Finds addresses whose height is at most `limit`, or the lowest that `work` allows (counted in conflicts looked at).
pub fn assign(items: &[Item], limit: u64, alignment: u64, work: u64, seed: u64) -> Addresses {
    let mut search = Search::new(items, limit, alignment, work, seed);
    search.sweeps();
    search.best_fits();
    search.climb();
    search.best
}

/// How a sweep chooses among the holes that are large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The smallest.
    Narrowest,
    /// The lowest.
    Lowest,
    /// Beside the neighbour that dies nearest to when this dies.
    Companion,
}

/// Hill climbing ends after so many steps that brought nothing.
const IDLE: u32 = 400;

struct Search<'a> {
    items: &'a [Item],
    limit: u64,
    alignment: u64,
    work: u64,
    random: Random,
    index: Index,
    best: Addresses,
    best_order: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(items: &'a [Item], limit: u64, alignment: u64, work: u64, seed: u64) -> Search<'a> {
        let best = Addresses { offsets: vec![0; items.len()], height: u64::MAX };
        let index = Index::new(items);
        Search {
            items,
            limit,
            alignment,
            work,
            random: Random::new(seed),
            index,
            best,
            best_order: Vec::new(),
        }
    }

    fn fits(&self) -> bool {
        self.best.height <= self.limit
    }

    fn spent(&mut self, work: usize) -> bool {
        self.work = self.work.saturating_sub(work as u64);
        self.work == 0
    }

    fn offer(&mut self, found: Option<Addresses>) -> bool {
        match found {
            Some(found) if found.height < self.best.height => {
                self.best = found;
                true
            }
            _ => false,
        }
    }

    fn sweeps(&mut self) {
        for choice in [Choice::Companion, Choice::Narrowest, Choice::Lowest] {
            for backward in [true, false] {
                for capped in [true, false] {
                    // A cap makes a sweep prefer any hole below it over growing the pool.
                    let cap = if capped { self.limit } else { most_alive(self.items) };
                    let found = self.sweep(choice, backward, cap);
                    self.offer(Some(found));
                    if self.fits() || self.work == 0 {
                        return;
                    }
                }
            }
        }
    }

    /// One walk through time.
    fn sweep(&mut self, choice: Choice, backward: bool, cap: u64) -> Addresses {
        let last = self.items.iter().map(|i| i.hull.slots.end).max().unwrap_or_default();
        let span = |item: &Item| {
            let Range { start, end } = item.hull.slots;
            if backward { last - end..last - start } else { start..end }
        };
        let mut order: Vec<u32> = (0..self.items.len() as u32).collect();
        order.sort_by_key(|i| {
            let item = &self.items[*i as usize];
            (span(item).start, u32::MAX - span(item).end, u64::MAX - item.size(), *i)
        });
        let mut offsets = vec![0; self.items.len()];
        // What is there now, by offset: first byte, end, when it goes.
        let mut there: Vec<(u64, u64, u32)> = Vec::new();
        let mut now = 0;
        let mut height = 0;
        for i in order {
            let item = &self.items[i as usize];
            let life = span(item);
            if life.start > now {
                now = life.start;
                there.retain(|t| t.2 > now);
            }
            let size = item.size().next_multiple_of(self.alignment);
            let (offset, position) = hole(&there, size, life.end, choice, cap.max(height));
            there.insert(position, (offset, offset + size, life.end));
            offsets[i as usize] = offset;
            height = height.max(offset + item.size());
            // The first walk is finished whatever the work, so that there always is an answer.
            if self.spent(there.len()) && self.best.height != u64::MAX {
                height = u64::MAX;
                break;
            }
        }
        Addresses { offsets, height }
    }

    fn best_fits(&mut self) {
        if self.fits() {
            return;
        }
        for (size_power, life_power) in
            [(1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.5), (0.5, 1.0), (1.0, 0.25), (1.0, 2.0), (2.0, 1.0)]
        {
            let mut order: Vec<u32> = (0..self.items.len() as u32).collect();
            let score = |i: &u32| {
                let item = &self.items[*i as usize];
                size_power * (item.size() as f64).ln() + life_power * f64::from(item.life()).ln()
            };
            order.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
            let found = self.fit(&order);
            if self.offer(found) || self.best_order.is_empty() {
                self.best_order = order;
            }
            if self.fits() || self.work == 0 {
                return;
            }
        }
    }

    /// Hill climbing: what lies highest is placed earlier.
    fn climb(&mut self) {
        if self.fits() || self.best_order.is_empty() {
            return;
        }
        let mut order = self.best_order.clone();
        let Some(mut current) = self.fit_within(&order, u64::MAX, None) else { return };
        let mut idle = 0;
        while self.work > 0 && !self.fits() && idle < IDLE {
            idle += 1;
            let highest: Vec<usize> = (0..order.len())
                .filter(|at| {
                    current.offsets[order[*at] as usize] + self.items[order[*at] as usize].size()
                        >= current.height
                })
                .collect();
            self.spent(2 * order.len());
            let from = highest[self.random.below(highest.len())];
            let to = self.random.below(from.max(1));
            let mut candidate = order.clone();
            if self.random.unit() < 0.5 {
                candidate.swap(from, to);
            } else {
                let moved = candidate.remove(from);
                candidate.insert(to, moved);
            }
            // What comes before the change lies where it lay.
            if let Some(found) = self.fit_within(&candidate, current.height, Some((to, &current))) {
                (order, current) = (candidate, found.clone());
                if self.offer(Some(found)) {
                    idle = 0;
                }
            }
        }
    }

    fn fit(&mut self, order: &[u32]) -> Option<Addresses> {
        let below = self.best.height.saturating_sub(1);
        self.fit_within(order, below, None)
    }

    /// Places the items in this order, each into the narrowest hole; none where that ends above `ceiling`, or the work
    /// is spent. The first so many of the order may be known from an order that begins alike.
    fn fit_within(
        &mut self,
        order: &[u32],
        ceiling: u64,
        known: Option<(usize, &Addresses)>,
    ) -> Option<Addresses> {
        let mut offsets = vec![u64::MAX; self.items.len()];
        let mut height = 0;
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let count = known.map_or(0, |known| known.0);
        for (&i, (_, known)) in order[..count].iter().zip(known.iter().cycle()) {
            offsets[i as usize] = known.offsets[i as usize];
            height = height.max(known.offsets[i as usize] + self.items[i as usize].size());
        }
        for &i in &order[count..] {
            let item = &self.items[i as usize];
            taken.clear();
            let mut looked = 1;
            for part in item.parts() {
                looked += self.index.conflicts(i, part, &offsets, &mut taken);
            }
            let offset = narrowest(&mut taken, self.alignment);
            height = height.max(offset + item.size());
            if self.spent(looked) || height > ceiling {
                return None;
            }
            offsets[i as usize] = offset;
        }
        Some(Addresses { offsets, height })
    }
}

/// Chooses a hole of at least `size` bytes among things that are there; gives its offset and position in `there`.
fn hole(there: &[(u64, u64, u32)], size: u64, dies: u32, choice: Choice, cap: u64) -> (u64, usize) {
    let mut best: Option<((u64, u64), u64, usize)> = None;
    let mut low = 0;
    for at in 0..=there.len() {
        let high = there.get(at).map_or(cap.max(low), |t| t.0);
        if high >= low && high - low >= size {
            let slack = high - low - size;
            let below = at.checked_sub(1).map_or(u64::MAX / 4, |b| u64::from(there[b].2.abs_diff(dies)));
            let above = there.get(at).map_or(u64::MAX / 4, |t| u64::from(t.2.abs_diff(dies)));
            // The pool's two ends are neighbours that never go: fit for what stays long, and better than none.
            let (score, offset) = match choice {
                Choice::Narrowest => ((slack, low), low),
                Choice::Lowest => ((low, 0), low),
                Choice::Companion if below <= above || at == there.len() => ((below, slack), low),
                Choice::Companion => ((above, slack), high - size),
            };
            if best.as_ref().is_none_or(|b| score < b.0) {
                best = Some((score, offset, at));
            }
        }
        low = there.get(at).map_or(low, |t| t.1);
    }
    best.map_or((low, there.len()), |(_, offset, at)| (offset, at))
}

/// The start of the narrowest hole left by ranges of offsets that an item may not have, each open at both ends
/// (given as first forbidden and first allowed again); the space above all counts as the widest.
fn narrowest(forbidden: &mut [(u64, u64)], alignment: u64) -> u64 {
    forbidden.sort_unstable_by_key(|range| range.0);
    let (mut free, mut best) = (0u64, None::<(u64, u64)>);
    for &(from, until) in forbidden.iter() {
        if from > free {
            let width = from - free;
            if best.is_none_or(|b| width < b.0) {
                best = Some((width, free));
            }
        }
        free = free.max(until.next_multiple_of(alignment));
    }
    best.map_or(free, |b| b.1)
}

/// Finds the blocks that share a slot with a given one.
struct Index {
    /// All blocks in order of their first slot.
    blocks: Vec<(Block, u32)>,
    /// By slot: the first block that begins then or later.
    begins: Vec<u32>,
    /// By every [`STRIDE`]th slot: the blocks that begin before it and end after it.
    across: Vec<Vec<u32>>,
}

const STRIDE: u32 = 32;

impl Index {
    fn new(items: &[Item]) -> Index {
        let mut blocks: Vec<(Block, u32)> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            blocks.extend(item.parts().iter().map(|b| (b.clone(), i as u32)));
        }
        blocks.sort_by_key(|(b, i)| (b.slots.start, *i));
        let end = items.iter().map(|i| i.hull.slots.end).max().unwrap_or_default();
        let begins =
            (0..=end).map(|slot| blocks.partition_point(|(b, _)| b.slots.start < slot) as u32).collect();
        let mut across = vec![Vec::new(); (end / STRIDE) as usize + 1];
        for (at, (block, _)) in blocks.iter().enumerate() {
            let first = block.slots.start / STRIDE + 1;
            let last = (block.slots.end - 1) / STRIDE;
            for stride in first..=last {
                across[stride as usize].push(at as u32);
            }
        }
        Index { blocks, begins, across }
    }

    /// Adds to `taken` the offsets that item `own` may not have because of its part `part` and the items placed so
    /// far (those whose offset is not `u64::MAX`). Gives how many blocks were looked at.
    fn conflicts(&self, own: u32, part: &Block, offsets: &[u64], taken: &mut Vec<(u64, u64)>) -> usize {
        let stride = part.slots.start / STRIDE;
        let from = self.begins[(stride * STRIDE) as usize];
        let until = self.begins[part.slots.end as usize];
        let across = &self.across[stride as usize];
        for at in across.iter().copied().chain(from..until) {
            let (block, item) = &self.blocks[at as usize];
            let offset = offsets[*item as usize];
            if offset == u64::MAX || *item == own || block.slots.end <= part.slots.start {
                continue;
            }
            // This part would begin below the block's end and end above its start.
            let first = (offset + block.bytes.start + 1).saturating_sub(part.bytes.end);
            let free = (offset + block.bytes.end).saturating_sub(part.bytes.start);
            if free > first {
                taken.push((first, free));
            }
        }
        across.len() + (until - from) as usize
    }
}
