//! What a command prints on stdout: tables of typed cells, as text, JSON, CSV or Markdown.
//!
//! People read units; programs read base units (bytes, seconds, bytes per second) under stable keys. One value serves
//! both, so the two never tell different things. Progress and logs go to stderr and are none of this file's business.

use crate::failure::Failure;
use crate::progress::aside;
use clap::ValueEnum;
use comfy_table::{CellAlignment, Table as TextTable, presets};
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Write};
use std::path::Path;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns, for people
    #[default]
    Table,
    /// One JSON object, base units
    Json,
    /// Comma-separated values, base units
    Csv,
    /// Markdown tables
    Md,
    /// The JSON schema of what `json` prints
    Schema,
    /// The JSON schema of what this very run prints; those that are published are made of it
    #[value(hide = true)]
    SchemaOfRun,
}

/// The published schema of what a command prints as JSON, whatever it works on; none of one that prints no tables.
pub fn published_schema(verb: &str) -> Option<&'static str> {
    macro_rules! schemas {
        ($($verb:literal),*) => {
            match verb {
                $($verb => Some(include_str!(concat!("../schemas/", $verb, ".schema.json"))),)*
                _ => None,
            }
        };
    }
    schemas!(
        "auto", "check", "compare", "config", "doctor", "explain", "export", "networks", "plan", "profile",
        "run", "simulate", "tune", "verify"
    )
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A count.
    Count(u64),
    /// A size.
    Size(Bytes),
    /// A length of time.
    Time(Seconds),
    /// A rate.
    Rate(BytesPerSecond),
    /// A plain number, with this many decimals for people.
    Number(f64, usize),
    /// A share, shown in percent.
    Share(f64),
    /// Nothing to say.
    None,
}

impl Cell {
    /// A learning rate: four decimals, or as many as show three digits of a smaller one.
    pub fn learning_rate(rate: f64) -> Cell {
        let zeros = if rate > 0.0 { -rate.log10().floor() } else { 0.0 };
        Cell::Number(rate, (zeros as usize + 2).clamp(4, 16))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Cell {
        Cell::Count(count)
    }
}

impl From<Bytes> for Cell {
    fn from(size: Bytes) -> Cell {
        Cell::Size(size)
    }
}

impl From<Seconds> for Cell {
    fn from(time: Seconds) -> Cell {
        Cell::Time(time)
    }
}

impl From<BytesPerSecond> for Cell {
    fn from(rate: BytesPerSecond) -> Cell {
        Cell::Rate(rate)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::None, Into::into)
    }
}

impl Cell {
    /// For people.
    fn shown(&self) -> String {
        match self {
            Cell::Text(text) => visible(text),
            Cell::Count(count) => count.to_string(),
            Cell::Size(size) => size.to_string(),
            Cell::Time(time) => time.to_string(),
            Cell::Rate(rate) => rate.to_string(),
            Cell::Number(value, decimals) => format!("{value:.decimals$}"),
            Cell::Share(share) => format!("{:.1} %", share * 100.0),
            Cell::None => "-".to_owned(),
        }
    }

    /// For programs.
    fn value(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            Cell::Count(count) => json!(count),
            Cell::Size(size) => json!(size.0),
            Cell::Time(time) => json!(time.0),
            Cell::Rate(rate) => json!(rate.0),
            Cell::Number(value, _) | Cell::Share(value) => json!(value),
            Cell::None => Value::Null,
        }
    }

    /// The type of its value in JSON, and what it is counted in.
    fn kind(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Cell::Text(_) => Some(("string", "")),
            Cell::Count(_) => Some(("integer", "")),
            Cell::Size(_) => Some(("integer", ", in bytes")),
            Cell::Time(_) => Some(("number", ", in seconds")),
            Cell::Rate(_) => Some(("number", ", in bytes per second")),
            Cell::Number(..) => Some(("number", "")),
            Cell::Share(_) => Some(("number", ", as a part of 1")),
            Cell::None => None,
        }
    }
}

