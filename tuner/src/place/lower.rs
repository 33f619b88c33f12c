//! Lowering of a placement with addresses to a schedule: the list of commands, the buffers, and only the waits that validity
//! needs.
//!
//! A command must come after
//! - the commands that filled the bytes that it reads (a compute, or a prefetch),
//! - for a prefetch, the offloads that put its bytes on the host and all earlier ones of the tensor; for an offload,
//!   earlier prefetches of the tensor and the step that last wrote it; for an in-place update, earlier offloads of it,
//! - the commands that fill other copies of the bytes that it touches, if recomputed ops have made several,
//! - every command that closes a buffer in whose bytes it opens one,
//! - the commands that a policy's own [`Barrier`] names.
//!
//! Nothing else orders the streams. Of these, a wait is written only if the order of the streams and the other waits do not imply
//! it already, which a vector clock over the three streams shows; so no command has more than two waits.
//!
//! This file deliberately neither decides nor trusts itself: [`plimsoll_ir::check`] verifies its schedules.

use crate::decide::placement::{
    Barrier, Direction, Opens, Placement, Residency, ResidencyId, Slot, Step, Transfer, TransferId,
};
use crate::iteration::uses::{Uses, ValueId};
use crate::place::address::{Addresses, Items};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, CommandId, TensorId};
use std::collections::BTreeMap;
use std::ops::Range;
use typed_index_collections::TiVec;

fn unused(residency: ResidencyId, tensor: TensorId) -> String {
    format!("the {residency} of {tensor} is never used")
}

/// Returns the schedule, or the reason why the placement cannot be lowered: a bug in the policy that made it. `addresses` are those
/// of `items`, which are those of `placement`.
pub fn lower(
    trace: &Trace,
    placement: &Placement,
    items: &Items,
    addresses: &Addresses,
    budget: Bytes,
    link: Link,
) -> Result<Schedule, String> {
    let mut lowering = Lowering::new(trace, placement, items, addresses);
    lowering.open_start();
    let mut transfers = placement.transfers.iter_enumerated().peekable();
    for (slot, step) in (1..).map(Slot).zip(&placement.steps) {
        while let Some((at, transfer)) = transfers.next_if(|(_, t)| t.before <= slot) {
            lowering.transfer(at, *transfer)?;
        }
        lowering.step(slot, *step)?;
    }
    for (at, transfer) in transfers {
        lowering.transfer(at, *transfer)?;
    }
    let buffers = lowering.buffers()?;
    Ok(Schedule {
        kind: ScheduleKind,
        trace: trace.name.clone(),
        batch: trace.batch,
        budget_bytes: budget,
        pool_bytes: Bytes(addresses.height),
        link,
        commands: lowering.list.commands.into(),
        buffers,
    })
}

/// State of a residency while the list is made.
#[derive(Clone, Debug, Default)]
struct ResidencyState {
    /// Command that filled it; `None` if it was on the device from the start.
    filled: Option<CommandId>,
    /// Its first command, which opens the buffer.
    opened: Option<CommandId>,
    /// Value that it holds; `None` until it is filled.
    value: Option<ValueId>,
    /// Last step that wrote it in place, or filled it.
    written: Option<CommandId>,
    /// Last step that used it.
    used: Option<CommandId>,
    offloaded: Option<CommandId>,
}

/// State of a tensor while the list is made.
#[derive(Clone, Debug, Default)]
struct TensorState {
    open: Vec<ResidencyId>,
    /// Copies on the host, latest last.
    host: Vec<HostCopy>,
    /// Last prefetch, last offload, last update in place.
    fetched: Option<CommandId>,
    offloaded: Option<CommandId>,
    updated: Option<CommandId>,
}

/// State of a slot while the list is made.
#[derive(Clone, Debug, Default)]
struct SlotState {
    /// Residencies that its step writes into new buffers.
    fresh: Vec<ResidencyId>,
    /// Transfers that its step waits for because of a policy's own barriers.
    due: Vec<CommandId>,
    /// Command of its step.
    stepped: Option<CommandId>,
}

/// Bytes of a tensor that the host holds.
#[derive(Clone, Debug)]
struct HostCopy {
    bytes: Range<u64>,
    value: ValueId,
    command: CommandId,
}

/// Returns `true` if two parts of a tensor share a byte.
fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

