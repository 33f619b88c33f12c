//! The contents of the buffers: the version of each byte when a command touches it (rules 2, 3 and 5).
//!
//! A version of a tensor is the number of trace ops that have written it. Commands are walked in list order, with which every
//! real order of events agrees on all commands that must be ordered.

use super::Places;
use super::intervals::Intervals;
use super::order::Order;
use super::pool::Rooms;
use super::violation::{Violation, doer, part};
use crate::ids::{BufferId, CommandId, OpId, TensorId};
use crate::schedule::{Command, Schedule};
use crate::trace::Trace;
use crate::units::Bytes;
use std::ops::Range;

/// The present contents of a buffer.
#[derive(Clone, Copy)]
struct Content {
    version: u32,
    /// Last writer; `None` if the tensor is on the device from the start.
    writer: Option<CommandId>,
}

/// The host's copy of some bytes.
#[derive(Clone, Copy)]
struct HostCopy {
    version: u32,
    offload: CommandId,
}

/// The state of one tensor.
struct TensorContents {
    /// Filled buffers that a later command may still use.
    open: Vec<BufferId>,
    host: Intervals<HostCopy>,
    /// Last prefetch that read each byte on the host.
    fetched: Intervals<CommandId>,
    last_offload: Option<CommandId>,
    /// Last command that updated the tensor in place.
    last_update: Option<CommandId>,
}

/// The place of a tensor's byte 0, the version, and a buffer that holds some of the bytes so.
type Held = (i64, u32, BufferId);

/// The one place that holds all requested bytes; its buffers are in `Walk::members`.
#[derive(Clone, Copy)]
struct Found {
    base: i64,
    version: u32,
}

/// The version that a command requests.
#[derive(Clone, Copy)]
enum Wanted {
    Exactly(u32),
    Newest,
}

struct Walk<'a> {
    trace: &'a Trace,
    schedule: &'a Schedule,
    order: &'a Order,
    rooms: &'a Rooms,
    /// Contents by buffer; `None` until filled.
    contents: Vec<Option<Content>>,
    states: Vec<TensorContents>,
    /// Places found so far, one command after the other.
    places: Vec<(TensorId, Bytes)>,
    /// Buffers seen by the last search, and its choice.
    held: Vec<Held>,
    members: Vec<BufferId>,
    /// Number of walked commands of each stream.
    started: [u32; 3],
}

/// Walks the commands and finds the places of the tensors that each touches.
pub(super) fn check(
    trace: &Trace,
    schedule: &Schedule,
    order: &Order,
    rooms: &Rooms,
) -> Result<Places, Violation> {
    let state = |_| TensorContents {
        open: Vec::new(),
        host: Intervals::new(),
        fetched: Intervals::new(),
        last_offload: None,
        last_update: None,
    };
    let states = (0..trace.tensors.len()).map(state).collect();
    let contents = vec![None; rooms.rooms.len()];
    let (places, held, members, started) = (Vec::new(), Vec::new(), Vec::new(), [0; 3]);
    let mut walk = Walk { trace, schedule, order, rooms, contents, states, places, held, members, started };
    let versions = Versions::of(trace);
    let mut opening = walk.open_from_start(&versions)?;
    let mut ends = Vec::with_capacity(schedule.commands.len());
    for (id, command) in schedule.numbered_commands() {
        let later = opening.iter().position(|b| schedule.buffers[b.index()].opens != Some(id));
        let (opened, rest) = opening.split_at(later.unwrap_or(opening.len()));
        opening = rest;
        match *command {
            Command::Compute { op, .. } => walk.compute(id, op, &versions, opened)?,
            Command::Offload { tensor, .. } => walk.offload(id, tensor)?,
            Command::Prefetch { tensor, .. } => walk.prefetch(id, tensor, opened)?,
        }
        walk.started[command.stream().index()] += 1;
        ends.push(walk.places.len());
    }
    Ok(Places { places: walk.places, ends, workspace: rooms.workspace.clone() })
}

/// The versions in the trace's own order.
struct Versions<'t> {
    trace: &'t Trace,
    /// Versions that each op finds, of its reads and then of its writes (one less than it leaves), op after op.
    found: Vec<u32>,
    /// Start of each op's entries in `found`.
    begins: Vec<usize>,
    /// `true` for a tensor that is on the device from the start.
    from_start: Vec<bool>,
}

