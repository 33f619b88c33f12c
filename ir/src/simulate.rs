//! The predicted timeline of a schedule.
//!
//! The simulation walks the commands once, in list order. A command starts when the previous command of its stream and all of
//! its waits have ended; on a half-duplex link a transfer also waits for the previous transfer in the list. Makespan, stalls
//! with their causes, and bytes of the pool over time follow from the start and end of every command. They are computed from
//! those alone, so that a *measured* timeline answers the same questions.
//!
//! The module deliberately does not check the schedule ([`crate::check`] does, and must have passed), or model a link whose
//! two directions slow each other down.

use crate::ids::{BufferId, CommandId};
use crate::schedule::{Command, Duplex, Holds, Schedule, Stream, alternative_of, moved, piece_of};
use crate::trace::{TensorKind, Trace};
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// The start and end of a command, from the start of the iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub start: Seconds,
    pub end: Seconds,
}

/// The span of every command of a schedule: predicted by [`simulate`], or measured by a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Spans by command id.
    pub spans: Vec<Span>,
}

/// A period in which a stream had a command to run and could not start it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// Command that could not start.
    pub command: CommandId,
    /// Stream of the command.
    pub stream: Stream,
    /// From the end of the stream's previous command until the start of this one.
    pub span: Span,
    /// Cause of the delay.
    pub cause: Cause,
}

/// The cause of a command's delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A compute command whose result or end it needs had not ended.
    Compute(CommandId),
    /// An offload had not ended: the command needed the room of its bytes, or to change them.
    Offload(CommandId),
    /// A prefetch of its bytes had not ended.
    Prefetch(CommandId),
    /// The half-duplex link was busy with this transfer in the other direction.
    Link(CommandId),
    /// None of these: the device itself was late. Never predicted.
    Device,
}

/// The times of each stream in an iteration, and the bytes moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Seconds in commands, by [`Stream::index`].
    pub busy: [Seconds; 3],
    pub stalled: [Seconds; 3],
    /// Seconds from the stream's last command until the end of the iteration.
    pub idle: [Seconds; 3],
    /// Bytes from device to host.
    pub offloaded: Bytes,
    /// Bytes from host to device.
    pub prefetched: Bytes,
    /// Seconds of recompute commands; part of `busy`.
    pub recomputed: Seconds,
    /// Number of recompute commands.
    #[serde(default)]
    pub recomputed_ops: u64,
    /// Bytes of the tensors that recompute commands write.
    #[serde(default)]
    pub recomputed_bytes: Bytes,
}

/// The opening or closing of a buffer of the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolEvent {
    /// Time of the event.
    pub at: Seconds,
    pub buffer: BufferId,
    /// Size of the buffer.
    pub bytes: Bytes,
    /// `true` if the buffer opens.
    pub opens: bool,
}

/// Bytes of the pool in open buffers from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStep {
    /// Start of the step.
    pub from: Seconds,
    /// Bytes in open buffers.
    pub bytes: Bytes,
}

/// Predicts the start and end of every command of a schedule that passed [`crate::check`], from the trace's seconds and the
/// schedule's link.
///
/// ```
/// use plimsoll_ir::{Seconds, simulate::simulate};
/// # use plimsoll_ir::{Document, schedule::Schedule, trace::Trace};
/// # let trace = Trace::from_json(r#"{"plimsoll": "trace/1", "name": "two-ops", "batch": 1, "resident_bytes": 0,
/// #   "tensors": [{"name": "y", "bytes": 256, "kind": "activation"}], "ops": [
/// #     {"name": "a.forward", "kind": "relu", "layer": "a", "phase": "forward", "reads": [], "writes": [0],
/// #      "workspace_bytes": 0, "flops": 0, "seconds": 0.5, "recomputable": true},
/// #     {"name": "a.backward", "kind": "relu", "layer": "a", "phase": "backward", "reads": [0], "writes": [],
/// #      "workspace_bytes": 0, "flops": 0, "seconds": 0.25, "recomputable": true}]}"#)?;
/// # let schedule = Schedule::from_json(r#"{"plimsoll": "schedule/1", "trace": "two-ops", "batch": 1,
/// #   "budget_bytes": 256, "pool_bytes": 256,
/// #   "link": {"offload_bytes_per_second": 1e9, "prefetch_bytes_per_second": 1e9},
/// #   "commands": [{"do": "compute", "op": 0, "waits": []}, {"do": "compute", "op": 1, "waits": []}],
/// #   "buffers": [{"tensor": 0, "offset": 0, "opens": 0, "closes": [1]}]}"#)?;
/// // Ops of 0.5 s and 0.25 s, one after the other; nothing is swapped.
/// let timeline = simulate(&trace, &schedule);
/// assert_eq!(timeline.makespan(), Seconds(0.75));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn simulate(trace: &Trace, schedule: &Schedule) -> Timeline {
    let mut spans: Vec<Span> = Vec::with_capacity(schedule.commands.len());
    let mut free = [Seconds::ZERO; 3];
    let mut link_free = Seconds::ZERO;
    let half = schedule.link.duplex == Duplex::Half;
    for command in &schedule.commands {
        let stream = command.stream();
        let mut start = free[stream.index()];
        for wait in command.waits() {
            start = start.max(spans[wait.index()].end);
        }
        if half && stream != Stream::Compute {
            start = start.max(link_free);
        }
        let end = start + duration(trace, schedule, command);
        free[stream.index()] = end;
        if stream != Stream::Compute {
            link_free = end;
        }
        spans.push(Span { start, end });
    }
    Timeline { spans }
}

