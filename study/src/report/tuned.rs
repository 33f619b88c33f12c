//! From a study's folder to a report: the iteration from `gather.rs`, and the results of the tuning.
//!
//! All data come from the study's files; no device, data or network is needed. The model is fitted again from the profile,
//! which gives the same model.

use crate::error::Error;
use crate::folder::{Study, check_valid, name};
use crate::report::data::{
    About, Answer, BatchMeasured, BatchPoint, Batches, Fit, FitHeldOut, FitKind, FitLink, Report, Setting,
};
use crate::report::explain::{Explanation, phase_words};
use crate::report::gather::{Names, Subject};
use crate::report::reasons::percent;
use crate::report::workers::workers;
use crate::training::Trained;
use crate::tuning::{ACCUMULATED, RECOMPUTED, missed, run_missed};
use plimsoll_ir::config::{Config, Figures, LearningRate, LearningRateRule};
use plimsoll_ir::profile::{BatchSamples, OpSamples, Profile, Rate, TransferSample};
use plimsoll_ir::schedule::{Duplex, Schedule};
use plimsoll_ir::simulate::Timeline;
use plimsoll_ir::trace::{Op, Trace, TraceKind};
use plimsoll_ir::tuning::{Planned, Run, Training, Tuning};
use plimsoll_ir::{Bytes, Document, Seconds};
use plimsoll_tuner::model::{FittedRate, LinkModel, Model};
use plimsoll_tuner::rate::{caution, rate_of_update};
use plimsoll_tuner::search::{Moved, moved};
use std::collections::BTreeMap;

/// A study's contents after a tuning.
pub struct Tuned {
    /// The choice.
    pub config: Config,
    /// Record of the attempts for the choice.
    pub tuning: Tuning,
    /// Profile that the model is fitted to.
    pub profile: Profile,
    /// Chosen iteration.
    pub trace: Trace,
    pub schedule: Schedule,
}

impl Tuned {
    /// Reads a study. If it is no study, half of one, or one of a different version, the error says what to do.
    pub fn read(study: &Study) -> Result<Tuned, Error> {
        let (config, schedule) = study.chosen()?;
        for path in [&study.tuning(), &study.trace(), &study.profile()] {
            study.holds(path)?;
        }
        let tuned = Tuned {
            tuning: study.document(&study.tuning())?,
            profile: study.document(&study.profile())?,
            trace: study.document(&study.trace())?,
            config,
            schedule,
        };
        check_valid(&study.folder().join(&tuned.config.schedule), &tuned.trace, &tuned.schedule)?;
        let chosen = tuned.run("chosen").map(|run| run.batch);
        let commands = tuned.schedule.commands.len();
        let other = |timeline: &Timeline| timeline.spans.len() != commands;
        let modelled = tuned.tuning.machine.modelled;
        if tuned.tuning.timeline.as_ref().is_some_and(other)
            || chosen != Some(tuned.config.batch)
            || [tuned.config.modelled, tuned.profile.machine.modelled] != [modelled; 2]
        {
            let (folder, file) = (study.folder().display(), name(&study.tuning()));
            return Err(Error::usage(format_args!("{folder}: {file} is of another schedule"))
                .help(study.tune_again()));
        }
        Ok(tuned)
    }

    /// Adds the costs and results of a training, and keeps them in the study; does nothing if this run had nothing left to
    /// train.
    pub fn add_training(&mut self, study: &Study, trained: &Trained) -> Result<(), Error> {
        if trained.iterations == trained.resumed_at {
            return Ok(());
        }
        self.tuning.training = Some(Training {
            iterations: trained.iterations,
            iteration_seconds: trained.iteration,
            between_seconds: trained.between,
            loss: f64::from(trained.loss),
            test_loss: trained.test.loss,
            test_accuracy: trained.test.accuracy(),
            test_samples: trained.test.samples,
            peak_bytes: trained.peak,
            global_batch: (trained.global_batch != self.config.batch).then_some(trained.global_batch),
        });
        study.put(&[(study.tuning(), self.tuning.to_json().into_bytes())])
    }

