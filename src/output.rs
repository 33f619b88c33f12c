//! Command output on stdout: tables of typed cells, as text, JSON, CSV or Markdown.
//!
//! People read units; programs read base units (bytes, seconds, bytes per second) under stable keys. One value serves
//! both, so the two always agree. Progress and logs go to stderr, outside this file.

use crate::progress::aside;
use clap::ValueEnum;
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table as TextTable, Width, presets,
};
use console::{Term, measure_text_width};
use plimsoll_ir::{Bytes, BytesPerSecond, Seconds};
use plimsoll_study::Error;
use plimsoll_study::words::{visible, visible_json};
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Format of results.
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
}

/// Values of one subject, each with a key for programs and a name for people.
pub type Facts = Vec<(&'static str, &'static str, Cell)>;

/// Value of a table cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A count.
    Count(u64),
    /// A size in bytes.
    Size(Bytes),
    /// A duration.
    Time(Seconds),
    /// A rate of transfer.
    Rate(BytesPerSecond),
    /// A number, shown to people with this many decimals.
    Number(f64, usize),
    /// A fraction, shown in percent.
    Share(f64),
    /// An empty cell.
    None,
}

impl Cell {
    /// Cell of a learning rate: four decimals, or as many as show three digits of a smaller rate.
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
    /// Text for people.
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

    /// JSON value for programs.
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
}

/// Quotes text for a CSV cell, including line breaks, and keeps spreadsheets from reading it as a formula.
fn in_csv(text: &str) -> String {
    let text = text.split('\n').map(visible).collect::<Vec<_>>().join("\n");
    if text.starts_with(['=', '+', '-', '@', '\n']) { format!("'{text}") } else { text }
}

/// Blanks on both sides of a column's text.
const PADDING: usize = 2;

/// Width of the longest word of a text.
fn longest_word(text: &str) -> usize {
    text.split(' ').map(measure_text_width).max().unwrap_or(0)
}

/// Rows under named columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Key in JSON, and title for people.
    pub key: &'static str,
    /// Key and heading of each column.
    pub columns: Vec<(&'static str, &'static str)>,
    /// Rows, each with one cell per column.
    pub rows: Vec<Vec<Cell>>,
    /// `true` if the table has one row, shown as lines of heading and value.
    facts: bool,
    /// Index of the row that answers the question.
    chosen: Option<usize>,
}

/// Layout of text output.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    /// Columns of the terminal; `None` leaves lines unwrapped.
    width: Option<u16>,
    /// `true` if headings and the chosen row are bold.
    bold: bool,
}

/// Separator between the rows of a table under construction. It never occurs in shown text.
const BETWEEN: char = '\u{1f}';

impl Table {
    /// Creates an empty table.
    pub fn new(key: &'static str, columns: &[(&'static str, &'static str)]) -> Table {
        Table { key, columns: columns.to_vec(), rows: Vec::new(), facts: false, chosen: None }
    }

    /// Creates a table of one subject's values, shown one per line.
    pub fn facts(key: &'static str, facts: Facts) -> Table {
        let columns = facts.iter().map(|(key, heading, _)| (*key, *heading)).collect();
        let row = facts.into_iter().map(|(_, _, cell)| cell).collect();
        Table { key, columns, rows: vec![row], facts: true, chosen: None }
    }

    /// Marks the row that answers the question; people see it in bold.
    pub fn chosen(self, row: Option<usize>) -> Table {
        Table { chosen: row, ..self }
    }

