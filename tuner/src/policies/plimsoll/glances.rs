//! Glances at fewer means: short searches that only swap, or only recompute. They give seeds to the search among all means, and
//! say whether a whole search among fewer is worth its time (`fewer.rs`).
//!
//! A glance that only recomputes is followed by a long search where the search among all means is lost: where it found nothing
//! that fits, or ends far above its bound and behind the glance. Densely connected networks at tight budgets want nearly
//! everything recomputed in an order that no seed comes near, and a search that may also swap ends in plans that swap too
//! much.

use super::candidates::Candidates;
use super::judge::Found;
use super::problem::Problem;
use super::search::Search;
use crate::decide::windows::Cost;
use crate::iteration::values::Decisions;
use crate::place::realise::Case;
use crate::request::{Allow, PlanRequest};
use std::cell::OnceCell;

/// A glance has such a part of the evaluations, and solves so many linear programs for seeds.
const GLANCE: u64 = 8;
const PROGRAMS: usize = 2;

/// Where it finds nothing that fits, it looks so often.
const GLANCES: usize = 4;

/// Traces of no more ops are small: they are searched with less memory, too, and without the long search below.
pub(super) const SMALL: usize = 64;

/// A search among all means that ends so many times above its bound, and behind a glance, is lost.
const LOST: f64 = 1.1;

/// Then what only recomputes is searched with so many times the evaluations of a whole search, up to [`GLANCES`] times where
/// nothing fits: with as many as a whole search has, most end where nothing fits.
const LONG: u64 = 3;

/// A search whose glance ends above so many times the best plan is not worth its time.
const NEAR: f64 = 1.05;

/// Swapping alone and recomputing alone, where both are allowed.
pub(super) fn alone(allow: Allow) -> impl Iterator<Item = Allow> {
    let alone = [Allow { recompute: false, ..allow }, Allow { swap: false, ..allow }];
    alone.into_iter().filter(move |_| allow.swap && allow.recompute)
}

/// What a glance at each of fewer means finds, looked for once.
#[derive(Default)]
pub(super) struct Glances(OnceCell<Vec<(Allow, Found)>>);

impl Glances {
    /// `cost` is what the search among all means ended with, where there was one.
    fn found(&self, case: &Case<'_>, cost: Option<&Cost>) -> &[(Allow, Found)] {
        self.0.get_or_init(|| {
            let found = alone(case.request.allow).map(|allow| {
                let request = PlanRequest { allow, ..*case.request };
                let case = Case { request: &request, ..*case };
                let mut found = glance(&case, 1, GLANCE);
                if !allow.swap && cost.is_some_and(|cost| is_lost(&case, cost, &found)) {
                    found = glance(&case, LONG, 1);
                }
                (allow, found)
            });
            found.collect()
        })
    }

    /// Seeds for a search among all means that ended with this cost, at the first call.
    pub fn seeds(&self, case: &Case<'_>, cost: &Cost) -> Vec<Decisions> {
        if self.0.get().is_some() {
            return Vec::new();
        }
        self.found(case, Some(cost)).iter().map(|(_, found)| found.decisions.clone()).collect()
    }

    /// Whether the glance at these means ends near the best plan, or finds none that fits.
    pub fn are_near(&self, case: &Case<'_>, allow: Allow, candidates: &Candidates) -> bool {
        self.found(case, None).iter().filter(|(of, _)| *of == allow).any(|(_, found)| {
            let cost = found.judged.cost;
            cost.overflow > 0 || cost.seconds < candidates.fastest() * NEAR
        })
    }
}

/// Whether a search that ended with this cost is lost, beside what this glance found. Small traces are searched in other ways,
/// and `tune` asks for hundreds of their plans.
fn is_lost(case: &Case<'_>, cost: &Cost, glance: &Found) -> bool {
    if case.trace.ops.len() <= SMALL {
        return false;
    }
    let behind = glance.judged.cost.seconds < cost.seconds;
    cost.overflow > 0 || (behind && cost.seconds > case.bound.0 * LOST)
}

/// A search with so many parts of the evaluations.
fn glance(case: &Case<'_>, parts: u64, of: u64) -> Found {
    let values = case.values();
    let problem = Problem::new(case, &values);
    let mut search =
        Search::new(&problem, problem.evaluations().saturating_mul(parts).div_ceil(of), PROGRAMS);
    let mut found = search.run();
    for _ in 1..GLANCES {
        if found.judged.cost.overflow > 0 {
            found = search.run();
        }
    }
    found
}
