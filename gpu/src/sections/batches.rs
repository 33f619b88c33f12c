//! Which batches fit 12 GiB? For the networks of AccUDNN's table 1: the largest that keeps everything, the largest that can be
//! trained, which is run, and the efficiency-optimal one, which is profiled, searched and run; beside the paper's own.
//!
//! What is swapped needs pinned memory of the host, so that the largest batch is one that the host holds, too; what the device
//! alone could hold is told beside it.

use super::{Section, Target};
use crate::bench::{Runner, WARM_UP, cuda, fitting, largest, middle, peak, plan, profile, task};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use plimsoll::study::error::{Error, Kind};
use plimsoll::study::{NetworkWorkload, Workload};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Precision, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::MemoryLayout;
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::Model;
use plimsoll_tuner::search::{Choice, Planned, SearchError, SearchRequest, Sharing, search};
use serde_json::json;

/// The section in f32, as AccUDNN's table.
pub const F32: Section = Section {
    name: "batches",
    asks: "within 12 GiB, which batch is the largest that trains, and which is the most efficient?",
    seconds: 110,
    by_name_only: false,
    run: |ground| run(ground, Precision::F32),
    targets: &[Target {
        what: "12 GiB: largest trainable and efficiency-optimal batch of alexnet, googlenet, vgg16, \
               resnet34/50/101/152 beside AccUDNN's table 1 and keep",
        verifies: false,
        judge,
    }],
};

/// The section in TF32.
pub const TF32: Section = Section {
    name: "batches-tf32",
    asks: "the same in TF32",
    by_name_only: true,
    run: |ground| run(ground, Precision::Tf32),
    targets: &[Target { what: "the same in TF32", verifies: false, judge }],
    ..F32
};

/// The section in bf16.
pub const BF16: Section = Section {
    name: "batches-bf16",
    asks: "the same in bf16",
    run: |ground| run(ground, Precision::Bf16),
    targets: &[Target { what: "the same in bf16", verifies: false, judge }],
    ..TF32
};

/// The budget of AccUDNN's table 1.
pub const BUDGET: Bytes = Bytes(12 << 30);

/// What a tiny run has: resnet20 keeps everything at a few samples and trains at some more.
pub const SMALL_BUDGET: Bytes = Bytes(3_800_000);

/// Pinned memory of the host that a schedule may take: it is pinned anew for every schedule, which takes time.
pub const HOST: Bytes = Bytes(12 << 30);

/// Network; AccUDNN's efficiency-optimal batch and its images a second, Caffe's largest batch and its images a second (table
/// 1).
pub type Paper = (&'static str, [u64; 4]);

pub const PAPER: [Paper; 7] = [
    ("alexnet", [1032, 853, 848, 865]),
    ("googlenet", [286, 245, 150, 263]),
    ("vgg16", [192, 50, 80, 51]),
    ("resnet34", [276, 99, 91, 99]),
    ("resnet50", [112, 66, 33, 66]),
    ("resnet101", [74, 34, 20, 29]),
    ("resnet152", [54, 24, 13, 19]),
];

/// Seconds for one plan of a search, and for the plan that is run at the end.
const SEARCHING: f64 = 0.3;
const PLANNING: f64 = 3.0;

/// The latter; in tiny sizes as long as one of a search.
fn planning(ground: &Ground) -> f64 {
    ground.pick(PLANNING, SEARCHING)
}

/// Plans of a search.
const EVALUATIONS: usize = 10;

/// Seconds that are kept for the runs when a search is ended.
const RUNNING: f64 = 5.0;

fn run(ground: &Ground, precision: Precision) -> Result<(), Error> {
    let names = networks(ground);
    for (done, name) in names.iter().enumerate() {
        let rows = Rows { ground, network: name, precision };
        let left = ground.left() / (names.len() - done) as f64;
        // Less than a plan and a run take.
        if left < 5.0 && !ground.options.small {
            rows.missing("plimsoll", "no time was left");
        } else if let Err(failure) = network(&rows, ground.left() - left) {
            rows.missing("plimsoll", &failure.message);
        }
    }
    Ok(())
}

/// The networks of AccUDNN's table 1; one for tiny sizes.
pub fn networks(ground: &Ground) -> Vec<&'static str> {
    if ground.options.small { vec!["resnet20"] } else { PAPER.iter().map(|(name, _)| *name).collect() }
}

