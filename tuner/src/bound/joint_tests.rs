//! Tests of the columns against the whole program as documented, solved at once.

use super::*;
use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, constraint, microlp, variable};
use plimsoll_ir::trace::{Op, Phase, TensorKind};
use plimsoll_ir::{BytesPerSecond, OpId};
use plimsoll_testing::{Random, floor_and_peak, hand, random_trace};

const BOTH: Allow = Allow::ALL;
const SWAP: Allow = Allow { recompute: false, ..BOTH };
const AGAIN: Allow = Allow { swap: false, ..BOTH };
const ENDLESS: Limits<'_> = Limits { evaluations: None, expired: None };

/// Returns the minimum of rows (1) to (7), in seconds.
fn whole(all: &Values, instant: &Instant, room: u64, link: &Link) -> f64 {
    let mut variables = ProblemVariables::new();
    let mut parts = |count: usize| -> Vec<Variable> {
        (0..count).map(|_| variables.add(variable().bounds(0.0..=1.0))).collect()
    };
    let (wanted, makers) = (&instant.wanted, &instant.makers);
    let (k, s, r) = (parts(wanted.len()), parts(wanted.len()), parts(makers.len()));
    let (before, after) = (variables.add(variable().min(0.0)), variables.add(variable().min(0.0)));
    let mut model = variables.minimise(before + after).using(microlp);
    let had = |v: usize| k[v] + s[v] + wanted[v].maker.map_or(Expression::from(0.0), |m| r[m].into());
    for v in (0..wanted.len()).filter(|v| wanted[*v].needed) {
        model = model.with(constraint!(had(v) >= 1.0));
    }
    for (maker, again) in makers.iter().zip(&r) {
        for &z in &maker.inputs {
            model = model.with(constraint!(had(z) >= *again));
        }
    }
    let kept: Expression = wanted.iter().zip(&k).map(|(v, k)| v.bytes * *k).sum();
    model = model.with(constraint!(kept <= room.saturating_sub(instant.touched) as f64));
    let latency = link.latency_seconds.0;
    let (out, back) = (link.offload_bytes_per_second.0, link.prefetch_bytes_per_second.0);
    for slot in 0..=instant.op + 1 {
        let late = wanted.iter().zip(&s).filter(|(v, _)| v.slot >= slot);
        let sum: Expression = late.map(|(v, s)| (latency + v.bytes / out) * *s).sum();
        model = model.with(constraint!(before >= sum + all.until[slot]));
    }
    model = model.with(constraint!(before >= all.until[instant.op + 1]));
    let total = all.until[all.until.len() - 1];
    for j in instant.op + 1..all.seconds.len() {
        let early = wanted.iter().zip(&s).filter(|(v, _)| v.deadline <= j);
        let sum: Expression = early.map(|(v, s)| (latency + v.bytes / back) * *s).sum();
        model = model.with(constraint!(after >= sum + (total - all.until[j])));
    }
    let again: Expression = makers.iter().zip(&r).map(|(m, r)| m.seconds * *r).sum();
    model = model.with(constraint!(after >= again + (total - all.until[instant.op + 1])));
    let solution = model.solve().expect("swapping everything is feasible");
    solution.value(before) + solution.value(after)
}

#[test]
fn columns_give_what_the_whole_program_gives() {
    let mut compared = 0;
    for seed in 0..150 {
        let trace = random_trace(seed);
        let mut random = Random::new(seed);
        let mut rate = || BytesPerSecond(200.0 + random.below(3000) as f64);
        let mut link = Link { offload_bytes_per_second: rate(), ..Link::symmetric(rate()) };
        link.latency_seconds = Seconds(random.below(3) as f64 * 0.05);
        let (floor, peak) = floor_and_peak(&trace);
        let budget = floor + Bytes(random.below((peak - floor).0 + 1));
        let search = Search::new(&trace, budget, &link, if seed % 3 > 0 { BOTH } else { SWAP }, &ENDLESS);
        let Search { all, room, scale, .. } = &search;
        let mut known: Vec<Known> = Vec::new();
        for p in (0..trace.ops.len()).map(OpId::new).map(OpId::index) {
            let instant = Instant::new(all, p);
            if instant.wanted.iter().map(|v| v.bytes).sum::<f64>() + instant.touched as f64 <= *room as f64 {
                continue;
            }
            let whole = whole(all, &instant, *room, &link);
            // From the start, and from the previous op's columns.
            for known in [&mut Vec::new(), &mut known] {
                let mut program = Program::new(&search, &instant);
                let columns = program.solve(0.0, known);
                let bound = program.bound * scale;
                assert!((bound - whole).abs() <= 1e-5 * whole, "seed {seed}, op {p}: {bound}, {whole}");
                *known = columns.iter().map(|(c, _)| Known::new(all, &instant, &c.choice)).collect();
                compared += 1;
            }
        }
    }
    assert!(compared > 600, "{compared} programs are too few");
}

/// Returns a trace of 7 resident bytes, tensors of these sizes of which the first is an input, and ops of these seconds, reads
/// and writes.
fn trace_of(sizes: &[u64], recomputable: bool, ops: &[(f64, &[usize], &[usize])]) -> Trace {
    let op = |(seconds, reads, writes): &(f64, &[usize], &[usize])| Op {
        seconds: Seconds(*seconds),
        recomputable,
        ..hand::op("op", Phase::Forward, reads, writes)
    };
    let mut trace = hand::trace(sizes.iter().copied(), ops.iter().map(op).collect());
    (trace.resident_bytes, trace.tensors[0].kind) = (Bytes(7), TensorKind::Input);
    trace
}

