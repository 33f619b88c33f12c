//! Glances at fewer means: short searches that only swap, or only recompute. They give seeds to the search among all means, and
//! say whether a whole search among fewer is worth its time (`fewer.rs`).

use super::candidates::Candidates;
use super::judge::Found;
use super::problem::Problem;
use super::search::Search;
use crate::iteration::values::{Decisions, Values};
use crate::place::realise::Case;
use crate::request::{Allow, PlanRequest};
use plimsoll_ir::Bytes;
use std::cell::OnceCell;

/// A glance has such a part of the evaluations, and solves so many linear programs for seeds.
const GLANCE: u64 = 8;
const PROGRAMS: usize = 2;

/// Where it finds nothing that fits, it looks so often.
const GLANCES: usize = 4;

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
    fn found(&self, case: &Case<'_>) -> &[(Allow, Found)] {
        self.0.get_or_init(|| {
            let found = alone(case.request.allow).map(|allow| {
                let request = PlanRequest { allow, ..*case.request };
                (allow, glance(&Case { request: &request, ..*case }))
            });
            found.collect()
        })
    }

    /// Seeds for a search among all means, at the first call.
    pub fn seeds(&self, case: &Case<'_>) -> Vec<Decisions> {
        if self.0.get().is_some() {
            return Vec::new();
        }
        self.found(case).iter().map(|(_, found)| found.decisions.clone()).collect()
    }

    /// Whether the glance at these means ends near the best plan, or finds none that fits.
    pub fn are_near(&self, case: &Case<'_>, allow: Allow, candidates: &Candidates) -> bool {
        self.found(case).iter().filter(|(of, _)| *of == allow).any(|(_, found)| {
            let cost = found.judged.cost;
            cost.overflow > 0 || cost.seconds < candidates.fastest() * NEAR
        })
    }
}

fn glance(case: &Case<'_>) -> Found {
    let values = Values::new(case.trace, Bytes(case.pool), case.request.allow);
    let problem = Problem::new(case, &values);
    let mut search = Search::new(&problem, problem.evaluations().div_ceil(GLANCE), PROGRAMS);
    let mut found = search.run();
    for _ in 1..GLANCES {
        if found.judged.cost.overflow > 0 {
            found = search.run();
        }
    }
    found
}
