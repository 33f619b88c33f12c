//! AccUDNN (arXiv 1901.06773): swaps every activation except for those that would stall the device, which are pinned.
//!
//! `t_ready[j]` (§3.4, Algorithm 1) is the time from which layer j can start: all its inputs are on the device and its outputs
//! have room. Layers are the trace's ops, 1 to 2N in order. Eq. (6) requires `t_ready[j] <= sum of t_r for r < j`: nothing
//! stalls. Algorithm 2 (§4.1) runs over batch sizes k; its inner part, for one k, is here: if eq. (6) fails for a set Ω of
//! layers, the activations that they wait for are pinned into the memory that is left over, and `t_ready` is computed again,
//! until eq. (6) holds or nothing more can be pinned ([`satisfies`]). The loop over k is the caller's.
//!
//! # Repairs, with reasons
//!
//! To the letter (`printed.rs`, policy `accudnn-as-printed`), the two listings do not do what the paper says of them: with a
//! budget at which nothing needs to move, some networks stall by a third. Policy `accudnn` does this instead:
//!
//! 1. **Memory that was released is free again.** Algorithm 1 only ever adds to `M_used_present`. Its remark says that releases
//!    "also decrease M_used_present, we just don't depict it explicitly here", and eq. (4) subtracts them. A swapped activation's
//!    bytes are released when its last forward use and its offload are both over: `stream_swap-out` releases them (§5).
//! 2. **A prefetch waits until its data exists.** The listing adds up transfers from time 0 ("prefetch operation of subsequent
//!    layers run continuously"), so that activations return before they were made. Here a prefetch starts when the previous one
//!    has ended, its own offload has ended, and eq. (4) has room for it.
//! 3. **Activations needed first are pinned first.** Algorithm 2 pins "data involved in Ω", a set of layer indices, in no order
//!    that it names. In the order of the backward pass, it pins the activations that were made last: those have the least time
//!    between their uses, and pinning them leaves the longest time for the others. The order in which activations are made is the
//!    worst one (Euro-Par'20, Lemma 1).
//! 4. **Room is counted once.** `M_budget - M_peak(k)` takes the active area with everything swapped, and counts pinned
//!    activations in addition to it. A pinned activation is in the active area at the slots of its uses, and most slots need less
//!    than the peak. Here an activation is pinned if it fits at every slot between its uses, next to all activations pinned
//!    already.
//!
//! The value of the four repairs is measured in `benches/README.md`.
//!
//! Like the paper, this file leaves out two things: a layer that stalls delays all that follows, while in eq. (6) each layer ends
//! after the sum of the computation before it; and addresses. A trace that satisfies eq. (6) may still stall; the schedule's own
//! clock shows that.

mod printed;

use super::chain::ended;
use super::naive::feature_maps;
use crate::decide::gaps::{Alternatives, Gap, GapId, Gaps, VersionId};
use crate::decide::placement::{Opens, Slot};
use crate::place::realise::{CHEAP, Case, GIVEN, Realised};
use crate::range_max::RangeMax;
use crate::request::{Error, Limits, PlanRequest, Shortage};
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId, Seconds, TensorId};
use typed_index_collections::{TiSlice, TiVec};

/// If pinned activations leave no addresses, this small a part of them, as a divisor, is swapped first.
const FEWER: usize = 64;

/// Result of Algorithms 1 and 2 for one batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// By op: time at which it can start, with the pinned activations pinned; infinite if there is never room for it.
    pub t_ready: TiVec<OpId, Seconds>,
    /// Ops for which eq. (6) fails with this `t_ready`; empty if nothing stalls.
    pub violating: Vec<OpId>,
    /// Activations that stay on the device, in the order in which they were pinned.
    pub pinned: Vec<TensorId>,
    /// Their gaps; and by gap, `true` if it is swapped.
    pinned_gaps: Vec<GapId>,
    swapped: TiVec<GapId, bool>,
}

