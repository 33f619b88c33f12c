//! Search for the batch size: the shortest epoch over all batch sizes that can be trained.
//!
//! The epoch takes dataset / k x (makespan(k) + Δ(k)) (AccUDNN eq. (3), one epoch of it), with several workers as in [`Sharing`].
//! The makespan includes the stalls, so the objective is not monotone in k: a larger batch uses the machine better until its
//! transfers stall it. [`search`] therefore plans at batch sizes spread over the whole range and then closer and closer around
//! the best few, and returns the whole curve.
//!
//! An independent plan of a batch size takes some ten times as long as one that is adapted from its neighbour's plan
//! ([`crate::PlanRequest::from`]), which is only a little slower. So most batch sizes are carried from the nearest, which shows
//! where the short epochs are, and independent plans are made if they could change the choice (`Search::settle`).
//!
//! The shortest epoch alone is the wrong goal if differences are noise: a batch that swaps 20 GiB in each iteration may promise
//! 0.1 % over one that swaps nothing. So among the batch sizes whose epoch is within a share of the shortest, the choice is the
//! one that swaps and recomputes for the fewest seconds, and of those the smallest ([`Search::choose`]); a share of 0 takes the
//! shortest. The share grows with the scatter of the choice's run ([`Search::confirm`]).
//!
//! The quotient is a real number, as in the paper, although a last batch that is not full is dropped and an epoch really runs
//! floor(dataset / k) iterations: with the floor in the objective, the batch that throws the most samples away would win.
//!
//! [`largest`] finds the largest batch with a property that smaller batches share: that it can be trained, that everything is
//! kept.
//!
//! This file deliberately neither builds traces, nor plans, nor runs anything: [`Batches`] does.

use crate::iteration::earlier::Earlier;
use crate::request::Error;
use plimsoll_ir::profile::BatchSamples;
use plimsoll_ir::schedule::{Schedule, Stream};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Training step that can be planned at any batch size, and run if its device is present.
pub trait Batches {
    /// Failure of the planner or of a run.
    type Error;

    /// Returns the plan of a batch size; `None` if no plan fits. If the plan of a nearby batch size is given, a plan adapted from
    /// it suffices; else the plan must be independent, that is not [`Planned::carried`].
    fn plan(&mut self, batch: u64, near: Option<&Planned>) -> Result<Option<Planned>, Self::Error>;

    /// Runs a plan until the time of an iteration is known; `None` if nothing can run here.
    fn run(&mut self, _: &Planned) -> Result<Option<Confirmed>, Self::Error> {
        Ok(None)
    }

    /// Returns the relative error of the predicted time at a batch size.
    fn error(&self, batch: u64) -> f64;

    /// Returns `true` to end the search with its present result: a deadline, or the user's Ctrl-C.
    fn stops(&self) -> bool {
        false
    }
}

/// Least and most share by which an epoch may exceed the shortest and count as equal; in between, the scatter of measurements
/// decides.
pub const EQUAL: [f64; 2] = [0.01, 0.03];

/// Range and limits of the search.
#[derive(Clone, Debug)]
pub struct SearchRequest {
    /// Samples in an epoch, at least 1.
    pub dataset: u64,
    /// Smallest batch to consider, at least 1; a smaller one would change the user's recipe.
    pub least: u64,
    /// Largest batch to consider, such as the largest trainable one; never more than the dataset has samples.
    pub most: u64,
    /// Only batches to consider, such as those that divide a fixed batch, in the order in which they are planned; `None` for the
    /// whole range.
    pub among: Option<Vec<u64>>,
    /// Largest batch that keeps everything on the device; `None` if not even one sample does. Considered if it is at least
    /// `least`.
    pub keeps_all: Option<u64>,
    /// Least and most share by which an epoch may exceed the shortest and count as equal, such as [`EQUAL`]; 0 if every difference
    /// counts.
    pub within: [f64; 2],
    /// Maximum number of batch sizes planned.
    pub evaluations: usize,
}

/// Plan at one batch size.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Trace, with seconds.
    pub trace: Trace,
    /// Schedule of the plan.
    pub schedule: Schedule,
    /// Point of the curve.
    pub candidate: Candidate,
    /// Log of the planner's search.
    pub log: SearchLog,
    pub planning: Seconds,
    /// `true` if adapted from the plan of a different batch size: an independent plan may be faster.
    pub carried: bool,
}

