//! Walks of a search, each of which differs little from an earlier one.
//!
//! A walk reads each decision only when an op needs it. So two walks are the same, step for step and bit for bit, up to the first
//! op at which one reads a decision that differs in the other. A [`Trail`] keeps the walk of the accepted decisions, the op at
//! which it read each of them, and some of its intermediate states; the walk of tried decisions continues from the last of these
//! before the first look at a change. A decision that is never read needs no walk.
//!
//! Results, for the same plans: the search takes 0.25 to 0.42 of its seconds if ops may be recomputed (140 to 10,000 ops), 0.68
//! to 0.81 if they only offload. Of random changes of one gap, 15 to 44 % need no walk (none of them if ops only offload), and a
//! walk from the start takes 2.5 to 8 times as long as the remaining part on average: most choices are read where their gap ends,
//! late.
//!
//! Two attempts gave nothing, and were dropped: to touch the states of an op's values once instead of in three rounds; to stop
//! the clock after its first pass if offloads alone take too long (3 % with recomputation, nothing without). Not tried: to join
//! the accepted walk again behind the last change, where all slots and instances are numbered differently.

use super::{Instance, InstanceId, Iteration, Limit, ValueState, Walk};
use crate::iteration::values::{Choice, Decisions, GapId, ValueId, Values};
use plimsoll_ir::OpId;
use typed_index_collections::TiVec;

/// Approximate number of marks of the accepted walk; 4 do nearly as well as 64, and each holds the state of every value.
const MARKS: usize = 8;

/// Walks of the accepted decisions, and of those tried last.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    stands: Walk,
    tried: Walk,
    /// By gap: the op at which the accepted walk read its choice, if that was before the gap's end.
    looks: TiVec<GapId, Option<OpId>>,
    /// States of the accepted walk at regular distances, as far as they are known.
    marks: Vec<Mark>,
    known: usize,
    /// Looks and marks that the two walks have in common.
    common: (usize, usize),
}

/// Intermediate state of a walk.
#[derive(Clone, Debug, Default)]
struct Mark {
    steps: usize,
    moves: usize,
    looks: usize,
    alternatives: usize,
    seconds: f64,
    again_seconds: f64,
    states: TiVec<ValueId, ValueState>,
    instances: TiVec<InstanceId, Instance>,
}

impl Trail {
    /// Returns the last walk.
    pub fn walk(&self) -> &Walk {
        &self.tried
    }

    /// Returns the op from which the choice of a gap matters to the accepted walk; `None` if it does not.
    pub fn look(&self, values: &Values, gap: GapId) -> Option<OpId> {
        let look = earlier(self.looks[gap], values.gaps[gap].before);
        earlier(look, self.stands.ended)
    }

    /// Returns the op from which the swapped part of a value matters.
    pub fn look_at_part(&self, values: &Values, decisions: &Decisions, v: ValueId) -> Option<OpId> {
        let swapped = values.gaps_of(v).filter(|g| decisions.choices[*g] == Choice::Swap);
        let look = swapped.filter_map(|g| self.look(values, g)).min();
        earlier(look, self.stands.ended)
    }

    /// Walks with decisions that differ from the accepted ones only in ways that matter from this op on. Returns `true` if the
    /// walk came to the end.
    pub fn go(&mut self, of: Iteration<'_>, first: OpId, limit: Limit) -> bool {
        let Trail { stands, tried, marks, .. } = self;
        let ops = of.values.alternatives.len();
        let stride = ops.div_ceil(MARKS);
        // If the accepted walk ended early, nothing is known of later ops.
        let first = stands.ended.map_or(first, |ended| first.min(ended));
        let all = first.index().min(ops) / stride;
        let from = all.min(self.known);
        match from.checked_sub(1) {
            None => tried.begin(of.values),
            Some(mark) => tried.take_up(stands, &marks[mark]),
        }
        self.common = (tried.looks.len(), all);
        let marked = |marks: usize| OpId::new(marks * stride);
        if limit.is_passed(tried, ops - from * stride) {
            tried.ended = Some(marked(from));
            return false;
        }
        marks.resize_with(marks.len().max(all), Mark::default);
        for (at, mark) in (from..all).zip(&mut marks[from..]) {
            if !tried.advance(of, marked(at)..marked(at + 1), limit) {
                return false;
            }
            tried.mark(mark);
            self.known += 1;
        }
        tried.advance(of, marked(all)..OpId::new(ops), limit) && tried.finish(of)
    }

