//! A table: its rows, how much better `plimsoll` is in each, and what a reader must know.

use crate::plot::Plot;
use plimsoll::ir::Bytes;

/// How much better `plimsoll` is than the paper's own system in one row: above 1 is better.
pub struct Advantage {
    /// Of which row, in what.
    pub of: String,
    pub times: f64,
}

/// Times that differ by no more than this share are equal.
const SAME: f64 = 1e-3;

pub struct Table {
    /// Which table of which paper, and the device and link that it was made for.
    pub from: String,
    pub heading: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    pub advantages: Vec<Advantage>,
    /// What explains the differences.
    pub notes: Vec<String>,
    /// Whether its times are published ones and what follows from them, and no model's.
    pub published: bool,
    pub plot: Plot,
}

impl Table {
    pub fn new(from: impl Into<String>, heading: &[&'static str], plot: Plot) -> Table {
        let (rows, advantages, notes) = (Vec::new(), Vec::new(), Vec::new());
        Table {
            from: from.into(),
            heading: heading.to_vec(),
            rows,
            advantages,
            notes,
            published: false,
            plot,
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.heading.len(), "a row has a cell for each heading: {cells:?}");
        self.rows.push(cells);
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
        let mut text = format!("# {about}\n\n{}\n\n", self.from);
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        text += &line(&self.heading.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
        text += &line(&vec!["---".to_owned(); self.heading.len()]);
        self.rows.iter().for_each(|row| text += &line(row));
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
        let version = plimsoll::study::version();
        let times = match self.published {
            true => "All times are the paper's, or follow from those.".to_owned(),
            false => format!(
                "All times are those of a model of the device; nothing was measured. plimsoll's search is cut to {} \
                 evaluations a plan.",
                crate::subjects::EVALUATIONS
            ),
        };
        text + &format!(
            "\n\n{times} `cargo bench --bench papers -- {name}`, plimsoll {version}; plot: `{name}.svg`.\n"
        )
    }
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
