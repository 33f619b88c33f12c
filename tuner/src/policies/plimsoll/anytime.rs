//! Complete plans during the search, for requests whose time may be up at any moment ([`PlanRequest::anytime`]).
//!
//! The first is that of `first.rs`, made before anything else. If it finds none, some simple policies plan. No result of the
//! search has addresses before its first annealing ends, after a third of its time. Therefore the best seed gets addresses, and
//! so does the result of a stage if it is faster than every complete plan so far. These plans are candidates only if time is up
//! before the search ends: a search that is not cut short returns the same plan as without them.
//!
//! This file deliberately does not end the simple policies when time is up, if they are needed.

use super::judge::Found;
use super::{ACCUDNN, MEMONGER, SAME};
use crate::iteration::values::Values;
use crate::numbers::counted;
use crate::place::realise::{Case, Fitting, LIGHT, Packing, Realised};
use crate::policies::{Made, run};
use crate::request::{Error, Limits, PlanRequest, Policy};
use plimsoll_ir::{OpId, Seconds};
use typed_index_collections::TiSlice;

/// Policies that plan first, if bytes may move; the best on average first, which often makes the others unnecessary.
const SIMPLE: [Policy; 3] = [Policy::AutoSwap, Policy::Greedy, ACCUDNN];

/// Number of seeds that are tried as they are. If they have no addresses, a search follows, with a part of the evaluations and a
/// part of the pool left free at every op; if that finds none, with the next part.
pub(super) const SEEDS: usize = 2;
pub(super) const SHORT: u64 = 40;
pub(super) const FREE: [Option<u64>; 4] = [None, Some(16), Some(8), Some(4)];

/// Minimum relative improvement for which a result gets addresses before the search ends.
const WORTH: f64 = 2e-3;

/// Looks for addresses per op, in addition to [`LIGHT`].
const LOOKS: u64 = 600;

/// Complete plans so far.
#[derive(Default)]
pub(super) struct Early {
    pub found: Vec<Fitting>,
    packing: Packing,
    /// Smallest makespan of a result without addresses.
    missed: Option<f64>,
    /// Error that occurred during the search.
    pub fault: Option<Error>,
}

impl Early {
    /// Starts with the first plan; if there is none, with the plans of the simple policies.
    pub fn new(case: &Case<'_>, first: Vec<Fitting>) -> Result<Early, Error> {
        let request = &unhurried(case);
        let allow = request.allow;
        let policies: &[Policy] = match () {
            () if !first.is_empty() => &[],
            () if allow.swap => &SIMPLE,
            () if allow.recompute => &[MEMONGER],
            () => &[],
        };
        let mut early = Early { found: first, ..Early::default() };
        for &policy in policies {
            let within = Seconds(early.fastest() * (1.0 + SAME));
            let answer = run(&Case { within, request, ..*case }, policy)?;
            if let Made::Ruled(Realised::Fits(fitting)) = answer {
                early.found.push(fitting);
            }
        }
        Ok(early)
    }

    fn fastest(&self) -> f64 {
        self.found.iter().map(|f| f.makespan.0).fold(f64::INFINITY, f64::min)
    }

    /// Returns `true` if this result is faster than every complete plan.
    pub fn is_faster(&self, found: &Found) -> bool {
        found.judged.cost.seconds < self.fastest() * (1.0 - WORTH)
    }

    /// Returns `true` if this result fits, is faster than every complete plan, and faster than the results that missed addresses
    /// before.
    pub fn wants(&self, found: &Found) -> bool {
        let cost = &found.judged.cost;
        let missed = self.missed.unwrap_or(f64::INFINITY);
        cost.overflow == 0 && self.is_faster(found) && cost.seconds < missed * (1.0 - WORTH)
    }

    /// Assigns addresses to a result of the search. Returns `true` if little work found some.
    pub fn add(
        &mut self,
        case: &Case<'_>,
        values: &Values,
        margins: &TiSlice<OpId, u64>,
        found: &Found,
    ) -> bool {
        let request = unhurried(case);
        let case = Case { request: &request, ..*case };
        let looks = LIGHT + LOOKS * counted(case.trace.ops.len());
        match case.realise_decisions(values, &found.decisions, margins, looks, &mut self.packing) {
            Ok((Realised::Fits(fitting), _)) => {
                self.found.push(fitting);
                return true;
            }
            Ok(_) => {
                let seconds = found.judged.cost.seconds;
                self.missed = Some(self.missed.map_or(seconds, |missed| missed.min(seconds)));
            }
            Err(fault) => self.fault = Some(fault),
        }
        false
    }
}

/// Returns the same request without a deadline.
pub(super) fn unhurried<'a>(case: &Case<'a>) -> PlanRequest<'a> {
    let limits = Limits { expired: None, ..case.request.limits };
    PlanRequest { limits, ..*case.request }
}
