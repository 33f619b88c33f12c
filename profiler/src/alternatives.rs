//! Measurement of the ops' other alternatives: for each k, one iteration in which every op that has an alternative k runs in
//! it.
//!
//! An op's time with an alternative does not depend on the alternatives of its neighbours. So one iteration measures one
//! alternative of all ops at once, and the op with the most alternatives determines the number of iterations. A different
//! alternative needs different workspace, so each is planned separately: on a trace in which the alternative is the op's only
//! one. The result is a schedule of the unchanged program.
//!
//! The measurement deliberately skips an alternative whose workspace does not fit the budget at a batch size.

use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_ir::trace::{Op, Trace};

/// Returns the alternatives of the op that has the most, without the default.
pub(crate) fn most_alternatives(trace: &Trace) -> u32 {
    trace.ops.iter().map(|op| op.alternatives.len() as u32).max().unwrap_or(0)
}

/// Returns a schedule of a program, made by `plan`: with the default alternatives, wherever they fit; with a number, every op
/// that has an alternative of this number runs in it. `None` if no op has one, or `plan` finds none.
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
