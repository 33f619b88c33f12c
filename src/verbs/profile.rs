//! `profile`: measures a network's ops and the link on this machine, at fractions of the largest trainable batch.

use crate::args::{ProfileArgs, SearchArgs, defaults};
use crate::failure::{Exit, Failure};
use crate::files;
use crate::interrupt;
use crate::naming;
use crate::output::{Cell, Table};
use crate::profile_cache::ProfileCache;
use crate::progress;
use crate::study::Study;
use crate::task::{Setup, Task, UNMEASURED};
use crate::tuning::reaches;
use crate::verbs::doctor::version;
use indicatif::HumanDuration;
use plimsoll_ir::health::Health;
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::{Profile, undisturbed};
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document, Seconds};
use plimsoll_networks::Mode;
use plimsoll_profiler::{
    Effort, ProfileError, ProfileRequest, Progress, SubjectError, Watch, fractions, machine, rough_seconds,
    schedule_in_way,
};
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::{LinkModel, Model, Slowdown};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The least batch that `tune` and `auto` consider where nobody says another: a budget without a number trains it here, too, so
/// that they go on from what was measured.
const LEAST: u64 = 32;

/// Runs the verb.
pub fn run(args: &ProfileArgs, quiet: bool) -> Result<Vec<Table>, Failure> {
    let task = Task::new(&args.network, &args.data, Setup::new(&args.device)?)?;
    let most = task.most(args.max_batch)?;
    // The study is that of a tuning with the same options, which goes on from what is measured here.
    let search = SearchArgs { budget: args.budget, max_batch: args.max_batch, ..defaults() };
    let study = naming::study(&task, &args.study, &search, &defaults(), &defaults())?;
    let least = LEAST.min(most).max(task.smallest_batch());
    let budget = task.budget_in(&study, args.study.fresh, args.budget, least)?;
    let largest = largest(&task, budget, &(1..=most), quiet)?;
    study.make()?;
    let _held = study.lock()?;
    let made = vec![study.journal(), study.profile()];
    study.are_ours(&made)?;
    let forgotten = args.study.fresh.then_some(made);
    let profile = measure(&task, budget, largest, &study, forgotten.as_deref(), quiet)?;
    tables(&profile, &study)
}

/// The largest batch that can be trained, of these `batches`. Fails with what to do where none of them can be: that is known from
/// the line, before anything is looked for in a study.
pub fn largest(
    task: &Task,
    budget: Bytes,
    batches: &RangeInclusive<u64>,
    quiet: bool,
) -> Result<u64, Failure> {
    let looking = progress::spinner("limits", quiet);
    let largest = task.largest_trainable(budget, *batches.end())?;
    drop(looking);
    let Some(largest) = largest else {
        // Planning the smallest batch says which layer needs how much.
        task.plan(&task.trace(task.smallest_batch())?, Policy::Naive, budget, Link::symmetric(UNMEASURED))?;
        let message =
            "no batch fits the budget with what the machine's own memory can hold of what is swapped";
        return Err(Failure::new(Exit::NoPlan, message).help("raise --budget"));
    };
    reaches(task, largest, *batches.start(), budget)?;
    Ok(largest)
}

