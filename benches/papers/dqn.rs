//! DQN (Chen, "GPU memory management for neural networks using deep Q-network") on a GTX 1080 Ti: overhead over memory
//! reduction.
//!
//! Beside the paper's policy stand those that it compares itself with, and two controls: searches over the policy's own
//! actions that learn nothing, with as many evaluations. Policy and controls run with three seeds.

use crate::plot::Plot;
use crate::subjects::{Made, Scale, Subject, device, peak};
use crate::table::{Table, or_dash, percent};
use plimsoll::ir::check::check;
use plimsoll::ir::search_log::SearchLog;
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::tuner::policies::papers::dqn::Control;
use plimsoll::tuner::{Limits, Outcome, PlanRequest, Policy, plan_by_control, plan_with_log};
use std::time::Instant;

/// Network on CIFAR-10's images, batch. The paper names ResNet and VGG of two depths each, and no batch.
const NETWORKS: [(&str, u64); 6] =
    [("resnet56", 256), ("resnet110", 256), ("vgg16", 1024), ("vgg116", 256), ("unet", 8), ("lstm", 64)];

/// What of the memory of keeping everything is saved, parameters and what belongs to them aside.
const REDUCTIONS: [f64; 6] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7];

/// The network of the plot.
const PLOTTED: &str = "resnet110";

const POLICIES: [Policy; 3] = [Policy::Memonger, Policy::SuperNeurons, Policy::Tflms];

/// Evaluations of the policy, and of each control: fewer than it takes by itself, as each row has nine such searches.
const EVALUATIONS: u64 = 2000;

const SEEDS: [u64; 3] = [1, 2, 3];

/// The makespans of one search with each seed that has a plan, the shortest first.
struct Runs(Vec<f64>);

impl Runs {
    fn new(mut seconds: Vec<f64>) -> Runs {
        seconds.sort_by(f64::total_cmp);
        Runs(seconds)
    }

    fn median(&self) -> Option<f64> {
        self.0.get(self.0.len() / 2).copied()
    }

    /// The median over `compute`, and from where to where the seeds reach.
    fn cell(&self, compute: Seconds) -> String {
        let longer = |seconds: f64| percent(seconds / compute.0 - 1.0);
        match (self.0.first(), self.median(), self.0.last()) {
            (Some(least), Some(median), Some(most)) => {
                format!("{} ({} to {})", longer(median), longer(*least), longer(*most))
            }
            _ => "-".to_owned(),
        }
    }
}

/// The policy and its controls in one row.
struct Row {
    best: Runs,
    last: Runs,
    random: Runs,
    annealing: Runs,
    /// Of planning with the policy, training included: the mean of the seeds.
    seconds: f64,
}

fn learned(subject: &Subject, trace: &Trace, budget: Bytes) -> Row {
    let (mut best, mut last, mut seconds) = (Vec::new(), Vec::new(), 0.0);
    let mut controls = [Vec::new(), Vec::new()];
    for seed in SEEDS {
        let evaluations = Some(if subject.is_small() { 200 } else { EVALUATIONS });
        let limits = Limits { evaluations, expired: None };
        let request = PlanRequest { limits, seed, ..subject.request(Policy::Dqn, budget) };
        let start = Instant::now();
        let (outcome, log) = plan_with_log(trace, &request).expect("a sound request");
        seconds += start.elapsed().as_secs_f64() / SEEDS.len() as f64;
        best.extend(makespan(trace, &outcome));
        last.extend(last_policy(&log).or(makespan(trace, &outcome)));
        for (made, control) in controls.iter_mut().zip([Control::Random, Control::Annealing]) {
            let (outcome, _) = plan_by_control(trace, &request, control).expect("a sound request");
            made.extend(makespan(trace, &outcome));
        }
    }
    let [random, annealing] = controls.map(Runs::new);
    Row { best: Runs::new(best), last: Runs::new(last), random, annealing, seconds }
}

/// The makespan of a plan that is valid.
fn makespan(trace: &Trace, outcome: &Outcome) -> Option<f64> {
    let plan = outcome.plan()?;
    check(trace, &plan.schedule).expect("a schedule that the planner hands out is valid");
    Some(plan.makespan.0)
}

/// What the last policy decided, in seconds; none where everything was kept.
fn last_policy(log: &SearchLog) -> Option<f64> {
    let step = log.steps.iter().rev().find(|step| step.tried.starts_with("last policy"))?;
    step.decided_seconds.map(|seconds| seconds.0)
}

/// The table with its columns, and no row yet.
fn empty_table() -> Table {
    let plot = Plot::new(
        "Overhead over memory reduction, ResNet-110 at batch 256, GTX 1080 Ti",
        "memory saved of what is not resident, %",
        "% longer than keeping everything",
    );
    Table::new(
        "DQN §5.1, Fig. 5: NVIDIA GTX 1080 Ti, CIFAR-10's images. Time over keeping everything, within the peak less what is \
         saved of what is not resident: none of these moves parameters. Medians of three seeds, and from where to where they \
         reach.",
        &[
            "network (batch)",
            "saved",
            "memonger",
            "superneurons",
            "tflms",
            "dqn, best plan",
            "dqn, last policy",
            "random",
            "annealing",
            "plimsoll",
            "dqn, seconds",
        ],
        plot,
    )
}

