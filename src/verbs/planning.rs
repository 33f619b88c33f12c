//! Code shared by `plan` and `compare`: a request from the options, a plan with its bound and planning time, and
//! their cells.

use crate::args::PlanningArgs;
use crate::output::{Cell, Table};
use crate::{interrupt, progress};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_study::Error;
use plimsoll_tuner::bound::lower_bound_within;
use plimsoll_tuner::frontier::{self, Point};
use plimsoll_tuner::policies::papers::dqn::last_policy;
use plimsoll_tuner::{Allow, Earlier, Limits, Outcome, PlanRequest, Policy, Status, Tricks, plan_with_log};
use std::time::{Duration, Instant};

/// Relative difference below which a plan's makespan equals the bound.
const SAME: f64 = 1e-9;

/// A budget planned under a policy.
pub struct PlanRun {
    /// Policy that planned.
    pub policy: Policy,
    /// Device memory budget.
    pub budget: Bytes,
    /// Plan, or the reason for having none.
    pub outcome: Outcome,
    /// Lower bound on the makespan of any schedule with the allowed actions; `None` if no schedule of any kind fits.
    pub bound: Option<Seconds>,
    /// Time to find plan and bound.
    pub planning: Seconds,
    /// For DQN, an iteration by its last policy.
    pub last_policy: Option<Seconds>,
}

impl PlanningArgs {
    /// Request for one budget, without limits.
    pub fn request(&self, policy: Policy, budget: Bytes) -> PlanRequest<'static> {
        let link = Link {
            prefetch_bytes_per_second: self.prefetch_link.unwrap_or(self.link),
            latency_seconds: self.latency,
            duplex: self.duplex,
            ..Link::symmetric(self.link)
        };
        let (recompute, swap, pieces) = (!self.no_recompute, !self.no_swap, !self.no_pieces);
        let allow = Allow { recompute, swap, pieces, host: self.host_memory };
        let without: Tricks = self.without.iter().copied().collect();
        let (limits, anytime) = (Limits::default(), self.time_limit.is_some());
        PlanRequest { budget, link, policy, allow, limits, seed: self.seed, without, anytime, from: None }
    }

    /// The one budget given, or those of the sweep; `otherwise` many if neither is given.
    pub fn budgets(&self, trace: &Trace, otherwise: u32) -> Vec<Bytes> {
        let peak = trace.memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        match self.budget {
            Some(budget) => vec![budget.of(peak)],
            None => frontier::budgets(trace, self.sweep.unwrap_or(otherwise)),
        }
    }

    /// Lower bound for all allowed actions, as far as time allows; `None` if no schedule of any kind fits.
    pub fn bound(&self, trace: &Trace, budget: Bytes, limits: &Limits<'_>) -> Option<Seconds> {
        let request = self.request(Policy::Plimsoll, budget);
        let fits = trace.memory().floor().is_some_and(|(_, floor)| floor <= budget);
        fits.then(|| lower_bound_within(trace, budget, &request.link, request.allow, limits))
    }

    /// Plans once. Ctrl-C and the time limit, which covers all the work here, end it with the best plan so far. A
    /// known bound is passed in, and not computed again.
    pub fn plan(
        &self,
        trace: &Trace,
        policy: Policy,
        budget: Bytes,
        known: Option<Seconds>,
        from: Option<&Earlier>,
    ) -> Result<PlanRun, Error> {
        let start = Instant::now();
        let limit =
            self.time_limit.map(|limit| Duration::try_from_secs_f64(limit.0).unwrap_or(Duration::MAX));
        let expired = || interrupt::pressed() || limit.is_some_and(|limit| start.elapsed() >= limit);
        let limits = Limits { evaluations: None, expired: Some(&expired) };
        let request = PlanRequest { limits, from, ..self.request(policy, budget) };
        let (outcome, log) = plan_with_log(trace, &request)?;
        progress::searched(&log);
        // A policy of the papers may use fewer actions than allowed, and its plan's bound is one for those only.
        let own = outcome.plan().filter(|_| policy == Policy::Plimsoll).map(|made| made.bound);
        let hopeless = matches!(&outcome, Outcome::Infeasible(witness) if witness.why.is_proved());
        let bound = known.or(own);
        let bound = if hopeless { bound } else { bound.or_else(|| self.bound(trace, budget, &limits)) };
        let last_policy = last_policy(&log);
        let planning = Seconds(start.elapsed().as_secs_f64());
        Ok(PlanRun { policy, budget, outcome, bound, planning, last_policy })
    }
}

