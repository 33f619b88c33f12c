//! Tuning: from a profile to a config that was measured (AccUDNN §4, improved).
//!
//! The model is fitted, the planner plans at batch sizes over the whole range, and the best one is run for some iterations,
//! next to the largest batch that keeps everything. Epochs within 1 % of the shortest count as equal, or within the scatter of
//! the runs, up to 3 %. Of those batches, the search takes the one that spends the fewest seconds on swapping and recomputing,
//! then the smallest ([`Objective::Frugal`](crate::request::Objective)). If the time of one of the two runs differs from its
//! prediction by more than the stated error, its samples join the profile and the search begins anew. The result has been
//! measured; if keeping everything is measured to be no slower, the result keeps everything.
//!
//! AccUDNN's own search, Algorithm 2, is also made, and its answer is run. If it is requested by name, its answer is the
//! result, even if a faster one exists, and the other search's answer is run for comparison.

mod choice;
mod document;
mod finish;
mod journal;
mod measured;
mod plain;
mod request;
mod sharing;

pub use choice::{earlier, keep};
pub use finish::Tuned;
pub use measured::{missed, run_missed};
pub use plain::{ACCUMULATED, RECOMPUTED};

use crate::error::{Error, Kind};
use crate::folder::Study;
use crate::request::{Searcher, TuneRequest};
use crate::watch::{Step, Watch};
use crate::workload::Workload;
use journal::PlanJournal;
use measured::{Ran, take_in};
use plimsoll_ir::Seconds;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::tuning::Round;
use plimsoll_tuner::model::Model;
use plimsoll_tuner::policies::papers::accudnn::satisfies;
use plimsoll_tuner::search::{Batches, Candidate, Confirmed, Planned, Search, SearchRequest, search};
use plimsoll_tuner::{Earlier, Outcome, PlanRequest, Policy, Witness, plan_with_log};
use std::collections::BTreeMap;
use std::time::Instant;

/// Advice after a stopped tuning.
pub(crate) const GOES_ON: &str = "the same command goes on from the profile";

/// Words for a search of AccUDNN that has no answer.
const NO_ALGORITHM_2: &str = "AccUDNN's eq. (6) holds, with a plan that fits, at no batch";

/// Maximum number of refits; after that, the report shows measured and predicted times.
const REFITS: usize = 3;

/// Maximum number of batch sizes that a search plans.
const EVALUATIONS: usize = 40;

/// Share of the time that other processes may have the processors before it is reported.
const TOLD: f64 = 0.05;

/// One round of a tuning, with its inputs.
pub(crate) struct Tuner<'a> {
    pub workload: &'a dyn Workload,
    pub request: &'a TuneRequest,
    /// Largest batch that can be trained.
    pub largest: u64,
    /// Largest batch that keeps everything, of those that can be chosen.
    pub keeps_all: Option<u64>,
    pub model: Model,
    /// Plans of this round.
    journal: PlanJournal,
    /// By batch size: the plan of the previous round, which used slightly different seconds.
    before: BTreeMap<u64, Earlier>,
    /// Number of plans in this round.
    plans: u64,
    step: Step<'a>,
    watch: &'a Watch<'a>,
}

/// Findings of one round's searches.
pub(crate) struct Found {
    /// Every batch size that was planned and fits, including the choice.
    pub curve: Vec<Candidate>,
    /// Batch sizes without a plan.
    pub no_plan: Vec<u64>,
    /// See [`Round::within`].
    pub within: f64,
    /// The choice.
    pub chosen: Ran,
    /// Reason for the choice.
    why: String,
    /// Answer of the search that was not requested.
    other: Option<Planned>,
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
    let budgets = (request.budget, workload.host_limit());
    let journal = PlanJournal::open(&study.plans(), profile, budgets)?;
    let (model, before, step) = (Model::fit(profile)?, BTreeMap::new(), watch.step("tune", None));
    tracing::info!("searching batch sizes from {} to {largest}", request.min_batch);
    let mut tuner =
        Tuner { workload, request, largest, keeps_all, model, journal, before, plans: 0, step, watch };
    let mut rounds: Vec<Round> = Vec::new();
    // Keeping everything gives the same schedule in every round, and is run once.
    let mut kept: Option<Ran> = None;
    loop {
        tuner.step.again();
        let mut search = tuner.search()?;
        let theirs = tuner.algorithm_2()?;
        let found = tuner.choose_and_run(&mut search, theirs)?;
        kept = tuner.keeping_everything(&found.chosen, kept)?;
        let all = [Some(&found.chosen), kept.as_ref()];
        let off: Vec<&Ran> = all.into_iter().flatten().filter(|ran| ran.is_off()).collect();
        let refit = !off.is_empty() && rounds.len() < REFITS;
        rounds.push(document::round(&tuner, &found, refit));
        if !refit {
            let tuned = tuner.finish(profile, found, kept, rounds)?;
            drop(tuner.step);
            for words in tuned.tuning.runs.iter().filter_map(run_missed) {
                watch.warn(format_args!("{words}; --fresh measures anew"));
            }
            tuner.journal.forget()?;
            return Ok(tuned);
        }
        let samples = off.iter().filter_map(|ran| ran.confirmed.as_ref()).map(|ran| &ran.samples);
        samples.for_each(|samples| take_in(&mut profile.batches, samples.clone()));
        let batches: Vec<String> = off.iter().map(|ran| ran.batch().to_string()).collect();
        tracing::info!(
            "the model is fitted again with batch {}, and searched again (refit {} of at most {REFITS})",
            batches.join(" and "),
            rounds.len()
        );
        tuner.model = Model::fit(profile)?;
        tuner.journal = PlanJournal::open(&study.plans(), profile, budgets)?;
        let earlier = search.plans().map(|plan| Ok((plan.candidate.batch, plan.earlier()?)));
        tuner.before = earlier.collect::<Result<_, Error>>()?;
        tuner.plans = 0;
    }
}

