//! The tuned settings, as lines to paste into a different tool: batch size per worker, gradient accumulation, optimizer,
//! learning rate, its warm-up and its decay.
//!
//! The rate follows the same curve as in `run`, whatever the tool: of W warm-up updates, update s (from 0) has
//! (s + 1) / W of the rate; the decay follows. In Python this is a function that PyTorch's `LambdaLR` calls. DeepSpeed has
//! its own schedules: `WarmupLR` repeats its first rate once, and `WarmupCosineLR` makes its first update with a rate
//! of 0 (DeepSpeed 0.19.8).
//!
//! This file deliberately does not export the plan inside an iteration, which none of these tools can follow. So the exported
//! batch keeps everything, unless the caller asks for the plan's own batch.

use crate::error::Error;
use crate::measure::may_be_off;
use crate::request::{DecayShape, defaults};
use crate::values;
use crate::words::visible;
use clap::{Args, ValueEnum};
use plimsoll_ir::UpdateRule;
use plimsoll_ir::config::{Cluster, Config, Figures, LearningRate};
use plimsoll_ir::schedule::{Command, Schedule};
use plimsoll_tuner::rate::{caution, learning_rate, warmup_iterations};
use serde_json::json;

/// Tools with an export. Lines are made for all but the last.
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
    /// The trained weights, to --output, as PyTorch's load_state_dict takes them
    Safetensors,
}

/// Optimizers available in those tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum
    Sgd,
    /// Adam
    Adam,
    /// Adam with decoupled weight decay
    Adamw,
}

impl Optimizer {
    /// Returns the optimizer's name in PyTorch and in DeepSpeed.
    fn name(self) -> &'static str {
        match self {
            Optimizer::Sgd => "SGD",
            Optimizer::Adam => "Adam",
            Optimizer::Adamw => "AdamW",
        }
    }
}

impl From<plimsoll_ir::Optimizer> for Optimizer {
    fn from(tuned_for: plimsoll_ir::Optimizer) -> Optimizer {
        match tuned_for {
            plimsoll_ir::Optimizer::Sgd => Optimizer::Sgd,
            plimsoll_ir::Optimizer::Adamw => Optimizer::Adamw,
        }
    }
}

/// Settings requested for a training elsewhere.
#[derive(Clone, Copy, Debug, Args)]
pub struct Wanted {
    /// Workers that train together, each on its device; by default the number that was tuned for, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub workers: Option<u64>,
    /// Samples in an update of all workers together; by default the number that was tuned for with --workers, else about one
    /// tuned batch of each. More samples are accumulated
    #[arg(long = "global-batch", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub global: Option<u64>,
    /// Passes over the data that will be trained; the warm-up of an update of more than one batch takes at most a tenth of them
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: u64,
    /// Schedule of the learning rate after the warm-up
    #[arg(long, value_enum, value_name = "SHAPE", default_value_t)]
    pub decay: DecayShape,
    /// Optimizer of the tool; by default the one that was tuned for
    #[arg(long, value_enum, value_name = "NAME")]
    pub optimizer: Option<Optimizer>,
    /// Momentum of SGD; by default 0.9
    #[arg(long, value_name = "M", value_parser = values::momentum())]
    pub momentum: Option<f32>,
    /// Weight decay; by default 5e-4 with SGD, 1e-2 with AdamW if it was tuned for, else the tool's default
    #[arg(long, value_name = "W", value_parser = values::weight_decay())]
    pub weight_decay: Option<f32>,
    /// Export the batch of the plan, for a runtime that follows the plan; by default the largest batch that keeps everything
    /// and divides the update
    #[arg(long)]
    pub as_planned: bool,
}

