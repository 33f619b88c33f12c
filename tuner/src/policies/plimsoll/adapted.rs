//! Adaptation of an earlier plan, in a small part of the time of a new plan.
//!
//! 1. *Carry.* The earlier decisions are taken over, by the names of tensors and ops ([`Earlier`]).
//! 2. *Mend* (`first.rs`). More is given up until everything fits, then values for which there is room are kept, a short search
//!    improves the decisions, and they get addresses. If time is up, this is the plan.
//! 3. *Improve* (`stages.rs`). A few rounds of annealing, packing and offering follow, unless the plan is already within a
//!    thousandth of the bound.
//! 4. The earlier schedule itself is a candidate if it is valid for the trace and the budget.
//!
//! If none of these fits, a new plan is made. For a small trace a new plan takes little time; it is made as well, and the better
//! of the two is taken.
//!
//! This file deliberately solves no linear program for a bound, asks no other policies, and does not search with fewer means. Its
//! bound is the time of the ops alone.

use super::candidates::{Candidates, Chosen};
use super::first::Placed;
use super::glances::SMALL;
use super::{first, stages};
use crate::iteration::earlier::Earlier;
use crate::iteration::values::PARTS;
use crate::place::realise::{Case, Realised};
use crate::request::{Error, Kind, Outcome, PlanRequest};
use plimsoll_ir::search_log::SearchLog;

/// A plan within this share of the bound is not improved.
const CLOSE: f64 = 1e-3;

/// Returns the adapted plan; see the head of this file.
///
/// # Errors
///
/// The trace shares nothing with the earlier one; and the errors of a new plan.
pub(super) fn decide(case: &Case<'_>, earlier: &Earlier) -> Result<(Outcome, SearchLog), Error> {
    let values = case.values();
    let Some(mut decisions) = earlier.decisions(case.trace, &values) else {
        let (earlier, trace) = (earlier.trace(), &case.trace.name);
        let message = format!(
            "the earlier schedule is of `{earlier}`, which has no tensor of `{trace}`, so that nothing of it can be taken over"
        );
        return Err(Error { kind: Kind::Unrelated, message });
    };
    if !case.request.allow.pieces {
        decisions.parts.fill(PARTS);
        decisions.chunks = 1;
    }
    let case = &Case { bound: case.trace.fastest_seconds(), ..*case };
    let mut candidates = Candidates::new(case);
    candidates.add_all("the earlier schedule", case.valid(earlier.schedule()));
    if !candidates.settled()
        && let Some(Placed { fitting, from }) = first::plan(case, &values, Some(decisions))?
    {
        candidates.offer("mended", Realised::Fits(fitting));
        if !candidates.is_late(case) && candidates.fastest() > case.bound.0 * (1.0 + CLOSE) {
            stages::go_on(case, &values, from, &mut candidates)?;
        }
    }
    let small = case.trace.ops.len() <= SMALL && !candidates.settled() && !candidates.is_late(case);
    if small || candidates.found.is_empty() {
        let request = PlanRequest { from: None, ..*case.request };
        let (outcome, steps) = super::decide(&Case { request: &request, ..*case })?;
        candidates.log.add_all("anew", steps);
        let makespan = outcome.plan().map_or(f64::INFINITY, |plan| plan.makespan.0);
        if candidates.found.is_empty() || makespan < candidates.fastest() {
            return Ok((outcome, candidates.log));
        }
    }
    let Chosen { realised, status, log } = candidates.choose(case)?;
    Ok((case.outcome(realised, status), log))
}
