//! Stochastic depth: the ops that one draw leaves give the parameters of the ops that serve every draw, iteration after
//! iteration, under schedules of their own.

use crate::support::{advance, alternatives, keep, naive, plan, spec, trainer, trainer_of};
use plimsoll_ir::network::{DropUnit, LayerKind, Network, Window};
use plimsoll_networks::{Builder, Draw, LowerOptions, lower};
use plimsoll_runtime::{Checkpoint, CpuOptions};
use std::path::Path;

/// Residual blocks of which each may be dropped; without batch normalisation, whose running statistics see what is dropped
/// where every draw is served.
fn blocks() -> Network {
    let mut b = Builder::new(&spec("blocks")).expect("the spec has no zeros");
    let window = Window::square(3, 1, 1);
    let mut made = || {
        let mut x = b.conv("stem", b.images(), 8, window, false)?;
        for i in 0..4 {
            let y = b.layer_norm(&format!("norm{i}"), x)?;
            let y = b.conv(&format!("conv{i}"), y, 8, window, true)?;
            let y = b.relu(&format!("relu{i}"), y)?;
            let drop = LayerKind::Dropout { probability: 0.4, unit: DropUnit::Batch };
            let y = b.add(&format!("drop{i}"), drop, &[y])?;
            x = b.add(&format!("sum{i}"), LayerKind::Add, &[x, y])?;
        }
        b.fully_connected("logits", x, 10)
    };
    let logits = made().expect("the shapes agree");
    b.finish(logits).expect("every layer is used")
}

#[test]
fn schedules_of_single_draws_give_what_one_for_all_draws_gives() {
    const ITERATIONS: u64 = 8;
    let network = blocks();
    let options = CpuOptions { poison: true, ..CpuOptions::default() };
    let mut all = trainer(&network, 8, options.clone(), &naive).expect("the schedule is valid");
    let mut before: Option<Checkpoint> = None;
    let mut lengths = Vec::new();
    for step in 0..ITERATIONS {
        let draw = Some(Draw { seed: plan(&network, 8).seed, step: step as u32 });
        let program = lower(
            &network,
            8,
            &LowerOptions { draw, alternatives: &alternatives, ..LowerOptions::default() },
        );
        let program = program.expect("a small network can be lowered");
        lengths.push(program.trace.ops.len());
        let schedule = if step % 2 == 0 { keep(&program.trace) } else { naive(&program.trace) };
        let mut one =
            trainer_of(&network, options.clone(), &program, &schedule, &keep).expect("the schedule is valid");
        if let Some(before) = &before {
            one.resume(before, Path::new("before")).expect("it is of the same network");
        }
        advance(&mut one, step + 1).expect("an iteration runs");
        let after = one.checkpoint().expect("the device can be read");
        advance(&mut all, step + 1).expect("an iteration runs");
        assert_eq!(after, all.checkpoint().expect("the device can be read"), "iteration {step}");
        before = Some(after);
    }
    lengths.sort_unstable();
    lengths.dedup();
    assert!(lengths.len() > 2, "the draws differ: {lengths:?}");
}
