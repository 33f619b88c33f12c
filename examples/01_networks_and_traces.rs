//! A network of the zoo, lowered to one training iteration, ready to be planned.

use plimsoll::ir::network::NetworkSpec;
use plimsoll::networks::{LowerOptions, build, lower};

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = NetworkSpec { name: "resnet18".into(), image: [64, 64], channels: 3, classes: 10 };
    let network = build(&spec)?;
    let parameters: u64 = network.all_parameters();
    println!("{}: {} layers, {parameters} parameters", spec.name, network.layers.len());

    // Only a device knows the scratch of its kernels; here there is none.
    let options = LowerOptions::default();
    for batch in [1, 16, 64] {
        let trace = lower(&network, batch, &options)?.trace;
        let memory = trace.memory();
        let (at, peak) = memory.peak().ok_or("a trace has ops")?;
        let (_, floor) = memory.floor().ok_or("a trace has ops")?;
        println!(
            "batch {batch:>2}: {} ops, keeping everything peaks at {peak} during {}, no plan fits below {floor}",
            trace.ops.len(),
            trace.ops[at.index()].name
        );
    }
    Ok(())
}