/// Measures at fractions of the largest trainable batch, or goes on measuring, and keeps the profile in the study. What any study measured of the same is taken as it is, unless all is measured anew; then what stands in the study is
/// `forgotten`, as soon as it is sure that there is something to measure.
pub fn measure(
    task: &Task,
    budget: Bytes,
    largest: u64,
    study: &Study,
    forgotten: Option<&[PathBuf]>,
    quiet: bool,
) -> Result<Profile, Failure> {
    let keeps_all = match task.setup.model() {
        None => task.largest_batch(Policy::Keep, budget, largest)?,
        // A data sheet knows no caches.
        Some(_) => None,
    };
    let batches = batch_sizes(task.smallest_batch(), largest, keeps_all);
    let (fresh, forgotten) = (forgotten.is_some(), forgotten.unwrap_or_default());
    if !fresh {
        goes_on(task, budget, study)?;
    }
    // A training of another network is in its way, unless that is forgotten, too.
    if forgotten.contains(&study.checkpoint()) {
        study.forget(&[study.checkpoint()])?;
    }
    task.keep_architecture(study, fresh)?;
    study.forget(forgotten)?;
    if let Some(device) = task.setup.model() {
        let host = task.host_limit().map_or_else(String::new, |host| format!(", with {host} of host memory"));
        let off = may_be_off(Some(device.error()));
        let product = device.sheet.product;
        tracing::warn!("{product} is not here: all times are those of a model of it{host}; {off}");
        let profile = task.modelled_profile(&device, budget, &batches)?;
        study.put(&[(study.profile(), profile.to_json().into_bytes())])?;
        return Ok(profile);
    }
    let device = task.setup.device()?;
    let request = ProfileRequest {
        network: task.network.spec.clone(),
        machine: machine(&*device, task.setup.link(), &version()),
        budget,
        batches,
        effort: Effort::default(),
        journal: study.journal(),
        fresh: false,
    };
    let cache = ProfileCache::of_user();
    let known = if fresh || request.journal.exists() { None } else { cache.find(&request)? };
    let name = &task.network.spec.name;
    match known {
        Some(age) => {
            let ago = HumanDuration(age);
            tracing::info!(
                "{name}: measured {ago} ago in another study, and used here; --fresh measures anew"
            );
        }
        None => tracing::info!("measuring {name} at batches {:?} within {budget}", request.batches),
    }
    let mut subject = |batch, way| {
        // Looks at other batch sizes would be hurried, and plans made in no time.
        if interrupt::pressed() {
            return Err(Failure::from(ProfileError::Interrupted).into());
        }
        let program = task.program(batch, Mode::Train)?;
        let schedule = match way {
            None => Some(as_trained(task, &program, budget)?),
            Some(_) => schedule_in_way(&program, way, |trace| kept_or_swapped(task, trace, budget))?,
        };
        Ok::<_, SubjectError>(schedule.map(|schedule| (program, schedule)))
    };
    let bar = progress::bar("profile", 1, quiet);
    let mut watch = Watch {
        stop: &interrupt::pressed,
        progress: &mut |progress: Progress| {
            bar.set_length(progress.of.max(progress.done) as u64);
            bar.set_position(progress.done as u64);
        },
        warn: &mut |warning| bar.suspend(|| tracing::warn!("{warning}")),
    };
    let profile = plimsoll_profiler::profile(&request, &mut subject, device, &mut watch)?;
    bar.finish_and_clear();
    cache.keep(&request);
    study.put(&[(study.profile(), profile.to_json().into_bytes())])?;
    Ok(profile)
}

