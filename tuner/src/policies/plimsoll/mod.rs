//! The planner of this house: what to keep, to swap and to recompute so that the iteration takes least time within the
//! budget; of the plans that take equally long the one that moves the fewest bytes.
//!
//! *The first plan* (`first.rs`) takes one pass and milliseconds. It is the answer where time is up at once. Else:
//!
//! 1. *Seeds* (`seeds.rs`): that pass, the linear program of the lower bound, rounded, for the budget and for smaller ones; of deep
//!    networks also a plan of a few of the equal blocks, copied to all (`blocks.rs`, `copies.rs`).
//! 2. *Search* (`search.rs`): from the best seed some decisions change; what is better is taken, what is slightly worse with
//!    falling probability (simulated annealing). Judged by [`crate::decide::walk`] and [`crate::decide::windows`]. It ends at the bound.
//!    Where time cannot be better, bytes moved are what counts.
//! 3. *Addresses.* The result is realised. Where it ends above the pool, the search goes on with some bytes left free at the
//!    ops that are too high, from the seeds again where that led astray, and in the end with bytes left free at every op;
//!    whole tensors first, then parts of them, and these chunk by chunk, where they are large beside the pool. Which end of a
//!    tensor in pieces comes first is chosen with the addresses (`realise.rs`).
//! 4. *Fewer means* (`fewer.rs`). Where the result is far above the bound, short searches that only swap, or only recompute, give
//!    seeds. In the end such searches are candidates; small traces are also searched with less memory, and completely.
//! 5. *Policies.* Whatever another policy might do better is a candidate, so that none is better unless time is up.
//! 6. *Whole plans on the way* (`anytime.rs`), where time may be up at any moment.
//!
//! Deterministic for a seed; bounded by a number of evaluations, and by the caller's deadline.
//!
//! What it does not do: order transfers otherwise than by use; choose decisions by what addresses leave room for, other than by
//! bytes that it leaves free.

mod anytime;
mod blocks;
mod copies;
mod fewer;
mod first;
mod host;
mod moves;
mod search;
mod seeds;

use super::papers::keep::keep;
use super::papers::{accudnn, baselines, dynprog, greedy, layrub, memonger, naive, superneurons, vdnn};
use crate::bound::{least_moved, lower_bound_within, quick_offload_bound};
use crate::decide::gaps::{Gaps, Ways};
use crate::decide::windows::Cost;
use crate::iteration::values::{Decisions, Values};
use crate::place::realise::{Fitting, GIVEN, Packing, Realised, Task};
use crate::request::Trick;
use crate::request::{Allow, Limits, Outcome, PlanError, PlanRequest, Shortage, Status, Witness};
use crate::threads::{Expired, beside};
use anytime::Early;
use fewer::Glances;
use plimsoll_ir::{Bytes, Seconds};
use search::{Judged, Search};

/// How often the search goes on at most, where addresses leave holes.
const RUNS: u64 = 16;

/// Where leaving bytes free made what is found so many times slower than it was, the search begins anew, so often at most: it
/// lost its way rather than its room.
const LOST: f64 = 1.03;
const ANEW: u64 = 2;

/// Where still nothing as fast as that has addresses, such parts of the pool are left free at every op, one after the other.
const SPARE: [u64; 7] = [200, 100, 50, 33, 25, 16, 8];

/// After so many runs without anything that fits the search begins from what does.
const MISSES: u32 = 4;

/// After so many that miss by no less than before it ends.
const STUCK: u32 = 7;

/// So many times the usual looks at most are spent on the addresses of one plan.
const MOST_EFFORT: u64 = 4;

/// With few evaluations at least such a part of the looks.
const LEAST_LOOKS: u64 = 8;

/// A plan this near the bound is not worth another search.
const GOOD: f64 = 1.03;

/// Pieces are looked at where a tensor is larger than this part of the pool: they leave holes, and gain little else.
const COARSE: u64 = 12;

