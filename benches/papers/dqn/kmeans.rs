//! K-means as a workload: a trace of its first iterations on points, each block of which is a tensor.
//!
//! A block of points is written once and then read in each iteration, always in the same order: the next block is the one read
//! longest ago, whereas a network's backward pass first reads the tensors written last. The paper names neither sizes nor the
//! tensors that the device keeps; all numbers here are ours. Centroids, sums and labels stay on the device, and so are resident
//! bytes.

use plimsoll::ir::trace::{Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll::ir::{Bytes, Seconds, TensorId};
use plimsoll::tuner::model::devices::{LAUNCH, Modelled, RAMP};

/// Coordinates of a point, number of centroids, and iterations.
const DIMENSIONS: u64 = 128;
const CENTROIDS: u64 = 1024;
const ITERATIONS: usize = 4;

/// Points in a block: 64 MiB.
const BLOCK: u64 = 1 << 17;

/// Returns the trace for this many points, a multiple of a block. The first iteration counts as the forward pass.
pub fn trace(points: u64, device: &Modelled) -> Trace {
    let blocks = (points / BLOCK) as usize;
    let bytes = Bytes(4 * BLOCK * DIMENSIONS);
    let streaming = bytes.0 as f64 / (device.sheet.bandwidth * device.reach.memory);
    // All distances are matrix products.
    let flops = 2 * BLOCK * CENTROIDS * DIMENSIONS;
    let products = flops as f64 / (device.sheet.f32_peak * device.reach.products) + RAMP.0;
    let op = |name: String, kind: &str, phase, seconds, flops| Op {
        layer: name.clone(),
        name,
        kind: kind.to_owned(),
        phase,
        seconds: LAUNCH + Seconds(seconds),
        reads: Vec::new(),
        writes: Vec::new(),
        workspace_bytes: Bytes::ZERO,
        flops,
        recomputable: false,
        alternatives: Vec::new(),
    };
    let mut ops = Vec::new();
    for iteration in 0..ITERATIONS {
        let phase = if iteration == 0 { Phase::Forward } else { Phase::Backward };
        for block in 0..blocks {
            let points = vec![TensorId::new(block)];
            if iteration == 0 {
                let written = op(format!("points{block}"), "random", phase, streaming, 0);
                ops.push(Op { writes: points.clone(), ..written });
            }
            let name = format!("assign{iteration}.{block}");
            let assigned = op(name, "assign", phase, products.max(streaming), flops);
            ops.push(Op { reads: points, ..assigned });
        }
        ops.push(op(format!("centroids{iteration}"), "centroids", phase, 0.0, 0));
    }
    let tensor = |block| Tensor { name: format!("points{block}"), bytes, kind: TensorKind::Activation };
    Trace {
        kind: TraceKind,
        name: "kmeans".to_owned(),
        batch: points,
        resident_bytes: Bytes(4 * points + 2 * 4 * CENTROIDS * DIMENSIONS),
        tensors: (0..blocks).map(tensor).collect(),
        ops,
    }
}

/// Describes the workload on the page.
pub fn words(points: u64) -> String {
    format!(
        "K-means: {points} points of {DIMENSIONS} numbers, {CENTROIDS} centroids, {ITERATIONS} iterations, each over {} blocks \
         of points of {} MiB that are offloaded or not; all sizes are ours. Points cannot be recomputed. memonger, \
         superneurons and tflms move or recompute only what a forward pass leaves to a backward pass, and have no plan.",
        points / BLOCK,
        (4 * BLOCK * DIMENSIONS) >> 20,
    )
}

/// Points of a small table.
pub const FEW: u64 = 8 * BLOCK;
