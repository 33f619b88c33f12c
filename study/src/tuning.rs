//! Tuning: from a profile to a config that was measured (AccUDNN §4, improved).
//!
//! The model is fitted, the planner plans at batch sizes over the whole range, and the best one is run for some iterations,
//! next to the largest batch that keeps everything. Epochs within 1 % of the shortest count as equal, or within the scatter of
//! the runs, up to 3 %. Of those batches, the search takes the one that spends the fewest seconds on swapping and recomputing,
//! then the smallest ([`Objective::Frugal`]). If the time of one of the two runs differs from its prediction by more than the
//! stated error, its samples join the profile and the search begins anew. The result has been measured; if keeping everything
//! is measured to be no slower, the result keeps everything.
//!
//! AccUDNN's own search, Algorithm 2, is also made, and its answer is run. If it is requested by name, its answer is the
//! result, even if a faster one exists, and the other search's answer is run for comparison.

mod choice;
mod document;
mod journal;
mod measured;
mod plain;
mod sharing;

pub use choice::{earlier, keep};
pub use document::other_name;
pub use measured::{Measured, missed, run_missed};
pub use plain::{ACCUMULATED, RECOMPUTED, Way};

use crate::error::{Error, Kind};
use crate::folder::Study;
use crate::measure::largest;
use crate::request::{ClusterRequest, GoodputRequest, Objective, RateRequest, Searcher, TuneRequest};
use crate::watch::{Step, Watch};
use crate::workload::{Confirmed, Workload};
use journal::{Noted, PlanJournal};
use measured::{Ran, Timed, wants_refit};
use plimsoll_ir::Seconds;
use plimsoll_ir::config::{Config, ConfigKind, Figures, Goodput, LearningRate};
use plimsoll_ir::profile::{BatchSamples, Profile};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::tuning::{Round, Tuning};
use plimsoll_tuner::goodput::efficiency;
use plimsoll_tuner::model::Model;
use plimsoll_tuner::policies::papers::accudnn::satisfies;
use plimsoll_tuner::rate::{learning_rate, warmup_iterations};
use plimsoll_tuner::search::{
    Candidate, Planned, Search, SearchError, SearchRequest, accudnn_batch, search, search_among,
};
use plimsoll_tuner::{Earlier, Outcome as PlanOutcome, PlanRequest, Policy, plan_with_log};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

/// Advice after a stopped tuning.
pub(crate) const GOES_ON: &str = "the same command goes on from the profile";

/// Words for a search of AccUDNN that has no answer.
const NO_ALGORITHM_2: &str = "AccUDNN's eq. (6) holds, with a plan that fits, at no batch";

/// The error of a search that was stopped.
fn stopped() -> Error {
    Error::new(Kind::Interrupted, "stopped while searching batch sizes; the profile is kept").help(GOES_ON)
}

impl TuneRequest {
    /// Returns the share by which an epoch may exceed the shortest and count as equal to it, if measurements scatter by this
    /// much.
    fn within(&self, scatter: f64) -> f64 {
        match self.objective {
            Objective::Frugal => counts_as_equal(scatter),
            Objective::Fastest => 0.0,
        }
    }

    /// Returns the largest batch to consider. Fails if the request contradicts itself, before anything is measured.
    pub fn limit(&self, workload: &dyn Workload) -> Result<u64, Error> {
        let RateRequest { base_batch, base_rate, rule } = self.rate;
        learning_rate(rule, base_batch, base_rate, base_batch)?;
        let samples = workload.samples();
        let limit = workload.most(self.max_batch)?;
        if limit < self.min_batch {
            let least = self.min_batch;
            return Err(Error::usage(format_args!(
                "no batch is at least {least} and at most {limit} ({samples} samples to train on)"
            ))
            .help("lower --min-batch, which is the base batch by default, or raise --max-batch"));
        }
        let Some(cluster) = &self.cluster else { return Ok(limit) };
        let least = self.min_batch.max(workload.smallest_batch());
        let (workers, update) = (cluster.workers, cluster.update_of(least));
        if update > samples {
            return Err(Error::usage(format_args!(
                "an update of {workers} workers takes {update} samples, and there are {samples} to train on"
            ))
            .help("lower --global-batch, --workers or --min-batch, or choose other --data"));
        }
        self.takes_one(least, limit)?;
        Ok(cluster.global_batch.map_or(limit.min(samples / workers), |global| limit.min(global / workers)))
    }

