//! A simplex method for the few rows and columns of [`super::master`]: dense, from a known basis, prices included.
//!
//! No crate's solver is used: those in Rust without further dependencies either give no prices of rows or panic if numbers are
//! far apart; here a program that diverges gives none, and a table of 40 rows is solved in microseconds.
//!
//! This file deliberately has no sparse tables, bounds of variables, or first phase.

/// Differences below this count as zero. Numbers are scaled to be near 1.
const EPSILON: f64 = 1e-11;
/// Steps with the steepest column; from then on the first that helps is taken, which cannot cycle.
const STEEP: usize = 400;
/// Maximum number of steps.
const STEPS: usize = 1500;

/// Program in equations, `rows x = right`, x >= 0, with a cost for each variable, to be minimised.
pub(super) struct Tableau {
    /// Row after row; in each the variables' factors and then the right-hand side. The last row is the cost.
    cells: Vec<f64>,
    width: usize,
    /// By row: its basic variable.
    basis: Vec<usize>,
}

impl Tableau {
    /// Returns a program without rows; by variable its cost.
    pub fn new(costs: &[f64]) -> Tableau {
        let mut cells = costs.to_vec();
        cells.push(0.0);
        Tableau { width: cells.len(), cells, basis: Vec::new() }
    }

    /// Adds `factors x = right`, given its basic variable: one that no other row has, with the factor 1.
    pub fn row(&mut self, factors: impl IntoIterator<Item = (usize, f64)>, right: f64, gives: usize) {
        let at = self.cells.len() - self.width;
        let mut row = vec![0.0; self.width];
        factors.into_iter().for_each(|(variable, factor)| row[variable] += factor);
        row[self.width - 1] = right;
        self.cells.splice(at..at, row);
        self.basis.push(gives);
    }

    fn rows(&self) -> usize {
        self.basis.len()
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.cells[row * self.width + column]
    }

    /// Returns the right-hand side of a row.
    pub fn right(&self, row: usize) -> f64 {
        self.at(row, self.width - 1)
    }

    /// Returns the change of the cost per unit of a variable that is 0; for a row's slack, the price of the row.
    pub fn reduced_cost(&self, variable: usize) -> f64 {
        self.at(self.rows(), variable)
    }

    /// By variable: its value.
    pub fn values(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.width - 1];
        self.basis.iter().enumerate().for_each(|(row, variable)| values[*variable] = self.right(row));
        values
    }

    /// Changes the basic variable of a row.
    pub fn pivot(&mut self, row: usize, variable: usize) {
        let width = self.width;
        let factor = self.at(row, variable);
        let mut pivot: Vec<f64> = self.cells[row * width..(row + 1) * width].to_vec();
        pivot.iter_mut().for_each(|cell| *cell /= factor);
        for cells in self.cells.chunks_exact_mut(width) {
            let factor = cells[variable];
            if factor != 0.0 {
                cells.iter_mut().zip(&pivot).for_each(|(cell, pivot)| *cell -= factor * pivot);
            }
        }
        self.cells[row * width..(row + 1) * width].copy_from_slice(&pivot);
        self.basis[row] = variable;
    }

    /// Returns the row that bounds a variable first; `None` if none does.
    fn tightest(&self, variable: usize) -> Option<usize> {
        let rows = (0..self.rows()).filter(|row| self.at(*row, variable) > EPSILON);
        let ratio = |row: usize| self.right(row).max(0.0) / self.at(row, variable);
        rows.min_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(self.basis[*a].cmp(&self.basis[*b])))
    }

    /// Minimises the cost from a basis whose right-hand sides are not negative. Returns `true` at the minimum.
    pub fn minimise(&mut self) -> bool {
        for step in 0..STEPS {
            let gains =
                (0..self.width - 1).map(|v| (v, self.reduced_cost(v))).filter(|gain| gain.1 < -EPSILON);
            let entering = if step < STEEP {
                gains.min_by(|a, b| a.1.total_cmp(&b.1))
            } else {
                gains.min_by_key(|gain| gain.0)
            };
            let Some((variable, _)) = entering else { return self.cells.iter().all(|cell| cell.is_finite()) };
            let Some(row) = self.tightest(variable) else { return false };
            self.pivot(row, variable);
        }
        false
    }
}