impl Wanted {
    /// Returns the option that is given and is not the default, if any.
    pub fn given(&self) -> Option<&'static str> {
        let usual: Wanted = defaults();
        let settings = [
            ("--workers", self.workers.is_some()),
            ("--global-batch", self.global.is_some()),
            ("--epochs", self.epochs != usual.epochs),
            ("--decay", self.decay != usual.decay),
            ("--optimizer", self.optimizer.is_some()),
            ("--momentum", self.momentum.is_some()),
            ("--weight-decay", self.weight_decay.is_some()),
            ("--as-planned", self.as_planned),
        ];
        settings.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

/// The numbers of a training elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// Samples that one worker processes at once.
    pub batch: u64,
    /// Workers, each with its own device.
    pub workers: u64,
    /// Batches of each worker in one update.
    pub accumulation: u64,
    /// Learning rate of an update of all these samples.
    pub rate: f64,
    /// Updates in which the rate rises; fewer than two mean no warm-up.
    pub warmup: u64,
    /// Updates in all.
    pub updates: u64,
    /// Decay of the rate after the warm-up.
    pub decay: DecayShape,
    /// Optimizer that updates the parameters.
    pub optimizer: Optimizer,
    /// The optimizer's settings besides the rate, by PyTorch's names.
    pub settings: Vec<(&'static str, f32)>,
    /// Sources of the numbers and omitted parts, one line each.
    pub notes: Vec<String>,
}

/// Returns the optimizer's settings besides the rate, by PyTorch's names. For an optimizer that was not tuned for, the tool's
/// defaults apply, except for SGD.
fn settings(
    config: &Config,
    optimizer: Optimizer,
    momentum: Option<f32>,
    weight_decay: Option<f32>,
) -> Vec<(&'static str, f32)> {
    let is_tuned = optimizer == config.optimizer.into();
    let usual = UpdateRule::usual(if is_tuned { config.optimizer } else { plimsoll_ir::Optimizer::Sgd });
    match usual {
        UpdateRule::Sgd { momentum: kept, weight_decay: usual } if optimizer == Optimizer::Sgd => {
            vec![("momentum", momentum.unwrap_or(kept)), ("weight_decay", weight_decay.unwrap_or(usual))]
        }
        // The tools' defaults disagree: PyTorch's AdamW has 1e-2, DeepSpeed's 0.
        UpdateRule::Adamw { weight_decay: usual, .. } => {
            vec![("weight_decay", weight_decay.unwrap_or(usual))]
        }
        UpdateRule::Sgd { .. } => weight_decay.map(|decay| ("weight_decay", decay)).into_iter().collect(),
    }
}

/// Division of one update's samples: the batch size, and the number of batches that each worker takes.
type Shares = (u64, u64);

impl Export {
    /// Returns the export of a config and its schedule. By default a worker's batch is the largest that keeps
    /// everything on the device and divides an update evenly, since no other tool swaps and recomputes as the plan
    /// does; as many batches are accumulated as the update needs. No batch is larger than the tuned one, unless an
    /// update is requested. Rate and warm-up follow from the config's rule for an update's samples. Fails if the
    /// samples do not divide among the workers, or if no batch is known to fit.
    pub fn new(config: &Config, schedule: &Schedule, wanted: &Wanted) -> Result<Export, Error> {
        let Wanted { epochs, decay, optimizer, momentum, weight_decay, as_planned, .. } = *wanted;
        let tuned = config.cluster;
        let workers = wanted.workers.or(tuned.map(|cluster| cluster.workers)).unwrap_or(1);
        if config.batch.checked_mul(workers).is_none_or(|samples| samples == 0) {
            return Err(Error::usage(format_args!("{workers} is no number of workers")));
        }
        let optimizer = optimizer.unwrap_or(config.optimizer.into());
        if momentum.is_some() && optimizer != Optimizer::Sgd {
            return Err(Error::usage("--momentum is for --optimizer sgd")
                .help("leave --momentum out, or add --optimizer sgd"));
        }
        if let Some(global) = wanted.global {
            samples_for(config, global)?;
        }
        let shares = |global| {
            if as_planned {
                return planned(config.batch, workers, global);
            }
            let held = held(config, schedule)?;
            let most = if wanted.global.is_some() { held } else { held.min(config.batch) };
            shared(most, config.batch, workers, global)
        };
        // As in `run`, a different number of workers keeps the tuned update if each has a batch of it; here it must also divide
        // evenly.
        let tuned =
            tuned.map(|cluster| cluster.global_batch).filter(|global| global / config.batch >= workers);
        let (batch, accumulation) = match (wanted.global, tuned) {
            (None, Some(tuned)) => shares(Some(tuned)).or_else(|_| shares(None))?,
            (global, _) => shares(global)?,
        };
        let global = batch * workers * accumulation;
        let (rate, warmup, each) = rate_at(config, global, epochs)?;
        let settings = settings(config, optimizer, momentum, weight_decay);
        Ok(Export {
            batch,
            workers,
            accumulation,
            rate: to_six_digits(rate),
            warmup,
            updates: each * epochs,
            decay,
            optimizer,
            settings,
            notes: Vec::new(),
        })
    }

