//! What the benches share: a size that fits `cargo test`, a task on synthetic data, schedules run in turn, medians.

use plimsoll::args::{Image, NetworkArgs};
use plimsoll::ir::network::NetworkSpec;
use plimsoll::ir::schedule::Schedule;
use plimsoll::ir::{Bytes, Seconds};
use plimsoll::networks::Mode;
use plimsoll::profiler::centre;
use plimsoll::runtime::{LearningRateSchedule, Trainer, TrainingPlan};
use plimsoll::task::{Setup, Task, open_data};

/// `cargo bench` measures in full; `cargo test` only makes sure that the bench still runs.
pub fn in_full() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Whether a network is asked for: every one where none is named on the command line.
pub fn wanted(network: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).peekable();
    named.peek().is_none() || named.any(|name| name == network)
}

/// A network for square images of `side` pixels, on synthetic data of 10 classes.
pub fn task(network: &str, side: u32, setup: Setup) -> Task {
    let image = Some(Image([side; 2]));
    let args = NetworkArgs { network: network.to_owned(), image, channels: Some(3), classes: Some(10) };
    let data = open_data(&"synthetic:512".parse().expect("a data source"), &args).expect("synthetic data");
    let spec = NetworkSpec { name: network.to_owned(), image: [side; 2], channels: 3, classes: 10 };
    Task::of_spec(&spec, data, setup).expect("a network of the zoo")
}

/// A trainer of one schedule that learns nothing: its rate is 0.
pub fn trainer(task: &Task, batch: u64, schedule: &Schedule) -> Trainer {
    let program = task.program(batch, Mode::Train).expect("the network lowers");
    let (executor, mut loaded) = task.executor(&[(&program, schedule)]).expect("the machine has the memory");
    let rate = LearningRateSchedule::constant(0.0);
    let network = task.network.spec.clone();
    let plan = TrainingPlan { network, batch, seed: 1, rate, momentum: 0.9, weight_decay: 0.0 };
    Trainer::new(executor, loaded.remove(0), None, plan).expect("the plan has the program's batch")
}

/// Iterations of several trainers in turn, `rounds` of each after a warm-up: the seconds of each. Taking turns lets a
/// drift of the machine fall on all of them alike.
pub fn in_turn(task: &Task, trainers: &mut [Trainer], rounds: u64) -> Vec<Vec<Seconds>> {
    let mut seconds = vec![Vec::new(); trainers.len()];
    for round in 1..=rounds + 2 {
        for (trainer, seconds) in trainers.iter_mut().zip(&mut seconds) {
            let mut observe = |seen: &plimsoll::runtime::Observation| {
                if round > 2 {
                    seconds.push(seen.seconds);
                }
            };
            trainer.train(&*task.data.train, round, None, &mut observe, &|| false).expect("training runs");
        }
    }
    seconds
}

/// Median, and the median absolute deviation as a share of it.
pub fn middle(seconds: &[Seconds]) -> (Seconds, f64) {
    let centre = centre(seconds).expect("there are samples");
    (centre.median, centre.deviation / centre.median)
}

/// What keeping everything takes.
pub fn peak(task: &Task, batch: u64) -> Bytes {
    task.trace(batch).expect("the network lowers").memory().peak().map_or(Bytes::ZERO, |(_, bytes)| bytes)
}

/// A budget between the floor, below which no plan fits (0), and what keeping everything takes (1).
pub fn budget(task: &Task, batch: u64, share: f64) -> Bytes {
    let memory = task.trace(batch).expect("the network lowers").memory();
    let (_, floor) = memory.floor().expect("there are ops");
    floor + Bytes(((peak(task, batch) - floor).0 as f64 * share) as u64)
}

/// Processor, threads and commit, for the head of a table.
pub fn machine(task: &Task) -> String {
    let facts = task.setup.device().facts();
    format!(
        "{}, {} compute thread(s), plimsoll {}",
        facts.system,
        facts.threads,
        plimsoll::verbs::doctor::version()
    )
}
