//! Timelines as trace events: the JSON that Chrome's tracing defined and that Perfetto (ui.perfetto.dev) opens.
//!
//! A timeline is a *process*, such as `predicted`; each stream is one of its threads, with a slice for every command and one
//! for every stall of the compute stream, named by its cause. Three counters accompany them: bytes in open buffers of the pool,
//! bytes of host copies, and bytes in flight.
//!
//! Times are nanoseconds, written as microseconds. A reader that computes in floats may be one nanosecond early, and it drops
//! overlapping slices of one thread; so a slice ends one nanosecond before the next may begin.
//!
//! This file measures nothing. If a device was late for no reason in the schedule, it names no cause.

use crate::error::Error;
use crate::files;
use plimsoll_ir::schedule::{Command, Schedule, Stream, moved};
use plimsoll_ir::simulate::{Cause, Span, Timeline};
use plimsoll_ir::trace::{Phase, Trace};
use plimsoll_ir::{Seconds, TensorId};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Threads of a process, in the order of [`Stream::ALL`].
const THREADS: [&str; 3] = ["compute", "swap-out", "swap-in"];

/// Events of one or more timelines.
#[derive(Debug, Default, Serialize)]
pub struct TraceEvents {
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    /// Number of timelines.
    #[serde(skip)]
    processes: u32,
}

impl TraceEvents {
    /// Adds a named timeline of a schedule that passed `check`.
    pub fn add(&mut self, name: &str, trace: &Trace, schedule: &Schedule, timeline: &Timeline) {
        self.processes += 1;
        let mut meta = |tid: usize, what: &str, args: Value| {
            self.events
                .push(json!({"ph": "M", "name": what, "pid": self.processes, "tid": tid, "args": args}));
        };
        meta(0, "process_name", json!({"name": name}));
        meta(0, "process_sort_index", json!({"sort_index": self.processes}));
        for (stream, thread) in Stream::ALL.into_iter().zip(THREADS) {
            let (tid, index) = (stream.index() + 1, stream.index());
            meta(tid, "thread_name", json!({"name": thread}));
            meta(tid, "thread_sort_index", json!({"sort_index": index}));
        }
        self.commands(trace, schedule, timeline);
        self.stalls(trace, schedule, timeline);
        self.counters(trace, schedule, timeline);
    }

    /// Writes all events to a file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string(self).expect("names and numbers can be written");
        files::write_text(path, &(text + "\n"))
    }

    fn commands(&mut self, trace: &Trace, schedule: &Schedule, timeline: &Timeline) {
        for ((id, command), span) in schedule.numbered_commands().zip(&timeline.spans) {
            let mut args = facts(trace, command);
            args["command"] = id.0.into();
            self.slice(command.stream(), category(trace, command), &describe(trace, command), *span, &args);
        }
    }

    fn stalls(&mut self, trace: &Trace, schedule: &Schedule, timeline: &Timeline) {
        let stalls = timeline.stalls(schedule).into_iter().filter(|stall| stall.stream == Stream::Compute);
        for stall in stalls {
            let name = format!("stall: {}", cause(trace, schedule, stall.cause));
            self.slice(stall.stream, "stall", &name, stall.span, &json!({"command": stall.command.0}));
        }
    }

    fn counters(&mut self, trace: &Trace, schedule: &Schedule, timeline: &Timeline) {
        let pool = timeline.pool_bytes_over_time(trace, schedule);
        self.counter("pool", pool.iter().map(|step| (step.from, step.bytes.0)));
        self.counter("host copies", host_bytes_over_time(trace, schedule, timeline));
        self.counter("in flight", bytes_in_flight_over_time(trace, schedule, timeline));
    }

    /// Adds a slice, unless its length is zero.
    fn slice(&mut self, stream: Stream, category: &str, name: &str, span: Span, args: &Value) {
        let [start, end] = [span.start, span.end].map(nanoseconds);
        if end > start {
            let (tid, ts, dur) = (stream.index() + 1, microseconds(start), microseconds(end - start - 1));
            self.events.push(json!({
                "ph": "X", "name": name, "pid": self.processes, "tid": tid, "ts": ts, "dur": dur, "cat": category, "args": args,
            }));
        }
    }

    /// Adds a counter of bytes; of several values in one nanosecond the last counts.
    fn counter(&mut self, name: &str, steps: impl IntoIterator<Item = (Seconds, u64)>) {
        let first = self.events.len();
        for (at, bytes) in steps {
            let ts = json!(microseconds(nanoseconds(at)));
            if self.events.len() > first && self.events.last().is_some_and(|last| last["ts"] == ts) {
                self.events.pop();
            }
            let args = json!({"bytes": bytes});
            self.events.push(
                json!({"ph": "C", "name": name, "pid": self.processes, "tid": 0, "ts": ts, "args": args}),
            );
        }
    }
}

