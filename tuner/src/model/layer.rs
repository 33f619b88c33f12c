//! Seconds of one op over the batch size: the layer type's curve, refined by the op's own samples if these predict left-out
//! samples better.
//!
//! Three shapes compete for every op:
//!
//! - **group**: the type's curve times one factor. Uses all ops of the type; strong when the op has few or noisy samples.
//! - **line**: t0 + a k. The op's own overhead and cost per sample; averages the noise of all batch sizes.
//! - **between**: straight from one measured batch size to the next. Follows the jumps of a CPU whose caches overflow and of a
//!   library that changes its algorithm; keeps the noise of each batch size.
//!
//! The winner is chosen by cross-validation: each batch size between the smallest and the largest is left out in turn and
//! predicted from the others. A shape that, fitted to all of them, still misses one by more than twice its score pays for the
//! rest: only this check catches a line that takes the last batch size for an outlier. With few batch sizes, one op's score is a
//! matter of luck, so the score of all ops of its type is added to it: an op gets a separate curve only if its samples support it
//! clearly.
//!
//! This file deliberately does not refit the type's curve for each inner fold. One point of one op barely moves it; a type with
//! fewer than [`COMPANY`] ops, where it would, does not offer it unless there is nothing else.

use super::curve::Curve;
use super::line::Line;
use crate::numbers::real;
use serde::Serialize;

/// Measurement of one op at one batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub batch: f64,
    /// Argument of the type's curve: FLOPs, or the batch size if FLOPs are unknown. Above 0.
    pub x: f64,
    /// Median seconds, above 0.
    pub seconds: f64,
}

/// Shapes that compete, the one with the strongest assumptions first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// The layer type's curve, scaled.
    Group,
    /// A line in the batch size.
    Line,
    /// Straight from one measured batch size to the next.
    Between,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 3] = [Shape::Group, Shape::Line, Shape::Between];
}

/// Fitted seconds of one op.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fitted {
    /// Factor times the type's curve at x.
    Group(f64),
    /// Line in the batch size.
    Line(Line),
    /// (batch, seconds), batches ascending; at least two.
    Between(Vec<(f64, f64)>),
}

/// Number of ops below which a type's curve is not used.
pub(super) const COMPANY: usize = 3;

impl Fitted {
    /// Fits one shape to the points (ascending in batch); `None` if there are too few for it.
    pub fn fit(shape: Shape, points: &[Point], curve: &Curve) -> Option<Fitted> {
        let pairs = || points.iter().map(|p| (p.batch, p.seconds)).collect::<Vec<_>>();
        match shape {
            Shape::Group => {
                let mut factors: Vec<f64> = points.iter().map(|p| p.seconds / curve.at(p.x)).collect();
                factors.sort_unstable_by(f64::total_cmp);
                let (low, high) =
                    (factors.get((factors.len().max(1) - 1) / 2)?, factors.get(factors.len() / 2)?);
                Some(Fitted::Group((low * high).sqrt()))
            }
            Shape::Line if points.len() >= 2 => Line::fit(&pairs()).map(Fitted::Line),
            Shape::Between if points.len() >= 2 => Some(Fitted::Between(pairs())),
            Shape::Line | Shape::Between => None,
        }
    }

    /// Returns the seconds at a batch size, given the x and the curve of the op's type.
    pub fn at(&self, batch: f64, x: f64, curve: &Curve) -> f64 {
        match self {
            Fitted::Group(factor) => factor * curve.at(x),
            Fitted::Line(line) => line.at(batch),
            Fitted::Between(points) => between(points, batch),
        }
    }
}

/// Interpolates between the neighbours of `batch`; outside the measured range along the outermost segment, whose slope is kept
/// between zero and twice the proportional one, so that noise cannot run away.
pub(super) fn between(points: &[(f64, f64)], batch: f64) -> f64 {
    let above = points.partition_point(|p| p.0 < batch).clamp(1, points.len() - 1);
    let ((k0, y0), (k1, y1)) = (points[above - 1], points[above]);
    let slope = (y1 - y0) / (k1 - k0);
    if batch < k0 {
        // Not below the line from the origin's side: down to nothing at batch 0 at the steepest.
        y0 + slope.clamp(0.0, y0 / k0) * (batch - k0)
    } else if batch > k1 {
        y1 + slope.clamp(0.0, 2.0 * y1 / k1) * (batch - k1)
    } else {
        y0 + slope * (batch - k0)
    }
}

/// Returns the positions that are left out in turn: those between the ends, or all if there is nothing between.
pub(super) fn folds(count: usize) -> std::ops::Range<usize> {
    if count >= 3 { 1..count - 1 } else { 0..count }
}

/// |ln(predicted / measured)| at a point.
fn miss(fitted: &Fitted, p: &Point, curve: &Curve) -> f64 {
    (fitted.at(p.batch, p.x, curve).max(f64::MIN_POSITIVE) / p.seconds).ln().abs()
}

/// Returns the mean miss of each shape over the folds, plus the excess of its worst miss on all points over twice that; infinite
/// if the shape cannot be fitted. Two batch sizes or fewer leave nothing to compare by.
pub(super) fn scores(points: &[Point], curve: &Curve) -> [f64; 3] {
    if points.len() < 3 {
        return [f64::INFINITY; 3];
    }
    let without = |left_out: usize| -> Vec<Point> {
        points.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, p)| *p).collect()
    };
    Shape::ALL.map(|shape| {
        let left_out_miss = |i: usize| {
            let fitted = Fitted::fit(shape, &without(i), curve);
            fitted.map_or(f64::INFINITY, |fitted| miss(&fitted, &points[i], curve))
        };
        let folds = folds(points.len());
        let score = folds.clone().map(left_out_miss).sum::<f64>() / real(folds.len());
        let worst = Fitted::fit(shape, points, curve)
            .map_or(0.0, |fitted| points.iter().map(|p| miss(&fitted, p, curve)).fold(0.0, f64::max));
        score + (worst - 2.0 * score).max(0.0)
    })
}

/// Fits every op of one type: `ops` are the points of each, ascending in batch. The result is in the same order.
pub(super) fn fit_group(ops: &[Vec<Point>], curve: &Curve) -> Vec<Fitted> {
    let own: Vec<[f64; 3]> = ops.iter().map(|points| scores(points, curve)).collect();
    let mean = |s: usize| own.iter().map(|scores| scores[s]).sum::<f64>() / real(own.len());
    let company = [mean(0), mean(1), mean(2)];
    ops.iter()
        .zip(&own)
        .map(|(points, own)| {
            let mut ranked: Vec<(f64, Shape)> = Shape::ALL
                .into_iter()
                .enumerate()
                .map(|(s, shape)| {
                    let lent = shape != Shape::Group || ops.len() >= COMPANY;
                    (if lent { own[s] + company[s] } else { f64::INFINITY }, shape)
                })
                .collect();
            // A line comes first if nothing could be left out, or all are equal.
            let preference =
                |shape| [Shape::Line, Shape::Between, Shape::Group].iter().position(|s| *s == shape);
            ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(preference(a.1).cmp(&preference(b.1))));
            let fitted = ranked.iter().find_map(|(_, shape)| Fitted::fit(*shape, points, curve));
            fitted.expect("an op has at least one point, to which the type's curve can be scaled")
        })
        .collect()
}
