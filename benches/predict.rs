//! Quality of the prediction. Iteration time at batch sizes that were not profiled: predicted compared with the confirming run
//! of `tune`, and that with training; how many runs are within the stated error; and pool bytes predicted and allocated.
//!
//! A network is profiled as in `tune`, within a budget that is too small to keep everything at the largest batch. At two batch
//! sizes the planner's plan is run, and at one everything is kept. With each, the largest batch that keeps everything, which
//! was profiled, is run once more: `drift` is its time now over its time when profiled, which no model can predict. At the end
//! a series of fresh trainers runs one schedule of each network: their spread is the machine's part. `cargo bench --bench
//! predict [-- NETWORK...]`.

mod support;

use plimsoll::ir::profile::{Profile, undisturbed};
use plimsoll::ir::schedule::Schedule;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::study::data::DataSource;
use plimsoll::study::device::cpu_options;
use plimsoll::study::network_workload::confirm;
use plimsoll::study::request::NetworkRequest;
use plimsoll::study::{MeasureRequest, NetworkWorkload, Setup, Study, Watch, Workload};
use plimsoll::tuner::model::Model;
use plimsoll::tuner::{Plan, Policy};
use support::subject::trainer_at;
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

/// Batch sizes of plans, in 24ths of the largest; the profiled fractions are 3, 6, 12, 16 and 24.
const BETWEEN: [u64; 2] = [14, 20];

/// Position of the budget between the floor (0), below which no plan fits, and the memory that keeps everything (1), at the
/// largest batch.
const BUDGET: f64 = 0.6;

/// Least duration of a training: other load on the machine comes and goes in seconds.
const LASTING: Seconds = Seconds(3.0);

/// Number of trainers that run the same schedule, one after the other.
const FRESH: usize = 12;

/// Results of all cases.
#[derive(Default)]
struct Tally {
    off: Vec<f64>,
    /// Error relative to the prediction for the machine's current speed.
    off_less_drift: Vec<f64>,
    against_training: Vec<f64>,
    /// Error relative to the median iteration of training.
    against_middle: Vec<f64>,
    within: usize,
    /// Network, batch, and the shortest and longest iteration of fresh trainers for one schedule.
    fresh: Vec<(String, u64, Seconds, Seconds)>,
}

