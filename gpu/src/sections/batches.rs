//! Which batches fit 12 GiB? For the networks of AccUDNN's table 1: the largest that keeps everything, the largest that can be
//! trained, which is run, and the efficiency-optimal one, which is profiled, searched and run; beside the paper's own.
//!
//! What is swapped needs pinned memory of the host, so that the largest batch is one that the host holds, too; what the device
//! alone could hold is told beside it.

use super::{Section, Target};
use crate::bench::{Runner, WARM_UP, batches, cuda, largest, middle, plan, profile, task, unmeasured};
use crate::ground::Ground;
use crate::results::{Row, Verdict, number, words};
use plimsoll::failure::Failure;
use plimsoll::task::Task;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_networks::Mode;
use plimsoll_runtime::MemoryLayout;
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::Model;
use plimsoll_tuner::search::{Planned, SearchError, SearchRequest, search};
use serde_json::{Value, json};

/// The section.
pub const SECTION: Section = Section {
    name: "batches",
    asks: "within 12 GiB, which batch is the largest that trains, and which is the most efficient?",
    seconds: 110,
    run,
    targets: &[Target {
        what: "12 GiB: largest trainable and efficiency-optimal batch of alexnet, googlenet, vgg16, resnet34/50/101/152 beside AccUDNN's table 1 and keep",
        verifies: false,
        judge,
    }],
};

/// The budget of AccUDNN's table 1.
pub const BUDGET: Bytes = Bytes(12 << 30);

/// What a tiny run has: resnet20 keeps everything at a few samples and trains at some more.
pub const SMALL_BUDGET: Bytes = Bytes(4_600_000);

/// Pinned memory of the host that a schedule may take: it is pinned anew for every schedule, which takes time.
pub const HOST: Bytes = Bytes(24 << 30);

/// Network; AccUDNN's efficiency-optimal batch and its images a second, Caffe's largest batch and its images a second (table 1).
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