impl Verdict {
    fn new(
        gaps: &Gaps,
        ready: TiVec<OpId, f64>,
        stalled: Vec<OpId>,
        pinned_gaps: Vec<GapId>,
        swapped: TiVec<GapId, bool>,
    ) -> Verdict {
        Verdict {
            t_ready: ready.into_iter().map(Seconds).collect(),
            violating: stalled,
            pinned: pinned_gaps.iter().map(|g| gaps.tensor(*g)).collect(),
            pinned_gaps,
            swapped,
        }
    }

    /// Returns `true` if eq. (6) holds for all layers.
    pub fn satisfied(&self) -> bool {
        self.violating.is_empty()
    }
}

/// Returns the time at which each op can start if these gaps are swapped: Algorithm 1, repaired.
fn t_ready(gaps: &Gaps, link: &Link, swapped: &TiSlice<GapId, bool>, pool: u64) -> TiVec<OpId, f64> {
    let ended = ended(gaps);
    let hosted = hosted(gaps, link, swapped, &ended);
    let mut allocated = gaps.workspace.clone();
    let mut released: Vec<(f64, u64)> =
        ended.iter().zip(&gaps.workspace).map(|(ended, bytes)| (*ended, *bytes)).collect();
    let mut fetched: TiVec<Slot, Vec<GapId>> = vec![Vec::new(); gaps.seconds.len()].into();
    for live in &gaps.lives {
        let bytes = live.bytes;
        let first = if live.opens == Opens::Start { Slot::START } else { live.slots.start };
        allocated[first] = allocated[first].saturating_add(bytes);
        let last = live.slots.end.previous().expect("a stretch has a slot");
        released.push((ended[last], bytes));
    }
    for (g, gap) in gaps.gaps.iter_enumerated().filter(|(g, _)| swapped[*g]) {
        released.push((ended[gap.after].max(hosted[gap.version]), gap.bytes));
        allocated[gap.before] = allocated[gap.before].saturating_add(gap.bytes);
        fetched[gap.before].push(g);
    }
    released.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut released = released.into_iter();
    let (mut used, mut room, mut came, mut ready) = (0u128, 0.0f64, 0.0f64, TiVec::new());
    for (slot, allocated) in allocated.iter_enumerated() {
        // Eq. (4), in the order of the allocations.
        used += u128::from(*allocated);
        while used > u128::from(pool) {
            let Some((time, bytes)) = released.next() else {
                room = f64::INFINITY;
                break;
            };
            room = room.max(time);
            used = used.saturating_sub(u128::from(bytes));
        }
        for &g in &fetched[slot] {
            let gap = &gaps.gaps[g];
            let starts = came.max(room).max(hosted[gap.version]);
            came = starts + link.seconds(Stream::Prefetch, Bytes(gap.bytes)).0;
        }
        // The start belongs to no op.
        if slot > Slot::START {
            ready.push(if fetched[slot].is_empty() { room } else { room.max(came) });
        }
    }
    ready
}

/// By version of a tensor's contents: time at which the host has them. An offload starts when the activation is made and the
/// previous offload has ended.
fn hosted(
    gaps: &Gaps,
    link: &Link,
    swapped: &TiSlice<GapId, bool>,
    ended: &TiSlice<Slot, f64>,
) -> TiVec<VersionId, f64> {
    let mut hosted: TiVec<VersionId, f64> = vec![f64::NAN; gaps.versions.index()].into();
    let mut order: Vec<GapId> = swapped.keys().filter(|g| swapped[*g]).collect();
    order.sort_by_key(|g| (gaps.gaps[*g].after, gaps.gaps[*g].writer, *g));
    let mut left = 0.0f64;
    for gap in order.into_iter().map(|g| &gaps.gaps[g]) {
        let host = &mut hosted[gap.version];
        if host.is_nan() {
            left = left.max(ended[gap.writer]) + link.seconds(Stream::Offload, Bytes(gap.bytes)).0;
            *host = left;
        }
    }
    hosted
}