    /// Returns the explanation of the iteration: its limits, and the cost of its layers.
    pub fn explanation(&self) -> Explanation<'_> {
        Explanation::of(self.iteration())
    }

    fn iteration(&self) -> Subject<'_> {
        let Tuned { tuning, trace, schedule, .. } = self;
        Subject { trace, schedule, measured: tuning.timeline.as_ref() }
    }

    /// Returns the report.
    pub fn report(&self) -> Result<Report, Error> {
        let Tuned { tuning, profile, .. } = self;
        let mut report = self.iteration().report((&tuning.policies).into(), self.about());
        report.answer = Some(self.answer()?);
        report.batches = Some(self.batches());
        report.workers = workers(&self.config, tuning);
        let mut names = Names::from(std::mem::take(&mut report.iteration.names));
        // The fit of curves to a modelled device shows nothing about a real one.
        report.fit = if tuning.machine.modelled { None } else { Some(fit(profile, &mut names)?) };
        report.iteration.names = names.into_list();
        Ok(report)
    }

    fn about(&self) -> About {
        let Tuning { made, machine, asked, .. } = &self.tuning;
        let with = if machine.modelled { "modelled with" } else { "measured with" };
        let mut facts = vec![
            ("system".to_owned(), machine.system.clone()),
            ("threads or multiprocessors".to_owned(), machine.threads.to_string()),
            (with.to_owned(), format!("Plimsoll {}", machine.plimsoll)),
        ];
        if let Some(paced) = &machine.paced {
            let rate = paced.offload_bytes_per_second;
            facts.push(("link, paced".to_owned(), format!("{rate} each way")));
        }
        let precision = self.config.arithmetic();
        facts.extend(precision.map(|precision| ("precision".to_owned(), precision.to_string())));
        let optimizer = self.config.optimizer;
        if !optimizer.is_usual() {
            facts.push(("optimizer".to_owned(), optimizer.to_string()));
        }
        let health = machine.health.as_ref().map(|health| health.warnings(&Default::default()));
        let mut warnings: Vec<String> = health.iter().flatten().map(ToString::to_string).collect();
        warnings
            .extend(self.tuning.runs.iter().filter_map(run_missed).map(|words| format!("{words}; {ANEW}.")));
        // The prediction is for an iteration of one batch.
        let trained = self.tuning.training.as_ref().filter(|training| training.global_batch.is_none());
        let beyond = trained.and_then(|training| missed(training.iteration_seconds, &self.config.predicted));
        warnings.extend(beyond.map(|words| format!("In training an iteration took {words}; {ANEW}.")));
        warnings.extend(machine.modelled.then(|| MODELLED.to_owned()));
        About {
            network: self.config.network.name.clone(),
            data: Some(asked.data.clone()),
            batch: self.config.batch,
            budget_bytes: self.config.budget_bytes.0,
            device: Some(machine.device.clone()),
            modelled: machine.modelled,
            machine: facts,
            plimsoll: made.version.clone(),
            commit: made.commit.clone(),
            command: Some(made.command.clone()),
            seed: Some(made.seed),
            unix_seconds: Some(made.unix_seconds),
            warnings,
        }
    }

    fn run(&self, what: &str) -> Option<&Run> {
        self.tuning.runs.iter().find(|run| run.what == what)
    }

    /// Returns a run's measured figures; on a modelled machine, the model's.
    fn known(&self, what: &str) -> Option<Figures> {
        let run = self.run(what)?;
        if self.tuning.machine.modelled { run.predicted } else { run.measured }
    }

    /// Returns how much shorter an epoch is than with the user's own setting, or with everything kept, as measured (or
    /// modelled): a share of that epoch.
    pub fn gain_over(&self, what: &str) -> Option<f64> {
        let epoch = |what| self.known(what).map(|figures| figures.epoch_seconds);
        Some(1.0 - epoch("chosen")? / epoch(what)?)
    }

    fn answer(&self) -> Result<Answer, Error> {
        let Tuned { config, tuning, .. } = self;
        let (learning_rate, samples) = rate_of_update(config)?;
        Ok(Answer {
            keep_your_settings: tuning.keep_your_settings,
            headline: self.headline(),
            why: self.why(),
            placement: self.placement(),
            batch: config.batch,
            learning_rate,
            learning_rate_samples: samples,
            learning_rate_rule: rule_in_words(&config.learning_rate),
            learning_rate_caution: caution(&config.learning_rate, samples),
            warmup_iterations: config.learning_rate.warmup_iterations,
            settings: tuning.runs.iter().map(|run| self.setting(run)).collect(),
            training: tuning.training.as_ref().map(|training| self.training(training)).unwrap_or_default(),
        })
    }

    fn setting(&self, run: &Run) -> Setting {
        let Run { what, batch, predicted, measured, note, .. } = run;
        let known = self.known(what);
        let samples = self.tuning.asked.samples as f64;
        Setting {
            what: what.clone(),
            batch: *batch,
            predicted_iteration_seconds: predicted.map(|f| f.iteration_seconds.0),
            predicted_error: predicted.map(|f| f.relative_error),
            iteration_seconds: measured.map(|f| f.iteration_seconds.0),
            relative_error: measured.map(|f| f.relative_error),
            samples_per_second: known.map(|f| samples / f.epoch_seconds.0),
            peak_bytes: known.map(|f| f.peak_bytes.0),
            epoch_seconds: known.map(|f| f.epoch_seconds.0),
            note: note.clone(),
        }
    }

    /// Returns the answer in one sentence.
    pub fn headline(&self) -> String {
        let Tuned { config, tuning, .. } = self;
        let batch = config.batch;
        if tuning.keep_your_settings {
            return format!(
                "Keep your settings: batch {batch}, with everything kept on the device, gains as much as any"
            );
        }
        let batch_of = |what: &str| self.run(what).map_or(0, |run| run.batch);
        let over = |what: &str, words: &str| {
            let (gain, least) = (self.gain_over(what)?, tuning.asked.least);
            // The least requested batch may be above the one that this is compared with.
            let limit = if gain < 0.0 && batch_of(what) < least {
                format!("; no batch below {least} was to be taken")
            } else {
                String::new()
            };
            Some(match gain {
                gain if gain > 0.0 => format!("{} less than {words}", percent(gain)),
                gain if gain < 0.0 => format!("{} more than {words}{limit}", percent(-gain)),
                _ => format!("as long as {words}"),
            })
        };
        let [yours, keeper] = ["yours", "keeping everything"].map(batch_of);
        let accumulated = over(ACCUMULATED, &format!("with your batch of {yours} accumulated"));
        let recomputed = over(RECOMPUTED, "with recomputing alone");
        let ways: Vec<String> = accumulated.into_iter().chain(recomputed).collect();
        let ways = (!ways.is_empty()).then(|| ways.join(", and "));
        let words = over("yours", &format!("with your batch of {yours}")).or(ways).or_else(|| {
            let words = over("keeping everything", &format!("with everything kept at batch {keeper}"));
            words.filter(|_| keeper != batch)
        });
        match words {
            Some(words) => {
                let how = if tuning.machine.modelled { "by the model" } else { "measured" };
                format!("Train with batch {batch}: {how}, an epoch takes {words}")
            }
            None if keeper == batch => {
                format!("Train with batch {batch}, with everything kept on the device")
            }
            None => {
                format!("Train with batch {batch}: no batch size fits with everything kept on the device")
            }
        }
    }

    /// Returns the reason, in a sentence or two.
    pub fn why(&self) -> String {
        let Tuning { asked, rounds, why, .. } = &self.tuning;
        let tried: usize = rounds.iter().map(|round| round.candidates.len() + round.no_plan.len()).sum();
        let times = match rounds.len() {
            1 => None,
            2 => Some("once".to_owned()),
            3 => Some("twice".to_owned()),
            n => Some(format!("{} times", n - 1)),
        };
        let refits = times.map(|times| format!("; the model was refitted {times} with what was measured"));
        let (words, refits) = (capitalised(why), refits.unwrap_or_default());
        let plans = if tried == 1 { "1 plan was".to_owned() } else { format!("{tried} plans were") };
        let batches = if asked.least == asked.largest {
            format!("batch {}", asked.largest)
        } else {
            format!("batches from {} to {}", asked.least, asked.largest)
        };
        format!("{words}. {plans} made for {batches}{refits}.")
    }

    /// Describes in one sentence the kept, swapped and recomputed activations.
    pub fn placement(&self) -> String {
        capitalised(&placement_in_words(&moved(&self.trace, &self.schedule))) + "."
    }

    fn training(&self, training: &Training) -> Vec<(String, String)> {
        let samples = self.tuning.asked.samples as f64;
        let batch = training.global_batch.unwrap_or(self.config.batch);
        let epoch = (training.iteration_seconds + training.between_seconds) * (samples / batch as f64);
        let accuracy = training.test_accuracy * 100.0;
        let facts = [
            ("iterations", training.iterations.to_string()),
            ("iteration, measured in training", training.iteration_seconds.to_string()),
            ("epoch, measured in training", epoch.to_string()),
            ("peak, allocated", training.peak_bytes.to_string()),
            ("loss of the last epoch", format!("{:.4}", training.loss)),
            ("test loss", format!("{:.4}", training.test_loss)),
            ("test accuracy", format!("{accuracy:.1} % of {} held-out samples", training.test_samples)),
        ];
        facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn batches(&self) -> Batches {
        let Tuning { asked, rounds, runs, .. } = &self.tuning;
        let last = rounds.last().expect("a tuning that was read has a round");
        let samples = asked.samples as f64;
        // The time between iterations is proportional to the batch, so over an epoch it is the same for all.
        let chosen = self.run("chosen").and_then(|run| run.measured);
        let (passes, update) = self
            .config
            .cluster
            .map_or((1, self.config.batch), |cluster| (cluster.passes, cluster.global_batch));
        let passes = passes as f64 * samples / update as f64;
        let between = chosen.map_or(Seconds::ZERO, |f| f.between_seconds * passes);
        let point = |c: &Planned| BatchPoint {
            batch: c.batch,
            iteration_seconds: c.iteration_seconds.0,
            epoch_seconds: between.0
                + c.epoch_seconds.map_or(c.iteration_seconds.0 * samples / c.batch as f64, |epoch| epoch.0),
            relative_error: c.relative_error,
            compute_seconds: c.compute_seconds.0,
            peak_bytes: c.peak_bytes.0,
            at_peak_bytes: c.at_peak_bytes.0,
            offloaded_bytes: c.offloaded_bytes.0,
            swapping_seconds: c.swapping_seconds.0,
            recomputed_ops: c.recomputed_ops,
            recomputed_bytes: c.recomputed_bytes.map(|b| b.0),
            recomputing_seconds: c.recomputing_seconds.0,
        };
        let ran = |run: &Run| {
            let figures = run.measured?;
            Some(BatchMeasured {
                batch: run.batch,
                what: run.what.clone(),
                iteration_seconds: figures.iteration_seconds.0,
                relative_error: figures.relative_error,
                epoch_seconds: figures.epoch_seconds.0,
            })
        };
        let mut measured: Vec<BatchMeasured> = runs.iter().filter_map(ran).collect();
        measured.sort_by_key(|one| one.batch);
        Batches {
            points: last.candidates.iter().map(point).collect(),
            measured,
            chosen: self.config.batch,
            within: last.within,
            keeps_all: asked.keeps_all,
            largest: asked.largest,
            yours: self.config.learning_rate.base_batch,
            samples: asked.samples,
            no_plan: last.no_plan.clone(),
        }
    }
}

