//! A plan for a trace within a budget: made, proved safe, and timed, without any device.

use plimsoll::ir::check::check;
use plimsoll::ir::network::NetworkSpec;
use plimsoll::ir::schedule::{Link, Stream};
use plimsoll::ir::simulate::simulate;
use plimsoll::ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll::networks::{LowerOptions, build, lower};
use plimsoll::tuner::{Outcome, PlanRequest, Policy, plan};

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = NetworkSpec { name: "resnet18".into(), image: [64, 64], channels: 3, classes: 10 };
    let options = LowerOptions::default();
    let mut trace = lower(&build(&spec)?, 64, &options)?.trace;
    // Times would come from a profile; these are of a machine that does 5 TFLOP/s and starts a kernel in 5 us.
    for op in &mut trace.ops {
        op.seconds = Seconds(op.flops as f64 / 5e12 + 5e-6);
    }
    let memory = trace.memory();
    let (_, peak) = memory.peak().ok_or("a trace has ops")?;
    let (_, floor) = memory.floor().ok_or("a trace has ops")?;
    let budget = Bytes((floor.0 + peak.0) / 2);

    for policy in Policy::ALL {
        let request = PlanRequest::new(budget, Link::symmetric(BytesPerSecond(12.2e9)), policy);
        match plan(&trace, &request)? {
            Outcome::Planned(plan) => {
                check(&trace, &plan.schedule)?;
                let timeline = simulate(&trace, &plan.schedule);
                let totals = timeline.totals(&trace, &plan.schedule);
                println!(
                    "{policy:>8}: {} an iteration, {} of it stalled; {} offloaded, pool {}",
                    timeline.makespan(),
                    totals.stalled[Stream::Compute.index()],
                    totals.offloaded,
                    plan.schedule.pool_bytes
                );
            }
            Outcome::Infeasible(witness) => println!("{policy:>8}: does not fit {budget}: {witness}"),
        }
    }
    Ok(())
}
