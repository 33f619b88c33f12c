//! A tree search for addresses within a limit, from the bottom of the pool up.
//!
//! # The tree
//!
//! If there are addresses within the limit at all, there are some in which no item could lie lower. Listed by offset, every item
//! of such a solution lies on the pool's bottom or on items before it, and this search finds the list: at each node it takes the
//! item that can lie lowest, and either places it there, or *passes* it, for the rest of this node. (The names of the field,
//! after Moffitt's "MiniMalloc", ASPLOS 2023: canonical solutions, a monotonic floor, dynamic ordering by lowest offset,
//! dominance, section inference, dynamic decomposition.)
//!
//! - A passed item must lie on an item that is still to be placed: the lowest top of those it meets is a bound for it, and if
//!   there are none, the node has failed. This keeps the search small.
//! - Nothing can be placed at or above the end of a different item, placed or passed: that item could move below it.
//! - In every section, the lowest bound of the items still to be placed there, plus their bytes, is at most the limit.
//! - Once no item joins two halves in time, each is searched separately, and failing in one is failing in both.
//!
//! The order of items at equal offset decides between milliseconds and never. Therefore the search restarts repeatedly, with more
//! work now and then (Luby's sequence), and with orders that put those items first whose sections failed most often before.
//!
//! This file deliberately does not handle items with holes well. Such an item rests on its lowest byte in each section, and the
//! search may miss solutions.

use super::sections::{Part, Problem, SectionId, Shape, ShapeId, largest_problem, problems};
use super::{Addresses, Effort, Item, ItemId, most_alive, padded};
use crate::numbers::{counted, real};
use crate::random::Random;
use plimsoll_ir::Bytes;
use typed_index_collections::{TiSlice, TiVec};

/// Maximum number of items of a searched problem: larger trees are too deep to recover from an early mistake.
const MOST_ITEMS: usize = 600;

/// Work of the shortest try.
const TRY: u64 = 1_000_000;

/// Independent problems of the items, each with its result.
pub(super) struct Forest<'a> {
    items: &'a TiSlice<ItemId, Item>,
    limit: u64,
    trees: Vec<(Problem, Progress)>,
    hopeless: bool,
}

/// State of one problem, with the lessons of earlier tries.
struct Progress {
    meetings: TiVec<ShapeId, Vec<Meeting>>,
    alignment: TiVec<ShapeId, u64>,
    round: u64,
    /// By section: number of failures, with earlier rounds counting less.
    failures: TiVec<SectionId, f64>,
    offsets: Option<TiVec<ShapeId, u64>>,
}

