//! Measuring a network's ops and the link on a device, at fractions of the largest trainable batch.

use crate::error::Error;
use crate::folder::Study;
use crate::profile_cache::ProfileCache;
use crate::task::{Task, TaskError, UNMEASURED};
use crate::tuning::reaches;
use crate::watch::{Notice, Watch};
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Document};
use plimsoll_networks::Mode;
use plimsoll_profiler::{
    Effort, ProfileError, ProfileRequest, Progress, SubjectError, fractions, machine, rough_seconds,
    schedule_in_way,
};
use plimsoll_tuner::Policy;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The largest batch that can be trained, of these `batches`. Fails with what to do where none of them can be: that is known from
/// the line, before anything is looked for in a study.
pub fn largest(
    task: &Task,
    budget: Bytes,
    batches: &RangeInclusive<u64>,
    watch: &Watch<'_>,
) -> Result<u64, Error> {
    let looking = watch.step("limits", None);
    let largest = task.largest_trainable(budget, *batches.end(), watch)?;
    drop(looking);
    let Some(largest) = largest else {
        // Planning the smallest batch says which layer needs how much.
        let trace = task.trace(task.smallest_batch())?;
        task.plan(&trace, Policy::Naive, budget, Link::symmetric(UNMEASURED), watch)?;
        return Err(TaskError::NoBatch.into());
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
    watch: &Watch<'_>,
) -> Result<Profile, Error> {
    let keeps_all = match task.setup.model() {
        None => task.largest_batch(Policy::Keep, budget, largest, watch)?,
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
        watch.warn(format_args!("{product} is not here: all times are those of a model of it{host}; {off}"));
        let profile = task.modelled_profile(&device, budget, &batches)?;
        study.put(&[(study.profile(), profile.to_json().into_bytes())])?;
        return Ok(profile);
    }
    let device = task.setup.device()?;
    let request = ProfileRequest {
        network: task.network.spec.clone(),
        machine: machine(&*device, task.setup.link(), &crate::version()),
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
        Some(age) => watch.notice(Notice::MeasuredBefore { network: name.clone(), age }),
        None => tracing::info!("measuring {name} at batches {:?} within {budget}", request.batches),
    }
    let mut subject = |batch, way| {
        // Looks at other batch sizes would be hurried, and plans made in no time.
        if watch.stops() {
            return Err(Error::from(ProfileError::Interrupted).into());
        }
        let program = task.program(batch, Mode::Train)?;
        let schedule = match way {
            None => Some(as_trained(task, &program, budget, watch)?),
            Some(_) => schedule_in_way(&program, way, |trace| kept_or_swapped(task, trace, budget, watch))?,
        };
        Ok::<_, SubjectError>(schedule.map(|schedule| (program, schedule)))
    };
    let step = watch.step("profile", Some(1));
    let mut profiling = plimsoll_profiler::Watch {
        stop: watch.stop,
        progress: &mut |progress: Progress| {
            step.length(progress.of.max(progress.done) as u64);
            step.done(progress.done as u64);
        },
        warn: &mut |warning| watch.warn(warning),
    };
    let profile = plimsoll_profiler::profile(&request, &mut subject, device, &mut profiling)?;
    drop(step);
    if let Err(error) = cache.keep(&request) {
        watch.warn(format_args!("the next tuning will measure anew: {error}"));
    }
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
fn as_trained(task: &Task, program: &Program, budget: Bytes, watch: &Watch<'_>) -> Result<Schedule, Error> {
    let first = schedule_in_way(program, None, |trace| kept_or_swapped(task, trace, budget, watch))?;
    let first = first
        .ok_or_else(|| Error::Bug(format!("batch {} fits no more than a moment ago", program.trace.batch)))?;
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
    let outcome = task.outcome(&trace, Policy::Plimsoll, budget, task.setup.link().unwrap_or(seen), watch)?;
    let planned = outcome.plan().filter(|plan| task.fits_host(&trace, &plan.schedule));
    Ok(planned.map_or(first, |plan| plan.schedule.clone()))
}

/// A schedule that keeps everything, or else one that swaps naively, or where the host is short recomputes; none where none fits.
fn kept_or_swapped(
    task: &Task,
    trace: &Trace,
    budget: Bytes,
    watch: &Watch<'_>,
) -> Result<Option<Schedule>, Error> {
    for policy in [Policy::Keep, Policy::Naive, Policy::Memonger] {
        let outcome = task.outcome(trace, policy, budget, Link::symmetric(UNMEASURED), watch)?;
        if let Some(plan) = outcome.plan().filter(|plan| task.fits_host(trace, &plan.schedule)) {
            return Ok(Some(plan.schedule.clone()));
        }
    }
    Ok(None)
}

/// Makes sure that a profile in the study is of what is asked for, where one of the two is modelled: what is measured has a
/// journal, which tells that itself. A profile that cannot be read is made anew.
fn goes_on(task: &Task, budget: Bytes, study: &Study) -> Result<(), Error> {
    let there = crate::files::read::<Profile>(&study.profile()).ok();
    let modelled = |there: &Profile| there.machine.modelled || task.setup.model().is_some();
    let Some(there) = there.filter(modelled) else { return Ok(()) };
    let compared = [
        ("network", in_words(&there.network), in_words(&task.network.spec)),
        ("device", there.machine.device, task.setup.facts()?.name),
        ("budget", exact(there.budget_bytes), exact(budget)),
    ];
    Ok(study.is_of("the profile of", &compared)?)
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

/// How far the times of a modelled device may be off.
pub fn may_be_off(error: Option<f64>) -> String {
    match error {
        Some(error) => format!("nine of ten times are off by at most {:.0} %", error * 100.0),
        None => "how far times are off is not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_batch_that_keeps_everything_is_measured_among_the_fractions() {
        assert_eq!(batch_sizes(1, 64, Some(20)), [8, 16, 20, 32, 43, 64]);
        assert_eq!(batch_sizes(1, 64, Some(64)), [8, 16, 32, 43, 64]);
        assert_eq!(batch_sizes(2, 8, None), [2, 4, 5, 8]);
    }
}
