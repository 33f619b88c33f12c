//! The result of Euro-Par'20 on chains: `dynprog` stays within 1.2 of the paper's bound.
//!
//! As in its §6, the networks are ResNet, DenseNet and Inception, with each non-linear part of the graph grouped as one layer
//! of the chain (as the planner's chains do), and one transfer at a time (assumption B: half duplex). Memory limits lie between
//! the peak and the least memory in which the chain runs with everything offloaded (plus a hundredth of the way, for the
//! addresses, which the paper does not have). The ratio is to LB = max(compute, 2 (peak - limit) / rate) (Proposition 3). The
//! paper measured its times; here they come from roofline models.

use super::runs::{RATE, Runs};
use super::subjects::Subject;
use super::tables::{Grid, Several, THREADS, shown};
use plimsoll::ir::Bytes;
use plimsoll::ir::schedule::{Duplex, Link};
use plimsoll::tuner::{Allow, Limits, Outcome, PlanRequest, Policy, plan};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Networks of the paper's chains.
const FAMILIES: [&str; 3] = ["resnet", "densenet", "inception"];

/// Approximate ops of the deepest network that it plans.
const DEEPEST: usize = 2_000;

const POLICIES: [Policy; 5] =
    [Policy::DynProg, Policy::Greedy, Policy::VdnnRatio, Policy::AutoSwap, Policy::Plimsoll];

pub fn table(runs: &mut Runs) {
    let of_paper = |s: &&Subject| FAMILIES.iter().any(|f| s.name.starts_with(f)) && s.ops() <= DEEPEST;
    let subjects: Vec<&Subject> = runs.subjects.iter().filter(of_paper).collect();
    if subjects.is_empty() {
        println!("skipped: no trace of a network of Euro-Par'20's is among those asked for\n");
        return;
    }
    // Steps between the least memory and the peak; few in a test.
    let steps = if runs.evaluations.is_none() { 10 } else { 2 };
    let heading = ["chain", "limits"].into_iter().chain(POLICIES.iter().map(|policy| policy.name()));
    let mut grid = Grid::new(heading.map(str::to_owned));
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(subject) = subjects.get(next.fetch_add(1, Ordering::Relaxed)) {
            let row = sweep(subject, steps, runs);
            rows.lock().expect("no thread panics").push((&subject.name, row));
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let mut rows = rows.into_inner().expect("no thread panics");
    rows.sort_by_key(|row| row.0);
    if Instant::now() >= runs.end && rows.iter().all(|(_, sweep)| sweep.ratios[0].count() == 0) {
        println!("left out for want of time: the chains of Euro-Par'20\n");
        return;
    }
    let (mut beaten, mut left_out) = (0, 0);
    for (name, sweep) in rows {
        let cell = |sum: &Several| format!("{}, worst {}", shown(sum.mean(), 4), shown(sum.worst(), 4));
        let limits = format!("{} to {}", sweep.least, sweep.peak);
        grid.row(name.clone(), std::iter::once(limits).chain(sweep.ratios.iter().map(cell)));
        beaten += sweep.beaten;
        left_out += sweep.left_out;
    }
    grid.print(
        "### Chains as in Euro-Par'20 §6: makespan over its bound, geometric mean and worst of the limits",
    );
    println!(
        "target: dynprog at most 1.2 on ResNet and DenseNet. Limits at which it is faster than plimsoll: {beaten}; \
         plans left out for want of time: {left_out}\n"
    );
}

/// Results at the memory limits of one chain.
struct Sweep {
    least: Bytes,
    peak: Bytes,
    /// Ratios of every policy's plans.
    ratios: [Several; POLICIES.len()],
    /// Limits at which `dynprog` is faster than `plimsoll`.
    beaten: usize,
    /// Plans skipped for lack of time.
    left_out: usize,
}

fn sweep(subject: &Subject, steps: u64, runs: &Runs) -> Sweep {
    let (least, peak) = (least(subject), subject.peak);
    let mut sweep = Sweep { least, peak, ratios: Default::default(), beaten: 0, left_out: 0 };
    for step in 0..=steps {
        let share = (step as f64 / steps as f64).max(0.01);
        let limit = least + Bytes(((peak - least).0 as f64 * share) as u64);
        let bound = subject.compute.max(2.0 * ((peak - limit) / RATE).0);
        if Instant::now() >= runs.end {
            sweep.left_out += POLICIES.len();
            continue;
        }
        let makespan = |policy| makespan(subject, limit, policy, runs.evaluations).ok();
        let times = POLICIES.map(makespan);
        for (sum, time) in sweep.ratios.iter_mut().zip(times) {
            time.into_iter().for_each(|time| sum.add(time / bound));
        }
        let (theirs, ours) = (times[0], times[POLICIES.len() - 1]);
        sweep.beaten +=
            usize::from(theirs.is_some_and(|theirs| ours.is_none_or(|ours| theirs < ours * (1.0 - 1e-6))));
    }
    sweep
}

/// Returns the makespan, or the memory that the policy needs.
fn makespan(
    subject: &Subject,
    budget: Bytes,
    policy: Policy,
    evaluations: Option<u64>,
) -> Result<f64, Bytes> {
    let link = Link { duplex: Duplex::Half, ..Link::symmetric(RATE) };
    let allow = Allow { recompute: false, ..Allow::default() };
    let limits = Limits { evaluations, expired: None };
    let request = PlanRequest { allow, limits, ..PlanRequest::new(budget, link, policy) };
    match plan(&subject.trace, &request).expect("a sound trace") {
        Outcome::Planned(plan) => Ok(plan.makespan.0),
        Outcome::Infeasible(witness) => Err(witness.needs),
    }
}

/// Returns the least memory in which the chain runs: from the floor up, to the memory that `dynprog` reports it needs.
fn least(subject: &Subject) -> Bytes {
    let mut budget = subject.floor;
    while let Err(needs) = makespan(subject, budget, Policy::DynProg, None) {
        budget = needs;
    }
    budget
}
