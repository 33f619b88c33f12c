//! `profile/1`: what was measured of one network on one machine.
//!
//! Raw samples are kept, so that another model can be fitted to them later and a reader can judge the spread. Nothing
//! in a profile is predicted, unless it says that its machine is modelled: then all of it is.

use crate::document::{Document, Fault, define_kind};
use crate::health::Health;
use crate::network::NetworkSpec;
use crate::precision::Precision;
use crate::trace::Phase;
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

define_kind!(ProfileKind, "profile/1");

/// What was measured of one network on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: ProfileKind,
    /// What was measured.
    pub network: NetworkSpec,
    /// Where, and with what.
    pub machine: Machine,
    /// The budget that the measured iterations ran in.
    pub budget_bytes: Bytes,
    /// What measuring one op costs by itself; it is already taken off the samples.
    pub overhead_seconds: Seconds,
    /// The link.
    pub link: LinkSamples,
    /// The ops, at every batch size that was measured.
    pub batches: Vec<BatchSamples>,
}

/// What the measurement stands on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The device, such as `cpu: AMD EPYC 9J14`.
    pub device: String,
    /// Compute threads (CPU) or multiprocessors (GPU).
    pub threads: u32,
    /// The link's pace where the device was told to pace it; none where it runs as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paced: Option<crate::schedule::Link>,
    /// Operating system, and driver where there is one.
    pub system: String,
    /// In what convolutions and matrix products multiply; none where an older version wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Version and commit of Plimsoll.
    pub plimsoll: String,
    /// When it was measured: seconds since 1970, UTC.
    pub unix_seconds: u64,
    /// What the device's driver told of it meanwhile; none where nothing was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Whether nothing was measured: the device is known by its data sheet alone.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub modelled: bool,
    /// Of a modelled machine: how far its times may be off a real one's, as a share; nine of ten are off by no more. None where
    /// everything was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_error: Option<f64>,
}

/// Link rates, each way alone and with the other way running. Every sample is one transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSamples {
    /// Device to host, alone.
    pub offload_alone: Vec<TransferSample>,
    /// Host to device, alone.
    pub prefetch_alone: Vec<TransferSample>,
    /// Device to host while the other way runs.
    pub offload_together: Vec<TransferSample>,
    /// Host to device while the other way runs.
    pub prefetch_together: Vec<TransferSample>,
    /// Copies of host memory that is not page-locked; none where the device takes all host memory alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pageable: Option<PageableSamples>,
    /// What transfers do to an op that is bound by the device's memory; none where the budget has no room for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<BesideSamples>,
}

/// Copies of plain host memory, each way alone. Plans never use it; it says what page-locked memory is worth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageableSamples {
    /// Device to host.
    pub offload: Vec<TransferSample>,
    /// Host to device.
    pub prefetch: Vec<TransferSample>,
}

/// The seconds of one op that reads a tensor and writes another and computes next to nothing, beside transfers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BesideSamples {
    /// Each of the two tensors, and each transfer.
    pub bytes: Bytes,
    /// With no transfer running.
    pub alone: Vec<Seconds>,
    /// While offloads run all the time.
    pub offloading: Vec<Seconds>,
    /// While prefetches do.
    pub prefetching: Vec<Seconds>,
    /// While both do.
    pub both: Vec<Seconds>,
}

/// One timed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferSample {
    /// How much was moved.
    pub bytes: Bytes,
    /// How long it took.
    pub seconds: Seconds,
}

/// All ops at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSamples {
    /// Samples in the iteration.
    pub batch: u64,
    /// The seconds of whole measured iterations whose ops were timed, stalls included.
    pub iteration_seconds: Vec<Seconds>,
    /// For each of those, what passed on the compute stream in waits for transfers and in ops that were recomputed. Empty
    /// where it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_seconds: Vec<Seconds>,
    /// The seconds of whole iterations in which nothing was timed, as training runs them, from the same rounds. Empty where
    /// none was run, as in profiles made before 2026-11-22.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub whole_seconds: Vec<Seconds>,
    /// For each of those, how long the threads that compute were ready to run while others had their processors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited_seconds: Vec<Seconds>,
    /// What the schedule copied to the host in each iteration; none where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offloaded_bytes: Option<Bytes>,
    /// In the order of the trace.
    pub ops: Vec<OpSamples>,
}

