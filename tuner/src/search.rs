//! Search for the batch size: the shortest epoch over all batch sizes that can be trained.
//!
//! The epoch takes dataset / k x (makespan(k) + Δ(k)) (AccUDNN eq. (3), one epoch of it), with several workers as in [`Sharing`].
//! The makespan includes the stalls, so the objective is not monotone in k: a larger batch uses the machine better until its
//! transfers stall it. [`search`] therefore plans at batch sizes spread over the whole range and then closer and closer around
//! the best few, and returns the whole curve.
//!
//! An independent plan of a batch size takes some ten times as long as one that is adapted from its neighbour's plan
//! ([`crate::PlanRequest::from`]), which is only a little slower. So most batch sizes are carried from the nearest, which shows
//! where the short epochs are, and independent plans are made if they could change the choice ([`Search::settle`]).
//!
//! The shortest epoch alone is the wrong goal if differences are noise: a batch that swaps 20 GiB in each iteration may promise
//! 0.1 % over one that swaps nothing. So among the batch sizes whose epoch is within a share of the shortest, the choice is the
//! one that swaps and recomputes for the fewest seconds, and of those the smallest ([`Search::choose`]); a share of 0 takes the
//! shortest.
//!
//! If the value of samples depends on the size of an update ([`crate::goodput`]), epochs count by the time of equal progress.
//!
//! The quotient is a real number, as in the paper, although a last batch that is not full is dropped and an epoch really runs
//! floor(dataset / k) iterations: with the floor in the objective, the batch that throws the most samples away would win.
//!
//! [`accudnn_batch`] is the search of AccUDNN itself (Algorithm 2), and [`largest`] finds the largest batch with a property that
//! smaller batches share: that it can be trained, that everything is kept.
//!
//! This file deliberately neither builds traces, nor plans, nor runs anything. The caller passes in closures.

use crate::iteration::earlier::Earlier;
use crate::request::PlanError;
use plimsoll_ir::schedule::{Schedule, Stream};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Range and limits of the search.
#[derive(Clone, Copy)]
pub struct SearchRequest<'a> {
    /// Samples in an epoch, at least 1.
    pub dataset: u64,
    /// Smallest batch to consider, at least 1; a smaller one would change the user's recipe.
    pub least: u64,
    /// Largest batch to consider, such as the largest trainable one; never more than the dataset has samples.
    pub most: u64,
    /// Largest batch that keeps everything on the device; `None` if not even one sample does. Considered if it is at least
    /// `least`.
    pub keeps_all: Option<u64>,
    /// Epochs that are longer than the shortest by at most this share count as equal to it; 0 if every difference counts.
    pub within: f64,
    /// Maximum number of batch sizes planned.
    pub evaluations: usize,
    /// Returns `true` to end the search with its present result: a deadline, or the user's Ctrl-C.
    pub stop: &'a dyn Fn() -> bool,
}

/// Plan at one batch size, as returned by the caller's planner.
#[derive(Clone)]
pub struct Planned {
    /// Trace, with seconds.
    pub trace: Trace,
    /// Schedule of the plan.
    pub schedule: Schedule,
    /// Makespan by `simulate`.
    pub makespan: Seconds,
    /// Log of the planner's search.
    pub log: SearchLog,
    /// Division of an update of such iterations among workers.
    pub sharing: Sharing,
    /// `true` if adapted from the plan of a different batch size: an independent plan may be faster.
    pub carried: bool,
}

/// Returns the plan of a batch size; `None` if no plan fits. If the plan of a nearby batch size is given, a plan adapted from it
/// suffices; else the plan must be independent, that is not [`Planned::carried`].
pub type PlanAt<'a, E> = dyn FnMut(u64, Option<&Planned>) -> Result<Option<Planned>, E> + 'a;

impl Planned {
    /// Returns the decisions from which plans of other batch sizes can be made.
    ///
    /// # Errors
    ///
    /// Errors of [`Earlier::new`].
    pub fn earlier(&self) -> Result<Earlier, PlanError> {
        Earlier::new(&self.trace, &self.schedule)
    }
}

