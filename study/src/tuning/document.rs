//! The record of a tuning in its study, `tuning/2`: all attempts and measurements, and the plans of the other
//! policies at the chosen batch. It is computed once here, so that a report is quick and needs no device.

use super::measured::{Ran, no_run};
use super::{Found, GOES_ON, NO_ALGORITHM_2, Tuner};
use crate::error::{Error, Kind};
use crate::report::policies::{self, TIME_LIMIT};
use crate::request::{RateRequest, Searcher};
use crate::workload::SEED;
use plimsoll_ir::Seconds;
use plimsoll_ir::config::{Config, ConfigKind, LearningRate};
use plimsoll_ir::profile::Profile;
use plimsoll_ir::tuning::{Asked, Comparison, Made, Planned, Round, Run, Tuning, TuningKind};
use plimsoll_tuner::rate::{learning_rate, warmup_iterations};
use plimsoll_tuner::search::{Candidate, Reason};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs at the end of a tuning.
pub(crate) struct Runs<'a> {
    /// The choice.
    pub best: &'a Ran,
    /// Largest batch that keeps everything.
    pub keeper: Option<&'a Ran>,
    /// Base batch with everything kept.
    pub yours: Option<&'a Ran>,
    /// Other ways to train the base batch.
    pub ways: Vec<Run>,
    /// Answer of the search that was not requested.
    pub other: Option<&'a Ran>,
}

/// Returns one round of a search, whose choice was run.
pub(crate) fn round(tuner: &Tuner<'_>, found: &Found, refit: bool) -> Round {
    let planned = |candidate: &Candidate| Planned {
        batch: candidate.batch,
        iteration_seconds: candidate.iteration,
        relative_error: tuner.model.iteration_error(candidate.batch),
        compute_seconds: candidate.compute,
        peak_bytes: candidate.peak,
        at_peak_bytes: candidate.moved.at_peak,
        offloaded_bytes: candidate.moved.offloaded,
        swapping_seconds: candidate.moved.swapping,
        recomputed_ops: candidate.moved.recomputed_ops,
        recomputed_bytes: Some(candidate.moved.recomputed),
        recomputing_seconds: candidate.moved.recomputing,
        epoch_seconds: Some(candidate.epoch),
    };
    let Ran { plan, measured, .. } = &found.chosen;
    Round {
        candidates: found.curve.iter().map(planned).collect(),
        no_plan: found.no_plan.clone(),
        chosen: plan.candidate.batch,
        within: found.within,
        predicted_seconds: plan.candidate.iteration,
        measured_seconds: measured.map(|figures| figures.iteration_seconds),
        refit,
    }
}

/// Returns the choice as a config.
pub(crate) fn config(tuner: &Tuner<'_>, chosen: &Ran) -> Result<Config, Error> {
    let (workload, request, batch) = (tuner.workload, tuner.request, chosen.batch());
    let RateRequest { base_batch, base_rate, rule } = request.rate;
    let rate = learning_rate(rule, base_batch, base_rate, batch)?;
    let per_epoch = workload.samples() / batch;
    let warmup_iterations = warmup_iterations(base_batch, batch, per_epoch, request.epochs);
    let about = workload.about()?;
    Ok(Config {
        kind: ConfigKind,
        network: about.network,
        data: about.data,
        device: about.device,
        threads: about.threads,
        link: tuner.model.link(),
        paced: about.paced,
        deterministic: about.deterministic,
        precision: Some(about.precision),
        modelled: about.modelled_error.is_some(),
        modelled_error: about.modelled_error,
        optimizer: about.optimizer,
        budget_bytes: request.budget,
        batch,
        keeps_all: tuner.keeps_all,
        cluster: request.cluster.map(|cluster| chosen.update(&cluster)),
        policy: request.policy().to_string(),
        schedule: "chosen.schedule.json".to_owned(),
        learning_rate: LearningRate { rate, rule, base_batch, base_rate, warmup_iterations },
        predicted: chosen.predicted,
        measured: chosen.measured,
    })
}

