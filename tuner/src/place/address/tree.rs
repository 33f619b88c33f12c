//! A tree search for addresses within a limit, from the bottom of the pool up.
//!
//! # The tree
//!
//! If there are addresses within the limit at all, there are some in which nothing could lie lower. Listed by offset,
//! every item of such a solution lies on the pool's bottom or on items before it, and this search finds the list:
//! at each node it takes the item that can lie lowest, and either places it there, or *passes* it, for good as long as
//! this node lasts. (The names of the field, after Moffitt's "MiniMalloc", ASPLOS 2023: canonical solutions, a monotonic
//! floor, dynamic ordering by lowest offset, dominance, section inference, dynamic decomposition.)
//!
//! - An item that was passed must come to lie on another one that is still to be placed: the lowest top of those it
//!   meets is a bound for it, and if there are none, the node has failed. This is what makes the search small.
//! - Nothing can be placed at or above the place where another item, placed or passed, would end: that one could move
//!   below it.
//! - In every section, the lowest bound of what is still to be placed there, and its bytes, are at most the limit.
//! - Once no item joins two halves in time, each is searched on its own, and failing in one is failing in both.
//!
//! Which of the items goes first at equal offset decides between milliseconds and never. So the search starts again and
//! again, with more work now and then (Luby's sequence), and with orders that put those items first whose sections
//! failed most often before.
//!
//! What this file does not do: deal well with items that have holes. Such an item rests on the lowest byte that it has
//! in each section, and the search may miss solutions.

use super::sections::{Part, Problem, largest_problem, problems};
use super::{Addresses, Effort, Item, most_alive, padded};
use crate::random::Random;

/// Problems with more items are not searched: their trees are too deep to recover from an early mistake.
const MOST_ITEMS: usize = 600;

/// The work of the shortest try.
const TRY: u64 = 1_000_000;

/// All problems that the items fall into, each with what was found.
pub(super) struct Forest<'a> {
    items: &'a [Item],
    limit: u64,
    trees: Vec<(Problem, Progress)>,
    hopeless: bool,
}

/// What is known of one problem, and what earlier tries have told.
struct Progress {
    meetings: Vec<Vec<Meeting>>,
    alignment: Vec<u64>,
    round: u64,
    /// By section: how often it failed, with earlier rounds counting less.
    failures: Vec<f64>,
    offsets: Option<Vec<u64>>,
}

impl<'a> Forest<'a> {
    pub fn new(items: &'a [Item], alignment: u64, limit: u64) -> Forest<'a> {
        if most_alive(items) > limit || largest_problem(items) > MOST_ITEMS {
            return Forest { items, limit, trees: Vec::new(), hopeless: true };
        }
        let trees = problems(items).into_iter().map(|problem| {
            let failures = vec![1.0; problem.sections.len()];
            let alignment = problem.shapes.iter().map(|s| items[s.item as usize].alignment(alignment));
            let (alignment, meetings) = (alignment.collect(), meetings(&problem));
            (problem, Progress { meetings, alignment, round: 0, failures, offsets: None })
        });
        Forest { items, limit, trees: trees.collect(), hopeless: false }
    }

    /// Goes on with tries that are no longer than the effort; gives addresses once every problem is solved.
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
                let all: Vec<u32> = (0..problem.shapes.len() as u32).collect();
                let end = if tree.all_fit() { tree.solve(&all, (0, 0)) } else { End::Failed };
                self.hopeless |= end == End::Failed;
                let Tree { failures, lowest, effort: rest, .. } = tree;
                progress.learn(&failures);
                progress.offsets = (end == End::Solved).then_some(lowest);
                effort.put_back(rest);
            }
        }
        let mut found = Addresses { offsets: vec![0; self.items.len()], ..Addresses::default() };
        for (problem, progress) in &self.trees {
            for (shape, offset) in problem.shapes.iter().zip(progress.offsets.iter().flatten()) {
                found.offsets[shape.item as usize] = *offset;
                found.height = found.height.max(offset + shape.size);
            }
        }
        Some(found)
    }
}

