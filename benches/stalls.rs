//! What does swapping cost? A schedule that predicts no stall beside keeping everything, and schedules that predict stalls
//! beside what `simulate` says.
//!
//! Op times are measured at the very batch size, so that only the schedule is on trial and not the model. The link is
//! paced: fast for the schedule without stalls, slow for those with. All run in turn. `cargo bench --bench stalls`.

mod support;

use plimsoll::ir::schedule::{Link, Schedule};
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll::runtime::HostMemory;
use plimsoll::task::{Setup, Task};
use plimsoll::tuner::Policy;
use support::{in_full, in_turn, machine, middle, peak, task, trainer};

/// Network, image side, batch.
const CASES: [(&str, u32, u64); 3] = [("vgg16", 32, 32), ("resnet18", 64, 16), ("resnet20", 32, 64)];

/// Share of what keeping everything takes.
const BUDGET: f64 = 0.7;

/// Timed iterations from which each op's median is taken.
const TIMED: usize = 9;

fn main() {
    let (cases, rounds): (&[_], _) = if in_full() { (&CASES, 31) } else { (&[("resnet20", 8, 16)], 3) };
    for (number, (network, side, batch)) in cases.iter().enumerate() {
        let task = |link| task(network, *side, Setup { threads: 1, link, host: HostMemory::Anonymous });
        let unpaced = task(None);
        if number == 0 {
            println!("{}\n", machine(&unpaced));
            println!(
                "| network | batch | policy | link | swapped | predicted stall | predicted | measured | spread | measured / predicted | / keeping |"
            );
            println!("|---|---|---|---|---|---|---|---|---|---|---|");
        }
        let trace = timed_trace(&unpaced, *batch);
        let compute = trace.compute_seconds();
        let budget = Bytes((peak(&unpaced, *batch).0 as f64 * BUDGET) as u64);
        // Rates at which the whole peak would cross the link in a third of, and in thrice, the computing time.
        let volume = peak(&unpaced, *batch).0 as f64;
        for (policy, share) in [(Policy::Plimsoll, 3.0), (Policy::Naive, 0.6), (Policy::Plimsoll, 0.2)] {
            let link = Link::symmetric(BytesPerSecond(share * volume / compute.0));
            compare(&task(Some(link)), &trace, policy, budget, link, rounds);
        }
    }
}

/// The trace at a batch size with the median of every op's measured seconds, as run keeping everything.
fn timed_trace(task: &Task, batch: u64) -> Trace {
    let mut trace = task.trace(batch).expect("the network lowers");
    let keep = plan(task, &trace, Policy::Keep, Bytes(u64::MAX >> 2), Link::symmetric(BytesPerSecond(1e10)));
    let mut trainer = trainer(task, batch, &keep.0);
    in_turn(task, std::slice::from_mut(&mut trainer), 1);
    let loaded = trainer.loaded().clone();
    let timelines: Vec<_> =
        (0..TIMED).map(|_| trainer.executor().run_timed(&loaded).expect("a valid schedule runs")).collect();
    let samples =
        plimsoll::profiler::batch_samples(loaded.trace(), loaded.schedule(), &timelines, Seconds::ZERO);
    for (op, samples) in trace.ops.iter_mut().zip(samples.ops) {
        op.seconds = middle(&samples.seconds).0;
    }
    trace
}

fn plan(task: &Task, trace: &Trace, policy: Policy, budget: Bytes, link: Link) -> (Schedule, Seconds) {
    let plan = task.plan(trace, policy, budget, link).expect("the budget is above the floor");
    (plan.schedule, plan.makespan)
}

/// Runs a plan and keeping everything in turn, and prints a row.
fn compare(task: &Task, trace: &Trace, policy: Policy, budget: Bytes, link: Link, rounds: u64) {
    let batch = trace.batch;
    let (schedule, predicted) = plan(task, trace, policy, budget, link);
    let (keep, kept) = plan(task, trace, Policy::Keep, Bytes(u64::MAX >> 2), link);
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
