//! Lower bounds on the makespan of all schedules.
//!
//! [`lower_bound`] is the sharpest known bound for the allowed means. It is the largest of four:
//!
//! - the sum of all ops' fastest seconds, for every schedule;
//! - the windows of `bound/windows.rs`, along the whole trace, for schedules that only offload;
//! - the linear program of [`joint`], for every schedule; sharper, for those that only offload, or only recompute;
//! - the program over several instants of `bound/several.rs`, for those that only recompute.
//!
//! All four allow tensors to be moved in pieces of any size: they hold for schedules of pieces and of whole tensors. Seconds and
//! workspace are those of the fastest and of the leanest alternative of each op, so that a bound holds for a plan that picks
//! different ones.
//!
//! Memory may be less than [`plimsoll_ir::trace::MemoryProfile::in_use`]: between the last use of a tensor and a write that does not
//! read it, its bytes mean nothing, and a schedule may give them up without a transfer.
//!
//! This file deliberately does not round bytes up to a sum of whole tensors, which would be valid if pieces are not allowed.

mod cut;
mod first_order;
pub mod joint;
mod master;
mod several;
mod simplex;
mod values;
mod windows;

pub(crate) use windows::bound as offload_bound;

use crate::request::{Allow, Limits, PlanRequest};
use plimsoll_ir::schedule::Link;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId, Seconds};
use std::cmp::Reverse;

/// Returns a lower bound for schedules of any kind, including recomputing ones: the bound of a request's plans (which the caller
/// passes in), if it was found with recomputing allowed or no op can be recomputed; else the sum of all ops' fastest seconds.
pub fn unbeatable(trace: &Trace, request: &PlanRequest<'_>, bound: Seconds) -> Seconds {
    let recomputing = trace.ops.iter().any(|op| op.recomputable);
    if recomputing && !request.bounds_all() { trace.fastest_seconds() } else { bound }
}

/// Returns the lower bound of the makespan of every schedule for this trace, budget and link that uses only the allowed means.
///
/// The trace is valid and the budget not below its floor. Without swapping and recomputing only the ops' seconds count. If
/// recomputing alone is allowed and no schedule fits, the bound may be twice the ops' seconds, and is never more.
pub fn lower_bound(trace: &Trace, budget: Bytes, link: &Link, allow: Allow) -> Seconds {
    lower_bound_within(trace, budget, link, allow, &Limits::default())
}

/// Returns the lower bound, as far as time allows: the bound proved when time is up is valid as well.
pub fn lower_bound_within(
    trace: &Trace,
    budget: Bytes,
    link: &Link,
    allow: Allow,
    limits: &Limits<'_>,
) -> Seconds {
    let allow = Allow { recompute: allow.recompute && trace.ops.iter().any(|op| op.recomputable), ..allow };
    let known = match allow {
        Allow { swap: false, recompute: false, .. } => return trace.fastest_seconds(),
        Allow { recompute: true, .. } => Seconds::ZERO,
        _ => offload_bound(trace, budget, link, limits),
    };
    joint::bound(known, trace, budget, link, allow, limits)
}

/// Returns the bytes, both directions together, that every schedule moves which only offloads: what exceeds the budget during the op
/// that needs most is offloaded before it, and prefetched after it.
pub fn least_moved(trace: &Trace, budget: Bytes) -> Bytes {
    let most = values::Values::of(trace, false).in_use().into_iter().max().unwrap_or_default();
    (Bytes(most) + trace.resident_bytes).saturating_sub(budget) * 2
}

/// Returns the op at whose end most bytes are on the host, and their number, in every schedule that uses only the allowed means:
/// a minimum of the host memory it needs. `None` for a trace without ops.
///
/// Proof: at the end of an op p's first run the pool holds p's operands and its workspace. Take a value that was written by then,
/// that p does not touch, that a later op reads, and whose writer runs once. A byte of it that lies in no open buffer then, and
/// that no prefetch under way is filling one with, has to be prefetched later, from a copy on the host: its writer is over, and
/// nothing else writes it. An offload of it under way reads an open buffer. So that copy is complete at the end of p. Of a tensor
/// this is one version, since the later ops read the newest that there is; so no two of these bytes share one on the host.
pub(crate) fn least_hosted(trace: &Trace, budget: Bytes, allow: Allow) -> Option<(OpId, Bytes)> {
    let all = values::Values::of(trace, allow.recompute);
    let in_use = all.in_use_of(&|value| all.is_fixed(value)).into_iter().enumerate();
    let (op, most) = in_use.max_by_key(|(op, bytes)| (*bytes, Reverse(*op)))?;
    Some((OpId::new(op), (Bytes(most) + trace.resident_bytes).saturating_sub(budget)))
}

/// Returns the ops at whose ends a bound is likely to be sharp: of every stretch of those that need more than the budget, the one
/// that needs most; the op that needs most of all first.
fn likeliest(excess: &[u64], stretches: usize) -> Vec<usize> {
    let over: Vec<usize> = (0..excess.len()).filter(|p| excess[*p] > 0).collect();
    let stretch = over.len().div_ceil(stretches).max(1);
    // Of equals the first.
    let most = |ops: &[usize]| ops.iter().copied().max_by_key(|p| (excess[*p], Reverse(*p)));
    let mut ops: Vec<usize> = over.chunks(stretch).filter_map(most).collect();
    ops.sort_by_key(|p| (Reverse(excess[*p]), *p));
    ops
}
