//! Reports with every part, of any size: the iteration is a planned chain of layers, and the results of a tuning around it are
//! made up, with consistent numbers.

use plimsoll::ir::schedule::Link;
use plimsoll::ir::simulate::{Span, Timeline, simulate};
use plimsoll::ir::{Bytes, BytesPerSecond};
use plimsoll::study::report::Report;
use plimsoll::study::report::gather::Subject;
use plimsoll::tuner::{Limits, Outcome, PlanRequest, Policy, plan};
use plimsoll_testing::chain_trace;
use serde_json::{Value, json};

/// Settings of a sample report.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Layers of the chain.
    pub layers: usize,
    /// `true` if the answer is to change nothing.
    pub keep_your_settings: bool,
    /// `true` if there was a tuning.
    pub tuned: bool,
    /// `true` if it was tuned for workers.
    pub workers: bool,
}

/// A report small enough to look at every row, with all parts; the answer is to keep the settings.
pub const SMALL: Sample = Sample { layers: 30, keep_your_settings: true, tuned: true, workers: false };

/// A report of resnet152's size at a batch that needs swapping.
pub const LARGE: Sample = Sample { layers: 800, keep_your_settings: false, tuned: true, workers: true };

/// A report of a trace and its schedule alone.
pub const UNTUNED: Sample = Sample { tuned: false, ..SMALL };

/// Batch of every sample.
const CHOSEN: u64 = 128;

/// Returns the report.
pub fn report(sample: &Sample) -> Report {
    let mut trace = chain_trace(sample.layers);
    (trace.batch, trace.resident_bytes) = (CHOSEN, Bytes(1 << 20));
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("an op").1, memory.peak().expect("an op").1);
    let budget = floor + Bytes((peak - floor).0 / 8);
    let request = PlanRequest {
        limits: Limits { evaluations: Some(200), ..Limits::default() },
        ..PlanRequest::new(budget, Link::symmetric(BytesPerSecond(5e9)), Policy::Plimsoll)
    };
    let Ok(Outcome::Planned(plan)) = plan(&trace, &request) else { panic!("a chain has a plan") };
    let schedule = plan.schedule;
    let predicted = simulate(&trace, &schedule);
    let later = |span: &Span| Span { start: span.start * 1.05, end: span.end * 1.05 };
    let measured = Timeline { spans: predicted.spans.iter().map(later).collect() };
    let subject = Subject { trace: &trace, schedule: &schedule, measured: sample.tuned.then_some(&measured) };

    let (iteration, device) = (predicted.makespan().0, (trace.resident_bytes + schedule.pool_bytes).0);
    let mut report = subject.report(
        serde_json::from_value(policies(iteration, trace.fastest_seconds().0, device)).expect("policies"),
        serde_json::from_value(about(sample, budget)).expect("what it is about"),
    );
    let yours = if sample.keep_your_settings { CHOSEN } else { 48 };
    let parts = if sample.tuned {
        json!({
            "answer": answer(sample.keep_your_settings, yours, iteration, device),
            "batches": batches(iteration, yours, device),
            "fit": fit(), "workers": sample.workers.then(|| workers(iteration)), "settings": [],
        })
    } else {
        let eager = report.memory.keeping_everything_bytes;
        json!({"settings": [
            setting("the plan", CHOSEN, iteration, device, None),
            setting("eager", CHOSEN, iteration * 0.97, eager, Some("its peak is above the budget")),
        ]})
    };
    let mut whole = serde_json::to_value(&report).expect("a report is plain JSON");
    whole.as_object_mut().expect("fields").extend(parts.as_object().expect("fields").clone());
    report = serde_json::from_value(whole).expect("a report");
    report
}

fn about(sample: &Sample, budget: Bytes) -> Value {
    json!({
        "network": "a-chain", "data": sample.tuned.then_some("32x32x3 images, 10 classes, 50000 samples"), "batch": CHOSEN,
        "budget_bytes": budget, "device": "a made-up device", "plimsoll": "0.1.0",
        "commit": sample.tuned.then_some("0123456789ab"),
        "machine": [["system", "Linux 6.1, x86-64"], ["threads", "16"], ["memory", "125.8 GiB"], ["link", "paced at 5 GB/s"]],
        "command": "plimsoll auto --network sample --budget 4MiB --link 5GB/s", "seed": 1, "unix_seconds": 1_795_000_000,
        "warnings": ["The machine was busy while this was measured: load 3.1 on 2 cores."],
    })
}