/// Returns the duration of one command.
pub(crate) fn duration(trace: &Trace, schedule: &Schedule, command: &Command) -> Seconds {
    match *command {
        Command::Compute { op, alternative, .. } => {
            alternative_of(&trace.ops[op.index()], alternative).expect("the schedule passed the check").0
        }
        _ => schedule.link.seconds(command.stream(), moved_bytes(trace, command)),
    }
}

/// Returns the bytes of a transfer; 0 for a compute command.
fn moved_bytes(trace: &Trace, command: &Command) -> Bytes {
    if command.stream() == Stream::Compute {
        return Bytes::ZERO;
    }
    let (_, piece) = moved(trace, command).expect("the schedule passed the check");
    Bytes(piece.end - piece.start)
}

impl Span {
    /// Returns the length.
    pub fn seconds(self) -> Seconds {
        self.end - self.start
    }
}

impl Timeline {
    /// Returns the end of the last command.
    pub fn makespan(&self) -> Seconds {
        self.spans.iter().map(|span| span.end).fold(Seconds::ZERO, Seconds::max)
    }

    /// Returns every stall of every stream, in list order. The cause of a stall is the wait that ended last.
    pub fn stalls(&self, schedule: &Schedule) -> Vec<Stall> {
        let mut stalls = Vec::new();
        let mut last: [Option<CommandId>; 3] = [None; 3];
        let mut last_transfer: Option<CommandId> = None;
        let half = schedule.link.duplex == Duplex::Half;
        let end = |id: Option<CommandId>| id.map_or(Seconds::ZERO, |id| self.spans[id.index()].end);
        for (id, command) in schedule.numbered_commands() {
            let stream = command.stream();
            let start = self.spans[id.index()].start;
            let free = end(last[stream.index()]);
            if start > free {
                let mut cause = (free, Cause::Device);
                for wait in command.waits() {
                    let ended = end(Some(*wait));
                    if ended > cause.0 {
                        cause = (ended, waited_for(schedule, *wait));
                    }
                }
                if half && stream != Stream::Compute && end(last_transfer) > cause.0 {
                    cause = (end(last_transfer), last_transfer.map_or(Cause::Device, Cause::Link));
                }
                let span = Span { start: free, end: start };
                stalls.push(Stall { command: id, stream, span, cause: cause.1 });
            }
            last[stream.index()] = Some(id);
            if stream != Stream::Compute {
                last_transfer = Some(id);
            }
        }
        stalls
    }

    /// Returns the times of each stream and the bytes moved.
    pub fn totals(&self, trace: &Trace, schedule: &Schedule) -> Totals {
        let mut totals = Totals::default();
        let mut ended = [Seconds::ZERO; 3];
        for (span, command) in self.spans.iter().zip(&schedule.commands) {
            let stream = command.stream();
            totals.busy[stream.index()] += span.seconds();
            ended[stream.index()] = ended[stream.index()].max(span.end);
            match command {
                Command::Compute { op, again: true, .. } => {
                    totals.recomputed += span.seconds();
                    totals.recomputed_ops += 1;
                    add(&mut totals.recomputed_bytes, trace.written_bytes(&trace.ops[op.index()]));
                }
                Command::Compute { .. } => {}
                Command::Offload { .. } => add(&mut totals.offloaded, moved_bytes(trace, command)),
                Command::Prefetch { .. } => add(&mut totals.prefetched, moved_bytes(trace, command)),
            }
        }
        for stall in self.stalls(schedule) {
            totals.stalled[stall.stream.index()] += stall.span.seconds();
        }
        totals.idle = ended.map(|ended| self.makespan() - ended);
        totals
    }

    /// Returns the openings and closings of buffers, in order of time: a buffer is open from the start of the command that
    /// opens it until the last end of those that close it. Events at one time stand in an order that the schedule allows, so
    /// that two buffers are open together only if their live intervals overlap. Empty buffers are omitted.
    pub fn pool_events(&self, trace: &Trace, schedule: &Schedule) -> Vec<PoolEvent> {
        let mut events = Vec::with_capacity(2 * schedule.buffers.len());
        for (buffer, _) in schedule.numbered_buffers() {
            let bytes = buffer_bytes(trace, schedule, buffer);
            if bytes > Bytes::ZERO {
                for (opens, when) in
                    [(true, self.opening(schedule, buffer)), (false, self.closing(schedule, buffer))]
                {
                    events.push((when, PoolEvent { at: Seconds(when.0), buffer, bytes, opens }));
                }
            }
        }
        events.sort_by(|((a, i), x), ((b, j), y)| {
            a.total_cmp(b).then(i.cmp(j)).then(x.opens.cmp(&y.opens)).then(x.buffer.cmp(&y.buffer))
        });
        events.into_iter().map(|(_, event)| event).collect()
    }

