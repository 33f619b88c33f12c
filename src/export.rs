//! What was tuned, as the lines that a user of another tool pastes there: batch size per worker, gradient accumulation,
//! learning rate and warm-up.
//!
//! The warm-up is ours whatever the tool: update s, from 0, of W has (s + 1) / W of the rate. PyTorch's `LinearLR` gives
//! just that with a start factor of 1 / W over W - 1 steps; DeepSpeed's `WarmupLR` repeats its first rate once.
//!
//! What it deliberately does not do: export the plan inside an iteration, which none of these tools can follow; the lines
//! say so. What comes after the warm-up is the user's own schedule.

use crate::failure::Failure;
use crate::output::visible;
use clap::ValueEnum;
use plimsoll_ir::config::{Config, Figures, LearningRate};
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_tuner::rate::{learning_rate, warmup_iterations};
use serde_json::json;

/// Tools that lines can be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// A command line for PyTorch's launcher, and the lines of the training loop
    Torchrun,
    /// Python for Hugging Face Accelerate
    Accelerate,
    /// Python for Lightning
    Lightning,
    /// DeepSpeed's configuration, in JSON
    Deepspeed,
}

/// Momentum and weight decay that `run` has by default.
const MOMENTUM: f64 = 0.9;
const WEIGHT_DECAY: f64 = 5e-4;

/// The numbers of a training elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// Samples that one worker sees at once.
    pub batch: u64,
    /// Workers, each with a device of its own.
    pub workers: u64,
    /// Batches of each worker that make one update.
    pub accumulation: u64,
    /// The learning rate of an update of all of these.
    pub rate: f64,
    /// Updates in which the rate rises; fewer than two are none.
    pub warmup: u64,
    /// Where the numbers come from and what is left out, a line each.
    pub notes: Vec<String>,
}

impl Export {
    /// Of a config, for so many workers and, where it is asked for, so many samples in an update. An update of more samples
    /// than the config's batch has the rate and the warm-up that the config's rule gives for so many, in a training of so
    /// many epochs. Fails where the workers cannot share the samples out in whole batches.
    pub fn new(config: &Config, workers: u64, global: Option<u64>, epochs: u64) -> Result<Export, Failure> {
        let at_once = config.batch.checked_mul(workers).filter(|n| *n > 0);
        let at_once =
            at_once.ok_or_else(|| Failure::usage(format_args!("{workers} is no number of workers")))?;
        let global = global.unwrap_or(at_once);
        if !global.is_multiple_of(at_once) {
            let batch = config.batch;
            let below = global / at_once * at_once;
            let nearest = if below == 0 { String::new() } else { format!("{below} and ") };
            let message = format!(
                "a global batch of {global} is no multiple of {at_once}: {workers} workers with {batch} samples each"
            );
            return Err(Failure::usage(message).help(format!(
                "the nearest that are: {nearest}{}; or choose other --workers",
                below.saturating_add(at_once)
            )));
        }
        let (rate, warmup) = rate_at(config, global, epochs)?;
        Ok(Export {
            batch: config.batch,
            workers,
            accumulation: global / at_once,
            rate: to_six_digits(rate),
            warmup,
            notes: Vec::new(),
        })
    }

    /// Samples in an update.
    pub fn global(&self) -> u64 {
        self.batch * self.workers * self.accumulation
    }

    /// Says where the numbers come from, and what of the schedule stays behind.
    pub fn tell(&mut self, config: &Config, schedule: &Schedule, from: &str) {
        let Config { network, device, budget_bytes, learning_rate, .. } = config;
        let LearningRate { base_rate, base_batch, .. } = learning_rate;
        let (global, batch, rate) = (self.global(), self.batch, self.rate);
        let is_swap = |command: &&Command| matches!(command, Command::Offload { .. });
        let is_again = |command: &&Command| matches!(command, Command::Compute { again: true, .. });
        let swaps = schedule.commands.iter().filter(is_swap).count();
        let again = schedule.commands.iter().filter(is_again).count();
        self.notes = vec![
            format!("From {from}: {} tuned by Plimsoll on {device}, within {budget_bytes}.", network.name),
            format!("Learning rate {rate} at {global} samples an update, from {base_rate} at {base_batch}."),
        ];
        self.notes.push(if swaps + again == 0 {
            "Its plan keeps everything on the device, so nothing is lost here.".to_owned()
        } else {
            format!(
                "Not exported: its plan inside an iteration (tensors swapped: {swaps}, ops run again: {again}). \
                 Without that a batch of {batch} takes more memory."
            )
        });
        if config.modelled {
            self.notes.push("Nothing was measured: that device is modelled from its data sheet.".to_owned());
        }
        if self.accumulation > 1 {
            self.notes.push(format!(
                "Batch normalisation sees {batch} samples at a time, however many are accumulated."
            ));
        }
    }

    /// The lines for a tool, notes as comments among them where its format has comments.
    pub fn lines(&self, tool: Tool) -> String {
        match tool {
            Tool::Torchrun => self.torchrun(),
            Tool::Accelerate => self.accelerate(),
            Tool::Lightning => self.lightning(),
            Tool::Deepspeed => self.deepspeed(),
        }
    }

    fn comments(&self) -> String {
        // A name with a line break would begin a line that is no comment.
        self.notes.iter().map(|note| format!("# {}\n", visible(note))).collect()
    }

