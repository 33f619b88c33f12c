//! Plans with fewer means, which the plan with all of them is never behind: without swapping, without recomputing, with less
//! memory.
//!
//! More means make the search harder: it may end in a plan that a search among fewer would have passed by. So where the lower
//! bound of fewer means leaves room for a better plan than there is, these are searched, too, and what is found is a candidate.
//! A glance at a part of the evaluations says whether the whole search is worth its time. Small traces cost little, and are
//! searched with less memory, too.
//!
//! What this file does not do: search with every smaller budget, or with slower links, whose plans would be candidates as well.

use super::search::Search;
use super::{Candidates, SAME, search_all, suggested};
use crate::bound::lower_bound_within;
use crate::plan::{Allow, PlanError, PlanRequest};
use crate::realise::Task;
use crate::values::Values;
use plimsoll_ir::Bytes;

/// A glance has such a part of the evaluations, and solves so many linear programs for seeds.
const GLANCE: u64 = 8;
const PROGRAMS: usize = 2;

/// A search whose glance ends above so many times the best plan is not worth its time.
const NEAR: f64 = 1.05;

/// Traces of no more ops are searched with less memory.
const SMALL: usize = 64;

/// Such shares of the pool's room beyond the floor.
const SHARES: [f64; 1] = [0.6];

/// Offers what is found with fewer means. Tells whether time is up.
pub(super) fn offer(task: &Task<'_>, candidates: &mut Candidates) -> Result<bool, PlanError> {
    let allow = task.request.allow;
    let mut late = false;
    for allow in [Allow { recompute: false, ..allow }, Allow { swap: false, ..allow }] {
        if allow == task.request.allow || !(allow.swap || allow.recompute) || late || candidates.settled() {
            continue;
        }
        let PlanRequest { budget, link, limits, .. } = *task.request;
        let bound = lower_bound_within(task.trace, budget, &link, allow, &limits);
        let request = PlanRequest { allow, anytime: false, ..*task.request };
        let fewer = Task { request: &request, bound, ..*task };
        let small = task.trace.ops.len() <= SMALL;
        if bound.0 < candidates.fastest() * (1.0 - SAME) && (small || is_near(&fewer, candidates)) {
            late |= search_alone(&fewer, candidates)?;
        }
    }
    if task.trace.ops.len() > SMALL {
        return Ok(late);
    }
    let floor = task.trace.memory().floor().map_or(0, |(_, floor)| floor.0 - task.trace.resident_bytes.0);
    for share in SHARES {
        if late || candidates.settled() {
            break;
        }
        let pool = floor + ((task.pool - floor) as f64 * share) as u64;
        let request = PlanRequest { anytime: false, ..*task.request };
        late |= search_alone(&Task { pool, request: &request, ..*task }, candidates)?;
    }
    Ok(late)
}

/// Searches as if nothing had been found: what was found already would steer the search away from what it finds by itself.
fn search_alone(task: &Task<'_>, candidates: &mut Candidates) -> Result<bool, PlanError> {
    let mut own = Candidates { bound: task.bound.0, least: 0, found: Vec::new(), short: None };
    let (late, _) = search_all(task, &mut own, None)?;
    candidates.found.append(&mut own.found);
    Ok(late)
}

/// Whether a glance ends near the best plan, or finds none that fits.
fn is_near(task: &Task<'_>, candidates: &Candidates) -> bool {
    let values = Values::new(task.trace, Bytes(task.pool), task.request.allow);
    let evaluations = task.request.limits.evaluations.unwrap_or_else(|| suggested(&values));
    let found = Search::new(task, &values, evaluations.div_ceil(GLANCE), PROGRAMS).run();
    let cost = &found.judged.cost;
    cost.overflow > 0 || cost.seconds < candidates.fastest() * NEAR
}