impl Batches for Tuner<'_> {
    type Error = Error;

    /// Starts from `near`, or from the previous round's plan for this size.
    fn plan(&mut self, batch: u64, near: Option<&Planned>) -> Result<Option<Planned>, Error> {
        self.step.at(&format!("planning batch {batch}"));
        self.plans += 1;
        self.step.done(self.plans);
        let trace = self.trace(batch)?;
        let known = self.journal.known(&trace).filter(|known| near.is_some() || !known.carried);
        if let Some(known) = known {
            let Some(schedule) = known.schedule else { return Ok(None) };
            let (log, planning, carried) = (known.search, known.planning_seconds, known.carried);
            return Ok(Some(Planned { log, planning, carried, ..self.shared(trace, schedule)? }));
        }
        let adapted = match near {
            Some(near) if !self.before.contains_key(&batch) => Some(near.earlier()?),
            _ => None,
        };
        let from = adapted.as_ref().or_else(|| near.and_then(|_| self.before.get(&batch)));
        let request = PlanRequest { from, ..self.plan_request(Policy::Plimsoll) };
        let plan = self.planned(trace, &request)?.ok();
        let plan = plan.map(|plan| Planned { carried: near.is_some(), ..plan });
        // An interrupted search may have missed better plans.
        if !self.watch.stops() {
            self.journal.note(batch, near.is_some(), plan.as_ref())?;
        }
        Ok(plan)
    }

    /// On a modelled device nothing runs, and only the prediction is known.
    fn run(&mut self, plan: &Planned) -> Result<Option<Confirmed>, Error> {
        let batch = plan.candidate.batch;
        self.step.at(&format!("running batch {batch}"));
        let ran = self.workload.run(batch, &plan.schedule, self.watch)?;
        if let Some(taken) = ran.as_ref().map(|ran| ran.taken_by_others).filter(|taken| *taken > TOLD) {
            let share = taken * 100.0;
            self.watch.warn(format_args!(
                "while batch {batch} ran others had the processors for {share:.0} % of the time; times are without that"
            ));
        }
        Ok(ran)
    }

    fn error(&self, batch: u64) -> f64 {
        self.model.fit_error(batch)
    }

    fn stops(&self) -> bool {
        self.watch.stops()
    }
}

impl<'a> Tuner<'a> {
    /// Returns the iteration at a batch size, with the model's seconds.
    fn trace(&self, batch: u64) -> Result<Trace, Error> {
        let mut trace = self.workload.trace(batch)?;
        self.model.fill(&mut trace)?;
        Ok(trace)
    }

