//! Stochastic depth: the ops that one draw leaves give the same state as the ops that serve every draw, iteration after
//! iteration, under their own schedules.

use crate::support::{advance, alternatives, keep, naive, plan, spec, trainer, trainer_of, training};
use plimsoll_ir::network::{DropUnit, LayerKind, Network, Window};
use plimsoll_ir::program::Program;
use plimsoll_networks::{Builder, Draw, LowerOptions, lower};
use plimsoll_runtime::{Checkpoint, Cpu, CpuOptions, Device, Drawn, Executor, MemoryLayout, Trainer};
use std::path::Path;

/// Residual blocks, each of which may be dropped, with the running statistics of a normalisation before and in each.
fn blocks() -> Network {
    let mut b = Builder::new(&spec("blocks")).expect("the spec has no zeros");
    let window = Window::square(3, 1, 1);
    let mut made = || {
        let mut x = b.conv("stem", b.images(), 8, window, false)?;
        for i in 0..4 {
            let y = b.layer_norm(&format!("norm{i}"), x)?;
            let y = b.conv(&format!("conv{i}"), y, 8, window, true)?;
            let y = b.batch_norm(&format!("batch{i}"), y)?;
            let y = b.relu(&format!("relu{i}"), y)?;
            let drop = LayerKind::Dropout { probability: 0.4, unit: DropUnit::Batch };
            let y = b.add(&format!("drop{i}"), drop, &[y])?;
            x = b.add(&format!("sum{i}"), LayerKind::Add, &[x, y])?;
            x = b.batch_norm(&format!("after{i}"), x)?;
        }
        b.fully_connected("logits", x, 10)
    };
    let logits = made().expect("the shapes agree");
    b.finish(logits).expect("every layer is used")
}

/// Program with the ops that a draw leaves.
fn program_of(network: &Network, step: u64) -> Program {
    let draw = Some(Draw { seed: plan(network, 8).seed, step: step as u32 });
    let options = LowerOptions { draw, alternatives: &alternatives, ..LowerOptions::default() };
    lower(network, 8, &options).expect("a small network can be lowered")
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
        let program = program_of(&network, step);
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

/// A trainer that keeps no copies of its state, with memory for the iterations of single draws.
fn plain(network: &Network, options: CpuOptions) -> Trainer {
    let program = training(network, 8);
    let [kept, schedule] = [keep(&program.trace), naive(&program.trace)];
    let layout = MemoryLayout::of(&program, &kept).union(MemoryLayout::of(&program, &schedule));
    let mut executor = Executor::new(Box::new(Cpu::new(options)), layout).expect("it is small");
    let loaded = executor.load(&program, &schedule).expect("the schedule is valid");
    Trainer::new(executor, loaded, None, plan(network, 8)).expect("it fits its plan")
}

#[test]
fn copies_of_the_state_are_of_one_schedule() {
    let network = blocks();
    let mut trainer = trainer(&network, 8, CpuOptions::default(), &naive).expect("the schedule is valid");
    let error = trainer.per_draw(Box::new(|_, _| Ok(None))).expect_err("it keeps copies");
    assert!(error.to_string().contains("copies of the state"), "{error}");
}

#[test]
fn a_trainer_of_single_draws_gives_what_one_for_all_draws_gives() {
    const ITERATIONS: u64 = 12;
    let network = blocks();
    let options = CpuOptions { poison: true, ..CpuOptions::default() };
    let mut all = plain(&network, options.clone());
    let mut single = plain(&network, options);
    let of = network.clone();
    let draws = move |step: u64, _: &dyn Device| -> Result<Drawn, String> {
        // Sometimes one program for all draws.
        let program = program_of(&of, step);
        let schedule = naive(&program.trace);
        Ok((step % 5 != 3).then_some((program, schedule)))
    };
    single.per_draw(Box::new(draws)).expect("it is a plain one");
    // Training stops and continues, at iterations other than those that were made ahead.
    for until in [1, 2, 7, ITERATIONS] {
        for trainer in [&mut all, &mut single] {
            advance(trainer, until).expect("iterations run");
        }
        let [all, single] = [&mut all, &mut single].map(Trainer::checkpoint);
        assert_eq!(single.expect("it can be read"), all.expect("it can be read"), "{until} iterations");
    }
    assert_eq!(single.drawn(), Some(ITERATIONS - 2));
    assert_eq!(all.drawn(), None);
}

#[test]
fn a_draw_that_cannot_be_made_ends_training_with_its_words() {
    let network = blocks();
    let mut trainer = plain(&network, CpuOptions::default());
    let fails = |step: u64, _: &dyn Device| if step < 2 { Ok(None) } else { Err("of the test".to_owned()) };
    trainer.per_draw(Box::new(fails)).expect("it is a plain one");
    let error = advance(&mut trainer, 5).expect_err("the third cannot be made");
    assert!(error.message.ends_with("iteration 2 has no iteration of its own: of the test"), "{error}");
}