/// Division of an update's iterations among workers, the cost of their exchange (Δ of AccUDNN eq. (3)), and the value of its
/// samples.
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
    /// Value of a sample of such an update ([`crate::goodput::efficiency`]); 1 if that is not considered.
    pub efficiency: f64,
}

impl Sharing {
    /// One worker, which updates in each iteration.
    pub const ALONE: Sharing = Sharing {
        iterations: 1,
        passes: 1,
        repeated: Seconds::ZERO,
        exchange: Seconds::ZERO,
        efficiency: 1.0,
    };

    /// Returns the seconds of an update, given those of an iteration with the time until the next.
    pub fn update(&self, iteration: Seconds) -> Seconds {
        iteration * self.passes as f64 - self.repeated + self.exchange
    }

    /// Returns the seconds of one pass over this many samples.
    pub fn epoch(&self, samples: u64, batch: u64, iteration: Seconds) -> Seconds {
        self.update(iteration) * (samples as f64 / (self.iterations as f64 * batch as f64))
    }

    /// Returns the samples per second of all workers.
    pub fn samples_per_second(&self, batch: u64, iteration: Seconds) -> f64 {
        self.iterations as f64 * batch as f64 / self.update(iteration).0
    }

    /// Returns the samples per second, weighted by their value.
    pub fn goodput(&self, batch: u64, iteration: Seconds) -> f64 {
        self.samples_per_second(batch, iteration) * self.efficiency
    }
}

/// Point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Samples in an iteration.
    pub batch: u64,
    /// Seconds of an iteration, stalls included.
    pub iteration: Seconds,
    /// Seconds between two iterations, such as for input; 0 until it is measured.
    pub between: Seconds,
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
    /// Returns the seconds in which training makes the progress of one pass over the data with samples of value 1.
    pub fn progress(&self) -> Seconds {
        self.epoch * (1.0 / self.sharing.efficiency)
    }

    /// Returns `true` if nothing is swapped and nothing recomputed.
    pub fn keeps_everything(&self) -> bool {
        self.moved.offloaded == Bytes::ZERO && self.moved.recomputed_ops == 0
    }
}

/// Result of a search: at least one plan.
pub struct Search<'a> {
    request: SearchRequest<'a>,
    /// Every batch size that was tried; `None` if it has no plan.
    tried: BTreeMap<u64, Option<(Candidate, Planned)>>,
    /// `true` if `stop` or the number of evaluations ended the search before it was done.
    pub cut_short: bool,
}

/// Chosen batch size.
pub struct Choice {
    /// Its point of the curve.
    pub candidate: Candidate,
    /// Plan at that batch size.
    pub plan: Planned,
    /// Reason for the choice.
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
    },
}

/// Reason why a search found nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError<E> {
    /// There is nothing to search.
    #[error(
        "nothing to search: {dataset} samples, batches from {least} to {most}, {evaluations} plans allowed; each must be \
         at least 1, and the range not empty"
    )]
    Empty {
        /// Samples in an epoch.
        dataset: u64,
        /// Smallest batch.
        least: u64,
        /// Largest batch.
        most: u64,
        /// Maximum number of plans.
        evaluations: usize,
    },
    /// No batch size has a plan within the budget.
    #[error(
        "no plan fits at any of the {tried} batch sizes that were tried; raise the budget, or lower the largest batch"
    )]
    NoPlan {
        /// Number of batch sizes tried.
        tried: usize,
    },
    /// The search was stopped before the first plan.
    #[error("stopped before the first plan was made")]
    Stopped,
    /// The caller's planner failed.
    #[error(transparent)]
    Caller(#[from] E),
}

/// Points that the first pass spreads evenly over the range.
const SPREAD: u64 = 12;

/// Number of best points around which the search refines.
const BEST: usize = 3;

