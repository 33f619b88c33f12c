//! Lower bounds on the makespan of all schedules.
//!
//! [`lower_bound`] is the sharpest known bound for the allowed means. It is the largest of five:
//!
//! - the sum of all ops' fastest seconds, for every schedule;
//! - [`offload_bound`], for schedules that only offload;
//! - the windows of `bound/windows.rs`, along the whole trace, for schedules that only offload;
//! - the linear program of [`joint`], for every schedule; sharper, for those that only offload, or only recompute;
//! - the program over several instants of `bound/several.rs`, for those that only recompute, and for every schedule if many
//!   values can only be swapped.
//!
//! All five allow tensors to be moved in pieces of any size: they hold for schedules of pieces and of whole tensors.
//!
//! # Offloading only, in a formula
//!
//! For an op p during which m(p) bytes are alive, D = m(p) - M of them are not on the device when the budget is M: they were
//! offloaded before p started and are prefetched after it ended. So
//!
//! makespan >= max(seconds before p, D / offload rate) + seconds of p + max(seconds after p, D / prefetch rate),
//!
//! and with a half-duplex link also makespan >= D / offload rate + D / prefetch rate. The largest over all p counts, and never
//! less than the sum of all ops' seconds. Seconds and workspace are those of the fastest and of the leanest alternative of each
//! op, so that the bound holds for a plan that picks different ones.
//!
//! Here m(p) may be less than [`plimsoll_ir::trace::MemoryProfile::in_use`]: between the last use of a tensor and a write that
//! does not read it, its bytes mean nothing, and a schedule may give them up without a transfer. If no op overwrites a tensor the
//! two agree.
//!
//! This file deliberately does not round D up to a sum of whole tensors, which would be valid if pieces are not allowed.

mod cut;
mod first_order;
pub mod joint;
mod master;
mod several;
mod simplex;
mod values;
mod windows;

use crate::decide::gaps::{Alternatives, Gaps};
use crate::request::{Allow, Limits, PlanRequest};
use plimsoll_ir::schedule::{Duplex, Link};
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
        _ => quick_offload_bound(trace, budget, link, limits),
    };
    joint::bound(known, trace, budget, link, allow, limits)
}

/// Returns the bytes, both directions together, that every schedule moves which only offloads: twice D of the op with the largest
/// D.
pub fn least_moved(trace: &Trace, budget: Bytes) -> Bytes {
    let gaps = Gaps::new(trace, Bytes::ZERO, Alternatives::BesideOwn);
    let most = Bytes(gaps.base.iter().copied().max().unwrap_or_default());
    (most + trace.resident_bytes).saturating_sub(budget) * 2
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

/// Returns the lower bound of the makespan of every schedule that only offloads, without the linear program, which seldom adds
/// much and takes longer. Policies that only offload are judged by it.
pub(crate) fn quick_offload_bound(trace: &Trace, budget: Bytes, link: &Link, limits: &Limits<'_>) -> Seconds {
    offload_bound(trace, budget, link).max(windows::bound(trace, budget, link, limits))
}

/// Returns the bound of the formula above: a lower bound of the makespan of every schedule for this trace, budget and link that
/// only offloads.
pub fn offload_bound(trace: &Trace, budget: Bytes, link: &Link) -> Seconds {
    // With no pool every op would run in its leanest alternative.
    let gaps = Gaps::new(trace, Bytes::ZERO, Alternatives::BesideOwn);
    let total = trace.fastest_seconds();
    let mut bound = total;
    let mut before = Seconds::ZERO;
    for (op, in_use) in trace.ops.iter().zip(&gaps.base.raw[1..]) {
        let seconds = op.fastest_seconds();
        let excess = (Bytes(*in_use) + trace.resident_bytes).saturating_sub(budget);
        if excess > Bytes::ZERO {
            let out = excess / link.offload_bytes_per_second;
            let back = excess / link.prefetch_bytes_per_second;
            bound = bound.max(before.max(out) + seconds + (total - before - seconds).max(back));
            if link.duplex == Duplex::Half {
                bound = bound.max(out + back);
            }
        }
        before += seconds;
    }
    bound
}
