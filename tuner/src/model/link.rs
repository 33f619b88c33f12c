//! The four rates of the link, and the link used for planning.
//!
//! A transfer takes latency + bytes / rate (AccUDNN eq. (5) with a latency; the paper averages its rates, which charges small
//! transfers' latency to large ones). Each of the four rates, for offload and prefetch, alone and with the other direction
//! running, is fitted robustly to the median of each size.
//!
//! A plan knows one rate per direction, so one must be chosen before it is known which transfers overlap:
//!
//! - **Full duplex**, if both directions together move clearly more than one alone. A direction whose rate drops by more than 5 %
//!   while the other runs is planned at that lower rate, as if the other always ran: the run may then be faster than the plan,
//!   but does not stall where the plan has no stall.
//! - **Half duplex** at the rates alone, if both together move hardly more than one alone would: their shares of the rates alone
//!   sum to 1.2 or less. A shared link gives 1, two independent directions give 2.
//!
//! The effect of transfers on *ops* ([`Slowdown`]) is no part of a plan, and no op's seconds are scaled by it. It depends on the
//! overlap, which the plan decides; `simulate`'s clock, by which plans are judged, knows one time per op; and the ratio is that
//! of the ops it hurts most. Instead, ops are measured under the plans of their batch sizes, with as many transfers as training
//! will have, and the remaining effect is in the errors of held-out batch sizes.
//! out.

use super::line::Line;
use crate::request::Error;
use plimsoll_ir::profile::{BesideSamples, LinkSamples, PageableSamples, Rate, TransferSample};
use plimsoll_ir::schedule::{Duplex, Link};
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use serde::Serialize;
use std::collections::BTreeMap;

/// Fitted rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FittedRate {
    /// latency + bytes / rate.
    pub rate: Rate,
    /// Median of |predicted / measured - 1| over the sizes.
    pub relative_error: f64,
}

/// Link as it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkModel {
    /// Device to host, alone.
    pub offload_alone: FittedRate,
    /// Host to device, alone.
    pub prefetch_alone: FittedRate,
    /// Device to host while the other direction runs.
    pub offload_together: FittedRate,
    /// Host to device while the other direction runs.
    pub prefetch_together: FittedRate,
    /// Offloads and prefetches of pageable host memory, if that was measured.
    pub pageable: Option<[FittedRate; 2]>,
    /// Slowdown of ops that are bound by the device's memory, if that was measured.
    pub slowdown: Option<Slowdown>,
}

/// Slowdown of an op that is bound by the device's memory while transfers run: ratios of medians, 1 for no effect; `None` if no
/// op ran with transfers all the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// While offloads run.
    pub offloading: Option<f64>,
    /// While prefetches run.
    pub prefetching: Option<f64>,
    /// While both run.
    pub both: Option<f64>,
}

impl Slowdown {
    fn of(samples: &BesideSamples) -> Slowdown {
        let middle = |seconds: &[Seconds]| {
            let mut seconds: Vec<f64> = seconds.iter().map(|s| s.0).collect();
            (!seconds.is_empty()).then(|| super::median(&mut seconds))
        };
        let alone = middle(&samples.alone).filter(|seconds| *seconds > 0.0);
        let ratio = |beside: &[Seconds]| Some(middle(beside)? / alone?);
        Slowdown {
            offloading: ratio(&samples.offloading),
            prefetching: ratio(&samples.prefetching),
            both: ratio(&samples.both),
        }
    }

    /// Returns the largest of them, at least 1.
    pub fn worst(&self) -> f64 {
        [self.offloading, self.prefetching, self.both].into_iter().flatten().fold(1.0, f64::max)
    }
}

/// Sum of the shares of the rates alone up to which both directions share one link.
const SHARED: f64 = 1.2;

/// Share of its rate above which a direction is undisturbed by the other.
const UNDISTURBED: f64 = 0.95;