/// Returns the record of a finished tuning.
pub(crate) fn tuning(
    tuner: &Tuner<'_>,
    profile: &Profile,
    runs: Runs<'_>,
    rounds: Vec<Round>,
    why: String,
) -> Result<Tuning, Error> {
    let Runs { best, keeper, yours, ways, other } = runs;
    let policies = comparison(tuner, best)?;
    Ok(Tuning {
        kind: TuningKind,
        made: made(&tuner.request.command),
        machine: profile.machine.clone(),
        asked: Asked {
            data: tuner.workload.about()?.data_in_words,
            samples: tuner.workload.samples(),
            least: tuner.request.min_batch,
            largest: tuner.largest,
            keeps_all: tuner.keeps_all,
        },
        rounds,
        why,
        keep_your_settings: yours.is_some_and(|yours| std::ptr::eq(yours, best)),
        runs: [
            vec![best.run("chosen"), keeping(keeper), your_own(tuner, yours)?],
            ways,
            vec![other_search(tuner, other)],
        ]
        .concat(),
        timeline: best.confirmed.as_ref().map(|ran| ran.timeline.clone()),
        search: best.plan.log.clone(),
        policies,
        workers: tuner.workers_update(&best.plan)?,
        training: None,
    })
}

fn keeping(keeper: Option<&Ran>) -> Run {
    let what = "keeping everything";
    let note = Some("no batch size keeps everything within the budget".to_owned());
    keeper.map_or(no_run(what, note), |ran| ran.run(what))
}

/// Returns the name of the answer of the search that was not requested.
fn other_name(search: Searcher) -> &'static str {
    match search {
        Searcher::Plimsoll => "AccUDNN's search",
        Searcher::Accudnn => "plimsoll's search",
    }
}

fn other_search(tuner: &Tuner<'_>, other: Option<&Ran>) -> Run {
    let what = other_name(tuner.request.search);
    let (least, most) = (tuner.request.min_batch, tuner.largest);
    let note = Some(format!("{NO_ALGORITHM_2} from {least} to {most}"));
    other.map_or(no_run(what, note), |ran| ran.run(what))
}

/// Returns the run of the user's own setting: the base batch with everything kept.
fn your_own(tuner: &Tuner<'_>, yours: Option<&Ran>) -> Result<Run, Error> {
    let what = "yours";
    if let Some(ran) = yours {
        return Ok(ran.run(what));
    }
    let (batch, samples, budget) =
        (tuner.request.rate.base_batch, tuner.workload.samples(), tuner.request.budget);
    let note = if batch > samples {
        format!("an epoch has {samples} samples, fewer than one iteration of it")
    } else if batch < tuner.workload.smallest_batch() {
        "batch normalisation needs two samples".to_owned()
    } else {
        let needs = tuner.workload.trace(batch)?.memory().peak().map_or(budget, |(_, bytes)| bytes);
        if needs > budget {
            format!("it does not fit: keeping everything takes {needs}, the budget is {budget}")
        } else {
            format!("it was not run: batches of at most {} were considered", tuner.largest)
        }
    };
    Ok(Run { batch, ..no_run(what, Some(note)) })
}

/// Explains a search's choice.
pub(crate) fn in_words(reason: &Reason) -> String {
    match *reason {
        Reason::Shortest { gain: Some(0.0) } => {
            "the shortest epoch predicted, with everything kept".to_owned()
        }
        Reason::Shortest { gain: Some(gain) } => format!(
            "the shortest epoch predicted, {:.1} % less than the largest batch that keeps everything",
            gain * 100.0
        ),
        Reason::Shortest { gain: None } => "the shortest epoch predicted".to_owned(),
        Reason::WithinError { batch, gain, error } => format!(
            "batch {batch} promises {:.1} % less, within the model's error of {:.1} %: everything is kept",
            gain * 100.0,
            error * 100.0
        ),
        Reason::Near { batch, saves, extra, within } => {
            let [saves, within] = [saves, within].map(|share| share * 100.0);
            let more = if extra > Seconds::ZERO {
                format!(" and swaps or recomputes for {extra} of each iteration")
            } else {
                String::new()
            };
            format!(
                "batch {batch} has an epoch {saves:.2} % shorter{more}; of all within {within:.1} % this one swaps and \
                 recomputes least, and is the smallest"
            )
        }
    }
}

/// Compares all policies at the chosen batch. The planner's own row is the chosen plan.
fn comparison(tuner: &Tuner<'_>, best: &Ran) -> Result<Comparison, Error> {
    let (trace, schedule) = (&best.plan.trace, &best.plan.schedule);
    let own = tuner.request.policy();
    let mut all =
        policies::compare(trace, schedule, own.name(), TIME_LIMIT, tuner.watch.stop).map_err(|error| {
            match error.kind {
                Kind::Interrupted => error.help(GOES_ON),
                _ => error,
            }
        })?;
    let row = all.rows.iter_mut().find(|row| row.policy == own.name());
    row.expect("the planner's own row").planning_seconds = Some(best.plan.planning);
    Ok(all)
}

fn made(command: &str) -> Made {
    Made {
        command: command.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: crate::COMMIT.map(str::to_owned),
        seed: SEED,
        unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    }
}