/// Maximum ratio of batch sizes between which a plan is carried.
const NEAR: f64 = 1.25;

/// Maximum relative advantage of an independent plan over a carried one.
const CARRIED: f64 = 0.01;

/// Relative error of the model at a batch size.
pub type ErrorAt<'a> = dyn Fn(u64) -> f64 + 'a;

/// Finds the batch size with the shortest epoch. The order of evaluation, and so the result of a search that is cut short by its
/// number of evaluations, is the same for the same input.
pub fn search<'a, E>(
    request: SearchRequest<'a>,
    error_at: &ErrorAt<'_>,
    plan_at: &mut PlanAt<'_, E>,
) -> Result<Search<'a>, SearchError<E>> {
    let most = request.most.min(request.dataset);
    if request.least == 0 || most < request.least || request.evaluations == 0 {
        let SearchRequest { dataset, least, most, evaluations, .. } = request;
        return Err(SearchError::Empty { dataset, least, most, evaluations });
    }
    let mut found = Search::new(request);
    for batch in first_pass(request.least, most, request.keeps_all) {
        found.evaluate(batch, plan_at)?;
    }
    loop {
        while let Some(batch) = found.beside_the_best().or_else(|| found.below_the_choice()) {
            found.evaluate(batch, plan_at)?;
        }
        if !found.settle(request.within, error_at, plan_at)? {
            return found.finish();
        }
    }
}

/// Searches these batch sizes only, such as those that divide a fixed batch.
pub fn search_among<'a, E>(
    request: SearchRequest<'a>,
    batches: &[u64],
    error_at: &ErrorAt<'_>,
    plan_at: &mut PlanAt<'_, E>,
) -> Result<Search<'a>, SearchError<E>> {
    let mut found = Search::new(request);
    for batch in batches {
        found.evaluate(*batch, plan_at)?;
    }
    found.settle(request.within, error_at, plan_at)?;
    found.finish()
}

/// Returns the first batch sizes to plan: the two that matter most first, then powers of two and an even spread, largest first.
fn first_pass(least: u64, most: u64, keeps_all: Option<u64>) -> Vec<u64> {
    let keeps_all = keeps_all.map(|k| k.min(most));
    let mut order: Vec<u64> = keeps_all.into_iter().chain([most]).collect();
    let powers =
        (0..64).map(|i| 1u64 << i).take_while(|k| *k <= most).filter(|k| k.saturating_mul(64) > most);
    let spread = (1..=SPREAD).map(|i| (u128::from(most) * u128::from(i) / u128::from(SPREAD)) as u64);
    let mut rest: Vec<u64> = powers.chain(spread).chain([least]).collect();
    rest.sort_unstable_by(|a, b| b.cmp(a));
    order.extend(rest);
    let mut seen = std::collections::BTreeSet::new();
    order.retain(|k| *k >= least && seen.insert(*k));
    order
}

/// Orders by progress, fastest first; then by swapping and recomputing, least first; then by batch, smallest first.
fn shorter(a: &Candidate, b: &Candidate) -> Ordering {
    a.progress().0.total_cmp(&b.progress().0).then(more_frugal(a, b))
}

/// Orders by swapping and recomputing, least first; then by batch, smallest first.
fn more_frugal(a: &Candidate, b: &Candidate) -> Ordering {
    a.moved.seconds().0.total_cmp(&b.moved.seconds().0).then(a.batch.cmp(&b.batch))
}

/// Returns, of candidates whose progress takes no longer than a limit, the one that swaps and recomputes for the fewest seconds,
/// then the smallest batch; `None` if all take longer.
pub fn frugal<'c>(
    candidates: impl Iterator<Item = &'c Candidate>,
    longest: Seconds,
) -> Option<&'c Candidate> {
    candidates.filter(|c| c.progress() <= longest).min_by(|a, b| more_frugal(a, b))
}

