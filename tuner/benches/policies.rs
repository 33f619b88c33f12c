//! Results of every policy on the shared traces: makespan over the lower bound, bytes moved, and planning time.
//!
//! `cargo bench -p plimsoll-tuner --bench policies -- [TRACE] [--policy NAME] [--fraction F] [--half] [--out FOLDER]`
//!
//! Budgets are floor + f x (peak - floor), the link 12.2 GB/s in each direction. A cell is `makespan/bound moved@seconds`, where
//! moved is bytes moved over twice the excess of the peak over the budget (the bytes that leave and return for any choice); `-`
//! means that the policy has no plan at this budget. With `--out`, every schedule is written there for a different judge. Times
//! are printed, never asserted. Without the shared traces it prints a message and ends.

use plimsoll_ir::schedule::{Command, Duplex, Link, Schedule, piece_of};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, BytesPerSecond, Document};
use plimsoll_tuner::{Allow, Outcome, PlanRequest, Policy, plan};
use std::path::Path;
use std::time::Instant;

const FRACTIONS: [f64; 5] = [0.1, 0.2, 0.4, 0.6, 0.8];

struct Options {
    name: String,
    policies: Vec<Policy>,
    fractions: Vec<f64>,
    half: bool,
    pieces: bool,
    out: Option<String>,
}

fn options() -> Options {
    let mut options = Options {
        name: String::new(),
        policies: Policy::ALL.to_vec(),
        fractions: FRACTIONS.to_vec(),
        half: false,
        pieces: true,
        out: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option is followed by its value");
        match argument.as_str() {
            "--policy" => options.policies = vec![value().parse().expect("the name of a policy")],
            "--fraction" => options.fractions = vec![value().parse().expect("a number")],
            "--half" => options.half = true,
            "--no-pieces" => options.pieces = false,
            "--out" => options.out = Some(value()),
            "--bench" => {}
            _ => options.name = argument,
        }
    }
    options
}

/// Returns all bytes that a schedule moves, both directions together.
fn moved(trace: &Trace, schedule: &Schedule) -> u64 {
    let transfers = schedule.commands.iter().filter_map(Command::transfer);
    let pieces =
        transfers.map(|(tensor, first, bytes)| piece_of(&trace.tensors[tensor.index()], first, bytes));
    pieces.map(|piece| piece.expect("a plan's pieces lie in their tensors")).map(|p| p.end - p.start).sum()
}

/// Plans once; returns makespan over bound and bytes moved over the minimum, and prints the cell.
fn cell(trace: &Trace, fraction: f64, policy: Policy, options: &Options) -> Option<(f64, f64)> {
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().map_or(0, |f| f.1.0), memory.peak().map_or(0, |p| p.1.0));
    let budget = Bytes(floor + (fraction * (peak - floor) as f64) as u64);
    let mut link = Link::symmetric(BytesPerSecond(12.2e9));
    link.duplex = if options.half { Duplex::Half } else { Duplex::Full };
    let allow = Allow { pieces: options.pieces, ..Allow::default() };
    let request = PlanRequest { allow, ..PlanRequest::new(budget, link, policy) };
    let began = Instant::now();
    let outcome = plan(trace, &request).expect("a plan or a witness");
    let took = began.elapsed().as_secs_f64();
    let Outcome::Planned(plan) = outcome else {
        print!(" {:>19}", format!("-@{took:.2}"));
        return None;
    };
    if let Some(out) = &options.out {
        let file = format!("{out}/{}.{policy}.{fraction}.schedule.json", trace.name);
        std::fs::write(file, plan.schedule.to_json()).expect("the folder can be written");
    }
    let ratio = plan.makespan / plan.bound;
    let moved = moved(trace, &plan.schedule) as f64 / (2 * (peak - budget.0)) as f64;
    print!(" {:>19}", format!("{ratio:.4} {moved:.3}@{took:.2}"));
    Some((ratio, moved))
}

fn main() {
    let options = options();
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces"));
    let Ok(entries) = std::fs::read_dir(folder) else {
        println!("skipped: there are no traces at {}", folder.display());
        return;
    };
    let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    paths.retain(|p| {
        p.to_string_lossy().ends_with(".trace.json") && p.to_string_lossy().contains(&options.name)
    });
    paths.sort();
    for &policy in &options.policies {
        println!("{policy}: makespan/bound moved/least@planning seconds at f = {:?}", options.fractions);
        let mut found: Vec<Vec<(f64, f64)>> = vec![Vec::new(); options.fractions.len()];
        for path in &paths {
            let text = std::fs::read_to_string(path).expect("a readable trace");
            let trace = Trace::from_json(&text).expect("a valid trace");
            print!("{:30}", trace.name);
            for (fraction, found) in options.fractions.iter().zip(&mut found) {
                found.extend(cell(&trace, *fraction, policy, &options));
            }
            println!();
        }
        print!("{:30}", "geometric mean (of plans)");
        for found in &found {
            let mean = |of: &dyn Fn(&(f64, f64)) -> f64| {
                (found.iter().map(|cell| of(cell).ln()).sum::<f64>() / found.len() as f64).exp()
            };
            let (ratio, moved) = (mean(&|cell| cell.0), mean(&|cell| cell.1));
            print!(" {:>19}", format!("{ratio:.4} {moved:.3} ({})", found.len()));
        }
        println!("\n");
    }
}
