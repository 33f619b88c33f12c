//! The first complete plan, in some milliseconds: values that cost the fewest seconds per byte leave the device until everything
//! fits.
//!
//! 1. *Order.* With everything kept, some ops need more than the pool. Of the values that lie across them, the cheapest to
//!    recompute for its bytes is given up, then the next, until everything fits: [`Pass::order`].
//! 2. *Split.* The link costs nothing as long as it is not full, so only a first part of that order is recomputed, and the rest
//!    is swapped. Values written first are swapped first: they have the most time to leave and to return. The evaluator is
//!    sampled at some ten points to find the best split: [`Pass::split`].
//! 3. *Repair.* The memory that recomputing itself needs is known only after a walk through the decisions. If it is too much, a
//!    short search ([`Annealer::improve`]) mends it, or more is given up at the ops concerned: [`Pass::repair`].
//! 4. *Addresses*, with little work, and some bytes of the pool left free for them from the start. If they miss the pool, more
//!    bytes are left free; as a last resort, every value that can be swapped is swapped: [`plan`].
//!
//! This is the plan of a request whose time is up at once. For all other requests, its decisions are one seed of the search.
//!
//! Decisions of an earlier plan replace steps 1 and 2: they are mended until they fit, and values for which there is room are
//! kept ([`Pass::mend`]).
//!
//! This file deliberately ignores the clock. Its work is bounded by the size of the trace. It swaps only whole values, recomputes
//! none that the trace itself does not read again, and guarantees no plan: if it finds none, the other searches may.

use super::annealer::Annealer;
use super::anytime::unhurried;
use super::host::Host;
use super::problem::Problem;
use super::seeds::{cut_chains, swap_all};
use crate::decide::walk::{Iteration, Limit, Walk};
use crate::decide::windows::Clock;
use crate::iteration::values::{Choice, Decisions, Gap, GapId, ValueId, Values};
use crate::numbers::counted;
use crate::place::realise::{Case, Fitting, Packing, Realised};
use crate::range_max::RangeMax;
use crate::request::Error;
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::{Bytes, BytesPerSecond, OpId, Seconds};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

/// Number of stretches into which the order is cut, whose ends are tried as splits; and the number of times that the stretch next
/// to the best is halved.
const STRETCHES: usize = 6;
const HALVINGS: usize = 3;

/// Part of the pool, as a divisor, for values that are recomputed together; `None` means unlimited.
const CHAINS: [Option<u64>; 4] = [None, Some(1), Some(2), Some(6)];

/// Splits near the best that are also walked through: distances, as divisors of the number that is enough.
const BESIDE: [usize; 2] = [16, 6];

/// Maximum number of times that the needs of recomputing are computed and compensated.
const REPAIRS: usize = 10;

/// Shares of the recomputed values that are swapped instead, or the other way round, when decisions are mended.
const SHARES: [f64; 5] = [0.05, 0.15, 0.3, 0.5, 0.8];

/// Evaluations of a short search: this number divided by the ops, with a minimum and a maximum.
const EVALUATIONS: u64 = 250_000;
const FEWEST: u64 = 24;
const MOST: u64 = 1500;

/// Share of these, as a divisor, for decisions that already fit or were searched before.
const SHORTER: u64 = 6;

/// Share for mended decisions, as a divisor.
const MENDED: u64 = 1;

/// Cost of an excess byte, compared with a byte that crosses the link.
const STRICTNESS: f64 = 8.0;

/// Maximum number of ops that are counted to recompute a value; a value that takes more is not recomputed.
const CLOSURE: usize = 64;

/// Parts of the pool, as divisors, that are left free at every op for addresses, in turn until there are some.
const FREE: [u64; 4] = [100, 20, 8, 4];

/// Looks for addresses: minimum, and per op.
const LOOKS: u64 = 100_000;
const LOOKS_PER_OP: u64 = 150;

/// Factor on the looks for the decisions most likely to fit.
const SUREST: u64 = 10;

/// Starting point of a further search: decisions that have addresses, and the way these were found.
pub(super) struct GoOn {
    pub decisions: Decisions,
    /// By op: bytes left free for addresses.
    pub margins: TiVec<OpId, u64>,
    /// Order in which items were placed.
    pub packing: Packing,
}