impl<'a> Search<'a> {
    fn new(request: SearchRequest<'a>) -> Search<'a> {
        Search { request, tried: BTreeMap::new(), cut_short: false }
    }

    fn evaluate<E>(&mut self, batch: u64, plan_at: &mut PlanAt<'_, E>) -> Result<(), E> {
        if self.cut_short || self.tried.len() >= self.request.evaluations || (self.request.stop)() {
            self.cut_short = true;
            return Ok(());
        }
        let plan = plan_at(batch, self.near(batch))?;
        let point = plan.map(|plan| (self.request.candidate(batch, &plan), plan));
        self.tried.insert(batch, point);
        Ok(())
    }

    /// Returns the plan of the next larger batch, which gives up more than this one needs to; if there is none, of the next
    /// smaller one. `None` if both are far.
    fn near(&self, batch: u64) -> Option<&Planned> {
        let above = self.tried.range(batch + 1..).find_map(|(_, point)| point.as_ref());
        let below = self.tried.range(..batch).rev().find_map(|(_, point)| point.as_ref());
        let ratio = |other: u64| other.max(batch) as f64 / other.min(batch) as f64;
        let mut both = [above, below].into_iter().flatten();
        both.find(|(candidate, _)| ratio(candidate.batch) <= NEAR).map(|(_, plan)| plan)
    }

    /// Makes independent plans for the choice, and for each batch size with a carried plan that could change it, if epochs within
    /// a share of the shortest count as equal. Returns `true` if there was one.
    ///
    /// # Errors
    ///
    /// Errors of `plan_at`.
    pub fn settle<E>(
        &mut self,
        within: f64,
        error_at: &ErrorAt<'_>,
        plan_at: &mut PlanAt<'_, E>,
    ) -> Result<bool, E> {
        let mut any = false;
        while let Some(batch) = self.unsettled(within, error_at) {
            if (self.request.stop)() {
                self.cut_short = true;
                break;
            }
            any = true;
            let own = plan_at(batch, None)?.map(|plan| (self.request.candidate(batch, &plan), plan));
            let Some(point) = self.tried.get_mut(&batch).and_then(Option::as_mut) else { break };
            if let Some(own) = own.filter(|(candidate, _)| candidate.iteration <= point.0.iteration) {
                *point = own;
            }
            // A plan that takes no longer than an independent one counts as independent.
            point.1.carried = false;
        }
        Ok(any)
    }

    /// Returns the choice, if its plan is carried; else the smallest batch size that would change the choice if its independent
    /// plan were as fast as possible.
    fn unsettled(&self, within: f64, error_at: &ErrorAt<'_>) -> Option<u64> {
        let mut curve: Vec<Candidate> = self.curve().copied().collect();
        let chosen = self.decide(&curve, within, error_at)?.0.batch;
        if self.point(chosen).is_some_and(|(_, plan)| plan.carried) {
            return Some(chosen);
        }
        let mut excess: f64 = 0.0;
        for (at, (candidate, plan)) in self.tried.values().flatten().enumerate() {
            let fastest = plan.trace.fastest_seconds();
            if !plan.carried {
                excess = excess.max(candidate.iteration / fastest - 1.0);
                continue;
            }
            // A larger batch waits and recomputes for at least the same share of its time.
            let own = (candidate.iteration * (1.0 - CARRIED)).max(fastest * (1.0 + excess));
            curve[at].epoch = candidate.sharing.epoch(self.request.dataset, candidate.batch, own);
            if self.decide(&curve, within, error_at)?.0.batch != chosen {
                return Some(candidate.batch);
            }
            curve[at] = *candidate;
        }
        None
    }

    /// Returns the middle of the widest gap next to one of the best few, the best one's gaps first; `None` if every gap next to
    /// them is closed, or nothing more may be planned.
    fn beside_the_best(&self) -> Option<u64> {
        self.ranked().iter().take(BEST).find_map(|candidate| {
            let k = candidate.batch;
            let below = self.below(k);
            let above = self.tried.range(k + 1..).next().map_or(k, |(b, _)| *b);
            let (low, high) = if above - k > k - below { (k, above) } else { (below, k) };
            self.middle(low, high)
        })
    }

    /// Returns the middle of the gap below the present choice; `None` if it is closed, or nothing more may be planned.
    fn below_the_choice(&self) -> Option<u64> {
        let shortest = self.curve().min_by(|a, b| shorter(a, b))?;
        let chosen = frugal(self.curve(), shortest.progress() * (1.0 + self.request.within))?.batch;
        self.middle(self.below(chosen), chosen)
    }

    /// Returns the next smaller batch that was tried; if there is none, the one below the smallest.
    fn below(&self, batch: u64) -> u64 {
        self.tried.range(..batch).next_back().map_or(self.request.least - 1, |(b, _)| *b)
    }

    /// Returns the middle of a gap; `None` if it is closed. Batches that are as near to each other as epochs that count as equal
    /// have none between them.
    fn middle(&self, low: u64, high: u64) -> Option<u64> {
        let middle = low + (high - low) / 2;
        let closed = (high - low) as f64 <= self.request.within * high as f64;
        (middle > low && !closed && !self.cut_short).then_some(middle)
    }

    fn finish<E>(self) -> Result<Search<'a>, SearchError<E>> {
        if self.tried.values().any(Option::is_some) {
            return Ok(self);
        }
        let tried = self.tried.len();
        Err(if self.cut_short && tried == 0 { SearchError::Stopped } else { SearchError::NoPlan { tried } })
    }

