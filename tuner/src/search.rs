//! The search for the batch size: the shortest epoch over all batch sizes that can be trained.
//!
//! The epoch takes dataset / k x (makespan(k) + Δ(k)) (AccUDNN eq. (3), one epoch of it), with several workers as
//! [`Sharing`] says. The makespan holds the stalls, so the objective is not monotone in k: a larger batch uses the machine
//! better until its transfers stall it. [`search`] therefore plans at batch sizes spread over the whole range and then closer
//! and closer around the best few, and gives the whole curve.
//!
//! A plan of its own takes a batch size some ten times as long as one that is made from the plan of its neighbour
//! ([`crate::PlanRequest::from`]), which is slower by little. So most batch sizes are carried from the nearest, which tells
//! where the short epochs are, and plans of their own are made where that could change the choice ([`Search::settle`]).
//!
//! The shortest epoch alone is the wrong goal where differences are noise: a batch that swaps 20 GiB in each iteration may
//! promise 0.1 % over one that swaps nothing. So of the batch sizes whose epoch is within a share of the shortest, the one is
//! taken that swaps and recomputes for the fewest seconds, and of those the smallest ([`Search::choose`]); a share of 0 takes
//! the shortest.
//!
//! Where what samples are worth depends on the size of an update ([`crate::goodput`]), epochs count by that: by the time that
//! the same progress takes.
//!
//! The quotient is a real number, as in the paper, although a last batch that is not full is
//! dropped and an epoch really runs floor(dataset / k) iterations: with the floor in the objective, the batch that throws
//! the most samples away would win.
//!
//! [`accudnn_batch`] is the search of AccUDNN itself (Algorithm 2), and [`largest`] finds the largest batch with a
//! property that smaller batches share: that it can be trained, that everything is kept.
//!
//! What it deliberately does not do: build traces, plan, or run anything. The caller hands in closures; this is logic.

use crate::iteration::earlier::Earlier;
use crate::request::PlanError;
use plimsoll_ir::schedule::{Schedule, Stream};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What is searched, and how far.
#[derive(Clone, Copy)]
pub struct SearchRequest<'a> {
    /// Samples in an epoch, at least 1.
    pub dataset: u64,
    /// The smallest batch to consider, at least 1: below it the user's recipe is another one.
    pub least: u64,
    /// The largest batch to consider, such as the largest trainable one; never more than the dataset has samples.
    pub most: u64,
    /// The largest batch that keeps everything on the device; none where not even one sample does. Considered where it
    /// is at least `least`.
    pub keeps_all: Option<u64>,
    /// Epochs that are longer than the shortest by no more than this share count as equal to it; 0 where every difference
    /// counts.
    pub within: f64,
    /// Batch sizes that are planned at most.
    pub evaluations: usize,
    /// True ends the search with what it has: a deadline, or the user's Ctrl-C.
    pub stop: &'a dyn Fn() -> bool,
}

/// A plan at one batch size, as the caller's planner gives it.
#[derive(Clone)]
pub struct Planned {
    /// The trace, with seconds.
    pub trace: Trace,
    /// Its schedule.
    pub schedule: Schedule,
    /// Its makespan by `simulate`.
    pub makespan: Seconds,
    /// How it was searched for.
    pub log: SearchLog,
    /// How workers share an update of such iterations.
    pub sharing: Sharing,
    /// Made from the plan of another batch size: a plan of its own may be faster.
    pub carried: bool,
}

/// Makes the plan of a batch size; none where no plan fits. Where the plan of a nearby batch size is given, one that is made
/// from it will do; else a plan of its own is asked for, which is not [`Planned::carried`].
pub type PlanAt<'a, E> = dyn FnMut(u64, Option<&Planned>) -> Result<Option<Planned>, E> + 'a;

impl Planned {
    /// What plans of other batch sizes can be made from.
    ///
    /// # Errors
    ///
    /// Those of [`Earlier::new`].
    pub fn earlier(&self) -> Result<Earlier, PlanError> {
        Earlier::new(&self.trace, &self.schedule)
    }
}

