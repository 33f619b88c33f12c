//! Glances at fewer means: short searches that only swap, or only recompute. They give seeds to the search among all means, and
//! show if a whole search with fewer means is worth its time (`fewer.rs`).
//!
//! A glance that only recomputes is followed by a long search if the search among all means is lost: if it found nothing that
//! fits, or ends far above its bound and behind the glance. Densely connected networks at tight budgets need nearly everything
//! recomputed in an order that no seed comes near, and a search that may also swap ends in plans that swap too much.

use super::candidates::Candidates;
use super::judge::Found;
use super::problem::Problem;
use super::search::Search;
use crate::decide::windows::Cost;
use crate::iteration::values::Decisions;
use crate::place::realise::Case;
use crate::request::{Allow, PlanRequest};
use std::cell::OnceCell;

/// Share of the evaluations of a glance, as a divisor, and its number of linear programs for seeds.
const GLANCE: u64 = 8;
const PROGRAMS: usize = 2;

/// Maximum number of glances if none finds anything that fits.
const GLANCES: usize = 4;

/// Number of ops up to which a trace is small: it is also searched with less memory, and without the long search below.
pub(super) const SMALL: usize = 64;

/// Factor on the bound above which a search among all means, if it also ends behind a glance, is lost.
const LOST: f64 = 1.1;

/// Factor on the evaluations of a whole search for the long search that only recomputes, up to [`GLANCES`] times if nothing fits:
/// with the evaluations of one whole search, most such searches find nothing that fits.
const LONG: u64 = 3;

/// Factor on the best plan above which a glance shows that its search is not worth its time.
const NEAR: f64 = 1.05;

/// Returns swapping alone and recomputing alone, if both are allowed.
pub(super) fn alone(allow: Allow) -> impl Iterator<Item = Allow> {
    let alone = [Allow { recompute: false, ..allow }, Allow { swap: false, ..allow }];
    alone.into_iter().filter(move |_| allow.swap && allow.recompute)
}

/// Results of a glance at each set of fewer means, computed once.
#[derive(Default)]
pub(super) struct Glances(OnceCell<Vec<(Allow, Found)>>);

impl Glances {
    /// Returns the results. `cost` is the result of the search among all means, if there was one.
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

    /// Returns seeds for a search among all means that ended with this cost, at the first call.
    pub fn seeds(&self, case: &Case<'_>, cost: &Cost) -> Vec<Decisions> {
        if self.0.get().is_some() {
            return Vec::new();
        }
        self.found(case, Some(cost)).iter().map(|(_, found)| found.decisions.clone()).collect()
    }

    /// Returns `true` if the glance at these means ends near the best plan, or finds none that fits.
    pub fn are_near(&self, case: &Case<'_>, allow: Allow, candidates: &Candidates) -> bool {
        self.found(case, None).iter().filter(|(of, _)| *of == allow).any(|(_, found)| {
            let cost = found.judged.cost;
            cost.overflow > 0 || cost.seconds < candidates.fastest() * NEAR
        })
    }
}

/// Returns `true` if a search that ended with this cost is lost, compared with this glance. Small traces are searched in other
/// ways, and `tune` requests hundreds of their plans.
fn is_lost(case: &Case<'_>, cost: &Cost, glance: &Found) -> bool {
    if case.trace.ops.len() <= SMALL {
        return false;
    }
    let behind = glance.judged.cost.seconds < cost.seconds;
    cost.overflow > 0 || (behind && cost.seconds > case.bound.0 * LOST)
}

/// Searches with a fraction `parts` / `of` of the evaluations.
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
