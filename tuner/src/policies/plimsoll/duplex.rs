//! The plan for a half-duplex link is a candidate where the link is full duplex, so that a full-duplex link never gives a
//! slower plan.
//!
//! A schedule for a half-duplex link is one for the full-duplex link of the same rates, and no slower there. It is safe:
//! [`plimsoll_ir::check`] counts the waits of the commands alone, and not that transfers wait for each other on the
//! link. It is no slower: a command starts when the last of some others has ended, and with full duplex there are fewer of
//! these for a transfer, and the same for every other command; so by induction over the list none starts later. It is
//! checked and timed once more all the same.
//!
//! The search for half duplex is the whole one: a short one would not give the plan that a request for half duplex gets.
//! It runs on the second thread, where its bound is near that of full duplex, and is ended where the plan for full duplex is
//! at its bound.
//!
//! What this file does not do: the same for slower links, of which there are infinitely many.

use super::candidates::planned;
use super::{Chosen, SAME, choose};
use crate::bound::lower_bound_within;
use crate::place::realise::{Case, Fitting, Realised};
use crate::request::{Limits, PlanError, PlanRequest, Trick};
use crate::threads::{Expired, beside};
use plimsoll_ir::Seconds;
use plimsoll_ir::schedule::{Duplex, Link};

/// A plan that is so many times longer than its bound at most is as good as any.
const AT_BOUND: f64 = 1.001;

/// Where the bound for half duplex is more than so many times that for full duplex, its search is not begun before the plan for
/// full duplex leaves room for it.
const NEAR: f64 = 1.05;

/// Of no more ops than these a search is soon done, and not worth a second thread.
const FEW: usize = 100;

/// What came of the search for half duplex.
enum Half {
    /// Its bound, which is far from that of full duplex.
    Far(Seconds),
    Chosen(Result<Chosen, PlanError>),
}

/// The best of what is found for the link and, where that is full duplex, for the same with half duplex.
pub(super) fn choose_for_both(first: Option<Fitting>, case: &Case<'_>) -> Result<Chosen, PlanError> {
    let PlanRequest { budget, link, policy, allow, limits, seed, without, anytime } = *case.request;
    let Limits { evaluations, expired: clock } = limits;
    let Case { trace, pool, bound, within, .. } = *case;
    if link.duplex == Duplex::Half || !allow.swap || !case.request.uses(Trick::Duplex) {
        return choose(first, case);
    }
    let half = move |near: f64, expired: Expired<'_>| {
        let limits = Limits { evaluations, expired };
        let link = Link { duplex: Duplex::Half, ..link };
        let request = PlanRequest { budget, link, policy, allow, limits, seed, without, anytime: false };
        let bound = lower_bound_within(trace, budget, &link, allow, &limits);
        if bound.0 > near {
            return Half::Far(bound);
        }
        Half::Chosen(choose(None, &Case { trace, request: &request, pool, bound, within }))
    };
    let full = || {
        let chosen = choose(first, case);
        let wanted = chosen.as_ref().is_ok_and(|chosen| !chosen.late && fastest(chosen) > bound.0 * AT_BOUND);
        (chosen, wanted)
    };
    // Where time may be up at any moment, all of it is for the link as it is at first.
    let worth = !anytime && trace.ops.len() > FEW;
    let (full, asked) = beside(worth, clock, full, |expired| half(bound.0 * NEAR, expired));
    let mut full = full?;
    let room = fastest(&full) * (1.0 - SAME);
    if full.late || fastest(&full) <= bound.0 * AT_BOUND {
        return Ok(full);
    }
    let half = match asked {
        Some(Half::Far(bound)) if bound.0 > room => return Ok(full),
        Some(Half::Chosen(half)) => half?,
        _ => match half(room, clock) {
            Half::Far(_) => return Ok(full),
            Half::Chosen(half) => half?,
        },
    };
    full.late |= half.late;
    full.log.add_all("half duplex", half.log);
    if let Realised::Fits(fitting) = half.realised {
        let fitting = case.relinked(fitting)?;
        full.log.add("half duplex, on the full-duplex link", None, planned(&fitting));
        if fitting.makespan.0 < room {
            full.realised = Realised::Fits(fitting);
        }
    }
    Ok(full)
}

/// The seconds of what was chosen; infinitely many where nothing fits.
fn fastest(chosen: &Chosen) -> f64 {
    match &chosen.realised {
        Realised::Fits(fitting) => fitting.makespan.0,
        Realised::Short(_) | Realised::Slow => f64::INFINITY,
    }
}
