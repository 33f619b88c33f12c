//! The device's memory over an iteration in the format of PyTorch's memory visualiser (pytorch.org/memory_viz): the pickled
//! dictionary that `torch.cuda.memory._snapshot()` returns.
//!
//! One segment holds the bytes that stay all the time (parameters, optimizer state), one is the pool; addresses count from the
//! start of the device's only allocation. Every buffer of the schedule is an allocation in the history, whose stack names its
//! contents and the command that opened it. At the end of an iteration the pool is empty.
//!
//! This file does not list allocations outside the plan (the driver's, the libraries').

use crate::error::Error;
use crate::files;
use crate::trace_events::describe;
use plimsoll_ir::schedule::{Command, Holds, Schedule};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{BufferId, CommandId};
use serde::Serialize;
use std::path::Path;

/// A snapshot; keys are those of the format.
#[derive(Debug, Serialize)]
pub struct MemorySnapshot {
    segments: Vec<Segment>,
    /// One list per device; there is one device.
    device_traces: [Vec<Event>; 1],
}

#[derive(Debug, Serialize)]
struct Segment {
    device: u32,
    address: u64,
    total_size: u64,
    stream: u64,
    segment_type: &'static str,
    segment_pool_id: (u64, u64),
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    blocks: Vec<Block>,
    frames: Vec<Frame>,
}

#[derive(Debug, Serialize)]
struct Block {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    frames: Vec<Frame>,
}

#[derive(Debug, Serialize)]
struct Event {
    action: &'static str,
    addr: u64,
    size: u64,
    stream: u64,
    /// Microseconds from the start of the iteration.
    time_us: u64,
    frames: Vec<Frame>,
}

/// One line of the stack, innermost first.
#[derive(Clone, Debug, Serialize)]
struct Frame {
    name: String,
    filename: String,
    line: u64,
}

impl MemorySnapshot {
    /// Returns the memory of a schedule that passed `check`, over one of its timelines.
    pub fn new(trace: &Trace, schedule: &Schedule, timeline: &Timeline) -> MemorySnapshot {
        let (resident, pool) = (trace.resident_bytes.0, schedule.pool_bytes.0);
        let mut events = Vec::with_capacity(3 * schedule.buffers.len());
        for event in timeline.pool_events(trace, schedule) {
            let buffer = &schedule.buffers[event.buffer.index()];
            let frames = frames(trace, schedule, event.buffer);
            let of = |action| Event {
                action,
                addr: resident + buffer.offset.0,
                size: event.bytes.0,
                stream: 0,
                time_us: (event.at.0 * 1e6).round() as u64,
                frames: frames.clone(),
            };
            if event.opens {
                events.push(of("alloc"));
            } else {
                events.extend([of("free_requested"), of("free_completed")]);
            }
        }
        let stays =
            Frame { name: "what stays on the device".to_owned(), filename: "parameters".to_owned(), line: 0 };
        let free = Frame { name: "the pool".to_owned(), filename: "schedule".to_owned(), line: 0 };
        let segments = [(0, resident, "active_allocated", stays), (resident, pool, "inactive", free)];
        let segments = segments.into_iter().filter(|(_, size, ..)| *size > 0).map(segment).collect();
        MemorySnapshot { segments, device_traces: [events] }
    }

    /// Returns the bytes of the file.
    pub fn pickled(&self) -> Vec<u8> {
        // Protocol 3: the visualiser reads 2 to 4.
        serde_pickle::to_vec(self, serde_pickle::SerOptions::new()).expect("numbers and names can be pickled")
    }

    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        files::write_bytes(path, &self.pickled())
    }
}