/// Describes the origin of a learning rate.
pub fn rule_in_words(rate: &LearningRate) -> String {
    let rule = match rate.rule {
        LearningRateRule::Linear => "linear".to_owned(),
        LearningRateRule::SquareRoot => "square root".to_owned(),
        LearningRateRule::Accudnn { convexity } => format!("AccUDNN eq. (9), c = {convexity:.4}"),
    };
    format!("{rule}, from {} at batch {}", rate.base_rate, rate.base_batch)
}

/// Describes the kept, swapped and recomputed activations of an iteration.
pub fn placement_in_words(moved: &Moved) -> String {
    let Moved { at_peak, offloaded, swapping, recomputed_ops, recomputed, recomputing } = *moved;
    if offloaded == Bytes::ZERO && recomputed_ops == 0 {
        return format!("everything is kept ({at_peak} of feature maps at the peak)");
    }
    let mut parts = vec![format!("{at_peak} of feature maps on the device at the peak")];
    if offloaded > Bytes::ZERO {
        parts.push(format!("{offloaded} swapped in every iteration ({swapping} of the link)"));
    }
    if recomputed_ops > 0 {
        let ops = if recomputed_ops == 1 { "op" } else { "ops" };
        parts.push(format!("{recomputed} recomputed by {recomputed_ops} {ops} ({recomputing})"));
    }
    parts.join(", ")
}

