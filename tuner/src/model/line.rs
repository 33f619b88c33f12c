//! A line y = intercept + slope * x with both at least zero, fitted for small *relative* errors and robust to outliers.
//!
//! Both uses are physical: the fixed cost of a launch or a transfer, and the cost per unit of size. Neither can be negative.
//! Errors count relative to the measured value, because a slip of a microsecond matters on a kernel of ten and not on one of ten
//! thousand. Outliers lose weight as in Huber's loss (iteratively reweighted least squares).

use serde::Serialize;

/// y = intercept + slope * x, both at least 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Line {
    /// y at x = 0.
    pub intercept: f64,
    /// Increase of y per unit of x.
    pub slope: f64,
}

/// Relative residuals beyond this count linearly instead of squared.
const OUTLIER: f64 = 0.05;

/// Rounds of reweighting; the weights settle long before.
const ROUNDS: usize = 12;

impl Line {
    /// Returns y at x.
    pub fn at(self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }

    /// Returns the line closest to `(x, y)` points; `None` without points. Every x and every y is above 0. Through the origin if
    /// all x are the same.
    pub fn fit(points: &[(f64, f64)]) -> Option<Line> {
        let mut weights = vec![1.0; points.len()];
        let mut line = weighted(points, &weights)?;
        for _ in 0..ROUNDS {
            for (weight, (x, y)) in weights.iter_mut().zip(points) {
                let off = (line.at(*x) / y - 1.0).abs();
                *weight = if off > OUTLIER { OUTLIER / off } else { 1.0 };
            }
            line = weighted(points, &weights)?;
        }
        Some(line)
    }
}

/// Weighted least squares of the relative residuals (a + b x) / y - 1 over a, b >= 0. The problem is convex in two unknowns: if
/// the free minimum is not allowed, the allowed one lies on one of the two axes.
fn weighted(points: &[(f64, f64)], weights: &[f64]) -> Option<Line> {
    // With u = 1 / y and v = x / y, minimise the sum of w (a u + b v - 1)^2.
    let mut sums = [0.0; 5];
    for ((x, y), w) in points.iter().zip(weights) {
        let (u, v) = (1.0 / y, x / y);
        for (sum, term) in sums.iter_mut().zip([u * u, u * v, v * v, u, v]) {
            *sum += w * term;
        }
    }
    let [uu, uv, vv, u, v] = sums;
    if points.is_empty() || !(uu > 0.0 && vv > 0.0) {
        return None;
    }
    let through_origin = Line { intercept: 0.0, slope: v / vv };
    let determinant = uu * vv - uv * uv;
    if determinant <= 1e-9 * uu * vv {
        return Some(through_origin);
    }
    let free = Line { intercept: (u * vv - v * uv) / determinant, slope: (v * uu - u * uv) / determinant };
    if free.intercept < 0.0 {
        Some(through_origin)
    } else if free.slope < 0.0 {
        Some(Line { intercept: u / uu, slope: 0.0 })
    } else {
        Some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(points: &[(f64, f64)], intercept: f64, slope: f64) {
        let line = Line::fit(points).expect("there are points");
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1e-3 + b.abs());
        assert!(near(line.intercept, intercept) && near(line.slope, slope), "{line:?}");
    }

    #[test]
    fn lines_are_found_and_never_fall_below_zero() {
        check(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)], 3.0, 2.0);
        check(&[(2.0, 6.0)], 0.0, 3.0);
        check(&[(2.0, 6.0), (2.0, 6.0)], 0.0, 3.0);
        // Falling: a constant. Steeper than proportional: through the origin.
        let falling = Line::fit(&[(1.0, 2.0), (2.0, 1.9)]).expect("two points");
        assert!(falling.slope == 0.0 && falling.intercept > 1.8);
        let steep = Line::fit(&[(1.0, 1.0), (2.0, 3.0)]).expect("two points");
        assert!(steep.intercept == 0.0 && steep.slope > 1.0);
        assert_eq!(Line::fit(&[]), None);
    }

    #[test]
    fn one_outlier_of_six_moves_the_line_little() {
        let points: Vec<(f64, f64)> = (1..=6).map(|i| (f64::from(i), 1.0 + f64::from(i))).collect();
        let mut spoilt = points.clone();
        spoilt[3].1 *= 2.0;
        let line = Line::fit(&spoilt).expect("there are points");
        for (x, y) in points {
            assert!((line.at(x) / y - 1.0).abs() < 0.03, "at {x}: {} is not {y}", line.at(x));
        }
    }

    proptest! {
        /// Exact points return the line, at all scales.
        #[test]
        fn exact_lines_come_back(intercept in 0.0..1.0f64, slope in 0.01..10.0f64, scale in 1e-9..1e3f64) {
            let points: Vec<(f64, f64)> =
                [8.0, 16.0, 32.0, 43.0, 64.0].iter().map(|x| (*x, scale * (intercept + slope * x))).collect();
            let line = Line::fit(&points).expect("there are points");
            for (x, y) in points {
                prop_assert!((line.at(x) / y - 1.0).abs() < 1e-6);
            }
        }
    }
}
