//! Random traces whose tensors are so large that aligning addresses costs nothing.

use plimsoll_ir::trace::Trace;
use plimsoll_testing::random_trace_of;

/// Factor on the sizes of the random tensors.
pub const GRAIN: u64 = 4096;

/// Returns a random trace of this many ops.
pub fn coarse_trace_of(ops: u64, seed: u64) -> Trace {
    let mut trace = random_trace_of(ops as usize, seed);
    trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * GRAIN);
    for op in &mut trace.ops {
        op.workspace_bytes = op.workspace_bytes * GRAIN;
        op.alternatives
            .iter_mut()
            .for_each(|alternative| alternative.workspace_bytes = alternative.workspace_bytes * GRAIN);
    }
    trace
}