/// Where one is larger than this part, and there are not many ops to choose among instead, pieces are cut into so many chunks,
/// too, each of which leaves and returns by itself: it waits for room for itself only, but tangles with more.
const VERY_COARSE: u64 = 4;
const FEW_OPS: u64 = 250;
const CHUNKS: u8 = 4;

/// With pieces, which rarely pay on large traces, the search goes on until so many ops were looked at, but at least so often.
const PIECE_OPS: u64 = 2000;
const PIECE_RUNS: u64 = 4;

/// Makespans that differ by no more than this share are equal: bytes moved decide between them.
const SAME: f64 = 1e-6;

/// What sums of floats may differ by.
const HAIR: f64 = 1e-9;

type Realise = fn(&Task<'_>) -> Result<Realised, PlanError>;

/// The policies that only offload and whose schedules are candidates.
const OFFLOADING: [Realise; 11] = [
    greedy::realise,
    dynprog::realise,
    baselines::autoswap,
    baselines::ratio,
    accudnn::realise,
    baselines::tflms,
    layrub::inter,
    vdnn::dynamic,
    |task| vdnn::realise(task, vdnn::Layers::Conv),
    |task| vdnn::realise(task, vdnn::Layers::All),
    naive::realise,
];

/// The one that swaps and runs ops again. Its answer is wanted in the end nearly always, so it is asked while the search goes
/// on.
const LAST: Realise = superneurons::realise;

/// Of no more ops than these it is soon told, and not worth a second thread.
const FEW: usize = 100;

/// Where the host is limited, the plan without that limit, if it keeps it; else one within the limit. Where time may be up at any
/// moment, only that.
pub(crate) fn decide(task: &Task<'_>) -> Result<Outcome, PlanError> {
    let PlanRequest { allow, anytime, .. } = *task.request;
    let Some(limit) = allow.host.filter(|_| allow.swap) else { return decide_within(task) };
    if anytime {
        return decide_within(task);
    }
    let request = PlanRequest { allow: Allow { host: None, ..allow }, ..*task.request };
    let free = decide_within(&Task { request: &request, ..*task })?;
    let Some(takes) = free.plan().map(|plan| plan.schedule.host_bytes(task.trace)) else { return Ok(free) };
    if takes <= limit {
        return Ok(free);
    }
    Ok(match (decide_within(task)?, task.short_of_host(takes)) {
        (Outcome::Infeasible(short), Some(Realised::Short(free))) if free.distance() < short.distance() => {
            Outcome::Infeasible(free)
        }
        (within, _) => within,
    })
}

/// The task's bound is one that costs nothing; a sharper one is found here once there is a first plan.
fn decide_within(task: &Task<'_>) -> Result<Outcome, PlanError> {
    let PlanRequest { budget, link, allow, limits, anytime, .. } = *task.request;
    let mut first = None;
    if anytime || limits.is_expired() {
        first = first::plan(task, &Values::new(task.trace, Bytes(task.pool), allow))?;
    }
    let mut bound = task.bound;
    if first.is_none() || !limits.is_expired() {
        bound = lower_bound_within(task.trace, budget, &link, allow, &limits);
    }
    let task = Task { bound, ..*task };
    match first {
        Some(first) if limits.is_expired() => Ok(task.outcome(Realised::Fits(first), Status::OutOfTime)),
        first => decide_beyond(first, &task),
    }
}

/// What is found with more time than the first plan takes.
fn decide_beyond(first: Option<Fitting>, task: &Task<'_>) -> Result<Outcome, PlanError> {
    let (chosen, late) = choose(first, task)?;
    Ok(task.outcome(chosen, if late { Status::OutOfTime } else { Status::Feasible }))
}

/// The same before it is judged, and whether time was up before the end.
fn choose(first: Option<Fitting>, task: &Task<'_>) -> Result<(Realised, bool), PlanError> {
    let (candidates, late) = find(first, task)?;
    let chosen = match candidates.choose() {
        Realised::Fits(fitting) if task.request.uses(Trick::Settle) => Realised::Fits(task.settle(fitting)?),
        as_found => as_found,
    };
    Ok((chosen, late))
}

/// All that is found, and whether time was up before the end.
fn find(first: Option<Fitting>, task: &Task<'_>) -> Result<(Candidates, bool), PlanError> {
    let allow = task.request.allow;
    let mut candidates = Candidates::new(task);
    candidates.offer(keep(task, task.thorough())?);
    let (mut late, mut early, mut asked) = (false, Vec::new(), None);
    let others = task.request.uses(Trick::Policies);
    if !candidates.settled() {
        let PlanRequest { budget, link, policy, allow, limits, seed, without, anytime } = *task.request;
        let Limits { evaluations, expired: clock } = limits;
        let Task { trace, pool, bound, .. } = *task;
        let ask = move |expired: Expired<'_>| {
            let limits = Limits { evaluations, expired };
            let request = PlanRequest { budget, link, policy, allow, limits, seed, without, anytime };
            LAST(&Task { trace, request: &request, pool, bound, within: Seconds(f64::INFINITY) })
        };
        let search = || {
            let glances = Glances::default();
            let mut searched = search_all(task, &glances, &mut candidates, first);
            if let Ok((late @ false, _)) = &mut searched {
                match fewer::offer(task, &glances, &mut candidates) {
                    Ok(end) => *late = end,
                    Err(fault) => searched = Err(fault),
                }
            }
            let wanted = searched.as_ref().is_ok_and(|(late, _)| !late) && !candidates.settled();
            (searched, wanted)
        };
        // Where time may be up at any moment it was asked before.
        let worth = others && allow.recompute && allow.swap && !anytime && trace.ops.len() > FEW;
        let searched;
        (searched, asked) = beside(worth, clock, search, ask);
        (late, early) = searched?;
    }
    if late {
        candidates.found.append(&mut early);
    }
    let PlanRequest { budget, link, limits, .. } = task.request;
    let offloading = quick_offload_bound(task.trace, *budget, link, limits).0;
    if others && allow.swap && candidates.fastest() >= offloading * (1.0 - SAME) {
        candidates.offer_all(task, &OFFLOADING, &mut late)?;
    }
    if others && allow.recompute {
        candidates.offer_all(task, &[memonger::realise], &mut late)?;
        match asked {
            Some(answer) => candidates.offer(answer?),
            None if allow.swap => candidates.offer_all(task, &[LAST], &mut late)?,
            None => {}
        }
    }
    if candidates.found.is_empty() && late {
        let values = Values::new(task.trace, Bytes(task.pool), allow);
        candidates.found.extend(first::plan(task, &values)?);
    }
    if candidates.found.is_empty() && allow.swap {
        // Everything that can leave does.
        let gaps = Gaps::new(task.trace, Bytes(task.pool), Ways::BesideOwn, &|_| 1);
        candidates.offer(task.realise(&gaps, &vec![true; gaps.gaps.len()], &GIVEN)?);
    }
    if late {
        candidates.found.append(&mut early);
    }
    Ok((candidates, late))
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
    fn new(task: &Task<'_>) -> Candidates {
        let PlanRequest { allow, budget, .. } = *task.request;
        let least = if allow.recompute { 0 } else { least_moved(task.trace, budget).0 };
        Candidates { bound: task.bound.0, least, found: Vec::new(), short: None }
    }

    fn offer(&mut self, realised: Realised) {
        match realised {
            Realised::Fits(fitting) => self.found.push(fitting),
            Realised::Slow => {}
            Realised::Short(short) => {
                if self.short.as_ref().is_none_or(|s| short.distance() < s.distance()) {
                    self.short = Some(short);
                }
            }
        }
    }

    /// Notes that decisions which fit the device take so much of the host.
    fn short_of_host(&mut self, task: &Task<'_>, needs: u64) {
        task.short_of_host(Bytes(needs)).into_iter().for_each(|short| self.offer(short));
    }

    /// Offers what these policies do, until nothing can be better or time is up.
    fn offer_all(&mut self, task: &Task<'_>, policies: &[Realise], late: &mut bool) -> Result<(), PlanError> {
        for policy in policies {
            *late |= task.request.limits.is_expired();
            if self.settled() || (*late && !self.found.is_empty()) {
                break;
            }
            let within = Seconds(self.fastest() * (1.0 + SAME));
            self.offer(policy(&Task { within, ..*task })?);
        }
        Ok(())
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
            // That some decisions need more does not mean that all do.
            (None, Some(short)) if short.why == Shortage::Policy => {
                Realised::Short(Witness { why: Shortage::Tried, ..short })
            }
            (None, Some(short)) => Realised::Short(short),
            (None, None) => unreachable!("keep was offered, and nothing is slow before anything fits"),
        }
    }
}

