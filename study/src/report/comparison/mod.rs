//! Two studies side by side: which of them trains faster, in which settings they differ, and what each chose.
//!
//! [`Comparison`] is the data. All of it stands in the files of the two studies; nothing is planned or measured for it. Studies
//! of different networks, data or devices can be compared, and it is said what that leaves open.

mod data;
mod verdict;

pub use data::*;

use crate::measure::{exact, in_words};
use crate::report::gather::Names;
use crate::report::tuned::Tuned;
use crate::report::{Batches, rule_in_words};
use crate::trace_events::nanoseconds;
use crate::words::visible_json;
use plimsoll_ir::Bytes;
use plimsoll_ir::config::{Config, GpuKernels, LearningRate};
use plimsoll_ir::schedule::Stream;
use plimsoll_ir::simulate::{Timeline, simulate};
use plimsoll_tuner::goodput::efficiency;
use plimsoll_tuner::rate;
use plimsoll_tuner::search::moved;

impl Comparison {
    /// Of two studies that were tuned, each with what it is called.
    pub fn of(studies: [(&str, &Tuned); 2]) -> Comparison {
        let [first, second] = studies.map(|(_, tuned)| tuned);
        let noise = common_noise(first, second);
        let (by, notes) = measure(first, second, noise);
        let base = first.config.learning_rate.base_batch;
        let worth = noise.map(|noise| move |update: u64| efficiency(noise, base, update));
        let sides = studies.map(|(name, tuned)| compared(name, tuned, worth.as_ref()));
        let warnings = warnings(&sides);
        Comparison {
            kind: ComparisonKind::Comparison1,
            verdict: verdict::verdict(by, &sides, &notes),
            settings: differences(first, second),
            studies: sides,
            warnings,
        }
    }

    /// The comparison as JSON on one line, for scripts.
    pub fn json(&self) -> String {
        visible_json(&serde_json::to_string(self).expect("a comparison has only texts, numbers and lists"))
    }
}

/// The noise scale that both are judged by: of the same network and data, the only one that either was tuned by.
fn common_noise(first: &Tuned, second: &Tuned) -> Option<f64> {
    let noise = |tuned: &Tuned| tuned.config.goodput.map(|goodput| goodput.noise_scale);
    let known = match (noise(first), noise(second)) {
        (Some(first), Some(second)) => (first == second).then_some(first),
        (first, second) => first.or(second),
    };
    known.filter(|_| is_of_one_task(first, second))
}

fn is_of_one_task(first: &Tuned, second: &Tuned) -> bool {
    first.config.network == second.config.network && has_same_data(first, second)
}

fn has_same_data(first: &Tuned, second: &Tuned) -> bool {
    let data = |tuned: &Tuned| (tuned.tuning.asked.data.clone(), tuned.tuning.asked.samples);
    data(first) == data(second)
}

/// What the two are compared by, and what that leaves open.
fn measure(first: &Tuned, second: &Tuned, noise: Option<f64>) -> (Measure, Vec<String>) {
    let mut notes = Vec::new();
    if first.config.network != second.config.network {
        notes.push(
            "The networks differ: times do not tell which of them learns more from an epoch.".to_owned(),
        );
    }
    if first.config.optimizer != second.config.optimizer {
        notes.push(
            "The optimizers differ: times do not tell which of them learns more from an epoch.".to_owned(),
        );
    }
    let samples = [first, second].map(|tuned| tuned.tuning.asked.samples);
    let by = if let Some(noise) = noise {
        let base = first.config.learning_rate.base_batch;
        notes.push(format!(
            "A sample counts by its efficiency at a noise scale of {noise:.0}; in an update of {base} it counts 1."
        ));
        Measure::Goodput
    } else if samples[0] != samples[1] {
        let [a, b] = samples;
        notes.push(format!("Their epochs have {a} and {b} samples, so that samples a second are compared."));
        Measure::Samples
    } else {
        Measure::Epoch
    };
    let goodputs = [first, second].map(|tuned| tuned.config.goodput.map(|goodput| goodput.noise_scale));
    if noise.is_none() && goodputs.iter().any(Option::is_some) {
        let why = match goodputs {
            [Some(a), Some(b)] if a != b => format!("their noise scales are {a:.0} and {b:.0}"),
            _ => "a noise scale is of one network on one data set, and they have two".to_owned(),
        };
        notes.push(format!("Goodput is not compared: {why}."));
    } else if noise.is_none() && by == Measure::Epoch && is_of_one_task(first, second) {
        let [a, b] = [first, second].map(|tuned| update_of(&tuned.config));
        if a != b {
            notes.push(format!("Every sample counts the same, in updates of {a} and of {b}."));
        }
    }
    (by, notes)
}

