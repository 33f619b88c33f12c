//! A trace as a chain, as Euro-Par'20 (Beaumont, Eyraud-Dubois, Shilova) plans it: stages with a forward and a backward
//! part, each leaving x_i for its backward part.
//!
//! The paper groups "each non-linear part of the graph in a virtual layer" (§6.1). Here the forward pass is cut wherever just one
//! tensor made in it (or none) is still to be used by it, or several of which the next user is the same op: the list of features
//! that a layer of DenseNet concatenates is one x, as it is in the torchvision of the paper. Tensors that exist from the start do
//! not count. x_i of stage i is all tensors that are read in stage i for the last time before the backward pass: its input, and
//! the tensors that its virtual layer keeps for its own backward part. The paper does not say where it counts the latter; they
//! have to be stored like the rest. The backward ops belong to the stage whose x_i they are the first to use, those before and
//! between them to the previous stage.
//!
//! x_i is offloaded whole or not at all, and gradients never (assumption A).

use super::naive::feature_maps;
use crate::decide::gaps::{GapId, Gaps};
use crate::decide::placement::Slot;
use crate::decide::windows::Clock;
use crate::place::realise::{Case, GIVEN, Realised};
use crate::request::{Error, Shortage};
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, Seconds, TensorId};
use std::ops::Range;
use typed_index_collections::TiVec;

/// Stage of a chain.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stage {
    /// Gaps of x_i.
    pub gaps: Vec<GapId>,
    /// |x_i| in bytes.
    pub bytes: u64,
    /// F_i and B_i.
    pub forward: Part,
    pub backward: Part,
}

/// Ops of a stage in one direction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// u_F or u_B.
    pub seconds: f64,
    /// Most bytes that the pool holds during it when nothing is offloaded (m_F or m_B of §3.2).
    pub bytes: u64,
    /// Its slots; empty if there are none.
    pub slots: Range<Slot>,
}

impl Part {
    const NONE: Part = Part { seconds: 0.0, bytes: 0, slots: Slot::START..Slot::START };

    fn add(&mut self, gaps: &Gaps, slot: Slot) {
        self.seconds += gaps.seconds[slot];
        self.bytes = self.bytes.max(gaps.base[slot]);
        self.slots = if self.slots.is_empty() { slot } else { self.slots.start }..slot.next();
    }
}

impl Stage {
    const EMPTY: Stage = Stage { gaps: Vec::new(), bytes: 0, forward: Part::NONE, backward: Part::NONE };
}

/// Returns the chain of a trace: its stages in the order of the forward pass. Empty for a trace without forward ops.
pub(crate) fn chain(trace: &Trace, gaps: &Gaps) -> Vec<Stage> {
    let forward = Slot::new(trace.ops.iter().take_while(|op| op.phase == Phase::Forward).count());
    if forward == Slot::START {
        return Vec::new();
    }
    let cuts = cuts(trace, forward);
    // By slot of the forward pass: its stage. The start belongs to the first.
    let mut stage_of: TiVec<Slot, usize> = vec![0].into();
    let mut stages = vec![Stage::EMPTY];
    for slot in Slot::each(Slot(1)..forward.next()) {
        let at = stages.len() - 1;
        stage_of.push(at);
        stages[at].forward.add(gaps, slot);
        if cuts[slot] && slot < forward {
            stages.push(Stage::EMPTY);
        }
    }
    let mut first_used: TiVec<Slot, Option<usize>> = vec![None; gaps.base.len()].into();
    for (g, map) in feature_maps(trace, gaps).into_iter_enumerated() {
        let gap = &gaps.gaps[g];
        if map {
            let stage = stage_of[gap.after];
            stages[stage].gaps.push(g);
            stages[stage].bytes += gap.bytes;
            let first = &mut first_used[gap.before];
            *first = Some(first.map_or(stage, |f: usize| f.min(stage)));
        }
    }
    let mut at = stages.len() - 1;
    for slot in Slot::each(forward.next()..first_used.next_key()) {
        at = first_used[slot].map_or(at, |stage| at.min(stage));
        stages[at].backward.add(gaps, slot);
    }
    stages
}

