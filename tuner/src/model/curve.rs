//! The saturating throughput curve of one layer type (AccUDNN §3.3.1, Figure 5), fitted to all of its samples.
//!
//! With x the op's FLOPs,
//!
//! ```text
//! seconds(x) = t0 + x / F(x),    F(x) = F * (x + r s) / (x + s)
//! ```
//!
//! t0 is the cost of a kernel however small it is. F(x) is the throughput of its work: r F for small x, F for large x, with the
//! turn near x = s. r < 1 is the paper's figure, a device that small kernels leave partly idle; r > 1 happens on CPUs, where
//! small kernels fit in the cache. t0, F, s and r are positive, so they are fitted as logarithms, and for every positive value
//! seconds(x) rises with x: no fit can predict that more work takes less time. The paper draws a hard saturation point; the
//! smooth turn has the same two ends and no kink for the fit to hunt for.
//!
//! The loss is the pseudo-Huber loss of ln(predicted / measured): relative, and linear for outliers. Nelder-Mead (argmin)
//! minimises it: four parameters, no derivatives. A faint pull towards the start keeps parameters in place that the samples do
//! not determine.
//!
//! This file deliberately does not distinguish ops of one type. That is the next step, `layer.rs`.

use crate::numbers::real;
use argmin::core::{CostFunction, Error, Executor, State};
use argmin::solver::neldermead::NelderMead;
use serde::Serialize;

/// One sample: x (FLOPs) and seconds, both above 0.
pub(super) type Sample = (f64, f64);

/// Fitted curve of one layer type.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Curve {
    /// Units of x and seconds for the parameters: the medians of the samples.
    unit: Sample,
    /// ln of t0, 1 / F, s and r, in those units.
    logs: [f64; 4],
}

/// Start of a fit, in units of the median sample: a tenth of it overhead, the rest work, no turn.
const START: [f64; 4] = [-2.3, -0.1, 0.0, 0.0];

/// Second start, with the turn already there.
const TURNED: [f64; 4] = [-4.0, -0.7, 0.0, -1.5];

/// |ln(predicted / measured)| beyond which the loss grows linearly.
const OUTLIER: f64 = 0.1;

/// Weight of the pull towards [`START`].
const PULL: f64 = 1e-5;

/// Maximum steps of Nelder-Mead.
const STEPS: u64 = 400;

struct Problem<'a> {
    /// In units of the median sample.
    samples: &'a [Sample],
}

fn seconds(logs: &[f64], x: f64) -> f64 {
    let [t0, per_unit, s, r] = [logs[0].exp(), logs[1].exp(), logs[2].exp(), logs[3].exp()];
    t0 + x * per_unit * (x + s) / (x + r * s)
}

impl CostFunction for Problem<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, logs: &Vec<f64>) -> Result<f64, Error> {
        let huber = |e: f64| (1.0 + (e / OUTLIER).powi(2)).sqrt() - 1.0;
        let loss: f64 = self.samples.iter().map(|(x, y)| huber((seconds(logs, *x) / y).ln())).sum();
        let pull: f64 = logs.iter().zip(START).map(|(p, start)| (p - start).powi(2)).sum();
        let cost = loss / real(self.samples.len()) + PULL * pull;
        // NaN would end the solver; infinity only makes it turn back.
        Ok(if cost.is_nan() { f64::INFINITY } else { cost })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Curve {
    /// Returns the seconds at x > 0; above 0 and finite.
    pub fn at(&self, x: f64) -> f64 {
        self.unit.1 * seconds(&self.logs, x / self.unit.0)
    }

    /// Returns the curve closest to the samples; `None` without samples. `near` is a curve of almost the same samples, from which
    /// the fit starts if it is given.
    pub fn fit(samples: &[Sample], near: Option<&Curve>) -> Option<Curve> {
        if samples.is_empty() {
            return None;
        }
        let medians =
            (median(samples.iter().map(|s| s.0).collect()), median(samples.iter().map(|s| s.1).collect()));
        let unit = near.map_or(medians, |curve| curve.unit);
        let scaled: Vec<Sample> = samples.iter().map(|(x, y)| (x / unit.0, y / unit.1)).collect();
        let starts = near.map_or(vec![START, TURNED], |curve| vec![curve.logs]);
        let best =
            starts.into_iter().map(|start| descend(&scaled, start)).min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Curve { unit, logs: best.0 })
    }
}

