//! A trace as the papers see it: a row of layers, and what each layer's forward pass leaves for the backward pass.
//!
//! A *stage* is a run of consecutive ops of one layer in one phase. Its layer is counted in the order of the forward
//! pass. Where a layer's name stands once in the forward pass, its backward stages bear its number; where it stands there
//! several times (an unrolled recurrent network), a backward stage bears the number of the last forward stage whose
//! feature maps it is the first to use, or that of the stage before it.
//!
//! Windows that a policy fixes by its own rules, and not by the memory that is left, become a schedule in
//! [`Task::realise_fixed`]: the streams are synchronised as the policy says, and a budget that this does not fit is no
//! reason to move anything.

use crate::decide::gaps::{Gap, Gaps};
use crate::decide::placement::{Barrier, Direction, Placement, Window};
use crate::place::address::{ALIGNMENT, Items, assign};
use crate::place::realise::{LIGHT, Realised, Task};
use crate::request::{PlanError, Shortage};
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Bytes, OpId};
use std::collections::HashMap;
use std::ops::Range;

/// A run of consecutive ops of one layer in one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Its slots; not empty.
    pub slots: Range<u32>,
    /// The number of its layer, from 0.
    pub layer: usize,
    /// It is of the forward pass.
    pub forward: bool,
    /// It has a convolution.
    pub conv: bool,
}

/// The stages of a trace, in order, and by slot the position of its stage; slot 0 belongs to none and bears 0.
pub(crate) struct Stages {
    pub stages: Vec<Stage>,
    pub of_slot: Vec<u32>,
}

impl Stages {
    pub fn new(trace: &Trace, gaps: &Gaps, maps: &[bool]) -> Stages {
        let mut stages: Vec<Stage> = Vec::new();
        let mut of_slot = vec![0];
        for (i, op) in trace.ops.iter().enumerate() {
            let follows = i > 0 && trace.ops[i - 1].layer == op.layer && trace.ops[i - 1].phase == op.phase;
            let slot = i as u32 + 1;
            if !follows {
                let forward = op.phase == Phase::Forward;
                stages.push(Stage { slots: slot..slot, layer: stages.len(), forward, conv: false });
            }
            let stage = stages.last_mut().expect("the first op follows none");
            stage.slots.end = slot + 1;
            stage.conv |= op.kind == "conv";
            of_slot.push(stages.len() as u32 - 1);
        }
        let mut all = Stages { stages, of_slot };
        all.number_backward(trace, gaps, maps);
        all
    }

    /// How many layers there are.
    pub fn layers(&self) -> usize {
        self.stages.iter().take_while(|stage| stage.forward).count()
    }

    fn number_backward(&mut self, trace: &Trace, gaps: &Gaps, maps: &[bool]) {
        let layers = self.layers();
        let name = |stage: &Stage| trace.ops[stage.slots.start as usize - 1].layer.as_str();
        let mut named: HashMap<&str, Option<usize>> = HashMap::new();
        for (layer, stage) in self.stages[..layers].iter().enumerate() {
            named.entry(name(stage)).and_modify(|known| *known = None).or_insert(Some(layer));
        }
        let mut used = vec![None; self.stages.len()];
        for (gap, _) in gaps.gaps.iter().zip(maps).filter(|(gap, map)| **map && gap.after > 0) {
            let stage = self.of_slot[gap.before as usize] as usize;
            used[stage] = used[stage].max(Some(self.of_slot[gap.after as usize] as usize));
        }
        let mut last = layers.saturating_sub(1);
        let numbers = self.stages.iter().zip(used).skip(layers).map(|(stage, used)| {
            last = named.get(name(stage)).copied().flatten().or(used).unwrap_or(last);
            last
        });
        let numbers: Vec<usize> = numbers.collect();
        self.stages[layers..].iter_mut().zip(numbers).for_each(|(stage, layer)| stage.layer = layer);
    }

    /// The position of the stage of a slot.
    pub fn at(&self, slot: u32) -> usize {
        self.of_slot[slot as usize] as usize
    }
}

/// When a gap's bytes leave and return by a policy's own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub window: Window,
    /// The offload starts no earlier than the slot before which it is listed, and the step of this slot waits for it.
    pub offloaded_by: Option<u32>,
    /// The prefetch starts no earlier than the slot at which the bytes return, and the step of this slot waits for it;
    /// none for the one that uses them.
    pub prefetched_by: Option<u32>,
}

