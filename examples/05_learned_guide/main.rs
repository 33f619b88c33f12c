//! A guide that is learned: a small network chooses what is kept, swapped and recomputed as plans of Plimsoll did, and its
//! choices become a plan.
//!
//! ```text
//! cargo run --release --example 05_learned_guide
//! ```
//!
//! 1. *Lessons.* Random networks of some families, at random batches, budgets, devices and links, are planned by Plimsoll. Each
//!    crowded gap is a lesson: facts about it (`gaps.rs`) and what the plan does there.
//! 2. *Training.* A network with two hidden layers learns the choice from the facts, trained by Plimsoll (`student.rs`).
//! 3. *Use.* The likeliest choices for a trace, written as a schedule in a pool without end (`written.rs`), are an earlier plan
//!    from which the planner makes one that fits (`PlanRequest::from`).
//!
//! It is tried on families that it never saw, beside the planner's own first pass, which learns nothing. What came of it stands
//! in docs/decisions/2026-11-27-no-learned-guide.md.

mod gaps;
mod student;
mod written;

use gaps::{Choice, Gaps};
use plimsoll::ir::network::{Network, NetworkSpec};
use plimsoll::ir::philox::{philox4x32, unit_f32};
use plimsoll::ir::schedule::Link;
use plimsoll::ir::trace::{Op, Trace};
use plimsoll::ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll::networks::onnx::{self, OnnxSource};
use plimsoll::networks::{LowerOptions, build, lower};
use plimsoll::tuner::bound::lower_bound;
use plimsoll::tuner::{Allow, Earlier, Limits, Outcome, Plan, PlanRequest, Policy, plan_with_log};
use std::path::Path;
use std::time::Instant;
use student::{Guide, Lessons};

type Error = Box<dyn std::error::Error>;

