//! The planner of this house, as it stands: which gaps to swap so that the iteration takes least time within the budget,
//! and of the sets that take equally long the one that moves the fewest bytes.
//!
//! 1. *Seeds.* For several orders of the gaps (earliest use first, latest next use first, longest, largest), gaps are
//!    swapped until every slot fits, and those that turn out needless are kept again.
//! 2. *Search for time.* From the best seed: one gap changes, or one is exchanged for another, or a run of neighbours
//!    changes; what is better is taken, what is slightly worse with falling probability (simulated annealing). Judged by
//!    [`crate::windows`]: seconds, bytes that do not fit, and as a hint bytes moved. It ends at the lower bound.
//! 3. *Search for bytes.* The same moves, from the set of fewest bytes that is as fast, less every swap that it can do
//!    without: now bytes moved are what counts, and a longer makespan is what does not fit.
//! 4. *Addresses.* The result is realised. Where holes in the pool cost time or bytes, both searches run again for a pool
//!    that is smaller by a little.
//!
//! Every schedule that was realised on the way is a candidate, and those of `FIRST` are too: they take next to no time.
//! Of those within `SAME` of the fastest, the one that moves fewest bytes is the plan. So none of these policies is faster by more
//! than that, and none that is as fast moves fewer bytes. Deterministic for a seed; bounded by a number of evaluations,
//! and by the caller's deadline.
//!
//! What it does not do yet: recompute, order transfers otherwise than by use, choose slower kernels for their smaller
//! workspace where the fast one fits.

use super::{accudnn, baselines, dynprog, greedy, keep, naive};
use crate::address::ALIGNMENT;
use crate::bound::least_moved;
use crate::gaps::{Gap, Gaps, Ways};
use crate::plan::{Outcome, PlanError, Status, Witness};
use crate::random::Random;
use crate::realise::{Attempt, FULL, Fitting, GIVEN, LIGHT, Realised, Task};
use crate::windows::{Clock, Cost};
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::{Bytes, Seconds, TensorId};
use std::cmp::Reverse;
use std::ops::Range;

/// How often a smaller share of the pool is planned for, where addresses leave holes.
const RUNS: u32 = 6;

/// Shares of the pool closer than this are not told apart.
const FINEST: f64 = 0.002;

/// Into how many pieces a tensor is cut at most.
const MOST_PIECES: u64 = 8;

/// Makespans that differ by no more than this share are equal: bytes moved decide between them.
const SAME: f64 = 1e-6;

/// What sums of floats may differ by.
const HAIR: f64 = 1e-9;

