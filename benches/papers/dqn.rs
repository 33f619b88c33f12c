//! DQN (Chen, "GPU memory management for neural networks using deep Q-network") on a GTX 1080 Ti: overhead over memory
//! reduction.
//!
//! Beside the paper's policy stand those that it compares itself with, and two controls: searches over the policy's own
//! actions that learn nothing, with as many evaluations. Policy and controls run with three seeds; with stochastic depth each
//! seed has a draw of its own. What the notes say of the rows is worked out from them (`reading.rs`).

mod reading;

use crate::plot::Plot;
use crate::subjects::{Scale, Subject, device, peak};
use crate::table::{Table, or_dash, percent};
use plimsoll::ir::check::check;
use plimsoll::ir::search_log::SearchLog;
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::networks::Draw;
use plimsoll::tuner::policies::papers::dqn::Control;
use plimsoll::tuner::{Limits, Outcome, PlanRequest, Policy, plan_by_control, plan_with_log};
use std::time::Instant;

/// Network on CIFAR-10's images, batch. The paper names ResNet and VGG of two depths each, and no batch.
const NETWORKS: [(&str, u64); 7] = [
    ("resnet56", 256),
    ("resnet110", 256),
    ("vgg16", 1024),
    ("vgg116", 256),
    ("unet", 8),
    ("lstm", 64),
    (STOCHASTIC, 256),
];

/// The network with stochastic depth.
const STOCHASTIC: &str = "resnet-sd110";

/// What of the memory of keeping everything is saved, parameters and what belongs to them aside.
const REDUCTIONS: [f64; 6] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7];

/// The network of the plot.
const PLOTTED: &str = "resnet110";

const POLICIES: [Policy; 3] = [Policy::Memonger, Policy::SuperNeurons, Policy::Tflms];

/// Evaluations of the policy, and of each control: fewer than it takes by itself, as each row has nine such searches.
const EVALUATIONS: u64 = 2000;

const SEEDS: [u64; 3] = [1, 2, 3];

/// What one search with each seed that has a plan takes over keeping everything, as a share, the shortest first.
struct Runs(Vec<f64>);

impl Runs {
    fn new(mut longer: Vec<f64>) -> Runs {
        longer.sort_by(f64::total_cmp);
        Runs(longer)
    }

    fn median(&self) -> Option<f64> {
        self.0.get(self.0.len() / 2).copied()
    }

    /// The median, and from where to where the seeds reach.
    fn cell(&self) -> String {
        match (self.0.first(), self.median(), self.0.last()) {
            (Some(least), Some(median), Some(most)) => {
                format!("{} ({} to {})", percent(median), percent(*least), percent(*most))
            }
            _ => "-".to_owned(),
        }
    }
}

/// A network at one reduction. All overheads are shares of the time of keeping everything; none where there is no plan.
struct Row {
    /// Network and batch.
    of: String,
    saved: f64,
    /// Of each of `POLICIES`, and of plimsoll; of several draws the mean.
    theirs: [Option<f64>; POLICIES.len()],
    plimsoll: Option<f64>,
    best: Runs,
    last: Runs,
    random: Runs,
    annealing: Runs,
    /// Of planning with the policy, training included: the mean of the seeds.
    seconds: f64,
}

/// A subject's trace, and what there is for it in memory.
struct Case {
    subject: Subject,
    trace: Trace,
    budget: Bytes,
}

impl Case {
    fn new(subject: Subject, batch: u64, saved: f64) -> Case {
        let trace = subject.trace(batch);
        let resident = trace.resident_bytes;
        let moving = (peak(&trace) - resident).0 as f64;
        let budget = resident + Bytes((moving * (1.0 - saved)) as u64);
        Case { subject, trace, budget }
    }

    /// What this takes over keeping everything.
    fn longer(&self, makespan: Seconds) -> f64 {
        makespan / self.trace.fastest_seconds() - 1.0
    }

    fn policy(&self, policy: Policy) -> Option<f64> {
        let made = self.subject.plan(&self.trace, policy, self.budget)?;
        Some(self.longer(made.makespan))
    }

    /// That of a plan that is valid.
    fn planned(&self, outcome: &Outcome) -> Option<f64> {
        let plan = outcome.plan()?;
        check(&self.trace, &plan.schedule).expect("a schedule that the planner hands out is valid");
        Some(self.longer(plan.makespan))
    }
}

/// The mean over draws, where there is a plan for each.
fn mean(cases: &[Case], policy: Policy) -> Option<f64> {
    let all: Option<Vec<f64>> = cases.iter().map(|case| case.policy(policy)).collect();
    all.map(|all| all.iter().sum::<f64>() / all.len() as f64)
}

