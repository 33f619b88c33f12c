//! The timeline of a small schedule, worked out by hand: times, stalls with their causes, the pool over time.

use plimsoll_ir::check::check;
use plimsoll_ir::ids::CommandId;
use plimsoll_ir::schedule::{Schedule, Stream};
use plimsoll_ir::simulate::{Cause, PoolStep, Span, Stall, Timeline, Totals, simulate};
use plimsoll_ir::trace::{TensorKind, Trace};
use plimsoll_ir::{Bytes, Document, Seconds};
use serde_json::{Value, json};

/// Returns three ops: the first makes `a` (100 bytes), the second `b` (50 bytes), the third reads `a`.
fn trace(seconds: f64) -> Trace {
    let op = |name: &str, reads: Value, writes: Value| {
        json!({"name": name, "layer": name, "kind": "x", "phase": "forward", "seconds": seconds, "reads": reads,
               "writes": writes, "workspace_bytes": 0, "flops": 0, "recomputable": true})
    };
    let document = json!({
        "plimsoll": "trace/1", "name": "three", "batch": 1, "resident_bytes": 0,
        "tensors": [{"name": "a", "bytes": 100, "kind": "activation"}, {"name": "b", "bytes": 50, "kind": "activation"}],
        "ops": [op("one", json!([]), json!([0])), op("two", json!([]), json!([1])), op("three", json!([0]), json!([]))],
    });
    Trace::from_json(&document.to_string()).expect("valid")
}

/// Returns a schedule that offloads `a` after op 0 and prefetches it for op 2; `b` uses its place from op 1 on, and
/// is offloaded too.
fn schedule(duplex: &str) -> Schedule {
    let document = json!({
        "plimsoll": "schedule/1", "trace": "three", "batch": 1, "budget_bytes": 200, "pool_bytes": 200,
        "link": {"offload_bytes_per_second": 50.0, "prefetch_bytes_per_second": 50.0, "duplex": duplex},
        "commands": [
            {"do": "compute", "op": 0, "waits": []},
            {"do": "offload", "tensor": 0, "waits": [0]},
            {"do": "compute", "op": 1, "waits": [1]},
            {"do": "offload", "tensor": 1, "waits": [2]},
            {"do": "prefetch", "tensor": 0, "waits": [1]},
            {"do": "compute", "op": 2, "waits": [4]},
        ],
        "buffers": [
            {"tensor": 0, "offset": 0, "opens": 0, "closes": [1]},
            {"tensor": 1, "offset": 0, "opens": 2, "closes": [3]},
            {"tensor": 0, "offset": 50, "opens": 4, "closes": [5]},
        ],
    });
    Schedule::from_json(&document.to_string()).expect("valid")
}

fn span(start: f64, end: f64) -> Span {
    Span { start: Seconds(start), end: Seconds(end) }
}

fn stall(command: u32, stream: Stream, (start, end): (f64, f64), cause: Cause) -> Stall {
    Stall { command: CommandId(command), stream, span: span(start, end), cause }
}

fn steps(steps: &[(f64, u64)]) -> Vec<PoolStep> {
    steps.iter().map(|(from, bytes)| PoolStep { from: Seconds(*from), bytes: Bytes(*bytes) }).collect()
}

#[test]
fn full_duplex() {
    let (trace, schedule) = (trace(1.0), schedule("full"));
    assert_eq!(check(&trace, &schedule), Ok(()));
    let timeline = simulate(&trace, &schedule);
    let spans = [(0.0, 1.0), (1.0, 3.0), (3.0, 4.0), (4.0, 5.0), (3.0, 5.0), (5.0, 6.0)];
    assert_eq!(timeline.spans, spans.map(|(start, end)| span(start, end)));
    assert_eq!(timeline.makespan(), Seconds(6.0));
    let stalls = [
        stall(1, Stream::Offload, (0.0, 1.0), Cause::Compute(CommandId(0))),
        stall(2, Stream::Compute, (1.0, 3.0), Cause::Offload(CommandId(1))),
        stall(3, Stream::Offload, (3.0, 4.0), Cause::Compute(CommandId(2))),
        stall(4, Stream::Prefetch, (0.0, 3.0), Cause::Offload(CommandId(1))),
        stall(5, Stream::Compute, (4.0, 5.0), Cause::Prefetch(CommandId(4))),
    ];
    assert_eq!(timeline.stalls(&schedule), stalls);
    let totals = Totals {
        busy: [Seconds(3.0), Seconds(3.0), Seconds(2.0)],
        stalled: [Seconds(3.0), Seconds(2.0), Seconds(3.0)],
        idle: [Seconds(0.0), Seconds(1.0), Seconds(1.0)],
        offloaded: Bytes(150),
        prefetched: Bytes(100),
        recomputed: Seconds(0.0),
        recomputed_ops: 0,
        recomputed_bytes: Bytes::ZERO,
    };
    assert_eq!(timeline.totals(&trace, &schedule), totals);
    let pool = steps(&[(0.0, 100), (3.0, 0), (3.0, 50), (3.0, 150), (5.0, 100), (6.0, 0)]);
    assert_eq!(timeline.pool_bytes_over_time(&trace, &schedule), pool);
    assert_eq!(timeline.peak(&trace, &schedule), Bytes(150));
    assert_eq!(timeline.most_feature_maps(&trace, &schedule), Bytes(150));
    let mut other = trace.clone();
    other.tensors[1].kind = TensorKind::Gradient;
    assert_eq!(timeline.most_feature_maps(&other, &schedule), Bytes(100), "`b` is none");
}