    /// Accepts the decisions tried last.
    pub fn accept(&mut self, values: &Values) {
        let (looks, marks) = self.common;
        self.looks.resize(values.gaps.len(), None);
        self.stands.looks[looks..].iter().for_each(|(gap, _)| self.looks[*gap] = None);
        self.tried.looks[looks..].iter().for_each(|(gap, op)| self.looks[*gap] = Some(*op));
        self.known = self.known.min(marks);
        std::mem::swap(&mut self.stands, &mut self.tried);
    }
}

impl Walk {
    fn mark(&self, mark: &mut Mark) {
        (mark.steps, mark.moves) = (self.steps.len(), self.of_move.len());
        (mark.looks, mark.alternatives) = (self.looks.len(), self.alternatives.len());
        (mark.seconds, mark.again_seconds) = (self.seconds, self.again_seconds);
        mark.states.raw.clone_from(&self.states.raw);
        mark.instances.raw.clone_from(&self.instances.raw);
    }

    /// Becomes the given walk as it was at a mark.
    fn take_up(&mut self, of: &Walk, mark: &Mark) {
        take(&mut self.steps, &of.steps, mark.steps);
        take(&mut self.memory.beside, &of.memory.beside, mark.steps);
        take(&mut self.course.seconds.raw, &of.course.seconds.raw, mark.steps + 1);
        take(&mut self.course.moves.raw, &of.course.moves.raw, mark.moves);
        take(&mut self.of_move.raw, &of.of_move.raw, mark.moves);
        take(&mut self.looks, &of.looks, mark.looks);
        take(&mut self.alternatives, &of.alternatives, mark.alternatives);
        (self.seconds, self.again_seconds) = (mark.seconds, mark.again_seconds);
        self.states.raw.clone_from(&mark.states.raw);
        self.instances.raw.clone_from(&mark.instances.raw);
        self.batch.marked.resize(of.batch.marked.len(), false);
    }
}