/// A batch size and what came of running it.
#[derive(Clone, Copy)]
pub struct Ran {
    /// The batch size.
    pub batch: u64,
    /// The median iteration.
    pub seconds: Seconds,
    /// What the loss was: a number, where it trains.
    pub loss: f64,
}

/// Where the rows of a network go.
struct Rows<'a> {
    ground: &'a Ground,
    network: &'a str,
    precision: Precision,
}

/// Who trains at which batch, in the rows.
const KEEP: &str = "plimsoll, keeping everything";
const OPTIMAL: &str = "plimsoll, efficiency-optimal";
const LARGEST: &str = "plimsoll, largest";

impl Rows<'_> {
    /// What was run, beside the paper's row; and the largest batch that the device alone could hold, where that is known.
    fn ran(&self, who: &str, ran: Ran, device_alone: Option<u64>) {
        // Caffe keeps everything; AccUDNN has no row for the largest.
        let places = [(KEEP, [2, 3]), (OPTIMAL, [0, 1])];
        let place = places.iter().find(|(of, _)| *of == who).map(|(_, place)| *place);
        let paper = PAPER.iter().find(|(of, _)| *of == self.network).map(|(_, numbers)| *numbers);
        let paper = |i: usize| Option::zip(place, paper).map(|(place, numbers)| numbers[place[i]]);
        self.ground.row(&json!({
            "network": self.network,
            "precision": self.precision.name(),
            "who": who,
            "batch": ran.batch,
            "images_per_second": ran.batch as f64 / ran.seconds.0,
            "loss": ran.loss,
            "paper_batch": paper(0),
            "paper_images_per_second": paper(1),
            "device_alone_batch": device_alone,
        }));
    }

    /// Why something is not there.
    fn missing(&self, who: &str, why: &str) {
        let (network, precision) = (self.network, self.precision.name());
        self.ground.row(&json!({ "network": network, "precision": precision, "who": who, "note": why }));
    }
}

/// Everything about one network, each row as it is known, until no more than `until` seconds of the section are left.
fn network(rows: &Rows, until: f64) -> Result<(), Error> {
    let ground = rows.ground;
    let (side, classes) = ground.pick((224, 1000), (8, 10));
    let task = &task(rows.network, side, classes, &cuda(rows.precision))?;
    let Fits { within, keep, device, held } = Fits::of(ground, task)?;
    let kept = keep.as_ref().map(|(batch, _)| *batch);
    let model = modelled(ground, task, within, kept.unwrap_or(1), held.0)?;
    let (warm_up, count) = ground.pick((WARM_UP, 5), (1, 1));
    if let Some((batch, schedule)) = keep {
        // With each op in its fastest alternative, as far as their scratch fits.
        let faster = planned(task, &model, within, batch, planning(ground))?.map(|plan| plan.schedule);
        let trace = filled(task, &model, batch)?;
        rows.ran(KEEP, ran(task, &trace, &faster.unwrap_or(schedule), warm_up, count)?, None);
    }
    let chosen = optimal(ground, task, &model, within, held.0, kept, until)?;
    rows.ran(OPTIMAL, ran(task, &chosen.trace, &chosen.schedule, warm_up, count)?, None);
    rows.ran(LARGEST, most(ground, task, &model, within, device, held)?, Some(device));
    Ok(())
}

