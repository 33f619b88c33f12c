//! Iterations that are fed as a trainer's are: each trains on the input that was given two iterations earlier.

use crate::support::{everything, keep, lowered, naive, plan, training_in};
use plimsoll_ir::{Bytes, Float, Optimizer};
use plimsoll_networks::Mode;
use plimsoll_runtime::data::digits;
use plimsoll_runtime::{Cpu, CpuOptions, Executor, Loaded, MemoryLayout, Trainer};

const BATCH: u64 = 4;

/// An executor with drawn parameters that never change: the learning rate is 0.
fn drawn(feature_maps: Float, swapped: bool) -> (Executor, Loaded) {
    let network = everything();
    let program = training_in(feature_maps, &network, BATCH);
    let schedule = if swapped { naive(&program.trace) } else { keep(&program.trace) };
    let layout = MemoryLayout::of(&program, &schedule).keeping_state(&program).feeding(&program);
    let device = Box::new(Cpu::new(CpuOptions { feature_maps, ..CpuOptions::default() }));
    let mut executor = Executor::new(device, layout).expect("it is small");
    let loaded = executor.load_keeping_state(&program, &schedule, None).expect("the schedule is valid");
    let trainer = Trainer::new(executor, loaded, None, plan(&network, BATCH)).expect("the plan fits");
    trainer.into_parts()
}

/// A different input for each number.
fn input(number: u64) -> (Vec<u8>, Vec<u8>) {
    let pixel = |i: u64| ((i * (number + 3)) % 17) as f32 / 8.0 - 1.0;
    let images = (0..BATCH * 64).flat_map(|i| pixel(i).to_le_bytes()).collect();
    let labels = (0..BATCH).flat_map(|i| (((i * (number + 1)) % 10) as i32).to_le_bytes()).collect();
    (images, labels)
}

fn loss(executor: &mut Executor, loaded: &Loaded) -> u32 {
    let mut metrics = [0; 12];
    executor.read_region(loaded.metrics(), &mut metrics).expect("the device can be read");
    u32::from_le_bytes([metrics[0], metrics[1], metrics[2], metrics[3]])
}

#[test]
fn an_input_is_that_of_the_iteration_after_the_next() {
    for (feature_maps, swapped) in [(Float::F32, false), (Float::F32, true), (Float::Bf16, true)] {
        let written = |number: u64| {
            let (mut executor, loaded) = drawn(feature_maps, swapped);
            let (images, labels) = input(number);
            executor.write_images(&loaded, &images).expect("they fit");
            executor.write_labels(&loaded, &labels).expect("they fit");
            executor.run(&loaded).expect("an iteration runs");
            loss(&mut executor, &loaded)
        };
        let (mut executor, loaded) = drawn(feature_maps, swapped);
        let (images, labels) = input(0);
        executor.write_images(&loaded, &images).expect("they fit");
        executor.write_labels(&loaded, &labels).expect("they fit");
        let fed = (0..6).map(|iteration| {
            let (images, labels) = input(iteration + 1);
            executor.run_feeding(&loaded, iteration, &images, &labels).expect("an iteration runs");
            loss(&mut executor, &loaded)
        });
        let fed: Vec<u32> = fed.collect();
        let expected = [0, 1, 1, 2, 3, 4].map(written);
        assert_eq!(fed, expected, "{feature_maps:?}, swapped: {swapped}");
        assert_ne!(expected[1], expected[3], "inputs differ");
    }
}

#[test]
fn an_input_that_is_too_long_is_refused_and_the_iteration_ends() {
    let (mut executor, loaded) = drawn(Float::F32, false);
    let (images, labels) = input(0);
    let long = vec![0; 1 << 20];
    let refused = executor.run_feeding(&loaded, 0, &long, &labels).expect_err("it is longer");
    assert!(refused.to_string().contains("images"), "{refused}");
    executor.run_feeding(&loaded, 0, &images, &labels).expect("an iteration runs");
    let refused = executor.run_feeding(&loaded, 1, &images, &long).expect_err("they are more");
    assert!(refused.to_string().contains("labels"), "{refused}");
    executor.run_feeding(&loaded, 2, &images, &labels).expect("the device goes on");
}

/// A trainer whose state is not copied, with or without slots for inputs.
fn trainer(feature_maps: Float, swapped: bool, slots: bool) -> Trainer {
    let network = everything();
    let scheduler = if swapped { naive } else { keep };
    let program = training_in(feature_maps, &network, BATCH);
    let evaluation = lowered(Optimizer::Sgd, &network, BATCH, Mode::Evaluate, feature_maps);
    let [schedule, evaluated] = [&program, &evaluation].map(|program| scheduler(&program.trace));
    let layout = MemoryLayout::of(&program, &schedule).union(MemoryLayout::of(&evaluation, &evaluated));
    assert_eq!(layout.feeding(&evaluation).input, Bytes::ZERO, "it trains nothing");
    let layout = if slots { layout.feeding(&program) } else { layout };
    let device = Box::new(Cpu::new(CpuOptions { feature_maps, ..CpuOptions::default() }));
    let mut executor = Executor::new(device, layout).expect("it is small");
    let loaded = executor.load(&program, &schedule).expect("the schedule is valid");
    let evaluation = executor.load(&evaluation, &evaluated).expect("the schedule is valid");
    Trainer::new(executor, loaded, Some(evaluation), plan(&network, BATCH)).expect("the plan fits")
}

/// Epochs end in between; trainings pause, are evaluated and continue from checkpoints.
#[test]
fn inputs_from_slots_change_no_bit() {
    let data = digits().test;
    let path = std::path::Path::new("a state");
    for (feature_maps, swapped) in [(Float::F32, false), (Float::F32, true), (Float::Bf16, true)] {
        let trained = |slots: bool| {
            let mut trainer = trainer(feature_maps, swapped, slots);
            let per_epoch = trainer.iterations_per_epoch(data.len());
            let train = |trainer: &mut Trainer, until: u64| {
                trainer.train(&*data, until, &mut |_| {}, &|| false).expect("it trains");
            };
            train(&mut trainer, 3);
            train(&mut trainer, 5);
            let evaluated = trainer.evaluate(&*data).expect("it evaluates");
            train(&mut trainer, per_epoch - 1);
            trainer.train_timed(&*data).expect("it trains");
            let kept = trainer.checkpoint().expect("it can be read");
            train(&mut trainer, per_epoch + 4);
            let whole = trainer.checkpoint().expect("it can be read");
            trainer.resume(&kept, path).expect("it is of this training");
            train(&mut trainer, per_epoch + 4);
            assert!(trainer.checkpoint().expect("it can be read") == whole, "slots: {slots}");
            (evaluated, whole)
        };
        assert!(trained(true) == trained(false), "{feature_maps:?}, swapped: {swapped}");
    }
}