/// Whether a reader obeys a character instead of showing it: colours, bells and new lines of terminals, and the marks of Unicode
/// that turn what follows the other way round or break a line.
pub(crate) fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// A text in which the characters that a reader obeys are written out: names may hold any.
pub fn visible(text: &str) -> String {
    let shown = |c: char| if is_obeyed(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// JSON that holds the same, in which they are written as JSON writes any character. New lines between values stay.
pub fn visible_json(json: &str) -> String {
    let shown = |c: char| match c {
        '\n' => c.to_string(),
        c if is_obeyed(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(shown).collect()
}

/// A text as a cell of CSV, where quotes hold its lines together: no spreadsheet takes it for a formula, which they do of what begins
/// like one.
fn in_csv(text: &str) -> String {
    let text = text.split('\n').map(visible).collect::<Vec<_>>().join("\n");
    if text.starts_with(['=', '+', '-', '@', '\n']) { format!("'{text}") } else { text }
}

/// Rows under named columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The key in JSON, and the title for people.
    pub key: &'static str,
    /// Key and heading of each column.
    pub columns: Vec<(&'static str, &'static str)>,
    /// As many cells as columns, each.
    pub rows: Vec<Vec<Cell>>,
    /// One row that is shown as lines of heading and value.
    facts: bool,
}

impl Table {
    /// An empty table.
    pub fn new(key: &'static str, columns: &[(&'static str, &'static str)]) -> Table {
        Table { key, columns: columns.to_vec(), rows: Vec::new(), facts: false }
    }

    /// One thing's values, shown one a line.
    pub fn facts(key: &'static str, facts: Vec<(&'static str, &'static str, Cell)>) -> Table {
        let columns = facts.iter().map(|(key, heading, _)| (*key, *heading)).collect();
        let row = facts.into_iter().map(|(_, _, cell)| cell).collect();
        Table { key, columns, rows: vec![row], facts: true }
    }

    fn objects(&self) -> Value {
        let object = |row: &Vec<Cell>| {
            let pairs = self.columns.iter().zip(row);
            Value::Object(
                pairs.map(|((key, _), cell)| ((*key).to_owned(), cell.value())).collect::<Map<_, _>>(),
            )
        };
        if self.facts { object(&self.rows[0]) } else { self.rows.iter().map(object).collect() }
    }

    /// The schema of its objects. What a column holds is what its cells hold; any of them may have nothing to say.
    fn schema(&self) -> Value {
        let column = |(i, (key, heading)): (usize, &(&'static str, &'static str))| {
            let kind = self.rows.iter().find_map(|row| row[i].kind());
            let column = match kind {
                Some((kind, unit)) => {
                    json!({"type": [kind, "null"], "description": format!("{heading}{unit}")})
                }
                None => json!({"description": heading}),
            };
            ((*key).to_owned(), column)
        };
        let object = json!({
            "type": "object",
            "properties": self.columns.iter().enumerate().map(column).collect::<Map<_, _>>(),
            "required": self.columns.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
            "additionalProperties": false,
        });
        if self.facts { object } else { json!({"type": "array", "items": object}) }
    }

    fn text(&self, markdown: bool) -> String {
        let mut text = TextTable::new();
        text.load_style(if markdown { presets::ASCII_MARKDOWN } else { presets::NOTHING });
        // A bar would end a cell of a Markdown table.
        let shown = |cell: &Cell| if markdown { cell.shown().replace('|', "\\|") } else { cell.shown() };
        if self.facts {
            if markdown {
                text.set_header(["", ""]);
            }
            for ((_, heading), cell) in self.columns.iter().zip(&self.rows[0]) {
                text.add_row([(*heading).to_owned(), shown(cell)]);
            }
        } else {
            text.set_header(self.columns.iter().map(|(_, heading)| *heading));
            for row in &self.rows {
                text.add_row(row.iter().map(shown));
            }
            for (i, column) in text.column_iter_mut().enumerate() {
                let said = self.rows.iter().map(|row| &row[i]).find(|cell| **cell != Cell::None);
                let words = matches!(said, Some(Cell::Text(_)));
                column.set_cell_alignment(if words { CellAlignment::Left } else { CellAlignment::Right });
            }
        }
        text.trim_fmt()
    }

    fn csv(&self) -> Vec<u8> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let plain = |value: Value| match value {
            Value::String(text) => in_csv(&text),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        // Writing to memory cannot fail, and all rows have the columns' length.
        let headings = writer.write_record(self.columns.iter().map(|(key, _)| *key));
        let rows =
            self.rows.iter().map(|row| writer.write_record(row.iter().map(|cell| plain(cell.value()))));
        headings.and(rows.collect::<Result<(), _>>()).expect("records of one length, written to memory");
        writer.into_inner().expect("flushing to memory")
    }
}

/// Writes to stdout. A reader that closed the pipe is no error, a full disk is.
pub fn write_stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match aside(|| out.write_all(bytes).and_then(|()| out.flush())) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::file(Path::new("standard output"), "write to", &error))
        }
        _ => Ok(()),
    }
}

