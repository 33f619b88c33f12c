//! A trace as a chain, as Euro-Par'20 (Beaumont, Eyraud-Dubois, Shilova) plans it: stages with a forward and a backward
//! part, each leaving x_i for its backward part.
//!
//! The paper groups "each non-linear part of the graph in a virtual layer" (§6.1). Here the forward pass is cut wherever just
//! one tensor made in it (or none) is still to be used by it, or several of which the next user is the same op: the list of
//! features that a layer of DenseNet concatenates is one x, as it is in the torchvision of the paper. What was there from the
//! start does not count. x_i of stage i is all that is read in stage i for the last time before the backward pass: its input,
//! and what its virtual layer keeps for its own backward part. The paper does not say where it counts the latter; it has to
//! be stored like the rest. The backward ops belong to the stage whose x_i they are the first to use, those before and
//! between them to the stage before.
//!
//! x_i is offloaded whole or not at all, and gradients never (assumption A).

use super::naive::feature_maps;
use crate::decide::gaps::Gaps;
use crate::decide::windows::Clock;
use crate::place::realise::{GIVEN, Realised, Task};
use crate::request::{PlanError, Shortage};
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, Seconds};

/// One stage of a chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stage {
    /// The gaps of x_i.
    pub gaps: Vec<u32>,
    /// |x_i| in bytes.
    pub bytes: u64,
    /// u_F and u_B in seconds.
    pub forward_seconds: f64,
    pub backward_seconds: f64,
    /// The most that the pool holds during F_i and B_i when nothing is offloaded (m_F and m_B of §3.2), in bytes.
    pub forward_bytes: u64,
    pub backward_bytes: u64,
    /// The slots of F_i and B_i, half-open.
    pub forward_slots: (u32, u32),
    pub backward_slots: (u32, u32),
}

impl Stage {
    fn forward(&mut self, gaps: &Gaps, slot: u32) {
        self.forward_seconds += gaps.seconds[slot as usize];
        self.forward_bytes = self.forward_bytes.max(gaps.base[slot as usize]);
        self.forward_slots = (if self.forward_slots.1 == 0 { slot } else { self.forward_slots.0 }, slot + 1);
    }

    fn backward(&mut self, gaps: &Gaps, slot: u32) {
        self.backward_seconds += gaps.seconds[slot as usize];
        self.backward_bytes = self.backward_bytes.max(gaps.base[slot as usize]);
        self.backward_slots =
            (if self.backward_slots.1 == 0 { slot } else { self.backward_slots.0 }, slot + 1);
    }
}

/// The chain of a trace: its stages in the order of the forward pass. Empty for a trace without forward ops.
pub(crate) fn chain(trace: &Trace, gaps: &Gaps) -> Vec<Stage> {
    let forward = trace.ops.iter().take_while(|op| op.phase == Phase::Forward).count();
    let mut stage_of = vec![0usize; forward + 1];
    let cuts = cuts(trace, forward);
    let mut at = 0;
    for slot in 1..=forward {
        stage_of[slot] = at;
        at += usize::from(cuts[slot] && slot < forward);
    }
    let mut stages = vec![Stage::default(); if forward > 0 { at + 1 } else { 0 }];
    if stages.is_empty() {
        return stages;
    }
    for slot in 1..=forward {
        stages[stage_of[slot]].forward(gaps, slot as u32);
    }
    let mut first_used: Vec<Option<usize>> = vec![None; gaps.base.len()];
    for (g, map) in feature_maps(trace, gaps).into_iter().enumerate() {
        let gap = &gaps.gaps[g];
        if map {
            let stage = stage_of[(gap.after as usize).max(1)];
            stages[stage].gaps.push(g as u32);
            stages[stage].bytes += gap.bytes;
            let first = &mut first_used[gap.before as usize];
            *first = Some(first.map_or(stage, |f: usize| f.min(stage)));
        }
    }
    let mut at = stages.len() - 1;
    for (slot, first) in first_used.iter().enumerate().skip(forward + 1) {
        at = first.map_or(at, |stage| at.min(stage));
        stages[at].backward(gaps, slot as u32);
    }
    stages
}

