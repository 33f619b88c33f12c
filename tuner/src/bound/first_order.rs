//! Prices for the rows of a linear program, found step by step, and the bound that they prove.
//!
//! The program is: minimise cost x, rows x >= right, 0 <= x <= 1. For any prices y >= 0 of the rows,
//!
//! ```text
//! right y + sum over columns of min(0, cost - y rows)
//! ```
//!
//! is no more than the minimum (weak duality). [`Program::prove`] looks for prices with a large value by the primal-dual hybrid
//! gradient method, as in PDLP (Applegate and others, 2021): rows and columns scaled, averages, restarts if these are better than
//! the last point, and a weight between both sides that follows the steps. It is cheap and inexact, which here only makes the
//! bound less sharp.
//!
//! This file deliberately does not return x.

use crate::numbers::real;
use crate::request::Limits;

/// Number of steps between two looks at the averages.
const CHECK: usize = 40;
/// Relative distance from the minimum at which the search ends.
const CLOSE: f64 = 1e-6;
/// Number of times that rows and columns are scaled to have no number above 1.
const SCALINGS: usize = 8;

/// Numbers by row, or by column.
#[derive(Default)]
struct Sparse {
    first: Vec<usize>,
    entries: Vec<(usize, f64)>,
}

/// A linear program; see the head of the file.
#[derive(Default)]
pub(super) struct Program {
    cost: Vec<f64>,
    rows: Vec<(usize, usize, f64)>,
    right: Vec<f64>,
}

impl Sparse {
    fn new(count: usize, entries: impl Iterator<Item = (usize, usize, f64)> + Clone) -> Sparse {
        let mut first = vec![0; count + 1];
        entries.clone().for_each(|(row, ..)| first[row + 1] += 1);
        (0..count).for_each(|row| first[row + 1] += first[row]);
        let (mut next, mut placed) = (first.clone(), vec![(0, 0.0); first[count]]);
        for (row, column, number) in entries {
            placed[next[row]] = (column, number);
            next[row] += 1;
        }
        Sparse { first, entries: placed }
    }

    fn of(&self, row: usize) -> &[(usize, f64)] {
        &self.entries[self.first[row]..self.first[row + 1]]
    }

    fn times(&self, row: usize, vector: &[f64]) -> f64 {
        self.of(row).iter().map(|(at, number)| number * vector[*at]).sum()
    }
}

/// By column its x, by row its price.
#[derive(Clone)]
struct Point {
    x: Vec<f64>,
    y: Vec<f64>,
}

/// Program with rows and columns scaled.
struct Scaled {
    by_row: Sparse,
    by_column: Sparse,
    cost: Vec<f64>,
    most: Vec<f64>,
    right: Vec<f64>,
}

impl Program {
    /// Adds a column, and returns its position.
    pub fn column(&mut self, cost: f64) -> usize {
        self.cost.push(cost);
        self.cost.len() - 1
    }

    /// Adds a row: these columns times these numbers are at least `right`.
    pub fn row(&mut self, numbers: impl IntoIterator<Item = (usize, f64)>, right: f64) {
        let row = self.right.len();
        self.rows.extend(numbers.into_iter().filter(|n| n.1 != 0.0).map(|(column, n)| (row, column, n)));
        self.right.push(right);
    }

    /// Returns the count of numbers in its rows.
    pub fn size(&self) -> usize {
        self.rows.len()
    }

    fn scaled(&self) -> Scaled {
        let (mut of_row, mut of_column) = (vec![1.0f64; self.right.len()], vec![1.0f64; self.cost.len()]);
        for at in 0..=SCALINGS {
            let (mut rows, mut columns) = (vec![0.0f64; of_row.len()], vec![0.0f64; of_column.len()]);
            for &(row, column, number) in &self.rows {
                let size = (number * of_row[row] * of_column[column]).abs();
                // The largest, and at the end the sum.
                for all in [&mut rows[row], &mut columns[column]] {
                    *all = if at < SCALINGS { all.max(size) } else { *all + size };
                }
            }
            let divide = |(scale, size): (&mut f64, f64)| {
                if size > 0.0 {
                    *scale /= size.sqrt();
                }
            };
            of_row.iter_mut().zip(rows).for_each(divide);
            of_column.iter_mut().zip(columns).for_each(divide);
        }
        let scale =
            |&(row, column, n): &(usize, usize, f64)| (row, column, n * of_row[row] * of_column[column]);
        let turned = |(row, column, n): (usize, usize, f64)| (column, row, n);
        let times = |(a, b): (&f64, &f64)| a * b;
        Scaled {
            by_row: Sparse::new(of_row.len(), self.rows.iter().map(scale)),
            by_column: Sparse::new(of_column.len(), self.rows.iter().map(scale).map(turned)),
            cost: self.cost.iter().zip(&of_column).map(times).collect(),
            most: of_column.iter().map(|scale| 1.0 / scale).collect(),
            right: self.right.iter().zip(&of_row).map(times).collect(),
        }
    }

