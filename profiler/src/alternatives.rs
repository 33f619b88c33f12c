//! Measuring the other alternatives of ops: one iteration in which every op that has an alternative k runs in its
//! alternative k, for each k.
//!
//! An op's time with an alternative does not depend on how its neighbours run, so one iteration measures an alternative of all
//! ops at once, and as many iterations as the op with the most alternatives has measure them all. Another alternative needs
//! other scratch, so each is planned anew: on a trace in which the alternative is the op's only one. The result is a schedule
//! of the program as it is.
//!
//! What it deliberately does not do: insist. An alternative whose scratch does not fit the budget at a batch size is not
//! measured there.

use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_ir::trace::{Op, Trace};

/// Alternatives of the op that has the most, besides the usual ones.
pub(crate) fn most_alternatives(trace: &Trace) -> u32 {
    trace.ops.iter().map(|op| op.alternatives.len() as u32).max().unwrap_or(0)
}

/// A schedule of a program, made by `plan`: of the usual alternatives, wherever they fit; with a number, every op that has an
/// alternative of it in that. None where no op has one, or `plan` finds none.
pub fn schedule_with<E>(
    program: &Program,
    number: Option<u32>,
    plan: impl FnOnce(&Trace) -> Result<Option<Schedule>, E>,
) -> Result<Option<Schedule>, E> {
    let has = |op: &Op| number.is_some_and(|number| op.alternatives.len() > number as usize);
    let mut trace = program.trace.clone();
    trace.order_alternatives();
    if let Some(number) = number {
        if !trace.ops.iter().any(has) {
            return Ok(None);
        }
        for op in trace.ops.iter_mut().filter(|op| has(op)) {
            op.workspace_bytes = op.alternatives[number as usize].workspace_bytes;
            op.alternatives.clear();
        }
    }
    let mut schedule = plan(&trace)?;
    for command in schedule.iter_mut().flat_map(|schedule| &mut schedule.commands) {
        if let Command::Compute { op, alternative, .. } = command
            && has(&program.trace.ops[op.index()])
        {
            *alternative = number;
        }
    }
    Ok(schedule)
}
