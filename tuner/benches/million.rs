//! Cost of planning a trace of a million ops: seconds and peak memory, for each named policy.
//!
//! `cargo bench -p plimsoll-tuner --bench million -- [POLICY]... [--layers N] [--limit SECONDS] [--fraction F]`
//!
//! Without policies: `keep` and `plimsoll`, at a budget of floor + F x (peak - floor) (0.4; for `keep` twice the peak) and a link
//! of 3 GB/s, over which half of the transfers are hidden. The limit, by default 10 seconds, is what `plan --time-limit` passes
//! to the planner: when it is up, the best plan so far is finished. Memory is the peak of the whole process until then, the trace
//! included; it is read from `/proc`, and missing elsewhere. Nothing is asserted.

use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, check, simulate};
use plimsoll_testing::chain_trace;
use plimsoll_tuner::{Limits, Outcome, PlanRequest, Policy, plan};
use std::time::Instant;

struct Options {
    policies: Vec<Policy>,
    layers: usize,
    limit: f64,
    fraction: f64,
}

fn options() -> Options {
    let mut options = Options { policies: Vec::new(), layers: 500_000, limit: 10.0, fraction: 0.4 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option is followed by its value");
        match argument.as_str() {
            "--layers" => options.layers = value().parse().expect("a number"),
            "--limit" => options.limit = value().parse().expect("a number"),
            "--fraction" => options.fraction = value().parse().expect("a number"),
            "--bench" => {}
            name => options.policies.push(name.parse().expect("the name of a policy")),
        }
    }
    if options.policies.is_empty() {
        options.policies = vec![Policy::Keep, Policy::Plimsoll];
    }
    options
}

/// Returns the peak memory of this process so far.
fn most_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let bytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    bytes.map_or("unknown".into(), |kib| Bytes(kib * 1024).to_string())
}

fn run(trace: &Trace, policy: Policy, options: &Options) {
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("an op").1, memory.peak().expect("an op").1);
    let between = Bytes(((peak - floor).0 as f64 * options.fraction) as u64);
    let budget = if policy == Policy::Keep { peak * 2 } else { floor + between };
    let start = Instant::now();
    let seconds = || start.elapsed().as_secs_f64();
    let expired = || seconds() > options.limit;
    let limits = Limits { evaluations: None, expired: Some(&expired) };
    let link = Link::symmetric(BytesPerSecond(3e9));
    let request = PlanRequest { limits, ..PlanRequest::new(budget, link, policy) };
    let outcome = plan(trace, &request).expect("a request that means something");
    let took = seconds();
    let what = match &outcome {
        Outcome::Planned(plan) => {
            format!("{}, {:.4} over its bound, {:?}", plan.makespan, plan.gap(), plan.status)
        }
        Outcome::Infeasible(witness) => witness.to_string(),
    };
    println!("{:>14} {took:>7.2} s  {:>10}  {what}", policy.name(), most_memory());
    if let Some(plan) = outcome.plan() {
        let start = Instant::now();
        check::check(trace, &plan.schedule).expect("a plan is valid");
        let checked = start.elapsed().as_secs_f64();
        let makespan = simulate::simulate(trace, &plan.schedule).makespan();
        let simulated = start.elapsed().as_secs_f64() - checked;
        println!(
            "{:>14} checked in {checked:.2} s, simulated in {simulated:.2} s: {} commands, {makespan}",
            "",
            plan.schedule.commands.len()
        );
    }
}

fn main() {
    let options = options();
    let trace = chain_trace(options.layers);
    println!(
        "{} ops, time limit {} s; the trace alone takes {}",
        trace.ops.len(),
        options.limit,
        most_memory()
    );
    for policy in &options.policies {
        run(&trace, *policy, &options);
    }
}
