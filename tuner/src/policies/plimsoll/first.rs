//! The first whole plan, in some milliseconds: what costs the fewest seconds a byte leaves the device until all fits.
//!
//! 1. *Order.* With everything kept, some ops need more than the pool. Of the values that lie across them, the one that is
//!    cheapest to recompute for its bytes is given up, then the next, until all fits: [`Pass::order`].
//! 2. *Split.* The link is free as long as it is not full, so only the first so many of that order are recomputed, and the
//!    rest is swapped, what is written first before what is written later: it has most time to leave and to return. How many
//!    is best is read off the evaluator at some ten points: [`Pass::split`].
//! 3. *Repair.* What recomputing itself needs is known once the decisions are walked through. Where it is too much, a short
//!    search ([`Annealer::improve`]) mends it, or more is given up at the ops concerned: [`Pass::repair`].
//! 4. *Addresses*, with little work, and some bytes of the pool left free for them from the start. Where they miss the pool,
//!    more are; last of all, everything is swapped that can be: [`plan`].
//!
//! This is the plan of a request whose time is up at once, and its decisions are one seed of the search of all others.
//!
//! What this file does not do: look at the clock. Its work is bounded by the size of the trace. It swaps whole values only,
//! recomputes none that the trace itself does not read again, and promises no plan: where it finds none, the others may.

use super::annealer::Annealer;
use super::anytime::unhurried;
use super::host::Host;
use super::problem::Problem;
use super::seeds::{cut_chains, swap_all};
use crate::decide::walk::{Iteration, Limit, Walk};
use crate::decide::windows::{Clock, Cost};
use crate::iteration::values::{Choice, Decisions, Gap, NONE, Values};
use crate::place::realise::{Fitting, Packing, Realised, Task};
use crate::range_max::RangeMax;
use crate::request::PlanError;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::{Duplex, Stream};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Into so many stretches the order is cut, whose ends are looked at as splits; and how often the stretch beside the best is
/// halved.
const STRETCHES: usize = 6;
const HALVINGS: usize = 3;

/// What is recomputed together may take such a part of the pool; none for as much as it takes.
const CHAINS: [Option<u64>; 4] = [None, Some(1), Some(2), Some(6)];

/// Splits beside the best are walked through, too: so many parts of the order away.
const BESIDE: [usize; 2] = [16, 6];

/// How often what recomputing needs is worked out and made up for.
const REPAIRS: usize = 10;

/// The evaluations of a short search: so many divided by the ops, at least and at most.
const EVALUATIONS: u64 = 250_000;
const FEWEST: u64 = 24;
const MOST: u64 = 1500;

/// What fits already, or was searched before, is given such a part of them.
const SHORTER: u64 = 6;

/// What a byte that does not fit costs, beside one that goes over the link.
const STRICTNESS: f64 = 8.0;

/// What is recomputed for a value is counted up to so many ops; where it takes more, it is not recomputed.
const CLOSURE: usize = 64;

/// Such parts of the pool are left free at every op for addresses, one after the other until there are some.
const FREE: [u64; 4] = [100, 20, 8, 4];

/// Looks for addresses: at least, and for each op.
const LOOKS: u64 = 100_000;
const LOOKS_PER_OP: u64 = 150;

/// So many times as many for what is surest to fit.
const SUREST: u64 = 10;