impl Task<'_> {
    /// The schedule of fixed windows; one entry a gap, none for one that is kept. The gaps are of whole tensors.
    pub fn realise_fixed(&self, gaps: &Gaps, fixed: &[Option<Fixed>]) -> Result<Realised, PlanError> {
        let windows: Vec<Option<Window>> = fixed.iter().map(|f| f.map(|f| f.window)).collect();
        let needs = needs(gaps, &windows);
        let fullest = needs.iter().enumerate().rev().max_by_key(|(_, bytes)| **bytes);
        if let Some((slot, most)) = fullest.filter(|(_, most)| **most > self.pool) {
            let needs = Bytes(*most) + self.trace.resident_bytes;
            let op = OpId::new(slot.saturating_sub(1));
            return Ok(Realised::Short(self.witness(op, needs, Shortage::Policy)));
        }
        let swapped: Vec<bool> = fixed.iter().map(Option::is_some).collect();
        if self.is_slow(&gaps.course(&swapped).0) {
            return Ok(Realised::Slow);
        }
        let mut placement = gaps.placement(&windows);
        placement.barriers = barriers(gaps, fixed, &placement);
        let items = Items::new(&placement, &gaps.workspace[1..]);
        let mut lowest = u64::MAX;
        for (alignment, work) in [(ALIGNMENT, LIGHT), (ALIGNMENT, self.thorough()), (1, self.thorough())] {
            let addresses = assign(&items.items, self.pool, alignment, self.work(work), self.request.seed);
            lowest = lowest.min(addresses.height);
            if addresses.height <= self.pool {
                return self.finish(&placement, &items, &addresses);
            }
        }
        let op = fullest.map_or(OpId(0), |(slot, _)| OpId::new(slot.saturating_sub(1)));
        let needs = Bytes(lowest) + self.trace.resident_bytes;
        Ok(Realised::Short(self.witness(op, needs, Shortage::Addresses)))
    }
}

/// The pool bytes that every slot needs with these windows, workspace included.
pub(crate) fn needs(gaps: &Gaps, windows: &[Option<Window>]) -> Vec<u64> {
    let mut change = vec![0i64; gaps.base.len() + 1];
    for (gap, window) in gaps.gaps.iter().zip(windows) {
        if let Some(window) = window {
            change[window.leaves as usize] -= gap.bytes as i64;
            change[window.returns as usize] += gap.bytes as i64;
        }
    }
    let mut sum = 0;
    let with = |(base, change): (&u64, i64)| {
        sum += change;
        (*base as i64 + sum) as u64
    };
    gaps.base.iter().zip(change).map(with).collect()
}

fn barriers(gaps: &Gaps, fixed: &[Option<Fixed>], placement: &Placement) -> Vec<Barrier> {
    // By residency: what ends it. They stand in order of stretches and, in each, of gaps.
    let mut ended_by: Vec<Option<Fixed>> = Vec::with_capacity(placement.residencies.len());
    for live in &gaps.lives {
        let first = live.first_gap as usize;
        ended_by.extend(fixed[first..first + live.gaps_each as usize].iter().filter(|f| f.is_some()));
        ended_by.push(None);
    }
    let barrier = |(at, transfer): (usize, &crate::decide::placement::Transfer)| {
        let (ends, earlier) = (transfer.residency as usize, (transfer.residency as usize).checked_sub(1));
        let until = match transfer.direction {
            Direction::Offload => ended_by[ends].and_then(|f| f.offloaded_by),
            Direction::Prefetch => earlier.and_then(|r| ended_by[r]).and_then(|f| f.prefetched_by),
        };
        Barrier { transfer: at as u32, from: transfer.before, until }
    };
    placement.transfers.iter().enumerate().map(barrier).collect()
}

/// The window of a gap that leaves while one stage runs, from its start and done at its end, and returns at `returns`;
/// none where nothing lies between.
pub(crate) fn leaves_during(stage: &Stage, gap: &Gap, returns: u32) -> Option<Window> {
    let leaves = stage.slots.end.max(gap.after + 1);
    let offload = Some(stage.slots.start.max(gap.writer + 1));
    let returns = returns.max(leaves);
    (leaves < gap.before && returns <= gap.before).then_some(Window { leaves, returns, offload })
}
