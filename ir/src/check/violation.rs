//! What can be wrong with a schedule: one variant a kind of fault, each naming the commands, tensor and bytes.

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
    /// Which.
    pub command: CommandId,
    /// What it does.
    pub does: Box<str>,
}

impl Doer {
    /// The words for a command whose ids may be anything.
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
    /// Whose.
    pub tensor: TensorId,
    /// The tensor's name.
    pub name: Box<str>,
    /// Which.
    pub bytes: Range<u64>,
}

impl Part {
    /// The words for bytes of a tensor that exists.
    pub(super) fn of(trace: &Trace, tensor: TensorId, bytes: Range<u64>) -> Part {
        Part { tensor, name: trace.tensors[tensor.index()].name.as_str().into(), bytes }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{} of {} (`{}`)", self.bytes.start, self.bytes.end, self.tensor, self.name)
    }
}

/// Why a schedule is not valid. [`Violation::rule`] gives the rule of `schedule/1`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The schedule is for another network or batch size.
    #[error(
        "the schedule is for `{found}` at batch {found_batch}, the trace is `{wanted}` at batch {wanted_batch}; \
         plan this trace anew"
    )]
    OtherTrace {
        /// The name in the schedule.
        found: Box<str>,
        /// The batch in the schedule.
        found_batch: u64,
        /// The trace's name.
        wanted: Box<str>,
        /// The trace's batch.
        wanted_batch: u64,
    },
    /// One of the documents could not have been read.
    #[error("{0}")]
    Unusable(Fault),
    /// An id names nothing.
    #[error("{place} is {id}, but there are only {count} of them")]
    NoSuchId {
        /// The path to the id.
        place: String,
        /// The id.
        id: u32,
        /// How many there are.
        count: usize,
    },
    /// A wait for a command that does not stand earlier in the list.
    #[error("{command} waits for {waits_for}, which is no earlier command")]
    WaitsForLater {
        /// Who waits.
        command: Doer,
        /// For whom.
        waits_for: CommandId,
    },
    /// A piece that is not inside its tensor, or a transfer that moves nothing.
    #[error("{place} names bytes that are not in {tensor} (`{name}`, {bytes} bytes), or none at all")]
    NoSuchBytes {
        /// The path to the piece.
        place: String,
        /// Whose bytes.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// Its size.
        bytes: u64,
    },

    /// Rule 1: another op is due, or none is.
    #[error("rule 1: {command} stands where {} is due", .due.map_or("no op".to_owned(), |op| op.to_string()))]
    OutOfOrder {
        /// Who is wrong.
        command: Doer,
        /// The op that should be computed here; none where all were.
        due: Option<OpId>,
    },
    /// Rule 1: an op is missing.
    #[error("rule 1: {op} (`{name}`) is never computed, nor is any op after it")]
    NeverComputed {
        /// The first one missing.
        op: OpId,
        /// Its name.
        name: Box<str>,
    },
    /// Rule 1: a recomputation stands before the first run.
    #[error("rule 1: {command} stands before the op's first run")]
    AgainTooEarly {
        /// Who.
        command: Doer,
    },

    /// Rule 2: a buffer has no `closes`.
    #[error("rule 2: {buffer} ({holds}) never closes; list the last commands that use it in `closes`")]
    NeverCloses {
        /// Which.
        buffer: BufferId,
        /// What it holds.
        holds: Box<str>,
    },
    /// Rule 2: the opening command is in none of the `closes` nor before one.
    #[error(
        "rule 2: {buffer} ({holds}) may close before {opens} opens it; a closing command must wait for that one"
    )]
    ClosesEarly {
        /// Which.
        buffer: BufferId,
        /// What it holds.
        holds: Box<str>,
        /// Who opens it.
        opens: Doer,
    },
    /// Rule 2: a workspace does not live just as long as its command.
    #[error(
        "rule 2: {buffer} is the workspace of {command}, and must open and close with that compute command alone"
    )]
    WorkspaceLife {
        /// Which.
        buffer: BufferId,
        /// Whose.
        command: Doer,
    },
    /// Rule 2: a command that needs a workspace has none.
    #[error("rule 2: {command} needs a workspace of {} bytes and no buffer is it", .bytes.0)]
    NoWorkspace {
        /// Who.
        command: Doer,
        /// How much it needs.
        bytes: Bytes,
    },
    /// Rule 2: a buffer is open from the start, but its tensor comes alive later.
    #[error("rule 2: {buffer} holds {part} from the start, but that tensor is made by an op")]
    NotFromStart {
        /// Which.
        buffer: BufferId,
        /// What it should hold.
        part: Part,
    },
    /// Rule 2: a command does not come after what fills the buffer that it reads.
    #[error(
        "rule 2: {command} touches {part}, but is not ordered after {filler}, which brings them; let it wait"
    )]
    NotFilled {
        /// Who reads.
        command: Doer,
        /// What.
        part: Part,
        /// Who fills.
        filler: Doer,
    },
    /// Rule 2: no buffers that are open hold the bytes in one place.
    #[error("rule 2: {command} touches {part}, but no open buffers hold them all in one place")]
    NotHeld {
        /// Who.
        command: Doer,
        /// What.
        part: Part,
    },
    /// Rule 2: what a compute command newly writes has no whole place.
    #[error(
        "rule 2: {command} writes {part}, but the {buffers} buffers of it that it opens do not hold it whole"
    )]
    NoRoom {
        /// Who writes.
        command: Doer,
        /// What.
        part: Part,
        /// How many buffers of that tensor it opens.
        buffers: usize,
    },
    /// Rule 2: a prefetch does not open one buffer of just its bytes.
    #[error(
        "rule 2: {command} brings {part}, but does not open exactly one buffer of just these (it opens {buffers})"
    )]
    OtherBytes {
        /// Who.
        command: Doer,
        /// What it brings.
        part: Part,
        /// How many buffers of that tensor it opens.
        buffers: usize,
    },

    /// Rule 3: an op that is not marked so is computed again.
    #[error("rule 3: {command}, but that op is not recomputable")]
    NotRecomputable {
        /// Who.
        command: Doer,
    },
    /// Rule 3: the bytes are there, of another version.
    #[error("rule 3: {command} needs version {wanted} of {part}, and finds version {found}")]
    WrongVersion {
        /// Who.
        command: Doer,
        /// What.
        part: Part,
        /// The version in the trace's own order.
        wanted: u32,
        /// The newest other version that open buffers hold of some of the bytes.
        found: u32,
    },
    /// Rule 3: the host does not hold the bytes.
    #[error("rule 3: {command} brings {part}, but these were not all offloaded before it")]
    NotOnHost {
        /// Who.
        command: Doer,
        /// What.
        part: Part,
    },
    /// Rule 3: the host holds parts of different versions.
    #[error("rule 3: {command} brings {part}, of which the host holds versions {first} and {second}")]
    MixedVersions {
        /// Who.
        command: Doer,
        /// What.
        part: Part,
        /// One version.
        first: u32,
        /// Another.
        second: u32,
    },

    /// Rule 4: two buffers may be open at once in the same bytes of the pool.
    #[error("rule 4: {first} ({first_holds}) and {second} ({second_holds}) share bytes {}..{} of the pool and may be \
             open at once", .bytes.start, .bytes.end)]
    Overlap {
        /// The one that opens first.
        first: BufferId,
        /// What it holds.
        first_holds: Box<str>,
        /// The one that opens later, or not surely so.
        second: BufferId,
        /// What it holds.
        second_holds: Box<str>,
        /// The bytes of the pool.
        bytes: Range<u64>,
    },

    /// Rule 5: two commands touch the same bytes, one of them writing, in no order.
    #[error(
        "rule 5: {first} and {second} both touch {part}, one of them writing, and nothing orders them; let one wait"
    )]
    Race {
        /// The earlier one in the list.
        first: Doer,
        /// The later one.
        second: Doer,
        /// What they touch.
        part: Part,
    },

    /// Rule 6: a buffer leaves the pool.
    #[error("rule 6: {buffer} ({holds}) ends at byte {end} of a pool of {} bytes", .pool.0)]
    OutsidePool {
        /// Which.
        buffer: BufferId,
        /// What it holds.
        holds: Box<str>,
        /// Its end.
        end: u64,
        /// The pool.
        pool: Bytes,
    },
    /// Rule 6: pool and resident bytes do not fit the budget.
    #[error("rule 6: {} resident bytes and a pool of {} are {over} bytes more than the budget of {}",
            .resident.0, .pool.0, .budget.0)]
    OverBudget {
        /// What stays.
        resident: Bytes,
        /// The pool.
        pool: Bytes,
        /// The budget.
        budget: Bytes,
        /// By how much.
        over: u64,
    },
}

impl Violation {
    /// The rule of `schedule/1` that is broken, 1 to 6; none where the documents do not belong together or an id or a
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