impl<'a> Forest<'a> {
    /// Returns a search for addresses below a limit.
    pub fn new(items: &'a TiSlice<ItemId, Item>, alignment: u64, limit: u64) -> Forest<'a> {
        if most_alive(items) > limit || largest_problem(items) > MOST_ITEMS {
            return Forest { items, limit, trees: Vec::new(), hopeless: true };
        }
        let trees = problems(items).into_iter().map(|problem| {
            let failures = vec![1.0; problem.sections.len()].into();
            let alignment = problem.shapes.iter().map(|s| items[s.item].alignment(alignment));
            let (alignment, meetings) = (alignment.collect(), meetings(&problem));
            (problem, Progress { meetings, alignment, round: 0, failures, offsets: None })
        });
        Forest { items, limit, trees: trees.collect(), hopeless: false }
    }

    /// Continues with tries that are no longer than the effort; returns addresses once every problem is solved.
    pub fn search(&mut self, random: &mut Random, effort: &mut Effort<'_>) -> Option<Addresses> {
        if self.hopeless {
            return None;
        }
        for (problem, progress) in &mut self.trees {
            while progress.offsets.is_none() {
                let work = TRY * luby(progress.round / 3 + 1);
                if self.hopeless || effort.left < work {
                    return None;
                }
                let ranks = ranks(problem, progress, random);
                progress.round += 1;
                let slice = effort.slice(work);
                let mut tree = Tree::new(problem, progress, &ranks, self.limit, slice);
                let all: Vec<ShapeId> = problem.shapes.keys().collect();
                let end = if tree.all_fit() { tree.solve(&all, (0, 0)) } else { End::Failed };
                self.hopeless |= end == End::Failed;
                let Tree { shapes, sections, effort: rest, .. } = tree;
                progress.learn(&sections.failures);
                progress.offsets = (end == End::Solved).then_some(shapes.lowest);
                effort.put_back(rest);
            }
        }
        let mut found = Addresses { offsets: vec![0; self.items.len()].into(), ..Addresses::default() };
        for (problem, progress) in &self.trees {
            for (shape, offset) in problem.shapes.iter().zip(progress.offsets.iter().flatten()) {
                found.offsets[shape.item] = *offset;
                found.height = found.height.max(offset + shape.size);
            }
        }
        Some(found)
    }
}

impl Progress {
    fn learn(&mut self, failures: &TiSlice<SectionId, f64>) {
        let most = failures.iter().fold(1.0, |most: f64, f| most.max(*f));
        for (known, new) in self.failures.iter_mut().zip(failures) {
            *known = *known * 0.7 + new / most;
        }
    }
}

/// Returns the rank of every shape in an order: by length of life, or by its fullest section; from the fourth round on by the
/// section that failed most, and with some noise.
fn ranks(problem: &Problem, progress: &Progress, random: &mut Random) -> TiVec<ShapeId, u32> {
    let full: TiVec<SectionId, f64> = problem.sections.iter().map(|section| bytes(section)).collect();
    let first = progress.round < 3;
    let kind = if first { progress.round } else { counted(random.below(3)) };
    let power = if first { 1e4 } else { [3.0, 10.0][random.below(2)] };
    let noise = if first { 0.0 } else { 0.6 };
    let scores = problem.shapes.iter().map(|shape| {
        let of = if first { &full } else { &progress.failures };
        let of = shape.parts.iter().map(|part| of[part.of]);
        let section = if first { of.fold(0.0, f64::max) } else { of.sum() };
        let (life, area) = (real(shape.parts.len()).ln(), bytes(&shape.parts).ln());
        let chance = noise * random.unit();
        match kind {
            0 => 100.0 * (life + chance) + area,
            1 => power * section.ln() + area + chance,
            _ => power * section.ln() + life + 1e-3 * area + chance,
        }
    });
    let scores: TiVec<ShapeId, f64> = scores.collect();
    let mut order: Vec<ShapeId> = scores.keys().collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let mut ranks: TiVec<ShapeId, u32> = vec![0; order.len()].into();
    (0..).zip(order).for_each(|(rank, shape)| ranks[shape] = rank);
    ranks
}

/// Returns the bytes of some parts.
fn bytes<Of>(parts: &[Part<Of>]) -> f64 {
    Bytes(parts.iter().map(Part::bytes).sum()).to_f64()
}

/// Luby's sequence: 1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8, ...; `i` counts from 1.
fn luby(mut i: u64) -> u64 {
    loop {
        let power = (i + 1).next_power_of_two();
        if power == i + 1 {
            return power / 2;
        }
        i -= power / 2 - 1;
    }
}

/// Result of a part of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Solved,
    Failed,
    Spent,
}

/// A shape that meets this one.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    shape: ShapeId,
    /// If this one lies on the other, its offset is at least the other's plus this many bytes.
    on: u64,
    /// The same for the other, if it lies on this one.
    under: u64,
}

struct Tree<'a, 'e> {
    problem: &'a Problem,
    ranks: &'a TiSlice<ShapeId, u32>,
    alignment: &'a TiSlice<ShapeId, u64>,
    meetings: &'a TiSlice<ShapeId, Vec<Meeting>>,
    limit: u64,
    effort: Effort<'e>,
    shapes: Shapes,
    sections: Sections,
    changes: Changes,
}

/// State of the shapes, each by shape.
struct Shapes {
    /// Lowest offset above all placed shapes that meet it.
    sky: TiVec<ShapeId, u64>,
    /// Bound for its offset, which is more than `sky` if it was passed; its offset once it is placed.
    lowest: TiVec<ShapeId, u64>,
    placed: TiVec<ShapeId, bool>,
}

/// State of the sections, each by section.
struct Sections {
    /// Bytes still to be placed.
    left: TiVec<SectionId, u64>,
    floor: TiVec<SectionId, Floor>,
    /// Shapes still to be placed that are in this one and the next.
    crossing: TiVec<SectionId, u32>,
    failures: TiVec<SectionId, f64>,
}

/// Lowest possible byte of any shape that is still to be placed in a section, and that shape.
#[derive(Clone, Copy, Debug, Default)]
struct Floor {
    byte: u64,
    /// `None` if nothing is still to be placed.
    shape: Option<ShapeId>,
}

/// Placed shapes, and the values of `sky`, `lowest` and `floor` before they changed.
#[derive(Default)]
struct Changes {
    placed: Vec<ShapeId>,
    bounds: Vec<(ShapeId, u64, u64)>,
    floors: Vec<(SectionId, Floor)>,
}

