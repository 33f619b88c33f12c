//! For any swapping and recomputing, any number of threads and any late stream: after 20 iterations the parameters, the
//! optimizer state and the running statistics are bit for bit those of keeping everything, in f32 and in bf16.

use crate::support::{advance, drawn, everything, keep, naive, trainer, trainer_by, training_in, zoo};
use plimsoll_ir::network::Network;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Float, Optimizer};
use plimsoll_runtime::{Checkpoint, Cpu, CpuOptions};
use plimsoll_testing::random_schedule;

const ITERATIONS: u64 = 20;

fn outcome(network: &Network, options: CpuOptions, scheduler: Scheduler) -> Checkpoint {
    let mut trainer = trainer(network, 8, options, scheduler).expect("the schedule is valid");
    advance(&mut trainer, ITERATIONS).expect("20 iterations run");
    trainer.checkpoint().expect("the device can be read")
}

type Scheduler<'a> = &'a dyn Fn(&Trace) -> Schedule;

fn check(network: &Network, schedulers: &[(&str, Scheduler)]) {
    for (feature_maps, threads) in [Float::F32, Float::Bf16].into_iter().flat_map(|of| [(of, 1), (of, 2)]) {
        let plain = CpuOptions { threads, feature_maps, ..CpuOptions::default() };
        let expected = outcome(network, plain.clone(), &keep);
        for (name, scheduler) in schedulers {
            let found = outcome(network, CpuOptions { poison: true, ..plain.clone() }, scheduler);
            assert_eq!(found, expected, "{name}, {threads} threads, {feature_maps:?}, poisoned");
            let late = CpuOptions { poison: true, delays: Some(17), ..plain.clone() };
            let found = outcome(network, late, scheduler);
            assert_eq!(found, expected, "{name}, {threads} threads, {feature_maps:?}, poisoned and late");
        }
    }
}

#[test]
fn a_network_of_every_kind_of_layer_trains_to_the_same_bits() {
    check(
        &everything(),
        &[
            ("keep", &keep),
            ("naive", &naive),
            ("random 1", &|t| random_schedule(t, 1)),
            ("random 2", &|t| random_schedule(t, 2)),
            ("random 3", &|t| random_schedule(t, 3)),
            ("random 4", &|t| random_schedule(t, 4)),
        ],
    );
}

/// Including both moments of every parameter.
#[test]
fn a_network_of_every_kind_of_layer_trains_to_the_same_bits_by_adamw() {
    let network = everything();
    let outcome = |options: CpuOptions, scheduler: Scheduler| {
        let trainer = trainer_by(Optimizer::Adamw, &network, 8, options, scheduler);
        let mut trainer = trainer.expect("the schedule is valid");
        advance(&mut trainer, ITERATIONS).expect("20 iterations run");
        trainer.checkpoint().expect("the device can be read")
    };
    for (feature_maps, threads) in [(Float::F32, 1), (Float::F32, 2), (Float::Bf16, 2)] {
        let plain = CpuOptions { threads, feature_maps, ..CpuOptions::default() };
        let expected = outcome(plain.clone(), &keep);
        let states = expected.names().filter(|name| name.contains("-moment/")).count();
        assert_eq!(states, 2 * expected.names().filter(|name| name.starts_with("parameter/")).count());
        let schedulers: [Scheduler; 3] = [&naive, &|t| random_schedule(t, 1), &|t| random_schedule(t, 2)];
        for scheduler in schedulers {
            let late = CpuOptions { poison: true, delays: Some(17), ..plain.clone() };
            assert_eq!(outcome(late, scheduler), expected, "{threads} threads, {feature_maps:?}");
        }
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
    check(&zoo("resnet20"), &[("naive", &naive), ("random", &|t| random_schedule(t, 5))]);
}