impl PlanRun {
    /// Status of the outcome, in one or two words.
    pub fn status(&self) -> &'static str {
        let Outcome::Planned(made) = &self.outcome else { return "infeasible" };
        match made.status {
            Status::Unknown => "unknown",
            _ if self.gap().is_some_and(|gap| gap <= SAME) => "optimal",
            Status::Optimal => "optimal",
            Status::Feasible => "feasible",
            Status::OutOfTime => "feasible, out of time",
        }
    }

    /// Makespan divided by the bound, minus 1; `None` if there is no bound, or if no times are known.
    pub fn gap(&self) -> Option<f64> {
        let (made, bound) = (self.outcome.plan().filter(|made| made.status != Status::Unknown)?, self.bound?);
        let gap = if made.makespan == bound { 0.0 } else { made.makespan / bound - 1.0 };
        gap.is_finite().then_some(gap.max(0.0))
    }

    /// Makespan of the plan divided by a given time.
    pub fn ratio(&self, to: Option<Seconds>) -> Cell {
        match (self.outcome.plan(), to) {
            (Some(made), Some(to)) if to.0 > 0.0 => Cell::Number(made.makespan / to, 4),
            _ => Cell::None,
        }
    }

    /// Cells under [`HEADS`].
    fn cells(&self, trace: &Trace) -> [Cell; HEADS.len()] {
        let made = self.outcome.plan();
        let totals = made.map(|made| simulate(trace, &made.schedule).totals(trace, &made.schedule));
        let why_not = match &self.outcome {
            Outcome::Planned(_) => Cell::None,
            Outcome::Infeasible(witness) => witness.to_string().into(),
        };
        [
            self.budget.into(),
            self.policy.name().into(),
            self.status().into(),
            made.map(|made| made.makespan).into(),
            self.bound.into(),
            self.gap().map_or(Cell::None, Cell::Share),
            self.ratio(self.bound),
            self.ratio(Some(trace.fastest_seconds())),
            made.map(|made| made.moved).into(),
            totals.as_ref().map(|totals| totals.recomputed_bytes).into(),
            totals.as_ref().map(|totals| totals.recomputed).into(),
            made.map(|made| made.schedule.host_bytes(trace)).into(),
            made.map(|made| made.schedule.pool_bytes).into(),
            self.planning.into(),
            why_not,
        ]
    }
}

/// Table of runs with these columns, given by their keys.
pub fn table(key: &'static str, columns: &[&str], trace: &Trace, tried: &[PlanRun]) -> Table {
    let places: Vec<usize> =
        columns.iter().filter_map(|column| HEADS.iter().position(|(key, _)| key == column)).collect();
    let mut table = Table::new(key, &places.iter().map(|at| HEADS[*at]).collect::<Vec<_>>());
    let row = |one: &PlanRun| {
        let cells = one.cells(trace);
        places.iter().map(|at| cells[*at].clone()).collect()
    };
    table.rows = tried.iter().map(row).collect();
    table
}

/// Columns of tables of runs.
const HEADS: [(&str, &str); 15] = [
    ("budget_bytes", "budget"),
    ("policy", "policy"),
    ("status", "status"),
    ("makespan_seconds", "makespan"),
    ("bound_seconds", "bound"),
    ("gap", "gap"),
    ("ratio_to_bound", "/ bound"),
    ("ratio_to_compute", "/ compute"),
    ("moved_bytes", "moved"),
    ("recomputed_bytes", "recomputed"),
    ("recomputed_seconds", "recomputing"),
    ("host_bytes", "host"),
    ("pool_bytes", "pool"),
    ("planning_seconds", "planning"),
    ("why_not", "why not"),
];

/// Warning about a trace whose ops take no time, such as one without measurements.
pub fn timeless(trace: &Trace) -> Option<&'static str> {
    (trace.fastest_seconds() == Seconds::ZERO).then_some(
        "all ops of the trace take 0 s, so that nothing is known of what swapping and recomputing ops cost; \
         `plimsoll trace --profile` fills in the times of a profile that `plimsoll profile` measured, \
         `plimsoll trace --device` those of a modelled device",
    )
}

/// Gives each run, all of one policy, the best of all plans that fit its budget, so that more budget never takes
/// longer; sorts them by budget.
pub fn carry(trace: &Trace, args: &PlanningArgs, mut tried: Vec<PlanRun>) -> Result<Vec<PlanRun>, Error> {
    let Some(first) = tried.first() else { return Ok(tried) };
    let request = args.request(first.policy, first.budget);
    tried.sort_by_key(|one| one.budget);
    let point = |one: &PlanRun| Point { budget: one.budget, outcome: one.outcome.clone() };
    let points = frontier::carry(trace, &request, tried.iter().map(point).collect())?;
    tried.iter_mut().zip(points).for_each(|(one, point)| one.outcome = point.outcome);
    Ok(tried)
}