/// Tells whether time was up before the search was done, and gives the whole plans that were made in case it would be.
fn search_all(
    task: &Task<'_>,
    glances: &Glances,
    candidates: &mut Candidates,
    first: Option<Fitting>,
) -> Result<(bool, Vec<Fitting>), PlanError> {
    let early = if task.request.anytime { Some(Early::new(task, first)?) } else { None };
    let values = Values::new(task.trace, Bytes(task.pool), task.request.allow);
    let evaluations = task.request.limits.evaluations.unwrap_or_else(|| suggested(&values));
    let mut search = Search::new(task, &values, evaluations, usize::MAX);
    search.early = early;
    if task.request.uses(Trick::Copies) {
        search.copy_blocks();
    }
    address(task, &values, glances, &mut search, candidates, RUNS)?;
    let largest = values.bytes.iter().max().copied().unwrap_or_default();
    let Allow { pieces, recompute, swap, .. } = task.request.allow;
    let (ops, pool) = (task.trace.ops.len() as u64, task.pool);
    let coarse = largest > pool / COARSE;
    let very = largest > pool / VERY_COARSE && ops <= FEW_OPS;
    let runs = (PIECE_OPS / ops).clamp(PIECE_RUNS, RUNS);
    // Where ops run again, what is made whole mostly does as well as pieces.
    let poor = |candidates: &Candidates| candidates.fastest() > candidates.bound * GOOD;
    for (of_use, chunks) in [(very || coarse && !recompute, 1), (very, CHUNKS)] {
        if pieces && swap && (of_use || coarse && poor(candidates)) && !search.late && !candidates.settled() {
            search.allow_pieces(chunks);
            address(task, &values, glances, &mut search, candidates, runs)?;
        }
    }
    let Early { found, fault, .. } = search.early.take().unwrap_or_default();
    fault.map_or(Ok((search.late, found)), Err)
}