impl LinkModel {
    /// Fits the four rates.
    pub fn fit(samples: &LinkSamples) -> Result<LinkModel, Error> {
        Ok(LinkModel {
            offload_alone: fit_rate("offload_alone", &samples.offload_alone)?,
            prefetch_alone: fit_rate("prefetch_alone", &samples.prefetch_alone)?,
            offload_together: fit_rate("offload_together", &samples.offload_together)?,
            prefetch_together: fit_rate("prefetch_together", &samples.prefetch_together)?,
            pageable: match &samples.pageable {
                Some(PageableSamples { offload, prefetch }) => {
                    Some([fit_rate("pageable.offload", offload)?, fit_rate("pageable.prefetch", prefetch)?])
                }
                None => None,
            },
            slowdown: samples.beside.as_ref().map(Slowdown::of),
        })
    }

    /// Returns the ratio of page-locked to pageable rates alone: offloads, prefetches.
    pub fn pinned_over_pageable(&self) -> Option<[f64; 2]> {
        let rate = |fitted: &FittedRate| fitted.rate.bytes_per_second.0;
        let [offload, prefetch] = self.pageable.as_ref()?;
        Some([rate(&self.offload_alone) / rate(offload), rate(&self.prefetch_alone) / rate(prefetch)])
    }

    /// Returns the link to plan with; see the head of this file.
    pub fn planned(&self) -> Link {
        let rate = |fitted: &FittedRate| fitted.rate.bytes_per_second;
        let latency = |fitted: &FittedRate| fitted.rate.latency_seconds;
        let latency_seconds = latency(&self.offload_alone).max(latency(&self.prefetch_alone));
        let alone = [rate(&self.offload_alone), rate(&self.prefetch_alone)];
        let together = [rate(&self.offload_together), rate(&self.prefetch_together)];
        Link { latency_seconds, ..planned_link(alone, together) }
    }
}

/// Returns the link to plan with, without latency, from the rates of offloads and prefetches alone and with the other direction
/// running.
pub fn planned_link(alone: [BytesPerSecond; 2], together: [BytesPerSecond; 2]) -> Link {
    let shares = [0, 1].map(|way| together[way].0 / alone[way].0);
    let is_shared = shares[0] + shares[1] <= SHARED;
    let [out, back] =
        [0, 1].map(|way| if is_shared || shares[way] >= UNDISTURBED { alone[way] } else { together[way] });
    let duplex = if is_shared { Duplex::Half } else { Duplex::Full };
    Link { prefetch_bytes_per_second: back, duplex, ..Link::symmetric(out) }
}

