//! The planner of this house, as it stands: which gaps to swap so that the iteration takes least time within the budget.
//!
//! 1. *Seeds.* For several orders of the gaps (earliest use first, latest next use first, longest, largest), gaps are
//!    swapped until every slot fits, and those that turn out needless are kept again.
//! 2. *Search.* From the best seed: one gap changes, or one is exchanged for another, or a run of neighbours changes;
//!    what is better is taken, what is slightly worse with falling probability (simulated annealing). Judged by
//!    [`crate::windows`]: seconds, bytes that do not fit, and as a tie-break bytes moved.
//! 3. *Addresses.* The result is realised. Where holes in the pool cost time, the search runs again for a pool that is
//!    smaller by a little, and the fastest schedule counts.
//!
//! The plans of `keep`, `naive` and `accudnn` compete with it, so none of them is ever better. Deterministic for a seed;
//! bounded by a number of evaluations, and by the caller's deadline.
//!
//! What it does not do yet: recompute, order transfers otherwise than by use, choose slower kernels for their smaller
//! workspace where the fast one fits.

use super::{accudnn, keep, naive};
use crate::address::ALIGNMENT;
use crate::gaps::{Gaps, Ways};
use crate::plan::{Outcome, PlanError, Status};
use crate::random::Random;
use crate::realise::{Attempt, FULL, GIVEN, LIGHT, Realised, Task};
use crate::windows::{Clock, Cost};
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::{Bytes, Seconds, TensorId};
use std::cmp::Reverse;

/// The shares of the pool that are planned for, until addresses fit.
const POOLS: [f64; 8] = [1.0, 0.996, 0.99, 0.98, 0.96, 0.92, 0.84, 0.7];

/// Into how many pieces a tensor is cut at most.
const MOST_PIECES: u64 = 8;

pub(crate) fn decide(task: &Task<'_>) -> Result<Outcome, PlanError> {
    let mut best = Best { task, best: None, short: None };
    let mut late = false;
    for policy in [keep, naive::realise, accudnn::realise] {
        best.offer(policy(task)?);
        late |= task.request.limits.is_expired();
        if late || best.optimal() {
            break;
        }
    }
    if !best.optimal() && !late {
        late = search_all(task, &mut best)?;
    }
    if best.best.is_none() {
        // Everything that can leave does.
        let gaps = Gaps::new(task.trace, Bytes(task.pool), Ways::BesideOwn, &|_| 1);
        best.offer(task.realise(&gaps, &vec![true; gaps.gaps.len()], &GIVEN)?);
    }
    let status = if late { Status::OutOfTime } else { Status::Feasible };
    match (best.best, best.short) {
        (Some(found), _) | (None, Some(found)) => Ok(task.outcome(found, status)),
        (None, None) => unreachable!("keep was offered"),
    }
}

/// The best realised so far.
struct Best<'a> {
    task: &'a Task<'a>,
    best: Option<Realised>,
    short: Option<Realised>,
}

impl Best<'_> {
    fn seconds(&self) -> f64 {
        match &self.best {
            Some(Realised::Fits { makespan, .. }) => makespan.0,
            _ => f64::INFINITY,
        }
    }

    fn optimal(&self) -> bool {
        self.best.is_some() && self.seconds() <= self.task.bound.0 * (1.0 + 1e-9)
    }

    fn offer(&mut self, found: Realised) {
        let key = |r: &Realised| match r {
            Realised::Fits { makespan, moved, .. } => (makespan.0, *moved),
            Realised::Short(witness) => (f64::INFINITY, witness.needs.0),
        };
        let place = if matches!(found, Realised::Fits { .. }) { &mut self.best } else { &mut self.short };
        if place.as_ref().is_none_or(|best| key(&found) < key(best)) {
            *place = Some(found);
        }
    }
}

/// Tells whether time was up before the search was done.
fn search_all(task: &Task<'_>, best: &mut Best<'_>) -> Result<bool, PlanError> {
    let gaps = Gaps::new(task.trace, Bytes(task.pool), Ways::BesideOwn, &pieces(task));
    let evaluations = task.request.limits.evaluations.unwrap_or_else(|| suggested(&gaps));
    let mut search = Search::new(task, &gaps, evaluations);
    for share in POOLS {
        let pool = (task.pool as f64 * share) as u64;
        if share < 1.0 && search.floor > pool {
            break;
        }
        let (swapped, cost) = search.run(pool.min(task.pool));
        // A smaller pool is not faster; what it costs is known before addresses are.
        if best.best.is_some() && cost.seconds >= best.seconds() * (1.0 - 1e-9) {
            break;
        }
        let attempt = |tighten, work| Attempt { pool: share, tighten, work, alignment: ALIGNMENT };
        best.offer(task.realise(&gaps, &swapped, &[attempt(0.5, LIGHT), attempt(1.0, FULL)])?);
        if search.late || best.optimal() || best.seconds() <= cost.seconds * (1.0 + 1e-6) {
            break;
        }
    }
    Ok(search.late)
}

