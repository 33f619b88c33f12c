//! The faults of schedules in words: the rule of `schedule/1` that is broken, if it is one of them, and the commands, the
//! tensor and the bytes.

use crate::ids::{CommandId, OpId, TensorId};
use crate::schedule::{Command, Schedule};
use crate::trace::Trace;
use std::fmt::Display;
use std::ops::Range;

/// A fault of a schedule, in words. They begin with `rule N: ` for a broken rule of `schedule/1`, 1 to 6; without it, the
/// documents do not belong together, or an id or a piece names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

impl Violation {
    /// Returns the fault of a broken rule.
    pub(super) fn rule<T>(rule: u8, why: impl Display) -> Result<T, Violation> {
        Err(Violation(format!("rule {rule}: {why}")))
    }

    /// Returns the fault of an id that names nothing.
    pub(super) fn no_such_id<T>(place: impl Display, id: u32, count: usize) -> Result<T, Violation> {
        Err(Violation(format!("{place} is {id}, but there are only {count} of them")))
    }

    /// Returns the fault of a piece that is not inside its tensor, or of a transfer that moves nothing.
    pub(super) fn no_such_bytes(trace: &Trace, place: impl Display, tensor: TensorId) -> Violation {
        let whole = &trace.tensors[tensor.index()];
        Violation(format!(
            "{place} names bytes that are not in {tensor} (`{}`, {} bytes), or none at all",
            whole.name, whole.bytes.0
        ))
    }
}

/// Returns a command in words, whose ids may be invalid: `command 6 (compute `conv1` again)`.
pub(super) fn doer(trace: &Trace, schedule: &Schedule, command: CommandId) -> String {
    let tensor = |t: TensorId| trace.tensors.get(t.index()).map_or("?", |t| &t.name);
    let op = |op: OpId| trace.ops.get(op.index()).map_or("?", |op| &op.name);
    let does = match schedule.commands.get(command.index()) {
        Some(Command::Compute { op: o, again: false, .. }) => format!("compute `{}`", op(*o)),
        Some(Command::Compute { op: o, again: true, .. }) => format!("compute `{}` again", op(*o)),
        Some(Command::Offload { tensor: t, .. }) => format!("offload `{}`", tensor(*t)),
        Some(Command::Prefetch { tensor: t, .. }) => format!("prefetch `{}`", tensor(*t)),
        None => "missing".to_owned(),
    };
    format!("{command} ({does})")
}

/// Returns bytes of a tensor that exists, half-open, in words: `bytes 0..60 of tensor 0 (`A`)`.
pub(super) fn part(trace: &Trace, tensor: TensorId, bytes: &Range<u64>) -> String {
    format!("bytes {}..{} of {tensor} (`{}`)", bytes.start, bytes.end, trace.tensors[tensor.index()].name)
}