impl<'a, 'e> Tree<'a, 'e> {
    fn new(
        problem: &'a Problem,
        progress: &'a Progress,
        ranks: &'a TiSlice<ShapeId, u32>,
        limit: u64,
        effort: Effort<'e>,
    ) -> Tree<'a, 'e> {
        let (count, sections) = (problem.shapes.len(), problem.sections.len());
        let mut crossing: TiVec<SectionId, u32> = vec![0; sections].into();
        for shape in &problem.shapes {
            crossing[shape.crosses()].iter_mut().for_each(|c| *c += 1);
        }
        let left = problem.sections.iter().map(|s| s.iter().map(Part::bytes).sum()).collect();
        Tree {
            problem,
            ranks,
            limit,
            effort,
            meetings: &progress.meetings,
            alignment: &progress.alignment,
            shapes: Shapes {
                sky: vec![0; count].into(),
                lowest: vec![0; count].into(),
                placed: vec![false; count].into(),
            },
            sections: Sections {
                left,
                floor: vec![Floor::default(); sections].into(),
                crossing,
                failures: vec![0.0; sections].into(),
            },
            changes: Changes::default(),
        }
    }

    /// Computes all floors; `false` if a section can't be within the limit.
    fn all_fit(&mut self) -> bool {
        self.problem.sections.keys().all(|section| self.fits(section))
    }

    /// Places all shapes of a component that come after `last` in the order of offset and rank.
    fn solve(&mut self, component: &[ShapeId], mut last: (u64, u32)) -> End {
        let start = self.changes.now();
        loop {
            self.effort.spend(counted(component.len()));
            if self.effort.spent() {
                return End::Spent;
            }
            let Some((offset, rank, shape)) = self.choose(component, last) else { break };
            let marks = self.changes.now();
            if self.place(shape) && self.keep_up(component, offset) {
                let end = self.solve_rest(component, shape, (offset, rank + 1));
                if end != End::Failed {
                    return end;
                }
            }
            self.take_back(shape, marks);
            if !self.pass(shape, offset) {
                break;
            }
            last = (offset, rank + 1);
        }
        self.unwind(start);
        End::Failed
    }

    /// Returns the next shape that can be placed: the lowest, if it begins below the possible end of any other.
    fn choose(&self, component: &[ShapeId], last: (u64, u32)) -> Option<(u64, u32, ShapeId)> {
        let mut top = u64::MAX;
        let mut best: Option<(u64, u32, ShapeId)> = None;
        for &shape in component {
            let here = (self.shapes.sky[shape], self.ranks[shape], shape);
            top = top.min(here.0 + self.problem.shapes[shape].size);
            let open = self.shapes.lowest[shape] == here.0 && (here.0, here.1) >= last;
            if open && best.is_none_or(|best| here < best) {
                best = Some(here);
            }
        }
        best.filter(|best| best.0 < top)
    }

    /// Searches the rest of a component after `shape` was placed, split where nothing joins it any more.
    fn solve_rest(&mut self, component: &[ShapeId], shape: ShapeId, last: (u64, u32)) -> End {
        let problem = self.problem;
        let rest = component.iter().copied().filter(|i| *i != shape);
        let crossed = SectionId::each(problem.shapes[shape].crosses());
        let cuts: Vec<SectionId> = crossed.filter(|s| self.sections.crossing[*s] == 0).collect();
        let mut groups: Vec<Vec<ShapeId>> = vec![Vec::new(); cuts.len() + 1];
        if cuts.is_empty() {
            groups[0].reserve_exact(component.len());
        }
        for i in rest {
            let first = problem.shapes[i].first();
            groups[cuts.partition_point(|cut| *cut < first)].push(i);
        }
        groups.retain(|group| !group.is_empty());
        groups.sort_by_key(Vec::len);
        for group in groups {
            let end = self.solve(&group, last);
            if end != End::Solved {
                return end;
            }
        }
        End::Solved
    }

    /// Places a shape as low as possible; `false` if that can't be within the limit.
    fn place(&mut self, shape: ShapeId) -> bool {
        let problem = self.problem;
        let Shapes { sky, lowest, placed } = &mut self.shapes;
        let offset = sky[shape];
        let this = &problem.shapes[shape];
        placed[shape] = true;
        self.changes.placed.push(shape);
        for part in &this.parts {
            self.sections.left[part.of] -= part.bytes();
        }
        self.sections.crossing[this.crosses()].iter_mut().for_each(|crossing| *crossing -= 1);
        if offset + this.size > self.limit {
            return false;
        }
        let from = self.changes.bounds.len();
        self.effort.spend(counted(self.meetings[shape].len()));
        for meeting in &self.meetings[shape] {
            let other = meeting.shape;
            let above = padded(offset + meeting.under, self.alignment[other]);
            if !placed[other] && sky[other] < above {
                self.changes.bounds.push((other, sky[other], lowest[other]));
                sky[other] = above;
                lowest[other] = lowest[other].max(above);
            }
        }
        let raised = from..self.changes.bounds.len();
        self.refresh(shape) && { raised }.all(|at| self.refresh(self.changes.bounds[at].0))
    }

