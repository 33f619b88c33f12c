//! The annealer: decisions that change by and by. A change for the better is taken, and one for the worse with a
//! probability that falls as it cools.
//!
//! What this file does not do: say what decisions cost (`judge.rs`), which changes there are (`moves.rs`), or from which
//! decisions a search begins and how long it takes (`search.rs`).

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

/// The temperature at which a search goes on from what was found, in mean seconds of an op.
pub(super) const COLD: f64 = 0.06;

/// How many evaluations there are between two looks at the time.
const LOOK: u64 = 64;

pub(super) struct Annealer<'a> {
    problem: &'a Problem<'a>,
    pub judge: Judge<'a>,
    pub moves: Moves<'a>,
    pub random: Random,
    /// Whether time was up.
    pub late: bool,
}

impl<'a> Annealer<'a> {
    /// One that decides about whole values.
    pub fn new(problem: &'a Problem<'a>) -> Annealer<'a> {
        Annealer {
            problem,
            judge: Judge::new(problem),
            moves: Moves::new(problem, false),
            random: Random::new(problem.case.request.seed),
            late: false,
        }
    }

    /// A short annealing of these decisions, with so many bytes left free by op.
    pub fn improve(&mut self, decisions: Decisions, evaluations: u64, margins: &TiSlice<OpId, u64>) -> Found {
        self.judge.margins.copy_from_slice(margins);
        self.judge.strictness = 4.0 * LENIENT;
        let from = self.found(decisions);
        self.anneal(evaluations, COLD, from)
    }

    /// These decisions with their cost.
    pub fn found(&mut self, decisions: Decisions) -> Found {
        let judged = self.judge(&decisions, OpId(0), f64::INFINITY);
        Found { decisions, judged }
    }

    /// See [`Judge::judge`]. A number is drawn for every judgement, also for one that is cut off, so that cutting off
    /// changes nothing of what follows.
    fn judge(&mut self, decisions: &Decisions, first: OpId, most: f64) -> Judged {
        let draw = self.random.unit();
        self.judge.judge(decisions, first, most, draw)
    }

    /// Improves on decisions with so many evaluations. `heat` is the temperature at the start, in mean seconds of an op.
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
            // What is taken is drawn first, so that what cannot be taken need not be timed.
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
                changes.iter().rev().for_each(|change| change.undo(&mut current));
            }
        }
        best.1
    }

    /// Keeps what need not be swapped, largest first, as far as so many evaluations go.
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