/// Searches and addresses in turn, so many times at most, until what was found fits.
fn address(
    task: &Task<'_>,
    values: &Values,
    glances: &Glances,
    search: &mut Search<'_>,
    candidates: &mut Candidates,
    runs: u64,
) -> Result<(), PlanError> {
    let mut tries = Tries { task, values, packing: Packing::default(), effort: 1, lowest: f64::INFINITY };
    // What did not fit last, and how often the search came back with it.
    let mut missed: Option<Decisions> = None;
    let (mut repeats, mut anew, mut misses) = (0u32, 0, 0);
    // The least bytes that were too many, and how many runs found no fewer.
    let (mut overflow, mut stuck) = (u64::MAX, 0);
    for run in 0..runs {
        let (cost, tried) = tries.next(search, candidates)?;
        let poor = cost.overflow > 0 || cost.seconds > task.bound.0 * GOOD;
        if run == 0 && poor && task.request.uses(Trick::Fewer) {
            search.add_seeds(glances.seeds(task));
        }
        if cost.overflow > 0 && tries.lowest.is_infinite() {
            misses += 1;
            stuck = if cost.overflow < overflow { 0 } else { stuck + 1 };
            overflow = overflow.min(cost.overflow);
            if misses == MISSES {
                search.begin_safely();
            }
            if stuck == STUCK {
                return Ok(());
            }
        }
        if cost.seconds > tries.lowest * LOST && anew < ANEW && task.request.uses(Trick::Anew) {
            anew += 1;
            search.begin_anew();
        }
        if let Tried::Misses { decisions, excess } = tried {
            repeats = if missed.as_ref() == Some(&decisions) { repeats + 1 } else { 0 };
            missed = Some(decisions);
            let share = f64::from(1 << (2 * repeats)) / (4 - 4 * run / runs).max(1) as f64;
            search.widen(&excess, share);
        } else if candidates.settled() || (!search.narrow() && cost.overflow == 0) {
            // What fits with nothing left free is as good as it gets.
            return Ok(());
        }
        if search.late {
            return Ok(());
        }
    }
    if !task.request.uses(Trick::Spare) {
        return Ok(());
    }
    for part in SPARE {
        let fastest = candidates.fastest();
        let missed = tries.lowest.is_infinite() || fastest > tries.lowest * LOST;
        if search.late || !missed {
            break;
        }
        search.leave(task.pool / part);
        let (cost, _) = tries.next(search, candidates)?;
        if cost.overflow > 0 {
            break;
        }
    }
    Ok(())
}