    fn headings(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().map(|(_, heading)| *heading)
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

    /// Text for people. With a width, lines wrap between words; rows become lines of heading and value if the table
    /// is still too wide, or has more lines.
    fn shown(&self, how: Shown) -> String {
        let table = self.text(false, how);
        let Some(width) = how.width.filter(|_| !self.facts) else { return table };
        let row = |(number, row): (usize, &Vec<Cell>)| {
            let (rows, chosen) = (vec![row.clone()], (self.chosen == Some(number)).then_some(0));
            Table { rows, chosen, facts: true, ..self.clone() }.text(false, how)
        };
        let rows = self.rows.iter().enumerate().map(row).collect::<Vec<_>>().join("\n\n");
        let least: usize = self.longest_words().iter().map(|word| word + PADDING).sum();
        let fits = least <= usize::from(width);
        if fits && table.lines().count() <= rows.lines().count() { table } else { rows }
    }

    /// Width of the longest word of each column.
    fn longest_words(&self) -> Vec<usize> {
        let headings = self.headings().enumerate();
        headings.map(|(at, heading)| self.longest_value(at).max(longest_word(heading))).collect()
    }

    fn longest_value(&self, column: usize) -> usize {
        self.rows.iter().map(|row| longest_word(&row[column].shown())).max().unwrap_or(0)
    }

    fn text(&self, markdown: bool, Shown { width, bold }: Shown) -> String {
        let mut text = TextTable::new();
        let between = LineStyle::none().fill(BETWEEN);
        let rows_apart = presets::NOTHING.header_separator(between).row_separator(between);
        text.load_style(if markdown { presets::ASCII_MARKDOWN } else { rows_apart });
        // An unescaped bar would end a Markdown cell.
        let shown = |cell: &Cell| if markdown { cell.shown().replace('|', "\\|") } else { cell.shown() };
        if self.facts {
            if markdown {
                text.set_header(["", ""]);
            }
            for (heading, cell) in self.headings().zip(&self.rows[0]) {
                text.add_row([heading.to_owned(), shown(cell)]);
            }
        } else {
            text.set_header(self.headings());
            for row in &self.rows {
                text.add_row(row.iter().map(shown));
            }
            for (i, column) in text.column_iter_mut().enumerate() {
                let said = self.rows.iter().map(|row| &row[i]).find(|cell| **cell != Cell::None);
                let words = matches!(said, Some(Cell::Text(_)));
                column.set_cell_alignment(if words { CellAlignment::Left } else { CellAlignment::Right });
            }
        }
        if let Some(width) = width {
            text.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
            let headings = || self.headings().map(longest_word).max().unwrap_or(0);
            let values = || (0..self.columns.len()).map(|at| self.longest_value(at)).max().unwrap_or(0);
            let least: Vec<usize> =
                if self.facts { vec![headings(), values()] } else { self.longest_words() };
            for (column, least) in text.column_iter_mut().zip(least) {
                let least = u16::try_from(least + PADDING).unwrap_or(u16::MAX);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
            }
        }
        if markdown { text.trim_fmt() } else { self.lines(&text.trim_fmt(), bold) }
    }

    /// Lines of a rendered table, without the separators between its rows; if `bold`, headings and the chosen row are bold.
    fn lines(&self, apart: &str, bold: bool) -> String {
        let headings = usize::from(!self.facts);
        let mut row = 0;
        let mut lines = Vec::new();
        for line in apart.lines() {
            if line.contains(BETWEEN) {
                row += 1;
                continue;
            }
            let is_chosen = self.chosen.is_some_and(|chosen| self.facts || row == chosen + headings);
            let stands_out = bold && (is_chosen || row < headings);
            lines.push(if stands_out { format!("\u{1b}[1m{line}\u{1b}[0m") } else { line.to_owned() });
        }
        lines.join("\n")
    }
}

/// Joins tables into one CSV table. With several, a first column `table` holds each row's key, followed by the
/// columns of all tables; a row's cells stay empty in the columns that its table lacks.
fn csv(tables: &[Table]) -> Vec<u8> {
    let mut columns: Vec<&str> = Vec::new();
    for (key, _) in tables.iter().flat_map(|table| &table.columns) {
        if !columns.contains(key) {
            columns.push(key);
        }
    }
    let plain = |value: Value| match value {
        Value::String(text) => in_csv(&text),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let of = |table: &Table, row: &[Cell], column: &str| {
        let at = table.columns.iter().position(|(key, _)| *key == column);
        at.map_or(String::new(), |at| plain(row[at].value()))
    };
    let first = |words: &str| (tables.len() > 1).then(|| words.to_owned());
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |first: Option<String>, cells: Vec<String>| {
        writer
            .write_record(first.into_iter().chain(cells))
            .expect("records of one length, written to memory");
    };
    write(first("table"), columns.iter().map(|key| (*key).to_owned()).collect());
    for table in tables {
        for row in &table.rows {
            write(first(table.key), columns.iter().map(|column| of(table, row, column)).collect());
        }
    }
    writer.into_inner().expect("flushing to memory")
}

/// Writes to stdout. A closed pipe is no error; a full disk is.
pub fn write_stdout(bytes: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match aside(|| out.write_all(bytes).and_then(|()| out.flush())) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io(Path::new("standard output"), "write to", &error))
        }
        _ => Ok(()),
    }
}

/// Returns `true` if output is styled: on a terminal that supports styles, unless `NO_COLOR` is set.
fn has_styles() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    Term::stdout().is_term() && !is_dumb && !is_set("NO_COLOR")
}

