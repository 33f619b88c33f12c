//! The planner beside the optimum on small random traces, which a mixed-integer program finds.
//!
//! The program chooses which gaps are swapped, at which ops' starts their bytes are away, the order of the transfers on
//! each of the two links, and all times. Its optimum is over schedules that run every op once, in the trace's order, move
//! whole tensors, offload a version once at most, on a full-duplex link, and whose bytes fit the pool whenever more are
//! taken: at the start of every op and of every prefetch. Addresses are not asked for, so that a valid schedule of that
//! kind is never faster.
//!
//! What it does not do: run ops again, pick kernels (the traces have no alternatives), derive the gaps a second time
//! (they are the planner's). Some ten ops are what its solver takes; a program that is not solved in time is left out.

mod common;

use common::{planned, request};
use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolutionStatus, SolverModel, Variable,
    WithTimeLimit, constraint, microlp, variable,
};
use plimsoll_ir::schedule::{Duplex, Link, Stream};
use plimsoll_ir::testing::{Random, random_trace_of};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_tuner::bound::lower_bound;
use plimsoll_tuner::gaps::{Gap, Gaps, Ways};
use plimsoll_tuner::{Allow, Policy};
use std::ops::Range;

/// The slots between the two uses of a gap.
fn inside(gap: &Gap) -> Range<usize> {
    gap.after as usize + 1..gap.before as usize
}

/// A mixed-integer program as it grows.
struct Program {
    variables: ProblemVariables,
    rows: Vec<good_lp::Constraint>,
    /// No time is later.
    latest: f64,
}

impl Program {
    fn time(&mut self) -> Variable {
        self.variables.add(variable().bounds(0.0..=self.latest))
    }

    fn choice(&mut self) -> Variable {
        self.variables.add(variable().binary())
    }

    /// `a <= b` where all of the choices are 1.
    fn order(&mut self, a: impl Into<Expression>, b: impl Into<Expression>, choices: &[Expression]) {
        let slack: Expression =
            choices.iter().map(|choice| (1.0 - choice.clone()) * (2.0 * self.latest)).sum();
        self.rows.push(constraint!(a.into() <= b.into() + slack));
    }

    /// A choice that can be 1 only if a time lies between two others.
    fn interval(&mut self, time: Variable, from: Expression, until: Expression) -> Variable {
        let choice = self.choice();
        self.order(from, time, &[choice.into()]);
        self.order(time, until, &[choice.into()]);
        choice
    }

    /// Jobs of one link, (start, seconds, whether it runs), do not overlap.
    fn one_at_a_time(&mut self, jobs: &[(Expression, f64, Variable)]) {
        for (i, (start, seconds, runs)) in jobs.iter().enumerate() {
            for (other, other_seconds, other_runs) in &jobs[i + 1..] {
                let first: Expression = self.choice().into();
                let both = [Expression::from(*runs), Expression::from(*other_runs)];
                let [a, b] = both;
                self.order(start.clone() + *seconds, other.clone(), &[a.clone(), b.clone(), first.clone()]);
                self.order(other.clone() + *other_seconds, start.clone(), &[a, b, 1.0 - first]);
            }
        }
    }
}

/// A gap that may be swapped.
struct Swap<'a> {
    gap: &'a Gap,
    swapped: Variable,
    /// When its offload ends, and when and for how long its prefetch runs.
    left: Variable,
    returns: Variable,
    back: f64,
}

/// What does not change.
struct Task<'a> {
    gaps: &'a Gaps,
    link: Link,
    pool: u64,
}

/// Sees to it that a slot's bytes fit at a time, if `asked`: `away` are the gaps that are away then.
fn fit(
    program: &mut Program,
    task: &Task<'_>,
    slot: usize,
    away: &[(&Gap, Variable)],
    asked: impl Into<Expression>,
) {
    let over = task.gaps.base[slot].saturating_sub(task.pool);
    let away = away.iter().filter(|(gap, _)| inside(gap).contains(&slot));
    let sum: Expression = away.map(|(gap, away)| gap.bytes as f64 * *away).sum();
    program.rows.push(constraint!(sum >= asked.into() * over as f64));
}