struct Lowering<'a> {
    trace: &'a Trace,
    placement: &'a Placement,
    items: &'a Items,
    addresses: &'a Addresses,
    uses: Uses,
    /// Synchronisation of each transfer.
    barriers: TiVec<TransferId, Option<Barrier>>,
    list: List,
    residencies: TiVec<ResidencyId, ResidencyState>,
    tensors: TiVec<TensorId, TensorState>,
    slots: TiVec<Slot, SlotState>,
    /// Commands that have a workspace, with its offset.
    workspaces: Vec<(CommandId, u64)>,
    pool: PoolMap,
}

/// Commands so far.
#[derive(Default)]
struct List {
    commands: TiVec<CommandId, Command>,
    /// By command: number of commands of each stream that have ended before it starts.
    clocks: TiVec<CommandId, [u32; 3]>,
    /// By command: number of earlier commands of its stream.
    positions: TiVec<CommandId, u32>,
    /// By stream: its last command, and its number of commands.
    last: [Option<CommandId>; 3],
    counts: [u32; 3],
}

/// Last occupant of every byte of the pool: a residency, or a workspace by its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupant {
    Residency(ResidencyId),
    Workspace(CommandId),
}

#[derive(Default)]
struct PoolMap(BTreeMap<u64, (u64, Occupant)>);

impl PoolMap {
    /// Puts `who` at these bytes and returns the previous occupants.
    fn replace(&mut self, Range { start: first, end }: Range<u64>, who: Occupant) -> Vec<Occupant> {
        let start =
            self.0.range(..=first).next_back().filter(|(_, v)| v.0 > first).map_or(first, |(k, _)| *k);
        let met: Vec<(u64, (u64, Occupant))> = self.0.range(start..end).map(|(k, v)| (*k, *v)).collect();
        for &(from, (until, occupant)) in &met {
            self.0.remove(&from);
            if from < first {
                self.0.insert(from, (first, occupant));
            }
            if until > end {
                self.0.insert(end, (until, occupant));
            }
        }
        self.0.insert(first, (end, who));
        met.into_iter().map(|(_, (_, occupant))| occupant).collect()
    }
}

