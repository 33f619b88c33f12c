//! Two workers on one machine with a link of a given rate between them: the times of their updates, compared with the
//! prediction and both bounds. Skipped with a message if there is no `mpirun.mpich`, or if network namespaces are not allowed.
//!
//! `cargo bench --bench workers` tunes a study, then runs itself twice by `shaped_link.sh`, as the workers of that study.

#[path = "support/report.rs"]
mod report;

use plimsoll::ir::exchange::update::{bound, simulate_update};
use plimsoll::ir::exchange::{Exchange, Form, Interconnect, Overlap, PIECE_BYTES};
use plimsoll::ir::schedule::Schedule;
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Document, Seconds, UpdateRule};
use plimsoll::networks::Mode;
use plimsoll::runtime::group::measure;
use plimsoll::runtime::group::mpi::{World, launched};
use plimsoll::runtime::{LearningRateSchedule, Trainer, TrainingPlan};
use plimsoll::study::data::DataSource;
use plimsoll::study::device::cpu_options;
use plimsoll::study::request::NetworkRequest;
use plimsoll::study::{NetworkWorkload, Setup};
use plimsoll::tuner::exchange::{Workers, exchange};
use report::{in_full, machine, middle};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Network to train, samples in a pass, and number of updates that count.
struct Size {
    network: &'static str,
    batch: u64,
    updates: u64,
    links: &'static [Option<&'static str>],
}

const FULL: Size = Size {
    network: "wrn-16-4",
    batch: 64,
    updates: 60,
    links: &[None, Some("1g"), Some("400m"), Some("200m")],
};
const SMALL: Size = Size { network: "resnet20", batch: 4, updates: 3, links: &[None] };

/// Updates before those that count.
const WARM_UP: u64 = 5;

/// Results of worker 0.
#[derive(Serialize, Deserialize)]
struct Found {
    /// Network between both workers, as `doctor` measures it.
    interconnect: Interconnect,
    /// Wall-clock seconds of each update.
    seconds: Vec<f64>,
    /// Time that computing threads waited for a processor, over all updates.
    waited: f64,
    /// Bytes that this worker sent in an update, with all headers, by the counters of its interfaces.
    sent: f64,
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let size = if in_full() { FULL } else { SMALL };
    if let [as_worker, network, folder, updates] = given.as_slice()
        && as_worker == "worker"
    {
        return work(network, Path::new(folder), updates.parse().expect("a number"));
    }
    if !Command::new("mpirun.mpich").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("workers: skipped, there is no mpirun.mpich");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for what is measured");
    let task = task(size.network);
    println!("{} at batch {}; {}", size.network, size.batch, machine(&task));
    println!(
        "| link | interconnect, measured | predicted by the link's rate | predicted by the measured one | update, \
         by the clock | off | off | waiting for a processor | bound, update waits | bound, each parameter | over it | sent / \
         gradients |"
    );
    println!("| {} |", ["---"; 12].join(" | "));
    let study = folder.path().join("study");
    tune(&size, &study);
    let (trace, schedule) = chosen(&study);
    let program = task.program(trace.batch, Mode::Train).expect("the network lowers");
    for link in size.links {
        let exchange_by = |interconnect, overlap| {
            let (form, staged, passes) = (Form::Sharded, false, 1);
            let workers = Workers { count: 2, interconnect, form, staged, passes, overlap };
            let exchange = exchange(&program, &workers).expect("it trains");
            exchange.check(&trace, &schedule).expect("the plan can run with it");
            exchange
        };
        let Some(found) = run(*link, &size, &study) else { return };
        let rated = link.map(|rate| format!("{rate}bit/s,0us").replace('m', "M").replace('g', "G"));
        let rated = rated.map(|text| text.parse::<Interconnect>().expect("a rate"));
        let forward = |interconnect| exchange_by(interconnect, Overlap::Forward(PIECE_BYTES));
        let predicted = |exchange: &Exchange| simulate_update(&trace, &schedule, exchange).seconds;
        let measured = forward(found.interconnect);
        let by_rate = rated.map(|rate| predicted(&forward(rate)));
        let by_measured = predicted(&measured);
        let seconds: Vec<Seconds> = found.seconds.iter().copied().map(Seconds).collect();
        let mean = Seconds(found.seconds.iter().sum::<f64>() / found.seconds.len() as f64);
        let (_, spread) = middle(&seconds);
        let of_bound = rated.unwrap_or(found.interconnect);
        let waits = bound(&trace, &schedule, &exchange_by(of_bound, Overlap::Backward(PIECE_BYTES)));
        let least = bound(&trace, &schedule, &forward(of_bound));
        let off = |predicted: Seconds| format!("{:+.1} %", (predicted / mean - 1.0) * 100.0);
        println!(
            "| {} | {} | {} | {by_measured} | {mean} ± {:.0} % | {} | {} | {:.0} % | {waits} | {least} | {:.3} | \
             {:.4} |",
            link.map_or("shared memory".to_owned(), |rate| format!("{rate}bit")),
            found.interconnect,
            by_rate.map_or("-".to_owned(), |predicted| predicted.to_string()),
            spread * 100.0,
            by_rate.map_or("-".to_owned(), off),
            off(by_measured),
            found.waited / found.seconds.iter().sum::<f64>() * 100.0,
            mean / least,
            found.sent / measured.bytes.to_f64(),
        );
    }
}

