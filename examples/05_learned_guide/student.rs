//! The guide: a small network that is trained by Plimsoll to choose as its plans do, from the facts of a gap.

use super::gaps::{Choice, FACTS};
use plimsoll::ir::network::{Network, NetworkSpec, Shape};
use plimsoll::ir::program::KernelAlternative;
use plimsoll::ir::schedule::{Link, Schedule};
use plimsoll::ir::{Bytes, BytesPerSecond, UpdateRule};
use plimsoll::networks::{Builder, LowerOptions, NetworkError, lower};
use plimsoll::runtime::cpu::kernels::workspace_bytes;
use plimsoll::runtime::data::{Dataset, Input};
use plimsoll::runtime::{
    Cpu, CpuOptions, Executor, LearningRateSchedule, MemoryLayout, RuntimeError, Trainer, TrainingPlan,
};
use plimsoll::tuner::{Outcome, PlanRequest, Policy, plan};

type Error = Box<dyn std::error::Error>;

/// The width of both hidden layers.
const WIDTH: usize = 32;

const BATCH: u64 = 256;

/// What was chosen in gaps, and the facts of each.
#[derive(Default)]
pub struct Lessons {
    pub facts: Vec<[f32; FACTS]>,
    pub choices: Vec<Choice>,
}

impl Dataset for Lessons {
    fn name(&self) -> &'static str {
        "gaps"
    }

    fn len(&self) -> usize {
        self.facts.len()
    }

    fn image(&self) -> Shape {
        Shape { height: 1, width: 1, channels: FACTS as u32 }
    }

    fn classes(&self) -> u32 {
        Choice::ALL.len() as u32
    }

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), RuntimeError> {
        input.pixels().copy_from_slice(&self.facts[index]);
        labels[0] = self.choices[index] as i32;
        Ok(())
    }
}

/// The trained network.
pub struct Guide {
    layers: Vec<FullyConnected>,
}

struct FullyConnected {
    /// `[outputs][inputs]`.
    weights: Vec<f32>,
    biases: Vec<f32>,
}

fn network() -> Result<Network, NetworkError> {
    let spec = NetworkSpec { name: "guide".into(), image: [1, 1], channels: FACTS as u32, classes: 3 };
    let mut b = Builder::new(&spec)?;
    let mut x = b.fully_connected("fc1", b.images(), WIDTH as u32)?;
    x = b.relu("relu1", x)?;
    x = b.fully_connected("fc2", x, WIDTH as u32)?;
    x = b.relu("relu2", x)?;
    x = b.fully_connected("fc3", x, Choice::ALL.len() as u32)?;
    b.finish(x)
}

impl Guide {
    /// Trains the guide for so many epochs; gives the loss of the last iterations, too.
    pub fn train(lessons: &Lessons, epochs: u64) -> Result<(Guide, f32), Error> {
        let network = network()?;
        let options = LowerOptions {
            alternatives: &|call| KernelAlternative::sole(workspace_bytes(call, 1)),
            ..LowerOptions::default()
        };
        let batch = BATCH.min(lessons.len() as u64).max(1);
        let program = lower(&network, batch, &options)?;
        let (_, peak) = program.trace.memory().peak().ok_or("a trace has ops")?;
        let request =
            PlanRequest::new(Bytes(2 * peak.0), Link::symmetric(BytesPerSecond(10e9)), Policy::Keep);
        let schedule: Schedule = match plan(&program.trace, &request)? {
            Outcome::Planned(plan) => plan.schedule,
            Outcome::Infeasible(witness) => return Err(witness.to_string().into()),
        };
        let mut executor =
            Executor::new(Box::new(Cpu::new(CpuOptions::default())), MemoryLayout::of(&program, &schedule))?;
        let loaded = executor.load(&program, &schedule)?;
        let iterations = epochs * (lessons.len() as u64 / batch);
        let rate = LearningRateSchedule {
            decay: plimsoll::runtime::Decay::Cosine { iterations, floor: 0.0 },
            ..LearningRateSchedule::constant(0.1)
        };
        let how = TrainingPlan {
            network: network.spec.clone(),
            batch,
            virtual_workers: 1,
            seed: 1,
            rate,
            update: UpdateRule::Sgd { momentum: 0.9, weight_decay: 1e-5 },
            weights: None,
        };
        let mut trainer = Trainer::new(executor, loaded, None, how)?;
        let mut losses = Vec::new();
        trainer.train(lessons, iterations, &mut |seen| losses.push(seen.loss), &|| false)?;
        let last = &losses[losses.len().saturating_sub(100)..];
        let loss = last.iter().sum::<f32>() / last.len().max(1) as f32;
        let checkpoint = trainer.checkpoint()?;
        let region = |name: String| checkpoint.region(&name).ok_or(format!("the guide has no {name}"));
        let layer = |fc: &str| -> Result<FullyConnected, String> {
            let [weights, biases] =
                [region(format!("parameter/{fc}.weight"))?, region(format!("parameter/{fc}.bias"))?];
            Ok(FullyConnected { weights, biases })
        };
        let layers = ["fc1", "fc2", "fc3"].map(layer).into_iter().collect::<Result<_, _>>()?;
        Ok((Guide { layers }, loss))
    }

    /// How many bytes the weights take.
    pub fn bytes(&self) -> usize {
        4 * self.layers.iter().map(|layer| layer.weights.len() + layer.biases.len()).sum::<usize>()
    }

    /// The probability of each choice.
    pub fn probabilities(&self, facts: &[f32; FACTS]) -> [f32; 3] {
        let mut x = facts.to_vec();
        for (at, layer) in self.layers.iter().enumerate() {
            let row = |(weights, bias): (&[f32], &f32)| {
                let sum = bias + weights.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>();
                if at + 1 < self.layers.len() { sum.max(0.0) } else { sum }
            };
            x = layer.weights.chunks(x.len()).zip(&layer.biases).map(row).collect();
        }
        let most = x.iter().copied().fold(f32::MIN, f32::max);
        let powers = [x[0], x[1], x[2]].map(|x| (x - most).exp());
        let sum: f32 = powers.iter().sum();
        powers.map(|power| power / sum)
    }
}
