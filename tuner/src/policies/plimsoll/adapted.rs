//! A plan that is made from an earlier one, in a small part of the time of a new plan.
//!
//! 1. *Carry.* What was decided is taken over, by the names of tensors and ops ([`Earlier`]).
//! 2. *Mend* (`first.rs`). More is given up until all fits, then what there is room for is kept, a short search goes over it,
//!    and it gets addresses. Where time is up, this is the plan.
//! 3. *Improve* (`stages.rs`). A few rounds of annealing, packing and offering go on from there, unless the plan is within a
//!    thousandth of the bound already.
//! 4. The earlier schedule itself is a candidate where it is valid for the trace and the budget.
//!
//! Where nothing of this fits, the plan is made anew. So is that of a small trace, which takes little time, and the better of
//! the two is taken.
//!
//! What this file does not do: solve a bound's linear program, ask other policies, or search with fewer means. Its bound is
//! what the ops alone take.

use super::candidates::{Candidates, Chosen};
use super::first::Placed;
use super::glances::SMALL;
use super::{first, stages};
use crate::iteration::earlier::Earlier;
use crate::iteration::values::PARTS;
use crate::place::realise::{Case, Realised};
use crate::request::{Outcome, PlanError, PlanRequest};
use plimsoll_ir::search_log::SearchLog;

/// A plan within this share of the bound is not improved.
const CLOSE: f64 = 1e-3;

/// See the head of this file.
///
/// # Errors
///
/// [`PlanError::Unrelated`] for a trace that shares nothing with the earlier one, and those of a plan that is made anew.
pub(super) fn decide(case: &Case<'_>, earlier: &Earlier) -> Result<(Outcome, SearchLog), PlanError> {
    let values = case.values();
    let Some(mut decisions) = earlier.decisions(case.trace, &values) else {
        let (earlier, trace) = (earlier.trace().to_owned(), case.trace.name.clone());
        return Err(PlanError::Unrelated { earlier, trace });
    };
    if !case.request.allow.pieces {
        decisions.parts.fill(PARTS);
        decisions.chunks = 1;
    }
    let case = &Case { bound: case.trace.fastest_seconds(), ..*case };
    let mut candidates = Candidates::new(case);
    candidates.add_all("the earlier schedule", case.valid(earlier.schedule()));
    if !candidates.settled()
        && let Some(Placed { fitting, from }) = first::mended(case, &values, decisions)?
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