/// Fits the rate through the median of each size. If time does not grow with the bytes (only one size, or noise), the latency is
/// 0 and the rate is that of the largest size.
fn fit_rate(which: &str, samples: &[TransferSample]) -> Result<FittedRate, Error> {
    let mut sizes: BTreeMap<Bytes, Vec<f64>> = BTreeMap::new();
    for sample in samples.iter().filter(|s| s.bytes.0 > 0 && s.seconds.0 > 0.0 && s.seconds.0.is_finite()) {
        sizes.entry(sample.bytes).or_default().push(sample.seconds.0);
    }
    let points: Vec<(f64, f64)> =
        sizes.into_iter().map(|(bytes, mut seconds)| (bytes.to_f64(), super::median(&mut seconds))).collect();
    let Some((largest, slowest)) = points.last().copied() else {
        return Err(Error::usage(format_args!(
            "the profile has no usable transfer for `{which}`; run `profile` again"
        )));
    };
    let mut line = Line::fit(&points).expect("there is a point, and it is above zero");
    if line.slope <= 0.0 {
        line = Line { intercept: 0.0, slope: slowest / largest };
    }
    let mut errors: Vec<f64> = points.iter().map(|(x, y)| (line.at(*x) / y - 1.0).abs()).collect();
    let rate =
        Rate { bytes_per_second: BytesPerSecond(1.0 / line.slope), latency_seconds: Seconds(line.intercept) };
    Ok(FittedRate { rate, relative_error: super::median(&mut errors) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rate: f64, latency: f64) -> Vec<TransferSample> {
        let sizes = [1u64 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24];
        let noise = [1.0, 1.02, 0.99, 1.01, 9.0, 0.98, 1.0];
        let one = |bytes: u64, f: f64| TransferSample {
            bytes: Bytes(bytes),
            seconds: Seconds(f * (latency + bytes as f64 / rate)),
        };
        sizes.iter().flat_map(|b| noise.map(|f| one(*b, f))).collect()
    }

    #[track_caller]
    fn check(alone: [f64; 2], together: [f64; 2], expected: [f64; 2], duplex: Duplex) {
        let model = LinkModel::fit(&LinkSamples {
            offload_alone: samples(alone[0], 1e-5),
            prefetch_alone: samples(alone[1], 1e-5),
            offload_together: samples(together[0], 1e-5),
            prefetch_together: samples(together[1], 1e-5),
            pageable: None,
            beside: None,
        });
        let link = model.expect("there are samples").planned();
        let near = |rate: BytesPerSecond, expected: f64| (rate.0 / expected - 1.0).abs() < 0.01;
        assert!(near(link.offload_bytes_per_second, expected[0]), "{link:?}");
        assert!(near(link.prefetch_bytes_per_second, expected[1]), "{link:?}");
        assert!((link.latency_seconds.0 / 1e-5 - 1.0).abs() < 0.05, "{link:?}");
        assert_eq!(link.duplex, duplex);
    }

    #[test]
    fn the_planned_link_follows_what_both_ways_do_together() {
        check([12e9, 13e9], [12e9, 13e9], [12e9, 13e9], Duplex::Full);
        check([12e9, 13e9], [11.8e9, 12.9e9], [12e9, 13e9], Duplex::Full);
        check([12e9, 13e9], [10e9, 11e9], [10e9, 11e9], Duplex::Full);
        check([12e9, 12e9], [6e9, 6e9], [12e9, 12e9], Duplex::Half);
        check([12e9, 12e9], [9e9, 3.5e9], [12e9, 12e9], Duplex::Half);
    }

    #[test]
    fn pageable_memory_and_ops_beside_transfers_are_ratios() {
        let seconds = |s: f64| vec![Seconds(s), Seconds(1.1 * s), Seconds(0.9 * s)];
        let beside = BesideSamples {
            bytes: Bytes(1 << 26),
            alone: seconds(4e-5),
            offloading: seconds(5e-5),
            prefetching: seconds(4.4e-5),
            both: vec![],
        };
        let pageable = PageableSamples { offload: samples(3e9, 1e-5), prefetch: samples(6e9, 1e-5) };
        let model = LinkModel::fit(&LinkSamples {
            offload_alone: samples(12e9, 1e-5),
            prefetch_alone: samples(12e9, 1e-5),
            offload_together: samples(12e9, 1e-5),
            prefetch_together: samples(12e9, 1e-5),
            pageable: Some(pageable),
            beside: Some(beside),
        })
        .expect("there are samples");
        let slowdown = model.slowdown.expect("it was measured");
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
        assert!(near(slowdown.offloading.expect("measured"), 1.25) && near(slowdown.worst(), 1.25));
        assert_eq!(slowdown.both, None);
        let [out, back] = model.pinned_over_pageable().expect("it was measured");
        assert!(near(out, 4.0) && near(back, 2.0), "{out} {back}");
    }

    #[test]
    fn one_size_gives_a_rate_and_no_samples_an_error() {
        let one = TransferSample { bytes: Bytes(1000), seconds: Seconds(1e-3) };
        let fitted = fit_rate("offload_alone", &[one; 3]).expect("there are samples");
        assert!((fitted.rate.bytes_per_second.0 - 1e6).abs() < 1.0);
        assert_eq!(fitted.rate.latency_seconds, Seconds::ZERO);
        let none = TransferSample { bytes: Bytes(0), seconds: Seconds(1e-3) };
        let error = fit_rate("offload_alone", &[none]).expect_err("a transfer of nothing");
        assert!(error.message.contains("no usable transfer for `offload_alone`"), "{error}");
        // Larger is faster: noise; the rate is that of the largest.
        let fast = TransferSample { bytes: Bytes(4000), seconds: Seconds(0.5e-3) };
        let fitted = fit_rate("offload_alone", &[one, fast]).expect("there are samples");
        assert!(fitted.rate.bytes_per_second.0.is_finite() && fitted.rate.bytes_per_second.0 > 0.0);
    }
}
