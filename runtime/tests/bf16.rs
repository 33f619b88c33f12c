//! Training with bf16 activations: its gradients are those of f32 except for rounding, and its state has the form of f32
//! training.
//!
//! `same_bits.rs` tests that no plan changes a bit, `training.rs` that it learns; the kernels' own tests check that kernels round the results of f32
//! kernels.

use crate::support::{drawn, everything, keep, naive, trainer, training_in, zoo};
use plimsoll_ir::network::Network;
use plimsoll_ir::{Bytes, Float};
use plimsoll_runtime::{Cpu, CpuOptions, Executor, MemoryLayout};

fn options(feature_maps: Float) -> CpuOptions {
    CpuOptions { feature_maps, ..CpuOptions::default() }
}

/// Distance of the gradients of a network's parameters from those in f32, relative to their own length, by parameter. The
/// bias before a normalisation has a gradient of 0, which has no relative distance: a hundredth of the length of all
/// gradients is added to each.
fn apart(network: &Network) -> Vec<(String, f64)> {
    let [f32, bf16] = [Float::F32, Float::Bf16].map(|feature_maps| {
        let program = training_in(feature_maps, network, 16);
        let device = Box::new(Cpu::new(options(feature_maps)));
        drawn::gradients(network, &program, &keep(&program.trace), device).expect("the schedule is valid")
    });
    let length = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let all = drawn::numbers(&f32).map(|(_, values)| length(&values).powi(2)).sum::<f64>().sqrt();
    let each = drawn::numbers(&f32).zip(drawn::numbers(&bf16)).map(|((name, exact), (_, rounded))| {
        let error: Vec<f32> = exact.iter().zip(&rounded).map(|(a, b)| a - b).collect();
        (name.to_owned(), length(&error) / (length(&exact) + 0.01 * all))
    });
    each.collect()
}

/// A bf16 number is off by up to 2^-9 of itself, and about ten roundings follow one another. If a ReLU or a pooling chooses
/// differently because two numbers are close, a whole term changes: a share p of them gives an error of the root of p. A
/// term that is left out, counted twice or in the wrong place gives an error about as large as the gradient itself.
#[test]
fn gradients_are_those_of_f32_within_rounding() {
    for (network, most) in
        [(drawn::text(), 0.03), (drawn::maps(), 0.03), (zoo("mlp"), 0.1), (everything(), 0.2)]
    {
        let all = apart(&network);
        assert!(!all.is_empty());
        for (name, error) in &all {
            assert!(*error < most, "{}: the gradient of {name} is {error:.3} off", network.spec.name);
        }
        assert!(all.iter().any(|(_, error)| *error > 1e-4), "{} is rounded", network.spec.name);
    }
}

/// The state is f32, with the same names and sizes; `feeding.rs` tests that a training saved in bf16 goes on with the same
/// bits.
#[test]
fn a_checkpoint_holds_what_one_in_f32_holds() {
    let [f32, bf16] = [Float::F32, Float::Bf16].map(|feature_maps| {
        let mut trainer = trainer(&everything(), 8, options(feature_maps), &naive).expect("it is small");
        let saved = trainer.checkpoint().expect("the device can be read");
        let size = |name: &str| (name.to_owned(), saved.region(name).map(|r| r.len()));
        saved.names().map(size).collect::<Vec<_>>()
    });
    assert_eq!(f32, bf16);
}

#[test]
fn a_device_takes_only_programs_of_its_own_storage() {
    for (of_device, of_program, words) in [
        (Float::F32, Float::Bf16, "feature maps: expected those of f32, found Bf16"),
        (Float::Bf16, Float::F32, "feature maps: expected those of bf16, found F32"),
    ] {
        let program = training_in(of_program, &zoo("mlp"), 4);
        let schedule = keep(&program.trace);
        let layout = MemoryLayout::of(&program, &schedule);
        let mut executor =
            Executor::new(Box::new(Cpu::new(options(of_device))), layout).expect("it is small");
        let error = executor.load(&program, &schedule).expect_err("the device stores otherwise").to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Swapping everything moves half the bytes, except for labels, masks and statistics.
#[test]
fn transfers_move_half_the_bytes() {
    let moved = |feature_maps| {
        let program = training_in(feature_maps, &everything(), 32);
        let schedule = naive(&program.trace);
        let each = schedule.commands.iter().filter_map(|c| plimsoll_ir::schedule::moved(&program.trace, c));
        each.map(|(_, piece)| Bytes(piece.end - piece.start)).sum::<Bytes>()
    };
    let share = moved(Float::Bf16).to_f64() / moved(Float::F32).to_f64();
    assert!((0.5..0.53).contains(&share), "{share}");
}
