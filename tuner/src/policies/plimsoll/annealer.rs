//! Annealer of decisions. It accepts improvements, and deteriorations with a probability that falls as it cools.
//!
//! This file deliberately does not define the cost of decisions (`judge.rs`), the possible changes (`moves.rs`), or the initial
//! decisions and length of a search (`search.rs`).

use super::judge::{Found, Judge, Judged, LENIENT};
use super::moves::Moves;
use super::problem::Problem;
use crate::iteration::values::{Choice, Decisions, GapId};
use crate::numbers::real;
use crate::random::Random;
use crate::request::Trick;
use plimsoll_ir::OpId;
use std::cmp::Reverse;
use typed_index_collections::TiSlice;

/// Temperature at which a search continues from its result, in mean seconds of an op.
pub(super) const COLD: f64 = 0.06;

/// Number of evaluations between two looks at the clock.
const LOOK: u64 = 64;

pub(super) struct Annealer<'a> {
    problem: &'a Problem<'a>,
    pub judge: Judge<'a>,
    pub moves: Moves<'a>,
    pub random: Random,
    /// `true` if time was up.
    pub late: bool,
}

impl<'a> Annealer<'a> {
    /// Returns an annealer for whole values.
    pub fn new(problem: &'a Problem<'a>) -> Annealer<'a> {
        Annealer {
            problem,
            judge: Judge::new(problem),
            moves: Moves::new(problem, false),
            random: Random::new(problem.case.request.seed),
            late: false,
        }
    }

    /// Anneals these decisions briefly, with this many bytes left free by op.
    pub fn improve(&mut self, decisions: Decisions, evaluations: u64, margins: &TiSlice<OpId, u64>) -> Found {
        self.judge.margins.copy_from_slice(margins);
        self.judge.strictness = 4.0 * LENIENT;
        let from = self.found(decisions);
        self.anneal(evaluations, COLD, from)
    }

    /// Returns these decisions with their cost.
    pub fn found(&mut self, decisions: Decisions) -> Found {
        let judged = self.judge(&decisions, OpId(0), f64::INFINITY);
        Found { decisions, judged }
    }

    /// Calls [`Judge::judge`]. Draws a random number for every judgement, even one that is cut off, so that cutting off changes
    /// nothing afterwards.
    fn judge(&mut self, decisions: &Decisions, first: OpId, most: f64) -> Judged {
        let draw = self.random.unit();
        self.judge.judge(decisions, first, most, draw)
    }

    /// Improves decisions with this many evaluations. `heat` is the initial temperature, in mean seconds of an op.
    pub fn anneal(&mut self, evaluations: u64, heat: f64, from: Found) -> Found {
        let Problem { case, values, .. } = *self.problem;
        let limits = &case.request.limits;
        let unit = if self.problem.uses(Trick::Heat) { heat / real(values.alternatives.len()) } else { 0.0 };
        let cut_off = self.problem.uses(Trick::Cutoff);
        let mut score = self.judge.score(&from.judged);
        let mut current = from.decisions.clone();
        let mut crowded = from.judged.crowded;
        let mut best = (self.judge.rank(&from.judged), from);
        let mut changes = Vec::new();
        if self.problem.open.is_empty() {
            return best.1;
        }
        self.judge(&current, OpId(0), f64::INFINITY);
        self.judge.trail.accept(values);
        for evaluation in 0..evaluations {
            if self.judge.is_best(&best.1.judged.cost) {
                break;
            }
            if evaluation % LOOK == 0 && limits.is_expired() {
                self.late = true;
                break;
            }
            self.moves.change(&mut current, crowded, &mut self.random, &mut changes);
            if changes.is_empty() {
                continue;
            }
            // The acceptance threshold is drawn first, so that decisions above it need not be timed.
            let progress = evaluation as f64 / evaluations as f64;
            let temperature = best.0.1 * unit * (1.0 - progress) * (1.0 - progress);
            let most = score - temperature * self.random.unit().max(f64::MIN_POSITIVE).ln();
            let looks = changes.iter().map(|change| change.first_look(&self.judge.trail, values, &current));
            let Some(first) = looks.flatten().min() else { continue };
            let judged = self.judge(&current, first, if cut_off { most } else { f64::INFINITY });
            let next = self.judge.score(&judged);
            if next <= most {
                self.judge.trail.accept(values);
                score = next;
                crowded = judged.crowded;
                let rank = (judged.cost.overflow > 0, next);
                if rank < best.0 {
                    best = (rank, Found { decisions: current.clone(), judged });
                }
            } else {
                changes.iter().rev().for_each(|change| _ = change.make(&mut current));
            }
        }
        best.1
    }

    /// Keeps values that need not be swapped, largest first, within this many evaluations.
    pub fn lighten(&mut self, mut found: Found, evaluations: u64) -> Found {
        let gaps = self.problem.values.gaps.keys();
        let mut swapped: Vec<GapId> = gaps.filter(|g| found.decisions.choices[*g] == Choice::Swap).collect();
        swapped.sort_by_key(|g| (Reverse(self.problem.bytes(*g)), *g));
        for (g, _) in swapped.into_iter().zip(0..evaluations) {
            found.decisions.choices[g] = Choice::Keep;
            let judged = self.judge(&found.decisions, OpId(0), f64::INFINITY);
            if self.judge.score(&judged) < self.judge.score(&found.judged) {
                found.judged = judged;
            } else {
                found.decisions.choices[g] = Choice::Swap;
            }
        }
        found
    }
}
