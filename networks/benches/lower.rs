//! The cost of building and lowering a network: `cargo bench -p plimsoll-networks`. In `cargo test` each runs once.

use plimsoll_ir::network::NetworkSpec;
use plimsoll_networks::{LowerOptions, build, lower};
use std::time::Instant;

fn main() {
    let repeats = if std::env::args().any(|argument| argument == "--bench") { 25 } else { 1 };
    println!(
        "{:<12} {:>6} {:>8} {:>12} {:>12}   (median of {repeats})",
        "network", "ops", "tensors", "build", "lower"
    );
    for name in
        ["alexnet", "vgg16", "resnet50", "resnet152", "resnet1001", "resnet1517", "densenet201", "vgg516"]
    {
        let spec = NetworkSpec { name: name.to_owned(), image: [224; 2], channels: 3, classes: 1000 };
        let (mut builds, mut lowers, mut sizes) = (Vec::new(), Vec::new(), (0, 0));
        for _ in 0..repeats {
            let start = Instant::now();
            let network = build(&spec).expect("it is in the zoo");
            builds.push(start.elapsed());
            let start = Instant::now();
            let program = lower(&network, 32, &LowerOptions::default()).expect("the batch is sound");
            lowers.push(start.elapsed());
            sizes = (program.trace.ops.len(), program.trace.tensors.len());
        }
        builds.sort_unstable();
        lowers.sort_unstable();
        let (build, lower) = (builds[repeats / 2], lowers[repeats / 2]);
        println!("{name:<12} {:>6} {:>8} {build:>12.1?} {lower:>12.1?}", sizes.0, sizes.1);
    }
}