    /// Returns the bound of the best prices found in this many steps. It is weaker if time is up, and at least 0.
    pub fn prove(&self, steps: usize, limits: &Limits<'_>) -> f64 {
        let scaled = self.scaled();
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let step = 0.95 / scaled.norm();
        let mut weight = (norm(&scaled.cost) / norm(&scaled.right).max(1e-9)).clamp(1e-4, 1e4);
        let mut now = Point { x: vec![0.0; scaled.cost.len()], y: vec![0.0; scaled.right.len()] };
        let (mut begun, mut sum, mut count) = (now.clone(), now.clone(), 0usize);
        let (mut last, mut best) = (f64::INFINITY, 0.0f64);
        for at in 1..=steps {
            scaled.step(&mut now, step / weight, step * weight);
            sum.x.iter_mut().zip(&now.x).for_each(|(sum, x)| *sum += x);
            sum.y.iter_mut().zip(&now.y).for_each(|(sum, y)| *sum += y);
            count += 1;
            if !at.is_multiple_of(CHECK) {
                continue;
            }
            let part = 1.0 / real(count);
            let mean = |v: &[f64]| v.iter().map(|x| x * part).collect::<Vec<f64>>();
            let mean = Point { x: mean(&sum.x), y: mean(&sum.y) };
            let (of_mean, of_now) = (scaled.judge(&mean, weight), scaled.judge(&now, weight));
            best = best.max(of_mean.0).max(of_now.0);
            let far = of_mean.1.min(of_now.1);
            if far < CLOSE || limits.is_expired() {
                break;
            }
            if far <= 0.3 * last || count * 3 > at {
                if of_mean.1 < of_now.1 {
                    now = mean;
                }
                last = far;
                let apart = |a: &[f64], b: &[f64]| {
                    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
                };
                let (dx, dy) = (apart(&now.x, &begun.x), apart(&now.y, &begun.y));
                if dx > 1e-9 && dy > 1e-9 {
                    weight = (dy / dx * weight).sqrt().clamp(1e-6, 1e6);
                }
                begun.clone_from(&now);
                sum.x.fill(0.0);
                sum.y.fill(0.0);
                count = 0;
            }
        }
        if best.is_finite() { best } else { 0.0 }
    }
}

impl Scaled {
    /// Approximates the largest singular value.
    fn norm(&self) -> f64 {
        let mut x: Vec<f64> = (0..self.cost.len()).map(|at| 1.0 + real(at % 7) * 0.1).collect();
        let mut size = 1.0f64;
        for _ in 0..20 {
            let y: Vec<f64> = (0..self.right.len()).map(|row| self.by_row.times(row, &x)).collect();
            x = (0..x.len()).map(|column| self.by_column.times(column, &y)).collect();
            size = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-300);
            x.iter_mut().for_each(|x| *x /= size);
        }
        size.sqrt()
    }

    fn step(&self, at: &mut Point, of_x: f64, of_y: f64) {
        let mut ahead = vec![0.0; at.x.len()];
        for (column, ahead) in ahead.iter_mut().enumerate() {
            let slope = self.cost[column] - self.by_column.times(column, &at.y);
            let x = (at.x[column] - of_x * slope).clamp(0.0, self.most[column]);
            *ahead = 2.0 * x - at.x[column];
            at.x[column] = x;
        }
        for (row, y) in at.y.iter_mut().enumerate() {
            *y = (*y + of_y * (self.right[row] - self.by_row.times(row, &ahead))).max(0.0);
        }
    }

    /// Returns the bound that the prices of a point prove, and the point's distance from solving the program.
    fn judge(&self, at: &Point, weight: f64) -> (f64, f64) {
        let (mut broken, mut wrong, mut cost) = (0.0, 0.0, 0.0);
        let mut proved: f64 = at.y.iter().zip(&self.right).map(|(y, right)| y * right).sum();
        for (column, &x) in at.x.iter().enumerate() {
            let slope = self.cost[column] - self.by_column.times(column, &at.y);
            proved += slope.min(0.0) * self.most[column];
            cost += self.cost[column] * x;
            let off = if x <= 0.0 {
                slope.min(0.0)
            } else if x >= self.most[column] {
                slope.max(0.0)
            } else {
                slope
            };
            wrong += off * off;
        }
        for row in 0..self.right.len() {
            let short = (self.right[row] - self.by_row.times(row, &at.x)).max(0.0);
            broken += short * short;
        }
        let far = weight * weight * broken + wrong / (weight * weight) + (cost - proved) * (cost - proved);
        (proved, far.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_proves_nearly_the_minimum_and_never_more() {
        // Least 3 a + 2 b + c with a + b >= 1, b + 2 c >= 1, a + c >= 0.8, all at most 1: a = 0.3, b = 0.7, c = 0.5 costs
        // 2.8; a = 0, b = 1, c = 0.8 costs 2.8, too; a = 0, b = 1, c = 1 costs 3.
        let mut program = Program::default();
        let [a, b, c] = [3.0, 2.0, 1.0].map(|cost| program.column(cost));
        program.row([(a, 1.0), (b, 1.0)], 1.0);
        program.row([(b, 1.0), (c, 2.0)], 1.0);
        program.row([(a, 1.0), (c, 1.0)], 0.8);
        let limits = Limits::default();
        let [little, much] = [40, 4000].map(|steps| program.prove(steps, &limits));
        assert!(little <= much && much <= 2.8 + 1e-9 && much > 2.8 - 1e-3, "{little}, {much}");
    }
}