/// Runs of the search whose results are given addresses.
struct Tries<'a> {
    task: &'a Task<'a>,
    values: &'a Values,
    packing: Packing,
    /// How many times the usual looks an address may take.
    effort: u64,
    /// The least seconds of what was found, addresses or not.
    lowest: f64,
}

/// What became of what was found.
enum Tried {
    /// It has addresses, or nobody wants it.
    Done,
    /// It has none; by op, it has so many bytes too many.
    Misses { decisions: Decisions, excess: Vec<u64> },
}

impl Tries<'_> {
    fn next(
        &mut self,
        search: &mut Search<'_>,
        candidates: &mut Candidates,
    ) -> Result<(Cost, Tried), PlanError> {
        let found = search.run();
        let Judged { cost, again, over_host, .. } = found.judged;
        tracing::debug!(seconds = cost.seconds, again, overflow = cost.overflow, over_host, "searched");
        if let Some(host) = search.host.as_ref().filter(|_| over_host > 0 && cost.overflow == over_host) {
            candidates.short_of_host(self.task, host.needs(over_host));
        }
        if cost.overflow == 0 {
            self.lowest = self.lowest.min(cost.seconds);
        }
        if search.late {
            search.add_early(&found);
        }
        if cost.overflow > 0 || !candidates.want(&cost) || (search.late && search.early.is_some()) {
            return Ok((cost, Tried::Done));
        }
        if !self.task.request.uses(Trick::Packing) {
            self.packing = Packing::default();
        }
        let ops = self.task.trace.ops.len() as u64;
        let looks = self.effort * ((10_000 * ops).min(1_000_000) + 6_000 * ops);
        // Who asks for fewer evaluations than usual asks for less work.
        let usual = suggested(self.values);
        let evaluations = self.task.request.limits.evaluations.unwrap_or(usual).min(usual);
        let looks = looks / usual.div_ceil(evaluations.max(1)).min(LEAST_LOOKS);
        let margins = search.margins().to_vec();
        let decisions = found.decisions;
        let (realised, excess) =
            self.task.realise_decisions(self.values, &decisions, &margins, looks, &mut self.packing)?;
        let fits = matches!(realised, Realised::Fits(_));
        candidates.offer(realised);
        // Where nothing else comes near, addresses are worth more work.
        let wanting = candidates.fastest() > self.lowest * LOST;
        self.effort = if fits || !wanting { 1 } else { (2 * self.effort).min(MOST_EFFORT) };
        Ok((cost, if fits { Tried::Done } else { Tried::Misses { decisions, excess } }))
    }
}

/// Evaluations that keep planning within a second for some 500 ops, within two for 1,500 and within twenty for 10,000;
/// fewer where there is little to decide.
pub fn suggested(values: &Values) -> u64 {
    let ops = values.ways.len() as u64;
    let open = values.gaps.iter().filter(|gap| gap.swap || gap.remake).count() as u64;
    (22_000_000 / ops).max(12_000).min(120_000_000 / ops).clamp(500, 100_000).min(1000 + 400 * open)
}