/// Samples of an update, of all workers together.
fn update_of(config: &Config) -> u64 {
    config.cluster.map_or(config.batch, |cluster| cluster.global_batch)
}

fn compared(name: &str, tuned: &Tuned, worth: Option<&impl Fn(u64) -> f64>) -> Compared {
    let Tuned { config, tuning, trace, schedule, .. } = tuned;
    let timeline = simulate(trace, schedule);
    let memory = tuned.iteration().memory(&timeline, &mut Names::default());
    Compared {
        name: name.to_owned(),
        about: tuned.about(),
        headline: tuned.headline(),
        times: match (tuning.machine.modelled, config.cluster) {
            (true, _) => "modelled".to_owned(),
            (false, None) => "measured".to_owned(),
            (false, Some(_)) => "measured; the exchange of the workers is predicted".to_owned(),
        },
        choice: choice(tuned, &timeline, worth),
        batches: batches(tuned, worth),
        memory: MemoryOverTime {
            end: nanoseconds(timeline.makespan()),
            budget_bytes: memory.budget_bytes,
            resident_bytes: memory.resident_bytes,
            pool: memory.pool,
            host: memory.host,
        },
    }
}

fn choice(tuned: &Tuned, timeline: &Timeline, worth: Option<&impl Fn(u64) -> f64>) -> Choice {
    let Tuned { config, tuning, trace, schedule, .. } = tuned;
    let moves = moved(trace, schedule);
    let totals = timeline.totals(trace, schedule);
    let LearningRate { rule, base_batch, base_rate, rate, warmup_iterations } = config.learning_rate;
    let global_batch = update_of(config);
    let (predicted, measured) = (config.predicted, config.measured);
    let known = measured.unwrap_or(predicted);
    let samples_per_second = tuning.asked.samples as f64 / known.epoch_seconds.0;
    let efficiency = worth.map(|worth| worth(global_batch));
    Choice {
        batch: config.batch,
        global_batch,
        policy: config.policy.clone(),
        learning_rate: rate::learning_rate(rule, base_batch, base_rate, global_batch).unwrap_or(rate),
        learning_rate_rule: rule_in_words(&config.learning_rate),
        warmup_iterations,
        predicted_iteration_seconds: predicted.iteration_seconds.0,
        predicted_error: predicted.relative_error,
        iteration_seconds: measured.map(|figures| figures.iteration_seconds.0),
        relative_error: measured.map(|figures| figures.relative_error),
        samples_per_second,
        epoch_seconds: known.epoch_seconds.0,
        epoch_error: known.relative_error,
        efficiency,
        goodput: efficiency.map(|efficiency| samples_per_second * efficiency),
        peak_bytes: known.peak_bytes.0,
        at_peak_bytes: moves.at_peak.0,
        offloaded_bytes: moves.offloaded.0,
        swapping_seconds: moves.swapping.0,
        recomputed_ops: moves.recomputed_ops,
        recomputed_bytes: moves.recomputed.0,
        recomputing_seconds: moves.recomputing.0,
        stalled_seconds: totals.stalled[Stream::Compute.index()].0,
        host_bytes: schedule.host_bytes(trace).0,
    }
}

/// The curve over the batch; with what samples are worth where that counts and the update of each batch is known.
fn batches(tuned: &Tuned, worth: Option<&impl Fn(u64) -> f64>) -> Batches {
    let mut batches = tuned.batches();
    let planned = tuned.tuning.rounds.last().map_or(&[][..], |round| &round.candidates);
    let is_alone = tuned.config.cluster.is_none();
    let worth_at = |batch: u64| {
        let planned = planned.iter().find(|planned| planned.batch == batch)?;
        let update = planned.global_batch.or(is_alone.then_some(batch))?;
        worth.map(|worth| worth(update))
    };
    batches.points.iter_mut().for_each(|point| point.efficiency = worth_at(point.batch));
    batches.measured.iter_mut().for_each(|run| run.efficiency = worth_at(run.batch));
    batches
}

