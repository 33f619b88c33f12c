//! A table: its rows, plimsoll's advantage in each, and notes for the reader.

use crate::claims::Claims;
use crate::plot::Plot;
use plimsoll::ir::exchange::Interconnect;
use plimsoll::ir::{Bytes, Seconds};

/// Most rows of a table on its page; a longer one has a separate file.
const ROWS_OF_A_PAGE: usize = 12;

/// Share within which times count as equal.
pub const SAME: f64 = 1e-3;

/// Cells of a row, each with any value that can be a cell. Cells are separated by commas, groups of them by semicolons.
macro_rules! cells {
    ($($($cell:expr),+);+) => { vec![$($($crate::table::Cell::text(&$cell)),+),+] };
}

/// Adds a note, formatted: `note!(table; "text {}", value)`.
macro_rules! note {
    ($table:expr; $($text:tt)+) => { $table.notes.push(format!($($text)+)) };
}

/// Checks a claim against one row: `claim!(claims; words; "row {}", value; as_claimed)`.
macro_rules! claim {
    ($claims:expr; $words:expr; $row:literal $(, $value:expr)*; $as_claimed:expr) => {
        $claims.hold($words, format!($row $(, $value)*), $as_claimed)
    };
}
pub(crate) use {cells, claim, note};

/// A value that can be a cell; a missing one is `-`.
pub trait Cell {
    fn text(&self) -> String;
}

macro_rules! cell {
    ($($type:ty),+) => { $(impl Cell for $type {
        fn text(&self) -> String {
            self.to_string()
        }
    })+ };
}
cell!(str, String, u64, f64, Seconds, Interconnect);

impl<T: Cell + ?Sized> Cell for &T {
    fn text(&self) -> String {
        (*self).text()
    }
}

impl<T: Cell> Cell for Option<T> {
    fn text(&self) -> String {
        self.as_ref().map_or_else(|| "-".to_owned(), T::text)
    }
}

/// A row's cells; `alone` if the paper's text has no number of the row.
struct Row {
    cells: Vec<String>,
    alone: bool,
}

#[derive(Default)]
pub struct Table {
    /// Paper and table of origin, and the device and link that it was made for.
    pub from: String,
    heading: Vec<String>,
    rows: Vec<Row>,
    /// Advantages of `plimsoll` over the paper's own system: row and quantity, and times; above 1 is better.
    advantages: Vec<(String, f64)>,
    pub claims: Claims,
    /// Explanations of the differences.
    pub notes: Vec<String>,
    /// `true` if its numbers are published ones and derived from them, not from a model.
    pub published: bool,
    pub plot: Plot,
}

impl Table {
    /// Returns a table without rows; ` | ` separates the columns of the heading.
    pub fn new(from: impl Into<String>, heading: &str, plot: Plot) -> Table {
        let heading = heading.split(" | ").map(str::to_owned).collect();
        Table { from: from.into(), heading, plot, ..Table::default() }
    }

    /// Adds a row with a number in the paper's text.
    pub fn row(&mut self, cells: Vec<String>) {
        self.add(cells, false);
    }

    /// Adds a row without a number in the paper's text.
    pub fn alone(&mut self, cells: Vec<String>) {
        self.add(cells, true);
    }

    /// Adds a row; `alone` if the paper's text has no number of it.
    pub fn add(&mut self, cells: Vec<String>, alone: bool) {
        assert_eq!(cells.len(), self.heading.len(), "a row has a cell for each heading: {cells:?}");
        self.rows.push(Row { cells, alone });
    }

    pub fn advantage(&mut self, of: impl Into<String>, times: f64) {
        self.advantages.push((of.into(), times));
    }

