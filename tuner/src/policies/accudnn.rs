//! AccUDNN (arXiv 1901.06773): swap every feature map but those that would stall the device, and pin these.
//!
//! `t_ready[j]` (Algorithm 1) is the time from which layer j can start: all that it needs is on the device and has
//! room. Layers are the trace's ops, 1 to 2N in order. Eq. (6) asks `t_ready[j] <= sum of t_r for r < j`: nothing stalls.
//! Algorithm 2 runs over batch sizes k; its inner part, for one k, is here: where eq. (6) fails for some layers, the
//! feature maps that they wait for are pinned into the memory that the layer-wise active area leaves over,
//! `M_budget - M_peak(k)`, and `t_ready` is worked out anew within `M_peak(k)`, until eq. (6) holds or nothing more can
//! be pinned. The loop over k asks [`satisfies`].
//!
//! # A gap in the paper, and what is done about it
//!
//! Algorithm 1 only ever adds to `M_used_present`: as printed, once the sum of all allocations has passed the budget
//! every later layer has to wait for a release, however much memory was released before. The text says as much
//! ("memory release operation ... also decrease M_used_present, we just don't depict it explicitly here"). So what was
//! released by the layers that ended before `j_current` is subtracted here, and a suspended layer waits until the
//! releases from `j_current` on cover what it lacks ([`Reading::Subtracted`]). [`Reading::AsPrinted`] does what the
//! listing says; a test shows where the two differ.
//!
//! What the paper leaves out, and so does this: that memory is free only when an offload has ended. A trace that
//! satisfies eq. (6) may still stall; the schedule's own clock tells.

use super::naive::feature_maps;
use crate::gaps::{Gaps, Ways};
use crate::placement::Opens;
use crate::plan::{Limits, PlanError, PlanRequest, Shortage};
use crate::realise::{GIVEN, Realised, Task};
use plimsoll_ir::schedule::{Link, Stream};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, OpId, Seconds, TensorId};

/// How Algorithm 1 is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// Memory that was released no longer counts as used, as the paper's remark says.
    #[default]
    Subtracted,
    /// Memory in use only grows, as the listing says.
    AsPrinted,
}

/// What Algorithms 1 and 2 say of one batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// By op: when it can start, with the pinned feature maps pinned.
    pub t_ready: Vec<Seconds>,
    /// The ops for which eq. (6) fails with this `t_ready`; empty where nothing stalls.
    pub violating: Vec<OpId>,
    /// The feature maps that stay on the device, in the order in which they were pinned.
    pub pinned: Vec<TensorId>,
    /// By gap: whether it is swapped.
    swapped: Vec<bool>,
}

impl Verdict {
    /// Whether eq. (6) holds for all layers.
    pub fn satisfied(&self) -> bool {
        self.violating.is_empty()
    }
}

/// What one layer allocates, waits for, computes and releases.
#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    allocated: u64,
    prefetch: f64,
    compute: f64,
    released: u64,
}

/// The layers of a trace in which these gaps are swapped and these stretches are pinned. Pinned ones lie outside of the
/// active area: they are neither allocated nor released in it.
fn layers(gaps: &Gaps, link: &Link, swapped: &[bool], pinned: &[bool]) -> Vec<Layer> {
    let mut layers = vec![Layer::default(); gaps.seconds.len() - 1];
    for (slot, layer) in layers.iter_mut().enumerate() {
        layer.compute = gaps.seconds[slot + 1];
        layer.allocated = gaps.workspace[slot + 1];
        layer.released = gaps.workspace[slot + 1];
    }
    for (live, _) in gaps.lives.iter().zip(pinned).filter(|(_, pinned)| !**pinned) {
        let bytes = live.pieces.last().map_or(0, |p| p.end);
        let first = if live.opens == Opens::Start { 0 } else { live.slots.start as usize - 1 };
        layers[first].allocated += bytes;
        layers[live.slots.end as usize - 2].released += bytes;
    }
    for (gap, _) in gaps.gaps.iter().zip(swapped).filter(|(_, swapped)| **swapped) {
        layers[(gap.after as usize).saturating_sub(1)].released += gap.bytes;
        let user = &mut layers[gap.before as usize - 1];
        user.allocated += gap.bytes;
        user.prefetch += link.seconds(Stream::Prefetch, Bytes(gap.bytes)).0;
    }
    layers
}

