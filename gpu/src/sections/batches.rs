//! Which batches fit 12 GiB? For the networks of AccUDNN's table 1: the largest that keeps everything, the largest that can be
//! trained, which is run, and the efficiency-optimal one, which is profiled, searched and run; beside the paper's own.
//!
//! What is swapped needs pinned memory of the host, so that the largest batch is one that the host holds, too; what the device
//! alone could hold is told beside it.

use super::{Section, Target};
use crate::bench::{Runner, WARM_UP, cuda, fitting, largest, middle, peak, plan, profile, task};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use plimsoll::failure::Failure;
use plimsoll::study::{NetworkWorkload, Workload};
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::search_log::SearchLog;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::MemoryLayout;
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::Model;
use plimsoll_tuner::search::{Choice, Planned, SearchError, SearchRequest, Sharing, search};
use serde_json::{Value, json};

/// The section.
pub const SECTION: Section = Section {
    name: "batches",
    asks: "within 12 GiB, which batch is the largest that trains, and which is the most efficient?",
    seconds: 110,
    by_name_only: false,
    run,
    targets: &[Target {
        what: "12 GiB: largest trainable and efficiency-optimal batch of alexnet, googlenet, vgg16, \
               resnet34/50/101/152 beside AccUDNN's table 1 and keep",
        verifies: false,
        judge,
    }],
};

/// The budget of AccUDNN's table 1.
pub const BUDGET: Bytes = Bytes(12 << 30);

/// What a tiny run has: resnet20 keeps everything at a few samples and trains at some more.
pub const SMALL_BUDGET: Bytes = Bytes(3_800_000);

/// Pinned memory of the host that a schedule may take: it is pinned anew for every schedule, which takes time.
pub const HOST: Bytes = Bytes(12 << 30);

