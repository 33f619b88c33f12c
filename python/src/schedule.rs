//! A `schedule/1` that passed `check`, and the memory that each of its commands uses.
//!
//! One call of the checker gives both the proof and the places, so that no other code works out which buffer holds which
//! version. Python gets what a kernel needs: offsets in the pool, and how many transfers must have ended.

mod methods;

pub use methods::Compute;

use crate::errors::BadInput;
use crate::transfers::{Progress, Spans};
use plimsoll_ir::check::{Places, locate};
use plimsoll_ir::schedule::{self, Duplex, Stream, moved};
use plimsoll_ir::simulate::{Span, Timeline};
use plimsoll_ir::{Seconds, trace};
use plimsoll_tuner::{Plan, Status};
use pyo3::prelude::*;

/// A static program for the compute, swap-out and swap-in streams, proved valid for its trace and budget.
#[pyclass(frozen, module = "plimsoll")]
pub struct Schedule {
    inner: schedule::Schedule,
    places: Places,
    trace: trace::Trace,
    plan: Option<Facts>,
}

/// Facts that the planner states about a schedule.
struct Facts {
    makespan: f64,
    bound: f64,
    status: &'static str,
}

impl Schedule {
    /// Takes the planner's plan, and proves it again.
    pub fn new(trace: &trace::Trace, plan: Plan) -> PyResult<Schedule> {
        let status = match plan.status {
            Status::Optimal => "optimal",
            Status::Feasible => "feasible",
            Status::OutOfTime => "out of time",
            Status::Unknown => "unknown",
        };
        let facts = Facts { makespan: plan.makespan.0, bound: plan.bound.0, status };
        Schedule::proved(trace, plan.schedule, Some(facts))
    }

    fn proved(trace: &trace::Trace, inner: schedule::Schedule, plan: Option<Facts>) -> PyResult<Schedule> {
        let places = locate(trace, &inner).map_err(|violation| {
            BadInput::new_err(format!("the schedule is not valid for its trace: {violation}"))
        })?;
        Ok(Schedule { inner, places, trace: trace.clone(), plan })
    }

    /// Returns the schedule as the Rust type.
    pub fn inner(&self) -> &schedule::Schedule {
        &self.inner
    }

    /// Returns the trace that it is valid for.
    pub fn trace(&self) -> &trace::Trace {
        &self.trace
    }

    /// Returns the times of all commands, from the spans of each stream's commands in their order; `None` if there are no
    /// spans.
    pub fn timeline(&self, spans: [Spans; 3]) -> PyResult<Option<Timeline>> {
        if spans.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        let mut spans = spans.map(Vec::into_iter);
        let span = |(start, end)| Span { start: Seconds(start), end: Seconds(end) };
        let measured = self.inner.commands.iter().map(|command| spans[command.stream().index()].next());
        let timeline: Option<Vec<Span>> = measured.map(|one| one.map(span)).collect();
        let all = timeline.filter(|_| spans.iter_mut().all(|rest| rest.next().is_none()));
        let message = "the spans are not one for each command of the schedule";
        all.map(|spans| Some(Timeline { spans })).ok_or_else(|| BadInput::new_err(message))
    }

    fn moved_bytes(&self, stream: Stream) -> u64 {
        let commands = self.inner.commands.iter().filter(|command| command.stream() == stream);
        commands
            .filter_map(|command| moved(&self.trace, command))
            .map(|(_, span)| span.end - span.start)
            .sum()
    }

    /// By command: how many commands of each stream must have ended, by its waits. Streams run in order, so that the last one
    /// counts. On a half-duplex link a transfer also waits for the previous transfer.
    fn needs(&self) -> Vec<Progress> {
        let mut done = [0; 3];
        let mut position = Vec::new();
        let mut needs = Vec::new();
        for command in &self.inner.commands {
            let mut need = [0; 3];
            for wait in command.waits() {
                let (stream, number): (Stream, usize) = position[wait.index()];
                need[stream.index()] = need[stream.index()].max(number + 1);
            }
            let stream = command.stream();
            if self.inner.link.duplex == Duplex::Half && stream != Stream::Compute {
                for other in [Stream::Offload, Stream::Prefetch].map(Stream::index) {
                    need[other] = done[other];
                }
            }
            needs.push(need);
            position.push((stream, done[stream.index()]));
            done[stream.index()] += 1;
        }
        needs
    }
}