/// A choice for each swap that can be 1 only if its bytes are away at a time.
fn away<'a>(program: &mut Program, swaps: &[&Swap<'a>], at: &Expression) -> Vec<(&'a Gap, Variable)> {
    let mut one = |swap: &&Swap<'a>| {
        let away = program.choice();
        program.rows.push(constraint!(away <= swap.swapped));
        program.order(swap.left, at.clone(), &[away.into()]);
        program.order(at.clone(), swap.returns, &[away.into()]);
        (swap.gap, away)
    };
    swaps.iter().map(&mut one).collect()
}

/// The transfers of all gaps that are worth swapping, in order on their links.
fn swaps<'a>(
    program: &mut Program,
    task: &Task<'a>,
    starts: &[Variable],
    makespan: Variable,
) -> Vec<Swap<'a>> {
    let gaps = task.gaps;
    let mut swaps = Vec::new();
    let mut offloads = Vec::new();
    let mut offload_of: Vec<Option<(Variable, Variable)>> = vec![None; gaps.versions as usize];
    let useful = |gap: &&Gap| inside(gap).any(|slot| gaps.base[slot] > task.pool);
    for gap in gaps.gaps.iter().filter(useful) {
        let [out, back] =
            [Stream::Offload, Stream::Prefetch].map(|s| task.link.seconds(s, Bytes(gap.bytes)).0);
        let (left, copied) = *offload_of[gap.version as usize].get_or_insert_with(|| {
            let (left, copied) = (program.time(), program.choice());
            let written = starts[gap.writer as usize] + gaps.seconds[gap.writer as usize];
            program.order(written + out, left, &[copied.into()]);
            program.order(left, makespan, &[copied.into()]);
            offloads.push((left - out, out, copied));
            (left, copied)
        });
        let (returns, swapped) = (program.time(), program.choice());
        program.rows.push(constraint!(swapped <= copied));
        program.order(left, returns, &[swapped.into()]);
        program.order(returns + back, starts[gap.before as usize], &[swapped.into()]);
        swaps.push(Swap { gap, swapped, left, returns, back });
    }
    program.one_at_a_time(&offloads);
    let prefetches: Vec<_> = swaps.iter().map(|s| (s.returns.into(), s.back, s.swapped)).collect();
    program.one_at_a_time(&prefetches);
    swaps
}