/// The settings in which they differ, in words.
fn differences(first: &Tuned, second: &Tuned) -> Vec<Difference> {
    let budgets = [first, second].map(|tuned| tuned.config.budget_bytes);
    let look_alike = budgets[0] != budgets[1] && budgets[0].to_string() == budgets[1].to_string();
    let size = if look_alike { exact } else { |budget: Bytes| budget.to_string() };
    let pairs = settings(first, size).into_iter().zip(settings(second, size));
    let differ = pairs.filter(|((_, first), (_, second))| first != second);
    differ
        .map(|((setting, first), (_, second))| Difference {
            setting: setting.to_owned(),
            values: [first, second],
        })
        .collect()
}

/// What was set or given for a tuning, in words; the same settings in the same order for each.
fn settings(tuned: &Tuned, size: fn(Bytes) -> String) -> [(&'static str, String); 18] {
    let Tuned { config, tuning, .. } = tuned;
    let machine = &tuning.machine;
    let kernels = |kernels: GpuKernels| {
        let whose = if kernels.libraries { "cuDNN and cuBLAS" } else { "Plimsoll's own" };
        if kernels.deterministic { format!("{whose}, one for each op") } else { whose.to_owned() }
    };
    let pace = config.paced.map_or("as fast as it goes".to_owned(), |link| {
        let (out, back) = (link.offload_bytes_per_second, link.prefetch_bytes_per_second);
        if out == back { format!("{out} each way") } else { format!("{out} out, {back} back") }
    });
    let within = tuning.rounds.last().map_or(0.0, |round| round.within);
    let goal = match config.goodput {
        Some(goodput) => format!("goodput at a noise scale of {:.0}", goodput.noise_scale),
        None if within == 0.0 => "the shortest epoch".to_owned(),
        None => "a short epoch that swaps and recomputes little".to_owned(),
    };
    let workers = config.cluster.map_or("1".to_owned(), |cluster| cluster.workers.to_string());
    let interconnect = config.cluster.map_or("none".to_owned(), |cluster| cluster.interconnect.to_string());
    let version = match &tuning.made.commit {
        Some(commit) => format!("{}, commit {commit}", tuning.made.version),
        None => tuning.made.version.clone(),
    };
    [
        ("network", in_words(&config.network)),
        ("data", tuning.asked.data.clone()),
        ("device", machine.device.clone()),
        ("times", if machine.modelled { "modelled".to_owned() } else { "measured".to_owned() }),
        ("system", if machine.modelled { "none".to_owned() } else { machine.system.clone() }),
        ("threads or multiprocessors", config.threads.to_string()),
        ("precision", config.arithmetic().map_or("not known".to_owned(), |precision| precision.to_string())),
        ("optimizer", config.optimizer.to_string()),
        ("momenta", config.momenta.to_string()),
        ("kernels", config.kernels.map_or("those of the device".to_owned(), kernels)),
        ("pace of the link", pace),
        ("budget", size(config.budget_bytes)),
        ("smallest batch", tuning.asked.least.to_string()),
        ("learning rate", rule_in_words(&config.learning_rate)),
        ("goal", goal),
        ("search", config.policy.clone()),
        ("workers", format!("{workers}; interconnect: {interconnect}")),
        ("Plimsoll", version),
    ]
}

/// What is to be known of each, with whose it is; of both where both say it.
fn warnings([first, second]: &[Compared; 2]) -> Vec<String> {
    let of = |study: &Compared, other: &Compared| -> Vec<String> {
        let own = study.about.warnings.iter().filter(|words| !other.about.warnings.contains(words));
        own.map(|words| format!("{}: {words}", study.name)).collect()
    };
    let both = first.about.warnings.iter().filter(|words| second.about.warnings.contains(words)).cloned();
    both.chain(of(first, second)).chain(of(second, first)).collect()
}
