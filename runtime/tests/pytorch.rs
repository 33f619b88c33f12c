//! Three steps of training compared with PyTorch's: the same start, the same batches, and results within rounding.
//!
//! `pytorch/references.py` documents the reference files and how they were made. Their truth is PyTorch in f64; they also
//! hold the error of PyTorch's own f32, which is printed next to Plimsoll's.

use crate::support::{cpu, keep, loaded, training_by};
use plimsoll_ir::UpdateRule;
use plimsoll_ir::network::{LayerKind, Network, NetworkSpec};
use plimsoll_ir::philox::{philox4x32, unit_f32};
use plimsoll_ir::program::{Hyper, Role};
use plimsoll_runtime::{Executor, LearningRateSchedule, Loaded, Trainer, TrainingPlan};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Largest error, relative to the largest element of the same tensor.
const PARAMETER: f64 = 1e-4;
/// Largest error of a change, relative to the largest change of the same tensor. f32 holds a change of a ten-thousandth of a
/// number to a thousandth.
const UPDATE: f64 = 2e-3;
/// If a value is within rounding of a ReLU's bend, or two values of a pooling are within rounding of each other, a processor
/// that adds in a different order may take the other side, and changes of earlier layers move by up to this. A share
/// `FLIPPED` of the sampled changes may do so: 5 % of GoogLeNet's do on one processor, none on the processor on which the
/// limits were set; none of the other networks' do.
const UPDATE_OF_A_FLIP: f64 = 5e-2;
const FLIPPED: f64 = 0.1;
/// Largest relative error of a step's loss.
const LOSS: f64 = 1e-4;

/// Streams of the generator.
const PARAMETERS: u32 = 0;
const INPUT: u32 = 1;
const LABELS: u32 = 2;

#[derive(Deserialize)]
struct Reference {
    pytorch: String,
    network: NetworkSpec,
    batch: u64,
    seed: u64,
    rate: f64,
    /// Unknown names are rejected.
    #[serde(flatten)]
    update: UpdateRule,
    off_in_f32: BTreeMap<String, f64>,
    /// Loss before each step.
    losses: Vec<f64>,
    regions: Vec<Values>,
}

/// A parameter, or a running statistic, after the steps.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Values {
    name: String,
    elements: usize,
    /// For a parameter: start, and largest change.
    centre: Option<f32>,
    spread: Option<f32>,
    largest_update: Option<f64>,
    largest: f64,
    norm: f64,
    /// Elements at equal distances, including the first and the last.
    samples: Vec<f64>,
}

/// First words of a sequence.
fn words(seed: u64, count: usize, number: usize, stream: u32) -> Vec<u32> {
    let block = |i: usize| philox4x32(seed, [i as u32, number as u32, 0, stream]);
    (0..count.div_ceil(4)).flat_map(block).take(count).collect()
}

/// Numbers from centre - spread to centre + spread.
fn uniform(words: &[u32], centre: f32, spread: f32) -> Vec<f32> {
    words.iter().map(|word| centre + spread * (2.0 * unit_f32(*word) - 1.0)).collect()
}

fn bytes<const N: usize, T>(values: &[T], to_bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(to_bytes).collect()
}

/// Whole numbers below a limit, in the device's format.
fn below(words: &[u32], limit: u32) -> Vec<u8> {
    bytes(words, |word| ((word % limit) as i32).to_le_bytes())
}

/// The network without dropout, ready to run.
fn prepare(reference: &Reference) -> (Network, Executor, Loaded) {
    let mut network = plimsoll_networks::build(&reference.network).expect("the zoo has it");
    for layer in &mut network.layers {
        if let LayerKind::Dropout { probability, .. } = &mut layer.kind {
            *probability = 0.0;
        }
    }
    let program = training_by(reference.update.optimizer(), &network, reference.batch);
    let (executor, loaded) = loaded(cpu(), &program, &keep(&program.trace));
    let plan = TrainingPlan {
        network: network.spec.clone(),
        batch: reference.batch,
        virtual_workers: 1,
        seed: 0,
        rate: LearningRateSchedule::constant(reference.rate),
        update: reference.update,
        weights: None,
    };
    // It initialises optimizer state and running statistics; the parameters that it draws are overwritten.
    let trainer = Trainer::new(executor, loaded, None, plan).expect("the plan fits the program");
    let (executor, loaded) = trainer.into_parts();
    (network, executor, loaded)
}

