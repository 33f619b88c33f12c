//! Reports with every part, of any size: a planned chain of layers, with the results of real tunings around it.

use crate::program::{json as output, printed};
use crate::report::study;
use plimsoll::ir::schedule::Link;
use plimsoll::ir::simulate::{Span, Timeline, simulate};
use plimsoll::ir::{Bytes, BytesPerSecond};
use plimsoll::study::report::Report;
use plimsoll::study::report::gather::Subject;
use plimsoll::tuner::{Limits, Outcome, PlanRequest, Policy, plan};
use plimsoll_testing::chain_trace;
use serde_json::{Value, json};
use std::sync::OnceLock;

/// Settings of a sample report.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Layers of the chain.
    pub layers: usize,
    /// `true` if there was a tuning.
    pub tuned: bool,
    /// `true` if it was tuned for workers.
    pub workers: bool,
}

/// A report small enough to look at every row, with all parts but the workers.
pub const SMALL: Sample = Sample { layers: 30, tuned: true, workers: false };

/// A report of resnet152's size at a batch that needs swapping.
pub const LARGE: Sample = Sample { layers: 800, tuned: true, workers: true };

/// A report of a trace and its schedule alone.
pub const UNTUNED: Sample = Sample { tuned: false, ..SMALL };

/// Returns the report of a measured study, with the workers of a modelled one.
fn tuned() -> &'static Value {
    static TUNED: OnceLock<Value> = OnceLock::new();
    TUNED.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let workers = "--workers 4 --interconnect 10Gbit/s,30us --max-batch 64 --study s";
        printed(folder.path(), &format!("tune --network resnet20 --device k40 --budget 40MB {workers}"));
        let mut report = output(study(), "report .");
        report["workers"] = output(folder.path(), "report s")["workers"].clone();
        report["about"]["warnings"] = json!(["The machine was busy while this was measured."]);
        report["answer"]["training"] = json!([["epochs", "3"], ["test accuracy", "98.6 %"]]);
        report
    })
}

/// Returns the report.
pub fn report(sample: &Sample) -> Report {
    let mut trace = chain_trace(sample.layers);
    trace.resident_bytes = Bytes(1 << 20);
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().expect("an op").1, memory.peak().expect("an op").1);
    let budget = floor + Bytes((peak - floor).0 / 8);
    let request = PlanRequest {
        limits: Limits { evaluations: Some(200), ..Limits::default() },
        ..PlanRequest::new(budget, Link::symmetric(BytesPerSecond(5e9)), Policy::Plimsoll)
    };
    let Ok(Outcome::Planned(plan)) = plan(&trace, &request) else { panic!("a chain has a plan") };
    let schedule = plan.schedule;
    let later = |span: &Span| Span { start: span.start * 1.05, end: span.end * 1.05 };
    let measured = Timeline { spans: simulate(&trace, &schedule).spans.iter().map(later).collect() };
    let subject = Subject { trace: &trace, schedule: &schedule, measured: sample.tuned.then_some(&measured) };
    let of = |part: &str| tuned()[part].clone();
    let [policies, about] = ["policies", "about"].map(of);
    let policies = serde_json::from_value(policies).expect("policies");
    let report = subject.report(policies, serde_json::from_value(about).expect("what it is about"));
    let mut report = serde_json::to_value(report).expect("a report is plain JSON");
    if sample.tuned {
        for part in ["answer", "batches", "fit"] {
            report[part] = of(part);
        }
    } else {
        report["settings"] = of("answer")["settings"].clone();
    }
    if sample.workers {
        report["workers"] = of("workers");
    }
    serde_json::from_value(report).expect("a report")
}