/// Byte ranges of each tensor that have a copy on the host.
#[derive(Default)]
struct HostCopies(HashMap<TensorId, Vec<Range<u64>>>);

impl HostCopies {
    /// Adds a piece, and returns how many of its bytes had no copy before.
    fn add(&mut self, tensor: TensorId, piece: Range<u64>) -> u64 {
        let held = self.0.entry(tensor).or_default();
        let had = |r: &Range<u64>| r.end.min(piece.end).saturating_sub(r.start.max(piece.start));
        let new = piece.end - piece.start - held.iter().map(had).sum::<u64>();
        // Merging all ranges that touch the piece keeps ranges disjoint.
        let meets = |r: &Range<u64>| r.start <= piece.end && piece.start <= r.end;
        let joined = held
            .iter()
            .filter(|r| meets(r))
            .fold(piece.clone(), |all, r| all.start.min(r.start)..all.end.max(r.end));
        held.retain(|r| !meets(r));
        held.push(joined);
        new
    }
}

/// Returns the bytes of host copies over time, as steps.
pub fn host_bytes_over_time(trace: &Trace, schedule: &Schedule, timeline: &Timeline) -> Vec<(Seconds, u64)> {
    let (mut copies, mut host, mut on_host) = (HostCopies::default(), Vec::new(), 0);
    for (command, span) in schedule.commands.iter().zip(&timeline.spans) {
        if let Some((tensor, piece)) = moved(trace, command).filter(|_| command.stream() == Stream::Offload) {
            on_host += copies.add(tensor, piece);
            host.push((span.end, on_host));
        }
    }
    host
}

/// Returns the bytes being copied in either direction over time, as steps.
pub fn bytes_in_flight_over_time(
    trace: &Trace,
    schedule: &Schedule,
    timeline: &Timeline,
) -> Vec<(Seconds, u64)> {
    let mut changes = Vec::new();
    for (command, span) in schedule.commands.iter().zip(&timeline.spans) {
        if let Some((_, piece)) = moved(trace, command) {
            let bytes = (piece.end - piece.start) as i64;
            changes.extend([(span.start, bytes), (span.end, -bytes)]);
        }
    }
    changes.sort_by(|a, b| a.0.0.total_cmp(&b.0.0).then(a.1.cmp(&b.1)));
    let mut flying = 0;
    let add = |(at, bytes): (Seconds, i64)| {
        flying += bytes;
        (at, flying.unsigned_abs())
    };
    changes.into_iter().map(add).collect()
}

/// Rounds a time to whole nanoseconds.
pub(crate) fn nanoseconds(at: Seconds) -> u64 {
    (at.0 * 1e9).round() as u64
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// Describes a command.
pub fn describe(trace: &Trace, command: &Command) -> String {
    match command {
        Command::Compute { op, again, .. } => {
            let name = &trace.ops[op.index()].name;
            if *again { format!("{name}, again") } else { name.clone() }
        }
        Command::Offload { tensor, .. } => format!("offload of {}", trace.tensors[tensor.index()].name),
        Command::Prefetch { tensor, .. } => format!("prefetch of {}", trace.tensors[tensor.index()].name),
    }
}

/// Describes the cause of a stall.
pub fn cause(trace: &Trace, schedule: &Schedule, cause: Cause) -> String {
    let name = |id: plimsoll_ir::CommandId| describe(trace, &schedule.commands[id.index()]);
    match cause {
        Cause::Compute(id) | Cause::Offload(id) | Cause::Prefetch(id) => name(id),
        Cause::Link(id) => format!("the link, busy with {}", name(id)),
        Cause::Device => "nothing of the schedule: the device was late".to_owned(),
    }
}

fn category(trace: &Trace, command: &Command) -> &'static str {
    match command {
        Command::Compute { again: true, .. } => "recompute",
        Command::Compute { op, .. } => match trace.ops[op.index()].phase {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Update => "update",
        },
        Command::Offload { .. } => "offload",
        Command::Prefetch { .. } => "prefetch",
    }
}

