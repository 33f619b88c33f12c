//! Traces written by hand and large ones, and budgets for any trace.

use crate::traces::random_trace_of;
use plimsoll_ir::ids::TensorId;
use plimsoll_ir::trace::{Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::units::{Bytes, Seconds};

/// Returns an op of one second that reads and writes these tensors, which cannot be recomputed and has no workspace.
pub fn op(name: &str, phase: Phase, reads: &[usize], writes: &[usize]) -> Op {
    let ids = |list: &[usize]| list.iter().map(|t| TensorId::new(*t)).collect();
    Op {
        name: name.to_owned(),
        layer: name.to_owned(),
        kind: "any".to_owned(),
        phase,
        seconds: Seconds(1.0),
        reads: ids(reads),
        writes: ids(writes),
        workspace_bytes: Bytes::ZERO,
        flops: 0,
        recomputable: false,
        alternatives: Vec::new(),
    }
}

/// Returns a trace of these ops on tensors of these sizes, of which those that are read before they are written are inputs.
pub fn trace(bytes: impl IntoIterator<Item = u64>, ops: Vec<Op>) -> Trace {
    let tensor = |(i, bytes)| {
        let id = TensorId::new(i);
        let first = ops.iter().find(|op| op.touches().any(|tensor| tensor == id));
        let is_input = first.is_some_and(|op| op.reads.contains(&id));
        let kind = if is_input { TensorKind::Input } else { TensorKind::Activation };
        Tensor { name: format!("t{i}"), bytes: Bytes(bytes), kind }
    };
    let tensors = bytes.into_iter().enumerate().map(tensor).collect();
    Trace { kind: TraceKind, name: "hand".to_owned(), batch: 1, resident_bytes: Bytes::ZERO, tensors, ops }
}

/// Returns the least memory that a trace of some ops needs, and the most that it uses.
pub fn floor_and_peak(trace: &Trace) -> (Bytes, Bytes) {
    let memory = trace.memory();
    (memory.floor().expect("a trace has an op").1, memory.peak().expect("a trace has an op").1)
}

/// Returns the budget at this part of the way from floor to peak.
pub fn between(trace: &Trace, part: u64, of: u64) -> Bytes {
    let (floor, peak) = floor_and_peak(trace);
    let share = u128::from((peak - floor).0) * u128::from(part) / u128::from(of);
    floor + Bytes(u64::try_from(share).expect("a share of what a trace can hold"))
}

/// Factor on the sizes of [`coarse_trace_of`].
pub const GRAIN: u64 = 4096;

/// Returns a random trace of this many ops, whose tensors are so large that aligning addresses costs nothing.
pub fn coarse_trace_of(ops: u64, seed: u64) -> Trace {
    let mut trace = random_trace_of(ops as usize, seed);
    trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * GRAIN);
    for op in &mut trace.ops {
        let of_alternatives = op.alternatives.iter_mut().map(|alternative| &mut alternative.workspace_bytes);
        of_alternatives.chain([&mut op.workspace_bytes]).for_each(|bytes| *bytes = *bytes * GRAIN);
    }
    trace
}