/// By slot: `true` if all tensors that were made until its end, and are still to be used by the forward pass, are next used by
/// the same op.
fn cuts(trace: &Trace, forward: Slot) -> TiVec<Slot, bool> {
    // By boundary: the number of tensors, and the sums of the slots of their next uses and of the squares of these. All are equal
    // exactly if the number times the sum of squares is the square of the sum.
    let mut sums: TiVec<Slot, [i128; 3]> = vec![[0; 3]; forward.index() + 2].into();
    let mut last: TiVec<TensorId, Option<Slot>> = vec![None; trace.tensors.len()].into();
    for (slot, op) in Slot::each(Slot(1)..forward.next()).zip(&trace.ops) {
        for t in op.touches().filter(|t| trace.tensors[t.index()].bytes > Bytes::ZERO) {
            let written = op.writes.contains(&t);
            let Some(before) = last[t] else {
                // Tensors read before they are written exist from the start.
                last[t] = Some(if op.reads.contains(&t) { Slot::START } else { slot });
                continue;
            };
            if before > Slot::START && (!written || op.reads.contains(&t)) {
                let number = i128::from(slot.0);
                for (k, value) in [1, number, number * number].into_iter().enumerate() {
                    sums[before][k] += value;
                    sums[slot][k] -= value;
                }
            }
            last[t] = Some(if before == Slot::START && !written { Slot::START } else { slot });
        }
    }
    let mut sum = [0i128; 3];
    let equal = |change: [i128; 3]| {
        sum.iter_mut().zip(change).for_each(|(sum, change)| *sum += change);
        sum[0] * sum[2] == sum[1] * sum[1]
    };
    sums.into_iter().map(equal).collect()
}

/// By slot: time at which its op ends if nothing stalls.
pub(crate) fn ended(gaps: &Gaps) -> TiVec<Slot, f64> {
    let mut sum = 0.0;
    let end = |seconds: &f64| {
        sum += seconds;
        sum
    };
    gaps.seconds.iter().map(end).collect()
}

/// By gap: `true` if it belongs to one of these stages.
pub(crate) fn swapped(gaps: &Gaps, stages: &[Stage], offloaded: &[bool]) -> TiVec<GapId, bool> {
    let mut swapped = gaps.none();
    let chosen = stages.iter().zip(offloaded).filter(|(_, offloaded)| **offloaded);
    chosen.flat_map(|(stage, _)| &stage.gaps).for_each(|g| swapped[*g] = true);
    swapped
}

impl Case<'_> {
    /// Realises, of several sets of offloaded stages, the one that is fastest as the no-wait schedule of Proposition 1. If its
    /// addresses do not fit, the next; if no set fits, the one that comes nearest. When time is up, the choice is among those
    /// tried.
    pub(crate) fn realise_fastest(
        &self,
        gaps: &Gaps,
        stages: &[Stage],
        sets: impl IntoIterator<Item = Vec<bool>>,
    ) -> Result<Realised, Error> {
        let mut clock = Clock::new(&self.request.link);
        let mut costs: Vec<(u64, Seconds, u64, Vec<bool>)> = Vec::new();
        for set in sets {
            let cost = clock.evaluate(&gaps.course(&swapped(gaps, stages, &set)).0, self.pool);
            costs.push((cost.overflow, Seconds(cost.seconds), cost.moved, set));
            if self.request.limits.is_expired() {
                break;
            }
        }
        costs.sort_by(|(overflow, seconds, moved, set), other| {
            let slower = seconds.0.total_cmp(&other.1.0);
            overflow.cmp(&other.0).then(slower).then_with(|| (moved, set).cmp(&(&other.2, &other.3)))
        });
        costs.dedup();
        costs.truncate(TRIED);
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
            // Not even one stage: the kept tensors decide.
            None => self.realise(gaps, &gaps.none(), &GIVEN),
        }
    }
}

/// Maximum number of sets that are given addresses.
const TRIED: usize = 4;
