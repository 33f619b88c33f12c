//! Environment: an agent goes through the gaps in order of time, and offloads the value of each, gives it up, or does nothing;
//! Plimsoll's own walk and clock compute the consequences.
//!
//! An episode ends as soon as everything fits. Doing nothing, or giving a value up, is offered only if offloading the later gaps
//! could still make everything fit: an episode cannot fail. The times at which offloaded values return and given-up values are
//! recomputed are no actions but follow from the clock's rules, as in the paper.
//!
//! This file deliberately does not choose.

use super::graph::Graph;
use crate::decide::walk::{Iteration, Limit, Walk};
use crate::decide::windows::Clock;
use crate::iteration::values::{Choice, Decisions, GapId, Values};
use crate::place::realise::Case;
use plimsoll_ir::OpId;
use typed_index_collections::TiSlice;

/// Tensors no larger than this part of the pool, as a divisor, stay: they are many and make no room.
const DUST: u64 = 20_000;

/// Possible actions on a gap.
pub(super) const ACTIONS: [Choice; 3] = [Choice::Keep, Choice::Swap, Choice::Recompute];

/// Possible ones among [`ACTIONS`].
pub(super) type Offers = [bool; 3];

/// Position in an episode.
#[derive(Clone)]
pub(super) struct Position {
    /// Decisions so far; all later gaps are kept.
    pub decisions: Decisions,
    /// The same decisions, with all later gaps offloaded: they fit.
    rest: Decisions,
    /// Next gap, by position.
    pub next: usize,
    /// Makespan in seconds.
    pub seconds: f64,
    /// Bytes over the pool, summed over the steps.
    pub excess: f64,
}

/// Effect of an action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    /// Increase of the makespan.
    pub seconds: f64,
    /// Decrease of the bytes over the pool, summed over the steps.
    pub freed: f64,
}

pub(super) struct Game<'a> {
    pub case: &'a Case<'a>,
    pub values: &'a Values,
    /// Gaps to decide about, in order of time.
    pub gaps: Vec<GapId>,
    walk: Walk,
    clock: Clock,
    /// Number of actions so far.
    pub evaluations: u64,
}

impl<'a> Game<'a> {
    /// Returns the game of a case.
    pub fn new(case: &'a Case<'a>, values: &'a Values) -> Game<'a> {
        let gap = |g: GapId| &values.gaps[g];
        let least = case.pool / DUST + 1;
        let open = |g: &GapId| {
            let gap = gap(*g);
            let large = values.bytes[gap.value] >= least;
            gap.before.is_some() && gap.swap && large
        };
        let mut gaps: Vec<GapId> = values.gaps.keys().filter(open).collect();
        gaps.sort_by_key(|g| (gap(*g).after, *g));
        let clock = Clock::new(&case.request.link);
        Game { case, values, gaps, walk: Walk::default(), clock, evaluations: 0 }
    }

    /// Returns the graph of its nodes.
    pub fn graph(&self) -> Graph {
        Graph::new(self.values, &self.gaps, &self.case.request.link, self.case.pool / DUST + 1)
    }

    /// Returns the start of every episode; `None` if not even offloading everything fits.
    pub fn start(&mut self) -> Option<Position> {
        let decisions = self.values.keep_all();
        let mut rest = decisions.clone();
        self.gaps.iter().for_each(|g| rest.choices[*g] = Choice::Swap);
        if !self.fits(&rest) {
            return None;
        }
        let (seconds, excess) = self.time(&decisions);
        Some(Position { decisions, rest, next: 0, seconds, excess })
    }

    /// Returns `true` if there is nothing left to do.
    pub fn is_over(&self, at: &Position) -> bool {
        at.excess == 0.0 || at.next == self.gaps.len()
    }

    /// Returns the possible actions on the next gap, if there is one.
    pub fn offers(&mut self, at: &mut Position) -> Offers {
        let gap = self.gaps[at.next];
        let mut offers = [false, true, self.values.gaps[gap].recompute];
        for (offer, choice) in offers.iter_mut().zip(ACTIONS) {
            at.rest.choices[gap] = choice;
            *offer = choice == Choice::Swap || (choice == Choice::Keep || *offer) && self.fits(&at.rest);
        }
        at.rest.choices[gap] = Choice::Swap;
        offers
    }

    /// Does an offered action on the next gap.
    pub fn take(&mut self, at: &mut Position, choice: Choice) -> Effect {
        let gap = self.gaps[at.next];
        at.rest.choices[gap] = choice;
        at.decisions.choices[gap] = choice;
        at.next += 1;
        self.evaluations += 1;
        if choice == Choice::Keep {
            return Effect { seconds: 0.0, freed: 0.0 };
        }
        let (seconds, excess) = self.time(&at.decisions);
        let effect = Effect { seconds: seconds - at.seconds, freed: at.excess - excess };
        (at.seconds, at.excess) = (seconds, excess);
        effect
    }

    /// Ends an episode at once: all later gaps are offloaded.
    pub fn finish(&mut self, at: &mut Position) {
        at.decisions.clone_from(&at.rest);
        at.next = self.gaps.len();
        (at.seconds, at.excess) = self.time(&at.decisions);
    }

    /// Walks through decisions that leave this much free at each op. Returns `true` if the walk came to the end.
    fn go(&mut self, decisions: &Decisions, margins: &TiSlice<OpId, u64>, limit: Limit) -> bool {
        self.walk.go(Iteration { values: self.values, decisions, margins, pool: self.case.pool }, limit)
    }

    /// Returns `true` if decisions fit the pool, without taking very many steps.
    pub fn fits(&mut self, decisions: &Decisions) -> bool {
        let steps = 3 * self.values.alternatives.len() + 64;
        let limit = Limit { steps, again: f64::INFINITY };
        self.go(decisions, TiSlice::from_ref(&[]), limit)
            && self.walk.course.need.iter().all(|need| *need <= self.case.pool)
    }

    /// Returns the makespan of decisions, and the bytes over the pool, summed over the steps. If there are some, transfers wait
    /// for room as if nothing more were to leave.
    pub fn time(&mut self, decisions: &Decisions) -> (f64, f64) {
        self.go(decisions, TiSlice::from_ref(&[]), Limit::NONE);
        let cost = self.clock.evaluate(&self.walk.course, self.case.pool);
        (cost.seconds, cost.excess as f64)
    }

    /// Returns decisions that leave this much free at each op, as far as offloading more achieves it: at each step that has too
    /// little room the first value that can leave does.
    pub fn leave(&mut self, mut decisions: Decisions, margins: &TiSlice<OpId, u64>) -> Decisions {
        loop {
            self.go(&decisions, margins, Limit::NONE);
            let needs = self.walk.course.need.iter_enumerated();
            let over = needs.filter(|(_, need)| **need > self.case.pool);
            let crowded: Vec<OpId> = over.map(|(slot, _)| self.walk.serves(slot)).collect();
            let can_leave = |g: &&GapId| {
                let gap = &self.values.gaps[**g];
                let within =
                    |op: &OpId| gap.after < Some(*op) && gap.before.is_some_and(|before| *op < before);
                decisions.choices[**g] == Choice::Keep && crowded.iter().any(within)
            };
            match self.gaps.iter().find(can_leave) {
                Some(g) => decisions.choices[*g] = Choice::Swap,
                None => return decisions,
            }
        }
    }
}