    /// Updates the floors of the sections where this shape defined it; `false` if one can't be within the limit.
    fn refresh(&mut self, shape: ShapeId) -> bool {
        let problem = self.problem;
        let mut parts = problem.shapes[shape].parts.iter();
        parts.all(|part| self.sections.floor[part.of].shape != Some(shape) || self.fits(part.of))
    }

    /// Computes the floor of a section; `false` if it can't be within the limit.
    fn fits(&mut self, section: SectionId) -> bool {
        let (parts, Shapes { lowest, placed, .. }) = (&self.problem.sections[section], &self.shapes);
        let open = parts.iter().filter(|part| !placed[part.of]);
        let floor = open.map(|part| Floor { byte: lowest[part.of] + part.low, shape: Some(part.of) });
        let floor = floor.min_by_key(|floor| floor.byte).unwrap_or_default();
        self.effort.spend(counted(parts.len()));
        let Sections { left, floor: known, failures, .. } = &mut self.sections;
        self.changes.floors.push((section, std::mem::replace(&mut known[section], floor)));
        let fits = floor.byte + left[section] <= self.limit;
        failures[section] += f64::from(u8::from(!fits));
        fits
    }

    /// Raises the bound of a shape that does not lie on the shapes placed so far: it will lie on one placed at `last` or above.
    /// `false` if that can't be.
    fn pass(&mut self, shape: ShapeId, last: u64) -> bool {
        let Shapes { sky, lowest, placed } = &mut self.shapes;
        let meetings = &self.meetings[shape];
        self.effort.spend(counted(meetings.len()));
        let others = meetings.iter().filter(|m| m.on > 0 && !placed[m.shape]);
        let bound = others.map(|m| lowest[m.shape].max(last) + m.on).min();
        let Some(bound) = bound.map(|bound| padded(bound, self.alignment[shape])) else { return false };
        if bound <= lowest[shape] {
            return true;
        }
        self.changes.bounds.push((shape, sky[shape], lowest[shape]));
        lowest[shape] = bound;
        self.refresh(shape)
    }

    /// Raises the bounds of passed shapes that now are below `last` again.
    fn keep_up(&mut self, component: &[ShapeId], last: u64) -> bool {
        component.iter().all(|&shape| {
            self.shapes.placed[shape] || self.shapes.lowest[shape] >= last || self.pass(shape, last)
        })
    }

    /// Removes a shape and all that was placed after it.
    fn take_back(&mut self, shape: ShapeId, marks: (usize, usize)) {
        self.unwind(marks);
        let problem = self.problem;
        while let Some(top) = self.changes.placed.pop() {
            self.shapes.placed[top] = false;
            let this = &problem.shapes[top];
            for part in &this.parts {
                self.sections.left[part.of] += part.bytes();
            }
            self.sections.crossing[this.crosses()].iter_mut().for_each(|crossing| *crossing += 1);
            if top == shape {
                break;
            }
        }
    }

    fn unwind(&mut self, (bounds, floors): (usize, usize)) {
        for (shape, sky, lowest) in self.changes.bounds.drain(bounds..).rev() {
            (self.shapes.sky[shape], self.shapes.lowest[shape]) = (sky, lowest);
        }
        for (section, floor) in self.changes.floors.drain(floors..).rev() {
            self.sections.floor[section] = floor;
        }
    }
}

impl Changes {
    /// Returns the number of changed bounds and floors.
    fn now(&self) -> (usize, usize) {
        (self.bounds.len(), self.floors.len())
    }
}

fn meetings(problem: &Problem) -> TiVec<ShapeId, Vec<Meeting>> {
    // By shape: its position in the current list, if it is there.
    let mut seen: TiVec<ShapeId, Option<usize>> = vec![None; problem.shapes.len()].into();
    let mut of = |(this, shape): (ShapeId, &Shape)| {
        let mut meetings: Vec<Meeting> = Vec::new();
        for part in &shape.parts {
            for other in problem.sections[part.of].iter().filter(|other| other.of != this) {
                let at = *seen[other.of].get_or_insert(meetings.len());
                if at == meetings.len() {
                    meetings.push(Meeting { shape: other.of, on: 0, under: 0 });
                }
                let meeting = &mut meetings[at];
                meeting.on = meeting.on.max(other.high.saturating_sub(part.low));
                meeting.under = meeting.under.max(part.high.saturating_sub(other.low));
            }
        }
        meetings.iter().for_each(|meeting| seen[meeting.shape] = None);
        meetings
    };
    problem.shapes.iter_enumerated().map(&mut of).collect()
}