    /// Returns the largest requested batch that can be trained.
    pub(crate) fn largest(&self, workload: &dyn Workload, watch: &Watch<'_>) -> Result<u64, Error> {
        let batches = self.min_batch..=self.limit(workload)?;
        let largest = largest(workload, self.budget, &batches, watch)?;
        self.takes_one(self.min_batch.max(workload.smallest_batch()), largest)?;
        Ok(largest)
    }

    /// Returns `true` if this batch can be chosen.
    fn takes(&self, batch: u64) -> bool {
        self.cluster.is_none_or(|cluster| cluster.takes(batch))
    }

    /// Checks that a range contains a batch that can be chosen.
    fn takes_one(&self, least: u64, most: u64) -> Result<(), Error> {
        match self.cluster {
            Some(ClusterRequest { workers, global_batch: Some(global), .. })
                if !(least..=most.min(global / workers)).any(|batch| self.takes(batch)) =>
            {
                Err(Error::usage(format_args!(
                    "no batch from {least} to {most} divides a global batch of {global} into at least {workers} parts"
                ))
                .help("choose a --global-batch with more divisors, fewer --workers, or another --min-batch or --max-batch"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the worth of a sample in an update of `global` samples.
    fn efficiency(&self, global: u64) -> f64 {
        self.goodput.map_or(1.0, |goodput| efficiency(goodput.noise_scale, self.rate.base_batch, global))
    }

    /// Returns the policy that plans the chosen batch.
    pub fn policy(&self) -> Policy {
        match self.search {
            Searcher::Plimsoll => Policy::Plimsoll,
            Searcher::Accudnn => Policy::Accudnn { as_printed: false },
        }
    }
}

/// Result of a tuning.
pub struct Tuned {
    /// Config to run.
    pub config: Config,
    /// Schedule to run.
    pub schedule: Schedule,
    /// Iteration that the schedule is for, with the model's seconds.
    pub trace: Trace,
    /// The choice, as measured.
    pub chosen: Measured,
    /// Largest batch that keeps everything; `None` if not even one sample does.
    pub keeper: Option<Measured>,
    /// Base batch with everything kept; `None` if it does not fit.
    pub yours: Option<Measured>,
    /// Ways to train the base batch without a planner, if it does not fit with everything kept.
    pub ways: Vec<Way>,
    /// Search that made the choice.
    pub search: Searcher,
    /// Answer of the other search; `None` if it has none.
    pub other: Option<Measured>,
    /// Every batch size that was planned in the last round.
    pub curve: Vec<Candidate>,
    /// Record of everything that was tried and measured.
    pub tuning: Tuning,
}

impl Tuned {
    /// Returns how often the model was refitted with the choice's measured times.
    pub fn refits(&self) -> u64 {
        self.tuning.rounds.iter().filter(|round| round.refit).count() as u64
    }
}

/// Maximum number of refits; after that, the report shows measured and predicted times.
const REFITS: usize = 3;

/// Bounds of the share within which epochs count as equal to the shortest; in between, the scatter of measurements decides.
const WITHIN_LEAST: f64 = 0.01;
const WITHIN_MOST: f64 = 0.03;

/// Returns the share by which an epoch may exceed the shortest and count as equal to it, if measurements scatter by this much.
pub fn counts_as_equal(scatter: f64) -> f64 {
    scatter.clamp(WITHIN_LEAST, WITHIN_MOST)
}

/// Maximum number of batch sizes that a search plans.
const EVALUATIONS: usize = 40;

/// Share of the time that other processes may have the processors before it is reported.
const TOLD: f64 = 0.05;

/// Inputs of one tuning, besides the profile.
pub(crate) struct Tuner<'a> {
    pub workload: &'a dyn Workload,
    pub request: &'a TuneRequest,
    /// Largest batch that can be trained.
    pub largest: u64,
    /// Largest batch that keeps everything, of those that can be chosen.
    pub keeps_all: Option<u64>,
    /// By batch size: seconds of planning and of the ops alone.
    pub costs: RefCell<BTreeMap<u64, Cost>>,
    /// Plans of this round.
    journal: RefCell<PlanJournal>,
    /// By batch size: the plan of the previous round, which used slightly different seconds.
    before: RefCell<BTreeMap<u64, Earlier>>,
    watch: &'a Watch<'a>,
}

/// Costs of a plan in addition to its candidate.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// Seconds of planning.
    pub planning: Seconds,
    /// Seconds of the ops alone, each in its fastest alternative.
    pub compute: Seconds,
}

/// Tunes over batches up to the largest that can be trained. The profile grows if the model had to be refitted. The study
/// records each plan during the search, so that an interrupted search continues.
pub(crate) fn tune(
    workload: &dyn Workload,
    profile: &mut Profile,
    request: &TuneRequest,
    largest: u64,
    study: &Study,
    watch: &Watch<'_>,
) -> Result<Tuned, Error> {
    let keeps_all = workload.largest_batch(Policy::Keep, request.budget, largest, watch)?;
    let keeps_all = keeps_all
        .and_then(|most| (workload.smallest_batch()..=most).rev().find(|batch| request.takes(*batch)));
    let planned = |profile: &Profile| {
        PlanJournal::open(&study.plans(), profile, (request.budget, workload.host_limit()))
    };
    let (costs, before) = (RefCell::default(), RefCell::default());
    let journal = RefCell::new(planned(profile)?);
    let tuner = Tuner { workload, request, largest, keeps_all, costs, journal, before, watch };
    tracing::info!("searching batch sizes from {} to {largest}", request.min_batch);
    let step = watch.step("tune", None);
    let mut rounds: Vec<Round> = Vec::new();
    // Keeping everything gives the same schedule in every round, and is run once.
    let mut kept: Option<Ran> = None;
    loop {
        let model = Model::fit(profile)?;
        step.again();
        let mut search = tuner.search(&model, &step)?;
        let theirs = tuner.algorithm_2(&model, &step)?;
        let (found, chosen) = tuner.choose_and_run(&model, &mut search, theirs.as_ref(), &step)?;
        kept = tuner.keeping_everything(&model, &chosen, kept)?;
        let all = [Some(&chosen), kept.as_ref()];
        let off: Vec<&Ran> = all.into_iter().flatten().filter(|ran| wants_refit(ran)).collect();
        let refit = !off.is_empty() && rounds.len() < REFITS;
        rounds.push(document::round(&tuner, &model, &found, &chosen.measured, refit));
        if refit {
            learn(profile, &off, rounds.len());
            *tuner.journal.borrow_mut() = planned(profile)?;
            *tuner.before.borrow_mut() = earlier_plans(&search)?;
            continue;
        }
        drop(step);
        let tuned = tuner.finish(&model, profile, Searched { found, chosen, kept, rounds })?;
        for words in tuned.tuning.runs.iter().filter_map(run_missed) {
            watch.warn(format_args!("{words}; --fresh measures anew"));
        }
        tuner.journal.into_inner().forget()?;
        return Ok(tuned);
    }
}

/// Adds the measured times of plans to the profile, for the n-th refit.
fn learn(profile: &mut Profile, off: &[&Ran], refit: usize) {
    let samples = off.iter().filter_map(|ran| ran.ran.as_ref()).map(|timed| timed.samples.clone());
    samples.for_each(|samples| take_in(&mut profile.batches, samples));
    let batches: Vec<String> = off.iter().map(|ran| ran.batch().to_string()).collect();
    tracing::info!(
        "the model is fitted again with batch {}, and searched again (refit {refit} of at most {REFITS})",
        batches.join(" and ")
    );
}

/// Findings of one round's searches.
pub(crate) struct Found {
    /// Every batch size that was planned and fits, including the choice.
    pub curve: Vec<Candidate>,
    /// Batch sizes without a plan.
    pub no_plan: Vec<u64>,
    /// See [`Round::within`].
    pub within: f64,
    /// Reason for the choice.
    why: String,
    /// Answer of the search that was not requested.
    other: Option<(Candidate, Planned)>,
}

/// Answers of both searches, the requested one first, and the reason for it.
struct Choice {
    answer: (Candidate, Planned),
    other: Option<(Candidate, Planned)>,
    why: String,
}

/// Findings of the last round.
struct Searched {
    found: Found,
    chosen: Ran,
    /// Largest batch that keeps everything, if the choice is a different plan.
    kept: Option<Ran>,
    rounds: Vec<Round>,
}

/// Returns the plans from which the next round can start.
fn earlier_plans(search: &Search<'_>) -> Result<BTreeMap<u64, Earlier>, Error> {
    search.plans().map(|plan| Ok((plan.trace.batch, plan.earlier()?))).collect()
}

/// Replaces the candidate of this batch on a curve.
fn with(mut curve: Vec<Candidate>, candidate: Candidate) -> Vec<Candidate> {
    curve.retain(|other| other.batch != candidate.batch);
    let at = curve.partition_point(|other| other.batch < candidate.batch);
    curve.insert(at, candidate);
    curve
}

impl Tuner<'_> {
    /// Returns the request of the search. The time between iterations for input is proportional to the batch, so it does not
    /// affect the best batch, and is left out until it is measured.
    fn search_request(&self) -> SearchRequest<'_> {
        SearchRequest {
            dataset: self.workload.samples(),
            least: self.request.min_batch.max(self.workload.smallest_batch()),
            most: self.largest,
            keeps_all: self.keeps_all,
            within: self.request.within(0.0),
            evaluations: EVALUATIONS,
            stop: self.watch.stop,
        }
    }

    /// Plans at batch sizes over the whole range.
    fn search(&self, model: &Model, step: &Step<'_>) -> Result<Search<'_>, Error> {
        let (mut plans, began) = (0, Instant::now());
        let mut plan_at = |batch, near: Option<&Planned>| {
            step.at(&format!("planning batch {batch}"));
            plans += 1;
            step.done(plans);
            self.planned(model, batch, near)
        };
        let (request, error_at) = (self.search_request(), |batch| model.fit_error(batch));
        let found = match self.request.cluster.and_then(|cluster| cluster.global_batch) {
            None => search(request, &error_at, &mut plan_at),
            Some(global) => {
                let range = request.least..=request.most.min(global);
                let keeper = request.keeps_all.filter(|batch| range.contains(batch));
                let others = range.rev().filter(|batch| self.request.takes(*batch) && keeper != Some(*batch));
                let batches: Vec<u64> = keeper.into_iter().chain(others).collect();
                search_among(request, &batches, &error_at, &mut plan_at)
            }
        };
        match found {
            _ if self.watch.stops() => Err(stopped()),
            Ok(found) => {
                let took = Seconds(began.elapsed().as_secs_f64());
                let all = found.plans().count();
                let carried = found.plans().filter(|plan| plan.carried).count();
                tracing::info!(
                    "planned in {took} (batch sizes: {all}; of these, from a neighbour's plan: {carried})"
                );
                Ok(found)
            }
            Err(SearchError::Caller(error)) => Err(error),
            Err(SearchError::NoPlan { tried }) => Err(Error::new(
                Kind::NoPlan,
                format_args!(
                    "no plan fits at any of the {tried} batch sizes that were tried; raise the budget, or lower the largest \
                     batch"
                ),
            )),
            Err(error @ (SearchError::Empty { .. } | SearchError::Stopped)) => {
                Err(Error::new(Kind::Internal, error))
            }
        }
    }

    /// Returns the answer of AccUDNN's Algorithm 2: the largest batch at which eq. (6) holds, with the plan of policy accudnn.
    fn algorithm_2(&self, model: &Model, step: &Step<'_>) -> Result<Option<(Candidate, Planned)>, Error> {
        let request = self.search_request();
        let (budget, link) = (self.request.budget, model.link());
        let found = accudnn_batch(request.least, request.most, self.watch.stop, &mut |batch| {
            if !self.request.takes(batch) {
                return Ok::<_, Error>(None);
            }
            step.at(&format!("AccUDNN's Algorithm 2 at batch {batch}"));
            let mut trace = self.workload.trace(batch)?;
            model.fill(&mut trace)?;
            if !satisfies(&trace, budget, &link) {
                return Ok(None);
            }
            let (outcome, log) = self.workload.outcome(
                &trace,
                Policy::Accudnn { as_printed: false },
                budget,
                link,
                self.watch,
            )?;
            self.fitting(trace, outcome, log)
        })?;
        if self.watch.stops() {
            return Err(stopped());
        }
        Ok(found.map(|(batch, plan)| (request.candidate(batch, &plan), plan)))
    }

    /// Chooses a batch and runs it. If the run scatters by more than the share that counts as equal, more batch sizes are
    /// equal, and one of them may be the better choice.
    fn choose_and_run(
        &self,
        model: &Model,
        search: &mut Search<'_>,
        theirs: Option<&(Candidate, Planned)>,
        step: &Step<'_>,
    ) -> Result<(Found, Ran), Error> {
        let mut within = self.request.within(0.0);
        let mut choice = self.choose(model, search, theirs, within)?;
        loop {
            let (candidate, plan) = choice.answer;
            step.at(&format!("running batch {}", candidate.batch));
            let chosen = self.measure(model, candidate, plan)?;
            let scatter = chosen.measured.figures.map_or(0.0, |figures| figures.relative_error);
            if self.request.within(scatter) > within {
                within = self.request.within(scatter);
                let error_at = |batch| model.fit_error(batch);
                search.settle(within, &error_at, &mut |batch, near| self.planned(model, batch, near))?;
                let wider = self.choose(model, search, theirs, within)?;
                if wider.answer.0.batch != candidate.batch {
                    choice = wider;
                    continue;
                }
            }
            let curve = with(search.curve().copied().collect(), candidate);
            let Choice { why, other, .. } = choice;
            return Ok((Found { curve, no_plan: search.no_plan(), within, why, other }, chosen));
        }
    }

    /// Returns the answer to take, and the other to run for comparison.
    fn choose(
        &self,
        model: &Model,
        search: &Search<'_>,
        theirs: Option<&(Candidate, Planned)>,
        within: f64,
    ) -> Result<Choice, Error> {
        let ours = search.choose(within, &|batch| model.fit_error(batch));
        let why = document::in_words(&ours.reason, within, self.request.goodput.is_some());
        let ours = (ours.candidate, ours.plan);
        if self.request.search == Searcher::Plimsoll {
            return Ok(Choice { answer: ours, other: theirs.cloned(), why });
        }
        let (least, most) = (self.request.min_batch, self.largest);
        let answer = theirs.cloned().ok_or_else(|| {
            Error::new(Kind::NoPlan, format_args!("{NO_ALGORITHM_2} from {least} to {most}"))
                .help("raise --budget, lower --min-batch, or leave out --search accudnn")
        })?;
        let why =
            "AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall".to_owned();
        Ok(Choice { answer, other: Some(ours), why })
    }

    /// Returns the plan if the host has memory for it.
    fn fitting(&self, trace: Trace, outcome: PlanOutcome, log: SearchLog) -> Result<Option<Planned>, Error> {
        match outcome {
            PlanOutcome::Planned(plan) if self.workload.fits_host(&trace, &plan.schedule) => {
                self.shared(trace, plan.schedule, log).map(Some)
            }
            PlanOutcome::Planned(_) | PlanOutcome::Infeasible(_) => Ok(None),
        }
    }

    /// Returns the planner's answer at one batch size; `None` if no plan fits. Starts from `near`, a plan of a nearby batch
    /// size, if given, or from the previous round's plan for this size.
    fn planned(&self, model: &Model, batch: u64, near: Option<&Planned>) -> Result<Option<Planned>, Error> {
        let mut trace = self.workload.trace(batch)?;
        model.fill(&mut trace)?;
        let compute = trace.fastest_seconds();
        let mut journal = self.journal.borrow_mut();
        let known = journal.known(&trace).filter(|known| near.is_some() || !known.carried);
        let Noted { plan, carried, planning } = match known {
            Some(known) => known,
            None => {
                let noted = self.made(model, &trace, near)?;
                // An interrupted search may have missed better plans.
                if !self.watch.stops() {
                    journal.note(batch, noted.clone())?;
                }
                noted
            }
        };
        self.costs.borrow_mut().insert(batch, Cost { planning, compute });
        let fits = plan.filter(|(schedule, _)| self.workload.fits_host(&trace, schedule));
        let shared = fits.map(|(schedule, log)| self.shared(trace, schedule, log)).transpose()?;
        Ok(shared.map(|plan| Planned { carried, ..plan }))
    }

    /// Plans a trace, and records the cost.
    fn made(&self, model: &Model, trace: &Trace, near: Option<&Planned>) -> Result<Noted, Error> {
        let start = Instant::now();
        let before = self.before.borrow();
        let near = match (near, before.get(&trace.batch)) {
            (None, _) => None,
            (Some(_), Some(same)) => Some(Cow::Borrowed(same)),
            (Some(near), None) => Some(Cow::Owned(near.earlier()?)),
        };
        let (budget, link) = (self.request.budget, model.link());
        let request = self.workload.plan_request(Policy::Plimsoll, budget, link, self.watch);
        let (outcome, log) = plan_with_log(trace, &PlanRequest { from: near.as_deref(), ..request })?;
        let plan = match outcome {
            PlanOutcome::Planned(plan) => Some((plan.schedule, log)),
            PlanOutcome::Infeasible(_) => None,
        };
        let planning = Seconds(start.elapsed().as_secs_f64());
        Ok(Noted { plan, carried: near.is_some(), planning })
    }

    /// Runs a choice for some iterations. On a modelled device nothing runs, and only the prediction is known.
    fn measure(&self, model: &Model, candidate: Candidate, plan: Planned) -> Result<Ran, Error> {
        let (batch, predicted_error) = (candidate.batch, model.iteration_error(candidate.batch));
        let Some(ran) = self.workload.run(batch, &plan.schedule, self.watch)? else {
            return Ok(Ran {
                measured: Measured { candidate, figures: None, predicted_error },
                plan,
                ran: None,
            });
        };
        let Confirmed { iteration, scatter, between, samples, timeline, peak, taken_by_others } = ran;
        if taken_by_others > TOLD {
            let share = taken_by_others * 100.0;
            self.watch.warn(format_args!(
                "while batch {batch} ran others had the processors for {share:.0} % of the time; times are without that"
            ));
        }
        let epoch_of = |iteration| candidate.sharing.epoch(self.workload.samples(), batch, iteration);
        let figures = Figures {
            iteration_seconds: iteration,
            relative_error: scatter,
            between_seconds: between,
            epoch_seconds: epoch_of(iteration + between),
            peak_bytes: peak,
        };
        let epoch = epoch_of(candidate.iteration + between);
        let candidate = Candidate { between, epoch, ..candidate };
        let measured = Measured { candidate, figures: Some(figures), predicted_error };
        Ok(Ran { measured, plan, ran: Some(Timed { samples, timeline }) })
    }

    /// Returns the largest batch that keeps everything, if the choice is a different plan: run now or in an earlier round, with
    /// the prediction of this round's model.
    fn keeping_everything(
        &self,
        model: &Model,
        chosen: &Ran,
        known: Option<Ran>,
    ) -> Result<Option<Ran>, Error> {
        let is_chosen = |batch: &u64| *batch == chosen.batch() && chosen.keeps_everything();
        let Some(batch) = self.keeps_all.filter(|batch| !is_chosen(batch)) else { return Ok(None) };
        let (candidate, plan) = self.kept(model, batch)?;
        let Some(Ran { measured: Measured { figures: Some(figures), .. }, ran, .. }) = known else {
            return self.measure(model, candidate, plan).map(Some);
        };
        let between = figures.between_seconds;
        let epoch_of =
            |iteration| candidate.sharing.epoch(self.workload.samples(), batch, iteration + between);
        // The model determines how workers share an update.
        let figures = Figures { epoch_seconds: epoch_of(figures.iteration_seconds), ..figures };
        let candidate = Candidate { between, epoch: epoch_of(candidate.iteration), ..candidate };
        let predicted_error = model.iteration_error(batch);
        let measured = Measured { candidate, figures: Some(figures), predicted_error };
        Ok(Some(Ran { measured, plan, ran }))
    }

    /// Returns the plan of a batch size at which everything is kept.
    fn kept(&self, model: &Model, batch: u64) -> Result<(Candidate, Planned), Error> {
        let request = self.search_request();
        if let Some(plan) = self.planned(model, batch, None)? {
            let candidate = request.candidate(batch, &plan);
            if candidate.keeps_everything() {
                return Ok((candidate, plan));
            }
        }
        // If memory is short, the planner swaps to use faster alternatives.
        let mut trace = self.workload.trace(batch)?;
        model.fill(&mut trace)?;
        let (outcome, log) =
            self.workload.outcome(&trace, Policy::Keep, self.request.budget, model.link(), self.watch)?;
        let plan = self.fitting(trace, outcome, log)?;
        let plan = plan.ok_or_else(|| Error::new(Kind::Internal, "what keeps everything has no plan"))?;
        Ok((request.candidate(batch, &plan), plan))
    }

    /// Plans a batch size at which everything is kept, and runs it.
    fn run_keeping(&self, model: &Model, batch: u64) -> Result<Rc<Ran>, Error> {
        let (candidate, plan) = self.kept(model, batch)?;
        Ok(Rc::new(self.measure(model, candidate, plan)?))
    }

    /// Runs an answer for comparison with the choice, unless it is the same.
    fn beside(
        &self,
        model: &Model,
        best: &Rc<Ran>,
        candidate: Candidate,
        plan: Planned,
    ) -> Result<Rc<Ran>, Error> {
        if plan.schedule == best.plan.schedule {
            return Ok(best.clone());
        }
        Ok(Rc::new(self.measure(model, candidate, plan)?))
    }

    /// Measures the user's own setting and the other search's answer, compares them with the choice and with keeping
    /// everything, takes the best, and records the result.
    fn finish(&self, model: &Model, profile: &Profile, searched: Searched) -> Result<Tuned, Error> {
        let Searched { found, chosen, kept, rounds } = searched;
        let Found { curve, mut why, other, .. } = found;
        let mut best = Rc::new(chosen);
        let other = other.map(|(candidate, plan)| self.beside(model, &best, candidate, plan)).transpose()?;
        // AccUDNN's answer was requested unchanged.
        let may_change = self.request.search == Searcher::Plimsoll;
        let mut keeper = None;
        if let Some(batch) = self.keeps_all {
            let same = kept.is_none();
            let ran = kept.map_or(best.clone(), Rc::new);
            if may_change && !same && batch >= self.request.min_batch {
                let within = self.request.within(ran.scatter().max(best.scatter()));
                if let Some(words) = ran.better_than(&best, within) {
                    (why, best) = (words, ran.clone());
                }
            }
            keeper = Some(ran);
        }
        let base = self.request.rate.base_batch;
        let is_base = |ran: &&Rc<Ran>| ran.batch() == base && ran.keeps_everything();
        let known = [Some(&best), keeper.as_ref()].into_iter().flatten().find(is_base).cloned();
        let yours = match (known, self.keeps_all) {
            (Some(ran), _) => Some(ran),
            (None, Some(most))
                if (self.workload.smallest_batch()..=most).contains(&base) && self.request.takes(base) =>
            {
                Some(self.run_keeping(model, base)?)
            }
            _ => None,
        };
        if let Some(ran) = yours.as_ref().filter(|ran| ran.batch() != best.batch())
            && may_change
            && base >= self.request.min_batch
            && let Some(words) = ran.no_slower(&best, self.request.within(0.0))
        {
            (why, best) = (words, ran.clone());
        }
        let ways = self.plain_ways(model, keeper.as_deref())?;
        let config = self.config(model, &best.measured)?;
        let ran = document::Runs {
            best: &best,
            keeper: keeper.as_deref(),
            yours: yours.as_deref(),
            ways: &ways,
            other: other.as_deref(),
        };
        let tuning = document::tuning(self, profile, &ran, rounds, why)?;
        Ok(Tuned {
            config,
            schedule: best.plan.schedule.clone(),
            trace: best.plan.trace.clone(),
            chosen: best.measured,
            keeper: keeper.map(|ran| ran.measured),
            yours: yours.map(|ran| ran.measured),
            ways,
            search: self.request.search,
            other: other.map(|ran| ran.measured),
            curve,
            tuning,
        })
    }

    /// Returns the choice as a config.
    fn config(&self, model: &Model, chosen: &Measured) -> Result<Config, Error> {
        let (workload, request) = (self.workload, self.request);
        let RateRequest { base_batch, base_rate, rule } = request.rate;
        let batch = chosen.candidate.batch;
        let rate = learning_rate(rule, base_batch, base_rate, batch)?;
        let per_epoch = workload.samples() / batch;
        let warmup = warmup_iterations(base_batch, batch, per_epoch, request.epochs);
        let about = workload.about()?;
        Ok(Config {
            kind: ConfigKind,
            network: about.network,
            data: about.data,
            device: about.device,
            threads: about.threads,
            link: model.link(),
            paced: about.paced,
            deterministic: about.deterministic,
            precision: Some(about.precision),
            modelled: about.modelled_error.is_some(),
            modelled_error: about.modelled_error,
            optimizer: about.optimizer,
            budget_bytes: request.budget,
            batch,
            keeps_all: self.keeps_all,
            cluster: request.cluster.map(|cluster| chosen.update(&cluster)),
            goodput: request.goodput.map(|GoodputRequest { noise_scale, batch_norm_over }| Goodput {
                noise_scale,
                batch_norm_over,
                efficiency: chosen.candidate.sharing.efficiency,
            }),
            policy: request.policy().to_string(),
            schedule: "chosen.schedule.json".to_owned(),
            learning_rate: LearningRate { rate, rule, base_batch, base_rate, warmup_iterations: warmup },
            predicted: chosen.predicted(),
            measured: chosen.figures,
        })
    }
}

/// Replaces the profile's samples of the same batch size, or adds the new ones. Older samples were measured under a different
/// plan or at a different time, and would outvote the new ones. An alternative that did not run this time keeps its samples.
fn take_in(batches: &mut Vec<BatchSamples>, new: BatchSamples) {
    match batches.iter_mut().find(|b| b.batch == new.batch) {
        Some(known) => {
            let ops = std::mem::take(&mut known.ops).into_iter().zip(new.ops);
            let ops = ops.map(|(known, new)| known.replaced_by(new)).collect();
            *known = BatchSamples { ops, ..new };
        }
        None => {
            batches.push(new);
            batches.sort_by_key(|b| b.batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::Bytes;
    use plimsoll_ir::profile::{AlternativeSamples, OpSamples};
    use plimsoll_ir::trace::Phase;

    fn samples(batch: u64, usual: &[f64], alternative: &[f64]) -> BatchSamples {
        let seconds = |all: &[f64]| all.iter().copied().map(Seconds).collect::<Vec<_>>();
        let alternative = AlternativeSamples {
            name: "lean".into(),
            workspace_bytes: Bytes::ZERO,
            seconds: seconds(alternative),
        };
        let alternatives = if alternative.seconds.is_empty() { vec![] } else { vec![alternative] };
        let (name, kind) = ("a.forward".into(), "conv".into());
        let op =
            OpSamples { name, kind, phase: Phase::Forward, flops: 1, seconds: seconds(usual), alternatives };
        BatchSamples { whole_seconds: seconds(usual), ops: vec![op], ..BatchSamples::none(batch) }
    }

    #[test]
    fn samples_of_a_refit_stand_in_the_place_of_older_ones() {
        let mut batches = vec![samples(2, &[1.0, 1.0], &[3.0]), samples(8, &[4.0], &[])];
        take_in(&mut batches, samples(4, &[2.0], &[]));
        take_in(&mut batches, samples(2, &[1.5], &[]));
        assert_eq!(batches.iter().map(|b| b.batch).collect::<Vec<_>>(), [2, 4, 8]);
        assert_eq!(batches[0].whole_seconds, [Seconds(1.5)]);
        assert_eq!(batches[0].ops[0].seconds, [Seconds(1.5)], "older ones do not outvote it");
        assert_eq!(batches[0].ops[0].alternatives[0].seconds, [Seconds(3.0)], "what did not run stays");
    }
}
