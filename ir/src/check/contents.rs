//! The buffers as contents: which version of which bytes each holds when a command touches it (rules 2, 3 and 5).
//!
//! A version of a tensor is how many ops of the trace have written it. Commands are walked in list order, which every
//! real order of events agrees with on all commands that must be ordered.

use super::Places;
use super::intervals::Intervals;
use super::order::Order;
use super::pool::Rooms;
use super::violation::{Doer, Part, Violation};
use crate::ids::{BufferId, CommandId, OpId, TensorId};
use crate::schedule::{Command, Schedule, Stream};
use crate::trace::Trace;
use crate::units::Bytes;
use std::ops::Range;

/// What a buffer holds now.
#[derive(Clone, Copy)]
struct Content {
    version: u32,
    /// Who wrote it last; none where it is on the device from the start.
    writer: Option<CommandId>,
}

/// What the host holds of some bytes.
#[derive(Clone, Copy)]
struct HostCopy {
    version: u32,
    offload: CommandId,
}

/// What is known of one tensor.
struct State {
    /// Filled buffers that commands of the compute stream, and of the offload stream, may still use.
    open: [Vec<BufferId>; 2],
    host: Intervals<HostCopy>,
    /// The last prefetch that read each byte on the host.
    fetched: Intervals<CommandId>,
    last_offload: Option<CommandId>,
    /// The last command that wrote the tensor where it stands.
    last_update: Option<CommandId>,
}

/// Open buffers of one tensor that hold one version of all the bytes asked for, in one place.
struct Group {
    version: u32,
    base: i64,
    members: Vec<BufferId>,
}

/// Which version a command asks for.
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
    /// By buffer; none until filled.
    contents: Vec<Option<Content>>,
    states: Vec<State>,
}

/// Walks the commands and finds where each of them touches what.
pub(super) fn check(
    trace: &Trace,
    schedule: &Schedule,
    order: &Order,
    rooms: &Rooms,
) -> Result<Places, Violation> {
    let state = |_| State {
        open: [Vec::new(), Vec::new()],
        host: Intervals::new(),
        fetched: Intervals::new(),
        last_offload: None,
        last_update: None,
    };
    let states = (0..trace.tensors.len()).map(state).collect();
    let contents = vec![None; rooms.rooms.len()];
    let mut walk = Walk { trace, schedule, order, rooms, contents, states };
    let versions = Versions::of(trace);
    let mut opening = walk.open_from_start(&versions)?;
    let mut tensors = Vec::with_capacity(schedule.commands.len());
    for (id, command) in schedule.numbered_commands() {
        let later = opening.iter().position(|b| schedule.buffers[b.index()].opens != Some(id));
        let (opened, rest) = opening.split_at(later.unwrap_or(opening.len()));
        opening = rest;
        tensors.push(match *command {
            Command::Compute { op, .. } => walk.compute(id, op, &versions, opened)?,
            Command::Offload { tensor, .. } => vec![(tensor, walk.offload(id, tensor)?)],
            Command::Prefetch { tensor, .. } => vec![(tensor, walk.prefetch(id, tensor, opened)?)],
        });
    }
    Ok(Places { tensors, workspace: rooms.workspace.clone() })
}

/// The versions in the trace's own order.
struct Versions {
    /// For every op, those that it finds: of its reads, then of its writes (one less than what it leaves).
    found: Vec<(Vec<u32>, Vec<u32>)>,
    /// Whether a tensor is on the device from the start.
    from_start: Vec<bool>,
}

impl Versions {
    fn of(trace: &Trace) -> Versions {
        let mut now = vec![0; trace.tensors.len()];
        let mut from_start = vec![false; trace.tensors.len()];
        let mut found = Vec::with_capacity(trace.ops.len());
        for op in &trace.ops {
            let at = |tensors: &[TensorId]| tensors.iter().map(|t| now[t.index()]).collect::<Vec<u32>>();
            found.push((at(&op.reads), at(&op.writes)));
            for t in &op.reads {
                from_start[t.index()] |= now[t.index()] == 0;
            }
            for t in &op.writes {
                now[t.index()] += 1;
            }
        }
        Versions { found, from_start }
    }
}

impl<'a> Walk<'a> {
    fn doer(&self, command: CommandId) -> Doer {
        Doer::of(self.trace, self.schedule, command)
    }

    fn part(&self, tensor: TensorId, bytes: Range<u64>) -> Part {
        Part::of(self.trace, tensor, bytes)
    }