/// Which batches fit a budget.
pub struct Fits {
    /// The budget.
    pub within: Bytes,
    /// The largest batch of which everything can be kept, and a schedule that does; none where not even the smallest can.
    pub keep: Option<(u64, Schedule)>,
    /// The largest that the device could hold, if the host held any amount.
    device: u64,
    /// The largest whose swapped tensors the host holds, too, and a schedule that swaps them all.
    pub held: (u64, Schedule),
}

impl Fits {
    /// Of the section's budget.
    ///
    /// Errors: the device holds less, or nothing trains within it.
    pub fn of(ground: &Ground, task: &NetworkWorkload) -> Result<Fits, Error> {
        let within = ground.pick(BUDGET, SMALL_BUDGET);
        holding(task, within)?;
        let limit = ground.pick(8192, 8);
        let floor = |trace: &Trace| trace.memory().floor().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        let nothing = || Error::new(Kind::NoPlan, format_args!("no batch trains within {within}"));
        let device = largest(task, within, limit, floor)?.ok_or_else(nothing)?;
        let keep = largest(task, within, limit, peak)?;
        let keep = keep.map(|batch| fitting(task, Policy::Keep, within, batch)).transpose()?.flatten();
        let keep = keep.map(|(batch, _, schedule)| (batch, schedule));
        let held = held(task, within, device)?.ok_or_else(nothing)?;
        Ok(Fits { within, keep, device, held })
    }
}

/// Makes sure that the device holds a budget before anything is tried within it.
pub fn holding(task: &NetworkWorkload, within: Bytes) -> Result<(), Error> {
    let holds = task.budget(None)?;
    if within <= holds {
        return Ok(());
    }
    Err(Error::new(
        Kind::Device,
        format_args!("this device holds {holds}, less than the {within} of the section"),
    ))
}

/// The trace at a batch, with the model's seconds.
fn filled(task: &NetworkWorkload, model: &Model, batch: u64) -> Result<Trace, Error> {
    let mut trace = task.trace(batch)?;
    model.fill(&mut trace).map_err(Error::usage)?;
    Ok(trace)
}

/// The planner's answer at a batch, looked for until so many seconds are over.
fn planned(
    task: &NetworkWorkload,
    model: &Model,
    within: Bytes,
    batch: u64,
    seconds: f64,
) -> Result<Option<Planned>, Error> {
    let trace = filled(task, model, batch)?;
    let plan = plan(&trace, Policy::Plimsoll, within, model.link(), seconds)?;
    Ok(plan.map(|plan| Planned {
        makespan: plan.makespan,
        schedule: plan.schedule,
        trace,
        log: SearchLog::default(),
        sharing: Sharing::ALONE,
        carried: false,
    }))
}

/// The same as it is run; none, too, where it swaps more than the host is to hold.
pub fn runnable(
    ground: &Ground,
    task: &NetworkWorkload,
    model: &Model,
    within: Bytes,
    batch: u64,
) -> Result<Option<Planned>, Error> {
    let program = task.program(batch, Mode::Train)?;
    let plan = planned(task, model, within, batch, planning(ground))?;
    Ok(plan.filter(|plan| MemoryLayout::of(&program, &plan.schedule).host <= HOST))
}

/// The largest batch whose swapped tensors the host holds, with its schedule: what is swapped is linear in the batch.
fn held(task: &NetworkWorkload, within: Bytes, device: u64) -> Result<Option<(u64, Schedule)>, Error> {
    let Some((few, program, schedule)) = fitting(task, Policy::Naive, within, device.min(16))? else {
        return Ok(None);
    };
    let of_one = MemoryLayout::of(&program, &schedule).host.0 / few;
    let most = HOST.0.checked_div(of_one).unwrap_or(device).clamp(task.smallest_batch(), device);
    Ok(fitting(task, Policy::Naive, within, most)?.map(|(batch, _, schedule)| (batch, schedule)))
}

