//! Who trains faster within 12 GiB at the same batch? Ours beside PyTorch eager, with checkpoints around every block, with
//! saved tensors on the host, and with `torch.compile`, which recomputes what its memory budget asks for; for every network
//! of `batches`, in each precision.
//!
//! The batches are multiples of what can be kept, up to the largest that the host has room for. Ours runs at all of them first;
//! then each of PyTorch's ways, smallest first, until its memory does not suffice.

use super::batches::{BUDGET, Fits, Ran, SMALL_BUDGET, modelled, networks, ran, runnable};
use super::{Section, Target};
use crate::bench::{WARM_UP, cuda, task};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use crate::torch::Torch;
use plimsoll::study::{Error, Workload};
use plimsoll_ir::{Precision, Seconds};
use serde_json::{Value, json};
use std::time::Instant;

/// What is demanded.
const FASTER: &str = "12 GiB, bf16: for every network of batches, more images a second than PyTorch with checkpoint or \
                      save_on_cpu at every batch that both can train";
const FASTER_THAN_COMPILED: &str = "12 GiB, bf16: for every network of batches, more images a second than torch.compile with \
                                    activation_memory_budget at every batch that both can train";

/// Beside what runs as it is written, in bf16.
pub const BF16: Section = Section {
    name: "pytorch-bf16",
    asks: "within 12 GiB, at the same batches, who is faster: ours, or PyTorch eager, with checkpoint, or with save_on_cpu?",
    seconds: 295,
    by_name_only: true,
    run: |ground| run(ground, Precision::Bf16, &WRITTEN),
    targets: &[Target { what: FASTER, verifies: false, judge }],
};

/// The same in TF32.
pub const TF32: Section = Section {
    name: "pytorch-tf32",
    asks: "the same in TF32",
    run: |ground| run(ground, Precision::Tf32, &WRITTEN),
    targets: &[Target { what: "the same in TF32", verifies: false, judge }],
    ..BF16
};

/// The same in f32.
pub const F32: Section = Section {
    name: "pytorch-f32",
    asks: "the same in f32",
    run: |ground| run(ground, Precision::F32, &WRITTEN),
    targets: &[Target { what: "the same in f32", verifies: false, judge }],
    ..BF16
};

/// Beside what is compiled, in bf16.
pub const COMPILE_BF16: Section = Section {
    name: "compile-bf16",
    asks: "the same beside torch.compile with activation_memory_budget .7 .5 .3 .1",
    seconds: 590,
    run: |ground| run(ground, Precision::Bf16, &[COMPILED]),
    targets: &[Target { what: FASTER_THAN_COMPILED, verifies: false, judge }],
    ..BF16
};

/// The same in TF32.
pub const COMPILE_TF32: Section = Section {
    name: "compile-tf32",
    asks: "the same in TF32",
    run: |ground| run(ground, Precision::Tf32, &[COMPILED]),
    targets: &[Target { what: "the same in TF32", verifies: false, judge }],
    ..COMPILE_BF16
};

/// The same in f32.
pub const COMPILE_F32: Section = Section {
    name: "compile-f32",
    asks: "the same in f32",
    run: |ground| run(ground, Precision::F32, &[COMPILED]),
    targets: &[Target { what: "the same in f32", verifies: false, judge }],
    ..COMPILE_BF16
};

/// A way of PyTorch's to train.
struct Way {
    /// Its name there.
    name: &'static str,
    /// Its name in a table.
    who: &'static str,
    /// Whether ours is to be faster at every batch; eager is for comparison.
    rival: bool,
    /// Shares of the saved bytes that it may keep, each tried where the one before takes too much; one that is not used where
    /// a way has none.
    shares: &'static [f64],
}

const WRITTEN: [Way; 3] = [
    Way { name: "eager", who: "PyTorch eager", rival: false, shares: &[1.0] },
    Way { name: "checkpoint", who: "PyTorch, checkpoint on every block", rival: true, shares: &[1.0] },
    Way { name: "save_on_cpu", who: "PyTorch, save_on_cpu", rival: true, shares: &[1.0] },
];
const COMPILED: Way =
    Way { name: "compile", who: "PyTorch, torch.compile", rival: true, shares: &[0.7, 0.5, 0.3, 0.1] };