    /// The constants that all of the Python begins with.
    fn constants(&self) -> String {
        let Export { batch, accumulation, rate, warmup, .. } = self;
        format!(
            "BATCH_SIZE = {batch}  # of each worker: DataLoader(..., batch_size=BATCH_SIZE, drop_last=True)\n\
             ACCUMULATION = {accumulation}\nLEARNING_RATE = {rate}\nWARMUP = {warmup}  # updates\n"
        )
    }

    /// The optimizer and, where there is a warm-up, its schedule, at so many columns from the left. `steps_an_update` is
    /// Python for how often the tool steps the schedule.
    fn optimizer(&self, indent: &str, model: &str, steps_an_update: &str) -> String {
        let mut lines = format!(
            "{indent}optimizer = torch.optim.SGD(\n{indent}    {model}.parameters(), lr=LEARNING_RATE, \
             momentum={MOMENTUM}, weight_decay={WEIGHT_DECAY}\n{indent})\n"
        );
        if self.warmup > 1 {
            lines.push_str(&format!(
                "{indent}scheduler = torch.optim.lr_scheduler.LinearLR(\n{indent}    optimizer, \
                 start_factor=1 / WARMUP, total_iters=(WARMUP - 1){steps_an_update}\n{indent})\n"
            ));
        }
        lines
    }

    fn torchrun(&self) -> String {
        let Export { batch, workers, accumulation, rate, warmup, .. } = self;
        let comments = self.comments();
        format!(
            "{comments}# The options of train.py have the names that most scripts give them; --batch-size is that of each worker.\n\
             # The rate rises linearly over the warm-up: update s, from 0, of W has (s + 1) / W of it.\n\
             torchrun --standalone --nproc-per-node={workers} train.py \\\n    --batch-size {batch} \\\n    \
             --gradient-accumulation-steps {accumulation} \\\n    --learning-rate {rate} \\\n    \
             --warmup-steps {warmup}\n"
        )
    }

    fn accelerate(&self) -> String {
        let (comments, constants, workers) = (self.comments(), self.constants(), self.workers);
        let optimizer = self.optimizer("", "model", " * accelerator.num_processes");
        let scheduler = if self.warmup > 1 { ", scheduler" } else { "" };
        let stepped =
            if self.warmup > 1 { "# A prepared schedule is stepped once for every process.\n" } else { "" };
        format!(
            "{comments}# accelerate launch --num_processes {workers} train.py\n\
             import torch\nfrom accelerate import Accelerator\n\n{constants}\n\
             accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)\n{stepped}{optimizer}\
             model, optimizer, loader{scheduler} = accelerator.prepare(model, optimizer, loader{scheduler})\n\
             # In the loop: with accelerator.accumulate(model), and accelerator.backward(loss).\n"
        )
    }

    fn lightning(&self) -> String {
        let (comments, constants, workers) = (self.comments(), self.constants(), self.workers);
        let optimizer = self.optimizer("    ", "self", "");
        let strategy = if workers > 1 { ", strategy=\"ddp\"" } else { "" };
        let returned = if self.warmup > 1 {
            "{\"optimizer\": optimizer, \"lr_scheduler\": {\"scheduler\": scheduler, \"interval\": \"step\"}}"
        } else {
            "optimizer"
        };
        format!(
            "{comments}import lightning as L\nimport torch\n\n{constants}\n\
             trainer = L.Trainer(devices={workers}{strategy}, accumulate_grad_batches=ACCUMULATION)\n\n\n\
             # A method of your LightningModule.\ndef configure_optimizers(self):\n{optimizer}    return {returned}\n"
        )
    }

    /// JSON has no comments.
    fn deepspeed(&self) -> String {
        let Export { batch, accumulation, rate, warmup, .. } = self;
        let mut config = json!({
            "train_batch_size": self.global(),
            "train_micro_batch_size_per_gpu": batch,
            "gradient_accumulation_steps": accumulation,
            "optimizer": {
                "type": "SGD",
                "params": {"lr": rate, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
            },
        });
        if *warmup > 1 {
            config["scheduler"] = json!({
                "type": "WarmupLR",
                "params": {
                    "warmup_min_lr": rate / *warmup as f64,
                    "warmup_max_lr": rate,
                    "warmup_num_steps": warmup - 1,
                    "warmup_type": "linear",
                },
            });
        }
        serde_json::to_string_pretty(&config).expect("plain JSON") + "\n"
    }
}

/// As many digits as a rate needs.
fn to_six_digits(rate: f64) -> f64 {
    format!("{rate:.5e}").parse().expect("a number was just written")
}

/// Rate and warm-up of an update of so many samples: the config's own at its own batch.
fn rate_at(config: &Config, global: u64, epochs: u64) -> Result<(f64, u64), Failure> {
    let LearningRate { rate, rule, base_batch, base_rate, warmup_iterations: warmup } = config.learning_rate;
    if global == config.batch {
        return Ok((rate, warmup));
    }
    let rate = learning_rate(rule, base_batch, base_rate, global).map_err(Failure::usage)?;
    let Figures { iteration_seconds, between_seconds, epoch_seconds, .. } = config.predicted;
    // An epoch is predicted as so many iterations as there are batches in the data.
    let samples =
        (epoch_seconds / (iteration_seconds + between_seconds) * config.batch as f64).round() as u64;
    if samples < global {
        let message =
            format!("a global batch of {global} is more than the {samples} samples that were tuned for");
        return Err(Failure::usage(message).help("lower --global-batch or --workers"));
    }
    Ok((rate, warmup_iterations(base_batch, global, samples / global, epochs)))
}
