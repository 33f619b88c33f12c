//! A trace as the papers see it: a row of layers, and the tensors that each layer's forward pass leaves for the backward pass.
//!
//! A *stage* is a run of consecutive ops of one layer in one phase. Its layer is counted in the order of the forward pass. If a
//! layer's name occurs once in the forward pass, its backward stages have its number; if it occurs several times (an unrolled
//! recurrent network), a backward stage has the number of the last forward stage whose activations it is the first to use, or
//! that of the previous stage.
//!
//! Windows that a policy fixes by its own rules, and not by the memory that is left, become a schedule in
//! [`Case::realise_fixed`]: the streams are synchronised as the policy requires, and nothing else is moved if the budget is too
//! small.

use crate::decide::gaps::{Gap, GapId, Gaps};
use crate::decide::placement::{
    Barrier, Direction, Placement, ResidencyId, Slot, Transfer, TransferId, Window,
};
use crate::levels::Levels;
use crate::place::address::Items;
use crate::place::realise::{Attempt, Case, GIVEN, Realised, fullest};
use crate::request::{Error, Shortage};
use plimsoll_ir::trace::{Op, Phase, Trace};
use plimsoll_ir::{OpId, define_id};
use std::collections::HashMap;
use std::ops::Range;
use typed_index_collections::{TiSlice, TiVec};

define_id!(
    /// Stage of a trace.
    StageId, "stage");

/// Run of consecutive ops of one layer in one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Its slots; not empty.
    pub slots: Range<Slot>,
    /// Number of its layer, from 0.
    pub layer: usize,
    /// `true` if it is part of the forward pass.
    pub forward: bool,
    /// `true` if it has a convolution.
    pub conv: bool,
}

/// Stages of a trace, in order, and by slot its stage; the start belongs to none and has the first.
pub(crate) struct Stages {
    pub stages: TiVec<StageId, Stage>,
    pub of_slot: TiVec<Slot, StageId>,
}

impl Stages {
    /// Returns the stages of a trace.
    pub fn new(trace: &Trace, gaps: &Gaps, maps: &TiSlice<GapId, bool>) -> Stages {
        let mut stages: TiVec<StageId, Stage> = TiVec::new();
        let mut of_slot: TiVec<Slot, StageId> = vec![StageId(0)].into();
        for (i, op) in trace.ops.iter().enumerate() {
            let follows = i > 0 && trace.ops[i - 1].layer == op.layer && trace.ops[i - 1].phase == op.phase;
            let slot = of_slot.next_key();
            if !follows {
                let forward = op.phase == Phase::Forward;
                stages.push(Stage { slots: slot..slot, layer: stages.len(), forward, conv: false });
            }
            let here = stages.last_key().expect("the first op follows none");
            stages[here].slots.end = slot.next();
            stages[here].conv |= op.kind == "conv";
            of_slot.push(here);
        }
        let mut all = Stages { stages, of_slot };
        all.number_backward(trace, gaps, maps);
        all
    }

    /// Returns the number of layers.
    pub fn layers(&self) -> usize {
        self.stages.iter().take_while(|stage| stage.forward).count()
    }

    fn number_backward(&mut self, trace: &Trace, gaps: &Gaps, maps: &TiSlice<GapId, bool>) {
        let layers = self.layers();
        let ops: &TiSlice<OpId, Op> = TiSlice::from_ref(&trace.ops);
        let name = |stage: &Stage| stage.slots.start.op().map_or("", |op| ops[op].layer.as_str());
        let mut named: HashMap<&str, Option<usize>> = HashMap::new();
        for (layer, stage) in self.stages.iter().take(layers).enumerate() {
            named.entry(name(stage)).and_modify(|known| *known = None).or_insert(Some(layer));
        }
        let mut used: TiVec<StageId, Option<StageId>> = vec![None; self.stages.len()].into();
        for (gap, _) in gaps.gaps.iter().zip(maps).filter(|(gap, map)| **map && gap.after > Slot::START) {
            let used = &mut used[self.of_slot[gap.before]];
            *used = (*used).max(Some(self.of_slot[gap.after]));
        }
        let mut last = layers.saturating_sub(1);
        let numbers = self.stages.iter().zip(used).skip(layers).map(|(stage, used)| {
            last = named.get(name(stage)).copied().flatten().or(used.map(StageId::index)).unwrap_or(last);
            last
        });
        let numbers: Vec<usize> = numbers.collect();
        self.stages.iter_mut().skip(layers).zip(numbers).for_each(|(stage, layer)| stage.layer = layer);
    }