/// Evaluations that keep planning within a second for some 500 ops and within twenty for 10,000.
fn suggested(gaps: &Gaps) -> u64 {
    let size = (gaps.base.len() + gaps.gaps.len()) as u64;
    (30_000_000 / size).clamp(500, 20_000)
}

/// Into how many pieces each tensor is cut: so many that each is small beside what the budget leaves for choices.
fn pieces<'a>(task: &'a Task<'_>) -> impl Fn(TensorId) -> u32 + 'a {
    let Task { trace, pool, request, .. } = *task;
    let floor = trace.memory().floor().map_or(Bytes::ZERO, |f| f.1).saturating_sub(trace.resident_bytes);
    // The part of the budget that is not needed at every peak of the layer-wise memory.
    let grain = (pool.saturating_sub(floor.0)).max(pool / 16) / 4;
    move |tensor| {
        let bytes = trace.tensors[tensor.index()].bytes.0;
        if request.allow.pieces { bytes.div_ceil(grain.max(1)).clamp(1, MOST_PIECES) as u32 } else { 1 }
    }
}

struct Search<'a> {
    task: &'a Task<'a>,
    gaps: &'a Gaps,
    clock: Clock<'a>,
    random: Random,
    /// Evaluations of the first run; a third of them for each that follows.
    evaluations: u64,
    /// The pool that swapping everything needs.
    floor: u64,
    /// Gaps that are worth a thought, in order of their first slot.
    worthy: Vec<u32>,
    /// The solution of the last run.
    last: Option<Vec<bool>>,
    late: bool,
}