impl Planned {
    /// Returns an independent plan for an epoch of `dataset` samples, without a log.
    pub fn new(trace: Trace, schedule: Schedule, sharing: Sharing, dataset: u64) -> Planned {
        let (batch, iteration) = (trace.batch, simulate(&trace, &schedule).makespan());
        let candidate = Candidate {
            batch,
            iteration,
            compute: trace.fastest_seconds(),
            sharing,
            epoch: sharing.epoch(dataset, batch, iteration),
            peak: trace.resident_bytes + schedule.pool_bytes,
            moved: moved(&trace, &schedule),
        };
        let (log, planning, carried) = (SearchLog::default(), Seconds::ZERO, false);
        Planned { trace, schedule, candidate, log, planning, carried }
    }

    /// Returns the decisions from which plans of other batch sizes can be made.
    ///
    /// # Errors
    ///
    /// Errors of [`Earlier::new`].
    pub fn earlier(&self) -> Result<Earlier, Error> {
        Earlier::new(&self.trace, &self.schedule)
    }
}

/// Measured results of a plan.
#[derive(Clone, Debug)]
pub struct Confirmed {
    /// Seconds of an undisturbed iteration.
    pub iteration: Seconds,
    /// Typical deviation of single iterations from their median, as a share of it.
    pub scatter: f64,
    /// Median time between two iterations.
    pub between: Seconds,
    /// Samples that would correct the model.
    pub samples: BatchSamples,
    /// Timeline of a typical iteration that was timed.
    pub timeline: Timeline,
    /// Resident bytes and pool that were allocated.
    pub peak: Bytes,
    /// Share of the measured iterations in which other processes had the processors.
    pub taken_by_others: f64,
}

/// Division of an update's iterations among workers, and the cost of their exchange (Δ of AccUDNN eq. (3)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// Iterations of all workers together, at least 1.
    pub iterations: u64,
    /// Iterations of the worker that has the most.
    pub passes: u64,
    /// Seconds counted too often if each of the passes counts as an iteration: an update changes parameters once.
    pub repeated: Seconds,
    /// Seconds of an update in addition to its passes.
    pub exchange: Seconds,
}

impl Sharing {
    /// One worker, which updates in each iteration.
    pub const ALONE: Sharing =
        Sharing { iterations: 1, passes: 1, repeated: Seconds::ZERO, exchange: Seconds::ZERO };

    /// Returns the seconds of an update, given those of an iteration with the time until the next.
    pub fn update(&self, iteration: Seconds) -> Seconds {
        iteration * self.passes as f64 - self.repeated + self.exchange
    }

    /// Returns the seconds of one pass over this many samples.
    pub fn epoch(&self, samples: u64, batch: u64, iteration: Seconds) -> Seconds {
        self.update(iteration) * (samples as f64 / (self.iterations as f64 * batch as f64))
    }
}

/// Point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Samples in an iteration.
    pub batch: u64,
    /// Seconds of an iteration, stalls included.
    pub iteration: Seconds,
    /// Seconds of the ops alone, each in its fastest alternative.
    pub compute: Seconds,
    /// Division of an update among workers.
    pub sharing: Sharing,
    /// Seconds of one pass over the data: [`Sharing::epoch`].
    pub epoch: Seconds,
    /// Resident bytes and pool.
    pub peak: Bytes,
    /// Swapped and recomputed activations of an iteration.
    pub moved: Moved,
}

impl Candidate {
    /// Returns `true` if nothing is swapped and nothing recomputed.
    pub fn keeps_everything(&self) -> bool {
        self.moved.offloaded == Bytes::ZERO && self.moved.recomputed_ops == 0
    }
}

/// Plans of a search.
pub struct Search {
    request: SearchRequest,
    /// Every batch size that was tried; `None` if it has no plan.
    tried: BTreeMap<u64, Option<Planned>>,
    /// Share by which an epoch may exceed the shortest and count as equal.
    pub within: f64,
    /// `true` if [`Batches::stops`] or the number of evaluations ended the search before it was done.
    pub cut_short: bool,
}

/// Chosen batch size.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Plan at that batch size.
    pub plan: Planned,
    pub reason: Reason,
}

/// Reason why a candidate was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// It has the shortest epoch; `gain` is the share of the epoch that it saves over the largest batch that keeps everything,
    /// `None` if no batch does.
    Shortest {
        /// 1 - epoch / epoch of the batch that keeps everything.
        gain: Option<f64>,
    },
    /// A different batch promises a shorter epoch, but by no more than the model's error: swapping for that is a gamble, so
    /// everything is kept.
    WithinError {
        /// Batch that promises more.
        batch: u64,
        /// Share of the epoch that it promises to save.
        gain: f64,
        /// Relative error that the gain does not exceed.
        error: f64,
    },
    /// A different batch has a shorter epoch, by no more than the share that counts as equal; the chosen one swaps and recomputes
    /// for fewer seconds, or as long with a smaller batch.
    Near {
        /// Batch with the shorter epoch.
        batch: u64,
        /// Share of the epoch that it saves.
        saves: f64,
        /// Seconds of an iteration in which it swaps or recomputes.
        extra: Seconds,
        /// Share that counts as equal.
        within: f64,
    },
}