/// Returns a setting; a note says why it was not run.
fn setting(what: &str, batch: u64, iteration: f64, peak: u64, note: Option<&str>) -> Value {
    let took = |value: f64| note.is_none().then_some(value);
    json!({
        "what": what, "batch": batch, "predicted_iteration_seconds": iteration, "predicted_error": 0.05,
        "iteration_seconds": took(iteration * 1.02), "relative_error": took(0.012), "peak_bytes": peak, "note": note,
        "samples_per_second": took(batch as f64 / iteration / 1.02),
        "epoch_seconds": took(5e4 * iteration * 1.02 / batch as f64),
    })
}

fn answer(keep: bool, yours: u64, iteration: f64, device: u64) -> Value {
    let (headline, why) = if keep {
        (
            format!("Keep your settings: batch {yours} is as fast as any that fits"),
            "No batch size is measured to be faster than yours by more than the spread of the measurements.",
        )
    } else {
        (
            format!("Batch {CHOSEN} with swapping, instead of your batch {yours}"),
            "The shortest epoch that is predicted within the budget, and it was confirmed by running it.",
        )
    };
    json!({
        "keep_your_settings": keep, "headline": headline, "why": why, "batch": CHOSEN, "learning_rate": 0.1468,
        "placement": "Of 14.2 GiB of feature maps 6.1 GiB stay, 7.4 GiB are swapped, and 40 ops run again.",
        "learning_rate_rule": "AccUDNN eq. (9) with c = 0.6250, from 0.05 at batch 32", "learning_rate_samples": CHOSEN,
        "learning_rate_caution": "12 times the base batch, and AccUDNN shows eq. (9) at 2.3 times", "warmup_iterations": 390,
        "settings": [
            setting("chosen", CHOSEN, iteration, device, None),
            setting("yours", yours, iteration * 0.5, device / 2, None),
            setting("keeping everything", 64, iteration * 0.6, device, (!keep).then_some("it was not run")),
        ],
        "training": [["epochs", "3"], ["test accuracy", "98.6 %"], ["iteration, measured in training", "18.97 ms"]],
    })
}

fn batches(iteration: f64, yours: u64, device: u64) -> Value {
    let time = |batch: u64| {
        let share = batch as f64 / CHOSEN as f64;
        iteration * (0.12 + 0.8 * share) * (1.0 + 0.9 * (share - 1.0).max(0.0))
    };
    let epoch = |batch: u64, iteration: f64| (iteration + 2e-6) * 5e4 / batch as f64;
    let point = |batch: u64| {
        let (fits, over) = (batch.min(CHOSEN), batch.saturating_sub(CHOSEN / 2));
        json!({
            "batch": batch, "iteration_seconds": time(batch), "epoch_seconds": epoch(batch, time(batch)),
            "relative_error": 0.05 + batch as f64 * 2e-4,
            "compute_seconds": iteration * (0.11 + 0.75 * batch as f64 / CHOSEN as f64),
            "peak_bytes": device * fits / CHOSEN, "at_peak_bytes": device / 2 * fits / CHOSEN,
            "offloaded_bytes": device / 4 * over / CHOSEN,
            "swapping_seconds": 0.3 * iteration * over as f64 / CHOSEN as f64, "recomputed_ops": over / 4,
            "recomputed_bytes": device / 16 * over / CHOSEN,
            "recomputing_seconds": 0.02 * iteration * over as f64 / CHOSEN as f64,
        })
    };
    let measured = [
        (32, "profiled", 1.01),
        (64, "keeping everything", 0.98),
        (yours, "yours", 1.016),
        (CHOSEN, "chosen", 1.02),
    ];
    let measured = measured.map(|(batch, what, off)| {
        let took = time(batch) * off;
        json!({"batch": batch, "what": what, "iteration_seconds": took, "relative_error": 0.012,
            "epoch_seconds": epoch(batch, took)})
    });
    json!({
        "points": (1..=24).map(|step| point(8 * step)).collect::<Vec<_>>(), "measured": measured, "chosen": CHOSEN,
        "within": 0.01,
        "keeps_all": 64, "largest": 192, "yours": yours, "samples": 50_000, "no_plan": [256, 384],
    })
}