/// Prints tables on stdout in the chosen format; nothing where there are none.
pub fn print(format: Format, tables: &[Table]) -> Result<(), Failure> {
    if tables.is_empty() {
        return Ok(());
    }
    let mut out = Vec::new();
    match format {
        Format::Json | Format::Schema | Format::SchemaOfRun => {
            let by_key = |of: fn(&Table) -> Value| {
                tables.iter().map(|table| (table.key.to_owned(), of(table))).collect::<Map<_, _>>()
            };
            let value = match format {
                Format::Json => Value::Object(by_key(Table::objects)),
                _ => json!({
                    "$schema": "https://json-schema.org/draft/2020-12/schema",
                    "type": "object",
                    "properties": by_key(Table::schema),
                    "required": tables.iter().map(|table| table.key).collect::<Vec<_>>(),
                    "additionalProperties": false,
                }),
            };
            let text = serde_json::to_string_pretty(&value).expect("cells hold strings and numbers");
            out.extend_from_slice(visible_json(&text).as_bytes());
            out.push(b'\n');
        }
        Format::Csv => {
            for (i, table) in tables.iter().enumerate() {
                out.extend_from_slice(if i > 0 { b"\n" } else { b"" });
                out.extend_from_slice(&table.csv());
            }
        }
        Format::Table | Format::Md => {
            // Headings over nothing tell a reader nothing; programs get the empty list.
            for (i, table) in tables.iter().filter(|table| !table.rows.is_empty()).enumerate() {
                out.extend_from_slice(if i > 0 { b"\n" } else { b"" });
                out.extend_from_slice(table.text(format == Format::Md).as_bytes());
                out.push(b'\n');
            }
        }
    }
    write_stdout(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_learning_rates_keep_their_digits() {
        for (rate, shown) in [(0.05, "0.0500"), (2.0, "2.0000"), (0.000_243, "0.000243"), (0.0, "0.0000")] {
            let table = Table::facts("run", vec![("rate", "rate", Cell::learning_rate(rate))]);
            assert!(table.text(false).trim_end().ends_with(shown), "{rate}: {}", table.text(false));
        }
    }

    #[test]
    fn a_hostile_name_is_harmless_in_every_format() {
        let name = "=cmd|' /C calc'!A1\u{1b}[31m\u{9b}2J\u{7f}\u{202e}gpj.exe\u{2066}\u{200f}\r\nx";
        for name in [name, "+1", "-1", "@x", "\t=1", "\u{202e}=1"] {
            let table =
                Table::facts("t", vec![("name", "name", name.into()), ("n", "n", Cell::Number(-1.0, 1))]);
            let json = visible_json(&table.objects().to_string());
            let back: Value = serde_json::from_str(&json).expect("it is JSON still");
            assert_eq!(back, table.objects(), "and says the same");
            let csv = String::from_utf8(table.csv()).expect("text");
            let cell = csv.lines().nth(1).expect("one row").trim_start_matches('"');
            assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r']), "{cell}");
            assert!(csv.trim_end().ends_with(",-1.0"), "numbers stay: {csv}");
            for text in [json, csv, table.text(false), table.text(true)] {
                assert!(!text.chars().any(|c| c != '\n' && is_obeyed(c)), "{text:?}");
            }
        }
    }

    #[test]
    fn one_value_serves_people_and_programs() {
        let table = Table::facts(
            "plan",
            vec![("pool_bytes", "pool", Bytes(1536).into()), ("gap", "gap", Cell::Share(0.015))],
        );
        assert_eq!(table.objects(), json!({"pool_bytes": 1536, "gap": 0.015}));
        assert!(table.text(false).contains("1.5 KiB"));
        assert_eq!(String::from_utf8(table.csv()).unwrap(), "pool_bytes,gap\n1536,0.015\n");
    }
}