/// Network, image side, channels, classes, the largest batch. A name with a dot is an ONNX file of the tests.
type Family = (&'static str, u32, u32, u32, u64);

/// What is learned from.
const LEARNED: [Family; 22] = [
    ("alexnet", 224, 3, 1000, 512),
    ("overfeat", 231, 3, 1000, 256),
    ("vgg11", 224, 3, 1000, 128),
    ("vgg16", 224, 3, 1000, 128),
    ("vgg19", 224, 3, 1000, 128),
    ("resnet18", 224, 3, 1000, 256),
    ("resnet34", 224, 3, 1000, 256),
    ("resnet50", 224, 3, 1000, 128),
    ("resnet101", 224, 3, 1000, 64),
    ("resnet20", 32, 3, 10, 1024),
    ("resnet32", 32, 3, 10, 1024),
    ("resnet44", 32, 3, 10, 1024),
    ("resnet56", 32, 3, 10, 1024),
    ("wrn-16-4", 32, 3, 10, 512),
    ("wrn-28-4", 32, 3, 10, 512),
    ("mobilenet_v2", 224, 3, 1000, 128),
    ("googlenet", 224, 3, 1000, 256),
    ("gpt-tiny", 64, 1, 64, 128),
    ("efficientnet_b0.dynamo.train", 0, 3, 0, 64),
    ("convnext_tiny.dynamo.train", 0, 3, 0, 64),
    ("encoder.dynamo.train", 0, 1, 0, 128),
    ("mnasnet0_5.dynamo.train", 0, 3, 0, 64),
];

/// What it is tried on.
const HELD_OUT: [Family; 9] = [
    ("densenet121", 224, 3, 1000, 64),
    ("densenet169", 224, 3, 1000, 64),
    ("inception_v3", 299, 3, 1000, 64),
    ("unet", 256, 3, 21, 16),
    ("lstm", 128, 1, 64, 64),
    ("vit_b_16.dynamo.train", 0, 3, 0, 32),
    ("mobilenet_v3_small.dynamo.train", 0, 3, 0, 256),
    ("regnet_y_400mf.dynamo.train", 0, 3, 0, 128),
    ("llama.dynamo.train", 0, 1, 0, 64),
];

/// How much of all this is done.
pub struct Effort {
    /// Lessons are taken of so many random subjects.
    pub subjects: u32,
    /// The evaluations of a plan that is learned from.
    pub evaluations: u64,
    /// How often all lessons are seen.
    pub epochs: u64,
    /// So many of the held-out families.
    pub held_out: usize,
}

/// Runs the example.
pub fn main() -> Result<(), Error> {
    run(&Effort { subjects: 400, evaluations: 3000, epochs: 60, held_out: HELD_OUT.len() })
}

/// Something to plan.
struct Subject {
    name: String,
    trace: Trace,
    fraction: f64,
    budget: Bytes,
    link: Link,
}

/// Draws numbers, the same for the same position.
struct Draw(u32);

impl Draw {
    /// Between 0 and 1.
    fn unit(&mut self) -> f64 {
        self.0 += 1;
        f64::from(unit_f32(philox4x32(7, [self.0, 0, 0, 0])[0]))
    }

    /// Between two numbers, in equal proportions.
    fn between(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }
}

fn network(family: &Family) -> Result<Network, Error> {
    let &(name, side, channels, classes, _) = family;
    if !name.contains('.') {
        let image = [side, if channels == 1 { 1 } else { side }];
        return Ok(build(&NetworkSpec { name: name.into(), image, channels, classes })?);
    }
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/networks/tests/onnx/files"));
    let file = std::fs::read(folder.join(format!("{name}.onnx")))?;
    let external = &|_: &onnx::External| Err("no other file is read".into());
    Ok(onnx::read(OnnxSource { file, name, image: None, external })?.network)
}

/// A network at a batch, on a device and with a link that are drawn. An op takes as long as its floating-point operations, or
/// as what it reads and writes, whichever is longer, and 5 us.
fn subject(family: &Family, fraction: f64, draw: &mut Draw) -> Result<Subject, Error> {
    let (name, .., most) = *family;
    let batch = (draw.between(most as f64 / 4.0, most as f64) as u64).max(1);
    let [flops, bytes] = [draw.between(4e12, 100e12), draw.between(200e9, 2000e9)];
    let link = Link::symmetric(BytesPerSecond(draw.between(6e9, 50e9)));
    let mut trace = lower(&network(family)?, batch, &LowerOptions::default())?.trace;
    let touched = |op: &Op| op.touches().map(|t| trace.tensors[t.index()].bytes.0 as f64).sum::<f64>();
    let times: Vec<f64> =
        trace.ops.iter().map(|op| 5e-6 + (op.flops as f64 / flops).max(touched(op) / bytes)).collect();
    trace.ops.iter_mut().zip(times).for_each(|(op, seconds)| op.seconds = Seconds(seconds));
    let memory = trace.memory();
    let (floor, peak) = (memory.floor().ok_or("no ops")?.1, memory.peak().ok_or("no ops")?.1);
    let budget = floor + (peak - floor).share(fraction);
    Ok(Subject { name: format!("{name} ({batch})"), trace, fraction, budget, link })
}

impl Subject {
    fn gaps(&self) -> Gaps<'_> {
        Gaps::new(&self.trace, self.budget, self.link)
    }

    /// A plan from an earlier one or from none, by so many evaluations, or by those of the first pass only.
    fn plan(&self, from: Option<&Earlier>, evaluations: Option<u64>) -> Result<Found, Error> {
        let at_once = || true;
        let expired: Option<&dyn Fn() -> bool> = if evaluations.is_none() { Some(&at_once) } else { None };
        let limits = Limits { evaluations, expired };
        let request =
            PlanRequest { from, limits, ..PlanRequest::new(self.budget, self.link, Policy::Plimsoll) };
        let begun = Instant::now();
        let (outcome, log) = plan_with_log(&self.trace, &request)?;
        let seconds = begun.elapsed().as_secs_f64();
        let anew = log.steps.iter().any(|step| step.tried.starts_with("anew"));
        let Outcome::Planned(plan) = outcome else { return Ok(None) };
        Ok((!anew).then_some((plan, seconds)))
    }
}

