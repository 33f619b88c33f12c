//! For any swapping and recomputing, any number of threads and any late stream: after 20 iterations the parameters, the
//! optimizer state and the running statistics are bit for bit those of keeping everything, in f32 and in bf16.

use crate::support::{advance, drawn, everything, keep, naive, trainer_by, training_in, zoo};
use plimsoll_ir::network::Network;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Float, Optimizer};
use plimsoll_runtime::{Checkpoint, Cpu, CpuOptions};
use plimsoll_testing::random_schedule;

const ITERATIONS: u64 = 20;

type Scheduler<'a> = &'a dyn Fn(&Trace) -> Schedule;

fn outcome(optimizer: Optimizer, network: &Network, options: CpuOptions, scheduler: Scheduler) -> Checkpoint {
    let trainer = trainer_by(optimizer, network, 8, options, scheduler);
    let mut trainer = trainer.expect("the schedule is valid");
    advance(&mut trainer, ITERATIONS).expect("20 iterations run");
    trainer.checkpoint().expect("the device can be read")
}

/// Trains under these schedules, on poisoned memory and with late streams; returns the state that all have, for each format of
/// activations and number of threads.
fn check(optimizer: Optimizer, network: &Network, schedulers: &[Scheduler]) -> Vec<Checkpoint> {
    let ways = [Float::F32, Float::Bf16].into_iter().flat_map(|of| [(of, 1), (of, 2)]);
    let checked = ways.map(|(feature_maps, threads)| {
        let plain = CpuOptions { threads, feature_maps, ..CpuOptions::default() };
        let expected = outcome(optimizer, network, plain.clone(), &keep);
        for (n, scheduler) in schedulers.iter().enumerate() {
            for delays in [None, Some(17)] {
                let found = CpuOptions { poison: true, delays, ..plain.clone() };
                let found = outcome(optimizer, network, found, scheduler);
                assert_eq!(found, expected, "schedule {n}, {threads} threads, {feature_maps:?}, {delays:?}");
            }
        }
        expected
    });
    checked.collect()
}

#[test]
fn a_network_of_every_kind_of_layer_trains_to_the_same_bits() {
    let random: [Scheduler; 4] =
        [&|t| random_schedule(t, 1), &|t| random_schedule(t, 2), &|t| random_schedule(t, 3), &|t| {
            random_schedule(t, 4)
        }];
    check(Optimizer::Sgd, &everything(), &[&[&keep as Scheduler, &naive][..], &random].concat());
}

/// Including both moments of every parameter.
#[test]
fn a_network_of_every_kind_of_layer_trains_to_the_same_bits_by_adamw() {
    for state in check(Optimizer::Adamw, &everything(), &[&naive, &|t| random_schedule(t, 1)]) {
        let states = state.names().filter(|name| name.contains("-moment/")).count();
        assert_eq!(states, 2 * state.names().filter(|name| name.starts_with("parameter/")).count());
    }
}

#[test]
fn networks_of_tokens_and_maps_train_to_the_same_bits() {
    let all = [Float::F32, Float::Bf16].into_iter().flat_map(|of| [(drawn::text(), of), (drawn::maps(), of)]);
    for (network, feature_maps) in all {
        let program = training_in(feature_maps, &network, 8);
        let trained = |schedule: &Schedule, options: CpuOptions| {
            let device = Box::new(Cpu::new(options));
            drawn::train(&network, &program, schedule, device, 8).expect("the schedule is valid")
        };
        let plain = |threads| CpuOptions { threads, feature_maps, ..CpuOptions::default() };
        let expected = trained(&keep(&program.trace), plain(1));
        for (name, values) in drawn::numbers(&expected) {
            assert!(values.iter().all(|v| v.is_finite()), "{}: `{name}` has {values:?}", network.spec.name);
        }
        assert_eq!(trained(&keep(&program.trace), plain(2)), expected, "{}", network.spec.name);
        let drawn = (0..4).map(|seed| random_schedule(&program.trace, seed));
        for (n, schedule) in (0..).zip([naive(&program.trace)].into_iter().chain(drawn)) {
            let options = CpuOptions { poison: true, delays: (n % 2 == 0).then_some(17), ..plain(1 + n % 2) };
            assert_eq!(trained(&schedule, options), expected, "{}, schedule {n}", network.spec.name);
        }
    }
}

#[test]
fn resnet20_trains_to_the_same_bits() {
    check(Optimizer::Sgd, &zoo("resnet20"), &[&naive, &|t| random_schedule(t, 5)]);
}
