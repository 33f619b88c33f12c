//! Plimsoll's own planner. It decides which tensors to keep, swap and recompute so that the iteration takes the least time within
//! the budget; among plans that take equally long, it chooses the one that moves the fewest bytes.
//!
//! *The first plan* (`first.rs`) takes one pass and milliseconds. It is the answer if time is up at once. Otherwise the *bound*
//! is sharpened, everything is *kept* if that fits, and the steps of [`plan`] follow:
//!
//! 1. *Seeds* (`seeds.rs`): that pass; the linear program of the lower bound, rounded, for the budget and for smaller ones; for
//!    deep networks also a plan of a few of the equal blocks, copied to all (`blocks.rs`, `copies.rs`).
//! 2. *For each stage* (`stages.rs`: whole tensors first, then parts of them, if they are large relative to the pool), in rounds:
//!    - *Anneal* (`search.rs`). Starting from the best seeds, some decisions change; improvements are accepted, deteriorations
//!      with falling probability. Annealing ends at the bound; once the time cannot improve, it minimises bytes moved. The
//!      problem (`problem.rs`) never changes, the judge (`judge.rs`) computes the cost of decisions, the annealer (`annealer.rs`)
//!      changes them.
//!    - *Pack*. The decisions found get addresses. If these miss the pool, the next round leaves bytes free. The search for
//!      addresses also chooses which end of a tensor in pieces comes first (`realise.rs`).
//!    - *Offer*. A plan with addresses is a candidate (`candidates.rs`).
//! 3. *Fewer means* (`fewer.rs`, `glances.rs`). If the result is far above the bound, short searches that only swap, or only
//!    recompute, give seeds. In the end such searches are candidates; small traces are also searched with less memory, and
//!    completely.
//! 4. *Policies*. The plan of every other policy that might be better is a candidate, so that none is better unless time is up.
//! 5. *Settle*. The best candidate is placed once more, to leave few holes.
//!
//! If time may be up at any moment, complete plans are made during the search (`anytime.rs`). The end of time is handled in
//! `candidates.rs`.
//!
//! The planner is deterministic for a seed, and bounded by a number of evaluations and by the caller's deadline.

mod adapted;
mod annealer;
mod anytime;
mod blocks;
mod candidates;
mod copies;
mod fewer;
mod first;
mod glances;
mod host;
mod judge;
mod moves;
mod problem;
mod search;
mod seeds;
mod stages;

pub(crate) use problem::suggested;

use super::papers::keep::keep;
use super::papers::superneurons;
use crate::bound::{lower_bound_within, offload_bound};
use crate::place::realise::{Case, Fitting, GIVEN, Realised};
use crate::request::Algorithms::FastestThatFit;
use crate::request::{Allow, Error, Layers, Layrub, Limits, Outcome, PlanRequest, Policy, Trick};
use crate::threads::{Expired, beside};
use candidates::{Candidates, Chosen};
use glances::Glances;
use plimsoll_ir::Seconds;
use plimsoll_ir::search_log::SearchLog;

/// Makespans that differ by at most this share are equal: bytes moved decide between them.
const SAME: f64 = 1e-6;

/// Tolerance for sums of floats.
const HAIR: f64 = 1e-9;

const ACCUDNN: Policy = Policy::Accudnn { as_printed: false };
const MEMONGER: Policy = Policy::Memonger { searched: false };

/// Policies that only offload and whose schedules are candidates.
const OFFLOADING: [Policy; 11] = [
    Policy::Greedy,
    Policy::DynProg,
    Policy::AutoSwap,
    Policy::VdnnRatio,
    ACCUDNN,
    Policy::Tflms,
    Policy::Layrub(Layrub::Inter),
    Policy::VdnnDyn,
    Policy::Vdnn { layers: Layers::Conv, algorithms: FastestThatFit },
    Policy::Vdnn { layers: Layers::All, algorithms: FastestThatFit },
    Policy::Naive,
];

/// Policy that swaps and recomputes ops. Its answer is nearly always needed in the end, so it runs while the search goes on.
const LAST: Policy = Policy::SuperNeurons;

/// Number of ops up to which its answer takes little time, and is not worth a second thread.
const FEW: usize = 100;

/// Decides. If the host is limited, returns the plan without that limit if the plan keeps it, else a plan within the limit. If
/// time may be up at any moment, plans only within the limit.
pub(crate) fn decide(case: &Case<'_>) -> Result<(Outcome, SearchLog), Error> {
    let PlanRequest { allow, anytime, from, .. } = *case.request;
    if let Some(earlier) = from {
        return adapted::decide(case, earlier);
    }
    let Some(limit) = allow.host.filter(|_| allow.swap) else { return decide_within(case) };
    if anytime {
        return decide_within(case);
    }
    let request = PlanRequest { allow: Allow { host: None, ..allow }, ..*case.request };
    let (free, mut log) = decide_within(&Case { request: &request, ..*case })?;
    let takes = free.plan().map(|plan| plan.schedule.host_bytes(case.trace));
    let Some(takes) = takes.filter(|takes| *takes > limit) else { return Ok((free, log)) };
    let (within, steps) = decide_within(case)?;
    log.add_all("within the host's memory", steps);
    let outcome = match (within, case.short_of_host(takes)) {
        (Outcome::Infeasible(short), Some(Realised::Short(free))) if free.distance() < short.distance() => {
            Outcome::Infeasible(free)
        }
        (within, _) => within,
    };
    Ok((outcome, log))
}

