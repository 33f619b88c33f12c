//! Measuring a network's ops and the link on a device, at fractions of the largest trainable batch.

use crate::error::{Error, Kind};
use crate::folder::Study;
use crate::watch::Watch;
use crate::workload::{About, UNMEASURED, Workload};
use plimsoll_ir::network::NetworkSpec;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::Link;
use plimsoll_ir::{Bytes, Document};
use plimsoll_profiler::fractions;
use plimsoll_tuner::Policy;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Returns the largest of these `batches` that can be trained. Needs no study.
///
/// # Errors
///
/// No batch can be trained: the error names the op and its bytes, or the largest smaller batch that can be trained.
pub(crate) fn largest(
    workload: &dyn Workload,
    budget: Bytes,
    batches: &RangeInclusive<u64>,
    watch: &Watch<'_>,
) -> Result<u64, Error> {
    let looking = watch.step("limits", None);
    let largest = workload.largest_trainable(budget, *batches.end(), watch)?;
    drop(looking);
    let Some(largest) = largest else {
        // Planning the smallest batch names the layer and its bytes.
        let trace = workload.trace(workload.smallest_batch())?;
        workload.plan(&trace, Policy::Naive, budget, Link::symmetric(UNMEASURED), watch)?;
        let message = "no batch fits: host memory is too small for the tensors that must be swapped";
        return Err(Error::new(Kind::NoPlan, message).help("raise --budget"));
    };
    let (least, host) = (*batches.start(), workload.host_memory());
    if largest < least {
        let (within, raise) = match host {
            Some(host) => (format!(" and {host} of host memory"), "--budget or --host-memory"),
            None => (String::new(), "--budget"),
        };
        let message = format!(
            "within {budget}{within} the largest batch that can be trained is {largest}; asked for is at least {least}"
        );
        return Err(
            Error::new(Kind::NoPlan, message).help(format_args!("raise {raise}, or lower --min-batch"))
        );
    }
    Ok(largest)
}

/// Measures at fractions of the largest trainable batch, or continues an interrupted measurement, and keeps the profile in the
/// study. `forgotten` files are removed first, and everything is measured anew.
pub(crate) fn measure(
    workload: &dyn Workload,
    budget: Bytes,
    largest: u64,
    study: &Study,
    forgotten: Option<&[PathBuf]>,
    watch: &Watch<'_>,
) -> Result<Profile, Error> {
    let about = workload.about()?;
    let keeps_all = match about.modelled_error {
        None => workload.largest_batch(Policy::Keep, budget, largest, watch)?,
        // A data sheet does not describe caches.
        Some(_) => None,
    };
    let batches = batch_sizes(workload.smallest_batch(), largest, keeps_all);
    let (fresh, forgotten) = (forgotten.is_some(), forgotten.unwrap_or_default());
    if !fresh {
        goes_on(&about, budget, study)?;
    }
    study.forget(forgotten)?;
    let profile = workload.measure(&batches, budget, study, fresh, watch)?;
    study.put(&[(study.profile(), profile.to_json().into_bytes())])?;
    Ok(profile)
}

/// Returns the batch sizes to measure: fractions of the largest batch, and the largest that keeps everything, which is always
/// compared with the choice; none is below the smallest.
fn batch_sizes(smallest: u64, largest: u64, keeps_all: Option<u64>) -> Vec<u64> {
    let all = fractions(largest).into_iter().chain(keeps_all).map(|k| k.max(smallest));
    all.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// Checks that a stored profile matches the request, if one of the two is modelled; for measured profiles the journal checks
/// this. An unreadable profile is made anew.
fn goes_on(about: &About, budget: Bytes, study: &Study) -> Result<(), Error> {
    let there = crate::documents::read::<Profile>(&study.profile()).ok();
    let modelled = |there: &Profile| there.machine.modelled || about.modelled_error.is_some();
    let Some(there) = there.filter(modelled) else { return Ok(()) };
    let compared = [
        ("network", in_words(&there.network), in_words(&about.network)),
        ("device", there.machine.device, about.device.clone()),
        ("budget", exact(there.budget_bytes), exact(budget)),
    ];
    study.is_of("the profile of", &compared)
}

/// Formats a budget to the byte.
pub fn exact(budget: Bytes) -> String {
    format!("{budget} ({} B)", budget.0)
}

/// Describes a network so that it differs from all others.
pub fn in_words(spec: &NetworkSpec) -> String {
    let NetworkSpec { name, image: [height, width], channels, classes } = spec;
    format!("{name} for {height}x{width}x{channels} in {classes} classes")
}

/// Describes how far the times of a modelled device may be off.
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