/// A plan and the seconds that it took; none where there is none, and where the earlier one was given up.
type Found = Option<(Plan, f64)>;

/// Lessons of random subjects.
fn lessons(effort: &Effort) -> Result<Lessons, Error> {
    let mut lessons = Lessons::default();
    let mut draw = Draw(0);
    for at in 0..effort.subjects {
        let family = &LEARNED[at as usize % LEARNED.len()];
        let fraction = draw.between(0.1, 0.8);
        let subject = subject(family, fraction, &mut draw)?;
        let Some((plan, _)) = subject.plan(None, Some(effort.evaluations))? else { continue };
        let gaps = subject.gaps();
        lessons.facts.extend(gaps.facts());
        lessons.choices.extend(gaps.choices_of(&plan.schedule));
    }
    Ok(lessons)
}

/// For each crowded gap what is possible and most wanted, by the probability of each choice.
fn choose(guide: &Guide, gaps: &Gaps<'_>, mut wanted: impl FnMut(f32) -> f64) -> Vec<Choice> {
    let one = |(facts, recomputable): (&_, bool)| {
        let chances = guide.probabilities(facts).map(&mut wanted);
        let possible = Choice::ALL.into_iter().filter(|choice| recomputable || *choice != Choice::Recompute);
        possible.max_by(|a, b| chances[*a as usize].total_cmp(&chances[*b as usize])).unwrap_or(Choice::Keep)
    };
    gaps.facts().iter().zip(gaps.recomputable()).map(one).collect()
}

/// Lessons, training and use.
pub fn run(effort: &Effort) -> Result<(), Error> {
    let begun = Instant::now();
    let lessons = lessons(effort)?;
    let share = |choice| {
        let so = lessons.choices.iter().filter(|c| **c == choice).count();
        100.0 * so as f64 / lessons.choices.len().max(1) as f64
    };
    let [kept, swapped, recomputed] = Choice::ALL.map(share);
    println!(
        "{} lessons of {} plans: {kept:.0} % kept, {swapped:.0} % swapped, {recomputed:.0} % recomputed ({:.0} s)",
        lessons.choices.len(),
        effort.subjects,
        begun.elapsed().as_secs_f64()
    );
    let begun = Instant::now();
    let (guide, loss) = Guide::train(&lessons, effort.epochs)?;
    println!("{} bytes of weights, loss {loss:.3} ({:.0} s)\n", guide.bytes(), begun.elapsed().as_secs_f64());

    println!("| network | ops | f | same choices | first pass, ms | guide, ms | {} |", WAYS.join(" | "));
    println!("|{}", " --- |".repeat(6 + WAYS.len()));
    let mut draw = Draw(1 << 20);
    let mut rows = Vec::new();
    for family in HELD_OUT.iter().take(effort.held_out) {
        for fraction in [0.2, 0.4, 0.6] {
            let subject = subject(family, fraction, &mut draw)?;
            let row = Row::new(&subject, &guide, effort, &mut draw)?;
            row.print(&subject);
            rows.push(row);
        }
    }
    summarise(&rows);
    Ok(())
}

/// The ways to a plan, whose makespans over the bound are shown.
const WAYS: [&str; 7] = [
    "first pass",
    "guide",
    "best of 8 drawn",
    "plimsoll's choices mended",
    "first pass + 3000",
    "guide + 600",
    "plimsoll",
];

/// How far a makespan may be above the bound, in so many milliseconds.
const CLOSE: f64 = 1.02;
const MILLISECONDS: f64 = 20.0;

/// Makespans that differ by less than this share are equal.
const EQUAL: f64 = 1e-3;

/// What the ways came to for one subject; infinite where one found no plan.
struct Row {
    same: f64,
    /// Of the first pass and of the guide.
    milliseconds: [f64; 2],
    ratios: [f64; WAYS.len()],
}

