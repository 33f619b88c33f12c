//! Checks that a schedule is valid for a trace and a budget.
//!
//! The check walks the commands once, in list order, and knows for each the commands that *must* have ended before it starts.
//! That is a vector clock of three numbers (a count of commands for each stream), because a stream runs its commands in
//! order. Next to it the check keeps the version in each buffer and its writer, the version on the host, and the last
//! occupant of each byte of the pool.
//!
//! It proves that, whatever the real times are, the schedule's commands read the versions that the trace's own order gives
//! them, no two of them race for a byte, and nothing leaves the pool or the budget (rules 1 to 6 of `schedule/1`).
//!
//! It does not prove that the schedule is fast, that the trace describes the program correctly, that a device has the budget,
//! or that an op marked `recomputable` is. It stops at the first violation.
//!
//! Reading of rule 5: bytes of a tensor in two buffers are different bytes on the device. A command must be ordered with
//! everything that an earlier command of the list puts into a buffer of the bytes that it touches, if that buffer may be open
//! while the command runs. Every offload and every update in place of one tensor must be ordered too. A transfer moves at
//! least one byte, and from one place of the pool.
//!
//! It shares no code with the makers of schedules and trusts neither document. Its cost grows with the commands, waits and
//! buffers times a logarithm, and with the pieces of one tensor that are open at once.

mod contents;
mod intervals;
mod order;
mod pool;
mod violation;

pub use violation::Violation;

use crate::document::{Document, Fault};
use crate::ids::{CommandId, TensorId};
use crate::schedule::Schedule;
use crate::trace::Trace;
use crate::units::Bytes;

/// Proves that a schedule is valid for a trace within the schedule's budget: no order of events that its waits allow reads
/// wrong bytes, and no byte lies outside the pool.
///
/// # Errors
///
/// [`Violation`]: the first fault, with its commands and its tensor.
///
/// ```
/// use plimsoll_ir::check::check;
/// # use plimsoll_ir::{Document, schedule::Schedule, trace::Trace};
/// # let trace = Trace::from_json(r#"{"plimsoll": "trace/1", "name": "two-ops", "batch": 1, "resident_bytes": 0,
/// #   "tensors": [{"name": "y", "bytes": 256, "kind": "activation"}], "ops": [
/// #     {"name": "a.forward", "kind": "relu", "layer": "a", "phase": "forward", "reads": [], "writes": [0],
/// #      "workspace_bytes": 0, "flops": 0, "seconds": 0.5, "recomputable": true},
/// #     {"name": "a.backward", "kind": "relu", "layer": "a", "phase": "backward", "reads": [0], "writes": [],
/// #      "workspace_bytes": 0, "flops": 0, "seconds": 0.25, "recomputable": true}]}"#)?;
/// # let mut schedule = Schedule::from_json(r#"{"plimsoll": "schedule/1", "trace": "two-ops", "batch": 1,
/// #   "budget_bytes": 256, "pool_bytes": 256,
/// #   "link": {"offload_bytes_per_second": 1e9, "prefetch_bytes_per_second": 1e9},
/// #   "commands": [{"do": "compute", "op": 0, "waits": []}, {"do": "compute", "op": 1, "waits": []}],
/// #   "buffers": [{"tensor": 0, "offset": 0, "opens": 0, "closes": [1]}]}"#)?;
/// // One op writes a tensor of 256 bytes, another reads it; the schedule keeps it at offset 0.
/// check(&trace, &schedule)?;
/// schedule.buffers[0].closes.clear();
/// let violation = check(&trace, &schedule).expect_err("the buffer is never closed");
/// println!("{violation}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check(trace: &Trace, schedule: &Schedule) -> Result<(), Violation> {
    locate(trace, schedule).map(|_| ())
}

/// Pool offsets of the tensors and the workspace of every command of a valid schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Places of all commands, one command after the other.
    places: Vec<(TensorId, Bytes)>,
    /// End of each command's places.
    ends: Vec<usize>,
    workspace: Vec<Option<Bytes>>,
}

impl Places {
    /// Returns each tensor that a command touches, with a pool offset: of the tensor's first byte for a compute command, of
    /// the first byte moved for a transfer. Tensors of 0 bytes have no place.
    pub fn tensors(&self, command: CommandId) -> &[(TensorId, Bytes)] {
        let begin = command.index().checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.places[begin..self.ends[command.index()]]
    }

    /// Returns the pool offset of a command's workspace, if it needs one.
    pub fn workspace(&self, command: CommandId) -> Option<Bytes> {
        self.workspace[command.index()]
    }
}

/// Checks a schedule and returns the places that the proof found, which an executor needs besides the commands.
pub fn locate(trace: &Trace, schedule: &Schedule) -> Result<Places, Violation> {
    if (&schedule.trace, schedule.batch) != (&trace.name, trace.batch) {
        return Err(Violation(format!(
            "the schedule is for `{}` at batch {}, the trace is `{}` at batch {}; plan this trace anew",
            schedule.trace, schedule.batch, trace.name, trace.batch
        )));
    }
    let unusable = |fault: Fault| Violation(fault.to_string());
    trace.validate().map_err(unusable)?;
    schedule.validate().map_err(unusable)?;
    let order = order::Order::of(trace, schedule)?;
    let buffers = pool::check(trace, schedule, &order)?;
    contents::check(trace, schedule, &order, &buffers)
}
