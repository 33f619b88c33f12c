//! The words of planning: what a plan is asked for with, and what is answered.
//!
//! # The data
//!
//! A [`PlanRequest`] has the budget, the link, a [`Policy`], what the plan may do and how long it may be looked for. An
//! [`Outcome`] is either a [`Plan`] (a schedule that [`plimsoll_ir::check`] found valid, its makespan, a lower bound) or
//! a [`Witness`] for why there is none. That a plan does not fit is an outcome; a [`PlanError`] is a request that means
//! nothing, or a fault of this crate.

mod allow;
mod outcome;
mod policy;
mod tricks;

pub use allow::Allow;
pub(crate) use outcome::{LATENCY_MAX, RATE_MIN};
pub use outcome::{Outcome, Plan, PlanError, Shortage, Status, Witness};
pub use policy::{Algorithms, Layers, Layrub, Policy, UnknownPolicy};
pub use tricks::{Trick, Tricks, UnknownTrick};

use crate::iteration::earlier::Earlier;
use plimsoll_ir::Bytes;
use plimsoll_ir::schedule::Link;

/// What a plan is asked for with.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// What resident bytes and pool may take together.
    pub budget: Bytes,
    /// The link between device and host.
    pub link: Link,
    /// Who decides.
    pub policy: Policy,
    /// What the plan may do.
    pub allow: Allow,
    /// How long it may be looked for.
    pub limits: Limits<'a>,
    /// For the choices of a search that are left to chance.
    pub seed: u64,
    /// What the search goes without, to see what it is worth.
    pub without: Tricks,
    /// Time may be up at any moment ([`Limits::expired`]): [`Policy::Plimsoll`] makes simple plans first, whatever the time,
    /// and whole ones on its way, and gives the best of them then. A search that comes to its end takes a little longer, and
    /// gives the same plan, unless the host's memory is short ([`Allow::host`]).
    pub anytime: bool,
    /// A plan that there is already, for another budget, link or batch size, or for a trace that differs a little: what it
    /// decided is made to fit and improved, in a small part of the time of a new plan. Only [`Policy::Plimsoll`] does so; none
    /// for a plan of its own.
    pub from: Option<&'a Earlier>,
}

impl<'a> PlanRequest<'a> {
    /// With everything allowed, as long as it takes, with seed 1 and all tricks, for the plan at the end of the search.
    pub fn new(budget: Bytes, link: Link, policy: Policy) -> PlanRequest<'a> {
        let (allow, limits) = (Allow::default(), Limits::default());
        let without = Tricks::NONE;
        PlanRequest { budget, link, policy, allow, limits, seed: 1, without, anytime: false, from: None }
    }

    /// Whether this trick is used.
    pub fn uses(&self, trick: Trick) -> bool {
        !self.without.contains(trick)
    }

    /// Whether the lower bound of its plans holds for every schedule, those that recompute ops too.
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

/// How long a plan may be looked for.
#[derive(Clone, Copy, Default)]
pub struct Limits<'a> {
    /// So many sets of decisions are evaluated at most for one size of the pool; none for as many as the size of the trace
    /// suggests.
    pub evaluations: Option<u64>,
    /// Says that time is up. The best plan so far is then finished; that takes some time more.
    pub expired: Option<&'a dyn Fn() -> bool>,
}

impl Limits<'_> {
    /// Whether time is up.
    pub fn is_expired(&self) -> bool {
        self.expired.is_some_and(|expired| expired())
    }
}
