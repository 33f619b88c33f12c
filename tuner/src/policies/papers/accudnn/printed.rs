//! Algorithms 1 and 2 of AccUDNN to the letter of their listings: policy `accudnn-as-printed`.
//!
//! Kept so that the difference can be measured; [`super`] lists the repairs, with reasons. Here
//! - memory in use only grows (Algorithm 1, last line of the loop), so that once the sum of all allocations has passed the budget
//!   every later layer waits for a separate release,
//! - a prefetch may start before its data exists: `t_ready` of a layer is that of the previous layer plus its transfers,
//! - Ω, a set, is pinned in the order of the trace's tensors,
//! - pinned activations lie outside of an active area of `M_peak(k)` bytes, the most that is needed with everything swapped. That
//!   maximum counts the pinned activations at the slots of their uses once more, and is not computed again as they get pinned.

use super::Verdict;
use crate::decide::gaps::{GapId, Gaps, LiveId};
use crate::decide::placement::{Opens, Slot};
use crate::request::Limits;
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::{Bytes, OpId};
use typed_index_collections::{TiSlice, TiVec};

/// Bytes that one layer allocates and releases, its transfers and its seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    allocated: u64,
    prefetch: f64,
    compute: f64,
    released: u64,
}

/// Returns the layers of a trace in which these gaps are swapped and these stretches are pinned. Pinned ones lie outside of the
/// active area: they are neither allocated nor released in it.
fn layers(
    gaps: &Gaps,
    link: &Link,
    swapped: &TiSlice<GapId, bool>,
    pinned: &TiSlice<LiveId, bool>,
) -> TiVec<OpId, Layer> {
    let mut layers: TiVec<OpId, Layer> = gaps
        .alternatives
        .keys()
        .map(|op| {
            let (compute, workspace) = (gaps.seconds[Slot::of(op)], gaps.workspace[Slot::of(op)]);
            Layer { allocated: workspace, prefetch: 0.0, compute, released: workspace }
        })
        .collect();
    // Tensors that exist from the start belong to the first layer.
    let layer = |slot: Slot| slot.op().unwrap_or(OpId(0));
    for (live, _) in gaps.lives.iter().zip(pinned).filter(|(_, pinned)| !**pinned) {
        let bytes = live.bytes;
        let first = if live.opens == Opens::Start { OpId(0) } else { layer(live.slots.start) };
        layers[first].allocated += bytes;
        let last = live.slots.end.previous().expect("a stretch has a slot");
        layers[layer(last)].released += bytes;
    }
    for (gap, _) in gaps.gaps.iter().zip(swapped).filter(|(_, swapped)| **swapped) {
        layers[layer(gap.after)].released += gap.bytes;
        let user = &mut layers[layer(gap.before)];
        user.allocated += gap.bytes;
        user.prefetch += link.seconds(Stream::Prefetch, Bytes(gap.bytes)).0;
    }
    layers
}

/// Algorithm 1: returns the time at which each layer can start, within `pool` bytes.
fn t_ready(layers: &TiSlice<OpId, Layer>, pool: u64) -> TiVec<OpId, f64> {
    // Sums of compute seconds and of released bytes through layer j: entry j + 1.
    let mut computed = vec![0.0];
    let mut released = vec![0u64];
    for (j, layer) in layers.iter().enumerate() {
        computed.push(computed[j] + layer.compute);
        released.push(released[j].saturating_add(layer.released));
    }
    let mut ready: TiVec<OpId, f64> = TiVec::with_capacity(layers.len());
    let mut used = 0u64;
    for layer in layers {
        let Some(&previous) = ready.last() else {
            ready.push(layer.prefetch);
            used = layer.allocated;
            continue;
        };
        ready.push(if used.saturating_add(layer.allocated) <= pool {
            previous + layer.prefetch
        } else {
            // The layer that computes at t_ready[j - 1], and the one whose end releases enough.
            let current = computed[1..].partition_point(|end| *end <= previous).min(layers.len() - 1);
            let target = released[current].saturating_add(layer.allocated);
            let satisfied = current + released[current + 1..].partition_point(|sum| *sum < target);
            computed[(satisfied + 1).min(layers.len())] + layer.prefetch
        });
        used = used.saturating_add(layer.allocated);
    }
    ready
}

/// Returns the verdict of the listings on these activations. If time is up, only activations pinned so far are pinned.
pub(super) fn judge(
    gaps: &Gaps,
    maps: TiVec<GapId, bool>,
    pool: u64,
    link: &Link,
    limits: &Limits<'_>,
) -> Verdict {
    let mut swapped = maps;
    let mut pinned_lives: TiVec<LiveId, bool> = vec![false; gaps.lives.len()].into();
    let mut pinned = Vec::new();
    // M_peak(k): the active area.
    let area = gaps.least(&swapped).into_iter().max().unwrap_or_default();
    let mut room = pool.saturating_sub(area);
    let mut within = pool;
    loop {
        let ready = t_ready(&layers(gaps, link, &swapped, &pinned_lives), within);
        let stalled = super::violating(gaps, &ready);
        within = area;
        let mut more = false;
        for (g, gap) in gaps.gaps.iter_enumerated() {
            let waits = super::is_waited_for(gap, &stalled);
            if swapped[g] && waits && gap.bytes <= room {
                room -= gap.bytes;
                swapped[g] = false;
                pinned_lives[gap.live] = true;
                pinned.push(g);
                more = true;
            }
        }
        if !more || limits.is_expired() {
            return Verdict::new(gaps, ready, stalled, pinned, swapped);
        }
    }
}