/// Returns a segment with a single block.
fn segment((address, size, state, frame): (u64, u64, &'static str, Frame)) -> Segment {
    let used = if state == "inactive" { 0 } else { size };
    Segment {
        device: 0,
        address,
        total_size: size,
        stream: 0,
        segment_type: "large",
        segment_pool_id: (0, 0),
        allocated_size: used,
        active_size: used,
        requested_size: used,
        blocks: vec![Block { address, size, requested_size: size, state, frames: vec![frame.clone()] }],
        frames: vec![frame],
    }
}

/// Describes a buffer's contents and the command that opened it; the line is that command's number.
fn frames(trace: &Trace, schedule: &Schedule, buffer: BufferId) -> Vec<Frame> {
    let buffer = &schedule.buffers[buffer.index()];
    let name = match buffer.holds {
        Holds::Tensor { tensor, bytes: None, .. } => trace.tensors[tensor.index()].name.clone(),
        Holds::Tensor { tensor, .. } => format!("{}, a piece", trace.tensors[tensor.index()].name),
        Holds::Workspace { .. } => "workspace".to_owned(),
    };
    let (by, line) = match buffer.opens {
        Some(CommandId(id)) => (describe(trace, &schedule.commands[id as usize]), u64::from(id)),
        None => ("on the device from the start".to_owned(), 0),
    };
    let layer = buffer.opens.and_then(|id| match schedule.commands[id.index()] {
        Command::Compute { op, .. } => Some(trace.ops[op.index()].layer.clone()),
        _ => None,
    });
    let mut frames = vec![Frame { name, filename: by, line }];
    frames.extend(layer.map(|layer| Frame { name: layer, filename: "layer".to_owned(), line: 0 }));
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::planned_chain;
    use plimsoll_ir::Bytes;
    use serde_json::Value;
    use std::collections::BTreeMap;

    fn snapshot() -> (MemorySnapshot, Trace, Schedule, Timeline) {
        let (trace, schedule, timeline) = planned_chain();
        (MemorySnapshot::new(&trace, &schedule, &timeline), trace, schedule, timeline)
    }

    /// The visualiser's own check: it cannot show overlapping allocations, or a free without an allocation.
    #[test]
    fn allocations_never_overlap_and_all_are_freed() {
        let (snapshot, trace, schedule, timeline) = snapshot();
        let (mut open, mut most, mut now): (BTreeMap<u64, u64>, u64, u64) = (BTreeMap::new(), 0, 0);
        let pool = trace.resident_bytes.0..trace.resident_bytes.0 + schedule.pool_bytes.0;
        let mut last = 0;
        for event in &snapshot.device_traces[0] {
            let (from, to) = (event.addr, event.addr + event.size);
            assert!(event.time_us >= last && from >= pool.start && to <= pool.end, "{event:?}");
            last = event.time_us;
            match event.action {
                "alloc" => {
                    let before = open.range(..to).next_back();
                    assert!(before.is_none_or(|(at, size)| at + size <= from), "{event:?} over {before:?}");
                    open.insert(from, event.size);
                    now += event.size;
                    most = most.max(now);
                }
                "free_completed" => {
                    assert_eq!(open.remove(&from), Some(event.size), "{event:?}");
                    now -= event.size;
                }
                _ => assert_eq!(event.action, "free_requested"),
            }
        }
        assert!(open.is_empty());
        assert_eq!(Bytes(most), timeline.peak(&trace, &schedule));
    }

    #[test]
    fn a_python_reads_what_was_meant() {
        let (snapshot, trace, ..) = snapshot();
        let read: Value = serde_pickle::from_slice(&snapshot.pickled(), serde_pickle::DeOptions::new())
            .expect("it is pickled, and its keys are words");
        let events = read["device_traces"][0].as_array().expect("a list");
        assert_eq!(events.len(), snapshot.device_traces[0].len());
        let first = &events[0];
        assert_eq!(first["action"], "alloc");
        let named = |name: &Value| {
            trace.tensors.iter().any(|t| name.as_str().is_some_and(|n| n.starts_with(&t.name)))
        };
        assert!(named(&first["frames"][0]["name"]), "{first}");
        let sizes = read["segments"].as_array().expect("a list").iter().map(|s| s["total_size"].as_u64());
        assert_eq!(sizes.sum::<Option<u64>>(), snapshot.segments.iter().map(|s| Some(s.total_size)).sum());
    }
}
