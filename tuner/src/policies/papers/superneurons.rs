//! SuperNeurons (Wang et al., PPoPP 2018), as the papers that Plimsoll follows compare with it: liveness, swapping with a least
//! recently used cache, and cost-aware recomputation of layers that are cheap.
//!
//! - If everything fits, nothing is done: its cache moves nothing without need.
//! - Else the outputs of cheap layers (pooling, activations, normalisations, dropout) are given up when the forward pass ends,
//!   and recomputed from the checkpoints, the outputs of all other layers. A segment, from one checkpoint to the next, is
//!   recomputed at once for its first user; but value by value, for each user, if the whole segment takes more memory than the
//!   largest op ("cost-aware"). The last segment, with which the backward pass begins, stays. Sums (those that are part of a
//!   normalisation, too) and concatenations are checkpoints here: through them, making one segment again would have to recompute
//!   all before it.
//! - If this does not fit, least recently used tensors are swapped first, as many as needed.
//!
//! If a request allows only one of them ([`Allow`]), it is SuperNeurons with recomputation alone, or with swapping alone: the
//! modes in which DQN §5.1 runs it.

use super::keep::keep;
use super::recomputing::{GivenUp, Unrolled, keep_in_stead, restrict};
use crate::iteration::uses::{Uses, ValueId};
use crate::place::realise::{Case, GIVEN, Realised};
use crate::request::{Allow, Error};
use plimsoll_ir::trace::Phase;

/// Layer types that are recomputed.
const CHEAP_KINDS: [&str; 17] = [
    "pool",
    "relu",
    "gelu",
    "sigmoid",
    "silu",
    "hardsigmoid",
    "hardswish",
    "bn",
    "bn+relu",
    "layernorm",
    "rmsnorm",
    "rotary",
    "lrn",
    "softmax",
    "dropout",
    "multiply",
    "scale",
];

pub(crate) fn realise(case: &Case<'_>) -> Result<Realised, Error> {
    let kept = keep(case, case.thorough())?;
    if matches!(kept, Realised::Fits { .. }) {
        return Ok(kept);
    }
    let Allow { recompute, swap, .. } = case.request.allow;
    let uses = Uses::of(case.trace);
    let unrolled = |one_by_one| {
        let mut given_up = match recompute {
            true => cheap(case, &uses, one_by_one),
            false => vec![None; uses.tensor.len()].into(),
        };
        restrict(case.trace, &uses, &mut given_up);
        Unrolled::new(case.trace, &uses, &given_up)
    };
    match unrolled(true).or_else(|| unrolled(false)) {
        Some(unrolled) => case.realise_unrolled(&unrolled, swap, &GIVEN),
        None => Ok(kept),
    }
}

/// By value: the segment with which it is recomputed; if a segment is too large and `one_by_one`, itself alone.
fn cheap(case: &Case<'_>, uses: &Uses, one_by_one: bool) -> GivenUp {
    let mut given_up: GivenUp = vec![None; uses.tensor.len()].into();
    let mut segments: Vec<Vec<ValueId>> = vec![Vec::new()];
    let forward = case.trace.ops.iter().take_while(|op| op.phase == Phase::Forward).count();
    for (op, writes) in case.trace.ops[..forward].iter().zip(&uses.writes) {
        if CHEAP_KINDS.contains(&op.kind.as_str()) {
            segments.last_mut().expect("there is one").extend(writes);
        } else {
            segments.push(Vec::new());
        }
    }
    let bytes = |v: &ValueId| case.trace.tensors[uses.tensor[*v].index()].bytes.0;
    let largest = case.trace.memory().floor().map_or(0, |(_, floor)| floor.0 - case.trace.resident_bytes.0);
    let mut groups = 0;
    for segment in &segments[..segments.len() - 1] {
        let alone =
            one_by_one && segment.iter().map(|v| u128::from(bytes(v))).sum::<u128>() > u128::from(largest);
        for v in segment {
            given_up[*v] = Some(groups);
            groups += usize::from(alone);
        }
        groups += 1;
    }
    keep_in_stead(uses, forward, &mut given_up);
    given_up
}
