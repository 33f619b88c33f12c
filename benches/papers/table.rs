//! A table: its rows, how much better `plimsoll` is in each, and what a reader must know.

use crate::claims::Claims;
use crate::plot::Plot;
use plimsoll::ir::Bytes;

/// How much better `plimsoll` is than the paper's own system in one row: above 1 is better.
pub struct Advantage {
    /// Of which row, in what.
    pub of: String,
    pub times: f64,
}

/// A table with more rows stands in a file of its own, next to its page.
const ROWS_OF_A_PAGE: usize = 12;

/// Times that differ by no more than this share are equal.
pub const SAME: f64 = 1e-3;

/// A row's cells, and whether it is ours alone: the paper's text has no number of it.
struct Row {
    cells: Vec<String>,
    alone: bool,
}

pub struct Table {
    /// Which table of which paper, and the device and link that it was made for.
    pub from: String,
    pub heading: Vec<&'static str>,
    rows: Vec<Row>,
    pub advantages: Vec<Advantage>,
    pub claims: Claims,
    /// What explains the differences.
    pub notes: Vec<String>,
    /// Whether its numbers are published ones and what follows from them, and no model's.
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

    /// A row of which the paper's text has a number.
    pub fn row(&mut self, cells: Vec<String>) {
        self.add(cells, false);
    }

    /// A row that is ours alone.
    pub fn alone(&mut self, cells: Vec<String>) {
        self.add(cells, true);
    }

    /// A row, which is ours alone or is not.
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

    /// The rows in which the paper's own system is better.
    pub fn worse(&self) -> impl Iterator<Item = String> + '_ {
        let worse = self.advantages.iter().filter(|one| one.times < 1.0 - SAME);
        worse.map(|one| format!("{}: {:.4} times", one.of, one.times))
    }

    /// The smallest advantage.
    pub fn least(&self) -> Option<&Advantage> {
        self.advantages.iter().min_by(|a, b| a.times.total_cmp(&b.times))
    }

    /// The geometric mean of all advantages; none where there is none.
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

    /// The rows as CSV, if the table is too long for its page.
    pub fn csv(&self) -> Option<String> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        for line in self.lines() {
            csv.write_record(line).expect("lines are equally long");
        }
        let bytes = csv.into_inner().expect("a vector can be written");
        self.is_long().then(|| String::from_utf8(bytes).expect("cells are text"))
    }

    /// The heading and the rows. If only some rows have a number in the paper's text, a column says which.
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

    /// The lines as Markdown.
    fn grid(&self) -> String {
        let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
        let lines = self.lines();
        let rule = line(&vec!["---"; lines[0].len()]);
        lines[1..].iter().fold(line(&lines[0]) + &rule, |text, cells| text + &line(cells))
    }

    /// How many rows have a number in the paper's text, as a sentence.
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

    /// How many rows have a number in the paper's text, and how many there are.
    pub fn published_rows(&self) -> (usize, usize) {
        (self.rows.iter().filter(|row| !row.alone).count(), self.rows.len())
    }
}

/// Whether one time, or size, is at most another, but for what counts as equal.
pub fn at_most(one: f64, other: f64) -> bool {
    one <= other * (1.0 + SAME)
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Whole megabytes, of 2^20 bytes.
pub fn mb(bytes: Bytes) -> String {
    format!("{:.0}", bytes.0 as f64 / (1u64 << 20) as f64)
}

/// Gigabytes, of 2^30 bytes.
pub fn gb(bytes: Bytes) -> String {
    format!("{:.2}", in_gb(bytes))
}

/// The same, as a number.
pub fn in_gb(bytes: Bytes) -> f64 {
    bytes.0 as f64 / (1u64 << 30) as f64
}

/// A cell of something that may be missing.
pub fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}