    fn plan_request(&self, policy: Policy) -> PlanRequest<'a> {
        self.workload.plan_request(policy, self.request.budget, self.model.link(), self.watch)
    }

    /// Returns the planner's answer.
    fn planned(&self, trace: Trace, request: &PlanRequest<'_>) -> Result<Result<Planned, Witness>, Error> {
        let start = Instant::now();
        let (outcome, log) = plan_with_log(&trace, request)?;
        let planning = Seconds(start.elapsed().as_secs_f64());
        Ok(match outcome {
            Outcome::Planned(plan) => Ok(Planned { log, planning, ..self.shared(trace, plan.schedule)? }),
            Outcome::Infeasible(witness) => Err(witness),
        })
    }

    /// Fails if the watch stops the search.
    fn goes_on(&self) -> Result<(), Error> {
        if !self.watch.stops() {
            return Ok(());
        }
        let words = "stopped while searching batch sizes; the profile is kept";
        Err(Error::new(Kind::Interrupted, words).help(GOES_ON))
    }

    /// Plans at batch sizes over the whole range. The time between iterations for input is proportional to the batch, so it does
    /// not affect the best batch, and is left out until it is measured.
    fn search(&mut self) -> Result<Search, Error> {
        let least = self.request.min_batch.max(self.workload.smallest_batch());
        let global = self.request.cluster.and_then(|cluster| cluster.global_batch);
        let among = global.map(|global| {
            let batches = (least..=self.largest.min(global)).rev().filter(|batch| self.request.takes(*batch));
            let mut batches: Vec<u64> = batches.collect();
            // The one that keeps everything first.
            batches.sort_by_key(|batch| Some(*batch) != self.keeps_all);
            batches
        });
        let request = SearchRequest {
            dataset: self.workload.samples(),
            least,
            most: self.largest,
            among,
            keeps_all: self.keeps_all,
            within: self.request.within(),
            evaluations: EVALUATIONS,
        };
        let began = Instant::now();
        let found = search(request, self)?;
        self.goes_on()?;
        if found.plans().next().is_none() {
            let tried = found.no_plan().len();
            let words = format!(
                "no plan fits at any of the {tried} batch sizes that were tried; raise the budget, or lower the largest batch"
            );
            return Err(Error::new(Kind::NoPlan, words));
        }
        let took = Seconds(began.elapsed().as_secs_f64());
        let (all, carried) = (found.plans().count(), found.plans().filter(|plan| plan.carried).count());
        tracing::info!(
            "planned in {took} (batch sizes: {all}; of these, from a neighbour's plan: {carried})"
        );
        Ok(found)
    }

    /// Returns the answer of AccUDNN's Algorithm 2 (§4.1): from the largest trainable batch down by one, the first at which eq. (6)
    /// holds and policy accudnn has a plan. Linear, as in the paper: eq. (6) is not monotone in the batch.
    fn algorithm_2(&self) -> Result<Option<Planned>, Error> {
        let request = self.plan_request(Policy::Accudnn { as_printed: false });
        let least = self.request.min_batch.max(self.workload.smallest_batch());
        for batch in (least..=self.largest).rev().filter(|batch| self.request.takes(*batch)) {
            self.goes_on()?;
            self.step.at(&format!("AccUDNN's Algorithm 2 at batch {batch}"));
            let trace = self.trace(batch)?;
            if satisfies(&trace, request.budget, &request.link)
                && let Ok(plan) = self.planned(trace, &request)?
            {
                return Ok(Some(plan));
            }
        }
        Ok(None)
    }

    /// Takes the answer of the requested search and runs it.
    fn choose_and_run(&mut self, search: &mut Search, theirs: Option<Planned>) -> Result<Found, Error> {
        let found = "a search that found nothing is an error";
        let (chosen, why, other) = if self.request.search == Searcher::Plimsoll {
            let (choice, confirmed) = search.confirm(self)?.expect(found);
            (self.ran(choice.plan, confirmed), document::in_words(&choice.reason), theirs)
        } else {
            let ours = search.choose(self).expect(found).plan;
            let plan = theirs.ok_or_else(|| {
                let (least, most) = (self.request.min_batch, self.largest);
                Error::new(Kind::NoPlan, format_args!("{NO_ALGORITHM_2} from {least} to {most}"))
                    .help("raise --budget, lower --min-batch, or leave out --search accudnn")
            })?;
            let why = "AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall";
            (self.measure(plan)?, why.to_owned(), Some(ours))
        };
        let mut curve = search.curve();
        curve.retain(|candidate| candidate.batch != chosen.batch());
        curve.push(chosen.plan.candidate);
        curve.sort_by_key(|candidate| candidate.batch);
        Ok(Found { curve, no_plan: search.no_plan(), within: search.within, chosen, why, other })
    }

    /// Runs a plan for some iterations.
    fn measure(&mut self, plan: Planned) -> Result<Ran, Error> {
        let confirmed = self.run(&plan)?;
        Ok(self.ran(plan, confirmed))
    }

    /// Returns a plan with the results of running its schedule, now or in an earlier round.
    fn ran(&self, plan: Planned, confirmed: Option<Confirmed>) -> Ran {
        let error = self.model.iteration_error(plan.candidate.batch);
        Ran::new(plan, confirmed, error, self.workload.samples())
    }

    /// Returns the largest batch that keeps everything, if the choice is a different plan: run now or in an earlier round, with
    /// the prediction of this round's model.
    fn keeping_everything(&mut self, chosen: &Ran, known: Option<Ran>) -> Result<Option<Ran>, Error> {
        let is_chosen = |batch: &u64| *batch == chosen.batch() && chosen.keeps_everything();
        let Some(batch) = self.keeps_all.filter(|batch| !is_chosen(batch)) else { return Ok(None) };
        let plan = self.kept(batch)?;
        match known.and_then(|ran| ran.confirmed) {
            Some(confirmed) => Ok(Some(self.ran(plan, Some(confirmed)))),
            None => self.measure(plan).map(Some),
        }
    }

    /// Returns the plan of a batch size at which everything is kept.
    fn kept(&mut self, batch: u64) -> Result<Planned, Error> {
        if let Some(plan) = self.plan(batch, None)?.filter(|plan| plan.candidate.keeps_everything()) {
            return Ok(plan);
        }
        // If memory is short, the planner swaps to use faster alternatives.
        let plan = self.planned(self.trace(batch)?, &self.plan_request(Policy::Keep))?;
        plan.map_err(|_| Error::new(Kind::Internal, "what keeps everything has no plan"))
    }
}