impl<'a> Search<'a> {
    fn new(task: &'a Task<'a>, gaps: &'a Gaps, evaluations: u64) -> Search<'a> {
        let floor = gaps.least(&vec![true; gaps.gaps.len()]).into_iter().max().unwrap_or_default();
        let mut worthy: Vec<u32> = (0..gaps.gaps.len() as u32).collect();
        // Dust is left where it is if that can be afforded: it moves no memory and costs commands.
        let dust = task.pool / 20_000;
        let coarse: Vec<bool> = gaps.gaps.iter().map(|g| g.bytes > dust).collect();
        let coarse_floor = gaps.least(&coarse).into_iter().max().unwrap_or_default();
        if coarse_floor <= floor + (task.pool.saturating_sub(floor)) / 50 {
            worthy.retain(|g| coarse[*g as usize]);
        }
        worthy.sort_by_key(|g| (gaps.gaps[*g as usize].after, *g));
        let clock = Clock::new(gaps, &task.request.link);
        let random = Random::new(task.request.seed);
        Search { task, gaps, clock, random, evaluations, floor, worthy, last: None, late: false }
    }

    /// The best set of gaps found for a pool of so many bytes.
    fn run(&mut self, pool: u64) -> (Vec<bool>, Cost) {
        let mut best: Option<(f64, Vec<bool>, Cost)> = None;
        let mut seeds = self.seeds(pool);
        // A run that follows another begins near its end.
        let share = if self.last.is_some() { 3 } else { 1 };
        seeds.extend(self.last.take());
        for seed in seeds {
            let cost = self.clock.evaluate(&seed, pool);
            let score = self.score(&cost);
            if best.as_ref().is_none_or(|b| score < b.0) {
                best = Some((score, seed, cost));
            }
        }
        let (score, swapped, cost) = best.expect("there are seeds");
        let (swapped, cost) = self.anneal(pool, self.evaluations / share, score, swapped, cost);
        self.last = Some(swapped.clone());
        (swapped, cost)
    }

    /// Seconds, with what does not fit counted as if it went over the link many times, and a hint of bytes moved.
    fn score(&self, cost: &Cost) -> f64 {
        let Link { offload_bytes_per_second, prefetch_bytes_per_second, .. } = self.task.request.link;
        let slow = offload_bytes_per_second.0.min(prefetch_bytes_per_second.0);
        let scale = self.task.bound.0.max(cost.seconds * 1e-3);
        let penalty = if cost.overflow > 0 { 20.0 * cost.overflow as f64 / slow + 0.01 * scale } else { 0.0 };
        cost.seconds + penalty + 1e-5 * cost.moved as f64 / slow
    }

    fn seeds(&self, pool: u64) -> Vec<Vec<bool>> {
        let gaps = &self.gaps.gaps;
        let mut orders: Vec<Vec<u32>> = Vec::new();
        let mut order = |key: &dyn Fn(u32) -> (Reverse<u64>, u64)| {
            let mut order = self.worthy.clone();
            order.sort_by_key(|g| (key(*g), *g));
            orders.push(order);
        };
        order(&|g| (Reverse(0), u64::from(gaps[g as usize].after)));
        order(&|g| (Reverse(u64::from(gaps[g as usize].before)), 0));
        order(&|g| (Reverse(u64::from(gaps[g as usize].before - gaps[g as usize].after)), 0));
        order(&|g| (Reverse(gaps[g as usize].bytes), u64::from(gaps[g as usize].after)));
        let slack = self.slack();
        order(&|g| (Reverse(slack[g as usize]), 0));
        let mut seeds: Vec<Vec<bool>> = orders.iter().map(|order| self.fill(order, pool)).collect();
        let mut all = vec![false; gaps.len()];
        self.worthy.iter().for_each(|g| all[*g as usize] = true);
        seeds.push(all);
        seeds
    }

    /// By gap: the compute time between its two uses less what its transfers take, in nanoseconds; 0 where less.
    fn slack(&self) -> Vec<u64> {
        let mut sum = 0.0;
        let ended: Vec<f64> = self
            .gaps
            .seconds
            .iter()
            .map(|s| {
                sum += s;
                sum
            })
            .collect();
        let seconds = |stream, bytes| self.task.request.link.seconds(stream, Bytes(bytes)).0;
        let slack = |g: &crate::gaps::Gap| {
            let Seconds(room) = Seconds(ended[g.before as usize - 1] - ended[g.writer as usize]);
            ((room - seconds(Stream::Offload, g.bytes) - seconds(Stream::Prefetch, g.bytes)) * 1e9).max(0.0)
                as u64
        };
        self.gaps.gaps.iter().map(slack).collect()
    }

    /// Swaps gaps in this order as long as they help some slot that does not fit, then keeps those that are needless.
    fn fill(&self, order: &[u32], pool: u64) -> Vec<bool> {
        let gaps = &self.gaps.gaps;
        let mut swapped = vec![false; gaps.len()];
        let mut needs = self.gaps.base.clone();
        let inside = |g: &crate::gaps::Gap| g.after as usize + 1..g.before as usize;
        let mut taken = Vec::new();
        for &g in order {
            let gap = &gaps[g as usize];
            if needs[inside(gap)].iter().any(|bytes| *bytes > pool) {
                needs[inside(gap)].iter_mut().for_each(|bytes| *bytes -= gap.bytes);
                swapped[g as usize] = true;
                taken.push(g);
            }
        }
        for &g in taken.iter().rev() {
            let gap = &gaps[g as usize];
            if needs[inside(gap)].iter().all(|bytes| *bytes + gap.bytes <= pool) {
                needs[inside(gap)].iter_mut().for_each(|bytes| *bytes += gap.bytes);
                swapped[g as usize] = false;
            }
        }
        swapped
    }

    fn anneal(
        &mut self,
        pool: u64,
        evaluations: u64,
        score: f64,
        swapped: Vec<bool>,
        cost: Cost,
    ) -> (Vec<bool>, Cost) {
        let mut best = (score, swapped.clone(), cost);
        let (mut current, mut state) = (score, swapped);
        let mut changed: Vec<u32> = Vec::new();
        if self.worthy.is_empty() {
            return (best.1, best.2);
        }
        for evaluation in 0..evaluations {
            if evaluation % 64 == 0 && self.task.request.limits.is_expired() {
                self.late = true;
                break;
            }
            let progress = evaluation as f64 / evaluations as f64;
            self.change(&state, &mut changed);
            changed.iter().for_each(|g| state[*g as usize] ^= true);
            let cost = self.clock.evaluate(&state, pool);
            let next = self.score(&cost);
            let heat = best.0 * 3e-4 * (1.0 - progress) * (1.0 - progress);
            let taken = next <= current
                || self.random.unit() < ((current - next) / heat.max(f64::MIN_POSITIVE)).exp();
            if taken {
                current = next;
                if next < best.0 {
                    best = (next, state.clone(), cost);
                }
            } else {
                changed.iter().for_each(|g| state[*g as usize] ^= true);
            }
            if best.2.overflow == 0 && best.2.seconds <= self.task.bound.0 * (1.0 + 1e-9) {
                break;
            }
        }
        (best.1, best.2)
    }

    /// Chooses which gaps change.
    fn change(&mut self, state: &[bool], changed: &mut Vec<u32>) {
        changed.clear();
        let count = self.worthy.len();
        let at = self.random.below(count);
        changed.push(self.worthy[at]);
        let kind = self.random.unit();
        if kind < 0.4 {
            return;
        }
        let first = state[self.worthy[at] as usize];
        if kind < 0.8 {
            // Exchange: a gap nearby, or anywhere, that is decided the other way.
            let near = kind < 0.65;
            for _ in 0..8 {
                let offset = self.random.below(if near { 16.min(count) } else { count });
                let other = (at + offset) % count;
                if other != at && state[self.worthy[other] as usize] != first {
                    changed.push(self.worthy[other]);
                    return;
                }
            }
        } else {
            // A run of neighbours that are decided alike.
            let length = 1 + self.random.below(6);
            let run = (at + 1..count.min(at + length)).map(|i| self.worthy[i]);
            changed.extend(run.filter(|g| state[*g as usize] == first));
        }
    }
}