    /// Returns the samples in an update.
    pub fn global(&self) -> u64 {
        self.batch * self.workers * self.accumulation
    }

    /// Adds notes on the sources of the numbers and on the omitted parts of the schedule.
    pub fn tell(&mut self, config: &Config, schedule: &Schedule, from: &str) {
        let Config { network, device, budget_bytes, learning_rate, .. } = config;
        let LearningRate { base_rate, base_batch, .. } = learning_rate;
        let (global, batch, rate) = (self.global(), self.batch, self.rate);
        let [swaps, again] = moves(schedule);
        self.notes = vec![
            format!("From {from}: {} tuned by Plimsoll on {device}, within {budget_bytes}.", network.name),
            format!("Learning rate {rate} at {global} samples an update, from {base_rate} at {base_batch}."),
        ];
        if let Some(Cluster { workers, interconnect, global_batch, .. }) = config.cluster {
            self.notes.push(format!(
                "Tuned for {workers} workers with {interconnect} between them, and {global_batch} samples in an update."
            ));
        }
        let tuned = config.batch;
        self.notes.push(match swaps + again {
            0 if batch == tuned => "Its plan keeps everything on the device, so nothing is lost here.".to_owned(),
            _ if batch == tuned => format!(
                "Not exported: its plan inside an iteration (tensors swapped: {swaps}, ops recomputed: {again}). \
                 Without that a batch of {batch} takes more memory than {budget_bytes}."
            ),
            0 => format!("A batch of {batch} keeps everything on the device, as the tuned {tuned} does."),
            _ => format!(
                "A batch of {batch} keeps everything on the device; the tuned {tuned} needs the plan inside an iteration \
                 (tensors swapped: {swaps}, ops recomputed: {again}), which is not exported."
            ),
        });
        if let Some(words) = caution(learning_rate, global) {
            self.notes.push(format!("The update is {words}."));
        }
        if self.optimizer != config.optimizer.into() {
            let name = self.optimizer.name();
            self.notes.push(format!(
                "The study was tuned for {}: {base_rate} at {base_batch} is taken as a rate for {name}{}.",
                Optimizer::from(config.optimizer).name(),
                if self.optimizer == Optimizer::Sgd {
                    ""
                } else {
                    ", for which the square-root rule is usual"
                }
            ));
        }
        if config.modelled {
            let off = may_be_off(config.modelled_error);
            self.notes
                .push(format!("Nothing was measured: that device is modelled from its data sheet; {off}."));
        }
        if self.accumulation > 1 {
            self.notes.push(format!(
                "Batch normalisation sees {batch} samples at a time, however many are accumulated."
            ));
        }
    }

    /// Returns the lines for a tool, with notes as comments if its format has comments. Fails if the tool lacks the
    /// requested schedule of the rate.
    pub fn lines(&self, tool: Tool) -> Result<String, Error> {
        match tool {
            Tool::Torchrun => Ok(self.torchrun()),
            Tool::Accelerate => Ok(self.accelerate()),
            Tool::Lightning => Ok(self.lightning()),
            Tool::Deepspeed => self.deepspeed(),
            Tool::Safetensors => Err(Error::usage("safetensors holds what was trained, and no lines")),
        }
    }