/// Points that the first pass spreads evenly over the range.
const SPREAD: u64 = 12;

/// Number of best points around which the search refines.
const BEST: usize = 3;

/// Maximum ratio of batch sizes between which a plan is carried.
const NEAR: f64 = 1.25;

/// Maximum relative advantage of an independent plan over a carried one.
const CARRIED: f64 = 0.01;

/// Plans at batch sizes over the range until the one with the shortest epoch is known. The order of evaluation, and so the result
/// of a search that is cut short by its number of evaluations, is the same for the same input.
///
/// # Errors
///
/// Errors of [`Batches::plan`].
pub fn search<B: Batches>(request: SearchRequest, batches: &mut B) -> Result<Search, B::Error> {
    let first = first_pass(&request);
    let within = request.within[0];
    let mut found = Search { request, tried: BTreeMap::new(), within, cut_short: false };
    for batch in first {
        found.evaluate(batch, batches)?;
    }
    loop {
        while let Some(batch) = found.next() {
            found.evaluate(batch, batches)?;
        }
        if !found.settle(batches)? {
            return Ok(found);
        }
    }
}

/// Returns the first batch sizes to plan: the two that matter most first, then powers of two and an even spread, largest first.
fn first_pass(request: &SearchRequest) -> Vec<u64> {
    let (least, most) = (request.least.max(1), request.most.min(request.dataset));
    let mut order = request.among.clone().unwrap_or_else(|| {
        let keeps_all = request.keeps_all.map(|k| k.min(most));
        let powers =
            (0..64).map(|i| 1u64 << i).take_while(|k| *k <= most).filter(|k| k.saturating_mul(64) > most);
        let spread = (1..=SPREAD).map(|i| (u128::from(most) * u128::from(i) / u128::from(SPREAD)) as u64);
        let mut rest: Vec<u64> = powers.chain(spread).chain([least]).collect();
        rest.sort_unstable_by(|a, b| b.cmp(a));
        keeps_all.into_iter().chain([most]).chain(rest).collect()
    });
    let mut seen = BTreeSet::new();
    order.retain(|k| (least..=most).contains(k) && seen.insert(*k));
    order
}

/// Orders by epoch, shortest first; then by swapping and recomputing, least first; then by batch, smallest first.
fn shorter(a: &Candidate, b: &Candidate) -> Ordering {
    a.epoch.0.total_cmp(&b.epoch.0).then(more_frugal(a, b))
}

/// Orders by swapping and recomputing, least first; then by batch, smallest first.
fn more_frugal(a: &Candidate, b: &Candidate) -> Ordering {
    a.moved.seconds().0.total_cmp(&b.moved.seconds().0).then(a.batch.cmp(&b.batch))
}

/// Returns, of candidates whose epoch takes no longer than a limit, the one that swaps and recomputes for the fewest seconds,
/// then the smallest batch; `None` if all take longer.
pub fn frugal(candidates: &[Candidate], longest: Seconds) -> Option<&Candidate> {
    candidates.iter().filter(|c| c.epoch <= longest).min_by(|a, b| more_frugal(a, b))
}

impl Search {
    fn evaluate<B: Batches>(&mut self, batch: u64, batches: &mut B) -> Result<(), B::Error> {
        if self.cut_short || self.tried.len() >= self.request.evaluations || batches.stops() {
            self.cut_short = true;
            return Ok(());
        }
        let plan = batches.plan(batch, self.near(batch))?;
        self.tried.insert(batch, plan);
        Ok(())
    }

    /// Returns the plan of the next larger batch, which gives up more than this one needs to; if there is none, of the next
    /// smaller one. `None` if both are far.
    fn near(&self, batch: u64) -> Option<&Planned> {
        let above = self.tried.range(batch + 1..).find_map(|(_, plan)| plan.as_ref());
        let below = self.tried.range(..batch).rev().find_map(|(_, plan)| plan.as_ref());
        let ratio = |other: u64| other.max(batch) as f64 / other.min(batch) as f64;
        [above, below].into_iter().flatten().find(|plan| ratio(plan.candidate.batch) <= NEAR)
    }