/// Returns Ω: the layers for which eq. (6) fails.
fn violating(gaps: &Gaps, ready: &TiSlice<OpId, f64>) -> Vec<OpId> {
    let mut computed = 0.0;
    let mut violating = Vec::new();
    for (op, ready) in ready.iter_enumerated() {
        // Sums of floats may differ by a billionth of the time so far.
        if *ready > computed * (1.0 + 1e-9) {
            violating.push(op);
        }
        computed += gaps.seconds[Slot::of(op)];
    }
    violating
}

/// Returns `true` if the op that uses a gap's bytes next is one of these, which are in order.
fn is_waited_for(gap: &Gap, by: &[OpId]) -> bool {
    gap.before.op().is_some_and(|op| by.binary_search(&op).is_ok())
}

/// Returns the verdict of Algorithms 1 and 2 on a trace at its batch size, for a budget and a link: to the letter, or repaired.
pub fn judge(trace: &Trace, budget: Bytes, link: &Link, as_printed: bool) -> Verdict {
    let pool = budget.saturating_sub(trace.resident_bytes);
    let gaps = Gaps::new(trace, pool, Alternatives::BesideOwn);
    judge_gaps(trace, &gaps, pool.0, link, as_printed, &Limits::default())
}

/// Returns the verdict on these gaps. If time is up, only activations pinned so far are pinned.
fn judge_gaps(
    trace: &Trace,
    gaps: &Gaps,
    pool: u64,
    link: &Link,
    as_printed: bool,
    limits: &Limits<'_>,
) -> Verdict {
    let mut swapped = feature_maps(trace, gaps);
    if as_printed {
        return printed::judge(gaps, swapped, pool, link, limits);
    }
    let mut over = RangeMax::beyond(&gaps.least(&swapped), pool);
    let mut first_needed_first: Vec<GapId> = swapped.keys().filter(|g| swapped[*g]).collect();
    first_needed_first.sort_by_key(|g| (gaps.gaps[*g].before, *g));
    let mut pinned = Vec::new();
    loop {
        let ready = t_ready(gaps, link, &swapped, pool);
        let stalled = violating(gaps, &ready);
        let before = pinned.len();
        for &g in &first_needed_first {
            let gap = &gaps.gaps[g];
            let waits = swapped[g] && is_waited_for(gap, &stalled);
            let across = gap.after.next()..gap.before;
            if waits && over.has_room(across.clone(), gap.bytes) {
                over.add(across, gap.bytes);
                swapped[g] = false;
                pinned.push(g);
            }
        }
        if pinned.len() == before || limits.is_expired() {
            return Verdict::new(gaps, ready, stalled, pinned, swapped);
        }
    }
}

/// Returns `true` if eq. (6) can be met at this batch size: the condition of Algorithm 2's loop.
pub fn satisfies(trace: &Trace, budget: Bytes, link: &Link) -> bool {
    judge(trace, budget, link, false).satisfied()
}

/// `accudnn`, and `accudnn-as-printed`.
pub(crate) fn realise(case: &Case<'_>, as_printed: bool) -> Result<Realised, Error> {
    let gaps = case.gaps();
    let PlanRequest { link, limits, .. } = case.request;
    let Verdict { mut swapped, pinned_gaps: mut pinned, .. } =
        judge_gaps(case.trace, &gaps, case.pool, link, as_printed, limits);
    let mut fewer = pinned.len() / FEWER + 1;
    loop {
        // A schedule that gives up a pool's worth for addresses is the last resort.
        let attempts = if pinned.is_empty() { &GIVEN[..] } else { &CHEAP[..] };
        let realised = case.realise(&gaps, &swapped, attempts)?;
        let short = matches!(&realised, Realised::Short(witness) if witness.why == Shortage::Addresses);
        if !short || pinned.is_empty() {
            return Ok(realised);
        }
        // Addresses do not fit with so many pinned activations: those pinned last are swapped after all, twice as many each time;
        // all of them if time is up.
        let stays = if limits.is_expired() { 0 } else { pinned.len().saturating_sub(fewer) };
        fewer *= 2;
        for g in pinned.split_off(stays) {
            swapped[g] = true;
        }
    }
}