    fn comments(&self) -> String {
        // A name with a line break would begin a line that is no comment.
        self.notes.iter().map(|note| format!("# {}\n", visible(note))).collect()
    }

    /// Returns `true` if the rate changes at all.
    fn has_schedule(&self) -> bool {
        self.warmup > 1 || self.decay != DecayShape::Constant
    }

    /// Returns the constants that begin all Python exports, and the curve of the rate.
    fn constants(&self) -> String {
        let Export { batch, accumulation, rate, warmup, updates, .. } = self;
        let mut lines = format!(
            "BATCH_SIZE = {batch}  # of each worker: DataLoader(..., batch_size=BATCH_SIZE, drop_last=True)\n\
             ACCUMULATION = {accumulation}\nLEARNING_RATE = {rate}\n"
        );
        if self.has_schedule() {
            let after = match self.decay {
                DecayShape::Constant => "1.0",
                DecayShape::Cosine => {
                    "0.5 * (1 + math.cos(math.pi * min((update - WARMUP) / max(UPDATES - WARMUP, 1), 1.0)))"
                }
                DecayShape::Step => "0.1 ** (update // -(-UPDATES // 3))",
            };
            lines.push_str(&format!(
                "WARMUP, UPDATES = {warmup}, {updates}\n\n\ndef share(update):\n    \
                 \"\"\"What the learning rate is multiplied with at an update, from 0.\"\"\"\n    \
                 if update < WARMUP:\n        return (update + 1) / WARMUP\n    return {after}\n\n"
            ));
        }
        lines
    }

    /// Returns the import of Python's standard library that the lines need.
    fn imports(&self) -> &'static str {
        if self.decay == DecayShape::Cosine { "import math\n\n" } else { "" }
    }

    /// Returns the optimizer and, if the rate changes, its schedule, indented by `indent`. `share` is Python for a function of
    /// the number of steps that the tool has made.
    fn optimizer(&self, indent: &str, model: &str, share: &str) -> String {
        let name = self.optimizer.name();
        let settings: String =
            self.settings.iter().map(|(name, value)| format!(", {name}={value}")).collect();
        let mut lines = format!(
            "{indent}optimizer = torch.optim.{name}({model}.parameters(), lr=LEARNING_RATE{settings})\n"
        );
        if self.has_schedule() {
            lines.push_str(&format!(
                "{indent}scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, {share})\n"
            ));
        }
        lines
    }

    fn torchrun(&self) -> String {
        let Export { batch, workers, accumulation, rate, warmup, updates, .. } = self;
        let comments = self.comments();
        let decay = format!("{:?}", self.decay).to_lowercase();
        let settings: String = self
            .settings
            .iter()
            .map(|(name, value)| format!(" \\\n    --{} {value}", name.replace('_', "-")))
            .collect();
        let optimizer = self.optimizer.name().to_lowercase();
        format!(
            "{comments}# The options of train.py have the names that most scripts give them; --batch-size is that of each \
             worker.\n# The rate rises linearly over the warm-up: update s, from 0, of W has (s + 1) / W of it. A cosine \
             then falls to 0 at the\n# last of {updates} updates; steps divide it by 10 after each third of them.\ntorchrun \
             --standalone --nproc-per-node={workers} train.py \\\n    --batch-size {batch} \\\n    \
             --gradient-accumulation-steps {accumulation} \\\n    --optimizer {optimizer} \\\n    --learning-rate \
             {rate}{settings} \\\n    --lr-scheduler {decay} \\\n    --warmup-steps {warmup} \\\n    --max-steps {updates}\n"
        )
    }