    /// Makes independent plans for the choice, and for each batch size with a carried plan that could change it. Returns `true` if
    /// there was one.
    fn settle<B: Batches>(&mut self, batches: &mut B) -> Result<bool, B::Error> {
        let mut any = false;
        while let Some(batch) = self.unsettled(batches) {
            if batches.stops() {
                self.cut_short = true;
                break;
            }
            any = true;
            let own = batches.plan(batch, None)?;
            let Some(plan) = self.tried.get_mut(&batch).and_then(Option::as_mut) else { break };
            if let Some(own) = own.filter(|own| own.candidate.iteration <= plan.candidate.iteration) {
                *plan = own;
            }
            // A plan that takes no longer than an independent one counts as independent.
            plan.carried = false;
        }
        Ok(any)
    }

    /// Returns the choice, if its plan is carried; else the smallest batch size that would change the choice if its independent
    /// plan were as fast as possible.
    fn unsettled(&self, batches: &impl Batches) -> Option<u64> {
        let mut curve = self.curve();
        let chosen = self.decide(&curve, batches)?.0.batch;
        if self.plan(chosen).is_some_and(|plan| plan.carried) {
            return Some(chosen);
        }
        let mut excess: f64 = 0.0;
        for (at, plan) in self.plans().enumerate() {
            let Candidate { batch, iteration, compute, sharing, .. } = plan.candidate;
            if !plan.carried {
                excess = excess.max(iteration / compute - 1.0);
                continue;
            }
            // A larger batch waits and recomputes for at least the same share of its time.
            let own = (iteration * (1.0 - CARRIED)).max(compute * (1.0 + excess));
            curve[at].epoch = sharing.epoch(self.request.dataset, batch, own);
            if self.decide(&curve, batches)?.0.batch != chosen {
                return Some(batch);
            }
            curve[at] = plan.candidate;
        }
        None
    }

    /// Returns the next batch size to plan: the middle of the widest gap next to one of the best few, the best one's gaps first,
    /// or of the gap below the present choice. `None` if all of these are closed, or nothing more may be planned.
    fn next(&self) -> Option<u64> {
        if self.cut_short || self.request.among.is_some() {
            return None;
        }
        let beside = |candidate: &Candidate| {
            let k = candidate.batch;
            let below = self.below(k);
            let above = self.tried.range(k + 1..).next().map_or(k, |(b, _)| *b);
            let (low, high) = if above - k > k - below { (k, above) } else { (below, k) };
            self.middle(low, high)
        };
        let ranked = self.ranked();
        ranked.iter().take(BEST).find_map(beside).or_else(|| {
            let chosen = frugal(&ranked, ranked.first()?.epoch * (1.0 + self.within))?.batch;
            self.middle(self.below(chosen), chosen)
        })
    }

    /// Returns the next smaller batch that was tried; if there is none, the one below the smallest.
    fn below(&self, batch: u64) -> u64 {
        self.tried.range(..batch).next_back().map_or(self.request.least.max(1) - 1, |(b, _)| *b)
    }

    /// Returns the middle of a gap; `None` if it is closed. Batches that are as near to each other as epochs that count as equal
    /// have none between them.
    fn middle(&self, low: u64, high: u64) -> Option<u64> {
        let middle = low + (high - low) / 2;
        let closed = (high - low) as f64 <= self.within * high as f64;
        (middle > low && !closed).then_some(middle)
    }

    /// Returns every batch size that was planned and fits, by batch size.
    pub fn curve(&self) -> Vec<Candidate> {
        self.plans().map(|plan| plan.candidate).collect()
    }

    /// Returns their plans.
    pub fn plans(&self) -> impl Iterator<Item = &Planned> {
        self.tried.values().flatten()
    }

    /// Returns the batch sizes that were tried and have no plan, ascending.
    pub fn no_plan(&self) -> Vec<u64> {
        self.tried.iter().filter(|(_, plan)| plan.is_none()).map(|(batch, _)| *batch).collect()
    }

    /// Returns every batch size that was planned and fits, the shortest epoch first.
    pub fn ranked(&self) -> Vec<Candidate> {
        let mut ranked = self.curve();
        ranked.sort_by(shorter);
        ranked
    }

    /// Returns the choice; `None` if no plan fits. A gain over the largest batch that keeps everything does not count if it is
    /// below the prediction's error.
    pub fn choose(&self, batches: &impl Batches) -> Option<Choice> {
        let curve = self.curve();
        let (chosen, reason) = self.decide(&curve, batches)?;
        Some(Choice { plan: self.plan(chosen.batch)?.clone(), reason })
    }