    /// Returns every batch size that was planned and fits, by batch size.
    pub fn curve(&self) -> impl Iterator<Item = &Candidate> + Clone {
        self.tried.values().flatten().map(|(candidate, _)| candidate)
    }

    /// Returns their plans.
    pub fn plans(&self) -> impl Iterator<Item = &Planned> {
        self.tried.values().flatten().map(|(_, plan)| plan)
    }

    /// Returns the batch sizes that were tried and have no plan, ascending.
    pub fn no_plan(&self) -> Vec<u64> {
        self.tried.iter().filter(|(_, point)| point.is_none()).map(|(batch, _)| *batch).collect()
    }

    /// Returns every batch size that was planned and fits, the shortest epoch first.
    pub fn ranked(&self) -> Vec<Candidate> {
        let mut ranked: Vec<Candidate> = self.curve().copied().collect();
        ranked.sort_by(shorter);
        ranked
    }

    /// Returns the candidate with the shortest epoch.
    pub fn shortest(&self) -> &Candidate {
        self.curve().min_by(|a, b| shorter(a, b)).expect("a search that found nothing is an error")
    }

    /// Returns the choice, if epochs within a share of the shortest count as equal. A gain over the largest batch that keeps
    /// everything does not count if it is below the model's error.
    pub fn choose(&self, within: f64, error_at: &ErrorAt<'_>) -> Choice {
        let curve: Vec<Candidate> = self.curve().copied().collect();
        let (chosen, reason) =
            self.decide(&curve, within, error_at).expect("a search that found nothing is an error");
        let (candidate, plan) = self.point(chosen.batch).expect("it is of the curve");
        Choice { candidate: *candidate, plan: plan.clone(), reason }
    }