/// Prints tables on stdout in the chosen format; prints nothing if there are none.
pub fn print(format: Format, tables: &[Table]) -> Result<(), Error> {
    if tables.is_empty() {
        return Ok(());
    }
    let mut out = Vec::new();
    match format {
        Format::Json => {
            let by_key = tables.iter().map(|table| (table.key.to_owned(), table.objects()));
            let value = Value::Object(by_key.collect());
            let text = serde_json::to_string_pretty(&value).expect("cells hold strings and numbers");
            out.extend_from_slice(visible_json(&text).as_bytes());
            out.push(b'\n');
        }
        Format::Csv => out = csv(tables),
        Format::Table | Format::Md => {
            let width = Term::stdout().size_checked().map(|(_, columns)| columns);
            let how = Shown { width, bold: has_styles() };
            // People do not see headings of empty tables; programs get the empty list.
            for (i, table) in tables.iter().filter(|table| !table.rows.is_empty()).enumerate() {
                out.extend_from_slice(if i > 0 { b"\n" } else { b"" });
                let text = match format {
                    Format::Md => table.text(true, Shown::default()),
                    _ => table.shown(how),
                };
                out.extend_from_slice(text.as_bytes());
                out.push(b'\n');
            }
        }
    }
    write_stdout(&out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_study::words::is_obeyed;

    fn of_width(width: u16) -> Shown {
        Shown { width: Some(width), bold: false }
    }

    #[test]
    fn headings_and_the_chosen_row_stand_out_and_nothing_moves() {
        let mut table = Table::new("runs", &[("run", "run"), ("why", "why it is so")]);
        table.rows = ["first", "second", "third"]
            .map(|run| vec![run.into(), "for a reason of some length".into()])
            .to_vec();
        let table = table.chosen(Some(1));
        for width in [None, Some(30), Some(20)] {
            let [plain, bold] = [false, true].map(|bold| table.shown(Shown { width, bold }));
            let marks = ["\u{1b}[1m", "\u{1b}[0m"];
            assert_eq!(marks.iter().fold(bold.clone(), |text, mark| text.replace(mark, "")), plain);
            let is_bold = |word: &str| {
                let mut of_word = bold.lines().filter(|line| line.contains(word)).peekable();
                assert!(of_word.peek().is_some(), "{bold}");
                of_word.all(|line| line.starts_with(marks[0]) && line.ends_with(marks[1]))
            };
            assert!(is_bold("second") && !is_bold("first") && !is_bold("third"), "{bold}");
            // A heading is as bold as the value in its row.
            assert!(width == Some(20) || is_bold("why it"), "{bold}");
        }
    }

    #[test]
    fn small_learning_rates_keep_their_digits() {
        for (rate, shown) in [(0.05, "0.0500"), (2.0, "2.0000"), (0.000_243, "0.000243"), (0.0, "0.0000")] {
            let table = Table::facts("run", vec![("rate", "rate", Cell::learning_rate(rate))]);
            assert!(
                table.text(false, Shown::default()).trim_end().ends_with(shown),
                "{rate}: {}",
                table.text(false, Shown::default())
            );
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
            let csv = String::from_utf8(csv(std::slice::from_ref(&table))).expect("text");
            let cell = csv.lines().nth(1).expect("one row").trim_start_matches('"');
            assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r']), "{cell}");
            assert!(csv.trim_end().ends_with(",-1.0"), "numbers stay: {csv}");
            for text in [
                json,
                csv,
                table.text(false, Shown::default()),
                table.text(true, Shown::default()),
                table.shown(of_width(20)),
            ] {
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
        assert!(table.text(false, Shown::default()).contains("1.5 KiB"));
        assert_eq!(String::from_utf8(csv(&[table])).unwrap(), "pool_bytes,gap\n1536,0.015\n");
    }

    #[test]
    fn several_tables_are_one_of_comma_separated_values() {
        let facts =
            Table::facts("choice", vec![("batch", "batch", 4u64.into()), ("why", "why", "a, b".into())]);
        let mut rows = Table::new("runs", &[("run", "run"), ("batch", "batch")]);
        rows.rows = vec![vec!["first".into(), 8u64.into()], vec!["second".into(), Cell::None]];
        let text = String::from_utf8(csv(&[facts, rows])).expect("text");
        let expected = "table,batch,why,run\nchoice,4,\"a, b\",\nruns,8,,first\nruns,,,second\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_terminal_gets_lines_that_end_between_words() {
        let why = "memory is not short across it, at most 1.726 MiB of 2.255 MiB are in use";
        let facts = Table::facts(
            "t",
            vec![("largest", "largest batch that fits", 97u64.into()), ("why", "why", why.into())],
        );
        let columns = [("layer", "layer"), ("seconds", "moving, again, waiting"), ("why", "why")];
        let mut narrow = Table::new("layers", &columns);
        narrow.rows = vec![vec!["layer1.0.conv1".into(), Seconds(0.0012).into(), why.into()]; 3];
        let names = ["makespan", "recomputed", "offloaded", "planning", "resident", "feasible", "infeasible"];
        let mut wide = Table::new("frontier", &names.map(|name| (name, name)));
        wide.rows = vec![names.map(Cell::from).to_vec(); 2];
        let words = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        for table in [facts, narrow, wide] {
            let whole = table.shown(Shown::default());
            let wrapped = table.shown(of_width(60));
            assert!(whole.lines().any(|line| line.len() > 60), "{whole}");
            assert!(wrapped.lines().all(|line| line.len() <= 60), "{wrapped}");
            let mut known = words(&whole);
            known.dedup();
            assert!(words(&wrapped).iter().all(|word| known.contains(word)), "a word is broken: {wrapped}");
        }
        // A word wider than the terminal stays whole, so that it can be copied.
        let path = "/a/folder/with/a/very/long/name/that/no/terminal/is/wide/enough/for/schedule.json";
        let kept = Table::facts("t", vec![("kept", "kept in", path.into())]);
        assert!(kept.shown(of_width(40)).contains(path), "{}", kept.shown(of_width(40)));
    }
}
