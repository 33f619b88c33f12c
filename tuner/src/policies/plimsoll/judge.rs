//! Judge of a search: the cost of decisions, and the comparison of two costs.
//!
//! A judgement takes two steps. The walk ([`crate::decide::walk`]) computes the ops that run and the bytes they need; it reuses
//! the last walk up to the first op to which a change matters. The clock ([`crate::decide::windows`]) computes the makespan. It
//! is left out if the walk alone shows that the decisions will not be accepted.
//!
//! This file deliberately neither changes decisions nor draws random numbers.

use super::host::Host;
use super::problem::Problem;
use super::{HAIR, SAME};
use crate::decide::walk::{Iteration, Limit, Trail};
use crate::decide::windows::{Clock, Cost};
use crate::iteration::values::Decisions;
use crate::numbers::real;
use crate::request::Trick;
use plimsoll_ir::{Bytes, OpId};
use std::cmp::Ordering;
use typed_index_collections::{TiSlice, TiVec};

/// Initial cost of an excess byte, compared with a byte that crosses the link.
pub(super) const LENIENT: f64 = 4.0;

/// The excess counts at the slot where it is largest, and at every other slot, too, so that one of several peaks can be lowered
/// before the rest: this many slots together weigh as much as the largest.
const PEAK: f64 = 16.0;

/// Objective of a search.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim {
    /// The shortest makespan.
    Time,
    /// The fewest bytes moved, within this many seconds.
    Bytes { within: f64 },
}

/// Cost of decisions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub cost: Cost,
    /// Seconds of recomputing.
    pub recompute_seconds: f64,
    /// Swapped bytes beyond the host's memory.
    pub over_host: u64,
    /// An op with too little room; `None` if everything fits.
    pub crowded: Option<Crowded>,
}

/// Place with too little room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowded {
    /// Op during which room is missing.
    pub op: OpId,
    /// `true` if room is missing while ops are recomputed for it.
    pub recomputing: bool,
}

/// Decisions with their cost.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub decisions: Decisions,
    pub judged: Judged,
}

pub(super) struct Judge<'a> {
    problem: &'a Problem<'a>,
    pub trail: Trail,
    clock: Clock,
    /// Host, if not everything fits it.
    pub host: Option<Host>,
    /// By op: bytes left free for addresses.
    pub margins: TiVec<OpId, u64>,
    pub aim: Aim,
    /// Cost of an excess byte, compared with a byte that crosses the link.
    pub strictness: f64,
}