/// The first whole plan; none where this pass finds none.
///
/// # Errors
///
/// Those of a schedule that is not valid, which are faults of this crate.
pub(super) fn plan(task: &Task<'_>, values: &Values) -> Result<Option<Fitting>, PlanError> {
    let request = unhurried(task);
    let task = Task { request: &request, ..*task };
    let looks = LOOKS + LOOKS_PER_OP * task.trace.ops.len() as u64;
    let problem = Problem::new(&task, values);
    let mut pass = Pass::new(&problem);
    let mut packing = Packing::default();
    pass.leave(task.pool / FREE[0], &[]);
    let mut decisions = pass.choose();
    for free in FREE.iter().skip(1).map(Some).chain([None]) {
        let Some(found) = pass.improve(decisions.clone()) else { break };
        let (realised, excess) =
            task.realise_decisions(values, &found, &pass.margins, looks, &mut packing)?;
        if let Realised::Fits(fitting) = realised {
            return Ok(Some(fitting));
        }
        decisions = found;
        let Some(part) = free else { break };
        pass.leave(task.pool / part, &excess);
    }
    // What is surest to fit, with more work.
    let surest = if request.allow.swap && pass.host.is_none() { swap_all(values) } else { decisions };
    pass.margins.fill(0);
    if pass.needs(&surest).is_over() {
        return Ok(None);
    }
    let looks = SUREST * looks;
    let (realised, _) =
        task.realise_decisions(values, &surest, &pass.margins, looks, &mut Packing::default())?;
    Ok(if let Realised::Fits(fitting) = realised { Some(fitting) } else { None })
}

/// What the pass decides, as a seed for a search. It need not fit.
pub(super) fn decisions(problem: &Problem<'_>) -> Decisions {
    Pass::new(problem).choose()
}

struct Pass<'a> {
    problem: &'a Problem<'a>,
    clock: Clock,
    walk: Walk,
    /// The host, where not everything fits it.
    host: Option<Host>,
    /// By op: the bytes that are left free for addresses.
    margins: Vec<u64>,
    /// The gaps in which a value may leave the device, those that begin first first.
    open: Vec<u32>,
    /// Everything kept.
    keep: Decisions,
    /// The gaps whose values may be recomputed, the cheapest for their bytes first.
    order: Vec<u32>,
    /// So many of them are enough, what recomputing them needs apart.
    enough: usize,
    /// The best split that fits, and its seconds.
    fits: Option<Decisions>,
    fits_in: f64,
    /// For short searches, once there was one.
    annealer: Option<Annealer<'a>>,
}

/// How much of the order is recomputed, and which part of the pool may be what is recomputed together.
#[derive(Clone, Copy, Debug)]
struct Split {
    count: usize,
    chains: Option<u64>,
    /// Whether what is needless is kept after all.
    exact: bool,
}

/// The best so far.
struct Best {
    score: f64,
    split: Split,
    decisions: Decisions,
}

