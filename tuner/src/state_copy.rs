//! Place of the copy of a training's state among the offloads of an iteration.
//!
//! To survive a failure of the device, the state is copied to the host in every iteration, at any time before its update. In a
//! tight plan the swap-out stream has no spare moment during the forward pass, and little to do during the backward pass: a copy
//! at the wrong place takes additional time, one at the right place none (`cargo bench --bench plans -- state`). So each place is
//! tried by the clock of [`mod@plimsoll_ir::simulate`], and of the cheapest places the earliest is taken: an early copy is safe
//! early.
//!
//! This file deliberately does not copy in pieces. One place adds nothing to 72 of the 80 plans that are measured there.

use plimsoll_ir::schedule::{Command, Schedule, Stream};
use plimsoll_ir::simulate::simulate;
use plimsoll_ir::trace::{Phase, Tensor, TensorKind, Trace};
use plimsoll_ir::{Bytes, CommandId, Seconds, TensorId};

/// Maximum number of places tried, evenly among all offloads.
const PLACES: usize = 64;

/// Relative slowdown of an iteration up to which a place is as good as the cheapest.
const AS_GOOD: f64 = 5e-4;

/// Place for the copy, with its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyPlace {
    /// Offload that comes after it; `None` if it comes after all.
    pub before: Option<CommandId>,
    /// Seconds of an iteration with the copy.
    pub makespan: Seconds,
    /// Completion of the copy, since the iteration's start.
    pub whole: Seconds,
}

/// Returns the best place for a copy of `state` bytes next to a schedule that is valid for the trace; the trace has its seconds.
/// `None` if the trace has no update, which would change the state.
pub fn place_of_copy(trace: &Trace, schedule: &Schedule, state: Bytes) -> Option<CopyPlace> {
    let tried = places_of_copy(trace, schedule, state);
    let least = tried.iter().map(|place| place.makespan.0).fold(f64::INFINITY, f64::min);
    tried.into_iter().find(|place| place.makespan.0 <= least * (1.0 + AS_GOOD))
}

/// Returns the places that are tried, in the order of their times: the first before all offloads, the last after all of them.
/// `None` if there is no update.
pub fn places_of_copy(trace: &Trace, schedule: &Schedule, state: Bytes) -> Vec<CopyPlace> {
    let update = schedule.commands.iter().position(|command| match command {
        Command::Compute { op, .. } => trace.ops[op.index()].phase == Phase::Update,
        _ => false,
    });
    let Some(update) = update else { return Vec::new() };
    let mut trace = trace.clone();
    let tensor = TensorId::new(trace.tensors.len());
    trace.tensors.push(Tensor { name: "state".to_owned(), bytes: state, kind: TensorKind::Other });
    let offloads: Vec<usize> =
        (0..update).filter(|at| schedule.commands[*at].stream() == Stream::Offload).collect();
    let step = offloads.len().div_ceil(PLACES).max(1);
    let places = offloads.into_iter().step_by(step).map(|at| (at, Some(CommandId::new(at))));
    places
        .chain([(update, None)])
        .map(|(at, before)| {
            let timeline = simulate(&trace, &with_copy(schedule, tensor, at, update));
            CopyPlace { before, makespan: timeline.makespan(), whole: timeline.spans[at].end }
        })
        .collect()
}

/// Returns the commands with an offload of this tensor at a position, for which the update waits.
fn with_copy(schedule: &Schedule, tensor: TensorId, at: usize, update: usize) -> Schedule {
    let mut commands = schedule.commands.clone();
    for wait in commands.iter_mut().flat_map(|command| command.waits_mut().iter_mut()) {
        if wait.index() >= at {
            *wait = CommandId::new(wait.index() + 1);
        }
    }
    commands[update].waits_mut().push(CommandId::new(at));
    commands.insert(at, Command::Offload { tensor, first_byte: None, bytes: None, waits: Vec::new() });
    Schedule { commands, buffers: Vec::new(), ..schedule.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::Document;

    /// Two layers forward and back and an update, of a second each; the swap-out stream is busy from 1 to 3. If `late`, the first
    /// layer takes half a second, and something is swapped out during the backward pass, too.
    fn iteration(late: bool) -> (Trace, Schedule) {
        let op = |name: &str, phase: &str| {
            let seconds = if late && name == "a" { 0.5 } else { 1.0 };
            format!(
                r#"{{"name": "{name}", "layer": "l", "kind": "conv", "phase": "{phase}", "seconds": {seconds}, "reads": [],
                "writes": [], "workspace_bytes": 0, "flops": 0, "recomputable": false}}"#
            )
        };
        let ops = [("a", "forward"), ("b", "forward"), ("c", "backward"), ("d", "backward"), ("u", "update")]
            .map(|(name, phase)| op(name, phase));
        let trace = format!(
            r#"{{"plimsoll": "trace/1", "name": "t", "batch": 1, "resident_bytes": 0,
            "tensors": [{{"name": "x", "bytes": 20, "kind": "activation"}}], "ops": [{}]}}"#,
            ops.join(", ")
        );
        let offload = |wait: u32| format!(r#"{{"do": "offload", "tensor": 0, "waits": [{wait}]}}"#);
        let compute =
            |op: u32, waits: &str| format!(r#"{{"do": "compute", "op": {op}, "waits": [{waits}]}}"#);
        // c waits for the bytes offloaded after two seconds; the second offload, if there is one, waits for c.
        let mut commands = vec![compute(0, ""), offload(0), compute(1, ""), compute(2, "1")];
        if late {
            commands.push(offload(3));
        }
        commands.push(compute(3, if late { "4" } else { "" }));
        commands.push(compute(4, ""));
        let schedule = format!(
            r#"{{"plimsoll": "schedule/1", "trace": "t", "batch": 1, "budget_bytes": 0, "pool_bytes": 0,
            "link": {{"offload_bytes_per_second": 10.0, "prefetch_bytes_per_second": 10.0, "duplex": "full"}},
            "commands": [{}], "buffers": []}}"#,
            commands.join(", ")
        );
        (Trace::from_json(&trace).expect("a trace"), Schedule::from_json(&schedule).expect("a schedule"))
    }

    #[track_caller]
    fn check(late: bool, state: u64, before: Option<u32>, makespan: f64, whole: f64) {
        let (trace, schedule) = iteration(late);
        let place = place_of_copy(&trace, &schedule, Bytes(state)).expect("it updates");
        let expected =
            CopyPlace { before: before.map(CommandId), makespan: Seconds(makespan), whole: Seconds(whole) };
        assert_eq!(place, expected);
    }

    #[test]
    fn a_copy_goes_where_the_link_is_idle_and_there_as_early_as_it_can() {
        // Without a copy it takes 6 s: c begins at 3. Half a second fits before the first offload can begin.
        check(false, 5, Some(1), 6.0, 0.5);
        // Two seconds delay it, but fit behind it, from 3 to 5.
        check(false, 20, None, 6.0, 5.0);
        // Four are too many everywhere; at the end, the update begins at 7.
        check(false, 40, None, 8.0, 7.0);
        // c runs from 2.5 to 3.5, and then d's offload until 5.5: between the two offloads there is a second.
        check(true, 10, Some(4), 7.5, 3.5);
    }

    #[test]
    fn without_an_update_there_is_nothing_to_copy_for() {
        let (mut trace, mut schedule) = iteration(false);
        trace.ops.pop();
        schedule.commands.pop();
        assert_eq!(place_of_copy(&trace, &schedule, Bytes(5)), None);
    }
}