fn main() {
    let (cases, rounds): (&[_], _) = if in_full() { (&CASES, 15) } else { (&[("resnet20", 8, 24)], 3) };
    let mut tally = Tally::default();
    for (number, (network, side, largest)) in cases.iter().filter(|case| wanted(case.0)).enumerate() {
        let setup = Setup::Cpu(cpu_options(Some(1), None));
        let task = if *side == 0 { text_task(network, setup) } else { task(network, *side, setup) };
        if number == 0 {
            println!("{}\n", machine(&task));
            println!(
                "| network | batch | what | predicted | stated | confirmed | off | drift | training | confirmed / \
                 training | pool |"
            );
            println!("|---|---|---|---|---|---|---|---|---|---|---|");
        }
        let budget = budget(&task, *largest, BUDGET);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let study = Study::at(folder.path());
        let request = MeasureRequest { budget, max_batch: *largest, fresh: true };
        let profile = study.measure(&task, &request, &Watch::silent()).expect("the network can be measured");
        let model = Model::fit(&profile).expect("the profile is whole");
        let case = Case { task: &task, model: &model, budget, largest: *largest, rounds };
        for share in BETWEEN {
            case.row(largest * share / 24, Policy::Plimsoll, &mut tally);
        }
        if let Some(batch) = case.kept_and_not_profiled(&profile) {
            case.row(batch, Policy::Keep, &mut tally);
            case.run_fresh(batch, &mut tally);
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
    said("confirming run off its prediction, less drift", tally.off_less_drift);
    said("confirming run off training", tally.against_training);
    said("confirming run off the median iteration of training", tally.against_middle);
    println!("within the stated error: {} of {count}", tally.within);
    println!("\none schedule in {FRESH} fresh trainers, shortest to longest:");
    for (name, batch, shortest, longest) in tally.fresh {
        println!("{name}, batch {batch}: {shortest} to {longest}, {:.2} times", longest / shortest);
    }
}

/// One network, with its model.
struct Case<'a> {
    task: &'a NetworkWorkload,
    model: &'a Model,
    budget: Bytes,
    largest: u64,
    /// Iterations of a training.
    rounds: u64,
}

impl Case<'_> {
    /// Returns the largest batch that keeps everything.
    fn keeps_all(&self) -> Option<u64> {
        self.task
            .largest_batch(Policy::Keep, self.budget, self.largest, &Watch::silent())
            .expect("the network lowers")
    }

    /// Returns the largest batch that keeps everything and was not profiled.
    fn kept_and_not_profiled(&self, profile: &Profile) -> Option<u64> {
        let profiled = |batch: &u64| profile.batches.iter().any(|samples| samples.batch == *batch);
        (self.task.smallest_batch()..=self.keeps_all()?).rev().find(|batch| !profiled(batch))
    }

    /// Returns a plan of a batch size with its predicted time.
    fn plan(&self, batch: u64, policy: Policy) -> Plan {
        let mut trace = self.task.trace(batch).expect("the network lowers");
        self.model.fill(&mut trace).expect("every op was measured");
        self.task
            .plan(&trace, policy, self.budget, self.model.link(), &Watch::silent())
            .expect("a larger batch fits")
    }

    /// Plans a batch size, runs the plan as `tune` does to confirm it and then as training does, and prints the results.
    fn row(&self, batch: u64, policy: Policy, tally: &mut Tally) {
        let plan = self.plan(batch, policy);
        let stated = self.model.iteration_error(batch);
        let mut confirming = trainer(self.task, batch, &plan.schedule);
        let allocated = confirming.layout().pool;
        assert_eq!(plan.schedule.pool_bytes, allocated, "pool bytes are predicted exactly");
        let data = &*self.task.data.train;
        let confirmed = confirm(&mut confirming, data, &|| false).expect("the plan runs").iteration;
        drop(confirming);
        let drift = self.drift();
        let [training, middle] = self.trained(batch, &plan.schedule, confirmed);
        let (off, against) = (confirmed / plan.makespan - 1.0, confirmed / training - 1.0);
        println!(
            "| {} | {batch} | {} | {} | {:.1} % | {confirmed} | {:+.1} % | {drift:.3} | {training} | {:.3} | {} |",
            self.task.network.spec.name,
            if policy == Policy::Keep { "everything kept" } else { "plan" },
            plan.makespan,
            stated * 100.0,
            off * 100.0,
            confirmed / training,
            allocated.0
        );
        tally.within += usize::from(off.abs() <= stated);
        tally.off.push(off.abs());
        tally.off_less_drift.push((confirmed / plan.makespan / drift - 1.0).abs());
        tally.against_training.push(against.abs());
        tally.against_middle.push((confirmed / middle - 1.0).abs());
    }

    /// Returns the time of the largest batch that keeps everything, over its time when profiled; 1 if there is no such batch.
    fn drift(&self) -> f64 {
        let Some(batch) = self.keeps_all() else { return 1.0 };
        let plan = self.plan(batch, Policy::Keep);
        let mut again = [trainer(self.task, batch, &plan.schedule)];
        let iterations = in_turn(self.task, &mut again, self.rounds).remove(0);
        undisturbed(iterations).expect("it ran") / plan.makespan
    }

    /// Runs one schedule in a series of fresh trainers.
    fn run_fresh(&self, batch: u64, tally: &mut Tally) {
        let plan = self.plan(batch, Policy::Keep);
        let count = if in_full() { FRESH } else { 2 };
        let run = |_| {
            let mut fresh = [trainer(self.task, batch, &plan.schedule)];
            undisturbed(in_turn(self.task, &mut fresh, self.rounds).remove(0)).expect("it ran")
        };
        let mut seconds: Vec<Seconds> = (0..count).map(run).collect();
        seconds.sort_by(|a, b| a.0.total_cmp(&b.0));
        tally.fresh.push((self.task.network.spec.name.clone(), batch, seconds[0], seconds[count - 1]));
    }

    /// Returns an iteration's seconds in a training that learns, as `train` reports them, and their median.
    fn trained(&self, batch: u64, schedule: &Schedule, iteration: Seconds) -> [Seconds; 2] {
        let learns = trainer_at(self.task, batch, schedule, 0.01);
        let rounds = if in_full() { self.rounds.max((LASTING / iteration) as u64) } else { self.rounds };
        let iterations = in_turn(self.task, &mut [learns], rounds).remove(0);
        let median = middle(&iterations).0;
        [undisturbed(iterations).expect("training ran"), median]
    }
}

/// Returns a text network, on the text that comes with Plimsoll.
fn text_task(network: &str, setup: Setup) -> NetworkWorkload {
    NetworkWorkload::new(&NetworkRequest::zoo(network), &DataSource::Text(None), setup)
        .expect("a network of the zoo for texts")
}
