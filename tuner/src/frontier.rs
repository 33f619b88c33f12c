//! The frontier of time over memory: one trace planned for several budgets, so that more budget never costs time.
//!
//! A search at one budget ignores the others, and may find a slower plan at a larger budget. But a schedule is valid for every
//! budget that its resident bytes and its pool fit ([`plimsoll_ir::check`], rule 6 is the only one that names the budget). So
//! every budget takes the best of all plans that fit it, wherever they were found: those of smaller budgets, and those of larger
//! ones that turned out to need less ([`carry`]). A plan taken from a different budget is stamped with the new budget and checked
//! again.
//!
//! This file deliberately neither plans, which the caller does, nor improves the policies of the papers.

use crate::bound::{lower_bound_within, unbeatable};
use crate::request::{Error, Outcome, Plan, PlanRequest, Status};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, check};

/// Makespans that differ by at most this share are equal: bytes moved decide between them.
const SAME: f64 = 1e-6;

/// Result for one budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Limit for resident bytes and pool together.
    pub budget: Bytes,
    /// Plan, or the reason why there is none.
    pub outcome: Outcome,
}

/// Returns `count` budgets in equal steps from the floor, below which no plan fits and which is not among them, to the peak, at
/// which nothing has to leave. If peak and floor are the same, that is the only one.
pub fn budgets(trace: &Trace, count: u32) -> Vec<Bytes> {
    let memory = trace.memory();
    let (Some((_, floor)), Some((_, peak))) = (memory.floor(), memory.peak()) else { return Vec::new() };
    let room = u128::from(peak.saturating_sub(floor).0);
    // A share of a room below 2^62 bytes is below it too.
    let step = |k: u32| floor + Bytes((room * u128::from(k) / u128::from(count)) as u64);
    let mut budgets: Vec<Bytes> = (1..=count).map(step).collect();
    budgets.dedup();
    budgets
}

/// Gives every budget the best of all plans that fit it, and sorts the points by budget. `request` is the one that they were
/// planned with, except for the budget.
///
/// # Errors
///
/// [`Error`] if a plan was not valid in the first place.
pub fn carry(trace: &Trace, request: &PlanRequest<'_>, mut points: Vec<Point>) -> Result<Vec<Point>, Error> {
    points.sort_by_key(|point| point.budget);
    let mut limit = f64::INFINITY;
    let chosen: Vec<Option<usize>> =
        (0..points.len()).map(|at| choose(trace, &points, at, &mut limit)).collect();
    let carried = points.iter().zip(chosen).enumerate().map(|(at, (point, from))| {
        let Point { budget, outcome } = point;
        let outcome = match from.and_then(|from| points[from].outcome.plan().map(|plan| (from, plan))) {
            Some((from, plan)) if from != at => stamp(trace, request, *budget, plan, outcome.plan())?,
            _ => outcome.clone(),
        };
        Ok(Point { budget: *budget, outcome })
    });
    carried.collect()
}

/// Returns the position of the plan that a point takes: of those that fit its budget, are no slower than the plans of the smaller
/// budgets (`limit`) and as good as the fastest, the one that moves the fewest bytes; its own, if it is one of several.
fn choose(trace: &Trace, points: &[Point], at: usize, limit: &mut f64) -> Option<usize> {
    let fits = |plan: &Plan| plan.schedule.pool_bytes + trace.resident_bytes <= points[at].budget;
    let fitting = points.iter().enumerate().filter_map(|(from, point)| Some((from, point.outcome.plan()?)));
    let fitting: Vec<(usize, &Plan)> = fitting.filter(|(_, plan)| fits(plan)).collect();
    let fastest = fitting.iter().map(|(_, plan)| plan.makespan.0).fold(f64::INFINITY, f64::min);
    let most = limit.min(fastest * (1.0 + SAME));
    let good = fitting.into_iter().filter(|(_, plan)| plan.makespan.0 <= most);
    let (from, plan) = good.min_by(|(i, a), (j, b)| {
        a.moved.cmp(&b.moved).then(a.makespan.0.total_cmp(&b.makespan.0)).then((i != &at).cmp(&(j != &at)))
    })?;
    *limit = plan.makespan.0;
    Some(from)
}

/// Returns a plan that was found at a different budget as one of this budget, for which `own` was found.
fn stamp(
    trace: &Trace,
    request: &PlanRequest<'_>,
    budget: Bytes,
    plan: &Plan,
    own: Option<&Plan>,
) -> Result<Outcome, Error> {
    let mut plan = plan.clone();
    plan.schedule.budget_bytes = budget;
    check::check(trace, &plan.schedule).map_err(|violation| {
        let policy = request.policy;
        Error::internal(format_args!(": policy {policy} made a schedule that is not valid: {violation}"))
    })?;
    let PlanRequest { link, allow, limits, .. } = request;
    plan.bound = match own {
        Some(own) => own.bound,
        None => lower_bound_within(trace, budget, link, *allow, limits),
    };
    let optimal = plan.makespan.0 <= unbeatable(trace, request, plan.bound).0 * (1.0 + 1e-9);
    plan.status = match own.map(|own| own.status) {
        _ if optimal => Status::Optimal,
        Some(Status::OutOfTime) => Status::OutOfTime,
        _ if plan.status == Status::Optimal => Status::Feasible,
        _ => plan.status,
    }
    .of(trace);
    Ok(Outcome::Planned(plan))
}
