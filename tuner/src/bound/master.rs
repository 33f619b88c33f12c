//! Small linear program over the columns found so far, and its dual.
//!
//! A [`Column`] is one way to provide all values wanted after p: it lists what is kept, moved and recomputed. The program takes a
//! mixture of columns (fractions that sum to 1) that fits the memory and minimises T1 + T2, subject to those rows that were found
//! to bind; its dual gives the prices for the next column. The result need not be exact: at any prices, [`super::cut`] computes a
//! valid bound.
//!
//! Seconds and bytes are divided by a scale before they get here, so that all numbers are near 1.

use super::simplex::Tableau;

/// Column: one way to provide all wanted values.
pub(super) struct Column {
    /// Bytes on the device at the end of p.
    pub kept: f64,
    /// Bytes that are swapped.
    pub hosted: f64,
    /// By slot: the seconds that the offload stream needs for values written at or after it.
    pub out: Vec<f64>,
    /// By op after p: the seconds that the prefetch stream needs for values wanted at or before it.
    pub back: Vec<f64>,
    /// Seconds of ops that are recomputed.
    pub again: f64,
    /// Choice that it came from.
    pub choice: Choice,
}

/// Choice for all wanted values.
pub(super) struct Choice {
    /// By wanted value: `Some(true)` if it is kept, `Some(false)` if it is swapped, `None` if neither.
    pub kept: Vec<Option<bool>>,
    /// By maker: `true` if it is recomputed.
    pub again: Vec<bool>,
}

/// Quantities that do not depend on the columns.
pub(super) struct Frame {
    /// By slot: seconds of the ops up to it.
    pub released: Vec<f64>,
    /// By op after p: seconds from it on.
    pub rest: Vec<f64>,
    /// Bytes that may be kept.
    pub room: f64,
    /// Bytes that may be swapped, if that is limited, and the cost of each byte above that.
    pub host: Option<f64>,
    pub lack: f64,
}

/// Price in seconds of a unit of each scarce resource.
pub(super) struct Prices {
    /// By slot: price of T1 for values written at or after it. These and the price of computing sum to 1.
    pub out: Vec<(usize, f64)>,
    /// By op after p: price of T2 for values wanted at or before it. These and the price of computing sum to 1.
    pub back: Vec<(usize, f64)>,
    /// Price of a byte kept.
    pub memory: f64,
    /// Price of a byte swapped, if these are limited.
    pub host: f64,
}

impl Prices {
    /// Returns the share of T1 left for computing through p.
    pub fn before(&self) -> f64 {
        (1.0 - self.out.iter().map(|row| row.1).sum::<f64>()).max(0.0)
    }

    /// Returns the share of T2 left for computing after p, including recomputing.
    pub fn after(&self) -> f64 {
        (1.0 - self.back.iter().map(|row| row.1).sum::<f64>()).max(0.0)
    }
}

/// Columns and rows so far.
pub(super) struct Master {
    pub columns: Vec<Column>,
    out: Vec<usize>,
    back: Vec<usize>,
}

/// Cheapest mixture.
pub(super) struct Mixture {
    /// Its T1 + T2, and the cost of bytes that the host lacks.
    pub cost: f64,
    /// By column: its fraction.
    pub parts: Vec<f64>,
    /// Prices at which the columns so far cost most.
    pub prices: Prices,
}

/// Returns the position and the value of the largest.
fn largest(values: impl Iterator<Item = f64>) -> (usize, f64) {
    values.enumerate().fold((0, f64::NEG_INFINITY), |best, at| if at.1 > best.1 { at } else { best })
}

/// Adds a row that is missing and violated.
fn add(rows: &mut Vec<usize>, (row, value): (usize, f64), limit: f64) -> bool {
    let missing = value > limit * (1.0 + 1e-9) && !rows.contains(&row);
    if missing {
        rows.push(row);
    }
    missing
}

impl Frame {
    fn through(&self) -> f64 {
        self.released.last().copied().unwrap_or_default()
    }

    fn after(&self) -> f64 {
        self.rest.first().copied().unwrap_or_default()
    }
}

impl Master {
    /// Returns a program with one column: all needed values are swapped.
    pub fn new(swapped: Column) -> Master {
        Master { columns: vec![swapped], out: Vec::new(), back: Vec::new() }
    }

