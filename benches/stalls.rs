//! Cost of swapping. Compares a schedule that predicts no stall with keeping everything, and schedules that predict stalls with
//! the prediction of `simulate`.
//!
//! Op times are measured at this batch size, so that the schedule is tested and not the model. The link is paced: as fast as
//! PCIe for the schedule without stalls, slow for those with. All run in turn. `cargo bench --bench stalls [-- NETWORK]`.

mod support;

use plimsoll::ir::schedule::{Link, Schedule};
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll::profiler::batch_samples;
use plimsoll::study::device::cpu_options;
use plimsoll::study::{NetworkWorkload, Setup, Watch, Workload};
use plimsoll::tuner::Policy;
use support::{in_full, in_turn, machine, middle, peak, task, trainer, wanted};

/// Network, image side, batch.
const CASES: [(&str, u32, u64); 3] = [("vgg16", 32, 32), ("resnet18", 64, 16), ("resnet20", 32, 64)];

/// Position of the budget between the floor (0), below which no plan fits, and the memory that keeps everything (1).
const BUDGET: f64 = 0.6;

/// Timed iterations from which each op's median is taken.
const TIMED: usize = 9;

fn main() {
    let (cases, rounds): (&[_], _) = if in_full() { (&CASES, 31) } else { (&[("resnet20", 8, 48)], 3) };
    for (number, (network, side, batch)) in cases.iter().filter(|case| wanted(case.0)).enumerate() {
        let task = |link| task(network, *side, Setup::Cpu(cpu_options(Some(1), link)));
        let unpaced = task(None);
        if number == 0 {
            println!("{}\n", machine(&unpaced));
            println!(
                "| network | batch | policy | link | swapped | predicted stall | predicted | measured | spread | \
                 measured / predicted | / keeping |"
            );
            println!("|---|---|---|---|---|---|---|---|---|---|---|");
        }
        let trace = timed_trace(&unpaced, *batch);
        let compute = trace.compute_seconds();
        let budget = support::budget(&unpaced, *batch, BUDGET);
        // The rate of PCIe; and rates at which the full pool of keeping everything crosses the link in a third of the computing
        // time, and in all of it.
        let volume = (peak(&unpaced, *batch) - trace.resident_bytes).0 as f64;
        for rate in [12.2e9, 3.0 * volume / compute.0, volume / compute.0] {
            let link = Link::symmetric(BytesPerSecond(rate));
            for policy in [Policy::Plimsoll, Policy::Naive] {
                compare(&task(Some(link)), &trace, policy, budget, link, rounds);
            }
        }
    }
}

/// Returns the trace at a batch size with the median of every op's measured seconds, from runs that keep everything.
fn timed_trace(task: &NetworkWorkload, batch: u64) -> Trace {
    let mut trace = task.trace(batch).expect("the network lowers");
    let (keep, _) = keeping(task, &trace, Link::symmetric(BytesPerSecond(1e10)));
    let mut trainer = trainer(task, batch, &keep);
    in_turn(task, std::slice::from_mut(&mut trainer), 1);
    let timelines: Vec<_> =
        (0..TIMED).map(|_| trainer.train_timed(&*task.data.train).expect("a valid schedule runs")).collect();
    let loaded = trainer.loaded();
    let samples = batch_samples(loaded, &timelines, Seconds::ZERO);
    for (op, samples) in trace.ops.iter_mut().zip(samples.ops) {
        op.seconds = middle(&samples.seconds).0;
    }
    trace
}

/// Returns a policy's schedule and its predicted makespan; `None` if it does not fit.
fn plan(
    task: &NetworkWorkload,
    trace: &Trace,
    policy: Policy,
    budget: Bytes,
    link: Link,
) -> Option<(Schedule, Seconds)> {
    let (outcome, _) = task.outcome(trace, policy, budget, link, &Watch::silent()).expect("a sound trace");
    outcome.plan().map(|plan| (plan.schedule.clone(), plan.makespan))
}

/// Returns the schedule that keeps everything, within a budget that is certainly large enough.
fn keeping(task: &NetworkWorkload, trace: &Trace, link: Link) -> (Schedule, Seconds) {
    plan(task, trace, Policy::Keep, Bytes(1 << 60), link).expect("everything fits 2^60 bytes")
}

/// Runs a plan and keeping everything in turn, and prints a row.
fn compare(task: &NetworkWorkload, trace: &Trace, policy: Policy, budget: Bytes, link: Link, rounds: u64) {
    let batch = trace.batch;
    let Some((schedule, predicted)) = plan(task, trace, policy, budget, link) else {
        println!(
            "| {} | {batch} | {policy} | {} | does not fit |",
            task.network.spec.name, link.offload_bytes_per_second
        );
        return;
    };
    let (keep, kept) = keeping(task, trace, link);
    let swapped = plimsoll::tuner::search::moved(trace, &schedule).offloaded;
    let mut trainers = [trainer(task, batch, &schedule), trainer(task, batch, &keep)];
    let seconds = in_turn(task, &mut trainers, rounds);
    let ((median, spread), (keeping, _)) = (middle(&seconds[0]), middle(&seconds[1]));
    println!(
        "| {} | {batch} | {policy} | {} | {swapped} | {} | {predicted} | {median} | {:.1} % | {:.3} | {:.3} |",
        task.network.spec.name,
        link.offload_bytes_per_second,
        predicted - kept,
        spread * 100.0,
        median / predicted,
        median / keeping
    );
}