impl Versions<'_> {
    fn of(trace: &Trace) -> Versions<'_> {
        let mut now = vec![0; trace.tensors.len()];
        let mut from_start = vec![false; trace.tensors.len()];
        let (mut found, mut begins) = (Vec::new(), Vec::with_capacity(trace.ops.len()));
        for op in &trace.ops {
            begins.push(found.len());
            found.extend(op.reads.iter().chain(&op.writes).map(|t| now[t.index()]));
            for t in &op.reads {
                from_start[t.index()] |= now[t.index()] == 0;
            }
            for t in &op.writes {
                now[t.index()] += 1;
            }
        }
        Versions { trace, found, begins, from_start }
    }

    /// Returns the versions of an op's reads, and of its writes.
    fn found(&self, op: OpId) -> (&[u32], &[u32]) {
        let (begin, op) = (self.begins[op.index()], &self.trace.ops[op.index()]);
        self.found[begin..begin + op.reads.len() + op.writes.len()].split_at(op.reads.len())
    }
}

impl<'a> Walk<'a> {
    fn doer(&self, command: CommandId) -> String {
        doer(self.trace, self.schedule, command)
    }

    fn part(&self, tensor: TensorId, bytes: &Range<u64>) -> String {
        part(self.trace, tensor, bytes)
    }

