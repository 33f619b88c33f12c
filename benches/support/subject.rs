//! Subject of the benches: a network on synthetic data, and a trainer for it that learns nothing.

use plimsoll::ir::UpdateRule;
use plimsoll::ir::schedule::Schedule;
use plimsoll::networks::Mode;
use plimsoll::runtime::{LearningRateSchedule, Trainer, TrainingPlan};
use plimsoll::study::data::DataSource;
use plimsoll::study::request::NetworkRequest;
use plimsoll::study::{NetworkWorkload, Setup};

/// Returns a network for square images of `side` pixels, on synthetic data of 10 classes.
pub fn task(network: &str, side: u32, setup: Setup) -> NetworkWorkload {
    let zoo = NetworkRequest::zoo(network);
    let request = NetworkRequest { image: Some([side; 2]), channels: Some(3), classes: Some(10), ..zoo };
    NetworkWorkload::new(&request, &DataSource::Synthetic(512), setup).expect("a network of the zoo")
}

/// Returns a trainer of one schedule that learns nothing: its rate is 0.
pub fn trainer(task: &NetworkWorkload, batch: u64, schedule: &Schedule) -> Trainer {
    trainer_at(task, batch, schedule, 0.0)
}

/// Returns a trainer of one schedule at a constant learning rate.
pub fn trainer_at(task: &NetworkWorkload, batch: u64, schedule: &Schedule, rate: f64) -> Trainer {
    let program = task.program(batch, Mode::Train).expect("the network lowers");
    let (executor, mut loaded) = task.executor(&[(&program, schedule)]).expect("the machine has the memory");
    let plan = TrainingPlan {
        network: task.network.spec.clone(),
        batch,
        virtual_workers: 1,
        seed: 1,
        rate: LearningRateSchedule::constant(rate),
        update: UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.0 },
        weights: None,
    };
    Trainer::new(executor, loaded.remove(0), None, plan).expect("the plan has the program's batch")
}