/// Algorithm 1: when each layer can start, within `pool` bytes.
fn t_ready(layers: &[Layer], pool: u64, reading: Reading) -> Vec<f64> {
    // Sums of compute seconds and of released bytes through layer j: entry j + 1.
    let mut computed = vec![0.0; layers.len() + 1];
    let mut released = vec![0u64; layers.len() + 1];
    for (j, layer) in layers.iter().enumerate() {
        computed[j + 1] = computed[j] + layer.compute;
        released[j + 1] = released[j].saturating_add(layer.released);
    }
    let mut ready: Vec<f64> = Vec::with_capacity(layers.len());
    let mut allocated = 0u64;
    for layer in layers {
        let Some(&previous) = ready.last() else {
            ready.push(layer.prefetch);
            allocated = layer.allocated;
            continue;
        };
        // The layer that computes at t_ready[j - 1].
        let current = computed[1..].partition_point(|end| *end <= previous).min(layers.len() - 1);
        let used = match reading {
            Reading::AsPrinted => allocated,
            Reading::Subtracted => allocated.saturating_sub(released[current]),
        };
        let wanted = used.saturating_add(layer.allocated);
        ready.push(if wanted <= pool {
            previous + layer.prefetch
        } else {
            let lacks = match reading {
                Reading::AsPrinted => layer.allocated,
                Reading::Subtracted => wanted - pool,
            };
            let target = released[current].saturating_add(lacks);
            let satisfied = current + released[current + 1..].partition_point(|sum| *sum < target);
            computed[(satisfied + 1).min(layers.len())] + layer.prefetch
        });
        allocated = allocated.saturating_add(layer.allocated);
    }
    ready
}

/// The layers for which eq. (6) fails.
fn violating(layers: &[Layer], ready: &[f64]) -> Vec<usize> {
    let mut computed = 0.0;
    let mut violating = Vec::new();
    for (j, (layer, ready)) in layers.iter().zip(ready).enumerate() {
        // A billionth of the time so far is what sums of floats may differ by.
        if *ready > computed * (1.0 + 1e-9) {
            violating.push(j);
        }
        computed += layer.compute;
    }
    violating
}

/// What Algorithms 1 and 2 say of a trace at its batch size, within a budget and behind a link.
pub fn judge(trace: &Trace, budget: Bytes, link: &Link, reading: Reading) -> Verdict {
    let pool = budget.saturating_sub(trace.resident_bytes);
    let gaps = Gaps::new(trace, pool, Ways::BesideOwn, &|_| 1);
    judge_gaps(trace, &gaps, pool.0, link, reading, &Limits::default())
}

/// Where time is up, what was pinned so far is all that is.
fn judge_gaps(
    trace: &Trace,
    gaps: &Gaps,
    pool: u64,
    link: &Link,
    reading: Reading,
    limits: &Limits<'_>,
) -> Verdict {
    let mut swapped = feature_maps(trace, gaps);
    let mut pinned_lives = vec![false; gaps.lives.len()];
    let mut pinned = Vec::new();
    // M_peak(k): the active area.
    let area = gaps.least(&swapped).into_iter().max().unwrap_or_default();
    let mut room = pool.saturating_sub(area);
    let mut within = pool;
    loop {
        let layers = layers(gaps, link, &swapped, &pinned_lives);
        let ready = t_ready(&layers, within, reading);
        let stalled = violating(&layers, &ready);
        within = area;
        let mut more = false;
        for (g, gap) in gaps.gaps.iter().enumerate() {
            let waits = stalled.binary_search(&(gap.before as usize - 1)).is_ok();
            if swapped[g] && waits && gap.bytes <= room {
                room -= gap.bytes;
                swapped[g] = false;
                pinned_lives[gap.live as usize] = true;
                pinned.push(gaps.tensor(g));
                more = true;
            }
        }
        if !more || limits.is_expired() {
            let violating = stalled.into_iter().map(OpId::new).collect();
            return Verdict { t_ready: ready.into_iter().map(Seconds).collect(), violating, pinned, swapped };
        }
    }
}

/// Whether eq. (6) can be met at this batch size: the condition of Algorithm 2's loop.
pub fn satisfies(trace: &Trace, budget: Bytes, link: &Link) -> bool {
    judge(trace, budget, link, Reading::default()).satisfied()
}

pub(crate) fn realise(task: &Task<'_>) -> Result<Realised, PlanError> {
    let gaps = Gaps::new(task.trace, Bytes(task.pool), Ways::BesideOwn, &|_| 1);
    let all = feature_maps(task.trace, &gaps);
    let PlanRequest { link, limits, .. } = task.request;
    let mut swapped = judge_gaps(task.trace, &gaps, task.pool, link, Reading::default(), limits).swapped;
    loop {
        let realised = task.realise(&gaps, &swapped, &GIVEN)?;
        let short = matches!(&realised, Realised::Short(witness) if witness.why == Shortage::Addresses);
        let pinned: Vec<usize> = (0..swapped.len()).filter(|g| all[*g] && !swapped[*g]).collect();
        if !short || pinned.is_empty() {
            return Ok(realised);
        }
        // Addresses do not fit beside so much that is pinned: half of it is swapped after all; all of it if time is up.
        let stays = if limits.is_expired() { 0 } else { pinned.len() / 2 };
        for g in &pinned[stays..] {
            swapped[*g] = true;
        }
    }
}