fn capitalised(words: &str) -> String {
    words.get(..1).unwrap_or_default().to_uppercase() + words.get(1..).unwrap_or_default()
}

/// Statement about a study in which nothing was measured.
const MODELLED: &str = "Nothing here was measured: the device is not here, and all times are those of a model of it, from \
                        its data sheet. Stated errors are how far nine of ten published throughputs of its generation are \
                        off that model.";

/// Advice in a report if a prediction missed.
const ANEW: &str = "tuning anew on a calm machine measures it again";

/// Returns how well the model fits the measurements.
fn fit(profile: &Profile, names: &mut Names) -> Result<Fit, Error> {
    let model = Model::fit(profile)?;
    let held_out = model.held_out().iter().map(|held| FitHeldOut {
        batch: held.batch,
        inside: held.inside,
        predicted_seconds: held.predicted.0,
        measured_seconds: held.measured.0,
    });
    Ok(Fit {
        kinds: kinds(profile, &model, names)?,
        held_out: held_out.collect(),
        link: link(profile, model.rates()),
        notes: notes(profile, &model),
    })
}

/// By layer type, phase and kernel: predicted times, and the median of the measured ones.
fn kinds(profile: &Profile, model: &Model, names: &mut Names) -> Result<Vec<FitKind>, Error> {
    let mut kinds: BTreeMap<String, FitKind> = BTreeMap::new();
    for batch in &profile.batches {
        let mut trace = bare_trace(profile, batch);
        model.fill(&mut trace)?;
        for (op, samples) in trace.ops.iter().zip(&batch.ops) {
            let mut seconds: Vec<f64> = samples.seconds.iter().map(|s| s.0).collect();
            // If the usual alternative never ran here, the samples show nothing about it.
            if seconds.is_empty() {
                continue;
            }
            let measured = crate::network_workload::median(&mut seconds).0;
            let of = type_of(op);
            let kind = kinds.entry(of.clone()).or_insert_with(|| FitKind { kind: of, ..FitKind::default() });
            kind.predicted.push(rounded(op.seconds.0));
            kind.measured.push(rounded(measured));
            kind.batch.push(batch.batch);
            kind.op.push(names.of(&op.name));
        }
    }
    let mut kinds: Vec<FitKind> = kinds.into_values().collect();
    for kind in &mut kinds {
        let pairs = kind.predicted.iter().zip(&kind.measured).filter(|(predicted, _)| **predicted > 0.0);
        [kind.median_error, kind.worst_error] = median_and_worst(pairs.map(|(p, m)| m / p));
    }
    // The kind that takes most time comes first.
    let total = |kind: &FitKind| kind.measured.iter().sum::<f64>();
    kinds.sort_by(|a, b| total(b).total_cmp(&total(a)));
    Ok(kinds)
}