/// Complete plan, with a starting point for a further search.
pub(super) struct Placed {
    pub fitting: Fitting,
    pub from: GoOn,
}

/// Returns the first complete plan, or one from decisions that were `made` for something else; `None` if this pass finds none.
///
/// # Errors
///
/// Errors of an invalid schedule, which are bugs in this crate.
pub(super) fn plan(
    case: &Case<'_>,
    values: &Values,
    made: Option<Decisions>,
) -> Result<Option<Placed>, Error> {
    let request = unhurried(case);
    let case = Case { request: &request, ..*case };
    let looks = LOOKS + LOOKS_PER_OP * counted(case.trace.ops.len());
    let problem = Problem::new(&case, values);
    let mut pass = Pass::new(&problem);
    let mut packing = Packing::default();
    pass.leave(case.pool / FREE[0], TiSlice::from_ref(&[]));
    let mut decisions = match made {
        Some(decisions) => pass.mend(decisions),
        None => pass.choose(),
    };
    for free in FREE.iter().skip(1).map(Some).chain([None]) {
        let Some(found) = pass.improve(decisions.clone()) else { break };
        let (realised, excess) =
            case.realise_decisions(values, &found, &pass.margins, looks, &mut packing)?;
        if let Realised::Fits(fitting) = realised {
            let from = GoOn { decisions: found, margins: pass.margins, packing };
            return Ok(Some(Placed { fitting, from }));
        }
        decisions = found;
        let Some(part) = free else { break };
        pass.leave(case.pool / part, &excess);
    }
    // The decisions most likely to fit, with more work.
    let surest = if request.allow.swap && pass.host.is_none() { swap_all(values) } else { decisions };
    pass.margins.fill(0);
    if pass.needs(&surest).is_over() {
        return Ok(None);
    }
    let looks = SUREST * looks;
    let mut packing = Packing::default();
    let (realised, _) = case.realise_decisions(values, &surest, &pass.margins, looks, &mut packing)?;
    let Realised::Fits(fitting) = realised else { return Ok(None) };
    let from = GoOn { decisions: surest, margins: pass.margins, packing };
    Ok(Some(Placed { fitting, from }))
}

/// Returns the decisions of the pass, as a seed for a search. They need not fit.
pub(super) fn decisions(problem: &Problem<'_>) -> Decisions {
    Pass::new(problem).choose()
}

struct Pass<'a> {
    problem: &'a Problem<'a>,
    clock: Clock,
    walk: Walk,
    /// Host, if not everything fits it.
    host: Option<Host>,
    /// By op: bytes left free for addresses.
    margins: TiVec<OpId, u64>,
    /// Gaps between two touches in which a value may leave the device, in order of their beginning.
    open: Vec<GapId>,
    /// Decisions that keep everything.
    keep: Decisions,
    /// Gaps whose values may be recomputed, the cheapest for their bytes first.
    order: Vec<GapId>,
    /// Number of these that suffices, apart from the needs of recomputing.
    enough: usize,
    /// Score of the best split that fits, and the split.
    fits: (f64, Option<Decisions>),
    /// Share of the evaluations, as a divisor, for a short search from decisions that fit.
    shorter: u64,
    /// Annealer of short searches, once there was one.
    annealer: Option<Annealer<'a>>,
}

/// Share of the order that is recomputed, and the part of the pool for values that are recomputed together.
#[derive(Clone, Copy, Debug)]
struct Split {
    count: usize,
    chains: Option<u64>,
    /// `true` if values that need not leave are kept after all.
    exact: bool,
}

/// Best decisions so far.
struct Best {
    score: f64,
    split: Split,
    decisions: Decisions,
}

