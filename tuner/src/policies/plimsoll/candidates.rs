//! Plans found so far, with the way each was found, and the choice among them: of those that take equally long, the one that
//! moves the fewest bytes.
//!
//! This file handles the end of time: [`Candidates::is_late`] then admits the plans that were made in case of it, no further
//! policy runs once there is any plan, and the chosen plan is not settled.

use super::{HAIR, SAME};
use crate::bound::least_moved;
use crate::decide::windows::Cost;
use crate::place::realise::{Case, Fitting, Realised};
use crate::policies::{Made, run};
use crate::request::{Error, PlanRequest, Policy, Shortage, Status, Trick, Witness};
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::{Bytes, Seconds};

/// Plans so far; if there is none, the smallest witness that nothing fits.
pub(super) struct Candidates {
    /// Lower bound on makespans; no plan at the bound moves fewer bytes.
    pub bound: f64,
    least: u64,
    pub found: Vec<Fitting>,
    /// Complete plans made during the search. They are candidates only if time is up before the search ends, so that a search
    /// that is not cut short returns the same plan as without them.
    pub early: Vec<Fitting>,
    /// `true` if time was up.
    pub late: bool,
    short: Option<Witness>,
    /// Attempts and their results.
    pub log: SearchLog,
}

/// Best plan found.
pub(super) struct Chosen {
    pub realised: Realised,
    /// [`Status::OutOfTime`] if time was up before the end.
    pub status: Status,
    pub log: SearchLog,
}

impl Candidates {
    /// Returns no candidates.
    pub fn new(case: &Case<'_>) -> Candidates {
        let PlanRequest { allow, budget, .. } = *case.request;
        let least = if allow.recompute { 0 } else { least_moved(case.trace, budget).0 };
        let (found, early, log) = Default::default();
        Candidates { bound: case.bound.0, least, found, early, late: false, short: None, log }
    }

    /// Returns `true` if time is up.
    pub fn is_late(&mut self, case: &Case<'_>) -> bool {
        self.late |= case.request.limits.is_expired();
        if self.late {
            let early = std::mem::take(&mut self.early);
            self.add_all("on the way", early);
        }
        self.late
    }

    /// Adds the result of an attempt.
    pub fn offer(&mut self, tried: impl Into<String>, realised: Realised) {
        self.offer_decided(tried, None, realised);
    }

    /// Adds the result of decisions with these predicted seconds, before they had addresses.
    pub fn offer_decided(&mut self, tried: impl Into<String>, decided: Option<Seconds>, realised: Realised) {
        self.log.add(tried, decided, realised.step_result());
        match realised {
            Realised::Fits(fitting) => self.found.push(fitting),
            Realised::Slow => {}
            Realised::Short(short) => {
                if self.short.as_ref().is_none_or(|s| short.distance() < s.distance()) {
                    self.short = Some(short);
                }
            }
        }
    }

    /// Records that decisions which fit the device need this much host memory.
    pub fn short_of_host(&mut self, case: &Case<'_>, needs: u64) {
        case.short_of_host(Bytes(needs)).into_iter().for_each(|short| self.offer("the host's memory", short));
    }

    /// Adds complete plans.
    pub fn add_all(&mut self, tried: &str, plans: impl IntoIterator<Item = Fitting>) {
        plans.into_iter().for_each(|plan| self.offer(tried, Realised::Fits(plan)));
    }

    /// Adds all results of a different search.
    pub fn add_search(&mut self, name: &str, mut other: Candidates) {
        self.log.add_all(name, other.log);
        self.found.append(&mut other.found);
    }

    /// Offers the plans of these policies, until nothing can be better or time is up.
    pub fn offer_all(&mut self, case: &Case<'_>, policies: &[Policy]) -> Result<(), Error> {
        for &policy in policies {
            let late = self.is_late(case);
            if self.settled() || (late && !self.found.is_empty()) {
                break;
            }
            let within = Seconds(self.fastest() * (1.0 + SAME));
            if let Made::Ruled(realised) = run(&Case { within, ..*case }, policy)? {
                self.offer(format!("policy {policy}"), realised);
            }
        }
        Ok(())
    }

    /// Shortest makespan found, in seconds.
    pub fn fastest(&self) -> f64 {
        self.found.iter().map(|f| f.makespan.0).fold(f64::INFINITY, f64::min)
    }

    /// Returns the position of the plan that moves the fewest bytes among the fastest.
    pub fn best(&self) -> Option<usize> {
        let within = self.fastest() * (1.0 + SAME);
        let equal = (0..self.found.len()).filter(|at| self.found[*at].makespan.0 <= within);
        let key = |at: &usize| (self.found[*at].moved, self.found[*at].makespan);
        equal.min_by(|a, b| key(a).0.cmp(&key(b).0).then(key(a).1.0.total_cmp(&key(b).1.0)))
    }

    fn moved(&self) -> u64 {
        self.best().map_or(u64::MAX, |at| self.found[at].moved)
    }

    /// Returns `true` if no plan can be faster or move fewer bytes.
    pub fn settled(&self) -> bool {
        self.fastest() <= self.bound * (1.0 + HAIR) && self.moved() <= self.least
    }

    /// Returns `true` if a schedule of this cost would be chosen.
    pub fn want(&self, cost: &Cost) -> bool {
        let fastest = self.fastest();
        cost.seconds < fastest * (1.0 - SAME)
            || (cost.seconds <= fastest * (1.0 + SAME) && cost.moved < self.moved())
    }

    /// Returns the best plan, placed once more to leave few holes, or the reason why there is none; and the log.
    pub fn choose(mut self, case: &Case<'_>) -> Result<Chosen, Error> {
        let realised = match (self.best(), self.short) {
            (Some(at), _) => {
                let best = self.found.swap_remove(at);
                if self.late || !case.request.uses(Trick::Settle) {
                    Realised::Fits(best)
                } else {
                    let settled = Realised::Fits(case.settle(best)?);
                    self.log.add("settled", None, settled.step_result());
                    settled
                }
            }
            // A shortage of some decisions does not prove a shortage of all.
            (None, Some(short)) if short.why == Shortage::Policy => {
                Realised::Short(Witness { why: Shortage::Tried, ..short })
            }
            (None, Some(short)) => Realised::Short(short),
            (None, None) => unreachable!("keep was offered, and nothing is slow before anything fits"),
        };
        let status = if self.late { Status::OutOfTime } else { Status::Feasible };
        Ok(Chosen { realised, status, log: self.log })
    }
}
