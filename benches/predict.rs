//! How good is the prediction? Iteration time at batch sizes that were not profiled: predicted beside the confirming run of `tune`,
//! and that beside training; how many runs are within the stated error; and pool bytes predicted beside allocated.
//!
//! A network is profiled as `tune` does, within a budget that keeping everything does not fit at the largest batch. At two batch
//! sizes the planner's plan is run, and at one everything is kept. `cargo bench --bench predict [-- NETWORK...]`.

mod support;

use plimsoll::args::{DataArgs, HostPlace, NetworkArgs};
use plimsoll::confirming;
use plimsoll::ir::profile::Profile;
use plimsoll::ir::schedule::Schedule;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::runtime::{LearningRateSchedule, Trainer, TrainingPlan};
use plimsoll::study::Study;
use plimsoll::task::{Setup, Task};
use plimsoll::tuner::Policy;
use plimsoll::tuner::model::Model;
use plimsoll::verbs::profile::measure;
use support::{budget, in_full, in_turn, machine, middle, task, trainer, wanted};

/// Network, image side (0 for a text), largest batch.
const CASES: [(&str, u32, u64); 10] = [
    ("lstm", 0, 12),
    ("gpt-tiny", 0, 12),
    ("mobilenet_v2", 64, 12),
    ("densenet121", 32, 12),
    ("resnet18", 64, 24),
    ("vgg16", 32, 12),
    ("alexnet", 64, 48),
    ("resnet20", 32, 48),
    ("resnet34", 32, 12),
    ("googlenet", 64, 12),
];

/// Batch sizes of plans, as shares of the largest in 24ths; the fractions that are profiled are 3, 6, 12, 16 and 24.
const BETWEEN: [u64; 2] = [14, 20];

/// How far the budget lies from the floor, below which no plan fits, towards what keeping everything takes, at the largest
/// batch.
const BUDGET: f64 = 0.6;

/// What the runs of all cases came to.
#[derive(Default)]
struct Tally {
    off: Vec<f64>,
    against_training: Vec<f64>,
    within: usize,
}

fn main() {
    let (cases, rounds): (&[_], _) = if in_full() { (&CASES, 15) } else { (&[("resnet20", 8, 24)], 3) };
    let mut tally = Tally::default();
    for (number, (network, side, largest)) in cases.iter().filter(|case| wanted(case.0)).enumerate() {
        let setup = Setup::cpu(Some(1), None, &HostPlace::Memory);
        let task = if *side == 0 { text_task(network, setup) } else { task(network, *side, setup) };
        if number == 0 {
            println!("{}\n", machine(&task));
            println!(
                "| network | batch | what | predicted | stated | confirmed | off | training | confirmed / training | pool |"
            );
            println!("|---|---|---|---|---|---|---|---|---|---|");
        }
        let budget = budget(&task, *largest, BUDGET);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let study = Study::open(Some(folder.path()), &task.network.spec).expect("a study");
        let profile = measure(&task, budget, 1..=*largest, &study, Some(&[]), true)
            .expect("the network can be measured");
        let model = Model::fit(&profile).expect("the profile is whole");
        for share in BETWEEN {
            row(&task, &model, (largest * share / 24, Policy::Plimsoll), budget, rounds, &mut tally);
        }
        if let Some(batch) = kept_and_not_profiled(&task, &profile, budget, *largest) {
            row(&task, &model, (batch, Policy::Keep), budget, rounds, &mut tally);
        }
    }
    let count = tally.off.len();
    let said = |what: &str, mut offs: Vec<f64>| {
        offs.sort_by(f64::total_cmp);
        let worst = offs.last().copied().unwrap_or_default();
        println!("{what}: median {:.1} %, worst {:.1} %", offs[offs.len() / 2] * 100.0, worst * 100.0);
    };
    println!();
    said("confirming run off its prediction", tally.off);
    said("confirming run off training", tally.against_training);
    println!("within the stated error: {} of {count}", tally.within);
}

/// The largest batch that keeps everything and was not profiled.
fn kept_and_not_profiled(task: &Task, profile: &Profile, budget: Bytes, largest: u64) -> Option<u64> {
    let most = task.largest_batch(Policy::Keep, budget, largest).expect("the network lowers")?;
    let profiled = |batch: &u64| profile.batches.iter().any(|samples| samples.batch == *batch);
    (task.smallest_batch()..=most).rev().find(|batch| !profiled(batch))
}

/// Plans a batch size, runs the plan as `tune` does to confirm it and then as training does, and prints what came of it.
fn row(
    task: &Task,
    model: &Model,
    (batch, policy): (u64, Policy),
    budget: Bytes,
    rounds: u64,
    tally: &mut Tally,
) {
    let mut trace = task.trace(batch).expect("the network lowers");
    model.fill(&mut trace).expect("every op was measured");
    let plan = task.plan(&trace, policy, budget, model.link()).expect("a larger batch fits");
    let stated = model.iteration_error(batch);
    let mut confirming = trainer(task, batch, &plan.schedule);
    let allocated = confirming.layout().pool;
    assert_eq!(plan.schedule.pool_bytes, allocated, "pool bytes are predicted exactly");
    let confirmed = confirming::run(&mut confirming, &*task.data.train, &|| false).expect("the plan runs");
    drop(confirming);
    let confirmed = confirmed.iteration.median;
    let training = trained(task, batch, &plan.schedule, rounds);
    let (off, against) = (confirmed / plan.makespan - 1.0, confirmed / training - 1.0);
    println!(
        "| {} | {batch} | {} | {} | {:.1} % | {confirmed} | {:+.1} % | {training} | {:.3} | {} |",
        task.network.spec.name,
        if policy == Policy::Keep { "everything kept" } else { "plan" },
        plan.makespan,
        stated * 100.0,
        off * 100.0,
        confirmed / training,
        allocated.0
    );
    tally.within += usize::from(off.abs() <= stated);
    tally.off.push(off.abs());
    tally.against_training.push(against.abs());
}

/// The middle iteration of a training that learns.
fn trained(task: &Task, batch: u64, schedule: &Schedule, rounds: u64) -> Seconds {
    let (executor, loaded) = trainer(task, batch, schedule).into_parts();
    let rate = LearningRateSchedule::constant(0.01);
    let network = task.network.spec.clone();
    let plan = TrainingPlan { network, batch, seed: 1, rate, momentum: 0.9, weight_decay: 0.0 };
    let learns = Trainer::new(executor, loaded, None, plan).expect("the plan has the program's batch");
    middle(&in_turn(task, &mut [learns], rounds)[0]).0
}

/// A network for texts, on the text that comes with Plimsoll.
fn text_task(network: &str, setup: Setup) -> Task {
    let args =
        NetworkArgs { network: network.to_owned(), onnx: None, image: None, channels: None, classes: None };
    let data = DataArgs { data: "text".parse().expect("a data source") };
    Task::new(&args, &data, setup).expect("a network of the zoo for texts")
}
