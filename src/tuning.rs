//! Tuning: from a profile to a config that was measured (AccUDNN §4, made better).
//!
//! The model is fitted, the planner is asked at batch sizes over the whole range, and one is run for some iterations, beside the
//! largest batch that keeps everything. Epochs within 1 % of the shortest count as equal, or within what the runs scatter by, up to 3 %:
//! of those the batch is taken that swaps and recomputes for the fewest seconds, then the smallest ([`Objective::Frugal`]). Where one of the two takes another time than predicted, by
//! more than the stated error, its samples join the profile and the search is made again. What is returned has been
//! measured; where keeping everything is measured to be no slower, that is what is returned.
//!
//! AccUDNN's own search, Algorithm 2, is made beside it, and its answer is run, too. Asked for by name, its answer is what is
//! returned, whatever else is faster, and the other search's is run beside it.

use crate::args::{Objective, RateArgs, RuleArg, SearchArg, SearchArgs};
use crate::confirming::{self, Confirmed};
use crate::failure::{Exit, Failure};
use crate::interrupt;
use crate::progress;
use crate::ran::{Measured, Ran, Timed, run_beyond_stated, wants_refit};
use crate::record;
use crate::study::Study;
use crate::task::Task;
use crate::tried::Tried;
use plimsoll_ir::config::{Config, ConfigKind, Figures, LearningRate, LearningRateRule};
use plimsoll_ir::profile::{BatchSamples, Profile};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::tuning::{Round, Tuning};
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::{LearningRateSchedule, Trainer, TrainingPlan};
use plimsoll_tuner::model::Model;
use plimsoll_tuner::policies::accudnn::satisfies;
use plimsoll_tuner::rate::{self, default_convexity, learning_rate, warmup_iterations};
use plimsoll_tuner::search::{
    Candidate, Planned, Reason, Search, SearchError, SearchRequest, accudnn_batch, search,
};
use plimsoll_tuner::{Outcome as PlanOutcome, Policy};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

/// What is tuned for.
#[derive(Clone, Debug)]
pub struct TuneRequest<'a> {
    /// What the device may hold.
    pub budget: Bytes,
    /// Whose search chooses.
    pub search: SearchArg,
    /// What the search is for.
    pub objective: Objective,
    /// No batch smaller than this.
    pub min_batch: u64,
    /// No batch larger than this.
    pub max_batch: Option<u64>,
    /// The base point and the rule of the learning rate.
    pub rate: &'a RateArgs,
    /// Epochs that will be trained; the warm-up takes at most a tenth of them.
    pub epochs: u64,
}

/// The least batch to consider, as the options say.
pub fn least(search: &SearchArgs, rate: &RateArgs) -> u64 {
    search.min_batch.unwrap_or(rate.base_batch)
}

/// What to know of a learning rate that is far from its base point, with the option that keeps it near.
pub fn caution(rate: &LearningRate, batch: u64) -> Option<String> {
    rate::caution(rate, batch).map(|words| format!("{words}, or set --max-batch"))
}

/// The rule of the learning rate, as the options say.
pub fn rule_of(rate: &RateArgs) -> LearningRateRule {
    let RateArgs { base_rate, rate_rule, convexity, .. } = *rate;
    match rate_rule {
        RuleArg::Linear => LearningRateRule::Linear,
        RuleArg::SquareRoot => LearningRateRule::SquareRoot,
        RuleArg::Accudnn => {
            LearningRateRule::Accudnn { convexity: convexity.unwrap_or_else(|| default_convexity(base_rate)) }
        }
    }
}

