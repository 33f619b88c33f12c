//! Quality of the plans, and the time that they take: one table for each goal of the planner.
//!
//! `cargo bench --bench plans [-- TABLE ...] [--trace NAME ...] [--fraction F] [--minutes M]`
//!
//! The tables are `time`, `first`, `hybrid`, `state`, `offload`, `cliffs`, `chains`, `effort`, `ablation`, `pool`, `readings`,
//! `best` and `valid`. The default is all of them but `ablation`, `cliffs` and `first`, which take minutes each; traces of more
//! than 2,000 ops are then planned at f = 0.1 and 0.4 only, and plans skipped for lack of time are counted. Naming tables or
//! traces plans everything. Traces are those of `../shared/traces` next to the repository; if they are missing, networks of the
//! zoo are planned, with the seconds of a roofline model. Budgets are floor + f x (peak - floor), the link 12.2 GB/s each way.
//! Every schedule is judged by our check and by `../shared/tools/referee.py`, if present. Times are printed, never asserted; a
//! schedule that a judge refuses ends the bench with exit code 1. `cargo test` runs all tables on two small networks.

mod ablation;
mod chains;
mod cliffs;
mod first;
mod readings;
mod referee;
mod runs;
mod subjects;
mod tables;

use runs::Runs;
use std::process::ExitCode;
use std::time::Duration;
use subjects::FRACTIONS;

/// Makes the plans that a table needs, and prints the table.
type Table = fn(&mut Runs);

/// The tables in the order in which they are made. Timing comes first, one plan at a time; the validity of all plans made for
/// the others comes last.
const TABLES: [(&str, Table); 13] = [
    ("time", tables::time),
    ("first", first::table),
    ("hybrid", tables::hybrid),
    ("state", tables::state),
    ("offload", tables::offload),
    ("cliffs", cliffs::table),
    ("chains", chains::table),
    ("effort", tables::effort),
    ("ablation", ablation::table),
    ("pool", tables::pool),
    ("readings", readings::table),
    ("best", tables::best),
    ("valid", tables::valid),
];

struct Options {
    tables: Vec<String>,
    traces: Vec<String>,
    fractions: Vec<usize>,
    minutes: f64,
    /// `true` for `cargo bench`, `false` for `cargo test`.
    full: bool,
}

fn options() -> Options {
    let mut options =
        Options { tables: Vec::new(), traces: Vec::new(), fractions: Vec::new(), minutes: 20.0, full: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option is followed by its value");
        match argument.as_str() {
            "--bench" => options.full = true,
            "--trace" => options.traces.push(value()),
            "--minutes" => options.minutes = value().parse().expect("a number of minutes"),
            "--fraction" => {
                let wanted: f64 = value().parse().expect("a fraction");
                let known = FRACTIONS.iter().position(|f| *f == wanted);
                options.fractions.push(known.unwrap_or_else(|| panic!("the fractions are {FRACTIONS:?}")));
            }
            table if TABLES.iter().any(|(name, _)| *name == table) => options.tables.push(argument),
            // Options of cargo's test harness.
            other if other.starts_with("--") => {}
            other => panic!("there is no table `{other}`; there are {:?}", TABLES.map(|table| table.0)),
        }
    }
    options
}

fn main() -> ExitCode {
    let options = options();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut subjects = if options.full { subjects::shared(&options.traces) } else { Vec::new() };
    if subjects.is_empty() {
        let networks: &[_] = if options.full { &subjects::ZOO } else { &subjects::SMALL };
        if options.full {
            println!("skipped: there are no such traces at ../shared/traces; these are of our own zoo\n");
        }
        subjects = subjects::zoo(networks, &options.traces, folder.path());
    }
    let fractions = match &options.fractions[..] {
        [] if options.full => (0..FRACTIONS.len()).collect(),
        [] => vec![1, 3],
        given => given.to_vec(),
    };
    let mut runs = Runs::new(subjects, fractions, Duration::from_secs_f64(60.0 * options.minutes));
    runs.evaluations = (!options.full).then_some(100);
    runs.selected = !options.traces.is_empty();
    runs.thorough = !(options.tables.is_empty() && options.traces.is_empty());
    println!("plimsoll {}, budgets at f, link {} each way\n", plimsoll::study::version(), runs::RATE);
    for (name, table) in TABLES {
        let asked_for = options.full && ["ablation", "cliffs", "first"].contains(&name);
        let by_default = options.tables.is_empty() && !asked_for;
        if by_default || options.tables.iter().any(|wanted| wanted == name) {
            table(&mut runs);
        }
    }
    if !runs.left_out.is_empty() {
        println!("left out for want of time: {} plans; `--minutes` gives more", runs.left_out.len());
    }
    if tables::faults(&runs).is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