/// One op at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpSamples {
    /// The op's name; the same at every batch size.
    pub name: String,
    /// Its layer type.
    pub kind: String,
    /// Where in the iteration it stands.
    pub phase: Phase,
    /// Floating-point operations at this batch size.
    pub flops: u64,
    /// One measured time for each repetition, warm-up left out.
    pub seconds: Vec<Seconds>,
    /// Its other alternatives, by the names that the trace has for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", alias = "ways")]
    pub alternatives: Vec<AlternativeSamples>,
}

/// One op at one batch size, run by another alternative than the usual one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlternativeSamples {
    /// The alternative's name.
    pub name: String,
    /// Its scratch at this batch size.
    pub workspace_bytes: Bytes,
    /// One measured time for each repetition.
    pub seconds: Vec<Seconds>,
}

impl BatchSamples {
    /// Nothing of a batch size.
    pub fn none(batch: u64) -> BatchSamples {
        BatchSamples {
            batch,
            iteration_seconds: Vec::new(),
            other_seconds: Vec::new(),
            whole_seconds: Vec::new(),
            waited_seconds: Vec::new(),
            offloaded_bytes: None,
            ops: Vec::new(),
        }
    }

    /// What whole iterations take, or would where nobody else had the processors: each less what it waited for them.
    pub fn alone_seconds(&self) -> impl Iterator<Item = Seconds> + '_ {
        self.whole_seconds.iter().zip(&self.waited_seconds).map(|(whole, waited)| alone(*whole, *waited))
    }
}

/// What an iteration takes where nobody else has the processors: its seconds by the clock, less those for which the threads
/// that compute were ready and did not run. At least a thousandth of the clock's: both are measured, and neither exactly.
pub fn alone(seconds: Seconds, waited: Seconds) -> Seconds {
    Seconds((seconds.0 - waited.0).max(1e-3 * seconds.0))
}

/// What an iteration takes where nothing disturbs it, from times that [`alone`] gave: their lower quartile; none of none.
///
/// What others take of caches, of the memory's bandwidth and of the units of a shared core nobody counts. It only lengthens,
/// and comes and goes in seconds: with builds on both processors the same schedule took 1.3 times as long for a while. So the
/// middle depends on how often others came, and the lower quartile does not, as long as they leave one iteration in four
/// alone.
pub fn undisturbed(times: impl IntoIterator<Item = Seconds>) -> Option<Seconds> {
    let mut times: Vec<f64> = times.into_iter().map(|s| s.0).collect();
    times.sort_unstable_by(f64::total_cmp);
    let place = (times.len().checked_sub(1)?) as f64 / 4.0;
    let (below, above) = (times[place.floor() as usize], times[place.ceil() as usize]);
    Some(Seconds(below + (above - below) * place.fract()))
}

impl OpSamples {
    /// Adds the times of the same op at the same batch size.
    pub fn take_in(&mut self, more: OpSamples) {
        self.seconds.extend(more.seconds);
        for alternative in more.alternatives {
            match self.alternatives.iter_mut().find(|known| known.name == alternative.name) {
                Some(known) => known.seconds.extend(alternative.seconds),
                None => self.alternatives.push(alternative),
            }
        }
    }

    /// Newer times of the same op at the same batch size, and older ones only of the alternatives that have no newer.
    pub fn replaced_by(self, new: OpSamples) -> OpSamples {
        let mut all = new;
        if all.seconds.is_empty() {
            all.seconds = self.seconds;
        }
        for alternative in self.alternatives {
            if all.alternatives.iter().all(|newer| newer.name != alternative.name) {
                all.alternatives.push(alternative);
            }
        }
        all
    }

    /// The times of the alternative that it mostly ran in: the usual one, or where it never ran in that, the one that it ran
    /// in most.
    pub fn usual_or_most(&self) -> &[Seconds] {
        let alternatives = self.alternatives.iter().map(|alternative| &alternative.seconds[..]);
        if self.seconds.is_empty() {
            alternatives.max_by_key(|seconds| seconds.len()).unwrap_or(&[])
        } else {
            &self.seconds
        }
    }
}

