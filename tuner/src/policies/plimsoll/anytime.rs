//! Whole plans while the search goes on, for requests whose time may be up at any moment ([`PlanRequest::anytime`]).
//!
//! The first is that of `first.rs`, made before anything else. Where it finds none, some simple policies plan. Nothing that
//! the search finds has addresses before its first annealing is over, which is a third of its time; so the best of the seeds
//! is given addresses, and what a stage of the search finds, where that is faster than every whole plan so far. These plans
//! stand aside: they are candidates only if time is up before the search is done. A search that is not cut short gives the
//! plan that it gives without them.
//!
//! What this file does not do: end the simple policies when time is up, where they are needed.

use super::judge::Found;
use super::{ACCUDNN, AUTOSWAP, Asked, GREEDY, MEMONGER, SAME};
use crate::iteration::values::Values;
use crate::numbers::counted;
use crate::place::realise::{Case, Fitting, LIGHT, Packing, Realised};
use crate::request::{Limits, PlanError, PlanRequest};
use plimsoll_ir::{OpId, Seconds};
use typed_index_collections::TiSlice;

/// The policies that plan first, where bytes may move; the best on average first, so that it spares the others.
const SIMPLE: [Asked; 3] = [AUTOSWAP, GREEDY, ACCUDNN];

/// So many seeds are tried as they are; and if they have no addresses, after a search with such a part of the evaluations and
/// of the pool left free at every op, and if that has none, with the next part.
pub(super) const SEEDS: usize = 2;
pub(super) const SHORT: u64 = 40;
pub(super) const FREE: [Option<u64>; 4] = [None, Some(16), Some(8), Some(4)];

/// What is faster by less than this share is not given addresses before the search is done.
const WORTH: f64 = 2e-3;

/// The looks for addresses, beside [`LIGHT`]: for every op.
const LOOKS: u64 = 600;

/// The whole plans so far.
#[derive(Default)]
pub(super) struct Early {
    pub found: Vec<Fitting>,
    packing: Packing,
    /// The least seconds of what was found and has no addresses.
    missed: Option<f64>,
    /// What went wrong on the way.
    pub fault: Option<PlanError>,
}

impl Early {
    /// With the first plan; where there is none, with what the simple policies plan.
    pub fn new(case: &Case<'_>, first: Vec<Fitting>) -> Result<Early, PlanError> {
        let request = &unhurried(case);
        let allow = request.allow;
        let policies: &[Asked] = match () {
            () if !first.is_empty() => &[],
            () if allow.swap => &SIMPLE,
            () if allow.recompute => &[MEMONGER],
            () => &[],
        };
        let mut early = Early { found: first, ..Early::default() };
        for (_, realise) in policies {
            let within = Seconds(early.fastest() * (1.0 + SAME));
            if let Realised::Fits(fitting) = realise(&Case { within, request, ..*case })? {
                early.found.push(fitting);
            }
        }
        Ok(early)
    }

    fn fastest(&self) -> f64 {
        self.found.iter().map(|f| f.makespan.0).fold(f64::INFINITY, f64::min)
    }

    /// Whether this is faster than every whole plan.
    pub fn is_faster(&self, found: &Found) -> bool {
        found.judged.cost.seconds < self.fastest() * (1.0 - WORTH)
    }

    /// Whether it fits, is faster than every whole plan, and than what missed addresses before.
    pub fn wants(&self, found: &Found) -> bool {
        let cost = &found.judged.cost;
        let missed = self.missed.unwrap_or(f64::INFINITY);
        cost.overflow == 0 && self.is_faster(found) && cost.seconds < missed * (1.0 - WORTH)
    }

    /// Gives addresses to what the search found. Tells whether there are some, with little work.
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

/// The same request without an end of time.
pub(super) fn unhurried<'a>(case: &Case<'a>) -> PlanRequest<'a> {
    let limits = Limits { expired: None, ..case.request.limits };
    PlanRequest { limits, ..*case.request }
}
