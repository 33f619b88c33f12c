//! `profile/1`: measurements of one network on one machine.
//!
//! Raw samples are kept, so that a different model can be fitted to them later and a reader can judge the spread. Nothing in
//! a profile is predicted, unless its machine is modelled: then everything is.

use crate::document::{Document, Fault, define_kind};
use crate::health::Health;
use crate::network::NetworkSpec;
use crate::precision::Precision;
use crate::trace::Phase;
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

define_kind!(ProfileKind, "profile/1");

/// Measurements of one network on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Kind and version of the document.
    #[serde(rename = "plimsoll")]
    pub kind: ProfileKind,
    /// Measured network.
    pub network: NetworkSpec,
    /// Machine of the measurements.
    pub machine: Machine,
    /// Budget of the measured iterations.
    pub budget_bytes: Bytes,
    /// Cost of measuring one op; the samples exclude it already.
    pub overhead_seconds: Seconds,
    pub link: LinkSamples,
    /// Ops, at every measured batch size.
    pub batches: Vec<BatchSamples>,
}

/// The machine, software and settings of the measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Device, such as `cpu: AMD EPYC 9J14`.
    pub device: String,
    /// Compute threads (CPU) or multiprocessors (GPU).
    pub threads: u32,
    /// Pace of the link, if the device was set to pace it; `None` if it runs at full speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paced: Option<crate::schedule::Link>,
    /// Operating system, and driver if there is one.
    pub system: String,
    /// Input precision of convolutions and matrix products; `None` in documents of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Version and commit of Plimsoll.
    pub plimsoll: String,
    /// Time of the measurement: seconds since 1970, UTC.
    pub unix_seconds: u64,
    /// Report of the device's driver during the measurement; `None` if it reported nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// `true` if nothing was measured: the device is known by its data sheet alone.
    #[serde(default, skip_serializing_if = "crate::document::is_false")]
    pub modelled: bool,
    /// For a modelled machine, the share by which its times may differ from a real one's; nine of ten differ by no more.
    /// `None` if everything was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_error: Option<f64>,
}

/// Link rates, in each direction alone and with the other direction running. Every sample is one transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSamples {
    /// Device to host, alone.
    pub offload_alone: Vec<TransferSample>,
    /// Host to device, alone.
    pub prefetch_alone: Vec<TransferSample>,
    /// Device to host while the other direction runs.
    pub offload_together: Vec<TransferSample>,
    /// Host to device while the other direction runs.
    pub prefetch_together: Vec<TransferSample>,
    /// Copies of pageable host memory; `None` if the device treats all host memory alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pageable: Option<PageableSamples>,
    /// Slowdown by transfers of an op that is bound by device memory; `None` if the budget has no room for the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<BesideSamples>,
}

/// Copies of pageable host memory, each direction alone. Plans never use it; it shows the benefit of pinned memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageableSamples {
    /// Device to host.
    pub offload: Vec<TransferSample>,
    /// Host to device.
    pub prefetch: Vec<TransferSample>,
}

/// Seconds of one op that reads one tensor, writes a second one and computes almost nothing, while transfers run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BesideSamples {
    /// Bytes of each of the two tensors, and of each transfer.
    pub bytes: Bytes,
    /// Without transfers.
    pub alone: Vec<Seconds>,
    /// During continuous offloads.
    pub offloading: Vec<Seconds>,
    /// During continuous prefetches.
    pub prefetching: Vec<Seconds>,
    /// During both.
    pub both: Vec<Seconds>,
}

/// One timed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferSample {
    /// Bytes moved.
    pub bytes: Bytes,
    /// Duration.
    pub seconds: Seconds,
}

