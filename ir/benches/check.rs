//! The cost of `check` and `simulate` on schedules of 30,000 commands: `cargo bench -p plimsoll-ir --bench check`.
//!
//! Two schedules: a random one, and one in which every op reads the same tensor, which is swapped in every gap; the second
//! would show a cost that is quadratic in the residencies of a tensor. Each figure is the median over repetitions, with the
//! fastest and the slowest. Without `--bench`, as under `cargo test`, it runs once on small schedules, so that it cannot rot.
//! It asserts no time: machines differ.

use plimsoll_ir::Bytes;
use plimsoll_ir::check::check;
use plimsoll_ir::ids::{CommandId, OpId, TensorId};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Schedule};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::{TensorKind, Trace};
use plimsoll_testing::{random_schedule, random_trace_of};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let repetitions = if full { 21 } else { 1 };
    let trace = random_trace_of(if full { 18_500 } else { 100 }, 1);
    measure("random", repetitions, &trace, &random_schedule(&trace, 1));
    let (trace, schedule) = in_every_gap(if full { 15_000 } else { 100 });
    measure("in every gap", repetitions, &trace, &schedule);
}

/// Returns a schedule in which every op reads one tensor, which is fetched for each of them.
fn in_every_gap(ops: usize) -> (Trace, Schedule) {
    let mut trace = random_trace_of(ops, 2);
    trace.tensors.truncate(1);
    (trace.tensors[0].bytes, trace.tensors[0].kind) = (Bytes(100), TensorKind::Input);
    for op in &mut trace.ops {
        (op.reads, op.writes, op.workspace_bytes) = (vec![TensorId(0)], Vec::new(), Bytes::ZERO);
    }
    let (tensor, first_byte, bytes) = (TensorId(0), None, None);
    let mut schedule = random_schedule(&trace, 2);
    schedule.commands = vec![Command::Offload { tensor, first_byte, bytes, waits: Vec::new() }];
    let holds = Holds::Tensor { tensor, first_byte, bytes };
    schedule.buffers = vec![Buffer { holds, offset: Bytes(0), opens: None, closes: vec![CommandId(0)] }];
    for op in 0..ops {
        let prefetch = CommandId::new(schedule.commands.len());
        let compute = CommandId(prefetch.0 + 1);
        let waits = vec![CommandId(prefetch.0 - 1)];
        schedule.commands.push(Command::Prefetch { tensor, first_byte, bytes, waits });
        let (op, waits) = (OpId::new(op), vec![prefetch]);
        schedule.commands.push(Command::Compute { op, again: false, alternative: None, waits });
        schedule.buffers.push(Buffer {
            holds,
            offset: Bytes(0),
            opens: Some(prefetch),
            closes: vec![compute],
        });
    }
    (schedule.pool_bytes, schedule.budget_bytes) = (Bytes(100), trace.resident_bytes + Bytes(100));
    (trace, schedule)
}

fn measure(name: &str, repetitions: usize, trace: &Trace, schedule: &Schedule) {
    assert_eq!(check(trace, schedule), Ok(()));
    let timeline = simulate(trace, schedule);
    let waits: usize = schedule.commands.iter().map(|c| c.waits().len()).sum();
    let (ops, commands, buffers) = (trace.ops.len(), schedule.commands.len(), schedule.buffers.len());
    println!("{name}: {ops} ops, {commands} commands, {waits} waits, {buffers} buffers; milliseconds");
    println!("{:<22}{:>9}{:>9}{:>9}", "", "median", "fastest", "slowest");
    let report = |name: &str, run: &dyn Fn()| {
        let mut seen: Vec<f64> = (0..repetitions).map(|_| milliseconds(run)).collect();
        seen.sort_by(f64::total_cmp);
        println!("{name:<22}{:>9.3}{:>9.3}{:>9.3}", seen[seen.len() / 2], seen[0], seen[seen.len() - 1]);
    };
    report("check", &|| drop(black_box(check(black_box(trace), black_box(schedule)))));
    report("simulate", &|| drop(black_box(simulate(black_box(trace), black_box(schedule)))));
    report("totals", &|| _ = black_box(timeline.totals(black_box(trace), black_box(schedule))));
    report("pool over time", &|| _ = black_box(timeline.peak(black_box(trace), black_box(schedule))));
}

/// Returns the duration of one call.
fn milliseconds(run: &dyn Fn()) -> f64 {
    let begin = Instant::now();
    run();
    begin.elapsed().as_secs_f64() * 1e3
}