impl Row {
    fn new(subject: &Subject, guide: &Guide, effort: &Effort, draw: &mut Draw) -> Result<Row, Error> {
        let bound = lower_bound(&subject.trace, subject.budget, &subject.link, Allow::ALL).0;
        let ratio = |found: &Found| found.as_ref().map_or(f64::INFINITY, |(plan, _)| plan.makespan.0 / bound);
        let gaps = subject.gaps();
        let earlier = |choices: &[Choice]| Earlier::new(&subject.trace, &written::schedule(&gaps, choices));
        let (few, many) = (effort.evaluations / 5, effort.evaluations);

        let first = subject.plan(None, None)?;
        let begun = Instant::now();
        // What reading the trace takes is the guide's as well.
        let choices = choose(guide, &subject.gaps(), f64::from);
        let choosing = begun.elapsed().as_secs_f64();
        let guided = earlier(&choices)?;
        let mended = subject.plan(Some(&guided), None)?;
        let seconds = |found: &Found| found.as_ref().map_or(f64::INFINITY, |(_, seconds)| *seconds);
        let milliseconds = [1e3 * seconds(&first), 1e3 * (choosing + seconds(&mended))];

        let mut drawn = f64::INFINITY;
        for _ in 0..8 {
            // The choice whose logarithm plus a number drawn from Gumbel's distribution is largest has its probability.
            let gumbel = |chance: f32| f64::from(chance).ln() - (-draw.unit().max(1e-9).ln()).ln();
            let choices = choose(guide, &gaps, gumbel);
            drawn = drawn.min(ratio(&subject.plan(Some(&earlier(&choices)?), None)?));
        }
        let plimsoll = subject.plan(None, Some(many))?;
        let right = plimsoll.as_ref().map(|(plan, _)| gaps.choices_of(&plan.schedule)).unwrap_or_default();
        let same = right.iter().zip(&choices).filter(|(a, b)| a == b).count();
        let copied = subject.plan(Some(&earlier(&right)?), None)?;
        let passed = match &first {
            Some((plan, _)) => {
                subject.plan(Some(&Earlier::new(&subject.trace, &plan.schedule)?), Some(many))?
            }
            None => None,
        };
        let improved = subject.plan(Some(&guided), Some(few))?;
        let ratios = [
            ratio(&first),
            ratio(&mended),
            drawn,
            ratio(&copied),
            ratio(&passed),
            ratio(&improved),
            ratio(&plimsoll),
        ];
        Ok(Row { same: same as f64 / right.len().max(1) as f64, milliseconds, ratios })
    }

    fn print(&self, subject: &Subject) {
        let ratios = self.ratios.map(|ratio| format!("{ratio:.3}")).join(" | ");
        let [first, guide] = self.milliseconds;
        println!(
            "| {} | {} | {} | {:.0} % | {first:.1} | {guide:.1} | {ratios} |",
            subject.name,
            subject.trace.ops.len(),
            subject.fraction,
            100.0 * self.same
        );
    }
}

fn summarise(rows: &[Row]) {
    let mean = |way: usize| {
        let logs = rows.iter().map(|row| row.ratios[way].ln());
        format!("{:.3}", (logs.sum::<f64>() / rows.len().max(1) as f64).exp())
    };
    println!(
        "| geometric mean | | | | | | {} |",
        std::array::from_fn::<_, { WAYS.len() }, _>(mean).join(" | ")
    );
    let close = |way: usize| {
        let close: Vec<&Row> = rows.iter().filter(|row| row.ratios[way] <= CLOSE).collect();
        let soon = close.iter().filter(|row| row.milliseconds[way] <= MILLISECONDS).count();
        format!("{} of {} ({soon} in {MILLISECONDS} ms)", close.len(), rows.len())
    };
    let as_good = rows.iter().filter(|row| row.ratios[5] <= row.ratios[4] * (1.0 + EQUAL)).count();
    println!("\nwithin {CLOSE} of the bound: the first pass {}, the guide {}", close(0), close(1));
    println!("as good with a fifth of the evaluations as from the first pass: {as_good} of {}", rows.len());
}