fn run(ground: &Ground) -> Result<(), Failure> {
    let names = PAPER.iter().map(|(name, _)| *name);
    let names: Vec<&str> = if ground.options.small { vec!["resnet20", "googlenet"] } else { names.collect() };
    for (done, name) in names.iter().enumerate() {
        let mut row = json!({ "network": name });
        let found = match ground.left() / (names.len() - done) as f64 {
            // Less than a plan and a run take.
            left if left < 5.0 && !ground.options.small => Err("no time was left".to_owned()),
            left => network(ground, name, left),
        };
        let (batches, note) =
            found.map_or_else(|why| (Batches::default(), why), |found| (found, String::new()));
        let paper = PAPER.iter().find(|(of, _)| of == name).map(|(_, numbers)| *numbers);
        let paper = |i: usize| paper.map(|numbers| numbers[i]);
        let fields = row.as_object_mut().expect("an object is written above");
        fields.extend(batches.fields());
        for (name, number) in [
            ("caffe_batch", 2),
            ("caffe_images_per_second", 3),
            ("accudnn_batch", 0),
            ("accudnn_images_per_second", 1),
        ] {
            fields.insert(name.to_owned(), json!(paper(number)));
        }
        fields.insert("note".to_owned(), json!(note));
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
fn network(ground: &Ground, name: &str, seconds: f64) -> Result<Batches, String> {
    let (side, classes) = ground.pick((224, 1000), (8, 10));
    if plimsoll_networks::usual(name).is_none() {
        return Err("not in the zoo yet".to_owned());
    }
    let task = task(name, side, classes, &cuda()).map_err(|failure| failure.message)?;
    let until = ground.left() - seconds;
    measure(ground, &task, until).map_err(|failure| failure.message)
}

/// Measures until no more than `until` seconds of the section are left.
pub fn measure(ground: &Ground, task: &Task, until: f64) -> Result<Batches, Failure> {
    let within = ground.pick(BUDGET, SMALL_BUDGET);
    let limit = ground.pick(8192, 8);
    let any = Bytes(u64::MAX);
    let keep = largest(task, Policy::Keep, within, any, limit)?;
    let device = largest(task, Policy::Naive, within, any, limit)?;
    let held = largest(task, Policy::Naive, within, HOST, limit)?;
    let mut found = Batches { device, ..Batches::default() };
    if let Some(batch) = keep {
        found.keep = ran(task, batch, &schedule(task, Policy::Keep, batch, within, unmeasured())?, 5)?;
    }
    let Some(held) = held else { return Ok(found) };
    if let Some(model) = modelled(ground, task, within, held)? {
        let (batch, chosen) = optimal(ground, task, &model, within, held, keep, until)?;
        found.best = ran(task, batch, &chosen, 5)?;
        found.most = most(task, &model, within, [held, device.unwrap_or(held)])?;
    }
    Ok(found)
}

/// The model of a profile whose largest batch swaps no more than a quarter of what the host may hold: a larger one says
/// little more and takes long.
fn modelled(ground: &Ground, task: &Task, within: Bytes, held: u64) -> Result<Option<Model>, Failure> {
    let largest = (held / ground.pick(4, 1)).max(task.smallest_batch());
    let profile = profile(task, within, batches(task, largest), ground)?;
    Model::fit(&profile).map(Some).map_err(Failure::usage)
}

/// A policy's schedule at a batch size that it fits.
fn schedule(task: &Task, policy: Policy, batch: u64, within: Bytes, link: Link) -> Result<Schedule, Failure> {
    Ok(task.plan(&task.trace(batch)?, policy, within, link)?.schedule)
}

/// The batch with the shortest epoch, and its schedule.
fn optimal(
    ground: &Ground,
    task: &Task,
    model: &Model,
    within: Bytes,
    most: u64,
    keep: Option<u64>,
    until: f64,
) -> Result<(u64, Schedule), Failure> {
    let planned = |batch: u64, seconds: f64| -> Result<Option<Planned>, Failure> {
        let mut trace = task.trace(batch)?;
        model.fill(&mut trace).map_err(Failure::usage)?;
        let plan = plan(&trace, Policy::Plimsoll, within, model.link(), seconds)?;
        Ok(plan.map(|plan| Planned { makespan: plan.makespan, schedule: plan.schedule, trace }))
    };
    let request = SearchRequest {
        dataset: task.samples(),
        least: keep.unwrap_or(1).clamp(task.smallest_batch(), most),
        most,
        keeps_all: keep,
        between: &|_| Seconds::ZERO,
        relative_error: &|_| 0.0,
        evaluations: EVALUATIONS,
        stop: &|| ground.left() < until,
    };
    let found = search(&request, &mut |batch| planned(batch, SEARCHING)).map_err(|error| match error {
        SearchError::Caller(failure) => failure,
        other => Failure::usage(other.to_string()),
    })?;
    let batch = found.chosen.batch;
    // The one that is run is looked for longer.
    let longer = planned(batch, PLANNING)?.filter(|plan| plan.makespan <= found.plan.makespan);
    Ok((batch, longer.unwrap_or(found.plan).schedule))
}

/// Runs the largest batch between two that the host can hold under some plan: making again needs no host.
fn most(task: &Task, model: &Model, within: Bytes, [least, most]: [u64; 2]) -> Result<Ran, Failure> {
    let mut batch = most;
    loop {
        let program = task.program(batch, Mode::Train)?;
        let mut trace = program.trace.clone();
        model.fill(&mut trace).map_err(Failure::usage)?;
        let policy = if batch > least { Policy::Plimsoll } else { Policy::Naive };
        if let Some(plan) = plan(&trace, policy, within, model.link(), PLANNING)?
            && MemoryLayout::of(&program, &plan.schedule).host <= HOST
        {
            return ran(task, batch, &plan.schedule, 2);
        }
        if batch <= least {
            return Ok(Ran::default());
        }
        batch = (batch * 3 / 4).max(least);
    }
}

/// Runs a schedule.
pub fn ran(task: &Task, batch: u64, schedule: &Schedule, count: usize) -> Result<Ran, Failure> {
    let mut runner = Runner::new(task, batch, schedule)?;
    runner.iterations(WARM_UP)?;
    let seconds = runner.iterations(count)?;
    Ok(Ran { batch: Some(batch), seconds: Some(middle(&seconds).0), loss: Some(runner.loss()?) })
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let of = |row: &Row| {
        let batch = |name| number(row, name).map_or("-".to_owned(), |batch| batch.to_string());
        match words(row, "note") {
            "" => format!(
                "{} {}/{}/{} (AccUDNN {})",
                words(row, "network"),
                batch("keep_batch"),
                batch("optimal_batch"),
                batch("largest_batch"),
                batch("accudnn_batch")
            ),
            note => format!("{} {note}", words(row, "network")),
        }
    };
    let all: Vec<String> = rows.iter().map(of).collect();
    (!all.is_empty())
        .then(|| Verdict { measured: format!("keep/optimal/largest: {}", all.join(", ")), met: None })
}