    /// Fills the buffers that are open from the start; gives the others, by opening command.
    fn open_from_start(&mut self, versions: &Versions) -> Result<&'a [BufferId], Violation> {
        let all = &self.rooms.by_opening;
        let first = all.iter().position(|b| self.schedule.buffers[b.index()].opens.is_some());
        let (open, later) = all.split_at(first.unwrap_or(all.len()));
        for &buffer in open {
            let room = &self.rooms.rooms[buffer.index()];
            let Some(tensor) = room.tensor else { continue };
            if !versions.from_start[tensor.index()] {
                let part = self.part(tensor, room.piece.clone());
                return Err(Violation::NotFromStart { buffer, part });
            }
            self.fill(buffer, tensor, Content { version: 0, writer: None });
        }
        Ok(later)
    }

    fn fill(&mut self, buffer: BufferId, tensor: TensorId, content: Content) {
        self.contents[buffer.index()] = Some(content);
        self.states[tensor.index()].open.iter_mut().for_each(|open| open.push(buffer));
    }

    /// The first run of an op or a later one: both touch the same versions.
    fn compute(
        &mut self,
        c: CommandId,
        op: OpId,
        versions: &Versions,
        opened: &[BufferId],
    ) -> Result<Vec<(TensorId, Bytes)>, Violation> {
        let trace = self.trace;
        let (op, (reads, writes)) = (&trace.ops[op.index()], &versions.found[op.index()]);
        let mut places = Vec::with_capacity(op.reads.len() + op.writes.len());
        let size = |t: TensorId| trace.tensors[t.index()].bytes.0;
        let updates = |t: &TensorId| op.writes.contains(t);
        for (&t, &version) in op.reads.iter().zip(reads).filter(|(t, _)| size(**t) > 0) {
            let group = self.find(c, t, 0..size(t), Wanted::Exactly(version))?;
            places.push((t, Bytes(group.base as u64)));
            if updates(&t) {
                self.update(c, t, &group)?;
            }
        }
        for (&t, &version) in op.writes.iter().zip(writes).filter(|(t, _)| size(**t) > 0) {
            if op.reads.contains(&t) {
                continue;
            }
            let mine = self.opened_of(t, opened);
            let stands = version > 0 || versions.from_start[t.index()];
            let base = if mine.is_empty() && stands {
                let group = self.find(c, t, 0..size(t), Wanted::Exactly(version))?;
                self.update(c, t, &group)?;
                group.base
            } else {
                self.write_new(c, t, version + 1, &mine)?
            };
            places.push((t, Bytes(base as u64)));
        }
        Ok(places)
    }

    /// Of the buffers that a command opens, those of one tensor.
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
            _ => Err(Violation::NoRoom {
                command: self.doer(c),
                part: self.part(t, whole),
                buffers: mine.len(),
            }),
        }
    }

    /// Writes a whole tensor where it stands.
    fn update(&mut self, c: CommandId, t: TensorId, group: &Group) -> Result<(), Violation> {
        let state = &mut self.states[t.index()];
        state.last_update = Some(c);
        // Earlier offloads stand before this one in their stream.
        if let Some(offload) = state.last_offload.filter(|offload| !self.order.before(*offload, c)) {
            return Err(self.race(offload, c, t, self.order.moved[offload.index()].clone()));
        }
        for member in &group.members {
            self.contents[member.index()] = Some(Content { version: group.version + 1, writer: Some(c) });
        }
        Ok(())
    }

    fn race(&self, first: CommandId, second: CommandId, t: TensorId, bytes: Range<u64>) -> Violation {
        Violation::Race { first: self.doer(first), second: self.doer(second), part: self.part(t, bytes) }
    }

    /// Copies bytes to the host; gives their offset in the pool.
    fn offload(&mut self, c: CommandId, t: TensorId) -> Result<Bytes, Violation> {
        let bytes = self.order.moved[c.index()].clone();
        let group = self.find(c, t, bytes.clone(), Wanted::Newest)?;
        let (order, state) = (self.order, &self.states[t.index()]);
        let unordered = |earlier: &CommandId| !order.before(*earlier, c);
        if let Some(update) = state.last_update.filter(unordered) {
            return Err(self.race(update, c, t, bytes));
        }
        if let Some((shared, prefetch)) = state.fetched.within(bytes.clone()).find(|(_, p)| unordered(p)) {
            return Err(self.race(prefetch, c, t, shared));
        }
        let state = &mut self.states[t.index()];
        state.last_offload = Some(c);
        state.host.set(bytes.clone(), HostCopy { version: group.version, offload: c });
        Ok(Bytes((group.base + bytes.start as i64) as u64))
    }

    /// Copies bytes back; gives their offset in the pool.
    fn prefetch(&mut self, c: CommandId, t: TensorId, opened: &[BufferId]) -> Result<Bytes, Violation> {
        let bytes = self.order.moved[c.index()].clone();
        let mut version = None;
        let mut at = bytes.start;
        for (piece, copy) in self.states[t.index()].host.within(bytes.clone()) {
            if !self.order.before(copy.offload, c) {
                return Err(self.race(copy.offload, c, t, piece));
            }
            let first = *version.get_or_insert(copy.version);
            if first != copy.version {
                let (command, part) = (self.doer(c), self.part(t, bytes));
                return Err(Violation::MixedVersions { command, part, first, second: copy.version });
            }
            if piece.start > at {
                break;
            }
            at = piece.end;
        }
        let Some(version) = version.filter(|_| at == bytes.end) else {
            return Err(Violation::NotOnHost { command: self.doer(c), part: self.part(t, bytes) });
        };
        let mine = self.opened_of(t, opened);
        match mine[..] {
            [buffer] if self.rooms.rooms[buffer.index()].piece == bytes => {
                self.fill(buffer, t, Content { version, writer: Some(c) });
                self.states[t.index()].fetched.set(bytes, c);
                Ok(self.schedule.buffers[buffer.index()].offset)
            }
            _ => Err(Violation::OtherBytes {
                command: self.doer(c),
                part: self.part(t, bytes),
                buffers: mine.len(),
            }),
        }
    }

    /// Finds open buffers that hold a version of these bytes in one place. Of several such places it takes the one
    /// with the lowest buffer id; the newest version is that of the place with the most writes.
    fn find(
        &mut self,
        c: CommandId,
        t: TensorId,
        bytes: Range<u64>,
        wanted: Wanted,
    ) -> Result<Group, Violation> {
        let (order, rooms) = (self.order, self.rooms);
        let stream = usize::from(self.schedule.commands[c.index()].stream() == Stream::Offload);
        let open = &mut self.states[t.index()].open[stream];
        // Places in a stream only grow: what this command cannot use, no later one of its stream can.
        open.retain(|b| order.is_within(c, rooms.rooms[b.index()].reach));
        let mut unordered = None;
        let mut held: Vec<(i64, u32, BufferId)> = Vec::with_capacity(open.len());
        for &b in open.iter() {
            let room = &rooms.rooms[b.index()];
            if room.piece.start.max(bytes.start) >= room.piece.end.min(bytes.end) {
                continue;
            }
            let Some(content) = self.contents[b.index()] else { continue };
            if content.writer.is_some_and(|writer| !order.before(writer, c)) {
                unordered.get_or_insert(b);
            } else {
                held.push((room.base, content.version, b));
            }
        }
        let groups = whole_groups(&mut held, rooms, &bytes);
        let wanted = match wanted {
            Wanted::Exactly(version) => version,
            Wanted::Newest => groups.iter().map(|g| g.version).max().unwrap_or(0),
        };
        let group = groups
            .into_iter()
            .filter(|g| g.version == wanted)
            .min_by_key(|g| g.members.iter().min().copied());
        if let Some(buffer) = unordered {
            return Err(self.unordered(c, t, buffer, &bytes, group.is_some()));
        }
        group.ok_or_else(|| {
            let (command, part) = (self.doer(c), self.part(t, bytes.clone()));
            // Were the versions all the same, would the bytes be there?
            let found =
                held.iter().map(|(_, version, _)| *version).filter(|version| *version != wanted).max();
            held.iter_mut().for_each(|(_, version, _)| *version = wanted);
            match found.filter(|_| !whole_groups(&mut held, rooms, &bytes).is_empty()) {
                Some(found) => Violation::WrongVersion { command, part, wanted, found },
                None => Violation::NotHeld { command, part },
            }
        })
    }

    /// The fault of touching a buffer that another command writes in no order.
    fn unordered(
        &self,
        c: CommandId,
        t: TensorId,
        b: BufferId,
        bytes: &Range<u64>,
        found_elsewhere: bool,
    ) -> Violation {
        let room = &self.rooms.rooms[b.index()];
        let shared = room.piece.start.max(bytes.start)..room.piece.end.min(bytes.end);
        let writer = self.contents[b.index()].and_then(|content| content.writer).unwrap_or(c);
        if self.schedule.buffers[b.index()].opens == Some(writer) && !found_elsewhere {
            let (command, part, filler) = (self.doer(c), self.part(t, shared), self.doer(writer));
            return Violation::NotFilled { command, part, filler };
        }
        self.race(writer, c, t, shared)
    }
}

/// The groups of buffers of one place and version that hold all of `bytes`.
fn whole_groups(held: &mut [(i64, u32, BufferId)], rooms: &Rooms, bytes: &Range<u64>) -> Vec<Group> {
    let piece = |b: &BufferId| &rooms.rooms[b.index()].piece;
    held.sort_by_key(|(base, version, b)| (*base, *version, piece(b).start));
    let runs = held.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
    let whole = runs.filter(|run| covers(run.iter().map(|(_, _, b)| piece(b)), bytes));
    whole
        .map(|run| Group {
            base: run[0].0,
            version: run[0].1,
            members: run.iter().map(|(_, _, b)| *b).collect(),
        })
        .collect()
}

/// Whether pieces, sorted by their start, leave no byte out.
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