impl Progress {
    fn learn(&mut self, failures: &[f64]) {
        let most = failures.iter().fold(1.0, |most: f64, f| most.max(*f));
        for (known, new) in self.failures.iter_mut().zip(failures) {
            *known = *known * 0.7 + new / most;
        }
    }
}

/// The place of every shape in an order: by length of life, or by its fullest section; from the fourth round on by the
/// section that failed most, and with some noise.
fn ranks(problem: &Problem, progress: &Progress, random: &mut Random) -> Vec<u32> {
    let bytes = |parts: &[Part]| parts.iter().map(Part::bytes).sum::<u64>() as f64;
    let full: Vec<f64> = problem.sections.iter().map(|section| bytes(section)).collect();
    let first = progress.round < 3;
    let kind = if first { progress.round as usize } else { random.below(3) };
    let power = if first { 1e4 } else { [3.0, 10.0][random.below(2)] };
    let noise = if first { 0.0 } else { 0.6 };
    let scores = problem.shapes.iter().map(|shape| {
        let of = if first { &full } else { &progress.failures };
        let of = shape.parts.iter().map(|part| of[part.of as usize]);
        let section = if first { of.fold(0.0, f64::max) } else { of.sum() };
        let (life, area) = ((shape.parts.len() as f64).ln(), bytes(&shape.parts).ln());
        let chance = noise * random.unit();
        match kind {
            0 => 100.0 * (life + chance) + area,
            1 => power * section.ln() + area + chance,
            _ => power * section.ln() + life + 1e-3 * area + chance,
        }
    });
    let scores: Vec<f64> = scores.collect();
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b)));
    let mut ranks = vec![0; order.len()];
    for (rank, i) in order.iter().enumerate() {
        ranks[*i as usize] = rank as u32;
    }
    ranks
}

/// 1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8, ...; `i` counts from 1.
fn luby(mut i: u64) -> u64 {
    loop {
        let power = (i + 1).next_power_of_two();
        if power == i + 1 {
            return power / 2;
        }
        i -= power / 2 - 1;
    }
}

/// How a part of the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Solved,
    Failed,
    Spent,
}

/// Another shape that meets one.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    shape: u32,
    /// If this one lies on the other, its offset is at least the other's and so many bytes.
    on: u64,
    /// The same for the other, if it lies on this one.
    under: u64,
}

struct Tree<'a, 'e> {
    problem: &'a Problem,
    ranks: &'a [u32],
    alignment: &'a [u64],
    limit: u64,
    effort: Effort<'e>,
    meetings: &'a [Vec<Meeting>],
    /// By shape: the lowest offset above all that is placed and meets it.
    sky: Vec<u64>,
    /// By shape: a bound for its offset, which is more than `sky` where it was passed. The offset once it is placed.
    lowest: Vec<u64>,
    placed: Vec<bool>,
    /// By section: the bytes that are still to be placed.
    left: Vec<u64>,
    /// By section: the lowest byte that any of them can have, and the shape that can.
    floor: Vec<(u64, u32)>,
    /// By section: shapes still to be placed that are in this one and a later one.
    crossing: Vec<u32>,
    /// What was placed, and what `sky`, `lowest` and `floor` were before they changed.
    stack: Vec<u32>,
    trail: Vec<(u32, u64, u64)>,
    floors: Vec<(u32, (u64, u32))>,
    failures: Vec<f64>,
}

const NONE: u32 = u32::MAX;