impl<'a> Lowering<'a> {
    fn new(
        trace: &'a Trace,
        placement: &'a Placement,
        items: &'a Items,
        addresses: &'a Addresses,
    ) -> Lowering<'a> {
        let mut slots: TiVec<Slot, SlotState> = vec![SlotState::default(); placement.steps.len() + 1].into();
        for (r, residency) in placement.residencies.iter_enumerated() {
            if residency.opens == Opens::Written {
                slots[residency.slots.start].fresh.push(r);
            }
        }
        let mut barriers: TiVec<TransferId, Option<Barrier>> = vec![None; placement.transfers.len()].into();
        for barrier in &placement.barriers {
            barriers[barrier.transfer] = Some(*barrier);
        }
        Lowering {
            trace,
            placement,
            items,
            addresses,
            uses: Uses::of(trace),
            barriers,
            list: List::default(),
            residencies: vec![ResidencyState::default(); placement.residencies.len()].into(),
            tensors: vec![TensorState::default(); trace.tensors.len()].into(),
            slots,
            workspaces: Vec::new(),
            pool: PoolMap::default(),
        }
    }

    /// Returns the offset of a residency's tensor in the pool.
    fn offset(&self, r: ResidencyId) -> u64 {
        self.addresses.offsets[self.items.of_residency[r]]
    }

    /// Returns the first byte and the number of bytes of a part of a tensor; `None` if it is all of it.
    fn part(&self, tensor: TensorId, bytes: &Range<u64>) -> (Option<Bytes>, Option<Bytes>) {
        let whole = *bytes == (0..self.trace.tensors[tensor.index()].bytes.0);
        let part = (!whole).then_some((Bytes(bytes.start), Bytes(bytes.end - bytes.start)));
        part.unzip()
    }

    /// Puts a residency into the pool and adds the commands that close the previous occupants to `after`.
    fn take(&mut self, r: ResidencyId, after: &mut Vec<CommandId>) {
        let Residency { tensor, bytes, .. } = &self.placement.residencies[r];
        let offset = self.offset(r);
        self.occupy(offset + bytes.start..offset + bytes.end, Occupant::Residency(r), after);
        self.tensors[*tensor].open.push(r);
    }

    /// Puts `who` at these bytes and adds the commands that close the previous occupants to `after`.
    fn occupy(&mut self, bytes: Range<u64>, who: Occupant, after: &mut Vec<CommandId>) {
        for occupant in self.pool.replace(bytes, who) {
            match occupant {
                Occupant::Workspace(command) => after.push(command),
                Occupant::Residency(r) => {
                    let state = &self.residencies[r];
                    after.extend(state.used.iter().chain(&state.offloaded));
                }
            }
        }
    }

    fn open_start(&mut self) {
        let there = self.uses.at_start();
        for (r, residency) in self.placement.residencies.iter_enumerated() {
            if residency.opens == Opens::Start {
                self.take(r, &mut Vec::new());
                self.residencies[r].value = there.get(&residency.tensor).copied();
            }
        }
    }

    fn transfer(&mut self, at: TransferId, transfer: Transfer) -> Result<(), String> {
        let r = transfer.residency;
        let Residency { tensor, bytes, .. } = self.placement.residencies[r].clone();
        let (state, of_tensor) = (&self.residencies[r], &self.tensors[tensor]);
        let nothing = format!("a transfer of {tensor} before {} has nothing to copy", transfer.before);
        let (first_byte, length) = self.part(tensor, &bytes);
        let waits = Vec::new();
        let mut after = Vec::new();
        let barrier = self.barriers[at];
        let step_before = barrier.and_then(|barrier| barrier.from.previous());
        after.extend(step_before.and_then(|slot| self.slots[slot].stepped));
        let command;
        match transfer.direction {
            Direction::Offload => {
                let value = state.value.ok_or(nothing)?;
                after.extend(state.filled.iter().chain(&state.written).chain(&of_tensor.fetched));
                after.extend(of_tensor.updated);
                let meets = |r: &&ResidencyId| {
                    let other = &self.placement.residencies[**r];
                    meet(&other.bytes, &bytes) && other.slots.end >= transfer.before
                };
                let copies = of_tensor.open.iter().filter(meets);
                after.extend(copies.filter_map(|r| self.residencies[*r].filled));
                let offload = Command::Offload { tensor, first_byte, bytes: length, waits };
                command = self.list.append(offload, &after);
                self.residencies[r].offloaded = Some(command);
                let of_tensor = &mut self.tensors[tensor];
                of_tensor.offloaded = Some(command);
                of_tensor.host.push(HostCopy { bytes, value, command });
            }
            Direction::Prefetch => {
                let copies = of_tensor.host.iter().rev();
                let mut copies = copies.filter(|copy| meet(&copy.bytes, &bytes)).peekable();
                let value = copies.peek().map(|c| c.value).ok_or(nothing)?;
                // Pieces of a tensor never move in both directions at a time.
                after.extend(of_tensor.offloaded);
                // All copies since a whole one: pieces may have come from several offloads.
                for copy in copies {
                    after.push(copy.command);
                    if copy.bytes.start <= bytes.start && bytes.end <= copy.bytes.end {
                        break;
                    }
                }
                self.take(r, &mut after);
                let prefetch = Command::Prefetch { tensor, first_byte, bytes: length, waits };
                command = self.list.append(prefetch, &after);
                let state = &mut self.residencies[r];
                (state.filled, state.opened, state.value) = (Some(command), Some(command), Some(value));
                self.tensors[tensor].fetched = Some(command);
            }
        }
        if let Some(slot) = barrier.and_then(|barrier| barrier.until) {
            self.slots[slot].due.push(command);
        }
        Ok(())
    }

    /// Returns the open residencies that hold this value, if together they hold all of it.
    fn holding(&mut self, slot: Slot, value: ValueId) -> Result<Vec<ResidencyId>, String> {
        let tensor = self.uses.tensor[value];
        let Lowering { tensors, residencies, placement, .. } = self;
        let open = &mut tensors[tensor].open;
        open.retain(|r| placement.residencies[*r].slots.end > slot);
        let holds = |r: &&ResidencyId| residencies[**r].value == Some(value);
        let found: Vec<ResidencyId> = open.iter().filter(holds).copied().collect();
        let bytes: u64 =
            found.iter().map(|r| &placement.residencies[*r].bytes).map(|b| b.end - b.start).sum();
        if bytes == self.trace.tensors[tensor.index()].bytes.0 {
            Ok(found)
        } else {
            Err(format!("step {} needs {value} of {tensor}, which is not on the device then", slot.0 - 1))
        }
    }

    fn step(&mut self, slot: Slot, step: Step) -> Result<(), String> {
        let (reads, writes) = (self.uses.reads[step.op].clone(), self.uses.writes[step.op].clone());
        let mut after = std::mem::take(&mut self.slots[slot].due);
        let mut used = Vec::new();
        let (mut updated, mut in_place) = (Vec::new(), Vec::new());
        for value in reads {
            let tensor = self.uses.tensor[value];
            let holding = self.holding(slot, value)?;
            let of_tensor = &self.tensors[tensor];
            after.extend(of_tensor.open.iter().filter_map(|r| self.residencies[*r].filled));
            used.extend(&holding);
            if let Some(made) = writes.iter().find(|made| self.uses.tensor[**made] == tensor) {
                after.extend(of_tensor.offloaded);
                updated.extend(holding.iter().map(|r| (*r, *made)));
                in_place.push(tensor);
            }
        }
        let fresh = std::mem::take(&mut self.slots[slot].fresh);
        for &r in &fresh {
            self.take(r, &mut after);
            let tensor = self.placement.residencies[r].tensor;
            let made = writes.iter().find(|made| self.uses.tensor[**made] == tensor);
            updated.push((r, *made.ok_or_else(|| unused(r, tensor))?));
            used.push(r);
        }
        if let Some((item, bytes)) = self.items.of_step[slot.index() - 1] {
            let offset = self.addresses.offsets[item];
            let command = self.list.commands.next_key();
            self.occupy(offset..offset + bytes, Occupant::Workspace(command), &mut after);
            self.workspaces.push((command, offset));
        }
        let command = Command::Compute {
            op: step.op,
            again: step.again,
            alternative: step.alternative,
            waits: Vec::new(),
        };
        let command = self.list.append(command, &after);
        self.slots[slot].stepped = Some(command);
        in_place.iter().for_each(|t| self.tensors[*t].updated = Some(command));
        for r in used {
            self.residencies[r].used = Some(command);
        }
        for (r, value) in updated {
            let state = &mut self.residencies[r];
            (state.value, state.written) = (Some(value), Some(command));
        }
        for r in fresh {
            let state = &mut self.residencies[r];
            (state.filled, state.opened) = (Some(command), Some(command));
        }
        Ok(())
    }

    fn buffers(&self) -> Result<Vec<Buffer>, String> {
        let mut buffers = Vec::with_capacity(self.residencies.len() + self.workspaces.len());
        for ((r, residency), state) in self.placement.residencies.iter_enumerated().zip(&self.residencies) {
            let tensor = residency.tensor;
            let closes: Vec<CommandId> = state.used.iter().chain(&state.offloaded).copied().collect();
            let filled = residency.opens == Opens::Start || state.opened.is_some();
            if closes.is_empty() || !filled {
                return Err(unused(r, tensor));
            }
            let (first_byte, bytes) = self.part(tensor, &residency.bytes);
            let offset = Bytes(self.offset(r) + residency.bytes.start);
            let holds = Holds::Tensor { tensor, first_byte, bytes };
            buffers.push(Buffer { holds, offset, opens: state.opened, closes });
        }
        for &(command, offset) in &self.workspaces {
            let (holds, offset) = (Holds::Workspace { command }, Bytes(offset));
            buffers.push(Buffer { holds, offset, opens: Some(command), closes: vec![command] });
        }
        buffers.sort_by_key(|b| (b.opens, b.offset));
        Ok(buffers)
    }
}

