//! Plans of record: a checksum of every schedule that each policy makes of 18 traces at three budgets. A change that is not meant
//! to affect plans leaves each byte. `GOLDEN=write` in the environment writes the checksums of the present plans; `WITHOUT=tree`
//! counts the plans that change without a trick.

use crate::common::{planned, request};
use crate::traces::{RATE, budget, traces};
use plimsoll_ir::checksum::Checksum;
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::schedule::Duplex;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Document, Seconds};
use plimsoll_networks::{LowerOptions, build, lower};
use plimsoll_tuner::policies::taking;
use plimsoll_tuner::{PlanRequest, Policy, Trick, Tricks};
use std::fs;
use std::path::Path;

/// Returns one iteration of a network of the zoo, at a fixed speed.
fn of_zoo(name: &str, image: [u32; 2], batch: u64) -> Trace {
    let spec = NetworkSpec { name: name.into(), image, channels: 3, classes: 10 };
    let network = build(&spec).expect("a network of the zoo");
    let mut trace = lower(&network, batch, &LowerOptions::default()).expect("it lowers").trace;
    for op in &mut trace.ops {
        op.seconds = Seconds(1e-5 + op.flops as f64 / 1e12);
    }
    trace
}

/// Compares a line for each plan of these traces with the lines of a file.
fn compare(file: &str, traces: &[Trace]) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).join(file);
    let without = std::env::var("WITHOUT").unwrap_or_default();
    let without = without.split_whitespace().map(|trick| trick.parse::<Trick>().expect("a trick"));
    let without: Tricks = without.collect();
    let mut made = String::new();
    for trace in traces {
        for fraction in [0.1, 0.4, 0.8] {
            for policy in taking(trace).into_iter().filter(|policy| *policy != Policy::Optimal) {
                let request = request(budget(trace, fraction), RATE, Duplex::Full, policy);
                let plan = planned(trace, &PlanRequest { without, ..request });
                let sum = plan.map(|plan| Checksum::of(plan.schedule.to_json().as_bytes()).to_string());
                let sum = sum.unwrap_or_else(|_| "none".to_owned());
                made += &format!("{} {fraction} {policy} {sum}\n", trace.name);
            }
        }
    }
    if std::env::var_os("GOLDEN").is_some_and(|what| what == "write") {
        fs::write(&path, &made).expect("a file");
    }
    let recorded = fs::read_to_string(&path).expect("plans of record");
    let differ: Vec<_> = recorded.lines().zip(made.lines()).filter(|(was, is)| was != is).collect();
    assert!(recorded == made, "{} of {} plans changed: {differ:#?}", differ.len(), recorded.lines().count());
}

#[test]
fn plans_of_the_zoo_are_those_of_record() {
    let zoo = [("resnet20", 16, 8), ("densenet121", 32, 2), ("mobilenet_v2", 32, 4)];
    compare("golden-zoo.txt", &zoo.map(|(name, side, batch)| of_zoo(name, [side; 2], batch)));
}

/// Compares the shared traces; that of 10,000 ops takes minutes and is left out.
#[test]
#[ignore = "minutes: CI runs it"]
fn plans_of_shared_traces_are_those_of_record() {
    let shared = traces().into_iter().map(|(_, trace)| trace).filter(|trace| trace.ops.len() < 5000);
    let shared: Vec<Trace> = shared.collect();
    for (file, from) in [("golden-shared-1.txt", 0), ("golden-shared-2.txt", 1)] {
        let all: Vec<Trace> = shared.iter().skip(from).step_by(2).cloned().collect();
        if !all.is_empty() {
            compare(file, &all);
        }
    }
}
