//! Naive swapping, as AccUDNN §3.1 describes it: all activations are swapped out to the host, and the device's memory is only the
//! layer-wise active area.
//!
//! An activation is a tensor that lives from the forward pass into a later one: every gap from a forward op to an op that is not
//! forward is swapped, for tensors of any kind but gradients. It leaves as soon as its last forward use is over and returns
//! before its next use, as early as memory allows: "prefetch operations can continuously proceed as long as the required GPU
//! memory is available".
//!
//! It leaves on the device: gaps within the forward pass (the inputs of a later sum or concatenation) and within the backward
//! pass. So it may need more than the trace's floor.

use crate::decide::gaps::{Gap, GapId, Gaps};
use crate::decide::placement::Slot;
use crate::place::realise::{Case, GIVEN, Realised};
use crate::request::Error;
use plimsoll_ir::trace::{Phase, TensorKind, Trace};
use typed_index_collections::TiVec;

/// Returns `true` for the gaps of activations, one entry per gap.
pub fn feature_maps(trace: &Trace, gaps: &Gaps) -> TiVec<GapId, bool> {
    let forward = |slot: Slot| slot.op().is_none_or(|op| trace.ops[op.index()].phase == Phase::Forward);
    let is_map = |g: GapId| trace.tensors[gaps.tensor(g).index()].kind != TensorKind::Gradient;
    let crosses = |(g, gap): (GapId, &Gap)| forward(gap.after) && !forward(gap.before) && is_map(g);
    gaps.gaps.iter_enumerated().map(crosses).collect()
}

pub(crate) fn realise(case: &Case<'_>) -> Result<Realised, Error> {
    let gaps = case.gaps();
    case.realise(&gaps, &feature_maps(case.trace, &gaps), &GIVEN)
}