/// How workers share the iterations of an update, what their exchange adds to it (Δ of AccUDNN eq. (3)), and what its samples
/// are worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// Iterations of all workers together, at least 1.
    pub iterations: u64,
    /// Those of the worker that has the most.
    pub passes: u64,
    /// What is counted too often where each of the passes counts as an iteration: an update changes parameters once.
    pub repeated: Seconds,
    /// What an update takes beside its passes.
    pub exchange: Seconds,
    /// What a sample of such an update is worth ([`crate::goodput::efficiency`]); 1 where that is not asked about.
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

    /// What an update takes where an iteration, with what passes before the next, takes so long.
    pub fn update(&self, iteration: Seconds) -> Seconds {
        iteration * self.passes as f64 - self.repeated + self.exchange
    }

    /// One pass over so many samples.
    pub fn epoch(&self, samples: u64, batch: u64, iteration: Seconds) -> Seconds {
        self.update(iteration) * (samples as f64 / (self.iterations as f64 * batch as f64))
    }

    /// Samples a second of all workers.
    pub fn samples_per_second(&self, batch: u64, iteration: Seconds) -> f64 {
        self.iterations as f64 * batch as f64 / self.update(iteration).0
    }

    /// The same by what samples are worth.
    pub fn goodput(&self, batch: u64, iteration: Seconds) -> f64 {
        self.samples_per_second(batch, iteration) * self.efficiency
    }
}

/// One point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Samples in an iteration.
    pub batch: u64,
    /// One iteration, stalls included.
    pub iteration: Seconds,
    /// Between two iterations, such as for input; 0 until it is measured.
    pub between: Seconds,
    /// How workers share an update.
    pub sharing: Sharing,
    /// One pass over the data: [`Sharing::epoch`].
    pub epoch: Seconds,
    /// Resident bytes and pool.
    pub peak: Bytes,
    /// What becomes of the feature maps in an iteration.
    pub moved: Moved,
}

impl Candidate {
    /// What as much progress takes as one pass over the data makes with updates whose samples are worth 1.
    pub fn progress(&self) -> Seconds {
        self.epoch * (1.0 / self.sharing.efficiency)
    }

    /// Whether nothing is swapped and nothing recomputed.
    pub fn keeps_everything(&self) -> bool {
        self.moved.offloaded == Bytes::ZERO && self.moved.recomputed_ops == 0
    }
}

/// What a search found: at least one plan.
pub struct Search<'a> {
    request: SearchRequest<'a>,
    /// Every batch size that was tried; none where it has no plan.
    tried: BTreeMap<u64, Option<(Candidate, Planned)>>,
    /// Whether `stop` or the number of evaluations ended the search before it was done.
    pub cut_short: bool,
}

/// The batch size to take.
pub struct Choice {
    /// Its point of the curve.
    pub candidate: Candidate,
    /// Its plan.
    pub plan: Planned,
    /// Why that one.
    pub reason: Reason,
}

/// Why a candidate was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// It has the shortest epoch; `gain` is the share of the epoch that it saves over the largest batch that keeps
    /// everything, none where no batch does.
    Shortest {
        /// 1 - epoch / epoch of the batch that keeps everything.
        gain: Option<f64>,
    },
    /// Another batch promises a shorter epoch, but by no more than the model may be wrong: swapping for that is a gamble,
    /// so everything is kept.
    WithinError {
        /// The batch that promises more.
        batch: u64,
        /// The share of the epoch that it promises to save.
        gain: f64,
        /// The relative error that the gain does not pass.
        error: f64,
    },
    /// Another batch has a shorter epoch, by no more than the share that counts as equal; this one swaps and recomputes for
    /// fewer seconds, or as long with a smaller batch.
    Near {
        /// The batch with the shorter epoch.
        batch: u64,
        /// The share of the epoch that it saves.
        saves: f64,
        /// The seconds of an iteration in which it swaps or recomputes.
        extra: Seconds,
    },
}