#[test]
fn half_duplex() {
    let (trace, schedule) = (trace(1.0), schedule("half"));
    let timeline = simulate(&trace, &schedule);
    assert_eq!(
        timeline.spans[4],
        span(5.0, 7.0),
        "the prefetch waits for the offload of `b` to leave the link"
    );
    assert_eq!(timeline.makespan(), Seconds(8.0));
    let stalls = timeline.stalls(&schedule);
    assert!(
        stalls.contains(&stall(4, Stream::Prefetch, (0.0, 5.0), Cause::Link(CommandId(3)))),
        "{stalls:?}"
    );
    assert!(
        stalls.contains(&stall(5, Stream::Compute, (4.0, 7.0), Cause::Prefetch(CommandId(4)))),
        "{stalls:?}"
    );
    assert_eq!(timeline.peak(&trace, &schedule), Bytes(100));
}

#[test]
fn latency_and_alternatives_and_recomputation_count() {
    let (mut trace, mut schedule) = (trace(1.0), schedule("full"));
    schedule.link.latency_seconds = Seconds(0.25);
    assert_eq!(simulate(&trace, &schedule).makespan(), Seconds(6.5));
    let document = json!([
        {"do": "compute", "op": 0, "waits": []},
        {"do": "compute", "op": 1, "alternative": 0, "waits": []},
        {"do": "compute", "op": 0, "again": true, "waits": []},
        {"do": "compute", "op": 2, "waits": []},
    ]);
    schedule.commands = serde_json::from_value(document).expect("valid");
    schedule.buffers.clear();
    let lean = json!([{"name": "lean", "seconds": 2.5, "workspace_bytes": 0}]);
    trace.ops[1].alternatives = serde_json::from_value(lean).expect("valid");
    let timeline = simulate(&trace, &schedule);
    assert_eq!(timeline.makespan(), Seconds(5.5));
    let Totals { recomputed, recomputed_ops, recomputed_bytes, .. } = timeline.totals(&trace, &schedule);
    let written = trace.tensors[0].bytes;
    assert_eq!((recomputed, recomputed_ops, recomputed_bytes), (Seconds(1.0), 1, written), "op 0 writes `a`");
    assert_eq!(timeline.stalls(&schedule), []);
}

/// Ops without duration all run at once, but not all of their bytes are open at once.
#[test]
fn no_time_is_no_excuse_for_a_wrong_peak() {
    let (trace, mut schedule) = (trace(0.0), schedule("full"));
    let commands = json!([
        {"do": "compute", "op": 0, "waits": []},
        {"do": "compute", "op": 1, "waits": []},
        {"do": "compute", "op": 2, "waits": []},
    ]);
    let buffers = json!([
        {"tensor": 0, "offset": 0, "opens": 0, "closes": [0]},
        {"tensor": 1, "offset": 0, "opens": 1, "closes": [1]},
        {"tensor": 0, "offset": 0, "opens": 2, "closes": [2]},
    ]);
    schedule.commands = serde_json::from_value(commands).expect("valid");
    schedule.buffers = serde_json::from_value(buffers).expect("valid");
    let timeline = simulate(&trace, &schedule);
    let pool = steps(&[(0.0, 100), (0.0, 0), (0.0, 50), (0.0, 0), (0.0, 100), (0.0, 0)]);
    assert_eq!(timeline.pool_bytes_over_time(&trace, &schedule), pool);
    assert_eq!(timeline.peak(&trace, &schedule), Bytes(100));
}

/// A measured timeline has the same results; a delay that no wait explains is the device's.
#[test]
fn what_a_device_adds_is_told_apart() {
    let schedule = schedule("full");
    let mut measured = simulate(&trace(1.0), &schedule);
    for span in &mut measured.spans[2..] {
        *span = Span { start: span.start + Seconds(0.5), end: span.end + Seconds(0.5) };
    }
    measured.spans[0].start = Seconds(0.125);
    let stalls = measured.stalls(&schedule);
    assert_eq!(stalls[0], stall(0, Stream::Compute, (0.0, 0.125), Cause::Device));
    assert_eq!(stalls[2], stall(2, Stream::Compute, (1.0, 3.5), Cause::Offload(CommandId(1))));
    let text = serde_json::to_string(&measured).expect("a plain value");
    assert_eq!(serde_json::from_str::<Timeline>(&text).expect("the same"), measured);
}