impl<'a> Pass<'a> {
    fn new(problem: &'a Problem<'a>) -> Pass<'a> {
        let Problem { task, values, .. } = *problem;
        let of = |g: &u32| &values.gaps[*g as usize];
        let is_open = |g: &u32| of(g).before != NONE && (of(g).swap || of(g).recompute);
        let mut open: Vec<u32> = (0..values.gaps.len() as u32).filter(is_open).collect();
        open.sort_by_key(|g| (of(g).after.wrapping_add(1), Reverse(of(g).before), *g));
        let (clock, keep) = (Clock::new(&task.request.link), values.keep_all());
        let (walk, margins, order) = (Walk::default(), vec![0; values.alternatives.len()], Vec::new());
        Pass {
            problem,
            clock,
            walk,
            host: Host::new(task, values),
            margins,
            open,
            keep,
            order,
            enough: 0,
            fits: None,
            fits_in: f64::INFINITY,
            annealer: None,
        }
    }

    /// What the split decides that takes least time: those that sums of seconds and bytes suggest are walked through.
    fn choose(&mut self) -> Decisions {
        let keep = self.keep.clone();
        let over = self.needs(&keep);
        if !over.is_over() {
            return keep;
        }
        self.find_order(over.clone());
        let count = self.balance(&over);
        let mut best =
            Best { score: f64::INFINITY, split: Split { count, chains: None, exact: true }, decisions: keep };
        for chains in CHAINS {
            self.try_split(&over, Split { count, chains, exact: true }, &mut best);
        }
        for part in BESIDE {
            let (at, step) = (best.split, self.enough / part);
            for count in [at.count.saturating_sub(step), (at.count + step).min(self.enough)] {
                if count != at.count {
                    self.try_split(&over, Split { count, ..at }, &mut best);
                }
            }
        }
        best.decisions
    }

    fn try_split(&mut self, over: &RangeMax, split: Split, best: &mut Best) {
        let decisions = self.split(over.clone(), split);
        self.needs(&decisions);
        let cost = self.clock.evaluate(&self.walk.course, self.problem.task.pool);
        let score = self.score(&cost);
        if cost.overflow == 0 && score < self.fits_in {
            (self.fits_in, self.fits) = (score, Some(decisions.clone()));
        }
        if score < best.score {
            *best = Best { score, split, decisions };
        }
    }

    /// A short search from decisions; where what it finds does not fit, more is given up. None where nothing fits, addresses
    /// apart.
    fn improve(&mut self, decisions: Decisions) -> Option<Decisions> {
        let fits = !self.needs(&decisions).is_over();
        let shorter = if fits || self.annealer.is_some() { SHORTER } else { 1 };
        let evaluations =
            (EVALUATIONS / self.problem.values.alternatives.len() as u64).clamp(FEWEST, MOST) / shorter;
        let annealer = self.annealer.get_or_insert_with(|| Annealer::new(self.problem));
        let found = annealer.improve(decisions, evaluations, &self.margins);
        if found.judged.cost.overflow == 0 {
            return Some(found.decisions);
        }
        // Nothing need be left free where nothing can be.
        let margins = std::mem::take(&mut self.margins);
        let (decisions, cost) = self.repair(found.decisions);
        self.margins = margins;
        if cost.overflow == 0 { Some(decisions) } else { self.fits.clone() }
    }

    /// How much of the order is best recomputed, as far as sums of seconds and bytes tell.
    fn balance(&self, over: &RangeMax) -> usize {
        let Problem { task, values, .. } = *self.problem;
        let link = &task.request.link;
        let (out, back) = (link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0);
        let fullest = over.argmax();
        let seconds = |op: usize| values.alternatives[op][0].seconds;
        let before: f64 = (0..=fullest).map(seconds).sum();
        let after: f64 = (fullest + 1..values.alternatives.len()).map(seconds).sum();
        let estimate = |count: usize| {
            let decisions = self.split(over.clone(), Split { count, chains: None, exact: false });
            let (mut again, mut moved) = (0.0, 0.0);
            for (gap, choice) in values.gaps.iter().zip(&decisions.choices) {
                match choice {
                    Choice::Swap => moved += values.bytes[gap.value as usize] as f64,
                    Choice::Recompute => {
                        again += seconds(values.maker[gap.value as usize] as usize);
                    }
                    Choice::Keep | Choice::RecomputeEach => {}
                }
            }
            let (out, back) = (moved / out, moved / back);
            let full = f64::max(before, out) + f64::max(after + again, back);
            if link.duplex == Duplex::Half { full.max(out + back) } else { full }
        };
        let mut best = (f64::INFINITY, 0);
        let mut try_one = |count: usize| {
            let estimate = estimate(count);
            if estimate < best.0 {
                best = (estimate, count);
            }
            best.1
        };
        let (len, mut at) = (self.enough, 0);
        for stretch in 0..=STRETCHES {
            at = try_one(len * stretch / STRETCHES);
        }
        let mut step = len / STRETCHES;
        for _ in 0..HALVINGS {
            step = step.div_ceil(2);
            try_one(at.saturating_sub(step));
            at = try_one((at + step).min(len));
        }
        at
    }

    /// What a plan of this cost is worth: its seconds, with what does not fit as if it went over the link many times.
    fn score(&self, cost: &Cost) -> f64 {
        let link = &self.problem.task.request.link;
        let slow = link.offload_bytes_per_second.0.min(link.prefetch_bytes_per_second.0);
        cost.seconds + STRICTNESS * cost.overflow as f64 / slow
    }

    /// Walks through the decisions: by op, how many bytes more than the pool it needs, what is recomputed for it included.
    fn needs(&mut self, decisions: &Decisions) -> RangeMax {
        let (Problem { task, values, .. }, margins) = (self.problem, &self.margins);
        let pool = task.pool;
        if !self.walk.go(Iteration { values, decisions, margins, pool }, Limit::NONE) {
            unreachable!("a walk ends only at its limit");
        }
        let mut needs = vec![0; values.alternatives.len()];
        for (slot, need) in self.walk.course.need.iter().enumerate().skip(1) {
            let of = &mut needs[self.walk.serves(slot as u32) as usize];
            *of = (*need).max(*of);
        }
        RangeMax::beyond(&needs, pool)
    }

    /// Finds what is recomputed if nothing is swapped, the cheapest for its bytes first, until all fits or nothing more helps.
    fn find_order(&mut self, mut over: RangeMax) {
        let mut decisions = self.keep.clone();
        let mut closure = Closure::new(self.problem.values);
        let mut heap: BinaryHeap<(Reverse<Dear>, Reverse<u32>)> = BinaryHeap::new();
        for &g in &self.open {
            let cost = closure.cost(&decisions, g);
            heap.extend(cost.map(|cost| (Reverse(Dear(cost)), Reverse(g))));
        }
        let mut needless = Vec::new();
        while let Some((Reverse(Dear(known)), Reverse(g))) = heap.pop() {
            let gap = self.problem.gap(g);
            if over.is_over() && over.max(across(gap)) <= 0 {
                needless.push((Reverse(Dear(known)), Reverse(g)));
                continue;
            }
            // What was given up since may have to be recomputed for it.
            let Some(cost) = closure.cost(&decisions, g) else { continue };
            if cost > known && heap.peek().is_some_and(|(Reverse(Dear(next)), _)| *next < cost) {
                heap.push((Reverse(Dear(cost)), Reverse(g)));
                continue;
            }
            decisions.choices[g as usize] = Choice::Recompute;
            self.order.push(g);
            if over.is_over() {
                over.add(across(gap), -self.bytes(g));
                self.enough = self.order.len();
                if !over.is_over() {
                    heap.extend(needless.drain(..));
                }
            }
        }
    }

    fn bytes(&self, g: u32) -> i64 {
        self.problem.bytes(g) as i64
    }

    /// Recomputes the first of the order; of the rest, what begins first is swapped, until all fits.
    fn split(&self, mut over: RangeMax, split: Split) -> Decisions {
        let recomputed = &self.order[..split.count];
        let mut decisions = self.keep.clone();
        recomputed.iter().for_each(|g| decisions.choices[*g as usize] = Choice::Recompute);
        if let Some(part) = split.chains {
            decisions = cut_chains(self.problem.values, decisions, self.problem.task.pool / part);
        }
        for g in recomputed.iter().filter(|g| decisions.choices[**g as usize] == Choice::Recompute) {
            over.add(across(self.problem.gap(*g)), -self.bytes(*g));
        }
        let mut taken = self.swap_more(&mut decisions, &mut over);
        if !self.problem.task.request.allow.swap || self.host.is_some() {
            taken.extend(self.recompute_more(&mut decisions, &mut over));
        }
        if !split.exact {
            return decisions;
        }
        // What was taken early may have become needless by what was taken later.
        for &g in taken.iter().chain(recomputed).rev() {
            let across = across(self.problem.gap(g));
            let choice = &mut decisions.choices[g as usize];
            if *choice != Choice::Keep && over.max(across.clone()) + self.bytes(g) <= 0 {
                *choice = Choice::Keep;
                over.add(across, self.bytes(g));
            }
        }
        decisions
    }

    /// Swaps what is kept across ops that need too much, what begins first before the rest. Gives the gaps.
    fn swap_more(&self, decisions: &mut Decisions, over: &mut RangeMax) -> Vec<u32> {
        self.give_up(&self.open, Choice::Swap, i64::MAX, decisions, over)
    }

    /// Recomputes what is kept across ops that need too much, the cheapest first. Gives the gaps.
    fn recompute_more(&self, decisions: &mut Decisions, over: &mut RangeMax) -> Vec<u32> {
        self.give_up(&self.order, Choice::Recompute, i64::MAX, decisions, over)
    }

    /// Decides what is kept in these gaps otherwise where it helps, as many bytes as `most`. Gives the gaps.
    fn give_up(
        &self,
        gaps: &[u32],
        to: Choice,
        mut most: i64,
        decisions: &mut Decisions,
        over: &mut RangeMax,
    ) -> Vec<u32> {
        let mut given_up = Vec::new();
        if to == Choice::Swap {
            most = most.min(self.room_on_host(decisions));
        }
        for &g in gaps {
            if !over.is_over() {
                break;
            }
            let (gap, choice) = (self.problem.gap(g), &mut decisions.choices[g as usize]);
            let of_use = to.is_open(gap) && *choice == Choice::Keep && self.bytes(g) <= most;
            if of_use && over.max(across(gap)) > 0 {
                most -= self.bytes(g);
                *choice = to;
                over.add(across(gap), -self.bytes(g));
                given_up.push(g);
            }
        }
        given_up
    }

    /// The bytes that the host has room for beside what is swapped.
    fn room_on_host(&self, decisions: &Decisions) -> i64 {
        let room = self.host.as_ref().map(|host| host.room(self.problem.values, decisions));
        room.and_then(|room| i64::try_from(room).ok()).unwrap_or(i64::MAX)
    }

    /// Gives up more where what is recomputed needs too much: by the link if it has time, else by recomputing. Where that
    /// does not help, swaps what would be recomputed.
    fn repair(&mut self, mut decisions: Decisions) -> (Decisions, Cost) {
        let mut over = self.needs(&decisions);
        for _ in 0..REPAIRS {
            if !over.is_over() {
                break;
            }
            let spare = self.spare_link();
            let by_link = self.give_up(&self.open, Choice::Swap, spare, &mut decisions, &mut over);
            let again = self.recompute_more(&mut decisions, &mut over);
            let more = self.swap_more(&mut decisions, &mut over);
            let mut changed = !(by_link.is_empty() && again.is_empty() && more.is_empty());
            if over.is_over() {
                changed |= self.recompute_less(&mut decisions, &over);
            }
            if !changed {
                break;
            }
            over = self.needs(&decisions);
        }
        let cost = self.clock.evaluate(&self.walk.course, self.problem.task.pool);
        (decisions, cost)
    }

    /// The bytes that the link could move each way beside the steps of the last walk, and does not.
    fn spare_link(&self) -> i64 {
        let link = &self.problem.task.request.link;
        let seconds = |stream, bytes| link.seconds(stream, Bytes(bytes)).0;
        let (mut out, mut back) = (0.0, 0.0);
        for piece in &self.walk.course.moves {
            out += if piece.offload { seconds(Stream::Offload, piece.bytes) } else { 0.0 };
            back += seconds(Stream::Prefetch, piece.bytes);
        }
        let (rates, half) = (
            (link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0),
            link.duplex == Duplex::Half,
        );
        let rate = if half { 1.0 / (1.0 / rates.0 + 1.0 / rates.1) } else { rates.0.min(rates.1) };
        let busy = if half { out + back } else { out.max(back) };
        ((self.walk.seconds - busy).max(0.0) * rate) as i64
    }

    /// At ops that still need too much, swaps what would be recomputed for them, or else recomputes it each time anew; if
    /// there is nothing, across them.
    fn recompute_less(&self, decisions: &mut Decisions, over: &RangeMax) -> bool {
        let (mut changed, mut room) = (false, self.room_on_host(decisions));
        for reach in [false, true] {
            for &g in &self.open {
                let (gap, choice) = (self.problem.gap(g), &mut decisions.choices[g as usize]);
                let end = across(gap).end;
                let ops = if reach { across(gap).start..end + 1 } else { end..end + 1 };
                if *choice == Choice::Recompute && over.max(ops) > 0 {
                    let swap = gap.swap && self.bytes(g) <= room;
                    room -= if swap { self.bytes(g) } else { 0 };
                    *choice = if swap { Choice::Swap } else { Choice::RecomputeEach };
                    changed = true;
                }
            }
            if changed {
                break;
            }
        }
        changed
    }

    /// Leaves so many bytes free at every op that does not need them itself, and more where addresses stood out of the pool.
    fn leave(&mut self, bytes: u64, excess: &[u64]) {
        let excess = excess.iter().copied().chain(std::iter::repeat(0));
        for ((margin, excess), spare) in self.margins.iter_mut().zip(excess).zip(self.problem.task.spare()) {
            *margin = bytes.max(margin.saturating_add(excess)).min(spare);
        }
    }
}

