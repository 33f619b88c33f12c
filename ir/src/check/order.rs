//! A vector clock for each command, which shows the commands that must have ended before it starts; and rule 1.

use super::violation::{Violation, doer};
use crate::ids::{CommandId, OpId};
use crate::schedule::{Command, Schedule, Stream, alternative_of, piece_of};
use crate::trace::Trace;
use std::ops::Range;

/// The order that streams and waits give, transitively.
pub(super) struct Order {
    /// Number of commands of each stream that have ended before each command starts.
    clock: Vec<[u32; 3]>,
    /// Place of each command in its own stream.
    place: Vec<(Stream, u32)>,
    /// Bytes of its tensor that a transfer moves; empty for a compute command.
    pub(super) moved: Vec<Range<u64>>,
}

impl Order {
    /// Orders the commands, and checks that their ids name something and that rule 1 holds.
    pub(super) fn of(trace: &Trace, schedule: &Schedule) -> Result<Order, Violation> {
        let count = schedule.commands.len();
        let mut order = Order {
            clock: Vec::with_capacity(count),
            place: Vec::with_capacity(count),
            moved: Vec::with_capacity(count),
        };
        let mut latest: [Option<CommandId>; 3] = [None; 3];
        let mut lengths = [0; 3];
        let mut due = 0;
        for (id, command) in schedule.numbered_commands() {
            let stream = command.stream();
            let mut clock = [0; 3];
            for &wait in command.waits().iter().chain(&latest[stream.index()]) {
                if wait >= id {
                    let command = doer(trace, schedule, id);
                    return Err(Violation(format!(
                        "{command} waits for {wait}, which is no earlier command"
                    )));
                }
                order.join(&mut clock, wait);
            }
            order.clock.push(clock);
            order.place.push((stream, lengths[stream.index()]));
            lengths[stream.index()] += 1;
            latest[stream.index()] = Some(id);
            order.moved.push(moved(trace, id, command)?);
            if let Command::Compute { op, again, alternative, .. } = *command {
                check_op(trace, schedule, id, (op, again, alternative), &mut due)?;
            }
        }
        match trace.ops.get(due) {
            None => Ok(order),
            Some(op) => Violation::rule(
                1,
                format_args!("{} (`{}`) is never computed, nor is any op after it", OpId::new(due), op.name),
            ),
        }
    }

    /// Raises a clock to that of something that starts after `earlier` has ended.
    fn join(&self, clock: &mut [u32; 3], earlier: CommandId) {
        for (mine, theirs) in clock.iter_mut().zip(self.clock[earlier.index()]) {
            *mine = (*mine).max(theirs);
        }
        let (stream, place) = self.place[earlier.index()];
        clock[stream.index()] = clock[stream.index()].max(place + 1);
    }

    /// Returns `true` if `a` has surely ended when `b` starts.
    pub(super) fn before(&self, a: CommandId, b: CommandId) -> bool {
        let (stream, place) = self.place[a.index()];
        self.clock[b.index()][stream.index()] > place
    }

    /// Returns the reach of `closes`: in each stream, the place below which all commands are in `closes` or before one of
    /// them.
    pub(super) fn reach(&self, closes: &[CommandId]) -> [u32; 3] {
        let mut reach = [0; 3];
        closes.iter().for_each(|close| self.join(&mut reach, *close));
        reach
    }

    /// Returns the clock at which all of `closes` have ended.
    pub(super) fn all_ended(&self, closes: &[CommandId]) -> [u32; 3] {
        let mut ended = [0; 3];
        for close in closes {
            let (stream, place) = self.place[close.index()];
            ended[stream.index()] = ended[stream.index()].max(place + 1);
        }
        ended
    }

    /// Returns `true` if everything below `ended` has surely ended when `b` starts.
    pub(super) fn ended_before(&self, ended: [u32; 3], b: CommandId) -> bool {
        self.clock[b.index()].iter().zip(ended).all(|(clock, ended)| *clock >= ended)
    }

    /// Returns `true` if `c` is below a reach: in the `closes` of the reach, or before one of them.
    pub(super) fn is_within(&self, c: CommandId, reach: [u32; 3]) -> bool {
        let (stream, place) = self.place[c.index()];
        place < reach[stream.index()]
    }
}

/// Returns the bytes that a transfer moves.
fn moved(trace: &Trace, id: CommandId, command: &Command) -> Result<Range<u64>, Violation> {
    let Some((tensor, first_byte, bytes)) = command.transfer() else { return Ok(0..0) };
    let Some(whole) = trace.tensors.get(tensor.index()) else {
        let place = format_args!("commands[{}].tensor", id.0);
        return Violation::no_such_id(place, tensor.0, trace.tensors.len());
    };
    let piece = piece_of(whole, first_byte, bytes).filter(|piece| !piece.is_empty());
    piece.ok_or_else(|| Violation::no_such_bytes(trace, format_args!("commands[{}]", id.0), tensor))
}

/// Checks one compute command: its op and its alternative exist, and rule 1 allows its place.
fn check_op(
    trace: &Trace,
    schedule: &Schedule,
    id: CommandId,
    (op, again, alternative): (OpId, bool, Option<u32>),
    due: &mut usize,
) -> Result<(), Violation> {
    let command = || doer(trace, schedule, id);
    let Some(found) = trace.ops.get(op.index()) else {
        return Violation::no_such_id(format_args!("commands[{}].op", id.0), op.0, trace.ops.len());
    };
    if alternative_of(found, alternative).is_none() {
        let (place, count) = (format_args!("commands[{}].alternative", id.0), found.alternatives.len());
        return Violation::no_such_id(place, alternative.unwrap_or_default(), count);
    }
    if !again {
        if op.index() != *due {
            let due = if *due < trace.ops.len() { OpId::new(*due).to_string() } else { "no op".to_owned() };
            return Violation::rule(1, format_args!("{} stands where {due} is due", command()));
        }
        *due += 1;
    } else if op.index() >= *due {
        return Violation::rule(1, format_args!("{} stands before the op's first run", command()));
    } else if !found.recomputable {
        return Violation::rule(3, format_args!("{}, but that op is not recomputable", command()));
    }
    Ok(())
}
