//! Whole iterations: their time in training, the residual of the fit, and the stated error.
//!
//! **Time in training.** Ops are timed with events between them; training has none. So the sum that the model must reach comes
//! from iterations as training runs them, less the stalls and repetitions of the same schedule, which `simulate` adds again for
//! each plan. If other processes disturbed an iteration, its wait for the processor is subtracted, and the lower quartile of the
//! rest counts (`undisturbed`). It is unknown how much of a stall was a transfer that waited for a processor; other processes
//! only lengthen stalls, so the shortest stall of a batch size counts.
//!
//! **Residual.** A fit that is smooth over the batch size misses the measurements by a little. Measured iterations are known
//! better than that: the median of ten scatters less than one kernel's choice of tiles moves it. So the model goes through them,
//! with straight lines between (in logarithms), and constant beyond the outermost. A refit depends on this: the measured batch
//! size is then predicted as it was measured.
//!
//! **The stated error.** Batch sizes lie off the smooth curve by chance, each by an independent d_i ~ N(0, s^2) (tiles, caches).
//! A held-out batch size is predicted from its two neighbours, so it is off by e_i = d_i - (d_(i-1) + d_(i+1)) / 2, like a batch
//! size that was never measured: var(e_i) = 3/2 s^2. Held-out ones share neighbours: corr(e_i, e_(i+1)) = -2/3, corr(e_i,
//! e_(i+2)) = 1/6, and 0 beyond. The mean square of n of them therefore has, by Welch and Satterthwaite, the degrees of freedom
//!
//! ```text
//! v = n^2 / (n + 2 (n - 1) (2/3)^2 + 2 (n - 2) (1/6)^2)
//! ```
//!
//! and P(|e| <= t_v sqrt(sum(e_i^2) / n)) = 0.9 with t_v the 0.95 quantile of Student's t. With n degrees of freedom, as if they
//! shared nothing, 88 of 100 were within in a simulation, and 91 with v; the largest of n, which was stated before, covers n of
//! n + 1. Between measuring and running, a machine changes independently of that, as much as from one iteration to the next: 1.645
//! standard deviations of iterations, added as the square root of the sum of the squares.
//!
//! This file deliberately knows no schedules. The samples include the seconds of stalls and repetitions.

use super::{TICK, median};
use crate::numbers::real;
use plimsoll_ir::Seconds;
use plimsoll_ir::profile::{BatchSamples, undisturbed};
use serde::Serialize;

/// Seconds of the ops of a training iteration together, from all samples of a batch size; `None` if no whole iteration was run.
pub(super) fn of_training(parts: &[&BatchSamples]) -> Option<f64> {
    let mut compute = Vec::new();
    for part in parts {
        let other = part.other_seconds.iter().map(|s| s.0).reduce(f64::min).unwrap_or(0.0);
        compute.extend(part.alone_seconds().map(|whole| whole.0 - other));
    }
    compute.retain(|seconds| *seconds > 0.0);
    undisturbed(compute.into_iter().map(Seconds)).map(|seconds| seconds.0.max(TICK))
}

/// The standard deviation of a normal distribution in median absolute deviations.
const DEVIATIONS_IN_MADS: f64 = 1.4826;

/// Scatter of single iterations about their median, as a share of it: the median over the batch sizes; 0 if none was run.
pub(super) fn scatter<'a>(batches: impl Iterator<Item = &'a BatchSamples>) -> f64 {
    let of_batch = |batch: &BatchSamples| {
        let mut wholes: Vec<f64> = batch.alone_seconds().map(|s| s.0).collect();
        if wholes.is_empty() {
            return None;
        }
        let middle = median(&mut wholes);
        wholes.iter_mut().for_each(|whole| *whole = (*whole - middle).abs());
        Some(DEVIATIONS_IN_MADS * median(&mut wholes) / middle)
    };
    let mut all: Vec<f64> = batches.filter_map(of_batch).collect();
    if all.is_empty() { 0.0 } else { median(&mut all) }
}

/// t_v for n = 1, 2, ...
const QUANTILES: [f64; 12] =
    [6.314, 4.030, 3.073, 2.637, 2.399, 2.250, 2.150, 2.078, 2.023, 1.981, 1.947, 1.919];

/// The 0.95 quantile of a normal distribution.
const NORMAL: f64 = 1.645;

/// Relative error that nine of ten keep to, from those of held-out batch sizes and the scatter of single iterations; `None` if
/// none was held out. At most 1.
pub(super) fn nine_of_ten(offs: &[f64], scatter: f64) -> Option<f64> {
    let quantile = QUANTILES[offs.len().checked_sub(1)?.min(QUANTILES.len() - 1)];
    let mean_square = offs.iter().map(|off| off * off).sum::<f64>() / real(offs.len());
    Some((quantile * mean_square.sqrt()).hypot(NORMAL * scatter).min(1.0))
}

/// Residual of a fit at the measured batch sizes, as logarithms of ratios.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct LeftOver {
    /// (ln batch, ln measured / fitted), ascending.
    logs: Vec<(f64, f64)>,
}

impl LeftOver {
    /// Residual from (batch, ln measured / fitted), ascending.
    pub fn of(left: impl Iterator<Item = (f64, f64)>) -> LeftOver {
        LeftOver { logs: left.map(|(batch, log)| (batch.ln(), log)).collect() }
    }

    /// Returns the factor for the fit at a batch size.
    pub fn factor(&self, batch: f64) -> f64 {
        super::along(&self.logs, batch.ln()).map_or(1.0, f64::exp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_all_of_it_where_it_was_measured_and_straight_between() {
        let left = LeftOver::of([(8.0, 0.1), (32.0, -0.1)].into_iter());
        for (batch, expected) in [(8.0, 0.1), (32.0, -0.1), (16.0, 0.0), (1.0, 0.1), (100.0, -0.1)] {
            assert!((left.factor(batch).ln() - expected).abs() < 1e-12, "at {batch}: {}", left.factor(batch));
        }
        assert_eq!(LeftOver::default().factor(7.0), 1.0);
    }

    #[test]
    fn an_iteration_of_training_is_taken_without_stalls_and_without_what_others_took() {
        let seconds = |all: &[f64]| all.iter().copied().map(Seconds).collect::<Vec<_>>();
        let samples = BatchSamples {
            whole_seconds: seconds(&[1.0, 3.0, 1.1]),
            waited_seconds: seconds(&[0.0, 2.0, 0.1]),
            other_seconds: seconds(&[0.9, 0.2, 0.7]),
            ..BatchSamples::none(4)
        };
        let found = of_training(&[&samples]).expect("iterations were run");
        assert!((found - 0.8).abs() < 1e-12, "{found}");
        assert_eq!(of_training(&[&BatchSamples::none(4)]), None);
        assert!(scatter([&samples].into_iter()) < 1e-12);
    }

    #[test]
    fn the_error_grows_as_fewer_were_held_out_and_never_falls_below_the_scatter() {
        assert_eq!(nine_of_ten(&[], 0.5), None);
        assert!((nine_of_ten(&[0.01, -0.01, 0.01], 0.0).expect("three") - 0.03073).abs() < 1e-9);
        assert!(nine_of_ten(&[0.01, 0.01], 0.0) > nine_of_ten(&[0.01; 4], 0.0));
        assert!((nine_of_ten(&[0.0; 3], 0.03).expect("three") - 1.645 * 0.03).abs() < 1e-12);
        assert_eq!(nine_of_ten(&[3.0], 0.0), Some(1.0));
    }
}