/// Nelder-Mead from one start: the parameters, and their cost. Never worse than the start: if the solver fails or diverges (its
/// `Ok` proves nothing), this returns the start.
fn descend(samples: &[Sample], start: [f64; 4]) -> ([f64; 4], f64) {
    let cost = |logs: &[f64; 4]| Problem { samples }.cost(&logs.to_vec()).unwrap_or(f64::INFINITY);
    let mut simplex = vec![start.to_vec(); 5];
    for (i, corner) in simplex.iter_mut().skip(1).enumerate() {
        corner[i] += 1.0;
    }
    let solved = NelderMead::new(simplex).with_sd_tolerance(1e-9).and_then(|solver| {
        Executor::new(Problem { samples }, solver).configure(|s| s.max_iters(STEPS)).run()
    });
    let found = solved.ok().and_then(|result| result.state().get_best_param().cloned());
    let found: Option<[f64; 4]> = found.and_then(|logs| logs.try_into().ok());
    let candidates = found.into_iter().filter(|logs| logs.iter().all(|p| p.abs() < 60.0)).chain([start]);
    let scored = candidates.map(|logs| (logs, cost(&logs)));
    scored.min_by(|a, b| a.1.total_cmp(&b.1)).expect("the start is a candidate")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Largest relative error of a fit on exact samples of t0 + x / F(x).
    fn worst(t0: f64, rate: f64, turn: f64, r: f64, xs: &[f64]) -> f64 {
        let truth = |x: f64| t0 + x / rate * (x + turn) / (x + r * turn);
        let samples: Vec<Sample> = xs.iter().map(|x| (*x, truth(*x))).collect();
        let curve = Curve::fit(&samples, None).expect("there are samples");
        xs.iter().map(|x| (curve.at(*x) / truth(*x) - 1.0).abs()).fold(0.0, f64::max)
    }

    const XS: [f64; 12] = [1e6, 2e6, 5e6, 1e7, 3e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10];

    #[test]
    fn a_saturating_device_is_fitted_over_four_decades() {
        assert!(worst(1e-5, 1e11, 1e8, 0.1, &XS) < 0.02);
        assert!(worst(1e-5, 1e11, 1e8, 1.0, &XS) < 0.02);
        assert!(worst(1e-7, 1e11, 1e8, 3.0, &XS) < 0.02);
    }

    #[test]
    fn outliers_do_not_carry_the_curve_away() {
        let truth = |x: f64| 1e-5 + x / 1e11;
        let samples: Vec<Sample> = XS
            .iter()
            .enumerate()
            .map(|(i, x)| (*x, truth(*x) * if i % 6 == 2 { 10.0 } else { 1.0 }))
            .collect();
        let curve = Curve::fit(&samples, None).expect("there are samples");
        for x in XS {
            assert!(
                (curve.at(x) / truth(x) - 1.0).abs() < 0.1,
                "at {x}: {} is not {}",
                curve.at(x),
                truth(x)
            );
        }
    }

    proptest! {
        /// For all samples, the curve is positive, finite and rises with x.
        #[test]
        fn every_curve_rises(samples in prop::collection::vec((1.0..1e13f64, 1e-9..1e2f64), 1..40)) {
            let curve = Curve::fit(&samples, None).expect("there are samples");
            let mut last = 0.0;
            for i in 0..60 {
                let y = curve.at(10f64.powf(f64::from(i) / 4.0));
                prop_assert!(y.is_finite() && y > 0.0 && y >= last * (1.0 - 1e-12), "{y} after {last}");
                last = y;
            }
        }
    }
}
