//! Equal blocks planned once: a few of many are planned, and their decisions are copied to all.
//!
//! The trace with a few of its equal blocks (`blocks.rs`) is planned like any other, for a pool that leaves them as much room as
//! all of them have in the whole pool; one evaluation then costs a fraction of a walk. Its decisions are copied in repetition, so
//! that each block has the neighbours that it was planned with. The memory of the copy determines the pool for which the few
//! blocks are planned next. Usually one copy fits and one does not: a mixture follows the one plan in the first blocks and the
//! other in the rest, and bisection finds the largest number that fits. If the best copy is better than all of the linear
//! program's seeds, copies become seeds; if it is much better, the search needs fewer evaluations.
//!
//! Results at f = 0.1, makespan over the bound and seconds, without and with copies, next to each other on a busy machine: GPT-2
//! of 288 layers (9,525 ops) 1.0043 and 1.0009, 4.9 s and 2.3 s; of 96 layers 1.0044 and 1.0023, 3.1 s and 1.3 s; of 48 layers
//! 1.0067 and 1.0045, 1.5 s and 0.8 s; BERT of 192 layers 1.0010 and 1.0006, 4.5 s and 2.3 s. Those networks are a shared trace
//! with one of its layers repeated. For ViT and for residual networks of convolutions, the linear program's seeds are mostly
//! better than any copy; finding that out takes up to a second (in eight), and the plans are the same.
//!
//! Alternatives that gave less:
//! - Each of the few blocks copied to several consecutive blocks, rather than all in repetition: chains of recomputed neighbours
//!   become several times as long, and take 0.2 to 1.7 pools too much.
//! - The few planned for the same share of the way from floor to peak: blocks get too much room if the floor is at a different op
//!   than the peak.
//! - Chains in copies cut, as in the linear program's seeds: rarely better, mostly too large.
//! - One linear program for the few blocks instead of three: half the time, and copies up to 0.3 % slower.
//! - Copies for traces of fewer than 1,200 ops, of which a quarter is planned: never the best seed.
//!
//! This file deliberately neither changes blocks together once they are copied (`moves.rs` does) nor assigns addresses to them.

use super::blocks::{Blocks, Folded};
use super::problem::Problem;
use super::search::Search;
use super::seeds::seeds;
use crate::iteration::values::{Decisions, GapId, Touch, Values};
use crate::numbers::real;
use crate::place::realise::Case;
use crate::request::{Allow, PlanRequest};
use plimsoll_ir::Bytes;
use plimsoll_ir::trace::Trace;

/// Number of ops that the planned blocks have in total, about.
const OPS: f64 = 600.0;

/// Maximum number of plans of them, each with a number of evaluations and linear programs.
const PLANS: usize = 3;
const EVALUATIONS: u64 = 3000;
const PROGRAMS: usize = 3;

/// Slowdown of the first copy compared with the best other seed above which there is no second copy.
const HOPELESS: f64 = 1.02;

/// After a copy that takes too much, the next is planned for this share of the pool that would just fit.
const BELOW: f64 = 0.99;

/// Number of bisections of a mixture.
const HALVINGS: usize = 6;

/// If a copy's distance from the bound is below this share of the best other seed's distance, the search has only a part of its
/// evaluations.
const CLOSE: f64 = 0.6;
const LESS: u64 = 4;

/// Plan of few blocks.
struct Planned {
    values: Values,
    decisions: Decisions,
}

