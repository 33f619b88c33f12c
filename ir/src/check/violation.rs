//! The faults of schedules: one variant per kind of fault, naming its commands, tensor and bytes.

use crate::document::Fault;
use crate::ids::{BufferId, CommandId, OpId, TensorId};
use crate::schedule::{Command, Schedule};
use crate::trace::Trace;
use crate::units::Bytes;
use std::fmt;
use std::ops::Range;

/// A command in words: `command 6 (compute `conv1` again)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doer {
    /// Id of the command.
    pub command: CommandId,
    /// Action of the command.
    pub does: Box<str>,
}

impl Doer {
    /// Returns the words for a command whose ids may be invalid.
    pub(super) fn of(trace: &Trace, schedule: &Schedule, command: CommandId) -> Doer {
        let tensor = |t: TensorId| trace.tensors.get(t.index()).map_or("?", |t| &t.name);
        let op = |op: OpId| trace.ops.get(op.index()).map_or("?", |op| &op.name);
        let does = match schedule.commands.get(command.index()) {
            Some(Command::Compute { op: o, again: false, .. }) => format!("compute `{}`", op(*o)),
            Some(Command::Compute { op: o, again: true, .. }) => format!("compute `{}` again", op(*o)),
            Some(Command::Offload { tensor: t, .. }) => format!("offload `{}`", tensor(*t)),
            Some(Command::Prefetch { tensor: t, .. }) => format!("prefetch `{}`", tensor(*t)),
            None => "missing".to_owned(),
        };
        Doer { command, does: does.into() }
    }
}

impl fmt::Display for Doer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.command, self.does)
    }
}

/// Bytes of a tensor, half-open: `bytes 0..60 of tensor 0 (`A`)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Tensor of the bytes.
    pub tensor: TensorId,
    /// Name of the tensor.
    pub name: Box<str>,
    /// Range of bytes.
    pub bytes: Range<u64>,
}

impl Part {
    /// Returns the words for bytes of a tensor that exists.
    pub(super) fn of(trace: &Trace, tensor: TensorId, bytes: Range<u64>) -> Part {
        Part { tensor, name: trace.tensors[tensor.index()].name.as_str().into(), bytes }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{} of {} (`{}`)", self.bytes.start, self.bytes.end, self.tensor, self.name)
    }
}