impl<'a> TuneRequest<'a> {
    /// As the options say.
    pub fn new(budget: Bytes, search: &SearchArgs, rate: &'a RateArgs, epochs: u64) -> TuneRequest<'a> {
        let min_batch = least(search, rate);
        let SearchArgs { search, objective, max_batch, .. } = *search;
        TuneRequest { budget, search, objective, min_batch, max_batch, rate, epochs }
    }

    /// The share by which an epoch may be longer than the shortest and count as equal to it, where measurements scatter by so much.
    fn within(&self, scatter: f64) -> f64 {
        match self.objective {
            Objective::Frugal => scatter.clamp(WITHIN_LEAST, WITHIN_MOST),
            Objective::Fastest => 0.0,
        }
    }

    /// The largest batch to consider. Fails where the request contradicts itself, so that this is known before anything is
    /// measured.
    pub fn limit(&self, task: &Task) -> Result<u64, Failure> {
        let RateArgs { base_batch, base_rate, rate_rule, convexity } = *self.rate;
        if convexity.is_some() && rate_rule != RuleArg::Accudnn {
            return Err(
                Failure::usage("--convexity is for --rate-rule accudnn").help("leave one of the two out")
            );
        }
        learning_rate(self.rule(), base_batch, base_rate, base_batch).map_err(Failure::usage)?;
        let samples = task.samples();
        let limit = task.most(self.max_batch)?;
        if limit < self.min_batch {
            let least = self.min_batch;
            let message =
                format!("no batch is at least {least} and at most {limit} ({samples} samples to train on)");
            return Err(Failure::usage(message)
                .help("lower --min-batch, which is the base batch by default, or raise --max-batch"));
        }
        Ok(limit)
    }

    /// Who plans the batch that is chosen.
    pub fn policy(&self) -> Policy {
        match self.search {
            SearchArg::Plimsoll => Policy::Plimsoll,
            SearchArg::Accudnn => Policy::Accudnn,
        }
    }

    /// The rule of the learning rate.
    pub fn rule(&self) -> LearningRateRule {
        rule_of(self.rate)
    }
}

/// What tuning found.
pub struct Tuned {
    /// What to run.
    pub config: Config,
    /// The schedule to run.
    pub schedule: Schedule,
    /// The iteration that it is of, with the model's seconds.
    pub trace: Trace,
    /// The choice.
    pub chosen: Measured,
    /// The largest batch that keeps everything; none where not even one sample does.
    pub keeper: Option<Measured>,
    /// The base batch, keeping everything; none where it does not fit.
    pub yours: Option<Measured>,
    /// Whose search chose, and the answer of the other; none where it has none.
    pub search: SearchArg,
    /// See `search`.
    pub other: Option<Measured>,
    /// Every batch size that was planned in the last round.
    pub curve: Vec<Candidate>,
    /// All that was tried and measured, to be kept.
    pub tuning: Tuning,
}

impl Tuned {
    /// How often the model was refitted with what the choice was measured to take.
    pub fn refits(&self) -> u64 {
        self.tuning.rounds.iter().filter(|round| round.refit).count() as u64
    }
}

/// Refits at most; then what was measured is told beside what was predicted.
const REFITS: usize = 3;

/// Epochs within this share of the shortest count as equal to it, and within what measurements scatter by up to the other.
const WITHIN_LEAST: f64 = 0.01;
const WITHIN_MOST: f64 = 0.03;

/// Batch sizes that a search plans at most.
const EVALUATIONS: usize = 40;

/// A larger share of the time that others had the processors is told.
const TOLD: f64 = 0.05;

/// Of the parameters and of the order of the data while a choice is measured.
pub(crate) const SEED: u64 = 1;

/// What one tuning stands on, besides the profile.
pub(crate) struct Tuner<'a> {
    pub task: &'a Task,
    pub request: &'a TuneRequest<'a>,
    /// The largest batch that can be trained.
    pub largest: u64,
    /// The largest batch that keeps everything.
    pub keeps_all: Option<u64>,
    /// By batch size, what its plan took and what its ops alone take.
    pub costs: RefCell<BTreeMap<u64, Cost>>,
    /// The plans of this round.
    tried: RefCell<Tried>,
}

/// What is worth knowing of a plan beside its candidate.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// What planning took.
    pub planning: Seconds,
    /// What the ops alone take, each in its fastest way.
    pub compute: Seconds,
}

/// Makes sure that the least batch that is asked for can be trained.
pub fn reaches(task: &Task, largest: u64, least: u64, budget: Bytes) -> Result<(), Failure> {
    if largest >= least {
        return Ok(());
    }
    let (host, raise) = match task.host_memory {
        Some(host) => (format!(" and {host} of host memory"), "--budget or --host-memory"),
        None => (String::new(), "--budget"),
    };
    let message = format!(
        "within {budget}{host} the largest batch that can be trained is {largest}; asked for is at least {least}"
    );
    Err(Failure::new(Exit::NoPlan, message).help(format_args!("raise {raise}, or lower --min-batch")))
}

