//! How good is the prediction? Iteration time at batch sizes that were not profiled, predicted beside measured, and pool
//! bytes predicted beside allocated.
//!
//! A network is profiled at the five fractions of a largest batch, as `tune` does. At three batch sizes between them the
//! planner plans within a budget that keeping everything does not fit, and the plan is run. `cargo bench --bench predict [-- NETWORK]`.

mod support;

use plimsoll::args::HostPlace;
use plimsoll::study::Study;
use plimsoll::task::Setup;
use plimsoll::tuner::Policy;
use plimsoll::tuner::model::Model;
use plimsoll::verbs::profile::measure;
use support::{budget, in_full, in_turn, machine, middle, task, trainer, wanted};

/// Network, image side, largest batch.
const CASES: [(&str, u32, u64); 4] =
    [("resnet18", 64, 24), ("vgg16", 32, 48), ("alexnet", 64, 48), ("resnet20", 32, 96)];

/// Batch sizes that are not profiled, as shares of the largest in 24ths; the fractions are 3, 6, 12, 16 and 24.
const BETWEEN: [u64; 3] = [9, 14, 20];

/// How far the budget lies from the floor, below which no plan fits, towards what keeping everything takes, at the largest
/// batch.
const BUDGET: f64 = 0.6;

fn main() {
    let (cases, rounds): (&[_], _) = if in_full() { (&CASES, 15) } else { (&[("resnet20", 8, 24)], 3) };
    let mut offs = Vec::new();
    for (number, (network, side, largest)) in cases.iter().filter(|case| wanted(case.0)).enumerate() {
        let setup = Setup::cpu(Some(1), None, &HostPlace::Memory);
        let task = task(network, *side, setup);
        if number == 0 {
            println!("{}\n", machine(&task));
            println!(
                "| network | image | batch | predicted | measured | spread | off | pool predicted | allocated |"
            );
            println!("|---|---|---|---|---|---|---|---|---|");
        }
        let budget = budget(&task, *largest, BUDGET);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let study = Study::open(Some(folder.path()), &task.network.spec).expect("a study");
        let profile = measure(&task, budget, 1..=*largest, &study, Some(&[]), true)
            .expect("the network can be measured");
        let model = Model::fit(&profile).expect("the profile is whole");
        for share in BETWEEN {
            let batch = largest * share / 24;
            let mut trace = task.trace(batch).expect("the network lowers");
            model.fill(&mut trace).expect("every op was measured");
            let plan =
                task.plan(&trace, Policy::Plimsoll, budget, model.link()).expect("a smaller batch fits");
            let mut trainers = [trainer(&task, batch, &plan.schedule)];
            let measured = &in_turn(&task, &mut trainers, rounds)[0];
            let (median, spread) = middle(measured);
            let off = plan.makespan / median - 1.0;
            let allocated = trainers[0].layout().pool;
            println!(
                "| {network} | {side} | {batch} | {} | {median} | {:.1} % | {:+.1} % | {} | {} |",
                plan.makespan,
                spread * 100.0,
                off * 100.0,
                plan.schedule.pool_bytes.0,
                allocated.0
            );
            assert_eq!(plan.schedule.pool_bytes, allocated, "pool bytes are predicted exactly");
            offs.push(off.abs());
        }
    }
    offs.sort_by(f64::total_cmp);
    let worst = offs.last().copied().unwrap_or_default();
    println!(
        "\nmedian off {:.1} %, worst {:.1} %, {} cases",
        offs[offs.len() / 2] * 100.0,
        worst * 100.0,
        offs.len()
    );
}
