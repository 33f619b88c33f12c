//! DQN (Chen, "GPU memory management for neural networks using deep Q-network") on a GTX 1080 Ti: overhead over memory
//! reduction.
//!
//! The paper's policy is compared with the systems of the paper's own comparison, SuperNeurons in its three modes, and two
//! controls: searches over the policy's own actions that learn nothing, with as many evaluations. Policy and controls run with
//! three seeds; with stochastic depth each seed has a different draw. K-means is no network (`kmeans.rs`). The notes about the
//! rows are worked out from them (`reading.rs`).

mod kmeans;
mod reading;

use crate::Clock;
use crate::plot::Plot;
use crate::subjects::{EVALUATIONS as OURS, Scale, device, floor, peak};
use crate::table::{Table, cells, note, or_dash, percent};
use crate::vdnn::mean;
use plimsoll::ir::check::check;
use plimsoll::ir::network::{Layer, Network};
use plimsoll::ir::philox::{philox4x32, unit_f32};
use plimsoll::ir::search_log::SearchLog;
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, LayerId, Seconds};
use plimsoll::tuner::model::devices::Modelled;
use plimsoll::tuner::policies::papers::dqn::Control;
use plimsoll::tuner::{Allow, Limits, Outcome, PlanRequest, Policy, plan, plan_by_control, plan_with_log};
use std::collections::BTreeMap;

/// Workload and batch: networks on CIFAR-10's images, and points of K-means. The paper names ResNet and VGG of two depths each,
/// and no batch.
const WORKLOADS: [(&str, u64); 8] = [
    ("resnet56", 256),
    ("resnet110", 256),
    ("vgg16", 1024),
    ("vgg116", 256),
    ("unet", 8),
    (LSTM, 64),
    (STOCHASTIC, 256),
    (KMEANS, 1 << 23),
];

/// Network with stochastic depth.
const STOCHASTIC: &str = "resnet-sd110";

/// Recurrent network.
const LSTM: &str = "lstm";

/// Workload that is no network.
const KMEANS: &str = "kmeans";

/// Saved shares of the memory that keeps everything, resident bytes excluded.
const REDUCTIONS: [f64; 6] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7];

/// Network of the plot.
const PLOTTED: &str = "resnet110";

/// Systems of the paper's comparison: name, policy, and its means.
const SYSTEMS: [(&str, Policy, Allow); 5] = [
    ("memonger", Policy::Memonger { searched: true }, Allow::ALL),
    ("superneurons, recomputing", Policy::SuperNeurons, Allow { swap: false, ..Allow::ALL }),
    ("superneurons, swapping", Policy::SuperNeurons, Allow { recompute: false, ..Allow::ALL }),
    ("superneurons, both", Policy::SuperNeurons, Allow::ALL),
    ("tflms", Policy::Tflms, Allow::ALL),
];

/// Evaluations of the policy, and of each control: fewer than its default, as each row has nine such searches.
const EVALUATIONS: u64 = 2000;

const SEEDS: [u64; 3] = [1, 2, 3];

/// Extra time over keeping everything, as a share, of one search with each seed that has a plan, the shortest first.
struct Runs(Vec<f64>);

impl Runs {
    fn new(mut longer: Vec<f64>) -> Runs {
        longer.sort_by(f64::total_cmp);
        Runs(longer)
    }

    fn median(&self) -> Option<f64> {
        self.0.get(self.0.len() / 2).copied()
    }

    /// Formats the median, and the range over the seeds.
    fn cell(&self) -> String {
        match (self.0.first(), self.median(), self.0.last()) {
            (Some(least), Some(median), Some(most)) => {
                format!("{} ({} to {})", percent(median), percent(*least), percent(*most))
            }
            _ => "-".to_owned(),
        }
    }
}

/// A workload at one reduction. All overheads are shares of the time of keeping everything; `None` if there is no plan.
struct Row {
    /// Workload and batch.
    of: String,
    saved: f64,
    /// Overhead of each of `SYSTEMS`; for several draws the mean.
    theirs: [Option<f64>; SYSTEMS.len()],
    plimsoll: Option<f64>,
    best: Runs,
    last: Runs,
    random: Runs,
    annealing: Runs,
    /// Processor seconds of planning with the policy, training included: the mean of the seeds.
    seconds: f64,
}

/// A trace, and its memory.
struct Case {
    trace: Trace,
    device: Modelled,
    budget: Bytes,
    small: bool,
}

impl Case {
    fn new(trace: Trace, device: Modelled, saved: f64, small: bool) -> Case {
        let resident = trace.resident_bytes;
        let moving = (peak(&trace) - resident).0 as f64;
        let budget = resident + Bytes((moving * (1.0 - saved)) as u64);
        Case { trace, device, budget, small }
    }

    /// Returns the share of the memory that a plan would save if it held no more than the largest op needs.
    fn most_saved(&self) -> f64 {
        let moving = |all: Bytes| (all - self.trace.resident_bytes).0 as f64;
        1.0 - moving(floor(&self.trace)) / moving(peak(&self.trace))
    }

