//! The walks of a search, each of which differs little from one before.
//!
//! A walk reads decisions as it goes, and each only when something asks for it. So two walks are the same, step for step
//! and bit for bit, up to the first op at which one looks at a decision that the other has differently. A [`Trail`] keeps
//! the walk of the decisions that stand, where it looked at each, and some of its states on the way; the walk of decisions
//! that are tried goes on from the last of these before the first look at what changed. What nobody looks at needs no walk.
//!
//! What that gave, for the same plans: the search takes 0.25 to 0.42 of its seconds where ops may be recomputed (140 to 10,000
//! ops), 0.68 to 0.81 where they only offload. Of random changes of one gap, 15 to 44 % need no walk (none of them where
//! ops only offload), and a walk from the start takes 2.5 to 8 times as long as what is left on average: most choices are
//! looked at where their gap ends, late.
//!
//! What gave nothing, and is not here: to touch the states of an op's values once where it took three rounds; to stop the
//! clock after its first pass where offloads alone take too long (3 % with recomputation, nothing without). What was not
//! tried: to meet the walk that stands again behind the last change, where all slots and instances are counted otherwise.

use super::{Instance, Iteration, Limit, State, Walk};
use crate::iteration::values::{Choice, Decisions, NONE, Values};

/// The walk that stands is marked about this often; 4 do nearly as well as 64, and each holds the state of every value.
const MARKS: u32 = 8;

/// The walk of the decisions that stand, and of the last that were tried.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    stands: Walk,
    tried: Walk,
    /// By gap: where the walk that stands looked at its choice, if that was before the gap's end.
    looks: Vec<u32>,
    /// The walk that stands before every so many ops, as far as that is known.
    marks: Vec<Mark>,
    known: usize,
    /// What the two walks have in common: looks, and marks.
    common: (usize, usize),
}

/// A walk on its way.
#[derive(Clone, Debug, Default)]
struct Mark {
    steps: usize,
    moves: usize,
    looks: usize,
    alternatives: usize,
    seconds: f64,
    again_seconds: f64,
    states: Vec<State>,
    instances: Vec<Instance>,
}

impl Trail {
    /// The last walk.
    pub fn walk(&self) -> &Walk {
        &self.tried
    }

    /// From which op on the choice of a gap matters to the walk that stands; [`NONE`] where it does not.
    pub fn look(&self, values: &Values, gap: u32) -> u32 {
        let look = self.looks[gap as usize].min(values.gaps[gap as usize].before);
        look.min(self.stands.ended)
    }

    /// From which op on it matters how much of a value is swapped.
    pub fn look_at_part(&self, values: &Values, decisions: &Decisions, v: u32) -> u32 {
        let gaps = values.first_gap[v as usize]..values.first_gap[v as usize + 1];
        let swapped = gaps.filter(|g| decisions.choices[*g as usize] == Choice::Swap);
        swapped.map(|g| self.look(values, g)).min().unwrap_or(NONE).min(self.stands.ended)
    }

    /// Walks with decisions that differ from those that stand only in what matters from this op on. Tells whether the walk
    /// came to the end.
    pub fn go(&mut self, of: Iteration<'_>, first: u32, limit: Limit) -> bool {
        let Trail { stands, tried, marks, .. } = self;
        let ops = of.values.alternatives.len() as u32;
        let stride = ops.div_ceil(MARKS);
        // Where the walk that stands ended early, nothing is known of what comes after.
        let all = (first.min(stands.ended).min(ops) / stride) as usize;
        let from = all.min(self.known);
        let mut op = from as u32 * stride;
        match from.checked_sub(1) {
            None => tried.begin(of.values),
            Some(mark) => tried.take_up(stands, &marks[mark]),
        }
        self.common = (tried.looks.len(), all);
        if limit.is_passed(tried, ops - op) {
            tried.ended = op;
            return false;
        }
        marks.resize_with(marks.len().max(all), Mark::default);
        for mark in &mut marks[from..all] {
            if !tried.advance(of, op..op + stride, limit) {
                return false;
            }
            op += stride;
            tried.mark(mark);
            self.known += 1;
        }
        tried.advance(of, op..ops, limit) && tried.finish(of)
    }