/// Tunes. The profile grows where the model had to be refitted; plans are noted in the study while the search lasts, so
/// that one that is interrupted goes on.
pub fn tune(
    task: &Task,
    profile: &mut Profile,
    request: &TuneRequest<'_>,
    study: &Study,
    quiet: bool,
) -> Result<Tuned, Failure> {
    let limit = request.limit(task)?;
    let largest = task.largest_trainable(request.budget, limit)?.unwrap_or(0);
    reaches(task, largest, request.min_batch, request.budget)?;
    let keeps_all = task.largest_batch(Policy::Keep, request.budget, limit)?;
    let noted = |profile: &Profile| Tried::open(&study.tried(), profile, (request.budget, task.host_limit()));
    let (costs, tried) = (RefCell::default(), RefCell::new(noted(profile)?));
    let tuner = Tuner { task, request, largest, keeps_all, costs, tried };
    tracing::info!("searching batch sizes from {} to {largest}", request.min_batch);
    let bar = progress::spinner("tune", quiet);
    let mut rounds: Vec<Round> = Vec::new();
    // Keeping everything is the same schedule in every round, and is run once.
    let mut kept: Option<Ran> = None;
    loop {
        let model = Model::fit(profile).map_err(Failure::usage)?;
        bar.reset();
        let search = tuner.search(&model, &bar)?;
        let theirs = tuner.algorithm_2(&model, &bar)?;
        let (found, chosen) = tuner.choose_and_run(&model, &search, theirs.as_ref(), &bar)?;
        kept = tuner.keeping_everything(&model, &chosen, kept)?;
        let all = [Some(&chosen), kept.as_ref()];
        let off: Vec<&Ran> =
            all.into_iter().flatten().filter(|ran| bar.suspend(|| wants_refit(ran))).collect();
        let refit = !off.is_empty() && rounds.len() < REFITS;
        rounds.push(record::round(&tuner, &model, &found, &chosen.measured, refit));
        if refit {
            bar.suspend(|| learn(profile, &off, rounds.len()));
            *tuner.tried.borrow_mut() = noted(profile)?;
            continue;
        }
        bar.finish_and_clear();
        let tuned = tuner.finish(&model, profile, Searched { found, chosen, kept, rounds })?;
        for words in tuned.tuning.runs.iter().filter_map(run_beyond_stated) {
            tracing::warn!("{words}; --fresh measures anew");
        }
        tuner.tried.into_inner().forget()?;
        return Ok(tuned);
    }
}

/// Takes what plans were measured to take into the profile, for the n-th refit.
fn learn(profile: &mut Profile, off: &[&Ran], refit: usize) {
    let samples = off.iter().filter_map(|ran| ran.ran.as_ref()).map(|timed| timed.samples.clone());
    samples.for_each(|samples| take_in(&mut profile.batches, samples));
    let batches: Vec<String> = off.iter().map(|ran| ran.batch().to_string()).collect();
    tracing::info!(
        "the model is fitted again with batch {}, and searched again (refit {refit} of at most {REFITS})",
        batches.join(" and ")
    );
}

/// What the searches of one round found.
pub(crate) struct Found {
    /// Every batch size that was planned and fits, with what was chosen among them.
    pub curve: Vec<Candidate>,
    /// Batch sizes without a plan.
    pub no_plan: Vec<u64>,
    /// See [`Round::within`].
    pub within: f64,
    /// Why what was chosen was chosen.
    why: String,
    /// The answer of the search that was not asked for.
    other: Option<(Candidate, Planned)>,
}

/// The answers of both searches, the one that was asked for first, and why it is that one.
struct Choice {
    answer: (Candidate, Planned),
    other: Option<(Candidate, Planned)>,
    why: String,
}

/// What the last round found.
struct Searched {
    found: Found,
    chosen: Ran,
    /// The largest batch that keeps everything, where the choice is another plan.
    kept: Option<Ran>,
    rounds: Vec<Round>,
}