    fn accelerate(&self) -> String {
        let (comments, constants, workers) = (self.comments(), self.constants(), self.workers);
        let (imports, has_schedule) = (self.imports(), self.has_schedule());
        let optimizer = self.optimizer("", "model", "lambda step: share(step // accelerator.num_processes)");
        let scheduler = if has_schedule { ", scheduler" } else { "" };
        let stepped =
            if has_schedule { "# A prepared schedule is stepped once for every process.\n" } else { "" };
        format!(
            "{comments}# accelerate launch --num_processes {workers} train.py\n\
             {imports}import torch\nfrom accelerate import Accelerator\n\n{constants}\n\
             accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)\n{stepped}{optimizer}\
             model, optimizer, loader{scheduler} = accelerator.prepare(model, optimizer, loader{scheduler})\n\
             # In the loop: with accelerator.accumulate(model), and accelerator.backward(loss).\n"
        )
    }

    fn lightning(&self) -> String {
        let (comments, constants, workers) = (self.comments(), self.constants(), self.workers);
        let optimizer = self.optimizer("    ", "self", "share");
        let imports = self.imports();
        let strategy = if workers > 1 { ", strategy=\"ddp\"" } else { "" };
        let returned = if self.has_schedule() {
            "{\"optimizer\": optimizer, \"lr_scheduler\": {\"scheduler\": scheduler, \"interval\": \"step\"}}"
        } else {
            "optimizer"
        };
        format!(
            "{comments}{imports}import lightning as L\nimport torch\n\n{constants}\n\
             trainer = L.Trainer(devices={workers}{strategy}, accumulate_grad_batches=ACCUMULATION)\n\n\n\
             # A method of your LightningModule.\ndef configure_optimizers(self):\n{optimizer}    return {returned}\n"
        )
    }