/// Returns the deviation of samples from their predictions, from the ratios of the two: the median, and the worst.
fn median_and_worst(ratios: impl Iterator<Item = f64>) -> [f64; 2] {
    let mut errors: Vec<f64> = ratios.map(|ratio| (ratio - 1.0).abs()).collect();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    [crate::network_workload::median(&mut errors).0, worst]
}

/// Returns the ops of a profile as a trace, to be filled with predicted seconds.
fn bare_trace(profile: &Profile, batch: &BatchSamples) -> Trace {
    let op = |samples: &OpSamples| Op {
        name: samples.name.clone(),
        layer: String::new(),
        kind: samples.kind.clone(),
        phase: samples.phase,
        seconds: Seconds::ZERO,
        reads: Vec::new(),
        writes: Vec::new(),
        workspace_bytes: Bytes::ZERO,
        flops: samples.flops,
        recomputable: false,
        alternatives: Vec::new(),
    };
    Trace {
        kind: TraceKind,
        name: profile.network.name.clone(),
        batch: batch.batch,
        resident_bytes: Bytes::ZERO,
        tensors: Vec::new(),
        ops: batch.ops.iter().map(op).collect(),
    }
}

/// Returns layer type, phase, and, if it adds information, the kernel: the last part of the op's name.
fn type_of(op: &Op) -> String {
    let phase = phase_words(op.phase);
    let kernel = op.name.rsplit_once(['.', '/', ':', ' ']).map_or("", |(_, last)| last);
    if kernel.is_empty() || kernel == phase {
        format!("{} {phase}", op.kind)
    } else if kernel.starts_with(phase) {
        format!("{} {}", op.kind, kernel.replace('_', " "))
    } else {
        format!("{} {phase}, {}", op.kind, kernel.replace('_', " "))
    }
}