    /// Returns the chosen candidate of a curve, with the reason; `None` for an empty one.
    fn decide<'c>(
        &self,
        curve: &'c [Candidate],
        within: f64,
        error_at: &ErrorAt<'_>,
    ) -> Option<(&'c Candidate, Reason)> {
        let SearchRequest { keeps_all, most, dataset, .. } = self.request;
        let shortest = curve.iter().min_by(|a, b| shorter(a, b))?;
        let keeper = keeps_all.map(|batch| batch.min(most).min(dataset));
        let keeper = curve.iter().find(|c| Some(c.batch) == keeper && c.keeps_everything());
        let gain = keeper.map(|keeper| 1.0 - shortest.progress() / keeper.progress());
        let mut reason = Reason::Shortest { gain };
        let mut reference = shortest;
        if let (Some(keeper), Some(gain)) = (keeper, gain)
            && !shortest.keeps_everything()
        {
            let error = error_at(shortest.batch).max(error_at(keeper.batch));
            if gain <= error {
                reason = Reason::WithinError { batch: shortest.batch, gain, error };
                reference = keeper;
            }
        }
        let chosen = frugal(curve.iter(), reference.progress() * (1.0 + within)).unwrap_or(reference);
        if chosen.batch != reference.batch {
            let (batch, extra) = (reference.batch, reference.moved.seconds());
            reason = Reason::Near { batch, saves: 1.0 - reference.progress() / chosen.progress(), extra };
        }
        Some((chosen, reason))
    }

    fn point(&self, batch: u64) -> Option<&(Candidate, Planned)> {
        self.tried.get(&batch)?.as_ref()
    }
}

impl SearchRequest<'_> {
    /// Returns a point of the curve, from its plan.
    pub fn candidate(&self, batch: u64, plan: &Planned) -> Candidate {
        let moved = moved(&plan.trace, &plan.schedule);
        Candidate {
            batch,
            iteration: plan.makespan,
            between: Seconds::ZERO,
            sharing: plan.sharing,
            epoch: plan.sharing.epoch(self.dataset, batch, plan.makespan),
            peak: plan.trace.resident_bytes + plan.schedule.pool_bytes,
            moved,
        }
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
    /// Seconds of recomputing.
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

/// AccUDNN's Algorithm 2 (§4.1): from the largest trainable batch `most` down by one, to `least`, until `plan_at` has a plan that
/// meets both constraints, (4) and (6): eq. (6) holds for every layer after pinning those that violate it in the memory that the
/// smaller batch frees ([`crate::policies::papers::accudnn::satisfies`]), and the pinned activations have addresses within the
/// budget, which the paper takes for granted. Returns the batch and its plan; `None` if there is none, or once `stop` returns
/// `true`.
///
/// Linear, as in the paper: eq. (6) is not monotone in k, so that larger steps could skip the batch at which the paper's loop
/// ends.
pub fn accudnn_batch<T, E>(
    least: u64,
    most: u64,
    stop: &dyn Fn() -> bool,
    plan_at: &mut dyn FnMut(u64) -> Result<Option<T>, E>,
) -> Result<Option<(u64, T)>, E> {
    for k in (least.max(1)..=most).rev().take_while(|_| !stop()) {
        if let Some(plan) = plan_at(k)? {
            return Ok(Some((k, plan)));
        }
    }
    Ok(None)
}

/// Result of running the choice for a few iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Measurement and prediction agree within the error; the measurement is reported.
    Accept,
    /// They do not agree: fit the model again with the new samples, and search again.
    Refit {
        /// measured / predicted iteration - 1.
        iteration_off: f64,
        /// measured / predicted peak - 1.
        peak_off: f64,
    },
}

/// Iteration time and peak memory, predicted or measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// Seconds of an iteration.
    pub iteration: Seconds,
    /// Resident bytes and pool.
    pub peak: Bytes,
    /// Relative error of the time: of the model on held-out samples, or the spread of the measurement.
    pub relative_error: f64,
}

/// Compares a measured choice with its prediction. They agree if the times differ by at most the prediction's relative error, and
/// the peak, which is computed and not fitted, is no larger than predicted. A measurement that is not a number requires a refit.
pub fn confirm(predicted: &Observed, measured: &Observed) -> Verdict {
    let iteration_off = measured.iteration / predicted.iteration - 1.0;
    let peak_off = measured.peak.to_f64() / predicted.peak.to_f64() - 1.0;
    if iteration_off.abs() <= predicted.relative_error && measured.peak <= predicted.peak {
        Verdict::Accept
    } else {
        Verdict::Refit { iteration_off, peak_off }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