impl<'a> Judge<'a> {
    /// Returns a judge of the decisions of a problem.
    pub fn new(problem: &'a Problem<'a>) -> Judge<'a> {
        let Problem { case, values, .. } = *problem;
        Judge {
            problem,
            trail: Trail::default(),
            clock: Clock::new(&case.request.link),
            host: Host::new(case, values),
            margins: vec![0; values.alternatives.len()].into(),
            aim: Aim::Time,
            strictness: LENIENT,
        }
    }

    /// Returns the cost of these decisions; infinite if the score is certainly above `most`. The decisions differ from those last
    /// accepted only in ways that matter from op `first` on. `draw` (0 to 1) selects one of the slots with too little room.
    pub fn judge(&mut self, decisions: &Decisions, first: OpId, most: f64, draw: f64) -> Judged {
        let Problem { case, values, fastest, .. } = *self.problem;
        let steps = 3 * values.alternatives.len() + 64;
        let again = match self.aim {
            Aim::Time => most * (1.0 + HAIR) - fastest,
            Aim::Bytes { .. } => f64::INFINITY,
        };
        let of = Iteration { values, decisions, margins: &self.margins, pool: case.pool };
        let ended = self.trail.go(of, first, Limit { steps, again });
        let walk = self.trail.walk();
        let over = walk.course.need.iter().map(|need| need.saturating_sub(case.pool));
        let (overflow, excess) =
            over.fold((0, 0u64), |(most, sum), over| (over.max(most), sum.saturating_add(over)));
        let over_host = self.host.as_mut().map_or(0, |host| host.over(values, walk));
        let overflow = overflow.saturating_add(over_host);
        let least = Cost { seconds: fastest.max(walk.seconds), overflow, excess, ..Cost::default() };
        let recompute_seconds = walk.again_seconds;
        if !ended || self.score(&Judged { cost: least, recompute_seconds, over_host, crowded: None }) > most {
            let cost = Cost { seconds: f64::INFINITY, ..Cost::default() };
            return Judged { cost, recompute_seconds: 0.0, over_host, crowded: None };
        }
        let mut cost = self.clock.evaluate(&walk.course, case.pool);
        cost.overflow = cost.overflow.saturating_add(over_host);
        let over = self.clock.over();
        let crowded = (!over.is_empty()).then(|| {
            let run = walk.run(over[(draw * real(over.len())) as usize]);
            Crowded { op: run.serves, recomputing: run.op != run.serves }
        });
        Judged { cost, recompute_seconds, over_host, crowded }
    }

    /// Returns the maximum pool bytes of the steps of the last walk.
    pub fn needed(&self) -> u64 {
        self.trail.walk().course.need.iter().max().copied().unwrap_or_default()
    }

    /// Returns the score in seconds: time, or bytes moved. Excess bytes count as if they crossed the link many times, the more
    /// the longer nothing fits; the seconds of link and device spent on the decisions are added as a hint.
    pub fn score(&self, judged: &Judged) -> f64 {
        let Judged { cost, recompute_seconds, .. } = judged;
        let case = self.problem.case;
        let link = &case.request.link;
        let slow = link.offload_bytes_per_second.0.min(link.prefetch_bytes_per_second.0);
        let scale = case.bound.0.max(cost.seconds * 1e-3);
        let penalty = if cost.overflow > 0 {
            let bytes = Bytes(cost.overflow).to_f64() + Bytes(cost.excess).to_f64() / PEAK;
            self.strictness * (bytes / slow + 1e-3 * scale)
        } else {
            0.0
        };
        let moved = Bytes(cost.moved).to_f64() / slow;
        match self.aim {
            Aim::Time => cost.seconds + penalty + 1e-5 * moved + 1e-5 * recompute_seconds,
            Aim::Bytes { within } if cost.seconds > within => {
                moved + penalty + 20.0 * (cost.seconds - within) + 0.01 * scale
            }
            Aim::Bytes { .. } => moved + penalty,
        }
    }

    /// Returns a rank by which decisions that do not fit come after those that do, regardless of time.
    pub fn rank(&self, judged: &Judged) -> (bool, f64) {
        (judged.cost.overflow > 0, self.score(judged))
    }

    /// Sorts the best first.
    pub fn sort(&self, found: &mut [Found]) {
        found.sort_by(|a, b| {
            self.rank(&a.judged).partial_cmp(&self.rank(&b.judged)).unwrap_or(Ordering::Equal)
        });
    }

    /// Returns `true` if nothing can be better.
    pub fn is_best(&self, cost: &Cost) -> bool {
        let fits = cost.overflow == 0;
        match self.aim {
            Aim::Time => fits && cost.seconds <= self.problem.case.bound.0 * (1.0 + HAIR),
            Aim::Bytes { within } => fits && cost.seconds <= within && cost.moved == 0,
        }
    }

    /// Returns the aim to move fewer bytes in the same time, if decisions of this cost fit and cannot be faster.
    pub fn lighter_aim(&self, cost: &Cost) -> Option<Aim> {
        let bound = self.problem.case.bound.0;
        let within = cost.seconds.max(bound) * (1.0 + SAME / 2.0);
        (cost.overflow == 0 && cost.seconds <= bound * (1.0 + SAME)).then_some(Aim::Bytes { within })
    }

    /// Leaves more bytes free: this share of the excess of each op.
    pub fn widen(&mut self, excess: &TiSlice<OpId, u64>, share: f64) {
        let everywhere = excess.iter().max().copied().unwrap_or_default();
        let narrow = self.problem.uses(Trick::Margins);
        for ((margin, excess), spare) in self.margins.iter_mut().zip(excess).zip(self.problem.case.spare()) {
            let excess = if narrow { *excess } else { everywhere };
            *margin = margin.saturating_add(Bytes(excess).share(share).0).min(spare);
        }
    }

    /// Leaves this many bytes free at every op that does not need them itself.
    pub fn leave(&mut self, bytes: u64) {
        self.margins.fill(0);
        self.widen(TiSlice::from_ref(&vec![bytes; self.problem.case.trace.ops.len()]), 1.0);
    }

    /// Leaves fewer bytes free; returns `true` if any were.
    pub fn narrow(&mut self) -> bool {
        let some = self.margins.iter().any(|margin| *margin > 0);
        self.margins.iter_mut().for_each(|margin| *margin = *margin / 5 * 4);
        some
    }
}