/// By slot: whether all tensors that were made until its end, and are still to be used by the forward pass, are next used
/// by the same op.
fn cuts(trace: &Trace, forward: usize) -> Vec<bool> {
    // By boundary: how many there are, and the sums of the slots of their next uses and of the squares of these. All are
    // equal where the number times the sum of squares is the square of the sum, and only there.
    let mut sums = vec![[0i128; 3]; forward + 2];
    let mut last: Vec<Option<usize>> = vec![None; trace.tensors.len()];
    for (i, op) in trace.ops[..forward].iter().enumerate() {
        let slot = i + 1;
        for t in op.touches().filter(|t| trace.tensors[t.index()].bytes > Bytes::ZERO) {
            let written = op.writes.contains(&t);
            let Some(before) = last[t.index()] else {
                // What is read before it is written was there from the start.
                last[t.index()] = Some(if op.reads.contains(&t) { 0 } else { slot });
                continue;
            };
            if before > 0 && (!written || op.reads.contains(&t)) {
                for (k, value) in [1, slot as i128, (slot * slot) as i128].into_iter().enumerate() {
                    sums[before][k] += value;
                    sums[slot][k] -= value;
                }
            }
            last[t.index()] = Some(if before == 0 && !written { 0 } else { slot });
        }
    }
    let mut sum = [0i128; 3];
    let equal = |change: [i128; 3]| {
        sum.iter_mut().zip(change).for_each(|(sum, change)| *sum += change);
        sum[0] * sum[2] == sum[1] * sum[1]
    };
    sums.into_iter().map(equal).collect()
}

/// By gap: whether it is of one of these stages.
pub(crate) fn swapped(gaps: &Gaps, stages: &[Stage], offloaded: &[bool]) -> Vec<bool> {
    let mut swapped = vec![false; gaps.gaps.len()];
    let chosen = stages.iter().zip(offloaded).filter(|(_, offloaded)| **offloaded);
    chosen.flat_map(|(stage, _)| &stage.gaps).for_each(|g| swapped[*g as usize] = true);
    swapped
}

impl Task<'_> {
    /// Of several sets of offloaded stages the one that is fastest as the no-wait schedule of Proposition 1. Where its
    /// addresses do not fit, the next; where no set fits, the one that comes nearest. When time is up, of those until then.
    pub(crate) fn realise_fastest(
        &self,
        gaps: &Gaps,
        stages: &[Stage],
        sets: impl IntoIterator<Item = Vec<bool>>,
    ) -> Result<Realised, PlanError> {
        type Costly = (u64, Seconds, u64, Vec<bool>);
        let mut clock = Clock::new(&self.request.link);
        let order = |a: &Costly, b: &Costly| {
            a.0.cmp(&b.0).then(a.1.0.total_cmp(&b.1.0)).then(a.2.cmp(&b.2)).then_with(|| a.3.cmp(&b.3))
        };
        let mut costs: Vec<Costly> = Vec::with_capacity(TRIED + 1);
        for set in sets {
            let cost = clock.evaluate(&gaps.course(&swapped(gaps, stages, &set)).0, self.pool);
            let cost = (cost.overflow, Seconds(cost.seconds), cost.moved, set);
            if let Err(at) = costs.binary_search_by(|other| order(other, &cost)) {
                costs.insert(at, cost);
                costs.truncate(TRIED);
            }
            if self.request.limits.is_expired() {
                break;
            }
        }
        let mut nearest: Option<Realised> = None;
        for (_, _, _, set) in &costs {
            let found = self.realise(gaps, &swapped(gaps, stages, set), &GIVEN)?;
            match &found {
                Realised::Short(witness) if witness.why == Shortage::Addresses => {
                    nearest.get_or_insert(found);
                }
                _ => return Ok(nearest.filter(|_| matches!(found, Realised::Short(_))).unwrap_or(found)),
            }
        }
        match nearest {
            Some(nearest) => Ok(nearest),
            // Not even one stage: what is kept decides.
            None => self.realise(gaps, &vec![false; gaps.gaps.len()], &GIVEN),
        }
    }
}

/// How many sets are given addresses, at most.
const TRIED: usize = 4;