    /// Returns DeepSpeed's JSON, which has no comments. Fails if DeepSpeed lacks the schedule of the rate.
    fn deepspeed(&self) -> Result<String, Error> {
        let Export { batch, accumulation, rate, warmup, updates, .. } = self;
        let mut params = json!({"lr": rate});
        for (name, value) in &self.settings {
            // The decimal digits of the number, not the nearest 32-bit binary fraction.
            params[*name] = value.to_string().parse::<f64>().expect("a number was just written").into();
        }
        let mut config = json!({
            "train_batch_size": self.global(),
            "train_micro_batch_size_per_gpu": batch,
            "gradient_accumulation_steps": accumulation,
            "optimizer": {"type": self.optimizer.name(), "params": params},
        });
        match self.decay {
            DecayShape::Constant if *warmup > 1 => {
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
            DecayShape::Constant => {}
            DecayShape::Cosine => {
                // DeepSpeed refuses 0 steps; one warm-up step with a ratio from 1 to 1 has no effect.
                config["scheduler"] = json!({
                    "type": "WarmupCosineLR",
                    "params": {
                        "total_num_steps": updates,
                        "warmup_min_ratio": 1.0 / (*warmup).max(1) as f64,
                        "warmup_num_steps": warmup.saturating_sub(1).max(1),
                        "cos_min_ratio": 0.0,
                        "warmup_type": "linear",
                    },
                });
            }
            DecayShape::Step => {
                return Err(Error::usage("DeepSpeed has no schedule that falls in steps")
                    .help("ask for --decay cosine or --decay constant"));
            }
        }
        Ok(serde_json::to_string_pretty(&config).expect("plain JSON") + "\n")
    }
}

/// Returns how many tensors, or pieces of tensors, a schedule swaps out, and how many ops it recomputes.
fn moves(schedule: &Schedule) -> [usize; 2] {
    let is_swap = |command: &&Command| matches!(command, Command::Offload { .. });
    let is_again = |command: &&Command| matches!(command, Command::Compute { again: true, .. });
    [schedule.commands.iter().filter(is_swap).count(), schedule.commands.iter().filter(is_again).count()]
}

/// Returns the largest batch that is known to fit without the plan, with everything kept on the device.
fn held(config: &Config, schedule: &Schedule) -> Result<u64, Error> {
    let own = (moves(schedule) == [0, 0]).then_some(config.batch);
    config.keeps_all.max(own).ok_or_else(|| {
        let budget = config.budget_bytes;
        Error::usage(format_args!(
            "no batch is known that keeps everything within {budget}, as it must elsewhere"
        ))
        .help(
            "tune with a larger --budget, or export the plan's own batch with --as-planned, for a runtime that follows the \
             plan",
        )
    })
}

/// Divides an update into as few batches as possible of at most `held` samples. By default each worker's part is the
/// tuned batch, rounded down to batches of one size.
fn shared(held: u64, tuned: u64, workers: u64, global: Option<u64>) -> Result<Shares, Error> {
    let Some(global) = global else {
        let accumulation = tuned.div_ceil(held);
        return Ok((tuned / accumulation, accumulation));
    };
    if !global.is_multiple_of(workers) {
        let message = format!("a global batch of {global} is no multiple of {workers} workers");
        return Err(not_shared(&message, global, workers));
    }
    let share = global / workers;
    let fewest = share.div_ceil(held);
    let Some(accumulation) = (fewest..=share.min(2 * fewest)).find(|batches| share.is_multiple_of(*batches))
    else {
        let message = format!(
            "a global batch of {global} gives each worker {share} samples, which cannot be shared out evenly in batches of \
             {} to {held}, which keep everything",
            share.div_ceil(2 * fewest)
        );
        return Err(not_shared(&message, global, workers * fewest));
    };
    Ok((share / accumulation, accumulation))
}

/// Divides an update into batches of the plan's own size.
fn planned(batch: u64, workers: u64, global: Option<u64>) -> Result<Shares, Error> {
    let at_once = batch * workers;
    let global = global.unwrap_or(at_once);
    if !global.is_multiple_of(at_once) {
        let message = format!(
            "a global batch of {global} is no multiple of {at_once}: {workers} workers with {batch} samples each"
        );
        return Err(not_shared(&message, global, at_once));
    }
    Ok((batch, global / at_once))
}

/// Describes the multiples of `of` that are nearest to a number.
pub(crate) fn nearest(number: u64, of: u64) -> String {
    let below = number / of * of;
    let above = below.saturating_add(of);
    if below == 0 { above.to_string() } else { format!("{below} and {above}") }
}

/// Returns the error of a global batch that is no multiple of `at_once`, with the nearest multiples.
fn not_shared(why: &str, global: u64, at_once: u64) -> Error {
    Error::usage(why)
        .help(format_args!("the nearest that are: {}; or choose other --workers", nearest(global, at_once)))
}

/// Returns the number of samples that a config was tuned for, which must be enough for one update.
fn samples_for(config: &Config, global: u64) -> Result<u64, Error> {
    // An epoch has one iteration, or update of the tuned workers, for each batch of the data.
    let samples = match config.cluster {
        Some(Cluster { update_seconds, global_batch, .. }) => {
            let known = config.measured.unwrap_or(config.predicted);
            known.epoch_seconds / update_seconds * global_batch as f64
        }
        None => {
            let Figures { iteration_seconds, between_seconds, epoch_seconds, .. } = config.predicted;
            epoch_seconds / (iteration_seconds + between_seconds) * config.batch as f64
        }
    };
    let samples = samples.round() as u64;
    if samples < global {
        let message =
            format!("a global batch of {global} is more than the {samples} samples that were tuned for");
        return Err(Error::usage(message).help("lower --global-batch or --workers"));
    }
    Ok(samples)
}

fn to_six_digits(rate: f64) -> f64 {
    format!("{rate:.5e}").parse().expect("a number was just written")
}

/// Returns rate, warm-up, and updates per epoch for updates of `global` samples: the config's own rate and warm-up at
/// its own batch.
fn rate_at(config: &Config, global: u64, epochs: u64) -> Result<(f64, u64, u64), Error> {
    let LearningRate { rate, rule, base_batch, base_rate, warmup_iterations: warmup } = config.learning_rate;
    let updates = samples_for(config, global)? / global;
    if global == config.batch {
        return Ok((rate, warmup, updates));
    }
    let rate = learning_rate(rule, base_batch, base_rate, global)?;
    Ok((rate, warmup_iterations(base_batch, global, updates, epochs), updates))
}