    /// Returns the stage of a layer's forward pass.
    pub fn forward(&self, layer: usize) -> &Stage {
        &self.stages[StageId::new(layer)]
    }
}

/// Slots at which a gap's bytes leave and return by a policy's own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub window: Window,
    /// The offload starts no earlier than the slot before which it is listed, and the step of this slot waits for it.
    pub offloaded_by: Option<Slot>,
    /// The prefetch starts no earlier than the slot at which the bytes return, and the step of this slot waits for it; `None` for
    /// the step that uses them.
    pub prefetched_by: Option<Slot>,
}

impl Case<'_> {
    /// Returns the schedule of fixed windows; one entry per gap, `None` for one that is kept. The gaps are of whole tensors.
    pub fn realise_fixed(
        &self,
        gaps: &Gaps,
        fixed: &TiSlice<GapId, Option<Fixed>>,
    ) -> Result<Realised, Error> {
        let windows = windows(fixed);
        let (op, most) = fullest(&needs(gaps, &windows));
        if most > self.pool {
            return Ok(self.short(op, most, Shortage::Policy));
        }
        let swapped: TiVec<GapId, bool> = fixed.iter().map(Option::is_some).collect();
        if self.is_slow(&gaps.course(&swapped).0) {
            return Ok(Realised::Slow);
        }
        let mut placement = gaps.placement(&windows);
        placement.barriers = barriers(gaps, fixed, &placement);
        let items = Items::new(&placement, &gaps.workspace.raw[1..]);
        let [thorough, closer] = [GIVEN[0], GIVEN[9]].map(|a| Attempt { work: self.thorough(), ..a });
        let mut lowest = u64::MAX;
        for attempt in self.useful(&[GIVEN[0], thorough, closer]) {
            if let Some(found) = self.with_addresses(attempt, &mut lowest, &placement, &items)? {
                return Ok(found);
            }
        }
        Ok(self.short(op, lowest, Shortage::Addresses))
    }
}

/// By gap: its window, if it leaves.
pub(crate) fn windows(fixed: &TiSlice<GapId, Option<Fixed>>) -> TiVec<GapId, Option<Window>> {
    fixed.iter().map(|f| f.map(|f| f.window)).collect()
}

/// By slot: pool bytes that it needs with these windows, workspace included.
pub(crate) fn needs(gaps: &Gaps, windows: &TiSlice<GapId, Option<Window>>) -> TiVec<Slot, u64> {
    let mut away = Levels::new(gaps.base.len());
    for (gap, window) in gaps.gaps.iter().zip(windows) {
        if let Some(window) = window {
            away.hold(window.leaves..window.returns, gap.bytes);
        }
    }
    gaps.base.iter().zip(away.sums()).map(|(base, away)| base - away).collect()
}

fn barriers(gaps: &Gaps, fixed: &TiSlice<GapId, Option<Fixed>>, placement: &Placement) -> Vec<Barrier> {
    // By residency: the transfer that ends it. They are in order of stretches and, in each, of gaps.
    let mut ended_by: TiVec<ResidencyId, Option<Fixed>> = TiVec::with_capacity(placement.residencies.len());
    for live in &gaps.lives {
        ended_by.extend(GapId::each(live.gaps.clone()).map(|g| fixed[g]).filter(Option::is_some));
        ended_by.push(None);
    }
    let barrier = |(at, transfer): (TransferId, &Transfer)| {
        let (ends, earlier) = (transfer.residency, transfer.residency.previous());
        let until = match transfer.direction {
            Direction::Offload => ended_by[ends].and_then(|f| f.offloaded_by),
            Direction::Prefetch => earlier.and_then(|r| ended_by[r]).and_then(|f| f.prefetched_by),
        };
        Barrier { transfer: at, from: transfer.before, until }
    };
    placement.transfers.iter_enumerated().map(barrier).collect()
}

/// Returns the window of a gap that leaves while one stage runs, from its start and done at its end, and returns at `returns`, for
/// which the step of the slot `by` waits; `None` if nothing lies between.
pub(crate) fn leaves_during(stage: &Stage, gap: &Gap, returns: Slot, by: Slot) -> Option<Fixed> {
    let leaves = stage.slots.end.max(gap.after.next());
    let offload = Some(stage.slots.start.max(gap.writer.next()));
    let returns = returns.max(leaves);
    let window = Window { leaves, returns, offload };
    let fixed = Fixed { window, offloaded_by: Some(leaves), prefetched_by: Some(by.max(returns)) };
    (leaves < gap.before && returns <= gap.before).then_some(fixed)
}