/// The least makespan that is no later than `latest`; none where time is up before it is proved.
fn optimum(task: &Task<'_>, latest: f64) -> Result<Option<f64>, ResolutionError> {
    let mut program = Program { variables: ProblemVariables::new(), rows: Vec::new(), latest };
    let gaps = task.gaps;
    let slots = gaps.base.len();
    let starts: Vec<Variable> = (0..slots).map(|_| program.time()).collect();
    let end = |slot: usize| starts[slot] + gaps.seconds[slot];
    let makespan = program.time();
    (1..slots).for_each(|slot| program.order(end(slot - 1), starts[slot], &[]));
    program.order(end(slots - 1), makespan, &[]);
    let swaps = swaps(&mut program, task, &starts, makespan);
    let full = |slot: usize| gaps.base[slot] > task.pool;
    // By swap and slot: whether its prefetch starts at or after the start of that slot's op.
    let mut later: Vec<Vec<Expression>> = Vec::new();
    for swap in &swaps {
        let others: Vec<&Swap<'_>> = swaps.iter().filter(|other| !std::ptr::eq(*other, swap)).collect();
        let away = away(&mut program, &others, &swap.returns.into());
        // It starts while one op runs, or between two.
        let mut somewhere = vec![Expression::from(0.0); slots + 1];
        for slot in (swap.gap.after as usize..swap.gap.before as usize).rev() {
            let runs = program.interval(swap.returns, starts[slot].into(), end(slot));
            let waits = program.interval(swap.returns, end(slot), starts[slot + 1].into());
            if full(slot) {
                fit(&mut program, task, slot, &away, runs);
            }
            somewhere[slot] = somewhere[slot + 1].clone() + runs + waits;
        }
        program.rows.push(constraint!(somewhere[swap.gap.after as usize].clone() == swap.swapped));
        later.push(somewhere);
    }
    for slot in (0..slots).filter(|slot| full(*slot)) {
        let here: Vec<usize> = (0..swaps.len()).filter(|g| inside(swaps[*g].gap).contains(&slot)).collect();
        let at_start: Vec<&Swap<'_>> = here.iter().map(|g| &swaps[*g]).collect();
        let away = away(&mut program, &at_start, &starts[slot].into());
        for (g, (_, away)) in here.iter().zip(&away) {
            program.rows.push(constraint!(*away <= later[*g][slot].clone()));
        }
        fit(&mut program, task, slot, &away, 1.0);
    }
    let mut model = program.variables.minimise(makespan).using(microlp).with_time_limit(0.5);
    for row in program.rows {
        model = model.with(row);
    }
    match model.solve() {
        Ok(solution) => {
            Ok(matches!(solution.status(), SolutionStatus::Optimal).then(|| solution.value(makespan)))
        }
        Err(ResolutionError::Other(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Tensors are so many times larger than the random ones, and the link faster, so that aligning addresses costs nothing.
const GRAIN: u64 = 4096;

/// A trace of a few ops that can be run in one way only.
fn small_trace(seed: u64) -> Trace {
    let mut trace = random_trace_of(4 + Random::new(seed).below(8) as usize, seed);
    trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * GRAIN);
    for op in &mut trace.ops {
        op.workspace_bytes = op.workspace_bytes * GRAIN;
        op.alternatives.clear();
    }
    trace
}

#[test]
fn plimsoll_is_never_better_than_the_optimum_and_seldom_worse() {
    let allow = Allow { recompute: false, swap: true, pieces: false };
    let (mut ratios, mut late) = (Vec::new(), 0);
    for seed in 0.. {
        if ratios.len() == 120 {
            break;
        }
        let trace = small_trace(seed);
        let memory = trace.memory();
        let (floor, peak) = (memory.floor().expect("an op").1, memory.peak().expect("an op").1);
        let budget = floor + Bytes((peak - floor).0 * (seed % 5) / 8);
        let mut request = request(budget, 600.0 * GRAIN as f64, Duplex::Full, Policy::Plimsoll);
        (request.allow, request.limits.evaluations) = (allow, Some(1000));
        let Ok(plan) = planned(&trace, &request) else { continue };
        let bound = lower_bound(&trace, budget, &request.link, allow);
        if plan.makespan <= trace.compute_seconds() * (1.0 + 1e-9) {
            continue;
        }
        let pool = budget.0 - trace.resident_bytes.0;
        let gaps = Gaps::new(&trace, Bytes(pool), Ways::BesideOwn, &|_| 1);
        let latest = plan.makespan.0 * (1.0 + 1e-6);
        let task = Task { gaps: &gaps, link: request.link, pool };
        let optimum = optimum(&task, latest);
        let what = format!("seed {seed}: {optimum:?} beside {}, bound {bound}", plan.makespan);
        match optimum.unwrap_or_else(|_| panic!("{what}: the plan should be a solution")) {
            None => late += 1,
            Some(optimum) => {
                assert!(Seconds(optimum * (1.0 + 1e-5)) >= bound, "{what}");
                ratios.push(plan.makespan.0 / optimum);
            }
        }
    }
    let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let worst = ratios.iter().copied().fold(1.0, f64::max);
    println!("{} traces, {late} more given up: mean {mean:.4}, worst {worst:.4}", ratios.len());
    assert!(mean < 1.03, "on average {mean} of the optimum");
}