/// The ops during which nothing touches a gap's value.
fn across(gap: &Gap) -> Range<usize> {
    gap.after.wrapping_add(1) as usize..gap.before as usize
}

/// Seconds a byte, in order.
#[derive(Clone, Copy, PartialEq)]
struct Dear(f64);

impl Eq for Dear {}

impl PartialOrd for Dear {
    fn partial_cmp(&self, other: &Dear) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Dear {
    fn cmp(&self, other: &Dear) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What it takes to recompute a value: its maker, and what that reads and is gone, and so on.
struct Closure<'a> {
    values: &'a Values,
    /// By op: the last question of which it was part.
    part_of: Vec<u32>,
    question: u32,
    open: Vec<u32>,
}

impl<'a> Closure<'a> {
    fn new(values: &'a Values) -> Closure<'a> {
        Closure { values, part_of: vec![0; values.alternatives.len()], question: 0, open: Vec::new() }
    }

    /// The seconds a byte of recomputing the value of a gap at its end; none where that may not be, or takes very much.
    fn cost(&mut self, decisions: &Decisions, g: u32) -> Option<f64> {
        let values = self.values;
        let gap = &values.gaps[g as usize];
        if !gap.recompute {
            return None;
        }
        self.question += 1;
        self.open.clear();
        self.open.push(gap.value);
        let (mut seconds, mut ops) = (0.0, 0);
        while let Some(v) = self.open.pop() {
            let maker = values.maker[v as usize] as usize;
            if std::mem::replace(&mut self.part_of[maker], self.question) == self.question {
                continue;
            }
            seconds += values.alternatives[maker][0].seconds;
            ops += 1;
            if ops > CLOSURE {
                return None;
            }
            for z in values.reads.row(maker) {
                if is_gone(values, decisions, z.value, gap.before) {
                    self.open.push(z.value);
                }
            }
        }
        Some(seconds / values.bytes[gap.value as usize] as f64)
    }
}

/// Whether a value is nowhere when something is recomputed for an op, and that op does not read it itself.
fn is_gone(values: &Values, decisions: &Decisions, v: u32, op: u32) -> bool {
    let gaps = values.first_gap[v as usize] as usize..values.first_gap[v as usize + 1] as usize;
    // The last that begins before the op.
    let begun = values.gaps[gaps.clone()].partition_point(|gap| gap.after == NONE || gap.after < op);
    let Some(g) = (gaps.start + begun).checked_sub(1).filter(|g| *g >= gaps.start) else { return true };
    let gap = &values.gaps[g];
    // Updated in place since, or read by the op.
    let updated = gap.before < op;
    let again = matches!(decisions.choices[g], Choice::Recompute | Choice::RecomputeEach);
    updated || (again && gap.before != op)
}