/// Why a search gave nothing.
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
        /// The smallest batch.
        least: u64,
        /// The largest batch.
        most: u64,
        /// Plans allowed.
        evaluations: usize,
    },
    /// No batch size has a plan within the budget.
    #[error(
        "no plan fits at any of the {tried} batch sizes that were tried; raise the budget, or lower the largest batch"
    )]
    NoPlan {
        /// How many were tried.
        tried: usize,
    },
    /// It was stopped before the first plan was there.
    #[error("stopped before the first plan was made")]
    Stopped,
    /// The caller's planner failed.
    #[error(transparent)]
    Caller(#[from] E),
}

/// Points that the first pass spreads evenly over the range.
const SPREAD: u64 = 12;

/// How many of the best points the refinement looks around.
const BEST: usize = 3;

/// A plan is carried from a batch size up to this many times as large, or as small.
const NEAR: f64 = 1.25;

/// A plan of its own is taken to be faster by at most this share than one that is carried.
const CARRIED: f64 = 0.01;

/// The relative error of the model at a batch size.
pub type ErrorAt<'a> = dyn Fn(u64) -> f64 + 'a;

/// Finds the batch size with the shortest epoch. The order of evaluation, and so the result of a search that is cut short by
/// its number of evaluations, is the same for the same input.
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

/// The same for these batch sizes alone, such as those that divide a batch which is to be kept.
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

/// The first batch sizes to plan: the two that matter most first, then powers of two and an even spread, largest first.
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

/// Faster progress first; of equal ones less swapped and recomputed, then the smaller batch.
fn shorter(a: &Candidate, b: &Candidate) -> Ordering {
    a.progress().0.total_cmp(&b.progress().0).then(more_frugal(a, b))
}

/// Less swapped and recomputed first, then the smaller batch.
fn more_frugal(a: &Candidate, b: &Candidate) -> Ordering {
    a.moved.seconds().0.total_cmp(&b.moved.seconds().0).then(a.batch.cmp(&b.batch))
}

/// Of candidates whose progress takes no longer than a limit the one that swaps and recomputes for the fewest seconds, then the
/// smallest batch; none where all take longer.
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

    /// The plan of the next larger batch, which gives up more than this one needs to; where there is none, of the next smaller
    /// one. None where both are far.
    fn near(&self, batch: u64) -> Option<&Planned> {
        let above = self.tried.range(batch + 1..).find_map(|(_, point)| point.as_ref());
        let below = self.tried.range(..batch).rev().find_map(|(_, point)| point.as_ref());
        let ratio = |other: u64| other.max(batch) as f64 / other.min(batch) as f64;
        let mut both = [above, below].into_iter().flatten();
        both.find(|(candidate, _)| ratio(candidate.batch) <= NEAR).map(|(_, plan)| plan)
    }

    /// Makes plans of their own for the choice, and for each batch size with a carried plan that could change it, where epochs
    /// within a share of the shortest count as equal. Says whether there was one.
    ///
    /// # Errors
    ///
    /// Those of `plan_at`.
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
            // What takes no longer than a plan of its own stands for one.
            point.1.carried = false;
        }
        Ok(any)
    }

    /// The choice, where its plan is carried; else the smallest batch size that would make the choice another one if a plan of
    /// its own were as fast as it may be.
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
            // A larger batch waits and recomputes for no smaller share of its time.
            let own = (candidate.iteration * (1.0 - CARRIED)).max(fastest * (1.0 + excess));
            curve[at].epoch = candidate.sharing.epoch(self.request.dataset, candidate.batch, own);
            if self.decide(&curve, within, error_at)?.0.batch != chosen {
                return Some(candidate.batch);
            }
            curve[at] = *candidate;
        }
        None
    }

    /// The middle of the widest gap beside one of the best few, the best one's gaps first; none where every gap beside
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

    /// The middle of the gap below what would be chosen now; none where it is closed, or nothing more may be planned.
    fn below_the_choice(&self) -> Option<u64> {
        let shortest = self.curve().min_by(|a, b| shorter(a, b))?;
        let chosen = frugal(self.curve(), shortest.progress() * (1.0 + self.request.within))?.batch;
        self.middle(self.below(chosen), chosen)
    }

    /// The next smaller batch that was tried; where there is none, the one below the least.
    fn below(&self, batch: u64) -> u64 {
        self.tried.range(..batch).next_back().map_or(self.request.least - 1, |(b, _)| *b)
    }

    /// The middle of a gap; none where it is closed. Batches that are as near to each other as epochs that count as equal
    /// leave none between them.
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

    /// Every batch size that was planned and fits, by batch size.
    pub fn curve(&self) -> impl Iterator<Item = &Candidate> + Clone {
        self.tried.values().flatten().map(|(candidate, _)| candidate)
    }

    /// Their plans.
    pub fn plans(&self) -> impl Iterator<Item = &Planned> {
        self.tried.values().flatten().map(|(_, plan)| plan)
    }

    /// Batch sizes that were tried and have no plan, ascending.
    pub fn no_plan(&self) -> Vec<u64> {
        self.tried.iter().filter(|(_, point)| point.is_none()).map(|(batch, _)| *batch).collect()
    }

    /// Every batch size that was planned and fits, the shortest epoch first.
    pub fn ranked(&self) -> Vec<Candidate> {
        let mut ranked: Vec<Candidate> = self.curve().copied().collect();
        ranked.sort_by(shorter);
        ranked
    }

    /// The one with the shortest epoch.
    pub fn shortest(&self) -> &Candidate {
        self.curve().min_by(|a, b| shorter(a, b)).expect("a search that found nothing is an error")
    }

    /// The one to take, where epochs within a share of the shortest count as equal. What promises less over the largest batch
    /// that keeps everything than the model may be wrong is no gain.
    pub fn choose(&self, within: f64, error_at: &ErrorAt<'_>) -> Choice {
        let curve: Vec<Candidate> = self.curve().copied().collect();
        let (chosen, reason) =
            self.decide(&curve, within, error_at).expect("a search that found nothing is an error");
        let (candidate, plan) = self.point(chosen.batch).expect("it is of the curve");
        Choice { candidate: *candidate, plan: plan.clone(), reason }
    }

    /// The one to take of a curve, and why; none of an empty one.
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
    /// A point of the curve, from its plan.
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