/// The fractions of the largest batch, and the largest that keeps everything, which is always compared with the choice; none below
/// the smallest.
fn batch_sizes(smallest: u64, largest: u64, keeps_all: Option<u64>) -> Vec<u64> {
    let all = fractions(largest).into_iter().chain(keeps_all).map(|k| k.max(smallest));
    all.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// The schedule under which a batch size would be trained, as far as that is known before anything was measured: everything is kept
/// where it fits; where not, a plan from what a few iterations under naive swapping show. Ops take other times beside transfers and
/// behind them than where everything stays in the caches.
fn as_trained(task: &Task, program: &Program, budget: Bytes) -> Result<Schedule, Failure> {
    let first = schedule_in_way(program, None, |trace| kept_or_swapped(task, trace, budget))?;
    let first = first.ok_or_else(|| {
        let batch = program.trace.batch;
        Failure::new(Exit::Internal, format!("batch {batch} fits no more than a moment ago"))
    })?;
    if !first.commands.iter().any(|command| command.transfer().is_some()) {
        return Ok(first);
    }
    let rough = rough_seconds(task.setup.device()?, program, &first)?;
    let mut trace = program.trace.clone();
    trace.ops.iter_mut().zip(&rough.seconds).for_each(|(op, seconds)| op.seconds = *seconds);
    // How alternatives compare is not known yet.
    trace.order_ways();
    let usual = Link::symmetric(UNMEASURED);
    let [out, back] = rough.rates.map(|rate| rate.unwrap_or(UNMEASURED));
    let seen = Link { offload_bytes_per_second: out, prefetch_bytes_per_second: back, ..usual };
    let outcome = task.outcome(&trace, Policy::Plimsoll, budget, task.setup.link().unwrap_or(seen))?;
    let planned = outcome.plan().filter(|plan| task.fits_host(&trace, &plan.schedule));
    Ok(planned.map_or(first, |plan| plan.schedule.clone()))
}

/// A schedule that keeps everything, or else one that swaps naively, or where the host is short recomputes; none where none fits.
fn kept_or_swapped(task: &Task, trace: &Trace, budget: Bytes) -> Result<Option<Schedule>, Failure> {
    for policy in [Policy::Keep, Policy::Naive, Policy::Memonger] {
        let outcome = task.outcome(trace, policy, budget, Link::symmetric(UNMEASURED))?;
        if let Some(plan) = outcome.plan().filter(|plan| task.fits_host(trace, &plan.schedule)) {
            return Ok(Some(plan.schedule.clone()));
        }
    }
    Ok(None)
}

/// Makes sure that a profile in the study is of what is asked for, where one of the two is modelled: what is measured has a
/// journal, which tells that itself. A profile that cannot be read is made anew.
fn goes_on(task: &Task, budget: Bytes, study: &Study) -> Result<(), Failure> {
    let there = files::read::<Profile>(&study.profile()).ok();
    let modelled = |there: &Profile| there.machine.modelled || task.setup.model().is_some();
    let Some(there) = there.filter(modelled) else { return Ok(()) };
    let compared = [
        ("network", in_words(&there.network), in_words(&task.network.spec)),
        ("device", there.machine.device, task.setup.facts()?.name),
        ("budget", exact(there.budget_bytes), exact(budget)),
    ];
    study.is_of("the profile of", &compared)
}

/// A budget to the byte.
pub fn exact(budget: Bytes) -> String {
    format!("{budget} ({} B)", budget.0)
}

/// A network in words that tell it from others.
pub fn in_words(spec: &NetworkSpec) -> String {
    let NetworkSpec { name, image: [height, width], channels, classes } = spec;
    format!("{name} for {height}x{width}x{channels} in {classes} classes")
}

/// What was measured, and how well the model explains it.
fn tables(profile: &Profile, study: &Study) -> Result<Vec<Table>, Failure> {
    let model = Model::fit(profile).map_err(Failure::usage)?;
    let mut batches = Table::new(
        "batches",
        &[
            ("batch", "batch"),
            ("iterations", "iterations"),
            ("iteration_seconds", "iteration"),
            ("held_out_error", "off when held out"),
            ("op_error", "median op error"),
        ],
    );
    // How well curves fit a model says nothing of a device.
    let tried = |share: f64| if profile.machine.modelled { Cell::None } else { Cell::Share(share) };
    for (samples, held_out) in profile.batches.iter().zip(model.held_out()) {
        let mut seconds: Vec<Seconds> = samples.alone_seconds().collect();
        if seconds.is_empty() {
            seconds.clone_from(&samples.iteration_seconds);
        }
        batches.rows.push(vec![
            samples.batch.into(),
            (seconds.len() as u64).into(),
            undisturbed(seconds).into(),
            tried(held_out.off()),
            tried(held_out.op_relative_error),
        ]);
    }
    let health = profile.machine.health.clone().unwrap_or_default();
    let doubts: Vec<String> = health.warnings(&Health::default()).iter().map(ToString::to_string).collect();
    let doubts = Some(doubts.join("; ")).filter(|doubts| !doubts.is_empty());
    let on_cpu = profile.machine.device.starts_with("cpu");
    let overview = Table::facts(
        "profile",
        vec![
            ("network", "network", profile.network.in_words().into()),
            ("device", "device", profile.machine.device.clone().into()),
            ("times", "times", how_known(profile.machine.modelled, profile.machine.modelled_error).into()),
            (
                "threads",
                if on_cpu { "compute threads" } else { "multiprocessors" },
                u64::from(profile.machine.threads).into(),
            ),
            ("system", "system", profile.machine.system.clone().into()),
            ("plimsoll", "plimsoll", profile.machine.plimsoll.clone().into()),
            ("doubts", "doubtful", doubts.into()),
            ("budget_bytes", "budget", profile.budget_bytes.into()),
            ("overhead_seconds", "timing one op costs", profile.overhead_seconds.into()),
            ("file", "written to", study.profile().display().to_string().into()),
        ],
    );
    let mut tables = vec![overview, batches, link(model.rates(), profile.machine.modelled)];
    tables.extend(model.rates().slowdown.map(|slowdown| beside(&slowdown)));
    Ok(tables)
}

/// How times are known, for a table.
pub fn how_known(modelled: bool, error: Option<f64>) -> String {
    if !modelled {
        return "measured".to_owned();
    }
    format!("modelled from the device's data sheet, not measured; {}", may_be_off(error))
}

/// How far the times of a modelled device may be off.
pub fn may_be_off(error: Option<f64>) -> String {
    match error {
        Some(error) => format!("nine of ten times are off by at most {:.0} %", error * 100.0),
        None => "how far times are off is not known".to_owned(),
    }
}

/// The rates of the link; where the device's host memory is page-locked, those of plain memory beside them.
fn link(rates: &LinkModel, modelled: bool) -> Table {
    let mut table = Table::new(
        "link",
        &[
            ("way", "way"),
            ("rate", "rate"),
            ("latency_seconds", "latency"),
            ("error", "median error"),
            ("of_alone", "of the rate alone"),
        ],
    );
    let (out, back) = (&rates.offload_alone, &rates.prefetch_alone);
    let mut rows = vec![
        ("offload alone", out, out),
        ("prefetch alone", back, back),
        ("offload, prefetch running", &rates.offload_together, out),
        ("prefetch, offload running", &rates.prefetch_together, back),
    ];
    if let Some([pageable_out, pageable_back]) = &rates.pageable {
        rows.push(("offload to pageable memory", pageable_out, out));
        rows.push(("prefetch from pageable memory", pageable_back, back));
    }
    for (way, rate, alone) in rows {
        // That a line fits a modelled link says nothing of a real one.
        let error = if modelled { Cell::None } else { Cell::Share(rate.relative_error) };
        let fitted = rate.rate;
        let of_alone = fitted.bytes_per_second.0 / alone.rate.bytes_per_second.0;
        table.rows.push(vec![
            way.into(),
            fitted.bytes_per_second.into(),
            fitted.latency_seconds.into(),
            error,
            Cell::Share(of_alone),
        ]);
    }
    table
}

/// What transfers do to an op that is bound by the device's memory.
fn beside(slowdown: &Slowdown) -> Table {
    let mut table =
        Table::new("beside", &[("while", "a memory-bound op"), ("times_as_long", "times as long as alone")]);
    for (while_, ratio) in [
        ("while offloads run", slowdown.offloading),
        ("while prefetches run", slowdown.prefetching),
        ("while both run", slowdown.both),
    ] {
        table.rows.push(vec![while_.into(), ratio.map_or(Cell::None, |ratio| Cell::Number(ratio, 3))]);
    }
    table
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Failure {
        let exit = match error {
            ProfileError::Runtime(inner) => return inner.into(),
            ProfileError::Subject { source, batch } => {
                return match source.downcast::<Failure>() {
                    Ok(failure) => *failure,
                    Err(other) => Failure::new(Exit::Internal, format_args!("at batch {batch}: {other}")),
                };
            }
            ProfileError::Interrupted => Exit::Interrupted,
            ProfileError::Noisy { .. } => Exit::Noisy,
            ProfileError::NoRoom { .. } => Exit::NoPlan,
            ProfileError::OtherStudy { .. } | ProfileError::Damaged { .. } => {
                return Failure::usage(format_args!("{error} with --fresh"));
            }
            ProfileError::Batches { .. } | ProfileError::InUse { .. } | ProfileError::Journal { .. } => {
                Exit::Usage
            }
        };
        Failure::new(exit, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use crate::tuning::least;
    use clap::Parser;

    #[test]
    fn the_largest_batch_that_keeps_everything_is_measured_among_the_fractions() {
        assert_eq!(batch_sizes(1, 64, Some(20)), [8, 16, 20, 32, 43, 64]);
        assert_eq!(batch_sizes(1, 64, Some(64)), [8, 16, 32, 43, 64]);
        assert_eq!(batch_sizes(2, 8, None), [2, 4, 5, 8]);
    }

    #[test]
    fn the_least_batch_is_that_of_tune() {
        let Verb::Tune(tune) = Cli::parse_from(["plimsoll", "tune"]).verb else { panic!("another verb") };
        assert_eq!(least(&tune.search, &tune.rate), LEAST);
    }
}