impl List {
    /// Appends a command that must come after some earlier ones, with the fewest waits that express this.
    fn append(&mut self, mut command: Command, after: &[CommandId]) -> CommandId {
        let stream = command.stream().index();
        let mut clock = [0; 3];
        if let Some(previous) = self.last[stream] {
            clock = self.clocks[previous];
            clock[stream] = self.counts[stream];
        }
        // Only the latest of each stream matters.
        let mut latest: [Option<CommandId>; 3] = [None; 3];
        for &a in after {
            let of = self.commands[a].stream().index();
            if clock[of] <= self.positions[a] {
                latest[of] = latest[of].max(Some(a));
            }
        }
        let implied = |a: CommandId, by: CommandId| {
            let of = self.commands[a].stream().index();
            a != by && self.clocks[by][of] > self.positions[a]
        };
        let needed: Vec<CommandId> = latest.iter().flatten().copied().collect();
        let mut waits = needed.clone();
        waits.retain(|a| !needed.iter().any(|b| implied(*a, *b)));
        waits.sort_unstable();
        for &w in &waits {
            let of = self.commands[w].stream().index();
            for (mine, theirs) in clock.iter_mut().zip(self.clocks[w]) {
                *mine = (*mine).max(theirs);
            }
            clock[of] = clock[of].max(self.positions[w] + 1);
        }
        *command.waits_mut() = waits;
        self.positions.push(self.counts[stream]);
        self.clocks.push(clock);
        self.counts[stream] += 1;
        let here = self.commands.push_and_get_key(command);
        self.last[stream] = Some(here);
        here
    }
}