    /// Returns the rows in which the paper's own system is better.
    pub fn worse(&self) -> impl Iterator<Item = String> + '_ {
        let worse = self.advantages.iter().filter(|(_, times)| *times < 1.0 - SAME);
        worse.map(|(of, times)| format!("{of}: {times:.4} times"))
    }

    /// Returns the smallest advantage.
    pub fn least(&self) -> Option<&(String, f64)> {
        self.advantages.iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the geometric mean of all advantages; `None` if there is none.
    pub fn mean(&self) -> Option<f64> {
        let logarithms: f64 = self.advantages.iter().map(|one| one.1.ln()).sum();
        let count = self.advantages.len();
        (count > 0).then(|| (logarithms / count as f64).exp())
    }

    pub fn markdown(&self, name: &str, about: &str) -> String {
        let rows = match self.is_long() {
            true => format!("The rows: [{name}.csv]({name}.csv).\n"),
            false => self.grid(),
        };
        let mut text = format!("# {about}\n\n{}\n\n{rows}{}", self.from, self.origin());
        if let (Some(mean), Some((of, times))) = (self.mean(), self.least()) {
            let count = self.advantages.len();
            text += &format!(
                "\nplimsoll over the paper's own system: {mean:.3} times in the geometric mean of {count} comparisons; least: \
                 {times:.3} ({of}).\n"
            );
        }
        let worse: Vec<String> = self.worse().collect();
        if !worse.is_empty() {
            text += &format!("\nWorse than the paper's own system: {}.\n", worse.join("; "));
        }
        self.notes.iter().for_each(|note| text += &format!("\n- {note}"));
        let claims = self.claims.words(true);
        if !claims.is_empty() {
            text += "\n\n## Claims of the paper\n";
            claims.iter().for_each(|claim| text += &format!("\n- {claim}"));
        }
        let version = plimsoll::study::version();
        let times = match self.published {
            true => "All numbers are the paper's, or follow from those.",
            false => "All times are modelled.",
        };
        text + &format!(
            "\n\n{times} `cargo bench --bench papers -- {name}`, plimsoll {version}; plot: `{name}.svg`.\n"
        )
    }

    fn is_long(&self) -> bool {
        self.rows.len() > ROWS_OF_A_PAGE
    }

    /// Returns the rows as CSV, if the table is too long for its page.
    pub fn csv(&self) -> Option<String> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        for line in self.lines() {
            csv.write_record(line).expect("lines are equally long");
        }
        let bytes = csv.into_inner().expect("a vector can be written");
        self.is_long().then(|| String::from_utf8(bytes).expect("cells are text"))
    }

    /// Returns the heading and the rows. If only some rows have a number in the paper's text, a column marks them.
    fn lines<'t>(&'t self) -> Vec<Vec<&'t str>> {
        let (published, all) = self.published_rows();
        let mixed = 0 < published && published < all;
        let line = |cells: &'t [String], mark| {
            cells.iter().map(String::as_str).chain(mixed.then_some(mark)).collect()
        };
        let mark = |row: &Row| if row.alone { "ours alone" } else { "published" };
        let rows = self.rows.iter().map(|row| line(&row.cells, mark(row)));
        [line(&self.heading, "in the text")].into_iter().chain(rows).collect()
    }

    /// Returns the lines as Markdown.
    fn grid(&self) -> String {
        let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
        let lines = self.lines();
        let rule = line(&vec!["---"; lines[0].len()]);
        lines[1..].iter().fold(line(&lines[0]) + &rule, |text, cells| text + &line(cells))
    }

    /// States how many rows have a number in the paper's text.
    fn origin(&self) -> String {
        match self.published_rows() {
            (0, _) => "\nOurs alone: no row has a number in the paper's text.\n".to_owned(),
            (published, all) if published == all => {
                format!("\nRows with a number in the paper's text: all {all}.\n")
            }
            (published, all) => format!(
                "\nRows with a number in the paper's text: {published} of {all}; the others are ours alone.\n"
            ),
        }
    }

    /// Returns the number of rows with a number in the paper's text, and the number of all rows.
    pub fn published_rows(&self) -> (usize, usize) {
        (self.rows.iter().filter(|row| !row.alone).count(), self.rows.len())
    }
}

/// Returns `true` if one time, or size, is at most the other, within the share that counts as equal.
pub fn at_most(one: f64, other: f64) -> bool {
    one <= other * (1.0 + SAME)
}

/// Formats a share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats whole megabytes, of 2^20 bytes.
pub fn mb(bytes: Bytes) -> String {
    format!("{:.0}", bytes.0 as f64 / (1u64 << 20) as f64)
}

/// Formats gigabytes, of 2^30 bytes.
pub fn gb(bytes: Bytes) -> String {
    format!("{:.2}", in_gb(bytes))
}

/// Returns gigabytes, of 2^30 bytes.
pub fn in_gb(bytes: Bytes) -> f64 {
    bytes.0 as f64 / (1u64 << 30) as f64
}

/// Formats a cell of a value that may be missing.
pub fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}
