//! The places and live intervals of the buffers (rules 4 and 6, and that buffers open before they close).

use super::intervals::Intervals;
use super::order::Order;
use super::violation::{Violation, doer, part};
use crate::ids::{BufferId, CommandId, TensorId};
use crate::schedule::{Buffer, Command, Holds, Schedule, alternative_of, piece_of};
use crate::trace::Trace;
use crate::units::Bytes;
use std::fmt::Arguments;
use std::ops::Range;

/// A buffer whose ids and bytes are valid.
pub(super) struct Room {
    /// Tensor held; `None` for a workspace.
    pub(super) tensor: Option<TensorId>,
    /// Bytes of the tensor.
    pub(super) piece: Range<u64>,
    /// Place of the tensor's byte 0, which may be outside the buffer: buffers of one tensor with the same base lie as in the
    /// whole tensor.
    pub(super) base: i64,
    /// Commands that may still use the buffer: see [`Order::reach`].
    pub(super) reach: [u32; 3],
    /// Clock at which it has surely closed: see [`Order::all_ended`].
    ended: [u32; 3],
}

/// All buffers, with indexes of them.
pub(super) struct Rooms {
    /// Rooms by buffer id.
    pub(super) rooms: Vec<Room>,
    /// Buffer ids by the command that opens them, those open from the start first.
    pub(super) by_opening: Vec<BufferId>,
    /// Workspace of every command.
    pub(super) workspace: Vec<Option<Bytes>>,
}

/// Returns the contents of a buffer in words.
fn words(trace: &Trace, buffer: &Buffer) -> String {
    match buffer.holds {
        Holds::Workspace { command } => format!("the workspace of {command}"),
        Holds::Tensor { tensor, first_byte, bytes } => {
            let Some(whole) = trace.tensors.get(tensor.index()) else { return "?".to_owned() };
            part(trace, tensor, &piece_of(whole, first_byte, bytes).unwrap_or(0..0))
        }
    }
}

/// Checks rules 4 and 6 and each buffer by itself.
pub(super) fn check(trace: &Trace, schedule: &Schedule, order: &Order) -> Result<Rooms, Violation> {
    let (resident, pool, budget) = (trace.resident_bytes, schedule.pool_bytes, schedule.budget_bytes);
    let over = (u128::from(resident.0) + u128::from(pool.0)).saturating_sub(u128::from(budget.0));
    if let Some(over) = u64::try_from(over).ok().filter(|over| *over > 0) {
        let why = format_args!(
            "{} resident bytes and a pool of {} are {over} bytes more than the budget of {}",
            resident.0, pool.0, budget.0
        );
        return Violation::rule(6, why);
    }
    let mut workspace = vec![None; schedule.commands.len()];
    let mut rooms = Vec::with_capacity(schedule.buffers.len());
    for (id, buffer) in schedule.numbered_buffers() {
        check_ids(schedule, id, buffer)?;
        let room = room(trace, schedule, order, id)?;
        let end = buffer.offset.0 + (room.piece.end - room.piece.start);
        if end > pool.0 {
            let (holds, pool) = (words(trace, buffer), pool.0);
            let why = format_args!("{id} ({holds}) ends at byte {end} of a pool of {pool} bytes");
            return Violation::rule(6, why);
        }
        if let Holds::Workspace { command } = buffer.holds {
            workspace[command.index()] = Some(buffer.offset);
        }
        rooms.push(room);
    }
    for (id, command) in schedule.numbered_commands() {
        let Command::Compute { op, alternative, .. } = *command else { continue };
        let bytes = alternative_of(&trace.ops[op.index()], alternative)
            .map_or(Bytes::ZERO, |(_, workspace)| workspace);
        if bytes == Bytes::ZERO {
            workspace[id.index()] = None;
        } else if workspace[id.index()].is_none() {
            let (command, bytes) = (doer(trace, schedule, id), bytes.0);
            let why = format_args!("{command} needs a workspace of {bytes} bytes and no buffer is it");
            return Violation::rule(2, why);
        }
    }
    let mut by_opening: Vec<BufferId> = (0..rooms.len()).map(BufferId::new).collect();
    by_opening.sort_by_key(|b| schedule.buffers[b.index()].opens);
    let rooms = Rooms { rooms, by_opening, workspace };
    check_overlaps(trace, schedule, order, &rooms)?;
    Ok(rooms)
}