/// All ops at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSamples {
    /// Samples in the iteration.
    pub batch: u64,
    /// Seconds of whole measured iterations whose ops were timed, stalls included.
    pub iteration_seconds: Vec<Seconds>,
    /// For each of those iterations, the compute stream's time in waits for transfers and in recomputed ops. Empty if
    /// unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_seconds: Vec<Seconds>,
    /// Seconds of whole iterations without timed ops, as in training, from the same rounds. Empty if none was run, as in
    /// profiles made before 2026-11-22.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub whole_seconds: Vec<Seconds>,
    /// For each of those iterations, the time in which the compute threads were ready but other threads held their
    /// processors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited_seconds: Vec<Seconds>,
    /// Bytes that the schedule offloads in each iteration; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offloaded_bytes: Option<Bytes>,
    /// Ops, in the order of the trace.
    pub ops: Vec<OpSamples>,
}

/// One op at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpSamples {
    /// Name of the op, the same at every batch size.
    pub name: String,
    /// Layer type.
    pub kind: String,
    /// Phase of the iteration.
    pub phase: Phase,
    /// Floating-point operations at this batch size.
    pub flops: u64,
    /// One measured time per repetition, warm-up excluded.
    pub seconds: Vec<Seconds>,
    /// Other alternatives, by their names in the trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty", alias = "ways")]
    pub alternatives: Vec<AlternativeSamples>,
}

/// One op at one batch size, run by an alternative that is not the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlternativeSamples {
    pub name: String,
    /// Workspace at this batch size.
    pub workspace_bytes: Bytes,
    /// One measured time per repetition.
    pub seconds: Vec<Seconds>,
}

impl BatchSamples {
    /// Returns a batch size without samples.
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

    /// Returns the seconds of whole iterations without the waits for processors held by other threads.
    pub fn alone_seconds(&self) -> impl Iterator<Item = Seconds> + '_ {
        self.whole_seconds.iter().zip(&self.waited_seconds).map(|(whole, waited)| alone(*whole, *waited))
    }
}

/// Returns an iteration's duration without other load: its seconds by the clock, less those in which the compute threads were
/// ready and did not run. At least a thousandth of the clock's: both are measured, and neither exactly.
pub fn alone(seconds: Seconds, waited: Seconds) -> Seconds {
    Seconds((seconds.0 - waited.0).max(1e-3 * seconds.0))
}

/// Returns an iteration's undisturbed duration from times that [`alone`] gave: their lower quartile; `None` if there are
/// none.
///
/// Nothing counts the contention for caches, memory bandwidth and the units of a shared core. Contention only lengthens, and
/// comes and goes in seconds: with builds on both processors the same schedule took 1.3 times as long for a while. So the
/// median depends on the frequency of contention, and the lower quartile does not, as long as one iteration in four is
/// undisturbed.
pub fn undisturbed(times: impl IntoIterator<Item = Seconds>) -> Option<Seconds> {
    let mut times: Vec<f64> = times.into_iter().map(|s| s.0).collect();
    times.sort_unstable_by(f64::total_cmp);
    let place = (times.len().checked_sub(1)?) as f64 / 4.0;
    let (below, above) = (times[place.floor() as usize], times[place.ceil() as usize]);
    Some(Seconds(below + (above - below) * place.fract()))
}

impl OpSamples {
    /// Adds times of the same op at the same batch size.
    pub fn take_in(&mut self, more: OpSamples) {
        self.seconds.extend(more.seconds);
        for alternative in more.alternatives {
            match self.alternatives.iter_mut().find(|known| known.name == alternative.name) {
                Some(known) => known.seconds.extend(alternative.seconds),
                None => self.alternatives.push(alternative),
            }
        }
    }

    /// Returns the newer times of the same op at the same batch size, with older times only for the alternatives that have no
    /// newer ones.
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

    /// Returns the times of the default alternative or, if the op never ran in that, of the one that it ran in most.
    pub fn usual_or_most(&self) -> &[Seconds] {
        let alternatives = self.alternatives.iter().map(|alternative| &alternative.seconds[..]);
        if self.seconds.is_empty() {
            alternatives.max_by_key(|seconds| seconds.len()).unwrap_or(&[])
        } else {
            &self.seconds
        }
    }
}

/// Result of fitting a rate: `seconds = latency + bytes / rate`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Slope.
    pub bytes_per_second: BytesPerSecond,
    /// Intercept.
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
