//! Trains a network on the embedded CPU device within half the memory that keeping everything takes, to the same bits.

use plimsoll::ir::program::KernelAlternative;
use plimsoll::ir::schedule::{Link, Schedule};
use plimsoll::ir::{Bytes, BytesPerSecond, Optimizer, UpdateRule, network::NetworkSpec};
use plimsoll::networks::{LowerOptions, build, lower};
use plimsoll::runtime::cpu::kernels::workspace_bytes;
use plimsoll::runtime::data::digits;
use plimsoll::runtime::{
    Cpu, CpuOptions, Executor, LearningRateSchedule, MemoryLayout, Trainer, TrainingPlan,
};
use plimsoll::tuner::{Outcome, PlanRequest, Policy, plan};

const BATCH: u64 = 64;
const ITERATIONS: u64 = 10;

type Error = Box<dyn std::error::Error>;

/// Runs the example.
pub fn main() -> Result<(), Error> {
    let spec = NetworkSpec { name: "resnet20".into(), image: [8, 8], channels: 1, classes: 10 };
    let options = LowerOptions {
        alternatives: &|call| KernelAlternative::sole(workspace_bytes(call, 1)),
        ..LowerOptions::default()
    };
    let program = lower(&build(&spec)?, BATCH, &options)?;
    let (_, peak) = program.trace.memory().peak().ok_or("a trace has ops")?;

    let train = |policy: Policy, budget: Bytes| -> Result<Vec<f32>, Error> {
        let link = Link::symmetric(BytesPerSecond(10e9));
        let request = PlanRequest::new(budget, link, policy);
        let schedule: Schedule = match plan(&program.trace, &request)? {
            Outcome::Planned(plan) => plan.schedule,
            Outcome::Infeasible(witness) => return Err(witness.to_string().into()),
        };
        let layout = MemoryLayout::of(&program, &schedule);
        let mut executor = Executor::new(Box::new(Cpu::new(CpuOptions::default())), layout)?;
        let loaded = executor.load(&program, &schedule)?;
        let rate = LearningRateSchedule::constant(0.05);
        let network = spec.clone();
        let how = TrainingPlan {
            network,
            batch: BATCH,
            virtual_workers: 1,
            seed: 1,
            rate,
            update: UpdateRule::usual(Optimizer::Sgd),
            weights: None,
        };
        let mut trainer = Trainer::new(executor, loaded, None, how)?;
        let mut last = f32::NAN;
        trainer.train(&*digits().train, ITERATIONS, &mut |seen| last = seen.loss, &|| false)?;
        println!(
            "{policy:>8}: {} on the device, loss {last:.4} after {ITERATIONS} iterations",
            layout.device()
        );
        let checkpoint = trainer.checkpoint()?;
        Ok(checkpoint.names().filter_map(|name| checkpoint.region(name)).flatten().collect())
    };

    let kept = train(Policy::Keep, Bytes(2 * peak.0))?;
    let swapped = train(Policy::Plimsoll, Bytes(peak.0 / 2))?;
    let same = kept.iter().zip(&swapped).all(|(a, b)| a.to_bits() == b.to_bits());
    println!("{} numbers of parameters, momentum and statistics, the same bit for bit: {same}", kept.len());
    if same { Ok(()) } else { Err("the plan changed the result".into()) }
}