/// Returns facts about a command besides its name and times.
fn facts(trace: &Trace, command: &Command) -> Value {
    let mut facts = match command {
        Command::Compute { op, alternative, .. } => {
            let op = &trace.ops[op.index()];
            let alternative = alternative.map(|k| op.alternatives[k as usize].name.clone());
            json!({"layer": op.layer, "kind": op.kind, "flops": op.flops, "alternative": alternative})
        }
        _ => json!({"bytes": moved(trace, command).map(|(_, piece)| piece.end - piece.start)}),
    };
    facts.as_object_mut().expect("it is one").retain(|_, value| !value.is_null());
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::planned_chain;

    fn events() -> (Value, Trace, Schedule, Timeline) {
        let (trace, schedule, timeline) = planned_chain();
        let mut events = TraceEvents::default();
        events.add("predicted", &trace, &schedule, &timeline);
        events.add("measured", &trace, &schedule, &timeline);
        (serde_json::to_value(&events).expect("it can be written"), trace, schedule, timeline)
    }

    #[test]
    fn slices_of_a_thread_follow_each_other_and_end_with_the_timeline() {
        let (file, trace, schedule, timeline) = events();
        let events = file["traceEvents"].as_array().expect("a list");
        for pid in [1, 2] {
            let mut ended = [0.0f64; 4];
            let mut slices = 0;
            for event in events.iter().filter(|e| e["ph"] == "X" && e["pid"] == pid && e["cat"] != "stall") {
                let tid = event["tid"].as_u64().expect("a thread") as usize;
                let [start, length] = ["ts", "dur"].map(|key| event[key].as_f64().expect("a number"));
                assert!(start >= ended[tid] && length >= 0.0, "{event}");
                ended[tid] = start + length;
                slices += 1;
            }
            assert_eq!(slices, schedule.commands.len());
            let end = ended.into_iter().fold(0.0, f64::max);
            assert!((end - timeline.makespan().0 * 1e6).abs() < 2e-3, "{end}");
        }
        let stalled: f64 = events
            .iter()
            .filter(|e| e["cat"] == "stall" && e["pid"] == 1)
            .map(|e| e["dur"].as_f64().expect("a number"))
            .sum();
        let totals = timeline.totals(&trace, &schedule);
        assert!(stalled > 0.0 && (stalled - totals.stalled[0].0 * 1e6).abs() < 0.1, "{stalled}");
    }

    #[test]
    fn counters_end_where_the_schedule_does() {
        let (file, trace, schedule, timeline) = events();
        let counter = |name: &str| -> Vec<u64> {
            let events = file["traceEvents"].as_array().expect("a list").iter();
            let own = events.filter(|e| e["ph"] == "C" && e["pid"] == 2 && e["name"] == name);
            own.map(|e| e["args"]["bytes"].as_u64().expect("a number")).collect()
        };
        assert_eq!(counter("pool").iter().max(), Some(&timeline.peak(&trace, &schedule).0));
        assert_eq!(counter("in flight").last(), Some(&0));
        let offloaded = timeline.totals(&trace, &schedule).offloaded.0;
        assert!(counter("host copies").last().is_some_and(|host| *host > 0 && *host <= offloaded));
    }

    #[test]
    fn a_byte_of_a_host_copy_counts_once() {
        let mut copies = HostCopies::default();
        let added = [(1, 0..10), (1, 5..20), (2, 0..4), (1, 30..40), (1, 0..50)]
            .map(|(t, piece)| copies.add(TensorId(t), piece));
        assert_eq!(added, [10, 10, 4, 10, 20]);
    }
}