impl Search<'_> {
    /// Plans a few of the equal blocks, if there are many, and adds copies to the seeds if they are better.
    pub fn copy_blocks(&mut self) {
        let Problem { case, values, .. } = *self.problem;
        let Some(folded) = Blocks::find(case.trace).fold(OPS / real(case.trace.ops.len())) else { return };
        let others = self.least(seeds(case, values, &self.solutions, false));
        self.make_copies(&folded, others);
        let copies = self.least(self.further.clone());
        tracing::debug!(ops = folded.trace.ops.len(), copies, others, "copied");
        let bound = case.bound.0;
        if copies >= others {
            self.further.clear();
        } else if copies - bound < CLOSE * (others - bound) {
            self.evaluations /= LESS;
        }
    }

    /// Makes copies of plans of few blocks. `others` is the score of the best other seed.
    pub(super) fn make_copies(&mut self, folded: &Folded, others: f64) {
        let Problem { case, values, .. } = *self.problem;
        let (whole, few) = (Frame::new(case.trace), Frame::new(&folded.trace));
        let ratio = Bytes(few.peak - few.own).to_f64() / Bytes((whole.peak - whole.own).max(1)).to_f64();
        let room = |bytes: u64| Bytes(bytes.saturating_sub(whole.own).max(1)).to_f64();
        // Of the copies that fit and of those that do not, the plan of the closest, and the bytes that it needs.
        let mut closest: [Option<(u64, Planned)>; 2] = [None, None];
        let mut portion = 1.0;
        for _ in 0..PLANS {
            let pool = few.own.saturating_add((room(case.pool) * ratio * portion) as u64);
            let plan = self.plan_few(&folded.trace, pool.min(few.peak).max(few.floor));
            let (need, seconds) = self.add_copy(folded.copy(values, [&plan; 2], 0.0));
            let fits = need <= case.pool;
            let side = &mut closest[usize::from(!fits)];
            if side.as_ref().is_none_or(|(other, _)| (need > *other) == fits) {
                *side = Some((need, plan));
            }
            if self.is_late() || seconds > others * HOPELESS {
                break;
            }
            portion *= if fits { 1.0 } else { BELOW } * room(case.pool) / room(need);
        }
        if let [Some((_, lean)), Some((_, rich))] = &closest {
            self.mix(folded, lean, rich);
        }
    }

    /// Adds mixtures of a plan that fits and one that does not, with as much of the latter as fits, in either order.
    fn mix(&mut self, folded: &Folded, lean: &Planned, rich: &Planned) {
        let Problem { case, values, .. } = *self.problem;
        for rich_first in [false, true] {
            let (mut fits, mut exceeds) = (0.0, 1.0);
            for _ in 0..HALVINGS {
                let share = (fits + exceeds) / 2.0;
                let (plans, part) =
                    if rich_first { ([rich, lean], share) } else { ([lean, rich], 1.0 - share) };
                let (need, _) = self.add_copy(folded.copy(values, plans, part));
                *(if need <= case.pool { &mut fits } else { &mut exceeds }) = share;
            }
        }
    }

    /// Adds a copy to the seeds; returns the most bytes that it needs, and its seconds.
    fn add_copy(&mut self, copy: Decisions) -> (u64, f64) {
        let (judged, need) = self.look(copy.clone());
        self.further.push(copy);
        (need, judged.cost.seconds)
    }

    /// Plans a trace of few blocks within a pool.
    fn plan_few(&mut self, trace: &Trace, pool: u64) -> Planned {
        let whole = self.problem.case;
        let budget = Bytes(pool) + trace.resident_bytes;
        // The host's memory is for all blocks: copies that take too much are mended.
        let allow = Allow { host: None, ..whole.request.allow };
        let request = PlanRequest { budget, allow, ..*whole.request };
        let bound = trace.ops.iter().map(|op| op.seconds).sum();
        let case = Case { trace, request: &request, pool, bound, ..*whole };
        let values = Values::new(trace, Bytes(pool), request.allow);
        let problem = Problem::new(&case, &values);
        let mut search = Search::new(&problem, self.evaluations.min(EVALUATIONS), PROGRAMS);
        let decisions = search.run().decisions;
        self.annealer.late |= search.is_late();
        Planned { values, decisions }
    }

    /// Returns the score of the best of these seeds.
    fn least(&mut self, seeds: Vec<Decisions>) -> f64 {
        let score = |seed| {
            let judged = self.look(seed).0;
            self.annealer.judge.score(&judged)
        };
        seeds.into_iter().map(score).fold(f64::INFINITY, f64::min)
    }
}

/// Memory use of a trace, in bytes in addition to the resident bytes.
struct Frame {
    floor: u64,
    peak: u64,
    /// Bytes that the op at the peak needs itself.
    own: u64,
}

impl Frame {
    fn new(trace: &Trace) -> Frame {
        let memory = trace.memory();
        let beside = |at: Option<(_, Bytes)>| at.map_or(0, |(_, bytes)| (bytes - trace.resident_bytes).0);
        let own = memory.peak().map_or(Bytes::ZERO, |(op, _)| {
            let op = &trace.ops[op.index()];
            trace.touched_bytes(op) + op.least_workspace()
        });
        let (floor, peak) = (beside(memory.floor()), beside(memory.peak()));
        Frame { floor, peak, own: own.0.min(peak) }
    }
}

impl Folded {
    /// Returns the decisions for the whole trace from plans of this trace: from the first for blocks up to this part of the equal
    /// ones, from the second for the others.
    fn copy(&self, values: &Values, plans: [&Planned; 2], part: f64) -> Decisions {
        let mut copy = Copy { values, plan: plans[0], decisions: values.keep_all() };
        for (op, (like, depth)) in self.like.iter_enumerated() {
            copy.plan = plans[usize::from(*depth >= part)];
            let (like, of_few, plan) = (*like, &copy.plan.values, &copy.plan.decisions);
            if values.alternatives[op].len() == of_few.alternatives[like].len() {
                copy.decisions.alternatives[op] = plan.alternatives[like];
            }
            for (rows, models) in [(&values.reads, &of_few.reads), (&values.writes, &of_few.writes)] {
                let (row, model) = (rows.row(op), models.row(like));
                if row.len() == model.len() {
                    row.iter().zip(model).for_each(|(touch, model)| copy.decide(*touch, *model));
                }
            }
        }
        copy.decisions
    }
}

/// Decisions being copied from a plan.
struct Copy<'a> {
    values: &'a Values,
    plan: &'a Planned,
    decisions: Decisions,
}

impl Copy<'_> {
    /// Decides about the gap that begins with a touch as its model is decided, and about the previous gap if that is the start of
    /// the iteration.
    fn decide(&mut self, touch: Touch, model: Touch) {
        let (v, m) = (touch.value, model.value);
        self.decisions.parts[v] = self.plan.decisions.parts[m];
        let (Some(gap), Some(model)) = (touch.gap, model.gap) else { return };
        self.decide_gap(gap, model);
        let firsts = (self.values.gaps_of(v).next(), self.plan.values.gaps_of(m).next());
        let at_start = self.values.maker[v].is_none() && self.plan.values.maker[m].is_none();
        if let (Some(first), Some(model), true) = (firsts.0, firsts.1, at_start)
            && gap == first.next()
        {
            self.decide_gap(first, model);
        }
    }

    fn decide_gap(&mut self, gap: GapId, model: GapId) {
        let (of, choice) = (&self.values.gaps[gap], self.plan.decisions.choices[model]);
        let last = self.plan.values.gaps[model].before.is_none();
        if choice.is_open(of) && last == of.before.is_none() {
            self.decisions.choices[gap] = choice;
        }
    }
}