/// A curve on which a candidate stands in place of another one of its batch.
fn with(mut curve: Vec<Candidate>, candidate: Candidate) -> Vec<Candidate> {
    curve.retain(|other| other.batch != candidate.batch);
    let at = curve.partition_point(|other| other.batch < candidate.batch);
    curve.insert(at, candidate);
    curve
}

impl Tuner<'_> {
    /// What is searched. What passes between iterations is proportional to the batch (the input), so it does not move
    /// the best batch, and is left out until it is measured.
    fn search_request(&self) -> SearchRequest<'_> {
        SearchRequest {
            dataset: self.task.samples(),
            least: self.request.min_batch.max(self.task.smallest_batch()),
            most: self.largest,
            keeps_all: self.keeps_all,
            between: &|_| Seconds::ZERO,
            within: self.request.within(0.0),
            evaluations: EVALUATIONS,
            stop: &interrupt::pressed,
        }
    }

    /// Plans at batch sizes over the whole range.
    fn search(&self, model: &Model, bar: &progress::Bar) -> Result<Search, Failure> {
        let mut plan_at = |batch| {
            bar.set_message(format!("planning batch {batch}"));
            bar.inc(1);
            self.planned(model, batch)
        };
        match search(&self.search_request(), &mut plan_at) {
            _ if interrupt::pressed() => Err(stopped_searching()),
            Ok(found) => Ok(found),
            Err(SearchError::Caller(failure)) => Err(failure),
            Err(error @ SearchError::NoPlan { .. }) => Err(Failure::new(Exit::NoPlan, error)),
            Err(error @ (SearchError::Empty { .. } | SearchError::Stopped)) => {
                Err(Failure::new(Exit::Internal, error))
            }
        }
    }

    /// The answer of AccUDNN's Algorithm 2: the largest batch at which eq. (6) holds, with the plan of policy accudnn.
    fn algorithm_2(
        &self,
        model: &Model,
        bar: &progress::Bar,
    ) -> Result<Option<(Candidate, Planned)>, Failure> {
        let request = self.search_request();
        let (budget, link) = (self.request.budget, model.link());
        let found = accudnn_batch(request.least, request.most, &interrupt::pressed, &mut |batch| {
            bar.set_message(format!("AccUDNN's Algorithm 2 at batch {batch}"));
            let mut trace = self.task.trace(batch)?;
            model.fill(&mut trace).map_err(Failure::usage)?;
            if !satisfies(&trace, budget, &link) {
                return Ok::<_, Failure>(None);
            }
            let outcome = self.task.outcome(&trace, Policy::Accudnn, budget, link)?;
            Ok(self.fitting(trace, outcome))
        })?;
        if interrupt::pressed() {
            return Err(stopped_searching());
        }
        Ok(found.map(|(batch, plan)| (request.candidate(batch, &plan), plan)))
    }

    /// Chooses and runs the choice. Where that scatters by more than what counts as equal, more batch sizes are equal, and one of them
    /// may be the better choice.
    fn choose_and_run(
        &self,
        model: &Model,
        search: &Search,
        theirs: Option<&(Candidate, Planned)>,
        bar: &progress::Bar,
    ) -> Result<(Found, Ran), Failure> {
        let mut within = self.request.within(0.0);
        let mut choice = self.choose(model, search, theirs, within)?;
        loop {
            let (candidate, plan) = choice.answer;
            bar.set_message(format!("running batch {}", candidate.batch));
            let chosen = self.measure(model, candidate, plan)?;
            let scatter = chosen.measured.figures.map_or(0.0, |figures| figures.relative_error);
            if self.request.within(scatter) > within {
                within = self.request.within(scatter);
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

    /// Which answer is taken, and which is run beside it.
    fn choose(
        &self,
        model: &Model,
        search: &Search,
        theirs: Option<&(Candidate, Planned)>,
        within: f64,
    ) -> Result<Choice, Failure> {
        let ours = search.choose(&|batch| model.fit_error(batch), within);
        let why = in_words(&ours.reason, within);
        let ours = (ours.candidate, ours.plan);
        if self.request.search == SearchArg::Plimsoll {
            return Ok(Choice { answer: ours, other: theirs.cloned(), why });
        }
        let (least, most) = (self.request.min_batch, self.largest);
        let answer = theirs.cloned().ok_or_else(|| {
            Failure::new(Exit::NoPlan, format!("{NO_ALGORITHM_2} from {least} to {most}"))
                .help("raise --budget, lower --min-batch, or leave out --search accudnn")
        })?;
        let why =
            "AccUDNN's Algorithm 2: the largest batch at which its eq. (6) promises no stall".to_owned();
        Ok(Choice { answer, other: Some(ours), why })
    }

    /// A plan that the host has memory for.
    fn fitting(&self, trace: Trace, outcome: PlanOutcome) -> Option<Planned> {
        match outcome {
            PlanOutcome::Planned(plan) if self.task.fits_host(&trace, &plan.schedule) => {
                Some(Planned { makespan: plan.makespan, schedule: plan.schedule, trace })
            }
            PlanOutcome::Planned(_) | PlanOutcome::Infeasible(_) => None,
        }
    }

    /// The planner's answer at one batch size; none where it fits no plan.
    fn planned(&self, model: &Model, batch: u64) -> Result<Option<Planned>, Failure> {
        let mut trace = self.task.trace(batch)?;
        model.fill(&mut trace).map_err(Failure::usage)?;
        let compute = trace.fastest_seconds();
        let mut tried = self.tried.borrow_mut();
        if let Some((schedule, planning)) = tried.known(&trace) {
            self.costs.borrow_mut().insert(batch, Cost { planning, compute });
            let fits = schedule.filter(|schedule| self.task.fits_host(&trace, schedule));
            return Ok(fits.map(|schedule| {
                let makespan = simulate(&trace, &schedule).makespan();
                Planned { trace, schedule, makespan }
            }));
        }
        let start = Instant::now();
        let outcome = self.task.outcome(&trace, Policy::Plimsoll, self.request.budget, model.link())?;
        let planning = Seconds(start.elapsed().as_secs_f64());
        self.costs.borrow_mut().insert(batch, Cost { planning, compute });
        // A search that was cut short found less than there is.
        if !interrupt::pressed() {
            tried.note(batch, planning, outcome.plan().map(|plan| &plan.schedule))?;
        }
        Ok(self.fitting(trace, outcome))
    }

    /// Runs a choice for some iterations on the real data, at a rate of 0 so that nothing is learnt and nothing diverges. On a
    /// device that is modelled nothing runs, and nothing is known but the prediction.
    fn measure(&self, model: &Model, candidate: Candidate, plan: Planned) -> Result<Ran, Failure> {
        let (task, schedule) = (self.task, &plan.schedule);
        if task.setup.model().is_some() {
            let predicted_error = model.iteration_error(candidate.batch);
            return Ok(Ran {
                measured: Measured { candidate, figures: None, predicted_error },
                plan,
                ran: None,
            });
        }
        let batch = candidate.batch;
        let program = task.program(batch, Mode::Train)?;
        let (executor, mut loaded) = task.executor(&[(&program, schedule)])?;
        let peak = executor.layout().device();
        let loaded = loaded.remove(0);
        let training = TrainingPlan {
            network: task.network.spec.clone(),
            batch,
            seed: SEED,
            rate: LearningRateSchedule::constant(0.0),
            momentum: 0.0,
            weight_decay: 0.0,
        };
        let mut trainer = Trainer::new(executor, loaded, None, training)?;
        let Confirmed { iteration, scatter, between, samples, timeline, taken_by_others } =
            confirming::run(&mut trainer, &*task.data.train, &interrupt::pressed)?;
        if taken_by_others > TOLD {
            let share = taken_by_others * 100.0;
            tracing::warn!(
                "while batch {batch} ran others had the processors for {share:.0} % of the time; times are without that"
            );
        }
        let per_epoch = task.samples() as f64 / batch as f64;
        let figures = Figures {
            iteration_seconds: iteration,
            relative_error: scatter,
            between_seconds: between,
            epoch_seconds: (iteration + between) * per_epoch,
            peak_bytes: peak,
        };
        let epoch = (candidate.iteration + between) * per_epoch;
        let candidate = Candidate { between, epoch, ..candidate };
        let predicted_error = model.iteration_error(batch);
        let measured = Measured { candidate, figures: Some(figures), predicted_error };
        Ok(Ran { measured, plan, ran: Some(Timed { samples, timeline }) })
    }

    /// The largest batch that keeps everything, where the choice is another plan: run now or in an earlier round, and what this round's
    /// model says of it.
    fn keeping_everything(
        &self,
        model: &Model,
        chosen: &Ran,
        known: Option<Ran>,
    ) -> Result<Option<Ran>, Failure> {
        let is_chosen = |batch: &u64| *batch == chosen.batch() && chosen.keeps_everything();
        let Some(batch) = self.keeps_all.filter(|batch| !is_chosen(batch)) else { return Ok(None) };
        let (candidate, plan) = self.kept(model, batch)?;
        let Some(Ran { measured: Measured { figures: Some(figures), .. }, ran, .. }) = known else {
            return self.measure(model, candidate, plan).map(Some);
        };
        let between = figures.between_seconds;
        let epoch = (candidate.iteration + between) * (self.task.samples() as f64 / batch as f64);
        let candidate = Candidate { between, epoch, ..candidate };
        let predicted_error = model.iteration_error(batch);
        let measured = Measured { candidate, figures: Some(figures), predicted_error };
        Ok(Some(Ran { measured, plan, ran }))
    }

    /// The plan of a batch size at which everything is kept.
    fn kept(&self, model: &Model, batch: u64) -> Result<(Candidate, Planned), Failure> {
        let request = self.search_request();
        if let Some(plan) = self.planned(model, batch)? {
            let candidate = request.candidate(batch, &plan);
            if candidate.keeps_everything() {
                return Ok((candidate, plan));
            }
        }
        // Where memory is short, the planner swaps for faster ways to run ops.
        let mut trace = self.task.trace(batch)?;
        model.fill(&mut trace).map_err(Failure::usage)?;
        let outcome = self.task.outcome(&trace, Policy::Keep, self.request.budget, model.link())?;
        let plan = self.fitting(trace, outcome);
        let plan = plan.ok_or_else(|| Failure::new(Exit::Internal, "what keeps everything has no plan"))?;
        Ok((request.candidate(batch, &plan), plan))
    }

    /// Plans a batch size at which everything is kept, and runs it.
    fn run_keeping(&self, model: &Model, batch: u64) -> Result<Rc<Ran>, Failure> {
        let (candidate, plan) = self.kept(model, batch)?;
        Ok(Rc::new(self.measure(model, candidate, plan)?))
    }

    /// Runs an answer beside the choice; one that is the same is not run again.
    fn beside(
        &self,
        model: &Model,
        best: &Rc<Ran>,
        candidate: Candidate,
        plan: Planned,
    ) -> Result<Rc<Ran>, Failure> {
        if plan.schedule == best.plan.schedule {
            return Ok(best.clone());
        }
        Ok(Rc::new(self.measure(model, candidate, plan)?))
    }

    /// Measures the user's own setting and the other search's answer beside the choice and keeping everything, takes the best, and
    /// writes it up.
    fn finish(&self, model: &Model, profile: &Profile, searched: Searched) -> Result<Tuned, Failure> {
        let Searched { found, chosen, kept, rounds } = searched;
        let Found { curve, mut why, other, .. } = found;
        let mut best = Rc::new(chosen);
        let other = other.map(|(candidate, plan)| self.beside(model, &best, candidate, plan)).transpose()?;
        // AccUDNN's answer was asked for as it is.
        let may_change = self.request.search == SearchArg::Plimsoll;
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
            (None, Some(most)) if (self.task.smallest_batch()..=most).contains(&base) => {
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
        let config = self.config(model, &best.measured)?;
        let ran = record::Runs {
            best: &best,
            keeper: keeper.as_deref(),
            yours: yours.as_deref(),
            other: other.as_deref(),
        };
        let tuning = record::tuning(self, profile, &ran, rounds, why)?;
        Ok(Tuned {
            config,
            schedule: best.plan.schedule.clone(),
            trace: best.plan.trace.clone(),
            chosen: best.measured,
            keeper: keeper.map(|ran| ran.measured),
            yours: yours.map(|ran| ran.measured),
            search: self.request.search,
            other: other.map(|ran| ran.measured),
            curve,
            tuning,
        })
    }

    /// The choice as a config.
    fn config(&self, model: &Model, chosen: &Measured) -> Result<Config, Failure> {
        let (task, request) = (self.task, self.request);
        let RateArgs { base_batch, base_rate, .. } = *request.rate;
        let batch = chosen.candidate.batch;
        let rule = request.rule();
        let rate = learning_rate(rule, base_batch, base_rate, batch).map_err(Failure::usage)?;
        let per_epoch = task.samples() / batch;
        let warmup = warmup_iterations(base_batch, batch, per_epoch, request.epochs);
        let facts = task.setup.facts()?;
        Ok(Config {
            kind: ConfigKind,
            network: task.network.spec.clone(),
            data: task.source.as_ref().map(ToString::to_string),
            device: facts.name,
            threads: task.setup.threads(),
            link: model.link(),
            paced: task.setup.link(),
            kernels: task.setup.kernels(),
            modelled: task.setup.model().is_some(),
            modelled_error: task.setup.model().map(|device| device.error()),
            budget_bytes: request.budget,
            batch,
            keeps_all: self.keeps_all,
            policy: request.policy().to_string(),
            schedule: "chosen.schedule.json".to_owned(),
            learning_rate: LearningRate { rate, rule, base_batch, base_rate, warmup_iterations: warmup },
            predicted: chosen.predicted(),
            measured: chosen.figures,
        })
    }
}

/// What is said where AccUDNN's search has no answer.
pub(crate) const NO_ALGORITHM_2: &str = "AccUDNN's eq. (6) holds, with a plan that fits, at no batch";

/// What to do where tuning was stopped.
pub(crate) const GOES_ON: &str = "the same command goes on from the profile";

fn stopped_searching() -> Failure {
    Failure::new(Exit::Interrupted, "stopped while searching batch sizes; the profile is kept").help(GOES_ON)
}

/// Why a search chose what it chose, where epochs within a share of the shortest count as equal.
fn in_words(reason: &Reason, within: f64) -> String {
    match *reason {
        Reason::Shortest { gain: Some(0.0) } => {
            "the shortest epoch predicted, with everything kept".to_owned()
        }
        Reason::Shortest { gain: Some(gain) } => {
            let gain = gain * 100.0;
            format!(
                "the shortest epoch predicted, {gain:.1} % less than the largest batch that keeps everything"
            )
        }
        Reason::Shortest { gain: None } => "the shortest epoch predicted".to_owned(),
        Reason::WithinError { batch, gain, error } => format!(
            "batch {batch} promises {:.1} % less, within the model's error of {:.1} %: everything is kept",
            gain * 100.0,
            error * 100.0
        ),
        Reason::Near { batch, saves, extra } => {
            let [saves, within] = [saves, within].map(|share| share * 100.0);
            let more = if extra > Seconds::ZERO {
                format!(" and swaps or recomputes for {extra} of each iteration")
            } else {
                String::new()
            };
            format!(
                "batch {batch} has an epoch {saves:.2} % shorter{more}; of all within {within:.1} % this one swaps and recomputes \
                 least, and is the smallest"
            )
        }
    }
}

/// Puts samples in the place of the profile's of the same batch size, or adds them as a new one. Older ones were measured under another
/// plan or at another time, and would outvote them. Ways to run an op that did not run this time stay.
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
    use plimsoll_ir::profile::{OpSamples, WaySamples};
    use plimsoll_ir::trace::Phase;

    fn samples(batch: u64, usual: &[f64], way: &[f64]) -> BatchSamples {
        let seconds = |all: &[f64]| all.iter().copied().map(Seconds).collect::<Vec<_>>();
        let way = WaySamples { name: "lean".into(), workspace_bytes: Bytes::ZERO, seconds: seconds(way) };
        let ways = if way.seconds.is_empty() { vec![] } else { vec![way] };
        let (name, kind) = ("a.forward".into(), "conv".into());
        let op = OpSamples { name, kind, phase: Phase::Forward, flops: 1, seconds: seconds(usual), ways };
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
        assert_eq!(batches[0].ops[0].ways[0].seconds, [Seconds(3.0)], "what did not run stays");
    }
}
