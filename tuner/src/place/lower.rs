//! Lowers a placement with addresses to a schedule: the list of commands, the buffers, and just the waits that validity
//! needs.
//!
//! A command must come after
//! - what filled the bytes that it reads (a compute, or a prefetch),
//! - for a prefetch, the offloads that put its bytes on the host and all earlier ones of the tensor; for an offload,
//!   earlier prefetches of the tensor and the step that last wrote it; for an in-place update, earlier offloads of it,
//! - what fills another copy of the bytes that it touches, where ops that are recomputed have made several,
//! - every command that closes a buffer in whose bytes it opens one,
//! - what a policy's own [`Barrier`] asks for.
//!
//! Nothing else orders the streams. Of these, a wait is written only where the order of the streams and the other waits
//! do not imply it already, which a vector clock over the three streams tells; so no command has more than two waits.
//!
//! What this file does not do: decide, or trust itself. [`plimsoll_ir::check`] judges what it makes.

use crate::decide::placement::{Barrier, Direction, Opens, Placement, Residency, Transfer};
use crate::place::address::{Addresses, Items};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, CommandId, TensorId};
use std::collections::BTreeMap;

/// Why a placement could not be lowered: a fault of the policy that made it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// A step reads a tensor of which no residency holds the bytes in the right version.
    #[error("step {step} needs version {version} of {tensor}, which is not on the device then")]
    Absent {
        /// The step of the compute stream.
        step: u32,
        /// Which tensor.
        tensor: TensorId,
        /// The version, counted from 0.
        version: u32,
    },
    /// A transfer has nothing to copy.
    #[error("a transfer of {tensor} before slot {before} has nothing to copy")]
    NothingToCopy {
        /// Which tensor.
        tensor: TensorId,
        /// Where it is listed.
        before: u32,
    },
    /// A residency is neither used nor offloaded.
    #[error("the residency {residency} of {tensor} is never used")]
    Unused {
        /// Its position.
        residency: u32,
        /// Which tensor.
        tensor: TensorId,
    },
}

/// Makes the schedule. `addresses` are those of `items`, which are those of `placement`.
pub fn lower(
    trace: &Trace,
    placement: &Placement,
    items: &Items,
    addresses: &Addresses,
    budget: Bytes,
    link: Link,
) -> Result<Schedule, LowerError> {
    let mut lowering = Lowering::new(trace, placement, items, addresses);
    lowering.open_start();
    let mut transfers = placement.transfers.iter().enumerate().peekable();
    for slot in 1..=placement.steps.len() as u32 {
        while let Some((at, transfer)) = transfers.next_if(|(_, t)| t.before <= slot) {
            lowering.transfer(at, *transfer)?;
        }
        lowering.step(slot)?;
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
        commands: lowering.commands,
        buffers,
    })
}

/// What is known of a residency while the list is made.
#[derive(Clone, Debug, Default)]
struct State {
    /// The command that filled it; none where it was there from the start.
    filled: Option<u32>,
    /// Its first command, which opens the buffer.
    opened: Option<u32>,
    /// The version that it holds; none until it is filled.
    version: Option<u32>,
    /// The last step that wrote it in place, or filled it.
    written: Option<u32>,
    /// The last step that used it.
    used: Option<u32>,
    /// Its offload.
    offloaded: Option<u32>,
}

/// Bytes of a tensor that the host holds.
#[derive(Clone, Debug)]
struct HostCopy {
    first: u64,
    end: u64,
    version: u32,
    command: u32,
}

struct Lowering<'a> {
    trace: &'a Trace,
    placement: &'a Placement,
    items: &'a Items,
    addresses: &'a Addresses,
    commands: Vec<Command>,
    /// By command: how many commands of each stream have ended before it starts.
    clocks: Vec<[u32; 3]>,
    /// By command: how many commands of its stream stand before it.
    positions: Vec<u32>,
    /// By stream: its last command, and how many it has.
    last: [Option<u32>; 3],
    counts: [u32; 3],
    states: Vec<State>,
    /// By slot: the residencies that the step writes into new buffers.
    written_at: Vec<Vec<u32>>,
    /// By tensor: the residencies that are open.
    open: Vec<Vec<u32>>,
    /// By tensor: what the host holds, latest last; the last prefetch, the last offload, the last update in place.
    host: Vec<Vec<HostCopy>>,
    fetched: Vec<Option<u32>>,
    offloaded: Vec<Option<u32>>,
    updated: Vec<Option<u32>>,
    /// The versions that each op reads and writes, in the order of its `reads` and `writes`.
    versions: Vec<(Vec<u32>, Vec<u32>)>,
    /// The commands that have a workspace, and its offset.
    workspaces: Vec<(u32, u64)>,
    /// By slot: its step's command. By transfer: how it is synchronised. By slot: the transfers that its step waits for.
    stepped: Vec<Option<u32>>,
    barriers: Vec<Option<Barrier>>,
    due: Vec<Vec<u32>>,
    pool: PoolMap,
}

