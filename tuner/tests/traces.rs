//! Tests of the shared traces at a few budgets each, full and half duplex, under every policy; the referee judges a sample of the
//! schedules as well. The test prints a message and ends if the traces, the referee or python3 are missing.

use crate::common::{assert_best, planned, request};
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document};
use plimsoll_testing::floor_and_peak;
use plimsoll_tuner::Policy;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const RATE: f64 = 12.2e9;

fn shared(folder: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")).join(folder)
}

/// Returns the traces with their files, or none.
pub fn traces() -> Vec<(PathBuf, Trace)> {
    let Ok(entries) = std::fs::read_dir(shared("traces")) else {
        println!("skipped: no traces in {}", shared("traces").display());
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.retain(|p| p.to_string_lossy().ends_with(".trace.json"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a readable trace");
        (path, Trace::from_json(&text).expect("a valid trace"))
    };
    paths.into_iter().map(read).collect()
}

pub fn budget(trace: &Trace, fraction: f64) -> Bytes {
    let (floor, peak) = floor_and_peak(trace);
    floor + Bytes(((peak - floor).0 as f64 * fraction) as u64)
}

/// Budgets, one or two for each trace, in turn; the bench has the full table.
const FRACTIONS: [f64; 5] = [0.1, 0.2, 0.4, 0.6, 0.8];

#[test]
#[ignore = "minutes: CI runs it"]
fn full_duplex_plans_are_valid() {
    every_policy(Duplex::Full, &[0, 2]);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn half_duplex_plans_are_valid() {
    every_policy(Duplex::Half, &[1]);
}

fn every_policy(duplex: Duplex, offsets: &[usize]) {
    let (mut asked, mut compared) = (0, 0);
    for (i, (_, trace)) in traces().into_iter().enumerate() {
        for fraction in offsets.iter().map(|offset| FRACTIONS[(i + offset) % 5]) {
            let budget = budget(&trace, fraction);
            let plan_of = |policy| (policy, planned(&trace, &request(budget, RATE, duplex, policy)));
            let plans = Policy::ALL.map(plan_of);
            compared += assert_best(&trace, &plans);
            asked += 1;
            let (_, ours) = &plans[plans.len() - 1];
            assert!(ours.is_ok(), "{} at {fraction}: {ours:?}", trace.name);
        }
    }
    assert!(compared >= asked, "{compared} plans of other policies for {asked} requests");
}

#[test]
fn everything_is_kept_without_a_stall_where_it_fits() {
    for (_, trace) in traces() {
        // A twentieth for addresses.
        let budget = budget(&trace, 1.0);
        let budget = budget + Bytes(budget.0 / 20);
        for policy in [Policy::Keep, Policy::Plimsoll] {
            let plan = planned(&trace, &request(budget, RATE, Duplex::Full, policy)).expect("it fits");
            let stall = (plan.makespan - trace.compute_seconds()).0.abs();
            assert!(stall <= 1e-9 * plan.makespan.0, "{}: {}", trace.name, plan.makespan);
        }
    }
}

#[test]
#[ignore = "minutes: CI runs it"]
fn the_referee_agrees_on_a_sample() {
    let referee = shared("tools").join("referee.py");
    if !referee.exists() || Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: no {} or no python3", referee.display());
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sample = ["resnet50", "unet", "wrn28", "googlenet", "alexnet", "vgg16"];
    let (traces, mut judged) = (traces(), 0);
    for (i, (path, trace)) in traces.iter().enumerate() {
        if !sample.iter().any(|name| trace.name.starts_with(name)) {
            continue;
        }
        let duplex = if i % 2 == 0 { Duplex::Full } else { Duplex::Half };
        for (policy, fraction) in
            [(Policy::Naive, 0.4), (Policy::Accudnn { as_printed: false }, 0.6), (Policy::Plimsoll, 0.1)]
        {
            let Ok(plan) = planned(trace, &request(budget(trace, fraction), RATE, duplex, policy)) else {
                continue;
            };
            let file = folder.path().join("plan.schedule.json");
            std::fs::write(&file, plan.schedule.to_json()).expect("a writable folder");
            let output =
                Command::new("python3").arg(&referee).arg(path).arg(&file).output().expect("python3");
            let answer = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{} {policy} {fraction}: {answer}", trace.name);
            let makespan = answer.split("\"makespan_seconds\": ").nth(1).and_then(|s| s.split(',').next());
            let makespan: f64 = makespan.expect("a makespan").parse().expect("a number");
            assert!((makespan - plan.makespan.0).abs() <= 1e-9 * makespan, "{makespan} {}", plan.makespan);
            judged += 1;
        }
    }
    assert!(traces.is_empty() || judged >= sample.len(), "{judged} schedules are judged by the referee");
}