/// PyTorch's memory formats.
const FORMATS: [&str; 2] = ["contiguous", "channels_last"];

/// Ours, in the rows.
const OURS: &str = "plimsoll";

fn run(ground: &Ground, precision: Precision, ways: &[Way]) -> Result<(), Error> {
    let mut torch = Torch::start(&ground.options);
    let compiled = ways.iter().any(|way| way.name == COMPILED.name);
    let names = networks(ground);
    // What most people train comes first.
    let (first, rest): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| *name == "resnet50");
    let names = [first, rest].concat();
    for (done, network) in names.iter().enumerate() {
        let until = ground.left() * (1.0 - 1.0 / (names.len() - done) as f64);
        let race = Race { ground, network, precision, compiled, until };
        let batches = match race.ours() {
            Ok(batches) => batches,
            Err(failure) => {
                race.note(OURS, &failure.message);
                continue;
            }
        };
        // What is compiled is laid out by the compiler.
        let mut format = compiled.then_some(FORMATS[1]);
        for way in ways {
            if let Err(failure) = race.theirs(&mut torch, way, &batches, &mut format) {
                race.note(way.who, &format!("skipped: {}", failure.message));
            }
        }
    }
    Ok(())
}

/// One network in one precision.
struct Race<'a> {
    ground: &'a Ground,
    network: &'a str,
    precision: Precision,
    /// Whether it is beside `torch.compile`, which takes long and has no use for a budget where everything can be kept.
    compiled: bool,
    /// Seconds of the section that are for other networks.
    until: f64,
}