    /// Chooses a batch and runs it; `None` if no plan fits. If the run scatters by more than the share that counts as equal, more
    /// batch sizes are equal, and one of them may be the better choice.
    ///
    /// # Errors
    ///
    /// Errors of [`Batches`].
    pub fn confirm<B: Batches>(
        &mut self,
        batches: &mut B,
    ) -> Result<Option<(Choice, Option<Confirmed>)>, B::Error> {
        let mut chosen = self.choose(batches);
        while let Some(choice) = chosen.take() {
            let confirmed = batches.run(&choice.plan)?;
            let [least, most] = self.request.within;
            let within = confirmed.as_ref().map_or(least, |ran| ran.scatter.clamp(least, most));
            if within > self.within {
                self.within = within;
                self.settle(batches)?;
                chosen = self.choose(batches);
            }
            let batch = |choice: &Choice| choice.plan.candidate.batch;
            if chosen.as_ref().is_none_or(|wider| batch(wider) == batch(&choice)) {
                return Ok(Some((choice, confirmed)));
            }
        }
        Ok(None)
    }

    /// Returns the chosen candidate of a curve, with the reason; `None` for an empty one.
    fn decide<'c>(&self, curve: &'c [Candidate], batches: &impl Batches) -> Option<(&'c Candidate, Reason)> {
        let SearchRequest { keeps_all, most, dataset, .. } = self.request;
        let shortest = curve.iter().min_by(|a, b| shorter(a, b))?;
        let keeper = keeps_all.map(|batch| batch.min(most).min(dataset));
        let keeper = curve.iter().find(|c| Some(c.batch) == keeper && c.keeps_everything());
        let gain = keeper.map(|keeper| 1.0 - shortest.epoch / keeper.epoch);
        let mut reason = Reason::Shortest { gain };
        let mut reference = shortest;
        if let (Some(keeper), Some(gain)) = (keeper, gain)
            && !shortest.keeps_everything()
        {
            let error = batches.error(shortest.batch).max(batches.error(keeper.batch));
            if gain <= error {
                reason = Reason::WithinError { batch: shortest.batch, gain, error };
                reference = keeper;
            }
        }
        let within = self.within;
        let chosen = frugal(curve, reference.epoch * (1.0 + within)).unwrap_or(reference);
        if chosen.batch != reference.batch {
            let (batch, extra) = (reference.batch, reference.moved.seconds());
            reason = Reason::Near { batch, saves: 1.0 - reference.epoch / chosen.epoch, extra, within };
        }
        Some((chosen, reason))
    }

    fn plan(&self, batch: u64) -> Option<&Planned> {
        self.tried.get(&batch)?.as_ref()
    }
}

/// Activations of a trace that a schedule swaps and recomputes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// Most bytes of activations that are on the device at once.
    pub at_peak: Bytes,
    /// Bytes that are copied to the host in one iteration.
    pub offloaded: Bytes,
    /// Seconds in which the link copies, including those for which compute does not wait.
    pub swapping: Seconds,
    /// Number of ops that are recomputed.
    pub recomputed_ops: u64,
    /// Bytes of their outputs.
    pub recomputed: Bytes,
    pub recomputing: Seconds,
}

impl Moved {
    /// Returns the seconds of swapping and of recomputing.
    pub fn seconds(&self) -> Seconds {
        self.swapping + self.recomputing
    }
}

/// Returns the bytes that a schedule which passed [`plimsoll_ir::check`] swaps, recomputes and has on the device at its peak.
pub fn moved(trace: &Trace, schedule: &Schedule) -> Moved {
    let timeline = simulate(trace, schedule);
    let totals = timeline.totals(trace, schedule);
    let busy = |stream: Stream| totals.busy[stream.index()];
    Moved {
        at_peak: timeline.most_feature_maps(trace, schedule),
        offloaded: totals.offloaded,
        swapping: busy(Stream::Offload) + busy(Stream::Prefetch),
        recomputed_ops: totals.recomputed_ops,
        recomputed: totals.recomputed_bytes,
        recomputing: totals.recomputed,
    }
}

/// Returns the largest k in 1..=limit with a property that every smaller k has too; `None` if 1 does not have it. Calls `has`
/// about 2 log2(k) times: k doubles until it lacks the property, then the gap is halved.
pub fn largest<E>(limit: u64, has: &mut dyn FnMut(u64) -> Result<bool, E>) -> Result<Option<u64>, E> {
    if limit == 0 || !has(1)? {
        return Ok(None);
    }
    let mut good = 1;
    let mut bad = loop {
        if good == limit {
            return Ok(Some(limit));
        }
        let next = good.saturating_mul(2).min(limit);
        if !has(next)? {
            break next;
        }
        good = next;
    };
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if has(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(Some(good))
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