    /// Fills the buffers that are open from the start; returns the others, by opening command.
    fn open_from_start(&mut self, versions: &Versions<'_>) -> Result<&'a [BufferId], Violation> {
        let all = &self.rooms.by_opening;
        let first = all.iter().position(|b| self.schedule.buffers[b.index()].opens.is_some());
        let (open, later) = all.split_at(first.unwrap_or(all.len()));
        for &buffer in open {
            let room = &self.rooms.rooms[buffer.index()];
            let Some(tensor) = room.tensor else { continue };
            if !versions.from_start[tensor.index()] {
                let part = self.part(tensor, &room.piece);
                let why =
                    format_args!("{buffer} holds {part} from the start, but that tensor is made by an op");
                return Violation::rule(2, why);
            }
            self.fill(buffer, tensor, Content { version: 0, writer: None });
        }
        Ok(later)
    }

    fn fill(&mut self, buffer: BufferId, tensor: TensorId, content: Content) {
        self.contents[buffer.index()] = Some(content);
        self.states[tensor.index()].open.push(buffer);
    }

    /// Runs an op, first or again: both touch the same versions.
    fn compute(
        &mut self,
        c: CommandId,
        op: OpId,
        versions: &Versions<'_>,
        opened: &[BufferId],
    ) -> Result<(), Violation> {
        let (trace, (reads, writes)) = (self.trace, versions.found(op));
        let op = &trace.ops[op.index()];
        let size = |t: TensorId| trace.tensors[t.index()].bytes.0;
        let updates = |t: &TensorId| op.writes.contains(t);
        for (&t, &version) in op.reads.iter().zip(reads).filter(|(t, _)| size(**t) > 0) {
            let base = self.find(c, t, 0..size(t), Wanted::Exactly(version))?.base;
            self.places.push((t, Bytes(base as u64)));
            if updates(&t) {
                self.update(c, t, version)?;
            }
        }
        for (&t, &version) in op.writes.iter().zip(writes).filter(|(t, _)| size(**t) > 0) {
            if op.reads.contains(&t) {
                continue;
            }
            let mine = self.opened_of(t, opened);
            let stands = version > 0 || versions.from_start[t.index()];
            let base = if mine.is_empty() && stands {
                let base = self.find(c, t, 0..size(t), Wanted::Exactly(version))?.base;
                self.update(c, t, version)?;
                base
            } else {
                self.write_new(c, t, version + 1, &mine)?
            };
            self.places.push((t, Bytes(base as u64)));
        }
        Ok(())
    }

    /// Returns the buffers of one tensor among those that a command opens.
    fn opened_of(&self, tensor: TensorId, opened: &[BufferId]) -> Vec<BufferId> {
        opened.iter().copied().filter(|b| self.rooms.rooms[b.index()].tensor == Some(tensor)).collect()
    }

    /// Writes a whole tensor to buffers that the command opens.
    fn write_new(
        &mut self,
        c: CommandId,
        t: TensorId,
        version: u32,
        mine: &[BufferId],
    ) -> Result<i64, Violation> {
        let whole = 0..self.trace.tensors[t.index()].bytes.0;
        let rooms = self.rooms;
        let mut pieces: Vec<&Range<u64>> = mine.iter().map(|b| &rooms.rooms[b.index()].piece).collect();
        pieces.sort_by_key(|piece| piece.start);
        let base = mine.first().map(|b| rooms.rooms[b.index()].base);
        let one_place = mine.iter().all(|b| Some(rooms.rooms[b.index()].base) == base);
        match base {
            Some(base) if one_place && covers(pieces, &whole) => {
                for &buffer in mine {
                    self.fill(buffer, t, Content { version, writer: Some(c) });
                }
                Ok(base)
            }
            _ => Violation::rule(
                2,
                format_args!(
                    "{} writes {}, but the {} buffers of it that it opens do not hold it whole",
                    self.doer(c),
                    self.part(t, &whole),
                    mine.len()
                ),
            ),
        }
    }

    /// Updates a whole tensor in place: in the buffers of the last `find`, which hold `version`.
    fn update(&mut self, c: CommandId, t: TensorId, version: u32) -> Result<(), Violation> {
        let state = &mut self.states[t.index()];
        state.last_update = Some(c);
        // Earlier offloads precede this one in their stream.
        if let Some(offload) = state.last_offload.filter(|offload| !self.order.before(*offload, c)) {
            return self.race(offload, c, t, &self.order.moved[offload.index()]);
        }
        for member in &self.members {
            self.contents[member.index()] = Some(Content { version: version + 1, writer: Some(c) });
        }
        Ok(())
    }

    /// Returns the fault of two unordered commands that touch the same bytes, one of them writing.
    fn race<T>(
        &self,
        first: CommandId,
        second: CommandId,
        t: TensorId,
        bytes: &Range<u64>,
    ) -> Result<T, Violation> {
        let (first, second, part) = (self.doer(first), self.doer(second), self.part(t, bytes));
        let why = format_args!(
            "{first} and {second} both touch {part}, one of them writing, and nothing orders them; let one wait"
        );
        Violation::rule(5, why)
    }

    /// Copies bytes to the host.
    fn offload(&mut self, c: CommandId, t: TensorId) -> Result<(), Violation> {
        let bytes = self.order.moved[c.index()].clone();
        let found = self.find(c, t, bytes.clone(), Wanted::Newest)?;
        let (order, state) = (self.order, &self.states[t.index()]);
        let unordered = |earlier: &CommandId| !order.before(*earlier, c);
        if let Some(update) = state.last_update.filter(unordered) {
            return self.race(update, c, t, &bytes);
        }
        if let Some((shared, prefetch)) = state.fetched.within(bytes.clone()).find(|(_, p)| unordered(p)) {
            return self.race(prefetch, c, t, &shared);
        }
        let state = &mut self.states[t.index()];
        state.last_offload = Some(c);
        state.host.set(bytes.clone(), HostCopy { version: found.version, offload: c });
        self.places.push((t, Bytes((found.base + bytes.start as i64) as u64)));
        Ok(())
    }

    /// Copies bytes back.
    fn prefetch(&mut self, c: CommandId, t: TensorId, opened: &[BufferId]) -> Result<(), Violation> {
        let bytes = self.order.moved[c.index()].clone();
        let mut version = None;
        let mut at = bytes.start;
        for (piece, copy) in self.states[t.index()].host.within(bytes.clone()) {
            if !self.order.before(copy.offload, c) {
                return self.race(copy.offload, c, t, &piece);
            }
            let first = *version.get_or_insert(copy.version);
            if first != copy.version {
                let (command, part, second) = (self.doer(c), self.part(t, &bytes), copy.version);
                let why = format_args!(
                    "{command} brings {part}, of which the host holds versions {first} and {second}"
                );
                return Violation::rule(3, why);
            }
            if piece.start > at {
                break;
            }
            at = piece.end;
        }
        let Some(version) = version.filter(|_| at == bytes.end) else {
            let (command, part) = (self.doer(c), self.part(t, &bytes));
            let why = format_args!("{command} brings {part}, but these were not all offloaded before it");
            return Violation::rule(3, why);
        };
        let mine = self.opened_of(t, opened);
        match mine[..] {
            [buffer] if self.rooms.rooms[buffer.index()].piece == bytes => {
                self.fill(buffer, t, Content { version, writer: Some(c) });
                self.states[t.index()].fetched.set(bytes, c);
                self.places.push((t, self.schedule.buffers[buffer.index()].offset));
                Ok(())
            }
            _ => Violation::rule(
                2,
                format_args!(
                    "{} brings {}, but does not open exactly one buffer of just these (it opens {})",
                    self.doer(c),
                    self.part(t, &bytes),
                    mine.len()
                ),
            ),
        }
    }

    /// Finds open buffers that hold a version of these bytes in one place. Of several such places it takes the one with the
    /// lowest buffer id; the newest version is that of the place with the most writes.
    fn find(
        &mut self,
        c: CommandId,
        t: TensorId,
        bytes: Range<u64>,
        wanted: Wanted,
    ) -> Result<Found, Violation> {
        let (order, rooms) = (self.order, self.rooms);
        let (open, started) = (&mut self.states[t.index()].open, self.started);
        // Drop the buffers that no command from here on can use.
        open.retain(|b| {
            rooms.rooms[b.index()].reach.iter().zip(started).any(|(reach, started)| *reach > started)
        });
        let mut unordered = None;
        let held = &mut self.held;
        held.clear();
        for &b in open.iter() {
            let room = &rooms.rooms[b.index()];
            if room.piece.start.max(bytes.start) >= room.piece.end.min(bytes.end) {
                continue;
            }
            let Some(content) = self.contents[b.index()] else { continue };
            if !order.is_within(c, room.reach) {
                continue;
            }
            if content.writer.is_some_and(|writer| !order.before(writer, c)) {
                unordered.get_or_insert(b);
            } else {
                held.push((room.base, content.version, b));
            }
        }
        held.sort_unstable_by_key(|(base, version, b)| (*base, *version, rooms.rooms[b.index()].piece.start));
        let wanted = match wanted {
            Wanted::Exactly(version) => Some(version),
            Wanted::Newest => whole_groups(held, rooms, &bytes).map(|group| group[0].1).max(),
        };
        let mut groups = whole_groups(held, rooms, &bytes).filter(|group| Some(group[0].1) == wanted);
        let lowest = |group: &&[Held]| group.iter().map(|(_, _, b)| *b).min();
        let first = groups.next();
        let group = groups
            .fold(first, |best, group| best.filter(|best| lowest(best) < lowest(&group)).or(Some(group)));
        let found = group.map(|group| {
            self.members.clear();
            self.members.extend(group.iter().map(|(_, _, b)| *b));
            Found { base: group[0].0, version: group[0].1 }
        });
        if let Some(buffer) = unordered {
            return self.unordered(c, t, buffer, &bytes, found.is_some());
        }
        found.map_or_else(|| self.not_found(c, t, &bytes, wanted), Ok)
    }

    /// Returns the fault if the buffers of `find` do not hold the bytes: a wrong version if they would, were all versions
    /// equal.
    fn not_found<T>(
        &self,
        c: CommandId,
        t: TensorId,
        bytes: &Range<u64>,
        wanted: Option<u32>,
    ) -> Result<T, Violation> {
        let other =
            self.held.iter().map(|(_, version, _)| *version).filter(|version| Some(*version) != wanted).max();
        let mut held: Vec<Held> = self.held.iter().map(|(base, _, b)| (*base, 0, *b)).collect();
        held.sort_by_key(|(base, _, b)| (*base, self.rooms.rooms[b.index()].piece.start));
        let there = whole_groups(&held, self.rooms, bytes).next().is_some();
        let (command, part) = (self.doer(c), self.part(t, bytes));
        match (wanted, other) {
            (Some(wanted), Some(found)) if there => Violation::rule(
                3,
                format_args!("{command} needs version {wanted} of {part}, and finds version {found}"),
            ),
            _ => Violation::rule(
                2,
                format_args!("{command} touches {part}, but no open buffers hold them all in one place"),
            ),
        }
    }

    /// Returns the fault of touching a buffer that an unordered command writes.
    fn unordered<T>(
        &self,
        c: CommandId,
        t: TensorId,
        b: BufferId,
        bytes: &Range<u64>,
        found_elsewhere: bool,
    ) -> Result<T, Violation> {
        let room = &self.rooms.rooms[b.index()];
        let shared = room.piece.start.max(bytes.start)..room.piece.end.min(bytes.end);
        let writer = self.contents[b.index()].and_then(|content| content.writer).unwrap_or(c);
        if self.schedule.buffers[b.index()].opens == Some(writer) && !found_elsewhere {
            let (command, part, filler) = (self.doer(c), self.part(t, &shared), self.doer(writer));
            let why = format_args!(
                "{command} touches {part}, but is not ordered after {filler}, which brings them; let it wait"
            );
            return Violation::rule(2, why);
        }
        self.race(writer, c, t, &shared)
    }
}

/// Returns the groups of buffers of one place and version that hold all of `bytes`, from buffers sorted by place, version and
/// first byte.
fn whole_groups<'h>(held: &'h [Held], rooms: &Rooms, bytes: &Range<u64>) -> impl Iterator<Item = &'h [Held]> {
    let piece = |b: &BufferId| &rooms.rooms[b.index()].piece;
    let groups = held.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
    groups.filter(move |group| covers(group.iter().map(|(_, _, b)| piece(b)), bytes))
}

/// Returns `true` if pieces, sorted by their start, leave no byte out.
fn covers<'r>(pieces: impl IntoIterator<Item = &'r Range<u64>>, bytes: &Range<u64>) -> bool {
    let mut at = bytes.start;
    for piece in pieces {
        if piece.start > at {
            return false;
        }
        at = at.max(piece.end);
    }
    at >= bytes.end
}