impl Race<'_> {
    fn row(&self, who: &str, batch: u64, seconds: Option<Seconds>, note: &str) {
        self.ground.row(&json!({
            "network": self.network,
            "precision": self.precision.name(),
            "who": who,
            "batch": batch,
            "iteration_seconds": seconds,
            "images_per_second": seconds.map(|seconds| batch as f64 / seconds.0),
            "note": note,
        }));
    }

    /// Why something was not run.
    fn note(&self, who: &str, note: &str) {
        let (network, precision) = (self.network, self.precision.name());
        self.ground.row(&json!({ "network": network, "precision": precision, "who": who, "note": note }));
    }

    /// Whether so many seconds are left for this network.
    fn has(&self, seconds: f64) -> bool {
        self.ground.options.small || self.ground.left() - self.until > seconds
    }

    /// Runs ours at each batch, and gives the batches.
    fn ours(&self) -> Result<Vec<u64>, Error> {
        let (side, classes) = self.sides();
        if !self.has(LEAST) {
            return Err(Error::usage(NO_TIME));
        }
        let task = task(self.network, side, classes, &cuda(self.precision))?;
        let Fits { within, keep, held: (held, _), .. } = Fits::of(self.ground, &task)?;
        let keep = keep.map(|(batch, _)| batch);
        let model = modelled(self.ground, &task, within, keep.unwrap_or(1), held)?;
        let mut batches = batches(task.smallest_batch(), keep, held);
        if self.compiled && batches.len() > 1 {
            batches.remove(0);
        }
        let (warm_up, count) = self.ground.pick((WARM_UP, COUNT), (1, 1));
        for batch in &batches {
            if !self.has(0.0) {
                self.row(OURS, *batch, None, NO_TIME);
                break;
            }
            match runnable(self.ground, &task, &model, within, *batch)? {
                Some(plan) => {
                    let Ran { seconds, .. } = ran(&task, &plan.trace, &plan.schedule, warm_up, count)?;
                    self.row(OURS, *batch, Some(seconds), "");
                }
                None => self.row(OURS, *batch, None, "no plan fits device and host"),
            }
        }
        Ok(batches)
    }

    /// Runs one of PyTorch's ways at each batch until its memory does not suffice; in both memory formats until it is known
    /// which is faster.
    fn theirs(
        &self,
        torch: &mut Torch,
        way: &Way,
        batches: &[u64],
        format: &mut Option<&'static str>,
    ) -> Result<(), Error> {
        let mut shares = way.shares.iter().copied().peekable();
        let mut longest: f64 = 0.0;
        for batch in batches {
            let formats = format.map_or(FORMATS.to_vec(), |known| vec![known]);
            let mut best: Option<(f64, &'static str)> = None;
            while let (None, Some(share)) = (best, shares.peek().copied()) {
                if !self.has(1.5 * longest) {
                    self.row(way.who, *batch, None, NO_TIME);
                    return Ok(());
                }
                for format in &formats {
                    let begun = Instant::now();
                    let seconds = self.ask(torch, way, *batch, share, format)?;
                    longest = longest.max(begun.elapsed().as_secs_f64());
                    let kept = if self.compiled { format!(", keeping {share}") } else { String::new() };
                    let note = if seconds.is_some() { "" } else { "out of memory" };
                    self.row(&format!("{}{kept}, {format}", way.who), *batch, seconds.map(Seconds), note);
                    best = seconds
                        .map(|s| (s, *format))
                        .into_iter()
                        .chain(best)
                        .min_by(|a, b| a.0.total_cmp(&b.0));
                }
                if best.is_none() {
                    shares.next();
                }
            }
            match best {
                Some((_, fastest)) => *format = Some(fastest),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The median seconds of PyTorch's steps; none where its memory does not suffice.
    fn ask(
        &self,
        torch: &mut Torch,
        way: &Way,
        batch: u64,
        share: f64,
        format: &str,
    ) -> Result<Option<f64>, Error> {
        let (side, classes) = self.sides();
        let answer = torch.ask(&json!({
            "do": "step", "network": self.network, "image": side, "classes": classes, "batch": batch,
            "precision": self.precision.name(), "format": format, "way": way.name, "share": share,
            "budget_bytes": self.ground.pick(BUDGET, SMALL_BUDGET), "steps": COUNT,
        }))?;
        let mut seconds: Vec<f64> =
            answer["seconds"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        seconds.sort_by(f64::total_cmp);
        Ok(seconds.get(seconds.len() / 2).copied())
    }

    /// Image side and classes.
    fn sides(&self) -> (u32, u32) {
        self.ground.pick((224, 1000), (8, 10))
    }
}

/// What stands where a section's time was too short.
const NO_TIME: &str = "no time was left";

/// Iterations that count.
const COUNT: usize = 5;

/// Seconds that a profile and a plan take at least.
const LEAST: f64 = 10.0;

/// Half of what can be kept, that, and twice as much again and again, up to what the host holds.
fn batches(least: u64, keep: Option<u64>, held: u64) -> Vec<u64> {
    let first = keep.map_or(held / 8, |keep| keep / 2).clamp(least, held);
    let doubled = std::iter::successors(Some(first), |batch| batch.checked_mul(2));
    let mut batches: Vec<u64> = doubled.take_while(|batch| *batch < held).collect();
    batches.push(held);
    batches
}

/// What ours takes beside each rival at the batches that both trained: the least advantage and how often it was slower.
fn judge(rows: &[Row]) -> Option<Verdict> {
    let rate = |row: &Row| number(row, "images_per_second");
    let ours = |row: &Row| {
        let same = |other: &&Row| {
            words(other, "who") == OURS
                && words(other, "network") == words(row, "network")
                && number(other, "batch") == number(row, "batch")
        };
        rows.iter().find(same).and_then(rate)
    };
    let is_rival = |row: &&Row| {
        let ways = WRITTEN.iter().chain([&COMPILED]);
        ways.filter(|way| way.rival).any(|way| words(row, "who").starts_with(way.who))
    };
    let all: Vec<(f64, &Row)> = rows
        .iter()
        .filter(is_rival)
        .filter_map(|row| Option::zip(ours(row), rate(row)).map(|(ours, theirs)| (ours / theirs, row)))
        .collect();
    let (least, closest) = all.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let faster = all.iter().filter(|(times, _)| *times > 1.0).count();
    let mut compared: Vec<&str> = all.iter().map(|(_, row)| words(row, "network")).collect();
    compared.dedup();
    let measured = format!(
        "faster in {faster} of {} of {} networks; at least {least:.3} times ({}, {} at {})",
        all.len(),
        compared.len(),
        words(closest, "network"),
        words(closest, "who"),
        number(closest, "batch").unwrap_or_default(),
    );
    let met = if faster < all.len() { Some(false) } else { None };
    Some(Verdict { measured, met: met.or((compared.len() == super::batches::PAPER.len()).then_some(true)) })
}