/// Who lay last at every byte of the pool: a residency, or a workspace by its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupant {
    Residency(u32),
    Workspace(u32),
}

#[derive(Default)]
struct PoolMap(BTreeMap<u64, (u64, Occupant)>);

impl PoolMap {
    /// Puts `who` at these bytes and lists those who lay there.
    fn replace(&mut self, first: u64, end: u64, who: Occupant) -> Vec<Occupant> {
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

/// The versions that each op reads and writes.
fn versions_of(trace: &Trace) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut version = vec![0; trace.tensors.len()];
    let mut versions = Vec::with_capacity(trace.ops.len());
    for op in &trace.ops {
        let reads = op.reads.iter().map(|t| version[t.index()]).collect();
        for t in &op.writes {
            version[t.index()] += 1;
        }
        versions.push((reads, op.writes.iter().map(|t| version[t.index()]).collect()));
    }
    versions
}

impl<'a> Lowering<'a> {
    fn new(
        trace: &'a Trace,
        placement: &'a Placement,
        items: &'a Items,
        addresses: &'a Addresses,
    ) -> Lowering<'a> {
        let mut written_at = vec![Vec::new(); placement.steps.len() + 1];
        for (r, residency) in placement.residencies.iter().enumerate() {
            if residency.opens == Opens::Written {
                written_at[residency.slots.start as usize].push(r as u32);
            }
        }
        let mut barriers = vec![None; placement.transfers.len()];
        for barrier in &placement.barriers {
            barriers[barrier.transfer as usize] = Some(*barrier);
        }
        let slots = placement.steps.len() + 1;
        let count = placement.steps.len() + placement.transfers.len();
        Lowering {
            trace,
            placement,
            items,
            addresses,
            commands: Vec::with_capacity(count),
            clocks: Vec::with_capacity(count),
            positions: Vec::with_capacity(count),
            last: [None; 3],
            counts: [0; 3],
            states: vec![State::default(); placement.residencies.len()],
            written_at,
            open: vec![Vec::new(); trace.tensors.len()],
            host: vec![Vec::new(); trace.tensors.len()],
            fetched: vec![None; trace.tensors.len()],
            offloaded: vec![None; trace.tensors.len()],
            updated: vec![None; trace.tensors.len()],
            versions: versions_of(trace),
            workspaces: Vec::new(),
            stepped: vec![None; slots],
            barriers,
            due: vec![Vec::new(); slots],
            pool: PoolMap::default(),
        }
    }

    /// The bytes of the pool that a residency takes.
    fn place(&self, r: u32) -> (u64, u64) {
        let residency = &self.placement.residencies[r as usize];
        let offset = self.addresses.offsets[self.items.of_residency[r as usize] as usize];
        (offset + residency.bytes.start, offset + residency.bytes.end)
    }

    /// Puts a residency into the pool and adds what closes those that lay there to `after`.
    fn take(&mut self, r: u32, after: &mut Vec<u32>) {
        let (first, end) = self.place(r);
        let met = self.pool.replace(first, end, Occupant::Residency(r));
        self.add_closers(&met, after);
        let tensor = self.placement.residencies[r as usize].tensor;
        self.open[tensor.index()].push(r);
    }

    fn add_closers(&self, met: &[Occupant], after: &mut Vec<u32>) {
        for occupant in met {
            match *occupant {
                Occupant::Workspace(command) => after.push(command),
                Occupant::Residency(r) => {
                    let state = &self.states[r as usize];
                    after.extend(state.used.iter().chain(&state.offloaded));
                }
            }
        }
    }

    fn open_start(&mut self) {
        for r in 0..self.placement.residencies.len() as u32 {
            if self.placement.residencies[r as usize].opens == Opens::Start {
                self.take(r, &mut Vec::new());
                self.states[r as usize].version = Some(0);
            }
        }
    }

