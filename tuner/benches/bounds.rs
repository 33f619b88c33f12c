//! Lower bounds of the shared traces, compared with the prototype's of `joint_bounds.jsonl`, and the time that they take.
//!
//! `cargo bench -p plimsoll-tuner --bench bounds -- [TRACE] [--half]`
//!
//! For traces in files, such as those of `plimsoll trace`, the gain of windows and several instants over one instant:
//!
//! `cargo bench -p plimsoll-tuner --bench bounds -- [--half] FILE.trace.json...`
//!
//! Budgets are floor + f x (peak - floor), the link 12.2 GB/s in each direction. A cell is `bound/compute ratio@seconds`, where
//! ratio is the joint bound over the prototype's; then the bound for offloading only. Times are
//! printed, never asserted. Without the shared traces it prints a message and ends.

use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Document};
use plimsoll_tuner::bound::joint::relax;
use plimsoll_tuner::bound::lower_bound;
use plimsoll_tuner::{Allow, Limits};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Returns the value of a key in one line of JSON without nesting.
fn field<'a>(line: &'a str, key: &str) -> &'a str {
    let value = line.split(&format!("\"{key}\": ")).nth(1).expect("every line has every key");
    value.split([',', '}']).next().unwrap_or_default().trim_matches('"')
}

/// Prints one line; returns the joint bound over compute, over the prototype's, and the offload bound over compute.
fn row(trace: &Trace, line: &str, link: &Link) -> [f64; 3] {
    let number = |key: &str| field(line, key).parse::<f64>().expect("a number");
    let budget = Bytes(number("budget_bytes") as u64);
    let compute = trace.compute_seconds();
    let began = Instant::now();
    let joint = lower_bound(trace, budget, link, Allow::default()) / compute;
    let took = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let offload = lower_bound(trace, budget, link, Allow { recompute: false, ..Allow::default() }) / compute;
    let took_offload = began.elapsed().as_secs_f64();
    let ratios = [joint, joint / number("bound_to_compute"), offload];
    println!(
        "{:36} {:>6} {:>4} {:9.5} {:8.5} {took:7.3} {:8.5} {took_offload:7.3}",
        trace.name,
        trace.ops.len(),
        field(line, "fraction"),
        ratios[0],
        ratios[1],
        ratios[2],
    );
    ratios
}

/// Prints, at each budget and for each set of allowed means, the bound over compute: of one instant, of all methods, and the
/// seconds that these take. Budgets are between the peak and the floor or the bytes that exist from the start.
fn sharpened(trace: &Trace, link: &Link) {
    let memory = trace.memory();
    let [floor, peak] = [memory.floor(), memory.peak()].map(|most| most.expect("there are ops").1);
    let lives = trace.lives();
    let at_start = trace.tensors.iter().zip(lives).filter(|(_, life)| life.is_some_and(|l| l.born.is_none()));
    let least = floor.max(trace.resident_bytes + at_start.map(|(t, _)| t.bytes).sum());
    let compute = trace.fastest_seconds();
    let all = Allow::default();
    let means = [Allow { recompute: false, ..all }, all, Allow { swap: false, ..all }];
    for f in [0.1, 0.2, 0.4, 0.6] {
        let budget = least + Bytes((peak.0.saturating_sub(least.0) as f64 * f) as u64);
        print!("{:36} {:>6} {f:>4}", trace.name, trace.ops.len());
        for allow in means {
            let began = Instant::now();
            let now = lower_bound(trace, budget, link, allow) / compute;
            let took = began.elapsed().as_secs_f64();
            let limits = Limits::default();
            let one = relax(trace, budget, link, Allow { swap: true, ..allow }, &limits).bound;
            print!("  {:7.4} {now:7.4} {took:6.3}", one / compute);
        }
        println!();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let half = arguments.iter().any(|a| a == "--half");
    let files: Vec<&String> = arguments.iter().filter(|a| a.ends_with(".json")).collect();
    if !files.is_empty() {
        let mut link = Link::symmetric(BytesPerSecond(12.2e9));
        link.duplex = if half { Duplex::Half } else { Duplex::Full };
        println!(
            "{:36} {:>6} {:>4}  swapping: one instant, now, seconds; both; running again",
            "trace", "ops", "f"
        );
        for file in files {
            let text = std::fs::read_to_string(file).expect("a readable trace");
            sharpened(&Trace::from_json(&text).expect("a valid trace"), &link);
        }
        return;
    }
    let only = arguments.into_iter().find(|a| a != "--half").unwrap_or_default();
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces"));
    let Ok(lines) = std::fs::read_to_string(folder.join("joint_bounds.jsonl")) else {
        println!("skipped: there is no joint_bounds.jsonl at {}", folder.display());
        return;
    };
    let mut link = Link::symmetric(BytesPerSecond(12.2e9));
    link.duplex = if half { Duplex::Half } else { Duplex::Full };
    println!(
        "{:36} {:>6} {:>4} {:>9} {:>8} {:>7} {:>8} {:>7}",
        "trace", "ops", "f", "joint", "theirs", "seconds", "offload", "seconds"
    );
    let mut of_fraction: BTreeMap<&str, Vec<[f64; 3]>> = BTreeMap::new();
    let mut last: Option<(&str, Trace)> = None;
    for line in lines.lines().filter(|line| field(line, "trace").contains(&only)) {
        let name = field(line, "trace");
        let read = || {
            let text =
                std::fs::read_to_string(folder.join(format!("{name}.trace.json"))).expect("a readable trace");
            (name, Trace::from_json(&text).expect("a valid trace"))
        };
        let (_, trace) = last.take_if(|last| last.0 == name).unwrap_or_else(read);
        of_fraction.entry(field(line, "fraction")).or_default().push(row(&trace, line, &link));
        last = Some((name, trace));
    }
    for (fraction, rows) in of_fraction {
        let mean = |i: usize| (rows.iter().map(|row| row[i].ln()).sum::<f64>() / rows.len() as f64).exp();
        println!(
            "{:36} {:>6} {fraction:>4} {:9.5} {:8.5} {:7} {:8.5}",
            "geometric mean",
            rows.len(),
            mean(0),
            mean(1),
            "",
            mean(2)
        );
    }
}