/// Returns the earlier of two ops; `None` if there is neither.
pub fn earlier(one: Option<OpId>, other: Option<OpId>) -> Option<OpId> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn take<T: Copy>(into: &mut Vec<T>, of: &[T], count: usize) {
    into.clear();
    into.extend_from_slice(&of[..count]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iteration::values::PARTS;
    use crate::random::Random;
    use crate::request::Allow;
    use plimsoll_ir::Bytes;
    use plimsoll_testing::random_trace_of;

    /// Changes some decisions, and returns the first op to which that matters.
    fn change(
        random: &mut Random,
        trail: &Trail,
        values: &Values,
        decisions: &mut Decisions,
    ) -> Option<OpId> {
        let mut first = None;
        for _ in 0..1 + random.below(3) {
            match random.below(9) {
                8 => {
                    let g = GapId::new(random.below(values.gaps.len()));
                    let gap = &values.gaps[g];
                    let until = gap.before.map_or(values.update, |before| before.min(values.update));
                    let from = gap.begin();
                    if from < until {
                        let early = from.index() + random.below(until.index() - from.index() + 1);
                        let new = Some(OpId::new(early)).filter(|early| *early != until);
                        let old = decisions.set_early(g, new);
                        first = earlier(first, earlier(old, new));
                    }
                }
                0 => {
                    let v = ValueId::new(random.below(values.tensor.len()));
                    decisions.parts[v] = 1 + random.below_u8(usize::from(PARTS));
                    first = earlier(first, trail.look_at_part(values, decisions, v));
                }
                1 => {
                    let op = OpId::new(random.below(values.alternatives.len()));
                    decisions.alternatives[op] = random.below_u8(values.alternatives[op].len());
                    first = earlier(first, Some(op));
                }
                _ => {
                    let g = GapId::new(random.below(values.gaps.len()));
                    let all = [Choice::Keep, Choice::Swap, Choice::Recompute, Choice::RecomputeEach];
                    let choice = all[random.below(4)];
                    if choice.is_open(&values.gaps[g]) {
                        decisions.choices[g] = choice;
                        first = earlier(first, trail.look(values, g));
                    }
                }
            }
        }
        first
    }

    /// `memory` is margins and pool.
    fn of<'a>(
        values: &'a Values,
        decisions: &'a Decisions,
        memory: &'a (TiVec<OpId, u64>, u64),
    ) -> Iteration<'a> {
        Iteration { values, decisions, margins: &memory.0, pool: memory.1 }
    }

    fn assert_same(walk: &Walk, full: &Walk) {
        assert_eq!(walk.course, full.course);
        assert_eq!((&walk.steps, &walk.instances), (&full.steps, &full.instances));
        assert_eq!(
            (&walk.of_move, &walk.looks, &walk.alternatives),
            (&full.of_move, &full.looks, &full.alternatives)
        );
        let seconds = |walk: &Walk| (walk.seconds.to_bits(), walk.again_seconds.to_bits());
        assert_eq!(seconds(walk), seconds(full));
    }

    #[test]
    fn a_walk_that_goes_on_from_another_is_the_walk_from_the_start() {
        let (mut unasked, mut ended_early, mut taken_up, mut early_runs) = (0, 0, 0, 0);
        for seed in 0..300 {
            let trace = random_trace_of(1 + seed as usize % 120, seed);
            let values =
                Values::new(&trace, Bytes(if seed % 3 == 0 { u64::MAX } else { 0 }), Allow::default());
            if values.gaps.is_empty() {
                continue;
            }
            let mut random = Random::new(seed);
            let margins: TiVec<OpId, u64> = trace.ops.iter().map(|_| random.below(1000) as u64).collect();
            let memory = (margins, trace.memory().peak().expect("an op").1.0 * (seed % 4) / 3);
            let (mut trail, mut full, mut standing) = (Trail::default(), Walk::default(), Walk::default());
            let mut stands = Decisions { chunks: 1 + seed as u8 % 4, ..values.keep_all() };
            let keep = of(&values, &stands, &memory);
            assert!(trail.go(keep, OpId(0), Limit::NONE) && standing.go(keep, Limit::NONE));
            trail.accept(&values);
            for _ in 0..60 {
                let mut decisions = stands.clone();
                let first = change(&mut random, &trail, &values, &mut decisions);
                if decisions == stands {
                    continue;
                }
                early_runs += u32::from(!decisions.early.is_empty());
                let again = if random.below(4) == 0 { standing.again_seconds } else { f64::INFINITY };
                let limit = Limit { steps: 2 * trace.ops.len(), again };
                let ended = full.go(of(&values, &decisions, &memory), limit);
                let Some(first) = first else {
                    unasked += 1;
                    assert!(ended);
                    assert_same(&standing, &full);
                    stands = decisions;
                    continue;
                };
                assert_eq!(trail.go(of(&values, &decisions, &memory), first, limit), ended, "{seed}");
                taken_up += u32::from(trail.common.1 > 0);
                ended_early += u32::from(!ended);
                if ended {
                    assert_same(trail.walk(), &full);
                }
                // A walk that ended early can be accepted, too.
                if random.below(2) == 0 {
                    trail.accept(&values);
                    std::mem::swap(&mut standing, &mut full);
                    stands = decisions;
                }
            }
        }
        assert!(unasked > 1000 && ended_early > 300, "{unasked}, {ended_early}");
        assert!(taken_up > 5000 && early_runs > 5000, "{taken_up}, {early_runs}");
    }
}