/// Rounds to five digits: a sample is no more precise than that, and a report stays small.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 4 - value.abs().log10().floor() as i32;
    // Dividing by a whole power of ten gives the number nearest to the decimal.
    let scale = 10f64.powi(digits.abs());
    if digits >= 0 { (value * scale).round() / scale } else { (value / scale).round() * scale }
}

/// Returns the link's fits, with their samples and deviations. A model's own error is of the median of each size, which is not
/// shown.
fn link(profile: &Profile, rates: &LinkModel) -> Vec<FitLink> {
    let samples = &profile.link;
    let one = |what: &str, fitted: &FittedRate, samples: &[TransferSample]| {
        let Rate { bytes_per_second, latency_seconds } = fitted.rate;
        let off =
            samples.iter().map(|sample| sample.seconds / (latency_seconds + sample.bytes / bytes_per_second));
        let [median_error, worst_error] = median_and_worst(off);
        FitLink {
            what: what.to_owned(),
            bytes_per_second: bytes_per_second.0,
            latency_seconds: latency_seconds.0,
            median_error,
            worst_error,
            bytes: samples.iter().map(|sample| sample.bytes.0).collect(),
            seconds: samples.iter().map(|sample| rounded(sample.seconds.0)).collect(),
        }
    };
    let mut all = vec![
        one("offload alone", &rates.offload_alone, &samples.offload_alone),
        one("prefetch alone", &rates.prefetch_alone, &samples.prefetch_alone),
        one("offload beside prefetch", &rates.offload_together, &samples.offload_together),
        one("prefetch beside offload", &rates.prefetch_together, &samples.prefetch_together),
    ];
    if let (Some([offload, prefetch]), Some(samples)) = (&rates.pageable, &samples.pageable) {
        all.push(one("offload, pageable", offload, &samples.offload));
        all.push(one("prefetch, pageable", prefetch, &samples.prefetch));
    }
    all
}

fn notes(profile: &Profile, model: &Model) -> Vec<String> {
    let off = |inside: bool| {
        let of = model.held_out().iter().filter(move |held| held.inside == inside);
        of.map(|held| held.off().abs()).reduce(f64::max).map(percent)
    };
    let (link, overhead) = (model.link(), profile.overhead_seconds);
    let [out, back] = [link.offload_bytes_per_second, link.prefetch_bytes_per_second];
    let duplex = match link.duplex {
        Duplex::Full => "both ways at once",
        Duplex::Half => "one way at a time",
    };
    let notes = [
        off(true).map(|worst| {
            format!(
                "Between measured batch sizes, whole iterations that the model had not seen were predicted to within {worst}."
            )
        }),
        off(false).map(|worst| {
            format!("Beyond the smallest and the largest measured batch size it was off by {worst} at most.")
        }),
        model.held_out().is_empty().then(|| {
            "One batch size was measured, so that no prediction could be tried on another.".to_owned()
        }),
        Some(format!(
            "Plans count on {out} out and {back} back, {} for each transfer, {duplex}.",
            link.latency_seconds
        )),
        model.rates().pinned_over_pageable().map(|[out, back]| {
            format!("Page-locked memory is {out:.1} times as fast as pageable out, {back:.1} times back.")
        }),
        model.rates().slowdown.map(|slowdown| {
            format!(
                "An op that is bound by the device's memory takes up to {} longer beside transfers; its times here are those \
                 beside the transfers of a plan.",
                percent(slowdown.worst() - 1.0)
            )
        }),
        Some(format!("Timing an op costs {overhead}, which is taken off every sample.")),
    ];
    notes.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_rounded_to_five_digits() {
        let check = |value: f64, expected: f64| assert_eq!(rounded(value), expected);
        check(0.0, 0.0);
        check(0.001_234_567_8, 0.001_234_6);
        check(1_234_567.0, 1_234_600.0);
        check(9.999_999, 10.0);
        check(3e-9, 3e-9);
    }
}