/// Keeps a study of the network at this batch, with a budget that keeps nearly everything.
fn tune(size: &Size, study: &Path) {
    let batch = size.batch.to_string();
    let mut tune = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    tune.args(["tune", "--quiet", "--data", "digits", "--budget", "300MB", "--threads", "1"]);
    tune.args(["--network", size.network, "--min-batch", &batch, "--max-batch", &batch, "--study"])
        .arg(study);
    let tuned = tune.output().expect("it was built beside this");
    assert!(tuned.status.success(), "{}", String::from_utf8_lossy(&tuned.stderr));
}

fn chosen(study: &Path) -> (Trace, Schedule) {
    let read = |name: &str| std::fs::read_to_string(study.join(name)).expect("the study has it");
    let trace = Trace::from_json(&read("chosen.trace.json")).expect("a trace");
    (trace, Schedule::from_json(&read("chosen.schedule.json")).expect("a schedule"))
}

fn task(network: &str) -> NetworkWorkload {
    let setup = Setup::Cpu(cpu_options(Some(1), None));
    NetworkWorkload::new(&NetworkRequest::zoo(network), &DataSource::Digits, setup)
        .expect("a network of the zoo")
}

/// Runs both workers; prints a message and returns `None` if that is not allowed.
fn run(link: Option<&str>, size: &Size, study: &Path) -> Option<Found> {
    let this = std::env::current_exe().expect("it runs");
    let mut command = match link {
        None => {
            let mut command = Command::new("mpirun.mpich");
            command.args(["-launcher", "fork", "-n", "2"]);
            command
        }
        Some(rate) => {
            let mut command = Command::new("bash");
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/shaped_link.sh");
            command.arg(script).arg(format!("{rate}bit"));
            command
        }
    };
    let output =
        command.arg(this).args(["worker", size.network]).arg(study).arg(size.updates.to_string()).output();
    let output = output.expect("it was found before");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    if said.contains("skipped") {
        print!("{said}");
        return None;
    }
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = told.lines().find(|line| line.starts_with('{')).expect("worker 0 tells");
    Some(serde_json::from_str(line).expect("as it was written"))
}

/// Runs one of both workers.
fn work(network: &str, study: &Path, updates: u64) {
    let (trace, schedule) = chosen(study);
    let task = task(network);
    let program = task.program(trace.batch, Mode::Train).expect("the network lowers");
    let device = task.setup.device().expect("the processor is always there");
    let (executor, mut loaded) =
        task.executor_apart(device, &[(&program, &schedule)], PIECE_BYTES).expect("a checked plan");
    let launched = launched().expect("a launcher started it");
    let world = World::join(launched, Duration::from_secs(5)).expect("there is an MPI");
    let mut group = world.group();
    let measured = measure(&mut *group).expect("both live").expect("there are two");
    let plan = TrainingPlan {
        network: task.network.spec.clone(),
        batch: trace.batch,
        virtual_workers: 2,
        seed: 1,
        rate: LearningRateSchedule::constant(0.01),
        update: UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.0 },
        weights: None,
    };
    let mut trainer = Trainer::sharing(executor, loaded.remove(0), None, plan, group).expect("two share two");
    let (mut seconds, mut waited) = (Vec::new(), 0.0);
    // Each worker has its own network namespace, or both share one in which nothing is sent.
    trainer.train(&*task.data.train, WARM_UP, &mut |_| {}, &|| false).expect("training runs");
    let before = sent();
    let mut observe = |seen: &plimsoll::runtime::Observation| {
        seconds.push(seen.seconds.0 + seen.between.0);
        waited += seen.waited.0;
    };
    trainer.train(&*task.data.train, WARM_UP + updates, &mut observe, &|| false).expect("training runs");
    let sent = (sent() - before) / updates as f64;
    if world.facts().rank == 0 {
        let found = Found { interconnect: measured.interconnect, seconds, waited, sent };
        println!("{}", serde_json::to_string(&found).expect("plain numbers"));
    }
    drop(trainer);
    assert!(world.end(), "the other has ended");
}

/// Returns the bytes sent from this process's network, except through its loopback.
fn sent() -> f64 {
    let text = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let of_line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let sent = numbers.split_whitespace().nth(8)?.parse::<f64>().ok()?;
        (name.trim() != "lo").then_some(sent)
    };
    text.lines().filter_map(of_line).sum()
}