/// A row; of one case, or of a case for each seed.
fn row(of: String, saved: f64, cases: &[Case]) -> Row {
    let (mut best, mut last, mut seconds) = (Vec::new(), Vec::new(), 0.0);
    let mut controls = [Vec::new(), Vec::new()];
    for (seed, case) in SEEDS.into_iter().zip(cases.iter().cycle()) {
        let evaluations = Some(if case.subject.is_small() { 200 } else { EVALUATIONS });
        let limits = Limits { evaluations, expired: None };
        let request = PlanRequest { limits, seed, ..case.subject.request(Policy::Dqn, case.budget) };
        let start = Instant::now();
        let (outcome, log) = plan_with_log(&case.trace, &request).expect("a sound request");
        seconds += start.elapsed().as_secs_f64() / SEEDS.len() as f64;
        best.extend(case.planned(&outcome));
        last.extend(last_policy(&log).map(|made| case.longer(made)).or(case.planned(&outcome)));
        for (made, control) in controls.iter_mut().zip([Control::Random, Control::Annealing]) {
            let (outcome, _) = plan_by_control(&case.trace, &request, control).expect("a sound request");
            made.extend(case.planned(&outcome));
        }
    }
    let [random, annealing] = controls.map(Runs::new);
    Row {
        of,
        saved,
        theirs: POLICIES.map(|policy| mean(cases, policy)),
        plimsoll: mean(cases, Policy::Plimsoll),
        best: Runs::new(best),
        last: Runs::new(last),
        random,
        annealing,
        seconds,
    }
}

/// What the last policy decided, in seconds; none where everything was kept.
fn last_policy(log: &SearchLog) -> Option<Seconds> {
    let step = log.steps.iter().rev().find(|step| step.tried.starts_with("last policy"))?;
    step.decided_seconds
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
         reach; with stochastic depth each seed has a draw of its own, and the others have the mean of the three.",
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

/// A network's subjects: one, or one for each seed's draw of stochastic depth.
fn subjects(scale: &Scale, name: &str) -> Option<Vec<Subject>> {
    let side = (name.starts_with("resnet") || name.starts_with("vgg")).then_some(32);
    let one = || scale.subject(name, side, device("gtx1080ti", false));
    if name == STOCHASTIC {
        return SEEDS.iter().map(|seed| Some(one()?.drawn(Draw { seed: *seed, step: 0 }))).collect();
    }
    Some(vec![one()?])
}

pub fn overheads(scale: &Scale) -> Table {
    let mut table = empty_table();
    let mut rows = Vec::new();
    for (name, batch) in scale.pick(&NETWORKS, 1) {
        for saved in scale.pick(&REDUCTIONS, 2) {
            let Some(subjects) = subjects(scale, name) else {
                table.note(format!("{name}: not in the zoo."));
                break;
            };
            let cases: Vec<Case> =
                subjects.into_iter().map(|subject| Case::new(subject, *batch, *saved)).collect();
            let row = row(format!("{name} ({batch})"), *saved, &cases);
            if scale.small || *name == PLOTTED {
                let names = POLICIES.iter().map(|policy| policy.name()).chain(["plimsoll", "dqn"]);
                let all = row.theirs.iter().copied().chain([row.plimsoll, row.best.median()]);
                for (name, longer) in names.zip(all) {
                    longer.iter().for_each(|longer| table.plot.add(name, 100.0 * saved, 100.0 * longer));
                }
            }
            let cell = |longer: &Option<f64>| or_dash(*longer, percent);
            let mut cells = vec![row.of.clone(), percent(*saved)];
            cells.extend(row.theirs.iter().map(cell));
            cells.extend([&row.best, &row.last, &row.random, &row.annealing].map(Runs::cell));
            cells.extend([cell(&row.plimsoll), format!("{:.1}", row.seconds)]);
            table.alone(cells);
            if let (Some(dqn), Some(ours)) = (row.best.median(), row.plimsoll) {
                let of = format!("{name}, {} saved, over dqn", percent(*saved));
                table.advantage(of, (1.0 + dqn) / (1.0 + ours));
            }
            rows.push(row);
        }
    }
    reading::read(&mut table, &rows);
    table.note(
        "Fig. 5 is not legible in the text, so no number of it stands here; what the text says of it is below.",
    );
    table.note(format!(
        "`dqn, last policy` is what its last episode, without chance, decided, before addresses. The controls \
         (`random`, `annealing`) choose among the actions of dqn, offloading and recomputing whole tensors, and \
         all three have {EVALUATIONS} evaluations."
    ));
    table.note("Not here: K-means, SuperNeurons' three modes apart, memonger with other layers.");
    table.note("`-`: the policy has no plan in that memory.");
    table
}