/// Checks that every command that a buffer names exists.
fn check_ids(schedule: &Schedule, id: BufferId, buffer: &Buffer) -> Result<(), Violation> {
    let count = schedule.commands.len();
    let exists = |command: CommandId, key: Arguments<'_>| match command.index() < count {
        true => Ok(()),
        false => Violation::no_such_id(format_args!("buffers[{}].{key}", id.0), command.0, count),
    };
    if let Some(opens) = buffer.opens {
        exists(opens, format_args!("opens"))?;
    }
    if let Holds::Workspace { command } = buffer.holds {
        exists(command, format_args!("workspace_of"))?;
    }
    let mut closes = buffer.closes.iter().enumerate();
    closes.try_for_each(|(i, close)| exists(*close, format_args!("closes[{i}]")))
}

/// Checks one buffer by itself.
fn room(trace: &Trace, schedule: &Schedule, order: &Order, id: BufferId) -> Result<Room, Violation> {
    let buffer = &schedule.buffers[id.index()];
    let (tensor, piece) = match buffer.holds {
        Holds::Workspace { command } => (None, 0..workspace_bytes(trace, schedule, id, command)?.0),
        Holds::Tensor { tensor, first_byte, bytes } => {
            let Some(whole) = trace.tensors.get(tensor.index()) else {
                let place = format_args!("buffers[{}].tensor", id.0);
                return Violation::no_such_id(place, tensor.0, trace.tensors.len());
            };
            let Some(piece) = piece_of(whole, first_byte, bytes) else {
                return Err(Violation::no_such_bytes(trace, format_args!("buffers[{}]", id.0), tensor));
            };
            (Some(tensor), piece)
        }
    };
    if buffer.closes.is_empty() {
        let holds = words(trace, buffer);
        let why = format_args!("{id} ({holds}) never closes; list the last commands that use it in `closes`");
        return Violation::rule(2, why);
    }
    let reach = order.reach(&buffer.closes);
    if let Some(opens) = buffer.opens.filter(|opens| !order.is_within(*opens, reach)) {
        let (holds, opens) = (words(trace, buffer), doer(trace, schedule, opens));
        let why = format_args!(
            "{id} ({holds}) may close before {opens} opens it; a closing command must wait for that one"
        );
        return Violation::rule(2, why);
    }
    // Both are at most 2^62, by the documents' own validation.
    let base = buffer.offset.0 as i64 - piece.start as i64;
    Ok(Room { tensor, piece, base, reach, ended: order.all_ended(&buffer.closes) })
}

/// Returns the size of a workspace, if its live interval is that of its compute command.
fn workspace_bytes(
    trace: &Trace,
    schedule: &Schedule,
    id: BufferId,
    command: CommandId,
) -> Result<Bytes, Violation> {
    let buffer = &schedule.buffers[id.index()];
    match schedule.commands[command.index()] {
        Command::Compute { op, alternative, .. }
            if buffer.opens == Some(command) && buffer.closes == [command] =>
        {
            Ok(alternative_of(&trace.ops[op.index()], alternative)
                .map_or(Bytes::ZERO, |(_, workspace)| workspace))
        }
        _ => Violation::rule(
            2,
            format_args!(
                "{id} is the workspace of {}, and must open and close with that compute command alone",
                doer(trace, schedule, command)
            ),
        ),
    }
}

/// Checks rule 4. A buffer that opens later in the list can only lie after one that opens earlier; so every byte's last
/// occupant must have closed before the next one opens, and by transitivity so have all earlier occupants.
fn check_overlaps(trace: &Trace, schedule: &Schedule, order: &Order, rooms: &Rooms) -> Result<(), Violation> {
    let mut occupants: Intervals<BufferId> = Intervals::new();
    for &id in &rooms.by_opening {
        let (buffer, room) = (&schedule.buffers[id.index()], &rooms.rooms[id.index()]);
        let bytes = buffer.offset.0..buffer.offset.0 + (room.piece.end - room.piece.start);
        let mut fault = None;
        occupants.replace(bytes, id, |shared, other| {
            let ended = rooms.rooms[other.index()].ended;
            if !buffer.opens.is_some_and(|opens| order.ended_before(ended, opens)) {
                fault.get_or_insert((shared, other));
            }
        });
        if let Some((bytes, first)) = fault {
            let [before, after] =
                [first, id].map(|id| format!("{id} ({})", words(trace, &schedule.buffers[id.index()])));
            let (start, end) = (bytes.start, bytes.end);
            let why = format_args!(
                "{before} and {after} share bytes {start}..{end} of the pool and may be open at once"
            );
            return Violation::rule(4, why);
        }
    }
    Ok(())
}
