//! What `check` and `simulate` cost on a schedule of 30,000 commands: `cargo bench -p plimsoll-ir --bench check`.
//!
//! Each figure is the median over repetitions, with the fastest and the slowest beside it. Called without `--bench`, as
//! `cargo test` does, it runs once on a small schedule, so that it cannot rot. It asserts no time: machines differ.

use plimsoll_ir::check::check;
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::testing::{random_schedule, random_trace_of};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let (ops, repetitions) = if full { (18_500, 21) } else { (100, 1) };
    let trace = random_trace_of(ops, 1);
    let schedule = random_schedule(&trace, 1);
    assert_eq!(check(&trace, &schedule), Ok(()));
    let timeline = simulate(&trace, &schedule);
    let (commands, buffers) = (schedule.commands.len(), schedule.buffers.len());
    let waits: usize = schedule.commands.iter().map(|c| c.waits().len()).sum();
    println!("{ops} ops, {commands} commands, {waits} waits, {buffers} buffers; milliseconds");
    println!("{:<22}{:>9}{:>9}{:>9}", "", "median", "fastest", "slowest");
    let report = |name: &str, run: &dyn Fn()| {
        let mut seen: Vec<f64> = (0..repetitions).map(|_| milliseconds(run)).collect();
        seen.sort_by(f64::total_cmp);
        println!("{name:<22}{:>9.3}{:>9.3}{:>9.3}", seen[seen.len() / 2], seen[0], seen[seen.len() - 1]);
    };
    report("check", &|| drop(black_box(check(black_box(&trace), black_box(&schedule)))));
    report("simulate", &|| drop(black_box(simulate(black_box(&trace), black_box(&schedule)))));
    report("stalls and totals", &|| {
        drop(black_box(timeline.totals(black_box(&trace), black_box(&schedule))))
    });
    report("pool bytes over time", &|| {
        drop(black_box(timeline.peak(black_box(&trace), black_box(&schedule))))
    });
}

/// How long one call takes.
fn milliseconds(run: &dyn Fn()) -> f64 {
    let begin = Instant::now();
    run();
    begin.elapsed().as_secs_f64() * 1e3
}