    /// The decisions tried last stand from now on.
    pub fn accept(&mut self, values: &Values) {
        let (looks, marks) = self.common;
        self.looks.resize(values.gaps.len(), NONE);
        self.stands.looks[looks..].iter().for_each(|(gap, _)| self.looks[*gap as usize] = NONE);
        self.tried.looks[looks..].iter().for_each(|(gap, op)| self.looks[*gap as usize] = *op);
        self.known = self.known.min(marks);
        std::mem::swap(&mut self.stands, &mut self.tried);
    }
}

impl Walk {
    fn mark(&self, mark: &mut Mark) {
        (mark.steps, mark.moves) = (self.steps.len(), self.of_move.len());
        (mark.looks, mark.alternatives) = (self.looks.len(), self.alternatives.len());
        (mark.seconds, mark.again_seconds) = (self.seconds, self.again_seconds);
        mark.states.clone_from(&self.states);
        mark.instances.clone_from(&self.instances);
    }

    /// Becomes another walk as it was at a mark.
    fn take_up(&mut self, of: &Walk, mark: &Mark) {
        take(&mut self.steps, &of.steps, mark.steps);
        take(&mut self.beside, &of.beside, mark.steps);
        take(&mut self.course.seconds, &of.course.seconds, mark.steps + 1);
        take(&mut self.course.moves, &of.course.moves, mark.moves);
        take(&mut self.of_move, &of.of_move, mark.moves);
        take(&mut self.looks, &of.looks, mark.looks);
        take(&mut self.alternatives, &of.alternatives, mark.alternatives);
        (self.seconds, self.again_seconds) = (mark.seconds, mark.again_seconds);
        self.states.clone_from(&mark.states);
        self.instances.clone_from(&mark.instances);
        self.marked.resize(of.marked.len(), false);
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
    use plimsoll_ir::testing::random_trace_of;

    /// Some decisions otherwise than before, and the first op to which that matters.
    fn change(random: &mut Random, trail: &Trail, values: &Values, decisions: &mut Decisions) -> u32 {
        let mut first = NONE;
        for _ in 0..1 + random.below(3) {
            match random.below(9) {
                8 => {
                    let g = random.below(values.gaps.len());
                    let gap = &values.gaps[g];
                    let (from, until) = (gap.after.wrapping_add(1), gap.before.min(values.update));
                    if from < until {
                        let early = from + random.below((until - from) as usize + 1) as u32;
                        let new = if early == until { NONE } else { early };
                        let old = decisions.set_early(g as u32, new);
                        first = first.min(old.min(new));
                    }
                }
                0 => {
                    let v = random.below(values.tensor.len());
                    decisions.parts[v] = 1 + random.below(usize::from(PARTS)) as u8;
                    first = first.min(trail.look_at_part(values, decisions, v as u32));
                }
                1 => {
                    let op = random.below(values.alternatives.len());
                    decisions.alternatives[op] = random.below(values.alternatives[op].len()) as u8;
                    first = first.min(op as u32);
                }
                _ => {
                    let g = random.below(values.gaps.len());
                    let all = [Choice::Keep, Choice::Swap, Choice::Recompute, Choice::RecomputeEach];
                    let choice = all[random.below(4)];
                    if choice.is_open(&values.gaps[g]) {
                        decisions.choices[g] = choice;
                        first = first.min(trail.look(values, g as u32));
                    }
                }
            }
        }
        first
    }

    /// `memory` is margins and pool.
    fn of<'a>(values: &'a Values, decisions: &'a Decisions, memory: &'a (Vec<u64>, u64)) -> Iteration<'a> {
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
            let margins: Vec<u64> = trace.ops.iter().map(|_| random.below(1000) as u64).collect();
            let memory = (margins, trace.memory().peak().expect("an op").1.0 * (seed % 4) / 3);
            let (mut trail, mut full, mut standing) = (Trail::default(), Walk::default(), Walk::default());
            let mut stands = Decisions { chunks: 1 + seed as u8 % 4, ..values.keep_all() };
            let keep = of(&values, &stands, &memory);
            assert!(trail.go(keep, 0, Limit::NONE) && standing.go(keep, Limit::NONE));
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
                if first == NONE {
                    unasked += 1;
                    assert!(ended);
                    assert_same(&standing, &full);
                    stands = decisions;
                    continue;
                }
                assert_eq!(trail.go(of(&values, &decisions, &memory), first, limit), ended, "{seed}");
                taken_up += u32::from(trail.common.1 > 0);
                ended_early += u32::from(!ended);
                if ended {
                    assert_same(trail.walk(), &full);
                }
                // One that ended early stands, too.
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