pub fn overheads(scale: &Scale) -> Table {
    let mut table = empty_table();
    let mut tally = Tally::default();
    let reductions = scale.pick(&REDUCTIONS, 2);
    for (name, batch) in scale.pick(&NETWORKS, 1) {
        let side = (name.starts_with("resnet") || name.starts_with("vgg")).then_some(32);
        let Some(subject) = scale.subject(name, side, device("gtx1080ti", false)) else {
            table.note(format!("{name}: not in the zoo."));
            continue;
        };
        let trace = subject.trace(*batch);
        let compute = trace.fastest_seconds();
        let plotted = scale.small || *name == PLOTTED;
        for saved in reductions {
            let resident = trace.resident_bytes;
            let moving = (peak(&trace) - resident).0 as f64;
            let budget = resident + Bytes((moving * (1.0 - saved)) as u64);
            let longer = |made: &Made| made.makespan / compute - 1.0;
            let of = |policy| subject.plan(&trace, policy, budget);
            let theirs: Vec<Option<Made>> = POLICIES.iter().map(|policy| of(*policy)).collect();
            let ours = of(Policy::Plimsoll);
            let names = POLICIES.iter().map(|policy| policy.name()).chain(["plimsoll"]);
            for (made, policy) in theirs.iter().chain([&ours]).zip(names).filter(|_| plotted) {
                made.iter().for_each(|made| table.plot.add(policy, 100.0 * saved, 100.0 * longer(made)));
            }
            let row = learned(&subject, &trace, budget);
            if let Some(median) = row.best.median().filter(|_| plotted) {
                table.plot.add("dqn", 100.0 * saved, 100.0 * (median / compute.0 - 1.0));
            }
            let cell = |made: &Option<Made>| or_dash(made.as_ref(), |made| percent(longer(made)));
            let mut cells = vec![format!("{name} ({batch})"), percent(*saved)];
            cells.extend(theirs.iter().map(cell));
            cells.extend([&row.best, &row.last, &row.random, &row.annealing].map(|runs| runs.cell(compute)));
            cells.extend([cell(&ours), format!("{:.1}", row.seconds)]);
            table.alone(cells);
            tally.count(&row, &theirs);
            if let (Some(dqn), Some(ours)) = (row.best.median(), &ours) {
                table
                    .advantage(format!("{name}, {} saved, over dqn", percent(*saved)), dqn / ours.makespan.0);
            }
        }
    }
    table.note(tally.words());
    table.note(
        "Fig. 5 is not legible in the text, so no number of it stands here; the text says that DQN takes less time and saves \
         more memory than the other three (§5.1), and is weakest on U-Net and LSTM (§5.2).",
    );
    table.note(format!(
        "`dqn, last policy` is what its last episode, without chance, decided, before addresses. The controls \
         (`random`, `annealing`) choose among the actions of dqn, offloading and recomputing whole tensors, and \
         all three have {EVALUATIONS} evaluations."
    ));
    if !scale.small {
        read(&mut table);
    }
    table.note(
        "Not here: K-means, networks with stochastic depth, SuperNeurons' three modes apart, memonger with other \
         layers.",
    );
    table.note("`-`: the policy has no plan in that memory.");
    table
}

/// What the table of 2026-11-23 shows, in words.
fn read(table: &mut Table) {
    table.note(
        "What is reproduced: dqn is no slower than tflms wherever both have a plan, and ahead of memonger and superneurons, \
         where these have one, on VGG-116 and U-Net, and on ResNets up to 30 %. U-Net is no weak spot here; LSTM \
         is, from 40 % on.",
    );
    table.note(
        "What is not: on ResNets and LSTM, from 40 % on, superneurons is ahead of dqn, on ResNet-110 at 70 % by \
         125 points. What is cheap to recompute is a rule of superneurons' from the start; dqn must learn in some \
         ten episodes that swapping no longer pays once the link is full. Equation (3) cannot say that: the \
         graph's state adds the same to the value of every action.",
    );
    table.note(
        "Learning is worth something: dqn's median is below that of random in every row. Annealing over the same \
         actions is ahead where much must go (ResNet-56 from 40 % on, ResNet-110 from 50 % on) and behind on long \
         traces (LSTM), where these evaluations are few for it. The last policy is often far behind the best plan \
         found, so figure 3's reading of the paper (the best found) is the one to take.",
    );
}

/// In how many rows dqn's median is the shorter one, and in how many both have a plan.
#[derive(Default)]
struct Tally {
    against: [(u32, u32); 5],
}

const OTHERS: [&str; 5] = ["memonger", "superneurons", "tflms", "random", "annealing"];

impl Tally {
    fn count(&mut self, row: &Row, theirs: &[Option<Made>]) {
        let policies = theirs.iter().map(|made| made.as_ref().map(|made| made.makespan.0));
        let others = policies.chain([row.random.median(), row.annealing.median()]);
        for ((shorter, both), other) in self.against.iter_mut().zip(others) {
            if let (Some(dqn), Some(other)) = (row.best.median(), other) {
                *shorter += u32::from(dqn <= other * (1.0 + 1e-3));
                *both += 1;
            }
        }
    }

    fn words(&self) -> String {
        let of = |((shorter, both), name): (&(u32, u32), &str)| format!("{name} in {shorter} of {both}");
        let all: Vec<String> = self.against.iter().zip(OTHERS).map(of).collect();
        format!(
            "Rows in which dqn is as fast (to 0.1 %) or faster, where both have a plan: {}.",
            all.join(", ")
        )
    }
}