/// Network; AccUDNN's efficiency-optimal batch and its images a second, Caffe's largest batch and its images a second (table
/// 1).
type Paper = (&'static str, [u64; 4]);

const PAPER: [Paper; 7] = [
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

/// Plans of a search.
const EVALUATIONS: usize = 10;

/// Seconds that are kept for the runs when a search is ended.
const RUNNING: f64 = 5.0;

fn run(ground: &Ground) -> Result<(), Failure> {
    let names = PAPER.iter().map(|(name, _)| *name);
    let names: Vec<&str> = if ground.options.small { vec!["resnet20"] } else { names.collect() };
    for (done, name) in names.iter().enumerate() {
        let mut row = json!({ "network": name });
        let found = match ground.left() / (names.len() - done) as f64 {
            // Less than a plan and a run take.
            left if left < 5.0 && !ground.options.small => {
                Batches { why: "no time was left".to_owned(), ..Batches::default() }
            }
            left => network(ground, name, left),
        };
        let paper = PAPER.iter().find(|(of, _)| of == name).map(|(_, numbers)| *numbers);
        let paper = |i: usize| paper.map(|numbers| numbers[i]);
        let fields = row.as_object_mut().expect("an object is written above");
        fields.extend(found.fields());
        for (name, number) in [
            ("caffe_batch", 2),
            ("caffe_images_per_second", 3),
            ("accudnn_batch", 0),
            ("accudnn_images_per_second", 1),
        ] {
            fields.insert(name.to_owned(), json!(paper(number)));
        }
        fields.insert("note".to_owned(), json!(found.why));
        ground.row(&row);
    }
    Ok(())
}

/// A batch size and what came of running it; nothing of either where it has none.
#[derive(Clone, Copy, Default)]
pub struct Ran {
    /// The batch size.
    pub batch: Option<u64>,
    /// The median iteration.
    pub seconds: Option<Seconds>,
    /// What the loss was: a number, where it trains.
    pub loss: Option<f64>,
}

/// What was found for a network.
#[derive(Default)]
pub struct Batches {
    /// Keeping everything.
    pub keep: Ran,
    /// The largest that the device could hold, if the host held any amount.
    device: Option<u64>,
    /// The largest that was run.
    pub most: Ran,
    /// The efficiency-optimal one.
    pub best: Ran,
    /// Why something is missing; empty where nothing is.
    pub why: String,
}

impl Ran {
    /// Images a second.
    pub fn rate(self) -> Option<f64> {
        Option::zip(self.batch, self.seconds).map(|(batch, seconds)| batch as f64 / seconds.0)
    }
}

impl Batches {
    fn fields(&self) -> Vec<(String, Value)> {
        let of = |name: &str, ran: Ran| {
            [
                (format!("{name}_batch"), json!(ran.batch)),
                (format!("{name}_images_per_second"), json!(ran.rate())),
                (format!("{name}_loss"), json!(ran.loss)),
            ]
        };
        let mut all: Vec<(String, Value)> = of("keep", self.keep).into();
        all.extend(of("optimal", self.best));
        all.push(("device_alone_batch".to_owned(), json!(self.device)));
        all.extend(of("largest", self.most));
        all
    }
}

/// Everything about one network, within so many seconds. What it cannot be is said in words, and is no failure of the section.
fn network(ground: &Ground, name: &str, seconds: f64) -> Batches {
    let (side, classes) = ground.pick((224, 1000), (8, 10));
    let why = |why: String| Batches { why, ..Batches::default() };
    let until = ground.left() - seconds;
    match task(name, side, classes, &cuda()) {
        Ok(task) => Batches::measure(ground, &task, until),
        Err(failure) => why(failure.message),
    }
}

impl Batches {
    /// Measures until no more than `until` seconds of the section are left.
    pub fn measure(ground: &Ground, task: &NetworkWorkload, until: f64) -> Batches {
        let mut found = Batches::default();
        if let Err(failure) = found.fill(ground, task, until) {
            found.why = failure.message;
        }
        found
    }

    /// One after the other; what is known before something fails is kept.
    fn fill(&mut self, ground: &Ground, task: &NetworkWorkload, until: f64) -> Result<(), Failure> {
        let within = ground.pick(BUDGET, SMALL_BUDGET);
        let limit = ground.pick(8192, 8);
        let floor = |trace: &Trace| trace.memory().floor().map_or(Bytes::ZERO, |(_, bytes)| bytes);
        self.device = largest(task, within, limit, floor)?;
        let keep = largest(task, within, limit, peak)?;
        let kept = keep.map(|batch| fitting(task, Policy::Keep, within, batch)).transpose()?.flatten();
        let keep = kept.as_ref().map(|(batch, ..)| *batch);
        self.keep.batch = keep;
        let Some(device) = self.device else { return Ok(()) };
        let Some(held) = held(task, within, device)? else { return Ok(()) };
        let model = modelled(ground, task, within, keep.unwrap_or(1).max(held.0 / 4).min(held.0))?;
        if let Some((batch, _, schedule)) = kept {
            // With each op in its fastest alternative, as far as their scratch fits.
            let faster = planned(task, &model, within, batch, PLANNING)?.map(|plan| plan.schedule);
            self.keep = ran(task, batch, &faster.unwrap_or(schedule), WARM_UP, 5)?;
        }
        let (batch, chosen) = optimal(ground, task, &model, within, held.0, keep, until)?;
        self.best = ran(task, batch, &chosen, WARM_UP, 5)?;
        self.most = most(task, &model, within, device, held)?;
        Ok(())
    }
}

/// The planner's answer at a batch.
fn planned(
    task: &NetworkWorkload,
    model: &Model,
    within: Bytes,
    batch: u64,
    seconds: f64,
) -> Result<Option<Planned>, Failure> {
    let mut trace = task.trace(batch)?;
    model.fill(&mut trace).map_err(Failure::usage)?;
    let plan = plan(&trace, Policy::Plimsoll, within, model.link(), seconds)?;
    Ok(plan.map(|plan| Planned {
        makespan: plan.makespan,
        schedule: plan.schedule,
        trace,
        log: SearchLog::default(),
        sharing: Sharing::ALONE,
    }))
}

/// The largest batch whose swapped tensors the host holds, with its schedule: what is swapped is linear in the batch.
fn held(task: &NetworkWorkload, within: Bytes, device: u64) -> Result<Option<(u64, Schedule)>, Failure> {
    let Some((few, program, schedule)) = fitting(task, Policy::Naive, within, device.min(16))? else {
        return Ok(None);
    };
    let of_one = MemoryLayout::of(&program, &schedule).host.0 / few;
    let most = HOST.0.checked_div(of_one).unwrap_or(device).clamp(task.smallest_batch(), device);
    Ok(fitting(task, Policy::Naive, within, most)?.map(|(batch, _, schedule)| (batch, schedule)))
}

/// The model of a profile up to a batch: a larger one says little more and takes long.
fn modelled(ground: &Ground, task: &NetworkWorkload, within: Bytes, largest: u64) -> Result<Model, Failure> {
    let least = task.smallest_batch();
    let mut batches: Vec<u64> = [largest / 4, largest / 2, largest].map(|batch| batch.max(least)).into();
    batches.dedup();
    Model::fit(&profile(task, within, batches, ground)?).map_err(Failure::usage)
}

/// The batch with the shortest epoch, and its schedule.
fn optimal(
    ground: &Ground,
    task: &NetworkWorkload,
    model: &Model,
    within: Bytes,
    most: u64,
    keep: Option<u64>,
    until: f64,
) -> Result<(u64, Schedule), Failure> {
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
    let found =
        search(&request, &mut |batch| planned(task, model, within, batch, SEARCHING)).map_err(|error| {
            match error {
                SearchError::Caller(failure) => failure,
                other => Failure::usage(other.to_string()),
            }
        })?;
    let Choice { candidate, plan, .. } = found.choose(&|_| 0.0, 0.0);
    let batch = candidate.batch;
    // The one that is run is looked for longer.
    let longer =
        planned(task, model, within, batch, PLANNING)?.filter(|longer| longer.makespan <= plan.makespan);
    Ok((batch, longer.unwrap_or(plan).schedule))
}

/// Runs the largest batch that the device holds, where recomputing leaves no more to swap than the host holds; else the largest
/// that can be swapped.
fn most(
    task: &NetworkWorkload,
    model: &Model,
    within: Bytes,
    device: u64,
    (held, swapped): (u64, Schedule),
) -> Result<Ran, Failure> {
    if device > held {
        let program = task.program(device, Mode::Train)?;
        if let Some(plan) = planned(task, model, within, device, PLANNING)?
            && MemoryLayout::of(&program, &plan.schedule).host <= HOST
        {
            return ran(task, device, &plan.schedule, 1, 1);
        }
    }
    ran(task, held, &swapped, 1, 1)
}

/// Runs a schedule, some iterations before those that count.
pub fn ran(
    task: &NetworkWorkload,
    batch: u64,
    schedule: &Schedule,
    warm_up: usize,
    count: usize,
) -> Result<Ran, Failure> {
    let mut runner = Runner::new(task, batch, schedule)?;
    runner.iterations(warm_up)?;
    let seconds = runner.iterations(count)?;
    Ok(Ran { batch: Some(batch), seconds: Some(middle(&seconds).0), loss: Some(runner.loss()?) })
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let of = |row: &Row| {
        let batch = |name| number(row, name).map_or("-".to_owned(), |batch| batch.to_string());
        let [keep, optimal, largest, paper] =
            ["keep_batch", "optimal_batch", "largest_batch", "accudnn_batch"].map(batch);
        let note = words(row, "note");
        let note = if note.is_empty() { String::new() } else { format!(": {note}") };
        format!("{} {keep}/{optimal}/{largest} (AccUDNN {paper}){note}", words(row, "network"))
    };
    let all: Vec<String> = rows.iter().map(of).collect();
    (!all.is_empty())
        .then(|| Verdict { measured: format!("keep/optimal/largest: {}", all.join(", ")), met: None })
}