/// What of a rate the fit found: `seconds = latency + bytes / rate`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The slope.
    pub bytes_per_second: BytesPerSecond,
    /// The intercept.
    pub latency_seconds: Seconds,
}

impl Document for Profile {
    const KIND: &'static str = "profile/1";

    fn validate(&self) -> Result<(), Fault> {
        let fault = |place: String, why: &str| Err(Fault::Meaning { place, why: why.to_owned() });
        if self.batches.is_empty() {
            return fault("batches".into(), "a profile holds at least one batch size");
        }
        if let Some(paced) = &self.machine.paced {
            paced.validate("machine.paced")?;
        }
        if self.machine.modelled_error.is_some_and(|error| !(error.is_finite() && error >= 0.0)) {
            return fault("machine.modelled_error".into(), "an error is a number, 0 or more");
        }
        for (i, batch) in self.batches.iter().enumerate() {
            if batch.ops.len() != self.batches[0].ops.len() {
                return fault(format!("batches[{i}].ops"), "the ops are not the same at every batch size");
            }
            if batch.batch == 0 {
                return fault(format!("batches[{i}].batch"), "a batch has at least 1 sample");
            }
            let positive = |s: &Seconds| s.0.is_finite() && s.0 > 0.0;
            let paired = batch.waited_seconds.len() == batch.whole_seconds.len();
            let waits = batch
                .waited_seconds
                .iter()
                .chain(&batch.other_seconds)
                .all(|s| s.0.is_finite() && s.0 >= 0.0);
            if !(batch.whole_seconds.iter().all(positive) && paired && waits) {
                let why = "a whole iteration takes more than 0 seconds, and what it waited is told of each";
                return fault(format!("batches[{i}].whole_seconds"), why);
            }
            for (j, op) in batch.ops.iter().enumerate() {
                let place = format!("batches[{i}].ops[{j}]");
                if self.batches[0].ops.get(j).is_none_or(|first| first.name != op.name) {
                    return fault(place, "the ops are not the same at every batch size");
                }
                let alternatives = || op.alternatives.iter().flat_map(|alternative| &alternative.seconds);
                let mut times = op.seconds.iter().chain(alternatives());
                if times.clone().next().is_none() || times.any(|s| !(s.0.is_finite() && s.0 >= 0.0)) {
                    return fault(place, "an op needs at least one time, and times are 0 or more");
                }
            }
        }
        let link = &self.link;
        let all =
            [&link.offload_alone, &link.prefetch_alone, &link.offload_together, &link.prefetch_together];
        if all.iter().any(|samples| samples.is_empty()) {
            return fault("link".into(), "each way needs samples, alone and together");
        }
        let pageable = link.pageable.iter().flat_map(|p| [&p.offload, &p.prefetch]);
        let mut transfers = all.into_iter().chain(pageable).flatten();
        let none = |seconds: &Seconds| !(seconds.0.is_finite() && seconds.0 > 0.0);
        if transfers.any(|transfer| none(&transfer.seconds)) {
            return fault("link".into(), "a transfer takes more than 0 seconds");
        }
        let beside = link.beside.iter().flat_map(|b| [&b.alone, &b.offloading, &b.prefetching, &b.both]);
        if beside.flatten().any(none) {
            return fault("link.beside".into(), "an op beside transfers takes more than 0 seconds");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_that_others_disturb_do_not_move_what_one_takes_as_long_as_one_in_four_is_left_alone() {
        let of = |times: &[f64]| undisturbed(times.iter().copied().map(Seconds));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some(Seconds(3.0)));
        assert_eq!(of(&[5.0, 1.0]), Some(Seconds(2.0)));
        for disturbed in 0..=12 {
            let times: Vec<f64> =
                (0..17).map(|n| if n < disturbed { 1.3 + 0.1 * n as f64 } else { 1.0 }).collect();
            assert_eq!(of(&times), Some(Seconds(1.0)), "{disturbed} of 17");
        }
    }
}