    /// Returns the bytes in open buffers over time, as steps in the order of [`Timeline::pool_events`].
    pub fn pool_bytes_over_time(&self, trace: &Trace, schedule: &Schedule) -> Vec<PoolStep> {
        let mut open = Bytes::ZERO;
        let step = |event: PoolEvent| {
            open = if event.opens { open + event.bytes } else { open.saturating_sub(event.bytes) };
            PoolStep { from: event.at, bytes: open }
        };
        self.pool_events(trace, schedule).into_iter().map(step).collect()
    }

    /// Returns the most bytes in open buffers at once. The pool's bytes over these are its fragmentation.
    pub fn peak(&self, trace: &Trace, schedule: &Schedule) -> Bytes {
        let steps = self.pool_bytes_over_time(trace, schedule);
        steps.iter().map(|step| step.bytes).max().unwrap_or(Bytes::ZERO)
    }

    /// Returns the most bytes of activations in open buffers at once.
    pub fn most_feature_maps(&self, trace: &Trace, schedule: &Schedule) -> Bytes {
        let is_feature_map = |event: &PoolEvent| match schedule.buffers[event.buffer.index()].holds {
            Holds::Tensor { tensor, .. } => trace.tensors[tensor.index()].kind == TensorKind::Activation,
            Holds::Workspace { .. } => false,
        };
        let (mut open, mut most) = (Bytes::ZERO, Bytes::ZERO);
        for event in self.pool_events(trace, schedule).into_iter().filter(is_feature_map) {
            open = if event.opens { open + event.bytes } else { open.saturating_sub(event.bytes) };
            most = most.max(open);
        }
        most
    }

    /// Returns the span of a buffer: from the start of the command that opens it until the last end of those that close it.
    pub fn buffer_span(&self, schedule: &Schedule, id: BufferId) -> Span {
        Span { start: Seconds(self.opening(schedule, id).0), end: Seconds(self.closing(schedule, id).0) }
    }

    /// Returns the opening time of a buffer, and its position among the events of one instant.
    fn opening(&self, schedule: &Schedule, id: BufferId) -> (f64, Instant) {
        match schedule.buffers[id.index()].opens {
            None => (0.0, Instant::Before),
            Some(opens) => (self.spans[opens.index()].start.0, Instant::At(opens, Edge::Opens)),
        }
    }

    /// Returns the closing time of a buffer. A command that took time has left its bytes before anything starts at its end;
    /// one that took none keeps the list's order among the commands that start then.
    fn closing(&self, schedule: &Schedule, id: BufferId) -> (f64, Instant) {
        let closes = schedule.buffers[id.index()].closes.iter();
        let at = |close: &CommandId| {
            let span = self.spans[close.index()];
            let instant =
                if span.end > span.start { Instant::Leaving } else { Instant::At(*close, Edge::Closes) };
            (span.end.0, instant)
        };
        closes
            .map(at)
            .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
            .unwrap_or((0.0, Instant::Before))
    }
}

/// Adds moved bytes. A schedule may move 2^62 bytes any number of times, so the sum saturates.
fn add(sum: &mut Bytes, bytes: Bytes) {
    sum.0 = sum.0.saturating_add(bytes.0);
}

/// The order of events at one instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Instant {
    /// Open from the start.
    Before,
    /// At the end of a command that took time.
    Leaving,
    /// At the start of a command, or at its end if it takes no time.
    At(CommandId, Edge),
}

/// An end of a command without length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    Opens,
    Closes,
}

/// Returns the cause that a wait for a command stands for.
fn waited_for(schedule: &Schedule, id: CommandId) -> Cause {
    match schedule.commands[id.index()].stream() {
        Stream::Compute => Cause::Compute(id),
        Stream::Offload => Cause::Offload(id),
        Stream::Prefetch => Cause::Prefetch(id),
    }
}

/// Returns the bytes of the pool that a buffer takes.
pub fn buffer_bytes(trace: &Trace, schedule: &Schedule, id: BufferId) -> Bytes {
    match schedule.buffers[id.index()].holds {
        Holds::Tensor { tensor, first_byte, bytes } => {
            let piece = piece_of(&trace.tensors[tensor.index()], first_byte, bytes);
            piece.map_or(Bytes::ZERO, |piece| Bytes(piece.end - piece.start))
        }
        Holds::Workspace { command } => match schedule.commands[command.index()] {
            Command::Compute { op, alternative, .. } => alternative_of(&trace.ops[op.index()], alternative)
                .map_or(Bytes::ZERO, |(_, workspace)| workspace),
            _ => Bytes::ZERO,
        },
    }
}