impl<'a, 'e> Tree<'a, 'e> {
    fn new(
        problem: &'a Problem,
        progress: &'a Progress,
        ranks: &'a [u32],
        limit: u64,
        effort: Effort<'e>,
    ) -> Tree<'a, 'e> {
        let (count, sections) = (problem.shapes.len(), problem.sections.len());
        let mut crossing = vec![0; sections];
        for shape in &problem.shapes {
            crossing[shape.first() as usize..shape.last() as usize].iter_mut().for_each(|c| *c += 1);
        }
        let left = problem.sections.iter().map(|s| s.iter().map(Part::bytes).sum()).collect();
        let (stack, trail, floors) = Default::default();
        Tree {
            problem,
            ranks,
            limit,
            effort,
            meetings: &progress.meetings,
            alignment: &progress.alignment,
            sky: vec![0; count],
            lowest: vec![0; count],
            placed: vec![false; count],
            left,
            floor: vec![(0, NONE); sections],
            crossing,
            stack,
            trail,
            floors,
            failures: vec![0.0; sections],
        }
    }

    /// Works out all floors; no if a section can't be within the limit.
    fn all_fit(&mut self) -> bool {
        (0..self.problem.sections.len()).all(|section| self.fits(section))
    }

    /// Places all of a component, whose shapes come after `last` in the order of offset and rank.
    fn solve(&mut self, component: &[u32], mut last: (u64, u32)) -> End {
        let start = (self.trail.len(), self.floors.len());
        loop {
            self.effort.spend(component.len() as u64);
            if self.effort.spent() {
                return End::Spent;
            }
            let Some((offset, rank, shape)) = self.choose(component, last) else { break };
            let marks = (self.trail.len(), self.floors.len());
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

    /// The next shape that can be placed: the lowest, if it begins below where any could end.
    fn choose(&self, component: &[u32], last: (u64, u32)) -> Option<(u64, u32, u32)> {
        let mut top = u64::MAX;
        let mut best: Option<(u64, u32, u32)> = None;
        for &shape in component {
            let i = shape as usize;
            let here = (self.sky[i], self.ranks[i], shape);
            top = top.min(here.0 + self.problem.shapes[i].size);
            let open = self.lowest[i] == here.0 && (here.0, here.1) >= last;
            if open && best.is_none_or(|best| here < best) {
                best = Some(here);
            }
        }
        best.filter(|best| best.0 < top)
    }

    /// Searches what is left of a component after `shape` was placed, cut where nothing joins it any more.
    fn solve_rest(&mut self, component: &[u32], shape: u32, last: (u64, u32)) -> End {
        let problem = self.problem;
        let rest = component.iter().copied().filter(|i| *i != shape);
        let placed = &problem.shapes[shape as usize];
        let cuts: Vec<u32> =
            (placed.first()..placed.last()).filter(|s| self.crossing[*s as usize] == 0).collect();
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); cuts.len() + 1];
        if cuts.is_empty() {
            groups[0].reserve_exact(component.len());
        }
        for i in rest {
            let first = problem.shapes[i as usize].first();
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

    /// Places a shape as low as it can lie; no if that can't be within the limit.
    fn place(&mut self, shape: u32) -> bool {
        let problem = self.problem;
        let offset = self.sky[shape as usize];
        let this = &problem.shapes[shape as usize];
        self.placed[shape as usize] = true;
        self.stack.push(shape);
        for part in &this.parts {
            self.left[part.of as usize] -= part.bytes();
        }
        for section in this.first()..this.last() {
            self.crossing[section as usize] -= 1;
        }
        if offset + this.size > self.limit {
            return false;
        }
        let from = self.trail.len();
        self.effort.spend(self.meetings[shape as usize].len() as u64);
        for meeting in &self.meetings[shape as usize] {
            let other = meeting.shape as usize;
            let sky = padded(offset + meeting.under, self.alignment[other]);
            if !self.placed[other] && self.sky[other] < sky {
                self.trail.push((meeting.shape, self.sky[other], self.lowest[other]));
                self.sky[other] = sky;
                self.lowest[other] = self.lowest[other].max(sky);
            }
        }
        self.refresh(shape) && (from..self.trail.len()).all(|at| self.refresh(self.trail[at].0))
    }

    /// Works out the floors of the sections where it was this shape's; no if one can't be within the limit.
    fn refresh(&mut self, shape: u32) -> bool {
        let problem = self.problem;
        let mut parts = problem.shapes[shape as usize].parts.iter();
        parts.all(|part| self.floor[part.of as usize].1 != shape || self.fits(part.of as usize))
    }

    /// Works out the floor of a section; no if it can't be within the limit.
    fn fits(&mut self, section: usize) -> bool {
        let problem = self.problem;
        let parts = problem.sections[section].iter().filter(|part| !self.placed[part.of as usize]);
        let floor = parts.map(|part| (self.lowest[part.of as usize] + part.low, part.of)).min_by_key(|f| f.0);
        self.effort.spend(problem.sections[section].len() as u64);
        self.floors.push((section as u32, self.floor[section]));
        self.floor[section] = floor.unwrap_or((0, NONE));
        let fits = self.floor[section].0 + self.left[section] <= self.limit;
        self.failures[section] += f64::from(u8::from(!fits));
        fits
    }

    /// Raises the bound of a shape that does not lie on what is there now: it will lie on something that comes at
    /// `last` or above. No if that can't be.
    fn pass(&mut self, shape: u32, last: u64) -> bool {
        let i = shape as usize;
        self.effort.spend(self.meetings[i].len() as u64);
        let others = self.meetings[i].iter().filter(|m| m.on > 0 && !self.placed[m.shape as usize]);
        let lowest = others.map(|m| self.lowest[m.shape as usize].max(last) + m.on).min();
        let Some(lowest) = lowest.map(|lowest| padded(lowest, self.alignment[i])) else { return false };
        if lowest <= self.lowest[i] {
            return true;
        }
        self.trail.push((shape, self.sky[i], self.lowest[i]));
        self.lowest[i] = lowest;
        self.refresh(shape)
    }

    /// Raises the bounds of what was passed and now is below `last` again.
    fn keep_up(&mut self, component: &[u32], last: u64) -> bool {
        component.iter().all(|&shape| {
            let i = shape as usize;
            self.placed[i] || self.lowest[i] >= last || self.pass(shape, last)
        })
    }

    /// Takes back a shape and all that was placed after it.
    fn take_back(&mut self, shape: u32, marks: (usize, usize)) {
        self.unwind(marks);
        let problem = self.problem;
        while let Some(top) = self.stack.pop() {
            self.placed[top as usize] = false;
            let this = &problem.shapes[top as usize];
            for part in &this.parts {
                self.left[part.of as usize] += part.bytes();
            }
            for section in this.first()..this.last() {
                self.crossing[section as usize] += 1;
            }
            if top == shape {
                break;
            }
        }
    }

    fn unwind(&mut self, (trail, floors): (usize, usize)) {
        for (shape, sky, lowest) in self.trail.drain(trail..).rev() {
            (self.sky[shape as usize], self.lowest[shape as usize]) = (sky, lowest);
        }
        for (section, floor) in self.floors.drain(floors..).rev() {
            self.floor[section as usize] = floor;
        }
    }
}

fn meetings(problem: &Problem) -> Vec<Vec<Meeting>> {
    let mut all: Vec<Vec<Meeting>> = vec![Vec::new(); problem.shapes.len()];
    let mut seen = vec![NONE; problem.shapes.len()];
    for (i, shape) in problem.shapes.iter().enumerate() {
        for part in &shape.parts {
            for other in problem.sections[part.of as usize].iter().filter(|other| other.of != i as u32) {
                if seen[other.of as usize] == NONE {
                    seen[other.of as usize] = all[i].len() as u32;
                    all[i].push(Meeting { shape: other.of, on: 0, under: 0 });
                }
                let meeting = &mut all[i][seen[other.of as usize] as usize];
                meeting.on = meeting.on.max(other.high.saturating_sub(part.low));
                meeting.under = meeting.under.max(part.high.saturating_sub(other.low));
            }
        }
        all[i].iter().for_each(|meeting| seen[meeting.shape as usize] = NONE);
    }
    all
}