/// What a schedule does with the feature maps of its trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// The most bytes of feature maps that are on the device at once.
    pub at_peak: Bytes,
    /// Bytes that are copied to the host in one iteration.
    pub offloaded: Bytes,
    /// Seconds in which the link copies, whether compute waits for it or not.
    pub swapping: Seconds,
    /// Ops that are recomputed.
    pub recomputed_ops: u64,
    /// Bytes of the tensors that they write.
    pub recomputed: Bytes,
    /// Seconds that this takes.
    pub recomputing: Seconds,
}

impl Moved {
    /// Seconds of swapping and of recomputing.
    pub fn seconds(&self) -> Seconds {
        self.swapping + self.recomputing
    }
}

/// What a schedule that passed [`plimsoll_ir::check`] swaps, recomputes and has on the device at its peak.
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

/// The largest k in 1..=limit with a property that every smaller k has too; none where 1 has it not. Asks about
/// 2 log2(k) times: k doubles until it has the property no longer, then the gap is halved.
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

/// AccUDNN's Algorithm 2 (§4.1): from the largest trainable batch `most` down by one, to `least`, until `plan_at` has a plan
/// that meets both constraints, (4) and (6): eq. (6) holds for every layer after what violates it was pinned in the memory
/// that the smaller batch frees ([`crate::policies::papers::accudnn::satisfies`]), and what is pinned has addresses within
/// the budget, which the paper takes for granted. Gives the batch and its plan; none where there is none, or once `stop` says
/// so.
///
/// Linear, as in the paper: eq. (6) is not monotone in k, so that larger steps could pass by the batch at which the paper's
/// loop ends.
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

/// What comes of running the choice for a few iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Measurement and prediction agree within the error; what was measured is what is reported.
    Accept,
    /// They do not: fit the model again with the new samples, and search again.
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
    /// One iteration.
    pub iteration: Seconds,
    /// Resident bytes and pool.
    pub peak: Bytes,
    /// The relative error that goes with the time: of the model on held-out samples, or the spread of the measurement.
    pub relative_error: f64,
}

/// Whether a measured choice confirms its prediction: the times differ by no more than the prediction's relative error,
/// and the peak, which is computed and not fitted, is no larger than predicted. A measurement that is no number refits.
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