/// Largest error by kind.
#[derive(Default)]
struct Worst(BTreeMap<&'static str, (f64, String)>);

impl Worst {
    fn add(&mut self, kind: &'static str, off: f64, name: &str) {
        let entry = self.0.entry(kind).or_default();
        if off > entry.0 || off.is_nan() {
            *entry = (off, name.to_owned());
        }
    }
}

fn check(text: &str) {
    let reference: Reference = serde_json::from_str(text).expect("it is as the script writes it");
    let (network, mut executor, loaded) = prepare(&reference);
    let starts: Vec<Option<Vec<f32>>> = (reference.regions.iter().enumerate())
        .map(|(number, values)| {
            let words = || words(reference.seed, values.elements, number, PARAMETERS);
            Some(uniform(&words(), values.centre?, values.spread?))
        })
        .collect();
    // PyTorch's side has no row for BERT's second segment, which no network here uses.
    let here = |r: &&plimsoll_ir::program::Region| {
        matches!(r.role, Role::Parameter(_) | Role::State(_)) && !r.name.ends_with(".spare")
    };
    let trained = loaded.resident().iter().filter(here);
    assert_eq!(trained.count(), reference.regions.len(), "as many parameters and statistics as PyTorch");
    let region = |values: &Values| {
        let region = loaded.resident().iter().find(|r| here(r) && r.name == values.name);
        let region = region.unwrap_or_else(|| panic!("no {}", values.name));
        assert_eq!(region.elements() as usize, values.elements, "{}", values.name);
        region
    };
    for (values, start) in reference.regions.iter().zip(&starts) {
        if let Some(start) = start {
            let start = bytes(start, |v| v.to_le_bytes());
            executor.write_region(region(values), &start).expect("it is as large");
        }
    }
    let (mut worst, mut updates) = (Worst::default(), Vec::new());
    for (step, expected) in reference.losses.iter().enumerate() {
        let loss = run_step(&reference, &network, &mut executor, &loaded, step);
        worst.add("loss", (f64::from(loss) - expected).abs() / expected, &format!("step {step}"));
    }
    for (values, start) in reference.regions.iter().zip(&starts) {
        let region = region(values);
        let mut raw = vec![0; region.bytes().0 as usize];
        executor.read_region(region, &mut raw).expect("it is as large");
        let word =
            |i: usize| f32::from_le_bytes([raw[4 * i], raw[4 * i + 1], raw[4 * i + 2], raw[4 * i + 3]]);
        let found: Vec<f64> = (0..values.elements).map(|i| f64::from(word(i))).collect();
        let norm = found.iter().map(|v| v * v).sum::<f64>().sqrt();
        let kind = if start.is_some() { "parameter" } else { "state" };
        worst.add(kind, (norm - values.norm).abs() / values.norm, &values.name);
        let last = values.samples.len() - 1;
        for (k, expected) in values.samples.iter().enumerate() {
            let off = (found[k * (values.elements - 1) / last] - expected).abs();
            worst.add(kind, off / values.largest, &values.name);
            if let Some(largest) = values.largest_update {
                worst.add("update", off / largest, &values.name);
                updates.push(off / largest);
            }
        }
    }
    let name = format!("{} by {}", reference.network.name, reference.update.optimizer());
    let beyond = updates.iter().filter(|off| **off > UPDATE).count();
    println!("{name}: {beyond} of {} changes are off by more than {UPDATE:e}", updates.len());
    assert!(!updates.is_empty(), "{name}: no change is compared");
    assert!(beyond as f64 <= FLIPPED * updates.len() as f64, "{name}: {beyond} of {} changes", updates.len());
    for (kind, (off, place)) in &worst.0 {
        let theirs =
            reference.off_in_f32.get(*kind).map_or("".into(), |off| format!("; PyTorch's f32 {off:.1e}"));
        println!("{name}: {kind} off by {off:.1e} ({place}){theirs}, against {} in f64", reference.pytorch);
        let limit = match *kind {
            "update" => UPDATE_OF_A_FLIP,
            "loss" => LOSS,
            _ => PARAMETER,
        };
        assert!(*off <= limit, "{name}: {kind} of {place} is off by {off:e}, more than {limit:e}");
    }
}

/// Runs one step on its own batch; returns the loss before it.
fn run_step(
    reference: &Reference,
    network: &Network,
    executor: &mut Executor,
    loaded: &Loaded,
    step: usize,
) -> f32 {
    let Reference { network: spec, batch, seed, .. } = reference;
    let elements =
        (*batch * u64::from(spec.image[0]) * u64::from(spec.image[1]) * u64::from(spec.channels)) as usize;
    let drawn = words(*seed, elements, step, INPUT);
    let input = if network.takes_tokens() {
        below(&drawn, spec.classes)
    } else {
        bytes(&uniform(&drawn, 0.0, 3f64.sqrt() as f32), |v| v.to_le_bytes())
    };
    let labels = words(*seed, (*batch * network.labels()) as usize, step, LABELS);
    let update = reference.update.numbers(reference.rate, step as u64);
    let hyper = Hyper { seed_low: 0, seed_high: 0, step: step as u32, update };
    executor.write_images(loaded, &input).expect("it is as large");
    executor.write_labels(loaded, &below(&labels, spec.classes)).expect("it is as large");
    executor.write_region(loaded.hyper(), &hyper.to_bytes()).expect("it is as large");
    executor.run(loaded).expect("the device runs");
    let mut metrics = [0; 12];
    executor.read_region(loaded.metrics(), &mut metrics).expect("it is as large");
    f32::from_le_bytes([metrics[0], metrics[1], metrics[2], metrics[3]])
}

#[test]
fn three_steps_are_those_of_pytorch() {
    [
        include_str!("pytorch/resnet18.json"),
        include_str!("pytorch/densenet121.json"),
        include_str!("pytorch/googlenet.json"),
        include_str!("pytorch/mobilenet_v2.json"),
        include_str!("pytorch/unet.json"),
        include_str!("pytorch/unet-adamw.json"),
        include_str!("pytorch/gpt-tiny.json"),
        include_str!("pytorch/llama-tiny.json"),
        include_str!("pytorch/llama-tiny-adamw.json"),
        include_str!("pytorch/bert-tiny.json"),
        include_str!("pytorch/lstm.json"),
    ]
    .into_iter()
    .for_each(check);
}