    fn transfer(&mut self, at: usize, transfer: Transfer) -> Result<(), LowerError> {
        let Residency { tensor, bytes, .. } = self.placement.residencies[transfer.residency as usize].clone();
        let state = &self.states[transfer.residency as usize];
        let nothing = LowerError::NothingToCopy { tensor, before: transfer.before };
        let whole = bytes == (0..self.trace.tensors[tensor.index()].bytes.0);
        let first_byte = (!whole).then_some(Bytes(bytes.start));
        let length = (!whole).then_some(Bytes(bytes.end - bytes.start));
        let waits = Vec::new();
        let mut after = Vec::new();
        let barrier = self.barriers[at];
        after.extend(barrier.and_then(|barrier| self.stepped[barrier.from.saturating_sub(1) as usize]));
        let command;
        match transfer.direction {
            Direction::Offload => {
                let version = state.version.ok_or(nothing)?;
                after.extend(state.filled.iter().chain(&state.written).chain(&self.fetched[tensor.index()]));
                after.extend(self.updated[tensor.index()]);
                let meets = |r: &&u32| {
                    let other = &self.placement.residencies[**r as usize];
                    let shared = other.bytes.start < bytes.end && bytes.start < other.bytes.end;
                    shared && other.slots.end >= transfer.before
                };
                let copies = self.open[tensor.index()].iter().filter(meets);
                after.extend(copies.filter_map(|r| self.states[*r as usize].filled));
                command = self.append(Command::Offload { tensor, first_byte, bytes: length, waits }, &after);
                self.states[transfer.residency as usize].offloaded = Some(command);
                self.offloaded[tensor.index()] = Some(command);
                let copies = &mut self.host[tensor.index()];
                copies.push(HostCopy { first: bytes.start, end: bytes.end, version, command });
            }
            Direction::Prefetch => {
                let copies = self.host[tensor.index()].iter().rev();
                let mut copies = copies.filter(|c| c.first < bytes.end && bytes.start < c.end).peekable();
                let version = copies.peek().map(|c| c.version).ok_or(nothing)?;
                // Pieces of a tensor are not under way in both directions at a time.
                after.extend(self.offloaded[tensor.index()]);
                // All copies since a whole one: pieces may have come from several offloads.
                for copy in copies {
                    after.push(copy.command);
                    if copy.first <= bytes.start && bytes.end <= copy.end {
                        break;
                    }
                }
                self.take(transfer.residency, &mut after);
                command = self.append(Command::Prefetch { tensor, first_byte, bytes: length, waits }, &after);
                let state = &mut self.states[transfer.residency as usize];
                (state.filled, state.opened, state.version) = (Some(command), Some(command), Some(version));
                self.fetched[tensor.index()] = Some(command);
            }
        }
        if let Some(slot) = barrier.and_then(|barrier| barrier.until) {
            self.due[slot as usize].push(command);
        }
        Ok(())
    }

    /// The open residencies of a tensor that hold this version, if together they hold all of it.
    fn holding(&mut self, slot: u32, tensor: TensorId, version: u32) -> Result<Vec<u32>, LowerError> {
        let Lowering { open, states, placement, .. } = self;
        let open = &mut open[tensor.index()];
        open.retain(|r| placement.residencies[*r as usize].slots.end > slot);
        let holds = |r: &&u32| states[**r as usize].version == Some(version);
        let found: Vec<u32> = open.iter().filter(holds).copied().collect();
        let bytes: u64 =
            found.iter().map(|r| &placement.residencies[*r as usize].bytes).map(|b| b.end - b.start).sum();
        if bytes == self.trace.tensors[tensor.index()].bytes.0 {
            Ok(found)
        } else {
            Err(LowerError::Absent { step: slot - 1, tensor, version })
        }
    }

