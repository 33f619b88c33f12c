//! The types of planning: requests and outcomes.
//!
//! # The data
//!
//! A [`PlanRequest`] has the budget, the link, a [`Policy`], the means that the plan may use and the limits of the search. An
//! [`Outcome`] is either a [`Plan`] (a schedule that [`plimsoll_ir::check`] found valid, its makespan, a lower bound) or a
//! [`Witness`] for why there is none. A plan that does not fit is an outcome; an [`Error`] is an invalid request, or a bug in
//! this crate.

mod allow;
mod error;
mod outcome;
mod policy;
mod tricks;

pub use allow::Allow;
pub use error::{Error, Kind};
pub use outcome::{Outcome, Plan, Shortage, Status, Witness};
pub use policy::{Algorithms, Layers, Layrub, Policy};
pub use tricks::{Trick, Tricks};

use crate::iteration::earlier::Earlier;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Link;

/// A request for a plan.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// Limit for resident bytes and pool together.
    pub budget: Bytes,
    /// Link between device and host.
    pub link: Link,
    /// Planning policy to use.
    pub policy: Policy,
    /// Means that the plan may use.
    pub allow: Allow,
    /// Limits of the search.
    pub limits: Limits<'a>,
    /// Seed of the search's random choices.
    pub seed: u64,
    /// Tricks that the search leaves out, for ablations.
    pub without: Tricks,
    /// `true` if time may be up at any moment ([`Limits::expired`]): [`Policy::Plimsoll`] then makes simple plans first, whatever
    /// the time, and complete plans during the search, and returns the best of them. A search that ends by itself takes a little
    /// longer, and returns the same plan, unless host memory is short ([`Allow::host`]).
    pub anytime: bool,
    /// Existing plan to adapt, for a different budget, link or batch size, or for a slightly different trace: its decisions are
    /// made to fit and improved, in a small part of the time of a new plan. Only [`Policy::Plimsoll`] does so; `None` means a new
    /// plan.
    pub from: Option<&'a Earlier>,
}

impl<'a> PlanRequest<'a> {
    /// Returns a request with everything allowed, no limits, seed 1 and all tricks, for the plan at the end of the search.
    pub fn new(budget: Bytes, link: Link, policy: Policy) -> PlanRequest<'a> {
        let (allow, limits) = (Allow::default(), Limits::default());
        let without = Tricks::NONE;
        PlanRequest { budget, link, policy, allow, limits, seed: 1, without, anytime: false, from: None }
    }

    /// Returns `true` if this trick is used.
    pub fn uses(&self, trick: Trick) -> bool {
        !self.without.contains(trick)
    }

    /// Returns `true` if the lower bound of its plans holds for every schedule, including those that recompute ops.
    pub fn bounds_all(&self) -> bool {
        let Allow { recompute, swap, .. } = self.allow;
        recompute
            && match self.policy {
                Policy::Plimsoll | Policy::Optimal | Policy::Memonger { .. } | Policy::SuperNeurons => true,
                Policy::Dqn => swap,
                _ => false,
            }
    }
}

/// Limits of a search.
#[derive(Clone, Copy, Default)]
pub struct Limits<'a> {
    /// Maximum number of decision sets evaluated per pool size; `None` means a number that depends on the size of the trace.
    pub evaluations: Option<u64>,
    /// Returns `true` once time is up. The best plan so far is then finished, which takes some more time.
    pub expired: Option<&'a dyn Fn() -> bool>,
}

impl Limits<'_> {
    /// Returns `true` if time is up.
    pub fn is_expired(&self) -> bool {
        self.expired.is_some_and(|expired| expired())
    }
}
