//! A table: its rows, plimsoll's advantage in each, and notes for the reader.

use crate::claims::Claims;
use crate::plot::Plot;
use plimsoll::ir::Bytes;

/// Advantage of `plimsoll` over the paper's own system in one row: above 1 is better.
pub struct Advantage {
    /// Row and quantity.
    pub of: String,
    pub times: f64,
}

/// Most rows of a table on its page; a longer one has a separate file.
const ROWS_OF_A_PAGE: usize = 12;

/// Share within which times count as equal.
pub const SAME: f64 = 1e-3;

/// A row's cells; `alone` if the paper's text has no number of the row.
struct Row {
    cells: Vec<String>,
    alone: bool,
}

pub struct Table {
    /// Paper and table of origin, and the device and link that it was made for.
    pub from: String,
    pub heading: Vec<&'static str>,
    rows: Vec<Row>,
    pub advantages: Vec<Advantage>,
    pub claims: Claims,
    /// Explanations of the differences.
    pub notes: Vec<String>,
    /// `true` if its numbers are published ones and derived from them, not from a model.
    pub published: bool,
    pub plot: Plot,
}

impl Table {
    pub fn new(from: impl Into<String>, heading: &[&'static str], plot: Plot) -> Table {
        let (rows, advantages, notes) = (Vec::new(), Vec::new(), Vec::new());
        let claims = Claims::default();
        Table {
            from: from.into(),
            heading: heading.to_vec(),
            rows,
            advantages,
            claims,
            notes,
            published: false,
            plot,
        }
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

    pub fn note(&mut self, words: impl Into<String>) {
        self.notes.push(words.into());
    }

    pub fn advantage(&mut self, of: impl Into<String>, times: f64) {
        self.advantages.push(Advantage { of: of.into(), times });
    }

    /// Returns the rows in which the paper's own system is better.
    pub fn worse(&self) -> impl Iterator<Item = String> + '_ {
        let worse = self.advantages.iter().filter(|one| one.times < 1.0 - SAME);
        worse.map(|one| format!("{}: {:.4} times", one.of, one.times))
    }

    /// Returns the smallest advantage.
    pub fn least(&self) -> Option<&Advantage> {
        self.advantages.iter().min_by(|a, b| a.times.total_cmp(&b.times))
    }

    /// Returns the geometric mean of all advantages; `None` if there is none.
    pub fn mean(&self) -> Option<f64> {
        let logarithms: f64 = self.advantages.iter().map(|one| one.times.ln()).sum();
        let count = self.advantages.len();
        (count > 0).then(|| (logarithms / count as f64).exp())
    }

    pub fn markdown(&self, name: &str, about: &str) -> String {
        let rows = match self.is_long() {
            true => format!("The rows: [{name}.csv]({name}.csv).\n"),
            false => self.grid(),
        };
        let mut text = format!("# {about}\n\n{}\n\n{rows}{}", self.from, self.origin());
        if let (Some(mean), Some(least)) = (self.mean(), self.least()) {
            let count = self.advantages.len();
            text += &format!(
                "\nplimsoll over the paper's own system: {mean:.3} times in the geometric mean of {count} comparisons; least: \
                 {:.3} ({}).\n",
                least.times, least.of
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
    fn lines(&self) -> Vec<Vec<&str>> {
        let (published, all) = self.published_rows();
        let mixed = 0 < published && published < all;
        let heading = self.heading.iter().copied().chain(mixed.then_some("in the text")).collect();
        let mut lines: Vec<Vec<&str>> = vec![heading];
        for row in &self.rows {
            let mark = mixed.then_some(if row.alone { "ours alone" } else { "published" });
            lines.push(row.cells.iter().map(String::as_str).chain(mark).collect());
        }
        lines
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
