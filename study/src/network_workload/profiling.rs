//! Profiling a task on its device: the schedule for each batch size, and the lookup of earlier measurements.

use super::NetworkWorkload;
use crate::error::{Error, Kind};
use crate::folder::Study;
use crate::measure::may_be_off;
use crate::profile_cache::ProfileCache;
use crate::watch::Watch;
use crate::workload::{UNMEASURED, Workload};
use plimsoll_ir::profile::Profile;
use plimsoll_ir::program::Program;
use plimsoll_ir::schedule::{Link, Schedule};
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Bytes, Seconds};
use plimsoll_networks::Mode;
use plimsoll_profiler::{
    Effort, ProfileError, ProfileRequest, Progress, SubjectError, machine, rough_seconds, schedule_with,
};
use plimsoll_tuner::Policy;
use plimsoll_tuner::model::devices::Modelled;

/// Measures at these batch sizes, or continues from the study's journal. An earlier identical measurement of any study is
/// reused, unless `fresh`.
pub(super) fn profile(
    task: &NetworkWorkload,
    batches: &[u64],
    budget: Bytes,
    study: &Study,
    fresh: bool,
    watch: &Watch<'_>,
) -> Result<Profile, Error> {
    if let Some(device) = task.setup.model() {
        let host = task.host_limit().map_or_else(String::new, |host| format!(", with {host} of host memory"));
        let off = may_be_off(Some(device.error()));
        let product = device.sheet.product;
        watch.warn(format_args!("{product} is not here: all times are those of a model of it{host}; {off}"));
        return modelled(task, &device, budget, batches);
    }
    let device = task.setup.device()?;
    let request = ProfileRequest {
        network: task.network.spec.clone(),
        optimizer: task.optimizer,
        machine: machine(&*device, task.setup.link(), &crate::version()),
        budget,
        batches: batches.to_vec(),
        effort: Effort::default(),
        journal: study.journal(),
        fresh: false,
    };
    let cache = ProfileCache::of_user();
    let known = if fresh || request.journal.exists() { None } else { cache.find(&request)? };
    let name = &task.network.spec.name;
    match known {
        Some(age) => watch.notice(format_args!(
            "{name}: measured {} ago in another study, and used here; --fresh measures anew",
            Seconds(age.as_secs_f64())
        )),
        None => tracing::info!("measuring {name} at batches {:?} within {budget}", request.batches),
    }
    let mut subject = |batch, alternative| {
        // Further batch sizes would be hurried, with plans made in no time.
        if watch.stops() {
            return Err(Error::from(ProfileError::Interrupted).into());
        }
        let program = task.program(batch, Mode::Train)?;
        let schedule = match alternative {
            None => Some(as_trained(task, &program, budget, watch)?),
            Some(_) => {
                schedule_with(&program, alternative, |trace| kept_or_swapped(task, trace, budget, watch))?
            }
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
    Ok(profile)
}

/// Returns a profile at these batch sizes from the model of a device that is not present.
fn modelled(
    task: &NetworkWorkload,
    device: &Modelled,
    budget: Bytes,
    batches: &[u64],
) -> Result<Profile, Error> {
    let mut programs = Vec::new();
    for batch in batches {
        let mut program = task.program(*batch, Mode::Train)?;
        device.fill(&mut program);
        programs.push(program);
    }
    Ok(device.profile(&task.network.spec, budget, &programs, &crate::version()))
}

/// Returns the schedule under which a batch size would be trained, as far as is known before measuring. Everything is kept if
/// it fits; otherwise the plan follows from a few iterations under naive swapping. Ops take different times during and after
/// transfers than when everything stays in the caches.
fn as_trained(
    task: &NetworkWorkload,
    program: &Program,
    budget: Bytes,
    watch: &Watch<'_>,
) -> Result<Schedule, Error> {
    let first = schedule_with(program, None, |trace| kept_or_swapped(task, trace, budget, watch))?;
    let first = first.ok_or_else(|| {
        let message = format!("batch {} fits no more than a moment ago", program.trace.batch);
        Error::new(Kind::Internal, message)
    })?;
    if !first.commands.iter().any(|command| command.transfer().is_some()) {
        return Ok(first);
    }
    let rough = rough_seconds(task.setup.device()?, program, &first)?;
    let mut trace = program.trace.clone();
    trace.ops.iter_mut().zip(&rough.seconds).for_each(|(op, seconds)| op.seconds = *seconds);
    // The relative speed of alternatives is not known yet.
    trace.order_alternatives();
    let usual = Link::symmetric(UNMEASURED);
    let [out, back] = rough.rates.map(|rate| rate.unwrap_or(UNMEASURED));
    let seen = Link { offload_bytes_per_second: out, prefetch_bytes_per_second: back, ..usual };
    let (outcome, _) =
        task.outcome(&trace, Policy::Plimsoll, budget, task.setup.link().unwrap_or(seen), watch)?;
    let planned = outcome.plan().filter(|plan| task.fits_host(&trace, &plan.schedule));
    Ok(planned.map_or(first, |plan| plan.schedule.clone()))
}

/// Returns a schedule that keeps everything, else one that swaps naively or, if host memory is short, recomputes; `None` if
/// none fits.
fn kept_or_swapped(
    task: &NetworkWorkload,
    trace: &Trace,
    budget: Bytes,
    watch: &Watch<'_>,
) -> Result<Option<Schedule>, Error> {
    for policy in [Policy::Keep, Policy::Naive, Policy::Memonger { searched: false }] {
        let (outcome, _) = task.outcome(trace, policy, budget, Link::symmetric(UNMEASURED), watch)?;
        if let Some(plan) = outcome.plan().filter(|plan| task.fits_host(trace, &plan.schedule)) {
            return Ok(Some(plan.schedule.clone()));
        }
    }
    Ok(None)
}