fn fit() -> Value {
    // Between -1 and 1, differently for each sample.
    let off = |at: u64| ((at * 7 + 3) % 11) as f64 / 5.0 - 1.0;
    let kind = |(at, kind): (u64, &str)| {
        let batch: Vec<u64> = (0..24).map(|i| 8 << (i % 4)).collect();
        let base = 2e-6 * (1 << (at % 5)) as f64;
        let measured: Vec<f64> =
            batch.iter().zip(0..).map(|(b, i)| base * *b as f64 * (3.0 + off(i + at))).collect();
        let error = 0.03 + 0.012 * at as f64;
        let predicted: Vec<f64> = measured.iter().zip(0..).map(|(m, i)| m * (1.0 + error * off(i))).collect();
        json!({
            "kind": kind, "median_error": error / 2.0, "worst_error": error, "predicted": predicted, "measured": measured,
            "op": (0..24).map(|i| i / 4).collect::<Vec<u32>>(), "batch": batch,
        })
    };
    let kinds = ["conv", "batch_norm", "relu", "linear"]
        .map(|of| [format!("{of} forward"), format!("{of} backward")])
        .concat();
    let direction = |(what, speed, latency): (&str, f64, f64)| {
        let bytes: Vec<u64> = (0..11).map(|i| 4096 << (2 * i)).collect();
        let took = |(bytes, at): (&u64, u64)| (latency + *bytes as f64 / speed) * (1.0 + 0.04 * off(at));
        json!({
            "what": what, "bytes_per_second": speed, "latency_seconds": latency, "median_error": 0.02, "worst_error": 0.04,
            "seconds": bytes.iter().zip(0..).map(took).collect::<Vec<f64>>(), "bytes": bytes,
        })
    };
    let held_out = [(24, true, 1.02), (96, true, 0.985), (192, false, 1.046)].map(|(batch, inside, off)| {
        json!({"batch": batch, "inside": inside, "predicted_seconds": 2e-4 * f64::from(batch) * off,
            "measured_seconds": 2e-4 * f64::from(batch)})
    });
    let link = [
        ("offload alone", 12.4e9, 9e-6),
        ("prefetch alone", 12.9e9, 8e-6),
        ("offload beside prefetch", 9.8e9, 1.1e-5),
        ("prefetch beside offload", 10.1e9, 1.1e-5),
    ];
    json!({
        "kinds": (0..).zip(kinds.iter().map(String::as_str)).map(kind).collect::<Vec<_>>(), "held_out": held_out,
        "link": link.map(direction), "notes": ["Ops run 2.1 % slower beside transfers; this is part of the predictions."],
    })
}

fn policies(iteration: f64, compute: f64, device: u64) -> Value {
    let row = |(policy, paper, factor, again): (&str, &str, Option<f64>, f64)| {
        let moved = if again > 0.2 { 0 } else { device };
        json!({
            "policy": policy, "paper": paper, "makespan_seconds": factor.map(|factor| iteration * factor),
            "offloaded_bytes": moved,
            "prefetched_bytes": moved, "recomputed_bytes": (device as f64 * again) as u64,
            "recomputed_seconds": compute * again,
            "stalled_seconds": factor.map_or(0.0, |factor| (iteration * factor - compute * (1.0 + again)).max(0.0)),
            "device_bytes": factor.map(|_| device), "planning_seconds": (policy != "plimsoll").then_some(0.4),
            "note": factor.is_none().then_some("it is short by 1.7 MiB at op7"),
        })
    };
    let rows = [
        ("plimsoll", "this program", Some(1.0), 0.01),
        ("accudnn", "AccUDNN", Some(1.06), 0.0),
        ("superneurons", "SuperNeurons", Some(1.24), 0.12),
        ("memonger", "Memonger", Some(1.33), 0.32),
        ("keep-all", "no policy", None, 0.0),
    ];
    json!({"bound_seconds": iteration * 0.985, "compute_seconds": compute, "rows": rows.map(row)})
}

/// Returns eight workers, whose exchange becomes noticeable from some number on.
fn workers(iteration: f64) -> Value {
    let update = |workers: u64| iteration * (1.0 + 0.004 * (workers as f64).log2().powi(2));
    let rate = |workers: u64| (workers * CHOSEN) as f64 / update(workers);
    let of = |workers: u64| {
        json!({
            "workers": workers, "global_batch": workers * CHOSEN, "update_seconds": update(workers),
            "samples_per_second": rate(workers), "efficiency": iteration / update(workers),
        })
    };
    let resources = [("compute", 0.94), ("link, out", 0.61), ("link, back", 0.57), ("interconnect", 0.83)];
    let (update, together) = (update(8), rate(8));
    json!({
        "workers": 8, "interconnect": "10Gbit/s,30us", "nccl": false, "global_batch": 8 * CHOSEN, "passes": 1,
        "update_seconds": update * 1.01, "exchange_seconds": update - iteration, "predicted_update_seconds": update,
        "without_overlap_seconds": iteration * 1.8, "hidden": (iteration * 1.8 - update) / (iteration * 0.8),
        "bound_seconds": iteration, "samples_per_second": together,
        "single": {"what": "yours", "batch": 48, "samples_per_second": together / 9.5,
        "predicted_samples_per_second": together / 9.7, "times": 9.5},
        "resources": resources.map(|(resource, share)| json!({"resource": resource, "busy_seconds": share * update,
        "share": share})),
        "scaling": (0..7).map(|power| of(1 << power)).collect::<Vec<_>>(),
    })
}