/// A fault of a schedule. [`Violation::rule`] returns the rule of `schedule/1` that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The schedule is for a different network or batch size.
    #[error(
        "the schedule is for `{found}` at batch {found_batch}, the trace is `{wanted}` at batch {wanted_batch}; \
         plan this trace anew"
    )]
    OtherTrace {
        /// Trace named by the schedule.
        found: Box<str>,
        /// Batch of the schedule.
        found_batch: u64,
        /// Name of the trace.
        wanted: Box<str>,
        /// Batch of the trace.
        wanted_batch: u64,
    },
    /// A document is invalid by itself.
    #[error("{0}")]
    Unusable(Fault),
    /// An id names nothing.
    #[error("{place} is {id}, but there are only {count} of them")]
    NoSuchId {
        /// Path to the id.
        place: String,
        /// The id.
        id: u32,
        /// Number of objects.
        count: usize,
    },
    /// A command waits for one that does not stand earlier in the list.
    #[error("{command} waits for {waits_for}, which is no earlier command")]
    WaitsForLater {
        /// Waiting command.
        command: Doer,
        /// Command that it waits for.
        waits_for: CommandId,
    },
    /// A piece is not inside its tensor, or a transfer moves nothing.
    #[error("{place} names bytes that are not in {tensor} (`{name}`, {bytes} bytes), or none at all")]
    NoSuchBytes {
        /// Path to the piece.
        place: String,
        /// Tensor of the piece.
        tensor: TensorId,
        /// Name of the tensor.
        name: Box<str>,
        /// Size of the tensor.
        bytes: u64,
    },

    /// Rule 1: a different op is due, or none is.
    #[error("rule 1: {command} stands where {} is due", .due.map_or("no op".to_owned(), |op| op.to_string()))]
    OutOfOrder {
        /// Wrong command.
        command: Doer,
        /// Op that should be computed here; `None` if all were.
        due: Option<OpId>,
    },
    /// Rule 1: an op is missing.
    #[error("rule 1: {op} (`{name}`) is never computed, nor is any op after it")]
    NeverComputed {
        /// First missing op.
        op: OpId,
        /// Name of the op.
        name: Box<str>,
    },
    /// Rule 1: a recompute stands before the first run.
    #[error("rule 1: {command} stands before the op's first run")]
    AgainTooEarly {
        /// Recompute command.
        command: Doer,
    },

    /// Rule 2: a buffer has no `closes`.
    #[error("rule 2: {buffer} ({holds}) never closes; list the last commands that use it in `closes`")]
    NeverCloses {
        /// Buffer.
        buffer: BufferId,
        /// Contents of the buffer.
        holds: Box<str>,
    },
    /// Rule 2: the opening command is neither one of the `closes` nor before one.
    #[error(
        "rule 2: {buffer} ({holds}) may close before {opens} opens it; a closing command must wait for that one"
    )]
    ClosesEarly {
        /// Buffer.
        buffer: BufferId,
        /// Contents of the buffer.
        holds: Box<str>,
        /// Opening command.
        opens: Doer,
    },
    /// Rule 2: the live interval of a workspace is not that of its command.
    #[error(
        "rule 2: {buffer} is the workspace of {command}, and must open and close with that compute command alone"
    )]
    WorkspaceLife {
        /// Buffer of the workspace.
        buffer: BufferId,
        /// Command of the workspace.
        command: Doer,
    },
    /// Rule 2: a command that needs a workspace has none.
    #[error("rule 2: {command} needs a workspace of {} bytes and no buffer is it", .bytes.0)]
    NoWorkspace {
        /// Command without a workspace.
        command: Doer,
        /// Bytes that it needs.
        bytes: Bytes,
    },
    /// Rule 2: a buffer is open from the start, but its tensor comes alive later.
    #[error("rule 2: {buffer} holds {part} from the start, but that tensor is made by an op")]
    NotFromStart {
        /// Buffer.
        buffer: BufferId,
        /// Contents that it should have.
        part: Part,
    },
    /// Rule 2: a command is not ordered after the one that fills the buffer that it reads.
    #[error(
        "rule 2: {command} touches {part}, but is not ordered after {filler}, which brings them; let it wait"
    )]
    NotFilled {
        /// Reading command.
        command: Doer,
        /// Bytes that it reads.
        part: Part,
        /// Filling command.
        filler: Doer,
    },
    /// Rule 2: no open buffers hold the bytes in one place.
    #[error("rule 2: {command} touches {part}, but no open buffers hold them all in one place")]
    NotHeld {
        /// Command that touches the bytes.
        command: Doer,
        /// Bytes that it touches.
        part: Part,
    },
    /// Rule 2: no whole place for a tensor that a compute command newly writes.
    #[error(
        "rule 2: {command} writes {part}, but the {buffers} buffers of it that it opens do not hold it whole"
    )]
    NoRoom {
        /// Writing command.
        command: Doer,
        /// Bytes that it writes.
        part: Part,
        /// Number of buffers of that tensor that it opens.
        buffers: usize,
    },
    /// Rule 2: a prefetch does not open one buffer of exactly its bytes.
    #[error(
        "rule 2: {command} brings {part}, but does not open exactly one buffer of just these (it opens {buffers})"
    )]
    OtherBytes {
        /// Prefetch command.
        command: Doer,
        /// Bytes that it moves.
        part: Part,
        /// Number of buffers of that tensor that it opens.
        buffers: usize,
    },

    /// Rule 3: an op that is not marked recomputable is recomputed.
    #[error("rule 3: {command}, but that op is not recomputable")]
    NotRecomputable {
        /// Recompute command.
        command: Doer,
    },
    /// Rule 3: open buffers hold the bytes in a wrong version.
    #[error("rule 3: {command} needs version {wanted} of {part}, and finds version {found}")]
    WrongVersion {
        /// Command that needs the bytes.
        command: Doer,
        /// Bytes that it needs.
        part: Part,
        /// Version in the trace's own order.
        wanted: u32,
        /// Newest wrong version that open buffers hold of some of the bytes.
        found: u32,
    },
    /// Rule 3: the host does not hold the bytes.
    #[error("rule 3: {command} brings {part}, but these were not all offloaded before it")]
    NotOnHost {
        /// Prefetch command.
        command: Doer,
        /// Bytes that it moves.
        part: Part,
    },
    /// Rule 3: the host holds parts of different versions.
    #[error("rule 3: {command} brings {part}, of which the host holds versions {first} and {second}")]
    MixedVersions {
        /// Prefetch command.
        command: Doer,
        /// Bytes that it moves.
        part: Part,
        /// One version.
        first: u32,
        /// A different version.
        second: u32,
    },

    /// Rule 4: two buffers may be open at once in the same bytes of the pool.
    #[error("rule 4: {first} ({first_holds}) and {second} ({second_holds}) share bytes {}..{} of the pool and may be \
             open at once", .bytes.start, .bytes.end)]
    Overlap {
        /// Buffer that opens first.
        first: BufferId,
        /// Contents of the first buffer.
        first_holds: Box<str>,
        /// Buffer that opens later, or in no certain order.
        second: BufferId,
        /// Contents of the second buffer.
        second_holds: Box<str>,
        /// Shared bytes of the pool.
        bytes: Range<u64>,
    },

    /// Rule 5: two unordered commands touch the same bytes, one of them writing.
    #[error(
        "rule 5: {first} and {second} both touch {part}, one of them writing, and nothing orders them; let one wait"
    )]
    Race {
        /// Earlier command in the list.
        first: Doer,
        /// Later command.
        second: Doer,
        /// Bytes that both touch.
        part: Part,
    },

    /// Rule 6: a buffer leaves the pool.
    #[error("rule 6: {buffer} ({holds}) ends at byte {end} of a pool of {} bytes", .pool.0)]
    OutsidePool {
        /// Buffer.
        buffer: BufferId,
        /// Contents of the buffer.
        holds: Box<str>,
        /// End of the buffer.
        end: u64,
        /// Size of the pool.
        pool: Bytes,
    },
    /// Rule 6: pool and resident bytes exceed the budget.
    #[error("rule 6: {} resident bytes and a pool of {} are {over} bytes more than the budget of {}",
            .resident.0, .pool.0, .budget.0)]
    OverBudget {
        /// Resident bytes.
        resident: Bytes,
        /// Size of the pool.
        pool: Bytes,
        /// Budget.
        budget: Bytes,
        /// Bytes over the budget.
        over: u64,
    },
}

impl Violation {
    /// Returns the rule of `schedule/1` that is broken, 1 to 6; `None` if the documents do not belong together or an id or a
    /// piece names nothing.
    pub fn rule(&self) -> Option<u8> {
        use Violation::*;
        match self {
            OtherTrace { .. } | Unusable(_) | NoSuchId { .. } | WaitsForLater { .. } | NoSuchBytes { .. } => {
                None
            }
            OutOfOrder { .. } | NeverComputed { .. } | AgainTooEarly { .. } => Some(1),
            NeverCloses { .. } | ClosesEarly { .. } | WorkspaceLife { .. } | NoWorkspace { .. } => Some(2),
            NotFromStart { .. } | NotFilled { .. } | NotHeld { .. } | NoRoom { .. } | OtherBytes { .. } => {
                Some(2)
            }
            NotRecomputable { .. } | WrongVersion { .. } | NotOnHost { .. } | MixedVersions { .. } => Some(3),
            Overlap { .. } => Some(4),
            Race { .. } => Some(5),
            OutsidePool { .. } | OverBudget { .. } => Some(6),
        }
    }
}