/// Decides within the host's limit. If time is up or may be up at any moment, there is a plan before all else. The case's bound
/// costs nothing to compute; this function sharpens it once there is a first plan, if time is not up.
fn decide_within(case: &Case<'_>) -> Result<(Outcome, SearchLog), Error> {
    let PlanRequest { budget, link, allow, limits, anytime, .. } = *case.request;
    let early = anytime || limits.is_expired();
    let first = if early { first::plan(case, &case.values(), None)? } else { None };
    let first = first.map(|placed| placed.fitting);
    let bound = match first {
        Some(_) if limits.is_expired() => case.bound,
        _ => lower_bound_within(case.trace, budget, &link, allow, &limits),
    };
    let case = &Case { bound, ..*case };
    let Chosen { realised, status, log } = plan(first, case)?;
    Ok((case.outcome(realised, status), log))
}

/// Runs the steps listed at the head of this file. If time is already up, returns the first plan.
fn plan(first: Option<Fitting>, case: &Case<'_>) -> Result<Chosen, Error> {
    let mut candidates = Candidates::new(case);
    let enough = first.is_some();
    candidates.early.extend(first);
    if !(enough && candidates.is_late(case)) {
        candidates.offer("keeping everything", keep(case, case.thorough())?);
        let last = search(case, &mut candidates)?;
        offer_policies(case, last, &mut candidates)?;
        offer_last_resorts(case, &mut candidates)?;
    }
    candidates.choose(case)
}

/// Answer of the last policy, if it has run.
type Answer = Option<Result<Realised, Error>>;

/// Searches in stages, then with fewer means; meanwhile the last policy runs on a second thread.
fn search(case: &Case<'_>, candidates: &mut Candidates) -> Result<Answer, Error> {
    if candidates.settled() {
        return Ok(None);
    }
    let PlanRequest { budget, link, allow, limits, seed, without, .. } = *case.request;
    let (Case { trace, pool, bound, .. }, Limits { evaluations, expired: clock }) = (*case, limits);
    // The caller's clock stays on this thread, together with the request.
    let ask = move |expired: Expired<'_>| {
        let limits = Limits { evaluations, expired };
        let request = &PlanRequest { allow, limits, seed, without, ..PlanRequest::new(budget, link, LAST) };
        superneurons::realise(&Case { trace, request, pool, bound, within: Seconds(f64::INFINITY) })
    };
    let search = || {
        let glances = Glances::default();
        let searched = stages::search(case, &glances, candidates).and_then(|()| match candidates.late {
            true => Ok(()),
            false => fewer::offer(case, &glances, candidates),
        });
        let wanted = searched.is_ok() && !candidates.is_late(case) && !candidates.settled();
        (searched, wanted)
    };
    // If time may be up at any moment, the last policy has run before.
    let others = case.request.uses(Trick::Policies) && !case.request.anytime;
    let worth = others && allow.recompute && allow.swap && trace.ops.len() > FEW;
    let (searched, answer) = beside(worth, clock, search, ask);
    searched.map(|()| answer)
}

/// Offers the plans of other policies, if they may be better. `answer` is that of the last policy, if it has run.
fn offer_policies(case: &Case<'_>, answer: Answer, candidates: &mut Candidates) -> Result<(), Error> {
    let PlanRequest { budget, link, allow, limits, .. } = case.request;
    if !case.request.uses(Trick::Policies) {
        return Ok(());
    }
    let offloading = offload_bound(case.trace, *budget, link, limits).0;
    if allow.swap && candidates.fastest() >= offloading * (1.0 - SAME) {
        candidates.offer_all(case, &OFFLOADING)?;
    }
    if allow.recompute {
        candidates.offer_all(case, &[MEMONGER])?;
        match answer {
            Some(answer) => candidates.offer(format!("policy {LAST}"), answer?),
            None if allow.swap => candidates.offer_all(case, &[LAST])?,
            None => {}
        }
    }
    Ok(())
}

/// If nothing fits so far, offers the result of the first pass if time is up; then a plan that swaps every value that can be
/// swapped.
fn offer_last_resorts(case: &Case<'_>, candidates: &mut Candidates) -> Result<(), Error> {
    if candidates.found.is_empty() && candidates.late {
        let placed = first::plan(case, &case.values(), None)?;
        candidates.add_all("first plan", placed.map(|placed| placed.fitting));
    }
    if candidates.found.is_empty() && case.request.allow.swap {
        let gaps = case.gaps();
        let swapped = case.realise(&gaps, &gaps.all(), &GIVEN)?;
        candidates.offer("swapping everything", swapped);
    }
    Ok(())
}