impl<'a> Pass<'a> {
    fn new(problem: &'a Problem<'a>) -> Pass<'a> {
        let Problem { case, values, .. } = *problem;
        let of = |g: &GapId| &values.gaps[*g];
        let is_open = |g: &GapId| of(g).before.is_some() && (of(g).swap || of(g).recompute);
        let mut open: Vec<GapId> = values.gaps.keys().filter(is_open).collect();
        open.sort_by_key(|g| (of(g).begin(), Reverse(of(g).before), *g));
        let (clock, keep) = (Clock::new(&case.request.link), values.keep_all());
        let (walk, margins, order) = (Walk::default(), vec![0; values.alternatives.len()].into(), Vec::new());
        Pass {
            problem,
            clock,
            walk,
            host: Host::new(case, values),
            margins,
            open,
            keep,
            order,
            enough: 0,
            fits: (f64::INFINITY, None),
            shorter: SHORTER,
            annealer: None,
        }
    }

    /// Returns the decisions of the fastest split: splits that sums of seconds and bytes suggest are walked through.
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

    /// Mends decisions that were made for something else: gives up more until everything fits, then keeps values that need not
    /// leave, and swaps other shares of the rest. Tries both fewer recomputed ops and fewer swapped values, and both the decided
    /// alternatives of ops and their fastest.
    fn mend(&mut self, decisions: Decisions) -> Decisions {
        self.shorter = MENDED;
        let keep = self.keep.clone();
        let over = self.needs(&keep);
        if !over.is_over() {
            return keep;
        }
        self.find_order(over);
        let (decisions, _) = self.repair(decisions);
        let alternatives = [decisions.alternatives.clone(), keep.alternatives];
        let mut best = (f64::INFINITY, decisions.clone());
        for alternatives in alternatives {
            for first in [Choice::Swap, Choice::Recompute] {
                let mut tried = Decisions { alternatives: alternatives.clone(), ..decisions.clone() };
                self.keep_more(&mut tried, first);
                self.try_decisions(&tried, &mut best);
            }
        }
        let kept = best.1.clone();
        for to in [Choice::Swap, Choice::Recompute] {
            for share in SHARES {
                let mut tried = kept.clone();
                self.turn(&mut tried, to, share);
                self.try_decisions(&tried, &mut best);
            }
        }
        best.1
    }

    /// Accepts decisions that are better than the best.
    fn try_decisions(&mut self, decisions: &Decisions, best: &mut (f64, Decisions)) {
        let (score, _) = self.judge(decisions);
        if score < best.0 {
            *best = (score, decisions.clone());
        }
    }

    /// Swaps a share of the recomputed values, those that begin first first: they have the most time to leave and to return. Or
    /// recomputes a share of the swapped values, those that begin last first.
    fn turn(&self, decisions: &mut Decisions, to: Choice, share: f64) {
        let turns = |g: &&GapId| {
            let choice = decisions.choices[**g];
            choice != Choice::Keep && (choice == Choice::Swap) != (to == Choice::Swap)
        };
        let mut turned: Vec<GapId> = self.open.iter().filter(turns).copied().collect();
        turned.retain(|g| to.is_open(self.problem.gap(*g)));
        let mut left = turned.iter().map(|g| Bytes(self.problem.bytes(*g))).sum::<Bytes>().share(share).0;
        if to == Choice::Swap {
            left = left.min(self.room_on_host(decisions));
        } else {
            turned.reverse();
        }
        for g in turned {
            let bytes = self.problem.bytes(g);
            if bytes <= left {
                left -= bytes;
                decisions.choices[g] = to;
                decisions.set_early(g, None);
            }
        }
    }

    /// Keeps values for which there is room: those with choice `first` before the rest, and of these the most expensive for their
    /// bytes first.
    fn keep_more(&mut self, decisions: &mut Decisions, first: Choice) {
        let mut over = self.needs(decisions);
        let mut closure = Closure::new(self.problem.values);
        let mut given_up: Vec<(bool, Reverse<u64>, GapId)> = Vec::new();
        for &g in self.open.iter().filter(|g| decisions.choices[**g] != Choice::Keep) {
            let swapped = decisions.choices[g] == Choice::Swap;
            let cost = if swapped { Some(0) } else { closure.cost(decisions, g) };
            given_up.push((
                swapped != (first == Choice::Swap),
                Reverse(cost.unwrap_or(f64::INFINITY.to_bits())),
                g,
            ));
        }
        given_up.sort_unstable();
        for (_, _, g) in given_up {
            let (across, bytes) = (across(self.problem.gap(g)), self.problem.bytes(g));
            if over.has_room(across.clone(), bytes) {
                decisions.choices[g] = Choice::Keep;
                decisions.set_early(g, None);
                over.add(across, bytes);
            }
        }
    }

    fn try_split(&mut self, over: &RangeMax<OpId>, split: Split, best: &mut Best) {
        let decisions = self.split(over.clone(), split);
        let (score, fits) = self.judge(&decisions);
        if fits && score < self.fits.0 {
            self.fits = (score, Some(decisions.clone()));
        }
        if score < best.score {
            *best = Best { score, split, decisions };
        }
    }

    /// Runs a short search from decisions; if its result does not fit, gives up more. `None` if nothing fits, apart from
    /// addresses.
    fn improve(&mut self, decisions: Decisions) -> Option<Decisions> {
        let fits = !self.needs(&decisions).is_over();
        let shorter = if fits || self.annealer.is_some() { self.shorter } else { 1 };
        let evaluations =
            (EVALUATIONS / counted(self.problem.values.alternatives.len())).clamp(FEWEST, MOST) / shorter;
        let annealer = self.annealer.get_or_insert_with(|| Annealer::new(self.problem));
        let found = annealer.improve(decisions, evaluations, &self.margins);
        if found.judged.cost.overflow == 0 {
            return Some(found.decisions);
        }
        // No bytes need be left free if none can be.
        let margins = std::mem::take(&mut self.margins);
        let (decisions, fits) = self.repair(found.decisions);
        self.margins = margins;
        if fits { Some(decisions) } else { self.fits.1.clone() }
    }

    /// Returns the best amount of the order to recompute, estimated from sums of seconds and bytes.
    fn balance(&self, over: &RangeMax<OpId>) -> usize {
        let Problem { case, values, .. } = *self.problem;
        let link = &case.request.link;
        let (out, back) = (link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0);
        let fullest = over.argmax();
        let seconds = |op: OpId| values.alternatives[op][0].seconds;
        let (before, after): (Vec<OpId>, Vec<OpId>) =
            values.alternatives.keys().partition(|op| *op <= fullest);
        let [before, after] = [before, after].map(|ops| ops.into_iter().map(seconds).sum::<f64>());
        let estimate = |count: usize| {
            let decisions = self.split(over.clone(), Split { count, chains: None, exact: false });
            let (mut again, mut moved) = (0.0, 0.0);
            for (gap, choice) in values.gaps.iter().zip(&decisions.choices) {
                match choice {
                    Choice::Swap => moved += Bytes(values.bytes[gap.value]).to_f64(),
                    Choice::Recompute => again += values.maker[gap.value].map_or(0.0, seconds),
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

    /// Returns the score of decisions (their seconds, with excess bytes counted as if they crossed the link many times), and `true`
    /// if they fit.
    fn judge(&mut self, decisions: &Decisions) -> (f64, bool) {
        self.needs(decisions);
        let cost = self.clock.evaluate(&self.walk.course, self.problem.case.pool);
        let link = &self.problem.case.request.link;
        let slow = link.offload_bytes_per_second.0.min(link.prefetch_bytes_per_second.0);
        (cost.seconds + STRICTNESS * Bytes(cost.overflow).to_f64() / slow, cost.overflow == 0)
    }

    /// Walks through the decisions. Returns by op the bytes that it needs beyond the pool, including those of values recomputed
    /// for it.
    fn needs(&mut self, decisions: &Decisions) -> RangeMax<OpId> {
        let (Problem { case, values, .. }, margins) = (self.problem, &self.margins);
        let pool = case.pool;
        if !self.walk.go(Iteration { values, decisions, margins, pool }, Limit::NONE) {
            unreachable!("a walk ends only at its limit");
        }
        let mut needs: TiVec<OpId, u64> = vec![0; values.alternatives.len()].into();
        for (slot, need) in self.walk.course.need.iter_enumerated().skip(1) {
            let of = &mut needs[self.walk.serves(slot)];
            *of = (*need).max(*of);
        }
        RangeMax::beyond(&needs, pool)
    }

    /// Finds the values to recompute if nothing is swapped, the cheapest for its bytes first, until everything fits or nothing
    /// more helps.
    fn find_order(&mut self, mut over: RangeMax<OpId>) {
        let mut decisions = self.keep.clone();
        let mut closure = Closure::new(self.problem.values);
        let mut heap: BinaryHeap<Reverse<(u64, GapId)>> = BinaryHeap::new();
        for &g in &self.open {
            let cost = closure.cost(&decisions, g);
            heap.extend(cost.map(|cost| Reverse((cost, g))));
        }
        let mut needless = Vec::new();
        while let Some(Reverse((known, g))) = heap.pop() {
            let gap = self.problem.gap(g);
            if over.is_over() && !over.is_over_in(across(gap)) {
                needless.push(Reverse((known, g)));
                continue;
            }
            // Values given up since may have to be recomputed for it.
            let Some(cost) = closure.cost(&decisions, g) else { continue };
            if cost > known && heap.peek().is_some_and(|Reverse((next, _))| *next < cost) {
                heap.push(Reverse((cost, g)));
                continue;
            }
            decisions.choices[g] = Choice::Recompute;
            self.order.push(g);
            if over.is_over() {
                over.take(across(gap), self.problem.bytes(g));
                self.enough = self.order.len();
                if !over.is_over() {
                    heap.extend(needless.drain(..));
                }
            }
        }
    }

    /// Recomputes the first part of the order; swaps the rest, those that begin first first, until everything fits.
    fn split(&self, mut over: RangeMax<OpId>, split: Split) -> Decisions {
        let recomputed = &self.order[..split.count];
        let mut decisions = self.keep.clone();
        recomputed.iter().for_each(|g| decisions.choices[*g] = Choice::Recompute);
        if let Some(part) = split.chains {
            decisions = cut_chains(self.problem.values, decisions, self.problem.case.pool / part);
        }
        for g in recomputed.iter().filter(|g| decisions.choices[**g] == Choice::Recompute) {
            over.take(across(self.problem.gap(*g)), self.problem.bytes(*g));
        }
        let mut taken = self.give_up(&self.open, Choice::Swap, u64::MAX, &mut decisions, &mut over);
        if !self.problem.case.request.allow.swap || self.host.is_some() {
            taken.extend(self.give_up(&self.order, Choice::Recompute, u64::MAX, &mut decisions, &mut over));
        }
        if !split.exact {
            return decisions;
        }
        // Values taken early may have become needless because of later ones.
        for &g in taken.iter().chain(recomputed).rev() {
            let (across, bytes) = (across(self.problem.gap(g)), self.problem.bytes(g));
            let choice = &mut decisions.choices[g];
            if *choice != Choice::Keep && over.has_room(across.clone(), bytes) {
                *choice = Choice::Keep;
                over.add(across, bytes);
            }
        }
        decisions
    }

    /// Changes the choice of kept values in these gaps if it helps, up to `most` bytes. Returns the gaps.
    fn give_up(
        &self,
        gaps: &[GapId],
        to: Choice,
        mut most: u64,
        decisions: &mut Decisions,
        over: &mut RangeMax<OpId>,
    ) -> Vec<GapId> {
        let mut given_up = Vec::new();
        if to == Choice::Swap {
            most = most.min(self.room_on_host(decisions));
        }
        for &g in gaps {
            if !over.is_over() {
                break;
            }
            let (gap, choice, bytes) =
                (self.problem.gap(g), &mut decisions.choices[g], self.problem.bytes(g));
            let of_use = to.is_open(gap) && *choice == Choice::Keep && bytes <= most;
            if of_use && over.is_over_in(across(gap)) {
                most -= bytes;
                *choice = to;
                over.take(across(gap), bytes);
                given_up.push(g);
            }
        }
        given_up
    }

    /// Returns the host bytes left next to the swapped values.
    fn room_on_host(&self, decisions: &Decisions) -> u64 {
        self.host.as_ref().map_or(u64::MAX, |host| host.room(self.problem.values, decisions))
    }

    /// Gives up more if the recomputed values need too much: by the link if it has time, else by recomputing. If that does not
    /// help, swaps values that would be recomputed. Also returns `true` if the result fits.
    fn repair(&mut self, mut decisions: Decisions) -> (Decisions, bool) {
        let mut over = self.needs(&decisions);
        for _ in 0..REPAIRS {
            if !over.is_over() {
                break;
            }
            let spare = self.spare_link();
            let by_link = self.give_up(&self.open, Choice::Swap, spare, &mut decisions, &mut over);
            let again = self.give_up(&self.order, Choice::Recompute, u64::MAX, &mut decisions, &mut over);
            let more = self.give_up(&self.open, Choice::Swap, u64::MAX, &mut decisions, &mut over);
            let mut changed = !(by_link.is_empty() && again.is_empty() && more.is_empty());
            if over.is_over() {
                changed |= self.recompute_less(&mut decisions, &over);
            }
            if !changed {
                break;
            }
            over = self.needs(&decisions);
        }
        (decisions, self.clock.evaluate(&self.walk.course, self.problem.case.pool).overflow == 0)
    }

    /// Returns the bytes that the link could move each way during the steps of the last walk, and does not.
    fn spare_link(&self) -> u64 {
        let link = &self.problem.case.request.link;
        let (out, back) = (link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0);
        let rate = if link.duplex == Duplex::Half { 1.0 / (1.0 / out + 1.0 / back) } else { out.min(back) };
        let busy = self.problem.case.moving(&self.walk.course);
        (Seconds((self.walk.seconds - busy).max(0.0)) * BytesPerSecond(rate)).0
    }

    /// At ops that still need too much, swaps values that would be recomputed for them, or else recomputes them each time anew;
    /// if there are none, across the ops.
    fn recompute_less(&self, decisions: &mut Decisions, over: &RangeMax<OpId>) -> bool {
        let (mut changed, mut room) = (false, self.room_on_host(decisions));
        for reach in [false, true] {
            for &g in &self.open {
                let (gap, choice, bytes) =
                    (self.problem.gap(g), &mut decisions.choices[g], self.problem.bytes(g));
                let Range { start, end } = across(gap);
                let ops = if reach { start..end.next() } else { end..end.next() };
                if *choice == Choice::Recompute && over.is_over_in(ops) {
                    let swap = gap.swap && bytes <= room;
                    room -= if swap { bytes } else { 0 };
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

    /// Leaves this many bytes free at every op that does not need them itself, and more if addresses exceeded the pool there.
    fn leave(&mut self, bytes: u64, excess: &TiSlice<OpId, u64>) {
        let excess = excess.iter().copied().chain(std::iter::repeat(0));
        for ((margin, excess), spare) in self.margins.iter_mut().zip(excess).zip(self.problem.case.spare()) {
            *margin = bytes.max(margin.saturating_add(excess)).min(spare);
        }
    }
}

/// Returns the ops during which nothing touches the value of a gap between two touches.
fn across(gap: &Gap) -> Range<OpId> {
    gap.begin()..gap.before.expect("a gap that is open here ends with a touch")
}

/// Ops needed to recompute a value: its maker, the makers of that op's missing inputs, and so on.
struct Closure<'a> {
    values: &'a Values,
    /// By op: the last query that it was part of.
    part_of: TiVec<OpId, u32>,
    question: u32,
    open: Vec<ValueId>,
}

impl<'a> Closure<'a> {
    fn new(values: &'a Values) -> Closure<'a> {
        Closure { values, part_of: vec![0; values.alternatives.len()].into(), question: 0, open: Vec::new() }
    }

    /// Returns the seconds per byte of recomputing the value of a gap at its end, as the bits of a float that is not negative,
    /// which are in its order; `None` if that is not permitted, or takes too much.
    fn cost(&mut self, decisions: &Decisions, g: GapId) -> Option<u64> {
        let values = self.values;
        let gap = &values.gaps[g];
        let end = gap.before.filter(|_| gap.recompute)?;
        self.question += 1;
        self.open.clear();
        self.open.push(gap.value);
        let (mut seconds, mut ops) = (0.0, 0);
        while let Some(v) = self.open.pop() {
            let maker = values.maker[v].expect("what is there from the start is never recomputed");
            if std::mem::replace(&mut self.part_of[maker], self.question) == self.question {
                continue;
            }
            seconds += values.alternatives[maker][0].seconds;
            ops += 1;
            if ops > CLOSURE {
                return None;
            }
            for z in values.reads.row(maker) {
                if is_gone(values, decisions, z.value, end) {
                    self.open.push(z.value);
                }
            }
        }
        Some((seconds / Bytes(values.bytes[gap.value]).to_f64()).to_bits())
    }
}

/// Returns `true` if a value is absent when something is recomputed for an op, and that op does not read it itself.
fn is_gone(values: &Values, decisions: &Decisions, v: ValueId, op: OpId) -> bool {
    let Some(g) = values.gap_before(v, op) else { return true };
    let before = values.gaps[g].before;
    // Updated in place since, or read by the op.
    let updated = before.is_some_and(|before| before < op);
    updated || (decisions.recomputes(g) && before != Some(op))
}