    fn request(&self, policy: Policy, evaluations: u64) -> PlanRequest<'static> {
        let evaluations = Some(if self.small { evaluations / 10 } else { evaluations });
        let limits = Limits { evaluations, expired: None };
        PlanRequest { limits, ..PlanRequest::new(self.budget, self.device.link(), policy) }
    }

    /// Returns the extra time over keeping everything, as a share.
    fn longer(&self, makespan: Seconds) -> f64 {
        makespan / self.trace.fastest_seconds() - 1.0
    }

    fn policy(&self, policy: Policy, allow: Allow) -> Option<f64> {
        let request = PlanRequest { allow, ..self.request(policy, OURS) };
        self.planned(&plan(&self.trace, &request).expect("a sound request"))
    }

    /// Returns the overhead of a valid plan.
    fn planned(&self, outcome: &Outcome) -> Option<f64> {
        let plan = outcome.plan()?;
        check(&self.trace, &plan.schedule).expect("a schedule that the planner hands out is valid");
        Some(self.longer(plan.makespan))
    }
}

/// Returns the mean over draws, if there is a plan for each.
fn mean_of(cases: &[Case], policy: Policy, allow: Allow) -> Option<f64> {
    let all: Option<Vec<f64>> = cases.iter().map(|case| case.policy(policy, allow)).collect();
    all.map(|all| mean(&all))
}

/// Makes a row from one case, or from a case for each seed.
fn row(of: String, saved: f64, cases: &[Case]) -> Row {
    let (mut best, mut last, mut seconds) = (Vec::new(), Vec::new(), 0.0);
    let mut controls = [Vec::new(), Vec::new()];
    for (seed, case) in SEEDS.into_iter().zip(cases.iter().cycle()) {
        let request = PlanRequest { seed, ..case.request(Policy::Dqn, EVALUATIONS) };
        let start = Clock::now();
        let (outcome, log) = plan_with_log(&case.trace, &request).expect("a sound request");
        seconds += start.seconds() / SEEDS.len() as f64;
        best.extend(case.planned(&outcome));
        last.extend(last_policy(&log).map(|made| case.longer(made)).or(case.planned(&outcome)));
        for (made, control) in controls.iter_mut().zip([Control::Random, Control::Annealing]) {
            let (outcome, _) = plan_by_control(&case.trace, &request, control).expect("a sound request");
            made.extend(case.planned(&outcome));
        }
    }
    let theirs = SYSTEMS.map(|(_, policy, allow)| mean_of(cases, policy, allow));
    let plimsoll = mean_of(cases, Policy::Plimsoll, Allow::ALL);
    let [random, annealing] = controls.map(Runs::new);
    Row {
        of,
        saved,
        theirs,
        plimsoll,
        best: Runs::new(best),
        last: Runs::new(last),
        random,
        annealing,
        seconds,
    }
}

/// Returns the makespan of the last policy, in seconds; `None` if everything was kept.
fn last_policy(log: &SearchLog) -> Option<Seconds> {
    let step = log.steps.iter().rev().find(|step| step.tried.starts_with("last policy"))?;
    step.decided_seconds
}

/// Returns the table with its columns, and no row yet.
fn empty_table() -> Table {
    let title = "Overhead over memory reduction, ResNet-110 at batch 256, GTX 1080 Ti";
    let (x, y) = ("memory saved of what is not resident, %", "% longer than keeping everything");
    let plot = Plot::new(title, x, y);
    let systems = SYSTEMS.map(|system| system.0).join(" | ");
    let own = "dqn, best plan | dqn, last policy | random | annealing | plimsoll | dqn, seconds";
    Table::new(
        "DQN §5.1, Fig. 5: NVIDIA GTX 1080 Ti, CIFAR-10's images. Time over keeping everything, within the peak less what is \
         saved of what is not resident: none of these moves parameters. Medians of three seeds, and from where to where they \
         reach; with stochastic depth each seed has a draw of its own, and the others have the mean of the three.",
        &format!("workload (batch) | saved | {systems} | {own}"),
        plot,
    )
}