    /// Returns the minimum T1 + T2 of a mixture of the columns, all rows counted; binding rows are added to the program. `None`
    /// if the numbers are too far apart for an answer.
    pub fn mixture(&mut self, frame: &Frame) -> Option<Mixture> {
        loop {
            let (mut found, [before, after]) = self.solve(frame)?;
            let parts = self.columns.iter().zip(found.parts.iter().copied());
            let used: Vec<(&Column, f64)> = parts.filter(|(_, part)| *part > 0.0).collect();
            let mix = |of: &dyn Fn(&Column) -> f64| used.iter().map(|(c, part)| part * of(c)).sum::<f64>();
            let out = frame.released.iter().enumerate().map(|(w, end)| end + mix(&|c| c.out[w]));
            let back = frame.rest.iter().enumerate().map(|(j, rest)| rest + mix(&|c| c.back[j]));
            let (out, back) = (largest(out), largest(back));
            found.cost += before.max(out.1) + after.max(back.1);
            if !(add(&mut self.out, out, before) | add(&mut self.back, back, after)) {
                return Some(found);
            }
        }
    }

    /// Solves the program with the rows so far. Its variables: the columns' fractions, the excess of T1 and T2 over computing,
    /// the slacks of the rows but the first, and, if the host is limited, the slack of its row and its shortage. T1 and T2 are
    /// returned apart from the other cost.
    fn solve(&self, frame: &Frame) -> Option<(Mixture, [f64; 2])> {
        let count = self.columns.len();
        let (before, after) = (count, count + 1);
        let (memory, again, out) = (count + 2, count + 3, count + 4);
        let back = out + self.out.len();
        let host = back + self.back.len();
        let lack = host + 1;
        let mut costs = vec![0.0; host + if frame.host.is_some() { 2 } else { 0 }];
        (costs[before], costs[after]) = (1.0, 1.0);
        costs.iter_mut().skip(lack).for_each(|cost| *cost = frame.lack);
        let mut table = Tableau::new(&costs);
        let columns = |of: &dyn Fn(&Column) -> f64| -> Vec<(usize, f64)> {
            self.columns.iter().map(of).enumerate().collect()
        };
        table.row(columns(&|_| 1.0), 1.0, 0);
        table.row(columns(&|c| c.kept).into_iter().chain([(memory, 1.0)]), frame.room, memory);
        let mut late = |of: &dyn Fn(&Column) -> f64, time, right, slack| {
            table.row(columns(of).into_iter().chain([(time, -1.0), (slack, 1.0)]), right, slack);
        };
        late(&|c| c.again, after, 0.0, again);
        for (i, &w) in self.out.iter().enumerate() {
            late(&|c| c.out[w], before, frame.through() - frame.released[w], out + i);
        }
        for (i, &j) in self.back.iter().enumerate() {
            late(&|c| c.back[j], after, frame.after() - frame.rest[j], back + i);
        }
        let host_row = frame.host.map(|room| {
            let row = columns(&|c| c.hosted).into_iter().chain([(host, 1.0), (lack, -1.0)]);
            table.row(row, room, host);
            3 + self.out.len() + self.back.len()
        });
        // Swapping everything fits, and takes as long as the most violated row says.
        table.pivot(0, 0);
        if let Some(row) = host_row.filter(|row| table.right(*row) < 0.0) {
            table.pivot(row, lack);
        }
        let first_out = 3 + self.out.len();
        for (rows, time) in [(3..first_out, before), (first_out..first_out + self.back.len(), after)] {
            let worst = rows.min_by(|a, b| table.right(*a).total_cmp(&table.right(*b)));
            if let Some(row) = worst.filter(|row| table.right(*row) < 0.0) {
                table.pivot(row, time);
            }
        }
        if !table.minimise() {
            return None;
        }
        let price = |slack: usize| table.reduced_cost(slack).max(0.0);
        let price_of_host = frame.host.map_or(0.0, |_| price(host));
        let rows = |rows: &[usize], first: usize| -> Vec<(usize, f64)> {
            let prices: Vec<f64> = (0..rows.len()).map(|i| price(first + i)).collect();
            let sum = prices.iter().sum::<f64>().max(1.0);
            rows.iter().copied().zip(prices).map(|(row, price)| (row, price / sum)).collect()
        };
        let prices = Prices {
            out: rows(&self.out, out),
            back: rows(&self.back, back),
            memory: price(memory),
            host: price_of_host,
        };
        let mut parts = table.values();
        let lack = parts.get(lack).map_or(0.0, |lacks| lacks * frame.lack);
        let (before, after) = (frame.through() + parts[before], frame.after() + parts[after]);
        parts.truncate(count);
        parts.iter_mut().for_each(|part| *part = part.clamp(0.0, 1.0));
        Some((Mixture { cost: lack, parts, prices }, [before, after]))
    }
}