/// Two ops that make a large value each, and two that read them, backwards.
fn hand_made(recomputable: bool) -> Trace {
    let ops: [(f64, &[usize], &[usize]); 4] =
        [(1.0, &[0], &[1]), (2.0, &[0], &[2]), (4.0, &[2], &[]), (8.0, &[1], &[])];
    trace_of(&[10, 100, 100], recomputable, &ops)
}

/// Returns the bound of a trace over a link of 10 bytes a second.
fn bounded(trace: &Trace, budget: u64, allow: Allow) -> Seconds {
    let link = Link::symmetric(BytesPerSecond(10.0));
    bound(Seconds::ZERO, trace, Bytes(budget), &link, allow, &ENDLESS)
}

#[test]
fn nothing_leaves_before_it_is_made() {
    // Op 1 leaves no room for the 100 bytes that op 0 made: 1 s, then 10 s of offloading, then 48 s of computing.
    let mut trace = hand_made(false);
    trace.ops[1].workspace_bytes = Bytes(60);
    trace.ops[2].seconds = Seconds(40.0);
    let found = bounded(&trace, 177, BOTH);
    assert!((found.0 - 59.0).abs() < 0.1, "{found}");
}

#[test]
fn a_dead_value_is_wanted_until_the_last_that_it_may_make() {
    // Op 1 makes t2 and op 2 makes t3 from t1, which nothing after op 3 reads; op 4 reads t2 and op 5 t3.
    let ops: [(f64, &[usize], &[usize]); 6] = [
        (1.0, &[0], &[1]),
        (1.0, &[1], &[2]),
        (1.0, &[1], &[3]),
        (1.0, &[], &[4]),
        (1.0, &[2], &[]),
        (1.0, &[3], &[]),
    ];
    let all = Values::of(&trace_of(&[1, 1, 1, 1, 1], true, &ops), true);
    let wanted: Vec<(u32, usize, bool)> =
        Instant::new(&all, 3).wanted.iter().map(|v| (v.tensor.0, v.deadline, v.needed)).collect();
    assert_eq!(wanted, [(0, 5, false), (1, 5, false), (2, 4, true), (3, 5, true)]);
    let all = Values::of(&trace_of(&[1, 1, 1, 1, 1], false, &ops), true);
    let wanted: Vec<u32> = Instant::new(&all, 3).wanted.iter().map(|v| v.tensor.0).collect();
    assert_eq!(wanted, [2, 3]);
}

#[test]
fn a_trace_worked_out_by_hand() {
    // At the end of op 2 (7 s), which touches 100 bytes, 70 of the other 100 have room. 30 are prefetched in 3 s, then op 3 runs.
    let swapping = bounded(&hand_made(false), 177, BOTH);
    assert!((swapping.0 - 18.0).abs() < 1e-4, "{swapping}");
    // Or 0.3 of op 0 is recomputed meanwhile, with 0.3 of its input kept in the place of 3 more bytes, next to 0.3 s of
    // prefetching. Without swapping 0.4 of op 0 run again: at the end of op 1, which touches its input, 60 bytes have room. If
    // nothing can be recomputed there is no schedule.
    for (recomputable, budget, allow, expected) in [
        (true, 177, BOTH, 15.3),
        (true, 177, SWAP, 18.0),
        (true, 217, BOTH, 15.0),
        (true, 177, AGAIN, 15.4),
        (false, 177, AGAIN, 30.0),
    ] {
        let found = bounded(&hand_made(recomputable), budget, allow);
        assert!((found.0 - expected).abs() < 1e-4, "{found}, not {expected}");
    }
}

#[test]
fn the_relaxed_solution_costs_what_the_bound_says() {
    let link = Link::symmetric(BytesPerSecond(10.0));
    let relaxed = relax(&hand_made(true), Bytes(177), &link, BOTH, &ENDLESS);
    assert_eq!(relaxed.bound, bounded(&hand_made(true), 177, BOTH));
    assert_eq!(relaxed.op, Some(OpId(2)));
    let share = 0.3;
    // 0.3 of op 0 is recomputed. Its input is present as often as it runs, its output is present in full, 70 bytes have room, and nothing takes longer.
    let [input, made] = &relaxed.values[..] else { panic!("{relaxed:?}") };
    assert!(input.tensor == TensorId(0) && input.writer.is_none(), "{relaxed:?}");
    assert!(made.tensor == TensorId(1) && made.writer == Some(OpId(0)), "{relaxed:?}");
    assert!((input.kept + input.swapped - share).abs() < 1e-4, "{relaxed:?}");
    assert!((made.kept + made.swapped + share - 1.0).abs() < 1e-4, "{relaxed:?}");
    assert!(10.0 * input.kept + 100.0 * made.kept < 70.01, "{relaxed:?}");
    assert!(input.swapped + 10.0 * made.swapped < 0.301, "{relaxed:?}");
    let nothing = relax(&hand_made(true), Bytes(217), &link, BOTH, &ENDLESS);
    assert_eq!(nothing, Relaxed { bound: Seconds(15.0), op: None, values: Vec::new() });
}