/// Removes from a residual network the blocks that one iteration of stochastic depth drops (Huang et al. 2016): the last with
/// probability 1/2, those before it with linearly less. Blocks that change the shape stay.
fn drop_blocks(network: &mut Network, seed: u64) {
    let block_of = |name: &str| Some(name.strip_prefix("layer")?.rsplit_once('.')?.0.to_owned());
    let mut blocks: Vec<String> = Vec::new();
    for layer in &network.layers {
        let block = block_of(&layer.name).map(|block| block.trim_end_matches(".downsample").to_owned());
        blocks.extend(block.filter(|block| !blocks.contains(block)));
    }
    let dropped = |number: usize| {
        let probability = 0.5 * (number + 1) as f32 / blocks.len() as f32;
        unit_f32(philox4x32(seed, [number as u32, 0, 0, 0])[0]) < probability
    };
    let changes_shape = |block: &str| {
        network.layers.iter().any(|layer| layer.name.starts_with(&format!("layer{block}.downsample")))
    };
    let gone: Vec<&String> = blocks
        .iter()
        .enumerate()
        .filter(|(number, block)| dropped(*number) && !changes_shape(block))
        .map(|(_, block)| block)
        .collect();
    let (mut kept, mut places) = (Vec::new(), Vec::<LayerId>::new());
    for layer in &network.layers {
        let inputs: Vec<LayerId> = layer.inputs.iter().map(|input| places[input.index()]).collect();
        if block_of(&layer.name).is_some_and(|block| gone.contains(&&block)) {
            // Nothing but the block's last layer is read from outside, in whose place comes what its first layer reads.
            places.push(inputs[0]);
            continue;
        }
        places.push(LayerId(kept.len() as u32));
        kept.push(Layer { inputs, ..layer.clone() });
    }
    network.layers = kept;
}

/// Returns a workload's cases: one, or one for each seed's draw of stochastic depth.
fn cases(scale: &Scale, name: &str, batch: u64, saved: f64) -> Vec<Case> {
    let device = device("gtx1080ti", false);
    let case = |trace| Case::new(trace, device, saved, scale.small);
    if name == KMEANS {
        let points = if scale.small { kmeans::FEW } else { batch };
        return vec![case(kmeans::trace(points, &device))];
    }
    let side = (name.starts_with("resnet") || name.starts_with("vgg")).then_some(32);
    let subject = || scale.subject(if name == STOCHASTIC { "resnet110" } else { name }, side, device);
    if name == STOCHASTIC {
        return SEEDS
            .map(|seed| case(subject().changed(|network| drop_blocks(network, seed)).trace(batch)))
            .into();
    }
    vec![case(subject().trace(batch))]
}

pub fn overheads(scale: &Scale) -> Table {
    let mut table = empty_table();
    let mut rows = Vec::new();
    let mut floors = BTreeMap::new();
    let workloads = if scale.small { &[WORKLOADS[0], WORKLOADS[7]] } else { &WORKLOADS[..] };
    for (name, batch) in workloads {
        for saved in scale.pick(&REDUCTIONS, 2) {
            let cases = cases(scale, name, *batch, *saved);
            if let Some(case) = cases.iter().find(|case| case.budget < floor(&case.trace)) {
                floors.insert(format!("{name} ({batch})"), percent(case.most_saved()));
            }
            let row = row(format!("{name} ({batch})"), *saved, &cases);
            add(&mut table, &row, scale.small || *name == PLOTTED);
            rows.push(row);
        }
    }
    reading::read(&mut table, &rows);
    note!(table;
        "Fig. 5 is not legible in the text, so no number of it stands here; what the text says of it is below.");
    note!(table;
        "`dqn, last policy` is what its last episode, without chance, decided, before addresses. The controls (`random`, \
         `annealing`) choose among the actions of dqn, offloading and recomputing whole tensors, and all three have \
         {EVALUATIONS} evaluations. `dqn, seconds` are of the policy's thread, processor time, training included.");
    note!(table;
        "memonger is the fastest plan that fits of its search over budgets: segments of up to b bytes, for every b of a \
         grid in steps of the square root of 2. superneurons has the three modes in which the paper runs it; the paper \
         could not run the recomputing one on ResNet.");
    table.notes.push(kmeans::words(WORKLOADS[WORKLOADS.len() - 1].1));
    note!(table;
        "Why the others have plans with stochastic depth and superneurons has some on LSTM: a draw is a trace of its own \
         here, known before it is planned, and an LSTM is unrolled into ops, where the paper's is a single call of cuDNN.");
    note!(table; "`-`: the policy has no plan in that memory.");
    for (of, most) in floors {
        note!(table; "{of}: no plan saves more than {most}; the rest is what a single op reads and writes.");
    }
    table
}

/// Adds a row, and its points on the plot.
fn add(table: &mut Table, row: &Row, plotted: bool) {
    if plotted {
        let names = SYSTEMS.iter().map(|system| system.0).chain(["plimsoll", "dqn"]);
        let all = row.theirs.iter().copied().chain([row.plimsoll, row.best.median()]);
        for (name, longer) in names.zip(all) {
            table.plot.add(name, 100.0 * row.saved, longer.map(|longer| 100.0 * longer));
        }
    }
    let mut cells = cells![row.of, percent(row.saved)];
    cells.extend(row.theirs.map(|longer| or_dash(longer, percent)));
    cells.extend([&row.best, &row.last, &row.random, &row.annealing].map(Runs::cell));
    cells.extend(cells![row.plimsoll.map(percent), format!("{:.1}", row.seconds)]);
    table.alone(cells);
    if let (Some(dqn), Some(ours)) = (row.best.median(), row.plimsoll) {
        table.advantage(format!("{}, over dqn", row.name()), (1.0 + dqn) / (1.0 + ours));
    }
}