/// The model of a profile up to a quarter of what the host holds, or what can be kept: a larger batch says little more and
/// takes long.
pub fn modelled(
    ground: &Ground,
    task: &NetworkWorkload,
    within: Bytes,
    keep: u64,
    held: u64,
) -> Result<Model, Error> {
    let (least, largest) = (task.smallest_batch(), keep.max(held / 4).min(held));
    let mut batches: Vec<u64> = [largest / 4, largest / 2, largest].map(|batch| batch.max(least)).into();
    batches.dedup();
    Model::fit(&profile(task, within, batches, ground)?).map_err(Error::usage)
}

/// The plan of the batch with the shortest epoch.
fn optimal(
    ground: &Ground,
    task: &NetworkWorkload,
    model: &Model,
    within: Bytes,
    most: u64,
    keep: Option<u64>,
    until: f64,
) -> Result<Planned, Error> {
    let request = SearchRequest {
        dataset: task.samples(),
        least: keep.unwrap_or(1).clamp(task.smallest_batch(), most),
        most,
        keeps_all: keep,
        within: 0.0,
        evaluations: EVALUATIONS,
        // What is left then is for the runs.
        stop: &|| ground.left() < until + RUNNING,
    };
    let found = search(request, &|_| 0.0, &mut |batch, _| planned(task, model, within, batch, SEARCHING))
        .map_err(|error| match error {
            SearchError::Caller(failure) => failure,
            other => Error::usage(other.to_string()),
        })?;
    let Choice { candidate, plan, .. } = found.choose(0.0, &|_| 0.0);
    let batch = candidate.batch;
    // The one that is run is looked for longer.
    let longer = planned(task, model, within, batch, planning(ground))?
        .filter(|longer| longer.makespan <= plan.makespan);
    Ok(longer.unwrap_or(plan))
}

/// Runs the largest batch that the device holds, where recomputing leaves no more to swap than the host holds; else the largest
/// that can be swapped.
fn most(
    ground: &Ground,
    task: &NetworkWorkload,
    model: &Model,
    within: Bytes,
    device: u64,
    (held, swapped): (u64, Schedule),
) -> Result<Ran, Error> {
    if device > held
        && let Some(plan) = runnable(ground, task, model, within, device)?
    {
        return ran(task, &plan.trace, &plan.schedule, 1, 1);
    }
    ran(task, &filled(task, model, held)?, &swapped, 1, 1)
}

/// Runs a schedule, some iterations before those that count.
pub fn ran(
    task: &NetworkWorkload,
    trace: &Trace,
    schedule: &Schedule,
    warm_up: usize,
    count: usize,
) -> Result<Ran, Error> {
    let mut runner = Runner::new(task, trace, schedule)?;
    runner.iterations(warm_up)?;
    let seconds = runner.iterations(count)?;
    Ok(Ran { batch: trace.batch, seconds: middle(&seconds).0, loss: runner.loss()? })
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let mut names: Vec<&str> = rows.iter().map(|row| words(row, "network")).collect();
    names.dedup();
    let of = |name: &&str| {
        let find =
            |who: &str| rows.iter().find(|row| words(row, "network") == *name && words(row, "who") == who);
        let batch = |row: Option<&Row>, key: &str| {
            row.and_then(|row| number(row, key)).map_or("-".to_owned(), |batch| batch.to_string())
        };
        let [keep, optimal, largest] = [KEEP, OPTIMAL, LARGEST].map(|who| batch(find(who), "batch"));
        let note = find("plimsoll").map(|row| format!(": {}", words(row, "note"))).unwrap_or_default();
        let paper = batch(find(OPTIMAL), "paper_batch");
        format!("{name} {keep}/{optimal}/{largest} (AccUDNN {paper}){note}")
    };
    let all: Vec<String> = names.iter().map(of).collect();
    (!all.is_empty())
        .then(|| Verdict { measured: format!("keep/optimal/largest: {}", all.join(", ")), met: None })
}