type Realise = fn(&Task<'_>) -> Result<Realised, PlanError>;

/// The policies whose schedules are candidates from the start.
const FIRST: [Realise; 7] = [
    keep,
    naive::realise,
    accudnn::realise,
    greedy::realise,
    dynprog::realise,
    baselines::ratio,
    baselines::autoswap,
];

pub(crate) fn decide(task: &Task<'_>) -> Result<Outcome, PlanError> {
    let least = least_moved(task.trace, task.request.budget).0;
    let mut candidates = Candidates { bound: task.bound.0, least, found: Vec::new(), short: None };
    let mut late = false;
    for policy in FIRST {
        candidates.offer(policy(task)?);
        late |= task.request.limits.is_expired();
        if late || candidates.settled() {
            break;
        }
    }
    if !candidates.settled() && !late {
        late = search_all(task, &mut candidates)?;
    }
    if candidates.found.is_empty() {
        // Everything that can leave does.
        let gaps = Gaps::new(task.trace, Bytes(task.pool), Ways::BesideOwn, &|_| 1);
        candidates.offer(task.realise(&gaps, &vec![true; gaps.gaps.len()], &GIVEN)?);
    }
    let status = if late { Status::OutOfTime } else { Status::Feasible };
    Ok(task.outcome(candidates.choose(), status))
}

/// What was realised so far.
struct Candidates {
    /// No makespan is shorter, and no plan moves fewer bytes.
    bound: f64,
    least: u64,
    found: Vec<Fitting>,
    short: Option<Witness>,
}

impl Candidates {
    fn offer(&mut self, realised: Realised) {
        match realised {
            Realised::Fits(fitting) => self.found.push(fitting),
            Realised::Short(short) => {
                if self.short.as_ref().is_none_or(|s| short.needs < s.needs) {
                    self.short = Some(short);
                }
            }
        }
    }

    fn fastest(&self) -> f64 {
        self.found.iter().map(|f| f.makespan.0).fold(f64::INFINITY, f64::min)
    }

    /// The position of the one that moves fewest bytes among the fastest.
    fn best(&self) -> Option<usize> {
        let within = self.fastest() * (1.0 + SAME);
        let equal = (0..self.found.len()).filter(|at| self.found[*at].makespan.0 <= within);
        let key = |at: &usize| (self.found[*at].moved, self.found[*at].makespan);
        equal.min_by(|a, b| key(a).0.cmp(&key(b).0).then(key(a).1.0.total_cmp(&key(b).1.0)))
    }

    fn moved(&self) -> u64 {
        self.best().map_or(u64::MAX, |at| self.found[at].moved)
    }

    /// Whether nothing can be faster, nor move fewer bytes.
    fn settled(&self) -> bool {
        self.fastest() <= self.bound * (1.0 + HAIR) && self.moved() <= self.least
    }

    /// Whether a schedule of this cost would be chosen.
    fn want(&self, cost: &Cost) -> bool {
        let fastest = self.fastest();
        cost.seconds < fastest * (1.0 - SAME)
            || (cost.seconds <= fastest * (1.0 + SAME) && cost.moved < self.moved())
    }

    fn choose(mut self) -> Realised {
        match (self.best(), self.short) {
            (Some(at), _) => Realised::Fits(self.found.swap_remove(at)),
            (None, Some(short)) => Realised::Short(short),
            (None, None) => unreachable!("keep was offered"),
        }
    }
}

/// Tells whether time was up before the search was done.
fn search_all(task: &Task<'_>, candidates: &mut Candidates) -> Result<bool, PlanError> {
    let gaps = Gaps::new(task.trace, Bytes(task.pool), Ways::BesideOwn, &pieces(task));
    let evaluations = task.request.limits.evaluations.unwrap_or_else(|| suggested(&gaps));
    let mut search = Search::new(task, &gaps, evaluations);
    // The smallest share of the pool for which addresses were not found, and the largest for which they were.
    let (mut share, mut fails, mut fits) = (1.0, f64::INFINITY, 0.0f64);
    let mut step = 0.0f64;
    for _ in 0..RUNS {
        let pool = ((task.pool as f64 * share) as u64).min(task.pool);
        if share < 1.0 && search.floor > pool {
            break;
        }
        let found = search.run(pool);
        // A smaller pool is not faster, nor are fewer bytes moved; what it costs is known before addresses are.
        if !found.iter().any(|found| candidates.want(&found.cost)) {
            break;
        }
        let attempt = |tighten, work| Attempt { pool: share, tighten, work, alignment: ALIGNMENT };
        let mut over = 1.0f64;
        for Found { swapped, cost } in &found {
            if candidates.want(cost) {
                let attempts = [attempt(0.5, LIGHT), attempt(1.0, FULL)];
                let realised = task.realise(&gaps, swapped, &attempts)?;
                if let Realised::Short(short) = &realised {
                    over = (short.needs - task.trace.resident_bytes).0 as f64 / task.pool as f64;
                }
                candidates.offer(realised);
            }
        }
        if search.late || candidates.settled() {
            break;
        }
        if over > 1.0 {
            fails = fails.min(share);
        } else {
            fits = fits.max(share);
        }
        if fails.min(1.0) - fits < FINEST {
            break;
        }
        share = if fits > 0.0 {
            (fails.min(1.0) + fits) / 2.0
        } else {
            // By what was lacking, in steps that grow; and not below what swapping everything needs.
            let least = search.floor as f64 / task.pool as f64;
            step = (share * (1.0 - 1.0 / over) + FINEST / 2.0).max(1.5 * step);
            (share - step).max((share + least) / 2.0)
        };
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

/// A set of gaps and what it costs.
#[derive(Clone, Debug)]
struct Found {
    swapped: Vec<bool>,
    cost: Cost,
}

/// What a search looks for.
#[derive(Clone, Copy, Debug)]
enum Aim {
    /// The shortest makespan.
    Time,
    /// The fewest bytes moved, within so many seconds.
    Bytes { within: f64 },
}

/// The first with the lowest score.
fn best_of(found: &[Found], score: impl Fn(&Cost) -> f64) -> Found {
    let best = found.iter().min_by(|a, b| score(&a.cost).total_cmp(&score(&b.cost)));
    best.expect("there are seeds").clone()
}

/// The slots that lie between the two uses of a gap.
fn inside(gap: &Gap) -> Range<usize> {
    gap.after as usize + 1..gap.before as usize
}

struct Search<'a> {
    task: &'a Task<'a>,
    gaps: &'a Gaps,
    clock: Clock,
    random: Random,
    /// Evaluations of the first run; a quarter of them for each that follows.
    evaluations: u64,
    /// The pool that swapping everything needs.
    floor: u64,
    /// Gaps that are worth a thought, in order of their first slot.
    worthy: Vec<u32>,
    /// What the last run found.
    last: Vec<Found>,
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
        let clock = Clock::new(&task.request.link);
        let random = Random::new(task.request.seed);
        Search { task, gaps, clock, random, evaluations, floor, worthy, last: Vec::new(), late: false }
    }

    /// The best sets of gaps found for a pool of so many bytes: the one that moves fewest bytes, and the one which the
    /// search for time found, that leaves more room for addresses.
    fn run(&mut self, pool: u64) -> Vec<Found> {
        let mut seeds = self.seeds(pool);
        // A run that follows another begins near its end.
        let share = if self.last.is_empty() { 1 } else { 4 };
        seeds.extend(self.last.drain(..).map(|found| found.swapped));
        let mut found: Vec<Found> = Vec::new();
        for swapped in seeds {
            let cost = self.clock.evaluate(&self.gaps.course(&swapped).0, pool);
            found.push(Found { swapped, cost });
        }
        let evaluations = self.evaluations / share;
        let fastest =
            self.anneal(pool, evaluations, Aim::Time, best_of(&found, |cost| self.score(cost, Aim::Time)));
        self.last.push(fastest.clone());
        if fastest.cost.overflow > 0 || self.late {
            return vec![fastest];
        }
        let within = fastest.cost.seconds.max(self.task.bound.0) * (1.0 + SAME / 2.0);
        let aim = Aim::Bytes { within };
        found.push(fastest.clone());
        let mut lightest = best_of(&found, |cost| self.score(cost, aim));
        self.lighten(pool, within, &mut lightest);
        lightest = self.anneal(pool, evaluations / 3, aim, lightest);
        self.lighten(pool, within, &mut lightest);
        self.last.push(lightest.clone());
        if lightest.swapped == fastest.swapped { vec![fastest] } else { vec![lightest, fastest] }
    }

    /// Keeps the gaps that need not be swapped, largest first.
    fn lighten(&mut self, pool: u64, within: f64, found: &mut Found) {
        let gaps = &self.gaps.gaps;
        let mut needs = self.gaps.least(&found.swapped);
        let mut swapped: Vec<usize> = (0..gaps.len()).filter(|g| found.swapped[*g]).collect();
        swapped.sort_by_key(|g| (Reverse(gaps[*g].bytes), *g));
        for g in swapped {
            let inside = inside(&gaps[g]);
            if needs[inside.clone()].iter().any(|bytes| *bytes + gaps[g].bytes > pool) {
                continue;
            }
            found.swapped[g] = false;
            let cost = self.clock.evaluate(&self.gaps.course(&found.swapped).0, pool);
            if cost.overflow == 0 && cost.seconds <= within && cost.moved <= found.cost.moved {
                found.cost = cost;
                needs[inside].iter_mut().for_each(|bytes| *bytes += gaps[g].bytes);
            } else {
                found.swapped[g] = true;
            }
        }
    }

    /// What counts, in seconds: time or bytes moved, with what does not fit counted as if it went over the link many
    /// times.
    fn score(&self, cost: &Cost, aim: Aim) -> f64 {
        let Link { offload_bytes_per_second, prefetch_bytes_per_second, .. } = self.task.request.link;
        let slow = offload_bytes_per_second.0.min(prefetch_bytes_per_second.0);
        let scale = self.task.bound.0.max(cost.seconds * 1e-3);
        let penalty = if cost.overflow > 0 { 20.0 * cost.overflow as f64 / slow + 0.01 * scale } else { 0.0 };
        let moved = cost.moved as f64 / slow;
        match aim {
            Aim::Time => cost.seconds + penalty + 1e-5 * moved,
            Aim::Bytes { within } if cost.seconds > within => {
                moved + penalty + 20.0 * (cost.seconds - within) + 0.01 * scale
            }
            Aim::Bytes { .. } => moved + penalty,
        }
    }

    /// Whether there is nothing more to be found.
    fn done(&self, pool: u64, cost: &Cost, aim: Aim) -> bool {
        cost.overflow == 0
            && match aim {
                Aim::Time => cost.seconds <= self.task.bound.0 * (1.0 + HAIR),
                Aim::Bytes { within } => {
                    let most = self.gaps.base.iter().max().map_or(0, |most| most.saturating_sub(pool));
                    cost.seconds <= within && cost.moved <= 2 * most
                }
            }
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
        seeds.push(naive::feature_maps(self.task.trace, self.gaps));
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
        let slack = |g: &Gap| {
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

    fn anneal(&mut self, pool: u64, evaluations: u64, aim: Aim, from: Found) -> Found {
        let score = self.score(&from.cost, aim);
        let (mut current, mut state) = (score, from.swapped.clone());
        let mut best = (score, from);
        let mut changed: Vec<u32> = Vec::new();
        if self.worthy.is_empty() {
            return best.1;
        }
        for evaluation in 0..evaluations {
            if self.done(pool, &best.1.cost, aim) {
                break;
            }
            if evaluation % 64 == 0 && self.task.request.limits.is_expired() {
                self.late = true;
                break;
            }
            let progress = evaluation as f64 / evaluations as f64;
            self.change(&state, &mut changed);
            changed.iter().for_each(|g| state[*g as usize] ^= true);
            let cost = self.clock.evaluate(&self.gaps.course(&state).0, pool);
            let next = self.score(&cost, aim);
            let heat = best.0 * 3e-4 * (1.0 - progress) * (1.0 - progress);
            let taken = next <= current
                || self.random.unit() < ((current - next) / heat.max(f64::MIN_POSITIVE)).exp();
            if taken {
                current = next;
                if next < best.0 {
                    best = (next, Found { swapped: state.clone(), cost });
                }
            } else {
                changed.iter().for_each(|g| state[*g as usize] ^= true);
            }
        }
        best.1
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
