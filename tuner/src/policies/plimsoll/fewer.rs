//! Searches with fewer means: without swapping, without recomputing, with less memory; and, on small traces, a complete search.
//!
//! More means and more memory make the search harder: it may end in a plan that a search with fewer means would have avoided.
//! Therefore, if the lower bound of fewer means leaves room for a better plan, these are searched as well, and the result is a
//! candidate. A glance with a part of the evaluations shows if the whole search is worth its time. Small traces cost little: they
//! are also searched with less memory, and completely ([`optimal`]) as far as possible.
//!
//! This file deliberately does not search large traces with less memory, or with slower links, although those plans would be
//! candidates. So on a large trace, a plan may be slower than one with less memory.

use super::super::optimal::{self, Faster};
use super::candidates::{Candidates, Chosen};
use super::glances::{Glances, SMALL, alone};
use super::{SAME, plan, stages};
use crate::bound::lower_bound_within;
use crate::place::realise::{Case, Realised};
use crate::request::{Allow, Error, PlanRequest, Trick};
use plimsoll_ir::{Bytes, Seconds};

/// Number of shares into which the memory between floor and peak is divided; those below the budget are searched.
const SHARES: u64 = 8;

/// Maximum number of states of a complete search, which takes some seconds; and of one with less memory, of which there are
/// several.
const STATES: u64 = 400_000;
const STATES_OF_LESS: u64 = 20_000;

/// Returns swapping alone and recomputing alone ([`alone`]), and on small traces less memory, the most first: the means of a
/// search, and its pool in bytes.
fn all_fewer(case: &Case<'_>) -> Vec<(Allow, u64)> {
    let (allow, pool) = (case.request.allow, case.pool);
    let mut all: Vec<(Allow, u64)> = alone(allow).map(|allow| (allow, pool)).collect();
    let memory = case.trace.memory();
    if let (Some((_, floor)), Some((_, peak))) = (memory.floor(), memory.peak())
        && case.trace.ops.len() <= SMALL
    {
        let resident = case.trace.resident_bytes;
        let share = |part: u64| (floor + Bytes((peak - floor).0 / SHARES * part) - resident).0;
        let less = (0..SHARES).rev().map(share).filter(|less| *less < pool);
        all.extend(less.map(|pool| (allow, pool)));
    }
    all
}

/// Returns the name in the log of a search with these means, or within less memory.
fn name(allow: Allow, less: Option<u64>) -> String {
    match less {
        Some(pool) => format!("within a pool of {}", Bytes(pool)),
        None if allow.swap => "swapping alone".to_owned(),
        None => "recomputing alone".to_owned(),
    }
}

/// Offers the results of such searches.
pub(super) fn offer(case: &Case<'_>, glances: &Glances, candidates: &mut Candidates) -> Result<(), Error> {
    let (trace, limits) = (case.trace, case.request.limits);
    let PlanRequest { link, budget, .. } = *case.request;
    let exact = case.request.uses(Trick::Exact);
    let less = if exact { search_completely(case, STATES, candidates)? } else { None };
    let small = trace.ops.len() <= SMALL;
    for (allow, pool) in all_fewer(case) {
        if limits.is_expired() || candidates.settled() || !case.request.uses(Trick::Fewer) {
            break;
        }
        let bound = lower_bound_within(trace, budget - Bytes(case.pool - pool), &link, allow, &limits);
        let request = PlanRequest { allow, anytime: false, ..*case.request };
        let fewer = Case { request: &request, bound, pool, ..*case };
        let name = name(allow, (pool != case.pool).then_some(pool));
        if bound.0 >= candidates.fastest() * (1.0 - SAME)
            || !(small || glances.are_near(case, allow, candidates))
        {
            continue;
        }
        if small && pool == case.pool {
            // Runs every search that a request for fewer means would run, so that such a request never gives a better plan.
            let Chosen { realised, log, .. } = plan(None, &fewer)?;
            candidates.log.add_all(&name, log);
            if let Realised::Fits(fitting) = realised {
                candidates.found.push(fitting);
            }
            continue;
        }
        search_alone(&name, &fewer, candidates)?;
        if let Some(states) = less {
            search_completely(&fewer, states, candidates)?;
        }
    }
    Ok(())
}

/// Examines at most this many states, and offers the result. Returns the number of states for a search with less memory: many if
/// the fastest plan of whole tensors has no addresses in all of the memory, where others may have them with less; `None` if no plan
/// of whole tensors is faster.
fn search_completely(
    case: &Case<'_>,
    states: u64,
    candidates: &mut Candidates,
) -> Result<Option<u64>, Error> {
    if case.request.limits.is_expired() || candidates.settled() {
        return Ok(Some(STATES_OF_LESS));
    }
    let states = case.request.limits.evaluations.map_or(states, |most| most.min(states)) as usize;
    let within = Seconds(candidates.fastest());
    let known = candidates.best().map(|at| &*candidates.found[at].schedule);
    let faster = optimal::faster(&Case { within, ..*case }, known, states)?;
    let Some(Faster { fitting, complete, unplaced }) = faster else { return Ok(Some(STATES_OF_LESS)) };
    candidates.add_all("complete search", fitting);
    let less = if unplaced { STATES } else { STATES_OF_LESS };
    Ok(Some(less).filter(|_| unplaced || !complete))
}

/// Searches as if nothing had been found, because earlier results would steer this search away from its own.
fn search_alone(name: &str, case: &Case<'_>, candidates: &mut Candidates) -> Result<(), Error> {
    let mut own = Candidates::new(case);
    stages::search(case, &Glances::default(), &mut own)?;
    if let Some(best) =
        own.best().filter(|_| case.trace.ops.len() <= SMALL && case.request.uses(Trick::Settle))
    {
        // The plan is settled now, as it would be for a request of these means: that may make it faster.
        let best = own.found.swap_remove(best);
        own.found.push(case.settle(best)?);
    }
    candidates.add_search(name, own);
    Ok(())
}