    fn step(&mut self, slot: u32) -> Result<(), LowerError> {
        let step = self.placement.steps[slot as usize - 1];
        let op = &self.trace.ops[step.op.index()];
        let versions = self.versions[step.op.index()].clone();
        let mut after = std::mem::take(&mut self.due[slot as usize]);
        let mut used = Vec::new();
        let (mut updated, mut in_place) = (Vec::new(), Vec::new());
        for (t, version) in op.reads.iter().zip(versions.0) {
            let holding = self.holding(slot, *t, version)?;
            after.extend(self.open[t.index()].iter().filter_map(|r| self.states[*r as usize].filled));
            used.extend(&holding);
            if let Some(k) = op.writes.iter().position(|w| w == t) {
                after.extend(self.offloaded[t.index()]);
                updated.extend(holding.iter().map(|r| (*r, versions.1[k])));
                in_place.push(*t);
            }
        }
        let fresh = std::mem::take(&mut self.written_at[slot as usize]);
        for &r in &fresh {
            self.take(r, &mut after);
            let tensor = self.placement.residencies[r as usize].tensor;
            let written = op.writes.iter().position(|w| *w == tensor);
            let k = written.ok_or(LowerError::Unused { residency: r, tensor })?;
            updated.push((r, versions.1[k]));
            used.push(r);
        }
        if let Some((item, bytes)) = self.items.of_step[slot as usize - 1] {
            let offset = self.addresses.offsets[item as usize];
            let command = self.commands.len() as u32;
            let met = self.pool.replace(offset, offset + bytes, Occupant::Workspace(command));
            self.add_closers(&met, &mut after);
            self.workspaces.push((command, offset));
        }
        let command = Command::Compute {
            op: step.op,
            again: step.again,
            alternative: step.alternative,
            waits: Vec::new(),
        };
        let command = self.append(command, &after);
        self.stepped[slot as usize] = Some(command);
        in_place.iter().for_each(|t| self.updated[t.index()] = Some(command));
        for r in used {
            self.states[r as usize].used = Some(command);
        }
        for (r, version) in updated {
            let state = &mut self.states[r as usize];
            (state.version, state.written) = (Some(version), Some(command));
        }
        for r in fresh {
            let state = &mut self.states[r as usize];
            (state.filled, state.opened) = (Some(command), Some(command));
        }
        Ok(())
    }

    /// Appends a command that must come after some earlier ones, with the fewest waits that say so.
    fn append(&mut self, mut command: Command, after: &[u32]) -> u32 {
        let stream = command.stream().index();
        let here = self.commands.len() as u32;
        let mut clock = [0; 3];
        if let Some(previous) = self.last[stream] {
            clock = self.clocks[previous as usize];
            clock[stream] = self.counts[stream];
        }
        // Only the latest of each stream can matter.
        let mut latest: [Option<u32>; 3] = [None; 3];
        for &a in after {
            let of = self.commands[a as usize].stream().index();
            if clock[of] <= self.positions[a as usize] {
                latest[of] = latest[of].max(Some(a));
            }
        }
        let implied = |a: u32, by: u32| {
            let of = self.commands[a as usize].stream().index();
            a != by && self.clocks[by as usize][of] > self.positions[a as usize]
        };
        let needed: Vec<u32> = latest.iter().flatten().copied().collect();
        let mut waits: Vec<u32> = needed.clone();
        waits.retain(|a| !needed.iter().any(|b| implied(*a, *b)));
        waits.sort_unstable();
        for &w in &waits {
            let of = self.commands[w as usize].stream().index();
            for (mine, theirs) in clock.iter_mut().zip(self.clocks[w as usize]) {
                *mine = (*mine).max(theirs);
            }
            clock[of] = clock[of].max(self.positions[w as usize] + 1);
        }
        *command.waits_mut() = waits.into_iter().map(CommandId).collect();
        self.positions.push(self.counts[stream]);
        self.clocks.push(clock);
        self.counts[stream] += 1;
        self.last[stream] = Some(here);
        self.commands.push(command);
        here
    }

    fn buffers(&self) -> Result<Vec<Buffer>, LowerError> {
        let mut buffers = Vec::with_capacity(self.states.len() + self.workspaces.len());
        for (r, (residency, state)) in self.placement.residencies.iter().zip(&self.states).enumerate() {
            let tensor = residency.tensor;
            let closes: Vec<CommandId> =
                state.used.iter().chain(&state.offloaded).map(|c| CommandId(*c)).collect();
            let filled = residency.opens == Opens::Start || state.opened.is_some();
            if closes.is_empty() || !filled {
                return Err(LowerError::Unused { residency: r as u32, tensor });
            }
            let whole = residency.bytes == (0..self.trace.tensors[tensor.index()].bytes.0);
            let first_byte = (!whole).then_some(Bytes(residency.bytes.start));
            let bytes = (!whole).then_some(Bytes(residency.bytes.end - residency.bytes.start));
            let offset = Bytes(self.place(r as u32).0);
            let holds = Holds::Tensor { tensor, first_byte, bytes };
            buffers.push(Buffer { holds, offset, opens: state.opened.map(CommandId), closes });
        }
        for &(command, offset) in &self.workspaces {
            let command = CommandId(command);
            let holds = Holds::Workspace { command };
            buffers.push(Buffer {
                holds,
                offset: Bytes(offset),
                opens: Some(command),
                closes: vec![command],
            });
        }
        buffers.sort_by_key(|b| (b.opens, b.offset));
        Ok(buffers)
    }
}
